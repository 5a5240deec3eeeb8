"""The phases of a point's step: seconds that it waits for input, forward, backward, optimizer."""

from statistics import median

from lockstep.report.compute.lost_time import attribution
from lockstep.report.compute.scaling import Point

# Phase -> its column.
COLUMNS = {"forward": "forward_s", "backward": "backward_s", "optimizer": "optimizer_s"}


def columns(point: Point) -> dict[str, float | None]:
    """Return the seconds of each phase, the median over launches; None unless all know it.

    What a step waits for its batch is the cause `input`, a mean like all causes.
    """
    waits = {"data_s": attribution.pooled(point, "input")[0]}
    return waits | {column: _pooled(point, phase) for phase, column in COLUMNS.items()}


def _pooled(point: Point, phase: str) -> float | None:
    found = [row.phase_s[phase] for row in point.rows if phase in row.phase_s]
    return median(found) if len(found) == len(point.rows) else None
