"""The bottleneck of a step: shares of its causes with intervals, and what a change would gain.

The bottleneck of a point follows from the turns of its step's variants (`division`), and from those
of its baseline if there is one. Only a baseline shows what ranks on one machine cost each other
beyond waits for a core, such as memory bandwidth. Three launches or more give intervals over
launches; fewer give intervals over turns, which hold for these launches alone.

Noise may make a difference of variants negative; the others then add up to more than the step. A
negative share counts as 0, and the rest is scaled to the step (`Bound.excess`).

A slow first minute, while caches fill or kernels are compiled, does not explain later steps. So if
the step changes within the turns, its causes are judged after that change (`split_at_change`).

DDP reduces its buckets in order, each once its last gradient is ready. `Buckets` models this: each
takes its share, by bytes, of the time that all buckets take alone. The part of it that comes after
the end of the backward is exposed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np

from lockstep.core import metrics
from lockstep.core.metrics import NOTABLE
from lockstep.measure.causes import division
from lockstep.measure.causes.division import LateInput, SlowRank, Turns, late_input, slow_rank

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Buckets:
    """The gradient buckets of a step, in the order in which they are reduced."""

    num_bytes: Sequence[float]  # of each bucket
    lead_s: Sequence[float]  # how long before the end of the backward each bucket is ready

    def exposed_s(self, reduce_s: Array) -> Array:
        """Return the part of each bucket's all-reduce after the end of the backward.

        That of all buckets alone takes `reduce_s`, shape (...); the parts are (..., num_buckets).
        """
        whole = sum(self.num_bytes)
        finish = np.full(np.shape(reduce_s), -np.inf)
        exposed = []
        for size, lead in zip(self.num_bytes, self.lead_s, strict=True):
            start = np.maximum(finish, -lead)
            finish = start + reduce_s * size / whole
            exposed.append(np.maximum(finish - np.maximum(start, 0.0), 0.0))
        return np.stack(exposed, axis=-1)

    def saved_s(self, reduce_s: Array, speed: float) -> Array:
        """Return the exposed seconds saved by links of `speed` times the speed, shape (...)."""
        now, then = self.exposed_s(reduce_s), self.exposed_s(reduce_s / speed)
        return np.asarray((now - then).sum(axis=-1))


# Probability of reporting a change where there is none, over all variants and orders.
FALSE_ALARM = 0.01
# The smallest change of the step that is reported.
NOTABLE_CHANGE = 0.1


@dataclass(frozen=True)
class Drift:
    """A change of the step within the turns."""

    from_s: float  # median before the change
    to_s: float  # median after it
    share: float  # of the turns before it
    # The turns from which causes are judged: those after it, unless they are too few or all turns
    # of the whole step lie before it.
    judged: Literal["before", "after"]
    is_own: bool  # whether the seconds are of a rank's own step, without waits, not of the whole


def split_at_change(turns: Turns, again: int | None = None) -> tuple[Turns, Drift | None]:
    """Return the turns after a change (all if there is none), and the change.

    Pettitt's test (Applied Statistics 28, 1979, 126) on the own step: with U_k twice the sum of the
    first k ranks minus k (n + 1) and K the largest |U_k|, p is 2 exp(-6 K^2 / (n^3 + n^2)).

    If the first k of n turns are longer than all others, that is a change, too: chance does this in
    one of `math.comb(n, k)` orders. If several variants change, the last change counts. If the
    whole step does not change, the side of the change with more turns is kept.

    Args:
        turns: Variant -> turns of one launch in the order of time, shape (num_ranks, num_turns).
        again: Number of turns after which the step is restored and its first steps, with what is
            special in them, come again; None if it is not restored.
    """
    own = division.median_alone(turns)
    series = [
        np.max(turns[name], axis=0) for name in (division.FULL, division.RESIDENT) if name in turns
    ] + [own]
    number = np.arange(len(own))
    orders = [number, np.argsort(number % again, kind="stable")] if again else [number]
    tests = [[_change(seconds[order]) for seconds in series] for order in orders]
    order, changes = min(zip(orders, tests, strict=True), key=lambda pair: min(pair[1])[0])
    level = FALSE_ALARM / (len(series) * len(orders))
    sure = [(at, seconds) for (chance, at), seconds in zip(changes, series, strict=True)
            if chance < level]  # fmt: skip
    if not sure:
        return turns, None
    at, seconds = max(sure, key=itemgetter(0))
    is_whole = changes[0][0] < level
    is_after = len(own) - at >= division.FEWEST_TURNS and (is_whole or at < len(own) / 2)
    if not is_after:
        at, seconds = min(sure, key=itemgetter(0))
    before, after = np.split(order, [at])
    kept = np.sort(after if is_after else before)
    from_s, to_s = (float(np.median(seconds[part])) for part in (before, after))
    side: Literal["before", "after"] = "after" if is_after else "before"
    change = Drift(from_s, to_s, at / len(own), side, seconds is own)
    return {name: np.asarray(turns[name])[:, kept] for name in turns}, change


def _change(seconds: Array) -> tuple[float, int]:
    """Return the p-value of the likeliest change (1 for a small one), and the turns before it."""
    count = len(seconds)
    less = seconds[:, None] > seconds
    ranks = (less.sum(axis=1) + (~less.T).sum(axis=1) + 1) / 2  # equal values share ranks
    sums = np.abs(2 * np.cumsum(ranks) - np.arange(1, count + 1) * (count + 1))
    chances = [(2 * math.exp(-6 * k**2 / (count**3 + count**2)), at + 1)
               for at, k in enumerate(sums.tolist())]  # fmt: skip
    lowest, highest = np.minimum.accumulate(seconds), np.maximum.accumulate(seconds[::-1])[::-1]
    chances += [(count / math.comb(count, at), at)
                for at in range(1, count) if lowest[at - 1] > highest[at]]  # fmt: skip
    chance, at = min(chances)
    if at == count:
        return 1.0, at
    before, after = np.median(seconds[:at]), np.median(seconds[at:])
    is_notable = abs(after / before - 1) >= NOTABLE_CHANGE
    return chance if is_notable else 1.0, at


Interval = tuple[float, float]
LostCause = Literal["exposed", "imbalance", "input", "fixed", "contention", "ddp"]
Kind = Literal[
    "communication", "imbalance", "input", "launch", "contention", "compute", "own", "open"
]
Change = Literal[
    "even ranks", "link twice as fast", "perfect overlap", "captured step", "input in time"
]  # fmt: skip

# The largest cause of a step -> its bottleneck.
KINDS: dict[LostCause, Kind] = {
    "exposed": "communication",
    "imbalance": "imbalance",
    "input": "input",
    "fixed": "launch",
    "contention": "contention",
    "ddp": "launch",
}
Cause = Literal["exposed", "imbalance", "input", "fixed", "contention", "own", "ddp"]
NAMES: dict[Cause, str] = {
    "exposed": "exposed communication",
    "imbalance": "waiting for slow ranks",
    "input": "waiting for input",
    "fixed": "fixed cost of a step",
    "contention": "sharing cores and memory",
    "own": "own work",
    "ddp": "DDP's own work",
}
CONFIDENCE = 0.95
# Largest lost share of a step whose bottleneck is computing.
LITTLE = 0.1
# Least share of a step that makes a cause its bottleneck.
BOUND = 0.25
# Turns that take this much longer or shorter than the rounds show no cause, see `Bound.is_unlike`.
BUSY = 0.25
RESAMPLES = 2000
# Fewer launches give no useful interval.
FEWEST_LAUNCHES = 3
LINK_SPEED = 2.0
# Largest share of the steps with a rare event.
MOST_RARE = 0.4
# Least distance of the medians of long and usual turns, in sums of both spreads; for the two halves
# of an even spread it is 1.3.
MODE_GAP = 2.0
# Causes of equal size at every world size: a ladder of equal local batches loses nothing to them.
UNSHARED = ("fixed", "ddp")
# Bootstrap samples in memory at once.
CHUNK = 100


@dataclass(frozen=True)
class Base:
    """The baseline of a point."""

    turns: Turns
    share: float = 1.0  # time of an ideal step over the baseline's: p0 / p for strong scaling


@dataclass(frozen=True)
class Amount:
    """Seconds of a step, and their interval; None if the spread is unknown."""

    seconds: float
    interval: Interval | None = None


@dataclass(frozen=True)
class Share:
    """The part of a step that goes to a cause."""

    cause: LostCause
    seconds: float  # 0 or more; 0 for a fixed cost that is not shown
    # 95 % of the measured difference, which noise may make negative; None if unknown.
    interval: Interval | None
    is_shown: bool  # whether it is notable, its interval excludes 0, and no single turn causes it
    in_one_turn: bool = False  # whether more than half of it comes from a single turn


@dataclass(frozen=True)
class Rare:
    """Work that all ranks do in the same few steps, so that none waits for another."""

    seconds: float  # mean over all steps; part of what a rank computes
    interval: Interval | None  # 95 %; None if unknown
    every: float  # it occurs about once in so many steps


@dataclass(frozen=True)
class Gain:
    """The modelled step after a change; `interval` is the 95 % interval of what it saves."""

    change: Change
    step_s: float
    interval: Interval | None


@dataclass(frozen=True)
class Bound:
    """The bottleneck of a step."""

    # Follows the first cause that is shown. `compute`: all causes together are shown to be small.
    # `own`: the same, but no half batch separates the fixed cost of a step from its computing.
    # `open`: not enough evidence for either.
    kind: Kind
    step_s: float  # mean step of the turns, or the step of the rounds, to which all is scaled
    interval: Interval | None
    compute_s: float  # a rank's own work; adds up to `step_s` with the seconds of the causes
    shares: tuple[Share, ...]
    gains: tuple[Gain, ...]
    # None for several launches, in which a rank may be on different machines.
    slow: SlowRank | None
    exposed_bucket_s: tuple[float, ...]  # of each bucket, by the timeline; may be empty
    num_launches: int
    num_turns: int  # turns of each variant from which causes are judged
    num_ranks: int
    late: LateInput | None = None  # `judge` finds it in a single launch only
    rare: Rare | None = None
    drift: Drift | None = None
    rate: float = 0.0  # share of the turns that are set apart, see `division`
    excess: float = 0.0  # sum of the measured parts beyond the step, as a share of it
    beyond_rounds: float = 0.0  # step of the turns minus that of the rounds, as a share of it
    queued: float = 0.0  # time that ranks waited for busy cores, as a share of the step
    has_base: bool = False  # whether `shares` are losses against a baseline
    # The step of the rounds, if that median leaves out rare work, which the mean of the turns,
    # `step_s`, contains.
    round_s: float | None = None

    @property
    def named(self) -> tuple[Share, ...]:
        """The causes that are shown, the one of `kind` first."""
        return tuple(share for share in self.shares if share.is_shown)

    @property
    def larger_unshown(self) -> Share | None:
        """The largest cause, if it is not shown but another one is; else None."""
        largest = max(self.shares, key=lambda share: share.seconds, default=None)
        return largest if largest and self.named and not largest.is_shown else None

    @property
    def is_unlike(self) -> bool:
        """Whether the turns are too unlike the rounds to say what the rounds' time goes to.

        They are much shorter, or much longer while waits for cores are at least half of the excess.
        """
        excess = self.beyond_rounds / (1 + self.beyond_rounds)  # as a share of the turns' step
        is_busy = self.beyond_rounds >= BUSY and self.queued >= excess / 2
        return is_busy or self.beyond_rounds <= 1 / (1 + BUSY) - 1

    @property
    def is_busy(self) -> bool:
        """Whether ranks waited long for cores in turns that are like the rounds."""
        return not self.is_unlike and self.queued >= BUSY

    @property
    def queued_s(self) -> float:
        """Seconds of a step that ranks waited for busy cores; of the turns if these are unlike."""
        return self.queued * self.step_s * (1 + self.beyond_rounds * self.is_unlike)

    @property
    def lost_s(self) -> float:
        """Seconds of a step that go to all causes, shown or not."""
        return sum(share.seconds for share in self.shares)

    def rescale(self, step_s: float, interval: Interval | None) -> "Bound":
        """Return the bottleneck scaled to the step of the timed rounds.

        If that median leaves out rare work, the median is kept beside the mean of the turns. If
        the turns are unlike the rounds, no cause is kept.
        """
        scale = step_s / self.step_s
        comes_rarely = self.rate and "imbalance" in {share.cause for share in self.named}
        turns = replace(self, beyond_rounds=1 / scale - 1)
        if turns.is_unlike:
            bare = turns.without_causes()
            return replace(bare, step_s=step_s, compute_s=step_s, interval=interval)
        if (self.rare or comes_rarely) and turns.beyond_rounds >= NOTABLE:
            return replace(self, round_s=step_s)
        return replace(
            turns, step_s=step_s, interval=interval, compute_s=self.compute_s * scale,
            shares=tuple(_scale(share, scale) for share in self.shares),
            gains=tuple(_scale(gain, scale) for gain in self.gains),
            rare=self.rare and _scale(self.rare, scale),
            exposed_bucket_s=tuple(s * scale for s in self.exposed_bucket_s),
        )  # fmt: skip

    def without_causes(self) -> "Bound":
        """Return the step alone, for turns that do not show what it loses."""
        return replace(
            self, kind="open", compute_s=self.step_s, shares=(), gains=(), slow=None, late=None,
            exposed_bucket_s=(), rare=None, drift=None,
        )  # fmt: skip


def _scale(part: Any, scale: float) -> Any:
    """Return a share, a gain or rare work with its seconds scaled."""
    name = "step_s" if isinstance(part, Gain) else "seconds"
    interval = part.interval and (part.interval[0] * scale, part.interval[1] * scale)
    return replace(part, **{name: getattr(part, name) * scale, "interval": interval})


def judge(
    launches: Sequence[Turns],
    bases: Sequence[Base] = (),
    buckets: Buckets | None = None,
    confidence: float = CONFIDENCE,
    again: int | None = None,
) -> Bound:
    """Return the bottleneck of a point's step, from the turns of its variants in each launch.

    Turns have the shape (num_ranks, num_turns), in the order of time. `bases` are the launches of
    the baseline, if there is one; `again` is as in `split_at_change`.
    """
    launches, drifts = zip(*(split_at_change(turns, again) for turns in launches), strict=True)
    if division.follows_batch(pool(launches)):
        launches = [{name: turns[name] for name in turns if name != division.HALF}
                    for turns in launches]  # fmt: skip
    pooled = pool(launches)
    fewest = min(len(launches), len(bases) or len(launches))
    estimate = _launch_amounts if fewest >= FEWEST_LAUNCHES else _turn_amounts
    amounts = estimate(launches, bases, buckets, confidence)
    step_s = amounts["step"].seconds
    shares = _shares(amounts, _in_one_turn(pooled, _pooled_base(bases), amounts))
    # A fixed cost that is not shown counts as computing; every other cause is taken off.
    taken = [share.seconds if share.cause == "fixed" else amounts[share.cause].seconds
             for share in shares]  # fmt: skip
    compute_s = max(step_s - sum(taken), 0.0)
    excess = (compute_s + sum(share.seconds for share in shares)) / step_s - 1
    fits = 1 / (1 + excess)
    shares = [_scale(share, fits) for share in shares]
    kind: Kind = "compute" if division.HALF in pooled else "own"
    if shown := [share for share in shares if share.is_shown]:
        kind = KINDS[shown[0].cause]
    elif (lost := amounts["lost"].interval) is None or lost[1] >= LITTLE * step_s:
        kind = "open"
    return Bound(
        kind=kind, step_s=step_s, interval=amounts["step"].interval, compute_s=compute_s * fits,
        shares=tuple(shares), gains=tuple(_gains(amounts, compute_s, fits)),
        slow=slow_rank(pooled[division.OWN].tolist()) if len(launches) == 1 else None,
        late=late_input(pooled) if len(launches) == 1 else None,
        exposed_bucket_s=_bucket_exposure(pooled, buckets, shares),
        num_launches=len(launches), num_turns=pooled[division.FULL].shape[-1],
        num_ranks=pooled[division.FULL].shape[-2],
        rare=_rare(amounts, pooled, fits), drift=next(filter(None, drifts), None),
        rate=amounts["rate"].seconds, excess=excess, queued=amounts["queued"].seconds / step_s,
        has_base=bool(bases),
    )  # fmt: skip


def _pooled_base(bases: Sequence[Base]) -> Base | None:
    return Base(pool([base.turns for base in bases]), bases[0].share) if bases else None


def pool(launches: Sequence[Turns]) -> Turns:
    """Return the turns of all launches in a row, for variants that each launch has."""
    names = [name for name in launches[0] if all(name in turns for turns in launches)]
    return {name: np.concatenate([turns[name] for turns in launches], axis=-1) for name in names}


def quantities(turns: Turns, base: Base | None, buckets: Buckets | None) -> dict[str, Array]:
    """Return the seconds of each cause, and those that each change saves; shape (...) each.

    The turns, and those of the base, have the shape (..., num_ranks, num_turns).
    """
    causes = division.divide(turns)
    causes["queued"] = causes.get("contention", np.zeros_like(causes["own"]))
    whole = causes.get("fixed")  # before the baseline's part is subtracted
    if base:
        against = _losses(causes, division.divide(base.turns), base.share)
        causes = {name: value for name, value in causes.items() if name not in UNSHARED} | against
    causes["lost"] = sum(
        (np.clip(causes[cause], 0.0, causes["own"]) if cause == "fixed" else causes[cause]
         for cause in KINDS if cause in causes), np.zeros(()),
    )  # fmt: skip
    changes: dict[Change, Array | None] = {
        "even ranks": causes.get("imbalance"),
        "perfect overlap": causes.get("exposed"),
        "captured step": whole if "fixed" in causes else None,
        "input in time": causes.get("input"),
    }
    if "exposed" in causes and "reduce" in causes:
        # Without buckets, as if nothing were overlapped.
        reduce_s = causes["reduce"]
        faster_s = buckets.saved_s(reduce_s, LINK_SPEED) if buckets else reduce_s
        saved = np.minimum(causes["exposed"], faster_s)
        changes["link twice as fast"] = saved if buckets else saved * (1 - 1 / LINK_SPEED)
    return causes | {change: gain for change, gain in changes.items() if gain is not None}


def _losses(here: Mapping[str, Array], base: Mapping[str, Array], share: float) -> dict[str, Array]:
    """Return the causes as losses against a baseline, which shows contention and DDP's own cost.

    The fixed cost and DDP's own work do not shrink with the batch: strong scaling loses 1 - `share`
    of both, weak scaling nothing.
    """
    fixed = base.get("fixed", np.zeros(()))
    expected = fixed + share * (base["own"] - fixed)
    losses = {"fixed": (1 - share) * fixed} if "fixed" in here or "fixed" in base else {}
    if share == 1 or "fixed" in base:  # else the fixed cost would count as contention
        queued = here.get("contention", 0.0) - share * base.get("contention", 0.0)
        losses["contention"] = np.maximum(here["own"] - expected + queued, 0.0)
    if "exposed" in here and "ddp" in base:
        losses |= {"exposed": here["exposed"] - base["ddp"], "ddp": (1 - share) * base["ddp"]}
    return {name: value for name, value in losses.items() if share < 1 or name not in UNSHARED}


def _turn_amounts(
    launches: Sequence[Turns], bases: Sequence[Base], buckets: Buckets | None, confidence: float
) -> dict[str, Amount]:
    """Return each quantity with its percentile bootstrap interval over turns.

    For n turns the interval is widened by Student's t over the normal's quantile, and by
    sqrt(n / (n - 1)), since the bootstrap's variance is (n - 1) / n of the sample's.
    """
    turns, base = pool(launches), _pooled_base(bases)
    exact = quantities(turns, base, buckets)
    num_turns = turns[division.FULL].shape[-1]
    if num_turns < division.FEWEST_TURNS:
        return {name: Amount(float(value)) for name, value in exact.items()}
    chunks = []
    for seed in range(RESAMPLES // CHUNK):
        drawn = division.resample(turns, CHUNK, 2 * seed)
        sampled_base = base and Base(division.resample(base.turns, CHUNK, 2 * seed + 1), base.share)
        sampled = quantities(drawn, sampled_base, buckets)
        chunks.append({name: np.broadcast_to(value, (CHUNK,)) for name, value in sampled.items()})
    tail, freedom = (1 - confidence) / 2, num_turns - 1
    border = metrics.student_quantile(freedom, confidence)
    wider = (num_turns / freedom) ** 0.5 * border / NormalDist().inv_cdf(1 - tail)
    amounts = {}
    for name, value in exact.items():
        samples, centre = np.concatenate([chunk[name] for chunk in chunks]), float(value)
        low, high = (float(end) for end in np.nanquantile(samples, (tail, 1 - tail)))
        interval = centre + wider * (low - centre), centre + wider * (high - centre)
        amounts[name] = Amount(centre, interval)
    return amounts


def _launch_amounts(
    launches: Sequence[Turns], bases: Sequence[Base], buckets: Buckets | None, confidence: float
) -> dict[str, Amount]:
    """Return each quantity with its interval over launches.

    A launch is compared with the same repeat of the baseline (or its last), measured close to it.
    """
    values_of = [
        quantities(turns, bases[min(index, len(bases) - 1)] if bases else None, buckets)
        for index, turns in enumerate(launches)
    ]
    amounts = {}
    for name in values_of[0]:
        if all(name in launch for launch in values_of):
            values = [float(launch[name]) for launch in values_of]
            middle, half = sum(values) / len(values), metrics.half_width(values, confidence)
            amounts[name] = Amount(middle, (middle - half, middle + half))
    return amounts


def _shares(amounts: Mapping[str, Amount], in_one_turn: Mapping[LostCause, bool]) -> list[Share]:
    """Return the share of each cause, the largest first.

    A large cause of waiting comes before fixed costs of a rank, which do not keep it from scaling.
    If ranks waited for cores, differences are noisy: a cause must be shown to take `LITTLE`.
    """
    shares = []
    step_s = amounts["step"].seconds
    least_s = LITTLE * step_s if amounts["queued"].seconds >= NOTABLE * step_s else 0.0
    for cause, is_carried in in_one_turn.items():
        seconds, interval = max(amounts[cause].seconds, 0.0), amounts[cause].interval
        is_sure = interval is not None and interval[0] > (0.0 if cause == "contention" else least_s)
        if cause == "fixed":
            seconds = _truncated_mean(amounts[cause], amounts["own"].seconds)
        is_sure &= seconds >= NOTABLE * step_s
        is_shown = is_sure and not is_carried
        seconds = 0.0 if cause == "fixed" and not is_shown else seconds
        shares.append(Share(cause, seconds, interval, is_shown, is_sure and is_carried))
    bound_s = BOUND * step_s
    waits = any(share.is_shown and share.cause not in UNSHARED and share.seconds >= bound_s
                for share in shares)  # fmt: skip
    return sorted(shares, key=lambda share: (waits and share.cause in UNSHARED, -share.seconds))


def _rare(amounts: Mapping[str, Amount], turns: Turns, fits: float) -> Rare | None:
    """Return rare work if long and usual turns differ by more than their spreads; else None."""
    amount, rate = amounts["rare_own"], amounts["rate"].seconds
    is_sure = amount.interval is not None and amount.interval[0] > 0
    if not is_sure or amount.seconds < NOTABLE * amounts["step"].seconds or rate > MOST_RARE:
        return None
    own, usual = (
        division.median_alone(turns),
        division.mark_usual(turns)[division.USUAL[division.OWN]][0],
    )
    if usual.all() or not usual.any():  # no long turn among those of all launches together
        return None
    (long_s, spread_s), (usual_s, other_s) = map(_middle, (own[~usual], own[usual]))
    if long_s - usual_s <= MODE_GAP * (spread_s + other_s):
        return None
    rare: Rare = _scale(Rare(amount.seconds, amount.interval, 1 / rate), fits)
    return rare


def _middle(values: Array) -> tuple[float, float]:
    """Return the median, and the standard deviation estimated by the median distance from it."""
    middle = float(np.median(values))
    return middle, float(np.median(np.abs(values - middle))) / NormalDist().inv_cdf(0.75)


def _truncated_mean(amount: Amount, most: float) -> float:
    """Return the mean of an estimate's normal distribution between 0 and `most`.

    The estimate itself may lie outside of these ends.
    """
    normal, low_s, high_s = NormalDist(), *(amount.interval or (0.0, 0.0))
    error = (high_s - low_s) / (2 * normal.inv_cdf(0.5 + CONFIDENCE / 2))
    if error > 0:
        low, high = ((end - amount.seconds) / error for end in (0.0, most))
        if inside := normal.cdf(high) - normal.cdf(low):
            return amount.seconds + error * (normal.pdf(low) - normal.pdf(high)) / inside
        return max(most + error / high, 0.0) if high < 0 else min(error / low, most)  # far outside
    return min(max(amount.seconds, 0.0), most)


def _in_one_turn(
    turns: Turns, base: Base | None, amounts: Mapping[str, Amount]
) -> dict[LostCause, bool]:
    """Return cause -> whether leaving out a single turn more than halves it."""
    causes: list[LostCause] = [cause for cause in KINDS if cause in amounts]
    num_turns = turns[division.FULL].shape[-1]
    if num_turns < division.FEWEST_TURNS:
        return dict.fromkeys(causes, False)
    turns = division.mark_usual(turns)
    whole = quantities(turns, base, None)
    without = [
        quantities({name: np.delete(turns[name], at, axis=-1) for name in turns}, base, None)
        for at in range(num_turns)
    ]  # fmt: skip
    return {cause: any(not rest[cause] >= whole[cause] / 2 for rest in without) for cause in causes}


def _gains(amounts: Mapping[str, Amount], compute_s: float, fits: float) -> Iterator[Gain]:
    """Yield the modelled step after each change; only a captured step may compute for less time."""
    step_s, own_s = amounts["step"].seconds, amounts["own"].seconds
    for change in get_args(Change):
        if change not in amounts:
            continue
        saved, most = amounts[change], max(step_s / fits - compute_s, 0.0)
        if change == "captured step":
            saved, most = replace(saved, seconds=_truncated_mean(saved, own_s)), own_s
        ends = (saved.seconds, *reversed(saved.interval or ()))
        left, *interval = (step_s - fits * min(max(end, 0.0), most) for end in ends)
        yield Gain(change, left, (interval[0], interval[1]) if interval else None)


def _bucket_exposure(
    turns: Turns, buckets: Buckets | None, shares: Sequence[Share]
) -> tuple[float, ...]:
    reduce_s = division.divide(turns).get("reduce")
    exposed = next((share.seconds for share in shares if share.cause == "exposed"), None)
    if buckets is None or reduce_s is None or exposed is None:
        return ()
    modelled_s = buckets.exposed_s(reduce_s)
    whole_s = float(modelled_s.sum())
    scale = exposed / whole_s if whole_s else 0.0
    return tuple((scale * modelled_s).tolist())
