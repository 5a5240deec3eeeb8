"""The twelve rules of Hoefler and Belli as a checklist, each judged from the results at hand.

Torsten Hoefler and Roberto Belli, "Scientific Benchmarking of Parallel Computing Systems", SC15,
doi 10.1145/2807591.2807644.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Literal, NamedTuple

from lockstep.core.formats import DASH, counted, listed, size_of
from lockstep.core.metrics import NOTABLE
from lockstep.core.studies import LADDERS, OTHER, SWEEPS, TRAINING
from lockstep.report.check.curve_rules import WIDEST_STEP
from lockstep.report.compute.alternatives import factor_ladders
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.load.results import Results
from lockstep.report.page import facts
from lockstep.report.page.collective_tables import message_bytes
from lockstep.report.page.parts import MIN_JOINED, Panel, absolute, baseline_text, panel, table

State = Literal["held", "not held", "does not apply"]
# With fewer launches only a gross departure from the normal distribution would show.
FEWEST_VALUES = 8
# 5 % point of Anderson and Darling's statistic with mean and variance estimated (D'Agostino and
# Stephens, Goodness-of-Fit Techniques, 1986, table 4.7).
CRITICAL = 0.752
# Messages further apart than nccl-tests' sweeps by 2 or 4 leave the curve between them unknown.
WIDEST_SWEEP = 4
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
    ratios_and_baselines = f"{num_ratios} relative to {listed(bases, 3)}"
    base: Verdict = True, f"{ratios_and_baselines}; each baseline runs the same parallel program"
    if cited := [curve for curve in compared if curve.row.origin != "measured"]:
        tables = counted(len(cited), "cited table")
        base = False, (
            f"{ratios_and_baselines}; {tables} did not say whether the baseline is the serial "
            "program or one rank of the parallel program"
        )  # fmt: skip
    known = sum(map(bool, ratios))
    means = (
        f"at {counted(len(measured), 'point')}, each rate is work / median time, each cost uses "
        "the arithmetic mean, and no rate is averaged"
    )
    no_ratio: Verdict = None, "no ratio is given"
    verdicts: list[tuple[str, Verdict]] = [
        ("Give the absolute speed of a speed-up's baseline", base if ratios else no_ratio),
        ("Give the reason for each part that was left out", _left_out(results)),
        (
            "Average costs arithmetically, rates harmonically",
            (True, means) if measured else (None, "nothing was averaged here"),
        ),
        (
            "Do not average ratios",
            (True, f"{num_ratios}, each computed from the summarised rates of two points; no "
                "ratio is averaged")
            if ratios else no_ratio,
        ),
        (
            "Give an interval for each value that varies",
            _share(measured, lambda p: p.rate_interval, "{points} had a 95 % interval over "
                "launches",
                   "nothing was measured here"),
        ),
        (
            "Check that noise is normally distributed before assuming so",
            _normality(series, bool(measured)),
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
                f"the mean step lies within {100 * NOTABLE:.0f} % of the median at {{points}}; "
                "the shortest and the longest step are kept as well", "no steps were timed here",
            ),
        ),
        ("Record all factors and the whole setup", _setup(results, measured)),
        ("Say how parallel time was taken, synchronised and summarised", _timing(measured)),
        (
            "Show upper bounds of performance",
            _share(
                [point for point in measured if point.rows[0].study in TRAINING],
                lambda p: p.mfu is not None,
                "the peak of the device is known at {points}"
                + "; ideal scaling is drawn" * any(c.row.study in LADDERS for c in compared),
                "no training step was measured here",
            ),
        ),
        (
            "Draw what supports the text; join points only if the line has a meaning",
            _lines(
                measured,
                [(each.label, "ranks", [p.world_size for p in each.points]) for each in compared]
                + [(each.label, each.factor, [*map(each.value, each.points)]) for each in over],
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
    text, num_others = f"{held} held, {broken} not held", len(rules) - held - broken
    lead = (
        "These are Hoefler and Belli's rules for reporting the performance of parallel computers "
        "(SC15, doi 10.1145/2807591.2807644) in our words, with evidence from these results. "
        f"Rules held: {held}; rules not held: {broken}; rules that do not apply: {num_others}."
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
    if not points:
        return None, empty
    count = sum(bool(holds(point)) for point in points)
    share = f"{count} of {counted(len(points), 'point')}"
    return count == len(points), text.format(points=share)


def _left_out(results: Results) -> Verdict:
    if not results.launches:
        return None, "nothing was planned here"
    unexplained = facts.gaps(results, lambda gap: not gap.is_explained)
    lost = [*(what for what, _, _ in unexplained), *map(str, results.unread)]
    if lost:
        num_gaps, first = counted(len(lost), "gap"), lost[0]
        return False, f"{num_gaps} without a reason; the first is {first}"
    if gaps := facts.gaps(results):
        num_gaps = counted(len(gaps), "gap")
        return True, f"{num_gaps}, each with its reason under Not measured"
    return True, "every planned case was measured"


def _normality(series: Sequence[Series], is_measured: bool) -> Verdict:
    """Check log rates of launches, minus their point's mean, over the deviation of the series.

    Subtracting a mean of n values removes 1/n of their variance; a factor restores it.
    """
    if not is_measured:
        return None, "no interval is given"
    values: list[float] = []
    for curve in series:
        residuals: list[float] = []
        for point in curve.points:
            if curve.row.origin == "measured" and point.num_launches >= 3:
                logs = [math.log(rate) for rate in point.rates]
                factor = math.sqrt(len(logs) / (len(logs) - 1))
                residuals += [factor * (value - fmean(logs)) for value in logs]
        spread = math.sqrt(fmean(value**2 for value in residuals)) if residuals else 0.0
        values += [value / spread for value in residuals if spread]
    count = counted(len(values), "launch")
    if len(values) < FEWEST_VALUES:
        return False, (
            "the logarithms of rates are assumed to be normally distributed, because "
            f"points with 3 or more launches have only {count}, which are too few to check"
        )
    statistic = anderson_darling(values)
    sign = "below" if statistic < CRITICAL else "above"
    return statistic < CRITICAL, (
        f"the logarithms of the rates of {count} were checked: the Anderson-Darling statistic "
        f"{statistic:.2f} is {sign} its critical value {CRITICAL} at 5 %"
    )


def anderson_darling(values: Sequence[float]) -> float:
    """Return Anderson and Darling's statistic against a normal distribution fitted to the values.

    A2 = -n - sum((2i - 1) (ln F(z_i) + ln(1 - F(z_{n+1-i})))) / n, times 1 + 0.75/n + 2.25/n2 for
    the estimated mean and variance (D'Agostino and Stephens, 1986, section 4.8.5).
    """
    # scipy.stats has it, too, and takes seconds to import.
    from scipy.special import log_ndtr

    n, mean = len(values), fmean(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    ranked = sorted((value - mean) / spread for value in values)
    logs = log_ndtr(ranked) + log_ndtr([-value for value in reversed(ranked)])
    total = sum((2 * i - 1) * float(log) for i, log in enumerate(logs, start=1))
    return (-n - total / n) * (1 + 0.75 / n + 2.25 / n**2)


def _setup(results: Results, measured: Sequence[Point]) -> Verdict:
    launches = results.launches
    trained = {row.launch for point in measured for row in point.rows if row.training}
    runs = trained - {launch.name for launch in launches}
    if not (launches or runs):
        return False, "cited tables describe the setup only as far as their source does"
    full = sum(all(launch.provenance.get(name) for name in SETUP) for launch in launches)
    num_launches, num_runs = counted(len(launches), "launch"), counted(len(runs), "training run")
    complete = (
        f"{full} of {num_launches} recorded versions, devices, ranks and environment; the name of "
        "each case states its factors"
    )
    partial = f"{num_runs} recorded options and device, but neither versions nor environment"
    text = "; ".join([*[complete] * bool(launches), *[partial] * bool(runs)])
    return full == len(launches) and not runs, text


def _timing(measured: Sequence[Point]) -> Verdict:
    if not measured:
        return None, "nothing was timed here"
    rows = [point.rows[0] for point in measured]
    # Rows that Lockstep timed over all ranks; programs and plain benchmarks time themselves.
    timed = [row for row in rows if row.study != OTHER and not row.program]
    points = f"{len(timed)} of {counted(len(rows), 'point')}"
    texts = []
    if timed:
        unit = " or ".join(dict.fromkeys("epoch" if row.training else "round" for row in timed))
        texts.append(
            f"at {points}, each {unit} was timed on the slowest rank, from a barrier to one device "
            "synchronisation at its end"
        )
    if count := sum(bool(row.program) for row in rows):
        texts.append(
            f"at {counted(count, 'point')} of programs, the program printed the time, or the whole "
            "run was timed"
        )
    return len(timed) == len(rows), "; ".join(texts) or f"{points} timed here"


def _lines(
    measured: Sequence[Point], curves: Sequence[tuple[str, str, Sequence[float]]]
) -> Verdict:
    """Judge lines by the distance between the values that they join.

    A curve is a label, what varies, and the values; a collective's line joins message sizes at the
    largest world size.
    """
    points = [point for point in measured if point.rows[0].study in SWEEPS]
    largest = max((point.world_size for point in points), default=0)
    sizes: dict[str, set[float]] = {}
    for point in points:
        if point.world_size == largest:
            sizes.setdefault(point.rows[0].workload, set()).add(message_bytes(point))
    swept = {name: sorted(own) for name, own in sizes.items() if len(own) >= MIN_JOINED}
    drawn = [curve for curve in curves if len(curve[2]) >= MIN_JOINED]
    if not (drawn or swept):
        return None, "no line is drawn"
    lines = [(label, f" {noun}", values, WIDEST_STEP) for label, noun, values in drawn]
    lines += [(name, "", messages, WIDEST_SWEEP) for name, messages in swept.items()]
    for label, noun, values, widest in lines:
        for pair in pairwise(values):
            if pair[1] > widest * pair[0]:
                small, large = (f"{value:g}" if noun else size_of(value) for value in pair)
                sizes_apart = f"{small} and {large}{noun}"
                return False, f"the line of {label} connects {sizes_apart}, which are too far apart"
    texts = ["the figures show launches and intervals"] if drawn and measured else []
    if drawn:
        count = counted(len(drawn), "curve")
        texts.append(
            f"each line connects sizes at most a factor of {WIDEST_STEP:g} apart ({count})"
        )
    if swept:
        count = counted(len(swept), "collective")
        texts.append(
            f"each line connects messages at most a factor of {WIDEST_SWEEP:g} apart ({count})"
        )
    return True, "; ".join(texts)
