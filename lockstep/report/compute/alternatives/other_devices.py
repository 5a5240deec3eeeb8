"""The same work on one device of several kinds, as one source gives it: a CPU, then a GPU.

Speed-up and efficiency count devices of one kind. Between two kinds there is a ratio alone, of the
rates that one of each has, where all else that the table says of the work agrees.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lockstep.report.compute.scaling import Series

KIND_OF_DEVICE = "accelerator"
SOURCE = "locator"


@dataclass(frozen=True)
class Replaced:
    """A run on the slowest device beside the same work on one of another kind."""

    slowest: Series
    other: Series
    speedup: float


def replaced(series: Iterable[Series]) -> list[Replaced]:
    """Return what each kind of device gives over the slowest that did the same work."""
    groups: dict[tuple[object, ...], list[Series]] = {}
    for one in series:
        if work := _work(one):
            groups.setdefault(work, []).append(one)
    found = []
    for group in groups.values():
        slowest = min(group, key=lambda one: one.base.rate)
        found += [
            Replaced(slowest, other, other.base.rate / slowest.base.rate)
            for other in group
            if kind_of_device(other) != kind_of_device(slowest)
        ]
    return found


def kind_of_device(series: Series) -> str:
    """Return what a table calls its device; empty where it says nothing."""
    return str(series.base.rows[0].details.get(KIND_OF_DEVICE, ""))


def _work(series: Series) -> tuple[object, ...]:
    """Return what one device was given to do, and who says so; nothing where that is unknown."""
    row, time_s = series.base.rows[0], series.base.time_s
    source, through = row.details.get(SOURCE), row.throughput_samples_per_s
    if row.origin == "measured" or series.baseline != 1 or not kind_of_device(series):
        return ()
    if not (source and through and time_s):
        return ()
    samples = round(through * time_s)
    return row.origin, source, row.workload, row.precision, row.global_batch, samples
