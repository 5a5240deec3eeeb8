"""Datasheet peaks of the GPUs we know, so that MFU has a denominator with a source.

Figures are dense: sheets that print the tensor-core rates with 2:4 sparsity are halved, and the
plain fp32 rate is not, because sparsity never doubled it. A device that is not in the table, a
slice of one (MIG), or a precision the silicon only emulates has no peak: never a guess.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

TERA = 1e12


@dataclass(frozen=True)
class Device:
    """One row of the table.

    Attributes:
        name: What the sheet calls it.
        pattern: Matches the whole of `torch.cuda.get_device_name()`, so that a variant with
            other clocks or fewer units is not taken for this one.
        peak_flop_per_s: Dense peak in FLOP/s, by precision; absent where not in hardware.
        source: The document that the figures are from.
    """

    name: str
    pattern: str
    peak_flop_per_s: Mapping[str, float]
    source: str


def _peaks(
    fp32: float, tf32: float | None = None, bf16: float | None = None, fp16: float | None = None
) -> dict[str, float]:
    """Return FLOP/s by precision from TFLOP/s as printed on a datasheet."""
    printed = {"fp32": fp32, "tf32": tf32, "bf16": bf16, "fp16": fp16}
    return {precision: rate * TERA for precision, rate in printed.items() if rate is not None}


_A100_PEAKS = _peaks(fp32=19.5, tf32=156, bf16=312, fp16=312)
_HOPPER_SXM_PEAKS = _peaks(fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4)
_V100_SHEET = "NVIDIA V100 Tensor Core GPU datasheet, January 2020"
_A100_SHEET = "NVIDIA A100 Tensor Core GPU datasheet"
_H100_PAPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"

DEVICES = (
    Device(
        "V100 SXM2",
        r"(NVIDIA |Tesla )?V100-SXM2-(16|32)GB",
        _peaks(fp32=15.7, fp16=125),
        _V100_SHEET,
    ),
    Device(
        "V100 PCIe", r"(NVIDIA |Tesla )?V100-PCIE-(16|32)GB", _peaks(fp32=14, fp16=112), _V100_SHEET
    ),
    Device(
        "V100S PCIe", r"(NVIDIA |Tesla )?V100S-PCIE-32GB", _peaks(fp32=16.4, fp16=130), _V100_SHEET
    ),
    Device(
        "T4",
        r"(NVIDIA |Tesla )?T4",
        _peaks(fp32=8.1, fp16=65),
        "NVIDIA Turing GPU Architecture whitepaper, table of Tesla T4",
    ),
    Device("A100 SXM", r"(NVIDIA )?A100-SXM4?-(40|80)GB", _A100_PEAKS, _A100_SHEET),
    Device("A100 PCIe", r"(NVIDIA )?A100(-PCIE-(40|80)GB| 80GB PCIe)", _A100_PEAKS, _A100_SHEET),
    Device(
        "A40",
        r"(NVIDIA )?A40",
        _peaks(fp32=37.4, tf32=74.8, bf16=149.7, fp16=149.7),
        "NVIDIA A40 datasheet",
    ),
    Device(
        "L4",
        r"(NVIDIA )?L4",
        _peaks(fp32=30.3, tf32=60, bf16=121, fp16=121),
        "NVIDIA L4 Tensor Core GPU datasheet, tensor rates halved: printed with sparsity",
    ),
    Device(
        "L40S",
        r"(NVIDIA )?L40S",
        _peaks(fp32=91.6, tf32=183, bf16=362.05, fp16=362.05),
        "NVIDIA L40S datasheet, the figures it prints without sparsity",
    ),
    Device(
        "H100 PCIe",
        r"(NVIDIA )?H100 PCIe",
        _peaks(fp32=51.2, tf32=378, bf16=756, fp16=756),
        _H100_PAPER,
    ),
    Device("H100 SXM", r"(NVIDIA )?H100 80GB HBM3", _HOPPER_SXM_PEAKS, _H100_PAPER),
    Device(
        "H200 SXM",
        r"(NVIDIA )?H200",
        _HOPPER_SXM_PEAKS,
        f"NVIDIA H200 datasheet; rates unrounded as for the same chip in the {_H100_PAPER}",
    ),
    # A rank drives one of the module's two dies (GCD), so each figure is half of the sheet's;
    # fp32 is the matrix rate, which is the one a GEMM reaches.
    Device(
        "MI250X, one GCD",
        r"AMD Instinct MI250X",
        _peaks(fp32=95.7 / 2, bf16=383 / 2, fp16=383 / 2),
        "AMD Instinct MI200 series datasheet, MI250X halved to one GCD",
    ),
)


def find(device_name: str) -> Device | None:
    """Return the table's row for a GPU, or None where it is not in the table.

    Args:
        device_name: As `torch.cuda.get_device_name()` prints it, such as
            "NVIDIA H100 80GB HBM3"; "NVIDIA A100-SXM4-40GB MIG 1g.5gb" is a slice: None.
    """
    return next((row for row in DEVICES if re.fullmatch(row.pattern, device_name)), None)


def peak_flop_per_s(device_name: str, precision: str) -> float | None:
    """Return a GPU's dense datasheet peak in FLOP/s; None where unknown or not in hardware.

    Args:
        device_name: As `torch.cuda.get_device_name()` prints it.
        precision: fp32, tf32, bf16 or fp16.
    """
    device = find(device_name)
    return device.peak_flop_per_s.get(precision) if device else None
