"""The record of a program's case, in the form that every measured case has."""

import hashlib
import math
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Any

from lockstep import content
from lockstep.campaign.program.programs import Start
from lockstep.campaign.program.table import TIMES_S, WALL, Command
from lockstep.core.flags import Flag, flag
from lockstep.core.processes import hostname
from lockstep.core.record import KEY, CaseRecord, problem, sized_name
from lockstep.machine import provenance

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
    made = CaseRecord(
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
    if wrong := problem(made):
        raise ValueError(wrong)
    return made


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
            one.name: {
                "unit": one.unit,
                "better": "lower" if one.is_lower_better else "higher",
                "primary": one is primary,
            }
            for one in command.metrics
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


def entry(case: Case, made: CaseRecord) -> dict[str, Any]:
    """Return a case as pytest-benchmark's JSON has it."""
    name = sized_name(case.name, made.world_size)
    return {
        "group": GROUP,
        "name": name,
        "fullname": f"command::{name}",
        "params": case.factors or None,
        "param": None,
        "extra_info": {KEY: made.to_dict()},
        "options": {"timer": "perf_counter", "warmup": False},
        "stats": _statistics(made.round_s),
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
