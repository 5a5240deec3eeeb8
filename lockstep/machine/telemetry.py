"""What a rank's device and host do while its rounds run.

A thread sleeps and now and then takes a sample; what only grows, such as energy, is read before and
after. On a GPU the numbers are NVML's, of the rank's own device, and those of a CPU beside them:

    gpu_utilisation         share of NVML's last sample period in which a kernel ran
    memory_utilisation      and in which the device's memory was read or written
    gpu_memory_bytes        in use on the device, other processes' included
    gpu_memory_total_bytes  of the device, before and after the rounds
    sm_clock_mhz            and memory_clock_mhz
    clocks_held_back        1 where a fault or heat held the clocks back, see `SLOWDOWNS`
    power_w                 of the whole board
    power_limit_w           that the driver enforces on it, before and after the rounds
    temperature_c           of the chip
    energy_j                of the whole board, by its own counter
    process_cores           cores that this process kept busy
    rss_bytes               resident memory of this process
    cpu_frequency_mhz       before and after the rounds only, for asking takes milliseconds
    cpu_s                   CPU time of this process and those that it started
    core_utilisation        busy share of the cores that this rank may run on, whoever kept them so
    throttled_s             time that the control group's CPU quota held its tasks back, the mean
                            over the cores that this rank may run on
    elapsed_s               what was watched

The record has a mean, the least and the most of each. `timeline` keeps a row a second of what the
thread samples, in a file that is written once the rounds are over.

What a rank sampled while its rounds ran, as rows in the order of time, and the file of them.
"""

import contextlib
import csv
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

from lockstep.machine import memory, nvidia
from lockstep.machine.provenance import usable_cores

if TYPE_CHECKING:
    import torch


FOLDER = "telemetry"
EVERY_S = 1.0
# Of one case: an hour of them is 400 kB. A longer case keeps every second row, then every fourth.
MOST_ROWS = 3600
# Of a number: telemetry is not more exact.
DIGITS = 4
FIRST_COLUMNS = ("time_s", "case")


def file_of(journal_path: Path, rank: int) -> Path:
    """Return where a rank keeps what it sampled, beside its launch's journal."""
    return journal_path.parent / FOLDER / f"{journal_path.stem}-rank-{rank}.csv"


@dataclass
class Timeline:
    """Samples that are a second or more apart, the first one included.

    Attributes:
        gauges: Names of what is sampled, which are the file's columns.
        rows: (seconds since 1970, name -> value) of each.
        every_s: Least time between two rows.
    """

    gauges: Sequence[str]
    rows: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)
    every_s: float = EVERY_S

    def add(self, time_s: float, found: Mapping[str, float]) -> None:
        """Take a sample, unless the row before it is too young."""
        if self.rows and time_s - self.rows[-1][0] < self.every_s:
            return
        self.rows.append((time_s, found))
        if len(self.rows) > MOST_ROWS:
            del self.rows[1::2]
            self.every_s *= 2

    def append_to(self, path: Path, case: str) -> None:
        """Add the rows to a file, with the columns' names where it is new.

        A file that cannot be written is left as it is: no result depends on it.
        """
        if not self.rows:
            return
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                if not os.fstat(file.fileno()).st_size:
                    writer.writerow([*FIRST_COLUMNS, *self.gauges])
                for time_s, found in self.rows:
                    values = [found.get(name) for name in self.gauges]
                    cells = ["" if value is None else f"{rounded(value):.12g}" for value in values]
                    writer.writerow([f"{time_s:.3f}", case, *cells])


def rounded(value: float) -> float:
    """Return a number with the digits that telemetry has."""
    return float(f"{value:.{DIGITS}g}")


STATM = Path("/proc/self/statm")
INTERVAL_S = 0.25
MICRO, NANO = 1e-6, 1e-9
# One value a rank; of the others each rank has the mean, the least and the most of its samples.
TOTALS = ("elapsed_s", "energy_j", "cpu_s", "core_utilisation", "throttled_s")

Numbers = dict[str, float]


class Host:
    """This process and its cores, as psutil and the control group tell of them."""

    gauges: Sequence[str] = ("process_cores", "rss_bytes")

    def __init__(self) -> None:
        self._last = (time.monotonic(), time.process_time())

    def sample(self) -> Numbers:
        """Return the cores kept busy since the last sample, and what is resident."""
        then, (now, used) = self._last, (time.monotonic(), time.process_time())
        self._last = (now, used)
        found: Numbers = {}
        with contextlib.suppress(OSError, IndexError):
            pages = STATM.read_text(encoding="ascii").split()[1]
            found["rss_bytes"] = float(pages) * os.sysconf("SC_PAGE_SIZE")
        if now - then[0] > INTERVAL_S / 2:  # shorter ones tell of a moment
            found["process_cores"] = (used - then[1]) / (now - then[0])
        return found

    def sample_apart(self) -> Numbers:
        """Return the cores' frequency, where the kernel knows it."""
        import psutil

        self._last = (time.monotonic(), time.process_time())
        with contextlib.suppress(OSError, NotImplementedError):
            if frequency := psutil.cpu_freq():
                return {"cpu_frequency_mhz": frequency.current}
        return {}

    def totals(self) -> Numbers:
        """Return CPU time, of this process and all below it, and of the cores."""
        import psutil

        own = psutil.Process()
        tree_s = 0.0
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                tree_s += sum(process.cpu_times()[:4])  # user, system, and of children waited for
        busy_s, all_s = _cores_s()
        found = {"cpu_s": tree_s, "core_busy_s": busy_s, "core_s": all_s}
        throttled_s = throttled()
        return found if throttled_s is None else found | {"throttled_s": throttled_s}


@dataclass
class Telemetry:
    """Samples while it is entered; entered again, it adds to what it has.

    Attributes:
        interval_s: Between two samples.
        samples: What was sampled, name -> values.
        grown: How much what only grows has grown, name -> sum.
    """

    sources: Sequence[Host | nvidia.Gauges]
    interval_s: float = INTERVAL_S
    samples: dict[str, list[float]] = field(default_factory=dict)
    grown: Numbers = field(default_factory=dict)
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
        """Return what was seen: name -> [mean, least, most], or one number of `TOTALS`."""
        spans = {
            name: [rounded(of(values)) for of in (fmean, min, max)]
            for name, values in self.samples.items()
        }
        grown = dict(self.grown)
        busy_s, all_s = grown.pop("core_busy_s", 0.0), grown.pop("core_s", 0.0)
        if all_s > 0:
            grown["core_utilisation"] = busy_s / all_s
        return spans | {name: rounded(value) for name, value in grown.items()}

    def _watch(self) -> None:
        while not self._over.wait(self.interval_s):
            self._sample()

    def _sample(self) -> None:
        found: Numbers = {}
        for source in self.sources:
            found |= source.sample()
        self._keep(found)
        self.timeline.add(time.time(), found)

    def _keep(self, found: Numbers) -> None:
        for name, value in found.items():
            self.samples.setdefault(name, []).append(value)

    def _totals(self) -> Numbers:
        found: Numbers = {}
        for source in self.sources:
            found |= source.totals()
        return found


@contextlib.contextmanager
def of(device: "torch.device", is_wanted: bool) -> Iterator[Telemetry]:
    """Give what watches a rank on a device; the management library stays open meanwhile."""
    if not is_wanted:
        yield Telemetry([])
        return
    with nvidia.opened(device) as gauges:
        yield Telemetry([Host(), *([gauges] if gauges else [])])


def columns(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all ranks saw, by quantity.

    The facts of a rank that was not watched are empty.

    Returns:
        Name -> a value of each rank, None where it has none, for `TOTALS`; of other names `mean`,
        `least` and `most`, each with a value of each rank.
    """
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for rank in ranks for name in rank):
        values = [rank.get(name) for rank in ranks]
        if name in TOTALS:
            found[name] = values
            continue
        found[name] = {
            part: [value and value[index] for value in values]
            for index, part in enumerate(("mean", "least", "most"))
        }
    return found


def throttled() -> float | None:
    """Return the seconds a CPU quota has held back this process's group, or one above it.

    The kernel adds up the times of all cores; a core's mean is comparable with what elapsed.
    """
    units = {"throttled_usec": MICRO, "throttled_time": NANO}  # of version 2, of version 1
    times = []
    with contextlib.suppress(OSError):
        for _, folder in memory.control_groups("cpu"):
            stat = memory.control_group_numbers(folder / "cpu.stat")
            times += [stat[name] * unit for name, unit in units.items() if name in stat]
    return max(times) / len(usable_cores()) if times else None


def _cores_s() -> tuple[float, float]:
    """Return the busy seconds, and all, of the cores that this process may run on."""
    import psutil

    cores = psutil.cpu_times(percpu=True)
    allowed = [cores[core] for core in usable_cores() if core < len(cores)]
    idle_s = sum(core.idle + getattr(core, "iowait", 0.0) for core in allowed)
    # Guests' time is in that of the user already (proc_stat(5)).
    all_s = sum(sum(core[:8]) for core in allowed)
    return all_s - idle_s, all_s
