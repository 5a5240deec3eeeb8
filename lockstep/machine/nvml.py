"""What NVIDIA's management library says of driver and devices; nothing where it is not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
    if device.type != "cuda":
        return []
    import torch

    with _session() as library:
        if library is None:
            return []
        try:
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            handle = library.nvmlDeviceGetHandleByUUID(uuid)
            bits = library.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        except library.NVMLError:
            return []
    return [name for bit, name in SLOWDOWNS.items() if bits & bit]
