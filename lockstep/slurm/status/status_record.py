"""A campaign's status as one record, which terminal, `--watch`, JSON, page and `serve` show.

This module also reads a campaign's expected values: the record of `lockstep predict --json`, a
targets file of `lockstep check --targets`, or a table that `lockstep import` reads.
"""

import json
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from lockstep.campaign.folder import Outcome
from lockstep.core import files, journal
from lockstep.core.formats import TIME_UNITS, in_words
from lockstep.core.studies import CURVES, LADDERS
from lockstep.report.compute.scaling import Point, Series, best_efficiencies, series_of
from lockstep.report.gate import targets
from lockstep.report.load import imports, reading
from lockstep.slurm import client as slurm
from lockstep.slurm import cluster as clusters
from lockstep.slurm.client import State
from lockstep.slurm.cluster import MIB_PER_GIB
from lockstep.slurm.status.sent import Results, find_table, strip_element, written_at
from lockstep.slurm.status.standing import OF_CAMPAIGN, Campaign, Standing, advise, find_cause
from lockstep.slurm.submit.job_spec import sending_command
from lockstep.slurm.submit.submission import stored_site

ANSWER = "last-answer.json"
INVENTORY = "inventory.json"
# The nodes of a cluster change seldom, and listing all of them is expensive.
INVENTORY_S = 3600.0
# Most elements or launches with a problem that are named; the others are only counted.
MAX_NAMED = 8
# The state of an array is the first of these states that any of its elements has.
ORDER = ("STALLED", "RUNNING", "COMPLETING", "PENDING", "unknown", "LOST")
# Keys of the site file, and of a launch's provenance: key -> its name on the page.
PLACE = {
    "name": "site", "partition": "partition", "account": "account", "qos": "QOS",
    "constraint": "constraint", "gpus_per_node": "GPUs per node", "gpu_type": "GPU type",
    "cpus_per_node": "CPUs per node", "mem": "memory of a node", "time": "time limit of a job",
    "image": "image", "modules": "modules", "interface": "network interface",
    "env": "environment variables of the ranks",
}  # fmt: skip
SOFTWARE = {
    "device_names": "devices", "cpu_model": "CPU", "cores_per_node": "cores of a node",
    "memory_bytes": "memory of a node", "driver": "driver", "cuda": "CUDA", "cudnn": "cuDNN",
    "nccl": "NCCL", "backend": "backend", "transport": "interconnect in use",
    "wire_gb_per_s": "link, GB/s", "torch": "PyTorch", "torchvision": "torchvision",
    "python": "Python", "os": "system", "environment": "variables in force",
    "lockstep_version": "Lockstep",
}  # fmt: skip
# Resources that a script asks for.
SHAPE = ("num_nodes", "gpus_per_node", "time_limit")


@dataclass(frozen=True)
class Wanted:
    """The parts of a record beyond the states of the jobs."""

    expectation: Path | None = None  # file of expected values; the folder's own by default
    # Least parallel efficiency for larger world sizes; `until_efficiency` by default.
    floor: float | None = None
    inventory: bool = False  # whether Slurm is asked for the nodes of the cluster


def record(
    campaign: Campaign, results: Results, folder: str, wanted: Wanted | None
) -> dict[str, Any]:
    """Return the record of a campaign's state; an array is one row of `jobs`.

    `folder` is the results folder as the user typed it; without `wanted` the record has only what a
    terminal shows. Corrupt records, and expected values that cannot be read, raise ValueError.
    """
    now, scripts, typed = time.time(), results.scripts(), shlex.quote(folder)
    arrays = [list(group) for _, group in groupby(campaign.jobs, key=lambda each: each.job.uuid)]
    rows = [_row(array, campaign, results, typed) for array in arrays]
    for row in rows:
        row |= {key: scripts.get(row["job"], {}).get(key) for key in SHAPE}
    answered: float | None = now
    if campaign.errors:
        answered = _add_last_known(rows, results)
    else:
        known = {row["id"]: row["state"] for row in rows if row["id"] and row["state"] != "unknown"}
        _write(results.jobs_folder / ANSWER, {"time": now, "states": known})
    prepared = _find_prepared(campaign, results, scripts)
    # Jobs that may still write; a job of unknown state counts if it has work left.
    opened = [
        standing
        for standing in campaign.jobs
        if standing.job.id
        and not standing.has_ended
        and not (standing.state.name == "unknown" and _is_done(standing, campaign))
    ]
    facts: dict[str, Any] = {
        "time": stamp(now), "folder": folder, "jobs": rows,
        "launches": {name: vars(outcome) for name, outcome in campaign.launches.items()},
        "refused": results.refusals(),
        "num_planned": len(campaign.planned), "num_complete": campaign.num_complete,
        "abandoned": campaign.abandoned, "errors": list(campaign.errors),
        "has_ended": campaign.has_ended, "is_bad": campaign.is_bad,
        "next": _next_commands(campaign, results, typed, prepared, opened),
        "monitor": _monitor_commands(results, typed, opened),
    }  # fmt: skip
    if wanted is None:
        return facts
    claimed, measured = results.read_claim() or {}, _read_points(campaign, results, wanted)
    inventory = _inventory(results, now, ask=wanted.inventory)
    why = "# a smaller world size misses the floor of parallel efficiency"
    facts["next"] = [
        *(f"lockstep cancel {typed} --job {shlex.quote(name)}  {why}"
          for name in dict.fromkeys(measured["not_worth_it"])),
        *facts["next"],
    ]  # fmt: skip
    expectation, site = measured["expectation"], None
    with suppress(OSError, ValueError):  # without scripts there is no site
        stored = stored_site(results).model_dump(mode="json")
        stored["image"] = (stored.get("container") or {}).get("image")
        site = {key: stored[key] for key in PLACE}
    journals = (written_at(results.journal(name)) for name in results.names())
    ages: dict[str, float | None] = {
        "slurm": answered if results.jobs_folder.exists() else None,
        "events": max((float(event.at) for event in results.events().values()), default=None),
        "results": max(filter(None, journals), default=None),
        "accounting": written_at(results.accounting_file),
        "inventory": inventory["time"] if inventory else None,
        "expectation": written_at(Path(expectation)) if expectation else None,
    }
    return facts | {
        "campaign": {key: value for key, value in claimed.items() if key != "launches"},
        "site": site, "machine": _machine(results), "prepared": prepared,
        "measured": measured, "inventory": inventory,
        "as_of": {source: None if at is None else stamp(at) for source, at in ages.items()},
    }  # fmt: skip


def stamp(at: float) -> str:
    """Return a time in seconds since the epoch as ISO 8601 in this machine's zone."""
    return datetime.fromtimestamp(at, UTC).astimezone().isoformat(timespec="seconds")


def _row(
    array: Sequence[Standing], campaign: Campaign, results: Results, typed: str
) -> dict[str, Any]:
    """Return the row of a job; the element with the most important state represents an array.

    `owner`, `words`, `ran` and `progress` are texts that terminal and page print.
    """

    def rank(element: Standing) -> int:
        name = element.state.name
        return ORDER.index(name) if name in ORDER else len(ORDER) + (not element.is_bad)

    def advice(element: Standing) -> str | None:
        undone = {name for name in element.job.launches if not campaign.is_settled(name)}
        is_last = all(other.has_ended for other in campaign.jobs if other is not element)
        is_continued = bool(undone) and undone <= campaign.coming
        return advise(element, results, typed, is_last=is_last, is_continued=is_continued)

    head = min(array, key=rank)
    job, state, account = head.job, head.state, head.account or {}
    elapsed_s, nodes = account.get("elapsed_s"), account.get("nodes")
    is_array = job.element is not None
    launches = [name for element in array for name in element.job.launches]
    left = [element for element in array if not _is_done(element, campaign)]
    num_complete = sum(map(campaign.is_complete, launches))
    log = None if job.id is None else str(results.output(job))
    if job.id and is_array:
        log = f"{str(log).removesuffix(f'{job.id}.out')}{strip_element(job.id)}_*.out"
    by_hand = ", submitted by hand" if job.by_hand else ""
    owner = "" if head.user in (None, slurm.own_name()) else f", of {head.user}"
    # Other jobs may have completed the launches of a failed job.
    by_any = ", by any job" if state.has_ended and state.name != "COMPLETED" else ""
    meaning = state.meaning.replace("{id}", str(job.id))
    counts = Counter(element.state.name for element in array).most_common()
    # Slurm reports 0 s for a job that never started.
    ran = in_words(elapsed_s if elapsed_s or nodes else None)
    row = {
        "id": strip_element(job.id) if job.id else None, "job": job.name, "kind": job.kind,
        "user": head.user, "by_hand": job.by_hand, "state": state.name,
        "reason": state.reason if state.name == "PENDING" else None, "meaning": meaning,
        "advice": advice(head) if head in left else None,
        "mend": find_cause(head, results).key if head in left else None,
        "queue_wait_s": account.get("queue_wait_s"), "since_submission_s": head.sent_s,
        "elapsed_s": elapsed_s, "nodes": nodes,
        "num_launches": len(launches), "num_complete": num_complete,
        "script": str(results.jobs_folder / f"{job.name}.sh"), "log": log,
        "owner": f"{by_hand}{owner}",
        "words": ", ".join(f"{n} {name}" for name, n in counts)
        if is_array else f"{state.name}, {meaning}",
        "ran": f"{ran} on {nodes}" if nodes and not is_array else ran,
        "progress": f"{num_complete} of {len(launches)}{by_any}" if launches else "",
    }  # fmt: skip
    if is_array:
        row["elements"] = dict(counts)
        row["ended_badly"] = [
            {"id": element.job.id, "state": element.state.name, "meaning": element.state.meaning,
             "launch": (*element.job.launches, None)[0], "advice": advice(element)}
            for element in left if element.is_bad
        ]  # fmt: skip
    return row


def _is_done(standing: Standing, campaign: Campaign) -> bool:
    launches = standing.job.launches
    return bool(launches) and all(map(campaign.is_settled, launches))


def _add_last_known(rows: Sequence[dict[str, Any]], results: Results) -> float | None:
    """Add the last known state to jobs of unknown state; return the time of that state, or None."""
    kept = _read(results.jobs_folder / ANSWER)
    states = kept.get("states", {})
    if not isinstance(states, dict) or not isinstance(kept.get("time"), int | float):
        return None
    for row in rows:
        if row["state"] == "unknown" and row["id"] in states:
            row["last_known"] = {"state": states[row["id"]], "time": stamp(kept["time"])}
    return float(kept["time"])


def _monitor_commands(results: Results, typed: str, opened: Sequence[Standing]) -> list[str]:
    """Return the commands to watch jobs that may still write; the last is `lockstep status`."""
    if not opened:
        return []
    running = [standing for standing in opened if standing.state.name == "RUNNING"]
    in_line = [
        standing
        for standing in opened
        if standing.state.name == "PENDING" and standing.state.reason in slurm.IN_LINE
    ]
    ids = dict.fromkeys(strip_element(str(standing.job.id)) for standing in in_line or opened)
    options = [*slurm.cluster_options(), *(["--start"] if in_line else [])]
    lines = [f"tail -f {shlex.quote(str(results.output(each.job)))}" for each in running[:1]]
    lines.append(" ".join(["squeue", *options, f"--jobs={','.join(ids)}"]))
    if all(standing.user in (None, slurm.own_name()) for standing in opened):
        # A shell comment, so that pasting all lines does not cancel the jobs.
        lines.append(f"# to cancel these jobs: lockstep cancel {typed}")
    return [*lines, f"lockstep status {typed} --watch"]


def _next_commands(
    campaign: Campaign,
    results: Results,
    typed: str,
    prepared: Sequence[Mapping[str, Any]],
    opened: Sequence[Standing],
) -> list[str]:
    jobs, unsent = campaign.jobs, list[str]()
    # For jobs submitted by hand: the remaining scripts, unless none of them measures.
    if all(standing.job.by_hand for standing in jobs) and (
        not jobs or any(script["launches"] for script in prepared)
    ):
        unsent = [script["command"] for script in prepared]
    if opened or (unsent and jobs):
        return unsent
    if jobs:
        return [_command_after_jobs(campaign, results, typed)]
    if results.refusals():
        return ["lockstep submit CAMPAIGN --site SITE  # after you correct the refused key"]
    if unsent:
        return [*unsent, f"lockstep resume {typed}  # this command submits all these jobs at once"]
    is_left = campaign.num_complete < len(campaign.planned)
    if results.jobs_folder.exists() and is_left:
        return ["lockstep submit CAMPAIGN --site SITE"]
    # Without job scripts the launches are from `lockstep run`, which alone can continue them.
    claimed = results.read_claim() or {}
    tests, name = ",".join(claimed.get("tests") or ()), str(claimed.get("name"))
    campaign_or_tests = shlex.join(["--tests", tests, "--name", name]) if tests else "CAMPAIGN"
    again = [f"lockstep run {campaign_or_tests}  # give the same options as before"] * is_left
    return [*again, f"lockstep report {typed}"]


def _command_after_jobs(campaign: Campaign, results: Results, typed: str) -> str:
    left = set(campaign.abandoned)
    if not left:
        names = results.names()
        is_collected = results.accounting_file.exists() and not any(
            journal.is_ahead(results.journal(name), results.result(name)) for name in names
        )
        command = "report" if is_collected else "status --collect"
        return f"lockstep {command} {typed}"
    # Keys that must be corrected before jobs with work left can succeed.
    last = {standing.job.name: standing for standing in campaign.jobs}.values()
    bad = (each for each in last if not each.job.launches or left & {*each.job.launches})
    keys = {find_cause(standing, results).key for standing in bad} - {None}
    if keys & {"", *OF_CAMPAIGN}:
        return "lockstep submit CAMPAIGN --site SITE  # after you correct the cause"
    if keys:
        return f"lockstep resume {typed} --site SITE  # after you correct the site file"
    return f"lockstep resume {typed}"


def _find_prepared(
    campaign: Campaign, results: Results, scripts: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    prepared = []
    sent = {standing.job.name for standing in campaign.jobs}
    for name, script in scripts.items():
        path = results.jobs_folder / f"{name}.sh"
        num_complete = sum(map(campaign.is_complete, script["launches"]))
        after = [(str(wait.get("job")), str(wait.get("how"))) for wait in script["after"]]
        is_left = not script["launches"] or num_complete < len(script["launches"])
        if name not in sent and is_left:
            prepared.append(
                {"job": name, "script": str(path), **script, "num_complete": num_complete,
                 "command": sending_command(path, after)}
            )  # fmt: skip
    return prepared


# Lines for a terminal, from the record


def lines(record: Mapping[str, Any]) -> list[str]:
    text = [line for row in record["jobs"] for line in _job_lines(row)]
    text += [f"{name}: not submitted; {why}" for name, why in record["refused"].items()]
    text.append(f"launches: {record['num_complete']} of {record['num_planned']} complete")
    begun = [outcome for outcome in record["launches"].values() if not outcome["complete"]]
    for outcome in begun[:MAX_NAMED]:
        name, failed = outcome["name"], len(outcome["failed"])
        how_far = f"{outcome['measured']} measured, {failed} failed, {outcome['remaining']} left"
        if outcome == vars(Outcome(name)):
            how_far = "the launch has started, but has not listed its cases yet"
        text.append(f"  {name}: {how_far}")
    if (num_more := len(begun) - MAX_NAMED) > 0:
        text.append(f"  {num_more} more launches have begun")
    monitor = record["monitor"]
    # Commands to copy, with the ids and paths they need.
    commands = [*monitor[:-1], *record["next"], *monitor[-1:]]
    return [*text, "Next:", *(f"  {line}" for line in commands)]


def headlines(record: Mapping[str, Any]) -> list[str]:
    """Return a line for each job; the line changes only with the job's state or progress."""
    return [
        _headline(row) + (f" ({row['progress']} launches)" if row["progress"] else "")
        for row in record["jobs"]
    ]


def _headline(row: Mapping[str, Any]) -> str:
    array = ", array" if "elements" in row else ""
    return f"{row['job']}, job {row['id'] or '-'}{row['owner']}{array}: {row['words']}"


def _job_lines(row: Mapping[str, Any]) -> Iterator[str]:
    yield _headline(row)
    if last := row.get("last_known"):
        ago_s = max(0.0, time.time() - datetime.fromisoformat(last["time"]).timestamp())
        meaning = State(last["state"]).meaning.replace("{id}", str(row["id"]))
        yield f"  {in_words(ago_s)} ago: {last['state']}, {meaning}"
    is_array = "elements" in row
    if is_array:
        if row["state"] == "PENDING":
            yield f"  {row['meaning']}"
        bad = row["ended_badly"]
        for element in bad[:MAX_NAMED]:
            problem = f"{element['state']}, {element['meaning']}"
            advice = f"; {element['advice']}" if element["advice"] else ""
            yield f"  {element['id']} ({element['launch']}): {problem}{advice}"
        if (num_more := len(bad) - MAX_NAMED) > 0:
            yield f"  {num_more} more elements failed; lockstep status --json names these elements"
    elif row["advice"]:
        yield f"  {row['advice']}"
    waited_s, sent_s = row["queue_wait_s"], row["since_submission_s"]
    times = [
        f"waited {in_words(waited_s)}" if waited_s is not None else "",
        f"submitted {in_words(sent_s)} ago" if sent_s is not None else "",
        f"ran {row['ran']}" if not is_array and (row["elapsed_s"] or row["nodes"]) else "",
        f"launches complete: {row['progress']}" if row["progress"] else "",
    ]
    if any(times):
        yield f"  {'; '.join(filter(None, times))}"
    if row["log"]:
        yield f"  log: {row['log']}"


# Facts of the folder and the cluster


def _inventory(results: Results, now: float, *, ask: bool) -> dict[str, Any] | None:
    """Return the cluster's nodes by partition: from the cache or, if that is old, from Slurm."""
    kept = _read(results.jobs_folder / INVENTORY)
    is_whole = isinstance(kept.get("time"), int | float) and isinstance(kept.get("rows"), list)
    if ask and not (is_whole and now - kept["time"] < INVENTORY_S):
        with suppress(RuntimeError):
            cluster, rows = clusters.read(), []
            for partition in cluster.partitions:
                features = sorted({word for node in partition.nodes for word in node.features})
                here = Counter(node.kind.shape for node in partition.nodes if node.is_here)
                rows += [
                    {"partition": partition.name, "num_nodes": count, "num_here": here[kind.shape],
                     "gpu_type": kind.gpu_type, "gpus_per_node": kind.num_gpus,
                     "cpus": kind.num_cpus, "memory_gib": kind.memory_mib / MIB_PER_GIB,
                     "max_time": partition.max_time, "features": features}
                    for kind, count in partition.kinds
                ]  # fmt: skip
            kept = {"time": now, "cluster": cluster.name, "slurm": cluster.version, "rows": rows}
            is_whole = True
            _write(results.jobs_folder / INVENTORY, kept)
    return kept if is_whole else None


def _read(path: Path) -> dict[str, Any]:
    with suppress(ValueError):  # the file may not exist yet
        kept = files.parse(files.content(path))
        if isinstance(kept, dict):
            return kept
    return {}


def _write(path: Path, document: dict[str, Any]) -> None:
    if path.parent.is_dir():
        with suppress(OSError):  # a reader may lack write permission
            files.write_atomically(path, json.dumps(document))


def _machine(results: Results) -> dict[str, Any] | None:
    """Return the software and network of the launch that was written last."""
    journals = [results.journal(name) for name in results.names()]
    keys = (*SOFTWARE, "threads_per_rank", "image_path")
    with suppress(ValueError):
        for path in sorted(journals, key=lambda path: written_at(path) or 0.0, reverse=True):
            for entry in reversed(journal.read(path)):
                facts = find_table(entry, "launch", "provenance")
                if facts and entry.get("kind") == "launch":
                    return {key: facts.get(key) for key in keys}
    return None


def _read_points(campaign: Campaign, results: Results, wanted: Wanted) -> dict[str, Any]:
    """Return the points measured so far and their expected values."""
    # numpy and scipy take a moment
    from lockstep.report.compute.evaluation import evaluate_folder

    usual = (results.path / name for name in USUAL)
    path = wanted.expectation or next((file for file in usual if file.is_file()), None)
    expected = read_expectation(path) if path else []
    problem, series = None, list[Series]()
    has_files = any(results.path.glob("launches/*/result.json"))
    if has_files or any(outcome.measured for outcome in campaign.launches.values()):
        try:
            series = evaluate_folder(results.path, campaign.coming).series
        except ValueError as error:
            problem = str(error)
    claimed = results.read_claim() or {}
    floor = claimed.get("until_efficiency") if wanted.floor is None else wanted.floor
    # The smallest size at which even the best case misses the floor.
    best = best_efficiencies(series) if floor is not None else {}
    low = min((size for size, value in best.items() if value < (floor or 0)), default=None)
    below = [] if low is None else [
        {"world_size": low, "parallel_efficiency": best[low], "floor": floor}
    ]  # fmt: skip
    sizes = {launch["name"]: launch.get("world_size", 0) for launch in claimed.get("launches", [])}
    waiting = [standing.job for standing in campaign.jobs if standing.state.name == "PENDING"]
    ladders = [curve for curve in series if curve.row.study in CURVES and not curve.layout]
    points = [
        {"series": curve.name, "case": curve.case, "world_size": point.world_size,
         "num_launches": point.num_launches, "baseline": curve.baseline,
         "sample_unit": curve.row.sample_unit or "samples", "blocked_by": point.blocked_by}
        | dict(values(curve, point))
        for curve in ladders for point in curve.points
    ]  # fmt: skip
    return {
        "points": points, "expected": compare_expected(expected, ladders),
        "expectation": str(path) if path else None, "floor": floor, "below_floor": below,
        # Pending jobs of world sizes above the one that misses the floor.
        "not_worth_it": [
            job.name for job in waiting
            if low is not None and job.launches
            and all(sizes.get(name, 0) > low for name in job.launches)
        ],
        "problem": problem,
    }  # fmt: skip


Quantity = Literal["parallel_efficiency", "speedup", "throughput", "step_s", "time_s",
                   "device_hours"]  # fmt: skip
# Default files of expected values in a campaign's folder.
USUAL = ("expected.json", "expected.targets.toml", "expected.csv")


@dataclass(frozen=True)
class Expected:
    """The expected value or limits of one quantity at one world size."""

    world_size: int
    quantity: Quantity
    value: float | None = None
    low: float | None = None
    high: float | None = None
    case: str | None = None  # None for every series of the scaling
    scaling: str | None = None  # strong or weak; None for both


def read_expectation(path: Path) -> list[Expected]:
    """Return the expected values of a prediction, a targets file or a table, else ValueError."""
    if path.suffix == ".toml":
        return list(_read_targets(targets.load(str(path))))
    if path.suffix == ".json":
        return list(_read_prediction(files.parse(files.content(path)), path))
    with tempfile.TemporaryDirectory() as folder:
        imports.write(imports.read([path], 0), [path], Path(folder))
        rows = reading.load([Path(folder)]).rows
    return [
        Expected(point.world_size, quantity, value,
                 scaling=series.row.scaling if series.row.scaling in LADDERS else None)
        for series in series_of(rows)
        for point in series.points
        for quantity, value in values(series, point).items()
        if value is not None
    ]  # fmt: skip


def _read_targets(limits: targets.Targets) -> Iterator[Expected]:
    for size, least in (limits.strong_efficiency or {}).items():
        yield Expected(int(size), "parallel_efficiency", low=least, scaling="strong")
    for size, least in (limits.parallel_efficiency or {}).items():
        yield Expected(int(size), "parallel_efficiency", low=least)
    for size, (low, high) in (limits.speedup or {}).items():
        yield Expected(int(size), "speedup", low=low, high=high)
    for reference in limits.reference:
        unit = reference.unit.removesuffix(" per rank")
        is_per_rank = unit != reference.unit
        scale = TIME_UNITS.get(unit, float(reference.world_size) if is_per_rank else 1.0)
        value = reference.value * scale
        quantity: Quantity = "step_s" if unit in TIME_UNITS else "throughput"
        lower, upper = (
            None if limit is None else value * (1 + limit)
            for limit in (reference.lower, reference.upper)
        )
        yield Expected(reference.world_size, quantity, value, lower, upper, reference.case)


def _read_prediction(record: Any, path: Path) -> Iterator[Expected]:
    try:
        case, is_throughput = record["case"], record["metric"] == "throughput"
        for point in record["points"]:
            size = int(point["world_size"])
            yield Expected(size, "speedup", float(point["speedup"]), case=case)
            efficiency = float(point["parallel_efficiency"])
            yield Expected(size, "parallel_efficiency", efficiency, case=case)
            if is_throughput:
                yield Expected(size, "throughput", float(point["value"]), case=case)
        ahead = record.get("expected") or {}
        if is_throughput and ahead.get("value") is not None:
            value, low, high = (float(ahead[name]) for name in ("value", "low", "high"))
            yield Expected(int(ahead["at"]), "throughput", value, low, high, case)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a prediction ({error!r}); make one with lockstep predict DIR --json"
        ) from None


def values(series: Series, point: Point) -> dict[Quantity, float | None]:
    """Return a point's quantities; the baseline, and points that `check` blocks, have no ratios."""
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


def compare_expected(
    expected: Iterable[Expected], series: Sequence[Series]
) -> list[dict[str, Any]]:
    """Return a row for each expected value and each series that the value applies to.

    A row has no verdict: `lockstep check --targets` judges, by intervals.
    """
    rows = []
    for limits in expected:
        meant: list[Series | None] = [
            curve
            for curve in series
            if (
                limits.case in (curve.case, curve.label, curve.name)
                if limits.case is not None
                else not curve.row.has_smaller_batch and limits.scaling in (None, curve.row.scaling)
            )
        ]
        for own in meant or [None]:
            points = own.points if own else []
            at = next((point for point in points if point.world_size == limits.world_size), None)
            value = values(own, at)[limits.quantity] if own and at else None
            known = next((x for x in (limits.value, limits.low, limits.high) if x), None)
            row = {"series": own.name if own else limits.case, "measured": value,
                   "sample_unit": (own and own.row.sample_unit) or "samples",
                   "blocked_by": at.blocked_by if at else [],
                   # measured / expected - 1, or relative to the limit if only that is known
                   "deviation": value / known - 1 if value is not None and known else None
                   }  # fmt: skip
            rows.append(asdict(limits) | row)
    return sorted(rows, key=lambda row: (str(row["series"]), row["world_size"]))
