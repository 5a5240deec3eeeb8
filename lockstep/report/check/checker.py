"""The table of rules, and what they find in a set of results.

A rule is one function of `rules` with its name, level, reason, sentences and action above it,
and one line of `RULES`. An error makes the set no valid scaling study until it is mended; a
warning limits what may be concluded from it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lockstep.report.check import case_rules, ladders, launches, recorded_facts, work
from lockstep.report.check import evidence as check_evidence
from lockstep.report.check.evidence import FLAGGED, Evidence, Hit, Level, Place, Rule
from lockstep.report.compute.scaling import Series
from lockstep.report.load.results import Results, Row

LEVELS: tuple[Level, ...] = ("error", "warning", "note")
# Rules that forbid what is said of speed, as an error does, and nothing of what was learned.
OF_SPEED = frozenset({"crowded-training"})
NOT_OF_SPEED = ("validation_accuracy",)


@dataclass(frozen=True)
class Finding:
    """A rule that a set of results breaks, and what it has found where.

    Attributes:
        hit: The fact with its values, and the cases, world sizes and launches it concerns.
        doubts: Whether it is a warning that casts doubt on a ratio of what it touches.
    """

    rule: str
    level: Level
    hit: Hit
    why: str
    action: str
    points: frozenset[Place] = frozenset()
    doubts: bool = False

    @property
    def where(self) -> str:
        """Which cases, world sizes and launches it concerns, in words."""
        return check_evidence.where(self.hit)

    @property
    def message(self) -> str:
        """What was found, and what comes of it, in a sentence without its full stop."""
        return f"{check_evidence.fact(self.hit)}: {self.why}"

    def touches(self, row: Row) -> bool:
        """Tell whether a result is concerned: by its case and world size, else by its launch.

        A point pools its launches, so what is wrong in one of them concerns all.
        """
        hit = self.hit
        if not (hit.cases or hit.world_sizes):
            return not hit.launches or row.launch in hit.launches
        in_cases = not hit.cases or row.case in hit.cases
        return in_cases and (not hit.world_sizes or row.world_size in hit.world_sizes)

    def record(self) -> dict[str, Any]:
        """Return the finding as `--json` prints it."""
        hit = self.hit
        return {
            "rule": self.rule, "level": self.level, "kind": hit.kind, "cases": list(hit.cases),
            "world_sizes": list(hit.world_sizes), "launches": list(hit.launches),
            "values": dict(hit.values), "where": self.where, "message": self.message,
            "action": self.action,
        }  # fmt: skip


# In the order in which findings are printed.
RULES: tuple[Rule, ...] = (
    work.constant_work,
    work.sold_as_strong,
    work.fixed_epochs,
    work.samples_time,
    case_rules.other_samples,
    work.doubled_world_size,
    work.contradiction,
    launches.other_unit,
    case_rules.ranks_missing,
    case_rules.alone_longer,
    case_rules.launch_disagrees,
    launches.shared_gpu,
    ladders.published_ratio,
    ladders.impossible,
    ladders.accuracy_falls,
    ladders.epoch_against_run,
    work.truncated_batch,
    work.small_batch,
    ladders.super_linear,
    ladders.ladder_gap,
    ladders.no_baseline,
    ladders.broken_curve,
    ladders.outlier,
    launches.mixed_provenance,
    launches.mixed_cases,
    launches.oversubscription,
    launches.crowded_training,
    launches.unequal_ranks,
    launches.no_repeat,
    launches.uneven_repeats,
    launches.disagree,
    launches.same_twice,
    case_rules.scaled_copies,
    ladders.line_twice,
    recorded_facts.repeat_holes,
    recorded_facts.shared_job,
    recorded_facts.uneven_rounds,
    case_rules.cold_start,
    case_rules.identical_work,
    recorded_facts.circumstances,
    recorded_facts.idle_devices,
    recorded_facts.not_in_turn,
    recorded_facts.several_settings,
    launches.too_few_steps,
    launches.unfinished,
    launches.journal_contradicts,
    launches.journal_only,
    launches.unreadable,
    launches.failed,
    launches.missing,
    case_rules.fell_back,
    case_rules.same_buckets,
    case_rules.above_peak,
    case_rules.wrong_result,
    case_rules.loss_stays,
    case_rules.flagged,
    case_rules.not_measured,
)


def check(results: Results, series: list[Series] | None = None) -> list[Finding]:
    """Return what is wrong with a set of results, errors first, in the order of the rules.

    `series` are those of all rows, where they are known already.
    """
    evidence = Evidence(results, series)
    findings = [
        _finding(rule, hit, evidence.places(hit))
        for rule in RULES
        for hit in _merged(rule.check(evidence))
    ]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that make a number wrong or not comparable."""
    return [finding for finding in findings if finding.level == "error"]


def warned(findings: Iterable[Finding]) -> frozenset[Place]:
    """Return the points that warnings concern, other than those that tell of their flags."""
    own = (
        finding for finding in findings if finding.level == "warning" and finding.rule != FLAGGED
    )
    return frozenset[Place]().union(*(finding.points for finding in own))


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
    return list(
        dict.fromkeys(finding.rule for finding in findings if any(map(finding.touches, touched)))
    )


def _merged(hits: Iterator[Hit]) -> list[Hit]:
    """Return hits with those that differ in their launches alone as one."""
    alike: dict[str, list[Hit]] = {}
    for hit in hits:
        alike.setdefault(repr(vars(hit) | {"launches": ()}), []).append(hit)
    return [
        replace(
            same[0], launches=tuple(dict.fromkeys(name for hit in same for name in hit.launches))
        )
        for same in alike.values()
    ]


def _finding(rule: Rule, hit: Hit, points: frozenset[Place]) -> Finding:
    action = check_evidence.ACTIONS.get(hit.kind, rule.action)
    doubts = rule.level == "warning" and rule.doubts and hit.doubts
    action = check_evidence.fill(action, hit.values)
    return Finding(rule.name, rule.level, hit, rule.why, action, points, doubts)
