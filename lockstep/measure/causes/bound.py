"""What bounds a step: shares of its causes with intervals, and what a change would gain.

It is judged for one point, by the turns of its variants (`division`), with those of its baseline
where there is one: what ranks that share a machine cost each other beyond waits for a core, such as
memory bandwidth, shows only against a baseline. With several launches a launch gives one value and
the intervals are over launches; with fewer they are over turns, and hold for these launches alone.

Noise takes a difference of variants below 0, and the others then add up to more than the step. What
is below 0 takes nothing of a step, and the rest is scaled to it (`Bound.excess`).

A slow first minute, of caches that fill or kernels that are compiled, is no cause of what the steps
after it lose. So causes are judged by the turns after a change alone, and the change is reported by
itself (`settled`).

DDP reduces its buckets one after the other, each once its last gradient is ready. With the time
that a bucket is ready before the end of the backward, and its share of the time that all buckets
take alone, by bytes, a timeline gives what of each lies behind that end (`Buckets`).
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
from lockstep.measure.causes.division import (
    FEWEST_TURNS,
    FULL,
    RESIDENT,
    LateInput,
    SlowRank,
    Turns,
    late_input,
    slow_rank,
    typical,
)

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Buckets:
    """The gradient buckets of a step, in the order in which they are reduced.

    Attributes:
        num_bytes: Of each bucket, shape (num_buckets,).
        lead_s: How long before the end of the backward each is ready, shape (num_buckets,).
    """

    num_bytes: Sequence[float]
    lead_s: Sequence[float]

    def exposed_s(self, reduce_s: Array) -> Array:
        """Return what of each bucket's all-reduce lies behind the end of the backward.

        Args:
            reduce_s: Seconds that the all-reduce of all buckets takes alone, shape (...).

        Returns:
            Seconds, shape (..., num_buckets).
        """
        whole = sum(self.num_bytes)
        finish = np.full(np.shape(reduce_s), -np.inf)
        found = []
        for size, lead in zip(self.num_bytes, self.lead_s, strict=True):
            start = np.maximum(finish, -lead)
            finish = start + reduce_s * size / whole
            found.append(np.maximum(finish - np.maximum(start, 0.0), 0.0))
        return np.stack(found, axis=-1)

    def saved_s(self, reduce_s: Array, speed: float) -> Array:
        """Return the exposed seconds that links of so many times the speed save, shape (...)."""
        now, then = self.exposed_s(reduce_s), self.exposed_s(reduce_s / speed)
        return np.asarray((now - then).sum(axis=-1))


# Chance that turns in which nothing changes are said to, over all variants and orders.
FALSE_ALARM = 0.01
# A smaller change of the step is not worth a word.
NOTABLE_CHANGE = 0.1


@dataclass(frozen=True)
class Drift:
    """A change of a rank's own step.

    Attributes:
        from_s: Of the turns before it, the median of the own step or of the whole one.
        to_s: Of those after it.
        share: Of the turns that come before it.
        told: Of which turns causes are told: those after it, unless these are too few, or the turns
            of the whole step all lie before it.
    """

    from_s: float
    to_s: float
    share: float
    told: Literal["before", "after"]


def settled(turns: Turns, again: int | None = None) -> tuple[Turns, Drift | None]:
    """Return the turns after a change, all of them where there is none, and the change.

    Pettitt's test (Applied Statistics 28, 1979, 126) on the own step: with U_k twice the sum of the
    first k ranks less k (n + 1) and K the largest |U_k|, p is 2 exp(-6 K^2 / (n^3 + n^2)).

    Few turns at the beginning that are all longer than all others are a change, too: by chance they
    are in one of so many orders. Where several variants change, the last of their changes counts.
    Where the whole step does not change, it lies on one side of the change alone, the longer one.

    Args:
        turns: Of one launch in the order of time, shape (num_ranks, num_turns) of each variant.
        again: After so many turns the step is put back as it was, so that what comes in its first
            steps comes again; None where it is not.
    """
    own = typical(turns)
    series = [np.max(turns[name], axis=0) for name in (FULL, RESIDENT) if name in turns] + [own]
    number = np.arange(len(own))
    orders = [number, np.argsort(number % again, kind="stable")] if again else [number]
    found = [[_change(each[order]) for each in series] for order in orders]
    order, changes = min(zip(orders, found, strict=True), key=lambda one: min(one[1])[0])
    level = FALSE_ALARM / (len(series) * len(orders))
    sure = [(at, each) for (chance, at), each in zip(changes, series, strict=True)
            if chance < level]  # fmt: skip
    if not sure:
        return turns, None
    at, seconds = max(sure, key=itemgetter(0))
    is_whole = changes[0][0] < level
    is_after = len(own) - at >= FEWEST_TURNS and (is_whole or at < len(own) / 2)
    if not is_after:
        at, seconds = min(sure, key=itemgetter(0))
    before, after = np.split(order, [at])
    kept = np.sort(after if is_after else before)
    from_s, to_s = (float(np.median(seconds[part])) for part in (before, after))
    change = Drift(from_s, to_s, at / len(own), "after" if is_after else "before")
    return {name: np.asarray(each)[:, kept] for name, each in turns.items()}, change


def _change(seconds: Array) -> tuple[float, int]:
    """Return the chance of the likeliest change, and how many values come before it.

    The chance of one that is not worth a word is 1.
    """
    count = len(seconds)
    less = seconds[:, None] > seconds
    ranks = (less.sum(axis=1) + (~less.T).sum(axis=1) + 1) / 2  # equal values share their ranks
    sums = np.abs(2 * np.cumsum(ranks) - np.arange(1, count + 1) * (count + 1))
    found = [(2 * math.exp(-6 * each**2 / (count**3 + count**2)), at + 1)
             for at, each in enumerate(sums.tolist())]  # fmt: skip
    lowest, highest = np.minimum.accumulate(seconds), np.maximum.accumulate(seconds[::-1])[::-1]
    found += [(count / math.comb(count, at), at)
              for at in range(1, count) if lowest[at - 1] > highest[at]]  # fmt: skip
    chance, at = min(found)
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

# What bounds a step whose largest cause this is.
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
# So much of a step may be lost in all where it is called bound by its computing.
LITTLE = 0.1
# A cause is what bounds a step where it takes so much of it.
BOUND = 0.25
RESAMPLES = 2000
# Fewer launches, or turns, give no interval of use.
FEWEST_LAUNCHES = 3
LINK_SPEED = 2.0
# What comes in more of the steps is nothing that comes in some.
MOST_RARE = 0.4
# The medians of two kinds of turns are apart by so many times what both spread (those of two halves
# of an even spread by 1.3).
MODE_GAP = 2.0
# Causes that are as large at every size, so that a ladder of equal batches loses nothing to them.
UNSHARED = ("fixed", "ddp")
# Samples of the bootstrap that are held at once.
CHUNK = 100


@dataclass(frozen=True)
class Base:
    """What a point is held against.

    Attributes:
        turns: Of its variants.
        share: Time of an ideal step over the baseline's: p0 / p for strong scaling, else 1.
    """

    turns: Turns
    share: float = 1.0


@dataclass(frozen=True)
class Amount:
    """Seconds of a step, and their interval; None where nothing is known of the spread."""

    seconds: float
    interval: Interval | None = None


@dataclass(frozen=True)
class Share:
    """What of a step goes to a cause.

    Attributes:
        seconds: Of a step, 0 or more. A fixed cost that is not shown is 0, and part of computing.
        interval: 95 %, of the difference that it is measured by, which noise may take below 0;
            None where nothing is known of the spread.
        is_shown: Whether it is worth a word, its interval leaves 0 out, and no turn carries it.
        in_one_turn: Whether more than half of it comes from a single turn.
    """

    cause: LostCause
    seconds: float
    interval: Interval | None
    is_shown: bool
    in_one_turn: bool = False


@dataclass(frozen=True)
class Rare:
    """What a rank's own work takes longer in some of its steps, on all ranks in the same ones.

    Nobody waits for it.

    Attributes:
        seconds: Of a step, the mean over all steps; part of what a rank computes.
        interval: 95 %; None where nothing is known of the spread.
        every: It comes in about every such step.
    """

    seconds: float
    interval: Interval | None
    every: float


@dataclass(frozen=True)
class Gain:
    """What a step would take after a change: modelled, not measured.

    Attributes:
        interval: 95 %, of what the change saves; None where nothing is known of the spread.
    """

    change: Change
    step_s: float
    interval: Interval | None


@dataclass(frozen=True)
class Bound:
    """What bounds a step.

    Attributes:
        kind: By the first cause that is shown. `compute`: all causes together are shown to take
            little. `own`: the same, where no half batch tells the fixed cost of a step from its
            computing. `open`: not enough evidence for either.
        step_s: Mean step of the turns, or the step of the timed rounds, to which all is scaled.
        compute_s: A rank's own work, less what is shown to be something else; with the seconds of
            the shares it adds up to `step_s`.
        slow: The rank that the others wait for, where one is shown; of one launch alone, since in
            another a rank may be on another machine.
        exposed_bucket_s: What of the exposed communication goes to each bucket: shared out as the
            timeline does; empty where unknown.
        num_turns: Turns of each variant in all of them, of which causes are told.
        late: The rank whose batches come late, where one is shown; of one launch, as `slow`.
        rare: What all ranks take longer in some steps, where it is shown.
        drift: A change of the step within the turns; causes are told of the turns after it.
        rate: Share of the turns that are set apart, see `division`.
        excess: What was measured of the parts beyond the step, as a share of it.
        beyond_rounds: What the turns take beyond the rounds, as a share of these.
        queued: What ranks waited for cores that were in use, as a share of the step.
        round_s: The step of the rounds where it is another: a median, it leaves out what is shown
            to come in some steps, and `step_s` is the mean of the turns.
    """

    kind: Kind
    step_s: float
    interval: Interval | None
    compute_s: float
    shares: tuple[Share, ...]
    gains: tuple[Gain, ...]
    slow: SlowRank | None
    exposed_bucket_s: tuple[float, ...]
    num_launches: int
    num_turns: int
    late: LateInput | None = None
    rare: Rare | None = None
    drift: Drift | None = None
    rate: float = 0.0
    excess: float = 0.0
    beyond_rounds: float = 0.0
    queued: float = 0.0
    round_s: float | None = None

    @property
    def named(self) -> tuple[Share, ...]:
        """The causes that are shown, that of `kind` first."""
        return tuple(share for share in self.shares if share.is_shown)

    @property
    def larger_unshown(self) -> Share | None:
        """The largest cause where it is not shown and another one is; None elsewhere."""
        largest = max(self.shares, key=lambda share: share.seconds, default=None)
        return largest if largest and self.named and not largest.is_shown else None

    @property
    def shares_cores(self) -> bool:
        """Whether ranks waited for cores, so that no cause below `LITTLE` of the step is named."""
        return self.queued >= NOTABLE

    @property
    def lost_s(self) -> float:
        """Seconds of a step that go to all causes, shown or not."""
        return sum(share.seconds for share in self.shares)

    def of_rounds(self, step_s: float, interval: Interval | None) -> "Bound":
        """Return it for the step of the timed rounds: all seconds in proportion.

        But for rounds that leave out what comes in some steps: their step is kept beside its own.
        """
        scale = step_s / self.step_s
        comes_rarely = self.rate and "imbalance" in {share.cause for share in self.named}
        if (self.rare or comes_rarely) and 1 / scale - 1 >= NOTABLE:
            return replace(self, round_s=step_s)
        scaled: dict[str, Any] = {
            name: tuple(_scaled(each, scale) for each in getattr(self, name))
            for name in ("shares", "gains")
        }
        return replace(
            self, step_s=step_s, interval=interval, compute_s=self.compute_s * scale,
            rare=self.rare and _scaled(self.rare, scale), beyond_rounds=1 / scale - 1,
            exposed_bucket_s=tuple(each * scale for each in self.exposed_bucket_s), **scaled,
        )  # fmt: skip


def _scaled(part: Any, scale: float) -> Any:
    """Return a share, a gain or what is rare with its seconds scaled."""
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
    """Return what bounds the step of a point, by the turns of its variants in each launch.

    They are arrays of shape (num_ranks, num_turns), in the order of time; `again` is that of
    `settled`. `bases` are those of its baseline; none where the point is held against
    nothing.
    """
    launches, drifts = zip(*(settled(turns, again) for turns in launches), strict=True)
    if division.follows_batch(pool(launches)):
        launches = [{name: turns[name] for name in turns if name != division.HALF}
                    for turns in launches]  # fmt: skip
    pooled = pool(launches)
    fewest = min(len(launches), len(bases) or len(launches))
    of = _over_launches if fewest >= FEWEST_LAUNCHES else _over_turns
    found = of(launches, bases, buckets, confidence)
    step_s = found["step"].seconds
    shares = _shares(found, _in_one_turn(pooled, _pooled_base(bases), found))
    # A fixed cost that is not shown is part of computing; of other causes all is taken out.
    taken = [share.seconds if share.cause == "fixed" else found[share.cause].seconds
             for share in shares]  # fmt: skip
    compute_s = max(step_s - sum(taken), 0.0)
    excess = (compute_s + sum(share.seconds for share in shares)) / step_s - 1
    fits = 1 / (1 + excess)
    shares = [_scaled(share, fits) for share in shares]
    kind: Kind = "compute" if division.HALF in pooled else "own"
    if shown := [share for share in shares if share.is_shown]:
        kind = KINDS[shown[0].cause]
    elif (lost := found["lost"].interval) is None or lost[1] >= LITTLE * step_s:
        kind = "open"
    return Bound(
        kind=kind,
        step_s=step_s,
        interval=found["step"].interval,
        compute_s=compute_s * fits,
        shares=tuple(shares),
        gains=tuple(_gains(found, compute_s, fits)),
        slow=slow_rank(pooled[division.OWN].tolist()) if len(launches) == 1 else None,
        late=late_input(pooled) if len(launches) == 1 else None,
        exposed_bucket_s=_bucket_exposure(pooled, buckets, shares),
        num_launches=len(launches),
        num_turns=pooled[division.FULL].shape[-1],
        rare=_rare(found, pooled, fits),
        drift=next(filter(None, drifts), None),
        rate=found["rate"].seconds,
        excess=excess,
        queued=found["queued"].seconds / step_s,
    )


def _pooled_base(bases: Sequence[Base]) -> Base | None:
    return Base(pool([base.turns for base in bases]), bases[0].share) if bases else None


def pool(launches: Sequence[Turns]) -> Turns:
    """Return the turns of all launches as those of one, of the variants that each has."""
    names = [name for name in launches[0] if all(name in turns for turns in launches)]
    return {
        name: np.concatenate([np.asarray(turns[name]) for turns in launches], axis=-1)
        for name in names
    }


def quantities(turns: Turns, base: Base | None, buckets: Buckets | None) -> dict[str, Array]:
    """Return seconds of each cause, and what each change saves of a step; shape (...) each.

    The turns, and those of the base, are of shape (..., num_ranks, num_turns).
    """
    found = division.divide(turns)
    found["queued"] = found.get("contention", np.zeros_like(found["own"]))
    whole = found.get("fixed")  # of which a baseline's shared step loses a part
    if base:
        against = _against(found, division.divide(base.turns), base.share)
        found = {name: value for name, value in found.items() if name not in UNSHARED} | against
    found["lost"] = sum(
        (np.clip(found[cause], 0.0, found["own"]) if cause == "fixed" else found[cause]
         for cause in KINDS if cause in found), np.zeros(()),
    )  # fmt: skip
    saved = None
    if "exposed" in found and "reduce" in found:
        if buckets is None:  # as if nothing were hidden
            saved = np.minimum(found["exposed"], found["reduce"]) * (1 - 1 / LINK_SPEED)
        else:
            faster_s = buckets.saved_s(found["reduce"], LINK_SPEED)
            saved = np.minimum(found["exposed"], faster_s)
    changes: dict[Change, Array | None] = {
        "even ranks": found.get("imbalance"),
        "perfect overlap": found.get("exposed"),
        "captured step": whole if "fixed" in found else None,
        "link twice as fast": saved,
        "input in time": found.get("input"),
    }
    return found | {change: gain for change, gain in changes.items() if gain is not None}


def _against(
    here: Mapping[str, Array], base: Mapping[str, Array], share: float
) -> dict[str, Array]:
    """Return the causes as losses to a baseline, which knows DDP's own cost and contention.

    What costs every step as much, the fixed cost and DDP's own, is lost as far as the baseline's
    step is shared out.
    """
    fixed = base.get("fixed", np.zeros(()))
    expected = fixed + share * (base["own"] - fixed)
    found = {"fixed": (1 - share) * fixed} if "fixed" in here or "fixed" in base else {}
    if share == 1 or "fixed" in base:  # else what a step costs however small it is would be blamed
        queued = here.get("contention", 0.0) - share * base.get("contention", 0.0)
        found["contention"] = np.maximum(here["own"] - expected + queued, 0.0)
    if "exposed" in here and "ddp" in base:
        found |= {"exposed": here["exposed"] - base["ddp"], "ddp": (1 - share) * base["ddp"]}
    return {name: value for name, value in found.items() if share < 1 or name not in UNSHARED}


def _over_turns(
    launches: Sequence[Turns], bases: Sequence[Base], buckets: Buckets | None, confidence: float
) -> dict[str, Amount]:
    """Return each quantity with its bootstrap interval over turns.

    It is the percentile interval, widened for few turns as Student's t is over the normal's. The
    variance of a sample, from which the turns are drawn, is too small by (n - 1) / n.
    """
    turns, base = pool(launches), _pooled_base(bases)
    exact = quantities(turns, base, buckets)
    num_turns = turns[division.FULL].shape[-1]
    if num_turns < FEWEST_TURNS:
        return {name: Amount(float(value)) for name, value in exact.items()}
    chunks = []
    for seed in range(RESAMPLES // CHUNK):
        drawn = division.resample(turns, CHUNK, 2 * seed)
        held = base and Base(division.resample(base.turns, CHUNK, 2 * seed + 1), base.share)
        sampled = quantities(drawn, held, buckets)
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


def _over_launches(
    launches: Sequence[Turns], bases: Sequence[Base], buckets: Buckets | None, confidence: float
) -> dict[str, Amount]:
    """Return each quantity with its interval over launches.

    The n-th launch is held against the n-th of the baseline, or the last there is: their order is
    that of the repeats, which are measured side by side.
    """
    each = [
        quantities(turns, bases[min(index, len(bases) - 1)] if bases else None, buckets)
        for index, turns in enumerate(launches)
    ]
    amounts = {}
    for name in each[0]:
        if all(name in found for found in each):
            values = [float(found[name]) for found in each]
            middle, half = sum(values) / len(values), metrics.half_width(values, confidence)
            amounts[name] = Amount(middle, (middle - half, middle + half))
    return amounts


def _shares(found: Mapping[str, Amount], in_one_turn: Mapping[LostCause, bool]) -> list[Share]:
    """Return the share of each cause, the largest first.

    What bounds a step by what ranks wait for comes before what each has alone, which scales. Where
    ranks waited for cores, that unevenness is in every difference, so a cause must be shown to take
    `LITTLE` of the step.
    """
    shares = []
    step_s = found["step"].seconds
    least_s = LITTLE * step_s if found["queued"].seconds >= NOTABLE * step_s else 0.0
    for cause, is_carried in in_one_turn.items():
        seconds, interval = max(found[cause].seconds, 0.0), found[cause].interval
        is_sure = interval is not None and interval[0] > (0.0 if cause == "contention" else least_s)
        if cause == "fixed":
            seconds = _between(found[cause], found["own"].seconds)
        is_sure &= seconds >= NOTABLE * step_s
        is_shown = is_sure and not is_carried
        seconds = 0.0 if cause == "fixed" and not is_shown else seconds
        shares.append(Share(cause, seconds, interval, is_shown, is_sure and is_carried))
    bound_s = BOUND * step_s
    waits = any(share.is_shown and share.cause not in UNSHARED and share.seconds >= bound_s
                for share in shares)  # fmt: skip
    return sorted(shares, key=lambda share: (waits and share.cause in UNSHARED, -share.seconds))


def _rare(found: Mapping[str, Amount], turns: Turns, fits: float) -> Rare | None:
    """Return what all ranks take longer in some steps, where that is shown.

    Long and usual turns are apart by more than both spread, unlike those of batches of any length.
    """
    amount, rate = found["rare_own"], found["rate"].seconds
    is_sure = amount.interval is not None and amount.interval[0] > 0
    if not is_sure or amount.seconds < NOTABLE * found["step"].seconds or rate > MOST_RARE:
        return None
    own, usual = division.typical(turns), division.marked(turns)[division.USUAL[division.OWN]][0]
    (long_s, spread_s), (usual_s, other_s) = map(_middle, (own[~usual], own[usual]))
    if long_s - usual_s <= MODE_GAP * (spread_s + other_s):
        return None
    rare: Rare = _scaled(Rare(amount.seconds, amount.interval, 1 / rate), fits)
    return rare


def _middle(values: Array) -> tuple[float, float]:
    """Return the median, and by the median distance from it the standard deviation of a normal."""
    middle = float(np.median(values))
    return middle, float(np.median(np.abs(values - middle))) / NormalDist().inv_cdf(0.75)


def _between(amount: Amount, most: float) -> float:
    """Return an amount that lies between 0 and the most, of an estimate that may lie beyond them.

    The mean of the estimate's normal distribution there: it nears an end, and never is one.
    """
    normal, low_s, high_s = NormalDist(), *(amount.interval or (0.0, 0.0))
    error = (high_s - low_s) / (2 * normal.inv_cdf(0.5 + CONFIDENCE / 2))
    if error > 0:
        low, high = ((end - amount.seconds) / error for end in (0.0, most))
        if inside := normal.cdf(high) - normal.cdf(low):
            return amount.seconds + error * (normal.pdf(low) - normal.pdf(high)) / inside
        return max(most + error / high, 0.0) if high < 0 else min(error / low, most)  # far beyond
    return min(max(amount.seconds, 0.0), most)


def _in_one_turn(
    turns: Turns, base: Base | None, found: Mapping[str, Amount]
) -> dict[LostCause, bool]:
    """Tell of each cause whether it is less than half as large without one of the turns."""
    causes: list[LostCause] = [cause for cause in KINDS if cause in found]
    num_turns = turns[division.FULL].shape[-1]
    if num_turns < FEWEST_TURNS:
        return dict.fromkeys(causes, False)
    turns = division.marked(turns)
    whole = quantities(turns, base, None)
    without = [
        quantities({name: np.delete(each, at, axis=-1) for name, each in turns.items()}, base, None)
        for at in range(num_turns)
    ]  # fmt: skip
    return {cause: not all(one[cause] >= whole[cause] / 2 for one in without) for cause in causes}


def _gains(found: Mapping[str, Amount], compute_s: float, fits: float) -> Iterator[Gain]:
    """Yield the step after each change, no shorter than what the change leaves of it.

    That is its computing, but for a captured step, of which the fixed cost may be held for that.
    """
    step_s, own_s = found["step"].seconds, found["own"].seconds
    for change in get_args(Change):
        if change not in found:
            continue
        saved, most = found[change], max(step_s / fits - compute_s, 0.0)
        if change == "captured step":
            saved, most = replace(saved, seconds=_between(saved, own_s)), own_s
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
