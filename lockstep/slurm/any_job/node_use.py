"""Use of nodes by jobs, and the load of a running job's nodes.

Functions return dictionaries as `--json` prints them; an unknown value is None.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lockstep.core.files import MIB
from lockstep.core.formats import DASH, in_words, listed, parse_duration, size_of
from lockstep.slurm import client as slurm
from lockstep.slurm import cluster
from lockstep.slurm.any_job.held import date
from lockstep.slurm.client import instant
from lockstep.slurm.status import accounting

MAX_HOSTS = 100_000  # of one job
# TEXT [USER@TIME], the reason in `scontrol show node`
_REASON = re.compile(r"(.*?)(?:\s*\[([^\[\]@]*)@([^\[\]]*)\])?", re.DOTALL)
_PART = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


def nodes() -> list[dict[str, Any]]:
    """Return every node that Slurm shows, by one scontrol and one squeue.

    `used_bytes` is the memory allocated to jobs, used or not; `jobs` are the jobs that this user
    may see.
    """
    described = slurm.ask("scontrol", "--details", "show", "node")
    jobs = defaultdict(list)
    for job in slurm.squeue(("job_id", "user", "nodes", "name")):
        for host in hosts(job.nodes):
            jobs[host].append({"job_id": job.job_id, "name": job.name, "user": job.user})
    shown = []
    for record in cluster.records(described, "NodeName"):
        kind, used = cluster.kind(record), record.get("GresUsed")
        shown.append({
            "name": record["NodeName"],
            "state": record.get("State", "UNKNOWN"),
            "reason": read_reason(record.get("Reason", "")),
            "partitions": [name for name in record.get("Partitions", "").split(",") if name],
            "num_cpus": kind.num_cpus,
            "used_cpus": slurm.count(record.get("CPUAlloc")) or 0,
            "memory_bytes": kind.memory_mib * MIB,
            "used_bytes": (slurm.count(record.get("AllocMem")) or 0) * MIB,
            "num_gpus": cluster.num_gpus(record.get("Gres", "")),
            "used_gpus": None if used is None else cluster.num_gpus(used),
            "jobs": jobs[record["NodeName"]],
        })  # fmt: skip
    return shown


def read_reason(text: str) -> dict[str, Any] | None:
    """Return the Reason of `scontrol show node`: text, user, and since, in seconds since 1970."""
    match = _REASON.fullmatch(text) if text else None
    if match is None:
        return None
    return {"text": match[1], "user": match[2], "since": instant(match[3]) if match[3] else None}


def reason_text(reason: Mapping[str, Any]) -> str:
    """Return why a node takes no jobs, since when, and who set the reason."""
    by = f", by {reason['user']}" if reason["user"] else ""
    since = "" if reason["since"] is None else f", since {date(reason['since'])}"
    return f"reason: {reason['text']}{by}{since}"


def node_lines(node: Mapping[str, Any]) -> Iterator[str]:
    taken = [f"{node['used_cpus']} of {node['num_cpus']} CPUs"]
    taken += [f"{size_of(node['used_bytes'])} of {size_of(node['memory_bytes'])}"]
    if node["num_gpus"]:
        used = DASH if node["used_gpus"] is None else node["used_gpus"]
        taken += [f"{used} of {node['num_gpus']} GPUs"]
    whose = listed(f"{job['job_id']} of {job['user']}" for job in node["jobs"])
    if node["used_cpus"] and not node["jobs"]:
        whose = "Slurm does not show you the jobs of this node"
    yield f"{node['name']} {node['state']}: {', '.join(taken)}{f'; {whose}' if whose else ''}"
    if node["reason"]:
        yield f"  {reason_text(node['reason'])}"


def hosts(text: str) -> Iterator[str]:
    """Yield the hosts of a list such as `n[1-3,07],gpu4`, at most `MAX_HOSTS`."""
    parts = (host for part in _PART.findall(text) for host in _hosts(part))
    yield from islice(parts, MAX_HOSTS)


def _hosts(part: str) -> Iterator[str]:
    head, has_ranges, rest = part.partition("[")
    if not has_ranges:
        yield part
        return
    ranges, _, tail = rest.partition("]")
    for first, last in _RANGE.findall(ranges):
        for number in range(int(first), int(last or first) + 1):
            yield from (f"{head}{number:0{len(first)}d}{end}" for end in _hosts(tail))


APART_S = 1  # between two readings of the CPU time
MAX_PROCESSES = 8
TICKS_PER_S = 100  # USER_HZ, the same on every architecture that Slurm runs on (proc(5))
PAGE_BYTES = 4096
KIB = 1024
# Lines of `WHAT|NODE|REST`; a process is a line of /proc/PID/stat.
SCRIPT = f"""
node=${{SLURMD_NODENAME:-$(hostname)}}
look() {{
    echo "cpu$1|$node|$(head -n 1 /proc/stat)"
    for process in /proc/[0-9]*; do
        [ -O "$process" ] && echo "process$1|$node|$(cat "$process/stat")"
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
GPU_KEYS = ("index", "name", "busy", "used_bytes", "total_bytes", "power_w", "temperature_c")
# Columns of the table of --csv; fractions are from 0 to 1.
COLUMNS = ("time", "node", "cpu_busy", "memory_used_bytes", *(f"gpu_{key}" for key in GPU_KEYS))


def look(job_id: str, num_nodes: int) -> list[dict[str, Any]]:
    """Run a step in a running job that reads the load of its nodes, and return the load."""
    step = ("srun", f"--jobid={job_id}", "--overlap", f"--nodes={num_nodes}")
    tasks = (f"--ntasks={num_nodes}", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=0")
    ways = ("--mpi=none", "--immediate=30", "--export=ALL")
    return read(slurm.ask(*step, *tasks, *ways, "sh", "-c", SCRIPT))


def read(text: str) -> list[dict[str, Any]]:
    """Return the nodes in the output of `SCRIPT`.

    `busy` is the busy fraction of the node's CPUs between the two readings, `load` the load average
    over a minute, `used_bytes` the memory that is not available. `processes` are the user's own,
    the busiest first, with the number of CPUs that each kept busy.
    """
    of_nodes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in text.splitlines():
        if line.count("|") >= 2:
            kind, name, value = line.split("|", 2)
            of_nodes[name][kind].append(value)
    nodes = []
    for name, lines in sorted(of_nodes.items()):
        cores, load, before, after = (
            (lines[kind] or [""])[0] for kind in ("cores", "load", "cpu1", "cpu2")
        )
        memory = {
            key: int(words[0]) * KIB
            for key, _, rest in (line.partition(":") for line in lines["memory"])
            if (words := rest.split()) and words[0].isdecimal()
        }
        total, free = memory.get("MemTotal"), memory.get("MemAvailable")
        # CPU times of /proc/stat (proc(5)): of the first eight, the fourth and fifth are idle time.
        times = zip(before.split()[1:9], after.split()[1:9], strict=False)
        spent = [int(new) - int(old) for old, new in times]
        is_busy = len(spent) > 4 and sum(spent) > 0
        processes = sorted(_processes(lines), key=lambda own: (-own["cpus"], -own["rss_bytes"]))
        nodes.append({
            "name": name,
            "cores": slurm.count(cores),
            "busy": 1 - sum(spent[3:5]) / sum(spent) if is_busy else None,
            "load": _number(load),
            "used_bytes": None if total is None or free is None else total - free,
            "total_bytes": total,
            "gpus": list(_gpus(lines["gpu"])),
            "processes": processes[:MAX_PROCESSES],
        })  # fmt: skip
    return nodes


def _processes(lines: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
    before = {pid: ticks for pid, _, ticks, _ in map(_stat, lines["process1"])}
    for pid, name, ticks, pages in map(_stat, lines["process2"]):
        if pid and pid in before:  # leaves out processes that the script itself started
            cpus = (ticks - before[pid]) / TICKS_PER_S / APART_S
            yield {"pid": pid, "name": name, "cpus": cpus, "rss_bytes": pages * PAGE_BYTES}


def _stat(line: str) -> tuple[int, str, int, int]:
    """Return pid, name, ticks of CPU time and pages of memory of /proc/PID/stat (proc(5))."""
    pid, _, rest = line.partition(" (")
    name, _, numbers = rest.rpartition(") ")  # the name may contain brackets
    cells = numbers.split()
    if not pid.isdecimal() or len(cells) < 22:
        return 0, "", 0, 0
    return int(pid), name, int(cells[11]) + int(cells[12]), int(cells[21])


def _gpus(rows: Sequence[str]) -> Iterator[dict[str, Any]]:
    for cells in ([cell.strip() for cell in row.split(",")] for row in rows):
        if len(cells) == len(GPU_KEYS):
            busy, used, total, *rest = map(_number, cells[2:])  # per cent, MiB, MiB, W, C
            scaled = (busy and busy / 100, used and used * MIB, total and total * MIB)
            yield dict(zip(GPU_KEYS, [*cells[:2], *scaled, *rest], strict=True))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # nvidia-smi prints [N/A]
        return None


def steps(job_id: str) -> list[dict[str, Any]]:
    """Return the use of a running job's steps from sstat.

    `cpu_s` is the mean CPU time of a task, `rss_bytes` the memory of the largest task, on `node`.
    """
    wanted = "--format=JobID,NTasks,AveCPU,MaxRSS,MaxRSSNode"
    text = slurm.ask("sstat", f"--jobs={job_id}", "--allsteps", "--noheader", "--parsable2", wanted)
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 4]
    return [
        {"step_id": step, "num_tasks": slurm.count(tasks), "cpu_s": parse_duration(cpu),
         "rss_bytes": accounting.size(rss), "node": node}
        for step, tasks, cpu, rss, node in rows
    ]  # fmt: skip


def look_lines(
    nodes: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    for node in nodes:
        memory = f"{size_of(node['used_bytes'])} of {size_of(node['total_bytes'])}"
        cpus = f"{node['cores'] or DASH} CPUs {_share(node['busy'])} busy, load {node['load']}"
        yield f"{node['name']}: {cpus}, memory {memory}"
        for gpu in node["gpus"]:
            use = [f"{_share(gpu['busy'])} busy"]
            use += [f"{size_of(gpu['used_bytes'])} of {size_of(gpu['total_bytes'])}"]
            use += [] if gpu["power_w"] is None else [f"{gpu['power_w']:.0f} W"]
            use += [] if gpu["temperature_c"] is None else [f"{gpu['temperature_c']:.0f} C"]
            yield f"  GPU {gpu['index']} {gpu['name']}: {', '.join(use)}"
        for own in node["processes"]:
            use = [f"{own['cpus']:5.2f} CPUs", size_of(own["rss_bytes"])]
            yield f"  {own['pid']:>8} {own['name']:16} {'  '.join(use)}"
    for step in steps:
        cpu_time, memory = in_words(step["cpu_s"]), size_of(step["rss_bytes"])
        yield (
            f"step {step['step_id']}: {step['num_tasks'] or DASH} tasks used {cpu_time} of CPU "
            f"time; the largest task uses {memory} of memory on node {step['node'] or DASH}"
        )


def _share(fraction: float | None) -> str:
    return DASH if fraction is None else f"{fraction:.0%}"


def add_to_table(path: Path, at: str, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Add a line for each GPU, and for each node without GPUs, to a table; `at` is in ISO 8601."""
    is_new = not path.exists() or not path.stat().st_size
    with path.open("a", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        if is_new:
            table.writeheader()
        for node in nodes:
            own = {"time": at, "node": node["name"], "cpu_busy": node["busy"]}
            own |= {"memory_used_bytes": node["used_bytes"]}
            gpus: Sequence[Mapping[str, Any]] = node["gpus"] or ({},)
            for gpu in gpus:
                table.writerow(own | {f"gpu_{key}": value for key, value in gpu.items()})
