"""The header of an image file: what machines it is for, and how large the whole file is.

The format is the struct `header` of https://github.com/apptainer/sif, pkg/sif/sif.go; its numbers
of architectures are in pkg/sif/arch.go.
"""

import platform
import struct
from dataclasses import dataclass
from pathlib import Path

HEADER_BYTES = 128
MAGIC_AT, MAGIC = 32, b"SIF_MAGIC\0"
ARCHITECTURE_AT = 45
# Where the header keeps offset and size of the data, which end the file.
DATA_AT = 112
# number -> the name that images have for an architecture, and the name that uname(1) has
ARCHITECTURES = {
    b"02": ("amd64", "x86_64"), b"04": ("arm64", "aarch64"), b"06": ("ppc64le", "ppc64le"),
    b"11": ("s390x", "s390x"), b"12": ("riscv64", "riscv64"),
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What the header of an image file says.

    Attributes:
        architecture: What machines it is for, such as `amd64`; None where it names none.
    """

    architecture: str | None
    file_bytes: int

    def missing_bytes(self, image: Path) -> int:
        """Return how many bytes are cut off from a file with this header."""
        return max(0, self.file_bytes - image.stat().st_size)


def read_header(image: Path) -> Header | None:
    """Return the header of an image file; None where the file is no SIF image.

    Raises:
        OSError: The file cannot be read.
    """
    with image.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if header[MAGIC_AT : MAGIC_AT + len(MAGIC)] != MAGIC:
        return None
    architecture, _ = ARCHITECTURES.get(header[ARCHITECTURE_AT : ARCHITECTURE_AT + 2], (None, None))
    if len(header) < HEADER_BYTES:
        return Header(architecture, HEADER_BYTES)
    offset, size = struct.unpack_from("<2q", header, DATA_AT)
    return Header(architecture, int(offset + size))


def architecture_here() -> str:
    """Return this machine's architecture by the name that images have for it."""
    machine = platform.machine()
    return {uname: name for name, uname in ARCHITECTURES.values()}.get(machine, machine)
