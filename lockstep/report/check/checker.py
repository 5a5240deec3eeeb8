"""All findings in a set of results, which of them block a verdict, and how they are printed.

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
# Rules whose findings are no errors but block verdicts on speed, not on accuracy.
OF_SPEED = frozenset({"crowded-training"})
NOT_OF_SPEED = ("validation_accuracy",)
# Places and facts of a group that the terminal shows; --json has all.
MAX_PLACES, MAX_FACTS = 4, 2
# Errors of the check that a report or a gate prints, and their length.
MAX_ERRORS, LONGEST_MESSAGE = 8, 300


def check(results: Results, series: list[Series] | None = None) -> list[Finding]:
    """Return the findings in a set of results, errors first; `series` are those of all rows."""
    evidence = Evidence(results, series)
    findings = [finding for rule in RULES for finding in rule.findings(evidence)]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "error"]


def find_warned(findings: Iterable[Finding]) -> frozenset[Place]:
    """Return the points that warnings concern, except warnings about flags."""
    return _points(f for f in findings if f.level == "warning" and f.rule != FLAGGED)


def find_blocking(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "error" or finding.rule in OF_SPEED]


def find_doubting(findings: Iterable[Finding]) -> list[Finding]:
    """Return the warnings that make ratios doubtful: whether they reach a target is not shown."""
    return [finding for finding in findings if finding.level == "warning" and finding.doubts]


def blocked_by(
    findings: Iterable[Finding], rows: Iterable[Row], *, of_speed: bool = True
) -> list[str]:
    """Return the rules that block a verdict on these results: on speed, else on accuracy."""
    return list_touching((find_blocking if of_speed else errors)(findings), rows)


def touching(findings: Iterable[Finding], rows: Iterable[Row]) -> list[Finding]:
    """Return the findings that concern any of these results."""
    touched = list(rows)
    return [finding for finding in findings if any(map(finding.touches, touched))]


def list_touching(findings: Iterable[Finding], rows: Iterable[Row]) -> list[str]:
    """Return the names of the rules whose findings concern any of these results."""
    return list(dict.fromkeys(finding.rule for finding in touching(findings, rows)))


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
        facts = [*shown, *[counted(more, "similar fact")] * bool(more)]
        return f"{'; '.join(facts)}: {self.first.why}"


def group_findings(findings: Iterable[Finding]) -> list[Group]:
    """Group errors with the same text, and warnings and notes of the same kind."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        alike.setdefault(_key(finding), []).append(finding)
    return [
        Group(own[0], tuple(dict.fromkeys(f.text for f in own)), tuple(_places(own)), _points(own))
        for own in alike.values()
    ]


def _key(finding: Finding) -> tuple[str, ...]:
    """Return the texts that a group shares; for warnings, without numbers and places."""
    if finding.level == "error":
        return finding.level, finding.rule, finding.message, finding.action
    values = (str(finding.values.get(name, "")) for name in ("flag_kind", "fact"))
    return finding.level, finding.rule, finding.kind, *values


def _points(findings: Iterable[Finding]) -> frozenset[Place]:
    return frozenset[Place]().union(*(finding.points for finding in findings))


def _places(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the places of findings; several warnings about cases leave out their launches."""
    alike: dict[str, list[Finding]] = {}
    for finding in findings:
        kept = () if finding.cases else finding.launches
        where = replace(finding, world_sizes=(), launches=kept).where
        alike.setdefault(where, []).append(finding)
    for own in alike.values():
        first = own[0]
        is_short = len(findings) > 1 and first.level != "error" and first.cases
        names = () if is_short else tuple(dict.fromkeys(x for f in own for x in f.launches))
        sizes = sorted({size for f in own for size in f.world_sizes})
        yield replace(first, world_sizes=tuple(sizes), launches=names).where


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield each group as a paragraph: level, rule and place, then the fact, then the action."""
    for group in group_findings(findings):
        first = group.first
        on = f" ({counted(len(group.points), 'point')})" if first.level != "error" else ""
        yield _whole(f"{first.level} {first.rule}{on}: {group.where()}")
        yield _whole(f"{group.message(MAX_FACTS)}.", "  ")
        yield _whole(f"Do: {first.action}.", "  ") + "\n"


def _whole(text: str, indent: str = "") -> str:
    """Wrap a text into lines without splitting names of cases and files."""
    return wrapped(text, indent, splits_words=False)


def say_errors(findings: Iterable[Finding], side: str = "") -> None:
    """Print the errors on stderr, shortened, each prefixed by `side`."""
    groups = group_findings(errors(findings))
    for group in groups[:MAX_ERRORS]:
        message = shorten(group.message(), LONGEST_MESSAGE, placeholder=" ...")
        click.echo(_whole(f"{side}error {group.first.rule}: {group.where()}: {message}"), err=True)
    if groups:
        more = len(groups) - MAX_ERRORS
        all_of = f"{counted(more, 'more error')}; " if more > 0 else ""
        advice = "run lockstep check to see what to do about each error"
        click.echo(f"{side}{all_of}{advice}\n", err=True)


def say_unread(results: Results) -> None:
    for why in results.unread:
        click.echo(f"left out: {why}", err=True)


def counts(findings: Sequence[Finding], results: Results) -> str:
    """Return the number of errors, and of groups and points of warnings and notes, as text."""
    known = {(row.case, row.world_size) for row in results.rows}
    texts = [counted(len(errors(findings)), "error")]
    for level in LEVELS[1:]:
        own = [finding for finding in findings if finding.level == level]
        points = _points(own)
        if own:
            text, where = counted(len(set(map(_key, own))), level), counted(len(points), "point")
            if points < known:
                where = f"{len(points)} of {counted(len(known), 'point')}"
            texts.append(f"{text} on {where}" if points else text)
        elif level == "warning":
            texts.append("no warning")
    return ", ".join(texts)
