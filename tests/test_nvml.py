"""NVML and amdsmi by stand-ins that answer as they do: no test machine has a device."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from lockstep.machine import nvidia, telemetry

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


def test_a_cpu_an_unknown_device_and_a_missing_driver_give_nothing(library, monkeypatch):
    library.bits = 0xFF
    assert (nvidia.slowdowns(CPU), library.opened) == ([], 0)
    assert nvidia.driver_version() == "570.1"
    other = SimpleNamespace(uuid="other")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: other)
    assert nvidia.slowdowns(CUDA) == []

    def refuse():
        raise library.NVMLError

    library.nvmlInit = refuse
    assert (nvidia.driver_version(), nvidia.slowdowns(CUDA), library.closed) == (None, [], 2)


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
    with nvidia.open_gauges(CUDA) as gauges:
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


# As torch passes amdsmi's answers on.
ANSWERS = {
    "utilization": 93, "memory_usage": 20, "device_memory_used": 2**30, "clock_rate": 1700,
    "power_draw": 415,
}  # fmt: skip
READ = {
    "gpu_utilisation": pytest.approx(0.93), "memory_utilisation": pytest.approx(0.2),
    "gpu_memory_bytes": 2**30, "sm_clock_mhz": 1700.0, "power_w": 415.0,
}  # fmt: skip


@pytest.fixture
def rocm(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    answers = dict(ANSWERS)
    for name in answers:
        monkeypatch.setattr(
            torch.cuda, name, lambda device, name=name: answers[name], raising=False
        )
    return answers


def test_gpus_of_amd_are_read_through_torch(rocm):
    gauges = telemetry.open_amd(CUDA)
    assert gauges.sample() == READ
    assert {*gauges.gauges} == {*READ} <= {*nvidia.GAUGES}
    rocm |= {"utilization": 0, "memory_usage": "N/A", "power_draw": 0, "clock_rate": 0}
    assert gauges.sample() == {"gpu_utilisation": 0.0, "gpu_memory_bytes": 2**30}
