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
  lockstep compare results/before results/after results/b --allow batch --html three.html

\b
To rule out a drift of the machine, measure A and B in the order A B B A. If launches vary by 2 %,
five launches per side detect, 9 times in 10, a point that is 5 % slower.
--allow layout compares the same number of ranks on fewer and on more nodes. Measure twice, the
second time with a lower max_ranks_per_node in the site file. Set threads_per_rank in the campaign;
otherwise a rank that is alone on a node uses all of its CPUs.
A point is blocked if lockstep check finds an error in the results of either side. For a point that
is too noisy, the text gives the number of launches needed. Each comparison is recorded in
looks.jsonl next to B's results, since comparing again after more launches needs wider intervals.
Exit code: 0 if nothing is slower, 1 if a point is slower or blocked, 2 if the sides cannot be
compared.
"""
# Keys of comparison.MUST_AGREE, here so that --help needs no numpy; a test compares them.
ALLOWABLE = ("workload", "scaling", "precision", "batch", "unit", "origin", "layout", "device",
             "training", "step")  # fmt: skip


@click.command("compare", epilog=EXAMPLES)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.argument("others", nargs=-1, metavar="[C]...", type=click.Path(path_type=Path))
@click.option("--margin", type=float, default=0.03, show_default=True,
              help="Largest relative difference that counts as the same.")  # fmt: skip
@click.option("--allow", "allowed", multiple=True, type=click.Choice(ALLOWABLE),
              help="Compare even if this fact differs. Can be repeated.")  # fmt: skip
@click.option("--html", "page", metavar="FILE.html", help="Also write an HTML page.",
              type=click.Path(path_type=Path, dir_okay=False))  # fmt: skip
@click.option("--document", "folder", metavar="FOLDER",
              help="Also write a document on lost time, changes and gain (Markdown, LaTeX).",
              type=click.Path(path_type=Path, file_okay=False))  # fmt: skip
@click.option("--redact", is_flag=True, help="Leave out hosts, users, paths and environment.")
@click.option("--force", is_flag=True, help="Overwrite files that Lockstep did not write.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@opening.accept_bundles()
def compare(
    a: Path, b: Path, others: tuple[Path, ...], margin: float, allowed: tuple[str, ...],
    page: Path | None, folder: Path | None, as_markdown: bool, as_json: bool, redact: bool,
    force: bool,
) -> int:  # fmt: skip
    """Compare two sets of results: is B faster, slower or the same at each common point?

    A and B are anything that `lockstep report` reads. A point is a case at one world size; its
    ratio is the rate of B / the rate of A, so B is faster above 1. Each further C is compared with
    A as well, and all comparisons are printed side by side.
    """
    from lockstep.core.record import SCHEMA_VERSION
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
        raise ValueError(f"--html {page}: the name of a page must end in .html")
    if page is not None:
        render.refuse_foreign(page, force, "--html", render.COMPARED)
    if folder is not None:
        from lockstep.report.compare import optimisation

        optimisation.refuse_foreign(folder, force, "--document")
        if others:
            raise ValueError("--document compares two sides only: give A (before) and B (after)")
    paths, letters = (a, b, *others), comparison.LETTERS
    if len(paths) > len(letters):
        raise ValueError(
            f"{len(paths)} campaigns are given, but at most {len(letters)} can be compared"
        )
    campaigns: list[comparison.Campaign] = []
    for letter, path in zip(letters, paths, strict=False):
        results = load([path])
        results = comparison.match_tables(campaigns[0].results if campaigns else results, results)
        # With --redact, a side is named by the last part of its path.
        name = Path(os.path.abspath(path)).name if redact else str(path)  # noqa: PTH100
        campaigns.append(comparison.Campaign(letter, name, results, checker.check(results)))
    every = Results(
        launches=[launch for each in campaigns for launch in each.results.launches],
        rows=[row for each in campaigns for row in each.results.rows],
    )
    redacted: Callable[[Any], Any] = Redactor(every) if redact else lambda data: data
    history = looks.history("compare", paths)
    comparisons = comparison.compare_all(campaigns, margin, allowed, history)
    for made in comparisons:
        made.look = history.record(made.look) if made.has_interval else made.look
        made.environment = redacted(made.environment)  # redacted before names are shortened
    for each in campaigns:
        checker.say_unread(each.results)
        checker.say_errors(each.findings, f"{each.letter}: ")
    names = [each.name for each in campaigns]
    if as_json:
        documents = [
            comparison.document(made, (names[0], name))
            for made, name in zip(comparisons, names[1:], strict=True)
        ]
        several = {"schema": SCHEMA_VERSION, "comparisons": documents}
        document = redacted(documents[0] if len(documents) == 1 else several)
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        for line in outcome.several(comparisons, names, outcome.Form(as_markdown, redacted)):
            click.echo(line)
    if page is not None or folder is not None:
        chosen = [word for name in allowed for word in ("--allow", name)]
        command = ["lockstep", "compare", *names, "--margin", f"{margin:g}", *chosen]
        drawn = compared_page(comparisons, campaigns, shlex.join(command))
        is_aside = as_json or as_markdown
        if folder is not None:
            sides = campaigns[0], campaigns[1]
            text, *_ = optimisation.write(drawn, comparisons[0], sides, folder, redacted)
            click.echo(f"document: {click.format_filename(text)}", err=is_aside)
        if page is not None:
            render.write(redacted(drawn), page, render.COMPARED)
            click.echo(f"page: {click.format_filename(page)}", err=is_aside)
    verdicts = {judged.verdict for made in comparisons for _, judged in made.points}
    return 1 if verdicts & {SLOWER, BLOCKED} else 0
