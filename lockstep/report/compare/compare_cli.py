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
  lockstep compare results/campaign results/spread --allow layout  # what do more nodes cost?
  lockstep compare results/runs results/tuned --allow training  # other rate, epochs, loader
  lockstep compare results/before results/after --markdown > comparison.md
  lockstep compare results/before results/after --json
  lockstep compare results/before results/after --html comparison.html --redact
  lockstep compare results/before results/after results/b --allow batch --html three.html

\b
To rule out a drift of the machine, measure A and B in turn: A B B A. If launches vary by 2 %, five
per side detect a point that is 5 % slower 9 times in 10.
--allow layout compares the same number of ranks on fewer and on more nodes: measure twice, the
second time with a lower max_ranks_per_node in the site file. Set threads_per_rank in the campaign;
otherwise a rank alone on a node uses all of its CPUs.
A point is blocked if lockstep check finds an error in the results of either side. For a point that
is too noisy, the text gives the change that it could have detected and the number of launches
needed. Each comparison is recorded in looks.jsonl next to B's results: comparing again after more
launches uses stricter intervals, so that the error rate stays that of one comparison.
Exit code: 0 if nothing is slower, 1 if a point is slower or blocked, 2 if the sides cannot be
compared.
"""
# Keys of comparison.MUST_AGREE, here so that --help needs no numpy; a test compares them.
ALLOWABLE = ("workload", "scaling", "precision", "batch", "unit", "origin", "layout", "device",
             "training")  # fmt: skip


@click.command("compare", epilog=EXAMPLES)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.argument("others", nargs=-1, metavar="[C]...", type=click.Path(path_type=Path))
@click.option(
    "--margin", type=float, default=0.03, show_default=True,
    help="Largest relative difference that counts as the same.",
)  # fmt: skip
@click.option(
    "--allow", "allowed", multiple=True, type=click.Choice(ALLOWABLE),
    help="Compare although this differs; repeatable.",
)  # fmt: skip
@click.option(
    "--html", "page", metavar="FILE.html", type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a page (HTML).",
)  # fmt: skip
@click.option("--redact", is_flag=True, help="Leave out hosts, users, paths and environment.")
@click.option("--force", is_flag=True, help="Replace a page that is not a Lockstep comparison.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@opening.of_bundles()
def compare(
    a: Path,
    b: Path,
    others: tuple[Path, ...],
    margin: float,
    allowed: tuple[str, ...],
    page: Path | None,
    as_markdown: bool,
    as_json: bool,
    redact: bool,
    force: bool,
) -> int:
    """Compare two sets of results: is B faster, slower or the same at each common point?

    A and B are anything that `lockstep report` reads. A point is a case at one world size; its
    ratio is the rate of B / the rate of A, so B is faster above 1. Each further C is compared with
    A as well, and the output has all side by side.
    """
    from lockstep.report import looks
    from lockstep.report.check import checker
    from lockstep.report.compare import comparison, outcome
    from lockstep.report.compare.compared_page import page as compared_page
    from lockstep.report.load.reading import load
    from lockstep.report.load.redaction import Redactor
    from lockstep.report.load.results import Results
    from lockstep.report.page import render

    if as_markdown and as_json:
        raise ValueError("--markdown and --json both write to stdout; choose one")
    if page is not None and page.suffix != ".html":
        raise ValueError(f"--html {page} is not the name of a page; give one that ends in .html")
    if page is not None:
        render.refuse_foreign(page, force, "--html", render.COMPARED)
    paths = (a, b, *others)
    base, *rest = (load([path]) for path in paths)
    campaigns = [base, *(comparison.renamed(base, results) for results in rest)]
    both = Results(
        launches=[launch for results in campaigns for launch in results.launches],
        rows=[row for results in campaigns for row in results.rows],
    )
    redacted: Callable[[Any], Any] = Redactor(both) if redact else lambda data: data
    findings = [checker.check(results) for results in campaigns]
    # With --redact, a side is named by the last part of its path.
    names = [Path(os.path.abspath(p)).name if redact else str(p) for p in paths]  # noqa: PTH100
    history = looks.history("compare", paths)
    comparisons = comparison.compare_all(campaigns, names, margin, allowed, findings, history)
    for each in comparisons:
        each.look = history.record(each.look) if each.has_interval else each.look
        each.environment = redacted(each.environment)  # before names are shortened
    for letter, campaign, of_side in zip(comparison.LETTERS, campaigns, findings, strict=False):
        checker.say_unread(campaign)
        checker.say_errors(of_side, f"{letter}: ")
    if as_json:
        document = redacted(comparison.document_of_all(comparisons, names))
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        for line in outcome.several(comparisons, names, outcome.Form(as_markdown, redacted)):
            click.echo(line)
    if page is not None:
        chosen = [word for name in allowed for word in ("--allow", name)]
        command = ["lockstep", "compare", *names, "--margin", f"{margin:g}", *chosen]
        drawn = compared_page(comparisons, names, campaigns, findings, shlex.join(command))
        render.write(redacted(drawn), page, render.COMPARED)
        click.echo(f"page: {click.format_filename(page)}", err=as_json or as_markdown)
    return 1 if any(each.is_bad for each in comparisons) else 0
