"""Rules about launches: what they have in common, where they ran, how many there are."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from lockstep.report.check.evidence import UNIT, Evidence, Hit, are_apart, difference, hit, rule
from lockstep.report.compute.scaling import Point
from lockstep.report.load import gaps, sources, training_runs
from lockstep.report.load.conflicts import BATCHES
from lockstep.report.load.gaps import Gap
from lockstep.report.load.results import COPY, Launch, Results, Row
from lockstep.report.load.sources import JOURNAL

# Steps of a launch in all its timed rounds: of fewer, one late step moves the mean by a tenth.
FEWEST_STEPS = 10
# A point with so many times the launches of another shifts what is known of the curve to itself.
UNEVEN = 2


@rule(
    "mixed-provenance", "error", "a difference between them is not one of world size",
    "report them apart, or measure all with one image on one kind of node; until then a "
    "report leaves them out",
)  # fmt: skip
def mixed_provenance(evidence: Evidence) -> Iterator[Hit]:
    """Launches differ in torch, CUDA, NCCL, driver, image or device."""
    for conflict in evidence.results.conflicts:
        if conflict.case is None and conflict.fact != COPY:
            yield difference(conflict)


@rule(
    "mixed-cases", "error", "one curve would join different experiments",
    "report them apart; until then a report leaves them out",
)  # fmt: skip
def mixed_cases(evidence: Evidence) -> Iterator[Hit]:
    """One case name means another workload, precision or scaling in other launches."""
    for conflict in evidence.results.conflicts:
        if conflict.case is not None and conflict.fact not in BATCHES:
            yield difference(conflict)


@rule(
    "oversubscription", "error", "the ranks take turns, and scaling looks worse than it is",
    "measure fewer ranks on a node, or with fewer threads each: threads_per_rank",
)  # fmt: skip
def oversubscription(evidence: Evidence) -> Iterator[Hit]:
    """The ranks of a host have more threads than it has cores for them."""
    trained = _training_launches(evidence)
    yield from _crowded(
        launch for launch in evidence.results.launches if launch.name not in trained
    )


@rule(
    "crowded-training", "note", "the ranks take turns, which changes their times and "
    "rates, and nothing that they learn",
    "quote the accuracy; for a time, measure fewer ranks on a node, or fewer threads each",
)  # fmt: skip
def crowded_training(evidence: Evidence) -> Iterator[Hit]:
    """The ranks of a training have more threads than their host has cores for them."""
    trained = _training_launches(evidence)
    yield from _crowded(launch for launch in evidence.results.launches if launch.name in trained)


def _training_launches(evidence: Evidence) -> set[str]:
    """Return the launches of nothing but training runs, whose first result is no speed."""
    rows = evidence.results.rows
    timed = {row.launch for row in rows if not row.training}
    return {row.launch for row in rows if row.training} - timed


def _crowded(launches: Iterable[Launch]) -> Iterator[Hit]:
    for launch in launches:
        for host, threads, cores in _crowds(launch):
            if threads > cores:
                values = {"host": host, "threads": threads, "cores": cores}
                yield Hit("crowded", values, launches=(launch.name,))


def _crowds(launch: Launch) -> Iterator[tuple[str, int, int]]:
    """Yield (host, threads of its ranks, cores they may use) where both are known."""
    provenance = launch.provenance
    hosts: dict[str, list[dict[str, Any]]] = {}
    for rank in launch.ranks:
        hosts.setdefault(str(rank.get("host")), []).append(rank)
    for host, ranks in hosts.items():
        each = (rank.get("num_threads", provenance.get("threads_per_rank")) for rank in ranks)
        threads = [count for count in each if isinstance(count, int)]
        cores = {str(core) for rank in ranks for core in rank.get("cores") or []}
        count = len(cores) or provenance.get("cores_per_node")
        if isinstance(count, int) and count and len(threads) == len(ranks):
            yield host, sum(threads), count


@rule(
    "unequal-ranks", "error", "efficiency would compare strong ranks with weak ones",
    "measure every size with one --threads-per-rank",
)  # fmt: skip
def unequal_ranks(evidence: Evidence) -> Iterator[Hit]:
    """CPU ranks had more threads in one launch than in another."""
    for series in evidence.series:
        for flag in series.base.flags:
            if flag.kind == "unequal-threads":
                yield hit("unequal-threads", series, threads=flag.values["threads"])


@rule(
    "no-repeat", "warning", "nothing is known of the noise, so there is no interval",
    "measure at least 3 launches of every point: repeats = 3",
    doubts=False,
    facts={"one-launch": "{count:point} with one launch"},
)  # fmt: skip
def no_repeat(evidence: Evidence) -> Iterator[Hit]:
    """A measured point has one launch."""
    for series in evidence.measured:
        sizes = [point.world_size for point in series.points if point.num_launches == 1]
        if sizes:
            yield hit("one-launch", series, *sizes, count=len(sizes))


@rule(
    "uneven-repeats", "warning", "was one measured until it pleased?",
    "measure all points equally often, in turn",
    facts={"launch-counts": "{fewest:launch} at {at_fewest}, {most} at {at_most}"},
)  # fmt: skip
def uneven_repeats(evidence: Evidence) -> Iterator[Hit]:
    """One point of a series has more than twice the launches of another."""
    for series in evidence.measured:
        counts = {point.world_size: point.num_launches for point in series.points}
        fewest = min(counts, key=counts.__getitem__)
        most = max(counts, key=counts.__getitem__)
        if counts[most] > UNEVEN * counts[fewest]:
            yield hit(
                "launch-counts", series, fewest, most, fewest=counts[fewest], at_fewest=fewest,
                most=counts[most], at_most=most,
            )  # fmt: skip


@rule(
    "duplicate", "error", "a copy is no repeat, and makes the interval too small",
    "remove the copy",
    facts={
        "read-twice": "launch {name} is already read from {first}",
        "same-numbers": "{names} hold the same numbers",
    },
)  # fmt: skip
def same_twice(evidence: Evidence) -> Iterator[Hit]:
    """A launch is given twice, or two launches hold the very same rounds."""
    for conflict in evidence.results.conflicts:
        if conflict.fact == COPY:
            name, first = conflict.values
            values = {"name": name, "first": first}
            yield Hit("read-twice", values, launches=conflict.launches, path=conflict.where)
    for series, point in evidence.points:
        seen: dict[tuple[Any, ...], list[str]] = {}
        # What a program counts may be the same each time.
        # Equal numbers of tables, which have no spread of rounds, are rounded: 24.1 s twice.
        for row in (r for r in point.rows if r.stddev_step_s is not None and not r.program):
            seen.setdefault(_numbers(row), []).append(row.launch)
        for names in seen.values():
            if len(names) > 1:
                yield hit("same-numbers", series, point.world_size, names=names)


@rule(
    "unit", "error", "no machine differs so much from itself, and every ratio is wrong",
    "look at the units of both, and bring in or measure the wrong one again",
    facts={
        "unit-of-size": "each rank is {factor:.0f} times as fast at world size {fast} as "
        "at {slow}: is one of them in another unit, such as milliseconds for seconds?",
    },
)  # fmt: skip
def other_unit(evidence: Evidence) -> Iterator[Hit]:
    """Launches of one point, or ranks of two sizes, differ as much as units do."""
    for series, point in evidence.points:
        slow, fast = _ends(point)
        if fast.rate > UNIT * slow.rate:
            yield hit(
                "unit", series, point.world_size, fast=fast.launch, slow=slow.launch,
                factor=fast.rate / slow.rate,
            )  # fmt: skip
    for series in evidence.ladders:
        for left, right in pairwise(series.points):
            each = {point.world_size: point.rate / point.world_size for point in (left, right)}
            low, high = sorted(each, key=each.__getitem__)
            if each[high] > UNIT * each[low]:
                factor = each[high] / each[low]
                yield hit("unit-of-size", series, *each, fast=high, slow=low, factor=factor)


def _ends(point: Point) -> tuple[Row, Row]:
    """Return the slowest and the fastest launch of a point."""
    rows = sorted(point.rows, key=lambda row: row.rate)
    return rows[0], rows[-1]


@rule(
    "shared-gpu", "error", "the ranks take turns, and more ranks look slower than they are",
    "give each rank a GPU of its own",
    facts={"shared-gpu": "ranks {ranks} are on one GPU, {gpu}"},
)  # fmt: skip
def shared_gpu(evidence: Evidence) -> Iterator[Hit]:
    """Two ranks of a launch computed on one GPU."""
    for launch in evidence.results.launches:
        ranks: dict[tuple[str, str], list[Any]] = {}
        for rank in launch.ranks:
            if rank.get("gpu_uuid"):
                place = (str(rank.get("host")), str(rank["gpu_uuid"]))
                ranks.setdefault(place, []).append(rank.get("rank"))
        for (host, gpu), shared in ranks.items():
            if len(shared) > 1:
                values = {"host": host, "gpu": gpu, "ranks": shared}
                yield Hit("shared-gpu", values, launches=(launch.name,))


@rule(
    "launches-apart", "warning", "their median describes none of them, nor does a curve",
    "find out what differs between them, and measure the point again",
    facts={"apart": "{fast} is {excess:percent} faster than {slow}"},
)  # fmt: skip
def disagree(evidence: Evidence) -> Iterator[Hit]:
    """Launches of one point lie further apart than by a quarter."""
    for series, point in evidence.points:
        slow, fast = _ends(point)
        if fast.rate > UNIT * slow.rate:
            continue
        # Of five launches or more a flag names those that are far from the others.
        if are_apart(point) and not any(flag.kind == "outlier" for flag in point.flags):
            yield hit(
                "apart", series, point.world_size, fast=fast.launch, slow=slow.launch,
                excess=fast.rate / slow.rate - 1,
            )  # fmt: skip


def _numbers(row: Row) -> tuple[Any, ...]:
    spread = (row.min_step_s, row.max_step_s, row.stddev_step_s)
    return (row.rate, row.mean_step_s, *spread, row.time_s)


@rule(
    "too-few-steps", "warning", "one late step changes the result",
    "measure with more rounds: rounds in the campaign",
    doubts=False,
    facts={"few-steps": "timed steps of a launch: {steps}, fewer than {fewest}"},
)  # fmt: skip
def too_few_steps(evidence: Evidence) -> Iterator[Hit]:
    """A launch times fewer steps than say something about a step."""
    for series in evidence.measured:
        found = {
            point.world_size: min(_steps(row) for row in point.rows) for point in series.points
        }
        few = {size: steps for size, steps in found.items() if steps < FEWEST_STEPS}
        if few:
            steps = sorted(set(few.values()))
            yield hit("few-steps", series, *few, steps=steps, fewest=FEWEST_STEPS)


def _steps(row: Row) -> int:
    """Return the timed steps of a launch; those of others' benchmarks are not counted in steps.

    A run of a program is no step.
    """
    if row.program or not (row.rounds and row.steps_per_round):
        return FEWEST_STEPS
    return row.rounds * row.steps_per_round


@rule(
    "unfinished-launch", "error", "what failed last may be what is slow",
    "begin it again: it goes on where it stopped",
    facts={
        "early-end": "ended early, with {held} of {expected:case}",
        "no-result": "expected, but the launch holds no result",
    },
    actions={
        "early-end": "{by:again}: it goes on where it stopped",
        "no-result": "{by:again}: it measures what is missing",
    },
)  # fmt: skip
def unfinished(evidence: Evidence) -> Iterator[Hit]:
    """A launch ended before all of its cases were measured, skipped or failed."""
    results = evidence.results
    missed = [gap for gap in gaps.gaps(results) if gap.kind == "no-result"]
    for launch in results.launches:
        cases = [_pooled(gap.case, results) for gap in missed if gap.launch == launch.name]
        # Of what failed, its own rule speaks.
        if not launch.complete and (cases or not launch.facts.get("failed")):
            expected = len(launch.facts.get("expected") or []) or launch.num_cases
            values = {
                "held": expected - len(cases),
                "expected": expected,
                "by": _measured_by(results),
            }
            size = launch.facts.get("world_size") if cases else None
            yield Hit("early-end", values, tuple(cases), (size,) if size else (), (launch.name,))


@rule(
    "journal-only", "warning", "what its session wrote at its end is not what is there",
    "find out what became of the file; keep the journal, it holds all cases",
    doubts=False,
    facts={
        "from-journal": "its result.json is missing, cut short or older, so its journal was read",
    },
)  # fmt: skip
def journal_only(evidence: Evidence) -> Iterator[Hit]:
    """A launch reached its end, and yet was read from its journal."""
    for launch in evidence.results.launches:
        is_whole = launch.complete and not launch.contradictions
        if is_whole and launch.path.name == JOURNAL:
            yield Hit("from-journal", launches=(launch.name,))


@rule(
    "journal-contradicts", "error", "both come from one measurement, so one was changed",
    "put back the file that was changed, or measure the launch again",
    facts={
        "contradicted": "of {case:of} its result.json has {result}, and its journal.jsonl, "
        "which was read, {journal}",
    },
)  # fmt: skip
def journal_contradicts(evidence: Evidence) -> Iterator[Hit]:
    """A launch's result.json holds other numbers or cases than the journal.jsonl beside it."""
    for launch in evidence.results.launches:
        for case, (result, journal) in list(launch.contradictions.items())[:1]:
            values = {"case": case, "result": result, "journal": journal}
            yield Hit("contradicted", values, launches=(launch.name,))


@rule(
    "unreadable-launch", "error", "its points are left out of every number",
    "restore the file, or measure the launch again",
    facts={"unread": "{reason}"},
)  # fmt: skip
def unreadable(evidence: Evidence) -> Iterator[Hit]:
    """A launch of the campaign, a case of a launch or a training run cannot be read."""
    results = evidence.results
    launches = {launch.path.parent: launch for launch in results.launches}
    for unread in results.unread:
        launch = launches.get(unread.path.parent) if unread.case else None
        planned = unread.world_size or _planned_size(unread.path, results)
        size = launch.facts.get("world_size") if launch else planned
        yield Hit(
            "unread", {"reason": unread.reason}, (unread.case,) if unread.case else (),
            (size,) if size else (), (launch.name,) if launch else (),
            path="" if launch else str(unread.path),
        )  # fmt: skip


def _planned_size(path: Path, results: Results) -> int | None:
    """Return the world size that a campaign planned for a launch that cannot be read."""
    planned = results.plans.get(sources.campaign_folder(path), {}).get("launches", [])
    sizes = {str(one.get("name")): one.get("world_size") for one in planned}
    return sizes.get(path.parent.name)


@rule(
    "failed-case", "error", "the cases that are left may look better than all of them",
    "mend its cause, then begin it again",
)  # fmt: skip
def failed(evidence: Evidence) -> Iterator[Hit]:
    """A case failed."""
    for gap in gaps.gaps(evidence.results):
        if gap.kind == "failed":
            yield _gap(gap, evidence.results)


@rule(
    "missing-case", "error", "points left out without a reason may be the bad ones",
    "begin it again: that measures what is missing",
)  # fmt: skip
def missing(evidence: Evidence) -> Iterator[Hit]:
    """A case or a launch was planned and there is nothing of it."""
    ended_early = {launch.name for launch in evidence.results.launches if not launch.complete}
    for gap in gaps.gaps(evidence.results):
        if gap.kind != "failed" and gap.can_be_filled and gap.launch not in ended_early:
            yield _gap(gap, evidence.results)


def _gap(gap: Gap, results: Results) -> Hit:
    """Return a gap; that of a training concerns all that it would be pooled with."""
    values = {"reason": gap.reason, "by": _measured_by(results)}
    cases = (_pooled(gap.case, results),) if gap.case else ()
    return Hit(gap.kind, values, cases, (gap.world_size,) if gap.world_size else (), (gap.launch,))


def _pooled(case: str | None, results: Results) -> str:
    name = case or ""
    return training_runs.pooled(results.rows).get(training_runs.without_seed(name), name)


def _measured_by(results: Results) -> str:
    """Return by what the launches were begun: jobs, a campaign's run, or pytest alone."""
    if any((folder / sources.JOBS).is_dir() for folder in results.plans):
        return "jobs"
    return "run" if results.plans else "pytest"
