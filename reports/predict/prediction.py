"""Predictions of sizes nobody measured: one value, an interval, the model, or a refusal.

The model is chosen by what it says of sizes it was not shown, never by its fit to all of them:
each is fitted without the largest size and predicts it, and again without the two largest where
enough sizes remain. The least error wins; ties go to the model with fewer coefficients.

The interval is  value * exp(+- s g k(level)).  s is a root of a sum of squares: the residual of
the chosen fit, its error at the sizes held out, its distance from the other plausible models, the
launches' own scatter where a size was measured more than once, and a floor. g grows with the
distance: 1 + log2(at / largest), 1 + log2(smallest / at) below the smallest, and 1 within the
data. k is Student's t with three degrees of freedom times `SCALE`. Within the data and above them
the end towards more throughput is cut: it lies no further than linear scaling from the fastest
rank of any size measured, times exp(k n), where n joins residual, scatter and floor. So what is
printed is often narrower on that side than the formula, and never cut below the value itself.

`SCALE`, the floor and the three degrees were chosen on the published tables that
tests/figures_models.py prints: every first part with four sizes or more of every table predicts
the sizes after it that lie within twice its largest, 58 predictions of 25 tables and 8 sources.
k(0.9) = 1.65 lies just above 1.60, the 90 % quantile of error / (s g) over these; four scores lie
between, so it covers 56 of them, 97 %. Coverage of the tables it was chosen on (all last sizes)
is no proof. It rests on one table: of the eleven scores above 1, eight are of the R package's
raytracer, which with eleven sizes holds 18 of the 58. Without that table the quantile is 0.92, so
most ladders' intervals are wider than they need be, and 0.92 would cover 9 of its 18. With k taken
from all other sources' tables a source's own are covered in 83 % of the predictions, and at all
last sizes: nine of the ten misses are of that table, and the tenth is a network cliff that begins
at the size held out. No interval foretells such a cliff. The weights, the floor and the bound of
plausibility were set on all tables together, and not left out with any.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from reports.formats import TIME_UNITS, counted, listed
from reports.predict import models
from reports.predict.models import Array, Fit, Fixed
from reports.scaling import WIDEST, Point, Series
from reports.statistics import t_quantile

LEVEL = 0.9
# Fewer distinct sizes leave nothing to hold out beside a fit (Amdahl alone needs two).
LEAST_SIZES = 4
LEAST_FITTED = 3
FARTHEST = 2
# Weights of the errors at the largest size held out, and at the one before it.
WEIGHTS = (1.0, 0.5)
FLOOR = 0.02
PLAUSIBLE = 2.0
SCALE = 0.7
FREEDOM = 3
# Errors closer than this are equal: no table tells a tenth of a per cent.
TIE = 1e-3
WIDEST_LOG = math.log(1e9)
SMALLEST_RESIDUAL = 1e-12


@dataclass(frozen=True)
class Ladder:
    """One series as models see it: rising sizes, the rate and the time at each.

    Attributes:
        rates: Work per second.
        repeats: The rates of the launches at each size.
        nodes: Nodes at each size; None unless all are known.
        fixed: Whether the work of all ranks or of each rank is fixed.
        metric: What the series' own table holds, as `throughput` or `training_time`.
        unit: Its unit.
        time_scale_s: Seconds of a step (or run) per unit of work / rate.
        time_noun: What those seconds are of: "step", "run", or "unit of a rank's work".
        value_scale: The table's value per rate, or per work / rate where it holds times.
        value_work: Whether a time in the table is of work that grows with the ranks.
        gradient_bytes: What each step all-reduces, where the launches say it.
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
    gradient_bytes: float | None = None

    @cached_property
    def times_s(self) -> Array:
        """Times that the models follow, of shape (num_sizes,)."""
        sizes = np.asarray(self.sizes, dtype=float)
        times = models.work(sizes, self.fixed) / np.asarray(self.rates) * self.time_scale_s
        return np.asarray(times)

    def rate(self, at: int, time_s: float) -> float:
        """Return the rate behind a time of the models at a size."""
        return (1 if self.fixed == "global" else at) * self.time_scale_s / time_s

    def value(self, at: int, rate: float) -> float:
        """Return a rate in the table's own metric and unit."""
        if self.value_work is None:
            return rate * self.value_scale
        return (1 if self.value_work == "global" else at) / rate * self.value_scale

    def nodes_at(self, at: int) -> float:
        """Return the nodes that so many ranks need; one where nodes are not known."""
        if self.nodes is None:
            return 1.0
        if at in self.sizes:
            return float(self.nodes[self.sizes.index(at)])
        per_node = max(p / m for p, m in zip(self.sizes, self.nodes, strict=True))
        return float(math.ceil(at / per_node))

    @cached_property
    def breaks(self) -> list[tuple[int, str]]:
        """Where the curve breaks, and how."""
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


@dataclass(frozen=True)
class Candidate:
    """A model fitted to all sizes, and how it foretold those it was not shown.

    Attributes:
        held_out: Log of predicted over true time, at the largest size and at the one before.
        error: Root of the weighted mean of their squares.
        residual: Root mean square of the fit's own log residuals.
        aicc: Akaike's criterion of the fit, corrected for few points (Hurvich and Tsai 1989): shown
            beside the error, and not chosen by; None where there are too few points for it.
    """

    fit: Fit
    held_out: tuple[float, ...]
    error: float
    residual: float
    aicc: float | None


@dataclass(frozen=True)
class Prediction:
    """What is said of one size; without value, bounds and model where it is refused.

    Attributes:
        spread: s g of the module's formula, of the logarithm.
        warnings: What the reader should know of the value.
    """

    at: int
    metric: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    level: float
    model: str | None
    refused: str | None
    spread: float | None = None
    warnings: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the machine-readable form."""
        names = ("at", "metric", "unit", "value", "low", "high", "level", "model", "refused")
        return {name: getattr(self, name) for name in names}


def can_be_modelled(series: Series) -> bool:
    """Tell whether a series is a ladder: measured strong or weak, or an imported table."""
    if series.row.origin != "measured":
        return True
    return series.row.study in ("strong", "weak")


def ladder_of(series: Series, facts: dict[str, Any]) -> Ladder:
    """Return a series as models see it.

    Args:
        series: Of one case; times, step times or throughput.
        facts: What the imported table says of itself; empty for measured series.
    """
    base, row = series.base, series.row
    fixed = _fixed(series)
    measured = row.origin == "measured"
    metric = "throughput" if measured else str(facts.get("metric") or "throughput")
    unit = f"{row.sample_unit or 'samples'}/s" if measured else str(facts.get("unit") or "")
    base_time = (1 if fixed == "global" else base.world_size) / base.rate
    seconds, noun = _base_time(base, fixed, base_time)
    scale, value_work = _value_scale(metric, unit, base, fixed)
    return Ladder(
        case=series.case, sizes=[p.world_size for p in series.points],
        rates=[p.rate for p in series.points], repeats=[p.rates for p in series.points],
        nodes=_nodes(series), fixed=fixed, strong=row.scaling == "strong", metric=metric, unit=unit,
        time_scale_s=seconds / base_time, time_noun=noun, value_scale=scale, value_work=value_work,
        gradient_bytes=_positive(row.details.get("gradient_bytes")) if noun == "step" else None,
    )  # fmt: skip


def _positive(stated: object) -> float | None:
    """Return what a launch or a table's column states, where it is a positive number."""
    try:
        value = float(str(stated))
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _fixed(series: Series) -> Fixed:
    """Return what a series keeps; where it does not say, its batches may."""
    if series.row.scaling is not None:
        return "global" if series.row.scaling == "strong" else "local"
    batches = {
        point.world_size: row.global_batch / point.world_size
        for point in series.points
        for row in point.rows
        if row.global_batch
    }
    kept = len(batches) == len(series.points) > 1 and len(set(batches.values())) == 1
    return "local" if kept else "global"


def _base_time(base: Point, fixed: Fixed, base_time: float) -> tuple[float, str]:
    """Return the baseline's time that models follow, in seconds, and what it is the time of."""
    if base.step_s is not None:
        return base.step_s, "step"
    scaling = base.rows[0].scaling
    if base.time_s is not None and (fixed == "global" or scaling == "weak"):
        return base.time_s, "run"
    if base.time_s is not None:
        return base.time_s * base.world_size, "run summed over its ranks"
    return base_time, "unit of a rank's work" if fixed == "local" else "unit of work"


def _value_scale(metric: str, unit: str, base: Point, fixed: Fixed) -> tuple[float, Fixed | None]:
    """Return what turns a rate, or work / rate, into the table's value, and whose work that is."""
    if metric == "throughput":
        return 1.0, None
    per_unit = 1 / TIME_UNITS.get(unit, 1.0)
    if base.time_s is not None:
        whole: Fixed = "local" if base.rows[0].scaling == "weak" else "global"
        return per_unit, whole
    # A table of step times: with the local batch fixed, a step's work grows with the ranks.
    whole_work = 1 if fixed == "global" else base.world_size
    return (base.step_s or 1.0) * base.rate / whole_work * per_unit, fixed


def _nodes(series: Series) -> list[int] | None:
    """Return the nodes at each size, or None where one is unknown or two launches differ."""
    found = [{row.num_nodes for row in point.rows} for point in series.points]
    if any(len(nodes) != 1 for nodes in found):
        return None
    known = [nodes.pop() for nodes in found]
    return [n for n in known if n] if all(known) else None


def candidates(ladder: Ladder) -> list[Candidate]:
    """Fit every model that has enough sizes; the best at the sizes held out comes first."""
    fixed = ladder.fixed
    known = [c for name in _offered(ladder) if (c := _candidate(name, ladder)) is not None]
    return sorted(
        known,
        key=lambda c: (round(c.error / TIE), models.num_coefficients(c.fit.model, fixed)),
    )


def _offered(ladder: Ladder) -> list[str]:
    """Return the models a ladder can tell of: two-level needs ranks on differing nodes."""
    nodes = (ladder.nodes or [])[: len(ladder.sizes) - 1]
    return [name for name in models.NAMES if name != "two-level" or len(set(nodes)) > 1]


def _candidate(name: str, ladder: Ladder) -> Candidate | None:
    least = max(LEAST_FITTED, models.num_coefficients(name, ladder.fixed))
    count = len(ladder.sizes)
    cuts = [cut for cut in (count - 1, count - 2) if cut >= least]
    if not cuts:
        return None
    fitted = _fitted(name, ladder, count)
    foretold = [_foretold(name, ladder, cut) for cut in cuts]
    inside = fitted.times(ladder.sizes, ladder.nodes)
    if min(*foretold, *inside) <= 0:  # all of the time put down to messages that one rank has not
        return None
    errors = [math.log(t / ladder.times_s[cut]) for t, cut in zip(foretold, cuts, strict=True)]
    gaps = np.log(inside / ladder.times_s)
    weighted = float(np.average(np.square(errors), weights=WEIGHTS[: len(errors)]))
    residual = math.sqrt(float(np.mean(gaps**2)))
    aicc = _aicc(residual, count, models.num_coefficients(name, ladder.fixed) + 1)
    return Candidate(fitted, tuple(errors), math.sqrt(weighted), residual, aicc)


def _aicc(residual: float, count: int, unknown: int) -> float | None:
    """Return Akaike's corrected criterion; the residuals' variance is one of the unknown."""
    if count <= unknown + 1:
        return None
    likely = 2 * count * math.log(max(residual, SMALLEST_RESIDUAL))
    return likely + 2 * unknown + 2 * unknown * (unknown + 1) / (count - unknown - 1)


def _fitted(name: str, ladder: Ladder, cut: int) -> Fit:
    nodes = ladder.nodes[:cut] if ladder.nodes else None
    return models.fit(name, ladder.sizes[:cut], ladder.times_s[:cut].tolist(), ladder.fixed, nodes)


def _foretold(name: str, ladder: Ladder, cut: int) -> float:
    """Return the time of a size, from the sizes below it."""
    return _time(_fitted(name, ladder, cut), ladder, ladder.sizes[cut])


def _time(fitted: Fit, ladder: Ladder, at: int) -> float:
    return float(fitted.times([at], [ladder.nodes_at(at)])[0])


def refusal(ladder: Ladder, at: int, force: bool) -> str | None:
    """Return why a size is not predicted, or None."""
    sizes = ladder.sizes
    if len(sizes) < LEAST_SIZES:
        return (
            f"{counted(len(sizes), 'distinct size')} ({listed(sizes)}) cannot tell one model from "
            f"another; measure {LEAST_SIZES} or more"
        )
    if force or sizes[0] <= at <= FARTHEST * sizes[-1]:
        return None
    if at < sizes[0]:
        return f"{at} is below the smallest size measured, {sizes[0]}; measure it, or use --force"
    return (
        f"{at} is more than {FARTHEST} times the largest size measured, {sizes[-1]}, where "
        f"no model can be trusted; measure {FARTHEST * sizes[-1]} first, or use --force"
    )


def predict(ladder: Ladder, at: int, level: float = LEVEL, force: bool = False) -> Prediction:
    """Predict one size, or say why not.

    Args:
        ladder: The sizes measured.
        at: World size asked for.
        level: Share of truths that the interval shall contain, a fraction.
        force: Predict beyond twice the largest size, and below the smallest.
    """
    refused = refusal(ladder, at, force)
    if refused:
        return Prediction(at, ladder.metric, ladder.unit, None, None, None, level, None, refused)
    # Below the smallest size a model may put all of the time down to messages that are not sent.
    ranked = [c for c in candidates(ladder) if _time(c.fit, ladder, at) > 0]
    best = ranked[0]
    time_s = _time(best.fit, ladder, at)
    spread, k = _spread(ladder, ranked, at), factor(level)
    rate = ladder.rate(at, time_s)
    reach = _reach(spread * k)
    highest = rate * reach
    if at >= ladder.sizes[0]:  # below it, ranks may be faster than any measured
        highest = min(highest, max(rate, _linear_rate(ladder, best, at, k)))
    rates = (rate, rate / reach, highest)
    value, *ends = (ladder.value(at, one) for one in rates)
    return Prediction(
        at, ladder.metric, ladder.unit, value, min(ends), max(ends), level, best.fit.model, None,
        spread, tuple(_warnings(ladder, at)),
    )  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """What a figure draws of a model: the way from the largest size measured to twice that.

    A fit does not pass through the points measured, so it is drawn from the last of them on:
    nearer ones it would seem to contradict.

    Attributes:
        points: (size, rate) of the last size measured, and of the size predicted.
        interval: Rates between which the predicted one lies.
    """

    model: str
    points: list[tuple[int, float]]
    interval: tuple[float, float]


def curve(series: Series) -> Curve | None:
    """Return the curve of the model chosen, or None where nothing, or next to it, is predicted."""
    if not can_be_modelled(series) or len(series.points) < LEAST_SIZES:
        return None
    ladder = ladder_of(series, {})  # without the table's unit, its values are rates
    last = ladder.sizes[-1]
    found = predict(ladder, FARTHEST * last)
    assert found.value and found.low and found.high and found.model
    if found.high > WIDEST * found.low:
        return None
    points = [(last, ladder.rates[-1]), (found.at, found.value)]
    return Curve(found.model, points, (found.low, found.high))


def factor(level: float) -> float:
    """Return k(level): how many spreads the interval reaches to either side."""
    return SCALE * t_quantile(FREEDOM, level)


def _spread(ladder: Ladder, ranked: Sequence[Candidate], at: int) -> float:
    best = ranked[0]
    plausible = [c for c in ranked if c.error <= PLAUSIBLE * best.error + FLOOR]
    logs = np.log([_time(c.fit, ladder, at) for c in plausible])
    apart = float(np.mean((logs - logs[0]) ** 2))
    squares = FLOOR**2 + best.residual**2 + best.error**2 + apart + ladder.noise**2
    away = max(0.0, math.log2(at / ladder.sizes[-1]), math.log2(ladder.sizes[0] / at))
    return math.sqrt(squares) * (1 + away)


def _linear_rate(ladder: Ladder, best: Candidate, at: int, k: float) -> float:
    """Return what ranks would do that were all as fast as the fastest ever measured, with noise."""
    per_rank = max(x / p for p, x in zip(ladder.sizes, ladder.rates, strict=True))
    noise = math.sqrt(FLOOR**2 + best.residual**2 + ladder.noise**2)
    return at * per_rank * _reach(k * noise)


def _reach(log: float) -> float:
    """Return by what factor an interval reaches out, kept within the range of numbers."""
    return math.exp(min(log, WIDEST_LOG))


def _warnings(ladder: Ladder, at: int) -> list[str]:
    found = []
    largest = ladder.sizes[-1]
    if at > FARTHEST * largest:
        found.append(f"{at} is beyond {FARTHEST} times the largest size measured, {largest}")
    if at < ladder.sizes[0]:
        found.append(
            f"{at} is below the smallest size measured, {ladder.sizes[0]}: what fewer ranks do "
            "without was never seen"
        )
    if ladder.nodes and max(ladder.nodes) == 1 and at > largest and ladder.strong:
        found.append(
            f"all sizes were measured within one node: if {at} ranks span nodes, the network "
            "between them is not in this value"
        )
    ends = ladder.breaks
    if ends and ends[-1][0] == largest and at > largest:
        found.append(f"the curve breaks at its last size, {largest}: {ends[-1][1]}")
    return found
