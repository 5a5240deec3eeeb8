"""Predictions of sizes that were not measured: a value, an interval and the rule, or a refusal.

A larger size is predicted by one of the rules in `models`. Each rule is first tested on the ladder
itself: the third size is predicted from the first two, the fourth from the first three, and so on.
A rule's error is the mean of |log(predicted / measured)| / g over these sizes and of its mean error
on published ladders, which counts as one more size. The rule of least error is chosen, so a short
ladder follows the published ones, and a long ladder its own past. After a break of the curve only
the sizes from the last break on are used, if they are enough; else all are used, and the break
counts among the errors, so that the interval becomes as wide as the break was steep.

A size between two measured ones lies on the line of logarithms through them, and its error is that
of the inner sizes, each left out in turn.

The interval is  value * exp(+- s g k(level)).  s is the root of the rule's error squared plus the
launches' scatter squared; g = (1 + d) / 2 at d doublings beyond the largest size, or below the
smallest, and 1 between sizes; k is Student's t with three degrees of freedom times a scale. Above
the largest size, the upper end is at most 1 + TOLERANCE times linear scaling from there. If a
rank did more at some size than at the size before, the steepest doubling measured replaces it.

The choice of rules and the form of the interval are a heuristic, not a statistical model. The
errors on published ladders and the scale are learned: `LEARNED` from all of them, and, for the
figures in docs/validation.md, from the ladders of all sources but the one predicted
(`make statistics` prints both).
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from lockstep.core.formats import TIME_UNITS, counted, listed
from lockstep.core.studies import LADDERS
from lockstep.report.check.checker import Finding
from lockstep.report.check.evidence import joined
from lockstep.report.compute.scaling import WIDEST, Series
from lockstep.report.compute.statistics import t_quantile
from lockstep.report.predict import models
from lockstep.report.predict.models import BETWEEN, LEAST_KNOWN, RULES, TOLERANCE, Array

Kind = Literal["few-sizes", "below", "beyond", "break", "check"]
# The fewest sizes for a prediction: two to draw a curve, and one to test the rules.
LEAST_SIZES = 3
# The largest size predicted, as a multiple of the largest one measured.
FARTHEST = 2
# Warnings of the check that forbid a curve. Every error forbids it, but not findings on targets:
# `Ladder.origin` labels predictions from targets.
NO_CURVE = ("outlier", "launches-apart")


@dataclass(frozen=True)
class Refusal:
    """Why a size is not predicted.

    Attributes:
        world_sizes: The sizes at fault.
        measure: The sizes to measure; empty if no size would help.
        rule: The rule of `lockstep check` that forbids it, if any.
        fact: What that rule reports, or how the curve breaks.
        action: What to do; empty if measuring `measure` is enough.
    """

    kind: Kind
    at: int
    world_sizes: tuple[int, ...]
    measure: tuple[int, ...] = ()
    rule: str = ""
    fact: str = ""
    action: str = ""

    @property
    def text(self) -> str:
        """The reason and what to do, in one sentence."""
        sizes = listed(self.world_sizes)
        do = f"measure {joined(self.measure)}" if self.measure else self.action
        match self.kind:
            case "few-sizes":
                num_sizes = counted(len(self.world_sizes), "distinct size")
                reason = f"only {num_sizes} ({sizes}) were measured, but {LEAST_SIZES} are needed"
                return f"{reason}; also {do}, then repeat this command (--force does not help)"
            case "below":
                reason = f"{self.at} is below the smallest measured size, {sizes}"
            case "beyond":
                too_far = _beyond(self.at, sizes)
                reason = f"{too_far}, where no rule is reliable"
            case "break":
                reason = (f"the curve breaks at {sizes} ranks ({self.fact}), so it cannot be "
                          f"continued to {self.at} ranks")  # fmt: skip
            case "check":
                reason = f"lockstep check reports {self.rule} at world size {sizes}: {self.fact}"
        return (
            f"{reason}; {do}, or use --force"
            if do
            else f"{reason}; use --force to get a value anyway"
        )


def _beyond(at: int, largest: object) -> str:
    return f"{at} ranks are more than {FARTHEST} times the largest measured size, {largest}"


def doublings_between(small: int, large: int) -> list[int]:
    """Return the doublings of a size that are smaller than another size."""
    doublings = []
    while (small := 2 * small) < large:
        doublings.append(small)
    return doublings


# What stays fixed along a ladder: the work of all ranks (strong scaling), or of each.
Fixed = Literal["global", "local"]


@dataclass(frozen=True)
class Ladder:
    """One series as predictions need it: ascending sizes, the rate and the time at each.

    Attributes:
        rates: Work per second.
        nodes: Nodes at each size; None unless all are known.
        metric: What the series' own table contains, such as `throughput` or `training_time`.
        time_scale_s: Seconds of a step (or run) per unit of work / rate.
        time_noun: What takes these seconds: "step", "run", or "unit of a rank's work".
        value_scale: The table's value per rate, or per work / rate if it contains times.
        value_work: The work that a time in the table is of; None if it contains rates.
        origin: `measured`, `cited`, or `target`.
        assumed: Equals `fixed` if neither scaling nor batches state it; else None.
    """

    case: str
    sizes: list[int]
    rates: list[float]
    repeats: list[list[float]]
    nodes: list[int] | None
    fixed: Fixed
    strong: bool
    metric: str
    unit: str
    time_scale_s: float
    time_noun: str
    value_scale: float
    value_work: Fixed | None
    origin: str = "measured"
    assumed: Fixed | None = None
    forbidding: tuple[Finding, ...] = ()

    @cached_property
    def times_s(self) -> Array:
        """Times of a step (or run, see `time_noun`), shape (num_sizes,)."""
        sizes = np.asarray(self.sizes, dtype=float)
        done = np.ones_like(sizes) if self.fixed == "global" else sizes
        return np.asarray(done / np.asarray(self.rates) * self.time_scale_s)

    def value(self, at: int, rate: float) -> float:
        """Return a rate in the table's own metric and unit."""
        if self.value_work is None:
            return rate * self.value_scale
        return (1 if self.value_work == "global" else at) / rate * self.value_scale

    def rate(self, at: int, value: float) -> float:
        """Return the rate of a value, as `value` does the other way round."""
        # A value that is a time, work / rate, is its own inverse.
        return value / self.value_scale if self.value_work is None else self.value(at, value)

    @cached_property
    def breaks(self) -> list[models.Break]:
        return models.breaks(self.sizes, self.repeats, self.nodes)

    @property
    def noise(self) -> float:
        """Pooled standard deviation of the logarithm of the launches' rates; 0 without repeats."""
        squares, freedom = 0.0, 0
        for rates in self.repeats:
            logs = np.log(rates)
            squares += float(((logs - logs.mean()) ** 2).sum())
            freedom += len(rates) - 1
        return math.sqrt(squares / freedom) if freedom else 0.0


def can_be_modelled(series: Series) -> bool:
    """Tell whether a series is a ladder: measured strong or weak, or an imported table."""
    if series.row.origin != "measured":
        return True
    return series.row.study in LADDERS and not series.row.has_smaller_batch


def ladder_of(series: Series, facts: dict[str, Any], findings: Iterable[Finding] = ()) -> Ladder:
    base, row = series.base, series.row
    # The scaling says which work is fixed; without a scaling, the batches do.
    stated: Fixed | None = None
    if row.scaling is not None:
        stated = "global" if row.scaling == "strong" else "local"
    else:
        batches = {
            point.world_size: row.global_batch
            for point in series.points for row in point.rows if row.global_batch
        }  # fmt: skip
        is_known = len(batches) == len(series.points) > 1
        if is_known and len(set(batches.values())) == 1:
            stated = "global"
        elif is_known and len({batch / size for size, batch in batches.items()}) == 1:
            stated = "local"
    fixed: Fixed = stated or "global"
    work = 1 if fixed == "global" else base.world_size
    base_time = seconds = work / base.rate
    noun = "unit of a rank's work" if fixed == "local" else "unit of work"
    if base.step_s is not None:
        seconds, noun = base.step_s, "step"
    elif base.time_s is not None and (fixed == "global" or base.rows[0].scaling == "weak"):
        seconds, noun = base.time_s, "run"
    elif base.time_s is not None:
        seconds, noun = base.time_s * base.world_size, "run (time summed over its ranks)"
    is_measured = row.origin == "measured"
    metric = "throughput" if is_measured else str(facts.get("metric") or "throughput")
    unit = f"{row.sample_unit or 'samples'}/s" if is_measured else str(facts.get("unit") or "")
    scale = 1.0
    value_work: Fixed | None = None
    if metric != "throughput":
        scale, value_work = 1 / TIME_UNITS.get(unit, 1.0), fixed
        if base.time_s is not None:
            value_work = "local" if base.rows[0].scaling == "weak" else "global"
        else:  # step times: with the local batch fixed, a step's work grows with the ranks
            scale *= (base.step_s or 1.0) * base.rate / work
    nodes = [{row.num_nodes for row in point.rows} for point in series.points]
    known = [n for at_size in nodes for n in at_size if n and len(at_size) == 1]
    rows = series.rows
    forbidding = [
        each for each in findings if any(map(each.touches, rows))
        and (each.rule in NO_CURVE or (each.level == "error" and each.rule != "not-measured"))
    ]  # fmt: skip
    return Ladder(
        case=series.case, sizes=series.sizes,
        rates=[p.rate for p in series.points], repeats=[p.rates for p in series.points],
        nodes=known if len(known) == len(nodes) else None, fixed=fixed,
        strong=row.scaling == "strong", metric=metric, unit=unit,
        time_scale_s=seconds / base_time, time_noun=noun, value_scale=scale, value_work=value_work,
        origin=row.origin, assumed=None if stated else fixed, forbidding=tuple(forbidding),
    )  # fmt: skip


LEVEL = 0.9
FREEDOM = 3
# Errors closer than this count as equal: no table is precise to a tenth of a per cent.
TIE = 1e-3
WIDEST_LOG = math.log(1e9)


@dataclass(frozen=True)
class Learned:
    """What published ladders show of rules and intervals.

    Attributes:
        errors: Mean error of each rule, as in `Candidate.held_out`; all sources weigh the same.
        scale: Factor of Student's t in k(level) that makes nine of ten intervals hold.
    """

    errors: Mapping[str, float]
    scale: float

    def factor(self, share: float) -> float:
        """Return k(level), half the width of the interval in spreads."""
        return self.scale * t_quantile(FREEDOM, share)


# From all published ladders; `make statistics` prints them.
LEARNED = Learned(
    {"level": 0.1128, "halfway": 0.0891, "falling": 0.0836, "amdahl": 0.0855, BETWEEN: 0.0428}, 1.78
)


@dataclass(frozen=True)
class Candidate:
    """A rule, and how well it predicted sizes of the ladder that were held out.

    Attributes:
        held_out: World size -> |log(predicted / measured)| / g, the error one doubling ahead.
        error: Mean of these and of the rule's error on published ladders.
    """

    rule: str
    held_out: Mapping[int, float]
    error: float


@dataclass(frozen=True)
class Prediction:
    """The prediction of one size; if refused, without value, bounds and rule.

    Attributes:
        level: Confidence level of the interval.
        model: The rule.
        spread: s g of the module's formula, of the logarithm.
    """

    ladder: Ladder
    at: int
    level: float
    refusal: Refusal | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    model: str | None = None
    spread: float | None = None
    warnings: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        ladder, reason = self.ladder, self.refusal
        return {
            "at": self.at, "metric": ladder.metric, "unit": ladder.unit, "value": self.value,
            "low": self.low, "high": self.high, "level": self.level, "model": self.model,
            "assumed": ladder.assumed, "origin": "predicted", "predicted_from": ladder.origin,
            "refused": reason.text if reason else None,
            "refusal": asdict(reason) if reason else None,
            "warnings": list(self.warnings),
        }  # fmt: skip


def candidates(ladder: Ladder, learned: Learned = LEARNED) -> list[Candidate]:
    """Return every rule, the least error first; of equal errors, the simplest rule first."""
    held_out = {name: errors_at_sizes(name, ladder) for name in RULES}
    rules = [
        Candidate(name, own, _error(own.values(), learned.errors[name]))
        for name, own in held_out.items()
    ]
    return sorted(rules, key=lambda candidate: round(candidate.error / TIE))


def errors_at_sizes(name: str, ladder: Ladder) -> dict[int, float]:
    """Return a rule's error at each size, predicted from the sizes below it."""
    sizes, rates, start = ladder.sizes, ladder.rates, used_from(ladder)
    errors = {}
    for cut in range(start + LEAST_KNOWN, len(sizes)):
        rate = RULES[name](sizes[start:cut], rates[start:cut], sizes[cut])
        error = abs(math.log(rate) - math.log(rates[cut]))
        errors[sizes[cut]] = error / _distance(math.log2(sizes[cut] / sizes[cut - 1]))
    return errors


def _distance(doublings: float) -> float:
    """Return g, the error after these doublings divided by that after one."""
    return (1 + doublings) / 2


def inner_errors(ladder: Ladder) -> list[float]:
    """Return |log(predicted / measured)| of each inner size, from the sizes on either side."""
    errors = []
    for index in range(1, len(ladder.sizes) - 1):
        sides = slice(index - 1, index + 2, 2)
        rate = models.between(ladder.sizes[sides], ladder.rates[sides], ladder.sizes[index])
        errors.append(abs(math.log(rate) - math.log(ladder.rates[index])))
    return errors


def _error(own: Collection[float], published: float) -> float:
    """Return the mean error; the error on published ladders counts as one size."""
    return (sum(own) + published) / (len(own) + 1)


def used_from(ladder: Ladder) -> int:
    """Return the index of the first size used: the last break, if enough sizes follow it."""
    if not ladder.breaks:
        return 0
    index = ladder.sizes.index(ladder.breaks[-1].world_size)
    return index if len(ladder.sizes) - index >= LEAST_SIZES else 0


def refusal(ladder: Ladder, at: int, force: bool) -> Refusal | None:
    sizes = tuple(ladder.sizes)
    if len(sizes) < LEAST_SIZES:
        # Measure the requested size if it is below them, and the doublings between the sizes and
        # from them to the requested size; else larger sizes, which may be the requested one.
        ends = [*sizes, *([at] if at > sizes[-1] else [])]
        gaps = [size for p, q in pairwise(ends) for size in doublings_between(p, q) if size != at]
        below = [at] if at < sizes[0] else []
        more = [*below, *gaps, *ends[len(sizes) :], 2 * ends[-1], 4 * ends[-1]]
        return Refusal("few-sizes", at, sizes, tuple(more[: LEAST_SIZES - len(sizes)]))
    if force:
        return None
    if at < sizes[0]:
        return Refusal("below", at, sizes[:1])
    if at > FARTHEST * sizes[-1]:
        return Refusal("beyond", at, sizes[-1:], (FARTHEST * sizes[-1],))
    return next(_obstacles(ladder, at), None)


def _obstacles(ladder: Ladder, at: int) -> Iterator[Refusal]:
    """Yield why a curve does not reach a size: a finding of the check, a break, its peak."""
    for finding in ladder.forbidding[:1]:
        sizes = tuple(size for size in finding.world_sizes if size in ladder.sizes)
        yield Refusal(
            "check", at, sizes or tuple(ladder.sizes), (), finding.rule, finding.message,
            finding.action,
        )  # fmt: skip
    for break_ in ladder.breaks:
        size, is_peak = break_.world_size, break_.kind in ("falls", "saturation")
        if break_.below < at < size or (is_peak and size == ladder.sizes[-1] < at):
            yield Refusal("break", at, (size,), fact=break_.text)
            return


def predict(ladder: Ladder, at: int, level: float = LEVEL, force: bool = False) -> Prediction:
    """Predict one size, or say why not; `force` predicts across a break and beyond all measured."""
    if refused := refusal(ladder, at, force):
        return Prediction(ladder, at, level, refused)
    return foretell(ladder, at, level, LEARNED)


def foretell(ladder: Ladder, at: int, level: float, learned: Learned) -> Prediction:
    """Predict one size without any refusal, with errors learned from other ladders."""
    sizes, rates, start = ladder.sizes, ladder.rates, used_from(ladder)
    used = sizes[start:], rates[start:]
    if at > sizes[-1]:
        best = candidates(ladder, learned)[0]
        rule, error, rate = best.rule, best.error, RULES[best.rule](*used, at)
    elif at < sizes[0]:
        rule, rate = "level", models.level(sizes[:1], rates[:1], at)
        error = _error(errors_at_sizes(rule, ladder).values(), learned.errors[rule])
    else:
        rule, error = BETWEEN, _error(inner_errors(ladder), learned.errors[BETWEEN])
        rate = models.between(sizes, rates, at)
    away = max(math.log2(at / sizes[-1]), math.log2(sizes[0] / at))
    spread = math.hypot(error, ladder.noise) * (_distance(away) if away > 0 else 1)
    reach = math.exp(min(spread * learned.factor(level), WIDEST_LOG))
    highest = rate * reach
    if at > sizes[-1]:  # no more than linear scaling, or the steepest doubling measured
        slopes = [
            (math.log(y) - math.log(x)) / math.log(q / p)
            for (p, x), (q, y) in pairwise(zip(*used, strict=True))
        ]
        factor = max(1.0, *slopes) * math.log(at / sizes[-1])
        steepest = rates[-1] * math.exp(min(factor, WIDEST_LOG))
        highest = min(highest, max(rate, steepest) * (1 + TOLERANCE))
    value, *ends = (ladder.value(at, x) for x in (rate, rate / reach, highest))
    warnings = tuple(_warnings(ladder, at))
    return Prediction(ladder, at, level, None, value, min(ends), max(ends), rule, spread, warnings)


def curves(series: Iterable[Series], findings: Sequence[Finding]) -> dict[str, Prediction]:
    """Return series name -> the prediction of twice the largest size, as a rate.

    Targets have none, nor has a series whose prediction is refused, or has too wide an interval.
    """
    found = {}
    for own in series:
        if own.row.origin != "target" and can_be_modelled(own):
            # Without facts of the table, its values are read as rates.
            ladder = ladder_of(own, {}, findings)
            made = predict(ladder, FARTHEST * ladder.sizes[-1])
            if made.low and made.high and made.high <= WIDEST * made.low:
                found[own.name] = made
    return found


def _warnings(ladder: Ladder, at: int) -> Iterator[str]:
    smallest, largest = ladder.sizes[0], ladder.sizes[-1]
    if at > FARTHEST * largest:
        yield _beyond(at, largest)
    if at < smallest:
        yield (
            f"{at} is below the smallest measured size, {smallest}, so it is unknown how much "
            "time fewer ranks save"
        )
    if ladder.nodes and max(ladder.nodes) == 1 and at > largest and ladder.strong:
        yield (
            "all sizes were measured within one node, so the value leaves out the cost of a "
            f"network between nodes if {at} ranks need several nodes"
        )
    for obstacle in _obstacles(ladder, at):
        yield obstacle.fact
    if at > largest:
        yield (
            f"a break of the curve between {largest} and {at} ranks would go unnoticed, for "
            "example at the first size on two nodes or where the network is saturated"
        )
    if at > largest and ladder.breaks:
        curve_breaks = f"the curve breaks at world size {ladder.breaks[-1].world_size}"
        if used_from(ladder):
            yield f"{curve_breaks}, so the prediction uses only this size and larger sizes"
        else:
            yield (
                f"{curve_breaks}, but fewer than {LEAST_SIZES} sizes begin there, so the "
                "prediction uses all sizes and its interval is wider"
            )
