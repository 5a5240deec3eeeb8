"""What NVIDIA's management library says of driver and devices; nothing where it is not there.

What nvidia-smi says of the GPUs; it needs neither torch nor a library of Python's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.core import processes
from lockstep.core.files import MIB

if TYPE_CHECKING:
    import torch


# Bits of NVML's clock event reasons (nvml.h) that mean fault or heat. A power cap alone is how a
# busy device normally runs, and is none of them.
SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}

# What `Gauges.sample` may return.
GAUGES = (
    *("gpu_utilisation", "memory_utilisation", "gpu_memory_bytes", "sm_clock_mhz"),
    *("memory_clock_mhz", "power_w", "temperature_c", "clocks_held_back"),
)


@contextmanager
def _session() -> Iterator[Any]:
    """Open the library; gives None where it is not installed, or finds no driver."""
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
    """Return the driver's version."""
    with _session() as library:
        if library is None:
            return None
        try:
            return str(library.nvmlSystemGetDriverVersion())
        except library.NVMLError:
            return None


def slowdowns(device: "torch.device") -> list[str]:
    """Return why a device holds its clocks back right now; empty if it does not say.

    Ask at the end of the timed rounds, while the device is still as warm as they made it.
    """
    with opened(device) as gauges:
        bits = (gauges.held_back() if gauges else None) or 0
    return [name for bit, name in SLOWDOWNS.items() if bits & bit]


@contextmanager
def opened(device: "torch.device") -> "Iterator[Gauges | None]":
    """Open a device; gives None for a CPU, and where the library or its driver do not know it."""
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
    """What can be read of an open device; what it does not support is left out.

    Attributes:
        library: pynvml.
        gauges: Names of what `sample` may return.
    """

    library: Any
    handle: Any
    gauges: Sequence[str] = GAUGES

    def held_back(self) -> int | None:
        """Return NVML's bits of why the clocks are held back right now."""
        bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else int(bits)

    def sample(self) -> dict[str, float]:
        """Return what is so at this moment, see `telemetry`."""
        library = self.library
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        bits = self.held_back()
        milliwatt = self._ask("nvmlDeviceGetPowerUsage")
        found = {
            "gpu_utilisation": None if rates is None else rates.gpu / 100,
            "memory_utilisation": None if rates is None else rates.memory / 100,
            "gpu_memory_bytes": None if memory is None else memory.used,
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", library.NVML_CLOCK_MEM),
            "power_w": None if milliwatt is None else milliwatt / 1e3,
            "temperature_c": self._ask("nvmlDeviceGetTemperature", library.NVML_TEMPERATURE_GPU),
            "clocks_held_back": None if bits is None else any(bits & bit for bit in SLOWDOWNS),
        }
        return {name: float(value) for name, value in found.items() if value is not None}

    def sample_apart(self) -> dict[str, float]:
        """Return what hardly changes: the memory there is, and the limit of the board's power."""
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        milliwatt = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        found = {} if memory is None else {"gpu_memory_total_bytes": float(memory.total)}
        return found if milliwatt is None else found | {"power_limit_w": milliwatt / 1e3}

    def totals(self) -> dict[str, float]:
        """Return the energy used since the driver was loaded, where the device counts it."""
        millijoule = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return {} if millijoule is None else {"energy_j": millijoule / 1e3}

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return an answer of the library, None where it or the device has none."""
        try:
            return getattr(self.library, name)(self.handle, *arguments)
        except (AttributeError, self.library.NVMLError):
            return None


TIMEOUT_S = 30
COLUMNS = "name,memory.total,driver_version"


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        name: As its driver has it, such as `NVIDIA H100 80GB HBM3`.
        driver: Version of the driver; None where another program than nvidia-smi lists it.
    """

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


def parse_gpus(listing: str) -> list[Gpu]:
    """Read lines of nvidia-smi: name, memory in MiB, driver."""
    rows = [[cell.strip() for cell in line.split(",")] for line in listing.splitlines()]
    return [
        Gpu(name, int(memory) * MIB if memory.isdecimal() else None, driver)
        for name, memory, driver in rows
    ]
