"""Shares of a point's step, the causes of its time, and the time lost to each cause.

Turns divide a launch's step by cause (`lockstep.measure.causes.division`); the parts are scaled to
the median step that tables show. `docs/numbers.md` lists the formulas.
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
# Causes that add up to the step.
WHOLE: tuple[Cause, ...] = ("own", "imbalance", "contention", "exposed", "ddp", "input")

# Causes of which the baseline's part is no loss; all others are a loss as a whole.
OF_BASELINE: tuple[Cause, ...] = ("exposed", "imbalance", "input")

PHASES = ("forward", "backward", "optimizer")
# A value and its interval, and those of an unknown value.
Ends = tuple[float | None, Interval | None]
UNKNOWN: Ends = (None, None)
# A weight, and one value per launch or job.
Term = tuple[float, Sequence[float]]


@dataclass(frozen=True)
class Part:
    """Seconds of a step that a cause takes, or that are lost to it; losses may be negative."""

    cause: Cause
    seconds: float
    interval: Interval | None


@dataclass(frozen=True)
class Loss:
    """A point's step time minus the ideal one.

    Attributes:
        interval: The interval of the mean over launches, moved to the median.
        parts: The loss to each cause, that of `own` first; they add up to `seconds`. Empty if the
            turns of the point or of the baseline are unlike its rounds.
    """

    step_s: float
    seconds: float
    interval: Interval | None
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Reason:
    """Why a point loses time.

    Attributes:
        kind: `little`: the loss is below `NOTABLE` of the step; `named`: causes are established;
            `open`: there is not enough evidence.
        named: The established causes, largest first.
        as_baseline: The first cause of the card, if the loss to another is larger, since the
            baseline has it as well.
    """

    kind: Kind
    loss: Loss
    named: tuple[Part, ...]
    as_baseline: Part | None


def turns(row: Row) -> Turns | None:
    """Return the turns of a launch's variants; None if none was timed."""
    if row.step_s is None or OWN not in row.rank_variant_s:
        return None
    timed = {name: np.array(seconds) for name, seconds in row.rank_variant_s.items()}
    # Older results have no turns of the whole step.
    return {FULL: np.full_like(timed[OWN], row.step_s), **timed}


def split(row: Row) -> dict[str, float] | None:
    """Return the mean seconds of a launch's turns by cause; None if no variant was timed.

    They are of the turns that the card judges. Noise may take one below 0.
    """
    timed = turns(row)
    if timed is None:
        return None
    return {name: float(value) for name, value in divide(bound.split_at_change(timed)[0]).items()}


def is_divided(point: Point) -> bool:
    """Tell whether the step of a point has causes: all launches timed variants, none is blocked."""
    return not point.blocked_by and all(turns(row) is not None for row in point.rows)


def pool_parts(point: Point) -> dict[str, Ends]:
    """Return the mean and interval of each part, such as `reduce`, that all launches timed.

    Parts of a step are scaled to the step that tables show; the all-reduce alone is not. The part
    `input` is the wait for the batch.
    """
    splits = _splits(point)
    scale = _scale(point, splits) if splits else 1.0
    return {name: _sum([(1.0 if name == REDUCE else scale, own)]) for name, own in splits.items()}


def phase_s(point: Point, phase: str) -> float | None:
    """Return the seconds of a phase in a step; None if a launch lacks it."""
    known = [row.phase_s[phase] for row in point.rows if phase in row.phase_s]
    return median(known) if len(known) == len(point.rows) else None


def epoch(point: Point) -> tuple[float | None, Interval | None]:
    """Return the seconds of an epoch of the workload's data set at the point's throughput."""
    samples, throughput = point.rows[0].details.get("epoch_samples"), point.throughput_samples_per_s
    if not (isinstance(samples, int) and throughput):
        return None, None
    epoch_s, rate = samples / throughput, point.rate_interval
    span = (epoch_s * point.rate / rate[1], epoch_s * point.rate / rate[0]) if rate else None
    return epoch_s, span


def _scale(point: Point, splits: Mapping[Any, Sequence[float]]) -> float:
    """Return the factor that scales means over turns to the point's step, a median of rounds."""
    whole_s = sum(fmean(splits[cause]) for cause in WHOLE if cause in splits)
    return (point.step_s or whole_s) / whole_s


def parts_and_loss(series: Series, point: Point) -> tuple[tuple[Part, ...], Loss | None]:
    """Return a point's step by cause, and what it loses to the baseline.

    Each part is the whole time of its cause, which means the same at every size. The first part,
    `own`, is computing. All add up to the step of the tables. There are none if the point is not
    divided or its turns are unlike its rounds, and no loss of the baseline.
    """
    card = _bound(series, point, series.base)
    if card is None or card.is_unlike:
        return (), None
    base_card = _base_card(series, point)
    lost = _loss(series, point, card, base_card)
    return _in_full(series, point, card, base_card), lost


def _in_full(
    series: Series, point: Point, card: Bound, base_card: Bound | None
) -> tuple[Part, ...]:
    """Return the parts of a step, each with all of its time, not only what exceeds the baseline's.

    Of contention, the fixed cost and DDP's own work, a card against a baseline has only the loss
    and counts the rest as compute.
    """
    own, *others = _parts(card)
    if base_card is None:
        return own, *others
    here, of_base = ({p.cause: p for p in parts} for parts in (others, _parts(base_card)))
    whole = {cause: of_base[cause] for cause in bound.UNSHARED if cause in of_base}
    factor, shared = _ideal(series, point), of_base.get("contention")
    # In strong scaling without a fixed cost, the card has all of the contention.
    if shared and (factor == 1 or "fixed" in of_base):
        queued_s = card.queued * (card.round_s or card.step_s)
        excess = here.get("contention", Part("contention", 0.0, None))
        whole["contention"] = (
            _less(excess, -factor, shared) if excess.seconds
            else Part("contention", queued_s, None)
        )  # fmt: skip
    own_s = own.seconds
    for cause, part in whole.items():
        before_s = here[cause].seconds if cause in here else 0.0
        here[cause] = replace(part, seconds=min(part.seconds, before_s + own_s))
        own_s -= here[cause].seconds - before_s
    return replace(own, seconds=own_s), *here.values()


def card_share(series: Series, point: Point, cause: Cause) -> Ends:
    """Return the share of a step that the card gives to a cause, and its interval over launches.

    Both are None if the turns of the point are unlike its rounds.
    """
    card = _bound(series, point, series.base)
    part = next((x for x in _parts(card) if x.cause == cause), None) if card else None
    if card is None or part is None or card.is_unlike:
        return UNKNOWN
    whole_s = card.round_s or card.step_s
    is_over_launches = min(len(point.units), len(series.base.units)) >= bound.FEWEST_LAUNCHES
    ends = part.interval if is_over_launches else None
    return part.seconds / whole_s, ends and (
        _clipped(ends[0] / whole_s),
        _clipped(ends[1] / whole_s),
    )


def _parts(card: Bound) -> tuple[Part, ...]:
    scale = (card.round_s or card.step_s) / card.step_s
    own = Part("own", card.compute_s * scale, None)
    return own, *(
        Part(share.cause, share.seconds * scale,
             share.interval and (share.interval[0] * scale, share.interval[1] * scale))
        for share in card.shares
    )  # fmt: skip


def _base_card(series: Series, point: Point) -> Bound | None:
    """Return the baseline's bottleneck; None where the point is the baseline."""
    return None if point is series.base else _bound(series, series.base, None)


def _loss(series: Series, point: Point, card: Bound, base_card: Bound | None) -> Loss | None:
    """Return the loss of a point; None without the baseline's bottleneck.

    With f the ideal step over the baseline's, a cause that the baseline has, too, loses its time
    minus f times its time there; all other causes of the card lose their time. What is left of the
    whole loss, s - f s0, is that of `own`, so that 1 - loss / s is the efficiency.
    """
    step_s, base_s = point.step_s, series.base.step_s
    here, base = _splits(point), _splits(series.base)
    if not (here and base and base_card and step_s and base_s):
        return None
    factor = _ideal(series, point)
    whole_s = step_s - factor * base_s
    mean_s, ends = _sum([(1.0, _steps(point)), (-factor, _steps(series.base))])
    moved = whole_s - mean_s  # moves the interval of the mean to the median
    interval = ends and (ends[0] + moved, ends[1] + moved)
    if card.is_unlike or base_card.is_unlike:
        return Loss(step_s, whole_s, interval, ())
    of_base = {part.cause: part for part in _parts(base_card)[1:]}
    lost = [
        _less(part, factor, of_base.get(part.cause))
        if part.cause in OF_BASELINE else part
        for part in _parts(card)[1:]
    ]  # fmt: skip
    own_s, of_own = whole_s - sum(part.seconds for part in lost), None
    if factor < 1 and "fixed" not in base:  # then own work may not be shared out
        mean_s, ends = _sum([(_scale(point, here), here["own"]),
                             (-factor * _scale(series.base, base), base["own"])])  # fmt: skip
        of_own = ends and (ends[0] + own_s - mean_s, ends[1] + own_s - mean_s)
    return Loss(step_s, whole_s, interval, (Part("own", own_s, of_own), *lost))


def _less(part: Part, factor: float, of_base: Part | None) -> Part:
    """Return what of a part is lost to the baseline, given the same part of the baseline."""
    if of_base is None:
        return part
    less_s, interval = factor * of_base.seconds, None
    if part.interval and of_base.interval:
        (low, high), (base_low, base_high) = part.interval, of_base.interval
        middle = (low + high) / 2 - less_s
        half = math.hypot(high - low, factor * (base_high - base_low)) / 2
        interval = middle - half, middle + half
    return replace(part, seconds=part.seconds - less_s, interval=interval)


def reason(series: Series, point: Point) -> Reason | None:
    """Return why a point loses time; None for the baseline, and for a point that is not divided.

    The causes are those of the card that are shown, and `own`, if the loss to each is shown and
    notable. What the baseline has as well, such as waits for input, is not lost to scaling.
    """
    bottleneck, base_card = _bound(series, point, series.base), _base_card(series, point)
    if bottleneck is None or base_card is None:
        return None
    lost = _loss(series, point, bottleneck, base_card)
    if lost is None:
        return None
    shown = {"own", *(share.cause for share in bottleneck.named)}
    named = [
        part
        for part in sorted(lost.parts, key=lambda part: -part.seconds)
        if part.cause in shown
        and part.seconds >= NOTABLE * lost.step_s
        and part.interval
        and part.interval[0] > 0
    ]
    kind: Kind = "named" if named and lost.seconds > 0 else "open"
    if lost.interval and lost.interval[1] < NOTABLE * lost.step_s:
        kind = "little"
    first, of_base = bottleneck.named[:1], {share.cause for share in base_card.named}
    as_baseline = None
    if first and first[0].cause in of_base and (not named or named[0].cause != first[0].cause):
        as_baseline = next(part for part in _parts(bottleneck) if part.cause == first[0].cause)
    return Reason(kind, lost, tuple(named), as_baseline)


def find_bottleneck(series: Series, point: Point) -> Bound | None:
    """Return the bottleneck of a point; None if a launch timed no variant, or it is blocked."""
    has_whole = all(FULL in row.rank_variant_s for row in point.rows)
    return _bound(series, point, series.base) if has_whole else None


def _bound(series: Series, point: Point, base: Point | None) -> Bound | None:
    row = point.rows[0]
    if not is_divided(point):
        return None
    units = [] if base is None or point is base else _units(base)
    bases = [Base(unit, _ideal(series, point)) for unit in units]
    leads, sizes = row.bucket_lead_s, row.details.get("bucket_bytes") or []
    buckets = Buckets(sizes, leads) if leads and len(leads) == len(sizes) else None
    judged = replace(bound.judge(_units(point), bases, buckets), num_launches=point.num_launches)
    return judged if point.step_s is None else judged.rescale(point.step_s, point.step_interval)


def _units(point: Point) -> list[Turns]:
    """Return the turns of each launch, or of each job if some share one."""
    timed = [(row, each) for row in point.rows if (each := turns(row)) is not None]
    launches = [each for _, each in timed]
    jobs = replicates.group_values([row for row, _ in timed], launches)
    return launches if len(jobs) == len(launches) else list(map(bound.pool, jobs))


def _ideal(series: Series, point: Point) -> float:
    """Return the ideal step time over that of the baseline."""
    return series.baseline / point.world_size if series.row.scaling == "strong" else 1.0


def _sum(terms: Sequence[Term]) -> tuple[float, Interval | None]:
    """Return the sum of weighted means, and its interval."""
    return sum(weight * fmean(values) for weight, values in terms), linear_interval(terms)


def _splits(point: Point) -> dict[str, list[float]]:
    """Return the seconds of each cause that all launches have, one value per launch or job.

    Empty if the check blocks the point, or a launch timed no variant.
    """
    splits = [split(row) for row in point.rows]
    known = [seconds for seconds in splits if seconds is not None]
    if point.blocked_by or not known or len(known) < len(splits):
        return {}
    names = [name for name in known[0] if all(name in seconds for seconds in known)]
    return {name: _independent(point, [seconds[name] for seconds in known]) for name in names}


def _steps(point: Point) -> list[float]:
    return _independent(point, [row.step_s for row in point.rows if row.step_s is not None])


def _independent(point: Point, values: Sequence[float]) -> list[float]:
    return replicates.independent(point.rows, values, fmean)


# Quantity -> its description.
NAMES = {
    "mfu": "fraction of the datasheet's peak FLOP/s",
    "communication_share": "exposed communication as a share of the step",
    "validation_accuracy": "share of the validation set that is predicted correctly",
    "gpu_utilisation": "share of the time in which a kernel ran on the GPU",
    "loader_idle": "share of a step that waits for the data loader",
}


def values(rows: Sequence[Row], name: str) -> list[float]:
    """Return a quantity of each launch; empty if a launch lacks it."""
    known = [value for row in rows if (value := _value(row, name)) is not None]
    return known if len(known) == len(rows) else []


def pool(rows: Sequence[Row], name: str) -> Ends:
    """Return a point's value of a quantity, and the interval of its mean, see `share_interval`.

    The value is the median of MFUs, the mean of others.
    """
    known = values(rows, name)
    if not known:
        return UNKNOWN
    value = median(known) if name == "mfu" else _clipped(fmean(known))
    return value, share_interval(units(rows, name))


def units(rows: Sequence[Row], name: str) -> list[float]:
    """Return the values for an interval: one per launch or job, or per seed for accuracies."""
    known = values(rows, name)
    if known and name == "validation_accuracy" and all(row.training for row in rows):
        return replicates.average_seeds([row.training and row.training.seed for row in rows], known)
    return replicates.independent(rows, known, fmean)


def share_interval(shares: Sequence[float]) -> Interval | None:
    """Return the Student t interval of the mean of fractions, clipped to 0 to 1.

    None for fewer than two values, and for values equal to the last digit.
    """
    ends = linear_interval([(1.0, shares)])
    return (_clipped(ends[0]), _clipped(ends[1])) if ends else None


def joules_per_sample(row: Row) -> float | None:
    """Return mean power of all ranks' boards / throughput (J); None if a rank's is unknown."""
    energy_j, elapsed_s = (rank_values(row, name) for name in ("energy_j", "elapsed_s"))
    if not energy_j or not all(elapsed_s or [0.0]) or not row.throughput_samples_per_s:
        return None
    powers = [energy / seconds for energy, seconds in zip(energy_j, elapsed_s, strict=True)]
    return sum(powers) / row.throughput_samples_per_s


def median_joules(rows: Sequence[Row]) -> float | None:
    """Return the median over launches of `joules_per_sample` (J); None if unknown."""
    known = [joules for row in rows if (joules := joules_per_sample(row))]
    return median(known) if known else None


def rank_values(row: Row, *path: str) -> list[float]:
    """Return a telemetry value of every rank; empty if that of a rank is unknown."""
    known = [value for value in telemetry(row, *path) if value is not None]
    return known if len(known) == row.world_size else []


def rank_means(rows: Sequence[Row], name: str, num_ranks: int) -> list[float | None]:
    """Return the mean of each rank's gauge over cases, weighted by time; None if no case has it."""
    pairs: list[list[tuple[float, float]]] = [[] for _ in range(num_ranks)]
    for row in rows:
        if times_s := telemetry(row, "elapsed_s"):
            means = telemetry(row, name, "mean") or telemetry(row, name)
            for own, mean, time_s in zip(pairs, means, times_s, strict=False):
                own += [(mean, time_s)] if mean is not None and time_s else []
    return [
        sum(mean * time_s for mean, time_s in own) / sum(time_s for _, time_s in own)
        if own else None for own in pairs
    ]  # fmt: skip


def telemetry(row: Row, *path: str) -> list[float | None]:
    """Return a telemetry value of each rank by its path; None if it is not an amount."""
    entry: Any = row.details.get("telemetry")
    for name in path:
        if not isinstance(entry, dict):
            return []
        entry = entry.get(name)
    values = entry if isinstance(entry, list) else []
    return [value if isinstance(value, int | float) and value >= 0 else None for value in values]


def _clipped(end: float) -> float:
    return min(max(end, 0.0), 1.0)


def _value(row: Row, name: str) -> float | None:
    """Return a quantity of a row: from its details or imported table, else computed."""
    stored = row.details.get(name)
    try:
        recorded = float(stored) if isinstance(stored, int | float | str) else math.nan
    except ValueError:
        recorded = math.nan
    if 0 <= recorded <= 1:
        return recorded
    if name == "mfu":
        return row.mfu
    if name == "validation_accuracy":  # after the last epoch
        return row.training.rows[-1].accuracy if row.training and row.training.rows else None
    if name == "gpu_utilisation":
        shares = rank_values(row, "gpu_utilisation", "mean")
        return fmean(shares) if shares else None
    seconds = split(row) if name in ("communication_share", "overlap") else None
    if not seconds or "exposed" not in seconds:
        return None
    if name == "communication_share":
        return seconds["exposed"] / seconds["step"] if row.world_size > 1 else None
    return 1 - seconds["exposed"] / seconds["reduce"] if seconds.get("reduce") else None
