"""The answers about any job in words."""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep.core.formats import DASH, clock, in_words, listed, size_of
from lockstep.slurm import client as slurm
from lockstep.slurm.any_job.held import Held, Hint, Wait, hints
from lockstep.slurm.any_job.node_use import Gpu, NodeNow, NodeUse, Occupancy, Reason, Start, StepNow
from lockstep.slurm.status.accounting import end_of

# how a job waits for another -> in words
WAITS = {
    "after": "job {} has begun",
    "afterany": "job {} has ended",
    "afterok": "job {} has ended well",
    "afternotok": "job {} has ended badly",
    "aftercorr": "the same element of job {} has ended well",
    "afterburstbuffer": "the data of job {} have been copied",
    "singleton": "your earlier jobs of the same name have ended",
}
# exit code and signal as sacct writes them -> what they mostly mean
ENDS = {
    "0:53": "it has no output: its node could not open the file, or its folder was not there",
    "0:125": "it needed more memory than it had",
    "126:0": "it ended, for a command was found but may not be executed",
    "127:0": "it ended, for a command was not found: a module, an environment or a path is missing",
}
# the signals that end programs -> as by what
SIGNALS: dict[int, str] = {
    signal.SIGABRT: ", as a program does that aborts",
    signal.SIGBUS: ", a bus error, as where /dev/shm is full",
    signal.SIGKILL: ", mostly for memory",
    signal.SIGSEGV: ", a segmentation fault",
    signal.SIGTERM: ", as by scancel",
    signal.SIGUSR1: ", as by --signal without B:, which sends it to the ranks",
}
MAX_STEPS = 5


def job_line(job: Held) -> str:
    """Return one line about a job."""
    return f"{job.job_id} {job.name}: {'; '.join(_doing(job))}"


def _doing(job: Held) -> Iterator[str]:
    if job.is_waiting:
        yield job.state.meaning.replace("{id}", job.job_id)
        if job.starts is not None:
            yield f"expected to start {_moment(job.starts)}"
        return
    if job.state.name != "RUNNING":
        yield job.state.meaning
        return
    yield f"runs since {in_words(job.elapsed_s)} on {job.nodes}"
    if job.limit_s is not None and job.elapsed_s is not None:
        yield f"{in_words(max(0.0, job.limit_s - job.elapsed_s))} left"


def _moment(at: int) -> str:
    """Return a time as the clock here has it, and how far it is."""
    ahead_s = at - time.time()
    far = f"in {in_words(ahead_s)}" if ahead_s > 0 else "now"
    return f"{_date(at)}, {far}"


def _date(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def wait_lines(job: Held, wait: Wait) -> Iterator[str]:
    """Yield why a job waits, and what may be done about it."""
    yield f"{job.job_id} {job.name} of {job.user}, partition {job.partition}"
    yield f"  {job.state.meaning.replace('{id}', job.job_id)}"
    for how, other in job.waits_for:
        yield f"  begins once {WAITS.get(how, how + ' {}').format(other)}"
    if wait.num_ahead is not None:
        yield f"  jobs ahead of it in the partition: {wait.num_ahead}"
    if job.starts is not None:
        yield f"  expected to start: {_moment(job.starts)}; earlier if others end early"
    elif wait.num_ahead is not None:
        yield "  expected to start: Slurm has not planned it yet; it plans the first in line"
    if wait.factors:
        parts = ", ".join(f"{name} {part:,}" for name, part in wait.factors.items())
        yield f"  priority {job.priority or 0:,}: {parts}"


def end_lines(job_id: str, account: Mapping[str, Any]) -> Iterator[str]:
    """Yield how a job ended: as accounting has it, with the reason where squeue gave one."""
    state = end_of(account, account.get("reason"))
    yield f"{job_id} {account['name']} of {account['user']}: {state.name}, {state.meaning}"
    if account["elapsed_s"] is not None:
        limit = "" if account["limit_s"] is None else f" of {in_words(account['limit_s'])}"
        has_begun = account["elapsed_s"] or account["nodes"]
        ran = in_words(account["elapsed_s"] if has_begun else None)
        yield f"  ran {ran}{limit} on {account['nodes'] or 'no node'}"
    code = account["exit_code"]
    if code not in (None, "0:0"):
        means = ENDS.get(code) or _signal(code)
        yield f"  exit code {code}{means and f': {means}'}"
    yield from _ends_of_steps(account)
    lost = state.name in ("NODE_FAIL", "BOOT_FAIL")
    yield (
        "Next: lockstep slurm nodes  # says which is down"
        if lost
        else f"Next: lockstep slurm eff {job_id}"
    )


def _ends_of_steps(account: Mapping[str, Any]) -> Iterator[str]:
    """Yield how steps ended that did not end well."""
    bad = account["bad_steps"]
    for step in bad[:MAX_STEPS]:
        code = "0:125" if step["state"] == "OUT_OF_MEMORY" else step["exit_code"]
        how = ENDS.get(code) or _signal(code) or f"it ended {step['state']}, exit code {code}"
        name = "script" if step["step"] == "batch" else f"step {step['step']}"
        yield f"  its {name} {how.removeprefix('it ')}"
    if len(bad) > MAX_STEPS:
        yield f"  {len(bad) - MAX_STEPS} more steps did not end well"


def _signal(code: str) -> str:
    """Return which signal ended a program, as a shell reports it 128 and its number; "" if none."""
    status, number = (slurm.count(part) or 0 for part in (code + ":").split(":")[:2])
    number = number or max(0, status - 128)
    if not 0 < number < signal.NSIG:
        return ""
    known = [f" ({each.name.removeprefix('SIG')})" for each in signal.Signals if each == number]
    return f"it was ended by signal {number}{''.join(known)}{SIGNALS.get(number, '')}"


def use_lines(job_id: str, account: Mapping[str, Any]) -> Iterator[str]:
    """Yield how well a job used what it was given."""
    yield f"{job_id} {account['name']}: {account['state']}"
    yield from _ends_of_steps(account)
    yield _share(
        "CPUs", account["cpu_efficiency"], in_words(account["total_cpu_s"]),
        f"{account['alloc_cpus']} CPUs x {in_words(account['elapsed_s'])}",
    )  # fmt: skip
    yield _share(
        "memory", account["memory_efficiency"], _size(account["memory_bytes"]),
        _size(account["requested_bytes"]),
    )  # fmt: skip
    yield _share(
        "time", account["time_efficiency"], in_words(account["elapsed_s"]),
        in_words(account["limit_s"]),
    )  # fmt: skip
    if account["gpu_hours"]:
        yield f"  GPUs    {account['gpu_hours']:.3g} GPU-hours; {_gpu_use(account['gpu_use'])}"
    if account["state"] not in slurm.ENDED:
        then = "top" if account["state"] == "RUNNING" else "why"
        yield f"  It has not ended: this is what sacct has; lockstep slurm {then} {job_id}"
    yield from (f"  Next time: {_suggested(hint)}" for hint in hints(account))


def _gpu_use(use: Mapping[str, Any] | None) -> str:
    if use is None:
        return "how busy they were, Slurm does not say"
    memory = "" if use["memory_bytes"] is None else f", {_mebibytes(use['memory_bytes'])} of memory"
    return f"{use['busy_percent']}% busy{memory} ({use['column']} of step {use['step']})"


def _share(what: str, fraction: float | None, used: str, given: str) -> str:
    part = DASH if fraction is None else f"{fraction:.0%}"
    return f"  {what:7} {part:>5}   {used} of {given}"


def _size(num_bytes: float | None) -> str:
    return DASH if num_bytes is None else size_of(num_bytes)


def _suggested(hint: Hint) -> str:
    mem, span = f"--mem={_mebibytes(hint.amount)}", f"--time={clock(hint.amount)}"
    return {
        "memory_ample": f"{mem} a node would do, and it may start earlier",
        "memory_near": f"{mem} a node or more; it was near its limit",
        "time_ample": f"{span} would do, and it may start earlier",
        "time_near": f"{span} or more; it was near its limit",
        "cpus_idle": f"{hint.amount} CPU{'s' * (hint.amount > 1)} would do",
    }[hint.kind]


def _mebibytes(num_bytes: int) -> str:
    return f"{-(-num_bytes // 1024**2)}M"


def node_lines(node: NodeNow) -> Iterator[str]:
    """Yield what a node does now."""
    busy = DASH if node.busy is None else f"{node.busy:.0%}"
    memory = f"{_size(node.used_bytes)} of {_size(node.total_bytes)}"
    yield f"{node.name}: {node.cores or DASH} CPUs {busy} busy, load {node.load}, memory {memory}"
    yield from (f"  {_gpu(gpu)}" for gpu in node.gpus)
    for process in node.processes:
        size = _size(process.rss_bytes)
        yield f"  {process.pid:>8} {process.name:16} {process.cpus:5.2f} CPUs  {size}"


def _gpu(gpu: Gpu) -> str:
    busy = DASH if gpu.busy is None else f"{gpu.busy:.0%}"
    more = [f"{_size(gpu.used_bytes)} of {_size(gpu.total_bytes)}"]
    more += [] if gpu.power_w is None else [f"{gpu.power_w:.0f} W"]
    more += [] if gpu.temperature_c is None else [f"{gpu.temperature_c:.0f} C"]
    return f"GPU {gpu.index} {gpu.name}: {busy} busy, {', '.join(more)}"


def step_line(step: StepNow) -> str:
    """Return what a step has used until now."""
    return (
        f"step {step.step_id}: {step.num_tasks or DASH} tasks, CPU time {in_words(step.cpu_s)} "
        f"each, at most {_size(step.rss_bytes)} in one, on {step.node or DASH}"
    )


def use_of_node(node: NodeUse) -> Iterator[str]:
    """Yield the state of a node, what of it jobs have, whose they are, and why it takes none."""
    taken = [f"{node.used_cpus} of {node.num_cpus} CPUs"]
    taken += [f"{_size(node.used_bytes)} of {_size(node.memory_bytes)}"]
    if node.num_gpus:
        taken += [f"{DASH if node.used_gpus is None else node.used_gpus} of {node.num_gpus} GPUs"]
    whose = listed(f"{job.job_id} of {job.user}" for job in node.jobs)
    if node.used_cpus and not node.jobs:
        whose = "of jobs that Slurm does not show you"
    yield f"{node.name} {node.state}: {', '.join(taken)}{f'; {whose}' if whose else ''}"
    if node.reason:
        yield f"  {given(node.reason)}"


def given(reason: Reason) -> str:
    """Return why a node takes no jobs, who said so, and since when."""
    by = f", by {reason.user}" if reason.user else ""
    since = "" if reason.since is None else f", since {_date(reason.since)}"
    return f"reason: {reason.text}{by}{since}"


def occupancy_lines(occupancies: Sequence[Occupancy]) -> Iterator[str]:
    """Yield how full each partition is."""
    for occupancy in occupancies:
        yield (
            f"Partition {occupancy.partition}: {occupancy.num_idle:,} of "
            f"{occupancy.num_nodes:,} nodes idle, {occupancy.num_used:,} in use, "
            f"{occupancy.num_other:,} not in service; {occupancy.num_waiting:,} jobs wait."
        )


def start_line(start: Start) -> str:
    """Return when jobs of one shape would start."""
    nodes = f"{start.num_nodes:,} node{'s' if start.num_nodes != 1 else ''}"
    return f"Sent now, {listed(start.jobs, 3)} ({nodes}) would start {_moment(start.at)}."
