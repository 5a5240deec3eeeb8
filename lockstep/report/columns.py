"""The columns of Lockstep's tables: name, unit, meaning, and how a point's value is made.

`lockstep report --csv` and `--json` print the table of points; `lockstep.read` returns that and
three more as pandas data frames, with the meaning of each column in `frame.attrs["columns"]`.
`python -m lockstep.report.columns` prints this list.

A later version may add columns. The meaning of a column does not change within a `VERSION`.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.core import flags, record
from lockstep.core.flags import Flag
from lockstep.report.compute import learning, quantities
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.learning import Learned, Pooled
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval
from lockstep.report.load import sources
from lockstep.report.load.reading import gather
from lockstep.report.load.results import COPY, Results, Row

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1
# Prefix of the columns for factors of a case (`bucket_cap_mb`, `num_workers`).
FACTOR = "factor_"
WIDTH = 100


@dataclass(frozen=True)
class Place:
    """A point in its series, from which the columns of the table of points take their values.

    Attributes:
        target: Accuracy that training runs should reach; None if unknown.
        ends: Cache of values with their intervals, by column name.
    """

    series: Series
    point: Point
    target: float | None = None
    ends: dict[str, "Ends"] = field(default_factory=dict)

    @property
    def row(self) -> Row:
        """Return the first row of the point, for facts that all its launches share."""
        return self.point.rows[0]

    @cached_property
    def learned(self) -> Learned | None:
        """Return what the training runs learned; None for other cases."""
        return learning.learned(self.point, self.target) if self.row.training else None

    @cached_property
    def phases(self) -> Mapping[str, float | None]:
        """Return the seconds of each phase of a step."""
        return quantities.phases(self.point)

    @property
    def judged(self) -> list[Row]:
        """Return the rows for ratios of the point: none if the check blocks them."""
        return [] if self.point.blocked_by else self.point.rows

    def known(self, name: str) -> list[Any]:
        """Return the known values of a field of the rows."""
        values = [getattr(row, name) for row in self.point.rows]
        return [value for value in values if value is not None]

    def ratio(self, value: Any) -> Any:
        """Return a ratio to the baseline; None if it is meaningless or the check blocks it."""
        return None if self.point.blocked_by or not self.series.is_compared else value


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        unit: `count` and `bytes` are whole numbers; `ratio` is never in per cent.
        value: Function of a point; None takes the point's field of that name, or that of its rows.
    """

    unit: str
    meaning: str
    value: Callable[[Place], Any] | None = None

    @property
    def dtype(self) -> str:
        """Return the pandas type, which allows NA in every column."""
        whole = {"count": "Int64", "bytes": "Int64", "text": "string", "truth": "boolean"}
        return whole.get(self.unit, "float64")


WHAT = {
    "case": Column("text", "name of the benchmark or of the imported table"),
    "origin": Column("text", "measured, cited or target; never mixed in one series"),
    "study": Column("text", "study: strong, weak, precision, bucket, collective, ..."),
    "workload": Column("text", "model trained, with its options"),
    "scaling": Column("text", "strong, weak or fixed-epochs"),
    "precision": Column("text", "fp32, tf32, bf16 or fp16"),
    "local_batch": Column("count", "samples per rank and optimizer update"),
    "global_batch": Column("count", "samples of all ranks per optimizer update"),
    "world_size": Column("count", "ranks"),
    "num_nodes": Column("count", "number of hosts"),
    "ranks_per_node": Column("count", "largest number of ranks on one host"),
}
_STEPS = {
    "min_step_s": Column("s", "step time of the shortest round"),
    "max_step_s": Column("s", "step time of the longest round"),
    "mean_step_s": Column("s", "mean over rounds, from which costs are computed"),
    "stddev_step_s": Column("s", "standard deviation over rounds"),
    "time_s": Column("s", "time of a whole run, if a table gives it"),
    "sample_unit": Column("text", "what a sample is"),
    "samples_per_step": Column("count", "samples of all ranks per step"),
}
_IS_POOLED = {
    "is_pooled": Column(
        "truth", "whether it is part of its point; false if it differs in a fact that must not vary"
    )
}
_OF_DEVICES = {
    "peak_memory_bytes": Column("bytes", "peak memory of the rank that needs most"),
    "peak_reserved_bytes": Column(
        "bytes", "peak memory reserved by PyTorch on the GPU, on the rank with most"
    ),
    "joules_per_sample": Column("J", "mean power of all ranks' boards / throughput"),
}
Ends = tuple[float | None, Interval | None]


def _with_interval(
    name: str, unit: str, meaning: str, ends: Callable[[Place], Ends]
) -> dict[str, Column]:
    """Return the column of a value and the columns of the ends of its interval."""

    def known(place: Place) -> Ends:
        if name not in place.ends:
            place.ends[name] = ends(place)
        return place.ends[name]

    def end(place: Place, index: int) -> float | None:
        interval = known(place)[1]
        return interval[index] if interval else None

    low, high = "lower end of its 95 % interval", "upper end of its 95 % interval"
    return {
        name: Column(unit, meaning, lambda place: known(place)[0]),
        f"{name}_low": Column(unit, low, lambda place: end(place, 0)),
        f"{name}_high": Column(unit, high, lambda place: end(place, 1)),
    }


def _learned(value: Callable[[Learned], Any]) -> Callable[[Place], Any]:
    return lambda place: value(place.learned) if place.learned else None


def _pooled(value: Callable[[Learned], Pooled | None]) -> Callable[[Place], Ends]:
    def ends(place: Place) -> Ends:
        pooled = value(place.learned) if place.learned else None
        return (pooled.value, pooled.interval) if pooled else (None, None)

    return ends


def _of_steps(name: str) -> Column:
    return _STEPS[name]._replace(value=lambda place: place.point.pooled[name])


def _throughput(place: Place) -> Ends:
    """Return the throughput (samples/s) and its interval, scaled from that of the rate."""
    throughput, rate = place.point.throughput_samples_per_s, place.point.rate_interval
    if throughput is None or rate is None:
        return throughput, None
    scale = throughput / place.point.rate
    return throughput, (rate[0] * scale, rate[1] * scale)


def _overlap(place: Place) -> Ends:
    hidden = quantities.values(place.judged, "overlap")
    share = quantities.centre(hidden, "overlap") if hidden else None
    return share, quantities.interval(place.judged, "overlap")


def _interval_over(place: Place) -> str | None:
    """Return the units that a point's intervals are over; None without repeats."""
    point = place.point
    if len(point.units) < 2:
        return None
    if point.in_one_job:
        return "launches of one job"
    launches = {row.launch for row in point.rows}
    return "launches" if len(point.units) in (len(launches), point.num_launches) else "jobs"


def _joules_per_sample(place: Place) -> float | None:
    energy = [joules for row in place.point.rows if (joules := quantities.joules_per_sample(row))]
    return median(energy) if energy else None


def _median(name: str) -> Callable[[Place], float | None]:
    return lambda place: median(known) if (known := place.known(name)) else None


def _details(place: Place) -> dict[str, list[Any]]:
    """Return the distinct values of each detail that studies or imported tables add."""
    details: dict[str, list[Any]] = {}
    for row in place.point.rows:
        for name, value in row.details.items():
            if name == "telemetry":  # of each rank: much, and no setting
                continue
            values = details.setdefault(name, [])
            if value not in values:
                values.append(value)
    return details


OF_TRAININGS = {
    "num_seeds": Column(
        "count", "different seeds of training runs, over which accuracies are averaged",
        _learned(lambda learned: learned.num_seeds),
    ),
    **_with_interval(
        "epoch_s", "s", "median training time of an epoch, without validation",
        _pooled(lambda learned: learned.epoch_s),
    ),
    **_with_interval(
        "validation_accuracy", "ratio", "mean over runs, after the last epoch",
        _pooled(lambda learned: learned.accuracy),
    ),
    **_with_interval(
        "best_accuracy", "ratio", "mean over runs of the best epoch's accuracy",
        _pooled(lambda learned: learned.best),
    ),
    "target_accuracy": Column(
        "ratio", "accuracy to reach: as requested, or the highest that all runs reach",
        _learned(lambda learned: learned.target),
    ),
    "num_reached": Column(
        "count", "runs that reach target_accuracy",
        _learned(lambda learned: None if learned.target is None else learned.num_reached),
    ),
    **_with_interval(
        "time_to_target_s", "s", "training time to target_accuracy, if all runs reach it",
        _pooled(lambda learned: learned.reached_s),
    ),
}  # fmt: skip
# One row per case, layout and world size, over all its launches.
POINTS = {
    "series": Column(
        "text", "label of the curve: the facts that vary between curves",
        lambda place: place.series.label,
    ),
    **WHAT,
    "layout": Column(
        "text", "how the layout differs from the main one of "
                "the series", lambda place: place.series.layout
    ),
    "num_launches": Column("count", "repeats, over which intervals are computed"),
    "num_jobs": Column("count", "Slurm jobs of the launches"),
    "interval_over": Column("text", "units of the intervals: launches, jobs, or "
                                    "launches of one job", _interval_over),
    "rounds": Column(
        "count", "timed rounds of all launches",
        lambda place: sum(row.rounds or 0 for row in place.point.rows),
    ),
    **_with_interval(
        "step_s", "s", "median over launches of a launch's median step",
        lambda place: (place.point.step_s, place.point.step_interval),
    ),
    **{name: _of_steps(name) if name.endswith("_step_s") else _STEPS[name] for name in _STEPS},
    **_with_interval(
        "throughput_samples_per_s", "samples/s", "samples of all ranks, counted once", _throughput
    ),
    "baseline_world_size": Column(
        "count", "world size of the baseline of this row's ratios",
        lambda place: place.series.baseline if place.series.is_compared else None,
    ),
    **_with_interval(
        "speedup", "ratio", "throughput / throughput of the baseline",
        lambda place: (
            place.ratio(place.point.speedup), place.ratio(place.point.speedup_interval)
        ),
    ),
    **_with_interval(
        "parallel_efficiency", "ratio", "speed-up / ratio of world sizes",
        lambda place: (
            place.ratio(place.point.parallel_efficiency),
            place.ratio(place.point.efficiency_interval),
        ),
    ),
    "time_ratio": Column(
        "ratio", "step time of the baseline / step time; weak and fixed-epochs scaling",
        lambda place: place.ratio(place.point.time_ratio),
    ),
    "device_hours": Column("h", "world size times hours at the mean step"),
    "device_hours_per": Column("text", "work that device_hours are for: a run, or 1e6 samples"),
    "cost": Column("currency", "device_hours x price of a device-hour"),
    "extra_device_hours": Column(
        "ratio", "device_hours / device_hours of the baseline - 1",
        lambda place: place.ratio(place.point.extra_device_hours),
    ),
    "mfu": Column("ratio", "model FLOP/s / dense peak of the datasheet", _median("mfu")),
    **_OF_DEVICES,
    "joules_per_sample": _OF_DEVICES["joules_per_sample"]._replace(value=_joules_per_sample),
    "data_s": Column(
        "s", "time a step waits for its batch, if it loads one",
        lambda place: place.phases["data_s"],
    ),
    "forward_s": Column(
        "s", "forward pass of a step, including the loss", lambda place: place.phases["forward_s"]
    ),
    "backward_s": Column(
        "s", "backward pass of a step, including exposed communication",
        lambda place: place.phases["backward_s"],
    ),
    "optimizer_s": Column("s", "optimizer update of a "
                               "step", lambda place: place.phases["optimizer_s"]),
    **_with_interval(
        "exposed_communication_s", "s",
        "time a step waits for its all-reduce, including DDP's own work",
        lambda place: quantities.pooled(place.point, "exposed"),
    ),
    **_with_interval(
        "all_reduce_s", "s", "all-reduce of the gradients with no other work",
        lambda place: quantities.pooled(place.point, "reduce"),
    ),
    **_with_interval(
        "overlap", "ratio", "1 - exposed communication / all-reduce alone", _overlap
    ),
    "first_reduce_s": Column(
        "s", "from the start of the backward pass until DDP's first bucket is ready",
        _median("first_reduce_s"),
    ),
    **OF_TRAININGS,
    "flags": Column(
        "text", "kinds of flags: reasons why it is not proposal evidence",
        lambda place: flags.to_dicts(place.point.flags),
    ),
    "num_far_out": Column(
        "count", "rounds far outside the quartiles of their launch; all are counted",
        lambda place: sum(known) if (known := place.known("num_far_out")) else None,
    ),
    "blocked_by": Column("text", "rules of lockstep check that block the ratios"),
}  # fmt: skip
# Additional column of `--csv` and `--json` for details of a study or an imported table.
DETAILS = {"details": Column("object", "name -> distinct values over launches", _details)}

# One row per case and launch.
LAUNCHES = {
    "launch": Column("text", "name of the launch, or line of an imported table"),
    **WHAT,
    "job": Column("text", "Slurm job of the launch"),
    "started": Column("text", "start of the launch, ISO 8601"),
    **_IS_POOLED,
    "position": Column("count", "position of the case in its launch"),
    "rounds": Column("count", "timed rounds"),
    "steps_per_round": Column("count", "steps of a round"),
    "step_s": Column(
        "s", "median round / steps per round; a round lasts as long as its slowest rank"
    ),
    **_STEPS,
    "throughput_samples_per_s": Column("samples/s", "samples of all ranks, counted once"),
    "mfu": Column("ratio", "model FLOP/s / dense peak of the datasheet"),
    "communication_share": Column("ratio", "exposed communication / step time"),
    "overlap": Column("ratio", "1 - exposed communication / all-reduce alone"),
    "gpu_utilisation": Column("ratio", "share of NVML's sample periods in which a kernel ran"),
    "loader_idle": Column("ratio", "share of a step spent waiting for the data loader"),
    **_OF_DEVICES,
    "seed": Column("count", "of a training run"),
    "epoch_s": Column("s", "median training time of an epoch, without validation"),
    "validation_accuracy": Column("ratio", "accuracy of a training run after its last epoch"),
    "best_accuracy": Column("ratio", "accuracy of a training run after its best epoch"),
    "num_far_out": Column("count", "rounds far outside the quartiles; all are counted"),
    "flags": Column("text", "kinds of flags: reasons why it is not proposal evidence"),
}

# One row per case, launch, rank and round.
ROUNDS = {
    "launch": Column("text", "name of the launch"),
    **WHAT,
    **_IS_POOLED,
    "rank": Column("count", "the rank, from 0"),
    "host": Column("text", "its host"),
    "round": Column("count", "the timed round, from 0"),
    "steps_per_round": Column("count", "steps of a round"),
    "round_s": Column("s", "duration of the round on this rank"),
    "step_s": Column("s", "round_s / steps_per_round"),
}

# One row per training run and epoch.
EPOCHS = {
    "launch": Column("text", "name of the launch, or folder of a run"),
    **WHAT,
    **_IS_POOLED,
    "seed": Column("count", "of the run"),
    "epoch": Column("count", "number of the epoch, from 1"),
    "steps": Column("count", "updates"),
    "time_s": Column("s", "from the first update to the last one of the slowest rank"),
    "elapsed_s": Column("s", "training time from the start of the run to the end of the epoch"),
    "throughput_samples_per_s": Column("samples/s", "samples of all ranks, counted once"),
    "lr": Column("ratio", "learning rate of the last update"),
    "loss": Column("ratio", "mean loss over updates and ranks, before each update"),
    "validation_loss": Column("ratio", "mean loss over the validation set"),
    "accuracy": Column("ratio", "share of the validation set predicted correctly"),
    "train_accuracy": Column(
        "ratio", "share of the samples predicted correctly, before each update"
    ),
    "validation_s": Column("s", "time of validation on the slowest rank"),
    "checkpoint_s": Column("s", "time until the checkpoint was on disk"),
    "peak_memory_bytes": Column("bytes", "peak memory of the rank that needs most"),
    "is_warmup": Column("truth", "whether this is the first epoch of its process"),
}

TABLES = {"points": POINTS, "launches": LAUNCHES, "rounds": ROUNDS, "epochs": EPOCHS}


def table(series: Iterable[Series]) -> list[dict[str, Any]]:
    """Return the record of each point of each series, as `--csv` and `--json` print it."""
    every, columns = list(series), POINTS | DETAILS
    targets = learning.targets(every)
    of_point = {name for name in columns if hasattr(Point, name)}
    places = (
        Place(curve, point, targets.get(learning.learns(curve)))
        for curve in every
        for point in curve.points
    )
    return [
        {
            name: column.value(place)
            if column.value
            else getattr(place.point if name in of_point else place.row, name)
            for name, column in columns.items()
        }
        for place in places
    ]


def listing() -> str:
    """Return all columns as text, one table after the other."""
    extra = {"points": DETAILS}
    lines = []
    for name, columns in TABLES.items():
        lines += ["", f"{name} (version {VERSION})"]
        for column, what in (columns | extra.get(name, {})).items():
            head = f"  {column:30}{what.unit:11}"
            indent = " " * len(head)
            lines += wrap(what.meaning, WIDTH, initial_indent=head, subsequent_indent=indent)
    return "\n".join(lines[1:]) + "\n"


SHARES = ("communication_share", "overlap", "gpu_utilisation", "loader_idle")
# Columns of a training run.
LEARNED = ("seed", "epoch_s", "validation_accuracy", "best_accuracy")
# Columns that are not fields of a row.
COMPUTED = {
    *SHARES, "joules_per_sample", "is_pooled", "rank", "host", "round", "round_s", *LEARNED,
}  # fmt: skip
SEPARATOR = "; "


def read(
    *paths: str | PathLike[str],
    launches: bool = False,
    rounds: bool = False,
    epochs: bool = False,
    baseline: int | None = None,
) -> "pd.DataFrame":
    """Return results as a tidy pandas DataFrame, one row per point.

    `frame.attrs["columns"]` has the unit and meaning of each column, `frame.attrs["version"]` the
    version of the columns. Factors of a case are columns that begin with `factor_`. Unknown values
    are NA. Launches that cannot be pooled with the others of their point are left out of the point
    with a warning; the tables of launches and rounds mark them in `is_pooled`. Unreadable files and
    copies of launches are in no table; a warning names them.

    Args:
        paths: Campaign folders, folders of pytest-benchmark files, such files, or folders that
            `lockstep import` wrote.
        launches: Return one row per case and launch instead.
        rounds: Return one row per case, launch, rank and round instead.
        epochs: Return one row per training run and epoch instead.
        baseline: World size of the ratios' baseline; by default the smallest of each series.

    Raises:
        ImportError: pandas is not installed.
        ValueError: A file is missing, broken or of another schema, or two tables are requested.
    """
    if launches + rounds + epochs > 1:
        raise ValueError("only one of launches, rounds and epochs can be read at a time")
    results = gather(map(Path, paths))
    _warn(results)
    if rounds:
        return _frame(list(_rounds(results)), ROUNDS)
    if epochs:
        return _frame(list(_epochs(results)), EPOCHS)
    if launches:
        return _frame(list(_launches(results)), LAUNCHES)
    return _frame(_points(results, baseline), POINTS)


def _warn(results: Results) -> None:
    """Warn about unreadable files and copies of launches, which are in no table."""
    copies = [conflict.message for conflict in results.conflicts if conflict.fact == COPY]
    for why in (*map(str, results.unread), *copies):
        warnings.warn(why, stacklevel=3)


def _points(results: Results, baseline: int | None) -> list[dict[str, Any]]:
    evaluation = evaluate(results, baseline)
    if evaluation.left_out:
        warnings.warn(evaluation.not_pooled, stacklevel=3)
    points = [point for series in evaluation.series for point in series.points]
    return [
        entry
        | {"flags": _kinds(point.flags), "blocked_by": SEPARATOR.join(point.blocked_by)}
        | _factors(point.rows[0].factors, POINTS)
        for entry, point in zip(table(evaluation.series), points, strict=True)
    ]


def _launches(results: Results) -> Iterator[dict[str, Any]]:
    pooled = _pooled_rows(results)
    for row in results.rows:
        learned: tuple[float | None, ...] = (None,) * len(LEARNED)
        if row.training and row.step_s:
            accuracies = learning.final_accuracy(row), learning.best_accuracy(row)
            learned = (learning.seed(row), learning.epoch_s(row), *accuracies)
        yield {
            **_fields(row, LAUNCHES),
            **{name: next(iter(quantities.values([row], name)), None) for name in SHARES},
            "is_pooled": id(row) in pooled,
            "joules_per_sample": quantities.joules_per_sample(row),
            "flags": _kinds(row.flags),
            **dict(zip(LEARNED, learned, strict=True)),
        }


def _epochs(results: Results) -> Iterator[dict[str, Any]]:
    pooled = _pooled_rows(results)
    for row in results.rows:
        shared = {name: getattr(row, name) for name in ("launch", *WHAT)}
        shared |= {"seed": learning.seed(row), "is_pooled": id(row) in pooled}
        shared |= _factors(row.factors, EPOCHS)
        for epoch, end_s in zip(learning.epochs(row), learning.elapsed_s(row), strict=True):
            known = vars(epoch) | {"elapsed_s": end_s}
            known["throughput_samples_per_s"] = epoch.samples_per_s
            yield shared | {name: known[name] for name in EPOCHS if name in known}


def _pooled_rows(results: Results) -> set[int]:
    """Return the identities (`id`) of the rows that are pooled into points."""
    return {id(row) for row in results.split()[0]}


def _fields(row: Row, known: Mapping[str, Column]) -> dict[str, Any]:
    own = {name: getattr(row, name) for name in known if name not in COMPUTED}
    return own | _factors(row.factors, known)


def _rounds(results: Results) -> Iterator[dict[str, Any]]:
    """Yield each round of each rank, read again from the files of the launches."""
    known, pooled = (
        {(row.launch, row.recorded_case): row for row in results.rows},
        _pooled_rows(results),
    )
    for launch in results.launches:
        for entry in sources.read_document(launch.path)["benchmarks"]:
            row = known.get((launch.name, record.case_name(entry)))
            block = (entry.get("extra_info") or {}).get(record.KEY)
            if row is None or not block:
                continue
            shared = _fields(row, ROUNDS) | {"is_pooled": id(row) in pooled}
            steps = row.steps_per_round
            for rank, times in enumerate(block["rank_round_s"]):
                host = row.rank_hosts[rank] if rank < len(row.rank_hosts) else None
                for number, seconds in enumerate(times):
                    yield shared | {
                        "rank": rank, "host": host, "round": number, "round_s": seconds,
                        "step_s": seconds / steps if steps else None,
                    }  # fmt: skip


def _kinds(flags: Iterable[Flag]) -> str:
    return SEPARATOR.join(dict.fromkeys(flag.kind for flag in flags))


def _factors(factors: Mapping[str, Any], known: Mapping[str, Column]) -> dict[str, Any]:
    """Return the factors of a case that are not columns of their own."""
    return {f"{FACTOR}{name}": value for name, value in factors.items() if name not in known}


def _frame(entries: list[dict[str, Any]], known: Mapping[str, Column]) -> "pd.DataFrame":
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ImportError(
            "lockstep.read needs pandas; pip install '/path/to/checkout[data]'"
        ) from error
    factors = dict.fromkeys(name for entry in entries for name in entry if name.startswith(FACTOR))
    frame = pd.DataFrame.from_records(entries, columns=[*known, *factors])
    frame = frame.astype({name: column.dtype for name, column in known.items()})
    frame.attrs["version"] = VERSION
    frame.attrs["columns"] = {
        name: {"unit": column.unit, "meaning": column.meaning} for name, column in known.items()
    }
    return frame


if __name__ == "__main__":
    sys.stdout.write(listing())
