"""The table of rules, and what they find in a set of results.

A rule is one function of this package and one row of `TABLE`: name, severity, why it matters, what
to do. An error makes the set no valid scaling study until it is mended; a warning limits what may
be concluded from it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from reports.check import cases, ladder, launches, work
from reports.check.evidence import Evidence, Hit, joined
from reports.lines import plain
from reports.results import Results

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Rule:
    """One thing to look for.

    Attributes:
        why: What comes of it.
        action: What to do.
    """

    name: str
    severity: Severity
    why: str
    action: str
    check: "Callable[[Evidence], Iterator[Hit]]"

    @property
    def what(self) -> str:
        """What is looked for, in one sentence."""
        return (self.check.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True)
class Finding:
    """A rule that a set of results breaks, and where: file, launch, case, table or world size."""

    rule: str
    severity: Severity
    where: str
    message: str
    action: str


TABLE: tuple[tuple[str, Severity, str, str, Callable[[Evidence], Iterator[Hit]]], ...] = (
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
        "quote both views, and compare the accuracy reached, too", work.fixed_epochs,
    ),
    (
        "samples-time", "error", "throughput times time must be samples, or one of them is wrong",
        "rebuild the file from its journal, or measure again", work.samples_time,
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
        "truncated-batch", "error", "a step trains fewer samples than its label says",
        "choose a global batch that every world size divides", work.truncated_batch,
    ),
    (
        "small-batch", "warning",
        "the fixed costs of a step, launching kernels and meeting the other ranks, rule it",
        "enlarge the local batch, and look at the utilisation of the devices", work.small_batch,
    ),
    (
        "super-linear", "warning",
        "more than each rank can do alone: a slow baseline, a cache, or other work",
        "measure the baseline again beside this size, and say which of them it is",
        ladder.super_linear,
    ),
    (
        "ladder-gap", "warning", "where the curve bends between them is not known",
        "measure the sizes between, doubling at most", ladder.ladder_gap,
    ),
    (
        "no-baseline", "warning", "losses below it are hidden from every ratio",
        "measure one rank, or name the baseline beside each ratio", ladder.no_baseline,
    ),
    (
        "break", "warning", "one curve through all points would describe neither side of it",
        "look for its cause there: a node's edge, a slow link, a shared file system",
        ladder.broken_curve,
    ),
    (
        "outlier", "warning", "scaling curves bend downward, so this point was held up",
        "measure it again, in new launches, before any curve is drawn through it", ladder.outlier,
    ),
    (
        "mixed-provenance", "error", "a difference between them is not one of world size",
        "report them apart, or measure all with one image on one kind of node",
        launches.mixed_provenance,
    ),
    (
        "mixed-cases", "error", "one curve would join different experiments",
        "report them apart", launches.mixed_cases,
    ),
    (
        "oversubscription", "error", "the ranks take turns, and scaling looks worse than it is",
        "set --threads-per-rank to the cores over the ranks, or measure fewer ranks",
        launches.oversubscription,
    ),
    (
        "unequal-ranks", "error", "efficiency would compare strong ranks with weak ones",
        "measure every size with one --threads-per-rank", launches.unequal_ranks,
    ),
    (
        "no-repeat", "warning", "nothing is known of the noise, so there is no interval",
        "measure at least 3 launches of every point: repeats = 3", launches.no_repeat,
    ),
    (
        "uneven-repeats", "warning", "was one measured until it pleased?",
        "measure all points equally often, in turn", launches.uneven_repeats,
    ),
    (
        "launches-apart", "warning", "the point is none of them, and no curve through it holds",
        "find out what differs between them, and measure the point again", launches.disagree,
    ),
    (
        "duplicate", "error", "a copy is no repeat, and makes the interval too small",
        "remove the copy", launches.same_twice,
    ),
    (
        "too-few-steps", "warning", "one late step changes the result",
        "measure with more --rounds", launches.too_few_steps,
    ),
    (
        "unfinished-launch", "error", "what failed last may be what is slow",
        "run the campaign again: it goes on where it stopped", launches.unfinished,
    ),
    (
        "journal-only", "warning", "what its session wrote at its end is not what is there",
        "find out what became of the file; keep the journal, it holds all cases",
        launches.journal_only,
    ),
    (
        "unreadable-launch", "error", "its points are left out of every number",
        "restore the file, or measure the launch again", launches.unreadable,
    ),
    (
        "failed-case", "error", "a curve of what survived flatters",
        "mend its cause and run the campaign again", launches.failed,
    ),
    (
        "missing-case", "error", "points left out without a reason may be the bad ones",
        "run the campaign again: it measures what is missing", launches.missing,
    ),
    (
        "precision-fell-back", "error", "the label names a speed that this hardware does not have",
        "leave the case out, or measure where the precision exists", cases.fell_back,
    ),
    (
        "duplicate-buckets", "warning", "a difference between them is noise",
        "keep one of them, or choose sizes below the model's gradients", cases.same_buckets,
    ),
    (
        "above-peak", "error", "no device does that: operations, time or peak are wrong",
        "look at the FLOP of a sample, the device's name and the clock", cases.above_peak,
    ),
    (
        "wrong-result", "error", "a fast wrong case is a failed case",
        "mend it and measure again", cases.wrong_result,
    ),
    (
        "flagged", "warning", "a flagged point is no evidence for a proposal",
        "remove the cause and measure the point again", cases.flagged,
    ),
    (
        "not-measured", "error", "what is hoped for must not stand among what was measured",
        "keep targets in a file of their own, and measure", cases.not_measured,
    ),
)  # fmt: skip
RULES = tuple(Rule(*row) for row in TABLE)


def check(results: Results) -> list[Finding]:
    """Return what is wrong with a set of results, errors first, in the order of the rules.

    Args:
        results: What `reports.load.gather` read, conflicts included.
    """
    evidence = Evidence(results)
    found = [_finding(rule, hit) for rule in RULES for hit in _merged(rule.check(evidence))]
    return sorted(dict.fromkeys(found), key=lambda one: one.severity != "error")


def _merged(hits: Iterator[Hit]) -> list[Hit]:
    """Return hits with those that differ in their launches alone as one."""
    launches: dict[Hit, list[str]] = {}
    for hit in hits:
        launches.setdefault(replace(hit, launches=()), []).extend(hit.launches)
    return [replace(hit, launches=tuple(dict.fromkeys(names))) for hit, names in launches.items()]


def _finding(rule: Rule, hit: Hit) -> Finding:
    noun = "launch" if len(hit.launches) == 1 else "launches"
    places = [hit.where, f"{noun} {joined(hit.launches)}" if hit.launches else ""]
    where, message = plain(", ".join(filter(None, places))), plain(f"{hit.fact}: {rule.why}")
    return Finding(rule.name, rule.severity, where, message, hit.action or rule.action)
