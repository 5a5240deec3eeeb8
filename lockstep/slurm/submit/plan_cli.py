"""The command `lockstep plan`, with the memory of steps as earlier results measured it."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from lockstep.campaign.campaign import Campaign
from lockstep.core import sizes, studies
from lockstep.core.files import default_folder
from lockstep.core.formats import DASH, clock, counted, listed, number
from lockstep.core.inputs import MAX_RATE
from lockstep.core.metrics import GIGA
from lockstep.core.studies import LADDERS, STUDIES, rows
from lockstep.slurm import associations
from lockstep.slurm import client as slurm
from lockstep.slurm.any_job.held import moment
from lockstep.slurm.associations import Excess
from lockstep.slurm.submit.cli_options import Budget, as_json_option, campaign_options, round_up
from lockstep.slurm.submit.job_spec import JobSpec
from lockstep.slurm.submit.submission import Work
from lockstep.slurm.submit.submit_cli import job_facts, work_of

MAX_SHAPES = 4  # a plan asks Slurm for the start of so many shapes of jobs
# Rows of `read_occupancy` and rows of `read_starts`.
Prospects = tuple[list[dict[str, Any]], list[dict[str, Any]]]
TEXTS = ("job", "after", "cases per launch")
HOW = "first submit one repeat of the smallest world size"
INDEPENDENT = {
    "ladder": "The repeats are independent: each has its own job.",
    "job": "The repeats are independent: each has its own job for each world size.",
    "array": "The repeats are independent: each has its own array element for each case.",
}


@click.command()
@campaign_options
@click.option(
    "--overhead",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="FRACTION",
    help="Add this fraction of the hours for failures and repeated measurements: 0.3 for 30 %.",
)
@as_json_option
def plan(overhead: float, budget: Budget | None, *, as_json: bool, **options: Any) -> None:
    """Show the jobs that CAMPAIGN still needs on a site, and what they may cost.

    On a login node the command also shows which jobs exceed a limit of QOS or account, how full the
    partitions are and when the jobs would start. If the folder of --to has earlier results, the
    command shows how much memory each step needed in these results.

    \b
    Examples:
      lockstep plan campaign.toml --site site.toml
      lockstep plan campaign.toml --site site.toml --budget 100 --overhead 0.3
      lockstep plan campaign.toml --site site.toml --budget 500nh   node-hours
    """
    if not overhead <= MAX_RATE:  # nan, too
        raise ValueError(
            f"--overhead {overhead:g} is not a fraction from 0 to {MAX_RATE}; write 0.3 for 30 %"
        )
    todo = work_of(**options, budget=budget, is_draft=True, is_sent=False)
    over, prospects = _ask_slurm(todo)
    memory = needs(todo.campaign, todo.results.path.parent, is_gpu=todo.share.is_gpu)
    if as_json:
        facts = _facts(todo, overhead, over, prospects) | {
            "memory": [need._asdict() for need in memory]
        }
        click.echo(json.dumps(facts, indent=1, allow_nan=False))
        return
    console = Console(highlight=False)
    console.print(_points(todo), "")
    if todo.jobs and any(need.peak_bytes for need in memory):
        console.print(_memory_table(memory), "")
    console.print(_jobs(todo), "")
    summary = _summary(todo, overhead, memory)
    full, starts = prospects or ([], [])
    summary += [excess.text for excess in over or ()]
    for line in [*summary, *prospect_lines(full, starts)]:
        console.print(line, markup=False)
    if todo.jobs:
        keys, site = ", ".join(todo.site.to_fill_in), options["site"]
        before = f"fill in {keys} in {site}, then " if keys else ""
        root = None if options["root"] == default_folder("results") else options["root"]
        more = {"to": root, "partition": options["partition"], "budget": budget and budget.text}
        words = ["lockstep", "submit", options["campaign"], "--site", site]
        words += [f"--{name}={value}" for name, value in more.items() if value is not None]
        commands = {"Next": words}
        if todo.first and any(need.peak_bytes is None for need in memory):
            first = [*words, f"--budget={todo.least_budget()}"]  # the last --budget counts
            commands = {"First": first, "Next": words}
        for word, command in commands.items():
            click.echo(f"{word}: {before}{shlex.join(command)}")


def _ask_slurm(todo: Work) -> tuple[list[Excess] | None, Prospects | None]:
    """Return the jobs over a limit, and the prospects; None if Slurm does not answer."""
    jobs = todo.jobs  # jobs that do not fit the site are refused before Slurm is asked
    over, topic = None, "the limits of QOS and account"
    try:
        over = associations.excesses(jobs, todo.site, associations.limits_of_jobs(todo.site))
        topic = "how full the partitions are"
        ours = {todo.site.partition, *todo.site.partitions}
        full = [row for row in read_occupancy() if row["partition"] in ours]
        return over, (full, read_starts(jobs, todo.scripts()))
    except RuntimeError as error:
        click.echo(f"Warning: cannot read {topic}: {error}", err=True)
        return over, None


def _facts(
    todo: Work, overhead: float, over: list[Excess] | None, prospects: Prospects | None
) -> dict[str, Any]:
    amounts = todo.amounts
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


def _point(todo: Work, world_size: int) -> dict[str, int | None]:
    shared = _global_batch(todo.campaign)
    return {
        "world_size": world_size,
        "num_nodes": todo.share.num_nodes(world_size),
        "ranks_per_node": todo.share.ranks_on_node(world_size),
        "num_launches": sum(launch.world_size == world_size for launch in todo.missing),
        "strong_local_batch": shared // world_size if shared else None,
    }


def _global_batch(campaign: Campaign) -> int | None:
    """Return the samples that the ranks of a ladder share, if one of its ladders does so."""
    size = campaign.measured_size()
    ladders = (study for study in campaign.studies if study in LADDERS)
    return next(filter(None, (rows(study, size)[0].get("global_batch") for study in ladders)), None)


def _points(todo: Work) -> Table:
    campaign = todo.campaign
    strong = ["batch per rank (strong)"] if _global_batch(campaign) else []
    table = _empty("ranks", "nodes", "ranks per node", "launches", *strong, "cases per launch")
    counts = campaign.cases_of_studies()
    cases = ", ".join(f"{count} {study}" for study, count in counts.items())
    if campaign.jobs.allocation == "array":
        cases = f"1 of {campaign.num_cases():,}"
    for world_size in sorted(campaign.world_sizes):
        facts = [value for value in _point(todo, world_size).values() if value is not None]
        table.add_row(*(f"{value:,}" for value in facts), cases)
    return table


def _jobs(todo: Work) -> Table:
    on_gpus = ["GPU-hours"] if todo.amounts["gpu_hours"] else []
    table = _empty("job", "nodes", "time", "node-hours", *on_gpus, "after")
    for spec in todo.jobs:
        name = spec.name if spec.kind != "array" else f"{spec.name} x {spec.num_elements:,}"
        after = "all above" if spec.kind == "collect" else ", ".join(d.job for d in spec.after)
        hours = [round_up(spec.node_hours), *(round_up(spec.gpu_hours) for _ in on_gpus)]
        table.add_row(name, f"{spec.num_nodes:,}", clock(spec.time_s), *hours, after or "-")
    return table


def _empty(*headings: str) -> Table:
    table = Table(box=None, header_style="", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in TEXTS else "right", overflow="fold")
    return table


def _summary(todo: Work, overhead: float, memory: "Sequence[Need]") -> list[str]:
    if not todo.jobs:
        return ["Nothing is missing."]
    campaign, size = todo.campaign, todo.campaign.measured_size()
    lines, batches = [todo.at_most], []
    if shared := _global_batch(campaign):
        batches.append(f"Strong scaling divides a global batch of {shared:,} among the ranks.")
    known = [study for study in campaign.studies if study in STUDIES]
    if any(rows(study, size)[0].get("local_batch") for study in known):
        batches.append(
            f"In studies other than strong scaling, each rank has a batch of {size.local_batch:,}."
        )
    lines += [" ".join(batches)] if batches else []
    if campaign.repeats > 1 and campaign.jobs.share_job:
        lines.append(
            "The repeats share their jobs (share_job), so the repeats are not independent."
        )
    elif campaign.repeats > 1:
        lines.append(INDEPENDENT[campaign.jobs.allocation])
    lines += _memory_lines(memory, f"; {HOW}" if todo.first else "")
    if overhead:
        lines.append(f"With {overhead:.0%} overhead: {todo.amounts_text(1 + overhead)}.")
    if campaign.jobs.launch_time:
        lines.append(f"Each job requests {campaign.jobs.launch_time} for each of its launches.")
    return lines


def _memory_table(needs: "Sequence[Need]") -> Table:
    settings = [need.step["settings"] for need in needs]
    names = [name for name in settings[0] if len({str(own.get(name)) for own in settings}) > 1]
    names = [name for name in names if name != "world_size"]  # the column of ranks has it
    head = (name.replace("_", " ") for name in names)
    table = _empty("ranks", *head, "batch per rank", "accumulation", "memory, GB")
    for need, own in zip(needs, settings, strict=True):
        table.add_row(
            ", ".join(map(str, need.step["world_sizes"])),
            *(str(own.get(name, DASH)) for name in names),
            f"{need.step['local_batch']:,}",
            str(need.step["accumulation"]),
            number(need.peak_bytes / GIGA) if need.peak_bytes else DASH,
        )
    return table


def _memory_lines(needs: "Sequence[Need]", how: str) -> list[str]:
    """Return sentences about the measured devices, and `how` to measure the other batches."""
    measured = [need for need in needs if need.peak_bytes]
    if needs and not measured:
        return [
            (
                "No result in the folder of --to has this batch, so the batch may not fit in "
                f"memory{how}."
            )
        ]
    lines = []
    for name, total in dict.fromkeys((need.devices, need.total_bytes) for need in measured):
        has = f", which has {number(total / GIGA)} GB" if total else ""
        lines.append(
            "The column memory shows the peak memory of a rank on "
            f"{name or 'an unknown device'}{has}."
        )
    if len(measured) < len(needs):
        lines.append(f"Batches whose memory was not measured may not fit in memory{how}.")
    return lines


# Settings that change the memory of a step -> their values in a case that does not set them.
USUAL: dict[str, Any] = {
    "workload": None,
    "precision": None,
    "strategy": "ddp",
    "activation_checkpointing": False,
    "optimizer": "sgd",
    "fused": None,
}


class Step(NamedTuple):
    """The facts that the memory of a step depends on."""

    settings: tuple[tuple[str, Any], ...]
    local_batch: int
    accumulation: int


class Measured(NamedTuple):
    """The memory of a measured step, on the rank that used the most."""

    peak_bytes: int  # reserved by PyTorch's allocator on a GPU; resident memory on a CPU
    total_bytes: int | None  # memory of the GPU; None if unknown, and on a CPU
    # Devices, optimizer and source of the workload; only steps that agree in these are compared.
    alike: tuple[str | None, ...] = (None,)
    started: str = ""


class Need(NamedTuple):
    """The memory of a planned step, as measured at this batch; None if unknown."""

    step: dict[str, Any]  # settings, world_sizes, local_batch and accumulation
    peak_bytes: int | None
    devices: str | None
    total_bytes: int | None


def step_of(factors: Mapping[str, Any], world_size: int, local_batch: int | None = None) -> Step:
    """Return the step of a case; `local_batch` is that of its measurement, if there is one."""
    batch = local_batch or factors.get("local_batch")
    batch = batch or sizes.local_batch_of(factors["global_batch"], world_size)
    settings = {name: factors.get(name, usual) for name, usual in USUAL.items()}
    if settings["strategy"] == "fsdp":  # ranks share parameters and the optimizer's state
        settings["world_size"] = world_size
    return Step(tuple(settings.items()), batch, int(factors.get("accumulation") or 1))


def needs(campaign: Campaign, root: Path, *, is_gpu: bool) -> list[Need]:
    """Return the memory of a campaign's steps, from the results of all campaigns in a folder.

    Only the newest measurement of a step counts, and those comparable with it.
    """
    planned: dict[Step, set[int]] = {}
    for study in (study for study in campaign.studies if study in studies.STEPS):
        for row in studies.rows(study, campaign.measured_size()):
            for world_size in sorted(campaign.world_sizes):
                planned.setdefault(step_of(row, world_size), set()).add(world_size)
    measured = read_memory(root, is_gpu=is_gpu) if planned else {}
    memory = []
    for step, world_sizes in planned.items():
        same = measured.get(step, [])
        alike = max(same, key=lambda own: own.started).alike if same else (None,)
        same = [own for own in same if own.alike == alike]
        peak_bytes = max((own.peak_bytes for own in same), default=None)
        totals = [own.total_bytes for own in same if own.total_bytes is not None]
        least = min(totals, default=None)
        facts: dict[str, Any] = {
            "settings": dict(step.settings), "world_sizes": sorted(world_sizes),
            "local_batch": step.local_batch, "accumulation": step.accumulation,
        }  # fmt: skip
        memory.append(Need(facts, peak_bytes, alike[0], least))
    return memory


def read_memory(root: Path, *, is_gpu: bool) -> dict[Step, list[Measured]]:
    """Return the memory of all steps that campaigns in a folder measured on GPUs, or on CPUs."""
    from lockstep.core import record
    from lockstep.report.compute.quantities import rank_values
    from lockstep.report.load.reading import gather

    measured: dict[Step, list[Measured]] = {}
    for file in sorted(root.glob("*/campaign.json")):
        try:
            results = gather([file.parent])
        except (ValueError, OSError):
            continue  # an error in another campaign does not prevent this plan
        launches = {launch.name: launch for launch in results.launches}
        for row in results.rows:
            launch = launches.get(row.launch)
            if launch is None or row.study not in studies.STEPS or not row.local_batch:
                continue
            on_gpu = any(device.startswith("cuda") for device in launch.devices)
            peak_bytes = row.peak_reserved_bytes if on_gpu else row.peak_memory_bytes
            if on_gpu != is_gpu or peak_bytes is None:
                continue
            basis = record.basis_of(row.details)
            devices = ", ".join(launch.provenance.get("device_names") or [])
            alike = (devices or None, basis.optimizer if basis else None, row.workload_sha256)
            totals = rank_values(row, "gpu_memory_total_bytes", "least")
            total_bytes = int(min(totals)) if totals else None
            step = step_of(row.factors, row.world_size, row.local_batch)
            own = Measured(peak_bytes, total_bytes, alike, row.started)
            measured.setdefault(step, []).append(own)
    return measured


def read_occupancy() -> list[dict[str, Any]]:
    """Return how full each partition is, by one sinfo and one squeue.

    `num_other` counts nodes that are down, drained or reserved; `num_waiting` counts pending jobs,
    an array as one.
    """
    states = slurm.ask("sinfo", "--noheader", "--format=%R|%F")  # allocated/idle/other/total
    queued = slurm.squeue(("partition",), "--states=PENDING")
    waiting = [name for job in queued for name in job.partition.strip().split(",")]
    rows = {}
    for line in states.splitlines():
        name, _, counts = line.strip().rpartition("|")
        numbers = [slurm.count(number) for number in counts.split("/")]
        if len(numbers) == 4 and None not in numbers:
            keys = ("num_used", "num_idle", "num_other", "num_nodes")
            rows[name] = {"partition": name, "num_waiting": waiting.count(name)} | dict(
                zip(keys, numbers, strict=True)
            )
    return list(rows.values())


def read_starts(specs: Sequence[JobSpec], scripts: Sequence[str]) -> list[dict[str, Any]]:
    """Ask Slurm when jobs without dependencies would start, once per shape (nodes and time).

    Returns:
        For each shape the names of its `jobs`, its `num_nodes`, and the start `at`, in seconds
        since the epoch.
    """
    shapes: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for spec, script in zip(specs, scripts, strict=True):
        if not spec.after:
            shapes.setdefault((spec.num_nodes, spec.time_s), []).append((spec.name, script))
    rows = []
    for (num_nodes, _), alike in list(shapes.items())[:MAX_SHAPES]:
        at = slurm.would_start(alike[0][1])
        if at is not None:
            rows.append({"jobs": [name for name, _ in alike], "num_nodes": num_nodes, "at": at})
    return rows


def prospect_lines(
    full: Sequence[Mapping[str, Any]], starts: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    for row in full:
        yield (
            f"Partition {row['partition']}: {row['num_idle']:,} of {row['num_nodes']:,} nodes "
            f"are idle, {row['num_used']:,} in use, {row['num_other']:,} not in service; "
            f"{row['num_waiting']:,} jobs are pending."
        )
    for start in starts:
        nodes, names = counted(start["num_nodes"], "node"), listed(start["jobs"], 3)
        yield f"If you submit now, {names} ({nodes}) would start {moment(start['at'])}."
