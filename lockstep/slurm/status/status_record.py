"""A campaign's status as one record, which terminal, `--watch`, JSON, page and `serve` show.

It also reads the expected values of a campaign: the record of `lockstep predict --json`, a targets
file of `lockstep check --targets`, or a table that `lockstep import` reads.
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
from lockstep.slurm import cluster
from lockstep.slurm.client import State
from lockstep.slurm.cluster import MIB_PER_GIB, Partition
from lockstep.slurm.status.causes import OF_CAMPAIGN, advise, key_to_mend
from lockstep.slurm.status.sent import Results, whole
from lockstep.slurm.status.standing import Campaign, Standing
from lockstep.slurm.submit.job_spec import sending_command
from lockstep.slurm.submit.submission import stored_site

ANSWER = "last-answer.json"
INVENTORY = "inventory.json"
# The nodes of a cluster change seldom, and listing all of them is expensive.
INVENTORY_S = 3600.0
# Elements or launches with a problem that are named; the others are counted.
MAX_NAMED = 8
# The state of an array is the first of these that one of its elements has.
ORDER = ("STALLED", "RUNNING", "COMPLETING", "PENDING", "unknown", "LOST")
# Keys of the site file, and of a launch's provenance: key -> its name on the page.
PLACE = {
    "name": "site", "partition": "partition", "account": "account", "qos": "QOS",
    "constraint": "constraint", "gpus_per_node": "GPUs per node", "gpu_type": "GPU type",
    "cpus_per_node": "CPUs per node", "mem": "memory of a node", "time": "limit of a job",
    "image": "image", "modules": "modules", "interface": "network interface",
    "env": "variables of the ranks",
}  # fmt: skip
SOFTWARE = {
    "device_names": "devices", "cpu_model": "CPU", "cores_per_node": "cores of a node",
    "memory_bytes": "memory of a node", "driver": "driver", "cuda": "CUDA", "cudnn": "cuDNN",
    "nccl": "NCCL", "backend": "backend", "transport": "interconnect in use",
    "wire_gb_per_s": "link, GB/s", "torch": "PyTorch", "torchvision": "torchvision",
    "python": "Python", "os": "system", "environment": "variables in force",
    "lockstep_version": "Lockstep",
}  # fmt: skip
MACHINE_KEYS = (*SOFTWARE, "threads_per_rank", "image_path")
# Resources that a script asks for.
SHAPE = ("num_nodes", "gpus_per_node", "time_limit")


@dataclass(frozen=True)
class Wanted:
    """What a record contains in addition to the state of the jobs.

    Attributes:
        expectation: File of expected values; the folder's own by default.
        floor: Least parallel efficiency, a fraction, below which no larger size is measured;
            `until_efficiency` of the campaign by default.
        inventory: Whether Slurm is asked for the nodes of the cluster.
    """

    expectation: Path | None = None
    floor: float | None = None
    inventory: bool = False


def record(
    campaign: Campaign, results: Results, folder: str, wanted: Wanted | None
) -> dict[str, Any]:
    """Return the record of a campaign's state; an array is one row of `jobs`.

    Args:
        campaign: The state, as `Board.look` returned it.
        results: The campaign's folder.
        folder: The same as it was typed.
        wanted: Further contents; None for those of a terminal.

    Raises:
        ValueError: The folder's records are corrupt, or the expected values cannot be read.
    """
    now, scripts = time.time(), results.scripts()
    arrays = [list(group) for _, group in groupby(campaign.jobs, key=lambda one: one.job.uuid)]
    rows = [_row(array, campaign, results, shlex.quote(folder)) for array in arrays]
    for row in rows:
        row |= {key: scripts.get(row["job"], {}).get(key) for key in SHAPE}
    answered: float | None = now
    if campaign.errors:
        answered = _add_last_known(rows, results)
    else:
        known = {row["id"]: row["state"] for row in rows if row["id"] and row["state"] != "unknown"}
        _write(results.jobs_folder / ANSWER, {"time": now, "states": known})
    facts = {
        "time": stamp(now), "folder": folder, "jobs": rows,
        "launches": {name: vars(outcome) for name, outcome in campaign.launches.items()},
        "refused": results.refusals(),
        "num_planned": len(campaign.planned), "num_complete": campaign.num_complete,
        "abandoned": campaign.abandoned, "errors": list(campaign.errors),
        "has_ended": campaign.has_ended, "is_bad": campaign.is_bad,
    }  # fmt: skip
    commands = {
        "next": _next_commands(campaign, results, folder),
        "monitor": _monitor_commands(campaign, results, folder),
    }
    if wanted is None:
        return facts | commands
    claimed = results.claimed() or {}
    inventory = recent_inventory(results, now, ask=wanted.inventory)
    measured = _measured(campaign, results, wanted)
    cancellations = [
        f"lockstep cancel {shlex.quote(folder)} --job {shlex.quote(name)}"
        "  # a smaller world size misses the floor"
        for name in dict.fromkeys(measured["not_worth_it"])
    ]
    return facts | {
        "campaign": {key: value for key, value in claimed.items() if key != "launches"},
        "site": _site(results), "machine": _machine(results),
        "prepared": _prepared(campaign, results), "measured": measured,
        "next": cancellations + commands["next"], "monitor": commands["monitor"],
        "inventory": inventory,
        "as_of": _ages(results, answered, inventory, measured["expectation"]),
    }  # fmt: skip


def stamp(at: float) -> str:
    """Return a time in seconds since the epoch as ISO 8601 in this machine's zone."""
    return datetime.fromtimestamp(at, UTC).astimezone().isoformat(timespec="seconds")


def _row(
    array: Sequence[Standing], campaign: Campaign, results: Results, typed: str
) -> dict[str, Any]:
    """Return the row of a job, or of an array by its element with the most important state."""

    def rank(element: Standing) -> int:
        name = element.state.name
        return ORDER.index(name) if name in ORDER else len(ORDER) + (not element.is_bad)

    def advice(element: Standing) -> str | None:
        undone = {name for name in element.job.launches if not campaign.is_settled(name)}
        is_last = all(other.has_ended for other in campaign.jobs if other is not element)
        is_continued = bool(undone) and undone <= campaign.coming
        return advise(element, results, typed, is_last=is_last, is_continued=is_continued)

    head = min(array, key=rank)
    job, account = head.job, head.account or {}
    launches = [name for element in array for name in element.job.launches]
    left = [element for element in array if not _is_done(element, campaign)]
    log = None if job.id is None else results.output(job)
    if log and job.id and job.element is not None:
        log = log.with_name(f"slurm-{whole(job.id)}_*.out")
    row = {
        "id": whole(job.id) if job.id else None,
        "job": job.name,
        "kind": job.kind,
        "user": head.user,
        "by_hand": job.by_hand,
        "state": head.state.name,
        "reason": head.state.reason if head.state.name == "PENDING" else None,
        "meaning": head.state.meaning.replace("{id}", str(job.id)),
        "advice": advice(head) if head in left else None,
        "mend": key_to_mend(head, results) if head in left else None,
        "queue_wait_s": account.get("queue_wait_s"),
        "since_submission_s": head.sent_s,
        "elapsed_s": account.get("elapsed_s"),
        "nodes": account.get("nodes"),
        "num_launches": len(launches),
        "num_complete": sum(map(campaign.is_complete, launches)),
        "script": str(results.jobs_folder / f"{job.name}.sh"),
        "log": log and str(log),
    }
    if job.element is not None:
        row["elements"] = dict(Counter(element.state.name for element in array).most_common())
        row["ended_badly"] = [
            {"id": element.job.id, "state": element.state.name, "meaning": element.state.meaning,
             "launch": (*element.job.launches, None)[0], "advice": advice(element)}
            for element in left if element.is_bad
        ]  # fmt: skip
    return row


def _is_done(standing: Standing, campaign: Campaign) -> bool:
    """Return whether all launches of a job are settled; False for a job without launches."""
    launches = standing.job.launches
    return bool(launches) and all(map(campaign.is_settled, launches))


def _add_last_known(rows: Sequence[dict[str, Any]], results: Results) -> float | None:
    """Add the last known state to jobs of unknown state; return the time of that answer or None."""
    kept = _read(results.jobs_folder / ANSWER)
    states = kept.get("states", {})
    if not isinstance(states, dict) or not isinstance(kept.get("time"), int | float):
        return None
    for row in rows:
        if row["state"] == "unknown" and row["id"] in states:
            row["last_known"] = {"state": states[row["id"]], "time": stamp(kept["time"])}
    return float(kept["time"])


def _opened(campaign: Campaign) -> list[Standing]:
    """Return the jobs that may still write, including unknown ones with work left."""
    return [
        standing
        for standing in campaign.jobs
        if standing.job.id
        and not standing.has_ended
        and not (standing.state.name == "unknown" and _is_done(standing, campaign))
    ]


def _monitor_commands(campaign: Campaign, results: Results, folder: str) -> list[str]:
    """Return the commands that follow jobs which may still write; the last is `lockstep status`."""
    opened, typed = _opened(campaign), shlex.quote(folder)
    if not opened:
        return []
    running = [standing for standing in opened if standing.state.name == "RUNNING"]
    in_line = [
        standing
        for standing in opened
        if standing.state.name == "PENDING" and standing.state.reason in slurm.IN_LINE
    ]
    ids = dict.fromkeys(whole(str(standing.job.id)) for standing in in_line or opened)
    options = [*slurm.cluster_options(), *(["--start"] if in_line else [])]
    lines = [f"tail -f {shlex.quote(str(results.output(one.job)))}" for one in running[:1]]
    lines.append(" ".join(["squeue", *options, f"--jobs={','.join(ids)}"]))
    if all(standing.user in (None, slurm.own_name()) for standing in opened):
        # A comment, so that pasting all lines cancels nothing.
        lines.append(f"# to cancel them: lockstep cancel {typed}")
    return [*lines, f"lockstep status {typed} --watch"]


def _next_commands(campaign: Campaign, results: Results, folder: str) -> list[str]:
    """Return the commands to run next."""
    typed, unsent = shlex.quote(folder), _unsent(campaign, results)
    if _opened(campaign) or (unsent and campaign.jobs):
        return unsent
    if campaign.jobs:
        return [_after_jobs(campaign, results, typed)]
    if results.refusals():
        return ["lockstep submit CAMPAIGN --site SITE  # once the refused key is corrected"]
    is_left = campaign.num_complete < len(campaign.planned)
    if unsent:
        return [*unsent, f"lockstep resume {typed}  # or submit all of them at once"]
    if results.jobs_folder.exists() and is_left:
        return ["lockstep submit CAMPAIGN --site SITE"]
    # Without job scripts `lockstep run` measured, and only it can continue.
    claimed = results.claimed() or {}
    tests, name = ",".join(claimed.get("tests") or ()), str(claimed.get("name"))
    measured = shlex.join(["--tests", tests, "--name", name]) if tests else "CAMPAIGN"
    again = [f"lockstep run {measured}  # with the same options: it continues"] * is_left
    return [*again, f"lockstep report {typed}"]


def _after_jobs(campaign: Campaign, results: Results, typed: str) -> str:
    """Return the command to run once all jobs have ended."""
    left = set(campaign.abandoned)
    if not left:
        return f"lockstep {'report' if results.is_collected() else 'status --collect'} {typed}"
    # Keys to correct before jobs with work left can succeed.
    last = {standing.job.name: standing for standing in campaign.jobs}.values()
    bad = (one for one in last if not one.job.launches or left & {*one.job.launches})
    keys = {key for standing in bad if (key := key_to_mend(standing, results)) is not None}
    if keys & {"", *OF_CAMPAIGN}:
        return "lockstep submit CAMPAIGN --site SITE  # once the cause is corrected"
    if keys:
        return f"lockstep resume {typed} --site SITE  # once that file is corrected"
    return f"lockstep resume {typed}"


def _unsent(campaign: Campaign, results: Results) -> list[str]:
    """Return the commands that submit the remaining scripts, where jobs are submitted by hand."""
    if not all(standing.job.by_hand for standing in campaign.jobs):
        return []
    sent = {standing.job.name for standing in campaign.jobs}
    scripts = {name: facts for name, facts in results.scripts().items() if name not in sent}
    launches = {launch for facts in scripts.values() for launch in facts["launches"]}
    if campaign.jobs and all(map(campaign.is_complete, launches)):
        return []  # the remaining scripts measure nothing
    return [_by_hand(name, facts, results) for name, facts in scripts.items()]


def _by_hand(name: str, script: Mapping[str, Any], results: Results) -> str:
    after = [(str(wait.get("job")), str(wait.get("how"))) for wait in script["after"]]
    return sending_command(results.jobs_folder / f"{name}.sh", after)


def _prepared(campaign: Campaign, results: Results) -> list[dict[str, Any]]:
    """Return the scripts that are not submitted and have work left."""
    sent = {standing.job.name for standing in campaign.jobs}
    return [
        {"job": name, "script": str(results.jobs_folder / f"{name}.sh"), **script,
         "num_complete": sum(map(campaign.is_complete, script["launches"])),
         "command": _by_hand(name, script, results)}
        for name, script in results.scripts().items()
        if name not in sent
        and not (script["launches"] and all(map(campaign.is_complete, script["launches"])))
    ]  # fmt: skip


# Lines for a terminal, from the record


def lines(record: Mapping[str, Any]) -> list[str]:
    """Return a record as lines for a terminal."""
    text = [line for row in record["jobs"] for line in _job_lines(row)]
    text += [f"{name}: not submitted; {why}" for name, why in record["refused"].items()]
    text.append(f"launches: {record['num_complete']} of {record['num_planned']} complete")
    begun = [outcome for outcome in record["launches"].values() if not outcome["complete"]]
    for outcome in begun[:MAX_NAMED]:
        name, failed = outcome["name"], len(outcome["failed"])
        how_far = f"{outcome['measured']} measured, {failed} failed, {outcome['remaining']} left"
        if outcome == vars(Outcome(name)):
            how_far = "has started, and has not listed its cases yet"
        text.append(f"  {name}: {how_far}")
    if begun[MAX_NAMED:]:
        text.append(f"  and {len(begun) - MAX_NAMED} more that have begun")
    monitor = record["monitor"]
    # Commands to copy, with the ids and paths they need.
    commands = [*monitor[:-1], *record["next"], *monitor[-1:]]
    return [*text, "Next:", *(f"  {line}" for line in commands)]


def headlines(record: Mapping[str, Any]) -> list[str]:
    """Return a line for each job that changes only with its state or progress."""
    return [
        f"{_headline(row)} ({_complete(row)})" if row["num_launches"] else _headline(row)
        for row in record["jobs"]
    ]


def _headline(row: Mapping[str, Any]) -> str:
    title = f"{row['job']}, job {row['id'] or '-'}{whose(row)}"
    if "elements" in row:
        return f"{title}, array: {elements(row)}"
    return f"{title}: {row['state']}, {row['meaning']}"


def elements(row: Mapping[str, Any]) -> str:
    """Return the number of an array's elements in each state, as text."""
    return ", ".join(
        f"{count} {slurm.SHORT.get(name, name)}" for name, count in row["elements"].items()
    )


def whose(row: Mapping[str, Any]) -> str:
    """Return a note on who submitted a job: by hand, or another user; else empty."""
    by_hand = ", submitted by hand" if row["by_hand"] else ""
    is_own = row["user"] in (None, slurm.own_name())
    return by_hand if is_own else f"{by_hand}, of {row['user']}"


def _job_lines(row: Mapping[str, Any]) -> Iterator[str]:
    yield _headline(row)
    if last := row.get("last_known"):
        ago_s = max(0.0, time.time() - datetime.fromisoformat(last["time"]).timestamp())
        meaning = State(last["state"]).meaning.replace("{id}", str(row["id"]))
        yield f"  {in_words(ago_s)} ago: {last['state']}, {meaning}"
    if "elements" in row:
        if row["state"] == "PENDING":
            yield f"  {row['meaning']}"
        bad = row["ended_badly"]
        for element in bad[:MAX_NAMED]:
            problem = f"{element['state']}, {element['meaning']}; {element['advice']}"
            yield f"  {element['id']} ({element['launch']}): {problem}"
        if bad[MAX_NAMED:]:
            yield f"  and {len(bad) - MAX_NAMED} more; --json names them"
    elif row["advice"]:
        yield f"  {row['advice']}"
    if times := "; ".join(_times(row)):
        yield f"  {times}"
    if row["log"]:
        yield f"  log: {row['log']}"


def _times(row: Mapping[str, Any]) -> Iterator[str]:
    if row["queue_wait_s"] is not None:
        yield f"waited {in_words(row['queue_wait_s'])}"
    if row["since_submission_s"] is not None:
        yield f"submitted {in_words(row['since_submission_s'])} ago"
    if "elements" not in row and (row["elapsed_s"] or row["nodes"]):
        yield f"ran {ran(row)}"
    if row["num_launches"]:
        yield _complete(row)


def ran(row: Mapping[str, Any]) -> str:
    """Return how long a job ran and, unless it is an array, on which nodes."""
    where = f" on {row['nodes']}" if row["nodes"] and "elements" not in row else ""
    # Slurm reports 0 s for a job that never started.
    return f"{in_words(row['elapsed_s'] if row['elapsed_s'] or row['nodes'] else None)}{where}"


def _complete(row: Mapping[str, Any]) -> str:
    return f"{row['num_complete']} of {row['num_launches']} launches complete{by_whom(row)}"


def by_whom(row: Mapping[str, Any]) -> str:
    """Return a note that other jobs may have completed a failed job's launches."""
    is_bad_end = row["state"] in slurm.ENDED and row["state"] != "COMPLETED"
    return ", by any job" if is_bad_end else ""


# Facts of the folder and the cluster


def recent_inventory(results: Results, now: float, *, ask: bool) -> dict[str, Any] | None:
    """Return the cluster's nodes by partition, from the cache or, if that is old, from Slurm."""
    kept = _read(results.jobs_folder / INVENTORY)
    is_whole = isinstance(kept.get("time"), int | float) and isinstance(kept.get("rows"), list)
    if ask and not (is_whole and now - kept["time"] < INVENTORY_S):
        with suppress(RuntimeError):
            found = cluster.read()
            rows = [row for partition in found.partitions for row in _nodes_of(partition)]
            kept = {"time": now, "cluster": found.name, "slurm": found.version, "rows": rows}
            is_whole = True
            _write(results.jobs_folder / INVENTORY, kept)
    return kept if is_whole else None


def _nodes_of(partition: Partition) -> list[dict[str, Any]]:
    features = sorted({word for node in partition.nodes for word in node.features})
    here = Counter(node.kind.shape for node in partition.nodes if node.is_here)
    return [
        {"partition": partition.name, "num_nodes": count, "num_here": here[kind.shape],
         "gpu_type": kind.gpu_type, "gpus_per_node": kind.num_gpus, "cpus": kind.num_cpus,
         "memory_gib": kind.memory_mib / MIB_PER_GIB, "max_time": partition.max_time,
         "features": features}
        for kind, count in partition.kinds
    ]  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    with suppress(ValueError):  # none yet
        kept = files.parse(files.content(path))
        if isinstance(kept, dict):
            return kept
    return {}


def _write(path: Path, document: dict[str, Any]) -> None:
    if path.parent.is_dir():
        with suppress(OSError):  # a reader may lack write permission
            files.write_atomically(path, json.dumps(document))


def _site(results: Results) -> dict[str, Any] | None:
    try:
        site = stored_site(results).model_dump(mode="json")
    except (OSError, ValueError):
        return None  # no scripts, or those of an earlier version
    image = (site.get("container") or {}).get("image")
    return {key: image if key == "image" else site[key] for key in PLACE}


def _machine(results: Results) -> dict[str, Any] | None:
    """Return the software and network of the launch that was written last."""
    journals = [results.journal(name) for name in results.names()]
    with suppress(ValueError):
        for path in sorted(journals, key=_written, reverse=True):
            for entry in reversed(journal.read(path)):
                launch = entry.get("launch") if entry.get("kind") == "launch" else None
                if isinstance(launch, dict) and isinstance(launch.get("provenance"), dict):
                    return {key: launch["provenance"].get(key) for key in MACHINE_KEYS}
    return None


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _measured(campaign: Campaign, results: Results, wanted: Wanted) -> dict[str, Any]:
    """Return the points measured so far and their expected values."""
    # numpy and scipy take a moment
    from lockstep.report.compute.evaluation import evaluate_folder

    usual = (results.path / name for name in USUAL)
    path = wanted.expectation or next((file for file in usual if file.is_file()), None)
    expected = read_expectation(path) if path else []
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
    # The smallest size at which even the best case misses the floor.
    best = best_efficiencies(series) if floor is not None else {}
    low = min((size for size, value in best.items() if value < (floor or 0)), default=None)
    below = [] if low is None else [
        {"world_size": low, "parallel_efficiency": best[low], "floor": floor}
    ]  # fmt: skip
    ladders = [curve for curve in series if curve.row.study in CURVES and not curve.layout]
    points = [
        {"series": curve.name, "case": curve.case, "world_size": point.world_size,
         "num_launches": point.num_launches, "baseline": curve.baseline,
         "sample_unit": curve.row.sample_unit or "samples", "blocked_by": point.blocked_by}
        | dict(values(curve, point))
        for curve in ladders for point in curve.points
    ]  # fmt: skip
    jobs = [
        {"job": standing.job.name, "state": standing.state.name, "launches": standing.job.launches}
        for standing in campaign.jobs
    ]
    return {
        "points": points, "expected": compare_expected(expected, ladders),
        "expectation": str(path) if path else None, "floor": floor, "below_floor": below,
        "not_worth_it": waiting_above(below, claimed.get("launches", []), jobs),
        "problem": problem,
    }  # fmt: skip


def _ages(
    results: Results,
    answered: float | None,
    inventory: Mapping[str, Any] | None,
    expectation: str | None,
) -> dict[str, str | None]:
    """Return source -> when it was last read or written."""
    events = results.events().values()
    times = {
        "slurm": answered if results.jobs_folder.exists() else None,
        "events": max((float(event.at) for event in events), default=None),
        "results": max((_written(results.journal(n)) for n in results.names()), default=None),
        "accounting": _written(results.accounting_file) or None,
        "inventory": inventory["time"] if inventory else None,
        "expectation": _written(Path(expectation)) if expectation else None,
    }
    return {name: None if at is None else stamp(at) for name, at in times.items()}


Quantity = Literal["parallel_efficiency", "speedup", "throughput", "step_s", "time_s",
                   "device_hours"]  # fmt: skip
# Default files of expected values in a campaign's folder.
USUAL = ("expected.json", "expected.targets.toml", "expected.csv")


@dataclass(frozen=True)
class Expected:
    """The expected value of one quantity at one world size.

    Attributes:
        quantity: Its name with the unit; throughput in samples/s.
        low: Lower limit.
        high: Upper limit.
        case: The case; None for every series of the scaling.
        scaling: strong or weak; None for both.
    """

    world_size: int
    quantity: Quantity
    value: float | None = None
    low: float | None = None
    high: float | None = None
    case: str | None = None
    scaling: str | None = None


def read_expectation(path: Path) -> list[Expected]:
    """Return the expected values of a file.

    Raises:
        ValueError: The file cannot be read, or is neither a prediction, nor targets, nor a table.
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


def _of_prediction(record: Any, path: Path) -> Iterator[Expected]:
    if not isinstance(record, dict) or not isinstance(record.get("points"), list):
        raise ValueError(f"{path}: not a prediction; make one with lockstep predict DIR --json")
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
        raise ValueError(f"{path}: not the output of lockstep predict --json ({error!r})") from None


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
    """Return a point's quantities; the baseline and points that `check` blocks have no ratios."""
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
    """Return a record for each expected value and each series that it applies to."""
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
            found = values(own, at)[limits.quantity] if own and at else None
            rules = at.blocked_by if at else []
            known = next((x for x in (limits.value, limits.low, limits.high) if x), None)
            row = {"series": own.name if own else limits.case, "measured": found,
                   "sample_unit": (own and own.row.sample_unit) or "samples", "blocked_by": rules,
                   # measured / expected - 1, or relative to the limit if only that is known
                   "deviation": found / known - 1 if found is not None and known else None,
                   "meets": "blocked" if rules else _meets(limits, found)}  # fmt: skip
            rows.append(asdict(limits) | row)
    return sorted(rows, key=lambda row: (str(row["series"]), row["world_size"]))


def _meets(expected: Expected, measured: float | None) -> str | None:
    """Return where a measured value lies relative to the limits; None without limits."""
    low, high = expected.low, expected.high
    if measured is None:
        return "pending"
    if low is not None and measured < low:
        return "below"
    if high is not None and measured > high:
        return "above"
    return None if low is None and high is None else "met"


def waiting_above(
    below: Sequence[Mapping[str, Any]],
    planned: Sequence[Mapping[str, Any]],
    jobs: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Return the pending jobs of world sizes above one that missed the floor."""
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
