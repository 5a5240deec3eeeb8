"""Rules about launches and their cases: where and how often they ran, and single results."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from statistics import geometric_mean, median
from textwrap import shorten
from typing import Any

from lockstep.core.flags import SYSTEMATIC, threads_at_sizes
from lockstep.core.formats import counted, listed, number, percent
from lockstep.core.sizes import FEWEST_STEPS
from lockstep.core.studies import BUCKETS
from lockstep.report.check.evidence import (
    FLAGGED,
    UNIT,
    Entry,
    Evidence,
    Finding,
    Place,
    are_apart,
    difference,
    fact,
    joined,
    rule,
)
from lockstep.report.compute import replicates
from lockstep.report.compute.alternatives import equal_buckets
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import CONFIDENCE, log_interval
from lockstep.report.load import sources, training_runs
from lockstep.report.load.conflicts import BATCHES
from lockstep.report.load.gaps import Gap
from lockstep.report.load.results import COPY, Launch, Results, Row
from lockstep.report.load.sources import JOURNAL

# A point with this many times the launches of another has too much weight in the curve.
UNEVEN = 2
# What started the launches -> the command that measures missing cases.
AGAIN = {
    "jobs": "run lockstep resume",
    "run": "repeat the same lockstep run command",
    "pytest": "repeat the same pytest command with --resume",
}
LONGEST_NOTE = 90
# A loss that falls by less than this share of the least expected fall counts as flat. If labels are
# random, the gradient of a batch n times as large is 1/sqrt(n) as long, so the loss falls by 1/n.
STAYS = 0.1
LOSSES = ("loss_first", "loss_last")
FELL_BACK = "bf16-emulated"
# Kinds of flags that have a rule of their own.
OF_OTHER_RULES = {
    "unequal-threads", "oversubscribed", "loader-oversubscribed", "logged-rate", "smaller-batch",
    "other-samples", FELL_BACK,
}  # fmt: skip
# Largest plausible ratio of the fastest step without communication to the slowest round's step.
# Above it, the noise of few steps does not explain why the part takes longer than the whole.
LONGER = 1.25
# A first round that is this many times the longest other round in every launch is no noise. Fewer
# rounds prove nothing: of three, the first is the longest by chance in a third of launches.
COLD, FEWEST_ROUNDS = 2.0, 6
# Ratio of cases of equal work; a smaller one changes no conclusion.
NOTABLE = 1.1
# Factors that a record holds in other fields; the actual buckets replace bucket_cap_mb.
NAMED = {"workload", "precision", "local_batch", "global_batch", "bucket_cap_mb"}
# Defaults of factors that a case does not name.
USUAL = {"accumulation": 1, "no_sync": True}


@rule(
    "mixed-provenance",
    "error",
    "launches differ in a way that may change the speed, so reports leave the differing launches "
    "out",
    "report the differing launches separately, or measure all with one image on one kind of node",
)
def mixed_provenance(evidence: Evidence) -> Iterator[Finding]:
    """Launches differ in torch, CUDA, NCCL, driver, image or device."""
    for conflict in evidence.results.conflicts:
        if conflict.case is None and conflict.fact != COPY:
            yield difference(conflict)


@rule(
    "mixed-cases",
    "error",
    "the case means different work in different launches, so one curve would mix unequal work",
    "run lockstep report on each campaign separately; a common report leaves these cases out",
)
def mixed_cases(evidence: Evidence) -> Iterator[Finding]:
    """One case name means another workload, precision or scaling in other launches."""
    for conflict in evidence.results.conflicts:
        if conflict.case is not None and conflict.fact not in BATCHES:
            usual, (odd, *_), action = conflict.usual, conflict.launches, ""
            if len(evidence.results.plans) == 1:
                options = " ".join(f"--replace-launch {name}" for name in conflict.launches)
                again = f"restore the code of {usual} and repeat your lockstep run with {options}"
                if any(row.job for row in evidence.results.rows):
                    again = "measure all launches in a campaign of another name"
                action = f"the measured code changed between {usual} and {odd}: {again}"
            yield replace(difference(conflict), action=action)


@rule(
    "oversubscription",
    "error",
    "the ranks take turns on the cores, so scaling looks worse than it is",
    "use fewer ranks per node, or fewer threads per rank (threads_per_rank in the campaign)",
)
def oversubscription(evidence: Evidence) -> Iterator[Finding]:
    """The ranks of a host run more threads than they have cores."""
    return _crowded(evidence, is_training=False)


@rule(
    "crowded-training",
    "note",
    "the ranks take turns on the cores, which changes times and rates but not the accuracy",
    "quote only the accuracy; to quote a time, use fewer ranks per node or fewer threads per rank",
)
def crowded_training(evidence: Evidence) -> Iterator[Finding]:
    """The ranks of a training run more threads than they have cores."""
    return _crowded(evidence, is_training=True)


def _crowded(evidence: Evidence, *, is_training: bool) -> Iterator[Finding]:
    """Yield crowded hosts of launches that hold only training runs, or of all other launches."""
    rows = evidence.results.rows
    trained = {row.launch for row in rows if row.training}
    trained -= {row.launch for row in rows if not row.training}
    for launch in evidence.launches:
        hosts: dict[str, list[dict[str, Any]]] = {}
        for rank in launch.ranks if (launch.name in trained) == is_training else ():
            hosts.setdefault(str(rank.get("host")), []).append(rank)
        for host, ranks in hosts.items():
            usual = launch.provenance.get("threads_per_rank")
            each: list[Any] = [rank.get("num_threads", usual) for rank in ranks]
            named = {str(core) for rank in ranks for core in rank.get("cores") or []}
            cores = len(named) or launch.provenance.get("cores_per_node")
            is_known = isinstance(cores, int) and all(isinstance(n, int) for n in each)
            if cores and is_known and (threads := sum(each)) > cores:
                available_cores = counted(cores, "core")
                text = f"the ranks of a host run {threads} threads on {available_cores}"
                yield fact("crowded", text, launches=(launch.name,), host=host, threads=threads,
                           cores=cores)  # fmt: skip


@rule("unequal-ranks", "error",
      "ranks with different numbers of threads cannot share a curve, so no efficiency is computed",
      "measure every size with the same --threads-per-rank, or compare folders (lockstep compare)",
      "series")  # fmt: skip
def unequal_ranks(series: Series) -> Iterator[Finding]:
    """CPU ranks had more threads in one launch than in another."""
    for flag in series.base.flags:
        if flag.kind == "unequal-threads":
            threads = flag.values["threads"]
            yield fact("unequal-threads", threads_at_sizes(threads), threads=threads)


@rule(
    "no-repeat",
    "warning",
    "the noise between launches is unknown, so there is no interval",
    "measure at least 3 launches per point: set repeats = 3 in the campaign",
    "measured",
    doubts=False,
)
def no_repeat(series: Series) -> Iterator[Finding]:
    """A measured point has one launch."""
    if sizes := [point.world_size for point in series.points if point.num_launches == 1]:
        has = "has" if len(sizes) == 1 else "have"
        text = f"{counted(len(sizes), 'point')} {has} only one launch"
        yield fact("one-launch", text, *sizes, count=len(sizes))


@rule("uneven-repeats", "warning", "a point that is repeated until its result looks good is biased",
      "measure all points with the same number of launches", "measured")  # fmt: skip
def uneven_repeats(series: Series) -> Iterator[Finding]:
    """One point of a series has more than twice the launches of another."""
    low, high = (f(series.points, key=lambda point: point.num_launches) for f in (min, max))
    few, many = low.num_launches, high.num_launches
    if many > UNEVEN * few:
        text = f"{counted(few, 'launch')} at {low.world_size}, {many} at {high.world_size}"
        yield fact("launch-counts", text, low.world_size, high.world_size, fewest=few,
                   at_fewest=low.world_size, most=many, at_most=high.world_size)  # fmt: skip


@rule("duplicate", "error", "a copied launch is no repeat, and makes the interval too small",
      "remove the copy")  # fmt: skip
def duplicates(evidence: Evidence) -> Iterator[Finding]:
    """A launch is given twice, or two launches hold identical rounds."""
    for conflict in evidence.results.conflicts:
        if conflict.fact == COPY:
            name, first = conflict.values
            yield Finding("read-twice", f"launch {name} was already read from {first}",
                          values={"name": name, "first": first}, launches=conflict.launches,
                          path=conflict.path)  # fmt: skip
    for series, point in evidence.points:
        alike: dict[tuple[Any, ...], list[str]] = {}
        for row in point.rows:
            # Equal numbers prove no copy in a program's counts, nor in tables, which are rounded.
            if row.stddev_step_s is not None and not row.program:
                spread = (row.min_step_s, row.max_step_s, row.stddev_step_s)
                numbers = (row.rate, row.mean_step_s, *spread, row.time_s)
                alike.setdefault(numbers, []).append(row.launch)
        for names in alike.values():
            if len(names) > 1:
                equal_launches = joined(names)
                text = f"the launches {equal_launches} have exactly the same numbers"
                yield fact("same-numbers", text, point.world_size, at=series, names=names)


@rule("unit", "error",
      "two values differ more than any machine varies, so one of them is wrong, and so are ratios "
      "computed from it",
      "check the units of both values, then import or measure the wrong value again")  # fmt: skip
def other_unit(evidence: Evidence) -> Iterator[Finding]:
    """Launches of one point, or ranks of two sizes, differ by a factor of 100 or more."""
    likely_cause = "one value may be in another unit, such as milliseconds instead of seconds"
    for series, point in evidence.points:
        if max(point.rates) > UNIT * min(point.rates):
            slow, fast, factor = _extremes(point)
            text = f"launch {fast} is {factor:.0f} times as fast as launch {slow}; {likely_cause}"
            yield fact("unit", text, point.world_size, at=series, fast=fast, slow=slow,
                       factor=factor)  # fmt: skip
    for series in evidence.ladders:
        for pair in pairwise(series.points):
            each = {point.world_size: point.rate / point.world_size for point in pair}
            low, high = sorted(each, key=each.__getitem__)
            if (factor := each[high] / each[low]) > UNIT:
                text = (f"each rank is {factor:.0f} times as fast at world size {high} as at world "
                        f"size {low}")  # fmt: skip
                yield fact("unit-of-size", f"{text}; {likely_cause}", *each, at=series, fast=high,
                           slow=low, factor=factor)  # fmt: skip


def _extremes(point: Point) -> tuple[str, str, float]:
    """Return the names of the slowest and the fastest launch, and the ratio of their rates."""
    rows = sorted(point.rows, key=lambda row: row.rate)
    return rows[0].launch, rows[-1].launch, rows[-1].rate / rows[0].rate


@rule(
    "launches-apart",
    "warning",
    "the launches of a point differ by more than a quarter, so their median says little",
    "find out what differs between the launches, then measure the point again",
    "points",
)
def launches_apart(_series: Series, point: Point) -> Iterator[Finding]:
    """Launches of one point differ by more than a quarter."""
    # With five launches or more, a flag names the outliers.
    if not are_apart(point) or any(flag.kind == "outlier" for flag in point.flags):
        return
    slow, fast, factor = _extremes(point)
    if factor <= UNIT:
        text = f"{fast} is {percent(factor - 1)} % faster than {slow}"
        yield fact("apart", text, fast=fast, slow=slow, excess=factor - 1)


@rule("shared-gpu", "error", "ranks take turns on a shared GPU, so scaling looks worse than it is",
      "give each rank its own GPU", "launches")  # fmt: skip
def shared_gpu(launch: Launch) -> Iterator[Finding]:
    """Two ranks of a launch computed on one GPU."""
    gpus: dict[tuple[str, str], list[Any]] = {}
    for rank in launch.ranks:
        if rank.get("gpu_uuid"):
            place = (str(rank.get("host")), str(rank["gpu_uuid"]))
            gpus.setdefault(place, []).append(rank.get("rank"))
    for (host, gpu), ranks in gpus.items():
        if len(ranks) > 1:
            text = f"ranks {joined(ranks)} share GPU {gpu}"
            yield fact("shared-gpu", text, host=host, gpu=gpu, ranks=ranks)


@rule("too-few-steps", "warning",
      "a launch times so few steps that one slow step changes the result",
      "in the campaign file, increase rounds, or set a larger size than smoke, which is for trials",
      "measured", doubts=False)  # fmt: skip
def too_few_steps(series: Series) -> Iterator[Finding]:
    """A launch times fewer than ten steps."""
    few: dict[int, int] = {}
    for row in series.rows:
        # Runs of a program and benchmarks of others do not count steps.
        steps = 0 if row.program else (row.rounds or 0) * (row.steps_per_round or 0)
        if 0 < steps < FEWEST_STEPS:
            few[row.world_size] = min(steps, few.get(row.world_size, steps))
    if few:
        steps_of_few = sorted(set(few.values()))
        num_steps = joined(steps_of_few)
        text = f"a launch times only {num_steps} steps, but {FEWEST_STEPS} are needed"
        yield fact("few-steps", text, *few, steps=steps_of_few, fewest=FEWEST_STEPS)


@rule("unfinished-launch", "error",
      "a launch ended early, and the missing cases may be the slow cases",
      "start the launch again; the launch continues where it stopped")  # fmt: skip
def unfinished_launches(evidence: Evidence) -> Iterator[Finding]:
    """A launch ended before all of its cases were measured, skipped or failed."""
    results = evidence.results
    missed = [gap for gap in evidence.gaps if gap.kind == "no-result"]
    for launch in results.launches:
        cases = [_pooled(gap.case, results) for gap in missed if gap.launch == launch.name]
        # Failed cases have their own rule.
        if not launch.complete and (cases or not launch.facts.get("failed")):
            expected = len(launch.facts.get("expected") or []) or len(launch.entries)
            held, size = expected - len(cases), launch.facts.get("world_size") if cases else None
            cases_expected = counted(expected, "case")
            text = f"the launch ended early, and measured only {held} of {cases_expected}"
            by, action = _again(
                results, launch.name, "{command}; the launch continues where it stopped"
            )
            yield Finding("early-end", text, values={"held": held, "expected": expected, "by": by},
                          cases=tuple(cases), world_sizes=(size,) if size else (), action=action,
                          launches=(launch.name,))  # fmt: skip


@rule(
    "journal-only",
    "warning",
    "the file result.json of the pytest session was lost or changed",
    "find out what happened to result.json, and keep journal.jsonl, which holds all cases",
    "launches",
    doubts=False,
)
def journal_only(launch: Launch) -> Iterator[Finding]:
    """A launch reached its end, but was read from its journal."""
    if launch.complete and not launch.contradictions and launch.path.name == JOURNAL:
        text = "result.json is missing, truncated or too old, so Lockstep read the journal instead"
        yield fact("from-journal", text)


@rule("journal-contradicts", "error",
      "the journal and result.json should agree, so one of the two files was changed",
      "restore the file that was changed, or measure the launch again", "launches")  # fmt: skip
def journal_contradicts(launch: Launch) -> Iterator[Finding]:
    """A launch's result.json holds other numbers or cases than its journal.jsonl."""
    for case, (result, journal) in list(launch.contradictions.items())[:1]:
        case_or_launch = case or "the launch"
        text = (f"{case_or_launch} has {result} in result.json, but {journal} in journal.jsonl; "
                "reports use the journal")  # fmt: skip
        yield fact("contradicted", text, case=case,
                   result=result, journal=journal)  # fmt: skip


@rule("unreadable-launch", "error",
      "a file of results cannot be read, so all numbers leave these results out",
      "restore the unreadable file, or measure the launch again")  # fmt: skip
def unreadable_launches(evidence: Evidence) -> Iterator[Finding]:
    """A launch of the campaign or a case of a launch cannot be read."""
    results = evidence.results
    launches = {launch.path.parent: launch for launch in results.launches}
    for unread in results.unread:
        launch = launches.get(unread.path.parent) if unread.case else None
        plan = results.plans.get(sources.campaign_folder(unread.path), {}).get("launches", [])
        planned = {str(entry.get("name")): entry.get("world_size") for entry in plan}
        name = unread.path.parent.name
        size = launch.facts.get("world_size") if launch else planned.get(name)
        yield Finding(
            "unread", unread.reason, values={"reason": unread.reason},
            cases=(unread.case,) if unread.case else (), world_sizes=(size,) if size else (),
            launches=(launch.name,) if launch else (), path="" if launch else str(unread.path),
        )  # fmt: skip


@rule("failed-case", "error", "without the missing cases, the results may look too good",
      "fix the cause, then start the launch again")  # fmt: skip
def failed_cases(evidence: Evidence) -> Iterator[Finding]:
    """A case failed."""
    for gap in evidence.gaps:
        if gap.kind == "failed":
            action = "fix the cause, then {command}"
            yield _gap(gap, f"failed: {gap.reason}", action, evidence.results)


@rule("missing-case", "error", "points that are missing without a reason may have bad results",
      "start the launch again to measure what is missing")  # fmt: skip
def missing_cases(evidence: Evidence) -> Iterator[Finding]:
    """A case or a launch was planned, but has no result."""
    ended_early = {launch.name for launch in evidence.launches if not launch.complete}
    for gap in evidence.gaps:
        if gap.kind != "failed" and gap.can_be_filled and gap.launch not in ended_early:
            text = "the case was expected, but the launch has no result for it"
            if gap.kind == "not-run":
                text = "the launch was planned, but has no result"
            yield _gap(gap, text, "{command} to measure what is missing", evidence.results)


@rule("dropped-launch", "warning",
      "launches that were dropped after the first results may have had bad results",
      "in the campaign file, restore the earlier repeats and world sizes; then run the campaign "
      "again")  # fmt: skip
def dropped_launches(evidence: Evidence) -> Iterator[Finding]:
    """A launch was planned, and dropped by fewer repeats or world sizes once others had results."""
    for gap in evidence.gaps:
        if gap.kind == "dropped":
            text = "the launch was planned, but its campaign has fewer repeats or sizes now"
            sizes = [gap.world_size] if gap.world_size else []
            yield fact(gap.kind, text, *sizes, launches=(gap.launch,))


def _gap(gap: Gap, text: str, action: str, results: Results) -> Finding:
    """Return the finding of a gap; a training run's gap concerns all its repeats."""
    by, action = _again(results, gap.launch, action)
    return Finding(gap.kind, text, action=action, values={"reason": gap.reason, "by": by},
                   cases=(_pooled(gap.case, results),) if gap.case else (), launches=(gap.launch,),
                   world_sizes=(gap.world_size,) if gap.world_size else ())  # fmt: skip


def _pooled(case: str | None, results: Results) -> str:
    name = case or ""
    return training_runs.map_repeats(results.rows).get(training_runs.drop_seed(name), name)


def _again(results: Results, name: str, action: str) -> tuple[str, str]:
    """Return what started a launch, and the action, in which {command} is filled in.

    No command repeats a launch that its campaign does not plan, such as one beyond `--repeats`.
    """
    by = "run" if results.plans else "pytest"
    if any((folder / sources.JOBS).is_dir() for folder in results.plans):
        by = "jobs"
    for launch in results.launches:
        plan = results.plans.get(sources.campaign_folder(launch.path), {}).get("launches") or []
        names = [entry.get("name") for entry in plan]
        if launch.name == name and names and launch.facts.get("launch", name) not in names:
            return by, (
                f"delete the folder {launch.path.parent}, which is not in its campaign's plan, or "
                "increase repeats in the campaign file and run the campaign again"
            )
    return by, action.format(command=AGAIN[by])


@rule("precision-fell-back", "error",
      "the name of the case has a precision that this hardware does not support",
      "leave the case out, or measure on hardware that supports this "
      "precision", "points")  # fmt: skip
def precision_fallback(_series: Series, point: Point) -> Iterator[Finding]:
    """A case was computed in another precision than requested."""
    row = point.rows[0]
    requested = row.factors.get("precision")
    # A user's own test may vary a precision that it does not record.
    used = row.checks.get("precision", row.precision)
    if used is not None and (requested not in (None, used) or used != row.precision):
        wanted = requested or row.precision
        text = f"precision {wanted} was requested, but {used} was used"
        yield fact("other-precision", text, asked=wanted, used=used)
    elif text := next((str(flag) for flag in point.flags if flag.kind == FELL_BACK), ""):
        yield fact("flag", text, flag=text)


@rule("other-samples", "error",
      "the stated number of samples is wrong, so the throughput is wrong by the same factor",
      "pass the number of samples of one rank as samples=N, and measure again; len() of a pair of "
      "tensors is 2, not the number of samples", "points")  # fmt: skip
def other_samples(_series: Series, point: Point) -> Iterator[Finding]:
    """A user's own step states another number of samples than its batch holds."""
    for flag in point.flags:
        if flag.kind == "other-samples":
            yield fact("flag", str(flag), flag=str(flag), **flag.values)


@rule(
    "duplicate-buckets",
    "warning",
    "two values of bucket_cap_mb do the same work, so any difference between them is noise",
    "keep one of these values, or choose buckets smaller than the model's gradients",
    doubts=False,
)
def same_buckets(evidence: Evidence) -> Iterator[Finding]:
    """Two bucket sizes gave DDP identical buckets."""
    curves = [curve for curve in evidence.measured if curve.row.study in BUCKETS]
    for workload, caps, sizes in equal_buckets(curves):
        yield Finding(
            "equal-buckets",
            f"the values {listed(caps)} of bucket_cap_mb gave the same gradient buckets",
            values={"caps": listed(caps), "workload": workload}, world_sizes=tuple(sizes),
            cases=tuple(curve.case for curve in curves if curve.row.workload == workload),
        )  # fmt: skip


@rule("above-peak", "error",
      "no device exceeds its peak, so the count of operations, the time or the peak is wrong",
      "check the FLOP per sample, the device's name and the clock", "points")  # fmt: skip
def above_peak(_series: Series, point: Point) -> Iterator[Finding]:
    """The FLOP rate is above the device's peak."""
    if (factor := max(row.mfu or 0.0 for row in point.rows)) > 1:
        text = f"the FLOP rate is {factor:.2f} times the datasheet peak"
        yield fact("over-peak", text, factor=factor)


@rule("wrong-result", "error", "a case with a wrong result has failed, however fast it is",
      "fix the cause of the wrong result, and measure again", "points")  # fmt: skip
def wrong_result(_series: Series, point: Point) -> Iterator[Finding]:
    """A check of the result, made outside the timed region, failed, or the loss rose."""
    for row in point.rows:
        launches = (row.launch,)
        if failed := sorted(name for name, passed in row.checks.items() if passed is False):
            names = listed(failed)
            text = f"a check of the result failed: {names}"
            yield fact("check-failed", text, launches=launches, names=names)
        if any(row.checks.get(name, 0.0) is None for name in LOSSES):
            yield fact("loss-unknown", "the loss is NaN or infinite", launches=launches)
        losses = _losses([row])
        if losses and losses[1] > losses[0]:
            yield fact("loss-rose", "the loss rose over the timed steps", launches=launches)


@rule("loss-stays", "warning",
      "training progresses differently at this size than at others",
      "check the learning rate and how gradients are averaged", "measured")  # fmt: skip
def loss_stays(series: Series) -> Iterator[Finding]:
    """The loss hardly falls at one size over steps in which it falls at other sizes."""
    known = {
        point.world_size: (*losses, float(point.rows[0].global_batch or 1))
        for point in series.points
        if (losses := _losses(point.rows))
    }
    for size, (first, last, batch) in known.items():
        falls = [
            (min(1.0, its_batch / batch) * (start - end), other)
            for other, (start, end, its_batch) in known.items()
            if other != size
        ]
        least, other = max(falls, default=(0.0, size))
        # The rule `wrong-result` reports a loss that rises.
        if 0 <= first - last < STAYS * least:
            start, end, _ = known[other]
            text = (f"the loss goes from {first:.4g} to {last:.4g} at this size, but from "
                    f"{start:.4g} to {end:.4g} at world size {other}")  # fmt: skip
            yield fact("loss-stays", text, size, first=first, last=last,
                       other=other, other_first=start, other_last=end)  # fmt: skip


def _losses(rows: list[Row]) -> tuple[float, float] | None:
    """Return the median losses before and after the steps of rows that have both."""
    pairs = [[row.checks.get(name) for name in LOSSES] for row in rows]
    numbers = [pair for pair in pairs if all(isinstance(loss, int | float) for loss in pair)]
    if not numbers:
        return None
    first, last = (median(column) for column in zip(*numbers, strict=True))
    return first, last


@rule(FLAGGED, "warning", "a point with a flag is not valid evidence for a compute-time proposal",
      "remove the cause of the flag, then measure the point again", "points")  # fmt: skip
def flagged_points(_series: Series, point: Point) -> Iterator[Finding]:
    """A result has a flag that no other rule covers."""
    for flag in point.flags:
        if flag.kind not in OF_OTHER_RULES:
            text, names = str(flag), [row.launch for row in point.rows if flag in row.flags]
            # In older files a flag is only a sentence, which is then its kind.
            kind = text if flag.kind == "note" else flag.kind
            yield fact("flag", text, launches=names, doubts=flag.kind in SYSTEMATIC, flag=text,
                       flag_kind=kind)  # fmt: skip


@rule("not-measured", "error", "targets must not be mixed with measurements",
      "move the targets to a folder of their own")  # fmt: skip
def not_measured(evidence: Evidence) -> Iterator[Finding]:
    """A table holds expectations or targets."""
    for series in evidence.series:
        if series.row.origin == "target":
            notes = evidence.table(series).get("notes") or [""]
            note = f", {shorten(notes[0], LONGEST_NOTE)}" if notes[0] else ""
            yield fact("targets", f"its numbers are targets{note}", at=series, note=note)


@rule(
    "ranks-missing",
    "error",
    "a round lasts as long as its slowest rank, which may be the missing rank",
    "delete result.json, so that Lockstep reads the journal instead, or measure again",
    "entries",
)
def ranks_missing(entry: Entry) -> Iterator[Finding]:
    """A case has rounds of more or fewer ranks than it ran on."""
    held, size = len(entry.block["rank_round_s"]), entry.block["world_size"]
    # Runs of a program are timed from outside by one clock.
    if held != size and "command" not in entry.block.get("details", {}):
        recorded_ranks = counted(held, "rank")
        text = f"the case recorded rounds of {recorded_ranks}, but its world size is {size}"
        yield fact("ranks-missing", text, held=held, size=size)


@rule("alone-longer", "error",
      "a step without communication cannot take longer than a whole step, so one of the times is "
      "wrong",
      "measure the case again", "entries")  # fmt: skip
def alone_longer(entry: Entry) -> Iterator[Finding]:
    """A step without communication takes longer than the whole step of the longest round."""
    details = entry.block.get("details", {})
    # The fastest step counts: other jobs may slow these steps, which run after the rounds.
    steps = details.get("rank_variant_s", {}).get("own") or details.get("rank_alone_s")
    alone = list(map(min, steps or [])) or details.get("alone_step_s")
    step_s = max(entry.round_s) / entry.block["steps_per_round"]
    if entry.block["world_size"] > 1 and alone and (alone_s := min(alone)) > LONGER * step_s:
        text = (f"the step without communication takes {number(1e3 * alone_s)} ms, but the longest "
                f"whole step takes {number(1e3 * step_s)} ms")  # fmt: skip
        yield fact("alone-longer", text, alone_s=alone_s, step_s=step_s)


@rule("launch-disagrees", "error", "a case and its launch record different values of the same fact",
      "find out which of the two records is right, and measure the launch again")  # fmt: skip
def launch_disagrees(evidence: Evidence) -> Iterator[Finding]:
    """A case names another world size or number of hosts than its launch."""
    hosts = {launch.name: launch.named_hosts for launch in evidence.launches}
    for entry in evidence.entries:
        block, facts, ranked = entry.block, entry.launch.facts, hosts[entry.launch.name]
        # Nodes may share one host name; the launcher knows the number of nodes.
        known: dict[str, tuple[Any, Any]] = {
            "world_size": (block.get("world_size"), facts.get("world_size")),
            "num_nodes": (block.get("num_nodes"), facts.get("num_nodes") or len(ranked) or None),
        }
        own = set(block.get("rank_hosts") or [])
        # A launch that was resumed may have moved; a flag of the result says so.
        if own and ranked and len(facts.get("sessions") or []) < 2:
            known["hosts"] = (sorted(own), sorted(ranked))
        for name, (value, of_launch) in known.items():
            if of_launch is not None and value != of_launch:
                own_text, text_of_launch = value, of_launch
                if name == "hosts":
                    own_text, text_of_launch = joined(value), joined(of_launch)
                text = f"{name} is {own_text} in the case, but {text_of_launch} in its launch"
                yield fact("launch-disagrees", text, at=entry, fact=name, value=value,
                           known=of_launch)  # fmt: skip
    for launch in evidence.launches:
        ranks, size = len(launch.ranks), launch.facts.get("world_size")
        if ranks and size and ranks != size:
            listed_ranks = counted(ranks, "rank")
            text = f"the launch lists {listed_ranks}, but its world size is {size}"
            yield fact("ranks-listed", text, at=launch, ranks=ranks, size=size)


@rule(
    "cold-start",
    "warning",
    "the first round includes start-up work, which raises the mean time and the cost",
    "measure more warm-up rounds: increase warmup_rounds in the campaign",
    doubts=False,
)
def cold_start(evidence: Evidence) -> Iterator[Finding]:
    """The first round is the longest by far in every launch of a point."""
    points: dict[Place, list[list[float]]] = {}
    for entry in evidence.entries:
        points.setdefault(entry.point, []).append(entry.round_s)
    for (case, size), rounds in points.items():
        is_long = sum(map(len, rounds)) >= FEWEST_ROUNDS and min(map(len, rounds)) > 1
        if is_long and all(first > COLD * max(others) for first, *others in rounds):
            factor = median(first / median(others) for first, *others in rounds)
            text = (
                f"in every launch, the first round takes {factor:.1f} times as long as the other "
                "rounds"
            )
            yield Finding("cold-start", text, values={"factor": factor}, cases=(case,),
                          world_sizes=(size,))  # fmt: skip


@rule(
    "identical-work",
    "warning",
    "two cases do identical work, so their settings do not explain the difference in time",
    "measure more warm-up rounds, and ignore differences between cases that are smaller than this "
    "difference",
    doubts=False,
)
def identical_work(evidence: Evidence) -> Iterator[Finding]:
    """Cases of the same launches do identical work, but one takes significantly longer.

    Work is identical if the gradient buckets are known, and they and all else of a step are equal.
    Each launch that holds both cases gives one ratio of median steps, so that whatever slows a
    whole launch cancels. The factor is the geometric mean of the ratios.
    """
    # World size and work -> case -> launch -> row.
    alike: dict[tuple[int, str], dict[str, dict[str, Row]]] = {}
    for row in (row for series in evidence.measured for row in series.rows):
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
                num_launches = counted(count, "launch")
                text = (
                    f"both cases do identical work, but {slow} takes {factor:.2f} times as long as "
                    f"{fast} (interval {low:.2f} to {high:.2f} over {num_launches})"
                )
                values = {"slow": slow, "fast": fast, "factor": factor, "low": low, "high": high}
                yield Finding("identical-work", text, values=values | {"count": count}, cases=pair,
                              world_sizes=(size,), launches=launches)  # fmt: skip
