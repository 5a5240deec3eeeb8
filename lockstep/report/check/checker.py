"""The table of rules, and what they find in a set of results.

A rule is one function of this package and one row of `TABLE`: name, level, why it matters, what
to do. An error makes the set no valid scaling study until it is mended; a warning limits what may
be concluded from it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from lockstep.report.check import evidence as check_evidence
from lockstep.report.check.evidence import Evidence, Hit, Place
from lockstep.report.check.rules import case_rules, ladders, launches, recorded_facts, work
from lockstep.report.compute.scaling import Series
from lockstep.report.load.results import Results, Row

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
# Rules that forbid what is said of speed, as an error does, and nothing of what was learned.
OF_SPEED = frozenset({"crowded-training"})
NOT_OF_SPEED = ("validation_accuracy",)
FLAGGED = "flagged"


@dataclass(frozen=True)
class Rule:
    """One thing to look for.

    Attributes:
        doubts: Of a warning: whether a ratio that it touches may be wrong, so that no gate judges
            it; else it limits what may be concluded from a right one.
    """

    name: str
    level: Level
    why: str
    action: str
    check: Callable[[Evidence], Iterator[Hit]]
    doubts: bool = True

    @property
    def what(self) -> str:
        """What is looked for, in one sentence."""
        return (self.check.__doc__ or "").strip().partition("\n")[0]


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


TABLE: tuple[tuple[Any, ...], ...] = (
    (
        "constant-work", "error", "the points do different work, and no ratio compares them",
        "measure every size with one batch: the global batch for strong scaling, the local for "
        "weak", work.constant_work,
    ),
    (
        "fixed-epochs-as-strong", "error",
        "each rank's work per step stays, so the steps get fewer and not smaller",
        "call it fixed-epochs, or measure with one global batch", work.sold_as_strong,
    ),
    (
        "fixed-epochs", "warning", "neither strong nor weak scaling, and the training differs",
        "quote both views, and compare the accuracy reached, too", work.fixed_epochs, False,
    ),
    (
        "samples-time", "error", "throughput times time must be samples, or one of them is wrong",
        "rebuild the file from its journal, or measure again", work.samples_time,
    ),
    (
        "other-samples", "error", "throughput is counted in samples, and is wrong by as much",
        "give samples= the local batch, as a number: len() of a pair or a dict is that of its "
        "parts; then measure again", case_rules.other_samples,
    ),
    (
        "doubled-world-size", "error",
        "the samples of all ranks are counted once per rank, so more ranks look faster",
        "divide by the world size: throughput is samples of all ranks / time",
        work.doubled_world_size,
    ),
    (
        "contradiction", "error", "both cannot be true of one run",
        "find out which was measured, and leave the other out", work.contradiction,
    ),
    (
        "unit", "error", "no machine differs so much from itself, and every ratio is wrong",
        "look at the units of both, and bring in or measure the wrong one again",
        launches.other_unit,
    ),
    (
        "ranks-missing", "error", "a round lasts as long as its slowest rank, which may be missing",
        "rebuild the file from its journal, or measure again", case_rules.ranks_missing,
    ),
    (
        "alone-longer", "error", "the part cannot take longer than the whole, so one time is wrong",
        "measure the case again", case_rules.alone_longer,
    ),
    (
        "launch-disagrees", "error", "one of them names another experiment",
        "find out which is true, and measure the other again", case_rules.launch_disagrees,
    ),
    (
        "shared-gpu", "error", "the ranks take turns, and more ranks look slower than they are",
        "give each rank a GPU of its own", launches.shared_gpu,
    ),
    (
        "published-ratio", "error", "both cannot be true of one table",
        "find out which the source measured, and correct the other", ladders.published_ratio,
    ),
    (
        "impossible-line", "error", "one of its numbers is wrong, or counts something else",
        "correct the line in the table, and import it again", ladders.impossible,
    ),
    (
        "less-accurate", "warning", "more ranks are faster and learn less, so the speed-up is not "
        "one of the same training",
        "quote the accuracy beside it, or compare the times to one accuracy",
        ladders.accuracy_falls, False,
    ),
    (
        "epoch-against-run", "warning", "a run has more than its epochs, or more epochs",
        "say which of both a speed-up is of, and find out where the rest of the run goes",
        ladders.epoch_against_run,
    ),
    (
        "truncated-batch", "error", "a step trains fewer samples than its label says",
        "choose a global batch that every world size divides", work.truncated_batch,
    ),
    (
        "small-batch", "warning",
        "the fixed costs of a step, launching kernels and meeting the other ranks, rule it",
        "enlarge the local batch, and look at the utilisation of the devices", work.small_batch,
        False,
    ),
    (
        "super-linear", "warning",
        "more than each rank can do alone: a slow baseline, a cache, or other work",
        "measure the baseline again with this size, and say which of them it is",
        ladders.super_linear,
    ),
    (
        "ladder-gap", "warning", "where the curve bends between them is not known",
        "measure the sizes between, doubling at most", ladders.ladder_gap, False,
    ),
    (
        "no-baseline", "warning", "losses below it are hidden from every ratio",
        "measure one rank, or name the baseline next to each ratio", ladders.no_baseline, False,
    ),
    (
        "break", "warning", "one curve through all points would describe neither side of it",
        "look for its cause there: a node's edge, a slow link, a shared file system",
        ladders.broken_curve, False,
    ),
    (
        "outlier", "warning", "scaling curves bend downward, so this point was held up",
        "measure it again, in new launches, before any curve is drawn through it", ladders.outlier,
    ),
    (
        "mixed-provenance", "error", "a difference between them is not one of world size",
        "report them apart, or measure all with one image on one kind of node; until then a "
        "report leaves them out",
        launches.mixed_provenance,
    ),
    (
        "mixed-cases", "error", "one curve would join different experiments",
        "report them apart; until then a report leaves them out", launches.mixed_cases,
    ),
    (
        "oversubscription", "error", "the ranks take turns, and scaling looks worse than it is",
        "measure fewer ranks on a node, or with fewer threads each: threads_per_rank",
        launches.oversubscription,
    ),
    (
        "crowded-training", "note",
        "the ranks take turns, which changes their times and rates, and nothing that they learn",
        "quote the accuracy; for a time, measure fewer ranks on a node, or fewer threads each",
        launches.crowded_training,
    ),
    (
        "unequal-ranks", "error", "efficiency would compare strong ranks with weak ones",
        "measure every size with one --threads-per-rank", launches.unequal_ranks,
    ),
    (
        "no-repeat", "warning", "nothing is known of the noise, so there is no interval",
        "measure at least 3 launches of every point: repeats = 3", launches.no_repeat, False,
    ),
    (
        "uneven-repeats", "warning", "was one measured until it pleased?",
        "measure all points equally often, in turn", launches.uneven_repeats,
    ),
    (
        "launches-apart", "warning", "their median describes none of them, nor does a curve",
        "find out what differs between them, and measure the point again", launches.disagree,
    ),
    (
        "duplicate", "error", "a copy is no repeat, and makes the interval too small",
        "remove the copy", launches.same_twice,
    ),
    (
        "copied-rounds", "error", "a copy is no repeat, and makes the interval too small",
        "remove the copy", case_rules.scaled_copies,
    ),
    (
        "duplicate-line", "error", "a line written twice is no repeat, and hides the noise",
        "remove one of the lines", ladders.line_twice,
    ),
    (
        "repeat-holes", "warning", "were the best launches kept?",
        "keep every launch, or say which were left out and why", recorded_facts.repeat_holes,
    ),
    (
        "shared-job", "warning", "what its nodes add is in all of them, and in no interval",
        "send each repeat in a job of its own: share_job = false", recorded_facts.shared_job, False,
    ),
    (
        "uneven-rounds", "warning", "were rounds left out?",
        "measure every launch with the same --rounds", recorded_facts.uneven_rounds,
    ),
    (
        "cold-start", "warning", "the mean and the cost hold what happens once",
        "measure with more warm-up rounds: warmup_rounds in the campaign", case_rules.cold_start,
        False,
    ),
    (
        "identical-work", "warning", "what separates them is no setting, and no effect of one",
        "measure with more warm-up rounds, and trust no smaller difference between cases",
        case_rules.identical_work, False,
    ),
    (
        "circumstances", "warning", "it may be the cause of a difference between them",
        "measure all sizes in turn, on the same hosts, with one commit and the same settings",
        recorded_facts.circumstances,
    ),
    (
        "idle-devices", "note", "they wait there, for the other ranks, for input or for launches",
        "look at what the report says of that size: communication, input, a fixed cost",
        recorded_facts.idle_devices,
    ),
    (
        "not-in-turn", "warning", "a machine that drifts meanwhile looks like scaling",
        "measure each repeat of all sizes before the next repeat, as lockstep run does",
        recorded_facts.not_in_turn,
    ),
    (
        "several-settings", "note", "they are series of their own, each over its own baseline",
        "compare them at one size, or measure all launches with one setting",
        recorded_facts.several_settings,
    ),
    (
        "too-few-steps", "warning", "one late step changes the result",
        "measure with more rounds: rounds in the campaign", launches.too_few_steps, False,
    ),
    (
        "unfinished-launch", "error", "what failed last may be what is slow",
        "begin it again: it goes on where it stopped", launches.unfinished,
    ),
    (
        "journal-contradicts", "error", "both come from one measurement, so one was changed",
        "put back the file that was changed, or measure the launch again",
        launches.journal_contradicts,
    ),
    (
        "journal-only", "warning", "what its session wrote at its end is not what is there",
        "find out what became of the file; keep the journal, it holds all cases",
        launches.journal_only, False,
    ),
    (
        "unreadable-launch", "error", "its points are left out of every number",
        "restore the file, or measure the launch again", launches.unreadable,
    ),
    (
        "failed-case", "error", "the cases that are left may look better than all of them",
        "mend its cause, then begin it again", launches.failed,
    ),
    (
        "missing-case", "error", "points left out without a reason may be the bad ones",
        "begin it again: that measures what is missing", launches.missing,
    ),
    (
        "precision-fell-back", "error", "the label names a speed that this hardware does not have",
        "leave the case out, or measure where the precision exists", case_rules.fell_back,
    ),
    (
        "duplicate-buckets", "warning", "a difference between them is noise",
        "keep one of them, or choose sizes below the model's gradients", case_rules.same_buckets,
        False,
    ),
    (
        "above-peak", "error", "no device does that: operations, time or peak are wrong",
        "look at the FLOP of a sample, the device's name and the clock", case_rules.above_peak,
    ),
    (
        "wrong-result", "error", "a fast wrong case is a failed case",
        "mend it and measure again", case_rules.wrong_result,
    ),
    (
        "loss-stays", "warning", "that size does not train what the others do",
        "look at its learning rate and at how its gradients are averaged", case_rules.loss_stays,
    ),
    (
        FLAGGED, "warning", "a flagged point is no evidence for a proposal",
        "remove the cause and measure the point again", case_rules.flagged,
    ),
    (
        "not-measured", "error", "what is hoped for must not be mixed with what was measured",
        "keep targets in a file of their own, and measure", case_rules.not_measured,
    ),
)  # fmt: skip
RULES = tuple(Rule(*row) for row in TABLE)


def check(results: Results, series: list[Series] | None = None) -> list[Finding]:
    """Return what is wrong with a set of results, errors first, in the order of the rules.

    `series` are those of all rows, where they are known already.
    """
    evidence = Evidence(results, series)
    found = [
        _finding(rule, hit, evidence.places(hit))
        for rule in RULES
        for hit in _merged(rule.check(evidence))
    ]
    return sorted(found, key=lambda one: LEVELS.index(one.level))


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that make a number wrong or not comparable."""
    return [one for one in findings if one.level == "error"]


def warned(findings: Iterable[Finding]) -> frozenset[Place]:
    """Return the points that warnings concern, other than those that tell of their flags."""
    own = (one for one in findings if one.level == "warning" and one.rule != FLAGGED)
    return frozenset[Place]().union(*(one.points for one in own))


def blocking(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that forbid what is said of the speed of what they touch."""
    return [one for one in findings if one.level == "error" or one.rule in OF_SPEED]


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
    return list(dict.fromkeys(one.rule for one in findings if any(map(one.touches, touched))))


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
