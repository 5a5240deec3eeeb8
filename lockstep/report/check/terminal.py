"""Findings in groups, for a terminal and a page: what is said of many places is said once.

An error has a line of its own, with all places of which the same is true: each has to be mended.
Of a rule that only warns, all findings of a kind are one group, however many points they concern.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten, wrap
from typing import TYPE_CHECKING

import click

from lockstep.core.formats import counted
from lockstep.report.check import evidence
from lockstep.report.check.checker import LEVELS, Finding
from lockstep.report.check.evidence import Level, Place

if TYPE_CHECKING:
    from lockstep.report.load.results import Results

WIDTH = 100
# Places that one group names on a terminal, and facts; --json has them all.
MAX_PLACES = 4
MAX_FACTS = 2
# Of what a report or a gate prints of the check's errors.
MAX_ERRORS = 8
LONGEST_MESSAGE = 300


@dataclass(frozen=True)
class Group:
    """Findings of one rule that are told as one."""

    level: Level
    rule: str
    facts: tuple[str, ...]
    why: str
    action: str
    places: tuple[str, ...]
    points: frozenset[Place] = frozenset()

    def where(self, most: int = MAX_PLACES) -> str:
        """Return the first places, and how many more there are."""
        more = len(self.places) - most
        text = "; ".join(self.places[:most])
        return f"{text} and {more} more places" if more > 0 else text

    def message(self, most: int | None = None) -> str:
        """Return the first facts, or all, how many more there are, and what comes of them."""
        shown = self.facts[:most]
        more = len(self.facts) - len(shown)
        facts = [*shown, *[f"{more} more of the kind"] * bool(more)]
        return f"{'; '.join(facts)}: {self.why}"


def grouped(findings: Iterable[Finding]) -> list[Group]:
    """Return errors of different places as one where they say the same, all else by its kind."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        alike.setdefault(_alike(finding), []).append(finding)
    return [_group(own) for own in alike.values()]


def _alike(finding: Finding) -> tuple[str, ...]:
    """Return what findings that are told as one have in common."""
    if finding.level == "error":
        return finding.level, finding.rule, finding.message, finding.action
    # They differ in their numbers and places alone.
    values = (str(finding.hit.values.get(name, "")) for name in ("flag_kind", "fact"))
    return finding.level, finding.rule, finding.hit.kind, *values


def _group(findings: Sequence[Finding]) -> Group:
    first = findings[0]
    facts = tuple(dict.fromkeys(evidence.fact(finding.hit) for finding in findings))
    points = frozenset[Place]().union(*(finding.points for finding in findings))
    return Group(first.level, first.rule, facts, first.why, first.action, _places(findings), points)


def _places(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return where findings lie, of several the sizes of one case together.

    Of several that only warn, a case does not name its launches.
    """
    if len(findings) == 1:
        return (findings[0].where,)
    alike: dict[str, list[Finding]] = {}
    for finding in findings:
        launches = () if finding.hit.cases else finding.hit.launches
        name = evidence.where(replace(finding.hit, world_sizes=(), launches=launches))
        alike.setdefault(name, []).append(finding)
    return tuple(map(_where, alike.values()))


def _where(findings: Sequence[Finding]) -> str:
    first = findings[0]
    sizes = sorted({size for finding in findings for size in finding.hit.world_sizes})
    is_short = first.level != "error" and first.hit.cases
    launches = (
        () if is_short else dict.fromkeys(x for finding in findings for x in finding.hit.launches)
    )
    return evidence.where(replace(first.hit, world_sizes=tuple(sizes), launches=tuple(launches)))


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield each group as a paragraph: what and where, the fact, what to do."""
    for group in grouped(findings):
        on = f" ({counted(len(group.points), 'point')})" if group.level != "error" else ""
        yield _wrapped(f"{group.level} {group.rule}{on}: {group.where()}", "")
        yield _wrapped(f"{group.message(MAX_FACTS)}.", "  ")
        yield _wrapped(f"Do: {group.action}.", "  ") + "\n"


def say_errors(findings: Iterable[Finding], side: str = "") -> None:
    """Print the errors on stderr, shortened, each after `side`; stdout holds what was asked for."""
    errors = grouped(finding for finding in findings if finding.level == "error")
    for group in errors[:MAX_ERRORS]:
        message = shorten(group.message(), LONGEST_MESSAGE, placeholder=" ...")
        click.echo(_wrapped(f"{side}error {group.rule}: {group.where()}: {message}", ""), err=True)
    if errors:
        more = len(errors) - MAX_ERRORS
        all_of = f"{counted(more, 'error')} more; " if more > 0 else ""
        click.echo(f"{side}{all_of}lockstep check says what to do about each\n", err=True)


def say_unread(results: "Results") -> None:
    """Print on stderr which files could not be read, and why."""
    for why in results.unread:
        click.echo(f"left out: {why}", err=True)


def counts(findings: Iterable[Finding]) -> str:
    """Return the number of errors; of warnings and notes, that of their kinds and points."""
    found = list(findings)
    texts = [counted(sum(finding.level == "error" for finding in found), "error")]
    for level in LEVELS[1:]:
        own = [finding for finding in found if finding.level == level]
        kinds = {_alike(finding) for finding in own}
        points = frozenset[Place]().union(*(finding.points for finding in own))
        on = f" on {counted(len(points), 'point')}" if points else ""
        if kinds:
            texts.append(f"{counted(len(kinds), 'kind')} of {level}{on}")
        elif level == "warning":
            texts.append("no warning")
    return ", ".join(texts)


def _wrapped(text: str, indent: str) -> str:
    return "\n".join(
        wrap(text, WIDTH, initial_indent=indent, subsequent_indent="  ", break_on_hyphens=False)
    )
