"""Rules about series: the work at each size, the shape of the curve, and what a table states."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, permutations
from statistics import fmean, median
from typing import Any

from lockstep.core.formats import TIME_UNITS, counted, percent, percent_span, ratio
from lockstep.report.check.evidence import (
    NOTABLE_LOSS,
    UNIT,
    Entry,
    Evidence,
    Finding,
    are_apart,
    difference,
    in_ms,
    in_series,
    joined,
    of_break,
    rule,
)
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.load.conflicts import BATCHES
from lockstep.report.load.imports import TIMES
from lockstep.report.load.results import Row
from lockstep.report.predict.models import TOLERANCE, between, breaks, growth_interval

# Relative tolerances: stored numbers are exact copies; published ones are rounded.
EXACT, ROUNDED = 1e-6, 0.05
# Units of rates that count something other than the samples of a batch.
PARTS_OF_SAMPLES = re.compile(r"(?i).*\b(tok\w*|words|frames|pixels|\w*flops?|[kmgt]?i?b(ytes)?)")
# Kernel launches and all-reduce latency cost about a millisecond for any batch, so a step shorter
# than ten milliseconds cannot hide them.
SHORT_STEP_S = 0.010
# Causes that a larger batch does not remove.
NOT_OF_THE_BATCH = ("imbalance", "input", "contention")
# Largest ratio of neighbouring sizes; beyond it the curve between them is a guess.
WIDEST_STEP = 2.0
# Fraction by which a point may lie below the line through its neighbours. Scaling curves bend
# downward, so a regular point lies above that line.
OUTLIER = 0.15
# Expressions for the columns of a table, in small letters.
SPEEDUPS = "speed_?up"
EFFICIENCIES = "(parallel_)?efficiency"
DATA = "(data(set)?|train\\w*)_(size|samples)|num_samples|samples_per_epoch"
ACCURACIES = "((final|best|val|validation|test|eval)_)*(top_?1(_acc(uracy)?)?|acc(uracy)?)"
# A larger efficiency is taken to be in per cent.
LARGEST_FRACTION = 2.0
# Ten times the 0.1 of a point by which seeds differ on ImageNet (Goyal et al. 2017, table 1).
LESS_ACCURATE = 0.01
# Repeats that agree to this many digits are one measurement, written twice.
DIGITS = 4


@rule("constant-work", "error", "the points do different work, so their ratios mean nothing",
      "measure every size with one global batch (strong scaling) or one local batch (weak "
      "scaling)")  # fmt: skip
def constant_work(evidence: Evidence) -> Iterator[Finding]:
    """The batch that strong or weak scaling fixes differs between sizes or repeats."""
    for conflict in evidence.results.conflicts:
        if conflict.fact in BATCHES and conflict.case is not None:
            yield difference(conflict)
    for series in evidence.measured:
        for point in series.points:
            for flag in (flag for flag in point.flags if flag.kind == "smaller-batch"):
                values: dict[str, Any] = {
                    name: flag.values.get(name) for name in ("asked", "measured")
                }
                text = (f"measured with {values['measured']} samples per rank, since "
                        f"{values['asked']} do not fit in memory")  # fmt: skip
                yield in_series(flag.kind, text, series, point.world_size, **values)
    for series in evidence.ladders:
        scaling = series.row.scaling or ""
        name = {"strong": "global_batch", "weak": "local_batch"}.get(scaling)
        kept = {"strong": global_batches, "weak": _local_batches}[scaling](series) if name else []
        if len(set(kept)) > 1 and not _is_local_batch_fixed(series):
            text = f"the scaling is {scaling}, but {name} varies: {joined(kept)}"
            yield in_series("uneven-batch", text, series, *_sizes(series), scaling=scaling,
                            fact=name, batches=kept)  # fmt: skip
        base = series.baseline
        for size, factor in _samples_per_item(series):
            if abs(factor - 1) > EXACT and not _is_size(factor, size / base, EXACT):
                text = f"per sample of its global batch, a step counts {factor:.3g} times as many"
                text = f"{text} samples as at world size {base}"
                yield in_series("uneven-steps", text, series, size, factor=factor, baseline=base)


def _samples_per_item(series: Series) -> list[tuple[int, float]]:
    """Return sizes, and samples per step / global batch, relative to the first size."""
    known = [
        (row.world_size, row.samples_per_step / row.global_batch)
        for row in (point.rows[0] for point in series.points)
        if row.samples_per_step and row.global_batch
    ]
    return [(size, share / known[0][1]) for size, share in known]


@rule("fixed-epochs-as-strong", "error",
      "the work per rank and step is constant, so more ranks take fewer steps, not shorter ones",
      "call it fixed-epochs scaling, or measure with one global batch")  # fmt: skip
def sold_as_strong(evidence: Evidence) -> Iterator[Finding]:
    """The local batch is fixed while the total time is compared as strong scaling."""
    for series in evidence.ladders:
        is_time = series.base.time_s is not None and series.row.scaling is None
        if (series.row.scaling == "strong" or is_time) and _is_local_batch_fixed(series):
            batches, sizes = global_batches(series), _sizes(series)
            kind, name = "called-strong", "called strong scaling"
            if is_time:
                kind, name = "compared-as-strong", "compared by its total time"
            text = f"{name}, but the global batch is {joined(batches)} at world size"
            text = f"{text} {joined(sizes)}"
            yield in_series(kind, text, series, batches=batches, sizes=sizes)


@rule("fixed-epochs", "warning",
      "this is neither strong nor weak scaling, and the training itself changes",
      "quote the total time and the step time, and compare the accuracy reached",
      doubts=False)  # fmt: skip
def fixed_epochs(evidence: Evidence) -> Iterator[Finding]:
    """Local batch and epochs are fixed: neither strong nor weak scaling of the step."""
    for series in evidence.ladders:
        if series.row.scaling != "fixed-epochs":
            continue
        points, last = series.points, series.points[-1]
        sizes, batches = _sizes(series), global_batches(series)
        samples = _trained_samples(series)
        samples = samples if len(samples) == len(points) and len(set(samples)) > 1 else []
        steps_s = [p.step_s for p in points if p.step_s]
        kept = [p.time_ratio for p in points if p.time_ratio and p.world_size > series.baseline]
        if not kept or len(steps_s) < len(points):
            steps_s, kept = [], []
        text = "local batch and epochs are fixed"
        if batches:
            text += f", so the global batch is {joined(batches)} at world size {joined(sizes)}"
        text += f"; the speed-up of the total time at {last.world_size} is {ratio(last.speedup)}"
        if samples:
            text += f"; the runs train on {joined(samples)} samples"
        if steps_s:
            shares = joined(f"{percent(share)} %" for share in kept)
            text += f"; a step takes {joined(map(in_ms, steps_s))} ms, which is {shares} of the"
            text += " baseline's speed per rank"
        yield in_series("fixed", text, series, batches=batches, sizes=sizes, last=last.world_size,
                        speedup=last.speedup, samples=samples, steps_s=steps_s,
                        kept=kept)  # fmt: skip


def _trained_samples(series: Series) -> list[int]:
    """Return time x throughput, in samples, of the points that have both."""
    return [
        round(point.time_s * point.throughput_samples_per_s)
        for point in series.points
        if point.time_s and point.throughput_samples_per_s
    ]


@rule("small-batch", "warning",
      "fixed costs of a step dominate it: kernel launches and synchronisation of the ranks",
      "increase the local batch, and check the utilisation of the devices",
      doubts=False)  # fmt: skip
def small_batch(evidence: Evidence) -> Iterator[Finding]:
    """Short steps of a fixed local batch get longer with more ranks, which then wait."""
    for series in evidence.ladders:
        base_s, last = series.base.step_s, series.points[-1].time_ratio
        if not (base_s and last and base_s < SHORT_STEP_S and last < 1 - NOTABLE_LOSS):
            continue
        why = quantities.reason(series, series.points[-1])
        has_another_cause = why and why.named and why.named[0].cause in NOT_OF_THE_BATCH
        # For a user's own test without a model, no cause is known.
        if has_another_cause or (series.row.is_own_test and why is None):
            continue
        above = [p for p in series.points if p.world_size > series.baseline and p.step_s]
        sizes = [point.world_size for point in above]
        added_s = [(point.step_s or 0) - base_s for point in above]
        added = joined(f"{in_ms(added)} ms" for added in added_s)
        text = f"a step of {in_ms(base_s)} ms takes {added} longer on {joined(sizes)} ranks"
        yield in_series("short-steps", text, series, *sizes, added_s=added_s,
                        step_s=base_s, sizes=sizes)  # fmt: skip


@rule("truncated-batch", "error", "a step trains on fewer samples than its label says",
      "choose a global batch that every world size divides")  # fmt: skip
def truncated_batch(evidence: Evidence) -> Iterator[Finding]:
    """The global batch is not divisible by the ranks, so a step trains on fewer samples."""
    for series, point in evidence.points:
        row, size = point.rows[0], point.world_size
        named = row.factors.get("global_batch")
        asked = (named if isinstance(named, int) else None) or row.global_batch or 0
        local = row.local_batch or asked // size
        if asked and asked != local * size:
            trained = local * size
            text = (
                f"a global batch of {asked} on {size} ranks gives {local} per rank, {trained} "
                "in total"
            )
            yield in_series("truncated", text, series, size, asked=asked, size=size, local=local,
                            trained=trained)  # fmt: skip


@rule("samples-time", "error",
      "throughput times time must equal the samples, so one of them is wrong",
      "rebuild the file from its journal, or measure again")  # fmt: skip
def samples_time(evidence: Evidence) -> Iterator[Finding]:
    """Stored throughput times time differs from the samples, or from a table's speed-up."""
    for entry in evidence.entries:
        factor = _stored_factor(entry)
        if not (_is_one(factor) or _is_size(factor, entry.block["world_size"], EXACT)):
            text = f"stored throughput times time is {factor:.4g} times the samples"
            yield entry.finding("stored-throughput", text, factor=factor)
            continue
        rounds = entry.round_s
        for name, stored, true in (
            ("mean", entry.stats.get("mean"), fmean(rounds)),
            ("median", entry.stats.get("median"), median(rounds)),
            ("elapsed_s", entry.block.get("elapsed_s"), sum(rounds)),
        ):
            if isinstance(stored, int | float) and not _is_one(factor := float(stored / true)):
                text = f"the stored {name} is {factor:.4g} times the value computed from the rounds"
                yield entry.finding("stored-statistic", text, statistic=name, factor=factor)
    for series in evidence.ladders:
        samples, base = _trained_samples(series), series.base.throughput_samples_per_s
        if series.row.origin == "measured" or len(samples) < len(series.points) or not base:
            continue
        rates = {p.world_size: (p.throughput_samples_per_s or 0.0) / base for p in series.points}
        apart = [p for p in series.points if abs(rates[p.world_size] / p.speedup - 1) > ROUNDED]
        if apart:
            sizes = [point.world_size for point in apart]
            grown, speedups = [rates[size] for size in sizes], [point.speedup for point in apart]
            text = f"throughput is {joined(map(ratio, grown))} times the baseline's, but the "
            text += f"speed-up is {joined(map(ratio, speedups))}, which should be equal; its "
            text += f"samples are {joined(samples)}"
            action = ("correct the samples or the scaling: strong scaling keeps the "
                      "samples, weak scaling multiplies them by n")  # fmt: skip
            yield in_series("samples-of-table", text, series, *sizes, action=action,
                            samples=samples, grown=grown, speedups=speedups)  # fmt: skip


def _is_one(factor: float) -> bool:
    """Tell whether a factor is 1; NaN is not."""
    return abs(factor - 1) <= EXACT


def _is_size(factor: float, size: float, tolerance: float) -> bool:
    """Tell whether a factor is the number of ranks, where there are several."""
    return size > 1 and abs(factor / size - 1) <= tolerance


def _stored_factor(entry: Entry) -> float:
    """Return stored throughput x time of the rounds / their samples; 1 if none is stored."""
    block, rounds = entry.block, entry.round_s
    samples = block["samples_per_step"] * block["steps_per_round"] * len(rounds)
    stored = block.get("mean_throughput_samples_per_s", block.get("throughput_samples_per_s"))
    return float(stored * sum(rounds) / samples) if isinstance(stored, int | float) else 1.0


@rule("doubled-world-size", "error",
      "the samples of all ranks are multiplied by the world size again, so more ranks look faster",
      "divide by the world size: throughput is the samples of all ranks / time")  # fmt: skip
def doubled_world_size(evidence: Evidence) -> Iterator[Finding]:
    """The samples of all ranks were multiplied by the world size again."""
    for entry in evidence.entries:
        size = entry.block["world_size"]
        if _is_size(_stored_factor(entry), size, EXACT):
            text = f"stored throughput is {size} times samples / time"
            yield entry.finding("stored-doubled", text, size=size)
    for series in evidence.series:
        for size, factor in _samples_per_item(series):
            if _is_size(factor, size / series.baseline, EXACT):
                text = f"a step counts its global batch {factor:.3g} times"
                yield in_series("steps-doubled", text, series, size, factor=factor)
        yield from _logged_twice(series)
    for (time, rate), factors in _twins(evidence):
        for size, (factor, grown) in factors.items():
            if _is_size(factor, grown, ROUNDED):
                text = f"throughput times the time of table {time.case} is {factor:.3g} times"
                yield in_series("table-doubled", f"{text} the samples", rate, size,
                                time_table=time.case, factor=factor)  # fmt: skip


def _logged_twice(series: Series) -> Iterator[Finding]:
    for row in (row for point in series.points for row in point.rows):
        factor = row.details.get("logged_over_true")
        if isinstance(factor, float) and _is_size(factor, row.world_size, ROUNDED):
            text = f"the logged rate is {factor:.3g} times the rate that the epoch times give"
            yield in_series("logged-doubled", text, series, row.world_size, launches=(row.launch,),
                            factor=factor)  # fmt: skip


@rule("contradiction", "error", "both cannot be true for the same run",
      "find out which was measured, and leave out the other")  # fmt: skip
def contradiction(evidence: Evidence) -> Iterator[Finding]:
    """Two tables of one study, or of one import, give different speed-ups."""
    for (time, rate), factors in _twins(evidence):
        for size, (factor, grown_ranks) in factors.items():
            if abs(factor - 1) <= ROUNDED or _is_size(factor, grown_ranks, ROUNDED):
                continue
            if _gives_throughput(time, rate):
                stated = _rates(rate)[size]
                given = stated / factor
                text = f"the stated throughput is {stated:.4g}, but batch / time gives"
                yield Finding("rates-differ", f"{text} {given:.4g}", cases=(rate.case, time.case),
                              values={"stated": stated, "given": given}, world_sizes=(size,),
                              is_table=True)  # fmt: skip
                continue
            base = min(factors)
            grown, time_grown = (_rates(s)[size] / _rates(s)[base] for s in (rate, time))
            text = f"throughput grows {ratio(grown)} times from {base} to {size} ranks, but the"
            yield in_series("speed-ups-differ", f"{text} times give {ratio(time_grown)}", rate,
                            size,
                            other_table=time.case, base=base, size=size, grown=grown,
                            time_grown=time_grown)  # fmt: skip


def _rates(series: Series) -> dict[int, float]:
    return {point.world_size: point.rate for point in series.points}


Twin = tuple[tuple[Series, Series], dict[int, tuple[float, float]]]


def _twins(evidence: Evidence) -> Iterator[Twin]:
    """Yield tables of time and of throughput of one study with, for each size, two numbers.

    The first is time x throughput, thus samples, relative to those that the table of times states
    or, without any, to those at the smallest size. The second is how far the size has grown.
    """
    cited = [curve for curve in evidence.ladders if curve.row.origin != "measured"]
    pairs = [pair for pair in permutations(cited, 2) if _may_be_twins(evidence, *pair)]
    for time, rate in pairs:
        rivals = [pair for pair in pairs if pair[0] is time or pair[1] is rate]
        # Tables without a common source are a pair only if no other pair is possible.
        if not (_have_one_source(evidence, time, rate) or len(rivals) == 1):
            continue
        points = {p.world_size: (p, q) for p in time.points for q in rate.points
                  if p.world_size == q.world_size}  # fmt: skip
        if points and _gives_throughput(time, rate):
            yield (
                (time, rate),
                {
                    size: (
                        (q.throughput_samples_per_s or 0.0) / (p.throughput_samples_per_s or 1.0),
                        float(size),
                    )
                    for size, (p, q) in points.items()
                },
            )
        elif points:
            base = min(points)
            first = points[base][1].rate / points[base][0].rate
            yield (
                (time, rate),
                {size: (q.rate / p.rate / first, size / base) for size, (p, q) in points.items()},
            )


def _may_be_twins(evidence: Evidence, time: Series, rate: Series) -> bool:
    """Tell whether a table of times and one of throughput may be of the same runs."""

    def is_time(series: Series) -> bool:
        return series.base.time_s is not None or series.base.step_s is not None

    if not is_time(time) or is_time(rate):
        return False
    tables = [(series, evidence.table(series)) for series in (time, rate)]
    stated = [
        # Early imports hold the model as the workload.
        (table.get("source"), table.get("model", series.row.workload), series.row.precision)
        for series, table in tables
    ]
    scalings = (time.row.scaling, rate.row.scaling)
    # Without a scaling, times are taken for those of fixed work.
    pairs = [*zip(*stated, strict=True), scalings]
    if any(a and b and a != b for a, b in pairs) or scalings == (None, "weak"):
        return False
    paths = {table.get("path") for _, table in tables}
    together = len(paths) == 1 and _sizes(time) == _sizes(rate)
    is_together = together or _have_one_source(evidence, time, rate)
    return time.row.origin == rate.row.origin and is_together


def _have_one_source(evidence: Evidence, time: Series, rate: Series) -> bool:
    """Tell whether one source gives both tables, of one workload."""
    source = evidence.table(time).get("source")
    is_same = source == evidence.table(rate).get("source")
    return bool(source) and is_same and time.row.workload == rate.row.workload


def _gives_throughput(time: Series, rate: Series) -> bool:
    """Tell whether the times give a throughput, too, in the unit of the rates."""
    known = all(point.throughput_samples_per_s for curve in (time, rate) for point in curve.points)
    return known and not PARTS_OF_SAMPLES.fullmatch(rate.row.sample_unit)


def _sizes(series: Series) -> list[int]:
    return [point.world_size for point in series.points]


def _is_local_batch_fixed(series: Series) -> bool:
    """Tell whether the global batch grows as the ranks do."""
    each = zip(global_batches(series), _sizes(series), strict=False)
    return len({batch / size for batch, size in each}) == 1


def _local_batches(series: Series) -> list[int]:
    """Return the local batch at each size, computed from the global one where it is unknown."""
    whole = zip(_batches(series, "global_batch"), _sizes(series), strict=False)
    return _batches(series, "local_batch") or [batch // size for batch, size in whole]


def global_batches(series: Series) -> list[int]:
    """Return the global batch at each size, computed from the local one where it is unknown."""
    local = zip(_batches(series, "local_batch"), _sizes(series), strict=False)
    return _batches(series, "global_batch") or [batch * size for batch, size in local]


def _batches(series: Series, name: str) -> list[int]:
    """Return a batch at each size, or an empty list if a point lacks it."""
    batches = [getattr(point.rows[0], name) for point in series.points]
    return batches if None not in batches else []


@rule("super-linear", "warning",
      "this exceeds perfect scaling, as with a slow baseline, a helpful cache or different work",
      "measure the baseline again together with this size, and state the cause")  # fmt: skip
def super_linear(evidence: Evidence) -> Iterator[Finding]:
    """An efficiency is above 1 with its whole interval, or by 5 % where it has none."""
    for series in evidence.ladders:
        for point in series.points:
            efficiency = point.parallel_efficiency
            # A factor that the rule `unit` names is not an efficiency.
            if point is series.base or efficiency > UNIT:
                continue
            # Points without an interval in the report have too few launches for one here.
            grown, factor = None, point.world_size / series.baseline
            if point.efficiency_interval:
                grown = growth_interval(point.rates, series.base.rates, len(series.points) - 1)
            span = (grown[0] / factor, grown[1] / factor) if grown else None
            if (span[0] if span else efficiency / (1 + TOLERANCE)) > 1:
                kind, about = "efficiency-alone", ", without an interval"
                if span:
                    kind, about = "efficiency", f" ({percent_span(span)} %)"
                yield in_series(kind, f"efficiency is {percent(efficiency)} %{about}", series,
                                point.world_size, efficiency=efficiency,
                                span=percent_span(span))  # fmt: skip


@rule("ladder-gap", "warning", "the shape of the curve between them is unknown",
      "measure sizes between them, each at most twice the one before", doubts=False)  # fmt: skip
def ladder_gap(evidence: Evidence) -> Iterator[Finding]:
    """Neighbouring sizes differ by more than a factor of two."""
    sizes: dict[str, set[int]] = {}
    for row in evidence.results.rows:  # those in conflict were measured, too
        sizes.setdefault(row.case, set()).add(row.world_size)
    for series in evidence.ladders:
        for small, large in pairwise(sorted(sizes[series.case])):
            if large > WIDEST_STEP * small:
                text = f"no size between {small} and {large} was measured"
                yield in_series("gap", text, series, small, large, small=small, large=large)


@rule("no-baseline", "warning", "losses at smaller sizes do not show in any ratio",
      "measure one rank, or name the baseline next to each ratio", doubts=False)  # fmt: skip
def no_baseline(evidence: Evidence) -> Iterator[Finding]:
    """The smallest size of a curve is above 1."""
    for series in evidence.ladders:
        if (size := series.baseline) > 1:
            text = f"the smallest size is {size}, so efficiency there is 1 by definition"
            yield in_series("baseline", text, series, size, size=size)


@rule("break", "warning", "one curve through all points fits neither side of the break",
      "look for a cause at this size: the step to a second node, a slow link, a shared file "
      "system", doubts=False)  # fmt: skip
def broken_curve(evidence: Evidence) -> Iterator[Finding]:
    """Throughput falls, saturates, or drops at one size more than at any other."""
    for series in evidence.ladders:
        sizes, points = _sizes(series), series.points
        nodes = [point.rows[0].num_nodes or 0 for point in points]
        odd = {point.world_size for _, point, _ in _dips(series)}
        for break_ in breaks(sizes, [p.rates for p in points], nodes if all(nodes) else None):
            index = sizes.index(break_.world_size)
            # Where launches disagree, it is unknown through which the curve goes.
            is_apart = any(map(are_apart, points[index - 1 : index + 1]))
            if break_.world_size in odd or is_apart:
                continue
            kind: str = break_.kind
            text, action = of_break(break_), ""
            values = dict(break_.values)
            if nodes[index] == 1 and all(nodes):
                kind = "within-node"
                text = (f"within one node, {break_.factor:g} times the ranks give "
                        f"{ratio(break_.growth)} times the throughput at "
                        f"{break_.below}")  # fmt: skip
                action = ("check what the ranks of a node share: input workers, "
                          "cores, memory, links")  # fmt: skip
                over = [
                    (count, point.rate / points[index].rate)
                    for count, point in zip(nodes, points, strict=True)
                    if count > 1
                ]
                if over and all(grown > (1 - NOTABLE_LOSS) * count for count, grown in over):
                    kind, (count, grown) = "node-shares", over[-1]
                    text = f"{text}, but {count} nodes give {ratio(grown)} times that of one node"
                    action = ("check the input first: each node adds its own workers, "
                              "cores and disks")  # fmt: skip
                    values |= {"nodes": count, "grown": grown}
            yield in_series(kind, text, series, break_.world_size, action=action, **values)


@rule("outlier", "warning", "scaling curves bend downward, so something slowed this point",
      "measure it again in new launches before drawing a curve through it")  # fmt: skip
def outlier(evidence: Evidence) -> Iterator[Finding]:
    """A point lies far below the line through its neighbours, and the next point recovers."""
    for series in evidence.ladders:
        for left, point, right in _dips(series):
            ends = left.world_size, right.world_size
            loss = 1 - point.rate / _rate_between(left, right, point.world_size)
            text = (
                f"throughput is {percent(loss)} % below the line through {ends[0]} and "
                f"{ends[1]} ranks"
            )
            yield in_series(
                "odd-point", text, series, point.world_size, loss=loss, left=ends[0], right=ends[1]
            )


def _dips(series: Series) -> Iterator[tuple[Point, Point, Point]]:
    """Yield each odd point between its neighbours."""
    points = series.points
    for left, point, right in zip(points, points[1:], points[2:], strict=False):
        is_low = point.rate < (1 - OUTLIER) * _rate_between(left, right, point.world_size)
        # A point below the one before, or followed by equally low ones, is a break, not an outlier.
        grown = right.rate / point.rate / (right.world_size / point.world_size)
        recovers = point.rate > left.rate and grown > 1 + TOLERANCE
        if is_low and recovers and not any(map(are_apart, (left, point, right))):
            yield left, point, right


def _rate_between(left: Point, right: Point, size: int) -> float:
    """Return the rate at a size on the straight line, of logarithms, through two points."""
    return between((left.world_size, right.world_size), (left.rate, right.rate), size)


@rule("published-ratio", "error", "both cannot be true for the same table",
      "find out which one the source measured, and correct the other")  # fmt: skip
def published_ratio(evidence: Evidence) -> Iterator[Finding]:
    """A table's column of speed-up or efficiency contradicts its values."""
    for series in evidence.ladders:
        speedups, efficiencies = (_column(series, names) for names in (SPEEDUPS, EFFICIENCIES))
        if max(efficiencies.values(), default=0) > LARGEST_FRACTION:
            efficiencies = {size: value / 100 for size, value in efficiencies.items()}
        for name, published, computed in (
            ("speed-up", speedups, {p.world_size: p.speedup for p in series.points}),
            ("efficiency", efficiencies, {p.world_size: p.parallel_efficiency
                                          for p in series.points}),
        ):  # fmt: skip
            for size, value in published.items():
                own = value / published.get(series.baseline, 1.0)
                if abs(own / computed[size] - 1) > ROUNDED:
                    text = f"the stated {name} over {series.baseline} is {ratio(own)}, but the"
                    yield in_series("published-ratio",
                                    f"{text} values give {ratio(computed[size])}", series, size,
                                    ratio=name, published=own, computed=computed[size],
                                    baseline=series.baseline)  # fmt: skip


def _column(series: Series, names: str) -> dict[int, float]:
    """Return the column of a table whose name the expression matches, by world size."""
    column = {point.world_size: _number(point.rows[0], names) for point in series.points}
    return {size: number for size, number in column.items() if number}


def _number(row: Row, names: str) -> float:
    """Return the value of the column whose name matches; 0 if it is not a number."""
    for name, value in row.details.items():
        if re.fullmatch(names, re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")):
            number = str(value).strip().removesuffix("%").removesuffix("x").strip()
            return float(number) if number.replace(".", "", 1).isdecimal() else 0.0
    return 0.0


@rule("epoch-against-run", "warning", "the run does work outside its epochs, or has more of them",
      "state which of the two a speed-up refers to, and find out where the rest of the run "
      "goes")  # fmt: skip
def epoch_against_run(evidence: Evidence) -> Iterator[Finding]:
    """An epoch and the whole run of one import have different speed-ups."""
    for part, whole in permutations((s for s in evidence.ladders if s.row.origin == "cited"), 2):
        epochs, totals = evidence.table(part), evidence.table(whole)
        if epochs.get("metric") != "epoch_time" or totals.get("metric") == "epoch_time":
            continue
        stated = ("path", "source", "model")
        is_run = totals.get("metric") in TIMES and part.baseline == whole.baseline
        if not is_run or any(epochs.get(name) != totals.get(name) for name in stated):
            continue
        runs = {point.world_size: point.speedup for point in whole.points}
        for size, epoch in ((point.world_size, point.speedup) for point in part.points):
            run = runs.get(size)
            if run and abs(epoch / run - 1) > ROUNDED:
                text = f"the speed-up of an epoch is {ratio(epoch)}, but of the run {ratio(run)}"
                yield in_series("epoch-and-run", text, part, size,
                                other_table=whole.case, epoch=epoch, run=run)  # fmt: skip


@rule("impossible-line", "error", "one of these numbers is wrong or counts something else",
      "correct the line, then import the table again")  # fmt: skip
def impossible(evidence: Evidence) -> Iterator[Finding]:
    """A line of a table has more nodes than ranks, nodes for ranks, or more batch than data."""
    tables: dict[str, list[Row]] = {}
    for row in evidence.results.rows:
        if row.origin != "measured":
            tables.setdefault(row.case, []).append(row)
    for case, rows in tables.items():
        for row in rows:
            for kind, text, values in _faults(row, rows):
                yield Finding(kind, text, values=values, cases=(case,),
                              world_sizes=(row.world_size,), is_table=True)  # fmt: skip


def _faults(row: Row, rows: Sequence[Row]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield kind, text and values of each fault in a line of a table."""
    size, nodes, batch = row.world_size, row.num_nodes or 0, row.global_batch or 0
    ranks = counted(size, "rank")
    of_run = (row.time_s or 0) * (row.throughput_samples_per_s or 0)
    samples = round(_number(row, DATA) or of_run)
    if nodes > size:
        text = f"{ranks} cannot run on {nodes} nodes: each node needs at least one"
        yield "more-nodes", text, {"size": size, "nodes": nodes}
    if 0 < samples < batch:
        text = f"the global batch of {batch} is larger than the data set of {samples} samples"
        yield "small-data", text, {"batch": batch, "samples": samples}
    # If more ranks on fewer nodes are slower, n probably counts nodes in this line.
    larger = [other for other in rows if other.world_size > size > (other.num_nodes or size)]
    slower = [other for other in larger if nodes == size and other.rate < row.rate]
    if slower:
        many, fewer = slower[-1].world_size, slower[-1].num_nodes
        text = f"{ranks} on {nodes} nodes are faster than {many} on {fewer}; n may count nodes"
        yield "nodes-as-n", text, {"size": size, "larger": many, "fewer": fewer}


@rule("less-accurate", "warning",
      "more ranks train faster but learn less, so the speed-up compares different trainings",
      "quote the accuracy with the speed-up, or compare the times to reach one "
      "accuracy", doubts=False)  # fmt: skip
def accuracy_falls(evidence: Evidence) -> Iterator[Finding]:
    """The accuracy in a table falls from the smallest size to the largest."""
    for series in evidence.ladders:
        accuracies, size = _column(series, ACCURACIES), series.points[-1].world_size
        first, last = accuracies.get(series.baseline), accuracies.get(size)
        if first and last and first - last > LESS_ACCURATE * (100 if first > 1 else 1):
            text = f"the accuracy falls from {first:.4g} to {last:.4g}"
            yield in_series("less-accurate", text, series, size, first=first, last=last)


@rule("duplicate-line", "error", "a copied line is not a repeat, and hides the noise",
      "remove one of the lines")  # fmt: skip
def line_twice(evidence: Evidence) -> Iterator[Finding]:
    """A line of a table occurs twice, equal to a digit to which repeats would differ."""
    for series, point in evidence.points:
        if series.row.origin == "measured":
            continue
        unit = TIME_UNITS.get(str(evidence.table(series).get("unit")), 1.0)
        rows: dict[tuple[str, str], list[str]] = {}
        for row in point.rows:
            # The value in the unit in which it was written.
            seconds = row.time_s or row.step_s
            value = f"{row.rate if seconds is None else seconds / unit:.12g}"
            rows.setdefault((value, str(row.details)), []).append(row.launch)
        for (value, _), names in rows.items():
            digits = value.partition("e")[0].replace(".", "").strip("0")
            if len(names) > 1 and len(digits) >= DIGITS:
                text = f"{joined(names)} hold the same value to the last digit"
                yield in_series("same-line", text, series, point.world_size, names=names)
