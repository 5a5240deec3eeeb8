"""How full the partitions are, and when a script would start: facts, no sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.slurm import scheduler as slurm
from lockstep.slurm.status.accounting import instant
from lockstep.slurm.submit.job_spec import JobSpec

MAX_SHAPES = 4  # of which a plan asks when they would start


@dataclass(frozen=True)
class Occupancy:
    """The nodes of a partition, and who waits for them.

    Attributes:
        num_idle: Nodes on which nothing runs.
        num_used: Nodes on which something runs.
        num_other: Nodes that are down, drained or reserved.
        num_waiting: Jobs that wait in it, an array counted once.
    """

    partition: str
    num_nodes: int
    num_idle: int
    num_used: int
    num_other: int
    num_waiting: int


def occupancy() -> list[Occupancy]:
    """Return how full each partition is, by one sinfo and one squeue.

    Raises:
        RuntimeError: Slurm does not answer.
    """
    nodes = slurm.ask("sinfo", "--noheader", "--format=%R|%F")  # allocated/idle/other/total
    queued = slurm.ask("squeue", "--states=PENDING", "--noheader", "--format=%P")
    waiting = [name for line in queued.splitlines() for name in line.strip().split(",")]
    found = {}
    for line in nodes.splitlines():
        name, _, counts = line.strip().rpartition("|")
        numbers = [slurm.count(number) for number in counts.split("/")]
        if len(numbers) == 4 and None not in numbers:
            used, idle, other, total = (number or 0 for number in numbers)
            found[name] = Occupancy(name, total, idle, used, other, waiting.count(name))
    return list(found.values())


@dataclass(frozen=True)
class Start:
    """When jobs of one shape would start if they were sent now.

    Attributes:
        at: When, in seconds of the epoch.
    """

    jobs: tuple[str, ...]
    num_nodes: int
    at: int


def starts(specs: Sequence[JobSpec], scripts: Sequence[str]) -> list[Start]:
    """Ask when jobs would start, those that wait for no other; of each shape one is asked about.

    Raises:
        RuntimeError: Slurm does not answer.
    """
    shapes: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for spec, script in zip(specs, scripts, strict=True):
        if not spec.after:
            shapes.setdefault((spec.num_nodes, spec.time_s), []).append((spec.name, script))
    found = []
    for (num_nodes, _), alike in list(shapes.items())[:MAX_SHAPES]:
        said = slurm.would_start(alike[0][1])
        at = None if said is None else instant(said)
        if at is not None:
            found.append(Start(tuple(name for name, _ in alike), num_nodes, at))
    return found
