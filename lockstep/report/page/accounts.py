"""The jobs that a campaign took on a cluster, and how they ended."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

from lockstep.core.formats import counted, in_words, number, percent
from lockstep.report.load.results import Results
from lockstep.report.load.sources import read_json
from lockstep.report.page.parts import Panel, panel, shown, table

ACCOUNTING = "accounting.json"
# Of `lockstep.slurm.status.collection`; an earlier one holds less, and is made anew by `collect`.
SCHEMA = 2
COLUMNS = (
    *("Job", "Id", "State", "Queue wait", "Elapsed", "CPU efficiency (%)"),
    *("Memory efficiency (%)", "Node-hours", "CPU-hours", "GPU-hours", "TRES billing (hours)"),
)
STAGING = ("stage_in_s", "stage_out_s")
HOURS = {
    "node_hours": "node-hours", "cpu_hours": "CPU-hours", "gpu_hours": "GPU-hours",
    "billing_hours": "hours of TRES billing",
}  # fmt: skip


Row = Mapping[str, Any]


def jobs(results: Results, hours: str) -> Panel | None:
    """Return the jobs with what they cost, or None where nothing is known of any.

    Raises:
        ValueError: An accounting cannot be read, or is of another schema.
    """
    rows = list(accounted(results))
    known = [row for row in rows if _account(row)]
    if not known:
        return None
    cells = [_cells(list(group)) for _, group in groupby(rows, key=_whole)]
    columns = (*COLUMNS, f"Measured ({hours})")
    note = (
        "CPU efficiency is CPU time over cores times elapsed time, and memory efficiency the "
        "largest memory of a step over the memory allocated, as seff computes them. Queue wait is "
        "the start less the later of submission and eligibility: what a dependency holds back "
        "does not wait. Hours are of what was allocated, by Slurm's count of CPUs; TRES billing "
        "is Slurm's own, before a QOS's usage factor. Measured is the time in timed regions times "
        "their ranks: what is beyond it went to starting, loading, warming up and checking."
    )
    return panel(
        "jobs", "Jobs", lead=[*_lead(rows, known, hours)], notes=[note],
        tables=[table("Jobs as Slurm accounts for them", columns, cells, 3, "")],
    )  # fmt: skip


def accounted(results: Results) -> Iterator[Row]:
    """Yield the rows of each campaign's accounting, in the order of its launches' folders."""
    launches = (launch.path.parent.parent for launch in results.launches)
    for folder in dict.fromkeys(one.parent for one in launches if one.name == "launches"):
        path = folder / ACCOUNTING
        if path.exists():
            document = read_json(path)
            if not isinstance(document, dict) or not isinstance(document.get("jobs"), list):
                raise ValueError(f"{path}: holds no jobs; run lockstep status --collect again")
            if (schema := document.get("schema")) != SCHEMA:
                raise ValueError(
                    f"{path}: has schema {schema}, not {SCHEMA}; "
                    "run lockstep status --collect again"
                )
            yield from (row for row in document["jobs"] if isinstance(row, dict))


def _whole(row: Row) -> tuple[str, str]:
    """Return what the elements of an array have in common."""
    return str(row.get("job")), str(row.get("id")).partition("_")[0]


def _lead(rows: Sequence[Row], known: Sequence[Row], hours: str) -> Iterator[str]:
    missing = len(rows) - len(known)
    text = f"{counted(len(known), 'job')} ran {in_words(sum(_values(known, 'elapsed_s')))} in all"
    yield f"{text}; of {counted(missing, 'job')} the end is not known." if missing else f"{text}."
    sums = [(sum(_values(known, name)), unit) for name, unit in HOURS.items()]
    if texts := [f"{number(total)} {unit}" for total, unit in sums if total]:
        yield f"Allocated were {', '.join(texts)}."
    gpu_hours = sum(_values(known, "gpu_hours"))
    # Rank-hours on CPUs are no part of the hours of GPUs that only stood by.
    if gpu_hours and hours == "GPU-hours":
        measured = sum(_measured([row for row in known if any(_values([row], "gpu_hours"))]))
        share = percent(measured / gpu_hours)
        yield f"{number(measured)} of the GPU-hours, {share} %, were in timed regions."
    else:
        yield f"{number(sum(_measured(known)))} {hours} were in timed regions."
    # How long files were copied to the nodes' own disks, and from them.
    times = {n: [row[n] for row in rows if isinstance(row.get(n), int | float)] for n in STAGING}
    if staged := len(times["stage_in_s"]):
        into, back = (in_words(sum(seconds)) for seconds in times.values())
        yield f"Staging took {into} in and {back} out, in {counted(staged, 'job')}."
    hits, misses = (
        sum(int(row.get(name) or 0) for row in rows) for name in ("cache_hits", "cache_misses")
    )
    if hits or misses:
        yield f"An earlier job had left the files on {hits} of {counted(hits + misses, 'node')}."


def _cells(group: Sequence[Row]) -> list[str]:
    """Return the row of a job, or of all elements of an array."""
    name, job_id = _whole(group[0])
    is_array = "_" in str(group[0].get("id"))
    states = Counter(_state(row) for row in group)

    def of_all(key: str, how: Callable[[Sequence[float]], float]) -> float | None:
        values = _values(group, key)
        return how(values) if values else None

    measured = _measured(group)
    return [
        f"{name}, {counted(len(group), 'element')}" if is_array else name,
        job_id,
        # Each state once, with how often it is.
        next(iter(states)) if len(states) == 1 else ", ".join(
            f"{count} {state}" for state, count in states.most_common()
        ),
        in_words(of_all("queue_wait_s", median)),
        in_words(of_all("elapsed_s", sum)),
        percent(of_all("cpu_efficiency", median)),
        percent(of_all("memory_efficiency", max)),
        *(number(of_all(key, sum) or None) for key in HOURS),
        number(sum(measured) if measured else None),
    ]  # fmt: skip


def _state(row: Row) -> str:
    """Return Slurm's word for a job's end, and the nodes that its script had lost by then."""
    state = shown(_account(row).get("state"))
    record = row.get("exit")
    lost = record.get("lost") if isinstance(record, dict) else None
    return f"{state}, lost {lost}" if lost else state


def _account(row: Row) -> Row:
    account = row.get("accounting")
    return account if isinstance(account, dict) else {}


def _measured(rows: Iterable[Row]) -> list[float]:
    values = (row.get("measured_rank_hours") for row in rows)
    return [float(value) for value in values if isinstance(value, int | float)]


def _values(rows: Iterable[Row], name: str) -> list[float]:
    values = []
    for account in map(_account, rows):
        value = account.get(name)
        if name == "gpu_hours" and name not in account:
            value = account.get("billed_gpu_hours")  # of an earlier version
        values += [float(value)] if isinstance(value, int | float) else []
    return values
