"""The twelve rules of Hoefler and Belli as a checklist that the results fill in themselves.

Torsten Hoefler and Roberto Belli, "Scientific Benchmarking of Parallel Computing Systems", SC15,
doi 10.1145/2807591.2807644. The rules stand here in our words; whether each is held is read off
the results at hand, so a report may well say that some are not.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Literal

from lockstep.core.formats import DASH, counted, listed, size_of
from lockstep.core.metrics import NOTABLE
from lockstep.core.studies import LADDERS, OTHER, TRAINING
from lockstep.report.check.curve_rules import WIDEST_STEP
from lockstep.report.compute.alternatives import FactorLadder, factor_ladders
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval
from lockstep.report.load.results import Results, Row
from lockstep.report.page import facts
from lockstep.report.page.collective_tables import message_bytes
from lockstep.report.page.parts import Panel, absolute, baseline_text, panel, table

State = Literal["held", "not held", "does not apply"]
# Fewer launches show a departure from the normal distribution only where it is gross.
FEWEST_VALUES = 8
# 5 % point of Anderson and Darling's statistic with mean and variance estimated (D'Agostino and
# Stephens, Goodness-of-Fit Techniques, 1986, table 4.7).
CRITICAL = 0.752
# So many points or more are joined by a line, see `MIN_JOINED` of `lockstep.report.page.drawing`.
JOINED = 3
# Messages further apart than nccl-tests' sweeps by 2 or 4 leave the curve between them unknown.
WIDEST_SWEEP = 4
# Facts without which nobody could set the measurement up again.
SETUP = ("torch", "device_names", "ranks", "environment")
MARKS: dict[State, str] = {"held": "\u2713", "not held": "\u2717", "does not apply": DASH}
Verdict = tuple[bool | None, str]


@dataclass(frozen=True)
class Kept:
    """One rule, whether it is held, and what in the results says so."""

    number: int
    rule: str
    state: State
    evidence: str


@dataclass(frozen=True)
class _Given:
    """What the rules look at."""

    results: Results
    series: Sequence[Series]

    @cached_property
    def measured(self) -> list[Point]:
        return [p for curve in self.series if curve.row.origin == "measured" for p in curve.points]

    @cached_property
    def compared(self) -> list[Series]:
        """Return the series with ratios."""
        curves = [curve for curve in self.series if len(curve.points) > 1 and curve.is_compared]
        return [curve for curve in curves if curve.row.study != OTHER]

    @cached_property
    def over(self) -> list[FactorLadder]:
        """Return the programs with ratios over a factor."""
        return [
            factor_ladder
            for factor_ladder in factor_ladders(self.series)
            if not factor_ladder.is_blocked
        ]

    @cached_property
    def ratios(self) -> list[Interval | None]:
        """Return the interval of each ratio."""
        points = [p for curve in self.compared for p in curve.points if p is not curve.base]
        rungs = [
            rung
            for factor_ladder in self.over
            for rung in factor_ladder.rungs
            if rung is not factor_ladder.base
        ]
        return [p.speedup_interval for p in points] + [rung.speedup_interval for rung in rungs]


def checklist(results: Results, series: Sequence[Series]) -> list[Kept]:
    """Return the twelve rules with what the results say of each."""
    given = _Given(results, series)
    kept = []
    for number, (rule, judge) in enumerate(RULES, start=1):
        held, evidence = judge(given)
        state: State = "does not apply" if held is None else "held" if held else "not held"
        kept.append(Kept(number, rule, state, evidence))
    return kept


def twelve_panel(results: Results, series: Sequence[Series]) -> Panel:
    """Return the checklist as a panel of the report."""
    kept = checklist(results, series)
    counts = {state: sum(one.state == state for one in kept) for state in ("held", "not held")}
    made = panel("twelve-rules", "Twelve rules of reporting")
    made["lead"] = [
        "Hoefler and Belli's rules for reporting the performance of parallel computers (SC15, doi "
        "10.1145/2807591.2807644) in our words, each beside what these results say of it: "
        f"{counts['held']} held, {counts['not held']} not, "
        f"{len(kept) - sum(counts.values())} without a case here."
    ]
    rows = [
        [f"{one.number}. {one.rule}", f"{MARKS[one.state]} {one.state}", one.evidence]
        for one in kept
    ]
    columns = ("Rule", "State", "Evidence")
    text = f"{counts['held']} held, {counts['not held']} not"
    made["tables"] = [table("Rules and their evidence", columns, rows, 3, finding=text)]
    return made


def _share(points: Sequence[Point], holds: Callable[[Point], object]) -> tuple[bool, str]:
    """Return whether all points hold, and how many of how many."""
    count = sum(bool(holds(point)) for point in points)
    return count == len(points), f"{count} of {counted(len(points), 'point')}"


def _base_named(given: _Given) -> Verdict:
    if not given.ratios:
        return None, "no ratio is given"
    over = (f"{o.factor}={o.base.value:g} at {absolute(o.base.point)}" for o in given.over)
    bases = dict.fromkeys([*map(baseline_text, given.compared), *over])
    cited = [curve for curve in given.compared if curve.row.origin != "measured"]
    text = f"{counted(len(given.ratios), 'ratio')} relative to {listed(bases, 3)}"
    if cited:
        return False, (
            f"{text}; {counted(len(cited), 'cited table')}: whether the base is the serial program "
            "or one rank of the parallel one is not said"
        )
    return True, f"{text}; the base runs the same parallel program"


def _subset_explained(given: _Given) -> Verdict:
    if not given.results.launches:
        return None, "nothing was planned here"
    gaps = facts.gaps(given.results)
    unexplained = facts.gaps(given.results, lambda gap: not gap.is_explained)
    bare = [what for what, _, _ in unexplained]
    if bare or given.results.unread:
        lost = [*bare, *map(str, given.results.unread)]
        return False, f"{counted(len(lost), 'gap')} without a reason, first: {lost[0]}"
    if gaps:
        return True, f"{counted(len(gaps), 'gap')}, each with its reason under Not measured"
    return True, "all that was planned was measured"


def _means(given: _Given) -> Verdict:
    if not given.measured:
        return None, "nothing was averaged here"
    return True, (
        f"by construction: rates of {counted(len(given.measured), 'point')} are work over the "
        "median time, costs follow from the arithmetic mean; no rate is averaged"
    )


def _no_mean_of_ratios(given: _Given) -> Verdict:
    if not given.ratios:
        return None, "no ratio is given"
    count = counted(len(given.ratios), "ratio")
    return True, f"by construction: {count}, each of two summarised rates"


def _intervals(given: _Given) -> Verdict:
    if not given.measured:
        return None, "nothing was measured here"
    held, share = _share(given.measured, lambda point: point.rate_interval)
    return held, f"{share} with a 95 % interval over launches"


def _normality(given: _Given) -> Verdict:
    if not given.measured:
        return None, "no interval is given"
    values = [value for curve in given.series for value in _residuals(curve)]
    if len(values) < FEWEST_VALUES:
        return False, (
            f"assumed of the logarithms of rates: {counted(len(values), 'launch')} at points of 3 "
            f"or more, too few to check"
        )
    statistic = anderson_darling(values)
    sign = "below" if statistic < CRITICAL else "above"
    return statistic < CRITICAL, (
        f"checked of the logarithms of rates of {counted(len(values), 'launch')}: "
        f"Anderson-Darling {statistic:.2f}, {sign} its 5 % point of {CRITICAL}"
    )


def _residuals(series: Series) -> Iterator[float]:
    """Yield each launch's log rate less its point's mean, in standard deviations of the series.

    A mean of n values takes up 1/n of their variance, which the factor gives back.
    """
    found = []
    for point in series.points:
        if series.row.origin == "measured" and point.num_launches >= 3:
            logs = [math.log(rate) for rate in point.rates]
            factor = math.sqrt(len(logs) / (len(logs) - 1))
            found += [factor * (value - fmean(logs)) for value in logs]
    spread = math.sqrt(fmean(value**2 for value in found)) if found else 0.0
    yield from (value / spread for value in found if spread)


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


def _sound_comparison(given: _Given) -> Verdict:
    if not given.ratios:
        return None, "nothing is compared"
    known, count = sum(map(bool, given.ratios)), len(given.ratios)
    return known == count, (
        f"{known} of {counted(count, 'ratio')} with an interval that holds the baseline's "
        "uncertainty"
    )


def _right_measure(given: _Given) -> Verdict:
    points = [point for point in given.measured if point.mean_over_median is not None]
    if not points:
        return None, "no steps were timed here"
    held, share = _share(points, lambda p: abs((p.mean_over_median or 1) - 1) <= NOTABLE)
    return held, (
        f"the mean step lies within {100 * NOTABLE:.0f} % of the median at {share}; least and "
        "largest are kept beside both"
    )


def _setup_recorded(given: _Given) -> Verdict:
    launches = given.results.launches
    trained = {row.launch for point in given.measured for row in point.rows if row.training}
    runs = trained - {launch.name for launch in launches}
    if not (launches or runs):
        return False, "cited tables tell of their setup only what their source does"
    full = [launch for launch in launches if all(launch.provenance.get(name) for name in SETUP)]
    texts = [
        f"{len(full)} of {counted(len(launches), 'launch')} with versions, devices, ranks and "
        "environment; factors stand in each case's name"
    ] if launches else []  # fmt: skip
    texts += [f"{counted(len(runs), 'training run')} with options and device, and neither versions "
             "nor environment"] if runs else []  # fmt: skip
    return len(full) == len(launches) and not runs, "; ".join(texts)


def _timing_told(given: _Given) -> Verdict:
    if not given.measured:
        return None, "nothing was timed here"
    rows = [point.rows[0] for point in given.measured]
    held, share = _share(given.measured, lambda p: _is_timed(p.rows[0]))
    units = dict.fromkeys("epoch" if r.training else "round" for r in rows if _is_timed(r))
    texts = [
        f"{share} timed by {' or '.join(units)} after a barrier, with one device synchronisation; "
        "the slowest rank counts"
    ] if units else []  # fmt: skip
    count = sum(bool(row.program) for row in rows)
    texts += [f"{counted(count, 'point')} of programs by what they print, or the time of a run"
             ] if count else []  # fmt: skip
    return held, "; ".join(texts) or f"{share} timed here"


def _is_timed(row: Row) -> bool:
    """Tell whether the suite took the time of a row, of all ranks together."""
    return row.study != OTHER and not row.program


def _bounds_shown(given: _Given) -> Verdict:
    steps = [p for p in given.measured if p.rows[0].study in TRAINING]
    if not steps:
        return None, "no training step was measured here"
    held, share = _share(steps, lambda point: any(row.mfu is not None for row in point.rows))
    has_ladder = any(curve.row.study in LADDERS for curve in given.compared)
    ideal = "ideal scaling is drawn; " if has_ladder else ""
    return held, f"{ideal}the peak of the device is known at {share}"


def _lines_meant(given: _Given) -> Verdict:
    drawn = _curves(given)
    swept = _sweeps(given)
    if not (drawn or swept):
        return None, "no line is drawn"
    for label, noun, values in drawn:
        for small, large in pairwise(values):
            if large > WIDEST_STEP * small:
                return False, f"a line leaps from {small:g} to {large:g} {noun}: {label}"
    for name, sizes in swept.items():
        for few, many in pairwise(sizes):
            if many > WIDEST_SWEEP * few:
                return False, f"a line leaps from {size_of(few)} to {size_of(many)}: {name}"
    shown = ["launches and intervals are drawn"] if given.measured and drawn else []
    shown += [f"lines of {counted(len(drawn), 'curve')} join sizes at most a factor of "
              f"{WIDEST_STEP:g} apart"] if drawn else []  # fmt: skip
    shown += [f"those of {counted(len(swept), 'collective')} join messages at most a factor of "
              f"{WIDEST_SWEEP:g} apart"] if swept else []  # fmt: skip
    return True, "; ".join(shown)


def _curves(given: _Given) -> list[tuple[str, str, list[float]]]:
    """Return what has a line over ranks or a factor: its label, what varies, and the values."""
    found: list[tuple[str, str, list[float]]] = [
        (curve.label, "ranks", [point.world_size for point in curve.points])
        for curve in given.compared
    ]
    found += [(o.label, o.factor, [rung.value for rung in o.rungs]) for o in given.over]
    return [one for one in found if len(one[2]) >= JOINED]


def _sweeps(given: _Given) -> dict[str, list[float]]:
    """Return the message sizes that a line joins for each collective, at the largest world size."""
    points = [point for point in given.measured if point.rows[0].study == "collective"]
    largest = max((point.world_size for point in points), default=0)
    sizes: dict[str, set[float]] = {}
    for point in points:
        if point.world_size == largest:
            sizes.setdefault(point.rows[0].workload, set()).add(message_bytes(point))
    return {name: sorted(found) for name, found in sizes.items() if len(found) >= JOINED}


RULES: tuple[tuple[str, Callable[[_Given], Verdict]], ...] = (
    ("Say what a speed-up is relative to, in absolute terms", _base_named),
    ("Give the reason where a part was left out", _subset_explained),
    ("Average costs arithmetically, rates harmonically", _means),
    ("Do not average ratios", _no_mean_of_ratios),
    ("Give an interval with what varies", _intervals),
    ("Do not take noise for normal unchecked", _normality),
    ("Compare by intervals or tests, not bare numbers", _sound_comparison),
    ("Choose mean, median or percentile for a reason", _right_measure),
    ("Record all factors and the whole setup", _setup_recorded),
    ("Say how parallel time was taken, synchronised and summarised", _timing_told),
    ("Show upper bounds of performance", _bounds_shown),
    ("Draw what supports the reading; join points only where that means something", _lines_meant),
)
