"""Rules about the work done: the same at every point, counted once, and what its time says."""

import re
from collections.abc import Iterator
from itertools import permutations
from statistics import fmean, median
from typing import Any

from lockstep.report.check.evidence import Entry, Evidence, Hit, batches, difference, hit, rule
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.load.conflicts import BATCHES

# What rates count that are no samples, of which a batch has a number.
PARTS_OF_SAMPLES = re.compile(r"(?i).*\b(tok\w*|words|frames|pixels|\w*flops?|[kmgt]?i?b(ytes)?)")
# Stored numbers are copies of one another; published ones are rounded.
EXACT = 1e-6
ROUNDED = 0.05
# Launching kernels and the latency of an all-reduce take the order of a millisecond whatever the
# batch, so a step shorter than ten of them has little room to hide it.
SHORT_STEP_S = 0.010
# Loss of parallel efficiency, per step, from which that shows.
NOTABLE_LOSS = 0.1
# What a larger batch does not mend.
NOT_OF_THE_BATCH = ("imbalance", "input", "contention")


@rule(
    "constant-work", "error", "the points do different work, and no ratio compares them",
    "measure every size with one batch: the global batch for strong scaling, the local for weak",
    facts={
        "uneven-batch": "{scaling} scaling, but {fact} is {batches}",
        "uneven-steps": "a step counts {factor:.3g} times the samples that its global "
        "batch holds at world size {baseline}",
    },
)  # fmt: skip
def constant_work(evidence: Evidence) -> Iterator[Hit]:
    """The batch that strong or weak scaling fixes is another at another size or repeat."""
    for conflict in evidence.results.conflicts:
        if conflict.fact in BATCHES and conflict.case is not None:
            yield difference(conflict)
    yield from _smaller_batches(evidence)
    for series in evidence.ladders:
        name = {"strong": "global_batch", "weak": "local_batch"}.get(series.row.scaling or "")
        kept = _whole(series) if name == "global_batch" else _local(series) if name else []
        if len(set(kept)) > 1 and not _fixed_local(series):
            scaling = series.row.scaling
            yield hit(
                "uneven-batch", series, *_sizes(series), scaling=scaling, fact=name, batches=kept
            )
        yield from _uneven_steps(series)


def _smaller_batches(evidence: Evidence) -> Iterator[Hit]:
    """Yield the points that were measured at less than the batch asked for."""
    for series in evidence.measured:
        for point in series.points:
            for one in (flag for flag in point.flags if flag.kind == "smaller-batch"):
                values: dict[str, Any] = {
                    name: one.values.get(name) for name in ("asked", "measured")
                }
                yield hit(one.kind, series, point.world_size, **values)


def _uneven_steps(series: Series) -> Iterator[Hit]:
    """Yield sizes at which a step holds more or fewer samples of each item of its batch."""
    for size, factor in _samples_per_item(series):
        if abs(factor - 1) > EXACT and not _is_size(factor, size / series.baseline, EXACT):
            yield hit("uneven-steps", series, size, factor=factor, baseline=series.baseline)


def _samples_per_item(series: Series) -> list[tuple[int, float]]:
    """Return sizes and a step's samples of each item of its batch, over those of the first size."""
    rows = [point.rows[0] for point in series.points]
    known = [
        (row.world_size, row.samples_per_step / row.global_batch)
        for row in rows
        if row.samples_per_step and row.global_batch
    ]
    return [(size, share / known[0][1]) for size, share in known]


@rule(
    "fixed-epochs-as-strong", "error", "each rank's work per step stays, so the steps get "
    "fewer and not smaller",
    "call it fixed-epochs, or measure with one global batch",
    facts={
        "called-strong": "called strong scaling, but the global batch is {batches} at "
        "world size {sizes}",
        "compared-as-strong": "compared by its total time, but the global batch is "
        "{batches} at world size {sizes}",
    },
)  # fmt: skip
def sold_as_strong(evidence: Evidence) -> Iterator[Hit]:
    """The local batch is fixed while the total time is compared as strong scaling."""
    for series in evidence.ladders:
        times = series.base.time_s is not None and series.row.scaling is None
        if (series.row.scaling == "strong" or times) and _fixed_local(series):
            kind = "called-strong" if series.row.scaling else "compared-as-strong"
            yield hit(kind, series, batches=_whole(series), sizes=_sizes(series))


@rule(
    "fixed-epochs", "warning", "neither strong nor weak scaling, and the training differs",
    "quote both views, and compare the accuracy reached, too",
    doubts=False,
)  # fmt: skip
def fixed_epochs(evidence: Evidence) -> Iterator[Hit]:
    """Local batch and epochs are fixed: neither strong nor weak scaling of the step."""
    for series in evidence.ladders:
        if series.row.scaling == "fixed-epochs":
            yield hit("fixed", series, **(_growth(series) | _step_view(series)))


def _growth(series: Series) -> dict[str, Any]:
    """Return batches and samples at each size, empty where unknown or equal, and the speed-up."""
    last = series.points[-1]
    samples = [round(p.time_s * p.throughput_samples_per_s) for p in series.points
               if p.time_s and p.throughput_samples_per_s]  # fmt: skip
    dropped = len(samples) == len(series.points) and len(set(samples)) > 1
    return {
        "batches": _whole(series), "sizes": _sizes(series), "last": last.world_size,
        "speedup": last.speedup, "samples": samples if dropped else [],
    }  # fmt: skip


def _step_view(series: Series) -> dict[str, Any]:
    """Return the steps and the speed that each rank keeps, empty where a point has no step."""
    steps = [p.step_s for p in series.points if p.step_s]
    kept = [p.time_ratio for p in series.points if p.time_ratio and p.world_size > series.baseline]
    known = kept and len(steps) == len(series.points)
    return {"steps_s": steps, "kept": kept} if known else {"steps_s": [], "kept": []}


@rule(
    "small-batch", "warning", "the fixed costs of a step, launching kernels and meeting "
    "the other ranks, rule it",
    "enlarge the local batch, and look at the utilisation of the devices",
    doubts=False,
    facts={
        "short-steps": "{added_s:ms} are added to a step of {step_s:ms} by running on "
        "{sizes} ranks",
    },
)  # fmt: skip
def small_batch(evidence: Evidence) -> Iterator[Hit]:
    """Short steps of a fixed local batch get longer with the ranks: they wait, not compute."""
    for series in evidence.ladders:
        base, last = series.base.step_s, series.points[-1].time_ratio
        is_short = base and last and base < SHORT_STEP_S and last < 1 - NOTABLE_LOSS
        if is_short and base and not (_has_another_cause(series) or _is_unexplained(series)):
            above = [p for p in series.points if p.world_size > series.baseline and p.step_s]
            added = [(point.step_s or 0) - base for point in above]
            sizes = [point.world_size for point in above]
            yield hit("short-steps", series, *sizes, added_s=added, step_s=base, sizes=sizes)


def _is_unexplained(series: Series) -> bool:
    """Tell whether it is a test of one's own that was given no model, so that nothing says why."""
    last = series.points[-1]
    return series.row.is_own_test and quantities.reason(series, last) is None


def _has_another_cause(series: Series) -> bool:
    """Tell whether the largest size is shown to lose most to what a larger batch does not mend."""
    why = quantities.reason(series, series.points[-1])
    return bool(why and why.named and why.named[0].cause in NOT_OF_THE_BATCH)


@rule(
    "truncated-batch", "error", "a step trains fewer samples than its label says",
    "choose a global batch that every world size divides",
    facts={
        "truncated": "a global batch of {asked} on {size} ranks is {local} each, {trained} in all",
    },
)  # fmt: skip
def truncated_batch(evidence: Evidence) -> Iterator[Hit]:
    """The global batch does not divide by the ranks, so that a step trains fewer samples."""
    for series, point in evidence.points:
        row = point.rows[0]
        named = row.factors.get("global_batch")
        asked = (named if isinstance(named, int) else None) or row.global_batch or 0
        local = row.local_batch or asked // point.world_size
        if asked and asked != local * point.world_size:
            yield hit(
                "truncated", series, point.world_size, asked=asked, size=point.world_size,
                local=local, trained=local * point.world_size,
            )  # fmt: skip


@rule(
    "samples-time", "error", "throughput times time must be samples, or one of them is wrong",
    "rebuild the file from its journal, or measure again",
    facts={
        "stored-throughput": "stored throughput times time is {factor:.4g} times the samples",
        "stored-statistic": "the stored {statistic} is {factor:.4g} times that of its rounds",
        "samples-of-table": "throughput grows {grown:ratio} times, but the speed-up is "
        "{speedups:ratio}, since the samples are {samples}",
    },
    actions={
        "samples-of-table": "correct the samples, or the scaling: strong keeps them, weak "
        "multiplies them by n",
    },
)  # fmt: skip
def samples_time(evidence: Evidence) -> Iterator[Hit]:
    """Stored throughput times time is not the samples, or parts from a table's speed-up."""
    for entry in evidence.entries:
        factor = _stored_factor(entry)
        if not (_is_one(factor) or _is_size(factor, entry.block["world_size"], EXACT)):
            yield entry.hit("stored-throughput", factor=factor)
            continue
        for statistic, found in _statistic_factors(entry).items():
            if not _is_one(found):
                yield entry.hit("stored-statistic", statistic=statistic, factor=found)
    for series in evidence.ladders:
        yield from _grows_unlike_speedup(series)


def _grows_unlike_speedup(series: Series) -> Iterator[Hit]:
    """Yield a table of times whose throughput grows otherwise than its speed-up does."""
    points = [p for p in series.points if p.time_s and p.throughput_samples_per_s]
    base = series.base.throughput_samples_per_s
    if series.row.origin == "measured" or len(points) < len(series.points) or not base:
        return
    grown = {p.world_size: (p.throughput_samples_per_s or 0.0) / base for p in points}
    apart = [p for p in points if abs(grown[p.world_size] / p.speedup - 1) > ROUNDED]
    if apart:
        samples = [round((p.time_s or 0.0) * (p.throughput_samples_per_s or 0.0)) for p in points]
        yield hit(
            "samples-of-table", series, *(p.world_size for p in apart), samples=samples,
            grown=[grown[p.world_size] for p in apart], speedups=[p.speedup for p in apart],
        )  # fmt: skip


def _is_one(factor: float) -> bool:
    """Tell whether a factor is 1; one that is no number is not."""
    return abs(factor - 1) <= EXACT


def _stored_factor(entry: Entry) -> float:
    """Return stored throughput times the rounds' time over the rounds' samples; 1 if not stored."""
    block = entry.block
    rounds = entry.round_s
    samples = block["samples_per_step"] * block["steps_per_round"] * len(rounds)
    stored = block.get("mean_throughput_samples_per_s", block.get("throughput_samples_per_s"))
    return float(stored * sum(rounds) / samples) if isinstance(stored, int | float) else 1.0


def _statistic_factors(entry: Entry) -> dict[str, float]:
    """Return what is stored of the rounds over what they say, where it is stored."""
    rounds = entry.round_s
    stored = {
        "mean": (entry.stats.get("mean"), fmean(rounds)),
        "median": (entry.stats.get("median"), median(rounds)),
        "elapsed_s": (entry.block.get("elapsed_s"), sum(rounds)),
    }
    return {
        name: float(number / true)
        for name, (number, true) in stored.items()
        if isinstance(number, int | float)
    }


@rule(
    "doubled-world-size", "error", "the samples of all ranks are counted once per rank, so "
    "more ranks look faster",
    "divide by the world size: throughput is samples of all ranks / time",
    facts={
        "stored-doubled": "stored throughput is {size} times samples / time",
        "logged-doubled": "the logged rate is {factor:.3g} times what the epoch times allow",
        "table-doubled": "throughput times the time of table {time_table} is {factor:.3g} "
        "times the samples",
        "steps-doubled": "a step counts its global batch {factor:.3g} times",
    },
)  # fmt: skip
def doubled_world_size(evidence: Evidence) -> Iterator[Hit]:
    """Samples of all ranks were multiplied by the world size once more."""
    for entry in evidence.entries:
        if _is_size(_stored_factor(entry), entry.block["world_size"], EXACT):
            yield entry.hit("stored-doubled", size=entry.block["world_size"])
    for series in evidence.series:
        yield from _doubled_steps(series)
        for point in series.points:
            for row in point.rows:
                factor = row.details.get("logged_over_true")
                if isinstance(factor, float) and _is_size(factor, point.world_size, ROUNDED):
                    names = (row.launch,)
                    yield hit(
                        "logged-doubled", series, point.world_size, launches=names, factor=factor
                    )
    for (time, rate), factors in _twins(evidence):
        for size, (factor, grown) in factors.items():
            if _is_size(factor, grown, ROUNDED):
                yield hit("table-doubled", rate, size, time_table=time.case, factor=factor)


def _doubled_steps(series: Series) -> Iterator[Hit]:
    for size, factor in _samples_per_item(series):
        if _is_size(factor, size / series.baseline, EXACT):
            yield hit("steps-doubled", series, size, factor=factor)


@rule(
    "contradiction", "error", "both cannot be true of one run",
    "find out which was measured, and leave the other out",
    facts={
        "speed-ups-differ": "throughput grows {grown:ratio} times from {base} to {size}, "
        "but the time says {time_grown:ratio} times",
        "rates-differ": "throughput is stated as {stated:.4g}, but the batch over the time "
        "gives {given:.4g}",
    },
)  # fmt: skip
def contradiction(evidence: Evidence) -> Iterator[Hit]:
    """Two tables of one study, or of one import that says no more, give other speed-ups."""
    for (time, rate), factors in _twins(evidence):
        for size, (factor, grown) in factors.items():
            if abs(factor - 1) > ROUNDED and not _is_size(factor, grown, ROUNDED):
                base = min(factors)
                if _is_known(time, rate):
                    stated = next(p.rate for p in rate.points if p.world_size == size)
                    values = {"stated": stated, "given": stated / factor}
                    both = rate.case, time.case
                    yield Hit("rates-differ", values, both, (size,), is_table=True)
                    continue
                yield hit(
                    "speed-ups-differ", rate, size, other_table=time.case, base=base, size=size,
                    grown=_grown(rate, size, base), time_grown=_grown(time, size, base),
                )  # fmt: skip


def _grown(series: Series, size: int, base: int) -> float:
    points = {point.world_size: point for point in series.points}
    return points[size].rate / points[base].rate


Twin = tuple[tuple[Series, Series], dict[int, tuple[float, float]]]


def _twins(evidence: Evidence) -> Iterator[Twin]:
    """Yield tables of time and of throughput of one study, with what their product says.

    The product is the samples: over those of the time's own table where it knows them, else over
    those at the smallest size. The second number is how far the size has grown.
    """
    cited = [curve for curve in evidence.ladders if curve.row.origin != "measured"]
    pairs = [pair for pair in permutations(cited, 2) if _may_be_twins(evidence, *pair)]
    for time, rate in pairs:
        rivals = [pair for pair in pairs if pair[0] is time or pair[1] is rate]
        # What no source ties together is a pair where nothing else could be.
        if _are_stated(evidence, time, rate) or len(rivals) == 1:
            yield (time, rate), _factors(time, rate)


def _may_be_twins(evidence: Evidence, time: Series, rate: Series) -> bool:
    """Tell whether nothing stated parts a table of times, or of steps, from one of throughput."""
    if not _is_time(time) or _is_time(rate):
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


def _is_time(series: Series) -> bool:
    return series.base.time_s is not None or series.base.step_s is not None


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
    if _is_known(time, rate):
        return {size: (_over(q, p), float(size)) for size, (p, q) in pairs.items()}
    first = pairs[base][1].rate / pairs[base][0].rate
    return {size: (q.rate / p.rate / first, size / base) for size, (p, q) in pairs.items()}


def _is_known(time: Series, rate: Series) -> bool:
    """Tell whether the times give a throughput, too, and of what the rates count."""
    known = all(point.throughput_samples_per_s for curve in (time, rate) for point in curve.points)
    return known and not PARTS_OF_SAMPLES.fullmatch(rate.row.sample_unit)


def _over(point: Point, two: Point) -> float:
    return (point.throughput_samples_per_s or 0.0) / (two.throughput_samples_per_s or 1.0)


def _is_size(factor: float, size: float, tolerance: float) -> bool:
    """Tell whether a factor is the number of ranks, and there is more than one."""
    return size > 1 and abs(factor / size - 1) <= tolerance


def _fixed_local(series: Series) -> bool:
    """Tell whether the global batch grows as the ranks do."""
    whole = _whole(series)
    each = {b / n for b, n in zip(whole, _sizes(series), strict=True)} if whole else set()
    return len(each) == 1


def _local(series: Series) -> list[int]:
    """Return the batch of a rank at each size, from the global where no point gives it."""
    whole = zip(batches(series, "global_batch"), _sizes(series), strict=False)
    return batches(series, "local_batch") or [batch // size for batch, size in whole]


def _whole(series: Series) -> list[int]:
    """Return the global batch at each size, from the local where no point gives it."""
    local = zip(batches(series, "local_batch"), _sizes(series), strict=False)
    return batches(series, "global_batch") or [batch * size for batch, size in local]
