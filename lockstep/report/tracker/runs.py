"""The runs of a results folder: its campaign, each launch, and each training run of a launch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.core import files, journal, locks, metrics
from lockstep.core.record import KEY, case_name
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.load import sources
from lockstep.report.load.reading import gather
from lockstep.report.load.results import Launch, Results, Row
from lockstep.report.tracker.tracked import (
    LONGEST_NAME,
    EmptyError,
    Metric,
    Run,
    Status,
    metric_name,
    milliseconds,
    parameters,
    read_artifacts,
    texts,
)

OF_LAUNCH = ("world_size", "num_nodes", "repeat", "studies", "size", "part", "order_seed")
OF_CAMPAIGN = ("studies", "tests", "world_sizes", "repeats", "size", "device", "workload",
    "precision", "global_batch", "local_batch", "factors")  # fmt: skip
SOFTWARE = ("lockstep_version", "git_commit", "project_commit", "project_dirty", "torch", "cuda",
    "nccl", "driver", "image_sha256")  # fmt: skip
CAMPAIGN_FILES = ("report.html", sources.CAMPAIGN, "accounting.json")
WORST_FIRST: tuple[Status, ...] = ("RUNNING", "KILLED", "FAILED", "FINISHED")
# Field of an epoch -> the metric's name, with its unit if it has one.
EPOCH = {
    "loss": "train_loss", "train_accuracy": "train_accuracy", "validation_loss": "validation_loss",
    "accuracy": "validation_accuracy", "lr": "lr", "time_s": "epoch_s",
    "samples_per_s": "throughput_samples_per_s", "validation_s": "validation_s",
    "checkpoint_s": "checkpoint_s", "peak_memory_bytes": "peak_memory_bytes",
}  # fmt: skip
# (launch, case) -> the efficiency of its point, and its number of launches.
Efficiencies = Mapping[tuple[str, str], tuple[float, int]]


def read_runs(folder: Path) -> tuple[list[Run], tuple[str, ...]]:
    """Return the runs of a campaign, or of a folder of trainings, and why results gave no run.

    Raises:
        EmptyError: The folder holds no results yet.
        ValueError: The results cannot be read.
    """
    runs: list[Run] = []
    unread: list[str] = []
    for campaign in sources.folders(folder):
        try:
            list(sources.find_files(campaign))
        except ValueError as error:
            raise EmptyError(str(error)) from None
        results = gather([campaign])
        unread += map(str, results.unread)
        try:
            efficiencies = _efficiencies(results)
        except ValueError as error:  # launches in conflict can still be sent
            unread.append(str(error))
            efficiencies = {}
        own: list[Run] = []
        for launch in results.launches:
            if launch.facts:
                rows = [row for row in results.rows if row.launch == launch.name]
                own += _launch_runs(launch, rows, results, campaign, efficiencies)
            else:
                why = "no launch of Lockstep wrote this file, so it has no run to export"
                unread.append(f"{launch.path}: {why}")
        if own:
            runs += [_campaign_run(campaign, results, own), *own]
    return runs, tuple(unread)


def _efficiencies(results: Results) -> Efficiencies:
    """Return the efficiencies that the page shows, each with its number of launches.

    The number is the metric's step, so a changed efficiency is sent again after more repeats.
    """
    return {
        (row.launch, row.recorded_case): (
            point.parallel_efficiency, len({id(r) for r in (*point.rows, *curve.base.rows)})
        )
        for curve in evaluate(results).series if curve.is_compared
        for point in curve.points if not point.blocked_by
        for row in point.rows if not row.has_smaller_batch
    }  # fmt: skip


def _launch_runs(
    launch: Launch, rows: Sequence[Row], results: Results, folder: Path, efficiencies: Efficiencies
) -> list[Run]:
    facts, provenance = launch.facts, launch.provenance
    own = launch.path.with_name(sources.JOURNAL)
    lines = journal.current(journal.read(own)) if own.exists() else []
    name = str(facts.get("launch") or launch.name)
    session: dict[str, Any] = next(iter(facts.get("sessions") or ()), {})
    started = str(session.get("started") or facts.get("started"))
    started_ms = milliseconds(started)
    times = [line["time"] for line in lines if "time" in line]
    ended_ms = milliseconds(times[-1]) if times else launch.path.stat().st_mtime_ns // 1_000_000
    status = _status(launch, is_held=bool(lines) and locks.is_held(own))
    experiment = str(results.campaign.get("name") or facts.get("campaign") or folder.name)
    # A launch's files still grow while it runs.
    kept = () if status == "RUNNING" else (sources.RESULT, "log.txt")
    slurm, hosts = provenance.get("slurm") or {}, dict.fromkeys(launch.hosts)
    on_gpus = any(device.startswith("cuda") for device in launch.devices)
    run = Run(
        key=f"{experiment}/{name}/{started}", experiment=experiment, name=name, kind="launch",
        status=status, started_ms=started_ms,
        ended_ms=None if status == "RUNNING" else ended_ms,
        params=texts(
            {fact: facts.get(fact) for fact in OF_LAUNCH} | (facts.get("measured_with") or {})
        ),
        facts=texts({
            "slurm_job_id": slurm.get("SLURM_JOB_ID"),
            "node": provenance.get("hostname"),
            "nodes": slurm.get("SLURM_JOB_NODELIST") or ",".join(hosts),
            "seed": provenance.get("seed"),
            "gpu_type": ", ".join(provenance.get("device_names") or []) if on_gpus else None,
            "launch": name,
        } | {fact: provenance.get(fact) for fact in SOFTWARE}),
        metrics=tuple(_metrics(launch, rows, lines, started_ms, efficiencies)),
        artifacts=read_artifacts(launch.path.parent, kept),
    )  # fmt: skip
    return [run, *_training_runs(run, launch, rows, lines)]


def _status(launch: Launch, *, is_held: bool) -> Status:
    if launch.complete:
        return "FINISHED"
    if is_held:
        return "RUNNING"
    facts = launch.facts
    ended = {end["case"] for kind in ("failed", "skipped") for end in facts.get(kind) or ()}
    is_through = len(facts["expected"]) <= len(ended) + len(launch.entries)
    return "FAILED" if is_through and not facts.get("in_flight") else "KILLED"


def _blocks(launch: Launch, rows: Sequence[Row]) -> dict[str, tuple[Row, dict[str, Any]]]:
    """Return case -> its row and its record in the file, with its full name."""
    known = {row.recorded_case: row for row in rows}
    return {
        case: (known[case], entry["extra_info"][KEY] | {"fullname": entry.get("fullname")})
        for entry in launch.entries
        if (case := case_name(entry)) in known and KEY in (entry.get("extra_info") or {})
    }


def _metrics(
    launch: Launch,
    rows: Sequence[Row],
    lines: Sequence[Mapping[str, Any]],
    started_ms: int,
    efficiencies: Efficiencies,
) -> list[Metric]:
    """Return each case's rounds, its rate and its point's efficiency.

    Lines of older journals have no time; then a metric has the time of the launch's start.
    """
    times_ms = {
        line["benchmark"]["fullname"]: milliseconds(line["time"])
        for line in lines
        if line.get("kind") == "case" and "time" in line
    }
    made: list[Metric] = []
    for case, (row, block) in _blocks(launch, rows).items():
        program = row.program.get("metrics") or {}
        series: dict[str, list[Any]] = {
            f"{name}_{known['unit'].replace('/', '_per_')}": known["values"]
            for name, known in program.items()
        }
        if not metrics.gives_rate(program):  # a program that gives a rate has no step to time
            rounds = metrics.slowest_rank(block["rank_round_s"])
            series["step_s"] = [seconds / block["steps_per_round"] for seconds in rounds]
        unit = row.sample_unit if program else "samples"
        series |= {
            f"throughput_{unit}_per_s": [row.rate],
            "mfu": [] if row.mfu is None else [row.mfu],
            "peak_memory_bytes": [row.peak_memory_bytes] if row.peak_memory_bytes else [],
        }
        time_ms = times_ms.get(block["fullname"], started_ms)
        points = [(name, step, v) for name, own in series.items() for step, v in enumerate(own)]
        if known := efficiencies.get((launch.name, case)):
            points.append(("parallel_efficiency", known[1], known[0]))
        made += [
            Metric(metric_name(case, name), float(v), step, time_ms) for name, step, v in points
        ]
    return made


def _campaign_run(folder: Path, results: Results, runs: Sequence[Run]) -> Run:
    states = {run.status for run in runs}
    status = next(state for state in WORST_FIRST if state in states)
    ends = [run.ended_ms for run in runs if run.ended_ms is not None]
    first = min(runs, key=lambda run: run.started_ms)
    return Run(
        key=f"{first.experiment}/{first.started_ms}", experiment=first.experiment,
        name=first.experiment, kind="campaign", status=status, started_ms=first.started_ms,
        ended_ms=None if status == "RUNNING" else max(ends, default=None),
        params=texts({name: results.campaign.get(name) for name in OF_CAMPAIGN}),
        artifacts=read_artifacts(folder, CAMPAIGN_FILES),
    )  # fmt: skip


def _training_runs(
    run: Run, launch: Launch, rows: Sequence[Row], lines: Sequence[Mapping[str, Any]]
) -> list[Run]:
    """Return a run for each training case of a launch, with the epochs trained so far."""
    epochs: dict[str, dict[int, dict[str, Any]]] = {}
    failed = set()
    for line in lines:
        case = str(line.get("case", "")).partition("::")[2] or str(line.get("case"))
        if line.get("kind") == "epoch":  # an epoch that is trained again gives the same row
            epochs.setdefault(case, {}).setdefault(int(line["row"]["epoch"]), line["row"])
        elif line.get("kind") == "fail":
            failed.add(case)
    blocks = {
        case: block for case, (_, block) in _blocks(launch, rows).items() if block.get("training")
    }
    for case, block in blocks.items():
        for row in block["training"]["rows"]:
            epochs.setdefault(case, {}).setdefault(int(row["epoch"]), row)
    expected = {str(case).partition("::")[2] for case in launch.facts.get("expected") or ()}
    labels = _labels(expected | set(epochs))
    made = []
    for case, known in epochs.items():
        status: Status = (
            "FINISHED" if case in blocks else "FAILED" if case in failed
            else "KILLED" if run.status == "FINISHED" else run.status
        )  # fmt: skip
        block = blocks.get(case, {})
        training = block.get("training") or {}
        own = [known[epoch] for epoch in sorted(known)]
        ends_ms = {row["epoch"]: milliseconds(row["ended"]) for row in own}
        values = [
            Metric(name, float(row[column]), row["epoch"], ends_ms[row["epoch"]])
            for column, name in EPOCH.items()
            for row in own
            if row.get(column) is not None
        ]
        steps = launch.path.parent / str(training.get("steps_file") or "")
        facts = {"case": case, "seed": training.get("seed")} | {
            f"checkpoint_{name}": path
            for name, path in (training.get("checkpoints") or {}).items()
            if name != "kept"
        }
        began_ms = min(ends_ms.values()) - round(1000 * own[0]["time_s"])
        made.append(replace(
            run, key=f"{run.key}/{case}", name=f"{run.name} {labels[case]}"[:LONGEST_NAME],
            kind="training", status=status, started_ms=max(run.started_ms, began_ms),
            ended_ms=None if status == "RUNNING" else ends_ms[own[-1]["epoch"]],
            params=run.params | texts(block.get("factors") or {}),
            facts=run.facts | texts(facts), artifacts=(),
            metrics=(*values, *_updates(steps, ends_ms)),
        ))  # fmt: skip
    return made


def _labels(cases: set[str]) -> dict[str, str]:
    """Return case -> the parameters that differ from other cases of its test."""
    tests: dict[str, list[str]] = {}
    for case in cases:
        tests.setdefault(case.partition("[")[0], []).append(case)
    labels = {}
    for test, own in tests.items():
        shared = set.intersection(*(set(parameters(case)) for case in own))
        for case in own:
            differing = [part for part in parameters(case) if part not in shared]
            labels[case] = " ".join(differing) or test.removeprefix("test_")
    return labels


def _updates(path: Path, ends_ms: Mapping[int, int]) -> list[Metric]:
    """Return the loss and learning rate of each update, with the time at which its epoch ended."""
    lines = files.text(path).splitlines() if path.is_file() else []
    steps = {step["step"]: step for step in map(json.loads, lines) if step["epoch"] in ends_ms}
    return [
        Metric(f"update_{name}", float(step[name]), number, ends_ms[step["epoch"]])
        for name in ("loss", "lr")
        for number, step in sorted(steps.items())
    ]
