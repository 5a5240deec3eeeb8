"""A rank's device and host while its rounds run, sampled by a thread.

Quantities that only grow, such as energy, are read before and after. GPU numbers are NVML's, or on
AMD's GPUs some of amdsmi's, of the rank's own device; those of the CPU come beside them:

    gpu_utilisation         share of NVML's last sample period in which a kernel ran
    memory_utilisation      share of that period in which the device's memory was in use
    gpu_memory_bytes        in use on the device, other processes' included
    gpu_memory_total_bytes  of the device, before and after the rounds
    sm_clock_mhz            clock of the multiprocessors
    memory_clock_mhz        clock of the device's memory
    clocks_held_back        1 if a fault or heat reduced the clocks, see `SLOWDOWNS`
    power_w                 of the whole board
    power_limit_w           enforced by the driver, before and after the rounds
    temperature_c           of the chip
    energy_j                of the whole board, by its own counter
    process_cores           cores that this process kept busy
    rss_bytes               resident memory of this process
    cpu_frequency_mhz       before and after the rounds only, since reading takes milliseconds
    cpu_s                   CPU time of this process and those that it started
    core_utilisation        busy share of the cores that this rank may run on, by any process
    throttled_s             time for which the control group's CPU quota stopped its tasks, the mean
                            over the cores that this rank may run on
    child_cores             cores kept busy by processes that this one started, such as workers of
                            a data loader
    fabric_sent_gb_per_s    what all InfiniBand ports of the host sent, by any process
    sockets_sent_gb_per_s   what all other network devices of the host sent, by any process
    elapsed_s               duration of the sampling

The record has the mean, least and most of each. A `Timeline` keeps a row per second, and writes
its file after the rounds.
"""

import contextlib
import csv
import os
import re
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

import psutil

from lockstep.core.metrics import GIGA
from lockstep.core.processes import descendants
from lockstep.machine import memory, network, nvidia
from lockstep.machine.provenance import usable_cores

if TYPE_CHECKING:
    import torch


FOLDER = "telemetry"
EVERY_S = 1.0
# Rows of a case: an hour is 400 kB. A longer case keeps every second row, then every fourth.
MOST_ROWS = 3600
# Significant digits of telemetry.
DIGITS = 4
FIRST_COLUMNS = ("time_s", "case")


def file_of(journal_path: Path, rank: int) -> Path:
    """Return the file of a rank's samples, beside its launch's journal."""
    return journal_path.parent / FOLDER / f"{journal_path.stem}-rank-{rank}.csv"


@dataclass
class Timeline:
    """Samples that are a second or more apart."""

    gauges: Sequence[str]  # names of the sampled quantities, which are the file's columns
    # (seconds since 1970, name -> value) of each sample.
    rows: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)
    every_s: float = EVERY_S  # least time between two rows

    def add(self, time_s: float, sample: Mapping[str, float]) -> None:
        """Add a sample, unless the last row is too recent."""
        if self.rows and time_s - self.rows[-1][0] < self.every_s:
            return
        self.rows.append((time_s, sample))
        if len(self.rows) > MOST_ROWS:
            del self.rows[1::2]
            self.every_s *= 2

    def append_to(self, path: Path, case: str) -> None:
        """Append the rows to a file; an error is ignored, since no result depends on the file."""
        if not self.rows:
            return
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                if not os.fstat(file.fileno()).st_size:
                    writer.writerow([*FIRST_COLUMNS, *self.gauges])
                for time_s, sample in self.rows:
                    values = [sample.get(name) for name in self.gauges]
                    cells = ["" if value is None else f"{shorten(value):.12g}" for value in values]
                    writer.writerow([f"{time_s:.3f}", case, *cells])


def shorten(value: float) -> float:
    """Return a number with `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


INTERVAL_S = 0.25
MICRO, NANO = 1e-6, 1e-9
# Quantities with one value per rank; the others have the mean, least and most of its samples.
TOTALS = (
    *("elapsed_s", "energy_j", "cpu_s", "core_utilisation", "throttled_s"),
    *("child_cores", "fabric_sent_gb_per_s", "sockets_sent_gb_per_s"),
)
# Name of a quantity that grows -> its rate over the time of the sampling, and the rate's unit.
RATES = {
    "child_s": ("child_cores", 1.0),
    "fabric_sent_bytes": ("fabric_sent_gb_per_s", GIGA),
    "sockets_sent_bytes": ("sockets_sent_gb_per_s", GIGA),
}

Numbers = dict[str, float]


class Host:
    """This process and its cores, as psutil and the control group report them."""

    gauges: Sequence[str] = ("process_cores", "rss_bytes")

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._last = (time.monotonic(), time.process_time())

    def sample(self) -> Numbers:
        """Return the cores kept busy since the last sample, and the resident memory."""
        (then, used_then), (now, used) = self._last, (time.monotonic(), time.process_time())
        self._last = (now, used)
        sample: Numbers = {"rss_bytes": float(self._process.memory_info().rss)}
        if now - then > INTERVAL_S / 2:  # a shorter interval is not representative
            sample["process_cores"] = (used - used_then) / (now - then)
        return sample

    def sample_apart(self) -> Numbers:
        """Return the cores' frequency, if the kernel knows it."""
        self._last = (time.monotonic(), time.process_time())
        with contextlib.suppress(OSError, NotImplementedError):
            if frequency := psutil.cpu_freq():
                return {"cpu_frequency_mhz": frequency.current}
        return {}

    def totals(self) -> Numbers:
        """Return the CPU time of this process and its children, and of the cores."""
        # User and system time, each of the process and of its children that have ended.
        own = self._process.cpu_times()
        own_s, child_s = sum(own[:2]), sum(own[2:4])
        for process in descendants():
            with contextlib.suppress(psutil.Error):
                child_s += sum(process.cpu_times()[:4])
        busy_s, all_s = _cores_s()
        totals = {
            "cpu_s": own_s + child_s, "child_s": child_s, "core_busy_s": busy_s, "core_s": all_s,
        }  # fmt: skip
        further = {
            "throttled_s": read_throttled_s(), "fabric_sent_bytes": network.sent_bytes(),
            "sockets_sent_bytes": network.interfaces_sent_bytes(),
        }  # fmt: skip
        return totals | {name: value for name, value in further.items() if value is not None}


# Name of a reading of an AMD GPU -> function of torch.cuda, factor, and whether 0 is a value.
AMD_READINGS = {
    "gpu_utilisation": ("utilization", 0.01, True),
    "memory_utilisation": ("memory_usage", 0.01, True),
    "gpu_memory_bytes": ("device_memory_used", 1.0, True),
    "sm_clock_mhz": ("clock_rate", 1.0, False),
    "power_w": ("power_draw", 1.0, False),
}


def open_amd(device: "torch.device") -> "AmdGauges | None":
    """Return an AMD GPU's readings; None for another device, or without amdsmi."""
    import torch

    if device.type != "cuda" or not torch.version.hip:
        return None
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # amdsmi has errors of its own
        warnings.simplefilter("error")  # torch warns where it may read another device
        torch.cuda.utilization(device)
        return AmdGauges(device)
    return None


@dataclass(frozen=True)
class AmdGauges:
    """Readings of an AMD GPU; unsupported ones are left out. This has not run on such a GPU yet.

    torch asks the package amdsmi of ROCm, with HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES taken
    into account. It passes amdsmi's units on: shares in per cent, MHz, and W for power, although
    its documentation says mW (amdsmi.h, `amdsmi_power_info_t`: "socket power in W"). It returns 0
    for a power or clock that is not known, and reads no counter of energy.
    """

    device: "torch.device"
    gauges: Sequence[str] = tuple(AMD_READINGS)

    def sample(self) -> Numbers:
        import torch

        readings = {}
        for name, (function, factor, may_be_zero) in AMD_READINGS.items():
            with contextlib.suppress(Exception):
                value = float(getattr(torch.cuda, function)(self.device))
                if value or may_be_zero:
                    readings[name] = value * factor
        return readings

    def sample_apart(self) -> Numbers:
        import torch

        total = torch.cuda.get_device_properties(self.device).total_memory
        return {"gpu_memory_total_bytes": float(total)}

    def totals(self) -> Numbers:
        return {}


@dataclass
class Telemetry:
    """Samples taken inside its `with` blocks, which add up."""

    sources: Sequence[Host | nvidia.Gauges | AmdGauges]
    interval_s: float = INTERVAL_S  # between two samples
    samples: dict[str, list[float]] = field(default_factory=dict)  # name -> values
    grown: Numbers = field(default_factory=dict)  # name -> increase of what only grows
    timeline: Timeline = field(init=False)
    _begun: Numbers = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.timeline = Timeline([name for source in self.sources for name in source.gauges])

    def __enter__(self) -> Self:
        if not self.sources:
            return self
        for source in self.sources:
            self._keep(source.sample_apart())
        self._begun = self._totals() | {"elapsed_s": time.monotonic()}
        self._over.clear()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        self._over.set()
        self._thread.join()
        self._sample()
        ended = {"elapsed_s": time.monotonic()} | self._totals()
        for name in self._begun.keys() & ended.keys():
            self.grown[name] = self.grown.get(name, 0.0) + ended[name] - self._begun[name]
        for source in self.sources:
            self._keep(source.sample_apart())

    def facts(self) -> dict[str, Any]:
        """Return name -> [mean, least, most], or one number for `TOTALS`."""
        spans = {
            name: [shorten(reduce(values)) for reduce in (fmean, min, max)]
            for name, values in self.samples.items()
        }
        grown = dict(self.grown)
        busy_s, all_s = grown.pop("core_busy_s", 0.0), grown.pop("core_s", 0.0)
        if all_s > 0:
            grown["core_utilisation"] = busy_s / all_s
        elapsed_s = grown.get("elapsed_s")
        for name, (rate, unit) in RATES.items():
            amount = grown.pop(name, None)
            if amount is not None and elapsed_s:
                grown[rate] = amount / elapsed_s / unit
        return spans | {name: shorten(value) for name, value in grown.items()}

    def _watch(self) -> None:
        while not self._over.wait(self.interval_s):
            self._sample()

    def _sample(self) -> None:
        sample = dict(pair for source in self.sources for pair in source.sample().items())
        self._keep(sample)
        self.timeline.add(time.time(), sample)

    def _keep(self, sample: Numbers) -> None:
        for name, value in sample.items():
            self.samples.setdefault(name, []).append(value)

    def _totals(self) -> Numbers:
        return dict(pair for source in self.sources for pair in source.totals().items())


@contextlib.contextmanager
def sampling(device: "torch.device", is_wanted: bool) -> Iterator[Telemetry]:
    """Give the sampler of a rank on a device; NVML stays open meanwhile."""
    if not is_wanted:
        yield Telemetry([])
        return
    with nvidia.open_gauges(device) as of_nvidia:
        gauges = of_nvidia or open_amd(device)
        yield Telemetry([Host(), *([gauges] if gauges else [])])


def columns(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return name -> a value per rank for `TOTALS`, else `mean`, `least` and `most` of each rank.

    A value that a rank lacks is None.
    """
    facts: dict[str, Any] = {}
    for name in dict.fromkeys(name for rank in ranks for name in rank):
        values = [rank.get(name) for rank in ranks]
        facts[name] = values if name in TOTALS else {
            part: [value and value[index] for value in values]
            for index, part in enumerate(("mean", "least", "most"))
        }  # fmt: skip
    return facts


def read_throttled_s() -> float | None:
    """Return the seconds for which a CPU quota stopped this process's group, or one above it.

    The kernel adds up the times of all cores; their mean is comparable with elapsed time.
    """
    units = {"throttled_usec": MICRO, "throttled_time": NANO}  # keys of cgroup versions 2 and 1
    times = []
    with contextlib.suppress(OSError):
        for _, folder in memory.control_groups("cpu"):
            # A container may not see the group's folder.
            stat = network.read_text(folder / "cpu.stat") or ""
            found = re.findall(r"^(throttled_(?:usec|time)) (\d+)$", stat, re.MULTILINE)
            times += [int(count) * units[name] for name, count in found]
    return max(times) / len(usable_cores()) if times else None


def _cores_s() -> tuple[float, float]:
    """Return busy and all seconds of the cores that this process may run on."""
    cores = psutil.cpu_times(percpu=True)
    allowed = [cores[core] for core in usable_cores() if core < len(cores)]
    idle_s = sum(core.idle + getattr(core, "iowait", 0.0) for core in allowed)
    # The first eight: user time already contains that of guests (proc_stat(5)).
    all_s = sum(sum(core[:8]) for core in allowed)
    return all_s - idle_s, all_s
