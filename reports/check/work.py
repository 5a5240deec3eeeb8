"""Rules about the work done: the same at every point, counted once, and what its time says."""

from collections.abc import Iterator
from itertools import permutations
from statistics import fmean
from typing import Any

from bench import metrics
from reports.check.evidence import Entry, Evidence, Hit, at, batches, joined
from reports.formats import number, percent, ratio
from reports.parts import MILLI
from reports.scaling import Point, Series

BATCHES = ("local_batch", "global_batch", "samples_per_step")
# Stored numbers are copies of one another; published ones are rounded.
EXACT = 1e-6
ROUNDED = 0.05
# Launching kernels and the latency of an all-reduce take the order of a millisecond whatever the
# batch, so a step shorter than ten of them has little room to hide it.
SHORT_STEP_S = 0.010
# Loss of parallel efficiency, per step, from which that shows.
NOTABLE_LOSS = 0.1


def constant_work(evidence: Evidence) -> Iterator[Hit]:
    """The batch that strong or weak scaling fixes is another at another size or repeat."""
    for conflict in evidence.results.conflicts:
        if conflict.fact in BATCHES:
            yield Hit(conflict.where, conflict.message.partition(";")[0])
    for one in evidence.ladders:
        name = {"strong": "global_batch", "weak": "local_batch"}.get(one.row.scaling or "")
        kept = _whole(one) if name == "global_batch" else batches(one, name) if name else []
        if len(set(kept)) > 1 and not _fixed_local(one):
            yield Hit(
                at(one, *_sizes(one)), f"{one.row.scaling} scaling, but {name} is {joined(kept)}"
            )
        yield from _uneven_steps(one)


def _uneven_steps(series: Series) -> Iterator[Hit]:
    """Yield sizes at which a step holds more or fewer samples of each item of its batch."""
    shares = _samples_per_item(series)
    for size, share in shares.items():
        factor = share / next(iter(shares.values()))
        if abs(factor - 1) > EXACT and not _is_size(factor, size / series.baseline, EXACT):
            yield Hit(
                at(series, size),
                f"a step counts {factor:.3g} times the samples that its global batch holds at "
                f"world size {series.baseline}",
            )


def _samples_per_item(series: Series) -> dict[int, float]:
    rows = {point.world_size: point.rows[0] for point in series.points}
    return {
        size: row.samples_per_step / row.global_batch
        for size, row in rows.items()
        if row.samples_per_step and row.global_batch
    }


def sold_as_strong(evidence: Evidence) -> Iterator[Hit]:
    """The local batch is fixed while the total time is compared as strong scaling."""
    for one in evidence.ladders:
        times = one.base.time_s is not None and one.row.scaling is None
        if (one.row.scaling == "strong" or times) and _fixed_local(one):
            called = "called strong scaling" if one.row.scaling else "compared by its total time"
            yield Hit(at(one), f"{called}, but the global batch is {_grows(one)}")


def fixed_epochs(evidence: Evidence) -> Iterator[Hit]:
    """Local batch and epochs are fixed: neither strong nor weak scaling of the step."""
    for one in evidence.ladders:
        if one.row.scaling == "fixed-epochs":
            yield Hit(at(one), f"local batch and epochs are fixed{_growth(one)}{_step_view(one)}")


def _growth(series: Series) -> str:
    grown = f", so the global batch is {_grows(series)}" if _whole(series) else ""
    last = series.points[-1]
    text = f"{grown}; the speed-up of the total time at {last.world_size} is {ratio(last.speedup)}"
    samples = [round(p.time_s * p.throughput_samples_per_s) for p in series.points
               if p.time_s and p.throughput_samples_per_s]  # fmt: skip
    dropped = len(samples) == len(series.points) and len(set(samples)) > 1
    return f"{text}; {joined(samples)} samples were trained" if dropped else text


def _step_view(series: Series) -> str:
    steps = [number(p.step_s * MILLI) for p in series.points if p.step_s]
    above = [p for p in series.points if p.time_ratio and p.world_size > series.baseline]
    if len(steps) < len(series.points) or not above:
        return ""
    kept = joined([f"{percent(p.time_ratio)} %" for p in above])
    return f"; a step takes {joined(steps)} ms, so each rank keeps {kept} of its speed"


def small_batch(evidence: Evidence) -> Iterator[Hit]:
    """Short steps of a fixed local batch get longer with the ranks: they wait, not compute."""
    for one in evidence.ladders:
        base, last = one.base.step_s, one.points[-1].time_ratio
        if base and last and base < SHORT_STEP_S and last < 1 - NOTABLE_LOSS:
            above = [p for p in one.points if p.world_size > one.baseline and p.step_s]
            added = [f"{number(((p.step_s or 0) - base) * MILLI)} ms" for p in above]
            sizes = [point.world_size for point in above]
            yield Hit(
                at(one, *sizes),
                f"{joined(added)} are added to a step of {number(base * MILLI)} ms by running on "
                f"{joined(sizes)} ranks",
            )


def truncated_batch(evidence: Evidence) -> Iterator[Hit]:
    """The global batch does not divide by the ranks, so that a step trains fewer samples."""
    for one in evidence.series:
        for point in one.points:
            row = point.rows[0]
            named = row.factors.get("global_batch")
            asked = (named if isinstance(named, int) else None) or row.global_batch or 0
            local = row.local_batch or asked // point.world_size
            if asked and asked != local * point.world_size:
                yield Hit(
                    at(one, point.world_size),
                    f"a global batch of {asked} on {point.world_size} ranks is {local} each, "
                    f"{local * point.world_size} in all",
                )


def samples_time(evidence: Evidence) -> Iterator[Hit]:
    """Stored throughput times time is not the samples, or parts from a table's speed-up."""
    for entry in evidence.entries():
        factor, mean = _stored_factor(entry), _mean_factor(entry)
        if not (_is_one(factor) or _is_size(factor, entry.block["world_size"], EXACT)):
            yield _stored(entry, f"stored throughput times time is {factor:.4g} times the samples")
        elif not _is_one(mean):
            yield _stored(entry, f"the stored mean round is {mean:.4g} times that of its rounds")
    for one in evidence.ladders:
        yield from _parted(one)


def _parted(series: Series) -> Iterator[Hit]:
    """Yield a table of times whose throughput grows otherwise than its speed-up does."""
    points = [p for p in series.points if p.time_s and p.throughput_samples_per_s]
    base = series.base.throughput_samples_per_s
    if series.row.origin == "measured" or len(points) < len(series.points) or not base:
        return
    grown = {p.world_size: (p.throughput_samples_per_s or 0.0) / base for p in points}
    apart = [p for p in points if abs(grown[p.world_size] / p.speedup - 1) > ROUNDED]
    if apart:
        samples = [round((p.time_s or 0.0) * (p.throughput_samples_per_s or 0.0)) for p in points]
        yield Hit(
            at(series, *(p.world_size for p in apart)),
            f"throughput grows {joined([ratio(grown[p.world_size]) for p in apart])} times, but "
            f"the speed-up is {joined([ratio(p.speedup) for p in apart])}, since the samples are "
            f"{joined(samples)}",
            "correct the samples, or the scaling: strong keeps them, weak multiplies them by n",
        )


def _stored(entry: Entry, fact: str) -> Hit:
    where = f"{entry.case} at world size {entry.block['world_size']}"
    return Hit(where, fact, launches=(entry.launch.name,))


def _is_one(factor: float) -> bool:
    """Tell whether a factor is 1; one that is no number is not."""
    return abs(factor - 1) <= EXACT


def _stored_factor(entry: Entry) -> float:
    """Return stored throughput times the rounds' time over the rounds' samples; 1 if not stored."""
    block = entry.block
    rounds = metrics.slowest_rank(block["rank_round_s"])
    samples = block["samples_per_step"] * block["steps_per_round"] * len(rounds)
    stored = block.get("throughput_samples_per_s")
    return float(stored * sum(rounds) / samples) if isinstance(stored, int | float) else 1.0


def _mean_factor(entry: Entry) -> float:
    mean = entry.stats.get("mean")
    true = fmean(metrics.slowest_rank(entry.block["rank_round_s"]))
    return float(mean / true) if isinstance(mean, int | float) else 1.0


def doubled_world_size(evidence: Evidence) -> Iterator[Hit]:
    """Samples of all ranks were multiplied by the world size once more."""
    for entry in evidence.entries():
        if _is_size(_stored_factor(entry), entry.block["world_size"], EXACT):
            size = entry.block["world_size"]
            yield _stored(entry, f"stored throughput is {size} times samples / time")
    for one in evidence.series:
        yield from _doubled_steps(one)
        for point in one.points:
            for row in point.rows:
                factor = row.details.get("logged_over_true")
                if isinstance(factor, float) and _is_size(factor, point.world_size, ROUNDED):
                    yield Hit(
                        f"{at(one, point.world_size)}, {row.launch}",
                        f"the logged rate is {factor:.3g} times what the epoch times allow",
                    )
    for (time, rate), factors in _twins(evidence):
        for size, (factor, grown) in factors.items():
            if _is_size(factor, grown, ROUNDED):
                yield Hit(
                    at(rate, size),
                    f"throughput times the time of table {time.case} is {factor:.3g} times the "
                    "samples",
                )


def _doubled_steps(series: Series) -> Iterator[Hit]:
    shares = _samples_per_item(series)
    for size, share in shares.items():
        factor = share / next(iter(shares.values()))
        if _is_size(factor, size / series.baseline, EXACT):
            yield Hit(at(series, size), f"a step counts its global batch {factor:.3g} times")


def contradiction(evidence: Evidence) -> Iterator[Hit]:
    """Two tables of one study, or of one import that says no more, give other speed-ups."""
    for (time, rate), factors in _twins(evidence):
        for size, (factor, grown) in factors.items():
            if abs(factor - 1) > ROUNDED and not _is_size(factor, grown, ROUNDED):
                base = min(factors)
                yield Hit(
                    f"{at(rate, size)}, table {time.case}",
                    f"throughput grows {_grown(rate, size, base):.2f} times from {base} to {size}, "
                    f"but the time says {_grown(time, size, base):.2f} times",
                )


def _grown(series: Series, size: int, base: int) -> float:
    points = {point.world_size: point for point in series.points}
    return points[size].rate / points[base].rate


Twin = tuple[tuple[Series, Series], dict[int, tuple[float, float]]]


def _twins(evidence: Evidence) -> Iterator[Twin]:
    """Yield tables of time and of throughput of one study, with what their product says.

    The product is the samples: over those of the time's own table where it knows them, else over
    those at the smallest size. Beside it stands how far the size has grown.
    """
    cited = [one for one in evidence.ladders if one.row.origin != "measured"]
    pairs = [pair for pair in permutations(cited, 2) if _may_be_twins(evidence, *pair)]
    for time, rate in pairs:
        rivals = [pair for pair in pairs if pair[0] is time or pair[1] is rate]
        # What no source ties together is a pair where nothing else could be.
        if _are_stated(evidence, time, rate) or len(rivals) == 1:
            yield (time, rate), _factors(time, rate)


def _may_be_twins(evidence: Evidence, time: Series, rate: Series) -> bool:
    """Tell whether nothing stated parts a table of times from one of throughput."""
    if time.base.time_s is None or rate.base.time_s is not None:
        return False
    one, two = evidence.table(time), evidence.table(rate)
    stated = [
        (one.get("source"), two.get("source")), (_model(time, one), _model(rate, two)),
        (time.row.precision, rate.row.precision), (time.row.scaling, rate.row.scaling),
    ]  # fmt: skip
    # Without a scaling, times are taken for those of fixed work.
    if any(a and b and a != b for a, b in stated) or (None, "weak") in stated:
        return False
    together = one.get("path") == two.get("path") and _sizes(time) == _sizes(rate)
    return time.row.origin == rate.row.origin and (together or _are_stated(evidence, time, rate))


def _are_stated(evidence: Evidence, time: Series, rate: Series) -> bool:
    """Tell whether one source gives both tables, of one workload."""
    source = evidence.table(time).get("source")
    same = source == evidence.table(rate).get("source")
    return bool(source) and same and time.row.workload == rate.row.workload


def _model(series: Series, facts: dict[str, Any]) -> object:
    """Return a table's model, empty where it gives none; early imports tell it by the workload."""
    return facts.get("model", series.row.workload)


def _sizes(series: Series) -> list[int]:
    return [point.world_size for point in series.points]


def _factors(time: Series, rate: Series) -> dict[int, tuple[float, float]]:
    """Return (samples over what they must be, sizes over the smallest) at each common size."""
    pairs = {p.world_size: (p, q) for p in time.points for q in rate.points
             if p.world_size == q.world_size}  # fmt: skip
    if not pairs:
        return {}
    base = min(pairs)
    known = all(p.throughput_samples_per_s and q.throughput_samples_per_s
                for p, q in pairs.values())  # fmt: skip
    if known:
        return {size: (_over(q, p), float(size)) for size, (p, q) in pairs.items()}
    first = pairs[base][1].rate / pairs[base][0].rate
    return {size: (q.rate / p.rate / first, size / base) for size, (p, q) in pairs.items()}


def _over(one: Point, two: Point) -> float:
    return (one.throughput_samples_per_s or 0.0) / (two.throughput_samples_per_s or 1.0)


def _is_size(factor: float, size: float, tolerance: float) -> bool:
    """Tell whether a factor is the number of ranks, and there is more than one."""
    return size > 1 and abs(factor / size - 1) <= tolerance


def _fixed_local(series: Series) -> bool:
    """Tell whether the global batch grows as the ranks do."""
    whole = _whole(series)
    each = {b / n for b, n in zip(whole, _sizes(series), strict=True)} if whole else set()
    return len(each) == 1


def _whole(series: Series) -> list[int]:
    """Return the global batch at each size, from the local where no point gives it."""
    local = batches(series, "local_batch")
    grown = (
        [batch * size for batch, size in zip(local, _sizes(series), strict=True)] if local else []
    )
    return batches(series, "global_batch") or grown


def _grows(series: Series) -> str:
    whole = _whole(series)
    return f"{joined(whole)} at world size {joined(_sizes(series))}"
