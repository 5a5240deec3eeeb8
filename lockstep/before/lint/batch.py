"""A batch script's request to Slurm, and its steps, containers and variables."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from lockstep.before.lint.shell import (
    Command,
    Shell,
    Word,
    base_name,
    read_shell,
    split_words,
    tokens_of,
    value_of,
    words_of,
)
from lockstep.before.lint.variables import COSTLY
from lockstep.core import files
from lockstep.core.processes import COMMUNICATION_PREFIXES

CONTAINERS = ("apptainer", "singularity")
PROFILERS = ("nsys", "ncu", "nv-nsight-cu-cli", "compute-sanitizer")
# Programs that start the program named after them.
STARTERS = {
    *("exec", "env", "nohup", "timeout", "nice", "command", "stdbuf", "numactl", "taskset", "eval"),
    *("strace", "perf", *CONTAINERS, *PROFILERS),
}
# Commands that only print their arguments.
PRINTERS = ("echo", "printf")
LAUNCH = re.compile(r"(python[0-9.]*|torchrun|pytest|accelerate|deepspeed|.*\.py|.*\.sh)")
TORCHRUN = ("torchrun", "torch.distributed.run")
TORCH_LAUNCHERS = {*TORCHRUN, "torch.distributed.launch", "torchrun_jsc"}
VARIABLE_PREFIXES = (*COMMUNICATION_PREFIXES, "TORCH_DISTRIBUTED_DEBUG", *COSTLY)
ENV_OF_IMAGE = re.compile("^(APPTAINER|SINGULARITY)ENV_")
# The GPUs in a value of --gres, such as gpu:a100:4(S:0-1), or in gpu: plus a value of --gpus.
GPUS = re.compile(r"(?:^|,)gpu(?:$|,|:(?:[A-Za-z][\w.-]*(?:$|,|:))?([0-9]{1,4})?)")
# Options of apptainer exec whose value may be the next word.
CONTAINER_VALUES = {
    *("-B", "--bind", "--env", "--env-file", "-H", "--home", "--pwd", "--cwd", "-W", "--workdir"),
    *("-S", "--scratch", "-o", "--overlay", "--mount", "--network", "--hostname", "--app"),
    *("--security", "--dns", "--fusemount", "--add-caps", "--drop-caps", "--apply-cgroups"),
}


def torch_launcher(tokens: Sequence[str]) -> str | None:
    for at, token in enumerate(tokens):
        name = base_name(token)
        if name in TORCH_LAUNCHERS:
            return name
        if name == "accelerate" and "launch" in tokens[at + 1 : at + 2]:
            return "accelerate launch"
    return None


def runs_python(tokens: Sequence[str]) -> bool:
    for at, token in enumerate(tokens):
        if re.fullmatch(r"python[0-9.]*", base_name(token)):
            rest = [word for word in tokens[at + 1 :] if word not in ("-u", "-O", "-B", "-E", "-s")]
            return bool(rest) and (rest[0].endswith(".py") or rest[0] == "-m")
    return False


def option_values(tokens: Sequence[str], *names: str) -> Iterator[str]:
    """Yield the values of a program's options; an option's name may have _ or -."""
    for at, token in enumerate(tokens):
        name, equals, value = token.partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") in names:
            yield value if equals else "".join(tokens[at + 1 : at + 2])


@dataclass(frozen=True)
class Step:
    """An srun command: its options, and the words of the program that it starts."""

    line: int
    options: dict[str, str | None]
    program: tuple[Word, ...]
    is_monitor: bool = False  # whether it runs beside the ranks, with --overlap and &

    @property
    def is_certain(self) -> bool:
        """Whether all options are known: none hides in a variable of unknown value."""
        return bool(self.program) and not self.program[0].text.startswith("$")

    @property
    def tokens(self) -> list[str]:
        return tokens_of(self.program)

    @property
    def is_launch(self) -> bool:
        """Whether it starts ranks, and not a small tool on each node."""
        names = [base_name(token) for token in self.tokens]
        is_rank = any(LAUNCH.fullmatch(name) or name in CONTAINERS for name in names)
        return is_rank and not self.is_monitor


@dataclass(frozen=True)
class Container:
    """An `apptainer exec` or similar: its options, and the step that starts it."""

    line: int
    options: tuple[str, ...]
    step: Step | None
    program: tuple[str, ...] = ()

    def has(self, *names: str) -> bool:
        return any(option.partition("=")[0] in names for option in self.options)


# Short options that have a value -> long options.
_SHORT = """
A=account a=array b=begin B=extra-node-info c=cpus-per-task C=constraint d=dependency D=chdir
e=error F=nodefile G=gpus i=input J=job-name L=licenses M=clusters m=distribution n=ntasks N=nodes
o=output p=partition q=qos S=core-spec t=time w=nodelist W=wait x=exclude
"""
# Long options of sbatch and srun without a value, or with a value only after =.
_BARE = """
bcast|compress|container-entrypoint|container-mount-home|container-readonly|container-remap-root
container-writable|contiguous|disable-status|exact|exclusive|get-user-env|help|hold|ignore-pbs
immediate|interactive|kill-on-bad-exit|label|multi-prog|nice|no-allocate|no-container-entrypoint
no-container-mount-home|no-container-readonly|no-container-remap-root|no-kill|no-requeue|overcommit
overlap|oversubscribe|parsable|preserve-env|propagate|pty|quiet|quit-on-interrupt|reboot|requeue
resv-ports|send-libs|spread-job|stepmgr|test-only|unbuffered|usage|use-min-nodes|verbose|version
whole|x11
"""
BARE = set(re.findall(r"[\w-]+", _BARE))
SHORT = dict(re.findall(r"(\w)=(\S+)", _SHORT))
SRUN_SHORT = SHORT | {"K": "kill-on-bad-exit"}
BARE_SHORT = set("hHkOQsvVEIKluXZ")
ALIASES = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node"}


@dataclass(frozen=True)
class Option:
    """An option of sbatch or srun: its long name, and its value or None."""

    line: int
    name: str
    value: str | None


def options(
    words: Sequence[Word], short: Mapping[str, str]
) -> tuple[list[Option], tuple[Word, ...]]:
    """Return the options at the beginning of `words`, and the words after them."""
    read: list[Option] = []
    at = 0
    while at < len(words) and words[at].text.startswith("-") and len(words[at].text) > 1:
        line, text = words[at].line, words[at].text
        at += 1
        if text == "--":
            break
        value: str | None
        if text.startswith("--"):
            name, equals, value = text[2:].partition("=")
            name = ALIASES.get(name, name)
            takes_next = not equals and name not in BARE
            value = value if equals else None
        else:
            name, value = short.get(text[1], text[1]), text[2:] or None
            takes_next = not value and text[1] not in BARE_SHORT
        if takes_next and at < len(words):
            value, at = words[at].text, at + 1
        read.append(Option(line, name, value))
    return read, tuple(words[at:])


# Limits of what is read from a variable: words, characters, characters of a plain value.
MAX_WORDS, MAX_LENGTH, MAX_VALUE = 500, 4000, 300
ADDING = re.compile(r"\w+(?:\[[^]]*\])?\+=")
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-([^${}]*))?\})")
GPU_REQUESTS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
# Options of each component of a heterogeneous job, and the lines that separate components ("Slurm
# Workload Manager - Heterogeneous Job Support").
SIZES = {"nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gres", *GPU_REQUESTS}
HETEROGENEOUS = (["#SBATCH", "hetjob"], ["#SBATCH", "packjob"])
# Slurm's variable -> the directive that it repeats
SLURM_VALUES = {
    "SLURM_NNODES": "nodes",
    "SLURM_JOB_NUM_NODES": "nodes",
    "SLURM_NTASKS": "ntasks",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_ON_NODE": "gpus-per-node",
}


@dataclass(frozen=True)
class Job:
    """A batch script.

    Attributes:
        interfaces: Network interfaces of this machine, or None to leave them unchecked.
        slurm: The version of Slurm that the script is for, such as (23, 2); None if unknown.
    """

    path: str
    text: str
    interfaces: Collection[str] | None = None
    slurm: tuple[int, ...] | None = None

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def shell(self) -> Shell:
        return read_shell(self.text.replace("\r\n", "\n"))

    @cached_property
    def first_command(self) -> int:
        """The line at which sbatch stops looking for directives."""
        numbered = enumerate(self.lines, start=1)
        commands = (number for number, line in numbered if line.strip() and line.lstrip()[0] != "#")
        return next(commands, len(self.lines) + 1)

    @cached_property
    def directives(self) -> list[Option]:
        return [
            option
            for number, line in enumerate(self.lines[: self.first_command - 1], start=1)
            if line.startswith("#SBATCH")
            for option in options([Word(number, word) for word in split_words(line[7:])], SHORT)[0]
        ]

    def directive(self, *names: str) -> Option | None:
        """Return the last directive with one of these names, which is the one that counts."""
        lines = self.lines[: self.first_command - 1]
        if any(line.split()[:2] in HETEROGENEOUS for line in lines):
            names = tuple({*names} - SIZES)
        return next((option for option in reversed(self.directives) if option.name in names), None)

    def value(self, *names: str) -> str:
        option = self.directive(*names)
        return (option and option.value) or ""

    @cached_property
    def settings(self) -> dict[str, Word]:
        """Variables that the script sets -> the last word that sets each."""
        return {name: word for command in self.shell.commands for name, word in command.assigns}

    @cached_property
    def known(self) -> dict[str, Word]:
        """Variables that have the same value on every path through the script."""
        known: dict[str, Word | None] = {}
        for name, word in (assign for command in self.shell.commands for assign in command.assigns):
            old = known.get(name)
            if old and ADDING.match(word.text[:200]):  # NAME+=more
                items = (*(old.items or ()), *(word.items or ()))[:MAX_WORDS]
                text = (old.text + value_of(word))[:MAX_LENGTH]
                known[name] = Word(old.line, text, items=items if old.items or word.items else None)
            elif name not in known or (old and value_of(old) == value_of(word)):
                known[name] = word
            else:
                known[name] = None
        return {name: word for name, word in known.items() if word}

    @cached_property
    def values(self) -> dict[str, str]:
        """Values of variables that are set to a plain text, and of Slurm's variables."""
        of_slurm = {name: self.value(option) for name, option in SLURM_VALUES.items()}
        plain = {name: value_of(word) for name, word in self.known.items() if not word.items}
        return {name: value for name, value in of_slurm.items() if value} | {
            name: text for name, text in plain.items() if len(text) < MAX_VALUE
        }

    def resolve(self, text: str) -> str:

        def value(match: re.Match[str]) -> str:
            return self.values.get(match[1] or match[2], match[0] if match[3] is None else match[3])

        return VARIABLE.sub(value, text) if len(text) < MAX_LENGTH else text

    def expand(self, words: Sequence[Word]) -> tuple[Word, ...]:
        """Replace each variable and array once by its words."""
        expanded: list[Word] = []
        for word in words[:MAX_WORDS]:
            match = VARIABLE.fullmatch(word.text) if len(word.text) < 200 and word.live else None
            setting = self.known.get(match[1] or match[2]) if match else None
            if setting and setting.items is not None:
                expanded += [replace(item, line=word.line, items=None) for item in setting.items]
            elif setting and not word.is_quoted:
                # Variables in the text of a variable stay as they are.
                parts = words_of(value_of(setting)[:MAX_LENGTH])
                expanded += [Word(word.line, part.text) for part in parts]
            else:
                expanded.append(replace(word, text=self.resolve(word.text)))
        return tuple(expanded[:MAX_WORDS])

    @cached_property
    def sequence(self) -> list[Command]:
        """All commands, with variables replaced by their known values."""
        return [
            replace(command, words=self.expand(self.expand(command.words)))
            for command in self.shell.commands
        ]

    @cached_property
    def commands(self) -> list[Command]:
        """The commands without plain assignments, with variables replaced."""
        return [command for command in self.sequence if command.words]

    @cached_property
    def active(self) -> list[Command]:
        return [command for command in self.commands if command.name not in PRINTERS]

    @cached_property
    def steps(self) -> list[Step]:
        return [step for command in self.commands if (step := step_of(command))]

    @property
    def launches(self) -> list[Step]:
        return [step for step in self.steps if step.is_launch and step.is_certain]

    @cached_property
    def containers(self) -> list[Container]:
        containers: list[Container] = []
        for command in self.active:
            tokens = command.tokens
            for at, token in enumerate(tokens):
                rest = iter(tokens[at + 1 :] if base_name(token) in CONTAINERS else ())
                action = next((word for word in rest if not word.startswith("-")), "")
                if action not in ("exec", "run", "shell"):
                    continue
                own: list[str] = []
                for word in rest:
                    if not word.startswith("-"):  # the image
                        break
                    own.append(word)
                    if word in CONTAINER_VALUES:
                        next(rest, "")
                step = step_of(command)
                containers.append(Container(command.line, tuple(own), step, tuple(rest)))
        return containers

    @cached_property
    def is_batch(self) -> bool:
        """Whether sbatch runs the script, and not each task."""
        return bool(self.directives or self.steps)

    @cached_property
    def nodes(self) -> int | None:
        """The most nodes that the script asks for."""
        match = re.fullmatch(r"(?:[0-9]+-)?([0-9]{1,6})", self.value("nodes"), re.ASCII)
        return int(match[1]) if match else None

    @cached_property
    def has_gpus(self) -> bool:
        return bool(self.directive(*GPU_REQUESTS)) or "gpu" in self.value("gres")

    def number(self, text: str | None) -> int | None:
        resolved = self.resolve(text or "").strip()
        product = re.fullmatch(r"\$\(\(([^()]*)\)\)", resolved)
        factors = product[1].split("*") if product else [resolved]
        # In arithmetic a variable needs no $.
        names = (
            f"${name}" if (name := factor.strip()).isidentifier() else name for factor in factors
        )
        numbers = [self.resolve(name) for name in names]
        if not all(re.fullmatch("[0-9]{1,6}", number, re.ASCII) for number in numbers):
            return None
        return math.prod(map(int, numbers))

    def request(self, name: str, step: Step | None = None) -> int | None:
        if step and name in step.options:
            return self.number(step.options[name])
        return self.number(self.value(name))

    def num_nodes(self, step: Step | None = None) -> int:
        return (step and self.number(step.options.get("nodes"))) or self.nodes or 1

    def tasks_per_node(self, step: Step | None = None) -> int | None:
        """Return the number of tasks on a node, or None if unknown."""
        is_total = step and "ntasks" in step.options and "ntasks-per-node" not in step.options
        per_node = None if is_total else self.request("ntasks-per-node", step)
        tasks = self.request("ntasks", step)
        return per_node or (tasks and -(-tasks // self.num_nodes(step)))

    def num_tasks(self, step: Step | None = None) -> int | None:
        """Return the number of all tasks of a step or the job, or None if unknown."""
        per_node = self.request("ntasks-per-node", step)
        tasks = self.request("ntasks", step) or self.request("ntasks")
        return tasks or (per_node and per_node * self.num_nodes(step))

    def gpus_per_node(self, step: Step | None = None) -> int | None:
        """Return the number of GPUs of a step or the job on a node, or None if unknown."""
        for name in ("gpus-per-node", "gres", "gpus"):
            value = (step and step.options.get(name)) or self.value(name)
            match = GPUS.search(f"gpu:{value}" if name != "gres" and value else value)
            if match:
                number, nodes = int(match[1] or 1), self.num_nodes(step)
                if name != "gpus":
                    return number
                return None if number % nodes else number // nodes
        return None

    def is_single(self, step: Step) -> bool:
        """Return whether a step has only one task, as far as known."""
        if "ntasks" in step.options:
            return self.number(step.options["ntasks"]) == 1
        return self.num_nodes(step) == 1 and self.tasks_per_node(step) in (1, None)

    @cached_property
    def environ(self) -> dict[str, tuple[int, str]]:
        """Variables of NCCL and the like that the script sets -> (line, value)."""
        environ: dict[str, tuple[int, str]] = {}
        for command in self.shell.commands:
            for name, word in command.assigns:
                bare = ENV_OF_IMAGE.sub("", name)
                if bare.startswith(VARIABLE_PREFIXES):
                    environ[bare] = word.line, self.resolve(value_of(word))
            declared = {word for _, word in command.assigns}
            # Words may also set variables, as in `env X=1` or `--export=ALL,X=1`.
            for word in command.words if command.name not in PRINTERS else ():
                text = word.text.removeprefix("--env=") if word not in declared else ""
                is_list = text.startswith("--export=")
                for piece in text.split(",")[1:] if is_list else text.split():
                    name, equals, value = piece.partition("=")
                    if equals and name.isidentifier() and name.startswith(VARIABLE_PREFIXES):
                        environ[name] = word.line, self.resolve(value)
        return environ


def step_of(command: Command) -> Step | None:
    if command.name != "srun" and command.name not in STARTERS:
        return None
    for at, word in enumerate(command.words):
        if base_name(word.text) == "srun":
            own, program = options(command.words[at + 1 :], SRUN_SHORT)
            values = {option.name: option.value for option in own}
            is_monitor = "overlap" in values and command.ends == "&"
            return Step(command.line, values, program, is_monitor)
    return None


def load(
    path: str, interfaces: Collection[str] | None = None, slurm: tuple[int, ...] | None = None
) -> Job:
    text = files.text(Path(path))
    if "\0" in text:
        raise ValueError(
            f"{path} contains NUL bytes, so it is no batch script; give the path of a batch script"
        )
    return Job(path, text, interfaces, slurm)
