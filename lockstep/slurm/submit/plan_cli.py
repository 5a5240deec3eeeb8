"""The command `lockstep plan`, with the memory that its steps took where they were measured."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.campaign.campaign import Campaign
from lockstep.core import sizes, studies
from lockstep.core.formats import DASH, clock, number
from lockstep.core.metrics import GIGA
from lockstep.core.studies import STUDIES, rows
from lockstep.slurm.submit.cli_options import (
    FoundSite,
    as_json_option,
    campaign_options,
    rounded_up,
)
from lockstep.slurm.submit.submit_cli import job_facts, say_dropped, work_of

if TYPE_CHECKING:
    from rich.table import Table

    from lockstep.report.load.results import Launch, Row
    from lockstep.slurm.associations import Excess
    from lockstep.slurm.submit.cli_options import Budget
    from lockstep.slurm.submit.submission import Work


# How full the site's partitions are, and when its jobs would start.
Prospects = tuple[list[dict[str, Any]], list[dict[str, Any]]]
TEXTS = ("job", "after", "cases of a launch")
HOW = "first submit the campaign with one repeat of its smallest world size"


@click.command()
@campaign_options
@click.option(
    "--overhead",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="FRACTION",
    help="Add this fraction for failures and repeated measurements: 0.3 for 30 %.",
)
@as_json_option
def plan(overhead: float, budget: "Budget | None", *, as_json: bool, **options: Any) -> None:
    """Show the jobs that CAMPAIGN still needs on a site, and what they may cost.

    On a login node it also shows which jobs exceed a limit of QOS or account, how full the
    partitions are and when the jobs would start; and the memory of the steps, if results in the
    folder of --to have measured it.

    \b
    Examples:
      lockstep plan campaign.toml --site site.toml
      lockstep plan campaign.toml --site site.toml --budget 100 --overhead 0.3
      lockstep plan campaign.toml --site site.toml --budget 500nh   node-hours
    """
    from lockstep.core.inputs import MAX_RATE

    if not overhead <= MAX_RATE:  # nan, too
        raise ValueError(
            f"--overhead {overhead:g} is not a fraction from 0 to {MAX_RATE}; write 0.3 for 30 %"
        )
    todo = work_of(**options, budget=budget, is_draft=True)
    say_dropped(todo, budget)
    over = _over_limits(todo)
    prospects = _prospects(todo) if over is not None else None
    memory = needs(todo.campaign, todo.results.path.parent, is_gpu=todo.share.is_gpu)
    if as_json:
        facts = _facts(todo, overhead, over, prospects) | {"memory": list(map(asdict, memory))}
        click.echo(json.dumps(facts, indent=1, allow_nan=False))
        return
    from rich.console import Console

    from lockstep.slurm.any_job import node_use

    console = Console(highlight=False)
    # All of it before the first line: what does not fit the site is refused alone.
    points, table, summary = _points(todo), _table(todo), _summary(todo, overhead, memory)
    console.print(points, "")
    if todo.jobs and any(one.peak_bytes for one in memory):
        console.print(_memory_table(memory), "")
    console.print(table, "")
    full, starts = prospects or ([], [])
    summary += [excess.text for excess in over or ()]
    for line in [*summary, *node_use.prospect_lines(full, starts)]:
        console.print(line, markup=False)
    if todo.jobs:
        keys, sending = ", ".join(todo.site.to_fill_in), _submission(budget=budget, **options)
        before = f"fill in {keys} in {options['site'].source}, then " if keys else ""
        click.echo(f"Next: {before}{sending}")


def _over_limits(todo: "Work") -> "list[Excess] | None":
    """Return the jobs over a limit of QOS or account; None where no Slurm of the site answers."""
    from lockstep.slurm import associations

    jobs = todo.jobs  # what does not fit the site is refused alone
    try:
        limits = associations.limits_of_jobs(todo.site)
    except RuntimeError as error:
        click.echo(f"Warning: cannot read the limits of QOS and account: {error}", err=True)
        return None
    return associations.excesses(jobs, todo.site, limits)


def _prospects(todo: "Work") -> Prospects | None:
    from lockstep.slurm.any_job import node_use

    ours = {todo.site.partition, *todo.site.partitions}
    try:
        full = [row for row in node_use.occupancy() if row["partition"] in ours]
        return full, node_use.starts(todo.jobs, todo.scripts())
    except RuntimeError as error:
        click.echo(f"Warning: cannot read how full the partitions are: {error}", err=True)
        return None


def _submission(
    campaign: str, site: FoundSite, root: Path, budget: "Budget | None", **options: Any
) -> str:
    """Return the command that sends what was planned."""
    options = {"to": None if root == Path("results") else root, **options}
    options["budget"] = budget and str(budget)
    more = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return shlex.join(["lockstep", "submit", campaign, "--site", site.source, *more])


def _facts(
    todo: "Work", overhead: float, over: "list[Excess] | None", prospects: Prospects | None
) -> dict[str, Any]:
    amounts = {"node_hours": todo.node_hours, "gpu_hours": todo.gpu_hours, "cost": todo.cost}
    more = {
        f"{name}_with_overhead": None if amount is None else amount * (1 + overhead)
        for name, amount in amounts.items()
    }
    full, starts = prospects or (None, None)
    return {
        "jobs": [job_facts(spec) for spec in todo.jobs],
        "points": [_point(todo, size) for size in sorted(todo.campaign.world_sizes)],
        "over_limits": None if over is None else [asdict(excess) for excess in over],
        "occupancy": full,
        "starts": starts,
        "dropped": todo.dropped,
        "currency": todo.site.currency,
        "to_fill_in": todo.site.to_fill_in,
        "overhead": overhead,
        **amounts,
        **more,
    }


def _point(todo: "Work", world_size: int) -> dict[str, int | None]:
    has_strong = "strong" in todo.campaign.studies
    shared = todo.campaign.measured_size().global_batch
    return {
        "world_size": world_size,
        "num_nodes": todo.share.num_nodes(world_size),
        "ranks_per_node": todo.share.on_node(world_size),
        "num_launches": sum(launch.world_size == world_size for launch in todo.missing),
        "strong_local_batch": shared // world_size if has_strong else None,
    }


def _points(todo: "Work") -> "Table":
    campaign = todo.campaign
    strong = ["batch a rank, strong"] if "strong" in campaign.studies else []
    table = _empty("ranks", "nodes", "ranks a node", "launches", *strong, "cases of a launch")
    counts = campaign.cases_of_studies()
    cases = ", ".join(f"{count} {study}" for study, count in counts.items())
    if campaign.jobs.allocation == "array":
        cases = f"1 of {campaign.num_cases():,}"
    for world_size in sorted(campaign.world_sizes):
        facts = [value for value in _point(todo, world_size).values() if value is not None]
        table.add_row(*(f"{value:,}" for value in facts), cases)
    return table


def _table(todo: "Work") -> "Table":
    on_gpus = ["GPU-hours"] if todo.gpu_hours else []
    table = _empty("job", "nodes", "time", "node-hours", *on_gpus, "after")
    for spec in todo.jobs:
        name = spec.name if spec.kind != "array" else f"{spec.name} x {spec.num_elements:,}"
        after = "all above" if spec.kind == "collect" else ", ".join(d.job for d in spec.after)
        hours = [rounded_up(spec.node_hours), *(rounded_up(spec.gpu_hours) for _ in on_gpus)]
        table.add_row(name, f"{spec.num_nodes:,}", clock(spec.time_s), *hours, after or "-")
    return table


def _empty(*headings: str) -> "Table":
    """Return a table without rows, as a plan has them."""
    from rich.table import Table

    table = Table(box=None, header_style="", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in TEXTS else "right", overflow="fold")
    return table


def _summary(todo: "Work", overhead: float, memory: "Sequence[Need]") -> list[str]:
    if not todo.jobs:
        return ["Nothing is missing."]
    campaign, size = todo.campaign, todo.campaign.measured_size()
    lines, batches = [todo.at_most], []
    if "strong" in campaign.studies:
        batches.append(f"Strong scaling shares a global batch of {size.global_batch:,}.")
    known = [study for study in campaign.studies if study in STUDIES]
    if any(rows(study, size)[0].get("local_batch") for study in known):
        batches.append(f"Each rank has a batch of {size.local_batch:,} in the other studies.")
    lines += [" ".join(batches)] if batches else []
    # How far the repeats are independent of each other, by the jobs that they are in.
    if campaign.repeats > 1 and campaign.jobs.share_job:
        lines.append("The repeats share their jobs (share_job), so they are not independent.")
    elif campaign.repeats > 1:
        what = {
            "ladder": "job",
            "job": "job for each world size",
            "array": "array element for each case",
        }[campaign.jobs.allocation]
        lines.append(f"Each repeat has its own {what}, so they are independent.")
    lines += _memory_lines(memory)
    if overhead:
        lines.append(f"With {overhead:.0%} overhead: {todo.amounts(1 + overhead)}.")
    if campaign.jobs.launch_time:
        lines.append(f"A job's time is {campaign.jobs.launch_time} for each of its launches.")
    return lines


def _memory_table(needs: "Sequence[Need]") -> "Table":
    """Return a line for each step: its batch, and the memory that it took where it was measured."""
    every = [one.step.settings for one in needs]
    names = [name for name in every[0] if len({str(one.get(name)) for one in every}) > 1]
    names = [name for name in names if name != "world_size"]  # which the ranks are
    head = (name.replace("_", " ") for name in names)
    table = _empty("ranks", *head, "batch a rank", "accumulation", "memory, GB")
    for one in needs:
        table.add_row(
            ", ".join(map(str, one.step.world_sizes)),
            *(str(one.step.settings.get(name, DASH)) for name in names),
            f"{one.step.local_batch:,}",
            str(one.step.accumulation),
            number(one.peak_bytes / GIGA) if one.peak_bytes else DASH,
        )
    return table


def _memory_lines(needs: "Sequence[Need]") -> list[str]:
    """Say what the memory is of, and how to find out what is not known of it."""
    if not needs:
        return []
    measured = [one for one in needs if one.peak_bytes]
    if not measured:
        return [f"No result in the folder of --to has this batch, so it may not fit: {HOW}."]
    said = []
    for name, total in dict.fromkeys((one.devices, one.total_bytes) for one in measured):
        has = f", which has {number(total / GIGA)} GB" if total else ""
        said.append(f"Memory is the peak of a rank on {name or 'an unknown device'}{has}.")
    if len(measured) < len(needs):
        said.append(f"Batches without a measured memory may not fit: {HOW}.")
    return said


# What a step's memory depends on beside its batch, and what holds where a case does not say.
USUAL: dict[str, Any] = {
    "workload": None,
    "precision": None,
    "strategy": "ddp",
    "activation_checkpointing": False,
}


@dataclass(frozen=True)
class Step:
    """A step that a campaign plans, or that was measured.

    Attributes:
        settings: What its memory depends on beside the batch.
        world_sizes: Where it is taken.
        local_batch: Samples of a rank and an update.
        accumulation: Parts that they are computed in, one after another.
    """

    settings: Mapping[str, Any]
    world_sizes: tuple[int, ...]
    local_batch: int
    accumulation: int = 1


@dataclass(frozen=True)
class Held:
    """What a measured step held, on the rank that held most.

    Attributes:
        step: What was measured.
        held_bytes: What PyTorch's allocator held of a GPU; on a CPU what was resident.
        total_bytes: What the GPU has; None where nobody says, and on a CPU.
        on_gpu: Whether it was of a GPU.
        alike: Devices, optimizer and source of the workload: equal where cases are compared.
        started: When its launch began.
    """

    step: Step
    held_bytes: int
    total_bytes: int | None = None
    on_gpu: bool = True
    alike: tuple[str | None, ...] = (None,)
    started: str = ""


@dataclass(frozen=True)
class Need:
    """What is known of the memory of a planned step.

    Attributes:
        step: What is planned.
        peak_bytes: Of the rank that held most at this batch; None where it was not measured.
        devices: What it was measured on; None where nobody says.
        total_bytes: What such a device has; None likewise.
    """

    step: Step
    peak_bytes: int | None = None
    devices: str | None = None
    total_bytes: int | None = None


def needs(campaign: Campaign, root: Path, *, is_gpu: bool) -> list[Need]:
    """Return what the steps of a campaign need, by the results of all campaigns in a folder."""
    steps = planned(campaign)
    jobs = [job for job in _measured(root) if job.on_gpu == is_gpu] if steps else []
    return [need(step, jobs) for step in steps]


def planned(campaign: Campaign) -> list[Step]:
    """Return the steps of a campaign's studies, alike ones once, with their world sizes."""
    steps: dict[str, Step] = {}
    for study in (one for one in campaign.studies if one in studies.STEPS):
        for row in studies.rows(study, campaign.measured_size()):
            for world_size in sorted(campaign.world_sizes):
                step = step_of(row, world_size)
                key = repr(replace(step, world_sizes=()))
                before = steps.get(key, step).world_sizes
                steps[key] = replace(step, world_sizes=tuple(sorted({*before, world_size})))
    return list(steps.values())


def step_of(factors: Mapping[str, Any], world_size: int, local_batch: int | None = None) -> Step:
    """Return the step of a case; give the local batch that it was measured at."""
    batch = local_batch or factors.get("local_batch")
    batch = batch or sizes.local_batch_of(factors["global_batch"], world_size)
    settings = {name: factors.get(name, usual) for name, usual in USUAL.items()}
    if settings["strategy"] == "fsdp":  # its ranks share parameters and the optimizer's state
        settings["world_size"] = world_size
    return Step(settings, (world_size,), batch, int(factors.get("accumulation") or 1))


def need(step: Step, jobs: Iterable[Held]) -> Need:
    """Return what a step took, by the newest results of it and those that are like them."""
    same = [
        job for job in jobs if replace(job.step, world_sizes=()) == replace(step, world_sizes=())
    ]
    if not same:
        return Need(step)
    alike = max(same, key=lambda job: job.started).alike
    same = [job for job in same if job.alike == alike]
    totals = [job.total_bytes for job in same if job.total_bytes is not None]
    peak_bytes = max(job.held_bytes for job in same)
    return Need(step, peak_bytes, alike[0], min(totals, default=None))


def _measured(root: Path) -> Iterator[Held]:
    from lockstep.report.load.reading import gather

    for file in sorted(root.glob("*/campaign.json")):
        # What is wrong with another campaign is no reason not to plan this one.
        with suppress(ValueError, OSError):
            results = gather([file.parent])
            launches = {launch.name: launch for launch in results.launches}
            for row in results.rows:
                yield from _held(row, launches.get(row.launch))


def _held(row: "Row", launch: "Launch | None") -> Iterator[Held]:
    """Yield what a row knows of its memory, where it is of a step."""
    from lockstep.core import record
    from lockstep.report.compute.quantities import of_ranks

    on_gpu = launch is not None and any(device.startswith("cuda") for device in launch.devices)
    held = row.peak_reserved_bytes if on_gpu else row.peak_memory_bytes
    if launch is None or row.study not in studies.STEPS or not row.local_batch or held is None:
        return
    basis = record.basis_of(row.details)
    devices = ", ".join(launch.provenance.get("device_names") or [])
    totals = of_ranks(row, "gpu_memory_total_bytes", "least")
    yield Held(
        step_of(row.factors, row.world_size, row.local_batch),
        held,
        total_bytes=int(min(totals)) if totals else None,
        on_gpu=on_gpu,
        alike=(devices or None, basis.optimizer if basis else None, row.workload_sha256),
        started=row.started,
    )
