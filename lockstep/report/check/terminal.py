"""Findings as lines for a terminal: those that say the same of many places as one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from textwrap import shorten, wrap

import click

from lockstep.report.check.checker import LEVELS, Finding, Level
from lockstep.vocabulary.text.formats import counted

WIDTH = 100
# Places that one group names; --json and the page name them all.
MAX_PLACES = 4
# Of what a report or a gate prints of the check's errors.
MAX_ERRORS = 8
LONGEST_MESSAGE = 300


@dataclass(frozen=True)
class Group:
    """Findings of one rule that say the same of different places."""

    level: Level
    rule: str
    message: str
    action: str
    places: tuple[str, ...]

    @property
    def where(self) -> str:
        """The first places, and how many more there are."""
        more = len(self.places) - MAX_PLACES
        text = "; ".join(self.places[:MAX_PLACES])
        return f"{text} and {more} more places" if more > 0 else text


def grouped(findings: Iterable[Finding]) -> list[Group]:
    """Return findings with those that differ in their place alone as one."""
    places: dict[tuple[Level, str, str, str], list[str]] = {}
    for one in findings:
        key = (one.level, one.rule, one.message, one.action)
        places.setdefault(key, []).append(one.where)
    return [Group(*key, tuple(where)) for key, where in places.items()]


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield each group as a paragraph: what and where, the fact, what to do."""
    for group in grouped(findings):
        yield _wrapped(f"{group.level} {group.rule}: {group.where}", "")
        yield _wrapped(f"{group.message}.", "  ")
        yield _wrapped(f"Do: {group.action}.", "  ") + "\n"


def say_errors(findings: Iterable[Finding], side: str = "") -> None:
    """Print the errors on stderr, shortened, so that stdout keeps to what was asked for.

    Args:
        findings: What the check has found.
        side: Of two sets of results, what each line names first.
    """
    errors = grouped(one for one in findings if one.level == "error")
    for group in errors[:MAX_ERRORS]:
        message = shorten(group.message, LONGEST_MESSAGE, placeholder=" ...")
        click.echo(_wrapped(f"{side}error {group.rule}: {group.where}: {message}", ""), err=True)
    if errors:
        more = len(errors) - MAX_ERRORS
        all_of = f"{counted(more, 'error')} more; " if more > 0 else ""
        click.echo(f"{side}{all_of}lockstep check says what to do about each\n", err=True)


def counts(findings: Iterable[Finding]) -> str:
    """Return how many findings there are of each level, notes where there are any."""
    levels = [one.level for one in findings]
    shown = [level for level in LEVELS if level != "note" or level in levels]
    return ", ".join(counted(levels.count(level), level) for level in shown)


def _wrapped(text: str, indent: str) -> str:
    return "\n".join(
        wrap(text, WIDTH, initial_indent=indent, subsequent_indent="  ", break_on_hyphens=False)
    )
