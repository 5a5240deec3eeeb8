"""The command `lockstep compare`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lockstep.report.compare.comparison import Comparison, Judged
    from lockstep.report.compare.pairing import Pair
    from lockstep.report.load.results import Results

EXAMPLES = """
\b
Examples:
  lockstep compare results/before results/after
  lockstep compare results/before results/after --margin 0.01
  lockstep compare results/fp32 results/bf16 --allow precision
  lockstep compare results/campaign results/spread --allow layout  # what do more nodes cost?
  lockstep compare results/before results/after --markdown > comparison.md
  lockstep compare results/before results/after --json

\b
To rule out that the machine drifted, measure A and B in turn: A B B A. Where launches vary by
2 %, five a side find a point that is slower by 5 % nine times of ten.
--allow layout compares as many ranks on fewer and on more nodes: measure twice, the second time
with a lower max_ranks_per_node in the site file. Set threads_per_rank in the campaign, or ranks
that have a node to themselves use all of its CPUs.
A point is blocked where lockstep check finds an error in the results of a side behind it.
Exit code: 0 nothing is slower, 1 some point is slower or blocked, 2 the sides cannot be compared.
"""
# Keys of pairing.MUST_AGREE, here so that --help needs no numpy; a test compares them.
ALLOWABLE = ("workload", "scaling", "precision", "batch", "unit", "origin", "layout", "device")
_HEADER = ["verdict", "ranks", "launches", "ratio", "interval", "case"]
_BESIDE = ["beside, %", "ranks", "A", "B", "B - A", "95 % interval", "case"]
_BESIDE_RULE = "Each interval beside holds alone: none is corrected for the number of points."


@click.command("compare", epilog=EXAMPLES)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--margin", type=float, default=0.03, show_default=True,
    help="Largest relative difference that counts as the same.",
)  # fmt: skip
@click.option(
    "--allow", "allowed", multiple=True, type=click.Choice(ALLOWABLE),
    help="Compare although this differs; may be given again.",
)  # fmt: skip
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(
    a: Path, b: Path, margin: float, allowed: tuple[str, ...], as_markdown: bool, as_json: bool
) -> int:
    """Say of each point that A and B share whether B is faster, slower or the same.

    A and B are anything that `lockstep report` reads. A point is a case at one world size; its
    ratio is the rate of B over that of A, so above 1 B is faster.
    """
    from lockstep.report.check import checker, terminal
    from lockstep.report.compare.comparison import compare as compared
    from lockstep.report.compare.comparison import renamed
    from lockstep.report.load.reading import load

    if as_markdown and as_json:
        raise ValueError("--markdown and --json both want stdout; choose one")
    first = load([a])
    sides = first, renamed(first, load([b]))
    findings = checker.check(sides[0]), checker.check(sides[1])
    made = compared(*sides, margin, allowed, findings)
    say_unread(*sides)
    for name, found in zip("AB", findings, strict=True):
        terminal.say_errors(found, f"{name}: ")
    if as_json:
        _print_json(made, a, b)
    else:
        for line in _lines(made, (str(a), str(b)), as_markdown):
            click.echo(line)
    return 1 if made.slower or made.blocked else 0


def say_unread(*sides: "Results") -> None:
    """Name on stderr the launches that cannot be read."""
    for side in sides:
        for why in side.unread:
            click.echo(f"left out: {why}", err=True)


def _print_json(made: "Comparison", a: Path, b: Path) -> None:
    import json

    from lockstep.report.compare.comparison import document

    click.echo(json.dumps(document(made, (str(a), str(b))), indent=1, allow_nan=False))


def _lines(made: "Comparison", names: tuple[str, str], as_markdown: bool) -> list[str]:
    """Return the comparison as text: what surrounds it first, then the points and their notes."""
    from lockstep.report.words import lines

    table = lines.markdown if as_markdown else lines.table
    beside = _beside(made)
    parts = [
        _listed(_sides(names), as_markdown),
        _listed(_circumstances(made), as_markdown),
        table([_HEADER, *(_row(*point) for point in made.points)]),
        _listed(_rule(made), as_markdown),
        table([_BESIDE, *beside]) if beside else [],
        _listed([_BESIDE_RULE], as_markdown) if beside else [],
        _listed(_notes(made), as_markdown),
    ]
    return [lines.plain(line) for part in parts if part for line in (*part, "")][:-1]


def _listed(texts: list[str], as_markdown: bool) -> list[str]:
    """Return sentences as lines, in Markdown as a list."""
    from lockstep.report.words import lines

    if as_markdown:
        return [f"- {text}" for text in texts]
    return [line for text in texts for line in lines.sentence(text)]


def _sides(names: tuple[str, str]) -> list[str]:
    return [
        f"A: {names[0]}",
        f"B: {names[1]}",
        "ratio: rate of B / rate of A; above 1, B is faster",
    ]


def _circumstances(made: "Comparison") -> list[str]:
    """Say what differs around the numbers, then what is equal, then what to beware of."""
    from lockstep.vocabulary.formats import listed

    said = [
        f"differs: {name}: {_values(a)} in A, {_values(b)} in B"
        for name, (a, b) in made.environment.items()
    ]
    if made.same_facts:
        said.append(f"equal: {listed(made.same_facts, 8)}")
    elif not made.environment:
        said.append("environment: neither side says what it was measured on")
    return said + [f"warning: {text}" for text in made.warnings]


def _values(values: list[Any]) -> str:
    from lockstep.vocabulary.formats import listed

    if not values:
        return "nothing"
    texts = (listed(v, 4) if isinstance(v, list) else "unknown" if v is None else v for v in values)
    # The first characters of a hash tell it from any other.
    return listed((re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b", r"\1...", str(t)) for t in texts), 4)


def _row(pair: "Pair", judged: "Judged") -> list[str]:
    from lockstep.report.check.wording import blocked
    from lockstep.vocabulary.formats import DASH

    low, high = judged.interval or (None, None)
    why = f"; {blocked(judged.blocked_by)}" if judged.blocked_by else ""
    return [
        judged.verdict,
        str(pair.world_size),
        f"{len(pair.a)} + {len(pair.b)}",
        DASH if why else f"{judged.ratio:.3f}",
        DASH if low is None else f"{low:.3f} to {high:.3f}",
        f"{pair.label}{why}",
    ]


def _rule(made: "Comparison") -> list[str]:
    from lockstep.vocabulary.formats import counted

    tested = sum(judged.interval is not None for _, judged in made.points)
    if all(judged.blocked_by for _, judged in made.points):
        return []
    if not tested:
        return ["No interval without repeats that differ; measure five launches a side."]
    low, high = 1 / (1 + made.margin), 1 + made.margin
    return [
        f"Intervals at {100 * (1 - made.error):.3g} %, corrected for {counted(tested, 'point')}; "
        f"same: within {low:.3f} to {high:.3f}; faster, slower: else, and without 1."
    ]


def _beside(made: "Comparison") -> list[list[str]]:
    """Return the rows of what the points have beside their speed."""
    from lockstep.report.compare.comparison import beside
    from lockstep.vocabulary.formats import percent, percent_span

    rows = []
    for pair, judged in made.points:
        for name, found in () if judged.blocked_by else beside(pair).items():
            low, high = found["low"], found["high"]
            span = percent_span(None if low is None or high is None else (low, high))
            numbers = [percent(found[key]) for key in ("a", "b", "difference")]
            rows.append([name, str(pair.world_size), *numbers, span, pair.label])
    return rows


def _notes(made: "Comparison") -> list[str]:
    """Say what would settle the open points, which are flagged, and which have no partner."""
    from lockstep.report.compare.pairing import ambiguity
    from lockstep.vocabulary.formats import counted, listed

    flagged: dict[str, list[str]] = {}
    for pair, _ in made.points:
        for side, flag in pair.flags:
            flagged.setdefault(f"{side}: {flag}", []).append(f"{pair.label} at {pair.world_size}")
    said = _remedies(made)
    said += [f"flag: {flag}: {listed(where, 3)}" for flag, where in flagged.items()]
    for side, only in (("A", made.only_in_a), ("B", made.only_in_b)):
        if only:
            cases = listed(map(str, only), 3)
            said.append(f"only in {side}: {counted(len(only), 'point')}: {cases}")
    if made.ambiguous:
        said.append(f"not compared: {ambiguity(made.ambiguous)}")
    said += [
        f"--allow {name} would compare {counted(number, 'point')} more"
        for name, number in made.allowing.items()
    ]
    return said


def _remedies(made: "Comparison") -> list[str]:
    """Say how many launches would settle what is open: those that the most varying point needs."""
    from lockstep.report.compare.comparison import MOST_LAUNCHES, UNKNOWN, launches_needed
    from lockstep.vocabulary.formats import counted, percent

    spreads = [one.spread for _, one in made.points if one.verdict == UNKNOWN and one.spread]
    sound = [(pair, judged) for pair, judged in made.points if not judged.blocked_by]
    fewest = [min(len(p.a), len(p.b)) for p, judged in sound if judged.interval is None]
    alone = fewest.count(1)
    said = [f"no repeat: no interval: {counted(alone, 'point')}"] if alone else []
    if alone < len(fewest):
        said.append(
            "launches equal to the last digit: rounded or copied, no spread known, no interval: "
            f"{counted(len(fewest) - alone, 'point')}"
        )
    if spreads:
        needed = launches_needed(max(spreads), made.margin, made.error)
        many = f"more than {MOST_LAUNCHES}" if needed is None else str(needed)
        said.append(
            f"not enough evidence: {counted(len(spreads), 'point')}, whose launches vary by up to "
            f"{percent(max(spreads))} %; to find a difference of {100 * made.margin:.2g} % nine "
            f"times of ten takes {many} launches a side"
        )
    return said
