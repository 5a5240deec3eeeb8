"""Datasheets of known GPUs: peak rates, which MFU divides by, and the board, with sources.

Figures are dense: tensor-core rates printed with 2:4 sparsity are halved; plain fp32 rates were
never doubled. A GPU outside the table, a slice of one (MIG), or an emulated precision has no peak.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.core.metrics import TERA


@dataclass(frozen=True)
class Device:
    """One row of the table; what is not on a sheet is None."""

    name: str  # in the datasheet
    # Matches the whole of `torch.cuda.get_device_name()`, so that variants with other clocks or
    # fewer units do not match.
    pattern: str
    peak_flop_per_s: Mapping[str, float]  # dense peak by precision; absent if not in hardware
    source: str  # the document of the peaks
    memory_gb: float | None = None
    memory_gb_per_s: float | None = None
    tdp_w: float | None = None  # the board's maximum thermal design power
    board_source: str = ""  # the document of memory, power and link
    num_sms: int | None = None  # streaming multiprocessors; on AMD's GPUs, compute units
    # One direction of what joins the GPUs of a node, half of the sum on the sheet: all links of
    # NVLink together, or PCIe on a board without NVLink.
    link_gb_per_s: float | None = None


def _peaks(**printed: float) -> dict[str, float]:
    """Return FLOP/s by precision from TFLOP/s as printed on a datasheet."""
    return {precision: rate * TERA for precision, rate in printed.items()}


_A100_PEAKS = _peaks(fp32=19.5, tf32=156, bf16=312, fp16=312)
_HOPPER_SXM_PEAKS = _peaks(fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4)
_V100_SHEET = "NVIDIA V100 Tensor Core GPU datasheet, January 2020"
_V100_BOARD = "NVIDIA V100 Tensor Core GPU datasheet"
_A100_SHEET = "NVIDIA A100 Tensor Core GPU datasheet"
_H100_PAPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
_MI250X_SHEET = "AMD Instinct MI200 series datasheet; one GCD is half of an MI250X"

# Multiprocessors: NVIDIA's whitepapers Tesla V100 GPU Architecture (80), Turing GPU Architecture
# (T4: 40), A100 Tensor Core GPU Architecture (108) and H100 Tensor Core GPU Architecture (SXM5 132,
# PCIe 114); MI250X: 220 compute units of two dies, on its datasheet. Those of A40, L4, L40S, V100S
# and H200 are on none of these sheets.
# NVLink: 25 GB/s a link and direction; V100 has 6 links, A100 12, H100 and H200 18
# (https://www.nvidia.com/en-us/data-center/nvlink/). A PCIe board that takes an NVLink bridge has
# an unknown link. Rates of InfiniBand and Ethernet are the kernel's (`network.wire_gb_per_s`).

DEVICES = (
    Device("V100 SXM2 16 GB", r"(NVIDIA |Tesla )?V100-SXM2-16GB", _peaks(fp32=15.7, fp16=125),
           _V100_SHEET, 16, 900, 300, _V100_BOARD, 80, 150),
    Device("V100 SXM2 32 GB", r"(NVIDIA |Tesla )?V100-SXM2-32GB", _peaks(fp32=15.7, fp16=125),
           _V100_SHEET, 32, 900, 300, _V100_BOARD, 80, 150),
    Device("V100 PCIe 16 GB", r"(NVIDIA |Tesla )?V100-PCIE-16GB", _peaks(fp32=14, fp16=112),
           _V100_SHEET, 16, 900, 250, _V100_BOARD, 80),
    Device("V100 PCIe 32 GB", r"(NVIDIA |Tesla )?V100-PCIE-32GB", _peaks(fp32=14, fp16=112),
           _V100_SHEET, 32, 900, 250, _V100_BOARD, 80),
    Device("V100S PCIe", r"(NVIDIA |Tesla )?V100S-PCIE-32GB", _peaks(fp32=16.4, fp16=130),
           _V100_SHEET),
    Device("T4", r"(NVIDIA |Tesla )?T4", _peaks(fp32=8.1, fp16=65),
           "NVIDIA Turing GPU Architecture whitepaper, table of Tesla T4",
           16, None, 70, "NVIDIA T4 Tensor Core GPU datasheet", 40, 16),
    Device("A100 SXM 40 GB", r"(NVIDIA )?A100-SXM4?-40GB", _A100_PEAKS,
           _A100_SHEET, 40, 1555, 400, _A100_SHEET, 108, 300),
    Device("A100 SXM 80 GB", r"(NVIDIA )?A100-SXM4?-80GB", _A100_PEAKS,
           _A100_SHEET, 80, 2039, 400, _A100_SHEET, 108, 300),
    Device("A100 PCIe 40 GB", r"(NVIDIA )?A100-PCIE-40GB", _A100_PEAKS,
           _A100_SHEET, 40, 1555, None, _A100_SHEET, 108),
    Device("A100 PCIe 80 GB", r"(NVIDIA )?A100(-PCIE-80GB| 80GB PCIe)", _A100_PEAKS,
           _A100_SHEET, 80, 1935, 300, _A100_SHEET, 108),
    Device("A40", r"(NVIDIA )?A40", _peaks(fp32=37.4, tf32=74.8, bf16=149.7, fp16=149.7),
           "NVIDIA A40 datasheet", 48, 696, 300, "NVIDIA A40 datasheet"),
    Device("L4", r"(NVIDIA )?L4", _peaks(fp32=30.3, tf32=60, bf16=121, fp16=121),
           "NVIDIA L4 Tensor Core GPU datasheet; the tensor rates are halved, because the "
           "datasheet gives them with sparsity",
           24, 300, 72, "NVIDIA L4 Tensor Core GPU datasheet", None, 32),
    Device("L40S", r"(NVIDIA )?L40S", _peaks(fp32=91.6, tf32=183, bf16=362.05, fp16=362.05),
           "NVIDIA L40S datasheet, figures without sparsity",
           48, 864, 350, "NVIDIA L40S datasheet", None, 32),
    Device("H100 PCIe", r"(NVIDIA )?H100 PCIe", _peaks(fp32=51.2, tf32=378, bf16=756, fp16=756),
           _H100_PAPER,
           None, None, 350, "NVIDIA H100 PCIe GPU product brief, PB-11133-001_v02", 114),
    Device("H100 SXM", r"(NVIDIA )?H100 80GB HBM3", _HOPPER_SXM_PEAKS, _H100_PAPER,
           80, 3350, 700, "NVIDIA H100 product page, specifications of H100 SXM", 132, 450),
    Device("H200 SXM", r"(NVIDIA )?H200", _HOPPER_SXM_PEAKS,
           f"NVIDIA H200 datasheet; unrounded rates from the {_H100_PAPER}, which covers the same "
           "chip",
           141, 4800, 700, "NVIDIA H200 product page, specifications of H200 SXM",
           None, 450),
    # A rank drives one of the module's two dies (GCD), so each figure is half of the sheet's;
    # fp32 is the matrix rate, which a GEMM reaches.
    Device("MI250X, one GCD", r"AMD Instinct MI250X",
           _peaks(fp32=95.7 / 2, bf16=383 / 2, fp16=383 / 2), _MI250X_SHEET,
           64, 1600, None, _MI250X_SHEET, 110),
)  # fmt: skip


def find(device_name: str) -> Device | None:
    """Return the row of a GPU, named as by `torch.cuda.get_device_name()`; None if unknown.

    "NVIDIA A100-SXM4-40GB MIG 1g.5gb" is a slice, and therefore unknown.
    """
    return next((row for row in DEVICES if re.fullmatch(row.pattern, device_name)), None)


def peak_flop_per_s(device_name: str, precision: str) -> float | None:
    """Return a GPU's dense peak in FLOP/s; None if unknown or not in hardware."""
    device = find(device_name)
    return device.peak_flop_per_s.get(precision) if device else None
