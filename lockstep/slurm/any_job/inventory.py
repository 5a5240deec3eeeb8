"""The cluster node by node: state, why one is drained, what is taken, whose jobs run: facts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lockstep.core.files import MIB
from lockstep.slurm import cluster
from lockstep.slurm import scheduler as slurm
from lockstep.slurm.status.accounting import instant

MAX_HOSTS = 100_000  # of one job
# text [who@when], as `scontrol show node` ends a reason
_REASON = re.compile(r"(.*?)(?:\s*\[([^\[\]@]*)@([^\[\]]*)\])?", re.DOTALL)
_PART = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


@dataclass(frozen=True)
class Reason:
    """Why a node takes no jobs.

    Attributes:
        since: When, in seconds of the epoch.
    """

    text: str
    user: str | None
    since: int | None


@dataclass(frozen=True)
class JobHere:
    """A job that has a node: its id as squeue spells it, its name, and whose it is."""

    job_id: str
    name: str
    user: str


@dataclass(frozen=True)
class NodeUse:
    """A node, and what of it jobs have.

    Attributes:
        state: Slurm's words, such as `MIXED` or `IDLE+DRAIN`.
        reason: Why it takes no jobs; None where none is given.
        used_bytes: What of it jobs have been given, whether they use it or not.
        used_gpus: Those that jobs have; None where Slurm does not say.
        jobs: The jobs on it that this user may see.
    """

    name: str
    state: str
    reason: Reason | None
    partitions: tuple[str, ...]
    num_cpus: int
    used_cpus: int
    memory_bytes: int
    used_bytes: int
    num_gpus: int
    used_gpus: int | None
    jobs: tuple[JobHere, ...]


def nodes() -> list[NodeUse]:
    """Return every node that Slurm shows, by one scontrol and one squeue.

    Raises:
        RuntimeError: Slurm does not answer.
    """
    described = slurm.ask("scontrol", "--details", "show", "node")
    running = _running(slurm.ask("squeue", "--noheader", "--format=%i|%u|%N|%j"))
    return [_node(one, running) for one in cluster.records(described, "NodeName")]


def _running(listing: str) -> dict[str, list[JobHere]]:
    """Return node -> the jobs that have it."""
    found: dict[str, list[JobHere]] = {}
    for line in listing.splitlines():
        job_id, user, where, name = (*line.split("|", 3), "", "", "")[:4]
        for host in hosts(where):
            found.setdefault(host, []).append(JobHere(job_id, name, user))
    return found


def _node(record: Mapping[str, str], running: Mapping[str, Sequence[JobHere]]) -> NodeUse:
    kind = cluster.kind(record)
    used = record.get("GresUsed")
    return NodeUse(
        name=record["NodeName"],
        state=record.get("State", "UNKNOWN"),
        reason=read_reason(record.get("Reason", "")),
        partitions=tuple(filter(None, record.get("Partitions", "").split(","))),
        num_cpus=kind.num_cpus,
        used_cpus=slurm.count(record.get("CPUAlloc")) or 0,
        memory_bytes=kind.memory_mib * MIB,
        used_bytes=(slurm.count(record.get("AllocMem")) or 0) * MIB,
        num_gpus=cluster.num_gpus(record.get("Gres", "")),
        used_gpus=None if used is None else cluster.num_gpus(used),
        jobs=tuple(running.get(record["NodeName"], ())),
    )


def read_reason(text: str) -> Reason | None:
    """Return why a node takes no jobs, of `scontrol show node`."""
    match = _REASON.fullmatch(text)
    if not text or match is None:
        return None
    return Reason(match[1], match[2], instant(match[3]) if match[3] else None)


def hosts(text: str) -> Iterator[str]:
    """Yield the hosts that Slurm writes as `n[1-3,07],gpu4`, at most as many as a cluster has."""
    count = 0
    for part in _PART.findall(text):
        for host in _hosts(part):
            count += 1
            if count > MAX_HOSTS:
                return
            yield host


def _hosts(part: str) -> Iterator[str]:
    head, has_ranges, rest = part.partition("[")
    if not has_ranges:
        yield part
        return
    ranges, _, tail = rest.partition("]")
    for first, last in _RANGE.findall(ranges):
        for number in range(int(first), int(last or first) + 1):
            yield from (f"{head}{number:0{len(first)}d}{end}" for end in _hosts(tail))
