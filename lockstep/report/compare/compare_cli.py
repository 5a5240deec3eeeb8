"""The command `lockstep compare`."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.report.bundle import opening

if TYPE_CHECKING:
    from lockstep.report.check.checker import Finding
    from lockstep.report.compare.judging import Comparison
    from lockstep.report.load.results import Results

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
To rule out that the machine drifted, measure A and B in turn: A B B A. Where launches vary by
2 %, five a side find a point that is slower by 5 % nine times of ten.
--allow layout compares as many ranks on fewer and on more nodes: measure twice, the second time
with a lower max_ranks_per_node in the site file. Set threads_per_rank in the campaign, or ranks
that have a node to themselves use all of its CPUs.
A point is blocked where lockstep check finds an error in the results of a side behind it. Where a
point cannot be judged, the text says which change it could have seen, and how many launches would
be enough. A verdict is a look at the launches that there are, recorded in looks.jsonl beside B's
results: looks at more launches share what one look may claim wrongly.
Exit code: 0 nothing is slower, 1 some point is slower or blocked, 2 the sides cannot be compared.
"""
# Keys of pairing.MUST_AGREE, here so that --help needs no numpy; a test compares them.
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
    help="Compare although this differs; may be given again.",
)  # fmt: skip
@click.option(
    "--html", "page", metavar="FILE.html", type=click.Path(path_type=Path, dir_okay=False),
    help="Write the page of it, too.",
)  # fmt: skip
@click.option("--redact", is_flag=True, help="Leave out hosts, users, paths, environment.")
@click.option("--force", is_flag=True, help="Replace a page that is no Lockstep comparison.")
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
    """Say of each point that A and B share whether B is faster, slower or the same.

    A and B are anything that `lockstep report` reads. A point is a case at one world size; its
    ratio is the rate of B over that of A, so above 1 B is faster. Each further C is held against A
    as B is, all side by side.
    """
    from lockstep.report import looks
    from lockstep.report.check import checker
    from lockstep.report.compare import comparison
    from lockstep.report.compare.compared_page import page as compared_page

    _refuse(page, as_markdown and as_json, force)
    paths = (a, b, *others)
    campaigns = _load(paths)
    redacted = _redactor(campaigns, redact)
    findings = [checker.check(results) for results in campaigns]
    names = _names(paths, redact)
    history = looks.history("compare", paths)
    comparisons = comparison.compare_all(campaigns, names, margin, allowed, findings, history)
    for one in comparisons:
        one.look = history.record(one.look) if one.has_interval else one.look
    for one in comparisons:  # before a long one is cut, in the middle of a name
        one.environment = redacted(one.environment)
    _say_problems(campaigns, findings)
    for line in _lines(comparisons, names, as_markdown, as_json, redacted):
        click.echo(line)
    if page is not None:
        command = _command(names, margin, allowed)
        drawn = compared_page(comparisons, names, campaigns, findings, command)
        _write(redacted(drawn), page, is_beside=as_json or as_markdown)
    return 1 if any(one.slower or one.blocked for one in comparisons) else 0


def _refuse(page: Path | None, both: bool, force: bool) -> None:
    """Refuse two forms on stdout, and a page whose name may be that of results or others."""
    from lockstep.report.page import render

    if both:
        raise ValueError("--markdown and --json both want stdout; choose one")
    if page is None:
        return
    if page.suffix != ".html":
        raise ValueError(f"--html {page} is no name of a page; give one that ends in .html")
    render.refuse_foreign(page, force, "--html", render.COMPARED)


def _load(paths: Sequence[Path]) -> "list[Results]":
    """Return the campaigns, the cases of all by the names that the first gives them."""
    from lockstep.report.compare import comparison
    from lockstep.report.load.reading import load

    first, *rest = (load([path]) for path in paths)
    return [first, *(comparison.renamed(first, results) for results in rest)]


def _say_problems(campaigns: "Sequence[Results]", findings: "Sequence[list[Finding]]") -> None:
    """Say what of each side could not be read, and which errors check finds in it."""
    from lockstep.report.check import checker
    from lockstep.report.compare.comparison import LETTERS

    for letter, campaign, of_side in zip(LETTERS, campaigns, findings, strict=False):
        checker.say_unread(campaign)
        checker.say_errors(of_side, f"{letter}: ")


def _write(page: dict[str, Any], target: Path, *, is_beside: bool) -> None:
    """Write the page and say where; on standard error where it is beside what another reads."""
    from lockstep.report.page import render

    render.write(page, target, render.COMPARED)
    click.echo(f"page: {click.format_filename(target)}", err=is_beside)


def _lines(
    comparisons: "list[Comparison]",
    names: Sequence[str],
    as_markdown: bool,
    as_json: bool,
    redacted: Callable[[Any], Any],
) -> list[str]:
    """Return what is printed: text, Markdown or JSON."""
    from lockstep.report.compare import compare_wording, comparison

    if as_json:
        document = redacted(comparison.document_of_all(comparisons, names))
        return [json.dumps(document, indent=1, allow_nan=False)]
    return compare_wording.several(comparisons, names, compare_wording.Form(as_markdown, redacted))


def _names(paths: Sequence[Path], is_redacted: bool) -> list[str]:
    """Return what each side is called: its path, or where paths are left out its last part."""
    if is_redacted:
        return [Path(os.path.abspath(path)).name for path in paths]  # noqa: PTH100
    return [str(path) for path in paths]


def _command(names: Sequence[str], margin: float, allowed: Sequence[str]) -> str:
    """Return the command line that makes this comparison again."""
    import shlex

    chosen = [word for name in allowed for word in ("--allow", name)]
    return shlex.join(["lockstep", "compare", *names, "--margin", f"{margin:g}", *chosen])


def _redactor(campaigns: "Sequence[Results]", is_on: bool) -> Callable[[Any], Any]:
    """Return what takes the names of all campaigns out of plain data; if not on, nothing."""
    from lockstep.report.load.redaction import Redactor
    from lockstep.report.load.results import Results

    if not is_on:
        return lambda data: data
    launches = [launch for results in campaigns for launch in results.launches]
    rows = [row for results in campaigns for row in results.rows]
    return Redactor(Results(launches=launches, rows=rows))
