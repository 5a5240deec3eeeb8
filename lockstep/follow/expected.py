"""What is expected of a campaign, beside what it has measured so far.

An expectation is the record of `lockstep predict --json`, a targets file of `lockstep gate`, or a
table that `lockstep import` would read.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep.core import files
from lockstep.core.formats import TIME_UNITS
from lockstep.core.studies import CURVES, LADDERS
from lockstep.report.compute.scaling import Point, Series, best_efficiencies, series_of
from lockstep.report.gate import targets
from lockstep.report.load import imports, reading

Quantity = Literal["parallel_efficiency", "speedup", "throughput", "step_s", "time_s",
                   "device_hours"]  # fmt: skip
Meets = Literal["pending", "met", "below", "above", "blocked"]
# In a campaign's folder, what is expected of it where no file is named.
USUAL = ("expected.json", "expected.targets.toml", "expected.csv")


@dataclass(frozen=True)
class Expected:
    """What one quantity shall be at one world size.

    Attributes:
        quantity: Which one, in the unit of its name; throughput in samples/s.
        low: Least that is expected.
        high: Most that is expected.
        case: The case it is about; None for every series of the scaling.
        scaling: strong or weak; None for either.
    """

    world_size: int
    quantity: Quantity
    value: float | None = None
    low: float | None = None
    high: float | None = None
    case: str | None = None
    scaling: str | None = None

    def meets(self, measured: float | None) -> Meets | None:
        """Return how a measured value lies to the limits; None where there are none."""
        if measured is None:
            return "pending"
        if self.low is not None and measured < self.low:
            return "below"
        if self.high is not None and measured > self.high:
            return "above"
        return None if self.low is None and self.high is None else "met"

    def deviation(self, measured: float | None) -> float | None:
        """Return measured over expected, less 1; of a mere limit, over that."""
        known = next((x for x in (self.value, self.low, self.high) if x), None)
        return measured / known - 1 if measured is not None and known else None


def find(folder: Path) -> Path | None:
    """Return the file in a campaign's folder that says what is expected, if there is one."""
    return next((folder / name for name in USUAL if (folder / name).is_file()), None)


def read(path: Path) -> list[Expected]:
    """Return what a file expects.

    Raises:
        ValueError: It cannot be read, or is neither a prediction, nor targets, nor a table.
    """
    if path.suffix == ".toml":
        return list(_of_targets(targets.load(str(path))))
    if path.suffix == ".json":
        return list(_of_prediction(files.parse(files.content(path)), path))
    return list(_of_table(path))


def _of_targets(given: targets.Targets) -> Iterator[Expected]:
    for size, least in (given.strong_efficiency or {}).items():
        yield Expected(int(size), "parallel_efficiency", low=least, scaling="strong")
    for size, least in (given.parallel_efficiency or {}).items():
        yield Expected(int(size), "parallel_efficiency", low=least)
    for size, (low, high) in (given.speedup or {}).items():
        yield Expected(int(size), "speedup", low=low, high=high)
    for one in given.reference:
        unit, per_rank = one.unit.removesuffix(" per rank"), one.unit.endswith(" per rank")
        scale = TIME_UNITS.get(unit, float(one.world_size) if per_rank else 1.0)
        value, quantity = one.value * scale, "step_s" if unit in TIME_UNITS else "throughput"
        from_ = None if one.lower is None else value * (1 + one.lower)
        to = None if one.upper is None else value * (1 + one.upper)
        yield Expected(one.world_size, quantity, value, from_, to, one.case)  # type: ignore[arg-type]


def _of_prediction(record: Any, path: Path) -> Iterator[Expected]:
    if not isinstance(record, dict) or not isinstance(record.get("points"), list):
        raise ValueError(f"{path}: no prediction; make one by lockstep predict DIR --json")
    case, metric = record.get("case"), record.get("metric")
    try:
        for point in record["points"]:
            size = int(point["world_size"])
            for quantity in ("speedup", "parallel_efficiency"):
                yield Expected(size, quantity, float(point[quantity]), case=case)
            if metric == "throughput":
                yield Expected(size, "throughput", float(point["value"]), case=case)
        ahead = record.get("expected") or {}
        if metric == "throughput" and ahead.get("value") is not None:
            value, low, high = (float(ahead[name]) for name in ("value", "low", "high"))
            yield Expected(int(ahead["at"]), "throughput", value, low, high, case)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not as lockstep predict --json prints it ({error!r})") from None


def _of_table(path: Path) -> Iterator[Expected]:
    with tempfile.TemporaryDirectory() as folder:
        imports.write(imports.read([path], 0), [path], Path(folder))
        rows = reading.load([Path(folder)]).rows
    for series in series_of(rows):
        for point in series.points:
            for quantity, value in values(series, point).items():
                if value is not None:
                    scaling = series.row.scaling if series.row.scaling in LADDERS else None
                    yield Expected(point.world_size, quantity, value, scaling=scaling)


def values(series: Series, point: Point) -> dict[Quantity, float | None]:
    """Return what is known of a point; the baseline has no ratios, nor has what `check` blocks."""
    has_ratios = point is not series.base and not point.blocked_by
    is_rate = any(
        one.get("primary") and str(one.get("unit")).endswith("/s")
        for one in series.row.program.get("metrics", {}).values()
    )
    return {
        "time_s": point.time_s,
        "step_s": None if is_rate else point.step_s,
        "throughput": point.throughput_samples_per_s,
        "speedup": point.speedup if has_ratios else None,
        "parallel_efficiency": point.parallel_efficiency if has_ratios else None,
        "device_hours": point.device_hours if point.device_hours_per == "run" else None,
    }


def ladders(series: Iterable[Series]) -> list[Series]:
    """Return the ladders among what is measured."""
    return [one for one in series if one.row.study in CURVES and not one.layout]


def points(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return the measured points as records."""
    return [
        {"series": one.name, "case": one.case, "world_size": point.world_size,
         "num_launches": point.num_launches, "baseline": one.baseline,
         "sample_unit": _unit(one), "blocked_by": point.blocked_by}
        | dict(values(one, point))
        for one in series for point in one.points
    ]  # fmt: skip


def beside(expected: Iterable[Expected], series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return a record for each expectation of each series that it is about."""
    rows = []
    for one in expected:
        meant: list[Series | None] = [*_meant(one, series)]
        for own in meant or [None]:
            at = _point(one, own)
            found = values(own, at)[one.quantity] if own and at else None
            rules = at.blocked_by if at else []
            row = {"series": own.name if own else one.case, "measured": found,
                   "sample_unit": _unit(own) if own else "samples", "blocked_by": rules,
                   "deviation": one.deviation(found),
                   "meets": "blocked" if rules else one.meets(found)}  # fmt: skip
            rows.append(asdict(one) | row)
    return sorted(rows, key=lambda row: (str(row["series"]), row["world_size"]))


def _unit(series: Series) -> str:
    return series.row.sample_unit or "samples"


def _meant(expected: Expected, series: Sequence[Series]) -> list[Series]:
    named = [one for one in series if expected.case in (one.case, one.label, one.name)]
    if expected.case is not None:
        return named
    found = (one for one in series if not one.row.has_smaller_batch)
    return [one for one in found if expected.scaling in (None, one.row.scaling)]


def _point(expected: Expected, series: Series | None) -> Point | None:
    points = series.points if series else []
    return next((point for point in points if point.world_size == expected.world_size), None)


def below_floor(series: Iterable[Series], floor: float | None) -> list[dict[str, Any]]:
    """Return the smallest size at which even the best case misses a floor, as `campaign.floor`."""
    found = best_efficiencies(series) if floor is not None else {}
    low = min((size for size, value in found.items() if value < (floor or 0)), default=None)
    if low is None:
        return []
    return [{"world_size": low, "parallel_efficiency": found[low], "floor": floor}]


def waiting_above(
    below: Sequence[Mapping[str, Any]], planned: Sequence[Mapping[str, Any]],
    jobs: Sequence[Mapping[str, Any]],
) -> list[str]:  # fmt: skip
    """Return the jobs that wait to measure only world sizes beyond one that misses the floor.

    Args:
        below: As `below_floor` returns it.
        planned: The launches of the campaign, each with its name and world size.
        jobs: The jobs, each with its name, state and launches.
    """
    if not below:
        return []
    sizes = {launch["name"]: launch.get("world_size", 0) for launch in planned}
    largest = max(one["world_size"] for one in below)
    return [
        job["job"]
        for job in jobs
        if job["state"] == "PENDING"
        and job["launches"]
        and all(sizes.get(name, 0) > largest for name in job["launches"])
    ]
