"""The commands `lockstep report`, `lockstep import` and `lockstep demo`."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.core.metrics import GOOD_EFFICIENCY
from lockstep.core.processes import collector_paused
from lockstep.report.bundle import opening
from lockstep.report.pack import pack_cli
from lockstep.report.page import export_options

if TYPE_CHECKING:
    from lockstep.report.check.checker import Finding
    from lockstep.report.compute.evaluation import Evaluation
    from lockstep.report.compute.scaling import Series
    from lockstep.report.load.results import Results, Row

REPORT = "report.html"

REPORT_EXAMPLES = """
\b
Examples:
  lockstep report results/laptop
  lockstep report results/a results/b --output both.html
  lockstep report results/laptop --baseline 2 --threshold 0.8
  lockstep report results/first --cost-per-gpu-hour 2.50
  lockstep report results/laptop --csv > points.csv
  lockstep report results/laptop --svg --pdf --png --redact
  lockstep report results/runs     trainings: accuracy, time to it, from CPU to nodes

\b
The columns of --csv and --json are described by: python -m lockstep.report.columns
"""

IMPORT_EXAMPLES = """
\b
Examples:
  lockstep import table.csv --to results/cited
  lockstep import table.csv --to results/cited --dry-run      how each column is read
  lockstep import job_1gpu.csv job_2gpu.csv --to results/epochs --dataset-size 50000
  lockstep import guide --to results/guide      ships with Lockstep, as do cyclone, hpc_t4 and
                                                hpc_expected

\b
A table has the columns n, value, metric, unit and may add table_id, scaling, source,
global_batch, local_batch, steps, samples, precision, model, nodes and note:
  metric   time, time_to_train, epoch_time, step_time or throughput
  unit     ms, s, min, h, d, or something per second: samples/s, images/s, tokens/s
           what is that of one device or node (tokens/s/GPU), or of steps (it/s beside a batch),
           is multiplied, with a word said
  scaling  strong, weak or fixed-epochs
In place of value, metric and unit, columns may say what they are: Img/sec, step time (ms); cells
may be typed as usual: 2,470 or 938 img/s or 1:30:00 or 8x V100.
Further columns are kept: lockstep report --json and --csv print them as details. One that names
what was varied at a size, such as strategy, makes a table of each of its values.
"""


@click.command("report", epilog=REPORT_EXAMPLES + pack_cli.EXAMPLES)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Page to write [DIR/report.html].")
@click.option("--csv", "as_csv", is_flag=True, help="Print the points as CSV; write no page.")
@click.option("--json", "as_json", is_flag=True, help="Print the points as JSON; write no page.")
@click.option("--baseline", type=int, help="World size that ratios divide by.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), default=GOOD_EFFICIENCY, show_default=True,
    help="Least parallel efficiency that is called good.",
)  # fmt: skip
@click.option(
    "--cost-per-gpu-hour", type=click.FloatRange(min=0), help="Price of a GPU-hour, for a cost.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a page that is no Lockstep report.")
@export_options.options
@pack_cli.options
@opening.of_bundles(opening.DATA)
@collector_paused(is_last=True)
def report(
    paths: tuple[Path, ...],
    output: Path | None,
    as_csv: bool,
    as_json: bool,
    baseline: int | None,
    threshold: float,
    cost_per_gpu_hour: float | None,
    force: bool,
    **more: Any,
) -> int:
    """Turn results into one self-contained page and a table of speed-up and efficiency.

    Each PATH is a campaign folder, a folder of pytest-benchmark files, one such file, a folder of
    trainings, one that `lockstep import` wrote, or an archive of `lockstep bundle`.
    Launches that may not be pooled with most of their point are left out, and the exit code is 1;
    where that leaves no point, it is 2. The page and the table give no ratio of a point that an
    error of lockstep check touches.
    """
    from lockstep.report.load.reading import gather
    from lockstep.report.page.content_of_page import page as build_page

    _refuse_options(as_csv and as_json, threshold, cost_per_gpu_hour)
    results = gather(paths)
    redact = export_options.redactor(results, more)
    evaluation = _judge(results, baseline, cost_per_gpu_hour)
    if more["proposal"]:
        return pack_cli.write(evaluation, paths, threshold, force, redact, more)
    pack_cli.refuse_alone(more)
    code = 1 if results.unread or results.conflicts else 0
    if as_csv or as_json:
        _print_records(evaluation, as_csv, redact)
        return code
    target = _target(output, paths[0], force)
    command = _command(export_options.named(paths, more), baseline, threshold, cost_per_gpu_hour)
    page = redact(build_page(evaluation, threshold, command))
    _print_points(results, evaluation.series, threshold)
    _publish(page, evaluation.findings, target)
    export_options.write_figures(page, target.parent, more)
    return code


def _refuse_options(both: bool, threshold: float, cost_per_gpu_hour: float | None) -> None:
    """Refuse what no option of click does: --csv and --json, and numbers that are none."""
    from lockstep.core.inputs import MAX_RATE

    if both:
        raise ValueError("--csv and --json both want stdout; choose one")
    if math.isnan(threshold):
        raise ValueError("--threshold nan is no efficiency; give one from 0 to 1")
    if cost_per_gpu_hour is not None and not cost_per_gpu_hour <= MAX_RATE:  # nan, too
        raise ValueError(
            f"--cost-per-gpu-hour {cost_per_gpu_hour:g} is no price; give one from 0 to {MAX_RATE}"
        )


def _judge(
    results: "Results", baseline: int | None, cost_per_gpu_hour: float | None
) -> "Evaluation":
    """Evaluate the results, and print the errors of the check and what is left out."""
    from lockstep.report.check import checker
    from lockstep.report.compute.evaluation import evaluate

    evaluation = evaluate(results, baseline, cost_per_gpu_hour)
    checker.say_errors(evaluation.findings)
    _say_kept(evaluation, baseline)
    return evaluation


def _target(output: Path | None, first: Path, force: bool) -> Path:
    """Return where the page goes: beside the first results, or where --output says."""
    from lockstep.report.page import render

    target = output or (first if first.is_dir() else first.parent) / REPORT
    render.refuse_foreign(target, force, "--output")
    return target


def _say_kept(evaluation: "Evaluation", baseline: int | None) -> None:
    """Say which launches are left out, and which series keep another baseline."""
    if evaluation.left_out:
        click.echo(f"{evaluation.not_pooled}\n", err=True)
    series = evaluation.series if baseline is not None else []
    others = [curve for curve in series if curve.baseline != baseline]
    if others:
        sizes = sorted({curve.baseline for curve in others})
        click.echo(
            f"{len(others)} series have no point at {baseline} and keep their smallest size "
            f"{sizes} as baseline",
            err=True,
        )


def _print_records(evaluation: "Evaluation", as_csv: bool, redact: Callable[[Any], Any]) -> None:
    from lockstep.report.columns import table

    records = redact(table(evaluation.series))
    if as_csv:
        click.echo(_csv(records), nl=False)
    else:
        import json

        document = {
            "schema": 1,
            "points": records,
            "left_out": redact(_left_out(evaluation.left_out)),
        }
        click.echo(json.dumps(document, indent=1, allow_nan=False))


def _left_out(rows: "list[Row]") -> list[dict[str, Any]]:
    """Return the launches left out of each point."""
    points: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        points.setdefault((row.case, row.world_size), []).append(row.launch)
    return [
        {"case": case, "world_size": size, "launches": launches}
        for (case, size), launches in points.items()
    ]


def _csv(records: list[dict[str, Any]]) -> str:
    import csv
    import io

    if not records:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_cells, records))
    return text.getvalue()


def _cells(record: dict[str, Any]) -> dict[str, Any]:
    """Return a point as a line of CSV: lists and objects as text, and no text a formula."""
    import json

    from lockstep.report.words.escapes import csv_text

    details = json.dumps(record["details"]) if record["details"] else ""
    texts = record | {
        "flags": "; ".join(flag["words"] for flag in record["flags"]),
        "blocked_by": "; ".join(record["blocked_by"]),
        "details": details,
    }
    return {name: csv_text(cell) if isinstance(cell, str) else cell for name, cell in texts.items()}


def _command(
    paths: tuple[Path, ...], baseline: int | None, threshold: float, cost: float | None
) -> str:
    """Return the command line whose figures are these, defaults spelt out."""
    import shlex

    chosen = ["--baseline", str(baseline)] if baseline is not None else []
    chosen += ["--cost-per-gpu-hour", str(cost)] if cost is not None else []
    words = ["lockstep", "report", *map(str, paths), *chosen, "--threshold", str(threshold)]
    return shlex.join(words)


def _print_points(results: "Results", series: "list[Series]", threshold: float) -> None:
    from lockstep.report.words import console, verdict_card

    lines = console.point_lines(results, series)
    for line in [*lines, *verdict_card.printed(series, threshold, has_next=False)]:
        click.echo(line)


def _publish(page: dict[str, Any], findings: "list[Finding]", target: Path) -> None:
    """Write the page, print what it says first and how to open it."""
    from lockstep.report.check import checker
    from lockstep.report.page import render
    from lockstep.report.words import console

    render.write(page, target)
    for line in console.verdict(page):
        click.echo(line)
    where = "; the page and lockstep check name them" if findings else ""
    click.echo(f"check: {checker.counts(findings)}{where}")
    click.echo(f"report: {click.format_filename(target)}")
    click.echo(f"open it in a browser: {target.resolve().as_uri()}")


@click.command("import", epilog=IMPORT_EXAMPLES)
@click.argument("tables", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--to", "folder", required=True, type=click.Path(path_type=Path, file_okay=False),
    help="Folder.",
)  # fmt: skip
@click.option(
    "--dataset-size", type=click.IntRange(min=1), default=50_000, show_default=True,
    help="Samples in one epoch, for logs of epochs.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an imported.json that is there.")
@click.option("--dry-run", is_flag=True, help="Print how the tables are read, and write nothing.")
def import_table(
    tables: tuple[Path, ...], folder: Path, dataset_size: int, force: bool, dry_run: bool
) -> None:
    """Bring published tables or logs of epochs in as cited results, for `lockstep report`.

    Each TABLE is a file of CSV or Markdown, or the name of one that ships with Lockstep.
    """
    from lockstep.core.formats import counted
    from lockstep.report.load import imports
    from lockstep.report.words import lines

    known = imports.built_in()
    files = [path if path.exists() else known.get(str(path), path) for path in tables]
    imported = imports.read(files, dataset_size)
    for columns in imported.columns.values():
        header = ("column", "read as", "unit", "first cell", "read")
        for line in lines.table(
            [header, *[[cell or "-" for cell in column] for column in columns]]
        ):
            click.echo(line)
    target = folder if dry_run else imports.write(imported, files, folder, force)
    for warning in imported.warnings:
        click.echo(f"warning: {warning}", err=True)
    for fact in imported.facts:
        click.echo(fact)
    rows = sum(len(table["rows"]) for table in imported.tables.values())
    found = f"{counted(rows, 'row')} in {counted(len(imported.tables), 'table')}"
    if dry_run:
        click.echo(f"{found}; nothing was written")
        return
    click.echo(f"{found}: {target}")
    click.echo(f"next: lockstep report {folder}")


@click.command()
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default="results/demo",
    show_default=True,
    help="Folder for the campaign and its page.",
)
@click.option(
    "--recording",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Another recorded campaign than the one that ships.",
)
@click.pass_context
def demo(context: click.Context, folder: Path, recording: Path | None) -> int:
    """Make the page of a campaign that was recorded, in seconds: no torch, no GPU, no Slurm.

    \b
    Examples:
      lockstep demo
      lockstep demo --to results/look
    """
    from lockstep.report.load import recorded

    shipped = recorded.shipped()
    if recording is None and not shipped:
        raise ValueError(
            "no recorded campaign ships with this Lockstep; `lockstep run` measures one here, or "
            "give --recording"
        )
    recorded.unpack(recording or next(iter(shipped.values())), folder)
    return int(context.invoke(report, paths=(folder,)))
