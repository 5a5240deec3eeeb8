"""Verdicts that rest on results which `lockstep check` calls wrong."""

from collections.abc import Sequence
from dataclasses import replace

from lockstep.report.check.checker import Finding
from lockstep.report.gate.gates import BLOCKED, Verdict
from lockstep.report.load.results import Results
from lockstep.report.words.formats import listed


def block(found: Sequence[Verdict], results: Results, findings: Sequence[Finding]) -> list[Verdict]:
    """Return the verdicts, blocked and without a value where an error touches a result behind them.

    Args:
        found: The verdicts.
        results: A set of results; rows of another set are not looked at.
        findings: What the check has found in this set.
    """
    errors = [one for one in findings if one.level == "error"]
    own = {id(row) for row in results.rows}
    return [_block(one, own, errors) for one in found]


def _block(verdict: Verdict, own: set[int], errors: Sequence[Finding]) -> Verdict:
    rows = [row for row in verdict.rows if id(row) in own]
    rules = [error.rule for error in errors if any(map(error.touches, rows))]
    names = list(dict.fromkeys([*verdict.blocked_by, *rules]))
    if not rules:
        return verdict
    reason = f"blocked by check: {listed(names)}"
    return replace(
        verdict, verdict=BLOCKED, value=None, low=None, high=None, in_one_job=False, reason=reason,
        blocked_by=names,
    )  # fmt: skip
