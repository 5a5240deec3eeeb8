"""The commands `lockstep report`, `lockstep import` and `lockstep demo`."""

import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.core.files import default_folder
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
  lockstep report results/runs     for training runs: accuracy and the time to reach it

\b
To see what the columns of --csv and --json mean, run: python -m lockstep.report.columns
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
           a rate of one device or node (tokens/s/GPU), or of steps (it/s beside a batch), is
           converted to samples/s of all ranks; a message says so
  scaling  strong, weak or fixed-epochs
In place of value, metric and unit, headings may name quantity and unit: Img/sec, step time (ms).
Cells may be typed as usual: 2,470 or 938 img/s or 1:30:00 or 8x V100.
Further columns are kept: lockstep report --json and --csv print them as details. A column
with several values at one size, such as strategy, splits the table by its values.
"""


@click.command("report", epilog=REPORT_EXAMPLES + pack_cli.EXAMPLES)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Page to write [DIR/report.html].")
@click.option("--csv", "as_csv", is_flag=True, help="Print the points as CSV, and write no page.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the points as JSON, and write no page."
)
@click.option("--baseline", type=int, help="World size of the baseline.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), default=GOOD_EFFICIENCY, show_default=True,
    help="Lowest parallel efficiency that is called good.",
)  # fmt: skip
@click.option(
    "--cost-per-gpu-hour", type=click.FloatRange(min=0),
    help="Price of a GPU-hour; adds costs to the report.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite a file that is not a Lockstep report.")
@click.option("--svg", is_flag=True, help="Also write SVG figures into figures/ beside the page.")
@click.option("--pdf", is_flag=True, help="Also write PDF figures into figures/ beside the page.")
@click.option("--png", is_flag=True, help="Also write PNG figures into figures/ beside the page.")
@click.option(
    "--redact", is_flag=True, help="Leave hosts, users, paths and environment out of all output."
)
@click.option(
    "--proposal", type=click.Choice(pack_cli.FORMS),
    help=(
        "Instead of the page, write a pack of text and figures for a compute-time proposal, paper "
        "or slides."
    ),
)  # fmt: skip
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    help="Folder to write the pack into; by default the first PATH followed by - and the value of "
    "--proposal.",
)
@click.option(
    "--work", help="TOML file of the runs you request; `example` is a built-in file to try."
)
@click.option("--despite", is_flag=True, help="Write the pack in spite of the printed objections.")
@opening.accept_bundles(opening.DATA)
@collector_paused(is_last=True)
def report(
    paths: tuple[Path, ...], output: Path | None, as_csv: bool, as_json: bool,
    baseline: int | None, threshold: float, cost_per_gpu_hour: float | None, force: bool,
    redact: bool, svg: bool, pdf: bool, png: bool, **pack: Any,
) -> int:  # fmt: skip
    """Turn results into one self-contained page and a table of speed-up and efficiency.

    Each PATH is a campaign folder, a folder of pytest-benchmark files, one such file, a folder of
    training runs, a folder that `lockstep import` wrote, or an archive of `lockstep bundle`.
    Launches that cannot be pooled with most launches of their point are left out. The exit code is
    then 1, or 2 if no point remains. If `lockstep check` finds an error about a point, the page and
    the table show no ratio of it.
    """
    import json

    from lockstep.core.inputs import MAX_RATE
    from lockstep.report.check import checker
    from lockstep.report.columns import csv_of, table
    from lockstep.report.compute.evaluation import evaluate
    from lockstep.report.load.reading import gather
    from lockstep.report.load.redaction import Redactor

    if as_csv and as_json:
        raise ValueError("--csv and --json both write to stdout; choose one")
    if math.isnan(threshold):
        raise ValueError("--threshold nan is not an efficiency; give a number from 0 to 1")
    if cost_per_gpu_hour is not None and not cost_per_gpu_hour <= MAX_RATE:  # rejects nan, too
        raise ValueError(
            f"--cost-per-gpu-hour {cost_per_gpu_hour:g} is not a price; give a number from 0 to "
            f"{MAX_RATE}"
        )
    results = gather(paths)
    redacted: Callable[[Any], Any] = Redactor(results) if redact else lambda data: data
    evaluation = evaluate(results, baseline, cost_per_gpu_hour)
    checker.say_errors(evaluation.findings)
    if evaluation.left_out:
        click.echo(f"{evaluation.not_pooled}\n", err=True)
    others = [s.baseline for s in evaluation.series if baseline not in (None, s.baseline)]
    if others:
        num_series, sizes = len(others), sorted(set(others))
        click.echo(
            f"{num_series} series have no point at world size {baseline}, so their baseline is "
            f"their smallest world size: {sizes}",
            err=True,
        )
    if pack["proposal"]:
        return pack_cli.write(evaluation, paths, threshold, force, redacted, pack)
    if alone := [name for name in ("to", "work", "despite") if pack[name]]:
        raise ValueError(f"--{alone[0]} needs --proposal")
    code = 1 if results.unread or results.conflicts else 0
    if as_csv:
        click.echo(csv_of(redacted(table(evaluation.series))), nl=False)
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
        words = ["lockstep", "report", *(["DIR"] if redact else map(str, paths))]
        words += ["--baseline", str(baseline)] if baseline is not None else []
        if cost_per_gpu_hour is not None:
            words += ["--cost-per-gpu-hour", str(cost_per_gpu_hour)]
        command = shlex.join([*words, "--threshold", str(threshold)])
        target = output or (paths[0] if paths[0].is_dir() else paths[0].parent) / REPORT
        formats = [name for name, is_on in (("svg", svg), ("pdf", pdf), ("png", png)) if is_on]
        _write_page(evaluation, threshold, command, target, force, redacted, formats)
    return code


def _write_page(
    evaluation: "Evaluation", threshold: float, command: str, target: Path, force: bool,
    redacted: Callable[[Any], Any], formats: list[Any],
) -> None:  # fmt: skip
    from lockstep.report.check import checker
    from lockstep.report.page import render
    from lockstep.report.page.content_of_page import page as build_page
    from lockstep.report.words import console, headline, names, verdict_card
    from lockstep.report.words.lines import sentence

    render.refuse_foreign(target, force, "--output")
    page = redacted(build_page(evaluation, threshold, command))
    series, shared = names.short(evaluation.series)
    lines = [
        *sentence(shared, console.NARROWEST),
        *console.point_lines(evaluation.results, series),
        *(
            line
            for text in headline.choice_sentences(series, threshold)
            for line in sentence(text, console.NARROWEST)
        ),
        *verdict_card.printed(series, threshold, has_next=False),
    ]
    click.echo("\n".join(lines))
    render.write(page, target)
    click.echo("\n".join(console.verdict(page)))
    click.echo(f"check: {checker.counts(evaluation.findings, evaluation.results)}")
    if evaluation.findings:
        click.echo("To see these findings, open the page or run lockstep check.")
    click.echo(f"report: {click.format_filename(target)}")
    uri = target.resolve().as_uri()
    click.echo(f"open the page in a browser: {uri}")
    if formats:
        from lockstep.report.page import figures

        folder = target.parent / FIGURES
        written = figures.write(page, folder, formats)
        click.echo(f"figures: {len(written)} files in {click.format_filename(folder)}")


@click.command("import", epilog=IMPORT_EXAMPLES)
@click.argument("tables", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--to", "folder", required=True, type=click.Path(path_type=Path, file_okay=False),
    help="Folder in which to write imported.json.",
)  # fmt: skip
@click.option(
    "--dataset-size", type=click.IntRange(min=1), default=50_000, show_default=True,
    help="Number of samples in one epoch, for logs that have one line per epoch.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing imported.json.")
@click.option("--dry-run", is_flag=True, help="Print how the tables are read, and write nothing.")
def import_table(
    tables: tuple[Path, ...], folder: Path, dataset_size: int, force: bool, dry_run: bool
) -> None:
    """Import published tables or logs of epochs as cited results, for `lockstep report`.

    Each TABLE is a CSV or Markdown file, or the name of a table that ships with Lockstep.
    """
    from lockstep.core.formats import counted
    from lockstep.report.load import imports
    from lockstep.report.words import lines

    known = imports.built_in()
    files = [path if path.exists() else known.get(str(path), path) for path in tables]
    imported = imports.read(files, dataset_size)
    for columns in imported.columns.values():
        header = ("column", "read as", "unit", "first cell", "read")
        cells = [[cell or "-" for cell in column] for column in columns]
        click.echo("\n".join(lines.table([header, *cells])))
    target = folder if dry_run else imports.write(imported, files, folder, force)
    for warning in imported.warnings:
        click.echo(f"warning: {warning}", err=True)
    for fact in imported.facts:
        click.echo(fact)
    num_rows = sum(len(table["rows"]) for table in imported.tables.values())
    contents = f"{counted(num_rows, 'row')} in {counted(len(imported.tables), 'table')}"
    if dry_run:
        click.echo(f"{contents}; nothing was written")
    else:
        click.echo(f"{contents}: {target}\nnext: lockstep report {folder}")


@click.command()
@click.option(
    "--to", "folder", type=click.Path(path_type=Path, file_okay=False),
    default=default_folder("results/demo"),
    show_default=True, help="Folder for the campaign and its page.",
)  # fmt: skip
@click.option(
    "--recording", type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Recorded campaign to use in place of the one that ships with Lockstep.",
)  # fmt: skip
@click.pass_context
def demo(context: click.Context, folder: Path, recording: Path | None) -> int:
    """Make the page of a recorded campaign in seconds, without torch, GPU or Slurm.

    \b
    Examples:
      lockstep demo
      lockstep demo --to results/look
    """
    from lockstep.report.load import recorded

    shipped = recorded.list_shipped()
    if recording is None and not shipped:
        raise ValueError(
            "no recorded campaign ships with this Lockstep; measure one with `lockstep run`, or "
            "pass --recording FILE"
        )
    recorded.unpack(recording or next(iter(shipped.values())), folder)
    return int(context.invoke(report, paths=(folder,)))
