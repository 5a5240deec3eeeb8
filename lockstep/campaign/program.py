"""Any program as a study: starts its ranks, runs it, reads its metrics and keeps the record.

Exit codes: 0; 1 after a failed case; 4 if it cannot begin; 75 if the stop file exists.
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
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Any, Literal, NamedTuple

from lockstep import content
from lockstep.campaign.command import (
    GRACE_S,
    TIMES_S,
    WALL,
    Command,
    Launcher,
    Metric,
    fill,
    find_marks,
)
from lockstep.core import errors, files, journal, processes, sizes
from lockstep.core.errors import EXIT_STOPPED
from lockstep.core.flags import flag
from lockstep.core.formats import last_line
from lockstep.core.journal import Journal
from lockstep.core.processes import THREAD_VARIABLES, die_with_parent, hostname
from lockstep.core.record import KEY, CaseRecord, FailureCause, problem, sized_name
from lockstep.machine import provenance

EXIT_FAILED, EXIT_USAGE, EXIT_ENDED = 1, 4, 143
MAX_CHARACTERS = 300

Kind = Literal["exit-code", "timeout", "sanity", "missing-metric", "not-started"]
# Why a metric is missing.
_LACKS = {
    "no-match": "the regular expression matches nothing that the program wrote",
    "no-json": "the program wrote no line of JSON",
    "no-key": "the JSON that the program wrote does not contain the key of the metric",
    "no-number": "the value of the metric is not a finite number",
    "no-file": "the file of the metric does not exist",
    "old-file": "the file of the metric is older than the run, so the run did not write this file",
    "not-positive": "the value of the metric is 0 or less, so no speed-up can be computed",
}


class RunError(RuntimeError):
    """A failed run of a program: the kind of failure, its facts, the run's number, the output."""

    def __init__(self, kind: Kind, sentence: str, output: str = "", **values: Any) -> None:
        super().__init__(sentence)
        self.kind, self.values, self.run, self.output = kind, values, 0, output

    def __str__(self) -> str:
        said = self.to_dict()["said"]
        failure = f"run {self.run}: {self.args[0]}"
        return f"{failure}; the program printed: {said}" if said else failure

    def to_dict(self) -> dict[str, Any]:
        line = last_line(self.output)[:MAX_CHARACTERS]
        return {"kind": self.kind, "run": self.run, **self.values, "said": line}


# Prefixes of variables of an outer launcher, which a program would take for its own.
OUTER = ("OMPI_", "PMI_", "PMIX_", "PMI2_")
# Only so much of the end of the output is searched.
MAX_OUTPUT_BYTES = 16 * 2**20
PROBE_S = 120.0
# Line of each rank in a trial; the mark distinguishes it from the output of prologs.
MARK = "lockstep-rank:"
RANK_SAYS = f'echo {MARK} "$(hostname)"'


@dataclass(frozen=True)
class Start:
    """The launcher of a program's ranks."""

    launcher: Launcher
    words: tuple[str, ...]  # the launcher's command line, before that of the program
    hosts: tuple[str, ...]  # host of each rank


class Run(NamedTuple):
    """A successful run."""

    wall_s: float
    began: float  # seconds since the epoch, by the clock of its output's file system
    output: str  # standard output, then standard error


def launcher_of(command: Command, most_ranks: int, *, in_job: bool) -> Launcher:
    """Return the launcher, the same for all world sizes up to `most_ranks`."""
    has_srun = in_job or ("SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None)
    has_mpirun = shutil.which("mpirun") is not None
    if command.launcher is None and has_srun:
        return "srun"
    if command.launcher is None and most_ranks > 1 and has_mpirun:
        return "mpirun"
    chosen = command.launcher or "alone"
    if chosen == "mpirun" and not has_mpirun:
        raise ValueError(
            "mpirun is not on PATH; install MPI, or set another launcher in the table [command]"
        )
    if chosen == "srun" and not has_srun:
        raise ValueError(
            'launcher = "srun" works only in a Slurm job; use lockstep submit, or set another '
            "launcher"
        )
    if chosen == "alone" and most_ranks > 1 and "ranks" not in find_marks(command.line):
        raise ValueError(
            f"this machine has no launcher for {most_ranks} ranks; install mpirun, or set launcher "
            f'= "alone" if the command line starts {{ranks}} ranks itself'
        )
    return chosen


def start(
    command: Command, world_size: int, most_ranks: int, under: Sequence[str], inside: Sequence[str]
) -> Start:
    """Return the launcher and the ranks' hosts; `under` are words of srun, `inside` of an image."""
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
        raise RuntimeError(f"{launcher} cannot start {world_size} ranks: {error}") from None
    names = re.findall(rf"{MARK} (\S+)", ended.output)
    if ended.code or len(names) != world_size:
        text = last_line(ended.errors) or f"{len(names)} ranks started"
        raise RuntimeError(f"{launcher} cannot start {world_size} ranks: {text}")
    return Start(launcher, words, tuple(sorted(names)))


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(OUTER)}


def run(
    words: Sequence[str], folder: Path, workdir: str, environ: Mapping[str, str], timeout_s: float
) -> Run:
    """Run a program once, with its output in files of a folder."""
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
            raise RunError(
                "not-started", f"the program cannot be started: {error}", error=str(error)
            ) from None
        late = threading.Event()

        def end() -> None:
            late.set()
            processes.end_groups([process], GRACE_S)

        # Popen's own timeout polls every 50 ms, which would add to the measured time.
        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            process.wait()
        finally:
            timer.cancel()
            # A process that the program left behind would run beside the next case.
            processes.end_groups([process], GRACE_S)
    wall_s = time.perf_counter() - clock_s
    ends = (files.tail(path, MAX_OUTPUT_BYTES) for path in (output, errors_))
    text = "\n".join(ends)
    if late.is_set():
        sentence = (
            f"the program did not end within {timeout_s:g} s; raise timeout in the table [command] "
            "of the campaign file if a run needs longer"
        )
        raise RunError("timeout", sentence, text, limit_s=timeout_s)
    if code := process.returncode:
        raise RunError("exit-code", f"the program ended with exit code {code}", text, code=code)
    return Run(wall_s, began, text)


# File systems round times, by up to 2 s.
CLOCK_S = 2.0


def values(command: Command, run: Run, marks: Mapping[str, Any]) -> dict[str, float]:
    """Return metric -> value of a run; raise RunError if a metric or the sanity check fails.

    `marks` has the values of the `{name}` in a metric's file.
    """
    try:
        if command.sanity is not None and not re.search(command.sanity, run.output, re.MULTILINE):
            said = f"the program's output does not match the sanity pattern {command.sanity!r}"
            raise RunError("sanity", said, pattern=command.sanity)
        return {metric.name: _value(metric, run, command, marks) for metric in command.metrics}
    except RunError as error:
        error.output = run.output
        raise


# The first so many values of a curve are kept, so that runs of different lengths stay comparable.
MAX_CURVE = 2000


def curves(command: Command, run: Run, marks: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return metric -> all its values of a run, in their order, for the metrics with a curve."""
    made = {}
    for metric in command.metrics:
        if metric.curve and metric.regex:
            matches = re.findall(metric.regex, _text(metric, run, command, marks), re.MULTILINE)
            groups = [match if isinstance(match, str) else match[0] for match in matches]
            try:
                values = [float(group) for group in groups]
            except ValueError:
                values = [math.nan]
            if not all(map(math.isfinite, values)):
                raise _missing(metric, "no-number")
            made[metric.name] = values[:MAX_CURVE]
    return made


def _text(metric: Metric, run: Run, command: Command, marks: Mapping[str, Any]) -> str:
    """Return what a metric is read of: the output of a run, or a file that it wrote."""
    if metric.file is None:
        return run.output
    path = Path(command.workdir or "", fill(metric.file, marks, quoted=False))
    try:
        if path.stat().st_mtime < run.began - CLOCK_S:
            raise _missing(metric, "old-file")
        return files.tail(path, MAX_OUTPUT_BYTES)
    except OSError:
        raise _missing(metric, "no-file") from None


def _value(metric: Metric, run: Run, command: Command, marks: Mapping[str, Any]) -> float:
    text_value = _find(metric, _text(metric, run, command, marks))
    try:
        value = math.nan if isinstance(text_value, bool) else float(text_value)
    except (OverflowError, TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise _missing(metric, "no-number")
    if metric.primary and value <= 0:
        raise _missing(metric, "not-positive")
    return value


def _missing(metric: Metric, lack: str) -> RunError:
    sentence = f"metric {metric.name!r}: {_LACKS[lack]}"
    return RunError("missing-metric", sentence, metric=metric.name, lack=lack)


def _find(metric: Metric, text: str) -> Any:
    """Return the last match of a metric's regex, or the value at its keys in the last JSON."""
    if metric.regex:
        match = None
        for match in re.finditer(metric.regex, text, re.MULTILINE):  # noqa: B007, the last counts
            pass
        if match is None:
            raise _missing(metric, "no-match")
        return match[1]
    assert metric.json_path is not None
    value = _last_json(text)
    if value is None:
        raise _missing(metric, "no-json")
    for key in metric.json_path.split("."):
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            raise _missing(metric, "no-key")
    return value


def _last_json(text: str) -> Any:
    for part in (text, *reversed(text.splitlines())):
        if part.lstrip()[:1] in ("{", "["):
            try:
                return json.loads(part)
            except (ValueError, RecursionError):
                continue
    return None


GROUP = "command"
# Suffixes of programs that an interpreter reads.
SCRIPTS = frozenset((".bash", ".jl", ".js", ".lua", ".m", ".pl", ".py", ".r", ".rb", ".sh"))


class Case(NamedTuple):
    """The program with one value of each factor, named for example `trees[threads=2]`."""

    name: str
    factors: dict[str, Any]


def record(
    command: Command, case: Case, start: Start, runs: Sequence[Mapping[str, float]], line: str,
    launch: Mapping[str, Any], drawn: Sequence[Mapping[str, list[float]]] = (),
) -> CaseRecord:  # fmt: skip
    """Return the record of a case, with the further fields in `launch`.

    A round is a run. Its time is the primary metric, the time of one unit for a rate, or the wall
    time.
    """
    num_ranks, primary = len(start.hosts), command.primary
    samples = command.work * (num_ranks if command.scaling == "weak" else 1)
    if command.rate_unit is not None:  # the work of a run may be unknown
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
        if kept := [run[name] for run in drawn if run.get(name)]:
            facts["curves"] = kept
    details = {
        "line": line, "launcher": start.launcher, "over": list(command.over), "metrics": metrics,
    }  # fmt: skip
    case_record = CaseRecord(
        study=command.scaling, workload=str(command.name), scaling=command.scaling,
        world_size=num_ranks, num_nodes=len(set(start.hosts)), factors=case.factors,
        sample_unit=command.rate_unit or command.work_unit, samples_per_step=samples,
        steps_per_round=1, rank_round_s=[[round_s(run) for run in runs]],
        rank_hosts=list(start.hosts), checks={"sanity": True} if command.sanity else {},
        details={"command": details}, **launch,
    )  # fmt: skip
    if wrong := problem(case_record):
        raise ValueError(wrong)
    return case_record


def source_sha256(command: Command) -> str:
    """Return the digest of a line and of the programs that it names, but not of data files."""
    digest = hashlib.sha256(command.line.encode())
    try:
        split = shlex.shlex(command.line, posix=True, punctuation_chars=True)
        split.whitespace_split = True
        words = list(split)
    except ValueError:  # shlex cannot read the line, but bash may
        words = command.line.split()
    for before, word in zip(["", *words], words, strict=False):
        if ">" in before or before == "tee":  # `word` is a file of output
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
    name = sized_name(case.name, case_record.world_size)
    return {
        "group": GROUP, "name": name, "fullname": f"command::{name}",
        "params": case.factors or None, "param": None, "extra_info": {KEY: case_record.to_dict()},
        "options": {"timer": "perf_counter", "warmup": False},
        "stats": _statistics(case_record.round_s),
    }  # fmt: skip


def _statistics(data: Sequence[float]) -> dict[str, Any]:
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
    """Return a launch's provenance, read on this node; of other nodes only the names are known."""
    launch = provenance.common_facts(seed, sys.argv) | {
        "image_path": None, "image_sha256": os.environ.get("LOCKSTEP_IMAGE_SHA256"),
    }  # fmt: skip
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
# With pipefail `./solve | tee log` fails if ./solve fails.
SHELL = ("bash", "-o", "pipefail", "-c")
# Characters of a case's name in the name of its folder.
MAX_SHOWN = 40


@dataclass(frozen=True)
class Driver:
    """Measures the cases of a launch."""

    options: argparse.Namespace
    command: Command
    start: Start
    source: str  # digest of the program before any run

    @property
    def labels(self) -> dict[str, str]:
        """The names of the launch and its campaign, and the number of the repeat."""
        return dict(label.split("=", 1) for label in self.options.label)

    def cases(self) -> list[Case]:
        name, factors = self.command.name, self.options.table["factors"]
        by_name = (dict(zip(factors, row, strict=True)) for row in product(*factors.values()))
        cases = [
            Case(f"{name}[{sizes.case_id(row)}]" if row else str(name), row) for row in by_name
        ]
        number, num_parts = map(int, (self.options.part or "1/1").split("/"))
        return cases[number - 1 :: num_parts]

    def threads(self, case: Case) -> int:
        return int(case.factors.get("threads", self.options.threads_per_rank))

    def measure(self, lines: Journal) -> int:
        options = self.options
        errors.keep_in(lines.path.parent, 0)
        cases = self.cases()
        seed = self._begin(lines, [case.name for case in cases])
        code = 0
        for position, case in enumerate(sizes.shuffle(cases, lambda case: case.name, seed)):
            done = journal.settled_outcomes(options.journal)
            leave = {"case", "skip"} | ({"fail"} if options.skip_failed else set())
            if done.get(case.name) in leave:
                continue
            if options.stop_file and options.stop_file.exists():
                return EXIT_STOPPED
            lines.begin(case.name)
            end = self._measure_case(case, position)
            lines.append({"case": case.name, **end})
            code = EXIT_FAILED if end["kind"] == "fail" else code
        lines.restore()
        return code

    def _begin(self, lines: Journal, expected: list[str]) -> int:
        """Write the `launch` line of this session, and return the seed of the order of cases."""
        options, path = self.options, self.options.journal
        is_resumed = options.resume and bool(journal.current(journal.read(path)))
        block = journal.rebuild(path)[KEY] if is_resumed else {}
        for case, entry in journal.measured(path).items() if is_resumed else ():
            if entry["extra_info"][KEY]["workload_sha256"] != self.source:
                raise ValueError(
                    f"{path} holds {case}, which was measured before the command or its program "
                    "changed; undo the change, or measure into another folder"
                )
        drawn = secrets.randbits(32) if options.order_seed is None else options.order_seed
        seed = int(block.get("order_seed", drawn))
        # The fewest threads of a case: only a case with more threads than cores gets a flag.
        threads = min(map(self.threads, self.cases()))
        facts = {
            **self.labels, "size": options.size, "rounds": options.table["rounds"],
            "warmup_rounds": options.table["warmup_rounds"],
            "part": options.part and [int(part) for part in options.part.split("/")],
            "order_seed": seed, "world_size": options.world_size,
            "num_nodes": len(set(self.start.hosts)),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "provenance": provenance_of(self.start, threads, options.device, options.seed),
        }  # fmt: skip
        head = {"expected": expected, "document": document(), "launch": facts}
        lines.begin_session(head, options)
        return seed

    def _measure_case(self, case: Case, position: int) -> dict[str, Any]:
        runs: list[dict[str, float]] = []
        drawn: list[dict[str, list[float]]] = []
        warmups = self.options.table["warmup_rounds"]
        for number in range(1, warmups + self.options.table["rounds"] + 1):
            try:
                values, of_run = self._run(case, number)
            except RunError as error:
                error.run = number
                sys.stdout.write(f"{case.name} failed: {error}\n")
                host, device = self.start.hosts[0], self.options.device
                cause = FailureCause(0, host, device, "fault", str(error))
                return {
                    "kind": "fail", "reason": str(error), "failure": error.to_dict(),
                    "causes": [asdict(cause)],
                }  # fmt: skip
            if number > warmups:
                runs.append(values)
                drawn.append(of_run)
        marks, cores = self._marks(case, 0), len(provenance.usable_cores())
        launch: dict[str, Any] = {"position": position, "workload_sha256": self.source, "flags": []}
        if (num_threads := marks["ranks_per_node"] * self.threads(case)) > cores:
            launch["flags"] = [flag("oversubscribed", threads=num_threads, cores=cores).to_dict()]
        line = fill(self.command.line, marks | {"out": "OUT"})
        try:
            case_record = record(self.command, case, self.start, runs, line, launch, drawn)
            kept = journal.copy_as_json({"benchmark": entry(case, case_record)})
        except ValueError as error:
            return {"kind": "fail", "reason": f"the result of the program is not valid: {error}"}
        units = {WALL: "s"} | {metric.name: metric.unit for metric in self.command.metrics}
        shown = [
            f"{name} {' '.join(f'{run[name]:.6g}' for run in runs)} {unit}"
            for name, unit in units.items()
        ]
        sys.stdout.write(f"{case.name}: {', '.join(shown)}\n")
        return {"kind": "case", **kept}

    def _run(self, case: Case, number: int) -> tuple[dict[str, float], dict[str, list[float]]]:
        command, marks = self.command, self._marks(case, number)
        words = [*self.start.words, *SHELL, fill(command.line, marks)]
        environ = clean(os.environ) | dict.fromkeys(THREAD_VARIABLES, str(self.threads(case)))
        ended = run(words, Path(marks["out"]), command.workdir or ".", environ, command.timeout)
        known = {WALL: ended.wall_s} | values(command, ended, marks)
        return known, curves(command, ended, marks)

    def _marks(self, case: Case, number: int) -> dict[str, Any]:
        hosts = self.start.hosts
        name = f"{case.name.replace('/', '_')[:MAX_SHOWN]}-{sizes.case_digest(case.name)}"
        folder = self.options.journal.absolute().parent / RUNS / name
        return {
            "ranks": len(hosts), "nodes": len(set(hosts)),
            "ranks_per_node": max(hosts.count(host) for host in set(hosts)),
            "threads": self.threads(case), "seed": self.options.seed,
            "repeat": self.labels.get("repeat", "0"), "out": str(folder / str(number)),
            **case.factors,
        }  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lockstep.campaign.program", allow_abbrev=False)
    parser.add_argument("--table", type=json.loads, required=True, help="see `common_options`")
    parser.add_argument("--world-size", type=int, required=True, help="number of ranks")
    # A word each of the srun command that starts the ranks, and of what is before the program's.
    for name in ("--under", "--inside"):
        parser.add_argument(name, action="append", default=[])
    # What follows is as in launch/options.py.
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--order-seed", type=int)
    parser.add_argument("--threads-per-rank", type=int, default=1)
    parser.add_argument("--part")
    parser.add_argument("--stop-file", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--skip-failed", action="store_true")
    parser.add_argument("--after", default="")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a launch; options for pytest are ignored."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_ENDED))
    options, _ = _parser().parse_known_args(arguments)
    try:
        table, size = options.table, options.world_size
        command = Command.model_validate(table["command"])
        source = source_sha256(command)
        starts = start(command, size, table["most_ranks"], options.under, options.inside)
        with closing(Journal(options.journal)) as lines:
            code = Driver(options, command, starts, source).measure(lines)
    except (ValueError, RuntimeError, OSError) as error:
        errors.note(str(error))
        sys.stderr.write(f"ERROR: {error}\n")
        code = EXIT_USAGE
    sys.exit(code)


if __name__ == "__main__":
    main()
