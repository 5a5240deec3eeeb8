"""NVML by a stand-in that answers as the library does: no test machine has a device."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from lockstep.machine import nvidia

CUDA, CPU = torch.device("cuda", 1), torch.device("cpu")


@pytest.fixture
def library(monkeypatch):
    """Stand in for pynvml with a device GPU-abc that holds no clocks back."""
    stand_in = ModuleType("pynvml")
    stand_in.NVMLError = type("NVMLError", (Exception,), {})
    stand_in.opened = stand_in.closed = stand_in.bits = 0
    devices = {"GPU-abc": "handle"}

    def find(uuid):
        if uuid not in devices:
            raise stand_in.NVMLError(uuid)
        return devices[uuid]

    def count(name):
        return lambda: setattr(stand_in, name, getattr(stand_in, name) + 1)

    stand_in.nvmlInit, stand_in.nvmlShutdown = count("opened"), count("closed")
    stand_in.nvmlSystemGetDriverVersion = lambda: "570.1"
    stand_in.nvmlDeviceGetHandleByUUID = find
    stand_in.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: stand_in.bits
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="abc")
    )
    return stand_in


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, []),
        (0x4, []),  # a power cap alone: a busy device
        (0x20 | 0x4, ["thermal slowdown by the driver"]),
        (0x40 | 0x8, ["hardware slowdown", "thermal slowdown by the hardware"]),
    ],
)
def test_the_reasons_of_a_slow_clock(library, bits, names):
    library.bits = bits
    assert nvidia.slowdowns(CUDA) == names
    assert library.opened == library.closed == 1


def test_a_cpu_is_not_asked_about(library):
    library.bits = 0xFF
    assert nvidia.slowdowns(CPU) == []
    assert library.opened == 0


def test_a_device_that_the_library_does_not_know_tells_nothing(library, monkeypatch):
    library.bits = 0xFF
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="other")
    )
    assert nvidia.slowdowns(CUDA) == []
    assert library.opened == library.closed == 1


def test_without_a_driver_nothing_is_told(library):
    def refuse():
        raise library.NVMLError

    library.nvmlInit = refuse
    assert (nvidia.driver_version(), nvidia.slowdowns(CUDA), library.closed) == (None, [], 0)


def test_the_version_of_the_driver(library):
    assert nvidia.driver_version() == "570.1"


def test_gauges_have_what_the_device_supports(library):
    def unsupported(*_):
        raise library.NVMLError

    answers = {
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=93, memory=20),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=2**30, total=2**34),
        "nvmlDeviceGetPowerUsage": lambda handle: 251_000,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 400_000,
        "nvmlDeviceGetClockInfo": lambda handle, which: {1: 1410, 2: 1215}[which],
        "nvmlDeviceGetTemperature": unsupported,
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 1_500_000,
    }
    vars(library).update(answers)
    library.NVML_CLOCK_SM, library.NVML_CLOCK_MEM, library.NVML_TEMPERATURE_GPU = 1, 2, 0
    library.bits = 0x40
    with nvidia.opened(CUDA) as gauges:
        assert gauges.sample() == {
            "gpu_utilisation": 0.93, "memory_utilisation": 0.2, "gpu_memory_bytes": 2**30,
            "power_w": 251.0, "sm_clock_mhz": 1410.0, "memory_clock_mhz": 1215.0,
            "clocks_held_back": 1.0,
        }  # fmt: skip
        assert {*gauges.sample()} | {"temperature_c"} == {*gauges.gauges}
        assert gauges.sample_apart() == {"gpu_memory_total_bytes": 2**34, "power_limit_w": 400.0}
        assert gauges.totals() == {"energy_j": 1500.0}
        library.nvmlDeviceGetTotalEnergyConsumption = unsupported
        assert gauges.totals() == {}
        assert library.closed == 0
    assert library.opened == library.closed == 1
