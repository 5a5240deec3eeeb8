"""Programs: what starts their ranks, and one run of them.

Why a run of a program does not count: a kind and its facts, put into words here alone.

What a run of a program has to say: its metrics, and that it is sane.

The record of a program's case, in the form that every measured case has.
"""

import hashlib
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Any, Literal

from lockstep import content
from lockstep.campaign.program.table import (
    GRACE_S,
    TIMES_S,
    WALL,
    Command,
    Launcher,
    Metric,
    fill,
    marks,
)
from lockstep.core import processes
from lockstep.core.flags import Flag, flag
from lockstep.core.formats import last_line
from lockstep.core.processes import THREAD_VARIABLES, die_with_parent, hostname
from lockstep.core.record import KEY, CaseRecord, problem, sized_name
from lockstep.machine import provenance

MAX_SAID = 300

Kind = Literal["exit-code", "timeout", "sanity", "missing-metric", "not-started"]
# Why a metric is missing.
Lack = Literal["no-match", "no-json", "no-key", "no-number", "no-file", "old-file", "not-positive"]

_WORDS: dict[Kind, str] = {
    "exit-code": "it ended with exit code {code}",
    "timeout": "it did not end within {limit_s:g} s; raise timeout if it needs longer",
    "sanity": "its output does not match the sanity pattern {pattern!r}",
    "missing-metric": "metric {metric!r}: {lack}",
    "not-started": "it cannot be started: {error}",
}
_LACKS: dict[Lack, str] = {
    "no-match": "the regex matches nothing in its output",
    "no-json": "it printed no line of JSON",
    "no-key": "the JSON has no such key",
    "no-number": "what is found is no finite number",
    "no-file": "the file is not there",
    "old-file": "the file was there before the run, which did not write it",
    "not-positive": "no speed-up can be made of a value that is not above 0",
}


@dataclass(frozen=True)
class Failure:
    """Why a run of a program does not count.

    Attributes:
        run: Which run of the case, from 1, warm-ups first.
        said: The last line that the program printed.
    """

    kind: Kind
    run: int
    values: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""

    def __str__(self) -> str:
        """Return the failure in words."""
        shown = dict(self.values)
        if self.kind == "missing-metric":
            shown["lack"] = _LACKS[self.values["lack"]]
        text = f"; it said: {self.said}" if self.said else ""
        return f"run {self.run}: {_WORDS[self.kind].format_map(shown)}{text}"

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as a journal holds it."""
        return {"kind": self.kind, "run": self.run, **self.values, "said": self.said}


class RunError(RuntimeError):
    """A run does not count.

    Attributes:
        said: What the program has printed.
    """

    def __init__(self, kind: Kind, **values: Any) -> None:
        super().__init__(kind)
        self.kind, self.values, self.said = kind, values, ""

    def of_run(self, run: int) -> Failure:
        """Return the record of it."""
        return Failure(self.kind, run, self.values, last_line(self.said)[:MAX_SAID])


# Of a rank that its launcher says; a program would take an outer launcher's for its own.
OUTER = ("OMPI_", "PMI_", "PMIX_", "PMI2_")
# Of the end of output; what a program prints before it is on disk, and not searched.
MAX_OUTPUT_BYTES = 16 * 2**20
PROBE_S = 120.0
# What each rank of a trial says; the mark tells it from what prologs, and options as --label, add.
MARK = "lockstep-rank:"
RANK_SAYS = f'echo {MARK} "$(hostname)"'


@dataclass(frozen=True)
class Start:
    """What starts the ranks of a program.

    Attributes:
        words: Its command line, for the program's to follow.
    """

    launcher: Launcher
    words: tuple[str, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A run that has ended well.

    Attributes:
        wall_s: From its start to its end.
        began: When it began, in seconds since the epoch, by the clock of the file system that its
            output is on, which may not be the node's.
        output: What it printed, on standard output and then on standard error.
    """

    wall_s: float
    began: float
    output: str


def launcher_of(command: Command, most_ranks: int, *, in_job: bool) -> Launcher:
    """Return what starts the ranks, the same at every world size up to the largest.

    Raises:
        ValueError: Nothing here starts so many.
    """
    has_srun = in_job or ("SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None)
    has_mpirun = shutil.which("mpirun") is not None
    if command.launcher is None and has_srun:
        return "srun"
    if command.launcher is None and most_ranks > 1 and has_mpirun:
        return "mpirun"
    chosen = command.launcher or "alone"
    if chosen == "mpirun" and not has_mpirun:
        raise ValueError("there is no mpirun on PATH; install an MPI, or set another launcher")
    if chosen == "srun" and not has_srun:
        raise ValueError("srun starts ranks in a Slurm job alone; submit it, or set a launcher")
    if chosen == "alone" and most_ranks > 1 and "ranks" not in marks(command.line):
        raise ValueError(
            f"nothing here starts {most_ranks} ranks: install mpirun, or let the line start them "
            'itself by {ranks}, with launcher = "alone"'
        )
    return chosen


def start(
    command: Command, world_size: int, most_ranks: int, under: Sequence[str], inside: Sequence[str]
) -> Start:
    """Return what starts the ranks, and where they then are.

    `under` is srun with what a job's script tells it, and empty outside one; `inside` puts a rank
    into an image, and is empty where none is used.

    Raises:
        ValueError: Nothing here starts so many ranks.
        RuntimeError: The launcher does not start them.
    """
    launcher = launcher_of(command, most_ranks, in_job=bool(under))
    words = {
        "srun": tuple(under) or ("srun", f"--ntasks={world_size}"),
        "mpirun": ("mpirun", "-np", str(world_size)),
        "alone": (),
    }[launcher]
    options = command.launcher_options if words else ()
    words = (*words, *options, *inside)
    return Start(launcher, words, _hosts(launcher, words, world_size))


def _hosts(launcher: Launcher, words: Sequence[str], world_size: int) -> tuple[str, ...]:
    """Return the host of each rank, as a trial of the launcher shows."""
    if launcher == "alone":
        return (hostname(),) * world_size
    try:
        ended = processes.run([*words, "sh", "-c", RANK_SAYS], PROBE_S, environ=clean(os.environ))
    except processes.CommandError as error:
        raise RuntimeError(f"{launcher} does not start {world_size} ranks: {error}") from None
    names = re.findall(rf"{MARK} (\S+)", ended.output)
    if ended.code or len(names) != world_size:
        text = last_line(ended.errors) or f"{len(names)} answer"
        raise RuntimeError(f"{launcher} does not start {world_size} ranks: {text}")
    return tuple(sorted(names))


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what an outer MPI says of a rank."""
    return {name: value for name, value in environ.items() if not name.startswith(OUTER)}


def environment(threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a program's environment, in which its libraries take so many threads."""
    return clean(environ) | dict.fromkeys(THREAD_VARIABLES, str(threads))


def run(
    words: Sequence[str], folder: Path, workdir: str, environ: Mapping[str, str], timeout_s: float
) -> Run:
    """Run a program once; what it prints is kept in files of a folder.

    Raises:
        RunError: It did not start, did not end in time, or ended with another code than 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    output, errors = folder / "stdout.txt", folder / "stderr.txt"
    with output.open("wb") as out, errors.open("wb") as err:
        began, clock_s = output.stat().st_mtime, time.perf_counter()
        try:
            process = subprocess.Popen(
                words, cwd=workdir, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        except OSError as error:
            raise RunError("not-started", error=str(error)) from None
        is_late = _wait(process, timeout_s)
    wall_s = time.perf_counter() - clock_s
    text = end_of(output) + "\n" + end_of(errors)
    if is_late or process.returncode:
        failed = (
            RunError("timeout", limit_s=timeout_s)
            if is_late
            else RunError("exit-code", code=process.returncode)
        )
        failed.said = text
        raise failed
    return Run(wall_s, began, text)


def _wait(process: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    """Wait for a process, and return whether it had to be ended: it took too long."""
    late = threading.Event()

    def end() -> None:
        late.set()
        processes.end_groups([process], GRACE_S)

    # Popen's own time-out looks every 50 ms, which would be part of the time measured.
    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        process.wait()
    finally:
        timer.cancel()
        # What the program has left behind would run beside the next case.
        processes.end_groups([process], GRACE_S)
    return late.is_set()


def end_of(path: Path) -> str:
    """Return the text of a file, of a long one its end.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        if path.stat().st_size > MAX_OUTPUT_BYTES:
            file.seek(-MAX_OUTPUT_BYTES, os.SEEK_END)
        return file.read(MAX_OUTPUT_BYTES).decode(errors="replace")


# File systems keep times in steps.
CLOCK_S = 2.0


def values(command: Command, run: Run, given: Mapping[str, Any]) -> dict[str, float]:
    """Return metric -> value of a run.

    Raises:
        RunError: It is not sane, or lacks a metric.
    """
    try:
        if command.sanity is not None and not re.search(command.sanity, run.output, re.MULTILINE):
            raise RunError("sanity", pattern=command.sanity)
        return {metric.name: _value(metric, run, command, given) for metric in command.metrics}
    except RunError as error:
        error.said = run.output
        raise


def _value(metric: Metric, run: Run, command: Command, given: Mapping[str, Any]) -> float:
    text = run.output
    if metric.file is not None:
        name = fill(metric.file, given, quoted=False)
        text = _content(Path(command.workdir or "", name), metric, run)
    found = _by_regex(metric, text) if metric.regex else _by_json(metric, text)
    try:
        value = float(found)
    except (OverflowError, TypeError, ValueError):
        value = math.nan
    if found is None or isinstance(found, bool) or not math.isfinite(value):
        raise _missing(metric, "no-number")
    if metric.primary and value <= 0:
        raise _missing(metric, "not-positive")
    return value


def _content(path: Path, metric: Metric, run: Run) -> str:
    try:
        if path.stat().st_mtime < run.began - CLOCK_S:
            raise _missing(metric, "old-file")
        return end_of(path)
    except OSError:
        raise _missing(metric, "no-file") from None


def _by_regex(metric: Metric, text: str) -> Any:
    assert metric.regex is not None
    found = None
    for found in re.finditer(metric.regex, text, re.MULTILINE):  # noqa: B007, the last counts
        pass
    if found is None:
        raise _missing(metric, "no-match")
    return found[1]


def _by_json(metric: Metric, text: str) -> Any:
    assert metric.json_path is not None
    found = _document(text)
    if found is None:
        raise _missing(metric, "no-json")
    for key in metric.json_path.split("."):
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise _missing(metric, "no-key")
    return found


def _document(text: str) -> Any:
    """Return what the whole text, or its last line that can be read so, holds as JSON."""
    for part in (text, *reversed(text.splitlines())):
        if part.lstrip()[:1] in ("{", "["):
            try:
                return json.loads(part)
            except (ValueError, RecursionError):
                continue
    return None


def _missing(metric: Metric, lack: Lack) -> RunError:
    return RunError("missing-metric", metric=metric.name, lack=lack)


GROUP = "command"
# Of programs that are not executable themselves, for an interpreter to read.
SCRIPTS = frozenset((".bash", ".jl", ".js", ".lua", ".m", ".pl", ".py", ".r", ".rb", ".sh"))


@dataclass(frozen=True)
class Case:
    """One case: the program with one value of each factor.

    Attributes:
        name: As results have it, `trees[threads=2]`.
    """

    name: str
    factors: dict[str, Any]


def record(
    command: Command, case: Case, start: Start, runs: Sequence[Mapping[str, float]], line: str,
    launch: Mapping[str, Any],
) -> CaseRecord:  # fmt: skip
    """Return the record of a case.

    A round is a run, of one row, for the launcher's clock alone is known. It lasts the wall time or
    what the primary metric says: a time, or the time of one unit of work at the rate that it gives.
    `launch` has further fields of the record, the digest of the program among them.

    Raises:
        ValueError: A value is none that a record may hold.
    """
    num_ranks = len(start.hosts)
    case_record = CaseRecord(
        study=command.scaling,
        workload=str(command.name),
        scaling=command.scaling,
        world_size=num_ranks,
        num_nodes=len(set(start.hosts)),
        factors=case.factors,
        sample_unit=command.rate_unit or command.work_unit,
        samples_per_step=_samples(command, num_ranks),
        steps_per_round=1,
        rank_round_s=[[_round_s(command, run, num_ranks) for run in runs]],
        rank_hosts=list(start.hosts),
        checks={"sanity": True} if command.sanity else {},
        details={"command": _details(command, start, runs, line)},
        **launch,
    )
    if wrong := problem(case_record):
        raise ValueError(wrong)
    return case_record


def _samples(command: Command, num_ranks: int) -> int:
    """Return the work of a run; at a rate, of one unit, for a run's work need not be known."""
    if command.rate_unit is not None:
        return 1
    return command.work * (num_ranks if command.scaling == "weak" else 1)


def _round_s(command: Command, run: Mapping[str, float], num_ranks: int) -> float:
    primary = command.primary
    if primary is None:
        return run[WALL]
    if command.rate_unit is not None:
        return _samples(command, num_ranks) / run[primary.name]
    return run[primary.name] * TIMES_S[primary.unit]


def _details(
    command: Command, start: Start, runs: Sequence[Mapping[str, float]], line: str
) -> dict[str, Any]:
    primary = command.primary
    metrics: dict[str, Any] = {
        WALL: {"unit": "s", "better": "lower", "primary": primary is None},
        **{
            metric.name: {
                "unit": metric.unit,
                "better": "lower" if metric.is_lower_better else "higher",
                "primary": metric is primary,
            }
            for metric in command.metrics
        },
    }
    for name, facts in metrics.items():
        facts["values"] = [run[name] for run in runs]
    return {
        "line": line, "launcher": start.launcher, "over": list(command.over), "metrics": metrics,
    }  # fmt: skip


def source_sha256(command: Command) -> str:
    """Return the digest of a line, and of the scripts and executables that it names.

    Data are none of the program: they may be large, and a run may write them.
    """
    digest = hashlib.sha256(command.line.encode())
    for path in (Path(command.workdir or "", word) for word in _read_words(command.line)):
        try:
            is_program = path.suffix.lower() in SCRIPTS or os.access(path, os.X_OK)
            if is_program and path.is_file():
                with path.open("rb") as file:
                    hashlib.file_digest(file, lambda: digest)
        except (OSError, ValueError):
            continue
    return digest.hexdigest()


def _read_words(line: str) -> list[str]:
    """Return the words of a line, those left aside that name where output goes."""
    try:
        split = shlex.shlex(line, posix=True, punctuation_chars=True)
        split.whitespace_split = True
        words = list(split)
    except ValueError:  # a line that bash reads otherwise
        words = line.split()
    before = ["", *words]
    return [
        word for last, word in zip(before, words, strict=False) if ">" not in last and last != "tee"
    ]


def entry(case: Case, case_record: CaseRecord) -> dict[str, Any]:
    """Return a case as pytest-benchmark's JSON has it."""
    name = sized_name(case.name, case_record.world_size)
    return {
        "group": GROUP,
        "name": name,
        "fullname": f"command::{name}",
        "params": case.factors or None,
        "param": None,
        "extra_info": {KEY: case_record.to_dict()},
        "options": {"timer": "perf_counter", "warmup": False},
        "stats": _statistics(case_record.round_s),
    }


def _statistics(data: Sequence[float]) -> dict[str, Any]:
    """Return what pytest-benchmark says of rounds in seconds."""
    spread = stdev(data) if len(data) > 1 else 0.0
    q1, _, q3 = quantiles(data, method="inclusive") if len(data) > 1 else [data[0]] * 3
    far = 1.5 * (q3 - q1)
    inner = [value for value in data if q1 - far <= value <= q3 + far]
    mean = fmean(data)
    late = sum(abs(value - mean) > spread for value in data)
    return {
        "min": min(data), "max": max(data), "mean": mean, "stddev": spread,
        "rounds": len(data), "median": median(data), "iqr": q3 - q1, "q1": q1, "q3": q3,
        "iqr_outliers": len(data) - len(inner), "stddev_outliers": late,
        "outliers": f"{late};{len(data) - len(inner)}",
        "ld15iqr": min(inner), "hd15iqr": max(inner), "ops": 1 / mean, "total": math.fsum(data),
        "data": list(data), "iterations": 1,
    }  # fmt: skip


def document() -> dict[str, Any]:
    """Return the head of pytest-benchmark's JSON."""
    git = provenance.git_facts(content.IMPORTABLE_FROM)
    machine = {
        "node": hostname(), "processor": platform.processor(), "machine": platform.machine(),
        "python_version": platform.python_version(), "system": platform.system(),
        "release": platform.release(), "cpu": {"brand_raw": provenance.cpu_model()},
    }  # fmt: skip
    commit = {"id": git["git_commit"], "dirty": git["git_dirty"], "project": "lockstep"}
    return {
        "machine_info": machine, "commit_info": commit | {"time": None, "branch": None},
        "datetime": datetime.now(UTC).isoformat(),
        "version": provenance.package_version("pytest-benchmark"),
    }  # fmt: skip


def provenance_of(start: Start, threads: int, device: str, seed: int) -> dict[str, Any]:
    """Return where a launch comes from; of nodes but the first, no more than the name is known."""
    launch = (
        {"lockstep_version": provenance.lockstep_version(), "seed": seed}
        | {"command": provenance.without_secrets(sys.argv)}
        | provenance.git_facts(content.IMPORTABLE_FROM)
        | provenance.software_facts()
        | provenance.machine_facts()
        | {"image_path": None, "image_sha256": os.environ.get("LOCKSTEP_IMAGE_SHA256")}
        | {"suite_sha256": provenance.suite_sha256()}
        | {"slurm": provenance.slurm_facts(os.environ)}
        | {"environment": provenance.environment(os.environ)}
    )
    before: dict[str, int] = {}
    ranks = []
    for rank, host in enumerate(start.hosts):
        local = before[host] = before.get(host, -1) + 1
        ranks.append({
            "rank": rank, "local_rank": local, "host": host, "device": device,
            "device_name": provenance.cpu_model() if device == "cpu" else "GPU",
            "cpu_model": provenance.cpu_model(), "gpu_uuid": None,
            "driver": None if device == "cpu" else launch["driver"],
            "cores": provenance.usable_cores(), "num_threads": threads,
        })  # fmt: skip
    facts = provenance.launch_provenance(launch, ranks)
    return facts | {"backend": None, "threads_per_rank": threads}


def flags_of(start: Start, threads: int) -> list[Flag]:
    """Return what is known against a case: more threads on a host than it has cores."""
    on_host = max(start.hosts.count(host) for host in set(start.hosts))
    cores = len(provenance.usable_cores())
    if on_host * threads <= cores:
        return []
    return [flag("oversubscribed", threads=on_host * threads, cores=cores)]
