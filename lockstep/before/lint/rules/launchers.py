"""Rules about what starts the ranks: srun, and torch's own launchers on each node."""

import re
from collections.abc import Iterator, Sequence

from lockstep.before.lint.batch import LAUNCH, SAYING, Hit, Job, Step, step_of, tokens_of
from lockstep.before.lint.shell.shell_words import base_name, value_of

TORCHRUN = ("torchrun", "torch.distributed.run")
TORCH_LAUNCHERS = {*TORCHRUN, "torch.distributed.launch", "torchrun_jsc"}
# Programs that start ranks in a way of their own, and words of scripts that do.
OTHER_LAUNCHERS = re.compile(
    r"\b(mpirun|mpiexec|horovodrun|deepspeed|accelerate|composer|ray|dask|pdsh|clush|parallel|ssh|submitit)\b"
)
SPAWNING = re.compile(
    r"spawn|multiprocess|n?gpus?\b|n_?proc|devices|mirrored|parallel|--tp\b|vllm|server",
    re.IGNORECASE,
)
# What says that a script trains by torch.distributed, one process for each GPU.
OF_TORCH = re.compile(r"ddp|fsdp|distributed|lightning|torch|MASTER_(ADDR|PORT)", re.IGNORECASE)
# What tells a launcher of the other nodes: torchrun's options, and accelerate's.
NUM_NODES = ("nnodes", "num_machines")
MEETING = ("rdzv_endpoint", "master_addr", "main_process_ip")


def torch_launch(tokens: list[str]) -> str | None:
    """Return the launcher of torch's own among some words."""
    for at, token in enumerate(tokens):
        name = base_name(token)
        if name in TORCH_LAUNCHERS:
            return name
        if name == "accelerate" and "launch" in tokens[at + 1 : at + 2]:
            return "accelerate launch"
    return None


def option_values(tokens: list[str], *names: str) -> Iterator[str]:
    """Yield the values of a program's option, written with _ or -."""
    for at, token in enumerate(tokens):
        name, equals, value = token.partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") in names:
            yield value if equals else "".join(tokens[at + 1 : at + 2])


def tasks_times_workers(job: Job) -> Iterator[Hit]:
    """Look for torchrun in each of several tasks of a node."""
    for step in job.steps:
        launcher, tasks = torch_launch(step.tokens), job.tasks_per_node(step)
        workers = next(option_values(step.tokens, "nproc_per_node", "num_processes"), "1")
        number = job.number(workers)
        if not launcher or not step.is_certain or tasks in (None, 1) or number == 1:
            continue
        many = f", {tasks * number} in all" if tasks and number else ""
        yield Hit(
            step.line,
            f"srun starts {tasks} tasks on a node and each {launcher} {workers} workers{many}",
        )


def one_node_only(job: Job) -> Iterator[Hit]:
    """Look for torchrun that no srun carries to the other nodes."""
    for command in job.commands if (job.nodes or 1) > 1 else ():
        launcher = torch_launch(tokens_of(command.words))
        if launcher and LAUNCH.fullmatch(command.name):
            yield Hit(command.line, f"{launcher} runs on the first of {job.nodes} nodes only")


def no_srun(job: Job) -> Iterator[Hit]:
    """Look for a training that is started once, where several tasks are asked for."""
    tasks = job.num_tasks() or 1
    if tasks == 1 or job.launches or any(not one.is_certain for one in job.steps):
        return
    if OTHER_LAUNCHERS.search(job.script.text) or not job.script.directives:
        return
    for command in job.commands:
        tokens = tokens_of(command.words)
        if _runs_script(tokens) and LAUNCH.fullmatch(command.name) and not torch_launch(tokens):
            severity = "" if (job.nodes or 1) > 1 else "warning"
            fact = f"{tasks} tasks are asked for and {command.name} is started once"
            yield Hit(command.line, fact, severity=severity)
            return


def _runs_script(tokens: Sequence[str]) -> bool:
    """Return whether some words start a script of Python's, or a module."""
    for at, token in enumerate(tokens):
        if re.fullmatch(r"python[0-9.]*", base_name(token)):
            rest = [one for one in tokens[at + 1 :] if one not in ("-u", "-O", "-B", "-E", "-s")]
            return bool(rest) and (rest[0].endswith(".py") or rest[0] == "-m")
    return False


def tasks_against_gpus(job: Job) -> Iterator[Hit]:
    """Look for as many ranks of a node as it has no GPUs for, or leaves some idle."""
    for step in job.launches if OF_TORCH.search(job.script.text) else ():
        tasks, gpus = job.tasks_per_node(step), job.gpus_per_node(step)
        text = " ".join(step.tokens)
        if job.number(step.options.get("ntasks")) == 1:
            continue  # a step beside the training
        by_itself = torch_launch(step.tokens) or OTHER_LAUNCHERS.search(text)
        if by_itself or SPAWNING.search(text) or not _runs_script(step.tokens) or not gpus:
            continue
        if tasks and tasks < gpus:
            idle = f"srun starts {tasks} of each node's {gpus} possible ranks"
            yield Hit(step.line, f"{idle}, so {gpus - tasks} of its GPUs idle")
        elif tasks and tasks > gpus:
            yield Hit(step.line, f"srun starts {tasks} ranks on a node with {gpus} GPUs")


def workers_against_gpus(job: Job) -> Iterator[Hit]:
    """Look for a launcher of torch's that starts another number of ranks than there are GPUs."""
    for command in job.commands if job.is_batch else ():
        step, tokens = step_of(command), tokens_of(command.words)
        workers = job.number(next(option_values(tokens, "nproc_per_node"), None))
        gpus = job.gpus_per_node(step)
        if command.name in SAYING or not torch_launch(tokens) or not (workers and gpus):
            continue
        if workers > gpus:
            yield Hit(command.line, f"{workers} ranks are started on a node with {gpus} GPUs")
        elif workers < gpus and (job.tasks_per_node(step) or 1) == 1 and workers > 1:
            fact = f"{workers} ranks are started on a node with {gpus} GPUs: {gpus - workers} idle"
            yield Hit(command.line, fact, "start one rank for each GPU", "warning")


def world_size(job: Job) -> Iterator[Hit]:
    """Look for a WORLD_SIZE that is not the number of the tasks."""
    if any(torch_launch(tokens_of(one.words)) for one in job.commands):
        return  # which sets it itself
    for command in job.script.commands:
        for name, word in command.assigns:
            given = job.number(value_of(word)) if name == "WORLD_SIZE" else None
            for step in job.launches if given else ():
                tasks = job.num_tasks(step) if _runs_script(step.tokens) else None
                if tasks and tasks != given:
                    yield Hit(word.line, f"WORLD_SIZE is {given} and srun starts {tasks} tasks")
                    return


def gloo_for_gpus(job: Job) -> Iterator[Hit]:
    """Look for a backend that copies each gradient through the host."""
    for command in job.commands if job.has_gpus else ():
        values = option_values(tokens_of(command.words), "backend", "dist_backend", "ddp_backend")
        if "gloo" in values and command.name not in SAYING:
            yield Hit(command.line, "GPUs are asked for and the backend is gloo")


def nodes_apart(job: Job) -> Iterator[Hit]:
    """Look for a launcher on each of several nodes that hears of no other node."""
    for step in job.steps:
        launcher = torch_launch(step.tokens)
        if launcher and step.is_certain and not _may_be_told(job, step) and _nodes(job, step) > 1:
            lacks = [
                f"--{names[0].replace('_', '-')}"
                for names in (NUM_NODES, MEETING)
                if next(option_values(step.tokens, *names), None) is None
            ]
            if lacks:
                what = " or ".join(lacks)
                yield Hit(
                    step.line, f"{launcher} on each of {_nodes(job, step)} nodes has no {what}"
                )


def _nodes(job: Job, step: Step) -> int:
    return job.number(step.options.get("nodes")) or job.nodes or 1


def _may_be_told(job: Job, step: Step) -> bool:
    """Return whether variables may tell the launcher what its options do not."""
    by_variable = any(name.startswith(("PET_", "ACCELERATE_")) for name in job.script.settings)
    hidden = any(token.startswith(("$", '"$')) for token in step.tokens)
    return by_variable or hidden or "config_file" in " ".join(step.tokens)
