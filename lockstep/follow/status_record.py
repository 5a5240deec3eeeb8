"""A campaign's status as one record: what `status --json` prints and the page shows."""

import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.core import journal
from lockstep.follow import kept_answers
from lockstep.follow.kept_answers import stamp
from lockstep.slurm.status import job_events, overview
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import Campaign
from lockstep.slurm.submit.submission import stored_site

if TYPE_CHECKING:
    from lockstep.report.compute.scaling import Series

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
    answered = kept_answers.at(facts, results, now)
    inventory = kept_answers.inventory(results, now, ask=wanted.inventory)
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
    from lockstep.follow import expected  # numpy and scipy take a moment
    from lockstep.report.compute.evaluation import evaluate_folder

    path = wanted.expectation or expected.find(results.path)
    hoped = expected.read(path) if path else []
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
    below, ladders = expected.below_floor(series, floor), expected.ladders(series)
    planned = claimed.get("launches", [])
    jobs = [
        {"job": one.job.name, "state": one.state.name, "launches": one.job.launches}
        for one in campaign.jobs
    ]
    return {
        "points": expected.points(ladders), "expected": expected.beside(hoped, ladders),
        "expectation": str(path) if path else None, "floor": floor, "below_floor": below,
        "not_worth_it": expected.waiting_above(below, planned, jobs), "problem": problem,
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
