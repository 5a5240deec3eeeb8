"""NVIDIA's driver and GPUs: sampled through NVML, if installed, and listed by nvidia-smi."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.core import processes
from lockstep.core.files import MIB

if TYPE_CHECKING:
    import torch


# Bits of NVML's clock event reasons (nvml.h) that mean fault or heat; a power cap is normal for a
# busy device.
SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}

# Names that `Gauges.sample` may return.
GAUGES = (
    *("gpu_utilisation", "memory_utilisation", "gpu_memory_bytes", "sm_clock_mhz"),
    *("memory_clock_mhz", "power_w", "temperature_c", "clocks_held_back"),
)


@contextmanager
def _session() -> Iterator[Any]:
    """Open NVML; give None if it is not installed or finds no driver."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def driver_version() -> str | None:
    with _session() as library:
        if library is not None:
            with suppress(library.NVMLError):
                return str(library.nvmlSystemGetDriverVersion())
    return None


def slowdowns(device: "torch.device") -> list[str]:
    """Return why a device has reduced its clocks now; empty if unknown.

    Call this at the end of the timed rounds, while the device is still warm.
    """
    with open_gauges(device) as gauges:
        bits = (gauges.slowdown_bits() if gauges else None) or 0
    return [name for bit, name in SLOWDOWNS.items() if bits & bit]


@contextmanager
def open_gauges(device: "torch.device") -> "Iterator[Gauges | None]":
    """Open a device; give None for a CPU, or if NVML or its driver do not know the device."""
    if device.type != "cuda":
        yield None
        return
    import torch

    with _session() as library:
        handle = None
        if library is not None:
            with suppress(library.NVMLError):
                uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
                handle = library.nvmlDeviceGetHandleByUUID(uuid)
        yield None if handle is None else Gauges(library, handle)


@dataclass(frozen=True)
class Gauges:
    """Readings of an open device; unsupported ones are left out. The library is pynvml."""

    library: Any
    handle: Any
    gauges: Sequence[str] = GAUGES

    def slowdown_bits(self) -> int | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else int(bits)

    def sample(self) -> dict[str, float]:
        """Return the current readings, see `telemetry`."""
        library = self.library
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        bits = self.slowdown_bits()
        milliwatt = self._ask("nvmlDeviceGetPowerUsage")
        readings = {
            "gpu_utilisation": None if rates is None else rates.gpu / 100,
            "memory_utilisation": None if rates is None else rates.memory / 100,
            "gpu_memory_bytes": None if memory is None else memory.used,
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", library.NVML_CLOCK_MEM),
            "power_w": None if milliwatt is None else milliwatt / 1e3,
            "temperature_c": self._ask("nvmlDeviceGetTemperature", library.NVML_TEMPERATURE_GPU),
            "clocks_held_back": None if bits is None else any(bits & bit for bit in SLOWDOWNS),
        }
        return {name: float(value) for name, value in readings.items() if value is not None}

    def sample_apart(self) -> dict[str, float]:
        """Return rarely changing readings: total memory, and the board's power limit."""
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        milliwatt = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        total = {} if memory is None else {"gpu_memory_total_bytes": float(memory.total)}
        return total if milliwatt is None else total | {"power_limit_w": milliwatt / 1e3}

    def totals(self) -> dict[str, float]:
        """Return the energy used since the driver was loaded, if the device counts it."""
        millijoule = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return {} if millijoule is None else {"energy_j": millijoule / 1e3}

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return an answer of NVML; None if NVML or the device does not support the question."""
        try:
            return getattr(self.library, name)(self.handle, *arguments)
        except (AttributeError, self.library.NVMLError):
            return None


TIMEOUT_S = 30
COLUMNS = "name,memory.total,driver_version"


@dataclass(frozen=True)
class Gpu:
    """A GPU by its driver's name: `NVIDIA H100 80GB HBM3`; `driver` is None if torch listed it."""

    name: str
    memory_bytes: int | None
    driver: str | None


def gpus() -> list[Gpu]:
    """Return the GPUs of this machine.

    Raises:
        RuntimeError: nvidia-smi is absent, fails, or does not answer in time.
    """
    query = ["nvidia-smi", f"--query-gpu={COLUMNS}", "--format=csv,noheader,nounits"]
    return parse_gpus(processes.output(query, TIMEOUT_S))


def links() -> dict[str, list[str] | None]:
    """Return how this machine's GPUs are joined, in nvidia-smi's lines; None if it says nothing."""
    texts: dict[str, list[str] | None] = {"gpu_topology": None, "nvlink": None}
    for name, words in zip(texts, (("topo", "-m"), ("nvlink", "-s")), strict=True):
        with suppress(RuntimeError):
            text = processes.output(["nvidia-smi", *words], TIMEOUT_S)
            texts[name] = text.rstrip().expandtabs().splitlines() or None
    return texts


def parse_gpus(listing: str) -> list[Gpu]:
    """Read lines of nvidia-smi: name, memory in MiB, driver."""
    rows = [[cell.strip() for cell in line.split(",")] for line in listing.splitlines()]
    return [
        Gpu(name, int(memory) * MIB if memory.isdecimal() else None, driver)
        for name, memory, driver in rows
    ]
