"""Errors that a reader of a batch script can find before the job has waited in the queue.

A rule is one function of `lockstep.before.lint.rules` and one row of `TABLE`. Nothing is run.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from lockstep.before.lint.batch import Hit, Job
from lockstep.before.lint.rules import command_rules
from lockstep.before.lint.rules import command_rules as command
from lockstep.before.lint.rules import directive_rules as container
from lockstep.before.lint.rules import directive_rules as directive
from lockstep.before.lint.shell import Script
from lockstep.core.formats import one_line

Severity = Literal["error", "warning", "note"]
Subject = TypeVar("Subject")

MAX_FACT = 300
MAX_SCRIPT_BYTES = 4 * 1024**2  # that of Slurm's SchedulerParameters max_script_size


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One error to look for, in a batch script or a training script.

    Attributes:
        why: What comes of it.
        action: What to do.
    """

    name: str
    severity: Severity
    why: str
    action: str
    check: Callable[[Subject], Iterator[Hit]]


@dataclass(frozen=True)
class Finding:
    """A rule that a script breaks, and where."""

    path: str
    line: int
    rule: str
    severity: str
    message: str
    action: str

    def __str__(self) -> str:
        """Return it as compilers write an error, in one line."""
        return (
            f"{self.path}:{self.line}: {self.rule} {self.severity}: {self.message}; {self.action}"
        )


SACCT = "take the numbers after the job's end: lockstep collect, or sacct from the login node"
TABLE: tuple[tuple[str, Severity, str, str, Callable[[Job], Iterator[Hit]]], ...] = (
    (
        "SHEBANG", "error", "sbatch refuses the script", "begin with #!/bin/bash",
        directive.no_shebang,
    ),
    ("CRLF", "error", "sbatch refuses the script", "run dos2unix on it", directive.dos_lines),
    (
        "DIRECTIVE-LATE", "error", "sbatch passes over it without a word",
        "move it above the first command", directive.late_directive,
    ),
    (
        "DIRECTIVE-SPELLING", "error", "sbatch takes it for a comment",
        "write #SBATCH in capitals, without blanks, where the line begins",
        directive.misspelt_directive,
    ),
    (
        "DIRECTIVE-OFF", "note", "sbatch does not read it", "remove it if that is not meant",
        directive.disabled_directive,
    ),
    (
        "DIRECTIVE-OPTION", "error", "sbatch refuses the script", "correct it",
        directive.unknown_option,
    ),
    (
        "DIRECTIVE-VARIABLE", "error", "sbatch takes it letter by letter",
        "write the value out, or use sbatch's own %j, %x and %u", directive.variable_in_directive,
    ),
    (
        "NO-TIME", "warning", "the job gets the partition's limit and waits longer, or is refused",
        "add #SBATCH --time=HH:MM:SS", directive.no_time,
    ),
    (
        "TIME", "error", "sbatch refuses the script", "write minutes, HH:MM:SS or D-HH:MM:SS",
        directive.wrong_time,
    ),
    (
        "NO-TASKS-PER-NODE", "warning", "Slurm may fill one node before the next",
        "add #SBATCH --ntasks-per-node, one task for each GPU", directive.no_tasks_per_node,
    ),
    (
        "OUTPUT-FOLDER", "note",
        "Slurm before 23.02 does not make it, and the job fails at once (0:53) without a log",
        "make it before you submit, where Slurm is older", directive.missing_folder,
    ),
    (
        "GPU-PER-TASK", "warning",
        'a rank that asks for cuda:LOCAL_RANK fails with "invalid device ordinal", and else NCCL '
        "does without NVLink and P2P",
        "use --gpus-per-node, with one task for each GPU and cuda:LOCAL_RANK",
        directive.one_gpu_per_task,
    ),
    (
        "SIGNAL-STEPS", "warning",
        "ranks that do not handle it are ended by it, and the script goes on",
        "write --signal=B:USR1@120 and trap USR1 in this script, unless the ranks handle it",
        directive.signal_to_steps,
    ),
    (
        "TASKS-CONTRADICT", "error", "Slurm starts another number of tasks than one of them says",
        "give --nodes and --ntasks-per-node, and leave --ntasks out", directive.tasks_contradict,
    ),
    (
        "EXPORT-NAMES", "error", "the tasks do not even find their program",
        "use --export=ALL and set variables in the script", directive.exported_names,
    ),
    (
        "EXPORT-COMMA", "error", "the variable holds only what is before the comma",
        "export the variable in the script, in quotes", directive.export_with_comma,
    ),
    (
        "REQUEUE", "note", "after a node failure Slurm may run the script again from its top",
        "add #SBATCH --no-requeue, or --requeue with --open-mode=append", directive.requeue_unsaid,
    ),
    (
        "HARD-ACCOUNT", "note", "whoever gets the script must edit it",
        "keep it in one site file (lockstep init), or export SBATCH_ACCOUNT", directive.own_account,
    ),
    (
        "TASKS-X-NPROC", "error", "several ranks then share a GPU, or never meet",
        "use --ntasks-per-node=1 with torchrun, or start python itself in each task",
        command_rules.tasks_times_workers,
    ),
    (
        "TORCHRUN-ONE-NODE", "error", "the other nodes idle or are waited for",
        "start it with srun --ntasks-per-node=1", command_rules.one_node_only,
    ),
    (
        "NO-SRUN", "error", "it runs on the first node only, and ranks that wait for others hang",
        "start it with srun, or with torchrun on each node", command_rules.no_srun,
    ),
    (
        "TASKS-GPUS", "warning", "one rank drives one GPU",
        "ask for as many tasks a node as GPUs: --ntasks-per-node", command_rules.tasks_against_gpus,
    ),
    (
        "WORKERS-GPUS", "error", 'the ranks beyond them fail with "invalid device ordinal"',
        "start one rank for each GPU: --nproc-per-node", command_rules.workers_against_gpus,
    ),
    (
        "WORLD-SIZE", "error", "the ranks wait for some that never come, or are refused",
        'set it from Slurm: export WORLD_SIZE="$SLURM_NTASKS"', command_rules.world_size,
    ),
    (
        "GLOO", "warning", "gloo copies each gradient through the host",
        "use nccl, which is torch's default for GPUs", command_rules.gloo_for_gpus,
    ),
    (
        "TORCHRUN-APART", "error", "each node then trains alone, and its result passes for all",
        'add --nnodes="$SLURM_NNODES" --rdzv-backend=c10d --rdzv-endpoint="$first_host:$port"',
        command_rules.nodes_apart,
    ),
    (
        "PROFILER-AROUND-SRUN", "error", "it sees the launcher and none of the ranks",
        "write srun ... nsys profile -o NAME-%q{SLURM_PROCID} ... python",
        command.profiler_around_srun,
    ),
    (
        "CONTAINER-AROUND-SRUN", "error", "an image has no srun, or one that is not this Slurm's",
        "write srun ... apptainer exec IMAGE ...", command.container_around_srun,
    ),
    (
        "NODE-RANK-BATCH", "error", "it is 0 on every node and in every task",
        "let each task expand it: srun bash -c '... $SLURM_PROCID ...' in single quotes",
        command.rank_in_batch_shell,
    ),
    (
        "SACCT-IN-JOB", "warning", "its numbers are not complete yet", SACCT,
        command.accounting_of_itself,
    ),
    (
        "INSTALL-IN-JOB", "warning",
        "nodes often have no network, ranks race for the files, and no two runs are alike",
        "install once, into an image or a venv", command.install_in_job,
    ),
    (
        "VERSION-AS-FILE", "error", "the version is not asked for", "quote it: 'package>=1.0'",
        command.version_as_file,
    ),
    (
        "MASTER-PORT", "warning", "another job or step on the node may have it",
        "derive it: export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))", command.fixed_port,
    ),
    (
        "MASTER-ADDR", "error", "those of other nodes wait until their time is out",
        command.FIRST_HOST, command.local_address,
    ),
    (
        "MEETS-ITSELF", "error", "the nodes never meet, and wait until their time is out",
        "let the batch shell expand it once, before srun", command.meets_itself,
    ),
    (
        "BROKEN-LINE", "error", "what follows is no part of the command",
        "let the backslash be the line's last character", command.broken_line,
    ),
    (
        "NO-KILL", "warning", "when one rank fails the others wait, and the nodes are billed",
        "add --kill-on-bad-exit=1", command.no_kill,
    ),
    (
        "NO-CPUS", "warning", "since Slurm 22.05 a task may get one core for all its loaders",
        'add --cpus-per-task="$SLURM_CPUS_PER_TASK", or export SRUN_CPUS_PER_TASK', command.no_cpus,
    ),
    (
        "MODULE-PURGE", "warning", "modules of the shell that submits stay loaded",
        "write module purge before it", command.modules_on_top,
    ),
    (
        "TWO-ENVIRONMENTS", "warning", "packages of one are found in the other",
        "keep exactly one: modules, a venv, or an image", command.two_environments,
    ),
    (
        "EXIT-CODE", "warning", "a failed run is then COMPLETED to Slurm and to afterok",
        "set -eo pipefail, or keep it: srun ... || failed=1, and end with exit",
        command.lost_exit_code,
    ),
    (
        "CLEANENV", "error", "no rank knows its number or where to meet",
        "hand them on as APPTAINERENV_NAME, or with --env-file", container.clean_environment,
    ),
    (
        "CONTAINALL", "error", "NCCL and gloo then share no memory, and /tmp has 64 MiB",
        "use --cleanenv --no-home instead", container.contained,
    ),
    (
        "NO-NV", "error", "torch then sees no GPU, and Apptainer does not say so",
        "add --nv, or --rocm for AMD", container.no_gpus_inside,
    ),
    (
        "DOCKER-SHM", "warning",
        "the image has 64 MB of /dev/shm, and loaders or NCCL end with a bus error",
        "add --ipc=host, or --shm-size=8g", container.docker_without_shared_memory,
    ),
    (
        "NCCL-VARIABLE", "warning", "what NCCL does not know it passes over without a word",
        "correct it", command.wrong_variable,
    ),
    (
        "COSTLY-VARIABLE", "warning", "every step is slower", "leave it out",
        command.costly_variable,
    ),
    (
        "INTERFACE-MISSING", "note", "ranks that find no interface do not meet",
        "look on a compute node", command.missing_interface,
    ),
    (
        "DEBUG-IN-TIMING", "warning", "a measured time then holds the debugging too",
        "leave it out", command.debugging,
    ),
    (
        "HARD-INTERFACE", "note", "on another machine the name is another",
        "keep it in one site file (lockstep init)", command.own_interface,
    ),
)  # fmt: skip
RULES = tuple(Rule(*row) for row in TABLE)


def load(path: str) -> Script:
    """Read a script.

    Raises:
        ValueError: There is no such file, or it cannot be a script.
    """
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(MAX_SCRIPT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path}: {reason}; give a batch script") from error
    if len(content) > MAX_SCRIPT_BYTES:
        raise ValueError(f"{path}: over {MAX_SCRIPT_BYTES} bytes, which sbatch refuses; is it one?")
    if b"\0" in content:
        raise ValueError(f"{path}: holds zero bytes, so it is no script; give a batch script")
    return Script(path, content.decode("utf-8", "replace"))


def lint(
    script: Script,
    interfaces: Collection[str] | None = None,
    slurm: tuple[int, ...] | None = None,
) -> list[Finding]:
    """Return what is wrong with a script, from its first line to its last.

    Args:
        script: What is judged.
        interfaces: Network interfaces of this machine, or None not to look for those it names.
        slurm: The version of Slurm that it is for, as (23, 2); None where it is not known.
    """
    return judged(script.path, Job(script, interfaces, slurm), RULES)


def judged(path: str, subject: Subject, rules: Iterable[Rule[Subject]]) -> list[Finding]:
    """Return what rules find in the script of a path, in the order of its lines."""
    found = [_finding(path, rule, hit) for rule in rules for hit in rule.check(subject)]
    return sorted(dict.fromkeys(found), key=lambda one: one.line)


def _finding(path: str, rule: Rule[Subject], hit: Hit) -> Finding:
    fact = one_line(hit.fact[:MAX_FACT])
    message = fact if hit.action else f"{fact}: {rule.why}"
    action = one_line(hit.action[:MAX_FACT]) or rule.action
    return Finding(path, hit.line, rule.name, hit.severity or rule.severity, message, action)
