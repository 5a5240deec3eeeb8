"""Rules about the repeats of points: missing ones, their jobs, rounds and order in time."""

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby, product
from typing import Any

from lockstep.report.check.evidence import Evidence, Hit, hit
from lockstep.report.check.rules.recorded_facts import FAR_APART
from lockstep.report.compute.replicates import MOST_APART, begun, lead
from lockstep.report.load.results import Launch


def several_settings(evidence: Evidence) -> Iterator[Hit]:
    """Launches of a case differ in a setting that is kept over world sizes, such as threads."""
    for series in evidence.measured:
        if series.main and any(point is series.base for point in series.points):
            sizes = [point.world_size for point in series.points]
            yield hit("other-setting", series, *sizes, setting=series.layout)


def repeat_holes(evidence: Evidence) -> Iterator[Hit]:
    """Numbers of repeats are missing among those of a world size, and no plan names them."""
    # What cannot be read is there, and what was planned is named by `missing-case`.
    if evidence.results.unread or evidence.results.campaign:
        return
    known = [
        (int(launch.facts["world_size"]), int(repeat))
        for launch in evidence.results.launches
        if (repeat := str(launch.facts.get("repeat"))).isdecimal()
        and launch.facts.get("world_size")
    ]
    for size, group in groupby(sorted(set(known)), key=lambda pair: pair[0]):
        there = [repeat for _, repeat in group]
        gone = sorted(set(range(there[-1])) - set(there))
        if gone:
            yield Hit("repeat-holes", {"there": there, "gone": gone}, world_sizes=(size,))


def shared_job(evidence: Evidence) -> Iterator[Hit]:
    """Repeats of a world size ran in one Slurm job, on the same nodes."""
    jobs: dict[tuple[int, str], dict[str, str]] = {}
    for launch in evidence.results.launches:
        job = (launch.provenance.get("slurm") or {}).get("SLURM_JOB_ID")
        size, repeat = launch.facts.get("world_size"), launch.facts.get("repeat")
        if job and size and repeat is not None:
            jobs.setdefault((int(size), str(job)), {})[str(repeat)] = launch.name
    for (size, job), repeats in jobs.items():
        if len(repeats) > 1:
            values = {"count": len(repeats), "job": job}
            yield Hit("one-job", values, world_sizes=(size,), launches=tuple(repeats.values()))


def not_in_turn(evidence: Evidence) -> Iterator[Hit]:
    """The launches of a size came all, or nearly all, before or after those of the smallest size.

    Held against each other are launches of one job, or of none, that may share a machine's state.
    """
    sizes: dict[int, list[tuple[Any, datetime]]] = {}
    for launch in evidence.results.launches:
        job = (launch.provenance.get("slurm") or {}).get("SLURM_JOB_ID")
        if (when := begun(launch)) and (size := launch.facts.get("world_size")):
            sizes.setdefault(int(size), []).append((job, when))
    base = min(sizes, default=0)
    found = []
    for size in sorted(sizes)[1:]:
        pairs = [
            (own, other) for (job, own), (other_job, other) in product(sizes[base], sizes[size])
            if job == other_job and abs(own - other) <= FAR_APART
        ]  # fmt: skip
        # One launch of each is in some order, whatever was planned.
        if len(pairs) > max(len(sizes[base]), len(sizes[size])) and abs(lead(pairs)) > MOST_APART:
            found.append(size)
    if found:
        yield Hit("not-in-turn", {"sizes": found, "base": base}, world_sizes=tuple(found))


def uneven_rounds(evidence: Evidence) -> Iterator[Hit]:
    """The launches of a case hold other numbers of rounds, though a fixed number was asked for."""
    if any(_has_goal(launch) for launch in evidence.results.launches):
        return
    for series in evidence.measured:
        counts = {point.world_size: [row.rounds for row in point.rows] for point in series.points}
        found = {rounds for own in counts.values() for rounds in own if rounds}
        if len(found) > 1:
            most = max(found)
            few = [size for size, own in counts.items() if set(own) != {most}]
            yield hit("round-counts", series, *few, counts=sorted(found), most=most)


def _has_goal(launch: Launch) -> bool:
    """Tell whether a launch measured until it was precise enough."""
    words: list[Any] = launch.provenance.get("command") or []
    return any(str(word).startswith("--benchmark-precision") for word in words)
