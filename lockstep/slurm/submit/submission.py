"""Submits a campaign's jobs: writes the scripts, claims the folder and records each submission."""

import json
import shlex
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.campaign.campaign import Campaign, Launch
from lockstep.core import files, journal
from lockstep.core.formats import clock, counted, listed
from lockstep.core.record import KEY
from lockstep.slurm import client as slurm
from lockstep.slurm.site import Site
from lockstep.slurm.status.sent import Results
from lockstep.slurm.submit.cli_options import MIN_REPEATS, Budget, Unit, rounded_up
from lockstep.slurm.submit.job import jobs, launches_of, profile
from lockstep.slurm.submit.job_spec import JobSpec, Profiler, Share, share, wait_options
from lockstep.slurm.submit.script import LIBRARY, library, render

SITE_FILE = "site.json"
# Unfinished jobs named in a refusal.
MAX_NAMED = 4


@dataclass(frozen=True)
class Work:
    """A campaign at a site, with the folder of its results.

    Attributes:
        campaign: What to measure, with its device and threads settled.
        profiler: What to profile with in place of measuring.
        dropped: What a budget left out, in words.
        debug_comm: Whether NCCL says all that it does, in these jobs and in none that resume them.
    """

    campaign: Campaign
    site: Site
    results: Results
    profiler: Profiler | None = None
    again: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    debug_comm: bool = False

    @property
    def launches(self) -> list[Launch]:
        """All launches of the campaign, but of sizes that were left out below a floor."""
        beyond = {left_out.world_size for left_out in self.results.below_floor()}
        return [launch for launch in launches_of(self.campaign) if launch.world_size not in beyond]

    @cached_property
    def missing(self) -> list[Launch]:
        """The launches that still lack a case, and those to measure again."""
        lacking = {launch.name for launch in self.results.missing(self.campaign, self.launches)}
        return [launch for launch in self.launches if launch.name in lacking | set(self.again)]

    @cached_property
    def done(self) -> set[str]:
        """The stages that have ended well, and are still as they were then."""
        claimed: Any = (self.results.claimed() or {}).get("jobs")
        before = claimed.get("stage", []) if isinstance(claimed, dict) else []
        ends = sorted(self.results.exits().values(), key=lambda end: str(end.get("ended")))
        codes = {end.get("job"): end["exit_code"] for end in ends}  # of each job the last
        same = [s for s in self.campaign.jobs.stage if s.model_dump(mode="json") in before]
        return {s.name for s in same if codes.get(f"{self.campaign.name}-{s.name}") == 0}

    @cached_property
    def jobs(self) -> list[JobSpec]:
        """The jobs to send, each after those that it waits for.

        Raises:
            ValueError: Campaign and site do not fit.
        """
        if self.profiler is not None:
            return [profile(self.campaign, self.site, self.results.path, self.profiler)]
        return jobs(self.campaign, self.site, self.results.path, self.missing, self.done)

    def scripts(self) -> list[str]:
        """Return the text of each job's script."""
        site = self.site.with_debug_output() if self.debug_comm else self.site
        return [render(spec, site) for spec in self.jobs]

    @property
    def share(self) -> Share:
        """What a rank gets of a node."""
        return share(self.campaign, self.site)

    @property
    def unit(self) -> Unit:
        """What a budget is counted in that names no unit."""
        return "GPU-hours" if self.share.is_gpu else "node-hours"

    @property
    def node_hours(self) -> float:
        """Node-hours of the jobs, at most."""
        return sum(spec.node_hours for spec in self.jobs)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the jobs, at most."""
        return sum(spec.gpu_hours for spec in self.jobs)

    @property
    def cost(self) -> float | None:
        """What the jobs cost at most, in the site's currency; None where it says no price."""
        if self.site.cost_per_gpu_hour is not None:
            return self.site.cost_per_gpu_hour * self.gpu_hours
        per_node_hour = self.site.cost_per_node_hour
        return None if per_node_hour is None else per_node_hour * self.node_hours

    @property
    def at_most(self) -> str:
        """What the jobs may cost, in a sentence."""
        num_jobs = sum(spec.num_elements for spec in self.jobs)
        launches = counted(len(self.missing), "launch")
        return f"{counted(num_jobs, 'job')}, {launches}: at most {self.amounts()}."

    def amounts(self, factor: float = 1.0) -> str:
        """Return what the jobs take at most, times a factor, in words."""
        amounts = [(self.node_hours, "node-hours")]
        amounts += [(self.gpu_hours, "GPU-hours")] if self.gpu_hours else []
        amounts += [] if self.cost is None else [(self.cost, str(self.site.currency))]
        return ", ".join(f"{rounded_up(amount * factor)} {unit}" for amount, unit in amounts)

    def within(self, granted: Budget) -> "Work":
        """Return as much of the work as fits into a budget.

        Raises:
            ValueError: Nothing fits, or it counts GPU-hours of a site without GPUs.
        """
        unit = granted.unit or self.unit
        if unit == "GPU-hours" != self.unit:
            raise ValueError(
                f"--budget {granted}: this site has no GPUs; give node-hours, such as 500nh"
            )
        names = {launch.name for launch in self.missing}

        def cost(campaign: Campaign) -> float:
            left = [launch for launch in launches_of(campaign) if launch.name in names]
            specs = jobs(campaign, self.site, self.results.path, left, self.done)
            return sum(spec.gpu_hours if unit == "GPU-hours" else spec.node_hours for spec in specs)

        campaign, dropped = fit(self.campaign, granted.hours, cost, unit)
        return replace(self, campaign=campaign, dropped=dropped)


def fit(
    campaign: Campaign, budget: float, cost: Callable[[Campaign], float], unit: str
) -> tuple[Campaign, tuple[str, ...]]:
    """Return as much of a campaign as a budget holds, and what was left out, in words.

    What is dropped, in this order: repeats from the last down to 3, world sizes from the largest,
    repeats down to 1. Repeats that save nothing are not dropped. Budget and cost are in the same
    unit, and a campaign with less in it never costs more.

    Raises:
        ValueError: Even the smallest point costs more.
    """
    dropped: list[str] = []

    def drop_repeats(least: int) -> None:
        nonlocal campaign
        most, whole = campaign.repeats, campaign

        def costs(repeats: int) -> float:
            return cost(whole.model_copy(update={"repeats": repeats}))

        if cost(campaign) > budget and most > least and costs(least) < cost(campaign):
            counts = range(least, most)
            kept = counts[max(0, bisect_right(counts, budget, key=costs) - 1)]
            campaign = campaign.model_copy(update={"repeats": kept})
            dropped.append(f"repeats {most} -> {kept}")

    drop_repeats(MIN_REPEATS)
    sizes, beyond = sorted(campaign.world_sizes), list[str]()
    while len(sizes) > 1 and cost(campaign) > budget:
        beyond.append(str(sizes.pop()))
        campaign = campaign.model_copy(update={"world_sizes": tuple(sizes)})
    if beyond:
        dropped.append(f"world size{'s' if len(beyond) > 1 else ''} {', '.join(beyond)}")
    drop_repeats(1)
    if (needed := cost(campaign)) > budget:
        raise ValueError(
            f"a budget of {budget:g} {unit} is too small: one repeat of world size {sizes[0]} "
            f"takes {rounded_up(needed)}; raise --budget, or lower time"
        )
    return campaign, tuple(dropped)


def stored(results: Results) -> tuple[Campaign, Site]:
    """Return the campaign and the site that a folder's jobs were last sent for.

    Raises:
        ValueError: No job was sent from it.
    """
    campaign, path = results.claimed(), results.jobs_folder / SITE_FILE
    if campaign is None or not path.exists():
        # A submission that failed leaves a folder of jobs, too.
        ran_here = campaign is not None and not results.submissions_file.exists()
        todo = "run lockstep run again" if ran_here else "lockstep submit CAMPAIGN --site SITE"
        raise ValueError(f"{results.path}: no jobs were submitted from here; {todo}")
    # What a claim holds besides the campaign, and what older ones held.
    of_claim = ("launches", "left_out", "on_end")
    kept = {key: value for key, value in campaign.items() if key not in of_claim}
    try:
        return Campaign.model_validate(kept), stored_site(results)
    except ValueError:
        raise ValueError(
            f"{results.path}: campaign.json or jobs/{SITE_FILE} was changed by hand; run "
            "lockstep submit CAMPAIGN --site SITE"
        ) from None


def stored_site(results: Results) -> Site:
    """Return the site that a folder's scripts were last written for.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not as Lockstep wrote it.
    """
    return Site.model_validate(files.parse(files.content(results.jobs_folder / SITE_FILE)))


def write_scripts(todo: Work, *, force: bool) -> list[Path]:
    """Claim the folder, write the scripts of jobs and what they need, and return their paths.

    Raises:
        ValueError: The folder holds other results, campaign and site do not fit, or a script of
            that name is there and reads otherwise.
    """
    scripts = dict(zip([spec.script for spec in todo.jobs], todo.scripts(), strict=True))
    texts = {todo.results.jobs_folder / LIBRARY: library(), **scripts}
    for path, text in texts.items():
        if not force and path.exists() and files.text(path) != text:
            raise ValueError(f"{path} exists with other contents; give --force to replace it")
    todo.results.claim(todo.campaign, todo.launches, todo.results.below_floor())
    if todo.profiler is None:  # what a profile changes is not what measures
        site = todo.site.model_dump_json(by_alias=True, indent=1)
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
    # A profile measures nothing: what it runs never becomes a launch's journal.
    return [launch.name for launch in spec.launches if spec.kind != "profile"]


@dataclass(frozen=True)
class Sent:
    """A job that Slurm has taken."""

    spec: JobSpec
    id: str

    @property
    def output(self) -> Path:
        """Where its script's output goes; of an array, that of the first element."""
        number = f"{self.id}_0" if self.spec.kind == "array" else self.id
        return Path(self.spec.folder, "jobs", f"slurm-{number}.out")


def submit(todo: Work) -> Iterator[Sent]:
    """Send the jobs of what is missing, and give each one once Slurm has taken it.

    Raises:
        ValueError: Jobs of this folder may still write into it, or sbatch refuses the site.
        RuntimeError: Slurm does not answer.
    """
    with todo.results.alone():
        refuse_unfinished(todo.results)
        slurm.require("sbatch")  # before a record of a submission that cannot be made
        scripts = write_scripts(todo, force=True)
        moved = set_aside(todo.results, todo.again)  # only now: campaign and site may not fit
        ids: dict[str, str] = {}
        for spec, script in zip(todo.jobs, scripts, strict=True):
            try:
                ids[spec.name] = _send(todo.results, spec, script, wait_options(spec.after, ids))
            except ValueError as error:
                taken_back = _take_back(ids)
                for launch, aside in moved.items():
                    if not launch.exists():
                        aside.rename(launch)
                raise ValueError(f"{error}{taken_back}") from None
            yield Sent(spec, ids[spec.name])


def _take_back(ids: Mapping[str, str]) -> str:
    """Cancel the jobs submitted before a refused one, and return that as a phrase."""
    if not ids:
        return ""
    try:
        slurm.scancel(list(ids.values()))
    except RuntimeError as error:
        return f"; {', '.join(ids)} were submitted before and may still run, because {error}"
    return f"; jobs submitted before it were cancelled: {', '.join(ids)}"


def refuse_unfinished(results: Results) -> None:
    """Refuse to change a folder into which a job may still write.

    Raises:
        ValueError: There is one.
        RuntimeError: Slurm does not answer.
    """
    ours = {entry["uuid"] for entry in results.submissions()} | set(results.job_ids())
    unfinished = {}  # of an array each state once
    # Everybody's, and also where nothing was sent: that Slurm answers is to be known first.
    for job in slurm.queue().values():
        is_ours = {job.array_id, job.comment} & ours or results.is_ours(job.command)
        if not job.state.has_ended and is_ours:
            whose = "" if job.user == slurm.own_name() else f" of {job.user}"
            unfinished[f"job {job.array_id}{whose} ({job.state.name})"] = True
    if unfinished:
        raise ValueError(
            f"{listed(unfinished, MAX_NAMED)} may still write into {results.path}; wait until all "
            f"have ended, or run lockstep cancel {shlex.quote(str(results.path))}"
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
    record = journal.Journal(results.submissions_file)
    try:
        record.append({"uuid": comment, **facts})
        try:
            taken = slurm.sbatch(script, comment, *options)
        except ValueError as error:
            record.append({"uuid": comment, "refused": str(error)})
            raise
        where = {"cluster": taken.cluster} if taken.cluster else {}
        record.append({"uuid": comment, "id": taken.id, **where})
        return taken.id
    finally:
        record.close()


def flagged(results: Results, launches: Sequence[Launch]) -> list[str]:
    """Return the launches of which a case has a flag: they are no proposal evidence."""
    names = []
    for launch in launches:
        path = results.journal(launch.name)
        cases = journal.rebuild(path)["benchmarks"] if journal.outcomes(path) else []
        if any(case["extra_info"][KEY]["flags"] for case in cases):
            names.append(launch.name)
    return names


def set_aside(results: Results, names: Sequence[str]) -> dict[Path, Path]:
    """Move launches away, so that they are measured again; nothing is deleted.

    Returns:
        Where each launch's folder was -> where it is now.
    """
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    moved = {}
    for name in names:
        target = results.set_aside_folder / f"{name}-{now}"
        target.parent.mkdir(exist_ok=True)
        moved[results.launch(name)] = results.launch(name).rename(target)
    return moved
