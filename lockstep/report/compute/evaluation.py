"""The only way from results to finished numbers: pool rows into series, and check them.

Page, gate, pack, tracker and data frame choose from these and format; they compute nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.core.formats import counted, listed
from lockstep.report.check import checker
from lockstep.report.check.checker import Finding
from lockstep.report.compute.scaling import Point, Series, series_of
from lockstep.report.load.reading import gather
from lockstep.report.load.results import Results, Row

# Findings that disappear once a running launch is complete.
UNTIL_COMPLETE = ("not-run", "no-result", "early-end")


@dataclass(frozen=True)
class Evaluation:
    """Results with their finished series.

    Attributes:
        findings: Findings of the check, errors first.
        left_out: Rows that must not be pooled with the others of their point.
    """

    results: Results
    series: list[Series]
    findings: list[Finding]
    left_out: list[Row]

    @property
    def not_pooled(self) -> str:
        """A message that names the launches in `left_out`; empty if there are none."""
        if not self.left_out:
            return ""
        launches = list(dict.fromkeys(row.launch for row in self.left_out))
        points = len({row.point for row in self.left_out})
        are = "is" if len(launches) == 1 else "are"
        num_launches, num_points = counted(len(launches), "launch"), counted(points, "point")
        names = listed(launches)
        return (
            f"{num_launches} {are} left out of {num_points}, because they cannot be pooled with "
            f"the other launches: {names}"
        )


def evaluate(
    results: Results, baseline: int | None = None, cost_per_hour: float | None = None
) -> Evaluation:
    """Return results with their finished series; the price is that of a device-hour.

    Raises:
        ValueError: Nothing may be pooled, or no series was measured at the baseline.
    """
    pooled, left_out = results.split()
    if left_out and not pooled:
        raise ValueError(results.conflicts[0].message)
    series = series_of(pooled, baseline, cost_per_hour)
    findings = checker.check(results, None if results.conflicts or baseline else series)
    return Evaluation(results, finish(series, findings), findings, left_out)


def evaluate_folder(folder: Path, coming: Collection[str] = ()) -> Evaluation:
    """Return the results in a folder with their finished series, even if nothing may be pooled.

    Launches in `coming` still run: their missing cases are no findings.

    Raises:
        ValueError: Nothing is measured, or a file is broken.
    """
    results = gather([folder])
    pooled, left_out = results.split()
    series = series_of(pooled)
    findings = [
        finding
        for finding in checker.check(results)
        if finding.kind not in UNTIL_COMPLETE or not set(finding.launches) <= set(coming)
    ]
    return Evaluation(results, finish(series, findings), findings, left_out)


def finish(series: Sequence[Series], findings: Sequence[Finding]) -> list[Series]:
    """Return series whose points hold the rules that block or doubt their ratios, and warned sizes.

    An error blocks the ratios of each point that it touches, or whose baseline it touches; a
    warning may make them doubtful. Targets keep their ratios.
    """
    warned = checker.find_warned(findings)
    kinds = [checker.find_blocking(findings), checker.find_doubting(findings)]
    points: dict[int, Point] = {}
    finished: dict[int, Series] = {}
    for old in series:
        for point in old.points:
            rows = [*point.rows, *old.base.rows]
            blocking, doubting = (
                checker.list_touching(own, rows) if old.row.origin != "target" else []
                for own in kinds
            )
            is_sound = not blocking and not doubting
            points[id(point)] = (
                point if is_sound else replace(point, blocked_by=blocking, doubted_by=doubting)
            )
        finished[id(old)] = replace(
            old,
            base=points[id(old.base)],
            points=[points[id(point)] for point in old.points],
            main=finished[id(old.main)] if old.main else None,
            warned={p.world_size for p in old.points if (old.case, p.world_size) in warned},
        )
    return list(finished.values())
