"""The columns of Lockstep's tables: name, unit, meaning, and how a value is computed.

`python -m lockstep.report.columns` prints them. A later version may add columns; the meaning of a
column does not change within a `VERSION`.
"""

import csv
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from os import PathLike
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.core import flags, record
from lockstep.core.flags import Flag
from lockstep.report.compute import learning, quantities
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.learning import Learned
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.load import sources
from lockstep.report.load.reading import gather
from lockstep.report.load.results import COPY, Results, Row
from lockstep.report.words.lines import csv_text

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1
# Prefix of the columns for factors of a case (`bucket_cap_mb`, `num_workers`).
FACTOR = "factor_"
WIDTH = 100


@dataclass(frozen=True)
class Place:
    """A point in its series, from which columns take their values.

    Attributes:
        learned: Results of the point's training runs; None for other cases.
    """

    series: Series
    point: Point
    learned: Learned | None = None

    @property
    def row(self) -> Row:
        """The first row of the point, for facts that all its launches share."""
        return self.point.rows[0]

    @cached_property
    def parts(self) -> Mapping[str, quantities.Ends]:
        """Seconds of each part of a step, with their intervals."""
        return quantities.pool_parts(self.point)

    def known_values(self, name: str) -> list[Any]:
        """Return a field of the point's rows, without unknown values."""
        return [x for row in self.point.rows if (x := getattr(row, name)) is not None]

    @cached_property
    def has_ratio(self) -> bool:
        """Whether ratios to the baseline have a meaning, and the check blocks none."""
        return self.series.is_compared and not self.point.blocked_by

    def ratio(self, value: Any) -> Any:
        """Return a ratio to the baseline; None if it has no meaning here."""
        return value if self.has_ratio else None


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        unit: `count` and `bytes` are whole numbers; `ratio` is never in per cent.
        value: Computes the value from a `Place`, or from a row in tables of launches; None takes
            the field of the same name.
        has_interval: Whether `value` returns a value and its interval. The columns `NAME_low` and
            `NAME_high`, which follow, hold the ends.
    """

    unit: str
    meaning: str
    value: Callable[[Any], Any] | None = None
    has_interval: bool = False

    @property
    def dtype(self) -> str:
        """The pandas type, which allows NA in every column."""
        whole = {"count": "Int64", "bytes": "Int64", "text": "string", "truth": "boolean"}
        return whole.get(self.unit, "float64")


WHAT = {
    "case": Column("text", "name of the benchmark or of the imported table"),
    "origin": Column(
        "text", "origin of the numbers: measured, cited or target; a series has only one origin"
    ),
    "study": Column("text", "study: strong, weak, precision, bucket, collective, ..."),
    "workload": Column("text", "model that is trained, with its options"),
    "scaling": Column("text", "kind of scaling: strong, weak or fixed-epochs"),
    "precision": Column("text", "fp32, tf32, bf16 or fp16"),
    "local_batch": Column("count", "samples per rank and optimizer update"),
    "global_batch": Column("count", "samples of all ranks per optimizer update"),
    "world_size": Column("count", "number of ranks"),
    "num_nodes": Column("count", "number of hosts"),
    "ranks_per_node": Column("count", "largest number of ranks on one host"),
}
_STEPS = {
    "min_step_s": Column("s", "step time of the fastest round"),
    "max_step_s": Column("s", "step time of the slowest round"),
    "mean_step_s": Column("s", "mean step time over rounds, from which costs are computed"),
    "stddev_step_s": Column("s", "standard deviation of the step time over rounds"),
    "time_s": Column("s", "time of a whole run, if known from an imported table"),
    "sample_unit": Column("text", "unit of a sample, such as images"),
    "samples_per_step": Column("count", "samples of all ranks per step"),
}  # fmt: skip
_IS_POOLED = Column(
    "truth",
    "whether the point contains this launch; false if other launches cannot be pooled with it",
)
_JOB = Column("text", "Slurm job of the launch")
_COMMIT = Column(
    "text",
    "git commit of the user's test or workload, or else of Lockstep; it ends in `-dirty` if files "
    "had uncommitted changes",
)
_OF_DEVICES = {
    "peak_memory_bytes": Column("bytes", "peak memory of the rank that uses most memory"),
    "peak_reserved_bytes": Column(
        "bytes", "largest GPU memory that PyTorch's allocator reserved on any rank"),
    "joules_per_sample": Column("J", "energy per sample: mean power of all boards / throughput"),
}  # fmt: skip


def _with_interval(unit: str, meaning: str, value: Callable[[Place], quantities.Ends]) -> Column:
    return Column(unit, meaning, value, has_interval=True)


def _learned(value: Callable[[Learned], Any]) -> Callable[[Place], Any]:
    return lambda place: value(place.learned) if place.learned else None


def _pooled(name: str) -> Callable[[Place], quantities.Ends]:
    """Return what takes a pooled value of `Learned`, with its interval."""

    def ends(place: Place) -> quantities.Ends:
        pooled = place.learned and getattr(place.learned, name)
        return (pooled.value, pooled.interval) if pooled else quantities.UNKNOWN

    return ends


def _epoch(place: Place) -> quantities.Ends:
    return _pooled("epoch_s")(place) if place.learned else quantities.epoch(place.point)


def _part(name: str) -> Callable[[Place], quantities.Ends]:
    def take(place: Place) -> quantities.Ends:
        value, ends = place.parts.get(name, quantities.UNKNOWN)
        # A difference that noise takes below 0 keeps its interval.
        if ends is not None and value is not None and value >= 0:
            ends = max(ends[0], 0.0), ends[1]
        return value, ends

    return take


def _phase(name: str) -> Callable[[Place], float | None]:
    return lambda place: quantities.phase_s(place.point, name)


def _ratio(name: str, interval: str) -> Callable[[Place], quantities.Ends]:
    return lambda place: (
        place.ratio(getattr(place.point, name)), place.ratio(getattr(place.point, interval))
    )  # fmt: skip


def _throughput(place: Place) -> quantities.Ends:
    """Return the throughput and its interval, which is scaled from the rate's interval."""
    throughput, rate = place.point.throughput_samples_per_s, place.point.rate_interval
    if throughput is None or rate is None:
        return throughput, None
    scale = throughput / place.point.rate
    return throughput, (rate[0] * scale, rate[1] * scale)


def _overlap(place: Place) -> quantities.Ends:
    return quantities.pool([] if place.point.blocked_by else place.point.rows, "overlap")


def _interval_over(place: Place) -> str | None:
    point = place.point
    if len(point.units) < 2:
        return None
    if point.in_one_job:
        return "launches of one job"
    launches = {row.launch for row in point.rows}
    return "launches" if len(point.units) in (len(launches), point.num_launches) else "jobs"


def _median(name: str) -> Callable[[Place], float | None]:
    return lambda place: median(known) if (known := place.known_values(name)) else None


def _details(place: Place) -> dict[str, list[Any]]:
    """Return the distinct values of each detail over launches."""
    details: dict[str, list[Any]] = {}
    for row in place.point.rows:
        for name, value in row.details.items():
            if name == "telemetry":  # telemetry is no setting
                continue
            values = details.setdefault(name, [])
            if value not in values:
                values.append(value)
    return details


def _share(name: str, meaning: str) -> Column:
    return Column("ratio", meaning, lambda row: next(iter(quantities.values([row], name)), None))


def _trained(value: Callable[[Row], float | None]) -> Callable[[Row], float | None]:
    return lambda row: value(row) if row.training and row.step_s else None


OF_TRAININGS = {
    "num_seeds": Column(
        "count", "number of different seeds, over which accuracies are averaged",
        _learned(lambda learned: learned.num_seeds)),
    "epoch_s": _with_interval("s", "median training time of an epoch, without validation; if "
        "nothing is trained, number of samples of the data set divided by the throughput", _epoch),
    "validation_accuracy": _with_interval("ratio", "mean accuracy over runs, after the last epoch",
        _pooled("accuracy")),
    "best_accuracy": _with_interval("ratio", "accuracy of the best epoch of each run, averaged "
    "over runs",
        _pooled("best")),
    "target_accuracy": Column(
        "ratio", "target accuracy that was requested, or else the highest accuracy that all runs "
        "reach",
        _learned(lambda learned: learned.target)),
    "num_reached": Column("count", "number of runs that reach target_accuracy",
        _learned(lambda learned: None if learned.target is None else learned.num_reached)),
    "time_to_target_s": _with_interval(
        "s", "training time to target_accuracy, if all runs reach it",
        _pooled("reached_s")),
}  # fmt: skip
_POINTS = {
    "series": Column("text", "label of the curve: the facts that differ from other curves",
        lambda place: place.series.label),
    **WHAT,
    "layout": Column("text", "layout of the ranks over nodes, if it differs from the main layout "
    "of the series",
        lambda place: place.series.layout),
    "num_launches": Column("count", "number of repeats, over which intervals are computed"),
    "num_jobs": Column("count", "number of Slurm jobs in which the launches ran"),
    "interval_over": Column(
        "text", "repeats over which intervals are computed: launches, jobs or launches of one job",
        _interval_over),
    "rounds": Column("count", "number of timed rounds of all launches",
        lambda place: sum(row.rounds or 0 for row in place.point.rows)),
    "step_s": _with_interval("s", "median step time of each launch, then the median over launches",
        lambda place: (place.point.step_s, place.point.step_interval)),
    **_STEPS,
    "throughput_samples_per_s": _with_interval(
        "samples/s", "samples of all ranks per second", _throughput),
    "baseline_world_size": Column("count", "world size of the baseline that this row's ratios "
    "refer to",
        lambda place: place.series.baseline if place.series.is_compared else None),
    "speedup": _with_interval("ratio", "throughput / throughput of the baseline",
        _ratio("speedup", "speedup_interval")),
    "parallel_efficiency": _with_interval("ratio", "speed-up / ratio of world sizes",
        _ratio("parallel_efficiency", "efficiency_interval")),
    "time_ratio": Column(
        "ratio", "step time of the baseline / step time; only for weak and fixed-epochs scaling",
        lambda place: place.ratio(place.point.time_ratio)),
    "device_hours": Column("h", "world size x hours for the work in device_hours_per, "
    "computed from the mean step time"),
    "device_hours_per": Column("text", "work to which device_hours refers: a run, or 1e6 samples"),
    "cost": Column("currency", "device_hours x price of a device-hour"),
    "extra_device_hours": Column("ratio", "device_hours / device_hours of the baseline - 1",
        lambda place: place.ratio(place.point.extra_device_hours)),
    "mfu": Column("ratio", "model FLOP/s divided by the datasheet's peak for dense operations"),
    **_OF_DEVICES,
    "joules_per_sample": _OF_DEVICES["joules_per_sample"]._replace(
        value=lambda place: quantities.median_joules(place.point.rows)
    ),
    "data_s": Column("s", "time that a step waits for its batch, if the step loads batches",
        lambda place: place.parts.get("input", quantities.UNKNOWN)[0]),
    "forward_s": Column(
        "s", "time of the forward pass of a step, including the loss", _phase("forward")),
    "backward_s": Column("s", "time of the backward pass, including exposed communication",
        _phase("backward")),
    "optimizer_s": Column(
        "s", "time of the optimizer update of a step", _phase("optimizer")),
    "exposed_communication_s": _with_interval("s",
        "time that a step waits for its all-reduce, including DDP's own work",
        _part("exposed")),
    "all_reduce_s": _with_interval("s", "time of the gradients' all-reduce while nothing else runs",
        _part("reduce")),
    "overlap": _with_interval("ratio", "share of the all-reduce hidden by computing: 1 - "
    "exposed communication / time of the all-reduce alone", _overlap),
    "first_reduce_s": Column(
        "s", "time from the start of the backward pass until DDP's first bucket is ready",
        _median("first_reduce_s")),
    **OF_TRAININGS,
    "flags": Column("text", "kinds of the flags (warnings) on the result; a flagged result is "
    "no evidence for a proposal",
        lambda place: flags.to_dicts(place.point.flags)),
    "num_far_out": Column(
        "count", "number of outliers: rounds far outside the quartiles of their launch; "
        "results include them",
        lambda place: sum(known) if (known := place.known_values("num_far_out")) else None),
    "blocked_by": Column("text", "rules of lockstep check that found an error; because of these "
                                 "errors, the row has no ratios"),
}  # fmt: skip


def _with_ends(name: str, column: Column) -> dict[str, Column]:
    """Return a column, and those of the ends of its interval if it has one."""
    ends = (("low", "lower"), ("high", "upper")) if column.has_interval else ()
    return {name: column} | {
        f"{name}_{end}": Column(column.unit, f"{side} end of the 95 % interval of {name}")
        for end, side in ends
    }


# One row per case, layout and world size, over all its launches.
POINTS = {
    own: each for name, column in _POINTS.items() for own, each in _with_ends(name, column).items()
}
# Additional column of `--csv` and `--json`.
DETAILS = {
    "details": Column(
        "object",
        "object with the name of each detail and its different values over the launches",
        _details,
    )
}

# One row per case and launch.
LAUNCHES = {
    "launch": Column("text", "name of the launch, or line of an imported table"),
    **WHAT,
    "job": _JOB,
    "commit": _COMMIT,
    "started": Column("text", "start of the launch, ISO 8601"),
    "is_pooled": _IS_POOLED,
    "position": Column("count", "position of the case in its launch"),
    "rounds": Column("count", "timed rounds"),
    "steps_per_round": Column("count", "number of steps in a round"),
    "step_s": Column(
        "s", "median round time / steps per round; a round lasts as long as its slowest rank"),
    **_STEPS,
    "throughput_samples_per_s": Column("samples/s", "samples of all ranks per second, each sample "
    "counted once"),
    "mfu": Column("ratio", "model FLOP/s divided by the datasheet's peak for dense operations"),
    "communication_share": _share("communication_share", "exposed communication / step time"),
    "overlap": _share("overlap", "share of the all-reduce hidden by computing: 1 - "
    "exposed communication / time of the all-reduce alone"),
    "gpu_utilisation": _share(
        "gpu_utilisation",
        "GPU utilization: share of NVML's sample periods in which a kernel ran"),
    "loader_idle": _share("loader_idle", "share of a step spent waiting for the data loader"),
    **_OF_DEVICES,
    "joules_per_sample": _OF_DEVICES["joules_per_sample"]._replace(
        value=quantities.joules_per_sample
    ),
    "seed": Column("count", "seed of a training run", learning.seed),
    "epoch_s": Column(
        "s", "median training time of an epoch, without validation", _trained(learning.epoch_s)),
    "validation_accuracy": Column("ratio", "accuracy of a training run after its last epoch",
        _trained(learning.final_accuracy)),
    "best_accuracy": Column("ratio", "accuracy of a training run after its best epoch",
        _trained(learning.best_accuracy)),
    "num_far_out": Column("count", "number of outliers: rounds far outside the quartiles; results "
    "include them"),
    "flags": Column("text", "kinds of the flags (warnings) on the result; a flagged result is "
    "no evidence for a proposal",
        lambda row: _kinds(row.flags)),
}  # fmt: skip

_OF_ROUNDS = {"launch": Column("text", "name of the launch"), **WHAT, "is_pooled": _IS_POOLED}
# One row per case, launch, rank and round.
ROUNDS = {
    **_OF_ROUNDS,
    "rank": Column("count", "the rank, from 0"),
    "host": Column("text", "host of the rank"),
    "round": Column("count", "number of the timed round, from 0"),
    "steps_per_round": Column("count", "number of steps in a round"),
    "round_s": Column("s", "duration of the round on this rank"),
    "step_s": Column("s", "round_s / steps_per_round"),
}  # fmt: skip

_OF_RUNS = {
    "launch": Column("text", "name of the launch, or folder of a run"),
    **WHAT,
    "is_pooled": _IS_POOLED,
    "seed": Column("count", "seed of the run", learning.seed),
}  # fmt: skip
# One row per training run and epoch.
EPOCHS = {
    **_OF_RUNS,
    "epoch": Column("count", "number of the epoch, from 1"),
    "epochs": Column("count", "planned number of epochs of the run"),
    "steps": Column("count", "optimizer updates of the epoch"),
    "job": _JOB,
    "commit": _COMMIT,
    "ended": Column("text", "end of the epoch, ISO 8601"),
    "time_s": Column("s", "time from the entry barrier to the end of the slowest rank"),
    "data_s": Column("s", "part of time_s in which steps wait for batches, mean over ranks"),
    "forward_s": Column("s", "time of the forward passes, with the loss, mean over ranks"),
    "backward_s": Column(
        "s", "time of the backward passes, with exposed communication, mean over ranks"),
    "communication_s": Column(
        "s", "time from the start of a step's first all-reduce to the end of its last "
             "all-reduce, summed over the epoch; not measured on GPUs, because the measurement "
             "would delay the steps"),
    "elapsed_s": Column("s", "training time from the start of the run to the end of the epoch"),
    "throughput_samples_per_s": Column("samples/s", "samples of all ranks per second"),
    "parallel_efficiency": Column("ratio", "speed-up of the point / ratio of world sizes"),
    "gpu_utilisation": _share("gpu_utilisation",
        "GPU utilization of the whole run: share of NVML's sample periods in which a kernel ran"),
    "lr": Column("ratio", "learning rate of the last update"),
    "loss": Column("ratio", "mean loss over updates and ranks, computed before each update"),
    "validation_loss": Column("ratio", "mean loss over the validation set"),
    "accuracy": Column("ratio", "share of the validation set predicted correctly"),
    "train_accuracy": Column(
        "ratio", "share of the training samples predicted correctly before each update"),
    "validation_s": Column("s", "time of validation on the slowest rank"),
    "checkpoint_s": Column("s", "time until the checkpoint was on disk"),
    "peak_memory_bytes": Column("bytes", "peak memory of the rank that uses most memory"),
    "is_warmup": Column("truth", "whether the epoch is the first that its process trained"),
}  # fmt: skip

TABLES = {"points": POINTS, "launches": LAUNCHES, "rounds": ROUNDS, "epochs": EPOCHS}


def table(series: Iterable[Series]) -> list[dict[str, Any]]:
    """Return the record of each point of each series, as `--csv` and `--json` print it."""
    every, columns = list(series), _POINTS | DETAILS
    learned = learning.learn(every)
    fields = [name for name, column in columns.items() if column.value is None]
    of_point = [name for name in fields if hasattr(Point, name)]
    of_row = [name for name in fields if not hasattr(Point, name)]
    take_point, take_row = attrgetter(*of_point), attrgetter(*of_row)
    blank: dict[str, Any] = {}
    derived = []
    for name, column in columns.items():
        ends = (f"{name}_low", f"{name}_high") if column.has_interval else None
        blank |= dict.fromkeys((name, *(ends or ())))
        if column.value is not None:
            derived.append((name, column.value, ends))
    # Other points have none of a training's values, but may have an epoch of their data set.
    untrained = [
        (name, value, ends) for name, value, ends in derived
        if name == "epoch_s" or name not in OF_TRAININGS
    ]  # fmt: skip
    records = []
    for curve in every:
        for point in curve.points:
            record = blank.copy()
            record.update(zip(of_point, take_point(point), strict=True))
            record.update(zip(of_row, take_row(point.rows[0]), strict=True))
            place = Place(curve, point, learned.get(point))
            for name, value, ends in derived if place.learned else untrained:
                if ends is None:
                    record[name] = value(place)
                else:
                    record[name], interval = value(place)
                    record[ends[0]], record[ends[1]] = interval or quantities.UNKNOWN
            records.append(record)
    return records


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
    with a warning; the other tables mark them in `is_pooled`. Unreadable files and copies of
    launches are in no table; a warning names them.

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
        raise ValueError(
            "set only one of launches, rounds and epochs to True, because lockstep.read returns "
            "one table"
        )
    results = gather(map(Path, paths))
    copies = [conflict.message for conflict in results.conflicts if conflict.fact == COPY]
    for message in (*map(str, results.unread), *copies):
        warnings.warn(message, stacklevel=2)
    pooled = {id(row) for row in results.split()[0]}
    if rounds:
        return _frame(list(_rounds(results, pooled)), ROUNDS)
    if epochs:
        return _frame(list(_epochs(results, pooled, baseline)), EPOCHS)
    if launches:
        entries = [
            _fields(row, LAUNCHES, pooled) | _factors(row.factors, LAUNCHES) for row in results.rows
        ]
        return _frame(entries, LAUNCHES)
    evaluation = evaluate(results, baseline)
    if evaluation.left_out:
        warnings.warn(evaluation.not_pooled, stacklevel=2)
    points = [point for series in evaluation.series for point in series.points]
    entries = [
        entry
        | {"flags": _kinds(point.flags), "blocked_by": SEPARATOR.join(point.blocked_by)}
        | _factors(point.rows[0].factors, POINTS)
        for entry, point in zip(table(evaluation.series), points, strict=True)
    ]
    return _frame(entries, POINTS)


def _fields(row: Row, columns: Mapping[str, Column], pooled: set[int]) -> dict[str, Any]:
    """Return columns of a row; `pooled` holds the `id` of rows that points contain."""
    own = {
        name: column.value(row) if column.value else getattr(row, name)
        for name, column in columns.items()
        if name != "is_pooled"
    }
    return own | {"is_pooled": id(row) in pooled}


def _epochs(results: Results, pooled: set[int], baseline: int | None) -> Iterator[dict[str, Any]]:
    series = evaluate(results, baseline).series if pooled else []
    places = [Place(curve, point) for curve in series for point in curve.points]
    efficiency = {
        id(row): place.ratio(place.point.parallel_efficiency)
        for place in places for row in place.point.rows
    }  # fmt: skip
    of_runs = {name: EPOCHS[name] for name in (*_OF_RUNS, "job", "commit", "gpu_utilisation")}
    for row in results.rows:
        shared = _fields(row, of_runs, pooled) | {"parallel_efficiency": efficiency.get(id(row))}
        for epoch, end_s in zip(learning.epochs(row), learning.elapsed_s(row), strict=True):
            known = vars(epoch) | {"elapsed_s": end_s, "epochs": row.factors.get("epochs")}
            known["throughput_samples_per_s"] = epoch.samples_per_s
            yield shared | {name: known[name] for name in EPOCHS if name in known}


def _rounds(results: Results, pooled: set[int]) -> Iterator[dict[str, Any]]:
    """Yield each round of each rank, read again from the files of the launches."""
    known = {(row.launch, row.recorded_case): row for row in results.rows}
    for launch in results.launches:
        for entry in sources.read_document(launch.path)["benchmarks"]:
            row = known.get((launch.name, record.case_name(entry)))
            block = (entry.get("extra_info") or {}).get(record.KEY)
            if row is None or not block:
                continue
            shared = _fields(row, _OF_ROUNDS, pooled) | _factors(row.factors, ROUNDS)
            steps = row.steps_per_round
            for rank, times in enumerate(block["rank_round_s"]):
                host = row.rank_hosts[rank] if rank < len(row.rank_hosts) else None
                for number, seconds in enumerate(times):
                    yield shared | {
                        "rank": rank, "host": host, "round": number, "steps_per_round": steps,
                        "round_s": seconds, "step_s": seconds / steps if steps else None,
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
            "lockstep.read needs pandas; install it: pip install '/path/to/checkout[data]'"
        ) from error
    factors = dict.fromkeys(name for entry in entries for name in entry if name.startswith(FACTOR))
    frame = pd.DataFrame.from_records(entries, columns=[*known, *factors])
    frame = frame.astype({name: column.dtype for name, column in known.items()})
    frame.attrs["version"] = VERSION
    frame.attrs["columns"] = {
        name: {"unit": column.unit, "meaning": column.meaning} for name, column in known.items()
    }
    return frame


def csv_of(points: list[dict[str, Any]]) -> str:
    """Return points as CSV: lists and objects are text, and no text runs as a formula."""
    if not points:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(points[0]), lineterminator="\n")
    writer.writeheader()
    for point in points:
        cells = point | {
            "flags": SEPARATOR.join(flag["words"] for flag in point["flags"]),
            "blocked_by": SEPARATOR.join(point["blocked_by"]),
            "details": json.dumps(point["details"]) if point["details"] else "",
        }
        writer.writerow({
            name: csv_text(cell) if isinstance(cell, str) else cell for name, cell in cells.items()
        })  # fmt: skip
    return text.getvalue()


if __name__ == "__main__":
    sys.stdout.write(listing())
