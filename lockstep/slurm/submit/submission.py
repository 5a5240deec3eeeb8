"""Submits a campaign's jobs: claims the folder, writes the scripts, records each submission."""

import json
import shlex
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.campaign.campaign import Campaign, Launch
from lockstep.core import files, journal
from lockstep.core.formats import clock, counted, listed
from lockstep.core.record import KEY
from lockstep.report.load.contents import ADDED_KEYS
from lockstep.slurm import client as slurm
from lockstep.slurm.site import Site
from lockstep.slurm.status.sent import Results, find_open
from lockstep.slurm.submit.cli_options import MIN_REPEATS, UNITS, Budget, Unit, round_up
from lockstep.slurm.submit.job import jobs, launches_of, profile
from lockstep.slurm.submit.job_spec import JobSpec, Profiler, Share, share, wait_options
from lockstep.slurm.submit.script import LIBRARY, library, render

SITE_FILE = "site.json"
DEBUG_COMM = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}
MAX_NAMED = 4  # unfinished jobs in a message


@dataclass(frozen=True)
class Work:
    """A campaign at a site, with the folder of its results."""

    campaign: Campaign  # with device and threads set
    site: Site
    results: Results
    profiler: Profiler | None = None  # None to measure
    again: tuple[str, ...] = ()  # names of launches to measure again
    dropped: tuple[str, ...] = ()  # phrases about what a budget left out
    debug_comm: bool = False  # whether NCCL prints debug output in these jobs

    @property
    def launches(self) -> list[Launch]:
        """All launches of the campaign, without the world sizes left out below a floor."""
        beyond = {left_out.world_size for left_out in self.results.below_floor()}
        return [launch for launch in launches_of(self.campaign) if launch.world_size not in beyond]

    @cached_property
    def missing(self) -> list[Launch]:
        return self.results.missing(self.campaign, self.launches, self.again)

    @cached_property
    def done(self) -> set[str]:
        """The stages that have succeeded and have not changed since."""
        claimed: Any = (self.results.read_claim() or {}).get("jobs")
        before = claimed.get("stage", []) if isinstance(claimed, dict) else []
        ends = sorted(self.results.exits().values(), key=lambda end: str(end.get("ended")))
        codes = {end.get("job"): end["exit_code"] for end in ends}  # each job's last exit code
        same = [s for s in self.campaign.jobs.stage if s.model_dump(mode="json") in before]
        return {s.name for s in same if codes.get(f"{self.campaign.name}-{s.name}") == 0}

    @cached_property
    def jobs(self) -> list[JobSpec]:
        """The jobs to submit, each after the jobs that it waits for."""
        if self.profiler is not None:
            return [profile(self.campaign, self.site, self.results.path, self.profiler)]
        return jobs(self.campaign, self.site, self.results.path, self.missing, self.done)

    def scripts(self) -> list[str]:
        env = self.site.env | (DEBUG_COMM if self.debug_comm else {})
        return [render(spec, self.site.model_copy(update={"env": env})) for spec in self.jobs]

    @property
    def share(self) -> Share:
        return share(self.campaign, self.site)

    @property
    def unit(self) -> Unit:
        return "GPU-hours" if self.share.is_gpu else "node-hours"

    @property
    def amounts(self) -> dict[str, float | None]:
        node_hours = sum(spec.node_hours for spec in self.jobs)
        gpu_hours = sum(spec.gpu_hours for spec in self.jobs)
        cost = None
        if self.site.cost_per_gpu_hour is not None:
            cost = self.site.cost_per_gpu_hour * gpu_hours
        elif self.site.cost_per_node_hour is not None:
            cost = self.site.cost_per_node_hour * node_hours
        return {"node_hours": node_hours, "gpu_hours": gpu_hours, "cost": cost}

    def amounts_text(self, factor: float = 1.0) -> str:
        """Return the amounts, times a factor, as a phrase; without GPU-hours if they are 0."""
        units = ("node-hours", "GPU-hours", self.site.currency)
        return ", ".join(
            f"{round_up(amount * factor)} {unit}"
            for amount, unit in zip(self.amounts.values(), units, strict=True)
            if amount is not None and (amount or unit != "GPU-hours")
        )

    @property
    def at_most(self) -> str:
        """A sentence: the number of jobs, and the most that they can use."""
        num_jobs = sum(spec.num_elements for spec in self.jobs)
        launches = counted(len(self.missing), "launch")
        return f"{counted(num_jobs, 'job')}, {launches}: at most {self.amounts_text()}."

    def fit_budget(self, granted: Budget) -> "Work":
        unit = granted.unit or self.unit
        if unit == "GPU-hours" != self.unit:
            raise ValueError(
                f"--budget {granted.text}: this site has no GPUs; give node-hours, such as 500nh"
            )
        campaign, dropped = fit(
            self.campaign, granted.hours, lambda less: self._hours(less, unit), unit
        )
        return replace(self, campaign=campaign, dropped=dropped)

    @property
    def first(self) -> list[Launch]:
        size = min(self.campaign.world_sizes)
        return [each for each in self.missing if (each.world_size, each.repeat) == (size, 0)]

    def least_budget(self) -> str:
        """Return the value of --budget that holds one repeat of the smallest world size."""
        unit, size = self.unit, min(self.campaign.world_sizes)
        least = self.campaign.model_copy(update={"repeats": 1, "world_sizes": (size,)})
        suffix = next(suffix for suffix, name in UNITS.items() if name == unit)
        return round_up(self._hours(least, unit)).replace(",", "") + suffix

    def _hours(self, campaign: Campaign, unit: Unit) -> float:
        names = {launch.name for launch in self.missing}
        left = [launch for launch in launches_of(campaign) if launch.name in names]
        specs = jobs(campaign, self.site, self.results.path, left, self.done)
        return sum(spec.gpu_hours if unit == "GPU-hours" else spec.node_hours for spec in specs)


def fit(
    campaign: Campaign, budget: float, cost: Callable[[Campaign], float], unit: str
) -> tuple[Campaign, tuple[str, ...]]:
    """Return as much of a campaign as a budget holds, and phrases about what was left out.

    It drops, in this order: repeats down to 3, the largest world sizes, repeats down to 1. It keeps
    repeats that would save nothing. `cost` must not grow when something is dropped.
    """
    if cost(campaign) <= budget:
        return campaign, ()
    most, sizes = campaign.repeats, sorted(campaign.world_sizes)
    few = min(most, MIN_REPEATS)
    choices = [(repeats, sizes) for repeats in range(most, few, -1)]
    choices += [(few, sizes[:count]) for count in range(len(sizes), 0, -1)]
    choices += [(repeats, sizes[:1]) for repeats in range(few - 1, 0, -1)]

    def reduce(repeats: int, kept: list[int]) -> Campaign:
        world_sizes = tuple(size for size in campaign.world_sizes if size in kept)
        return campaign.model_copy(update={"repeats": repeats, "world_sizes": world_sizes})

    index = bisect_left(choices, -budget, key=lambda choice: -cost(reduce(*choice)))
    if index == len(choices):
        least = round_up(cost(reduce(*choices[-1])))
        raise ValueError(
            f"a budget of {budget:g} {unit} is too small: one repeat of world size {sizes[0]} "
            f"takes {least} {unit}; raise --budget, or lower time in [jobs] of the campaign file"
        )
    repeats, kept = choices[index]
    if cost(reduce(most, kept)) == cost(reduce(repeats, kept)):
        repeats = most
    dropped = [f"repeats {most} -> {repeats}"] if repeats < most else []
    if beyond := [str(size) for size in reversed(sizes) if size not in kept]:
        dropped.append(f"world size{'s' if len(beyond) > 1 else ''} {', '.join(beyond)}")
    return reduce(repeats, kept), tuple(dropped)


def read_stored(results: Results) -> tuple[Campaign, Site]:
    """Return the campaign and the site of a folder's jobs; raise ValueError if there are none."""
    campaign, path = results.read_claim(), results.jobs_folder / SITE_FILE
    if campaign is None or not path.exists():
        # A failed submission also leaves a folder of jobs, so the record of submissions decides.
        ran_here = campaign is not None and not results.submissions_file.exists()
        todo = (
            "continue with lockstep run" if ran_here else "run lockstep submit CAMPAIGN --site SITE"
        )
        raise ValueError(f"no jobs were submitted from the folder {results.path}; {todo}")
    aside = (*ADDED_KEYS, "on_end")  # the latter in folders of older releases
    kept = {key: value for key, value in campaign.items() if key not in aside}
    try:
        return Campaign.model_validate(kept), stored_site(results)
    except ValueError:
        raise ValueError(
            f"{results.path}: campaign.json or jobs/{SITE_FILE} was changed by hand; run "
            "lockstep submit CAMPAIGN --site SITE"
        ) from None


def stored_site(results: Results) -> Site:
    """Return the site of a folder's scripts; raise ValueError if the file cannot be read."""
    site = Site.model_validate(files.parse(files.content(results.jobs_folder / SITE_FILE)))
    return site.choose_partition(site.partition) if site.partition else site


def write_scripts(todo: Work, *, force: bool) -> list[Path]:
    """Claim the folder, write the scripts and their records, and return the scripts' paths."""
    scripts = dict(zip([spec.script for spec in todo.jobs], todo.scripts(), strict=True))
    texts = {todo.results.jobs_folder / LIBRARY: library(), **scripts}
    for path, text in texts.items():
        if not force and path.exists() and files.text(path) != text:
            raise ValueError(f"{path} exists with other contents; give --force to replace it")
    todo.results.claim(todo.campaign, todo.launches, todo.results.below_floor())
    if todo.profiler is None:  # a profile changes nothing for the jobs that measure
        site = todo.site.whole.model_dump_json(by_alias=True, indent=1)
        files.write_atomically(todo.results.jobs_folder / SITE_FILE, site)
    made = todo.results.scripts() | {
        spec.name: {
            "kind": spec.kind,
            "launches": _launches(spec),
            "after": [dependency._asdict() for dependency in spec.after],
            "num_nodes": spec.num_nodes,
            "gpus_per_node": spec.gpus_per_node,
            "time_limit": clock(spec.time_s),
        }
        for spec in todo.jobs
    }
    document = {"schema": 1, "jobs": made}
    files.write_atomically(todo.results.scripts_file, json.dumps(document, indent=1))
    for path, text in texts.items():
        files.write_atomically(path, text)
    return list(scripts)


def _launches(spec: JobSpec) -> list[str]:
    # A profile measures nothing, so its launches get no journal.
    return [launch.name for launch in spec.launches if spec.kind != "profile"]


def submit(todo: Work) -> Iterator[tuple[JobSpec, str]]:
    """Submit the jobs for the missing launches, and yield each job with its id in Slurm.

    Raises ValueError if jobs may still write into the folder, or if sbatch refuses the site.
    """
    with todo.results.alone():
        refuse_unfinished(todo.results)
        slurm.require("sbatch")  # before a submission is recorded that cannot be made
        scripts = write_scripts(todo, force=True)  # fails if campaign and site do not fit
        moved = set_aside(todo.results, todo.again)
        ids: dict[str, str] = {}
        for spec, script in zip(todo.jobs, scripts, strict=True):
            try:
                ids[spec.name] = _send(todo.results, spec, script, wait_options(spec.after, ids))
            except ValueError as error:
                cancelled = _cancel(ids)
                for launch, aside in moved.items():
                    if not launch.exists():
                        aside.rename(launch)
                raise ValueError(f"{error}{cancelled}") from None
            yield spec, ids[spec.name]


def _cancel(ids: Mapping[str, str]) -> str:
    """Cancel the jobs submitted before a refused job, and return a phrase about that."""
    if not ids:
        return ""
    try:
        slurm.scancel(list(ids.values()))
    except RuntimeError as error:
        return f"; the jobs submitted before this one may still run ({', '.join(ids)}): {error}"
    return f"; the jobs submitted before this one were cancelled: {', '.join(ids)}"


def refuse_unfinished(results: Results) -> None:
    """Raise ValueError if a job may still write into a folder."""
    unfinished = {}  # an ordered set: many elements of an array share a state
    for job in (each.queued for each in find_open(results)):
        whose = "" if job.user == slurm.own_name() else f" of {job.user}"
        unfinished[f"job {job.array_id}{whose} ({job.state.name})"] = True
    if unfinished:
        jobs = listed(unfinished, MAX_NAMED)
        path = shlex.quote(str(results.path))
        raise ValueError(
            f"{jobs} may still write into {path}; wait until these jobs have ended, or run "
            f"lockstep cancel {path}"
        )


def _send(results: Results, spec: JobSpec, script: Path, options: Sequence[str]) -> str:
    comment = f"lockstep:{uuid.uuid4()}"
    facts = {
        "job": spec.name,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "user": slurm.own_name(),
        "launches": _launches(spec),
        "kind": spec.kind,
        "after": [dependency.job for dependency in spec.after],
    }
    # Open throughout, so that no error of opening loses the id of a job that Slurm took.
    with closing(journal.Journal(results.submissions_file)) as record:
        record.append({"uuid": comment, **facts})
        try:
            taken = slurm.sbatch(script, comment, *options)
        except ValueError as error:
            record.append({"uuid": comment, "refused": str(error)})
            raise
        where = {"cluster": taken.cluster} if taken.cluster else {}
        record.append({"uuid": comment, "id": taken.id, **where})
        return taken.id


def find_flagged(results: Results, launches: Sequence[Launch]) -> list[str]:
    """Return the launches with a flagged case, which are not proposal evidence."""
    names = []
    for launch in launches:
        path = results.journal(launch.name)
        cases = journal.rebuild(path)["benchmarks"] if journal.outcomes(path) else []
        if any(case["extra_info"][KEY]["flags"] for case in cases):
            names.append(launch.name)
    return names


def set_aside(results: Results, names: Sequence[str]) -> dict[Path, Path]:
    """Move launches away to measure them again; return old folder -> new folder."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    moved = {}
    for name in names:
        target = results.set_aside_folder / f"{name}-{now}"
        target.parent.mkdir(exist_ok=True)
        moved[results.launch(name)] = results.launch(name).rename(target)
    return moved
