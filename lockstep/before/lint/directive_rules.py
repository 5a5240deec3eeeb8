"""Rules about the directives of a batch script, the lines that begin with #SBATCH.

Rules about images that a batch script runs its ranks in.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

from lockstep.before.lint.batch import (
    BATCH,
    SAYING,
    SBATCH_OPTIONS,
    SHORT,
    Container,
    Job,
    options,
)
from lockstep.before.lint.command_rules import torch_launch
from lockstep.before.lint.rules import Hit
from lockstep.before.lint.shell import Word, base_name, split_words

TIME = re.compile(
    r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}|INFINITE|UNLIMITED|-1", re.IGNORECASE
)
# A comment that is a directive but for its spelling, and one that somebody has switched off.
MISSPELT = re.compile(r"(?:\s*#sbatch|\s+#SBATCH)(\s+-.*)", re.IGNORECASE)
OFF = re.compile(r"\s*(?:##+\s*|#\s+)SBATCH\s+-")
# The first version of Slurm that makes the folders of --output and --error.
MAKES_FOLDERS = (23, 2)


@BATCH.rule(
    "SHEBANG", "error", "sbatch refuses the script",
    "begin with #!/bin/bash",
)  # fmt: skip
def no_shebang(job: Job) -> Iterator[Hit]:
    if not job.text.startswith("#!"):
        yield Hit(1, "the first line is not #!")


@BATCH.rule(
    "CRLF", "error", "sbatch refuses the script",
    "run dos2unix on it",
)  # fmt: skip
def dos_lines(job: Job) -> Iterator[Hit]:
    found = [n for n, line in enumerate(job.lines, start=1) if line.endswith("\r")]
    if found:
        yield Hit(found[0], f"{len(found)} lines end as on Windows, in CR LF")


@BATCH.rule(
    "DIRECTIVE-LATE", "error", "sbatch passes over it without a word",
    "move it above the first command",
)  # fmt: skip
def late_directive(job: Job) -> Iterator[Hit]:
    first = job.first_command
    for line, text in job.shell.comments:
        if line > first and text.startswith("#SBATCH"):
            yield Hit(line, f"{text[:60].strip()} comes after the first command, in line {first}")


@BATCH.rule(
    "DIRECTIVE-SPELLING", "error", "sbatch takes it for a comment",
    "write #SBATCH in capitals, without blanks, where the line begins",
)  # fmt: skip
def misspelt_directive(job: Job) -> Iterator[Hit]:
    for line, text in job.shell.comments:
        match = MISSPELT.fullmatch(text)
        if match and not text.startswith("#SBATCH"):
            words = [Word(line, word) for word in split_words(match[1])]
            if not options(words, SHORT)[1]:
                yield Hit(line, f"{text[:60].rstrip()!r} does not begin with #SBATCH")


@BATCH.rule(
    "DIRECTIVE-OFF", "note", "sbatch does not read it",
    "remove it if that is not meant",
)  # fmt: skip
def disabled_directive(job: Job) -> Iterator[Hit]:
    for line, text in job.shell.comments:
        if OFF.match(text):
            yield Hit(line, f"{text[:60].strip()!r} is a comment")


@BATCH.rule(
    "DIRECTIVE-OPTION", "error", "sbatch refuses the script",
    "correct it",
)  # fmt: skip
def unknown_option(job: Job) -> Iterator[Hit]:
    for option in job.directives:
        # --container-image and its like are those of Pyxis, a plugin that many sites have.
        foreign = len(option.name) == 1 or option.name.startswith("container-")
        if not foreign and option.name not in SBATCH_OPTIONS:
            near = get_close_matches(option.name[:60], SBATCH_OPTIONS, n=1, cutoff=0.75)
            if near:
                yield Hit(
                    option.line, f"sbatch has no --{option.name}", f"did you mean --{near[0]}?"
                )


@BATCH.rule(
    "DIRECTIVE-VARIABLE", "error", "sbatch takes it letter by letter",
    "write the value out, or use sbatch's own %j, %x and %u",
)  # fmt: skip
def variable_in_directive(job: Job) -> Iterator[Hit]:
    for option in job.directives:
        value = option.value or ""
        if "$" in value or value.startswith("~"):
            yield Hit(option.line, f"--{option.name}={value} holds what only a shell expands")


@BATCH.rule(
    "NO-TIME", "warning", "the job gets the partition's limit and waits longer, or is refused",
    "add #SBATCH --time=HH:MM:SS",
)  # fmt: skip
def no_time(job: Job) -> Iterator[Hit]:
    if job.directives and not job.directive("time"):
        yield Hit(1, "--time is not given")


@BATCH.rule(
    "TIME", "error", "sbatch refuses the script",
    "write minutes, HH:MM:SS or D-HH:MM:SS",
)  # fmt: skip
def wrong_time(job: Job) -> Iterator[Hit]:
    option = job.directive("time")
    value = (option and option.value) or ""
    is_filled_in = re.search(r"[${}<>@#%]", value)  # by the shell's user, or by a template
    if option and not is_filled_in and not TIME.fullmatch(value):
        yield Hit(option.line, f"--time={value} is no time to sbatch")


@BATCH.rule(
    "NO-TASKS-PER-NODE", "warning", "Slurm may fill one node before the next",
    "add #SBATCH --ntasks-per-node, one task for each GPU",
)  # fmt: skip
def no_tasks_per_node(job: Job) -> Iterator[Hit]:
    tasks = job.asked("ntasks")
    by_step = any("ntasks-per-node" in step.options for step in job.steps)
    if (job.nodes or 1) == 1 or by_step or job.directive("ntasks-per-node"):
        return
    if tasks not in (None, job.nodes):
        yield Hit(1, f"{tasks} tasks on {job.nodes} nodes have no --ntasks-per-node")
    elif tasks is None and job.has_gpus and any(not torch_launch(s.tokens) for s in job.launches):
        yield Hit(1, f"{job.nodes} nodes have no --ntasks-per-node, so each gets one task")


@BATCH.rule(
    "OUTPUT-FOLDER", "note", "Slurm before 23.02 does not make it, and the job fails at "
    "once (0:53) without a log",
    "make it before you submit, where Slurm is older",
)  # fmt: skip
def missing_folder(job: Job) -> Iterator[Hit]:
    """Look for the folders of --output and --error, as far as this machine can tell.

    Slurm makes them since 23.02 (its release notes), also where %j is in their name.
    """
    if job.slurm and job.slurm >= MAKES_FOLDERS:
        return
    for name in ("output", "error"):
        option = job.directive(name)
        folder = Path(option.value).parent if option and option.value else Path()
        if option and not _may_exist(folder, job):
            fact = f"the folder {folder} of --{name} does not exist"
            yield Hit(option.line, fact, severity="error" if job.slurm else "")


def _may_exist(folder: Path, job: Job) -> bool:
    """Return whether a folder exists, or cannot be judged from here."""
    if "$" in str(folder) or str(folder).startswith("~"):
        return True  # another rule says that it is not expanded
    try:
        if folder.is_absolute():
            # Another machine's file system is not to be judged by this one's.
            return folder.is_dir() or folder.parent == Path("/") or not folder.parent.is_dir()
        chdir = job.directive("chdir")
        bases = [Path(chdir.value)] if chdir and chdir.value else [Path(), Path(job.path).parent]
        return any((base / folder).is_dir() for base in bases)
    except OSError:
        return True  # a name that no file can have


@BATCH.rule(
    "GPU-PER-TASK", "warning", 'a rank that asks for cuda:LOCAL_RANK fails with "invalid '
    'device ordinal", and else NCCL does without NVLink and P2P',
    "use --gpus-per-node, with one task for each GPU and cuda:LOCAL_RANK",
)  # fmt: skip
def one_gpu_per_task(job: Job) -> Iterator[Hit]:
    sharing = job.directive("gres-flags")
    if sharing and "allow-task-sharing" in (sharing.value or ""):
        return
    option = job.directive("gpus-per-task")
    if option and (job.tasks_per_node() or 1) > 1:
        yield Hit(option.line, "--gpus-per-task shows each task one GPU")
    for step in job.steps:
        bind, nearest = (step.options.get(name) or "" for name in ("gpu-bind", "accel-bind"))
        if "allow-task-sharing" in (step.options.get("gres-flags") or ""):
            continue
        several = step.is_certain and (job.tasks_per_node(step) or 2) > 1
        several = several and not job.is_single(step)
        if several and "gpus-per-task" in step.options:
            yield Hit(step.line, "srun --gpus-per-task shows each task one GPU")
        elif several and bind.startswith(("single", "per_task")):
            yield Hit(step.line, f"srun --gpu-bind={bind} shows each task one GPU")
        elif several and "g" in nearest:
            yield Hit(step.line, f"srun --accel-bind={nearest} shows each task its nearest GPU")
        elif any(re.match(r"CUDA_VISIBLE_DEVICES=\S*LOCAL", token) for token in step.tokens):
            yield Hit(step.line, "CUDA_VISIBLE_DEVICES is set to one GPU in each task")


@BATCH.rule(
    "SIGNAL-STEPS", "warning", "ranks that do not handle it are ended by it, and the "
    "script goes on",
    "write --signal=B:USR1@120 and trap USR1 in this script, unless the ranks handle it",
)  # fmt: skip
def signal_to_steps(job: Job) -> Iterator[Hit]:
    if re.search("lightning", job.text, re.IGNORECASE):
        return
    option = job.directive("signal")
    target, colon, _ = ((option and option.value) or "").partition(":")
    if option and not (colon and "B" in target):
        yield Hit(option.line, f"--signal={option.value} goes to the ranks, not to this script")


@BATCH.rule(
    "TASKS-CONTRADICT", "error", "Slurm starts another number of tasks than one of them says",
    "give --nodes and --ntasks-per-node, and leave --ntasks out",
)  # fmt: skip
def tasks_contradict(job: Job) -> Iterator[Hit]:
    tasks, per_node = job.directive("ntasks"), job.directive("ntasks-per-node")
    numbers = [job.number(option.value) if option else None for option in (tasks, per_node)]
    if not (tasks and numbers[0] and numbers[1]):
        return
    num_tasks, num_of_node = numbers[0], numbers[1]
    if num_tasks < num_of_node or (job.nodes and num_tasks > job.nodes * num_of_node):
        nodes = f" on {job.nodes} node{'s' * (job.nodes > 1)}" if job.nodes else ""
        fact = f"--ntasks={num_tasks} contradicts --ntasks-per-node={num_of_node}{nodes}"
        yield Hit(tasks.line, fact)


@BATCH.rule(
    "EXPORT-NAMES", "error", "the tasks do not even find their program",
    "use --export=ALL and set variables in the script",
)  # fmt: skip
def exported_names(job: Job) -> Iterator[Hit]:
    for line, value in _exports(job):
        names = value.split(",")
        if value and names[0] not in ("ALL", "NONE", "NIL") and "ALL" not in names:
            yield Hit(line, f"--export={value} drops every other variable, PATH too")


@BATCH.rule(
    "EXPORT-COMMA", "error", "the variable holds only what is before the comma",
    "export the variable in the script, in quotes",
)  # fmt: skip
def export_with_comma(job: Job) -> Iterator[Hit]:
    for line, value in _exports(job):
        names = value.split(",")
        cut = [b for a, b in pairwise(names) if "=" in a and "=" not in b]
        if "ALL" in names and cut and cut[0] != "ALL":
            yield Hit(line, f"--export={value} ends a value at its comma, before {cut[0]!r}")


def _exports(job: Job) -> Iterator[tuple[int, str]]:
    option = job.directive("export")
    if option and option.value:
        yield option.line, option.value
    for step in job.steps:
        if value := step.options.get("export"):
            yield step.line, value


@BATCH.rule(
    "REQUEUE", "note", "after a node failure Slurm may run the script again from its top",
    "add #SBATCH --no-requeue, or --requeue with --open-mode=append",
)  # fmt: skip
def requeue_unsaid(job: Job) -> Iterator[Hit]:
    if job.directives and not job.directive("no-requeue", "requeue"):
        yield Hit(1, "neither --no-requeue nor --requeue is given")


@BATCH.rule(
    "HARD-ACCOUNT", "note", "whoever gets the script must edit it",
    "keep it in one site file (lockstep init), or export SBATCH_ACCOUNT",
)  # fmt: skip
def own_account(job: Job) -> Iterator[Hit]:
    option = job.directive("account")
    if option and not job.is_rendered:
        yield Hit(option.line, f"the script names --account={option.value}")


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


@BATCH.rule(
    "CLEANENV", "error", "no rank knows its number or where to meet",
    "hand them on as APPTAINERENV_NAME, or with --env-file",
)  # fmt: skip
def clean_environment(job: Job) -> Iterator[Hit]:
    for container in job.containers:
        cleans = container.has("--cleanenv", "-e") and not container.has("--env", "--env-file")
        is_rank = container.step is not None and not job.is_single(container.step)
        if cleans and is_rank and not HANDED_ON.search(job.text):
            yield Hit(container.line, "--cleanenv leaves out SLURM_* and MASTER_*")


@BATCH.rule(
    "CONTAINALL", "error", "NCCL and gloo then share no memory, and /tmp has 64 MiB",
    "use --cleanenv --no-home instead",
)  # fmt: skip
def contained(job: Job) -> Iterator[Hit]:
    for container in job.containers:
        tasks = job.tasks_per_node(container.step) if container.step else 1
        if container.has("--containall", "-C", "--ipc", "-i") and (tasks or 1) > 1:
            yield Hit(container.line, f"each of {tasks} ranks of a node has its own /dev/shm")


@BATCH.rule(
    "NO-NV", "error", "torch then sees no GPU, and Apptainer does not say so",
    "add --nv, or --rocm for AMD",
)  # fmt: skip
def no_gpus_inside(job: Job) -> Iterator[Hit]:
    """Look for an image that sees no GPU.

    On AMD it sees them: Apptainer binds the host's /dev, and the image brings ROCm.
    """
    if job.is_amd:
        return
    switches = {"APPTAINER_NV", "SINGULARITY_NV", "APPTAINER_ROCM", "SINGULARITY_ROCM"}
    for container in job.containers if job.has_gpus and not switches & set(job.settings) else ():
        if not container.has("--nv", "--nvccli", "--rocm") and not (
            _hides(container) or _is_asked(container)
        ):
            yield Hit(container.line, "GPUs are asked for and the image is entered without --nv")


def _is_asked(container: Container) -> bool:
    """Return whether an image is only asked for a version or a file, which needs no GPU."""
    program = container.program
    name = base_name(program[0]) if program else ""
    asks_version = any(re.search(r"--version|__version__|^-V$", one) for one in program)
    is_client = name == "ray" and "start" not in program
    return name in TOOLS or asks_version or is_client


def _hides(container: Container) -> bool:
    """Return whether an option may be in a variable of unknown value."""
    return any("$" in option and "=" not in option for option in container.options)


@BATCH.rule(
    "DOCKER-SHM", "warning", "the image has 64 MB of /dev/shm, and loaders or NCCL end "
    "with a bus error",
    "add --ipc=host, or --shm-size=8g",
)  # fmt: skip
def docker_without_shared_memory(job: Job) -> Iterator[Hit]:
    for command in job.commands:
        tokens = command.tokens
        names = [base_name(token) for token in tokens]
        for name in ("docker", "podman", "nvidia-docker"):
            at = names.index(name) if name in names else len(tokens)
            given = any(token.startswith(("--ipc", "--shm-size", "$")) for token in tokens)
            if "run" in tokens[at + 1 : at + 3] and not given and command.name not in SAYING:
                fact = f"{name} run has neither --ipc=host nor --shm-size"
                yield Hit(command.line, fact)
