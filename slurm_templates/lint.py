"""Errors that a reader of a batch script can find before the job has waited in the queue.

A rule is one small function over a script, and one row of `RULES`. Nothing is run. A rule that
cannot know says nothing: what a variable holds is put in where the script sets it to a plain text.
"""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

from slurm_templates.shell import (
    SBATCH_OPTIONS,
    SRUN_SHORT,
    Command,
    Option,
    Script,
    Word,
    base_name,
    options,
    value_of,
)
from slurm_templates.variables import INTERFACE_VARIABLES, Kind, problems

Severity = Literal["error", "warning", "note"]

CONTAINERS = ("apptainer", "singularity")
PROFILERS = ("nsys", "ncu", "nv-nsight-cu-cli", "compute-sanitizer")
# Programs that start the one named after them.
STARTERS = {
    *("exec", "env", "nohup", "timeout", "nice", "command", "stdbuf", "numactl", "taskset", "eval"),
    *("strace", "perf", *CONTAINERS, *PROFILERS),
}
LAUNCH = re.compile(r"(python[0-9.]*|torchrun|pytest|accelerate|deepspeed|.*\.py|.*\.sh)")
TORCH_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
INSTALLERS = {"pip", "pip3", "conda", "mamba", "micromamba", "uv", "apt", "apt-get"}
# What a task's own shell must expand: in the batch shell each of them is 0.
RANK_VARIABLES = {"SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"}
RANK_NAMES = {
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MACHINE_RANK", "CUDA_VISIBLE_DEVICES"),
}
RANK_OPTION = re.compile(r"--(node|machine|local|global)?[_-]?rank\b")
CONDA = "an environment of conda"
# What ml does besides loading.
ML_WORDS = {"", "list", "avail", "use", "unuse", "spider", "show", "unload", "help", "save"}
OWN_JOB = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID"}
LOCAL_ADDRESSES = {"localhost", "127.0.0.1", "0.0.0.0", "::1"}  # noqa: S104, none is bound
VARIABLE_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "TORCH_DISTRIBUTED_DEBUG")
# Options of apptainer exec whose value may be the next word.
CONTAINER_VALUES = {
    *("-B", "--bind", "--env", "--env-file", "-H", "--home", "--pwd", "--cwd", "-W", "--workdir"),
    *("-S", "--scratch", "-o", "--overlay", "--mount", "--network", "--hostname", "--app"),
    *("--security", "--dns", "--fusemount", "--add-caps", "--drop-caps", "--apply-cgroups"),
}
MISSPELT = re.compile(r"\s*#+\s*sbatch\s*-", re.IGNORECASE)
HANDED_ON = re.compile(r"(APPTAINER|SINGULARITY)ENV_(SLURM|MASTER|RANK|LOCAL|WORLD|\$|\{)")
MAX_FACT = 300
MAX_SCRIPT_BYTES = 4 * 1024**2  # that of Slurm's SchedulerParameters max_script_size


@dataclass(frozen=True)
class Hit:
    """What a rule has found: where, and the fact; an action of its own comes with its own why."""

    line: int
    fact: str
    action: str = ""


@dataclass(frozen=True)
class Rule:
    """One error to look for.

    Attributes:
        why: What comes of it.
        action: What to do.
    """

    name: str
    severity: Severity
    why: str
    action: str
    check: "Callable[[Job], Iterator[Hit]]"


@dataclass(frozen=True)
class Finding:
    """A rule that a script breaks, and where."""

    path: str
    line: int
    rule: str
    severity: Severity
    message: str
    action: str

    def __str__(self) -> str:
        """Return it as compilers write an error, in one line."""
        return (
            f"{self.path}:{self.line}: {self.rule} {self.severity}: {self.message}; {self.action}"
        )


@dataclass(frozen=True)
class Step:
    """One srun: its options, and the words of what it starts."""

    line: int
    options: dict[str, str | None]
    program: tuple[Word, ...]

    @property
    def is_certain(self) -> bool:
        """Whether no option can hide in a variable that nobody knows."""
        return bool(self.program) and not self.program[0].text.startswith("$")

    @cached_property
    def tokens(self) -> list[str]:
        """All words of what it starts, those in quoted text too."""
        return _tokens(self.program)

    @property
    def is_launch(self) -> bool:
        """Whether it starts ranks, rather than a small tool on each node."""
        names = [base_name(token) for token in self.tokens]
        return any(LAUNCH.fullmatch(name) or name in CONTAINERS for name in names)


@dataclass(frozen=True)
class Container:
    """One `apptainer exec` or such: its options, and the step that it is in."""

    line: int
    options: tuple[str, ...]
    step: Step | None

    def has(self, *names: str) -> bool:
        """Return whether it has one of these options."""
        return any(one.partition("=")[0] in names for one in self.options)


def _tokens(words: Collection[Word]) -> list[str]:
    return [token for word in words for token in word.text.split()]


@dataclass(frozen=True)
class Job:
    """A script as the rules ask about it.

    Attributes:
        interfaces: Network interfaces of this machine, or None not to look for them.
    """

    script: Script
    interfaces: Collection[str] | None = None

    @cached_property
    def commands(self) -> list[Command]:
        """The commands, with what variables stand for in their place, as far as it is known."""
        known = (replace(one, words=self.script.expand(one.words)) for one in self.script.commands)
        return [one for one in known if one.words]

    @cached_property
    def steps(self) -> list[Step]:
        """Every srun."""
        return [step for command in self.commands if (step := _step(command))]

    @property
    def launches(self) -> list[Step]:
        """Every srun that starts ranks, and whose options are known."""
        return [step for step in self.steps if step.is_launch and step.is_certain]

    @cached_property
    def containers(self) -> list[Container]:
        """Every start of a container."""
        found: list[Container] = []
        for command in self.commands:
            found += _containers(_tokens(command.words), command.line, _step(command))
        return found

    @cached_property
    def is_batch(self) -> bool:
        """Whether it is sent to sbatch, and not run by each task."""
        return bool(self.script.directives or self.steps)

    @cached_property
    def is_rendered(self) -> bool:
        """Whether Lockstep has made it, from one site file."""
        return "LOCKSTEP_LAUNCHER" in self.script.settings

    @cached_property
    def nodes(self) -> int | None:
        """How many nodes it asks for at most."""
        return _most(self.script.directive("nodes"))

    @cached_property
    def has_gpus(self) -> bool:
        """Whether it asks for GPUs."""
        gres = self.script.directive("gres")
        names = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
        return bool(self.script.directive(*names) or (gres and "gpu" in (gres.value or "")))

    def number(self, text: str | None) -> int | None:
        """Return the number that a text is or stands for."""
        found = self.script.resolve(text or "")
        return int(found) if re.fullmatch("[0-9]{1,6}", found, re.ASCII) else None

    def asked(self, name: str, step: Step | None = None) -> int | None:
        """Return the number that a step asks for, else the job."""
        if step and name in step.options:
            return self.number(step.options[name])
        option = self.script.directive(name)
        return self.number(option.value) if option else None

    def tasks_per_node(self, step: Step | None = None) -> int | None:
        """Return how many tasks a node has, or None where that is not said."""
        nodes = (step and self.number(step.options.get("nodes"))) or self.nodes or 1
        if step and "ntasks" in step.options and "ntasks-per-node" not in step.options:
            tasks = self.number(step.options["ntasks"])
            return tasks and -(-tasks // nodes)
        if per_node := self.asked("ntasks-per-node", step):
            return per_node
        tasks = self.asked("ntasks", step)
        return tasks and -(-tasks // nodes)

    def is_single(self, step: Step) -> bool:
        """Return whether a step has one task only, as far as is known."""
        if "ntasks" in step.options:
            return self.number(step.options["ntasks"]) == 1
        nodes = (self.number(step.options.get("nodes"))) or self.nodes or 1
        return nodes == 1 and self.tasks_per_node(step) in (1, None)

    @cached_property
    def environ(self) -> dict[str, tuple[int, str]]:
        """The variables of NCCL and such that it sets: line and value."""
        found: dict[str, tuple[int, str]] = {}
        for command in self.script.commands:
            for name, word in command.assigns:
                bare = re.sub("^(APPTAINER|SINGULARITY)ENV_", "", name)
                if bare.startswith(VARIABLE_PREFIXES):
                    found[bare] = word.line, self.script.resolve(value_of(word))
            declared = {word for _, word in command.assigns}
            for word in command.words:
                found |= {} if word in declared else self._handed(word)
        return found

    def _handed(self, word: Word) -> dict[str, tuple[int, str]]:
        """Return variables that a word of a command sets, as in `env X=1` or `--export=ALL,X=1`."""
        text = word.text.removeprefix("--env=")
        pieces = text.split(",")[1:] if text.startswith("--export=") else text.split()
        pairs = (piece.partition("=") for piece in pieces if "=" in piece)
        return {
            name: (word.line, self.script.resolve(value))
            for name, _, value in pairs
            if name.startswith(VARIABLE_PREFIXES) and name.isidentifier()
        }

    def problems(self, *kinds: Kind) -> Iterator[Hit]:
        """Yield the problems of these variables that are of some kinds."""
        values = {name: value for name, (_, value) in self.environ.items()}
        for one in problems(values, self.interfaces):
            if one.kind in kinds:
                yield Hit(self.environ[one.name][0], one.message, one.action)


def _most(option: Option | None) -> int | None:
    match = re.fullmatch(r"(?:[0-9]+-)?([0-9]{1,6})", (option and option.value) or "", re.ASCII)
    return int(match[1]) if match else None


def _step(command: Command) -> Step | None:
    """Return the srun that a command is, or that it starts."""
    if command.name != "srun" and command.name not in STARTERS:
        return None
    for at, word in enumerate(command.words):
        if base_name(word.text) == "srun":
            given, program = options(command.words[at + 1 :], SRUN_SHORT)
            return Step(command.line, {one.name: one.value for one in given}, program)
    return None


def _containers(tokens: list[str], line: int, step: Step | None) -> Iterator[Container]:
    for at, token in enumerate(tokens):
        if base_name(token) not in CONTAINERS:
            continue
        rest = iter(tokens[at + 1 :])
        action = next((one for one in rest if not one.startswith("-")), "")
        if action in ("exec", "run", "shell"):
            yield Container(line, tuple(_container_options(rest)), step)


def _container_options(tokens: Iterator[str]) -> Iterator[str]:
    for token in tokens:
        if not token.startswith("-"):
            return
        yield token
        if token in CONTAINER_VALUES:
            next(tokens, "")


# --- the directives -------------------------------------------------------------------------------


def no_shebang(job: Job) -> Iterator[Hit]:
    """Look at the first line."""
    if not job.script.text.startswith("#!"):
        yield Hit(1, "the first line is not #!")


def dos_lines(job: Job) -> Iterator[Hit]:
    """Look for the line ends of Windows."""
    found = [n for n, line in enumerate(job.script.lines, start=1) if line.endswith("\r")]
    if found:
        yield Hit(found[0], f"{len(found)} lines end as on Windows, in CR LF")


def late_directive(job: Job) -> Iterator[Hit]:
    """Look for directives after the first command."""
    first = job.script.first_command
    for line, text in job.script.reader.comments:
        if line > first and text.startswith("#SBATCH"):
            yield Hit(line, f"{text[:60].strip()} comes after the first command, in line {first}")


def misspelt_directive(job: Job) -> Iterator[Hit]:
    """Look for comments that were meant to be directives."""
    for line, text in job.script.reader.comments:
        if MISSPELT.match(text) and not text.startswith(("#SBATCH", "##")):
            yield Hit(line, f"{text[:60].strip()!r} is not #SBATCH at the beginning of the line")


def disabled_directive(job: Job) -> Iterator[Hit]:
    """Look for directives behind a second #."""
    for line, text in job.script.reader.comments:
        if MISSPELT.match(text) and text.startswith("##"):
            yield Hit(line, f"{text[:60].strip()!r} is a comment")


def unknown_option(job: Job) -> Iterator[Hit]:
    """Look for options that sbatch does not have but nearly so; others may be a site's plugin's."""
    for one in job.script.directives:
        # --container-image and its like are those of Pyxis, a plugin that many sites have.
        foreign = len(one.name) == 1 or one.name.startswith("container-")
        if not foreign and one.name not in SBATCH_OPTIONS:
            near = get_close_matches(one.name[:60], SBATCH_OPTIONS, n=1, cutoff=0.75)
            if near:
                yield Hit(one.line, f"sbatch has no --{one.name}", f"did you mean --{near[0]}?")


def variable_in_directive(job: Job) -> Iterator[Hit]:
    """Look for what only a shell expands."""
    for one in job.script.directives:
        value = one.value or ""
        if "$" in value or value.startswith("~"):
            yield Hit(one.line, f"--{one.name}={value} holds what only a shell expands")


def no_time(job: Job) -> Iterator[Hit]:
    """Look for the time limit."""
    if job.script.directives and not job.script.directive("time"):
        yield Hit(1, "--time is not given")


def no_tasks_per_node(job: Job) -> Iterator[Hit]:
    """Look for tasks that Slurm may spread over nodes as it likes."""
    tasks = job.asked("ntasks")
    by_step = any("ntasks-per-node" in step.options for step in job.steps)
    if (job.nodes or 1) == 1 or by_step or job.script.directive("ntasks-per-node"):
        return
    if tasks not in (None, job.nodes):
        yield Hit(1, f"{tasks} tasks on {job.nodes} nodes have no --ntasks-per-node")
    elif tasks is None and job.has_gpus and any(not _torch_launch(s.tokens) for s in job.launches):
        yield Hit(1, f"{job.nodes} nodes have no --ntasks-per-node, so each gets one task")


def missing_folder(job: Job) -> Iterator[Hit]:
    """Look for the folders of --output and --error, as far as this machine can tell."""
    for name in ("output", "error"):
        option = job.script.directive(name)
        folder = Path(option.value).parent if option and option.value else Path()
        if option and not _may_exist(folder, job.script):
            yield Hit(option.line, f"the folder {folder} of --{name} does not exist")


def _may_exist(folder: Path, script: Script) -> bool:
    """Return whether a folder exists, or cannot be judged from here."""
    if "$" in str(folder) or str(folder).startswith("~"):
        return True  # another rule says that it is not expanded
    try:
        if folder.is_absolute():
            # Another machine's file system is not to be judged by this one's.
            return folder.is_dir() or folder.parent == Path("/") or not folder.parent.is_dir()
        chdir = script.directive("chdir")
        bases = [Path(chdir.value)] if chdir and chdir.value else [Path(), Path(script.path).parent]
        return any((base / folder).is_dir() for base in bases)
    except OSError:
        return True  # a name that no file can have


def one_gpu_per_task(job: Job) -> Iterator[Hit]:
    """Look for what shows each of several tasks of a node its own GPU only."""
    option = job.script.directive("gpus-per-task")
    if option and (job.tasks_per_node() or 1) > 1:
        yield Hit(option.line, "--gpus-per-task shows each task one GPU")
    for step in job.steps:
        bind = step.options.get("gpu-bind") or ""
        several = (job.tasks_per_node(step) or 2) > 1 and not job.is_single(step)
        if several and "gpus-per-task" in step.options:
            yield Hit(step.line, "srun --gpus-per-task shows each task one GPU")
        elif several and bind.startswith(("single", "per_task")):
            yield Hit(step.line, f"srun --gpu-bind={bind} shows each task one GPU")
        elif any(re.match(r"CUDA_VISIBLE_DEVICES=\S*LOCAL", one) for one in step.tokens):
            yield Hit(step.line, "CUDA_VISIBLE_DEVICES is set to one GPU in each task")


def signal_to_steps(job: Job) -> Iterator[Hit]:
    """Look for a warning before the time limit that goes to the ranks."""
    option = job.script.directive("signal")
    target, colon, _ = ((option and option.value) or "").partition(":")
    if option and not (colon and "B" in target):
        yield Hit(option.line, f"--signal={option.value} goes to the ranks, not to this script")


def exported_names(job: Job) -> Iterator[Hit]:
    """Look for --export that leaves out the rest of the environment."""
    for line, value in _exports(job):
        names = value.split(",")
        if value and names[0] not in ("ALL", "NONE", "NIL") and "ALL" not in names:
            yield Hit(line, f"--export={value} drops every other variable, PATH too")


def export_with_comma(job: Job) -> Iterator[Hit]:
    """Look for a value that ends at its comma."""
    for line, value in _exports(job):
        names = value.split(",")
        cut = [b for a, b in pairwise(names) if "=" in a and "=" not in b]
        if "ALL" in names and cut and cut[0] != "ALL":
            yield Hit(line, f"--export={value} ends a value at its comma, before {cut[0]!r}")


def _exports(job: Job) -> Iterator[tuple[int, str]]:
    option = job.script.directive("export")
    if option and option.value:
        yield option.line, option.value
    for step in job.steps:
        if value := step.options.get("export"):
            yield step.line, value


def requeue_unsaid(job: Job) -> Iterator[Hit]:
    """Look for what becomes of the job when a node fails."""
    if job.script.directives and not job.script.directive("no-requeue", "requeue"):
        yield Hit(1, "neither --no-requeue nor --requeue is given")


def own_account(job: Job) -> Iterator[Hit]:
    """Look for an account in the script."""
    option = job.script.directive("account")
    if option and not job.is_rendered:
        yield Hit(option.line, f"--account={option.value} stands in the script")


# --- the commands ---------------------------------------------------------------------------------


def _torch_launch(tokens: list[str]) -> str | None:
    """Return the launcher of torch's own among some words."""
    for at, token in enumerate(tokens):
        name = base_name(token)
        if name in TORCH_LAUNCHERS:
            return name
        if name == "accelerate" and "launch" in tokens[at + 1 : at + 2]:
            return "accelerate launch"
    return None


def _option_values(tokens: list[str], *names: str) -> Iterator[str]:
    """Yield the values of a program's option, written with _ or -."""
    for at, token in enumerate(tokens):
        name, equals, value = token.partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") in names:
            yield value if equals else "".join(tokens[at + 1 : at + 2])


def tasks_times_workers(job: Job) -> Iterator[Hit]:
    """Look for torchrun in each of several tasks of a node."""
    for step in job.steps:
        launcher, tasks = _torch_launch(step.tokens), job.tasks_per_node(step)
        workers = next(_option_values(step.tokens, "nproc_per_node", "num_processes"), "1")
        number = job.number(workers)
        if not launcher or tasks in (None, 1) or number == 1:
            continue
        many = f", {tasks * number} in all" if tasks and number else ""
        yield Hit(
            step.line,
            f"srun starts {tasks} tasks on a node and each {launcher} {workers} workers{many}",
        )


def one_node_only(job: Job) -> Iterator[Hit]:
    """Look for torchrun that no srun carries to the other nodes."""
    for command in job.commands if (job.nodes or 1) > 1 else ():
        launcher = _torch_launch(_tokens(command.words))
        if launcher and LAUNCH.fullmatch(command.name):
            yield Hit(command.line, f"{launcher} runs on the first of {job.nodes} nodes only")


def around_srun(job: Job, programs: Collection[str]) -> Iterator[Hit]:
    """Look for a program that starts srun."""
    for command in job.commands:
        names = [base_name(token) for token in _tokens(command.words)]
        outer = next((name for name in names if name not in STARTERS - {*programs}), "")
        if outer in programs and "srun" in names:
            yield Hit(command.line, f"{outer} is around srun")


def profiler_around_srun(job: Job) -> Iterator[Hit]:
    """Look for a profiler of srun itself."""
    return around_srun(job, PROFILERS)


def container_around_srun(job: Job) -> Iterator[Hit]:
    """Look for srun inside an image."""
    return around_srun(job, CONTAINERS)


def rank_in_batch_shell(job: Job) -> Iterator[Hit]:
    """Look for ranks that the batch shell expands, instead of each task."""
    if not job.is_batch:
        return
    for name, word in (pair for command in job.script.commands for pair in command.assigns):
        if name in RANK_NAMES or RANK_OPTION.search(word.text):
            yield from _rank_hits(word.line, word.live)
    for command in job.commands:
        for word in (
            command.words if _step(command) or _torch_launch(_tokens(command.words)) else ()
        ):
            yield from _rank_hits(word.line, word.live)


def _rank_hits(line: int, live: Collection[str]) -> Iterator[Hit]:
    for name in sorted(RANK_VARIABLES & set(live)):
        yield Hit(line, f"${name} is expanded by the batch shell")


def accounting_of_itself(job: Job) -> Iterator[Hit]:
    """Look for sacct and seff about the job that runs them."""
    for command in job.commands:
        asks_others = any(word.text.startswith(("-j", "--job")) for word in command.words)
        is_own = command.live & OWN_JOB or (not asks_others and command.name == "sacct")
        if command.name in ("sacct", "seff") and is_own:
            yield Hit(command.line, f"{command.name} asks about the job that runs it")


def install_in_job(job: Job) -> Iterator[Hit]:
    """Look for packages that every run fetches anew."""
    for command in job.commands:
        tokens = _tokens(command.words)
        for at, token in enumerate(tokens if command.name not in ("echo", "printf") else []):
            following = tokens[at + 1 : at + 3]
            if base_name(token) in INSTALLERS and "install" in following:
                if "--no-index" not in tokens:
                    yield Hit(command.line, f"{base_name(token)} install runs in the job")
                break


def version_as_file(job: Job) -> Iterator[Hit]:
    """Look for >= that the shell takes for a file."""
    for command in job.script.commands:
        for operator, target in command.redirects:
            if operator in (">", ">>") and target.text.startswith("=") and not target.quoted:
                yield Hit(command.line, f"unquoted {operator}{target.text} writes into a file")


def _settings_of(job: Job, variable: str, *names: str) -> Iterator[tuple[int, str]]:
    """Yield lines and values of a variable, and of options that say the same."""
    for command in job.script.commands:
        for name, word in command.assigns:
            if name == variable:
                yield word.line, value_of(word)
    for command in job.commands:
        for value in _option_values(_tokens(command.words), *names):
            yield command.line, value


def fixed_port(job: Job) -> Iterator[Hit]:
    """Look for a port that another job may have."""
    found = list(_settings_of(job, "MASTER_PORT", "master_port", "main_process_port"))
    found += [(n, v.rpartition(":")[2]) for n, v in _settings_of(job, "", "rdzv_endpoint")]
    facts: dict[str, int] = {}  # said once, where it is first set
    for line, value in found:
        known = job.script.resolve(value)
        if "RANDOM" in known or "shuf" in known:
            facts.setdefault("the port is a random one", line)
        elif known.isdigit() and known != "0" and not job.script.directive("exclusive"):
            facts.setdefault(f"the port is always {known[:9]}", line)
    yield from (Hit(line, fact) for fact, line in facts.items())


def local_address(job: Job) -> Iterator[Hit]:
    """Look for ranks that would each meet on their own node."""
    found = list(_settings_of(job, "MASTER_ADDR", "master_addr", "main_process_ip"))
    found += [(n, v.rpartition(":")[0]) for n, v in _settings_of(job, "", "rdzv_endpoint")]
    for line, value in found if (job.nodes or 1) > 1 else ():
        known = job.script.resolve(value)
        if known in LOCAL_ADDRESSES:
            yield Hit(line, f"the ranks of {job.nodes} nodes meet at {known}")
            return  # the options that repeat it say nothing new


def no_kill(job: Job) -> Iterator[Hit]:
    """Look for ranks that outlive one that has failed."""
    for step in job.launches if "SLURM_KILL_BAD_EXIT" not in job.script.settings else ():
        value = step.options.get("kill-on-bad-exit", "0")
        if value == "0" and not job.is_single(step):
            yield Hit(step.line, "srun has no --kill-on-bad-exit")


def no_cpus(job: Job) -> Iterator[Hit]:
    """Look for CPUs that sbatch is told of and srun is not."""
    option = job.script.directive("cpus-per-task")
    if not option or option.value == "1" or "SRUN_CPUS_PER_TASK" in job.script.settings:
        return
    for step in job.launches:
        if "cpus-per-task" not in step.options:
            yield Hit(step.line, f"srun has no --cpus-per-task; sbatch's {option.value} is not its")


def modules_on_top(job: Job) -> Iterator[Hit]:
    """Look for modules on top of those that the submitting shell had."""
    for command in job.commands:
        first, *rest = [word.text for word in command.words]
        if first not in ("module", "ml"):
            continue
        if {"purge", "reset", "restore"} & set(rest):
            return
        named = next((text for text in rest if not text.startswith("-")), "")
        if named in ("load", "add") or (first == "ml" and named not in ML_WORDS):
            yield Hit(command.line, f"{' '.join([first, *rest])[:60]} comes without module purge")
            return


def two_environments(job: Job) -> Iterator[Hit]:
    """Look for an environment outside of an image, or for two of them."""
    found = [(one.line, kind) for one in job.commands if (kind := _activates(one))]
    if found and job.containers:
        line = job.containers[0].line
        yield Hit(found[0][0], f"{found[0][1]} is entered outside of the image of line {line}")
    elif len({kind for _, kind in found}) > 1:
        yield Hit(found[-1][0], f"{found[-1][1]} is entered on top of {found[0][1]}")


def _activates(command: Command) -> str | None:
    first, *rest = [word.text for word in command.words]
    if first in ("source", ".") and rest and base_name(rest[0]) == "activate":
        return CONDA if len(rest) > 1 else "a venv"
    if first in ("conda", "mamba", "micromamba") and rest[:1] == ["activate"]:
        return CONDA
    return None


def lost_exit_code(job: Job) -> Iterator[Hit]:
    """Look for a last command that hides how srun ended."""
    if not job.launches or _stops_at_errors(job):
        return
    last = [command for command in job.commands if command.depth == 0][-1]
    if last.name not in ("exit", "return") and not _step(last):
        yield Hit(last.line, f"the script ends with {last.name[:40]}, whatever srun said")


def _stops_at_errors(job: Job) -> bool:
    if re.match(r"#!\S+\s+-\w*e", job.script.lines[0]):
        return True
    given = [word.text for one in job.commands if one.name == "set" for word in one.words[1:]]
    return "errexit" in given or any(re.match("-[a-zA-Z]*e", text) for text in given)


# --- containers -----------------------------------------------------------------------------------


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
    """Return whether an option may stand in a variable that nobody knows."""
    return any("$" in one and "=" not in one for one in container.options)


# --- variables ------------------------------------------------------------------------------------


def wrong_variable(job: Job) -> Iterator[Hit]:
    """Look for variables that do not exist, and values that they do not take."""
    return job.problems("name", "value")


def missing_interface(job: Job) -> Iterator[Hit]:
    """Look for the network interfaces on this machine."""
    return job.problems("interface")


def debugging(job: Job) -> Iterator[Hit]:
    """Look for what slows the ranks."""
    return job.problems("slow")


def own_interface(job: Job) -> Iterator[Hit]:
    """Look for the name of an interface in the script."""
    for name in INTERFACE_VARIABLES if not job.is_rendered else ():
        line, value = job.environ.get(name, (0, ""))
        if value and "$" not in value and not value.startswith("^"):
            yield Hit(line, f"{name}={value} stands in the script")


SACCT = "take the numbers after the job's end: lockstep collect, or sacct from the login node"
TABLE: tuple[tuple[str, Severity, str, str, Callable[[Job], Iterator[Hit]]], ...] = (
    ("SHEBANG", "error", "sbatch refuses the script", "begin with #!/bin/bash", no_shebang),
    ("CRLF", "error", "sbatch refuses the script", "run dos2unix on it", dos_lines),
    (
        "DIRECTIVE-LATE", "error", "sbatch passes over it without a word",
        "move it above the first command", late_directive,
    ),
    (
        "DIRECTIVE-SPELLING", "error", "sbatch takes it for a comment",
        "write #SBATCH in capitals, without blanks, where the line begins", misspelt_directive,
    ),
    (
        "DIRECTIVE-OFF", "note", "sbatch does not read it", "remove it if that is not meant",
        disabled_directive,
    ),
    ("DIRECTIVE-OPTION", "error", "sbatch refuses the script", "correct it", unknown_option),
    (
        "DIRECTIVE-VARIABLE", "error", "sbatch takes it letter by letter",
        "write the value out, or use sbatch's own %j, %x and %u", variable_in_directive,
    ),
    (
        "NO-TIME", "warning", "the job gets the partition's limit and waits longer, or is refused",
        "add #SBATCH --time=HH:MM:SS", no_time,
    ),
    (
        "NO-TASKS-PER-NODE", "warning", "Slurm may fill one node before the next",
        "add #SBATCH --ntasks-per-node, one task for each GPU", no_tasks_per_node,
    ),
    (
        "OUTPUT-FOLDER", "error", "the job fails at once (0:53) and leaves no log",
        "make it before you submit", missing_folder,
    ),
    (
        "GPU-PER-TASK", "warning", "NCCL then misses NVLink and P2P without a word",
        "use --gpus-per-node, with one task for each GPU and cuda:LOCAL_RANK", one_gpu_per_task,
    ),
    (
        "SIGNAL-STEPS", "warning",
        "ranks without a handler die of it, those in an image of SIGBUS, and the script goes on",
        "write --signal=B:USR1@120 and trap USR1 in this script", signal_to_steps,
    ),
    (
        "EXPORT-NAMES", "error", "the tasks do not even find their program",
        "use --export=ALL and set variables in the script", exported_names,
    ),
    (
        "EXPORT-COMMA", "error", "the variable holds only what stands before the comma",
        "export the variable in the script, in quotes", export_with_comma,
    ),
    (
        "REQUEUE", "note", "after a node failure Slurm may run the script again from its top",
        "add #SBATCH --no-requeue, or --requeue with --open-mode=append", requeue_unsaid,
    ),
    (
        "HARD-ACCOUNT", "note", "whoever gets the script must edit it",
        "keep it in one site file (lockstep init), or export SBATCH_ACCOUNT", own_account,
    ),
    (
        "TASKS-X-NPROC", "error", "several ranks then share a GPU, or never meet",
        "use --ntasks-per-node=1 with torchrun, or start python itself in each task",
        tasks_times_workers,
    ),
    (
        "TORCHRUN-ONE-NODE", "error", "the other nodes idle or are waited for",
        "start it with srun --ntasks-per-node=1", one_node_only,
    ),
    (
        "PROFILER-AROUND-SRUN", "error", "it sees the launcher and none of the ranks",
        "write srun ... nsys profile -o NAME-%q{SLURM_PROCID} ... python", profiler_around_srun,
    ),
    (
        "CONTAINER-AROUND-SRUN", "error", "an image has no srun, or one that is not this Slurm's",
        "write srun ... apptainer exec IMAGE ...", container_around_srun,
    ),
    (
        "NODE-RANK-BATCH", "error", "it is 0 on every node and in every task",
        "let each task expand it: srun bash -c '... $SLURM_PROCID ...' in single quotes",
        rank_in_batch_shell,
    ),
    ("SACCT-IN-JOB", "warning", "its numbers are not complete yet", SACCT, accounting_of_itself),
    (
        "INSTALL-IN-JOB", "warning",
        "nodes often have no network, ranks race for the files, and no two runs are alike",
        "install once, into an image or a venv", install_in_job,
    ),
    (
        "VERSION-AS-FILE", "error", "the version is not asked for", "quote it: 'package>=1.0'",
        version_as_file,
    ),
    (
        "MASTER-PORT", "warning", "another job or step on the node may have it",
        "derive it: export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))", fixed_port,
    ),
    (
        "MASTER-ADDR", "error", "those of other nodes wait until their time is out",
        'take the first host: scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1',
        local_address,
    ),
    (
        "NO-KILL", "warning", "when one rank fails the others wait, and the nodes are billed",
        "add --kill-on-bad-exit=1", no_kill,
    ),
    (
        "NO-CPUS", "warning", "since Slurm 22.05 a task may get one core for all its loaders",
        'add --cpus-per-task="$SLURM_CPUS_PER_TASK", or export SRUN_CPUS_PER_TASK', no_cpus,
    ),
    (
        "MODULE-PURGE", "warning", "modules of the shell that submits stay loaded",
        "write module purge before it", modules_on_top,
    ),
    (
        "TWO-ENVIRONMENTS", "warning", "packages of one are found in the other",
        "keep exactly one: modules, a venv, or an image", two_environments,
    ),
    (
        "EXIT-CODE", "warning", "a failed run is then COMPLETED to Slurm and to afterok",
        "keep it, srun ... || failed=1, and end with exit; or set -e", lost_exit_code,
    ),
    (
        "CLEANENV", "error", "no rank knows its number or where to meet",
        "hand them on as APPTAINERENV_NAME, or with --env-file", clean_environment,
    ),
    (
        "CONTAINALL", "error", "NCCL and gloo then share no memory, and /tmp has 64 MiB",
        "use --cleanenv --no-home instead", contained,
    ),
    (
        "NO-NV", "error", "torch then sees no GPU, and Apptainer does not say so",
        "add --nv, or --rocm for AMD", no_gpus_inside,
    ),
    (
        "NCCL-VARIABLE", "warning", "what NCCL does not know it passes over without a word",
        "correct it", wrong_variable,
    ),
    (
        "INTERFACE-MISSING", "note", "ranks that find no interface do not meet",
        "look on a compute node", missing_interface,
    ),
    (
        "DEBUG-IN-TIMING", "warning", "a measured time then holds the debugging too",
        "leave it out", debugging,
    ),
    (
        "HARD-INTERFACE", "note", "on another machine the name is another",
        "keep it in one site file (lockstep init)", own_interface,
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


def lint(script: Script, interfaces: Collection[str] | None = None) -> list[Finding]:
    """Return what is wrong with a script, from its first line to its last.

    Args:
        script: What is judged.
        interfaces: Network interfaces of this machine, or None not to look for those it names.
    """
    job = Job(script, interfaces)
    found = [_finding(script, rule, hit) for rule in RULES for hit in rule.check(job)]
    return sorted(dict.fromkeys(found), key=lambda one: one.line)


def _finding(script: Script, rule: Rule, hit: Hit) -> Finding:
    message = _line(hit.fact) if hit.action else f"{_line(hit.fact)}: {rule.why}"
    action = _line(hit.action) or rule.action
    return Finding(script.path, hit.line, rule.name, rule.severity, message, action)


def _line(text: str) -> str:
    """Return what a script says as one line that no terminal takes for a command."""
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_FACT])
