"""Rules about launches and their cases: where and how often they ran, and single results."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from statistics import geometric_mean, median
from textwrap import shorten
from typing import Any

from lockstep.core.flags import SYSTEMATIC, threads_at_sizes
from lockstep.core.formats import counted, listed, percent
from lockstep.report.check.evidence import (
    FLAGGED,
    UNIT,
    Evidence,
    Finding,
    are_apart,
    difference,
    in_ms,
    in_series,
    joined,
    rule,
)
from lockstep.report.compute import replicates
from lockstep.report.compute.alternatives import equal_buckets
from lockstep.report.compute.scaling import Point
from lockstep.report.compute.statistics import CONFIDENCE, log_interval
from lockstep.report.load import gaps, sources, training_runs
from lockstep.report.load.conflicts import BATCHES
from lockstep.report.load.results import COPY, Results, Row
from lockstep.report.load.sources import JOURNAL

# Steps of a launch in all its timed rounds: with fewer, one slow step moves the mean by a tenth.
FEWEST_STEPS = 10
# A point with this many times the launches of another has too much weight in the curve.
UNEVEN = 2
# The command that measures what is missing, by what started the launches.
AGAIN = {
    "jobs": "run lockstep resume",
    "run": "run lockstep run again",
    "pytest": "give the same command again with --resume",
}
LONGEST_NOTE = 90
# A loss that falls by less than this share of what it must does not fall. Where labels are noise,
# the gradient of a batch n times as large is 1/sqrt(n) as long, and a step gains 1/n, its square.
STAYS = 0.1
LOSSES = ("loss_first", "loss_last")
FELL_BACK = "bf16-emulated"
# Kinds of flags that have a rule of their own.
OF_OTHER_RULES = {
    "unequal-threads", "oversubscribed", "loader-oversubscribed", "logged-rate", "smaller-batch",
    "other-samples", FELL_BACK,
}  # fmt: skip
# The fastest step without communication over the slowest round's step: beyond the noise of few
# steps, the part would be longer than the whole.
LONGER = 1.25
# A first round so many times the longest of the others, in every launch, is no noise. Of three
# rounds in one launch the first is the longest by chance in a third.
COLD, FEWEST_ROUNDS = 2.0, 6
# Cases of equal work: a smaller difference changes no conclusion.
NOTABLE = 1.1
# Factors that a record holds in other fields; the real buckets stand for the cap.
NAMED = {"workload", "precision", "local_batch", "global_batch", "bucket_cap_mb"}
# Defaults of a case that does not vary these.
USUAL = {"accumulation": 1, "no_sync": True}


@rule("mixed-provenance", "error",
      "a difference in speed may come from this and not from the world size",
      "report them separately, or measure all with one image on one kind of node; until then "
      "reports leave them out")  # fmt: skip
def mixed_provenance(evidence: Evidence) -> Iterator[Finding]:
    """Launches differ in torch, CUDA, NCCL, driver, image or device."""
    for conflict in evidence.results.conflicts:
        if conflict.case is None and conflict.fact != COPY:
            yield difference(conflict)


@rule("mixed-cases", "error", "one curve would mix different experiments",
      "report them separately; until then reports leave them out")  # fmt: skip
def mixed_cases(evidence: Evidence) -> Iterator[Finding]:
    """One case name means another workload, precision or scaling in other launches."""
    for conflict in evidence.results.conflicts:
        if conflict.case is not None and conflict.fact not in BATCHES:
            yield difference(conflict)


@rule("oversubscription", "error",
      "the ranks take turns on the cores, so scaling looks worse than it is",
      "use fewer ranks per node or fewer threads per rank (threads_per_rank)")  # fmt: skip
def oversubscription(evidence: Evidence) -> Iterator[Finding]:
    """The ranks of a host have more threads than it has cores for them."""
    return _crowded(evidence, is_training=False)


@rule("crowded-training", "note",
      "the ranks take turns on the cores, which changes times and rates but not the accuracy",
      "quote the accuracy; to quote a time, use fewer ranks per node or fewer threads per "
      "rank")  # fmt: skip
def crowded_training(evidence: Evidence) -> Iterator[Finding]:
    """The ranks of a training have more threads than their host has cores for them."""
    return _crowded(evidence, is_training=True)


def _crowded(evidence: Evidence, *, is_training: bool) -> Iterator[Finding]:
    """Yield crowded hosts of launches that hold only training runs, or of all other launches."""
    rows = evidence.results.rows
    trained = {row.launch for row in rows if row.training}
    trained -= {row.launch for row in rows if not row.training}
    for launch in evidence.results.launches:
        if (launch.name in trained) != is_training:
            continue
        hosts: dict[str, list[dict[str, Any]]] = {}
        for rank in launch.ranks:
            hosts.setdefault(str(rank.get("host")), []).append(rank)
        for host, ranks in hosts.items():
            usual = launch.provenance.get("threads_per_rank")
            each: list[Any] = [rank.get("num_threads", usual) for rank in ranks]
            named = {str(core) for rank in ranks for core in rank.get("cores") or []}
            cores = len(named) or launch.provenance.get("cores_per_node")
            if not (cores and isinstance(cores, int) and all(isinstance(n, int) for n in each)):
                continue
            if (threads := sum(each)) > cores:
                text = f"the ranks run {threads} threads on {counted(cores, 'core')}"
                values = {"host": host, "threads": threads, "cores": cores}
                yield Finding("crowded", text, values=values, launches=(launch.name,))


@rule("unequal-ranks", "error",
      "ranks with more threads are faster, so efficiency compares unequal ranks",
      "measure every size with the same --threads-per-rank")  # fmt: skip
def unequal_ranks(evidence: Evidence) -> Iterator[Finding]:
    """CPU ranks had more threads in one launch than in another."""
    for series in evidence.series:
        for flag in series.base.flags:
            if flag.kind == "unequal-threads":
                threads = flag.values["threads"]
                text = threads_at_sizes(threads)
                yield in_series("unequal-threads", text, series, threads=threads)


@rule("no-repeat", "warning", "the noise between launches is unknown, so there is no interval",
      "measure at least 3 launches of every point: repeats = 3", doubts=False)  # fmt: skip
def no_repeat(evidence: Evidence) -> Iterator[Finding]:
    """A measured point has one launch."""
    for series in evidence.measured:
        sizes = [point.world_size for point in series.points if point.num_launches == 1]
        if sizes:
            text = f"{counted(len(sizes), 'point')} with a single launch"
            yield in_series("one-launch", text, series, *sizes, count=len(sizes))


@rule("uneven-repeats", "warning", "a point repeated until its result looks good is biased",
      "measure all points equally often, in turn")  # fmt: skip
def uneven_repeats(evidence: Evidence) -> Iterator[Finding]:
    """One point of a series has more than twice the launches of another."""
    for series in evidence.measured:
        low, high = (
            choose(series.points, key=lambda point: point.num_launches) for choose in (min, max)
        )
        if high.num_launches > UNEVEN * low.num_launches:
            few, many = low.num_launches, high.num_launches
            text = f"{counted(few, 'launch')} at {low.world_size}, {many} at {high.world_size}"
            yield in_series("launch-counts", text, series, low.world_size, high.world_size,
                            fewest=few, at_fewest=low.world_size, most=many,
                            at_most=high.world_size)  # fmt: skip


@rule("duplicate", "error", "a copy is not a repeat, and makes the interval too small",
      "remove the copy")  # fmt: skip
def same_twice(evidence: Evidence) -> Iterator[Finding]:
    """A launch is given twice, or two launches hold identical rounds."""
    for conflict in evidence.results.conflicts:
        if conflict.fact == COPY:
            name, first = conflict.values
            yield Finding("read-twice", f"launch {name} is already read from {first}",
                          values={"name": name, "first": first}, launches=conflict.launches,
                          path=conflict.where)  # fmt: skip
    for series, point in evidence.points:
        alike: dict[tuple[Any, ...], list[str]] = {}
        for row in point.rows:
            # A program may report the same count each time; tables, without a spread, are rounded.
            if row.stddev_step_s is not None and not row.program:
                spread = (row.min_step_s, row.max_step_s, row.stddev_step_s)
                numbers = (row.rate, row.mean_step_s, *spread, row.time_s)
                alike.setdefault(numbers, []).append(row.launch)
        for names in alike.values():
            if len(names) > 1:
                text = f"{joined(names)} hold the same numbers"
                yield in_series("same-numbers", text, series, point.world_size, names=names)


@rule("unit", "error", "no machine varies this much, so every ratio is wrong",
      "check the units of both, then import or measure the wrong one again")  # fmt: skip
def other_unit(evidence: Evidence) -> Iterator[Finding]:
    """Launches of one point, or ranks of two sizes, differ as much as units do."""
    ask = "one may be in another unit, such as milliseconds instead of seconds"
    for series, point in evidence.points:
        slow, fast = _ends(point)
        if (factor := fast.rate / slow.rate) > UNIT:
            text = f"{fast.launch} is {factor:.0f} times as fast as {slow.launch}; {ask}"
            yield in_series("unit", text, series, point.world_size, fast=fast.launch,
                            slow=slow.launch, factor=factor)  # fmt: skip
    for series in evidence.ladders:
        for pair in pairwise(series.points):
            each = {point.world_size: point.rate / point.world_size for point in pair}
            low, high = sorted(each, key=each.__getitem__)
            if (factor := each[high] / each[low]) > UNIT:
                text = f"each rank is {factor:.0f} times as fast at world size {high} as at {low}"
                yield in_series("unit-of-size", f"{text}; {ask}", series, *each, fast=high,
                                slow=low, factor=factor)  # fmt: skip


def _ends(point: Point) -> tuple[Row, Row]:
    """Return the slowest and the fastest launch of a point."""
    rows = sorted(point.rows, key=lambda row: row.rate)
    return rows[0], rows[-1]


@rule("launches-apart", "warning", "no median and no curve describes launches this different",
      "find out what differs between them, then measure the point again")  # fmt: skip
def disagree(evidence: Evidence) -> Iterator[Finding]:
    """Launches of one point differ by more than a quarter."""
    for series, point in evidence.points:
        slow, fast = _ends(point)
        is_unit = fast.rate > UNIT * slow.rate
        # With five launches or more, a flag names the outliers.
        is_flagged = any(flag.kind == "outlier" for flag in point.flags)
        if are_apart(point) and not (is_unit or is_flagged):
            excess = fast.rate / slow.rate - 1
            text = f"{fast.launch} is {percent(excess)} % faster than {slow.launch}"
            yield in_series("apart", text, series, point.world_size, fast=fast.launch,
                            slow=slow.launch, excess=excess)  # fmt: skip


@rule("shared-gpu", "error", "the ranks take turns on it, so more ranks look slower than they are",
      "give each rank its own GPU")  # fmt: skip
def shared_gpu(evidence: Evidence) -> Iterator[Finding]:
    """Two ranks of a launch computed on one GPU."""
    for launch in evidence.results.launches:
        gpus: dict[tuple[str, str], list[Any]] = {}
        for rank in launch.ranks:
            if rank.get("gpu_uuid"):
                place = (str(rank.get("host")), str(rank["gpu_uuid"]))
                gpus.setdefault(place, []).append(rank.get("rank"))
        for (host, gpu), ranks in gpus.items():
            if len(ranks) > 1:
                text = f"ranks {joined(ranks)} share GPU {gpu}"
                values = {"host": host, "gpu": gpu, "ranks": ranks}
                yield Finding("shared-gpu", text, values=values, launches=(launch.name,))


@rule("too-few-steps", "warning", "one slow step changes the result",
      "measure more rounds (rounds in the campaign)", doubts=False)  # fmt: skip
def too_few_steps(evidence: Evidence) -> Iterator[Finding]:
    """A launch times fewer than ten steps."""
    for series in evidence.measured:
        few: dict[int, int] = {}
        for row in (row for point in series.points for row in point.rows):
            # Runs of a program and benchmarks of others do not count steps.
            steps = 0 if row.program else (row.rounds or 0) * (row.steps_per_round or 0)
            if 0 < steps < FEWEST_STEPS:
                few[row.world_size] = min(steps, few.get(row.world_size, steps))
        if few:
            steps_of_few = sorted(set(few.values()))
            text = f"a launch times only {joined(steps_of_few)} steps, fewer than {FEWEST_STEPS}"
            yield in_series(
                "few-steps", text, series, *few, steps=steps_of_few, fewest=FEWEST_STEPS
            )


@rule("unfinished-launch", "error", "the missing cases may be the slow ones",
      "start it again; it continues where it stopped")  # fmt: skip
def unfinished(evidence: Evidence) -> Iterator[Finding]:
    """A launch ended before all of its cases were measured, skipped or failed."""
    results, by = evidence.results, _began(evidence.results)
    missed = [gap for gap in gaps.gaps(results) if gap.kind == "no-result"]
    for launch in results.launches:
        cases = [_pooled(gap.case, results) for gap in missed if gap.launch == launch.name]
        # Failed cases have their own rule.
        if not launch.complete and (cases or not launch.facts.get("failed")):
            expected = len(launch.facts.get("expected") or []) or launch.num_cases
            held = expected - len(cases)
            size = launch.facts.get("world_size") if cases else None
            yield Finding("early-end", f"the launch ended early, with {held} of "
                                       f"{counted(expected, 'case')}",
                          action=f"{AGAIN[by]}; it continues where it stopped",
                          values={"held": held, "expected": expected, "by": by}, cases=tuple(cases),
                          world_sizes=(size,) if size else (), launches=(launch.name,))  # fmt: skip


@rule("journal-only", "warning", "the file that the session wrote at its end was lost or changed",
      "find out what happened to the file; keep the journal, which holds all cases",
      doubts=False)  # fmt: skip
def journal_only(evidence: Evidence) -> Iterator[Finding]:
    """A launch reached its end, but was read from its journal."""
    for launch in evidence.results.launches:
        is_whole = launch.complete and not launch.contradictions
        if is_whole and launch.path.name == JOURNAL:
            text = "result.json is missing, truncated or too old, so the journal was read"
            yield Finding("from-journal", text, launches=(launch.name,))


@rule("journal-contradicts", "error", "both come from one measurement, so one of them was changed",
      "restore the file that was changed, or measure the launch again")  # fmt: skip
def journal_contradicts(evidence: Evidence) -> Iterator[Finding]:
    """A launch's result.json holds other numbers or cases than its journal.jsonl."""
    for launch in evidence.results.launches:
        for case, (result, journal) in list(launch.contradictions.items())[:1]:
            text = f"{case or 'the launch'} has {result} in result.json, but {journal} in"
            yield Finding("contradicted", f"{text} journal.jsonl, which is used",
                          launches=(launch.name,),
                          values={"case": case, "result": result, "journal": journal})  # fmt: skip


@rule("unreadable-launch", "error", "its results are left out of all numbers",
      "restore the file, or measure the launch again")  # fmt: skip
def unreadable(evidence: Evidence) -> Iterator[Finding]:
    """A launch of the campaign, a case of a launch or a training run cannot be read."""
    results = evidence.results
    launches = {launch.path.parent: launch for launch in results.launches}
    for unread in results.unread:
        launch = launches.get(unread.path.parent) if unread.case else None
        plan = results.plans.get(sources.campaign_folder(unread.path), {}).get("launches", [])
        planned = {str(entry.get("name")): entry.get("world_size") for entry in plan}
        size = unread.world_size or planned.get(unread.path.parent.name)
        size = launch.facts.get("world_size") if launch else size
        yield Finding(
            "unread", unread.reason, values={"reason": unread.reason},
            cases=(unread.case,) if unread.case else (), world_sizes=(size,) if size else (),
            launches=(launch.name,) if launch else (), path="" if launch else str(unread.path),
        )  # fmt: skip


@rule("failed-case", "error", "the remaining cases may look better than all of them would",
      "fix the cause, then start it again")  # fmt: skip
def failed(evidence: Evidence) -> Iterator[Finding]:
    """A case failed."""
    action = f"fix the cause, then {AGAIN[_began(evidence.results)]}"
    for gap in gaps.gaps(evidence.results):
        if gap.kind == "failed":
            yield _gap(gap, f"failed: {gap.reason}", action, evidence.results)


@rule("missing-case", "error", "points missing without a reason may be the bad ones",
      "start it again, which measures what is missing")  # fmt: skip
def missing(evidence: Evidence) -> Iterator[Finding]:
    """A case or a launch was planned, but has no result."""
    ended_early = {launch.name for launch in evidence.results.launches if not launch.complete}
    action = f"{AGAIN[_began(evidence.results)]}, which measures what is missing"
    for gap in gaps.gaps(evidence.results):
        if gap.kind != "failed" and gap.can_be_filled and gap.launch not in ended_early:
            text = "the case was expected, but the launch has no result for it"
            if gap.kind == "not-run":
                text = "the launch was planned, but has no result"
            yield _gap(gap, text, action, evidence.results)


def _gap(gap: gaps.Gap, text: str, action: str, results: Results) -> Finding:
    """Return the finding of a gap; one of a training run concerns all runs pooled with it."""
    return Finding(gap.kind, text, action=action,
                   values={"reason": gap.reason, "by": _began(results)},
                   cases=(_pooled(gap.case, results),) if gap.case else (), launches=(gap.launch,),
                   world_sizes=(gap.world_size,) if gap.world_size else ())  # fmt: skip


def _pooled(case: str | None, results: Results) -> str:
    name = case or ""
    return training_runs.pooled(results.rows).get(training_runs.without_seed(name), name)


def _began(results: Results) -> str:
    """Return what started the launches: `jobs`, `run` for a campaign, or `pytest`."""
    if any((folder / sources.JOBS).is_dir() for folder in results.plans):
        return "jobs"
    return "run" if results.plans else "pytest"


@rule("precision-fell-back", "error",
      "the label names a precision that this hardware does not have",
      "leave the case out, or measure on hardware that has this precision")  # fmt: skip
def fell_back(evidence: Evidence) -> Iterator[Finding]:
    """A case was computed in another precision than requested."""
    for series, point in evidence.points:
        row, size = point.rows[0], point.world_size
        asked = row.factors.get("precision")
        flag = next((flag for flag in point.flags if flag.kind == FELL_BACK), None)
        # A user's own test may vary a precision that it does not record.
        used = row.checks.get("precision", row.precision)
        if used is not None and (asked not in (None, used) or used != row.precision):
            wanted = asked or row.precision
            text = f"{wanted} was requested, but {used} was used"
            yield in_series("other-precision", text, series, size, asked=wanted, used=used)
        elif flag:
            yield in_series("flag", str(flag), series, size, flag=str(flag))


@rule("other-samples", "error", "throughput counts samples, so it is wrong by the same factor",
      "pass the local batch as samples= (len() of a pair or a dict counts its parts), then measure "
      "again")  # fmt: skip
def other_samples(evidence: Evidence) -> Iterator[Finding]:
    """A user's own step states another number of samples than its batch holds."""
    for series, point in evidence.points:
        for flag in point.flags:
            if flag.kind == "other-samples":
                text, size = str(flag), point.world_size
                yield in_series("flag", text, series, size, flag=text, **flag.values)


@rule("duplicate-buckets", "warning", "any difference between them is noise",
      "keep one of them, or choose sizes smaller than the model's gradients",
      doubts=False)  # fmt: skip
def same_buckets(evidence: Evidence) -> Iterator[Finding]:
    """Two bucket sizes gave DDP identical buckets."""
    curves = [curve for curve in evidence.measured if curve.row.study == "bucket"]
    for workload, caps, sizes in equal_buckets(curves):
        yield Finding(
            "equal-buckets", f"bucket_cap_mb {listed(caps)} gave the same buckets",
            values={"caps": listed(caps), "workload": workload}, world_sizes=tuple(sizes),
            cases=tuple(curve.case for curve in curves if curve.row.workload == workload),
        )  # fmt: skip


@rule("above-peak", "error",
      "no device exceeds its peak, so the operations, the time or the peak is wrong",
      "check the FLOP per sample, the device's name and the clock")  # fmt: skip
def above_peak(evidence: Evidence) -> Iterator[Finding]:
    """The FLOP rate is above the device's peak."""
    for series, point in evidence.points:
        factor = max((row.mfu for row in point.rows if row.mfu is not None), default=0.0)
        if factor > 1:
            text = f"the FLOP rate is {factor:.2f} times the datasheet peak"
            yield in_series("over-peak", text, series, point.world_size, factor=factor)


@rule("wrong-result", "error", "a fast case with a wrong result is a failed case",
      "fix it and measure again")  # fmt: skip
def wrong_result(evidence: Evidence) -> Iterator[Finding]:
    """A check of the result, made outside the timed region, failed, or the loss rose."""
    for series, point in evidence.points:
        for row in point.rows:
            checks, place = row.checks, (series, point.world_size)
            names = listed(sorted(name for name, held in checks.items() if held is False))
            launches = (row.launch,)
            if names:
                text = f"the check of {names} failed"
                yield in_series("check-failed", text, *place, launches=launches, names=names)
            if any(checks.get(name, 0.0) is None for name in LOSSES):
                text = "the loss is NaN or infinite"
                yield in_series("loss-unknown", text, *place, launches=launches)
            losses = _losses([row])
            if losses and losses[1] > losses[0]:
                text = "the loss rose over the timed steps"
                yield in_series("loss-rose", text, *place, launches=launches)


@rule("loss-stays", "warning", "training does not progress at this size as it does at others",
      "check the learning rate and how gradients are averaged")  # fmt: skip
def loss_stays(evidence: Evidence) -> Iterator[Finding]:
    """The loss hardly falls at one size in the steps in which it falls at others."""
    for series in evidence.measured:
        known = {
            point.world_size: (*losses, float(point.rows[0].global_batch or 1))
            for point in series.points
            if (losses := _losses(point.rows))
        }
        for size, (first, last, batch) in known.items():
            least, other = max(
                (
                    (min(1.0, its_batch / batch) * (start - end), other)
                    for other, (start, end, its_batch) in known.items()
                    if other != size
                ),
                default=(0.0, size),
            )
            # A loss that rises is a wrong result.
            if 0 <= first - last < STAYS * least:
                other_first, other_last, _ = known[other]
                text = f"the loss goes from {first:.4g} to {last:.4g}, but at world size {other}"
                yield in_series("loss-stays", f"{text} from {other_first:.4g} to {other_last:.4g}",
                                series, size, first=first, last=last, other=other,
                                other_first=other_first, other_last=other_last)  # fmt: skip


def _losses(rows: list[Row]) -> tuple[float, float] | None:
    """Return the median losses before and after the steps of rows that have both."""
    pairs = [[row.checks.get(name) for name in LOSSES] for row in rows]
    numbers = [pair for pair in pairs if all(isinstance(loss, int | float) for loss in pair)]
    if not numbers:
        return None
    first, last = (median(column) for column in zip(*numbers, strict=True))
    return first, last


@rule(FLAGGED, "warning", "a flagged point is not valid evidence for a proposal",
      "remove the cause, then measure the point again")  # fmt: skip
def flagged(evidence: Evidence) -> Iterator[Finding]:
    """A result has a flag that no other rule covers."""
    for series, point in evidence.points:
        for flag in point.flags:
            if flag.kind not in OF_OTHER_RULES:
                text, names = str(flag), [row.launch for row in point.rows if flag in row.flags]
                # In older files a flag is only a sentence, which is then its kind.
                kind = text if flag.kind == "note" else flag.kind
                finding = in_series("flag", text, series, point.world_size, launches=names,
                                    flag=text, flag_kind=kind)  # fmt: skip
                yield replace(finding, doubts=flag.kind in SYSTEMATIC)


@rule("not-measured", "error", "targets must not be mixed with measurements",
      "keep targets in their own file, and measure")  # fmt: skip
def not_measured(evidence: Evidence) -> Iterator[Finding]:
    """A table holds expectations or targets."""
    for series in evidence.series:
        if series.row.origin == "target":
            notes = evidence.table(series).get("notes") or [""]
            note = f", {shorten(notes[0], LONGEST_NOTE)}" if notes[0] else ""
            yield in_series("targets", f"its numbers are targets{note}", series, note=note)


@rule("ranks-missing", "error", "a round lasts as long as its slowest rank, which may be missing",
      "rebuild the file from its journal, or measure again")  # fmt: skip
def ranks_missing(evidence: Evidence) -> Iterator[Finding]:
    """A case has rounds of more or fewer ranks than it ran on."""
    for entry in evidence.entries:
        held, size = len(entry.block["rank_round_s"]), entry.block["world_size"]
        # Runs of a program are timed from outside by one clock.
        if held != size and "command" not in entry.block.get("details", {}):
            text = f"the case has rounds of {counted(held, 'rank')}, but ran on {size}"
            yield entry.finding("ranks-missing", text, held=held, size=size)


@rule("alone-longer", "error",
      "a part cannot take longer than the whole, so one of the times is wrong",
      "measure the case again")  # fmt: skip
def alone_longer(evidence: Evidence) -> Iterator[Finding]:
    """A step without communication takes longer than the whole step, beyond all its rounds."""
    for entry in evidence.entries:
        details = entry.block.get("details", {})
        # The fastest step counts: other jobs may slow these steps, which run after the rounds.
        steps = details.get("rank_variant_s", {}).get("own") or details.get("rank_alone_s")
        alone = list(map(min, steps or [])) or details.get("alone_step_s")
        step_s = max(entry.round_s) / entry.block["steps_per_round"]
        if entry.block["world_size"] > 1 and alone and (alone_s := min(alone)) > LONGER * step_s:
            text = f"the step without communication takes {in_ms(alone_s)} ms, but the longest"
            text = f"{text} whole step takes {in_ms(step_s)} ms"
            yield entry.finding("alone-longer", text, alone_s=alone_s, step_s=step_s)


@rule("launch-disagrees", "error", "one of the two belongs to another experiment",
      "find out which is right, and measure the other again")  # fmt: skip
def launch_disagrees(evidence: Evidence) -> Iterator[Finding]:
    """A case names another world size or number of hosts than its launch."""
    for entry in evidence.entries:
        block, facts, ranked = entry.block, entry.launch.facts, entry.launch.named_hosts
        # Nodes may share one host name; the launcher knows the number of nodes.
        known = {
            "world_size": (block.get("world_size"), facts.get("world_size")),
            "num_nodes": (block.get("num_nodes"), facts.get("num_nodes") or len(ranked) or None),
        }
        own = set(block.get("rank_hosts") or [])
        # A launch that was resumed may have moved; a flag of the result says so.
        if own and ranked and len(facts.get("sessions") or []) < 2:
            known["hosts"] = (sorted(own), sorted(ranked))
        for fact, (value, of_launch) in known.items():
            if of_launch is not None and value != of_launch:
                text = f"{fact} is {_text(value)} in the case, but {_text(of_launch)} in its launch"
                yield entry.finding(
                    "launch-disagrees", text, fact=fact, value=value, known=of_launch
                )
    for launch in evidence.results.launches:
        ranks, size = len(launch.ranks), launch.facts.get("world_size")
        if ranks and size and ranks != size:
            text = f"the launch lists {counted(ranks, 'rank')}, but its world size is {size}"
            values = {"ranks": ranks, "size": size}
            yield Finding("ranks-listed", text, values=values, launches=(launch.name,))


def _text(value: Any) -> str:
    return joined(value) if isinstance(value, list) else str(value)


@rule("cold-start", "warning", "the mean and the cost include what happens only once",
      "measure with more warm-up rounds (warmup_rounds in the campaign)", doubts=False)  # fmt: skip
def cold_start(evidence: Evidence) -> Iterator[Finding]:
    """The first round is the longest by far in every launch of a point."""
    points: dict[tuple[str, int], list[list[float]]] = {}
    for entry in evidence.entries:
        points.setdefault(entry.point, []).append(entry.round_s)
    for (case, size), rounds in points.items():
        if sum(map(len, rounds)) < FEWEST_ROUNDS or min(map(len, rounds)) < 2:
            continue
        if all(first > COLD * max(others) for first, *others in rounds):
            factor = median(first / median(others) for first, *others in rounds)
            text = f"the first round takes {factor:.1f} times as long as the others in every launch"
            values = {"factor": factor}
            yield Finding("cold-start", text, values=values, cases=(case,), world_sizes=(size,))


@rule("identical-work", "warning", "the difference is not an effect of a setting",
      "measure with more warm-up rounds, and ignore smaller differences between "
      "cases", doubts=False)  # fmt: skip
def identical_work(evidence: Evidence) -> Iterator[Finding]:
    """Cases of the same launches do identical work, but one takes significantly longer.

    Work is identical where the gradient buckets are known and equal, and all else of a step is.
    Each launch that holds both cases gives one ratio of median steps, so that what slows a whole
    launch cancels. The factor is the geometric mean of the ratios.
    """
    # World size and work -> case -> launch -> row.
    alike: dict[tuple[int, str], dict[str, dict[str, Row]]] = {}
    for row in (row for series in evidence.measured for p in series.points for row in p.rows):
        if row.details.get("bucket_bytes"):
            varied = {name: value for name, value in row.factors.items() if name not in NAMED}
            work = str([
                row.workload, row.workload_sha256, row.precision, row.local_batch,
                row.samples_per_step, row.details["bucket_bytes"], sorted((USUAL | varied).items()),
            ])  # fmt: skip
            cases = alike.setdefault((row.world_size, work), {})
            cases.setdefault(row.case, {})[row.launch] = row
    for (size, _), cases in alike.items():
        pairs = list(combinations(cases, 2))
        for pair in pairs:
            first, second = (cases[case] for case in pair)
            launches = tuple(name for name in first if name in second)
            ratios = [(first[name].step_s or 1) / (second[name].step_s or 1) for name in launches]
            units = replicates.independent([first[name] for name in launches], ratios)
            # Corrected for the number of pairs (Bonferroni).
            interval = log_interval(units, 1 - (1 - CONFIDENCE) / len(pairs))
            if interval is None:
                continue
            slow, fast, factor, (low, high) = *pair, geometric_mean(units), interval
            if factor < 1:
                slow, fast, factor, low, high = fast, slow, 1 / factor, 1 / high, 1 / low
            if low > 1 and factor > NOTABLE:
                count = len(launches)
                text = f"both do identical work, and {slow} takes {factor:.2f} times as long as"
                text = f"{text} {fast} ({low:.2f} to {high:.2f}, over {counted(count, 'launch')})"
                values = {"slow": slow, "fast": fast, "factor": factor, "low": low, "high": high}
                yield Finding("identical-work", text, values=values | {"count": count}, cases=pair,
                              world_sizes=(size,), launches=launches)  # fmt: skip
