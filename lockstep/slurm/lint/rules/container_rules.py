"""Rules about images that a batch script runs its ranks in."""

import re
from collections.abc import Iterator

from lockstep.slurm.lint.batch import Container, Hit, Job

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
    """Look for an image that sees no GPU."""
    switches = {"APPTAINER_NV", "SINGULARITY_NV", "APPTAINER_ROCM", "SINGULARITY_ROCM"}
    for one in job.containers if job.has_gpus and not switches & set(job.script.settings) else ():
        if not one.has("--nv", "--nvccli", "--rocm") and not _hides(one):
            yield Hit(one.line, "GPUs are asked for and the image is entered without --nv")


def _hides(container: Container) -> bool:
    """Return whether an option may be in a variable of unknown value."""
    return any("$" in one and "=" not in one for one in container.options)
