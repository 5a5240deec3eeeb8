"""Datasheets of the GPUs we know: peaks, so that MFU has a denominator with a source, and boards.

Figures are dense: sheets that print the tensor-core rates with 2:4 sparsity are halved, and the
plain fp32 rate is not, because sparsity never doubled it. A device that is not in the table, a
slice of one (MIG), or a precision the silicon only emulates has no peak: never a guess.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

TERA = 1e12


@dataclass(frozen=True)
class Board:
    """What a sheet says of a GPU beside its peaks; None where we have no sheet that does.

    Attributes:
        memory_gb: Its memory.
        memory_gb_per_s: What that can be read at.
        tdp_w: Maximum thermal design power of the standard board.
        source: The document that the figures are from.
    """

    memory_gb: float | None = None
    memory_gb_per_s: float | None = None
    tdp_w: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Device:
    """One row of the table.

    Attributes:
        name: What the sheet calls it.
        pattern: Matches the whole of `torch.cuda.get_device_name()`, so that a variant with
            other clocks or fewer units is not taken for this one.
        peak_flop_per_s: Dense peak in FLOP/s, by precision; absent where not in hardware.
        source: The document that the peaks are from.
        board: Its memory and power.
    """

    name: str
    pattern: str
    peak_flop_per_s: Mapping[str, float]
    source: str
    board: Board = Board()


def _peaks(
    fp32: float, tf32: float | None = None, bf16: float | None = None, fp16: float | None = None
) -> dict[str, float]:
    """Return FLOP/s by precision from TFLOP/s as printed on a datasheet."""
    printed = {"fp32": fp32, "tf32": tf32, "bf16": bf16, "fp16": fp16}
    return {precision: rate * TERA for precision, rate in printed.items() if rate is not None}


_A100_PEAKS = _peaks(fp32=19.5, tf32=156, bf16=312, fp16=312)
_HOPPER_SXM_PEAKS = _peaks(fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4)
_V100_SHEET = "NVIDIA V100 Tensor Core GPU datasheet, January 2020"
_V100_BOARD = "NVIDIA V100 Tensor Core GPU datasheet"
_A100_SHEET = "NVIDIA A100 Tensor Core GPU datasheet"
_H100_PAPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"

DEVICES = (
    Device(
        "V100 SXM2",
        r"(NVIDIA |Tesla )?V100-SXM2-(16|32)GB",
        _peaks(fp32=15.7, fp16=125),
        _V100_SHEET,
        Board(None, 900, 300, _V100_BOARD),
    ),
    Device(
        "V100 PCIe",
        r"(NVIDIA |Tesla )?V100-PCIE-(16|32)GB",
        _peaks(fp32=14, fp16=112),
        _V100_SHEET,
        Board(None, 900, 250, _V100_BOARD),
    ),
    Device(
        "V100S PCIe", r"(NVIDIA |Tesla )?V100S-PCIE-32GB", _peaks(fp32=16.4, fp16=130), _V100_SHEET
    ),
    Device(
        "T4",
        r"(NVIDIA |Tesla )?T4",
        _peaks(fp32=8.1, fp16=65),
        "NVIDIA Turing GPU Architecture whitepaper, table of Tesla T4",
        Board(16, None, 70, "NVIDIA T4 Tensor Core GPU datasheet"),
    ),
    *(
        Device(name, rf"(NVIDIA )?{pattern}", _A100_PEAKS, _A100_SHEET, board)
        for name, pattern, board in (
            ("A100 SXM 40 GB", r"A100-SXM4?-40GB", Board(40, 1555, 400, _A100_SHEET)),
            ("A100 SXM 80 GB", r"A100-SXM4?-80GB", Board(80, 2039, 400, _A100_SHEET)),
            ("A100 PCIe 40 GB", r"A100-PCIE-40GB", Board(40, 1555, None, _A100_SHEET)),
            (
                "A100 PCIe 80 GB",
                r"A100(-PCIE-80GB| 80GB PCIe)",
                Board(80, 1935, 300, _A100_SHEET),
            ),
        )
    ),
    Device(
        "A40",
        r"(NVIDIA )?A40",
        _peaks(fp32=37.4, tf32=74.8, bf16=149.7, fp16=149.7),
        "NVIDIA A40 datasheet",
        Board(48, 696, 300, "NVIDIA A40 datasheet"),
    ),
    Device(
        "L4",
        r"(NVIDIA )?L4",
        _peaks(fp32=30.3, tf32=60, bf16=121, fp16=121),
        "NVIDIA L4 Tensor Core GPU datasheet, tensor rates halved: printed with sparsity",
        Board(24, 300, 72, "NVIDIA L4 Tensor Core GPU datasheet"),
    ),
    Device(
        "L40S",
        r"(NVIDIA )?L40S",
        _peaks(fp32=91.6, tf32=183, bf16=362.05, fp16=362.05),
        "NVIDIA L40S datasheet, the figures it prints without sparsity",
        Board(48, 864, 350, "NVIDIA L40S datasheet"),
    ),
    Device(
        "H100 PCIe",
        r"(NVIDIA )?H100 PCIe",
        _peaks(fp32=51.2, tf32=378, bf16=756, fp16=756),
        _H100_PAPER,
        Board(None, None, 350, "NVIDIA H100 PCIe GPU product brief, PB-11133-001_v02"),
    ),
    Device(
        "H100 SXM",
        r"(NVIDIA )?H100 80GB HBM3",
        _HOPPER_SXM_PEAKS,
        _H100_PAPER,
        Board(80, 3350, 700, "NVIDIA H100 product page, specifications of H100 SXM"),
    ),
    Device(
        "H200 SXM",
        r"(NVIDIA )?H200",
        _HOPPER_SXM_PEAKS,
        f"NVIDIA H200 datasheet; rates unrounded as for the same chip in the {_H100_PAPER}",
        Board(141, 4800, 700, "NVIDIA H200 product page, specifications of H200 SXM"),
    ),
    # A rank drives one of the module's two dies (GCD), so each figure is half of the sheet's;
    # fp32 is the matrix rate, which is the one a GEMM reaches.
    Device(
        "MI250X, one GCD",
        r"AMD Instinct MI250X",
        _peaks(fp32=95.7 / 2, bf16=383 / 2, fp16=383 / 2),
        "AMD Instinct MI200 series datasheet, MI250X halved to one GCD",
        Board(64, 1600, None, "AMD Instinct MI200 series datasheet, MI250X halved to one GCD"),
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

    The name is as `torch.cuda.get_device_name()` prints it.
    """
    device = find(device_name)
    return device.peak_flop_per_s.get(precision) if device else None
