"""The twelve rules of Hoefler and Belli as a checklist, each judged from the results at hand.

Torsten Hoefler and Roberto Belli, "Scientific Benchmarking of Parallel Computing Systems", SC15,
doi 10.1145/2807591.2807644.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from lockstep.core.formats import DASH, counted, listed
from lockstep.core.metrics import NOTABLE
from lockstep.core.studies import LADDERS, OTHER, TRAINING
from lockstep.report.check.curve_rules import WIDEST_STEP
from lockstep.report.compute.alternatives import factor_ladders
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.load.results import Results
from lockstep.report.page import facts
from lockstep.report.page.parts import MIN_JOINED, Panel, absolute, baseline_text, panel, table

State = Literal["held", "not held", "does not apply"]
# Facts that are needed to repeat the measurement.
SETUP = ("torch", "device_names", "ranks", "environment")
MARKS: dict[State, str] = {"held": "\u2713", "not held": "\u2717", "does not apply": DASH}
Verdict = tuple[bool | None, str]


class Checked(NamedTuple):
    """A rule, whether it is held, and the evidence."""

    number: int
    rule: str
    state: State
    evidence: str


def checklist(results: Results, series: Sequence[Series]) -> list[Checked]:
    """Return the twelve rules, each with its state in these results."""
    measured = [p for curve in series if curve.row.origin == "measured" for p in curve.points]
    compared = [
        curve for curve in series
        if len(curve.points) > 1 and curve.is_compared and curve.row.study != OTHER
    ]  # fmt: skip
    # Programs with ratios over a factor.
    over = [ladder for ladder in factor_ladders(series) if not ladder.is_blocked]
    ratios = [p.speedup_interval for curve in compared for p in curve.points if p is not curve.base]
    ratios += [point.speedup_interval for ladder in over for point in ladder.points[1:]]

    # Rules 1 and 7: what ratios are relative to, and whether they have intervals.
    bases = dict.fromkeys(map(baseline_text, compared))
    bases |= dict.fromkeys(f"{each.factor}={each.value(each.base):g} at {absolute(each.base)}"
                           for each in over)  # fmt: skip
    num_ratios = counted(len(ratios), "ratio")
    relative = f"{num_ratios} relative to {listed(bases, 3)}"
    base: Verdict = True, f"{relative}; the base runs the same parallel program"
    if cited := [curve for curve in compared if curve.row.origin != "measured"]:
        base = False, (
            f"{relative}; {counted(len(cited), 'cited table')} did not say whether the base is the "
            "serial program or one rank of the parallel program"
        )  # fmt: skip
    known = sum(map(bool, ratios))
    means = (
        f"by construction: each rate of {counted(len(measured), 'point')} is work / median time, "
        "each cost uses the arithmetic mean; no rate is averaged"
    )
    no_ratio: Verdict = None, "no ratio is given"
    verdicts: list[tuple[str, Verdict]] = [
        ("Say what a speed-up is relative to, in absolute terms", base if ratios else no_ratio),
        ("Give the reason for each part that was left out", _left_out(results)),
        (
            "Average costs arithmetically, rates harmonically",
            (True, means) if measured else (None, "nothing was averaged here"),
        ),
        (
            "Do not average ratios",
            (True, f"by construction: {num_ratios}, each of two summarised rates")
            if ratios else no_ratio,
        ),
        (
            "Give an interval for each value that varies",
            _share(measured, lambda p: p.rate_interval, "{} had a 95 % interval over launches",
                   "nothing was measured here"),
        ),
        (
            "Check that noise is normal before assuming it",
            (False, "assumed for the logarithms of rates, since few launches cannot show it")
            if measured else (None, "no interval is given"),
        ),
        (
            "Compare by intervals or tests, not bare numbers",
            (known == len(ratios), f"{known} of {num_ratios} had an interval that includes the "
                "baseline's uncertainty") if ratios else (None, "nothing is compared"),
        ),
        (
            "Choose mean, median or percentile for a reason",
            _share(
                [point for point in measured if point.mean_over_median is not None],
                lambda p: abs((p.mean_over_median or 1) - 1) <= NOTABLE,
                f"the mean step lies within {100 * NOTABLE:.0f} % of the median at {{}}; the "
                "shortest and the longest step are kept, too", "no steps were timed here",
            ),
        ),
        ("Record all factors and the whole setup", _setup(results, measured)),
        ("Say how parallel time was taken, synchronised and summarised", _timing(measured)),
        (
            "Show upper bounds of performance",
            _share(
                [point for point in measured if point.rows[0].study in TRAINING],
                lambda p: p.mfu is not None,
                "ideal scaling is drawn; " * any(curve.row.study in LADDERS for curve in compared)
                + "the peak of the device is known at {}", "no training step was measured here",
            ),
        ),
        (
            "Draw what supports the text; join points only if the line has a meaning",
            _lines(
                [(each.label, "ranks", [p.world_size for p in each.points]) for each in compared]
                + [(each.label, each.factor, [*map(each.value, each.points)]) for each in over]
            ),
        ),
    ]  # fmt: skip
    states: dict[bool | None, State] = {True: "held", False: "not held", None: "does not apply"}
    return [
        Checked(number, rule, states[held], evidence)
        for number, (rule, (held, evidence)) in enumerate(verdicts, start=1)
    ]


def twelve_panel(results: Results, series: Sequence[Series]) -> Panel:
    """Return the checklist as a panel of the report."""
    rules = checklist(results, series)
    held, broken = (sum(rule.state == state for rule in rules) for state in ("held", "not held"))
    text = f"{held} held, {broken} not"
    lead = (
        "Hoefler and Belli's rules for reporting the performance of parallel computers (SC15, doi "
        "10.1145/2807591.2807644) in our words, each with the evidence of these results: "
        f"{text}, {len(rules) - held - broken} that do not apply."
    )
    rows = [
        [f"{each.number}. {each.rule}", f"{MARKS[each.state]} {each.state}", each.evidence]
        for each in rules
    ]
    made = table("Rules and their evidence", ("Rule", "State", "Evidence"), rows, 3, finding=text)
    return panel("twelve-rules", "Twelve rules of reporting", lead=[lead], tables=[made])


def _share(
    points: Sequence[Point], holds: Callable[[Point], object], text: str, empty: str
) -> Verdict:
    """Return whether a condition holds at all points, and a text with the number of points."""
    if not points:
        return None, empty
    count = sum(bool(holds(point)) for point in points)
    return count == len(points), text.format(f"{count} of {counted(len(points), 'point')}")


def _left_out(results: Results) -> Verdict:
    if not results.launches:
        return None, "nothing was planned here"
    unexplained = facts.gaps(results, lambda gap: not gap.is_explained)
    lost = [*(what for what, _, _ in unexplained), *map(str, results.unread)]
    if lost:
        return False, f"{counted(len(lost), 'gap')} without a reason; the first is {lost[0]}"
    if gaps := facts.gaps(results):
        return True, f"{counted(len(gaps), 'gap')}, each with its reason under Not measured"
    return True, "all that was planned was measured"


def _setup(results: Results, measured: Sequence[Point]) -> Verdict:
    launches = results.launches
    trained = {row.launch for point in measured for row in point.rows if row.training}
    runs = trained - {launch.name for launch in launches}
    if not (launches or runs):
        return False, "cited tables hold no more of the setup than their source does"
    full = sum(all(launch.provenance.get(name) for name in SETUP) for launch in launches)
    complete = (
        f"{full} of {counted(len(launches), 'launch')} recorded versions, devices, ranks and "
        "environment; each case's name has its factors"
    )
    partial = (
        f"{counted(len(runs), 'training run')} recorded options and device, but neither versions "
        "nor environment"
    )
    text = "; ".join([*[complete] * bool(launches), *[partial] * bool(runs)])
    return full == len(launches) and not runs, text


def _timing(measured: Sequence[Point]) -> Verdict:
    if not measured:
        return None, "nothing was timed here"
    rows = [point.rows[0] for point in measured]
    # Rows that Lockstep timed over all ranks; programs and plain benchmarks time themselves.
    timed = [row for row in rows if row.study != OTHER and not row.program]
    share = f"{len(timed)} of {counted(len(rows), 'point')}"
    texts = []
    if timed:
        units = dict.fromkeys("epoch" if row.training else "round" for row in timed)
        texts.append(
            f"Lockstep timed {share} by {' or '.join(units)} after a barrier, with one device "
            "synchronisation; the slowest rank counts"
        )
    if count := sum(bool(row.program) for row in rows):
        texts.append(
            f"{counted(count, 'point')} of programs got the time from the output, or from "
            "the whole run"
        )
    return len(timed) == len(rows), "; ".join(texts) or f"{share} timed here"


def _lines(curves: Sequence[tuple[str, str, Sequence[float]]]) -> Verdict:
    """Judge lines, each a label, what varies and the values, by how far apart the values lie."""
    drawn = [curve for curve in curves if len(curve[2]) >= MIN_JOINED]
    for label, noun, values in drawn:
        for small, large in pairwise(values):
            if large > WIDEST_STEP * small:
                return False, f"a line joins {small:g} and {large:g} {noun}: {label}"
    text = f"lines of {counted(len(drawn), 'curve')} join sizes at most a factor of {WIDEST_STEP:g}"
    return (True, f"{text} apart") if drawn else (None, "no line is drawn")
