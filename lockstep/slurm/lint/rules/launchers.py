"""Rules about torch's own launchers, which start the ranks of a node."""

from collections.abc import Iterator

from lockstep.slurm.lint.batch import LAUNCH, Hit, Job, Step, tokens_of
from lockstep.slurm.lint.shell.shell_words import base_name

TORCH_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
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
