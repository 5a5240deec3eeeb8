"""What a running job's nodes do now: their CPUs, memory and GPUs, and the user's processes.

A step of `srun --overlap` runs beside the job's own and takes nothing from them. Its script needs
only /proc and, for NVIDIA's GPUs, nvidia-smi; what it prints is computed here. Where no step can be
started, as in another user's job, sstat knows what the steps have used until now.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from lockstep.core.files import MIB
from lockstep.core.formats import parse_duration
from lockstep.slurm import scheduler as slurm
from lockstep.slurm.status.accounting import size

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
    said = slurm.ask("sstat", f"--jobs={job_id}", "--allsteps", "--noheader", "--parsable2", wanted)
    rows = [line.split("|") for line in said.splitlines() if line.count("|") == 4]
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
    processes = sorted(_processes(lines), key=lambda one: (-one.cpus, -one.rss_bytes))
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
