"""A series as predictions see it: its rising sizes, the rate at each, and its unit.

Why a size is not predicted: a record of the reason, and its sentence.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lockstep.core.formats import TIME_UNITS, counted, listed
from lockstep.core.studies import LADDERS
from lockstep.report.check.evidence import joined
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.predict import models
from lockstep.report.predict.models import Array

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
            fact = f"{distinct} ({sizes}) are fewer than the {LEAST_SIZES} needed"
            return f"{fact}; {do} as well" if do else fact
        if self.kind == "below":
            fact = f"{self.at} is below the smallest size measured, {sizes}"
        elif self.kind == "beyond":
            fact = (
                f"{self.at} is more than {FARTHEST} times the largest size measured, {sizes}, "
                "where no rule can be trusted"
            )
        elif self.kind == "break":
            fact = f"the curve breaks at {sizes} ({self.fact}), so no curve leads to {self.at}"
        else:
            fact = f"check finds {self.rule} at {sizes}: {self.fact}"
        return f"{fact}; {do}, or use --force" if do else f"{fact}; use --force to see a value"


def forbidding(findings: "Iterable[Finding]", series: "Series") -> "tuple[Finding, ...]":
    """Return what `lockstep check` finds that forbids a curve through a series.

    That its numbers are targets does not: what follows from them says so, see `known.Ladder`.
    """
    rows = [row for point in series.points for row in point.rows]
    return tuple(
        one
        for one in findings
        if ((one.level == "error" and one.rule != "not-measured") or one.rule in NO_CURVE)
        and any(map(one.touches, rows))
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
    stated = _stated_work(series)
    fixed: Fixed = stated or "global"
    assumed: Fixed | None = None if stated else fixed
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
        origin=row.origin, assumed=assumed, forbidding=forbidding(findings, series),
    )  # fmt: skip


def _stated_work(series: Series) -> Fixed | None:
    """Return what a series keeps by its scaling, else by its batches; None where neither tells."""
    if series.row.scaling is not None:
        return "global" if series.row.scaling == "strong" else "local"
    batches = {
        point.world_size: row.global_batch
        for point in series.points
        for row in point.rows
        if row.global_batch
    }
    if len(batches) < len(series.points) or len(batches) < 2:
        return None
    if len(set(batches.values())) == 1:
        return "global"
    shares = {batch / size for size, batch in batches.items()}
    return "local" if len(shares) == 1 else None


def _base_time(base: Point, fixed: Fixed, base_time: float) -> tuple[float, str]:
    """Return the baseline's time in seconds, and what it is the time of."""
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
