"""Findings of all rules in a set of results: which of them block a verdict, and their text.

A rule is one function of this package with its name, level, reason and action above it.

Terminal and page print equal findings once: errors are grouped if they have the same text and
differ only in place; warnings and notes are grouped by rule and kind.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten

import click

from lockstep.core.findings import Level, wrapped
from lockstep.core.formats import counted

# Importing them registers their rules.
from lockstep.report.check import curve_rules, launches, recorded_facts  # noqa: F401
from lockstep.report.check.evidence import FLAGGED, Evidence, Place
from lockstep.report.check.evidence import RULES as RULES
from lockstep.report.check.evidence import Finding as Finding
from lockstep.report.compute.scaling import Series
from lockstep.report.load.results import Results, Row

LEVELS: tuple[Level, ...] = ("error", "warning", "note")
# Rules that block verdicts on speed, as errors do, but not on accuracy.
OF_SPEED = frozenset({"crowded-training"})
NOT_OF_SPEED = ("validation_accuracy",)
# Places and facts of a group that the terminal shows; --json has all.
MAX_PLACES = 4
MAX_FACTS = 2
# Errors of the check that a report or a gate prints, and their length.
MAX_ERRORS = 8
LONGEST_MESSAGE = 300


def check(results: Results, series: list[Series] | None = None) -> list[Finding]:
    """Return the findings in a set of results, errors first, in the order of the rules.

    `series` are those of all rows; without them they are formed here.
    """
    evidence = Evidence(results, series)
    findings = [finding for rule in RULES for finding in rule.findings(evidence)]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of level error."""
    return [finding for finding in findings if finding.level == "error"]


def warned(findings: Iterable[Finding]) -> frozenset[Place]:
    """Return the points that warnings concern, except warnings about flags."""
    return _points(f for f in findings if f.level == "warning" and f.rule != FLAGGED)


def blocking(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that block verdicts on speed."""
    return [finding for finding in findings if finding.level == "error" or finding.rule in OF_SPEED]


def blocked_by(
    findings: Iterable[Finding], rows: Iterable[Row], *, of_speed: bool = True
) -> list[str]:
    """Return the names of the rules that block a verdict on any of these results.

    `of_speed` tells whether the verdict is on a time, a rate or a ratio of them.
    """
    return touching((blocking if of_speed else errors)(findings), rows)


def touching(findings: Iterable[Finding], rows: Iterable[Row]) -> list[str]:
    """Return the names of the rules whose findings concern any of these results."""
    touched = list(rows)
    return list(dict.fromkeys(f.rule for f in findings if any(map(f.touches, touched))))


@dataclass(frozen=True)
class Group:
    """Findings of one rule that are shown together."""

    first: Finding
    facts: tuple[str, ...]
    places: tuple[str, ...]
    points: frozenset[Place]

    def where(self, most: int = MAX_PLACES) -> str:
        """Return the first places and the number of others."""
        more = len(self.places) - most
        text = "; ".join(self.places[:most])
        return f"{text} and {more} more places" if more > 0 else text

    def message(self, most: int | None = None) -> str:
        """Return the first facts, or all, the number of others, and the consequence."""
        shown = self.facts[:most]
        more = len(self.facts) - len(shown)
        facts = [*shown, *[f"{more} more of this kind"] * bool(more)]
        return f"{'; '.join(facts)}: {self.first.why}"


def grouped(findings: Iterable[Finding]) -> list[Group]:
    """Group errors with the same text, and warnings and notes of the same kind."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        alike.setdefault(_alike(finding), []).append(finding)
    return [
        Group(own[0], tuple(dict.fromkeys(f.text for f in own)), tuple(_places(own)), _points(own))
        for own in alike.values()
    ]


def _alike(finding: Finding) -> tuple[str, ...]:
    """Return the key that findings of one group share."""
    if finding.level == "error":
        return finding.level, finding.rule, finding.message, finding.action
    # They differ only in their numbers and places.
    values = (str(finding.values.get(name, "")) for name in ("flag_kind", "fact"))
    return finding.level, finding.rule, finding.kind, *values


def _points(findings: Iterable[Finding]) -> frozenset[Place]:
    return frozenset[Place]().union(*(finding.points for finding in findings))


def _places(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the places of findings, with the sizes of a case together.

    For several warnings or notes, the launches of a case are not named.
    """
    alike: dict[str, list[Finding]] = {}
    for finding in findings:
        kept = () if finding.cases else finding.launches
        alike.setdefault(replace(finding, world_sizes=(), launches=kept).where, []).append(finding)
    for own in alike.values():
        first = own[0]
        is_short = len(findings) > 1 and first.level != "error" and first.cases
        names = () if is_short else dict.fromkeys(x for f in own for x in f.launches)
        sizes = sorted({size for f in own for size in f.world_sizes})
        yield replace(first, world_sizes=tuple(sizes), launches=tuple(names)).where


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield each group as a paragraph: level, rule and place, then the fact, then the action."""
    for group in grouped(findings):
        first = group.first
        on = f" ({counted(len(group.points), 'point')})" if first.level != "error" else ""
        yield wrapped(f"{first.level} {first.rule}{on}: {group.where()}")
        yield wrapped(f"{group.message(MAX_FACTS)}.", "  ")
        yield wrapped(f"Do: {first.action}.", "  ") + "\n"


def say_errors(findings: Iterable[Finding], side: str = "") -> None:
    """Print the errors on stderr, shortened, each prefixed by `side`."""
    groups = grouped(errors(findings))
    for group in groups[:MAX_ERRORS]:
        message = shorten(group.message(), LONGEST_MESSAGE, placeholder=" ...")
        click.echo(wrapped(f"{side}error {group.first.rule}: {group.where()}: {message}"), err=True)
    if groups:
        more = len(groups) - MAX_ERRORS
        all_of = f"{counted(more, 'error')} more; " if more > 0 else ""
        click.echo(f"{side}{all_of}run lockstep check for what to do about each\n", err=True)


def say_unread(results: Results) -> None:
    """Print on stderr which files could not be read, and why."""
    for why in results.unread:
        click.echo(f"left out: {why}", err=True)


def counts(findings: Sequence[Finding]) -> str:
    """Return the number of errors, and of kinds and points of warnings and notes, as text."""
    texts = [counted(len(errors(findings)), "error")]
    for level in LEVELS[1:]:
        own = [finding for finding in findings if finding.level == level]
        kinds, points = set(map(_alike, own)), _points(own)
        if kinds:
            on = f" on {counted(len(points), 'point')}" if points else ""
            texts.append(f"{counted(len(kinds), 'kind')} of {level}{on}")
        elif level == "warning":
            texts.append("no warning")
    return ", ".join(texts)
