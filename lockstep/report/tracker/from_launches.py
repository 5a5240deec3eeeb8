"""From a campaign's folder to runs: the campaign, its launches, and the training runs in them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from lockstep.core import files, journal, locks, metrics
from lockstep.core.record import KEY, case_name
from lockstep.report.compute.evaluation import evaluate_folder
from lockstep.report.load import sources
from lockstep.report.tracker.tracked import (
    LONGEST_NAME,
    Artifact,
    EmptyError,
    Found,
    Metric,
    Run,
    Status,
    metric_name,
    milliseconds,
    modified_ms,
    parameters,
    texts,
)

OF_LAUNCH = ("world_size", "num_nodes", "repeat", "studies", "size", "part", "order_seed")
OF_CAMPAIGN = ("studies", "tests", "world_sizes", "repeats", "size", "device", "workload",
    "precision", "global_batch", "local_batch", "factors")  # fmt: skip
SOFTWARE = ("lockstep_version", "git_commit", "project_commit", "project_dirty", "torch", "cuda",
    "nccl", "driver", "image_sha256")  # fmt: skip
CAMPAIGN_FILES = ("report.html", sources.CAMPAIGN, "accounting.json")
LOG = "log.txt"
EFFICIENCY = "parallel_efficiency"
# field of an epoch's row -> the metric's name, with the unit where it has one
EPOCH = {
    "loss": "train_loss",
    "train_accuracy": "train_accuracy",
    "validation_loss": "validation_loss",
    "accuracy": "validation_accuracy",
    "lr": "lr",
    "time_s": "epoch_s",
    "samples_per_s": "throughput_samples_per_s",
    "validation_s": "validation_s",
    "checkpoint_s": "checkpoint_s",
    "peak_memory_bytes": "peak_memory_bytes",
}


@dataclass(frozen=True)
class Launch:
    """A launch as its files tell it.

    Attributes:
        path: Its journal, or the JSON where that is all there is.
        document: The pytest-benchmark document.
        lines: Its journal, as far as the lines belong together; none without one.
    """

    path: Path
    document: dict[str, Any]
    lines: tuple[dict[str, Any], ...] = ()

    @cached_property
    def block(self) -> dict[str, Any]:
        """The facts of the launch."""
        return dict(self.document.get(KEY) or {})

    @property
    def provenance(self) -> dict[str, Any]:
        """Where it comes from."""
        return self.block.get("provenance") or {}

    @property
    def name(self) -> str:
        """The launch's name."""
        return str(self.block.get("launch") or self.path.parent.name)

    @cached_property
    def started(self) -> str:
        """When its first session began, as ISO 8601."""
        first: dict[str, Any] = next(iter(self.block.get("sessions") or ()), {})
        return str(first.get("started") or self.block.get("started") or self.document["datetime"])

    @cached_property
    def last_ms(self) -> int:
        """When its journal was last written to."""
        times = [line["time"] for line in self.lines if "time" in line]
        return milliseconds(times[-1]) if times else modified_ms(self.path)

    @cached_property
    def status(self) -> Status:
        """How it ended, or that it runs."""
        if self.block.get("complete", True):
            return "FINISHED"
        if self.lines and locks.is_held(self.path.with_name(sources.JOURNAL)):
            return "RUNNING"
        ended = {
            each["case"] for kind in ("failed", "skipped") for each in self.block.get(kind) or ()
        }
        is_through = len(self.block["expected"]) <= len(ended) + len(self.document["benchmarks"])
        return "FAILED" if is_through and not self.block.get("in_flight") else "KILLED"

    @cached_property
    def times_ms(self) -> dict[str, int]:
        """Full name of each measured case -> when it ended, where the journal says so."""
        return {
            line["benchmark"]["fullname"]: milliseconds(line["time"])
            for line in self.lines
            if line.get("kind") == "case" and "time" in line
        }

    @cached_property
    def measured(self) -> dict[str, dict[str, Any]]:
        """Case -> record of each entry that is ours, with the full name added."""
        found = {}
        for entry in self.document["benchmarks"]:
            if block := (entry.get("extra_info") or {}).get(KEY):
                found[case_name(entry)] = block | {"fullname": entry.get("fullname")}
        return found


def of_campaign(folder: Path) -> Found:
    """Return the runs of a folder that holds a campaign's launches.

    Raises:
        EmptyError: The folder holds none.
        ValueError: `campaign.json` is broken.
    """
    campaign = sources.read_campaign(folder)
    launches, unread = [], []
    try:
        paths = list(sources.find_files(folder))
    except ValueError as error:
        raise EmptyError(str(error)) from None
    for source in paths:
        try:
            launches.append(_read(source))
        except ValueError as error:
            unread.append(str(error))
    own = _Campaign(folder, campaign, launches)
    try:
        own = replace(own, efficiencies=_efficiencies(folder) if launches else {})
    except ValueError as error:  # a file that no report reads; what can be sent is
        unread.append(str(error))
    runs = [run for launch in launches for run in own.runs(launch)]
    whole = _whole(folder, campaign, runs) if runs else []
    return Found((*whole, *runs), tuple(unread))


def _efficiencies(folder: Path) -> dict[tuple[str, str], tuple[float, int]]:
    """Return (launch, case) -> its point's efficiency as a page has it, and over how many launches.

    It is of all repeats, so it is sent again, as a later step, where more of them are there.
    """
    return {
        (row.launch, row.recorded_case): (
            point.parallel_efficiency, len({id(each) for each in (*point.rows, *curve.base.rows)})
        )
        for curve in evaluate_folder(folder).series if curve.is_compared
        for point in curve.points if not point.blocked_by
        for row in point.rows if not row.has_smaller_batch
    }  # fmt: skip


def _read(source: Path) -> Launch:
    path, document, _ = sources.read(source)
    if not isinstance(document, dict) or KEY not in document:
        raise ValueError(f"{path}: no launch of Lockstep's, which alone makes runs of a tracker")
    own = path.with_name(sources.JOURNAL)
    lines = journal.current(journal.read(own)) if own.exists() else []
    launch = Launch(path, document, tuple(lines))
    try:
        milliseconds(launch.started)
        for block in launch.measured.values():
            _step_s(block)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: lacks what a tracker needs ({error!r}); left out") from error
    return launch


def _step_s(block: Mapping[str, Any]) -> list[float]:
    """Return the seconds of a step in each round of a case."""
    return [each / block["steps_per_round"] for each in metrics.slowest_rank(block["rank_round_s"])]


def _program(block: Mapping[str, Any]) -> tuple[str, dict[str, list[float]]]:
    """Return what a case's rate is called, and its series: its steps, or a program's metrics."""
    known = ((block.get("details") or {}).get("command") or {}).get("metrics")
    if not known:
        return "throughput_samples_per_s", {"step_s": _step_s(block)}
    series = {
        f"{name}_{facts['unit'].replace('/', '_per_')}": facts["values"]
        for name, facts in known.items()
    }
    # A program that gives a rate has no step that its time would be of.
    if not metrics.gives_rate(known):
        series["step_s"] = _step_s(block)
    return f"throughput_{block['sample_unit']}_per_s", series


@dataclass(frozen=True)
class _Campaign:
    folder: Path
    facts: dict[str, Any]
    launches: Sequence[Launch] = field(default_factory=list)
    efficiencies: Mapping[tuple[str, str], tuple[float, int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        names = (self.facts.get("name"), *(each.block.get("campaign") for each in self.launches))
        return str(next(filter(None, names), self.folder.name))

    def runs(self, launch: Launch) -> list[Run]:
        run = Run(
            key=f"{self.name}/{launch.name}/{launch.started}",
            experiment=self.name,
            name=launch.name,
            kind="launch",
            status=launch.status,
            started_ms=milliseconds(launch.started),
            ended_ms=None if launch.status == "RUNNING" else launch.last_ms,
            params=texts(_settings(launch)),
            facts=_facts(launch),
            metrics=tuple(self._metrics(launch)),
            artifacts=_artifacts(launch),
        )
        return [run, *_training_runs(run, launch)]

    def _metrics(self, launch: Launch) -> list[Metric]:
        made: list[Metric] = []
        began_ms = milliseconds(launch.started)  # of a journal whose lines have no time
        for case, block in launch.measured.items():
            time_ms = launch.times_ms.get(block["fullname"], began_ms)
            rate, series = _program(block)
            values = {
                rate: (
                    metrics.throughput(float(block["samples_per_step"]), median(_step_s(block)))
                ),
                "mfu": block.get("mean_mfu"),
                "peak_memory_bytes": max(filter(None, block["peak_memory_bytes"]), default=None),
            }
            series |= {name: [value] for name, value in values.items() if value is not None}
            made += [
                Metric(metric_name(case, name), float(value), step, time_ms)
                for name, own in series.items()
                for step, value in enumerate(own)
            ]
            if known := self.efficiencies.get((launch.name, case)):
                value, step = known
                made.append(Metric(metric_name(case, EFFICIENCY), value, step, time_ms))
        return made


def _settings(launch: Launch) -> dict[str, Any]:
    own = {name: launch.block.get(name) for name in OF_LAUNCH}
    return own | dict(launch.block.get("measured_with") or {})


def _facts(launch: Launch) -> dict[str, str]:
    """Return what runs are searched by, under the names of the HTTP interface and of MLflow."""
    provenance = launch.provenance
    slurm, ranks = provenance.get("slurm") or {}, provenance.get("ranks") or []
    on_gpus = any(str(rank.get("device")).startswith("cuda") for rank in ranks)
    hosts = list(dict.fromkeys(str(rank.get("host")) for rank in ranks))
    return texts(
        {
            "slurm_job_id": slurm.get("SLURM_JOB_ID"),
            "node": provenance.get("hostname"),
            "nodes": slurm.get("SLURM_JOB_NODELIST") or ",".join(hosts),
            "seed": str(provenance["seed"]) if provenance.get("seed") is not None else None,
            "gpu_type": ", ".join(provenance.get("device_names") or []) if on_gpus else None,
            "launch": launch.name,
        }
        | {name: provenance.get(name) for name in SOFTWARE}
    )


def _artifacts(launch: Launch) -> tuple[Artifact, ...]:
    if launch.status == "RUNNING":  # they still grow
        return ()
    paths = (launch.path.with_name(name) for name in (sources.RESULT, LOG))
    return tuple(Artifact.of(path) for path in paths if path.is_file())


def _whole(folder: Path, campaign: Mapping[str, Any], runs: Sequence[Run]) -> list[Run]:
    """Return the run of the campaign itself, which has what belongs to no launch: the page."""
    states = {run.status for run in runs}
    worst: Sequence[Status] = ("RUNNING", "KILLED", "FAILED", "FINISHED")
    status = next(each for each in worst if each in states)
    ends = [run.ended_ms for run in runs if run.ended_ms is not None]
    paths = [folder / name for name in CAMPAIGN_FILES if (folder / name).is_file()]
    first = min(runs, key=lambda run: run.started_ms)
    return [
        Run(
            key=f"{first.experiment}/{first.started_ms}",
            experiment=first.experiment,
            name=first.experiment,
            kind="campaign",
            status=status,
            started_ms=first.started_ms,
            ended_ms=None if status == "RUNNING" else max(ends, default=None),
            params=texts({name: campaign.get(name) for name in OF_CAMPAIGN}),
            artifacts=tuple(map(Artifact.of, paths)),
        )
    ]


@dataclass
class _Training:
    """A training run within a launch, finished or not."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    block: dict[str, Any] = field(default_factory=dict)
    has_failed: bool = False

    def take(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep the first row of each epoch: an epoch that was trained again gave the same."""
        for row in rows:
            self.rows.setdefault(int(row["epoch"]), dict(row))


def _training_runs(run: Run, launch: Launch) -> list[Run]:
    """Return a run for each training case of a launch; one in flight has its epochs so far."""
    found: dict[str, _Training] = {}
    for line in launch.lines:
        case = str(line.get("case", "")).partition("::")[2] or str(line.get("case"))
        if line.get("kind") == "epoch":
            found.setdefault(case, _Training()).take([line["row"]])
        elif line.get("kind") == "fail" and case in found:
            found[case].has_failed = True
    for case, block in launch.measured.items():
        if training := block.get("training"):
            own = found.setdefault(case, _Training())
            own.block, own.has_failed = block, False
            own.take(training["rows"])
    labels = _labels(
        {case.partition("::")[2] for case in launch.block.get("expected") or ()} | set(found)
    )
    return [
        _training_run(replace(run, name=f"{run.name} {labels[case]}"), launch, case, own)
        for case, own in found.items()
    ]


def _labels(cases: Iterable[str]) -> dict[str, str]:
    """Return case -> in what it differs from the other cases of its test."""
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


def _training_run(run: Run, launch: Launch, case: str, own: _Training) -> Run:
    status: Status = "FINISHED" if own.block else "FAILED" if own.has_failed else launch.status
    if status == "FINISHED" and not own.block:
        status = "KILLED"
    rows = [own.rows[epoch] for epoch in sorted(own.rows)]
    training = own.block.get("training") or {}
    first_ms = milliseconds(rows[0]["ended"])
    ends_ms = {epoch: milliseconds(row["ended"]) for epoch, row in own.rows.items()}
    steps = launch.path.parent / str(training.get("steps_file") or "")
    seed = training.get("seed")
    return Run(
        key=f"{run.key}/{case}",
        experiment=run.experiment,
        name=run.name[:LONGEST_NAME],
        kind="training",
        status=status,
        started_ms=max(run.started_ms, first_ms - round(1000 * rows[0]["time_s"])),
        ended_ms=None if status == "RUNNING" else milliseconds(rows[-1]["ended"]),
        params=run.params | texts(own.block.get("factors") or {}),
        facts=run.facts
        | texts({"case": case, "seed": None if seed is None else str(seed)})
        | texts(
            {
                f"checkpoint_{name}": path
                for name, path in (training.get("checkpoints") or {}).items()
                if name != "kept"
            }
        ),
        metrics=(*epoch_metrics(rows, EPOCH, "ended"), *updates(steps, ends_ms)),
    )


def epoch_metrics(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], ended: str
) -> list[Metric]:
    """Return what is known of each epoch, by its column: its name. `ended` is that of its end."""
    return [
        Metric(name, float(row[column]), int(row["epoch"]), milliseconds(row[ended]))
        for column, name in columns.items()
        for row in rows
        if row.get(column) not in (None, "")
    ]


def updates(path: Path, ends_ms: Mapping[int, int]) -> list[Metric]:
    """Return the loss and rate of each update, which are known when its epoch has ended.

    Args:
        path: A run's record of its updates, a JSON line each; it may be missing.
        ends_ms: Epoch -> when it ended, in milliseconds since the epoch of the clock.
    """
    lines = files.text(path).splitlines() if path.is_file() else []
    steps = {step["step"]: step for step in map(json.loads, lines) if step["epoch"] in ends_ms}
    return [
        Metric(f"update_{name}", float(step[name]), number, ends_ms[step["epoch"]])
        for name in ("loss", "lr")
        for number, step in sorted(steps.items())
    ]
