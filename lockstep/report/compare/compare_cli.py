"""The command `lockstep compare`."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lockstep.report.bundle import opening

EXAMPLES = """
\b
Examples:
  lockstep compare results/before results/after
  lockstep compare results/before results/after --margin 0.01
  lockstep compare results/fp32 results/bf16 --allow precision
  lockstep compare results/sgd results/adamw --allow step  # other optimizer, strategy, bucket size
  lockstep compare results/campaign results/spread --allow layout  # what do more nodes cost?
  lockstep compare results/runs results/tuned --allow training  # other rate, epochs, loader
  lockstep compare results/before results/after --markdown > comparison.md
  lockstep compare results/before results/after --json
  lockstep compare results/before results/after --html comparison.html --redact
  lockstep compare results/before results/after --document optimisation  # two or three pages

\b
To rule out a drift of the machine, measure A and B in the order A B B A. If launches vary by 2 %,
five launches per side detect a point that is 5 % slower 9 times in 10.
--allow layout compares the same number of ranks on fewer and on more nodes. Measure twice, the
second time with a lower max_ranks_per_node in the site file. Set threads_per_rank in the campaign;
otherwise a rank that is alone on a node uses all of its CPUs.
A point is blocked if lockstep check finds an error in the results of either side. For a point that
is too noisy, the text gives the number of launches needed. Each comparison is recorded in
looks.jsonl next to B's results, since comparing again after more launches needs wider intervals.
Exit code: 1 if a point is slower or blocked, 2 if the sides cannot be compared, else 0. The code is
also 0 if all points are too noisy to judge.
"""
# Keys of comparison.MUST_AGREE, here so that --help needs no numpy; a test compares them.
ALLOWABLE = ("workload", "scaling", "precision", "batch", "unit", "origin", "layout", "device",
             "training", "step")  # fmt: skip


@click.command("compare", epilog=EXAMPLES)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--margin", type=float, default=0.03, show_default=True,
              help="Largest relative difference at which two rates count as the same.")  # fmt: skip
@click.option("--allow", "allowed", multiple=True, type=click.Choice(ALLOWABLE),
              help="Compare even if A and B differ in this fact. Give the option once "
                   "for each fact.")  # fmt: skip
@click.option("--html", "page", metavar="FILE.html", help="Also write an HTML page to this file.",
              type=click.Path(path_type=Path, dir_okay=False))  # fmt: skip
@click.option("--document", "folder", metavar="FOLDER",
              help="Also write a document on lost time, changes and gain to this folder, as "
                   "Markdown and LaTeX.",
              type=click.Path(path_type=Path, file_okay=False))  # fmt: skip
@click.option(
    "--redact", is_flag=True, help="Leave hosts, users, paths and environment out of all output."
)
@click.option("--force", is_flag=True, help="Overwrite files that Lockstep did not write.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@opening.accept_bundles()
def compare(
    a: Path, b: Path, margin: float, allowed: tuple[str, ...],
    page: Path | None, folder: Path | None, as_markdown: bool, as_json: bool, redact: bool,
    force: bool,
) -> int:  # fmt: skip
    """Compare two sets of results: is B faster, slower or the same at each common point?

    A and B are anything that `lockstep report` reads. A point is a case at one world size. Its
    ratio is the rate of B / the rate of A, so B is faster if the ratio is above 1.
    """
    from lockstep.report import looks
    from lockstep.report.check import checker
    from lockstep.report.compare import comparison, outcome
    from lockstep.report.compare.compared_page import page as compared_page
    from lockstep.report.compare.judging import BLOCKED, SLOWER
    from lockstep.report.load.reading import load
    from lockstep.report.load.redaction import Redactor
    from lockstep.report.load.results import Results
    from lockstep.report.page import render

    if as_markdown and as_json:
        raise ValueError("--markdown and --json both write to stdout; choose one")
    if page is not None and page.suffix != ".html":
        raise ValueError(f"--html {page}: the name of the file must end in .html")
    if page is not None:
        render.refuse_foreign(page, force, "--html", render.COMPARED)
    if folder is not None:
        from lockstep.report.compare import optimisation

        optimisation.refuse_foreign(folder, force, "--document")
    before = load([a])
    after = comparison.match_tables(before, load([b]))

    def name(path: Path) -> str:
        # With --redact, a side is named by the last part of its path.
        return Path(os.path.abspath(path)).name if redact else str(path)  # noqa: PTH100

    names = name(a), name(b)
    sides = (
        comparison.Campaign(names[0], before, checker.check(before)),
        comparison.Campaign(names[1], after, checker.check(after)),
    )
    every = Results(launches=before.launches + after.launches, rows=before.rows + after.rows)
    redacted: Callable[[Any], Any] = Redactor(every) if redact else lambda data: data
    history = looks.history("compare", (a, b))
    findings = sides[0].findings, sides[1].findings
    made = comparison.compare(before, after, margin, allowed, findings, history)
    made.look = history.record(made.look) if made.has_interval else made.look
    made.environment = redacted(made.environment)  # redacted before names are shortened
    for letter, side in zip("AB", sides, strict=True):
        checker.say_unread(side.results)
        checker.say_errors(side.findings, f"{letter}: ")
    if as_json:
        document = redacted(comparison.document(made, names))
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        texts = outcome.text(made, names, redacted, is_markdown=as_markdown)
        click.echo("\n".join(texts))
    if page is not None or folder is not None:
        chosen = [word for fact in allowed for word in ("--allow", fact)]
        command = ["lockstep", "compare", *names, "--margin", f"{margin:g}", *chosen]
        drawn = compared_page(made, sides, shlex.join(command))
        is_aside = as_json or as_markdown
        if folder is not None:
            text, *_ = optimisation.write(drawn, made, sides, folder, redacted)
            click.echo(f"document: {click.format_filename(text)}", err=is_aside)
        if page is not None:
            render.write(redacted(drawn), page, render.COMPARED)
            click.echo(f"page: {click.format_filename(page)}", err=is_aside)
    verdicts = {judged.verdict for _, judged in made.points}
    return 1 if verdicts & {SLOWER, BLOCKED} else 0
