"""What bounds a step: shares of its causes with intervals, and what a change would gain.

It is said of one point, by the turns of its variants (`division`), with those of its baseline
where there is one: what ranks that share a machine cost each other beyond waits for a core, such as
memory bandwidth, shows only against a baseline.
With several launches a launch gives one value and the intervals are over launches; with fewer they
are over turns, and hold for these launches alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np

from lockstep.causes import division
from lockstep.causes.buckets import Buckets
from lockstep.causes.division import Turns
from lockstep.causes.stragglers import FEWEST_TURNS, LateInput, SlowRank, late_input, slow_rank
from lockstep.vocabulary import metrics
from lockstep.vocabulary.metrics import NOTABLE

Array = np.ndarray[Any, np.dtype[np.float64]]
Interval = tuple[float, float]
Cause = Literal["exposed", "imbalance", "input", "fixed", "contention", "ddp"]
Kind = Literal[
    "communication", "imbalance", "input", "launch", "contention", "compute", "own", "open"
]
Change = Literal[
    "even ranks", "link twice as fast", "perfect overlap", "captured step", "input in time"
]  # fmt: skip

# What bounds a step whose largest cause this is.
KINDS: dict[Cause, Kind] = {
    "exposed": "communication",
    "imbalance": "imbalance",
    "input": "input",
    "fixed": "launch",
    "contention": "contention",
    "ddp": "launch",
}
CONFIDENCE = 0.95
# So much of a step may be lost in all where it is called bound by its computing.
LITTLE = 0.1
RESAMPLES = 2000
# Fewer launches, or turns, give no interval of use.
FEWEST_LAUNCHES = 3
LINK_SPEED = 2.0
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
        seconds: Of a step, the mean of its turns; negative where noise exceeds it.
        interval: 95 %; None where nothing is known of the spread.
        is_shown: Whether it is worth a word and its interval leaves 0 out.
    """

    cause: Cause
    seconds: float
    interval: Interval | None
    is_shown: bool


@dataclass(frozen=True)
class Gain:
    """What a step would take after a change: modelled, not measured.

    Attributes:
        interval: 95 %, of what is measured of it; None where nothing is known of the spread.
    """

    change: Change
    step_s: float
    interval: Interval | None


@dataclass(frozen=True)
class Bound:
    """What bounds a step.

    Attributes:
        kind: By the largest cause that is shown. `compute`: all causes together are shown to take
            little. `own`: the same, where no half batch tells the fixed cost of a step from its
            computing. `open`: not enough evidence for either.
        step_s: Mean step of the turns, or the step of the timed rounds. Shares and whether they are
            shown are of `turns_s`.
        compute_s: What the causes leave of the turns' step: a rank's own work in proportion to its
            batch.
        slow: The rank that the others wait for, where one is shown; of one launch alone, since in
            another a rank may be on another machine.
        exposed_bucket_s: What of the exposed communication goes to each bucket: shared out as the
            timeline does; empty where unknown.
        num_turns: Turns of each variant in all of them.
        beyond_s: What the timed rounds take beyond the turns; 0 where the turns are all there is.
        late: The rank whose batches come late, where one is shown; of one launch, as `slow`.
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
    beyond_s: float = 0.0
    late: LateInput | None = None

    @property
    def named(self) -> tuple[Share, ...]:
        """The causes that are shown, the largest first."""
        return tuple(share for share in self.shares if share.is_shown)

    @property
    def larger_unshown(self) -> Share | None:
        """The largest cause where it is not shown and another one is; None elsewhere."""
        largest = max(self.shares, key=lambda share: share.seconds, default=None)
        return largest if largest and self.named and not largest.is_shown else None

    @property
    def turns_s(self) -> float:
        """Mean step of the turns, to which `compute_s` and the causes add up."""
        return self.step_s - self.beyond_s

    def of_rounds(self, step_s: float, interval: Interval | None) -> "Bound":
        """Return it for the step of the timed rounds, to which it adds up with `beyond_s`.

        No change makes a step shorter than its computing, but for a captured one, of which the
        fixed cost may be held for computing.
        """
        beyond = step_s - self.step_s
        least = min(self.compute_s, step_s)

        gains = (
            replace(
                gain,
                step_s=max(gain.step_s + beyond, 0.0 if gain.change == "captured step" else least),
                interval=gain.interval and (gain.interval[0] + beyond, gain.interval[1] + beyond),
            )
            for gain in self.gains
        )  # fmt: skip
        return replace(self, step_s=step_s, interval=interval, gains=tuple(gains), beyond_s=beyond)


def judge(
    launches: Sequence[Turns],
    bases: Sequence[Base] = (),
    buckets: Buckets | None = None,
    confidence: float = CONFIDENCE,
) -> Bound:
    """Return what bounds the step of a point, by the turns of its variants in each launch.

    They are arrays of shape (num_ranks, num_turns). `bases` are those of its baseline; none where
    the point is held against nothing.
    """
    over_launches = len(launches) >= FEWEST_LAUNCHES and (
        not bases or len(bases) >= FEWEST_LAUNCHES
    )
    of = _over_launches if over_launches else _over_turns
    found = of(launches, bases, buckets, confidence)
    pooled = pool(launches)
    step = found["step"]
    causes: list[Cause] = [cause for cause in KINDS if cause in found]
    shares = sorted(
        (_share(cause, found[cause], step.seconds) for cause in causes),
        key=lambda share: -share.seconds,
    )
    return Bound(
        kind=_kind(shares, found["lost"], step.seconds, division.HALF in pooled),
        step_s=step.seconds,
        interval=step.interval,
        compute_s=step.seconds - found["lost"].seconds,
        shares=tuple(shares),
        gains=tuple(_gains(found)),
        slow=slow_rank(pooled[division.OWN].tolist()) if len(launches) == 1 else None,
        late=late_input(launches[0]) if len(launches) == 1 else None,
        exposed_bucket_s=_bucket_exposure(pooled, buckets, found),
        num_launches=len(launches),
        num_turns=pooled[division.FULL].shape[-1],
    )


def pool(launches: Sequence[Turns]) -> Turns:
    """Return the turns of all launches as those of one, of the variants that each has."""
    names = [name for name in launches[0] if all(name in turns for turns in launches)]
    return {
        name: np.concatenate([np.asarray(turns[name]) for turns in launches], axis=-1)
        for name in names
    }


def quantities(turns: Turns, base: Base | None, buckets: Buckets | None) -> dict[str, Array]:
    """Return seconds of each cause, and of the step after each change; shape (...) each.

    The turns, and those of the base, are of shape (..., num_ranks, num_turns).
    """
    found = division.divide(turns)
    whole = found.get("fixed")  # of which a baseline's shared step loses a part
    if base:
        against = _against(found, division.divide(base.turns), base.share)
        found = {name: value for name, value in found.items() if name not in UNSHARED} | against
    if "fixed" in found:  # a half batch that computes less well takes it below 0
        found["fixed"] = np.maximum(found["fixed"], 0.0)
    found["lost"] = sum((found[cause] for cause in KINDS if cause in found), np.zeros(()))
    step = found["step"]
    changes: dict[Change, Array | None] = {
        "even ranks": found.get("imbalance"),
        "perfect overlap": found.get("exposed"),
        "captured step": whole if "fixed" in found else None,
        "link twice as fast": _saved(found, buckets),
        "input in time": found.get("input"),
    }
    return found | {
        change: step - np.maximum(saved, 0.0)
        for change, saved in changes.items()
        if saved is not None
    }


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


def _saved(found: Mapping[str, Array], buckets: Buckets | None) -> Array | None:
    """Return what links of `LINK_SPEED` save; of no known buckets as if nothing were hidden."""
    if "exposed" not in found or "reduce" not in found:
        return None
    if buckets is None:
        return np.minimum(found["exposed"], found["reduce"]) * (1 - 1 / LINK_SPEED)
    return np.minimum(found["exposed"], buckets.saved_s(found["reduce"], LINK_SPEED))


def _over_turns(
    launches: Sequence[Turns], bases: Sequence[Base], buckets: Buckets | None, confidence: float
) -> dict[str, Amount]:
    """Return each quantity with its bootstrap interval over turns."""
    turns = pool(launches)
    base = Base(pool([one.turns for one in bases]), bases[0].share) if bases else None
    exact = quantities(turns, base, buckets)
    num_turns = turns[division.FULL].shape[-1]
    if num_turns < FEWEST_TURNS:
        return {name: Amount(float(value)) for name, value in exact.items()}
    sampled = _sampled(turns, base, buckets)
    return {
        name: Amount(float(value), _bootstrap(sampled[name], float(value), confidence, num_turns))
        for name, value in exact.items()
    }


def _sampled(turns: Turns, base: Base | None, buckets: Buckets | None) -> dict[str, Array]:
    """Return each quantity of the bootstrap's samples, shape (RESAMPLES,)."""
    chunks = []
    for seed in range(RESAMPLES // CHUNK):
        drawn = division.resample(turns, CHUNK, 2 * seed)
        held = (
            Base(division.resample(base.turns, CHUNK, 2 * seed + 1), base.share) if base else None
        )
        found = quantities(drawn, held, buckets)
        chunks.append({name: np.broadcast_to(value, (CHUNK,)) for name, value in found.items()})
    return {name: np.concatenate([one[name] for one in chunks]) for name in chunks[0]}


def _bootstrap(samples: Array, centre: float, confidence: float, num_turns: int) -> Interval:
    """Return the percentile interval, widened for few turns as Student's t is over the normal's.

    The variance of a sample, from which the turns are drawn, is too small by (n - 1) / n.
    """
    tail, freedom = (1 - confidence) / 2, num_turns - 1
    border = metrics.student_quantile(freedom, confidence)
    wider = (num_turns / freedom) ** 0.5 * border / NormalDist().inv_cdf(1 - tail)
    low, high = np.quantile(samples, (tail, 1 - tail))
    return centre + wider * (float(low) - centre), centre + wider * (float(high) - centre)


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
    return {
        name: _mean([float(one[name]) for one in each], confidence)
        for name in each[0]
        if all(name in one for one in each)
    }


def _mean(values: Sequence[float], confidence: float) -> Amount:
    middle = sum(values) / len(values)
    half = metrics.half_width(values, confidence)
    return Amount(middle, (middle - half, middle + half))


def _share(cause: Cause, amount: Amount, step_s: float) -> Share:
    is_sure = amount.interval is not None and amount.interval[0] > 0
    is_shown = is_sure and amount.seconds >= NOTABLE * step_s
    return Share(cause, amount.seconds, amount.interval, is_shown)


def _kind(shares: Sequence[Share], lost: Amount, step_s: float, has_half: bool) -> Kind:
    shown = [share for share in shares if share.is_shown]
    if shown:
        return KINDS[shown[0].cause]
    if not lost.interval or lost.interval[1] >= LITTLE * step_s:
        return "open"
    return "compute" if has_half else "own"


def _gains(found: Mapping[str, Amount]) -> list[Gain]:
    return [
        Gain(change, found[change].seconds, found[change].interval)
        for change in get_args(Change)
        if change in found
    ]


def _bucket_exposure(
    turns: Turns, buckets: Buckets | None, found: Mapping[str, Amount]
) -> tuple[float, ...]:
    reduce_s = division.divide(turns).get("reduce")
    if buckets is None or reduce_s is None or "exposed" not in found:
        return ()
    modelled_s = buckets.exposed_s(reduce_s)
    whole_s = float(modelled_s.sum())
    scale = max(found["exposed"].seconds, 0.0) / whole_s if whole_s else 0.0
    return tuple((scale * modelled_s).tolist())
