"""The cluster node by node: state, why one is drained, what is taken, whose jobs run: facts.

What a running job's nodes do now: their CPUs, memory and GPUs, and the user's processes.

A step of `srun --overlap` runs beside the job's own and takes nothing from them. Its script needs
only /proc and, for NVIDIA's GPUs, nvidia-smi; what it prints is computed here. Where no step can be
started, as in another user's job, sstat knows what the steps have used until now.

How full the partitions are, and when a script would start: facts, no sentences.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from lockstep.core.files import MIB
from lockstep.core.formats import parse_duration
from lockstep.slurm import client as slurm
from lockstep.slurm import cluster
from lockstep.slurm.status.accounting import instant, size
from lockstep.slurm.submit.job_spec import JobSpec

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
    return [_inventory_node(record, running) for record in cluster.records(described, "NodeName")]


def _running(listing: str) -> dict[str, list[JobHere]]:
    """Return node -> the jobs that have it."""
    found: dict[str, list[JobHere]] = {}
    for line in listing.splitlines():
        job_id, user, where, name = (*line.split("|", 3), "", "", "")[:4]
        for host in hosts(where):
            found.setdefault(host, []).append(JobHere(job_id, name, user))
    return found


def _inventory_node(record: Mapping[str, str], running: Mapping[str, Sequence[JobHere]]) -> NodeUse:
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


APART_S = 1  # between two looks at the counters of CPU time
MAX_PROCESSES = 8
TICKS_PER_S = 100  # USER_HZ, the same on every architecture that Slurm runs on (proc(5))
PAGE_BYTES = 4096
KIB = 1024
# Lines of `WHAT|NODE|REST`; a process is a line of /proc/PID/stat.
SCRIPT = f"""
node=${{SLURMD_NODENAME:-$(hostname)}}
look() {{
    echo "cpu$1|$node|$(head -n 1 /proc/stat)"
    for one in /proc/[0-9]*; do
        [ -O "$one" ] && echo "process$1|$node|$(cat "$one/stat")"
    done 2>/dev/null
}}
echo "cores|$node|$(grep -c '^cpu[0-9]' /proc/stat)"
echo "load|$node|$(cut -d ' ' -f 1 /proc/loadavg)"
grep -E '^Mem(Total|Available):' /proc/meminfo | sed "s/^/memory|$node|/"
look 1; sleep {APART_S}; look 2
if command -v nvidia-smi >/dev/null 2>&1; then
    nvidia-smi --format=csv,noheader,nounits \\
        --query-gpu=index,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu |
        sed "s/^/gpu|$node|/"
fi
"""


@dataclass(frozen=True)
class Process:
    """One of the user's processes on a node.

    Attributes:
        name: Its program, at most 15 characters.
        cpus: How many CPUs it kept busy between the two looks.
    """

    pid: int
    name: str
    cpus: float
    rss_bytes: int


@dataclass(frozen=True)
class Gpu:
    """A GPU of the job; None for what nvidia-smi does not say.

    Attributes:
        index: Its number as nvidia-smi has it.
        busy: Fraction of the time in which a kernel ran.
    """

    index: str
    name: str
    busy: float | None
    used_bytes: float | None
    total_bytes: float | None
    power_w: float | None
    temperature_c: float | None


# Of a table of looks; fractions are from 0 to 1.
COLUMNS = (
    *("time", "node", "cpu_busy", "memory_used_bytes"),
    *(f"gpu_{one.name}" for one in fields(Gpu)),
)


@dataclass(frozen=True)
class NodeNow:
    """A node at one moment.

    Attributes:
        cores: Its CPUs, of the whole node.
        busy: Fraction of them that worked between the two looks, for whomever.
        load: Its load average over a minute.
        used_bytes: Memory that is not available.
        processes: The user's processes, the busiest first.
    """

    name: str
    cores: int | None = None
    busy: float | None = None
    load: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class StepNow:
    """What sstat knows of a running step.

    Attributes:
        cpu_s: CPU time of a task, on average.
        rss_bytes: The most memory that a task had.
        node: Where that was.
    """

    step_id: str
    num_tasks: int | None
    cpu_s: float | None
    rss_bytes: int | None
    node: str


@dataclass
class _Lines:
    """What the script printed of one node, by kind."""

    of: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, text: str) -> None:
        self.of.setdefault(kind, []).append(text)

    def first(self, kind: str) -> str:
        return self.of.get(kind, [""])[0]


def look(job_id: str, num_nodes: int) -> list[NodeNow]:
    """Return what the nodes of a running job do, by a step beside its own.

    Raises:
        RuntimeError: No such step can be started.
    """
    step = ("srun", f"--jobid={job_id}", "--overlap", f"--nodes={num_nodes}")
    tasks = (f"--ntasks={num_nodes}", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=0")
    ways = ("--mpi=none", "--immediate=30", "--export=ALL")
    return read(slurm.ask(*step, *tasks, *ways, "sh", "-c", SCRIPT))


def add_to_table(path: Path, at: str, nodes: Sequence[NodeNow]) -> None:
    """Add a line for each GPU, or for a node without any, to a table with a heading.

    The table is made where it is missing; `at` is when the nodes were looked at, as ISO 8601.
    """
    is_new = not path.exists() or not path.stat().st_size
    with path.open("a", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        if is_new:
            table.writeheader()
        for node in nodes:
            own = {"time": at, "node": node.name, "cpu_busy": node.busy}
            own |= {"memory_used_bytes": node.used_bytes}
            for gpu in node.gpus or (None,):
                table.writerow(
                    own | ({f"gpu_{k}": v for k, v in asdict(gpu).items()} if gpu else {})
                )


def steps(job_id: str) -> list[StepNow]:
    """Return what sstat knows of a running job's steps.

    Raises:
        RuntimeError: sstat fails.
    """
    wanted = "--format=JobID,NTasks,AveCPU,MaxRSS,MaxRSSNode"
    text = slurm.ask("sstat", f"--jobs={job_id}", "--allsteps", "--noheader", "--parsable2", wanted)
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 4]
    return [
        StepNow(step, slurm.count(tasks), parse_duration(cpu), size(rss), node)
        for step, tasks, cpu, rss, node in rows
    ]


def read(text: str) -> list[NodeNow]:
    """Return the nodes in what the script printed."""
    nodes: dict[str, _Lines] = {}
    for line in text.splitlines():
        kind, _, rest = line.partition("|")
        name, has_more, value = rest.partition("|")
        if has_more:
            nodes.setdefault(name, _Lines()).add(kind, value)
    return [_node(name, lines) for name, lines in sorted(nodes.items())]


def _node(name: str, lines: _Lines) -> NodeNow:
    memory = {
        key: int(words[0]) * KIB
        for key, _, rest in (line.partition(":") for line in lines.of.get("memory", ()))
        if (words := rest.split()) and words[0].isdecimal()
    }
    total, free = memory.get("MemTotal"), memory.get("MemAvailable")
    processes = sorted(_processes(lines), key=lambda process: (-process.cpus, -process.rss_bytes))
    return NodeNow(
        name=name,
        cores=slurm.count(lines.first("cores")),
        busy=_busy(lines.first("cpu1"), lines.first("cpu2")),
        load=_number(lines.first("load")),
        used_bytes=None if total is None or free is None else total - free,
        total_bytes=total,
        gpus=tuple(_gpus(lines.of.get("gpu", ()))),
        processes=tuple(processes[:MAX_PROCESSES]),
    )


def _busy(before: str, after: str) -> float | None:
    """Return the fraction of CPU time that was not idle or waiting for disks (proc(5), stat)."""
    pairs = list(zip(before.split()[1:], after.split()[1:], strict=False))
    spent = [int(new) - int(old) for old, new in pairs[:8]]  # what follows is in user's already
    return 1 - sum(spent[3:5]) / sum(spent) if len(spent) > 4 and sum(spent) > 0 else None


def _processes(lines: _Lines) -> Iterator[Process]:
    before = {pid: ticks for pid, _, ticks, _ in map(_stat, lines.of.get("process1", ()))}
    for pid, name, ticks, pages in map(_stat, lines.of.get("process2", ())):
        if pid and pid in before:  # not one that this look itself started
            cpus = (ticks - before[pid]) / TICKS_PER_S / APART_S
            yield Process(pid, name, cpus, pages * PAGE_BYTES)


def _stat(line: str) -> tuple[int, str, int, int]:
    """Return pid, name, ticks of CPU time and pages of memory of /proc/PID/stat (proc(5))."""
    pid, _, rest = line.partition(" (")
    name, _, numbers = rest.rpartition(") ")  # a name may hold brackets, too
    cells = numbers.split()
    if not pid.isdecimal() or len(cells) < 22:
        return 0, "", 0, 0
    return int(pid), name, int(cells[11]) + int(cells[12]), int(cells[21])


def _gpus(rows: Sequence[str]) -> Iterator[Gpu]:
    for row in rows:
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) == 7:
            busy, used, total, power, temperature = map(_number, cells[2:])
            yield Gpu(
                index=cells[0],
                name=cells[1],
                busy=None if busy is None else busy / 100,
                used_bytes=None if used is None else used * MIB,
                total_bytes=None if total is None else total * MIB,
                power_w=power,
                temperature_c=temperature,
            )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A]
        return None


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
        text = slurm.would_start(alike[0][1])
        at = None if text is None else instant(text)
        if at is not None:
            found.append(Start(tuple(name for name, _ in alike), num_nodes, at))
    return found
