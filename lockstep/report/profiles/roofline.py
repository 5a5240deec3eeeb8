"""Kernels of Nsight Compute under the roofline of their GPU.

A kernel computes at most at the GPU's peak, and at most at its FLOP per byte times the peak
bandwidth of the memory (Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.core.formats import counted, number, percent
from lockstep.core.metrics import GIGA, TERA
from lockstep.machine import hardware
from lockstep.report.profiles.profiles import Kernel, Profile

MOST_KERNELS = 8
COLUMNS = (
    "Kernel", "Limited by", "Precision", "FLOP per byte", "TFLOP/s", "Roof (TFLOP/s)",
    "Of the roof (%)",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a kernel lies under the roof of its precision."""

    name: str
    precision: str
    flop_per_byte: float
    flop_per_s: float
    roof_flop_per_s: float
    limit: str  # memory or compute

    def cells(self) -> list[str]:
        """Return its cells below `COLUMNS`."""
        return [
            self.name[:60], self.limit, self.precision, number(self.flop_per_byte),
            number(self.flop_per_s / TERA), number(self.roof_flop_per_s / TERA),
            percent(self.flop_per_s / self.roof_flop_per_s),
        ]  # fmt: skip


@dataclass(frozen=True)
class Roofline:
    """The longest kernels of a profile, under the peaks of their GPU."""

    title: str
    peaks: dict[str, float]  # precision -> FLOP/s
    bytes_per_s: float
    places: Sequence[Place]
    note: str  # which kernels are missing


def roofline(profile: Profile, device_name: str | None = None) -> Roofline:
    """Return the kernels under the roofline of their GPU, which the file or else a launch names.

    ValueError if the GPU or its peaks are unknown, or FLOP and bytes were not recorded.
    """
    name, file = profile.device or device_name, profile.path.name
    if name is None:
        raise ValueError(
            f"No roofline: {file} does not name its GPU; export it with ncu --csv --page raw."
        )
    device = hardware.find(name)
    if device is None or device.memory_gb_per_s is None:
        raise ValueError(f"No roofline: Lockstep does not know the datasheet peaks of {name}.")
    bytes_per_s = device.memory_gb_per_s * GIGA
    found = [_place(kernel, device.peak_flop_per_s, bytes_per_s) for kernel in profile.kernels]
    places = [place for place in found if place]
    if not places:
        raise ValueError(
            f"No roofline: no kernel of {file} has both a count of device memory bytes and a count "
            "of FLOP in a precision with a known peak; record with ncu --set full, and export "
            "with --page raw."
        )
    note = f"Sources of the peaks: {device.source}; {device.board_source}."
    if missing := len(found) - len(places):
        kernels = counted(missing, "kernel")
        note += f" The figure omits {kernels} without known FLOP, bytes or peak."
    return Roofline(
        f"Roofline of {device.name}, {number(bytes_per_s / GIGA)} GB/s",
        {each.precision: device.peak_flop_per_s[each.precision] for each in places},
        bytes_per_s, places[:MOST_KERNELS], note,
    )  # fmt: skip


def _place(kernel: Kernel, peaks: Mapping[str, float], bytes_per_s: float) -> Place | None:
    precision = kernel.precision or ""
    if not (kernel.flop and kernel.num_bytes and kernel.seconds and precision in peaks):
        return None
    intensity, peak = kernel.flop / kernel.num_bytes, peaks[precision]
    roof, limit = min((intensity * bytes_per_s, "memory"), (peak, "compute"))
    return Place(kernel.name, precision, intensity, kernel.flop / kernel.seconds, roof, limit)


def lines(profile: Profile) -> list[str]:
    """Return the table for a terminal, or why there is none."""
    try:
        made = roofline(profile)
    except ValueError as error:
        return [str(error)]
    rows = [COLUMNS, *(place.cells() for place in made.places)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{made.title}, the longest kernels first",
        *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows),
        made.note,
    ]
