"""Quantities of a point other than speed: shares and fractions, and how each is computed.

A quantity is a fraction from 0 to 1, one value per launch. A value of that name in a case's details
or in a column of an imported table is used as it is; otherwise it is computed if possible:

    mfu                   model FLOP per second over the datasheet's peak
    communication_share   exposed communication over the step of the launch's turns, whose mean it
                          is a part of; noise may take a launch below 0
    overlap               1 - exposed communication / the all-reduce of the gradients alone: what of
                          it the backward hides; noise may take a launch beyond 0 or 1
    gpu_utilisation       share of NVML's sample periods in which a kernel ran, the mean over ranks
    loader_idle           of a step on batches of a loader, what the same step on a batch that lies
                          there does not have (`lockstep.measure.loading.loader_cases`)

Energy is not a fraction: the joules per sample are the mean power of all ranks' boards, while their
rounds were timed, over the throughput.

A point's value is the report's: the median over launches of the MFU, the mean of the others. Its
interval is Student's t of the mean over launches, or over jobs where there are several, and over
seeds of what was learned (`lockstep.report.compute.replicates`), its ends kept within 0 to 1.

Where the time of a step goes, and what of it a ladder loses to its baseline.

A launch's turns divide a step by cause (`lockstep.measure.causes.division`). The step itself is the
median that every table and figure shows, to which the parts, means over turns, are scaled. With f
the time an ideal step has over the baseline's (p0/p for strong scaling, 1 where the local batch is
fixed), a cause's loss is its time less f times its time at the baseline, and the losses add up to s
- f s0, of which the efficiency is what is left: 1 - loss / s. Three causes show only, or wholly,
against a baseline:

- of a ladder from one rank, DDP's own cost is known apart from communication, since that rank
  communicates with nobody. It is as large at every size, so (1 - f) of it is lost;
- the fixed cost c0 of a step (t = c0 + c1 b) is not divided by the ranks: of it, too, (1 - f);
- what a rank's own work and its waits for a core take beyond that is contention: of ranks that
  share cores, caches, memory, power. Without c0 a strong ladder cannot tell the two apart, and
  calls both `own`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, Literal, get_args

import numpy as np

from lockstep.core.metrics import NOTABLE
from lockstep.measure.causes import bound
from lockstep.measure.causes.bound import Base, Bound, Buckets, Cause
from lockstep.measure.causes.division import FULL, OWN, REDUCE, Turns, divide
from lockstep.report.compute import replicates
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval, linear_interval
from lockstep.report.load.results import Row

Kind = Literal["little", "named", "open"]

CAUSES: tuple[Cause, ...] = get_args(Cause)
# The causes that add up to a point's step.
WHOLE: tuple[Cause, ...] = ("own", "imbalance", "contention", "exposed", "ddp", "input")

# Phase of a step -> its column.
PHASES = {"forward": "forward_s", "backward": "backward_s", "optimizer": "optimizer_s"}
# Seconds of a launch by cause.
Split = Mapping[str, float]
# A weight, and what each launch gives, or each of several jobs.
Term = tuple[float, Sequence[float]]


@dataclass(frozen=True)
class Part:
    """Seconds of a step that one cause takes, or that are lost to it.

    Attributes:
        seconds: Mean over launches; a loss is negative if the cause takes less time.
        interval: 95 % interval over launches, or over several jobs; None without repeats.
    """

    cause: Cause
    seconds: float
    interval: Interval | None


@dataclass(frozen=True)
class Loss:
    """The time that a point's step takes longer than an ideal one, by cause.

    Attributes:
        seconds: The loss: `step_s` minus the ideal step time.
        interval: 95 % interval of the loss, as wide as that of the mean.
        parts: The loss of each cause; they add up to `seconds`.
    """

    step_s: float
    seconds: float
    interval: Interval | None
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Reason:
    """Why a point loses time.

    Attributes:
        kind: `little`: the loss is less than `NOTABLE` of the step. `named`: causes are
            established. `open`: not enough evidence for either.
        named: The established causes, largest first.
    """

    kind: Kind
    loss: Loss
    named: tuple[Part, ...]


def turns(row: Row) -> Turns | None:
    """Return the turns of a launch's variants; None if none was timed.

    Older results have no turns of the whole step, so the step time of the rounds is used.
    """
    if row.step_s is None or OWN not in row.rank_variant_s:
        return None
    found = {name: np.array(seconds) for name, seconds in row.rank_variant_s.items()}
    return {FULL: np.full_like(found[OWN], row.step_s), **found}


def split(row: Row) -> Split | None:
    """Return the seconds of a launch's step by cause; None if no variant was timed.

    The causes are scaled to the step of the rounds; noise may take one below 0.
    """
    found = turns(row)
    if found is None or row.step_s is None:
        return None
    seconds = {name: float(value) for name, value in divide(found).items()}
    if "fixed" in seconds:
        seconds["fixed"] = min(max(seconds["fixed"], 0.0), seconds["own"])
    scale = row.step_s / seconds["step"]
    return {name: value * (1.0 if name == REDUCE else scale) for name, value in seconds.items()}


def parts(point: Point) -> tuple[Part, ...] | None:
    """Return a point's step by cause; None if a launch timed no variant, or it is blocked.

    Causes that noise takes below 0 are left out; the others are scaled to the step.
    """
    here = _splits(point)
    if here is None:
        return None
    taken = {cause: here[cause] for cause in WHOLE if cause in here and fmean(here[cause]) > 0}
    scale = _scale(point, taken)
    return tuple(Part(cause, *_sum([(scale, values)])) for cause, values in taken.items())


def pooled(point: Point, name: str) -> tuple[float | None, Interval | None]:
    """Return the mean over launches of a part of the split, such as `reduce`, and its interval.

    None if a launch lacks it.
    """
    here = _splits(point) or {}
    return _sum([(1.0, here[name])]) if name in here else (None, None)


def phases(point: Point) -> dict[str, float | None]:
    """Return the seconds of each phase, median over launches; None if a launch lacks it.

    `data_s`, the wait for the batch, is the mean of the cause `input`.
    """
    found: dict[str, float | None] = {"data_s": pooled(point, "input")[0]}
    for phase, column in PHASES.items():
        known = [row.phase_s[phase] for row in point.rows if phase in row.phase_s]
        found[column] = median(known) if len(known) == len(point.rows) else None
    return found


def _scale(point: Point, splits: Mapping[Any, Sequence[float]]) -> float:
    """Return the factor that scales means over launches to the point's step, a median."""
    whole_s = sum(fmean(splits[cause]) for cause in WHOLE if cause in splits)
    return (point.step_s or whole_s) / whole_s


def loss(series: Series, point: Point) -> Loss | None:
    """Return the loss of a point; None for the baseline, a blocked point, or without variants."""
    here, base = _splits(point), _splits(series.base)
    step_s, base_s = point.step_s, series.base.step_s
    if here is None or base is None or point is series.base or step_s is None or base_s is None:
        return None
    factor = _ideal(series, point)
    whole_s = step_s - factor * base_s
    mean_s, ends = _sum([(1.0, _steps(point)), (-factor, _steps(series.base))])
    moved = whole_s - mean_s  # the step is a median, its interval that of the mean
    interval = ends and (ends[0] + moved, ends[1] + moved)
    here, base = (
        {name: [_scale(one, found) * each for each in values] for name, values in found.items()}
        for one, found in ((point, here), (series.base, base))
    )
    parts = (Part(cause, *_sum(terms)) for cause, terms in _terms(here, base, factor).items())
    return Loss(step_s, whole_s, interval, tuple(parts))


def reason(series: Series, point: Point) -> Reason | None:
    """Return why a point loses time; None if `loss` is None.

    The causes are those of the point's card (`judged`). A strong ladder whose baseline has no half
    batch loses to `own` besides, which the card cannot tell from computing.
    """
    lost = loss(series, point)
    if lost is None:
        return None
    found = _bound(series, point, series.base)
    named = (
        [Part(share.cause, share.seconds, share.interval) for share in found.named] if found else []
    )
    named += [
        part
        for part in lost.parts
        if part.cause == "own"
        and part.seconds >= NOTABLE * lost.step_s
        and part.interval
        and part.interval[0] > 0
    ]
    named.sort(key=lambda part: -part.seconds)
    kind: Kind = "named" if named and lost.seconds > 0 else "open"
    if lost.interval and lost.interval[1] < NOTABLE * lost.step_s:
        kind = "little"
    return Reason(kind, lost, tuple(named))


def judged(series: Series, point: Point) -> Bound | None:
    """Return the bottleneck of a point; None if a launch timed no variant, or it is blocked.

    A step of a user's own test has no baseline, as in `lockstep.explain`.
    """
    has_whole = all(FULL in row.rank_variant_s for row in point.rows)
    base = None if series.row.is_own_test else series.base
    return _bound(series, point, base) if has_whole else None


def _bound(series: Series, point: Point, base: Point | None) -> Bound | None:
    row = point.rows[0]
    if point.blocked_by or any(turns(row) is None for row in point.rows):
        return None
    units = [] if base is None or point is base else _units(base)
    bases = [Base(unit, _ideal(series, point)) for unit in units]
    leads, sizes = row.bucket_lead_s, row.details.get("bucket_bytes") or []
    buckets = Buckets(sizes, leads) if leads and len(leads) == len(sizes) else None
    found = replace(bound.judge(_units(point), bases, buckets), num_launches=point.num_launches)
    return found if point.step_s is None else found.of_rounds(point.step_s, point.step_interval)


def _units(point: Point) -> list[Turns]:
    """Return the turns of each launch, or of each job where some share one."""
    rows = [row for row in point.rows if turns(row) is not None]
    known = [one for one in map(turns, rows) if one is not None]
    jobs = replicates.grouped(rows, known)
    return known if len(jobs) == len(known) else list(map(bound.pool, jobs))


def _ideal(series: Series, point: Point) -> float:
    """Return the time of an ideal step / that of the baseline."""
    return series.baseline / point.world_size if series.row.scaling == "strong" else 1.0


def _terms(
    here: Mapping[str, Sequence[float]], base: Mapping[str, Sequence[float]], factor: float
) -> dict[Cause, list[Term]]:
    """Return the weighted times whose sum is the loss to each cause."""

    def weighted(weight: float, found: Mapping[str, Sequence[float]], cause: str) -> list[Term]:
        return [(weight, found[cause])] if cause in found else []

    def with_waits(found: Mapping[str, Sequence[float]]) -> list[float]:  # for a core
        waits = found.get("contention") or [0.0] * len(found["own"])
        return [own + wait for own, wait in zip(found["own"], waits, strict=True)]

    shared: tuple[Cause, ...] = ("exposed", "imbalance", "input")
    terms: dict[Cause, list[Term]] = {
        cause: [*weighted(1.0, here, cause), *weighted(-factor, base, cause)]
        for cause in shared
        if cause in here or cause in base
    }
    own: list[Term] = [(1.0, with_waits(here)), (-factor, with_waits(base))]
    unshared = 1 - factor
    if factor == 1:
        terms["contention"] = own
    elif "fixed" in base:
        terms["fixed"] = weighted(unshared, base, "fixed")
        terms["contention"] = [*own, *weighted(-unshared, base, "fixed")]
    else:
        terms["own"] = own
    if "ddp" in base and "exposed" in terms:  # of a ladder from one rank
        terms["exposed"] += weighted(-1.0, base, "ddp")
        terms |= {"ddp": weighted(unshared, base, "ddp")} if unshared else {}
    return terms


def _sum(terms: Sequence[Term]) -> tuple[float, Interval | None]:
    """Return the sum of weighted means over launches, and its interval."""
    return sum(weight * fmean(values) for weight, values in terms), linear_interval(terms)


def _splits(point: Point) -> dict[str, list[float]] | None:
    """Return the seconds of each cause that all launches have, one value per launch or job."""
    splits = [split(row) for row in point.rows]
    known = [seconds for seconds in splits if seconds is not None]
    if point.blocked_by or not known or len(known) < len(splits):
        return None
    names = [name for name in known[0] if all(name in seconds for seconds in known)]
    return {name: _independent(point, [seconds[name] for seconds in known]) for name in names}


def _steps(point: Point) -> list[float]:
    return _independent(point, [row.step_s for row in point.rows if row.step_s is not None])


def _independent(point: Point, values: Sequence[float]) -> list[float]:
    return replicates.independent(point.rows, values, fmean)


# name -> what it is, for texts
NAMES = {
    "mfu": "fraction of the datasheet's peak FLOP/s",
    "communication_share": "exposed communication as a share of the step",
    "validation_accuracy": "share of the validation set that is predicted right",
    "gpu_utilisation": "share of the time in which a kernel ran on the GPU",
    "loader_idle": "share of a step that waits for the data loader",
}


def values(rows: Sequence[Row], name: str) -> list[float]:
    """Return a quantity of each launch of a point; empty if a launch lacks it."""
    known = [value for row in rows if (value := _value(row, name)) is not None]
    return known if len(known) == len(rows) else []


def centre(found: Sequence[float], name: str) -> float:
    """Return a point's value of a quantity: the median of MFUs, the mean of others."""
    return median(found) if name == "mfu" else _kept(fmean(found))


def interval(rows: Sequence[Row], name: str) -> Interval | None:
    """Return the Student t interval of a quantity's mean, within 0 to 1.

    None for fewer than two launches, and for launches equal to the last digit.
    """
    return share_interval(units(rows, name))


def units(rows: Sequence[Row], name: str) -> list[float]:
    """Return the values for an interval: one per launch or job, or per seed for accuracies."""
    found = values(rows, name)
    if found and name == "validation_accuracy" and all(row.training for row in rows):
        return replicates.of_seeds([row.training and row.training.seed for row in rows], found)
    return replicates.independent(rows, found, fmean)


def share_interval(found: Sequence[float]) -> Interval | None:
    """Return the Student t interval of the mean of fractions, within 0 to 1."""
    ends = linear_interval([(1.0, found)])
    return (_kept(ends[0]), _kept(ends[1])) if ends else None


def joules_per_sample(row: Row) -> float | None:
    """Return the energy per sample (J); None if the energy of a rank's board is unknown."""
    energy_j, elapsed_s = (of_ranks(row, name) for name in ("energy_j", "elapsed_s"))
    if not energy_j or not all(elapsed_s or [0.0]) or not row.throughput_samples_per_s:
        return None
    powers = [energy / seconds for energy, seconds in zip(energy_j, elapsed_s, strict=True)]
    return sum(powers) / row.throughput_samples_per_s


def of_ranks(row: Row, *path: str) -> list[float]:
    """Return a telemetry value of every rank; empty if that of a rank is unknown."""
    known = [value for value in _telemetry(row, *path) if value is not None]
    return known if len(known) == row.world_size else []


def rank_mean(rows: Sequence[Row], name: str, rank: int) -> float | None:
    """Return the mean of a rank's gauge, such as power_w, over the cases of its launch.

    Cases are weighted by the time observed. None if no case has the gauge.
    """
    found = [(_telemetry(row, name, "mean"), _telemetry(row, "elapsed_s")) for row in rows]
    known = [
        (means[rank], times_s[rank])
        for means, times_s in found
        if rank < min(len(means), len(times_s))
    ]
    pairs = [(mean, time_s) for mean, time_s in known if mean is not None and time_s]
    total_s = sum(time_s for _, time_s in pairs)
    return sum(mean * time_s for mean, time_s in pairs) / total_s if pairs else None


def _telemetry(row: Row, *path: str) -> list[float | None]:
    """Return a telemetry value of each rank by its path; None for what is not an amount."""
    found: Any = row.details.get("telemetry")
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    values = found if isinstance(found, list) else []
    return [value if isinstance(value, int | float) and value >= 0 else None for value in values]


def _kept(end: float) -> float:
    """Return the end of an interval, clipped to 0 to 1."""
    return min(max(end, 0.0), 1.0)


def _value(row: Row, name: str) -> float | None:
    """Return a quantity of a row: as recorded or imported, else computed."""
    given = row.details.get(name)
    try:
        recorded = float(given) if isinstance(given, int | float | str) else math.nan
    except ValueError:
        recorded = math.nan
    if 0 <= recorded <= 1:
        return recorded
    if name == "mfu":
        return row.mfu
    if name == "validation_accuracy":  # after the last epoch
        return row.training.rows[-1].accuracy if row.training and row.training.rows else None
    if name == "gpu_utilisation":
        shares = of_ranks(row, "gpu_utilisation", "mean")
        return fmean(shares) if shares else None
    found = split(row) if name in ("communication_share", "overlap") else None
    if not found or "exposed" not in found:
        return None
    if name == "communication_share":
        return found["exposed"] / found["step"] if row.world_size > 1 else None
    return 1 - found["exposed"] / found["reduce"] if found.get("reduce") else None
