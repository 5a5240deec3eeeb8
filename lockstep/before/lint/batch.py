"""What a batch script asks Slurm for, and what it starts: steps, containers, variables."""

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
from lockstep.core.processes import COMMUNICATION_PREFIXES

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

    @property
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


_SHORT = """
A account a array b begin B extra-node-info c cpus-per-task C constraint d dependency D chdir
e error F nodefile G gpus h help H hold i input J job-name k no-kill L licenses M clusters
m distribution n ntasks N nodes o output O overcommit p partition q qos Q quiet s oversubscribe
S core-spec t time v verbose V version w nodelist W wait x exclude
"""
_SRUN_SHORT = """
E preserve-env I immediate K kill-on-bad-exit l label r relative T threads u unbuffered
X disable-status Z no-allocate
"""
# Long options of sbatch, up to Slurm 24.11; "sbatch - Submit a batch script to Slurm", its manual.
_SBATCH = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment
consolidate-segments constraint container container-id contiguous core-spec cores-per-socket
cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude
exclusive export export-file extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus
gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs input
job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
mem-per-gpu mincpus network nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core
ntasks-per-gpu ntasks-per-node ntasks-per-socket oom-kill-step open-mode output overcommit
oversubscribe parsable partition power prefer priority profile propagate qos quiet reboot requeue
reservation resv-ports segment signal sockets-per-node spread-job stepmgr switches tasks
tasks-per-node test-only thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid
usage use-min-nodes verbose version wait wait-all-nodes wckey wrap
"""
# Long options of sbatch and srun that take no value, or one only after =.
_BARE = """
bcast compress container-entrypoint container-mount-home container-readonly container-remap-root
container-writable contiguous disable-status exact exclusive get-user-env help hold ignore-pbs
immediate interactive kill-on-bad-exit label multi-prog nice no-allocate no-container-entrypoint
no-container-mount-home no-container-readonly no-container-remap-root no-kill no-requeue overcommit
overlap oversubscribe parsable preserve-env propagate pty quiet quit-on-interrupt reboot requeue
resv-ports send-libs spread-job stepmgr test-only unbuffered usage use-min-nodes verbose version
whole x11
"""


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


SHORT = _pairs(_SHORT)
SRUN_SHORT = SHORT | _pairs(_SRUN_SHORT)
SBATCH_OPTIONS = _SBATCH.split()
BARE = set(_BARE.split())
BARE_SHORT = set("hHkOQsvVEIKluXZ")
ALIASES = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node"}


@dataclass(frozen=True)
class Option:
    """An option of sbatch or srun: its long name, and its value where it has one."""

    line: int
    name: str
    value: str | None


def options(
    words: Sequence[Word], short: Mapping[str, str]
) -> tuple[list[Option], tuple[Word, ...]]:
    """Return the options at the beginning of some words, and the words after them."""
    found: list[Option] = []
    at = 0
    while at < len(words) and words[at].text.startswith("-") and len(words[at].text) > 1:
        line, text = words[at].line, words[at].text
        at += 1
        if text == "--":
            break
        value: str | None
        if text.startswith("--"):
            name, equals, value = text[2:].partition("=")
            if name not in SBATCH_OPTIONS and name not in BARE:
                # A name may be cut short as long as it is clear.
                begun = [option for option in SBATCH_OPTIONS if option.startswith(name)]
                name = begun[0] if len(begun) == 1 else name
            name = ALIASES.get(name, name)
            takes_next = not equals and name not in BARE
            value = value if equals else None
        else:
            name, value = short.get(text[1], text[1]), text[2:] or None
            takes_next = not value and text[1] not in BARE_SHORT
        if takes_next and at < len(words):
            value, at = words[at].text, at + 1
        found.append(Option(line, name, value))
    return found, tuple(words[at:])


# Of what a variable holds, so many words and characters are read.
MAX_WORDS = 500
MAX_LENGTH = 4000
MAX_VALUE = 300
MAX_SCRIPT_BYTES = 4 * 1024**2  # that of Slurm's SchedulerParameters max_script_size
ADDING = re.compile(r"\w+(?:\[[^]]*\])?\+=")
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-([^${}]*))?\})")
# What each component of a heterogeneous job asks for on its own, and what parts them; "Slurm
# Workload Manager - Heterogeneous Job Support".
SIZES = {
    *("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gres"),
    *("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"),
}
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
    """A batch script as the rules ask about it.

    Attributes:
        interfaces: Network interfaces of this machine, or None not to look for them.
        slurm: The version of Slurm that the script is for, as (23, 2); None where it is not known.
    """

    path: str
    text: str
    interfaces: Collection[str] | None = None
    slurm: tuple[int, ...] | None = None

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, without their ends."""
        return self.text.split("\n")

    @cached_property
    def shell(self) -> Shell:
        """Its commands and comments, as they are written."""
        return read_shell(self.text.replace("\r\n", "\n"))

    @cached_property
    def first_command(self) -> int:
        """The line at which sbatch stops looking for directives."""
        numbered = enumerate(self.lines, start=1)
        found = (number for number, line in numbered if line.strip() and line.lstrip()[0] != "#")
        return next(found, len(self.lines) + 1)

    @cached_property
    def directives(self) -> list[Option]:
        """The options in the `#SBATCH` lines that sbatch reads, under their long names."""
        found = []
        for number, line in enumerate(self.lines[: self.first_command - 1], start=1):
            if line.startswith("#SBATCH"):
                words = [Word(number, word) for word in split_words(line[7:])]
                found += options(words, SHORT)[0]
        return found

    def directive(self, *names: str) -> Option | None:
        """Return the last directive of one of these names, which is the one that counts.

        Each component of a heterogeneous job has a size of its own, so there none is known.
        """
        names = tuple(name for name in names if not (self.is_heterogeneous and name in SIZES))
        return next((option for option in reversed(self.directives) if option.name in names), None)

    def value(self, *names: str) -> str:
        """Return the value of that directive; empty where there is none."""
        option = self.directive(*names)
        return (option and option.value) or ""

    @cached_property
    def is_heterogeneous(self) -> bool:
        """Whether its job has components, each with directives of its own."""
        lines = self.lines[: self.first_command - 1]
        return any(line.split()[:2] in HETEROGENEOUS for line in lines)

    @cached_property
    def settings(self) -> dict[str, Word]:
        """The variables that it sets, each with the last word that sets it."""
        return {name: word for command in self.shell.commands for name, word in command.assigns}

    @cached_property
    def known(self) -> dict[str, Word]:
        """The variables that it sets to one value, whatever the way through it."""
        found: dict[str, Word | None] = {}
        for name, word in (assign for command in self.shell.commands for assign in command.assigns):
            old = found.get(name)
            if old and ADDING.match(word.text[:200]):
                found[name] = _joined(old, word)
            elif name not in found or (old and value_of(old) == value_of(word)):
                found[name] = word
            else:
                found[name] = None
        return {name: word for name, word in found.items() if word}

    @cached_property
    def values(self) -> dict[str, str]:
        """The values of variables that are set to a plain text, and of Slurm's own."""
        asked = {name: self.value(option) for name, option in SLURM_VALUES.items()}
        given = {name: value for name, value in asked.items() if value}
        plain = {name: value_of(word) for name, word in self.known.items() if not word.items}
        return given | {name: text for name, text in plain.items() if len(text) < MAX_VALUE}

    def resolve(self, text: str) -> str:
        """Replace variables by their values, as far as these are known."""
        return VARIABLE.sub(self._value, text) if len(text) < MAX_LENGTH else text

    def _value(self, match: re.Match[str]) -> str:
        default = match[3] if match[3] is not None else match[0]
        return self.values.get(match[1] or match[2], default)

    def expand(self, words: Sequence[Word]) -> tuple[Word, ...]:
        """Replace variables and arrays by the words that they hold."""
        return tuple(self._expand(self._expand(words))[:MAX_WORDS])

    def _expand(self, words: Sequence[Word]) -> list[Word]:
        found: list[Word] = []
        for word in words[:MAX_WORDS]:
            if len(found) < MAX_WORDS:
                found += self._stands_for(word)
        return found

    def _stands_for(self, word: Word) -> list[Word]:
        match = VARIABLE.fullmatch(word.text) if len(word.text) < 200 and word.live else None
        setting = self.known.get(match[1] or match[2]) if match else None
        if setting and setting.items is not None:
            return [replace(one, line=word.line, items=None) for one in setting.items]
        if setting and not word.is_quoted:
            parts = words_of(value_of(setting)[:MAX_LENGTH])
            # What a variable holds is not expanded once more.
            return [Word(word.line, one.text) for one in parts]
        return [replace(word, text=self.resolve(word.text))]

    @cached_property
    def sequence(self) -> list[Command]:
        """All commands, variables replaced by their values as far as these are known."""
        return [
            replace(command, words=self.expand(command.words)) for command in self.shell.commands
        ]

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
            containers += _containers(command.tokens, command.line, step_of(command))
        return containers

    @cached_property
    def is_batch(self) -> bool:
        """Whether it is sent to sbatch, and not run by each task."""
        return bool(self.directives or self.steps)

    @cached_property
    def nodes(self) -> int | None:
        """How many nodes it asks for at most."""
        match = re.fullmatch(r"(?:[0-9]+-)?([0-9]{1,6})", self.value("nodes"), re.ASCII)
        return int(match[1]) if match else None

    @cached_property
    def has_gpus(self) -> bool:
        """Whether it asks for GPUs."""
        names = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
        return bool(self.directive(*names)) or "gpu" in self.value("gres")

    @cached_property
    def is_amd(self) -> bool:
        """Whether anything in it says that its GPUs are AMD's."""
        return bool(AMD.search(self.text))

    def number(self, text: str | None) -> int | None:
        """Return the number that a text, its variable or a product of such holds."""
        found = self.resolve(text or "").strip()
        product = re.fullmatch(r"\$\(\(([^()]*)\)\)", found)
        factors = product[1].split("*") if product else [found]
        numbers = [self.resolve(_dollar(factor)) for factor in factors]
        if not all(re.fullmatch("[0-9]{1,6}", number, re.ASCII) for number in numbers):
            return None
        return math.prod(map(int, numbers))

    def asked(self, name: str, step: Step | None = None) -> int | None:
        """Return the number that a step asks for, else the job."""
        if step and name in step.options:
            return self.number(step.options[name])
        option = self.directive(name)
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
            value = (step and step.options.get(name)) or self.value(name)
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
        for command in self.shell.commands:
            for name, word in command.assigns:
                bare = ENV_OF_IMAGE.sub("", name)
                if bare.startswith(VARIABLE_PREFIXES):
                    found[bare] = word.line, self.resolve(value_of(word))
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
            name: (word.line, self.resolve(value))
            for name, _, value in pairs
            if name.startswith(VARIABLE_PREFIXES) and name.isidentifier()
        }


def _joined(old: Word, more: Word) -> Word:
    """Return what `NAME=old` and `NAME+=more` set together."""
    items = (*(old.items or ()), *(more.items or ()))[:MAX_WORDS]
    text = (old.text + value_of(more))[:MAX_LENGTH]
    return Word(old.line, text, items=items if old.items or more.items else None)


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
        action = next((word for word in rest if not word.startswith("-")), "")
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
    """Return an operand of an arithmetic expression; a variable's missing $ is added."""
    name = name.strip()
    return f"${name}" if name.isidentifier() else name


def load(
    path: str, interfaces: Collection[str] | None = None, slurm: tuple[int, ...] | None = None
) -> Job:
    """Read a script.

    Raises:
        ValueError: The file cannot be read, or is not a script.
    """
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(MAX_SCRIPT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path}: {reason}; give a batch script") from error
    if len(content) > MAX_SCRIPT_BYTES:
        raise ValueError(
            f"{path}: sbatch refuses more than {MAX_SCRIPT_BYTES} bytes; give a batch script"
        )
    if b"\0" in content:
        raise ValueError(f"{path}: contains NUL bytes, so it is not a script; give a batch script")
    return Job(path, content.decode("utf-8", "replace"), interfaces, slurm)
