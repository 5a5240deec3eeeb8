"""Results as pandas data frames: `lockstep.read`.

The table of points is that of `lockstep report --csv`; `lockstep.report.columns` says what each
column means and its unit, and so does `frame.attrs["columns"]` of a frame.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.core import record
from lockstep.core.flags import Flag
from lockstep.report import columns
from lockstep.report.columns import FACTOR, Column, table
from lockstep.report.compute import learning, quantities
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.load import sources
from lockstep.report.load.reading import gather
from lockstep.report.load.results import COPY, Results, Row

if TYPE_CHECKING:
    import pandas as pd

SHARES = ("communication_share", "overlap", "gpu_utilisation", "loader_idle")
# Of a training run.
LEARNED = ("seed", "epoch_s", "validation_accuracy", "best_accuracy")
# Columns that no field of a row has.
MADE = {
    *SHARES, "joules_per_sample", "is_pooled", "rank", "host", "round", "round_s", *LEARNED,
}  # fmt: skip
PARTED = "; "


def read(
    *paths: str | PathLike[str],
    launches: bool = False,
    rounds: bool = False,
    epochs: bool = False,
    baseline: int | None = None,
) -> "pd.DataFrame":
    """Return results as a tidy pandas DataFrame, one row a point.

    Units are in the columns' names and in `frame.attrs["columns"]`, which says what each column
    means; `frame.attrs["version"]` is theirs. A case's factors are columns that begin with
    `factor_`. What is unknown is NA. Launches that may not be pooled with most of their point are
    left out of it, with a warning; launches and rounds have them, marked in `is_pooled`. Files that
    cannot be read and launches that are copies of others are in no table; a warning names them.

    Args:
        paths: Campaign folders, folders of pytest-benchmark files, such files, or folders that
            `lockstep import` wrote.
        launches: One row a case and launch instead.
        rounds: One row a case, launch, rank and round instead.
        epochs: One row a training run and epoch instead.
        baseline: World size that ratios divide by; the smallest of each series by default.

    Raises:
        ImportError: pandas is not installed.
        ValueError: A file is missing, broken or of another schema, or two kinds are asked for.
    """
    if launches + rounds + epochs > 1:
        raise ValueError("launches, rounds and epochs are tables; read one of them at a time")
    results = gather(map(Path, paths))
    _warn(results)
    if rounds:
        return _frame(list(_rounds(results)), columns.ROUNDS)
    if epochs:
        return _frame(list(_epochs(results)), columns.EPOCHS)
    if launches:
        return _frame(list(_launches(results)), columns.LAUNCHES)
    return _frame(_points(results, baseline), columns.POINTS)


def _warn(results: Results) -> None:
    """Name what is in no table: files that cannot be read, and copies of launches."""
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
        | {"flags": _kinds(point.flags), "blocked_by": PARTED.join(point.blocked_by)}
        | _factors(point.rows[0].factors, columns.POINTS)
        for entry, point in zip(table(evaluation.series), points, strict=True)
    ]


def _launches(results: Results) -> Iterator[dict[str, Any]]:
    pooled = _pooled(results)
    for row in results.rows:
        learned: tuple[float | None, ...] = (None,) * len(LEARNED)
        if row.training and row.step_s:
            accuracies = learning.final_accuracy(row), learning.best_accuracy(row)
            learned = (learning.seed(row), learning.epoch_s(row), *accuracies)
        yield {
            **_fields(row, columns.LAUNCHES),
            **{name: next(iter(quantities.values([row], name)), None) for name in SHARES},
            "is_pooled": id(row) in pooled,
            "joules_per_sample": quantities.joules_per_sample(row),
            "flags": _kinds(row.flags),
            **dict(zip(LEARNED, learned, strict=True)),
        }


def _epochs(results: Results) -> Iterator[dict[str, Any]]:
    pooled = _pooled(results)
    for row in results.rows:
        shared = {name: getattr(row, name) for name in ("launch", *columns.WHAT)}
        shared |= {"seed": learning.seed(row), "is_pooled": id(row) in pooled}
        shared |= _factors(row.factors, columns.EPOCHS)
        for epoch, end_s in zip(learning.epochs(row), learning.elapsed_s(row), strict=True):
            known = vars(epoch) | {"elapsed_s": end_s}
            known["throughput_samples_per_s"] = epoch.samples_per_s
            yield shared | {name: known[name] for name in columns.EPOCHS if name in known}


def _pooled(results: Results) -> set[int]:
    """Return the identities of the rows that their points have."""
    return {id(row) for row in results.split()[0]}


def _fields(row: Row, known: Mapping[str, Column]) -> dict[str, Any]:
    own = {name: getattr(row, name) for name in known if name not in MADE}
    return own | _factors(row.factors, known)


def _rounds(results: Results) -> Iterator[dict[str, Any]]:
    """Yield the rounds of each launch, which a report reduces, from its file again."""
    known, pooled = {(row.launch, row.recorded_case): row for row in results.rows}, _pooled(results)
    for launch in results.launches:
        for entry in sources.read_document(launch.path)["benchmarks"]:
            row = known.get((launch.name, record.case_name(entry)))
            block = (entry.get("extra_info") or {}).get(record.KEY)
            if row is None or not block:
                continue
            shared = _fields(row, columns.ROUNDS) | {"is_pooled": id(row) in pooled}
            steps = row.steps_per_round
            for rank, times in enumerate(block["rank_round_s"]):
                host = row.rank_hosts[rank] if rank < len(row.rank_hosts) else None
                for number, seconds in enumerate(times):
                    yield shared | {
                        "rank": rank, "host": host, "round": number, "round_s": seconds,
                        "step_s": seconds / steps if steps else None,
                    }  # fmt: skip


def _kinds(flags: Iterable[Flag]) -> str:
    return PARTED.join(dict.fromkeys(flag.kind for flag in flags))


def _factors(factors: Mapping[str, Any], known: Mapping[str, Column]) -> dict[str, Any]:
    """Return what varies between cases beside the columns that every case has."""
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
    frame.attrs["version"] = columns.VERSION
    frame.attrs["columns"] = {
        name: {"unit": column.unit, "meaning": column.meaning} for name, column in known.items()
    }
    return frame
