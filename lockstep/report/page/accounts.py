"""The jobs of a campaign on a cluster, and how they ended."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

from lockstep.core.formats import counted, in_words, number, percent, trimmed
from lockstep.core.record import ACCOUNTED, ACCOUNTING_SCHEMA
from lockstep.report.load.results import Results
from lockstep.report.load.sources import read_json
from lockstep.report.page.parts import Panel, panel, shown, table

ACCOUNTING = "accounting.json"
COLUMNS = (
    "Job", "Id", "State", "Queue wait", "Elapsed", "CPU efficiency (%)", "Memory efficiency (%)",
    "Node-hours", "CPU-hours", "GPU-hours", "TRES billing (hours)",
)  # fmt: skip
HELD = "measured_rank_hours"
Row = Mapping[str, Any]


def jobs(results: Results) -> Panel | None:
    """Return the jobs and what they cost; None if none has an accounting.

    Raises:
        ValueError: An accounting file cannot be read, or has another schema.
    """
    rows = list(read_accounts(results))
    known = [row for row in rows if account(row)]
    if not known:
        return None
    cells = [_cells(list(group)) for _, group in groupby(rows, key=_whole)]
    measured_column = f"Measured ({results.hours})"
    notes = {
        "CPU efficiency (%)": "CPU efficiency is CPU time / (cores x elapsed time), as in seff.",
        "Memory efficiency (%)": "Memory efficiency is the largest memory of a step / the memory "
        "allocated, as in seff.",
        "Queue wait": "Queue wait is the time from submission to the start. For a job with a "
        "dependency, it begins when the job becomes eligible.",
        "Node-hours": "Hours are allocated hours, used or not. CPUs are counted as Slurm counts "
        "them.",
        "TRES billing (hours)": "TRES billing is Slurm's value, without a QOS's usage factor.",
        measured_column: "Measured is the time in timed regions x the number of ranks. The other "
        "time went to starting, loading, warming up and checking.",
    }
    made = table("Jobs in Slurm's accounting", (*COLUMNS, measured_column), cells, 3, "",
                 note=notes)  # fmt: skip
    return panel("jobs", "Jobs", lead=[*_lead(rows, known, results.hours)], tables=[made])


def read_accounts(results: Results) -> Iterator[Row]:
    """Yield the rows of each campaign's accounting, in the order of its launches' folders."""
    launches = (launch.path.parent.parent for launch in results.launches)
    for folder in dict.fromkeys(path.parent for path in launches if path.name == "launches"):
        path = folder / ACCOUNTING
        if path.exists():
            document = read_json(path)
            fault = ""
            if not isinstance(document, dict) or not isinstance(document.get("jobs"), list):
                fault = "holds no jobs"
            elif (schema := document.get("schema")) != ACCOUNTING_SCHEMA:
                fault = f"has schema {schema}, not {ACCOUNTING_SCHEMA}"
            if fault:
                raise ValueError(f"{path}: {fault}; run lockstep status --collect again")
            yield from (row for row in document["jobs"] if isinstance(row, dict))


def _whole(row: Row) -> tuple[str, str]:
    return str(row.get("job")), str(row.get("id")).partition("_")[0]


def _lead(rows: Sequence[Row], known: Sequence[Row], hours: str) -> Iterator[str]:
    missing, jobs = len(rows) - len(known), counted(len(known), "job")
    elapsed, unended = in_words(sum(values(known, "elapsed_s"))), counted(missing, "job")
    if missing:
        yield f"{jobs} ran for {elapsed} in total. The end of {unended} is not known."
    else:
        yield f"{jobs} ran for {elapsed} in total."
    sums = [(sum(values(known, name)), unit) for name, unit in ACCOUNTED.items()]
    if texts := [f"{number(total)} {unit}" for total, unit in sums if total]:
        yield f"Allocated were {', '.join(texts)}."
    gpu_hours = sum(values(known, "gpu_hours"))
    # Rank-hours on CPUs are not compared with the hours of GPUs that were allocated and unused.
    if gpu_hours and hours == "GPU-hours":
        measured = sum(_numbers((row for row in known if any(values([row], "gpu_hours"))), HELD))
        share, timed = percent(measured / gpu_hours), trimmed(measured)
        yield f"{timed} of the GPU-hours ({share} %) were spent in timed regions."
    else:
        timed = trimmed(sum(_numbers(known, HELD)))
        yield f"{timed} {hours} were spent in timed regions."
    if staged := _numbers(rows, "stage_in_s"):
        time_in, time_out = in_words(sum(staged)), in_words(sum(_numbers(rows, "stage_out_s")))
        jobs = counted(len(staged), "job")
        yield f"In {jobs}, staging files in took {time_in}, and staging files out took {time_out}."
    hits, misses = (int(sum(_numbers(rows, name))) for name in ("cache_hits", "cache_misses"))
    if hits or misses:
        nodes = counted(hits + misses, "node")
        yield f"{hits} of {nodes} still had the files from an earlier job."


def _cells(group: Sequence[Row]) -> list[str]:
    name, job_id = _whole(group[0])
    is_array = "_" in str(group[0].get("id"))
    states = Counter(_state(row) for row in group)

    def summary(key: str, how: Callable[[Sequence[float]], float]) -> float | None:
        known = values(group, key)
        return how(known) if known else None

    measured = _numbers(group, HELD)
    return [
        f"{name}, {counted(len(group), 'element')}" if is_array else name,
        job_id,
        next(iter(states)) if len(states) == 1 else ", ".join(
            f"{count} {state}" for state, count in states.most_common()
        ),
        in_words(summary("queue_wait_s", median)),
        in_words(summary("elapsed_s", sum)),
        percent(summary("cpu_efficiency", median)),
        percent(summary("memory_efficiency", max)),
        *(number(summary(key, sum) or None) for key in ACCOUNTED),
        number(sum(measured) if measured else None),
    ]  # fmt: skip


def _state(row: Row) -> str:
    """Return Slurm's word for a job's end, and the nodes that its script had lost by then."""
    state = shown(account(row).get("state"))
    record = row.get("exit")
    lost = record.get("lost") if isinstance(record, dict) else None
    return f"{state}, lost {lost}" if lost else state


def account(row: Row) -> Row:
    """Return Slurm's accounting of a job; empty if unknown."""
    known = row.get("accounting")
    return known if isinstance(known, dict) else {}


def values(rows: Iterable[Row], name: str) -> list[float]:
    """Return a fact of Slurm's accounting of each job that has it."""
    return _numbers(map(account, rows), name)


def _numbers(rows: Iterable[Row], name: str) -> list[float]:
    known = (row.get(name) for row in rows)
    return [value for value in known if isinstance(value, int | float)]
