"""What forbids to hand results in as evidence: records, which `pack_wording` turns into words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lockstep.report.check.checker import Finding, errors
from lockstep.report.load import recorded
from lockstep.report.load.results import Results, Row
from lockstep.report.pack.chosen import Chosen

Kind = Literal["check", "flagged", "cpus", "left-out", "no-interval", "recorded", "example"]


@dataclass(frozen=True)
class Objection:
    """One reason."""

    kind: Kind
    finding: Finding | None = None
    launches: tuple[str, ...] = ()
    num_points: int = 0
    flags: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return it as the pack's numbers hold it."""
        known = {
            "launches": list(self.launches), "num_points": self.num_points,
            "flags": list(self.flags),
        }  # fmt: skip
        facts = {name: value for name, value in known.items() if value}
        return {"kind": self.kind} | facts | (self.finding.record() if self.finding else {})


def objections(
    results: Results, chosen: Chosen, findings: Sequence[Finding], left_out: Sequence[Row],
    is_example: bool = False,
) -> list[Objection]:  # fmt: skip
    """Return all that speaks against handing results in; nothing where they are evidence."""
    found = list(_objections(results, chosen, findings, left_out))
    return [*found, Objection("example")] if is_example else found


def _objections(
    results: Results, chosen: Chosen, findings: Sequence[Finding], left_out: Sequence[Row]
) -> Iterator[Objection]:
    if results.on_cpus:
        yield Objection("cpus")
    if recorded.KEY in results.campaign:
        yield Objection("recorded")
    for finding in errors(findings):
        yield Objection("check", finding=finding)
    if left_out:
        names = tuple(dict.fromkeys(row.launch for row in left_out))
        yield Objection("left-out", launches=names, num_points=len({r.point for r in left_out}))
    alone = [p for p in chosen.points if not (p.step_interval or p.efficiency_interval)]
    if alone:
        yield Objection("no-interval", num_points=len(alone))
    flagged = [point for point in chosen.points if point.flags]
    if flagged:
        kinds = tuple(dict.fromkeys(str(flag) for point in flagged for flag in point.flags))
        yield Objection("flagged", num_points=len(flagged), flags=kinds)
