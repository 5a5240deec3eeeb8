"""Predictions of sizes that were not measured: a value, an interval and the rule, or a refusal.

A larger size is predicted by one of the rules in `models`. Each rule is first tried
on the ladder itself: the third size is predicted from the first two, the fourth from the first
three, and so on. A rule's error is the mean of |log(predicted / measured)| / g over these sizes and
of its mean error on other people's ladders, which counts as one more size. The least error wins, so
a short ladder follows what holds elsewhere, and a long one its own past. Where the curve breaks,
only the sizes from the last break on are used, if a prediction can rest on so few; else all are,
and the break counts among the errors, so that the interval is as wide as it was steep.

A size between two measured ones lies on the line of logarithms through them, and its error is that
of the inner sizes, each left out in turn.

The interval is  value * exp(+- s g k(level)).  s is the root of the rule's error squared plus the
launches' own scatter squared; g = (1 + d) / 2 at d doublings beyond the largest size, or below the
smallest, and 1 between sizes; k is Student's t with three degrees of freedom times a scale. Above
the largest size the end towards more throughput is cut at linear scaling from there, or, where a
rank did more at a larger size than at the one before, at the steepest doubling measured, and by so
much above it as a ratio of two rates may miss the truth.

The choice of rules and the form of the interval are a heuristic, not a statistical model. The
errors elsewhere and the scale are learned: `LEARNED` from all published ladders, and, for the
figures that docs/validation.md states, from the ladders of all sources but the one predicted
(`make statistics` prints both).
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lockstep.core.formats import TIME_UNITS, counted, listed
from lockstep.core.studies import LADDERS
from lockstep.report.check.checker import check
from lockstep.report.check.evidence import joined, of_break
from lockstep.report.compute.scaling import WIDEST, Series
from lockstep.report.compute.statistics import t_quantile
from lockstep.report.load.results import Results
from lockstep.report.predict import models
from lockstep.report.predict.models import BETWEEN, LEAST_KNOWN, RULES, TOLERANCE, Array

if TYPE_CHECKING:
    from lockstep.report.check.checker import Finding


Kind = Literal["few-sizes", "below", "beyond", "break", "check"]
# The fewest sizes that a prediction rests on: two to draw from, and one to try the rules on.
LEAST_SIZES = 3
FARTHEST = 2
# Warnings of the check that forbid a curve; its errors all do.
NO_CURVE = ("outlier", "launches-apart")


@dataclass(frozen=True)
class Refusal:
    """Why a size is not predicted.

    Attributes:
        world_sizes: The sizes that forbid it.
        measure: The sizes to measure, never the one asked for; empty where no size would help.
        rule: The rule of `lockstep check` that forbids it; empty for the other kinds.
        fact: What that rule found, or how the curve breaks, in words.
        action: What to do about that, in words; empty where measuring `measure` is all.
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
        if self.kind == "few-sizes":
            distinct = counted(len(self.world_sizes), "distinct size")
            fact = f"only {distinct} ({sizes}) were measured, but {LEAST_SIZES} are needed"
            return f"{fact}; also {do}" if do else fact
        if self.kind == "below":
            fact = f"{self.at} is below the smallest measured size, {sizes}"
        elif self.kind == "beyond":
            fact = (
                f"{self.at} is more than {FARTHEST} times the largest measured size, {sizes}, "
                "where no rule is reliable"
            )
        elif self.kind == "break":
            fact = (
                f"the curve breaks at {sizes} ({self.fact}), so it cannot be continued to {self.at}"
            )
        else:
            fact = f"check finds {self.rule} at {sizes}: {self.fact}"
        return f"{fact}; {do}, or use --force" if do else f"{fact}; use --force to see a value"


def forbidding(findings: "Iterable[Finding]", series: "Series") -> "tuple[Finding, ...]":
    """Return what `lockstep check` finds that forbids a curve through a series.

    That its numbers are targets does not: what follows from them says so, see `Ladder`.
    """
    rows = [row for point in series.points for row in point.rows]
    return tuple(
        finding
        for finding in findings
        if (
            (finding.level == "error" and finding.rule != "not-measured")
            or finding.rule in NO_CURVE
        )
        and any(map(finding.touches, rows))
    )


def doublings_between(small: int, large: int) -> list[int]:
    """Return the doublings of a size that lie below another one."""
    found = []
    while (small := 2 * small) < large:
        found.append(small)
    return found


def worth_measuring(sizes: Sequence[int], at: int) -> list[int]:
    """Return the doublings between the sizes, and from them to `at`, that a prediction lacks."""
    ends = [*sizes, *([at] if at > sizes[-1] else [])]
    gaps = [size for p, q in pairwise(ends) for size in doublings_between(p, q)]
    return [size for size in gaps if size != at][: LEAST_SIZES - len(sizes)]


# What a ladder keeps along its sizes: the work of all ranks (strong scaling), or that of each.
Fixed = Literal["global", "local"]


@dataclass(frozen=True)
class Ladder:
    """One series as predictions see it: rising sizes, the rate and the time at each.

    Attributes:
        rates: Work per second.
        nodes: Nodes at each size; None unless all are known.
        metric: What the series' own table holds, as `throughput` or `training_time`.
        time_scale_s: Seconds of a step (or run) per unit of work / rate.
        time_noun: What those seconds are of: "step", "run", or "unit of a rank's work".
        value_scale: The table's value per rate, or per work / rate where it holds times.
        value_work: Whether a time in the table is of work that grows with the ranks.
        origin: Where its numbers come from: `measured`, `cited`, or `target`, what was expected.
        assumed: What is taken for granted of the work, since nothing states it; None where it is
            stated or follows from the batches.
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
    forbidding: "tuple[Finding, ...]" = ()

    @cached_property
    def times_s(self) -> Array:
        """Times of a step (or run, see `time_noun`), of shape (num_sizes,)."""
        sizes = np.asarray(self.sizes, dtype=float)
        done = np.ones_like(sizes) if self.fixed == "global" else sizes
        return np.asarray(done / np.asarray(self.rates) * self.time_scale_s)

    def value(self, at: int, rate: float) -> float:
        """Return a rate in the table's own metric and unit."""
        if self.value_work is None:
            return rate * self.value_scale
        return (1 if self.value_work == "global" else at) / rate * self.value_scale

    @cached_property
    def breaks(self) -> list[models.Break]:
        """Where the curve breaks."""
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


def ladder_of(series: Series, facts: dict[str, Any], findings: "Iterable[Finding]" = ()) -> Ladder:
    """Return a series as predictions see it."""
    base, row = series.base, series.row
    # What is fixed follows from the scaling, else from the batches.
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
        seconds, noun = base.time_s * base.world_size, "run summed over its ranks"
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
    known = [n for each in nodes for n in each if n and len(each) == 1]
    return Ladder(
        case=series.case, sizes=[p.world_size for p in series.points],
        rates=[p.rate for p in series.points], repeats=[p.rates for p in series.points],
        nodes=known if len(known) == len(nodes) else None, fixed=fixed,
        strong=row.scaling == "strong", metric=metric, unit=unit,
        time_scale_s=seconds / base_time, time_noun=noun, value_scale=scale, value_work=value_work,
        origin=row.origin, assumed=None if stated else fixed,
        forbidding=forbidding(findings, series),
    )  # fmt: skip


LEVEL = 0.9
FREEDOM = 3
# Errors closer than this are equal: no table tells a tenth of a per cent.
TIE = 1e-3
WIDEST_LOG = math.log(1e9)


@dataclass(frozen=True)
class Learned:
    """What other people's ladders teach.

    Attributes:
        errors: Mean error of each rule, as `Candidate.held_out`, every source counting alike.
        scale: Of Student's t in k(level), so that nine intervals of ten hold the truth.
    """

    errors: Mapping[str, float]
    scale: float

    def factor(self, share: float) -> float:
        """Return k(level): how many spreads the interval reaches to either side."""
        return self.scale * t_quantile(FREEDOM, share)


# From all published ladders; `make statistics` prints them.
LEARNED = Learned(
    {"level": 0.1128, "halfway": 0.0891, "falling": 0.0836, "amdahl": 0.0855, BETWEEN: 0.0428}, 1.78
)


@dataclass(frozen=True)
class Candidate:
    """A rule, and how it predicted those sizes of the ladder that it was not shown.

    Attributes:
        held_out: |log(predicted / measured)| / g by world size, so at one doubling on.
        error: Mean of them and of the rule's error elsewhere.
    """

    rule: str
    held_out: Mapping[int, float]
    error: float


@dataclass(frozen=True)
class Prediction:
    """What is predicted of one size of a ladder; without value, bounds and rule if refused.

    Attributes:
        level: Share of truths that the interval shall contain.
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
        """Return the machine-readable form."""
        ladder, reason = self.ladder, self.refusal
        return {
            "at": self.at, "metric": ladder.metric, "unit": ladder.unit, "value": self.value,
            "low": self.low, "high": self.high, "level": self.level, "model": self.model,
            "assumed": ladder.assumed, "origin": ladder.origin,
            "refused": reason.text if reason else None,
            "refusal": asdict(reason) if reason else None,
            "warnings": list(self.warnings),
        }  # fmt: skip


def candidates(ladder: Ladder, learned: Learned = LEARNED) -> list[Candidate]:
    """Return every rule, that of the least error first, the simplest first among equals."""
    found = [_candidate(name, ladder, learned) for name in RULES]
    return sorted(found, key=lambda candidate: round(candidate.error / TIE))


def _candidate(name: str, ladder: Ladder, learned: Learned) -> Candidate:
    held_out = errors_at_sizes(name, ladder)
    return Candidate(name, held_out, _error(held_out.values(), learned.errors[name]))


def errors_at_sizes(name: str, ladder: Ladder) -> dict[int, float]:
    """Return a rule's error at each size, predicted from those below it."""
    sizes, rates = ladder.sizes, ladder.rates
    found = {}
    for cut in range(used_from(ladder) + LEAST_KNOWN, len(sizes)):
        rate = RULES[name](*_known(ladder, cut), sizes[cut])
        missed = abs(math.log(rate) - math.log(rates[cut]))
        found[sizes[cut]] = missed / _distance(math.log2(sizes[cut] / sizes[cut - 1]))
    return found


def _distance(doublings: float) -> float:
    """Return g, by how much more a rule errs so far away than one doubling on."""
    return (1 + doublings) / 2


def inner_errors(ladder: Ladder) -> list[float]:
    """Return |log(predicted / measured)| of each inner size, from the sizes on either side."""
    found = []
    for index in range(1, len(ladder.sizes) - 1):
        sides = slice(index - 1, index + 2, 2)
        rate = models.between(ladder.sizes[sides], ladder.rates[sides], ladder.sizes[index])
        found.append(abs(math.log(rate) - math.log(ladder.rates[index])))
    return found


def _error(own: Collection[float], elsewhere: float) -> float:
    """Return the mean error, that on other people's ladders counting as one size."""
    return (sum(own) + elsewhere) / (len(own) + 1)


def used_from(ladder: Ladder) -> int:
    """Return the index of the first size used: the last break, if enough sizes follow it."""
    if not ladder.breaks:
        return 0
    index = ladder.sizes.index(ladder.breaks[-1].world_size)
    return index if len(ladder.sizes) - index >= LEAST_SIZES else 0


def _known(ladder: Ladder, cut: int) -> tuple[list[int], list[float]]:
    """Return the sizes and rates used, those before an index."""
    start = used_from(ladder)
    return ladder.sizes[start:cut], ladder.rates[start:cut]


def refusal(ladder: Ladder, at: int, force: bool) -> Refusal | None:
    """Return why a size is not predicted, or None."""
    sizes = tuple(ladder.sizes)
    if len(sizes) < LEAST_SIZES:
        return Refusal("few-sizes", at, sizes, tuple(worth_measuring(sizes, at)))
    if force:
        return None
    if at < sizes[0]:
        return Refusal("below", at, sizes[:1])
    if at > FARTHEST * sizes[-1]:
        return Refusal("beyond", at, sizes[-1:], (FARTHEST * sizes[-1],))
    return next(_obstacles(ladder, at), None)


def _obstacles(ladder: Ladder, at: int) -> Iterator[Refusal]:
    """Yield why no curve leads to a size: what the check finds, a break, a rate at its peak."""
    for finding in ladder.forbidding[:1]:
        sizes = tuple(size for size in finding.world_sizes if size in ladder.sizes)
        yield Refusal(
            "check", at, sizes or tuple(ladder.sizes), (), finding.rule, finding.message,
            finding.action,
        )  # fmt: skip
    for break_ in ladder.breaks:
        size, is_peak = break_.world_size, break_.kind in ("falls", "saturation")
        if break_.below < at < size or (is_peak and size == ladder.sizes[-1] < at):
            yield Refusal("break", at, (size,), fact=of_break(break_))
            return


def predict(ladder: Ladder, at: int, level: float = LEVEL, force: bool = False) -> Prediction:
    """Predict one size, or say why not; by force also across a break and beyond all measured."""
    refused = refusal(ladder, at, force)
    return (
        Prediction(ladder, at, level, refused) if refused else foretell(ladder, at, level, LEARNED)
    )


def foretell(ladder: Ladder, at: int, share: float, learned: Learned) -> Prediction:
    """Predict one size whatever speaks against it, by what was learned from other ladders."""
    sizes, rates = ladder.sizes, ladder.rates
    used = _known(ladder, len(sizes))
    if at > sizes[-1]:
        best = candidates(ladder, learned)[0]
        rule, error, rate = best.rule, best.error, RULES[best.rule](*used, at)
    elif at < sizes[0]:
        rule, error = "level", _candidate("level", ladder, learned).error
        rate = models.level(sizes[:1], rates[:1], at)
    else:
        rule, error = BETWEEN, _error(inner_errors(ladder), learned.errors[BETWEEN])
        rate = models.between(sizes, rates, at)
    away = max(math.log2(at / sizes[-1]), math.log2(sizes[0] / at))
    spread = math.hypot(error, ladder.noise) * (_distance(away) if away > 0 else 1)
    reach = math.exp(min(spread * learned.factor(share), WIDEST_LOG))
    highest = rate * reach
    if at > sizes[-1]:  # no further than by linear scaling, or the steepest doubling measured
        slopes = [
            (math.log(y) - math.log(x)) / math.log(q / p)
            for (p, x), (q, y) in pairwise(zip(*used, strict=True))
        ]
        factor = max(1.0, *slopes) * math.log(at / sizes[-1])
        steepest = rates[-1] * math.exp(min(factor, WIDEST_LOG))
        highest = min(highest, max(rate, steepest) * (1 + TOLERANCE))
    value, *ends = (ladder.value(at, each) for each in (rate, rate / reach, highest))
    warnings = tuple(_warnings(ladder, at))
    return Prediction(ladder, at, share, None, value, min(ends), max(ends), rule, spread, warnings)


@dataclass(frozen=True)
class Curve:
    """What a figure draws of a prediction: the way from the largest size measured to twice that.

    Attributes:
        points: (size, rate) of the last size measured, and of the size predicted.
        interval: Rates between which the predicted one lies.
    """

    model: str
    points: list[tuple[int, float]]
    interval: tuple[float, float]


def curve(series: Series) -> Curve | None:
    """Return the curve of the rule chosen, or None where nothing, or next to it, is predicted."""
    if not can_be_modelled(series):
        return None
    # Without the table's unit, its values are rates.
    ladder = ladder_of(series, {}, check(Results(rows=[r for p in series.points for r in p.rows])))
    last = ladder.sizes[-1]
    prediction = predict(ladder, FARTHEST * last)
    if prediction.refusal:
        return None
    assert prediction.value and prediction.low and prediction.high and prediction.model
    if prediction.high > WIDEST * prediction.low:
        return None
    points = [(last, ladder.rates[-1]), (prediction.at, prediction.value)]
    return Curve(prediction.model, points, (prediction.low, prediction.high))


def curves(series: Iterable[Series]) -> dict[str, Curve]:
    """Return the curve of each series that has one, by its name; targets are never continued."""
    measured = (one for one in series if one.row.origin != "target")
    return {one.name: found for one in measured if (found := curve(one))}


def _warnings(ladder: Ladder, at: int) -> list[str]:
    found = []
    largest = ladder.sizes[-1]
    if at > FARTHEST * largest:
        found.append(f"{at} is more than {FARTHEST} times the largest measured size, {largest}")
    if at < ladder.sizes[0]:
        found.append(
            f"{at} is below the smallest measured size, {ladder.sizes[0]}, so costs that vanish "
            "with fewer ranks are unknown"
        )
    if ladder.nodes and max(ladder.nodes) == 1 and at > largest and ladder.strong:
        found.append(
            f"all sizes were measured within one node, so the value excludes the network if {at} "
            "ranks span nodes"
        )
    found += [reason.fact for reason in _obstacles(ladder, at)]
    if at > largest:
        found.append(
            f"a break of the curve between {largest} and {at} would go unnoticed, such as at the "
            "first size on two nodes or on a saturated network"
        )
    if at > largest and ladder.breaks:
        broken = f"the curve breaks at {ladder.breaks[-1].world_size}"
        found.append(
            f"{broken}, so only the sizes from there on are used"
            if used_from(ladder)
            else (
                f"{broken}, but fewer than {LEAST_SIZES} sizes follow, so all are used and the "
                "break widens the interval"
            )
        )
    return found
