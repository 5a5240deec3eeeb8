"""What the rules find in a set of results, which of it blocks what, and its text.

A rule is one function of this package with its name, level, reason and action above it.

On a terminal and a page what is said of many places is said once. An error has a line of its own,
with all places of which the same is true: each has to be mended. Of a rule that only warns, all
findings of a kind are one group, however many points they concern.
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
# Rules that forbid what is said of speed, as an error does, and nothing of what was learned.
OF_SPEED = frozenset({"crowded-training"})
NOT_OF_SPEED = ("validation_accuracy",)
# Places that one group names on a terminal, and facts; --json has them all.
MAX_PLACES = 4
MAX_FACTS = 2
# Of what a report or a gate prints of the check's errors.
MAX_ERRORS = 8
LONGEST_MESSAGE = 300


def check(results: Results, series: list[Series] | None = None) -> list[Finding]:
    """Return what is wrong with a set of results, errors first, in the order of the rules.

    `series` are those of all rows, where they are known already.
    """
    evidence = Evidence(results, series)
    findings = [finding for rule in RULES for finding in rule.findings(evidence)]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that make a number wrong or not comparable."""
    return [finding for finding in findings if finding.level == "error"]


def warned(findings: Iterable[Finding]) -> frozenset[Place]:
    """Return the points that warnings concern, other than those that tell of their flags."""
    return _points(f for f in findings if f.level == "warning" and f.rule != FLAGGED)


def blocking(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that forbid what is said of the speed of what they touch."""
    return [finding for finding in findings if finding.level == "error" or finding.rule in OF_SPEED]


def blocked_by(
    findings: Iterable[Finding], rows: Iterable[Row], *, of_speed: bool = True
) -> list[str]:
    """Return the rules that forbid a verdict on results, since their findings touch one of them.

    `of_speed` tells whether the verdict is on a time, a rate or a ratio of them.
    """
    return touching((blocking if of_speed else errors)(findings), rows)


def touching(findings: Iterable[Finding], rows: Iterable[Row]) -> list[str]:
    """Return the rules of the findings that touch one of some results."""
    touched = list(rows)
    return list(dict.fromkeys(f.rule for f in findings if any(map(f.touches, touched))))


@dataclass(frozen=True)
class Group:
    """Findings of one rule that are shown as one: all facts and places, and the first finding."""

    first: Finding
    facts: tuple[str, ...]
    places: tuple[str, ...]
    points: frozenset[Place]

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
        return f"{'; '.join(facts)}: {self.first.why}"


def grouped(findings: Iterable[Finding]) -> list[Group]:
    """Return errors of different places as one where they say the same, all else by its kind."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        alike.setdefault(_alike(finding), []).append(finding)
    return [
        Group(own[0], tuple(dict.fromkeys(f.text for f in own)), tuple(_places(own)), _points(own))
        for own in alike.values()
    ]


def _alike(finding: Finding) -> tuple[str, ...]:
    """Return what findings that are shown as one have in common."""
    if finding.level == "error":
        return finding.level, finding.rule, finding.message, finding.action
    # They differ in their numbers and places alone.
    values = (str(finding.values.get(name, "")) for name in ("flag_kind", "fact"))
    return finding.level, finding.rule, finding.kind, *values


def _points(findings: Iterable[Finding]) -> frozenset[Place]:
    return frozenset[Place]().union(*(finding.points for finding in findings))


def _places(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield where findings lie, the sizes of one case together.

    Of several that only warn, a case does not name its launches.
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
    """Yield each group as a paragraph: what and where, the fact, what to do."""
    for group in grouped(findings):
        first = group.first
        on = f" ({counted(len(group.points), 'point')})" if first.level != "error" else ""
        yield wrapped(f"{first.level} {first.rule}{on}: {group.where()}")
        yield wrapped(f"{group.message(MAX_FACTS)}.", "  ")
        yield wrapped(f"Do: {first.action}.", "  ") + "\n"


def say_errors(findings: Iterable[Finding], side: str = "") -> None:
    """Print the errors on stderr, shortened, each after `side`; stdout holds what was asked for."""
    groups = grouped(errors(findings))
    for group in groups[:MAX_ERRORS]:
        message = shorten(group.message(), LONGEST_MESSAGE, placeholder=" ...")
        click.echo(wrapped(f"{side}error {group.first.rule}: {group.where()}: {message}"), err=True)
    if groups:
        more = len(groups) - MAX_ERRORS
        all_of = f"{counted(more, 'error')} more; " if more > 0 else ""
        click.echo(f"{side}{all_of}lockstep check says what to do about each\n", err=True)


def say_unread(results: Results) -> None:
    """Print on stderr which files could not be read, and why."""
    for why in results.unread:
        click.echo(f"left out: {why}", err=True)


def counts(findings: Sequence[Finding]) -> str:
    """Return the number of errors; of warnings and notes, that of their kinds and points."""
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
