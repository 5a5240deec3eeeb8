"""What a batch script asks Slurm for, and what it starts: steps, containers, variables."""

import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Literal, TypeVar

from lockstep.before.lint.shell import (
    SRUN_SHORT,
    Command,
    Option,
    Script,
    Word,
    WordReader,
    base_name,
    options,
    value_of,
)
from lockstep.before.lint.variables import COSTLY
from lockstep.core.processes import COMMUNICATION_PREFIXES

Severity = Literal["error", "warning", "note"]
Subject = TypeVar("Subject")
CONTAINERS = ("apptainer", "singularity")
PROFILERS = ("nsys", "ncu", "nv-nsight-cu-cli", "compute-sanitizer")
# Programs that start the one named after them.
STARTERS = {
    *("exec", "env", "nohup", "timeout", "nice", "command", "stdbuf", "numactl", "taskset", "eval"),
    *("strace", "perf", *CONTAINERS, *PROFILERS),
}
# Programs that only print what they are given.
SAYING = ("echo", "printf")
LAUNCH = re.compile(r"(python[0-9.]*|torchrun|pytest|accelerate|deepspeed|.*\.py|.*\.sh)")
VARIABLE_PREFIXES = (*COMMUNICATION_PREFIXES, "TORCH_DISTRIBUTED_DEBUG", *COSTLY)
ENV_OF_IMAGE = re.compile("^(APPTAINER|SINGULARITY)ENV_")
# What says that GPUs are AMD's: ROCm and its libraries, its GPUs' names, partitions of LUMI.
AMD = re.compile(
    r"rocm|miopen|\brocr_|\bhip_|\bhsa_|amd-?gpu|accel-amd|\bmi(50|100|210|250x?|300[ax]?|325x?|355x?)\b"
    r"|\bgfx9|\b(standard|small|dev)-g\b|\blumi",
    re.IGNORECASE,
)
# The GPUs in a value of --gres, or of --gpus behind gpu:, such as gpu:a100:4(S:0-1).
GPUS = re.compile(r"(?:^|,)gpu(?:$|,|:(?:[A-Za-z][\w.-]*(?:$|,|:))?([0-9]{1,4})?)")
# Options of apptainer exec whose value may be the next word.
CONTAINER_VALUES = {
    *("-B", "--bind", "--env", "--env-file", "-H", "--home", "--pwd", "--cwd", "-W", "--workdir"),
    *("-S", "--scratch", "-o", "--overlay", "--mount", "--network", "--hostname", "--app"),
    *("--security", "--dns", "--fusemount", "--add-caps", "--drop-caps", "--apply-cgroups"),
}


@dataclass(frozen=True)
class Hit:
    """What a rule has found: where, and the fact; an action of its own comes with its own why.

    Attributes:
        severity: Where it is not the rule's: error, warning or note.
    """

    line: int
    fact: str
    action: str = ""
    severity: str = ""


@dataclass(frozen=True)
class Step:
    """One srun: its options, and the words of what it starts."""

    line: int
    options: dict[str, str | None]
    program: tuple[Word, ...]
    is_beside: bool = False  # the others run, as a monitor does

    @property
    def is_certain(self) -> bool:
        """Whether no option can hide in a variable of unknown value."""
        return bool(self.program) and not self.program[0].text.startswith("$")

    @cached_property
    def tokens(self) -> list[str]:
        """All words of what it starts, those in quoted text too."""
        return tokens_of(self.program)

    @property
    def is_launch(self) -> bool:
        """Whether it starts ranks, rather than a small tool on each node."""
        names = [base_name(token) for token in self.tokens]
        found = any(LAUNCH.fullmatch(name) or name in CONTAINERS for name in names)
        return found and not self.is_beside


@dataclass(frozen=True)
class Container:
    """One `apptainer exec` or such: its options, and the step that it is in."""

    line: int
    options: tuple[str, ...]
    step: Step | None
    program: tuple[str, ...] = ()

    def has(self, *names: str) -> bool:
        """Return whether it has one of these options."""
        return any(option.partition("=")[0] in names for option in self.options)


def tokens_of(words: Collection[Word]) -> list[str]:
    """Return all words, those in quoted text too; a `$( )` belongs to the word that holds it."""
    return [token for word in words for token in _tokens(word.text)]


def _tokens(text: str) -> list[str]:
    found = text.split()
    return found if len(found) < 2 else [word.text for word in WordReader(text).words()]


@dataclass(frozen=True)
class Job:
    """A script as the rules ask about it.

    Attributes:
        interfaces: Network interfaces of this machine, or None not to look for them.
        slurm: The version of Slurm that the script is for, as (23, 2); None where it is not known.
    """

    script: Script
    interfaces: Collection[str] | None = None
    slurm: tuple[int, ...] | None = None

    @cached_property
    def sequence(self) -> list[Command]:
        """All commands, variables replaced by their values as far as these are known."""
        commands = self.script.commands
        return [replace(command, words=self.script.expand(command.words)) for command in commands]

    @cached_property
    def commands(self) -> list[Command]:
        """The commands that are more than an assignment, variables replaced."""
        return [command for command in self.sequence if command.words]

    @cached_property
    def steps(self) -> list[Step]:
        """Every srun."""
        return [step for command in self.commands if (step := step_of(command))]

    @property
    def launches(self) -> list[Step]:
        """Every srun that starts ranks, and whose options are known."""
        return [step for step in self.steps if step.is_launch and step.is_certain]

    @cached_property
    def containers(self) -> list[Container]:
        """Every start of a container."""
        containers: list[Container] = []
        for command in self.commands:
            if command.name in SAYING:
                continue
            containers += _containers(tokens_of(command.words), command.line, step_of(command))
        return containers

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

    @cached_property
    def is_amd(self) -> bool:
        """Whether anything in it says that its GPUs are AMD's."""
        return bool(AMD.search(self.script.text))

    def number(self, text: str | None) -> int | None:
        """Return the number that a text, its variable or a product of such holds."""
        found = self.script.resolve(text or "").strip()
        product = re.fullmatch(r"\$\(\(([^()]*)\)\)", found)
        factors = product[1].split("*") if product else [found]
        numbers = [self.script.resolve(_dollar(factor)) for factor in factors]
        if not all(re.fullmatch("[0-9]{1,6}", number, re.ASCII) for number in numbers):
            return None
        return math.prod(map(int, numbers))

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

    def num_tasks(self, step: Step | None = None) -> int | None:
        """Return how many tasks a step has in all, or the job; None where that is not said."""
        for one in (step, None) if step else (None,):
            given = self.asked("ntasks", one) if one is None or "ntasks" in one.options else None
            if given:
                return given
        per_node = self.asked("ntasks-per-node", step)
        return per_node and per_node * (self.asked("nodes", step) or self.nodes or 1)

    def gpus_per_node(self, step: Step | None = None) -> int | None:
        """Return how many GPUs a step has on a node, or the job; None where that is not said."""
        for name in ("gpus-per-node", "gres", "gpus"):
            option = self.script.directive(name)
            value = (step and step.options.get(name)) or (option and option.value) or ""
            match = GPUS.search(f"gpu:{value}" if name != "gres" and value else value)
            if not match:
                continue
            number = int(match[1]) if match[1] else 1
            nodes = (step and self.number(step.options.get("nodes"))) or self.nodes or 1
            return number if name != "gpus" else number // nodes if number % nodes == 0 else None
        return None

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
                bare = ENV_OF_IMAGE.sub("", name)
                if bare.startswith(VARIABLE_PREFIXES):
                    found[bare] = word.line, self.script.resolve(value_of(word))
            declared = {word for _, word in command.assigns}
            for word in command.words if command.name not in SAYING else ():
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


def _most(option: Option | None) -> int | None:
    match = re.fullmatch(r"(?:[0-9]+-)?([0-9]{1,6})", (option and option.value) or "", re.ASCII)
    return int(match[1]) if match else None


def step_of(command: Command) -> Step | None:
    """Return the srun that a command is, or that it starts."""
    if command.name != "srun" and command.name not in STARTERS:
        return None
    for at, word in enumerate(command.words):
        if base_name(word.text) == "srun":
            given, program = options(command.words[at + 1 :], SRUN_SHORT)
            named = {option.name: option.value for option in given}
            is_beside = "overlap" in named and command.ends == "&"
            return Step(command.line, named, program, is_beside)
    return None


def _containers(tokens: list[str], line: int, step: Step | None) -> Iterator[Container]:
    for at, token in enumerate(tokens):
        if base_name(token) not in CONTAINERS:
            continue
        rest = iter(tokens[at + 1 :])
        action = next((one for one in rest if not one.startswith("-")), "")
        if action in ("exec", "run", "shell"):
            given: list[str] = []
            for token in rest:
                if not token.startswith("-"):  # the image
                    break
                given.append(token)
                if token in CONTAINER_VALUES:
                    next(rest, "")
            yield Container(line, tuple(given), step, tuple(rest))


def _dollar(name: str) -> str:
    """Return a variable of an arithmetic expression, whose $ may be left out, with it."""
    name = name.strip()
    return f"${name}" if name.isidentifier() else name


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


class Rules(list[Rule[Subject]]):
    """The rules for one kind of script, in the order of their modules."""

    def rule(
        self, name: str, severity: Severity, why: str, action: str
    ) -> Callable[[Callable[[Subject], Iterator[Hit]]], Callable[[Subject], Iterator[Hit]]]:
        """Add the function that follows, which yields what a script breaks, as a rule."""

        def add(check: Callable[[Subject], Iterator[Hit]]) -> Callable[[Subject], Iterator[Hit]]:
            self.append(Rule(name, severity, why, action, check))
            return check

        return add


BATCH: "Rules[Job]" = Rules()
