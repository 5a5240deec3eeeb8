"""Read profiles: torch.profiler's trace, Nsight Systems' sqlite and CSV, Nsight Compute's CSV.

Sources of the formats: the Chrome trace format as torch.profiler writes it; "SQLite Export Schema
Reference" and "nsys stats" of the Nsight Systems user guide; "--csv" of the Nsight Compute CLI
guide. Nothing of it was tried on a GPU: the tests write these files by their documents.
"""

import csv
import gzip
import io
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.core import phases
from lockstep.core.phases import STEP, TIMED, Phases, Range, Span, span_of

MICRO, NANO = 1e-6, 1e-9
GZIP, SQLITE = b"\x1f\x8b", b"SQLite format 3\0"
# NVTX_EVENTS.eventType of push/pop and start/end ranges.
NVTX_RANGES = (59, 60)
# Unit -> factor to the base unit, as Nsight Compute scales its values.
UNITS = {
    "nsecond": 1e-9,
    "ns": 1e-9,
    "usecond": 1e-6,
    "us": 1e-6,
    "msecond": 1e-3,
    "ms": 1e-3,
    "second": 1.0,
    "s": 1.0,
    "byte": 1.0,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
}
# Field of a kernel -> names of Nsight Compute's metric: in --page details, and in --page raw.
METRICS = {
    "seconds": ("Duration", "gpu__time_duration.sum"),
    "occupancy": ("Achieved Occupancy", "sm__warps_active.avg.pct_of_peak_sustained_active"),
    "memory": ("DRAM Throughput", "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
    "compute": ("Compute (SM) Throughput", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
    "num_bytes": ("dram__bytes.sum",),
}
# Thread instructions -> FLOP of each, as the roofline section of Nsight Compute counts them.
FLOP = {
    f"smsp__sass_thread_inst_executed_op_{kind}{name}_pred_on.sum": factor
    for kind in ("f", "d", "h")
    for name, factor in (("add", 1), ("mul", 1), ("fma", 2))
}


@dataclass(frozen=True)
class Kernel:
    """One kernel of a GPU, over its launches.

    Attributes:
        seconds: Of all launches.
        occupancy: Active warps over those that fit, mean of launches; None where not recorded.
        memory: Share of the peak memory bandwidth, mean of launches.
        compute: Share of the peak rate of the busiest pipeline, mean of launches.
        flop: Of all launches, where the instructions were counted.
        num_bytes: Of device memory, of all launches.
    """

    name: str
    count: int
    seconds: float
    occupancy: float | None = None
    memory: float | None = None
    compute: float | None = None
    flop: float | None = None
    num_bytes: float | None = None


@dataclass(frozen=True)
class Profile:
    """One file of a profiler.

    Attributes:
        rank: The rank it is of, where file or name says so.
        tool: What wrote it.
        phases: Where the time of a step goes; None where the file has sums alone.
        busy_s: Kind -> seconds of the whole file, of sums.
        kernels: The longest first.
    """

    path: Path
    rank: int | None
    tool: str
    phases: Phases | None = None
    busy_s: dict[str, float] = field(default_factory=dict)
    kernels: Sequence[Kernel] = ()


def read(path: Path) -> Profile:
    """Read a profile; what it is shows in its content.

    Raises:
        ValueError: It cannot be read, or is none of the formats.
    """
    if path.suffix == ".py":
        raise ValueError(
            f"{path}: a script explains itself: call lockstep.explain(step, model=ddp, "
            "batches=loader) in it, and run it under torchrun"
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
    except (KeyError, TypeError, AttributeError, EOFError, OSError, sqlite3.Error) as error:
        raise ValueError(f"{path}: damaged, or of another version: {error}") from error
    except ValueError as error:
        text = str(error)
        raise ValueError(text if str(path) in text else f"{path}: {text}") from error


def _rank(path: Path, known: object = None) -> int | None:
    """Return the rank that a file is of: what it says, else what its name ends with."""
    if isinstance(known, int):
        return known
    match = re.search(r"(?:rank-?|-r)(\d+)", path.name)
    return int(match[1]) if match else None


# torch.profiler


def _from_trace(path: Path, trace: Any) -> Profile:
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    info = trace.get("distributedInfo", {}) if isinstance(trace, dict) else {}
    host, device, kernels = list[Span](), list[Span](), list[tuple[str, float]]()
    marks: dict[str, list[Range]] = {"device": [], TIMED: [], STEP: []}
    for event in events:
        if event.get("ph") != "X":
            continue
        name, category = str(event["name"]), str(event.get("cat", "")).lower()
        begin = float(event["ts"]) * MICRO
        end = begin + float(event.get("dur", 0)) * MICRO
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            device.append(_device_span(name, begin, end, is_copy=category != "kernel"))
            if category == "kernel":
                kernels.append((name, end - begin))
        elif category == "gpu_user_annotation":
            if name.startswith((TIMED, STEP)):
                marks["device"].append((begin, end))
        elif mark := next((mark for mark in (TIMED, STEP) if name.startswith(mark)), None):
            marks[mark].append((begin, end))
        elif span := span_of(name, begin, end):
            host.append(span)
    steps = (marks["device"] if device else []) or marks[TIMED] or marks[STEP]
    return _profile(path, "torch.profiler", host, device, steps, kernels, info.get("rank"))


def _device_span(name: str, begin_s: float, end_s: float, *, is_copy: bool) -> Span:
    if is_copy:
        return Span("copy", "copies", begin_s, end_s)
    if "nccl" in name.lower():
        return Span("communication", "communication", begin_s, end_s)
    return Span("compute", "kernels", begin_s, end_s)


def _profile(
    path: Path,
    tool: str,
    host: Sequence[Span],
    device: Sequence[Span],
    steps: Sequence[Range],
    kernels: Sequence[tuple[str, float]],
    rank: object = None,
) -> Profile:
    """Return a profile of spans: those of the device count where there are any.

    Of the host only the reading of batches counts beside them: forward and backward there say when
    work was handed over.
    """
    spans = [*device, *(one for one in host if one.kind == "input")] if device else host
    if not spans:
        raise ValueError(
            f"{path}: the profile has no kernel, copy, collective or range of a step; record with "
            "torch.profiler's schedule, or give nsys --trace=cuda,nvtx"
        )
    if not steps:  # the whole of what ran
        steps = [(min(one.begin_s for one in spans), max(one.end_s for one in spans))]
    found = phases.phases(spans, steps)
    return Profile(path, _rank(path, rank), tool, found, kernels=_summed(kernels))


def _summed(launches: Sequence[tuple[str, float]]) -> list[Kernel]:
    sums: dict[str, tuple[int, float]] = {}
    for name, seconds in launches:
        count, total = sums.get(name, (0, 0.0))
        sums[name] = (count + 1, total + seconds)
    found = [Kernel(name, count, seconds) for name, (count, seconds) in sums.items()]
    return sorted(found, key=lambda kernel: -kernel.seconds)


# Nsight Systems


def _from_sqlite(path: Path) -> Profile:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        tables = {
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
        }
        device, kernels, host, steps = list[Span](), list[tuple[str, float]](), [], []
        if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
            for name, begin, end in database.execute(
                "SELECT s.value, k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL k "
                "LEFT JOIN StringIds s ON s.id = k.demangledName"
            ):
                kernels.append((name or "unnamed", (end - begin) * NANO))
                device.append(_device_span(name or "", begin * NANO, end * NANO, is_copy=False))
        for table in ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"):
            if table in tables:
                device += [
                    _device_span("", begin * NANO, end * NANO, is_copy=True)
                    for begin, end in database.execute(f"SELECT start, end FROM {table}")  # noqa: S608, one of two names
                ]
        if "NVTX_EVENTS" in tables:
            for name, begin, end in database.execute(
                "SELECT COALESCE(n.text, s.value), n.start, n.end FROM NVTX_EVENTS n "
                "LEFT JOIN StringIds s ON s.id = n.textId "
                "WHERE n.eventType IN (?, ?) AND n.end IS NOT NULL",
                NVTX_RANGES,
            ):
                range_s = (begin * NANO, end * NANO)
                if name and name.lower().startswith((TIMED, STEP.lower(), "step", "iteration")):
                    steps.append(range_s)
                elif name and (span := span_of(name, *range_s)):
                    host.append(span)
    return _profile(path, "Nsight Systems", host, device, steps, kernels)


def _from_csv(path: Path, text: str) -> Profile:
    """Read CSV of `nsys stats` or `ncu`: tables, each below its own header, with other lines."""
    busy = {"compute": 0.0, "communication": 0.0, "copy": 0.0}
    kernels, launches = list[Kernel](), list[dict[str, str]]()
    for row in _csv_rows(text):
        if "Metric Name" in row:
            launches.append(row)
        elif "Operation" in row:  # cuda_gpu_mem_time_sum
            busy["copy"] += _number(row["Total Time (ns)"]) * NANO
        elif "Name" in row and "Instances" in row:  # cuda_gpu_kern_sum
            name, seconds = row["Name"], _number(row["Total Time (ns)"]) * NANO
            busy[_device_span(name, 0, 0, is_copy=False).kind] += seconds
            kernels.append(Kernel(name, int(_number(row["Instances"])), seconds))
    if launches:
        return Profile(path, _rank(path), "Nsight Compute", kernels=_from_ncu(launches))
    if not any(busy.values()):
        raise ValueError(
            f"{path}: no profile that Lockstep reads; give a trace of torch.profiler (.json, "
            ".json.gz), nsys export --type sqlite, nsys stats --format csv, or ncu --csv"
        )
    return Profile(path, _rank(path), "nsys stats", busy_s=busy, kernels=kernels)


def _csv_rows(text: str) -> Iterator[dict[str, str]]:
    header: list[str] = []
    for cells in csv.reader(io.StringIO(text)):
        if {"Time (%)", "Metric Name"} & set(cells):
            header = cells
        elif header and len(cells) == len(header):
            yield dict(zip(header, cells, strict=True))
        else:
            header = []


def _from_ncu(rows: Sequence[dict[str, str]]) -> list[Kernel]:
    """Return the kernels of Nsight Compute: a row for each metric of each launch."""
    launches: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        metric, value = row["Metric Name"], row["Metric Value"]
        name = next((name for name, known in METRICS.items() if metric in known), None)
        factor = UNITS.get(row.get("Metric Unit", ""), 1.0)
        launch = launches.setdefault((row["ID"], row["Kernel Name"]), {})
        if name and value:
            launch[name] = _number(value) * factor
        elif metric in FLOP:
            launch["flop"] = launch.get("flop", 0.0) + FLOP[metric] * _number(value)
    kernels = []
    for kernel in dict.fromkeys(name for _, name in launches):
        own = [launch for (_, name), launch in launches.items() if name == kernel]

        def total(key: str, own: Sequence[dict[str, float]] = own) -> float | None:
            return sum(one[key] for one in own) if all(key in one for one in own) else None

        def mean_share(key: str, own: Sequence[dict[str, float]] = own) -> float | None:
            known = [one[key] / 100 for one in own if key in one]
            return sum(known) / len(known) if known else None

        kernels.append(
            Kernel(
                kernel,
                len(own),
                total("seconds") or 0.0,
                occupancy=mean_share("occupancy"),
                memory=mean_share("memory"),
                compute=mean_share("compute"),
                flop=total("flop"),
                num_bytes=total("num_bytes"),
            )
        )
    return sorted(kernels, key=lambda kernel: -kernel.seconds)


def _number(text: str) -> float:
    return float(text.replace(",", ""))
