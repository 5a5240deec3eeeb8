"""Results as whoever shows them gets them: pooled, in finished series, and checked.

`evaluate` is the one way from results to numbers. A report, a gate, a pack, a tracker or a data
frame chooses from its series and formats; none computes a number of a point or changes one.
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

# Kinds of what the check finds of a launch until it is complete.
UNTIL_COMPLETE = ("not-run", "no-result", "early-end")


@dataclass(frozen=True)
class Evaluation:
    """A set of results with all that is concluded from it.

    Attributes:
        series: Of what may be pooled; each point knows what the check says of it.
        findings: What the check finds, errors first.
        left_out: The rows that may not be pooled with the others of their point.
    """

    results: Results
    series: list[Series]
    findings: list[Finding]
    left_out: list[Row]

    @property
    def not_pooled(self) -> str:
        """The launches left out and the number of their points; empty where all are pooled."""
        if not self.left_out:
            return ""
        names = list(dict.fromkeys(row.launch for row in self.left_out))
        points = len({row.point for row in self.left_out})
        return (
            f"{counted(len(names), 'launch')} left out of {counted(points, 'point')}, since they "
            f"may not be pooled with the others: {listed(names)}"
        )


def evaluate(
    results: Results, baseline: int | None = None, cost_per_hour: float | None = None
) -> Evaluation:
    """Return results with their finished series.

    Args:
        results: What was read.
        baseline: World size that ratios divide by; the smallest of each series by default.
        cost_per_hour: Price of an hour of one device.

    Raises:
        ValueError: Nothing may be pooled, or no series was measured at the baseline.
    """
    pooled, left_out = results.pooled()
    series = series_of(pooled, baseline, cost_per_hour)
    findings = checker.check(results, None if results.conflicts or baseline else series)
    return Evaluation(results, finish(series, findings), findings, left_out)


def evaluate_folder(folder: Path, coming: Collection[str] = ()) -> Evaluation:
    """Return the results in a folder with their finished series.

    What may not be pooled is left out, even where that is all: a campaign that was resumed on
    another machine still ends with what its other launches say.

    Args:
        folder: A campaign folder, or what else `gather` reads.
        coming: Launches that still run; what they lack is not missing.

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
    """Return series whose points say which findings forbid their ratios, or warn of them.

    A finding forbids the ratios of what it touches and of what has that as baseline. A table of
    targets says of itself that nobody measured it; its ratios stay.
    """
    warned = checker.warned(findings)
    blocking = checker.blocking(findings)  # of ten thousand points most have a warning
    points: dict[int, Point] = {}
    finished: dict[int, Series] = {}
    for old in series:
        for point in old.points:
            rows = [*point.rows, *old.base.rows]
            points[id(point)] = replace(
                point,
                is_warned_of=(old.case, point.world_size) in warned,
                blocked_by=[] if old.row.origin == "target" else checker.touching(blocking, rows),
            )
        finished[id(old)] = replace(
            old,
            base=points[id(old.base)],
            points=[points[id(point)] for point in old.points],
            main=finished[id(old.main)] if old.main else None,
        )
    return list(finished.values())
