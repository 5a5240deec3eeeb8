"""Read profiles: torch.profiler's trace, Nsight Systems' sqlite and CSV, Nsight Compute's CSV.

Sources: the Chrome trace format, and the Nsight Systems and Nsight Compute user guides.
"""

import csv
import gzip
import io
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.core import phases
from lockstep.core.phases import STEP, TIMED, Named, Phases, Range, Span

MICRO, NANO = 1e-6, 1e-9
# Work of a device, its kernel's name if it is one, and the number that its launch has as well.
OnDevice = tuple[Span, str | None, Any]
GZIP, SQLITE = b"\x1f\x8b", b"SQLite format 3\0"
NCU = "Nsight Compute"
RANK = re.compile(r"(?:-?rank-?|-r)(\d+)")  # in the name of a file
# Nsight Compute's units -> factor to the base unit; X/second is a rate.
UNITS = {
    "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3,
    "second": 1.0, "s": 1.0, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12,
    "hz": 1.0, "Khz": 1e3, "Mhz": 1e6, "Ghz": 1e9,
}  # fmt: skip
# Field of a kernel -> Nsight Compute's metric in --page details, and in --page raw.
METRICS = {
    "seconds": ("Duration", "gpu__time_duration.sum"),
    "occupancy": ("Achieved Occupancy", "sm__warps_active.avg.pct_of_peak_sustained_active"),
    "memory": ("DRAM Throughput", "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
    "compute": ("Compute (SM) Throughput", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
    "num_bytes": ("dram__bytes.sum",),
    "bytes_per_s": ("dram__bytes.sum.per_second",),
    "cycles_per_s": ("smsp__cycles_elapsed.avg.per_second",),
}
DEVICE_NAME = "device__attribute_display_name"
# What counts as FLOP in the roofline sections of Nsight Compute: instructions of threads, an fma as
# two, of halves in pairs; and operations of tensor cores. Sections have counts in each cycle, and
# `derived__` ones hold the factor.
COUNT = re.compile(
    r"(?P<derived>derived__)?(?P<what>"
    r"smsp__sass_thread_inst_executed_op_(?P<kind>[fdh])(?P<operation>add|mul|fma)_pred_on|"
    r"sm__ops_path_tensor_(?:op_hg?mma_)?src_(?P<tensor>tf32|bf16|fp16)\w*)"
    r"(?:_x[24]|\.sum|\.sum\.per_cycle_elapsed)"
)
OF_INSTRUCTION = {"f": "fp32", "d": "fp64", "h": "fp16 without tensor cores"}


@dataclass(frozen=True)
class Kernel:
    """A kernel of a GPU: sums of `count` launches, and means of shares; None if not recorded.

    Attributes:
        occupancy: Active warps / warps that fit.
        memory: Share of the peak memory bandwidth.
        compute: Share of the peak rate of the busiest pipeline.
        num_bytes: Traffic of device memory.
        precision: That of most of its FLOP.
    """

    name: str
    count: int
    seconds: float
    occupancy: float | None = None
    memory: float | None = None
    compute: float | None = None
    flop: float | None = None
    num_bytes: float | None = None
    precision: str | None = None


@dataclass(frozen=True)
class Profile:
    """One file of a profiler.

    Attributes:
        rank: The rank, from the content or the name of the file.
        phases: Where the time of a step goes; None if the file has only sums.
        busy_s: Kind of work -> seconds in the whole file, if it has only sums.
        kernels: The longest first.
        device: The GPU's name, if the file has it.
        step: Begin and end of the step of median duration; None if the file has only sums.
        spans: All that ran in that step.
    """

    path: Path
    rank: int | None
    tool: str
    phases: Phases | None = None
    busy_s: dict[str, float] = field(default_factory=dict)
    kernels: Sequence[Kernel] = ()
    device: str | None = None
    step: Range | None = None
    spans: Sequence[Span] = ()


def read(path: Path) -> Profile:
    """Read a profile by its content; ValueError if it is unreadable or of no known format."""
    if path.suffix == ".py":
        raise ValueError(
            f"{path}: this is a script, not a profile: call lockstep.explain(step, model=ddp, "
            "batches=loader) in the script, and run it under torchrun"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    try:
        if content.startswith(SQLITE):
            return _from_sqlite(path)
        if content.startswith(GZIP):
            content = gzip.decompress(content)
        if content.lstrip()[:1] in (b"{", b"["):
            return _from_trace(path, json.loads(content))
        return _from_csv(path, content.decode("utf-8", errors="replace"))
    except KeyError as error:
        raise ValueError(
            f"{path}: the profile is damaged or of another version, because key {error} is missing"
        ) from error
    except (TypeError, AttributeError, EOFError, OSError, sqlite3.Error) as error:
        raise ValueError(
            f"{path}: the profile is damaged or of another version: {error}"
        ) from error
    except ValueError as error:
        text = str(error)
        raise ValueError(text if str(path) in text else f"{path}: {text}") from error


def rank_of(path: Path) -> int | None:
    """Return the rank that the name of a file has."""
    match = RANK.search(path.name)
    return int(match[1]) if match else None


def name_of_all(path: Path) -> str:
    """Return the name of a file without its rank and ending, which the files of all ranks share."""
    return RANK.sub("", path.name).partition(".json" if ".json" in path.name else path.suffix)[0]


def _from_trace(path: Path, trace: Any) -> Profile:
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    info = trace.get("distributedInfo", {}) if isinstance(trace, dict) else {}
    host, device, launched_s = list[Named](), list[OnDevice](), dict[Any, float]()
    marks: dict[str, list[Range]] = {"device": [], TIMED: [], STEP: []}
    for event in events:
        if event.get("ph") != "X":
            continue
        name, category = str(event["name"]), str(event.get("cat", "")).lower()
        begin = float(event["ts"]) * MICRO
        end = begin + float(event.get("dur", 0)) * MICRO
        launch = (event.get("args") or {}).get("correlation")
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            device.append(_on_device(name, begin, end, launch, is_copy=category != "kernel"))
        elif category in ("cuda_runtime", "cuda_driver"):
            launched_s[launch] = begin
        elif category == "gpu_user_annotation":
            if name.startswith((TIMED, STEP)):
                marks["device"].append((begin, end))
        elif mark := next((mark for mark in (TIMED, STEP) if name.startswith(mark)), None):
            marks[mark].append((begin, end))
        else:
            host.append((name, begin, end))
    steps = (marks["device"] if device else []) or marks[TIMED] or marks[STEP]
    rank = info.get("rank")
    known = rank if isinstance(rank, int) else rank_of(path)
    return _profile(path, known, "torch.profiler", host, device, launched_s, steps)


def _on_device(
    name: str, begin_s: float, end_s: float, launch: Any = None, *, is_copy: bool
) -> OnDevice:
    if is_copy:
        return Span("copy", "copies", begin_s, end_s), None, launch
    if "nccl" in name.lower():
        return Span("communication", "communication", begin_s, end_s), name, launch
    return Span("compute", "kernels", begin_s, end_s), name, launch


def _profile(
    path: Path, rank: int | None, tool: str, host: Sequence[Named], device: Sequence[OnDevice],
    launched_s: dict[Any, float], steps: Sequence[Range],
) -> Profile:  # fmt: skip
    """Return the profile of a host's ranges and a device's work.

    If the device has spans, only `input` counts of the host: the host's forward and backward only
    queue work for the device.
    """
    spans = phases.of_host(host)
    if device:
        launches = [(each, launched_s[n]) for each, _, n in device if n in launched_s]
        spans = [span for span in spans if span.kind == "input"]
        spans += [span for span, _, _ in device] + phases.by_launch(launches, host)
    if not spans:
        raise ValueError(
            f"{path}: the profile has no kernel, copy, collective or range of a step; record it "
            "with torch.profiler's schedule, or with nsys --trace=cuda,nvtx"
        )
    if not steps:
        steps = [(min(span.begin_s for span in spans), max(span.end_s for span in spans))]
    times: dict[str, list[float]] = {}
    for span, name, _ in device:
        if name is not None:
            times.setdefault(name or "unnamed", []).append(span.end_s - span.begin_s)
    kernels = [Kernel(name, len(own), sum(own)) for name, own in times.items()]
    kernels.sort(key=lambda kernel: -kernel.seconds)
    begin_s, end_s = step = sorted(steps, key=lambda each: each[1] - each[0])[len(steps) // 2]
    shown = [span for span in spans if span.begin_s < end_s and span.end_s > begin_s]
    shares = phases.phases(spans, steps)
    return Profile(path, rank, tool, shares, kernels=kernels, step=step, spans=shown)


def _from_sqlite(path: Path) -> Profile:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        tables = {
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
        }
        host, device, launched_s, steps = list[Named](), list[OnDevice](), {}, list[Range]()
        if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
            device += [
                _on_device(name or "", begin * NANO, end * NANO, launch, is_copy=False)
                for name, begin, end, launch in database.execute(
                    "SELECT s.value, k.start, k.end, k.correlationId "
                    "FROM CUPTI_ACTIVITY_KIND_KERNEL k "
                    "LEFT JOIN StringIds s ON s.id = k.demangledName"
                )
            ]
        for table in ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"):
            if table in tables:
                device += [
                    _on_device("", begin * NANO, end * NANO, is_copy=True)
                    for begin, end in database.execute(f"SELECT start, end FROM {table}")  # noqa: S608, one of two names
                ]
        if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables:
            rows = database.execute("SELECT correlationId, start FROM CUPTI_ACTIVITY_KIND_RUNTIME")
            launched_s = {launch: begin * NANO for launch, begin in rows}
        if "NVTX_EVENTS" in tables:
            for name, begin, end in database.execute(
                "SELECT COALESCE(n.text, s.value), n.start, n.end FROM NVTX_EVENTS n "
                "LEFT JOIN StringIds s ON s.id = n.textId "
                # push/pop and start/end ranges
                "WHERE n.eventType IN (59, 60) AND n.end IS NOT NULL"
            ):
                range_s = (begin * NANO, end * NANO)
                if name and name.lower().startswith((TIMED, STEP.lower(), "step", "iteration")):
                    steps.append(range_s)
                elif name:
                    host.append((name, *range_s))
    return _profile(path, rank_of(path), "Nsight Systems", host, device, launched_s, steps)


def _from_csv(path: Path, text: str) -> Profile:
    """Read CSV of `nsys stats` or `ncu`: tables below their headers, among other lines."""
    busy = {"compute": 0.0, "communication": 0.0, "copy": 0.0}
    kernels, metrics, header = list[Kernel](), list[dict[str, str]](), list[str]()
    units: dict[str, str] = {}  # of `ncu --page raw`, which has a column for each metric
    for cells in csv.reader(io.StringIO(text)):
        if {"Time (%)", "Metric Name", "Kernel Name"} & set(cells):
            header = cells
            continue
        if len(cells) != len(header):
            header = []
        row = dict(zip(header, cells, strict=False))
        if "Metric Name" in row:
            metrics.append(row)
        elif "Kernel Name" in row:
            units = units if row["ID"] else row  # which come first
            metrics += [
                row | {"Metric Name": name, "Metric Unit": units[name], "Metric Value": value}
                for name, value in row.items()
                if row["ID"]
            ]
        elif "Operation" in row:  # cuda_gpu_mem_time_sum
            busy["copy"] += _number(row["Total Time (ns)"]) * NANO
        elif "Name" in row and "Instances" in row:  # cuda_gpu_kern_sum
            name, seconds = row["Name"], _number(row["Total Time (ns)"]) * NANO
            busy[_on_device(name, 0, 0, is_copy=False)[0].kind] += seconds
            kernels.append(Kernel(name, int(_number(row["Instances"])), seconds))
    if metrics:
        named = (row["Metric Value"] for row in metrics if row["Metric Name"] == DEVICE_NAME)
        kernels = _from_ncu(metrics)
        return Profile(path, rank_of(path), NCU, kernels=kernels, device=next(named, None))
    if not any(busy.values()):
        raise ValueError(
            f"{path}: Lockstep does not read this kind of profile; give a trace of torch.profiler "
            "(.json, .json.gz), nsys export --type sqlite, nsys stats --format csv, or ncu --csv"
        )
    return Profile(path, rank_of(path), "nsys stats", busy_s=busy, kernels=kernels)


def _from_ncu(rows: Sequence[dict[str, str]]) -> list[Kernel]:
    """Return the kernels of Nsight Compute, from a row for each metric of each launch."""
    launches: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        metric, value = row["Metric Name"], row["Metric Value"]
        launch = launches.setdefault((row["ID"], row["Kernel Name"]), {})
        if not value[:1].isdigit():  # not recorded
            continue
        name = next((name for name, known in METRICS.items() if metric in known), None)
        if name:
            top, _, below = row.get("Metric Unit", "").partition("/")
            launch[name] = _number(value) * UNITS.get(top, 1.0) / UNITS.get(below, 1.0)
        elif COUNT.fullmatch(metric):
            launch[metric] = _number(value)
    precisions: dict[str, str] = {}  # of each kernel whose operations of tensor cores are known
    for (_, kernel), launch in launches.items():
        seconds = launch.get("seconds", 0.0)
        if "bytes_per_s" in launch:
            launch.setdefault("num_bytes", launch["bytes_per_s"] * seconds)
        found = _flop(launch, launch.get("cycles_per_s", 0.0) * seconds)
        if found:
            launch["flop"] = sum(found.values())
            if any("path_tensor" in metric for metric in launch):
                precisions[kernel] = max(found, key=found.__getitem__)
    kernels = []
    for kernel in dict.fromkeys(name for _, name in launches):
        own = [launch for (_, name), launch in launches.items() if name == kernel]
        values = {
            key: [launch[key] for launch in own if key in launch] for key in (*METRICS, "flop")
        }
        totals = {
            key: sum(values[key]) if len(values[key]) == len(own) else None
            for key in ("seconds", "flop", "num_bytes")
        }
        shares = {
            key: sum(x / 100 for x in values[key]) / len(values[key]) if values[key] else None
            for key in ("occupancy", "memory", "compute")
        }
        seconds = totals.pop("seconds") or 0.0
        named = precisions.get(kernel)
        kernels.append(Kernel(kernel, len(own), seconds, **shares, **totals, precision=named))
    return sorted(kernels, key=lambda kernel: -kernel.seconds)


def _flop(launch: Mapping[str, float], cycles: float) -> dict[str, float]:
    """Return precision -> FLOP of a launch that took so many cycles; empty if not recorded."""
    counted: dict[str, tuple[str, float]] = {}  # one count may be recorded in several forms
    for metric, count in launch.items():
        match = COUNT.fullmatch(metric)
        if match and (metric.endswith(".sum") or cycles):
            total = count if metric.endswith(".sum") else count * cycles
            if match["kind"] and not match["derived"]:
                total *= (1 + (match["operation"] == "fma")) * (1 + (match["kind"] == "h"))
            counted[match["what"]] = match["tensor"] or OF_INSTRUCTION[match["kind"]], total
    found: dict[str, float] = {}
    for precision, total in counted.values():
        found[precision] = found.get(precision, 0.0) + total
    return found


def _number(text: str) -> float:
    return float(text.replace(",", ""))
