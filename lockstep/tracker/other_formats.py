"""Points and training curves in the formats of other programs: Bencher, GitHub, TensorBoard."""

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lockstep.report.compute.point_table import table
from lockstep.report.page.checked import series_in
from lockstep.tracker.runs.tracked import Run, metric_name
from lockstep.vocabulary.metrics import gives_rate
from lockstep.vocabulary.text.formats import counted

NS_PER_S = 1e9
Direction = Literal["smaller", "bigger"]


class Quantity(NamedTuple):
    """A column of the table of points, as other programs call it.

    Attributes:
        measure: Its slug at Bencher, which knows latency in ns and throughput in operations/s.
        scale: From our unit to Bencher's.
        unit: Ours.
    """

    column: str
    measure: str
    scale: float
    unit: str
    better: Direction


QUANTITIES = (
    Quantity("step_s", "latency", NS_PER_S, "s", "smaller"),
    Quantity("throughput_samples_per_s", "throughput", 1.0, "samples/s", "bigger"),
    Quantity("parallel_efficiency", "parallel-efficiency", 1.0, "ratio", "bigger"),
)


def _quantities(one: dict[str, Any]) -> tuple[Quantity, ...]:
    """Return what a point has: of a program its own unit, and no step where it gives a rate."""
    program = next(iter(one["details"].get("command") or ()), None)
    if program is None:
        return QUANTITIES
    step, rate, efficiency = QUANTITIES
    unit = f"{one['sample_unit']}/s"
    slug = re.sub(r"[^a-z0-9]+", "-", unit.lower()).strip("-")
    rate = rate._replace(measure=f"throughput-{slug}", unit=unit)
    return (rate, efficiency) if gives_rate(program["metrics"]) else (step, rate, efficiency)


def points(folder: Path) -> list[dict[str, Any]]:
    """Return the measured points of a folder; a ratio that the check forbids is unknown.

    Raises:
        ValueError: The folder holds none.
    """
    found = [one for one in table(series_in(folder)) if one["origin"] == "measured"]
    if not found:
        raise ValueError(f"{folder}: no point was measured here; give the folder of a campaign")
    for one in found:
        if one["world_size"] == one["baseline_world_size"]:
            one["parallel_efficiency"] = None
    return found


def _values(
    one: dict[str, Any], quantity: Quantity, scale: float
) -> tuple[float, tuple[float, float] | None] | None:
    """Return a value and its 95 % interval, None where either is unknown."""
    value = one[quantity.column]
    if value is None or not math.isfinite(value):
        return None
    low, high = one[f"{quantity.column}_low"], one[f"{quantity.column}_high"]
    return value * scale, None if low is None else (low * scale, high * scale)


def _name(one: dict[str, Any]) -> str:
    layout = f", {one['layout']}" if one["layout"] else ""
    return f"{one['case']}{layout}, world_size={one['world_size']}"


def bencher(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return points in Bencher Metric Format: benchmark -> measure -> value and its interval.

    Bencher's reference, "Bencher Metric Format (BMF)": bencher.dev/docs/reference.
    """
    document: dict[str, Any] = {}
    for one in found:
        measures = document.setdefault(_name(one), {})
        for quantity in _quantities(one):
            if known := _values(one, quantity, quantity.scale):
                value, interval = known
                measures[quantity.measure] = {"value": value}
                if interval:
                    ends = zip(("lower_value", "upper_value"), interval, strict=True)
                    measures[quantity.measure] |= dict(ends)
    return document


def github_benchmark(found: Iterable[dict[str, Any]], better: Direction) -> list[dict[str, Any]]:
    """Return points as github-action-benchmark reads them, of one direction a file.

    Its README, "Custom benchmarks": the tools customSmallerIsBetter and customBiggerIsBetter take a
    list of name, unit, value, and as texts range and extra.
    """
    return [
        {
            "name": f"{_name(one)}: {quantity.measure}",
            "unit": quantity.unit,
            "value": known[0],
            **({"range": "{:.4g} to {:.4g}".format(*known[1])} if known[1] else {}),
            "extra": counted(one["num_launches"], "launch")
            + (", 95 % interval" if known[1] else ""),
        }
        for one in found
        for quantity in _quantities(one)
        if quantity.better == better and (known := _values(one, quantity, 1.0))
    ]


def tensorboard(runs: Iterable[Run], folder: Path) -> Iterator[Path]:
    """Write the curves of training runs as TensorBoard's event files, a folder for each run.

    Args:
        runs: Those of kind `training` are written.
        folder: What TensorBoard's --logdir is to name; what it holds of a run is replaced.

    Raises:
        RuntimeError: torch or tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RuntimeError(f"{error}; pip install tensorboard beside torch") from None
    for run in runs:
        if run.kind != "training":
            continue
        own = folder / metric_name(run.name, "")[:-1]
        for old in own.glob("events.out.tfevents.*"):
            old.unlink()
        with SummaryWriter(str(own)) as writer:
            for one in run.metrics:
                writer.add_scalar(one.name, one.value, one.step, walltime=one.time_ms / 1000)
        yield own
