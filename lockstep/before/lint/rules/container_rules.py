"""Rules about images that a batch script runs its ranks in."""

import re
from collections.abc import Iterator

from lockstep.before.lint.batch import SAYING, Container, Hit, Job, tokens_of
from lockstep.before.lint.shell.shell_words import base_name

# Programs that use no GPU.
TOOLS = {
    *("cat", "cp", "curl", "date", "du", "echo", "env", "find", "grep", "head", "hostname", "id"),
    *(
        "ldd",
        "ls",
        "mkdir",
        "mv",
        "ompi_info",
        "pip",
        "pip3",
        "printenv",
        "rm",
        "rsync",
        "tar",
        "test",
        "true",
    ),
    *("uname", "unzip", "wget", "which"),
}
HANDED_ON = re.compile(r"(APPTAINER|SINGULARITY)ENV_(SLURM|MASTER|RANK|LOCAL|WORLD|\$|\{)")


def clean_environment(job: Job) -> Iterator[Hit]:
    """Look for an image in which no rank knows which it is."""
    for one in job.containers:
        cleans = one.has("--cleanenv", "-e") and not one.has("--env", "--env-file")
        is_rank = one.step is not None and not job.is_single(one.step)
        if cleans and is_rank and not HANDED_ON.search(job.script.text):
            yield Hit(one.line, "--cleanenv leaves out SLURM_* and MASTER_*")


def contained(job: Job) -> Iterator[Hit]:
    """Look for ranks of a node that share no memory."""
    for one in job.containers:
        tasks = job.tasks_per_node(one.step) if one.step else 1
        if one.has("--containall", "-C", "--ipc", "-i") and (tasks or 1) > 1:
            yield Hit(one.line, f"each of {tasks} ranks of a node has its own /dev/shm")


def no_gpus_inside(job: Job) -> Iterator[Hit]:
    """Look for an image that sees no GPU.

    On AMD it sees them: Apptainer binds the host's /dev, and the image brings ROCm.
    """
    if job.is_amd:
        return
    switches = {"APPTAINER_NV", "SINGULARITY_NV", "APPTAINER_ROCM", "SINGULARITY_ROCM"}
    for one in job.containers if job.has_gpus and not switches & set(job.script.settings) else ():
        if not one.has("--nv", "--nvccli", "--rocm") and not (_hides(one) or _is_asked(one)):
            yield Hit(one.line, "GPUs are asked for and the image is entered without --nv")


def _is_asked(container: Container) -> bool:
    """Return whether an image is only asked for a version or a file, which needs no GPU."""
    program = container.program
    name = base_name(program[0]) if program else ""
    asks_version = any(re.search(r"--version|__version__|^-V$", one) for one in program)
    is_client = name == "ray" and "start" not in program
    return name in TOOLS or asks_version or is_client


def _hides(container: Container) -> bool:
    """Return whether an option may be in a variable of unknown value."""
    return any("$" in one and "=" not in one for one in container.options)


def docker_without_shared_memory(job: Job) -> Iterator[Hit]:
    """Look for an image of Docker's whose ranks and loaders have 64 MB of shared memory."""
    for command in job.commands:
        tokens = tokens_of(command.words)
        names = [base_name(one) for one in tokens]
        for name in ("docker", "podman", "nvidia-docker"):
            at = names.index(name) if name in names else len(tokens)
            given = any(one.startswith(("--ipc", "--shm-size", "$")) for one in tokens)
            if "run" in tokens[at + 1 : at + 3] and not given and command.name not in SAYING:
                fact = f"{name} run has neither --ipc=host nor --shm-size"
                yield Hit(command.line, fact)
