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

if TYPE_CHECKING:
    from lockstep.report.compute.evaluation import Evaluation

REPORT, FIGURES = "report.html", "figures"

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
@click.option("--svg", is_flag=True, help="Write figures/ beside the page, as SVG.")
@click.option("--pdf", is_flag=True, help="The same as PDF.")
@click.option("--png", is_flag=True, help="The same as PNG.")
@click.option("--redact", is_flag=True, help="Leave out hosts, users, paths, environment.")
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
    redact: bool,
    svg: bool,
    pdf: bool,
    png: bool,
    **more: Any,
) -> int:
    """Turn results into one self-contained page and a table of speed-up and efficiency.

    Each PATH is a campaign folder, a folder of pytest-benchmark files, one such file, a folder of
    trainings, one that `lockstep import` wrote, or an archive of `lockstep bundle`.
    Launches that may not be pooled with most of their point are left out, and the exit code is 1;
    where that leaves no point, it is 2. The page and the table give no ratio of a point that an
    error of lockstep check touches.
    """
    import json

    from lockstep.core.inputs import MAX_RATE
    from lockstep.report.columns import table
    from lockstep.report.compute.evaluation import evaluate
    from lockstep.report.load.reading import gather
    from lockstep.report.load.redaction import Redactor

    if as_csv and as_json:
        raise ValueError("--csv and --json both want stdout; choose one")
    if math.isnan(threshold):
        raise ValueError("--threshold nan is no efficiency; give one from 0 to 1")
    if cost_per_gpu_hour is not None and not cost_per_gpu_hour <= MAX_RATE:  # nan, too
        raise ValueError(
            f"--cost-per-gpu-hour {cost_per_gpu_hour:g} is no price; give one from 0 to {MAX_RATE}"
        )
    results = gather(paths)
    redacted: Callable[[Any], Any] = Redactor(results) if redact else lambda data: data
    evaluation = evaluate(results, baseline, cost_per_gpu_hour)
    _say_errors(evaluation, baseline)
    if more["proposal"]:
        more["redact"] = redact
        return pack_cli.write(evaluation, paths, threshold, force, redacted, more)
    pack_cli.refuse_alone(more)
    code = 1 if results.unread or results.conflicts else 0
    if as_csv:
        click.echo(_csv(redacted(table(evaluation.series))), nl=False)
    elif as_json:
        left_out: dict[tuple[str, int], list[str]] = {}
        for row in evaluation.left_out:
            left_out.setdefault((row.case, row.world_size), []).append(row.launch)
        document = {
            "schema": 1,
            "points": redacted(table(evaluation.series)),
            "left_out": redacted([
                {"case": case, "world_size": size, "launches": launches}
                for (case, size), launches in left_out.items()
            ]),
        }  # fmt: skip
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        words = [str(path) for path in ([Path("DIR")] if redact else paths)]
        words += ["--baseline", str(baseline)] if baseline is not None else []
        if cost_per_gpu_hour is not None:
            words += ["--cost-per-gpu-hour", str(cost_per_gpu_hour)]
        words += ["--threshold", str(threshold)]
        first = paths[0]
        target = output or (first if first.is_dir() else first.parent) / REPORT
        formats = [name for name, is_on in (("svg", svg), ("pdf", pdf), ("png", png)) if is_on]
        _write_page(evaluation, threshold, words, target, force, redacted, formats)
    return code


def _say_errors(evaluation: "Evaluation", baseline: int | None) -> None:
    """Say what the check finds, what is left out, and which series keep another baseline."""
    from lockstep.report.check import checker

    checker.say_errors(evaluation.findings)
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


def _csv(records: list[dict[str, Any]]) -> str:
    """Return points as CSV: lists and objects as text, and no text a formula."""
    import csv
    import io
    import json

    from lockstep.report.words.escapes import csv_text

    if not records:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        cells = record | {
            "flags": "; ".join(flag["words"] for flag in record["flags"]),
            "blocked_by": "; ".join(record["blocked_by"]),
            "details": json.dumps(record["details"]) if record["details"] else "",
        }
        writer.writerow({
            name: csv_text(cell) if isinstance(cell, str) else cell for name, cell in cells.items()
        })  # fmt: skip
    return text.getvalue()


def _write_page(
    evaluation: "Evaluation",
    threshold: float,
    words: list[str],
    target: Path,
    force: bool,
    redacted: Callable[[Any], Any],
    formats: list[Any],
) -> None:
    """Print the points, write the page and figures, and print what the page says first."""
    import shlex

    from lockstep.report.check import checker
    from lockstep.report.page import render
    from lockstep.report.page.content_of_page import page as build_page
    from lockstep.report.words import console, names, verdict_card
    from lockstep.report.words.lines import sentence

    render.refuse_foreign(target, force, "--output")
    page = redacted(build_page(evaluation, threshold, shlex.join(["lockstep", "report", *words])))
    findings = evaluation.findings
    series, shared = names.short(evaluation.series)
    lines = [
        *sentence(shared, console.NARROWEST),
        *console.point_lines(evaluation.results, series),
        *verdict_card.printed(series, threshold, has_next=False),
    ]
    for line in lines:
        click.echo(line)
    render.write(page, target)
    for line in console.verdict(page):
        click.echo(line)
    where = "; the page and lockstep check name them" if findings else ""
    click.echo(f"check: {checker.counts(findings)}{where}")
    click.echo(f"report: {click.format_filename(target)}")
    click.echo(f"open it in a browser: {target.resolve().as_uri()}")
    if formats:
        # Matplotlib takes a second to import.
        from lockstep.report.page import figures

        folder = target.parent / FIGURES
        written = figures.write(page, folder, formats)
        click.echo(f"figures: {len(written)} files in {click.format_filename(folder)}")


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
    "--to", "folder", type=click.Path(path_type=Path, file_okay=False), default="results/demo",
    show_default=True, help="Folder for the campaign and its page.",
)  # fmt: skip
@click.option(
    "--recording", type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Another recorded campaign than the one that ships.",
)  # fmt: skip
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
