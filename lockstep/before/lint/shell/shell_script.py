"""A batch script: its directives, its commands, and what its variables hold."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from lockstep.before.lint.shell.sbatch_options import SHORT, Option, options
from lockstep.before.lint.shell.shell_commands import Command, CommandReader
from lockstep.before.lint.shell.shell_words import Word, WordReader, value_of

# A variable is replaced in so many words, of so many characters.
MAX_WORDS = 500
MAX_LENGTH = 4000
MAX_VALUE = 300
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
class Script:
    """A batch script."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, without their ends."""
        return self.text.split("\n")

    @cached_property
    def reader(self) -> CommandReader:
        """Its commands and comments."""
        return CommandReader(self.text.replace("\r\n", "\n")).read()

    @property
    def commands(self) -> list[Command]:
        """Its commands, in order; those in `$( )` after the one that holds them."""
        return self.reader.commands

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
                words = [Word(number, word.text) for word in WordReader(line[7:]).words()]
                found += options(words, SHORT)[0]
        return found

    def directive(self, *names: str) -> Option | None:
        """Return the last directive of one of these names, which is the one that counts.

        Each component of a heterogeneous job has a size of its own, so there none is known.
        """
        names = tuple(one for one in names if not (self.is_heterogeneous and one in SIZES))
        return next((one for one in reversed(self.directives) if one.name in names), None)

    @cached_property
    def is_heterogeneous(self) -> bool:
        """Whether its job has components, each with directives of its own."""
        lines = self.lines[: self.first_command - 1]
        return any(line.split()[:2] in HETEROGENEOUS for line in lines)

    @cached_property
    def settings(self) -> dict[str, Word]:
        """The variables that it sets, each with the last word that sets it."""
        return {name: word for command in self.commands for name, word in command.assigns}

    @cached_property
    def known(self) -> dict[str, Word]:
        """The variables that it sets to one value, whatever the way through it."""
        found: dict[str, Word | None] = {}
        for name, word in (one for command in self.commands for one in command.assigns):
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
        asked = {name: self.directive(option) for name, option in SLURM_VALUES.items()}
        given = {name: one.value for name, one in asked.items() if one and one.value}
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
        if setting and not word.quoted:
            parts = WordReader(value_of(setting)[:MAX_LENGTH]).words()
            # What a variable holds is not expanded once more.
            return [Word(word.line, one.text) for one in parts]
        return [Word(word.line, self.resolve(word.text), word.live, word.quoted)]


def _joined(old: Word, more: Word) -> Word:
    """Return what `NAME=old` and `NAME+=more` set together."""
    items = (*(old.items or ()), *(more.items or ()))[:MAX_WORDS]
    text = (old.text + value_of(more))[:MAX_LENGTH]
    return Word(old.line, text, items=items if old.items or more.items else None)
