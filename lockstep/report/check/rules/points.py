"""Rules about what differs between the world sizes of a study apart from the number of ranks."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from lockstep.report.check.evidence import Evidence, Hit, hit
from lockstep.report.load.conflicts import odd_ones
from lockstep.report.load.layout import ladder_settings
from lockstep.report.load.results import Launch

# Facts of a launch that may change a speed and forbid no pooling.
FACTS = (
    *("cpu_model", "git_commit", "git_dirty", "project_commit", "project_dirty"),
    *("lockstep_version", "python", "kernel", "backend"),
)
# `unequal-ranks` has the threads; devices are numbered as a job got them.
NOT_COMPARED = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    "CUDA_VISIBLE_DEVICES",
)
# Sizes measured so far apart did not share the state of a machine.
FAR_APART = timedelta(hours=12)

Sizes = Mapping[int, list[Launch]]


def circumstances(evidence: Evidence) -> Iterator[Hit]:
    """A size was measured on another host, CPU, date, commit or environment than the others."""
    launches = [one for one in evidence.results.launches if one.provenance]
    sizes: dict[int, list[Launch]] = {}
    for launch in launches:
        sizes.setdefault(int(launch.facts.get("world_size") or 0), []).append(launch)
    for name in FACTS:
        yield from _odd_launches(name, launches, [one.provenance.get(name) for one in launches])
    environments = [one.provenance.get("environment") or {} for one in launches]
    # What makes ladders differs within none of them; `several_settings` names it.
    measured = [row for row in evidence.results.rows if row.origin == "measured"]
    known = {*NOT_COMPARED, *ladder_settings(measured)}
    for name in sorted({name for one in environments for name in one} - known):
        yield from _odd_launches(name, launches, [one.get(name) for one in environments])
    yield from _other_hosts(sizes)
    yield from _other_days(sizes)


def _odd_launches(name: str, launches: list[Launch], values: list[object]) -> Iterator[Hit]:
    """Yield the launches in which a fact is not what it is in most, or all where as many differ."""
    texts = {one.name: str(value) for one, value in zip(launches, values, strict=True)}
    for usual, odd in odd_ones(launches, values):
        both = {"value": texts[odd[0].name], "usual": texts[usual[0].name]}
        known = {"fact": name, **both, "sizes": _sizes(odd)}
        kind, where = "circumstance", odd
        if len(usual) == len(odd):
            kind, where = "circumstances-differ", [*usual, *odd]
            known["usual_sizes"] = _sizes(usual)
        yield Hit(kind, known, launches=tuple(one.name for one in where))


def _sizes(launches: list[Launch]) -> list[int]:
    return sorted({int(one.facts.get("world_size") or 0) for one in launches})


def _other_hosts(sizes: Sizes) -> Iterator[Hit]:
    """Yield the sizes that share no host with any other."""
    hosts = {
        size: {host for one in launches for host in one.named_hosts}
        for size, launches in sizes.items()
    }
    for size, own in sorted(hosts.items())[1:]:
        others = {host for other, known in hosts.items() if other != size for host in known}
        if own and others and not own & others:
            values = {"own": sorted(own), "others": sorted(others)}
            yield Hit("other-hosts", values, world_sizes=(size,))


def _other_days(sizes: Sizes) -> Iterator[Hit]:
    """Yield the sizes whose launches all began far from those of all others."""
    begun = {size: _begun(launches) for size, launches in sizes.items()}
    for size, own in sorted(begun.items())[1:]:
        others = [when for other, known in begun.items() if other != size for when in known]
        if own and others and all(abs(a - b) > FAR_APART for a in own for b in others):
            gap = min(abs(a - b) for a in own for b in others)
            values = {"hours": gap / timedelta(hours=1), "date": str(min(own).date())}
            yield Hit("other-date", values, world_sizes=(size,))


def _begun(launches: list[Launch]) -> list[datetime]:
    found = []
    for launch in launches:
        try:
            found.append(datetime.fromisoformat(str(launch.facts.get("started"))))
        except ValueError:
            continue
    # A time without its zone cannot be held against one that has it.
    return [when for when in found if when.tzinfo]


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
