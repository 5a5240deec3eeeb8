"""Rules about series: work at each size, shape of the curve, statements of a table."""

import re
from collections.abc import Iterator
from itertools import pairwise, permutations
from statistics import fmean, median

from lockstep.core.formats import TIME_UNITS, counted, number, percent, percent_span, ratio
from lockstep.report.check.evidence import (
    NOTABLE_LOSS,
    UNIT,
    Entry,
    Evidence,
    Finding,
    are_apart,
    difference,
    fact,
    joined,
    rule,
)
from lockstep.report.compute import learning, quantities, replicates
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import linear_interval
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
# Largest ratio of neighbouring sizes; above it the curve between them is a guess.
WIDEST_STEP = 2.0
# Fraction by which a point may lie below the line through its neighbours. Scaling curves bend
# downward, so a regular point lies above that line.
OUTLIER = 0.15
# Regular expressions for names of a table's columns, in lower case.
SPEEDUPS = "speed_?up"
EFFICIENCIES = "(parallel_)?efficiency"
DATA = "(data(set)?|train\\w*)_(size|samples)|num_samples|samples_per_epoch"
ACCURACIES = "((final|best|val|validation|test|eval)_)*(top_?1(_acc(uracy)?)?|acc(uracy)?)"
# An efficiency above this is read as per cent.
LARGEST_FRACTION = 2.0
# One percentage point, ten times the difference of seeds on ImageNet (Goyal et al. 2017, table 1).
LESS_ACCURATE = 0.01
# Repeats that agree to this many digits are one measurement, written twice.
DIGITS = 4


@rule("constant-work", "error",
      "the world sizes do different work, so speed-up and efficiency mean nothing",
      "measure all sizes with one global batch (strong scaling) or one local batch (weak scaling)"
      )  # fmt: skip
def constant_work(evidence: Evidence) -> Iterator[Finding]:
    """The batch that strong or weak scaling fixes differs between sizes or repeats."""
    for conflict in evidence.results.conflicts:
        if conflict.fact in BATCHES and conflict.case is not None:
            yield difference(conflict)
    flags = ((item, flag) for item in evidence.points for flag in item[1].flags)
    for item, flag in flags:
        if flag.kind == "smaller-batch":
            requested, measured = flag.values.get("asked"), flag.values.get("measured")
            text = (
                f"the case was measured with {measured} samples per rank, because {requested} "
                "samples per rank do not fit in memory"
            )
            yield fact(flag.kind, text, at=item, asked=requested, measured=measured)
    for series in evidence.ladders:
        scaling = series.row.scaling or ""
        if name := {"strong": "global_batch", "weak": "local_batch"}.get(scaling):
            kept = _batches(series, name)
            if len(set(kept)) > 1 and not _is_local_batch_fixed(series):
                values = joined(kept)
                text = f"the scaling is {scaling}, but {name} differs between the sizes: {values}"
                yield fact("uneven-batch", text, *series.sizes, at=series, scaling=scaling,
                           fact=name, batches=kept)  # fmt: skip
        base = series.baseline
        for size, factor in _samples_per_item(series):
            if not (abs(factor - 1) <= EXACT or _is_size(factor, size / base, EXACT)):
                text = (
                    f"the ratio of samples per step to global batch is {factor:.3g} times as high "
                    f"as at world size {base}"
                )  # fmt: skip
                yield fact("uneven-steps", text, size, at=series,
                           factor=factor, baseline=base)  # fmt: skip


def _samples_per_item(series: Series) -> list[tuple[int, float]]:
    """Return sizes, and samples per step / global batch, relative to the first size."""
    known = [
        (row.world_size, row.samples_per_step / row.global_batch)
        for row in (point.rows[0] for point in series.points)
        if row.samples_per_step and row.global_batch
    ]
    return [(size, share / known[0][1]) for size, share in known]


@rule(
    "fixed-epochs-as-strong",
    "error",
    "the work of each rank per step is constant, so a run on more ranks has fewer steps, but "
    "no shorter steps",
    "set the scaling to fixed-epochs, or measure all world sizes with one global batch",
    "ladders",
)
def fixed_epochs_as_strong(series: Series) -> Iterator[Finding]:
    """The local batch is fixed while the total time is compared as strong scaling."""
    is_time = series.base.time_s is not None and series.row.scaling is None
    if (series.row.scaling == "strong" or is_time) and _is_local_batch_fixed(series):
        batches, sizes = _batches(series, "global_batch"), series.sizes
        batch_grows = _grown(batches, sizes)
        kind, text = "called-strong", f"this series is called strong scaling, but {batch_grows}"
        if is_time:
            kind = "compared-as-strong"
            text = f"this series is compared by its total time, but {batch_grows}"
        yield fact(kind, text, batches=batches, sizes=sizes)


@rule(
    "fixed-epochs",
    "warning",
    "scaling with fixed epochs is neither strong nor weak, because the global batch differs "
    "between the sizes",
    "quote the total time, the step time and the accuracy of each size",
    "ladders",
    doubts=False,
)
def fixed_epochs(series: Series) -> Iterator[Finding]:
    """Local batch and epochs are fixed: neither strong nor weak scaling of the step."""
    if series.row.scaling != "fixed-epochs":
        return
    points, last = series.points, series.points[-1]
    sizes, batches = series.sizes, _batches(series, "global_batch")
    samples = _trained_samples(series)
    samples = samples if len(samples) == len(points) and len(set(samples)) > 1 else []
    steps_s = [p.step_s for p in points if p.step_s]
    kept = [p.time_ratio for p in series.above if p.time_ratio]
    if not kept or len(steps_s) < len(points):
        steps_s, kept = [], []
    speedup = ratio(last.speedup)
    texts = ["the local batch and the number of epochs are fixed"]
    if batches:
        texts.append(_grown(batches, sizes))
    texts.append(f"the total time at world size {last.world_size} gives a speed-up of {speedup}")
    if samples:
        sample_counts = joined(samples)
        texts.append(f"the runs train on {sample_counts} samples")
    if steps_s:
        times_ms = joined(number(1e3 * step_s) for step_s in steps_s)
        shares = joined(f"{percent(share)} %" for share in kept)
        texts.append(
            f"in order of world size, a step takes {times_ms} ms, so each rank reaches "
            f"{shares} of its speed at the baseline"
        )
    yield fact("fixed", "; ".join(texts), batches=batches, sizes=sizes, last=last.world_size,
               speedup=last.speedup, samples=samples, steps_s=steps_s, kept=kept)  # fmt: skip


def _grown(batches: list[int], sizes: list[int]) -> str:
    global_batches, world_sizes = joined(batches), joined(sizes)
    return f"the global batch is {global_batches} at world sizes {world_sizes}"


def _trained_samples(series: Series) -> list[int]:
    """Return time x throughput, in samples, of the points that have both."""
    return [
        round(point.time_s * point.throughput_samples_per_s)
        for point in series.points
        if point.time_s and point.throughput_samples_per_s
    ]


@rule("small-batch", "warning",
      "fixed costs, such as kernel launches and waiting for other ranks, dominate such short steps",
      "increase the local batch, and check in the report whether devices are idle", "ladders",
      doubts=False)  # fmt: skip
def small_batch(series: Series) -> Iterator[Finding]:
    """Short steps of a fixed local batch get longer with more ranks, which then wait."""
    base_s, last = series.base.step_s, series.points[-1].time_ratio
    if not (base_s and last and base_s < SHORT_STEP_S and last < 1 - NOTABLE_LOSS):
        return
    why = quantities.reason(series, series.points[-1])
    has_another_cause = why and why.named and why.named[0].cause in NOT_OF_THE_BATCH
    # For a user's own test without a model, no cause is known.
    if has_another_cause or (series.row.is_own_test and why is None):
        return
    added_s = {point.world_size: point.step_s - base_s for point in series.above if point.step_s}
    base_ms, more_ranks = number(1e3 * base_s), joined(added_s)
    extra = joined(f"{number(1e3 * each)} ms" for each in added_s.values())
    text = f"a step takes {base_ms} ms at the baseline, and {extra} longer on {more_ranks} ranks"
    yield fact("short-steps", text, *added_s, added_s=[*added_s.values()], step_s=base_s,
               sizes=[*added_s])  # fmt: skip


@rule("truncated-batch", "error", "a step trains on fewer samples than the name of the case says",
      "choose a global batch that is a multiple of every world size", "points")  # fmt: skip
def truncated_batch(_series: Series, point: Point) -> Iterator[Finding]:
    """The global batch is not divisible by the ranks, so a step trains on fewer samples."""
    row, size = point.rows[0], point.world_size
    named = row.factors.get("global_batch")
    batch = (named if isinstance(named, int) else None) or row.global_batch or 0
    local = row.local_batch or batch // size
    if batch and batch != (trained := local * size):
        text = (f"a global batch of {batch} on {size} ranks gives {local} samples per rank, so a "
                f"step trains on {trained} samples")  # fmt: skip
        yield fact("truncated", text, asked=batch, size=size, local=local,
                   trained=trained)  # fmt: skip


@rule("samples-time", "error",
      "throughput times time must equal the number of samples, so one of these numbers is wrong",
      "delete result.json, so that Lockstep reads the journal instead, or measure "
      "again")  # fmt: skip
def samples_time(evidence: Evidence) -> Iterator[Finding]:
    """Stored throughput times time differs from the samples, or from a table's speed-up."""
    for entry in evidence.entries:
        factor, rounds = _stored_factor(entry), entry.round_s
        # NaN is neither 1 nor the world size.
        if not (abs(factor - 1) <= EXACT or _is_size(factor, entry.block["world_size"], EXACT)):
            text = (
                f"the stored throughput multiplied by the time is {factor:.4g} times the number of "
                "samples"
            )
            yield fact("stored-throughput", text, at=entry, factor=factor)
            continue
        for name, stored, true in (
            ("mean", entry.stats.get("mean"), fmean(rounds)),
            ("median", entry.stats.get("median"), median(rounds)),
            ("elapsed_s", entry.block.get("elapsed_s"), sum(rounds)),
        ):
            factor = stored / true if isinstance(stored, int | float) else 1.0
            if not abs(factor - 1) <= EXACT:
                text = f"the stored {name} is {factor:.4g} times the value computed from the rounds"
                yield fact("stored-statistic", text, at=entry, statistic=name, factor=factor)
    for series in evidence.ladders:
        samples, base = _trained_samples(series), series.base.throughput_samples_per_s
        if series.row.origin == "measured" or len(samples) < len(series.points) or not base:
            continue
        rates = {p.world_size: (p.throughput_samples_per_s or 0.0) / base for p in series.points}
        apart = [p for p in series.points if abs(rates[p.world_size] / p.speedup - 1) > ROUNDED]
        if apart:
            sizes = [point.world_size for point in apart]
            grown, speedups = [rates[size] for size in sizes], [point.speedup for point in apart]
            rate_gains, speed_ups = joined(map(ratio, grown)), joined(map(ratio, speedups))
            sample_counts = joined(samples)
            text = (
                f"the throughput is {rate_gains} times the baseline's, but the speed-up is "
                f"{speed_ups}, and both should be equal. The runs train on {sample_counts} samples"
            )
            action = ("correct the samples or the scaling in the table: in strong scaling all runs "
                      "have equally many samples, in weak scaling n ranks have n times as "
                      "many")  # fmt: skip
            yield fact("samples-of-table", text, *sizes, at=series, action=action,
                       samples=samples, grown=grown, speedups=speedups)  # fmt: skip


def _is_size(factor: float, size: float, tolerance: float) -> bool:
    """Tell whether a factor is the number of ranks, where there are several."""
    return size > 1 and abs(factor / size - 1) <= tolerance


def _stored_factor(entry: Entry) -> float:
    """Return stored throughput x time of the rounds / their samples; 1 if none is stored."""
    block, rounds = entry.block, entry.round_s
    samples = block["samples_per_step"] * block["steps_per_round"] * len(rounds)
    stored = block.get("mean_throughput_samples_per_s", block.get("throughput_samples_per_s"))
    return float(stored * sum(rounds) / samples) if isinstance(stored, int | float) else 1.0


@rule(
    "doubled-world-size",
    "error",
    "the throughput counts the samples of all ranks several times, so more ranks look faster",
    "divide the throughput by the world size, so that it counts the samples of all ranks once",
)
def doubled_world_size(evidence: Evidence) -> Iterator[Finding]:
    """The samples of all ranks were multiplied by the world size again."""
    for entry in evidence.entries:
        size = entry.block["world_size"]
        if _is_size(_stored_factor(entry), size, EXACT):
            text = f"the stored throughput is {size} times as high as samples divided by time"
            yield fact("stored-doubled", text, at=entry, size=size)
    for series in evidence.series:
        for size, factor in _samples_per_item(series):
            if _is_size(factor, size / series.baseline, EXACT):
                text = f"the number of samples per step is {factor:.3g} times the global batch"
                yield fact("steps-doubled", text, size, at=series, factor=factor)
        for row in series.rows:
            logged = row.details.get("logged_over_true")
            if isinstance(logged, float) and _is_size(logged, row.world_size, ROUNDED):
                text = (
                    f"the logged rate is {logged:.3g} times the rate computed from the epoch times"
                )
                yield fact("logged-doubled", text, row.world_size, at=series,
                           launches=(row.launch,), factor=logged)  # fmt: skip
    for time, rate, factors in _twins(evidence):
        for size, (factor, grown) in factors.items():
            if _is_size(factor, grown, ROUNDED):
                text = (f"the throughput times the time in table {time.case} gives {factor:.3g} "
                        "times the number of samples")  # fmt: skip
                yield fact("table-doubled", text, size, at=rate,
                           time_table=time.case, factor=factor)  # fmt: skip


@rule("contradiction", "error",
      "two tables give different speed-ups for the same runs, so one of the tables is wrong",
      "find out which table was measured, and remove the other table")  # fmt: skip
def contradiction(evidence: Evidence) -> Iterator[Finding]:
    """Two tables of one study, or of one import, give different speed-ups."""
    for time, rate, factors in _twins(evidence):
        rates, of_time = ({p.world_size: p.rate for p in s.points} for s in (rate, time))
        base = min(factors)
        for size, (factor, grown_ranks) in factors.items():
            if abs(factor - 1) <= ROUNDED or _is_size(factor, grown_ranks, ROUNDED):
                continue
            if _gives_throughput(time, rate):
                stated, implied = rates[size], rates[size] / factor
                text = (
                    f"the stated throughput is {stated:.4g}, but samples divided by time give "
                    f"{implied:.4g}"
                )
                yield Finding("rates-differ", text, values={"stated": stated, "given": implied},
                              cases=(rate.case, time.case), world_sizes=(size,),
                              is_table=True)  # fmt: skip
                continue
            grown, time_grown = rates[size] / rates[base], of_time[size] / of_time[base]
            text = (f"throughput grows by a factor of {ratio(grown)} from {base} to {size} ranks, "
                    f"but the times give a speed-up of {ratio(time_grown)}")  # fmt: skip
            yield fact("speed-ups-differ", text, size, at=rate, other_table=time.case, base=base,
                       size=size, grown=grown, time_grown=time_grown)  # fmt: skip


def _twins(
    evidence: Evidence,
) -> Iterator[tuple[Series, Series, dict[int, tuple[float, float]]]]:
    """Yield tables of time and of throughput of one study with, for each size, two numbers.

    The first is time x throughput, thus samples, over the samples that the table of times
    states, else over those at the smallest size. The second is the size over the smallest size.
    """
    cited = [curve for curve in evidence.ladders if curve.row.origin != "measured"]
    pairs = [pair for pair in permutations(cited, 2) if _may_be_twins(evidence, *pair)]
    for time, rate in pairs:
        rivals = [pair for pair in pairs if pair[0] is time or pair[1] is rate]
        points = {p.world_size: (p, q) for p in time.points for q in rate.points
                  if p.world_size == q.world_size}  # fmt: skip
        # Tables without a common source are a pair only if no other pair is possible.
        if not points or not (_have_one_source(evidence, time, rate) or len(rivals) == 1):
            continue
        if _gives_throughput(time, rate):
            base, factors = 1, {
                size: (q.throughput_samples_per_s or 0.0) / (p.throughput_samples_per_s or 1.0)
                for size, (p, q) in points.items()
            }  # fmt: skip
        else:
            base = min(points)
            first = points[base][1].rate / points[base][0].rate
            factors = {size: q.rate / p.rate / first for size, (p, q) in points.items()}
        yield time, rate, {size: (factor, size / base) for size, factor in factors.items()}


def rates_of_times(evidence: Evidence) -> dict[str, Series]:
    """Return, by the case of a table of times alone, the table of throughput of the same runs."""
    return {
        time.case: rate for time, rate, _ in _twins(evidence)
        if time.base.throughput_samples_per_s is None
    }  # fmt: skip


def tables_apart(evidence: Evidence) -> list[Series]:
    """Return the series but for tables of throughput whose values stand in the rows of times."""
    rates = rates_of_times(evidence)
    beside = {
        rates[curve.case].case for curve in evidence.series
        if curve.case in rates and set(rates[curve.case].sizes) <= set(curve.sizes)
    }  # fmt: skip
    return [curve for curve in evidence.series if curve.case not in beside]


def _may_be_twins(evidence: Evidence, time: Series, rate: Series) -> bool:
    """Tell whether a table of times and one of throughput may be of the same runs."""
    is_time = [s.base.time_s is not None or s.base.step_s is not None for s in (time, rate)]
    if is_time != [True, False]:
        return False
    tables = [(series, evidence.table(series)) for series in (time, rate)]
    stated = [
        # Early imports stored the model as the workload.
        (table.get("source"), table.get("model", series.row.workload), series.row.precision,
         series.row.scaling)
        for series, table in tables
    ]  # fmt: skip
    # Without a stated scaling, times are read as times of fixed work.
    is_weak = (time.row.scaling, rate.row.scaling) == (None, "weak")
    if is_weak or any(a and b and a != b for a, b in zip(*stated, strict=True)):
        return False
    paths = {table.get("path") for _, table in tables}
    together = len(paths) == 1 and time.sizes == rate.sizes
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


def _is_local_batch_fixed(series: Series) -> bool:
    """Tell whether the global batch grows with the number of ranks."""
    each = zip(_batches(series, "global_batch"), series.sizes, strict=False)
    return len({batch / size for batch, size in each}) == 1


def _batches(series: Series, name: str) -> list[int]:
    """Return a batch at each size; a missing one is computed from the local or global batch.

    The list is empty if a point has neither.
    """
    other = {"local_batch": "global_batch", "global_batch": "local_batch"}[name]
    own, others = ([getattr(p.rows[0], each) for p in series.points] for each in (name, other))
    if None not in own:
        return own
    known = zip(others if None not in others else [], series.sizes, strict=False)
    return [n // size if other == "global_batch" else n * size for n, size in known]


@rule(
    "super-linear",
    "warning",
    "an efficiency above 100 % may come from a slow baseline, better caching or different work",
    "measure the baseline and this size again in one campaign, and state the cause",
    "ladders",
)
def super_linear(series: Series) -> Iterator[Finding]:
    """An efficiency's whole interval is above 1; without an interval, it is above 1.05."""
    for point in series.points:
        efficiency = point.parallel_efficiency
        # A factor that the rule `unit` names is not an efficiency.
        if point is series.base or efficiency > UNIT:
            continue
        # Points without an interval have too few launches for a growth interval.
        grown, factor = None, point.world_size / series.baseline
        if point.efficiency_interval:
            grown = growth_interval(point.rates, series.base.rates, len(series.points) - 1)
        span = (grown[0] / factor, grown[1] / factor) if grown else None
        if (span[0] if span else efficiency / (1 + TOLERANCE)) > 1:
            kind, about = "efficiency-alone", ", without an interval"
            if span:
                kind, about = "efficiency", f" ({percent_span(span)} %)"
            yield fact(kind, f"efficiency is {percent(efficiency)} %{about}", point.world_size,
                       efficiency=efficiency, span=percent_span(span))  # fmt: skip


@rule("ladder-gap", "warning",
      "two neighbouring sizes are so far apart that the curve between them is unknown",
      "measure sizes in between, so that each size is at most twice the previous "
      "one", doubts=False)  # fmt: skip
def ladder_gap(evidence: Evidence) -> Iterator[Finding]:
    """Neighbouring sizes differ by more than a factor of two."""
    for series in evidence.ladders:
        # Rows in conflict were measured, too.
        sizes = {row.world_size for row in evidence.rows.get(series.case, ())}
        for small, large in pairwise(sorted(sizes)):
            if large > WIDEST_STEP * small:
                text = f"no size between {small} and {large} was measured"
                yield fact("gap", text, small, large, at=series, small=small, large=large)


@rule(
    "no-baseline",
    "warning",
    "the baseline has several ranks, so ratios leave out the speed lost between one rank and the "
    "baseline",
    "measure world size 1 as well, or state the baseline beside each ratio",
    "ladders",
    doubts=False,
)
def no_baseline(series: Series) -> Iterator[Finding]:
    """The smallest size of a curve is above 1."""
    if (size := series.baseline) > 1:
        text = f"the smallest measured size is {size}, and its efficiency is 1 by definition"
        yield fact("baseline", text, size, size=size)


@rule("break", "warning",
      "the curve breaks at this size, so one curve cannot fit the points on both sides",
      "look for a cause at this size: a second node, a slow link, a shared file system",
      "ladders", doubts=False)  # fmt: skip
def curve_breaks(series: Series) -> Iterator[Finding]:
    """Throughput falls, saturates, or drops at one size more than at any other."""
    sizes, points = series.sizes, series.points
    nodes = [point.rows[0].num_nodes or 0 for point in points]
    odd = {point.world_size for _, point, _ in _dips(series)}
    for break_ in breaks(sizes, [p.rates for p in points], nodes if all(nodes) else None):
        index = sizes.index(break_.world_size)
        # The curve is unknown where launches of a point differ widely.
        if break_.world_size in odd or any(map(are_apart, points[index - 1 : index + 1])):
            continue
        kind: str = break_.kind
        text, action, values = break_.text, "", dict(break_.values)
        if nodes[index] == 1 and all(nodes):
            kind = "within-node"
            gain, fewer_ranks = ratio(break_.growth), counted(break_.below, "rank")
            text = (
                f"within one node, {break_.factor:g} times as many ranks give {gain} times the "
                f"throughput of {fewer_ranks}"
            )
            action = "check what the ranks of a node share: input workers, cores, memory, links"
            over = [
                (count, point.rate / points[index].rate)
                for count, point in zip(nodes, points, strict=True)
                if count > 1
            ]
            if over and all(grown > (1 - NOTABLE_LOSS) * count for count, grown in over):
                kind, (count, grown), within_one_node = "node-shares", over[-1], text
                text = (
                    f"{within_one_node}, but {count} nodes give {ratio(grown)} times the "
                    "throughput of one node"
                )
                action = "check the input first: each node brings its own workers, cores and disks"
                values |= {"nodes": count, "grown": grown}
        yield fact(kind, text, break_.world_size, action=action, **values)


@rule("outlier", "warning", "a normal scaling curve has no dip, so something slowed this point",
      "measure the point again in new launches before drawing a curve", "ladders")  # fmt: skip
def outlier(series: Series) -> Iterator[Finding]:
    """A point lies far below the line through its neighbours, and the next point recovers."""
    for left, point, right in _dips(series):
        loss = 1 - point.rate / _rate_between(left, right, point.world_size)
        low, high = left.world_size, right.world_size
        text = (
            f"throughput is {percent(loss)} % below the line through the points at {low} and "
            f"{high} ranks"
        )
        yield fact("odd-point", text, point.world_size, loss=loss, left=low, right=high)


def _dips(series: Series) -> Iterator[tuple[Point, Point, Point]]:
    """Yield (left neighbour, point, right neighbour) of each point that dips."""
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


@rule("published-ratio", "error",
      "the stated ratio and the ratio computed from the table differ, so one of them is wrong",
      "find out which of the two numbers is right, and correct the table", "ladders")  # fmt: skip
def published_ratio(series: Series) -> Iterator[Finding]:
    """A table's column of speed-up or efficiency contradicts its values."""
    speedups, efficiencies = (_column(series, names) for names in (SPEEDUPS, EFFICIENCIES))
    if max(efficiencies.values(), default=0) > LARGEST_FRACTION:
        efficiencies = {size: value / 100 for size, value in efficiencies.items()}
    base = series.baseline
    for name, column in (("speed-up", speedups), ("efficiency", efficiencies)):
        for point in series.points:
            size, ratios = point.world_size, (point.speedup, point.parallel_efficiency)
            computed = ratios[name == "efficiency"]
            own = column.get(size, computed) / column.get(base, 1.0)
            if size in column and abs(own / computed - 1) > ROUNDED:
                stated_ratio, computed_ratio = ratio(own), ratio(computed)
                text = (
                    f"the stated {name} relative to world size {base} is {stated_ratio}, but the "
                    f"table's values give {computed_ratio}"
                )  # fmt: skip
                yield fact("published-ratio", text, size, ratio=name,
                           published=own, computed=computed, baseline=base)  # fmt: skip


def _column(series: Series, names: str) -> dict[int, float]:
    """Return, by world size, a table's column whose name matches the expression."""
    column = {point.world_size: _number(point.rows[0], names) for point in series.points}
    return {size: number for size, number in column.items() if number}


def _number(row: Row, names: str) -> float:
    """Return the value of the column whose name matches; 0 if it is not a number."""
    for name, value in row.details.items():
        if re.fullmatch(names, re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")):
            number = str(value).strip().removesuffix("%").removesuffix("x").strip()
            return float(number) if number.replace(".", "", 1).isdecimal() else 0.0
    return 0.0


@rule(
    "epoch-against-run",
    "warning",
    "the runs spend time outside their epochs, or the number of epochs differs between sizes",
    "state whether each speed-up compares epochs or runs, and find out what takes time outside "
    "the epochs",
)
def epoch_against_run(evidence: Evidence) -> Iterator[Finding]:
    """An epoch and the whole run of one import have different speed-ups."""
    for part, whole in permutations((s for s in evidence.ladders if s.row.origin == "cited"), 2):
        epochs, totals = evidence.table(part), evidence.table(whole)
        metrics = epochs.get("metric"), totals.get("metric")
        is_pair = metrics[0] == "epoch_time" != metrics[1] and metrics[1] in TIMES
        is_same = all(epochs.get(name) == totals.get(name) for name in ("path", "source", "model"))
        if not (is_pair and is_same and part.baseline == whole.baseline):
            continue
        runs = {point.world_size: point.speedup for point in whole.points}
        for size, epoch in ((point.world_size, point.speedup) for point in part.points):
            run = runs.get(size)
            if run and abs(epoch / run - 1) > ROUNDED:
                text = (
                    f"the speed-up of an epoch is {ratio(epoch)}, but the speed-up of the run "
                    f"is {ratio(run)}"
                )
                yield fact("epoch-and-run", text, size, at=part, other_table=whole.case,
                           epoch=epoch, run=run)  # fmt: skip


@rule("impossible-line", "error",
      "a line of the table has a wrong number, or a number that belongs in another column",
      "correct the line in the table, then import the table again")  # fmt: skip
def impossible_lines(evidence: Evidence) -> Iterator[Finding]:
    """A line of a table counts nodes as ranks, has more nodes than ranks, or too large a batch."""
    tables: dict[str, list[Row]] = {}
    for row in evidence.results.rows:
        if row.origin != "measured":
            tables.setdefault(row.case, []).append(row)
    for row in (row for rows in tables.values() for row in rows):
        size, nodes, batch = row.world_size, row.num_nodes or 0, row.global_batch or 0
        ranks = counted(size, "rank")
        of_run = (row.time_s or 0) * (row.throughput_samples_per_s or 0)
        samples = round(_number(row, DATA) or of_run)
        if nodes > size:
            text = f"{ranks} cannot run on {nodes} nodes: each node needs at least one rank"
            yield fact("more-nodes", text, at=row, size=size, nodes=nodes)
        if 0 < samples < batch:
            text = f"the global batch of {batch} is larger than the data set of {samples} samples"
            yield fact("small-data", text, at=row, batch=batch, samples=samples)
        # If more ranks on fewer nodes are slower, n probably counts nodes in this line.
        slower = [
            other for other in tables[row.case] if nodes == size and other.rate < row.rate
            and other.world_size > size > (other.num_nodes or size)
        ]  # fmt: skip
        if slower:
            many, fewer = slower[-1].world_size, slower[-1].num_nodes
            text = (f"{ranks} on {nodes} nodes are faster than {many} ranks on {fewer} nodes, so "
                    "the column n may count nodes instead of ranks")  # fmt: skip
            yield fact("nodes-as-n", text, at=row, size=size, larger=many, fewer=fewer)


@rule(
    "less-accurate",
    "warning",
    "more ranks train faster but learn less, so the speed-up compares different trainings",
    "quote the accuracy of each size, or compare the times that the sizes need to reach the same "
    "accuracy",
    "series",
    doubts=False,
)
def accuracy_falls(series: Series) -> Iterator[Finding]:
    """The accuracy falls from the smallest size to the largest, by more than seeds differ."""
    yield from _falls(series, is_shown=True)
    size = series.points[-1].world_size
    accuracies = {} if series.row.training else _column(series, ACCURACIES)
    first, last = accuracies.get(series.baseline), accuracies.get(size)
    if first and last and first - last > LESS_ACCURATE * (100 if first > 1 else 1):
        text = f"the accuracy falls from {first:.4g} to {last:.4g} at the largest size"
        yield fact("less-accurate", text, size, first=first, last=last)


@rule(
    "accuracy-open",
    "note",
    "the accuracy may differ as much between seeds, so the results do not show that more ranks "
    "learn less",
    "train each size with three seeds or more: set seed = [0, 1, 2] in the campaign",
    "series",
)
def accuracy_may_fall(series: Series) -> Iterator[Finding]:
    """The accuracy of trainings is lower at the largest size, but seeds may differ as much."""
    return _falls(series, is_shown=False)


def _falls(series: Series, *, is_shown: bool) -> Iterator[Finding]:
    """Yield a notable fall of the trainings' mean accuracy as the global batch grows.

    It is shown if its interval excludes that the accuracy stays.
    """
    if not series.row.training:
        return
    rows = series.base.rows, series.points[-1].rows
    batches = [own[0].global_batch or 0 for own in rows]
    known = [[x for row in own if (x := learning.final_accuracy(row)) is not None] for own in rows]
    is_known = [*map(len, known)] == [*map(len, rows)]
    if not (batches[0] < batches[1] and is_known):
        return
    first, last = map(fmean, known)
    if first - last <= LESS_ACCURATE:
        return
    seeds = [
        replicates.average_seeds([learning.seed(row) for row in own], accuracies)
        for own, accuracies in zip(rows, known, strict=True)
    ]
    interval = linear_interval([(1.0, seeds[0]), (-1.0, seeds[1])])
    span = f"95 % interval {percent_span(interval)} points" if interval else "no interval"
    high, low = percent(first), percent(last)
    num_seeds = [counted(len(own), "seed") for own in seeds]
    text = (
        f"the accuracy falls from {high} % at global batch {batches[0]} ({num_seeds[0]}) to "
        f"{low} % at global batch {batches[1]} ({num_seeds[1]}); difference: {span}"
    )
    if is_shown == (interval is not None and interval[0] > 0):
        yield fact("trainings", text, series.points[-1].world_size, first=first, last=last,
                   interval=interval, batches=batches)  # fmt: skip


@rule("duplicate-line", "error",
      "a copied line is no repeat, and makes the noise look smaller than it is",
      "remove one of the equal lines from the table")  # fmt: skip
def line_twice(evidence: Evidence) -> Iterator[Finding]:
    """A line of a table occurs twice, equal to more digits than repeats would be."""
    for series, point in evidence.points:
        if series.row.origin == "measured":
            continue
        unit = TIME_UNITS.get(str(evidence.table(series).get("unit")), 1.0)
        rows: dict[tuple[str, str], list[str]] = {}
        for row in point.rows:
            # The value in the table's unit.
            seconds = row.time_s or row.step_s
            amount = row.rate if seconds is None else seconds / unit
            value = f"{amount:.12g}"
            rows.setdefault((value, str(row.details)), []).append(row.launch)
        for (value, _), names in rows.items():
            digits = value.partition("e")[0].replace(".", "").strip("0")
            if len(names) > 1 and len(digits) >= DIGITS:
                lines = joined(names)
                text = f"the lines {lines} have the same value to the last digit"
                yield fact("same-line", text, point.world_size, at=series, names=names)
