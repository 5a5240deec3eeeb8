"""Verdicts that rest on results which `lockstep check` calls wrong."""

from collections.abc import Sequence
from dataclasses import replace

from lockstep.report.check.checker import Finding, blocked_by
from lockstep.report.check.wording import blocked
from lockstep.report.gate.gates import BLOCKED, Verdict
from lockstep.report.load.results import Results


def block(found: Sequence[Verdict], results: Results, findings: Sequence[Finding]) -> list[Verdict]:
    """Return the verdicts, blocked and without a value where an error touches a result behind them.

    Args:
        found: The verdicts.
        results: A set of results; rows of another set are not looked at.
        findings: What the check has found in this set.
    """
    own = {id(row) for row in results.rows}
    return [_block(one, own, findings) for one in found]


def _block(verdict: Verdict, own: set[int], findings: Sequence[Finding]) -> Verdict:
    rows = [row for row in verdict.rows if id(row) in own]
    rules = blocked_by(findings, rows)
    names = list(dict.fromkeys([*verdict.blocked_by, *rules]))
    if not rules:
        return verdict
    return replace(
        verdict, verdict=BLOCKED, value=None, low=None, high=None, in_one_job=False,
        reason=blocked(names), blocked_by=names,
    )  # fmt: skip
