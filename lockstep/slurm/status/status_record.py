"""A campaign's status as one record: what `status --json` prints and the page shows.

What Slurm last said, kept in the campaign's folder: shown with its age where it is silent.

What is expected of a campaign, beside what it has measured so far.

An expectation is the record of `lockstep predict --json`, a targets file of
`lockstep check --targets`, or a table that `lockstep import` would read.
"""

import json
import shlex
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from lockstep.core import files, journal
from lockstep.core.formats import TIME_UNITS
from lockstep.core.studies import CURVES, LADDERS
from lockstep.report.compute.scaling import Point, Series, best_efficiencies, series_of
from lockstep.report.gate import targets
from lockstep.report.load import imports, reading
from lockstep.slurm import cluster
from lockstep.slurm.cluster import MIB_PER_GIB, Partition
from lockstep.slurm.status import job_events, overview
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import Campaign
from lockstep.slurm.submit.submission import stored_site

ANSWER = "last-answer.json"
INVENTORY = "inventory.json"
# What a cluster has changes seldom, and asking for all its nodes is not cheap.
INVENTORY_S = 3600.0


def stamp(at: float) -> str:
    """Return a time, in seconds of the epoch, as ISO 8601 with this machine's zone."""
    return datetime.fromtimestamp(at, UTC).astimezone().isoformat(timespec="seconds")


def at(facts: dict[str, Any], results: Results, now: float) -> float | None:
    """Keep what Slurm has just said of a campaign, or add what it said last where it is silent.

    Returns:
        When Slurm's answer was given; None where none is kept.
    """
    if facts["errors"]:
        return add(results, facts["jobs"])
    keep(results, facts["jobs"], now)
    return now


def keep(results: Results, jobs: list[dict[str, Any]], now: float) -> None:
    """Keep the states that Slurm has just said, where the folder may be written."""
    known = {row["id"]: row["state"] for row in jobs if row["id"] and row["state"] != "unknown"}
    _write(results.jobs_folder / ANSWER, {"time": now, "states": known})


def add(results: Results, jobs: list[dict[str, Any]]) -> float | None:
    """Add to each job of unknown state what Slurm last said of it.

    Returns:
        When that was, in seconds of the epoch; None where nothing is kept.
    """
    kept = _read(results.jobs_folder / ANSWER)
    states = kept.get("states", {})
    if not isinstance(states, dict) or not isinstance(kept.get("time"), int | float):
        return None
    for row in jobs:
        if row["state"] == "unknown" and row["id"] in states:
            row["last_known"] = {"state": states[row["id"]], "time": stamp(kept["time"])}
    return float(kept["time"])


def recent_inventory(results: Results, now: float, *, ask: bool) -> dict[str, Any] | None:
    """Return what the cluster has by partition, as kept, or asked anew where that is old."""
    kept = _read(results.jobs_folder / INVENTORY)
    is_whole = isinstance(kept.get("time"), int | float) and isinstance(kept.get("rows"), list)
    if ask and not (is_whole and now - kept["time"] < INVENTORY_S):
        with suppress(RuntimeError):
            found = cluster.read()
            rows = [row for partition in found.partitions for row in _rows(partition)]
            kept = {"time": now, "cluster": found.name, "slurm": found.version, "rows": rows}
            is_whole = True
            _write(results.jobs_folder / INVENTORY, kept)
    return kept if is_whole else None


def _rows(partition: Partition) -> list[dict[str, Any]]:
    features = {word for node in partition.nodes for word in node.features}
    here = {kind.shape: 0 for kind, _ in partition.kinds}
    for node in partition.nodes:
        here[node.kind.shape] += node.is_here
    return [
        {"partition": partition.name, "num_nodes": count, "num_here": here[kind.shape],
         "gpu_type": kind.gpu_type, "gpus_per_node": kind.num_gpus, "cpus": kind.num_cpus,
         "memory_gib": kind.memory_mib / MIB_PER_GIB, "max_time": partition.max_time,
         "features": sorted(features)}
        for kind, count in partition.kinds
    ]  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = files.parse(files.content(path))
    except ValueError:
        return {}  # none yet
    return kept if isinstance(kept, dict) else {}


def _write(path: Path, document: dict[str, Any]) -> None:
    if not path.parent.is_dir():
        return
    with suppress(OSError):  # who only looks may not write
        files.write_atomically(path, json.dumps(document))


# What a site file says of a job's place, in the order of the page.
SITE_KEYS = (
    *("name", "partition", "account", "qos", "constraint", "gpus_per_node", "gpu_type"),
    *("cpus_per_node", "mem", "time", "interface", "modules", "env"),
)
# What a launch noted of its software and its links.
MACHINE_KEYS = (
    *("device_names", "driver", "cuda", "cudnn", "nccl", "torch", "torchvision", "python", "os"),
    *("backend", "transport", "wire_gb_per_s", "threads_per_rank", "cpu_model", "cores_per_node"),
    *("memory_bytes", "image_path", "environment", "lockstep_version"),
)

# What a script asks for.
SHAPE = ("num_nodes", "gpus_per_node", "time_limit")


@dataclass(frozen=True)
class Wanted:
    """What a record shall hold beside the state of the jobs.

    Attributes:
        expectation: The file that says what is expected; the folder's own by default.
        floor: Least parallel efficiency that is worth a larger size, a fraction; the campaign's
            `until_efficiency` by default.
        inventory: Whether Slurm may be asked what the cluster has.
    """

    expectation: Path | None = None
    floor: float | None = None
    inventory: bool = False


def record(campaign: Campaign, results: Results, folder: str, wanted: Wanted) -> dict[str, Any]:
    """Return the record of this moment, after a look of `Board`.

    Raises:
        ValueError: The folder's records are corrupt, or what is expected cannot be read.
    """
    now = time.time()
    facts = overview.facts(campaign, results, folder)
    scripts = results.scripts()
    for row in facts["jobs"]:
        row |= {key: scripts.get(row["job"], {}).get(key) for key in SHAPE}
    answered = at(facts, results, now)
    inventory = recent_inventory(results, now, ask=wanted.inventory)
    measured = _measured(campaign, results, wanted)
    return {
        "time": stamp(now), "folder": folder, **facts,
        "has_ended": campaign.has_ended, "is_bad": campaign.is_bad,
        "campaign": {k: v for k, v in (results.claimed() or {}).items() if k != "launches"},
        "site": _site(results), "machine": _machine(results),
        "prepared": _prepared(campaign, results), "measured": measured,
        "next": _next(campaign, results, folder, measured),
        "monitor": overview.monitor_commands(campaign, results, folder),
        "inventory": inventory,
        "as_of": _ages(results, answered, inventory, measured["expectation"]),
    }  # fmt: skip


def _site(results: Results) -> dict[str, Any] | None:
    try:
        site = stored_site(results).model_dump(mode="json")
    except (OSError, ValueError):
        return None  # no scripts were written from here, or by an earlier version
    image = (site.get("container") or {}).get("image")
    return {key: site[key] for key in SITE_KEYS} | {"image": image}


def _machine(results: Results) -> dict[str, Any] | None:
    """Return what the launch that began last noted of its software and its links."""
    with suppress(ValueError):
        for path in sorted(_journals(results), key=_written, reverse=True):
            for entry in reversed(journal.read(path)):
                launch = entry.get("launch") if entry.get("kind") == "launch" else None
                if isinstance(launch, dict) and isinstance(launch.get("provenance"), dict):
                    own = launch["provenance"]
                    return {key: own.get(key) for key in MACHINE_KEYS}
    return None


def _journals(results: Results) -> list[Path]:
    return [results.journal(name) for name in results.names()]


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _prepared(campaign: Campaign, results: Results) -> list[dict[str, Any]]:
    """Return the scripts that are written, are not sent, and have something left to do."""
    sent = {standing.job.name for standing in campaign.jobs}
    return [
        {"job": name, "script": str(results.jobs_folder / f"{name}.sh"), **script,
         "num_complete": sum(map(campaign.is_complete, script["launches"])),
         "command": overview.by_hand_command(name, script, results)}
        for name, script in results.scripts().items()
        if name not in sent
        and not (script["launches"] and all(map(campaign.is_complete, script["launches"])))
    ]  # fmt: skip


def _measured(campaign: Campaign, results: Results, wanted: Wanted) -> dict[str, Any]:
    """Return the points so far beside what is expected of them."""
    # numpy and scipy take a moment
    from lockstep.report.compute.evaluation import evaluate_folder

    path = wanted.expectation or find_expectation(results.path)
    hoped = read_expectation(path) if path else []
    problem = None
    series: list[Series] = []
    has_files = any(results.path.glob("launches/*/result.json"))
    if has_files or any(outcome.measured for outcome in campaign.launches.values()):
        try:
            series = evaluate_folder(results.path, campaign.coming).series
        except ValueError as error:
            problem = str(error)
    claimed = results.claimed() or {}
    floor = claimed.get("until_efficiency") if wanted.floor is None else wanted.floor
    below, ladders = below_floor(series, floor), measured_ladders(series)
    planned = claimed.get("launches", [])
    jobs = [
        {"job": standing.job.name, "state": standing.state.name, "launches": standing.job.launches}
        for standing in campaign.jobs
    ]
    return {
        "points": measured_points(ladders), "expected": compare_expected(hoped, ladders),
        "expectation": str(path) if path else None, "floor": floor, "below_floor": below,
        "not_worth_it": waiting_above(below, planned, jobs), "problem": problem,
    }  # fmt: skip


def _next(
    campaign: Campaign, results: Results, folder: str, measured: Mapping[str, Any]
) -> list[str]:
    """Return the commands that go on, first those that spare what is not worth it."""
    names: Sequence[str] = dict.fromkeys(measured["not_worth_it"])  # type: ignore[assignment]
    typed = shlex.quote(folder)
    spared = [f"lockstep cancel {typed} --job {shlex.quote(name)}" for name in names]
    spared = [f"{line}  # its sizes lie beyond one that misses the floor" for line in spared]
    return spared + overview.next_commands(campaign, results, folder)


def _ages(
    results: Results,
    answered: float | None,
    inventory: Mapping[str, Any] | None,
    expectation: str | None,
) -> dict[str, str | None]:
    """Return what the record was made from -> when that was last known or written."""
    events = job_events.read(results).values()
    times = {
        "slurm": answered if results.jobs_folder.exists() else None,
        "events": max((float(event.at) for event in events), default=None),
        "results": max(map(_written, _journals(results)), default=None),
        "accounting": _written(results.accounting_file) or None,
        "inventory": inventory["time"] if inventory else None,
        "expectation": _written(Path(expectation)) if expectation else None,
    }
    return {name: None if at is None else stamp(at) for name, at in times.items()}


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


def find_expectation(folder: Path) -> Path | None:
    """Return the file in a campaign's folder that says what is expected, if there is one."""
    return next((folder / name for name in USUAL if (folder / name).is_file()), None)


def read_expectation(path: Path) -> list[Expected]:
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
    for reference in given.reference:
        unit, per_rank = (
            reference.unit.removesuffix(" per rank"),
            reference.unit.endswith(" per rank"),
        )
        scale = TIME_UNITS.get(unit, float(reference.world_size) if per_rank else 1.0)
        value, quantity = reference.value * scale, "step_s" if unit in TIME_UNITS else "throughput"
        from_ = None if reference.lower is None else value * (1 + reference.lower)
        to = None if reference.upper is None else value * (1 + reference.upper)
        yield Expected(reference.world_size, quantity, value, from_, to, reference.case)  # type: ignore[arg-type]


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
        metric.get("primary") and str(metric.get("unit")).endswith("/s")
        for metric in series.row.program.get("metrics", {}).values()
    )
    return {
        "time_s": point.time_s,
        "step_s": None if is_rate else point.step_s,
        "throughput": point.throughput_samples_per_s,
        "speedup": point.speedup if has_ratios else None,
        "parallel_efficiency": point.parallel_efficiency if has_ratios else None,
        "device_hours": point.device_hours if point.device_hours_per == "run" else None,
    }


def measured_ladders(series: Iterable[Series]) -> list[Series]:
    """Return the ladders among what is measured."""
    return [curve for curve in series if curve.row.study in CURVES and not curve.layout]


def measured_points(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return the measured points as records."""
    return [
        {"series": curve.name, "case": curve.case, "world_size": point.world_size,
         "num_launches": point.num_launches, "baseline": curve.baseline,
         "sample_unit": _unit(curve), "blocked_by": point.blocked_by}
        | dict(values(curve, point))
        for curve in series for point in curve.points
    ]  # fmt: skip


def compare_expected(
    expected: Iterable[Expected], series: Sequence[Series]
) -> list[dict[str, Any]]:
    """Return a record for each expectation of each series that it is about."""
    rows = []
    for one in expected:
        meant: list[Series | None] = [*_meant(one, series)]
        for own in meant or [None]:
            points = own.points if own else []
            at = next((point for point in points if point.world_size == one.world_size), None)
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
    named = [curve for curve in series if expected.case in (curve.case, curve.label, curve.name)]
    if expected.case is not None:
        return named
    found = (curve for curve in series if not curve.row.has_smaller_batch)
    return [curve for curve in found if expected.scaling in (None, curve.row.scaling)]


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
