"""Whether devices, loaders and links were as busy as those of a healthy training are.

The limits are the project's own requirement, in its words: "GPU util 90-100 %, memory near
capacity, power near TDP, network > 100 Gb/s, loaders busy". Near is taken for the 90 % that it asks
of the use, and the board's power is held against the limit that its driver enforces. A loader is
busy enough where less than `metrics.NOTABLE` of a step waits for it. A miss is a hint, and no
reason against the numbers: a small model leaves memory and power unused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from lockstep.core.metrics import NOTABLE
from lockstep.core.studies import CURVES
from lockstep.report.compute.lost_time import quantities
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.load.results import Row

Kind = Literal["use", "memory", "power", "loader", "network"]
# Fractions, and GB/s of the network: 100 Gbit/s.
LIMITS: dict[Kind, float] = {
    "use": 0.9, "memory": 0.9, "power": 0.9, "loader": NOTABLE, "network": 12.5,
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """What was measured of one thing that has a limit.

    Attributes:
        value: A fraction; GB/s of the network.
        is_shown: Whether launches tell it from the limit.
    """

    kind: Kind
    value: float
    case: str
    world_size: int
    is_shown: bool = True

    @property
    def is_good(self) -> bool:
        """Whether it keeps its limit."""
        limit = LIMITS[self.kind]
        return self.value < limit if self.kind == "loader" else self.value >= limit


def readings(series: Sequence[Series]) -> list[Reading]:
    """Return what telemetry has of each ladder at its largest size."""
    return [
        Reading(kind, value, one.label, one.points[-1].world_size)
        for one in series
        if one.row.study in CURVES and one.row.origin == "measured"
        for kind, value in _of_devices(one.points[-1]).items()
        if value is not None
    ]


def _of_devices(point: Point) -> dict[Kind, float | None]:
    use = quantities.values(point.rows, "gpu_utilisation")
    return {
        "use": quantities.centre(use, "gpu_utilisation") if use else None,
        "memory": _mean_share(point.rows, ("gpu_memory_bytes", "most"), "gpu_memory_total_bytes"),
        "power": _mean_share(point.rows, ("power_w", "mean"), "power_limit_w"),
    }


def _mean_share(rows: Sequence[Row], of: tuple[str, str], limit: str) -> float | None:
    """Return a gauge over its limit, the mean over ranks and launches that know both."""
    shares = []
    for row in rows:
        values = quantities.of_ranks(row, *of)
        limits = quantities.of_ranks(row, limit, "mean")
        if values and limits and all(limits):
            shares += [value / most for value, most in zip(values, limits, strict=True)]
    return fmean(shares) if shares else None
