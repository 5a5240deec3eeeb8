"""Any program as a study: what starts its ranks, its runs, what is read of them, and the record.

`lockstep run` and a job's script start `python -m lockstep.campaign.program`, once a launch; it is
no rank, and starts the ranks itself. Its cases are in the journal that any launch has, each run so
many times. It exits with 0, 1 where a case has failed, 4 where it cannot begin, or 75 where the
stop file ended it.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Any, Literal

from lockstep import content
from lockstep.campaign.command import (
    GRACE_S,
    TIMES_S,
    WALL,
    Command,
    Launcher,
    Metric,
    fill,
    marks,
)
from lockstep.core import errors, journal, processes, sizes
from lockstep.core.errors import EXIT_STOPPED
from lockstep.core.flags import Flag, flag
from lockstep.core.formats import last_line
from lockstep.core.journal import Journal
from lockstep.core.processes import THREAD_VARIABLES, die_with_parent, hostname
from lockstep.core.record import KEY, CaseRecord, FailureCause, problem, sized_name
from lockstep.machine import provenance

EXIT_FAILED, EXIT_USAGE, EXIT_ENDED = 1, 4, 143
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
    "no-number": "the value is not a finite number",
    "no-file": "the file is not there",
    "old-file": "the file was there before the run, which did not write it",
    "not-positive": "no speed-up can be made of a value that is not above 0",
}


class RunError(RuntimeError):
    """A run of a program does not count.

    Attributes:
        values: The facts of its kind.
        run: Which run of the case it is, from 1, warm-ups first.
        output: What the program has printed.
    """

    def __init__(self, kind: Kind, **values: Any) -> None:
        super().__init__(kind)
        self.kind, self.values, self.run, self.output = kind, values, 0, ""

    def __str__(self) -> str:
        """Return the failure in words."""
        shown = dict(self.values)
        if self.kind == "missing-metric":
            shown["lack"] = _LACKS[self.values["lack"]]
        said = self.to_dict()["said"]
        text = f"; it said: {said}" if said else ""
        return f"run {self.run}: {_WORDS[self.kind].format_map(shown)}{text}"

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as a journal holds it."""
        said = last_line(self.output)[:MAX_SAID]  # the last line that the program printed
        return {"kind": self.kind, "run": self.run, **self.values, "said": said}


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
        raise ValueError("srun starts ranks only in a Slurm job; submit it, or set a launcher")
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
    words = (*words, *(command.launcher_options if words else ()), *inside)
    if launcher == "alone":
        return Start(launcher, words, (hostname(),) * world_size)
    try:  # a trial shows the host of each rank
        ended = processes.run([*words, "sh", "-c", RANK_SAYS], PROBE_S, environ=clean(os.environ))
    except processes.CommandError as error:
        raise RuntimeError(f"{launcher} does not start {world_size} ranks: {error}") from None
    names = re.findall(rf"{MARK} (\S+)", ended.output)
    if ended.code or len(names) != world_size:
        text = last_line(ended.errors) or f"{len(names)} answer"
        raise RuntimeError(f"{launcher} does not start {world_size} ranks: {text}")
    return Start(launcher, words, tuple(sorted(names)))


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what an outer MPI says of a rank."""
    return {name: value for name, value in environ.items() if not name.startswith(OUTER)}


def run(
    words: Sequence[str], folder: Path, workdir: str, environ: Mapping[str, str], timeout_s: float
) -> Run:
    """Run a program once; what it prints is kept in files of a folder.

    Raises:
        RunError: It did not start, did not end in time, or ended with another code than 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    output, errors_ = folder / "stdout.txt", folder / "stderr.txt"
    with output.open("wb") as out, errors_.open("wb") as err:
        began, clock_s = output.stat().st_mtime, time.perf_counter()
        try:
            process = subprocess.Popen(
                words, cwd=workdir, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        except OSError as error:
            raise RunError("not-started", error=str(error)) from None
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
    wall_s = time.perf_counter() - clock_s
    text = end_of(output) + "\n" + end_of(errors_)
    if late.is_set() or process.returncode:
        failed = RunError("exit-code", code=process.returncode)
        if late.is_set():
            failed = RunError("timeout", limit_s=timeout_s)
        failed.output = text
        raise failed
    return Run(wall_s, began, text)


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
        error.output = run.output
        raise


def _value(metric: Metric, run: Run, command: Command, given: Mapping[str, Any]) -> float:
    text = run.output
    if metric.file is not None:
        path = Path(command.workdir or "", fill(metric.file, given, quoted=False))
        try:
            if path.stat().st_mtime < run.began - CLOCK_S:
                raise _missing(metric, "old-file")
            text = end_of(path)
        except OSError:
            raise _missing(metric, "no-file") from None
    found = _find(metric, text)
    try:
        value = float(found)
    except (OverflowError, TypeError, ValueError):
        value = math.nan
    if isinstance(found, bool) or not math.isfinite(value):
        raise _missing(metric, "no-number")
    if metric.primary and value <= 0:
        raise _missing(metric, "not-positive")
    return value


def _missing(metric: Metric, lack: Lack) -> RunError:
    return RunError("missing-metric", metric=metric.name, lack=lack)


def _find(metric: Metric, text: str) -> Any:
    """Return the last match of a metric's regex, or what its keys lead to in the last JSON."""
    if metric.regex:
        match = None
        for match in re.finditer(metric.regex, text, re.MULTILINE):  # noqa: B007, the last counts
            pass
        if match is None:
            raise _missing(metric, "no-match")
        return match[1]
    assert metric.json_path is not None
    found = _last_json(text)
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


def _last_json(text: str) -> Any:
    """Return what the whole text, or its last line that can be read so, holds as JSON."""
    for part in (text, *reversed(text.splitlines())):
        if part.lstrip()[:1] in ("{", "["):
            try:
                return json.loads(part)
            except (ValueError, RecursionError):
                continue
    return None


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
    num_ranks, primary = len(start.hosts), command.primary
    samples = command.work * (num_ranks if command.scaling == "weak" else 1)
    if command.rate_unit is not None:  # a run's work need not be known
        samples = 1

    def round_s(run: Mapping[str, float]) -> float:
        if primary is None:
            return run[WALL]
        if command.rate_unit is not None:
            return samples / run[primary.name]
        return run[primary.name] * TIMES_S[primary.unit]

    metrics: dict[str, Any] = {WALL: {"unit": "s", "better": "lower", "primary": primary is None}}
    for metric in command.metrics:
        better = "lower" if metric.is_lower_better else "higher"
        is_primary = metric is primary
        metrics[metric.name] = {"unit": metric.unit, "better": better, "primary": is_primary}
    for name, facts in metrics.items():
        facts["values"] = [run[name] for run in runs]
    details = {
        "line": line, "launcher": start.launcher, "over": list(command.over), "metrics": metrics,
    }  # fmt: skip
    case_record = CaseRecord(
        study=command.scaling,
        workload=str(command.name),
        scaling=command.scaling,
        world_size=num_ranks,
        num_nodes=len(set(start.hosts)),
        factors=case.factors,
        sample_unit=command.rate_unit or command.work_unit,
        samples_per_step=samples,
        steps_per_round=1,
        rank_round_s=[[round_s(run) for run in runs]],
        rank_hosts=list(start.hosts),
        checks={"sanity": True} if command.sanity else {},
        details={"command": details},
        **launch,
    )
    if wrong := problem(case_record):
        raise ValueError(wrong)
    return case_record


def source_sha256(command: Command) -> str:
    """Return the digest of a line, and of the scripts and executables that it names.

    Data are none of the program: they may be large, and a run may write them.
    """
    digest = hashlib.sha256(command.line.encode())
    try:
        split = shlex.shlex(command.line, posix=True, punctuation_chars=True)
        split.whitespace_split = True
        words = list(split)
    except ValueError:  # a line that bash reads otherwise
        words = command.line.split()
    for before, word in zip(["", *words], words, strict=False):
        if ">" in before or before == "tee":  # where output goes
            continue
        path = Path(command.workdir or "", word)
        try:
            is_program = path.suffix.lower() in SCRIPTS or os.access(path, os.X_OK)
            if is_program and path.is_file():
                with path.open("rb") as file:
                    hashlib.file_digest(file, lambda: digest)
        except (OSError, ValueError):
            continue
    return digest.hexdigest()


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


RUNS = "runs"
# A pipe whose program fails fails: `./solve | tee log` is no success of tee.
SHELL = ("bash", "-o", "pipefail", "-c")
# Of a case's name, at the beginning of its folder's.
MAX_SHOWN = 40


@dataclass(frozen=True)
class Driver:
    """What a launch is to do.

    Attributes:
        source: Digest of the program as it is before any run.
    """

    given: argparse.Namespace
    command: Command
    factors: dict[str, list[Any]]
    rounds: int
    warmups: int
    start: Start
    source: str

    @property
    def labels(self) -> dict[str, str]:
        """What the launch is called."""
        return dict(label.split("=", 1) for label in self.given.label)

    def cases(self) -> list[Case]:
        """Return all cases of the launch's part, in the order of the factors."""
        rows = [
            dict(zip(self.factors, row, strict=True)) for row in product(*self.factors.values())
        ]
        cases = [Case(f"{self.command.name}[{sizes.case_id(row)}]", row) for row in rows]
        if not self.factors:
            cases = [Case(str(self.command.name), {})]
        number, num_parts = map(int, (self.given.part or "1/1").split("/"))
        return cases[number - 1 :: num_parts]

    def threads(self, case: Case) -> int:
        """Return the threads of a rank in a case."""
        return int(case.factors.get("threads", self.given.threads_per_rank))

    def measure(self) -> int:
        """Measure what the journal lacks, and return the exit code."""
        kept = Journal(self.given.journal)
        errors.keep_in(kept.path.parent, 0)
        cases = self.cases()
        seed = self._begin(kept, [case.name for case in cases])
        code = 0
        for position, case in enumerate(sizes.shuffled(cases, lambda one: one.name, seed)):
            done = journal.settled(self.given.journal)
            leave = {"case", "skip"} | ({"fail"} if self.given.skip_failed else set())
            if done.get(case.name) in leave:
                continue
            if self.given.stop_file and self.given.stop_file.exists():
                return EXIT_STOPPED
            kept.begin(case.name)
            end = self._end_of(case, position)
            kept.append({"case": case.name, **end})
            code = EXIT_FAILED if end["kind"] == "fail" else code
        kept.restore()
        return code

    def _begin(self, kept: Journal, expected: list[str]) -> int:
        """Write the head of this session, and return the seed of the order of cases."""
        given, path = self.given, self.given.journal
        is_resumed = given.resume and bool(journal.current(journal.read(path)))
        block = journal.rebuild(path)[KEY] if is_resumed else {}
        for case, entry in journal.measured(path).items() if is_resumed else ():
            if entry["extra_info"][KEY]["workload_sha256"] != self.source:
                raise ValueError(
                    f"{path} holds {case}, measured before the command or a program that it names "
                    "was changed; put it back, or measure into another folder"
                )
        drawn = secrets.randbits(32) if given.order_seed is None else given.order_seed
        seed = int(block.get("order_seed", drawn))
        # A case of more threads than cores has a flag; it is none against the others.
        threads = min(map(self.threads, self.cases()))
        facts = {
            **self.labels,
            "size": given.size,
            "rounds": self.rounds,
            "warmup_rounds": self.warmups,
            "part": given.part and [int(part) for part in given.part.split("/")],
            "order_seed": seed,
            "world_size": given.world_size,
            "num_nodes": len(set(self.start.hosts)),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "provenance": provenance_of(self.start, threads, given.device, given.seed),
        }
        kept.begin_session(
            {"expected": expected, "document": document(), "launch": facts},
            resume=given.resume, skip_failed=given.skip_failed, after=given.after,
        )  # fmt: skip
        return seed

    def _end_of(self, case: Case, position: int) -> dict[str, Any]:
        """Run a case and return how it ended, as the journal is to hold it."""
        runs: list[dict[str, float]] = []
        for number in range(1, self.warmups + self.rounds + 1):
            try:
                values = self._run(case, number)
            except RunError as error:
                error.run = number
                sys.stdout.write(f"{case.name} failed: {error}\n")
                host, device = self.start.hosts[0], self.given.device
                cause = FailureCause(0, host, device, "fault", str(error))
                return {
                    "kind": "fail", "reason": str(error), "failure": error.to_dict(),
                    "causes": [asdict(cause)],
                }  # fmt: skip
            if number > self.warmups:
                runs.append(values)
        flags: list[Flag] = []
        num_threads = self._given(case, 0)["ranks_per_node"] * self.threads(case)
        if num_threads > (cores := len(provenance.usable_cores())):
            flags.append(flag("oversubscribed", threads=num_threads, cores=cores))
        launch = {
            "position": position,
            "workload_sha256": self.source,
            "flags": [each.to_dict() for each in flags],
        }
        line = fill(self.command.line, self._given(case, 0) | {"out": "OUT"})
        try:
            case_record = record(self.command, case, self.start, runs, line, launch)
            kept = journal.fixed({"benchmark": entry(case, case_record)})
        except ValueError as error:
            return {"kind": "fail", "reason": f"the result cannot be kept: {error}"}
        units = {WALL: "s"} | {metric.name: metric.unit for metric in self.command.metrics}
        shown = [
            f"{name} {' '.join(f'{run[name]:.6g}' for run in runs)} {unit}"
            for name, unit in units.items()
        ]
        sys.stdout.write(f"{case.name}: {', '.join(shown)}\n")
        return {"kind": "case", **kept}

    def _run(self, case: Case, number: int) -> dict[str, float]:
        """Return the metrics of one run, its wall time among them.

        Raises:
            RunError: It does not count.
        """
        given = self._given(case, number)
        words = [*self.start.words, *SHELL, fill(self.command.line, given)]
        # Its libraries take so many threads.
        threads = dict.fromkeys(THREAD_VARIABLES, str(self.threads(case)))
        environ = clean(os.environ) | threads
        ended = run(
            words, Path(given["out"]), self.command.workdir or ".", environ, self.command.timeout
        )
        return {WALL: ended.wall_s} | values(self.command, ended, given)

    def _given(self, case: Case, number: int) -> dict[str, Any]:
        """Return what the names in the line stand for."""
        hosts = self.start.hosts
        name = f"{case.name.replace('/', '_')[:MAX_SHOWN]}-{sizes.case_digest(case.name)}"
        folder = self.given.journal.absolute().parent / RUNS / name
        return {
            "ranks": len(hosts),
            "nodes": len(set(hosts)),
            "ranks_per_node": max(hosts.count(host) for host in set(hosts)),
            "threads": self.threads(case),
            "seed": self.given.seed,
            "repeat": self.labels.get("repeat", "0"),
            "out": str(folder / str(number)),
            **case.factors,
        }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lockstep.campaign.program", allow_abbrev=False)
    parser.add_argument("--table", type=json.loads, required=True, help="what to run, as JSON")
    parser.add_argument("--world-size", type=int, required=True, help="ranks")
    parser.add_argument("--journal", type=Path, required=True, help="keep finished cases here")
    parser.add_argument("--under", action="append", default=[], help="a word of srun's command")
    parser.add_argument("--inside", action="append", default=[], help="a word before the program")
    parser.add_argument("--label", action="append", default=[], help="a fact to keep, NAME=VALUE")
    parser.add_argument("--device", default="cpu", help="what the program computes on")
    parser.add_argument("--size", help="name of the size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--order-seed", type=int, help="seed of the order of cases")
    parser.add_argument("--threads-per-rank", type=int, default=1)
    parser.add_argument("--part", help="K/N, the K-th of N parts of the cases")
    parser.add_argument("--stop-file", type=Path, help="end before the next case once it is there")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--skip-failed", action="store_true")
    parser.add_argument("--after", default="", help="how the session before ended")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a launch; options that are for pytest alone are left aside."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_ENDED))
    given, _ = _parser().parse_known_args(arguments)
    try:
        command = Command.model_validate(given.table["command"])
        most_ranks = given.table["most_ranks"]
        started = start(command, given.world_size, most_ranks, given.under, given.inside)
        rounds, warmups = given.table["rounds"], given.table["warmup_rounds"]
        source = source_sha256(command)
        driver = Driver(given, command, given.table["factors"], rounds, warmups, started, source)
        code = driver.measure()
    except (ValueError, RuntimeError, OSError) as error:
        errors.note(str(error))
        sys.stderr.write(f"ERROR: {error}\n")
        code = EXIT_USAGE
    sys.exit(code)


if __name__ == "__main__":
    main()
