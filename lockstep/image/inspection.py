"""An image file: its header, its record IMAGE.json and the checks of both.

The header's format is the struct `header` of https://github.com/apptainer/sif, pkg/sif/sif.go; the
numbers of architectures are in pkg/sif/arch.go. The header's id is random or absent, so the record
identifies the file by its SHA-256.
"""

import hashlib
import platform
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from lockstep.core import files
from lockstep.image import apptainer

SCHEMA_VERSION = 1
CHUNK_BYTES = 1 << 22


class Record(BaseModel):
    """The record of an image that was built here."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = SCHEMA_VERSION
    sha256: str  # of the image file
    size_bytes: int
    # Size, modification time in seconds and inode of the file. While they are unchanged, a job does
    # not hash the file again. None in old records.
    file_stat: str | None = None
    key: str  # digest of all inputs, see `building.compute_key`
    definition: str
    definition_sha256: str
    bootstrap: str
    base: str
    base_digest: str | None  # of a base on this machine, see `building.base_digest`
    build_args: dict[str, str]
    options: list[str]  # further options of `apptainer build`
    git_commit: str | None  # commit of the copied files; None if unknown
    git_dirty: bool | None  # whether the files differed from the commit
    apptainer: str
    built_at: str  # in UTC
    build_s: float


def record_path(image: Path) -> Path:
    return image.with_name(f"{image.name}.json")


def read_record(image: Path) -> Record | None:
    """Return an image's record, or None; raise ValueError if the record cannot be read."""
    path = record_path(image)
    if not path.exists():
        return None
    try:
        return Record.model_validate_json(files.content(path))
    except ValidationError:
        raise ValueError(
            f"{path} is not a record of lockstep image build; remove the file, and build the image "
            "again"
        ) from None


def write_record(image: Path, record: Record) -> None:
    files.write_atomically(record_path(image), record.model_dump_json(indent=1) + "\n")


HEADER_BYTES = 128
MAGIC_AT, MAGIC = 32, b"SIF_MAGIC\0"
ARCHITECTURE_AT = 45
DATA_AT = 112  # offset and size of the data, which reach to the end of the file
# Number -> name of an architecture in images, and in uname(1).
ARCHITECTURES = {
    b"02": ("amd64", "x86_64"), b"04": ("arm64", "aarch64"), b"06": ("ppc64le", "ppc64le"),
    b"11": ("s390x", "s390x"), b"12": ("riscv64", "riscv64"),
}  # fmt: skip


class Header(NamedTuple):
    """The header of an image file."""

    architecture: str | None  # architecture of the machines, such as `amd64`, or None
    missing_bytes: int  # bytes missing at the end of the file


def read_header(image: Path) -> Header | None:
    """Return the header of an image file; None if it is not a SIF image."""
    with image.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if header[MAGIC_AT : MAGIC_AT + len(MAGIC)] != MAGIC:
        return None
    architecture, _ = ARCHITECTURES.get(header[ARCHITECTURE_AT : ARCHITECTURE_AT + 2], (None, None))
    num_bytes = HEADER_BYTES
    if len(header) == HEADER_BYTES:
        num_bytes = sum(struct.unpack_from("<2q", header, DATA_AT))
    return Header(architecture, max(0, num_bytes - image.stat().st_size))


def architecture_here() -> str:
    """Return this machine's architecture by its name in images."""
    machine = platform.machine()
    return {uname: name for name, uname in ARCHITECTURES.values()}.get(machine, machine)


REVISION = "org.opencontainers.image.revision"


def check_exists(image: Path) -> None:
    if not image.is_file():
        raise ValueError(f"image file {image} does not exist; build it with lockstep image build")


def read_known_header(image: Path) -> Header:
    """Return the header of an image file; raise ValueError without a file or for another file."""
    check_exists(image)
    header = read_header(image)
    if header is None:
        raise ValueError(f"{image} is not a SIF image; build one with lockstep image build")
    return header


def check_whole(image: Path) -> Header:
    """Return the header of an image; raise ValueError if its end is cut off."""
    header = read_known_header(image)
    if header.missing_bytes:
        raise ValueError(
            f"{image} is incomplete: {header.missing_bytes} bytes are missing; copy or build the "
            "image again"
        )
    return header


def verify(image: Path, advance: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Check an image against its record; return the facts, with a sentence for each failure."""
    header, record = read_known_header(image), read_record(image)
    digest, recorded = sha256(image, advance), record.sha256 if record else None
    here = architecture_here()
    failures = []
    if header.missing_bytes:
        failures.append(f"the file lacks its last {header.missing_bytes} bytes")
    if recorded not in (None, digest):
        failures.append(f"the file's SHA-256 is {digest}, but its record has {recorded}")
    if header.architecture not in (None, here):
        failures.append(
            f"the image is built for {header.architecture}, but this machine is {here}; run this "
            "command on a compute node"
        )
    return {
        "image": str(image),
        "sha256": digest,
        "recorded_sha256": recorded,
        "missing_bytes": header.missing_bytes,
        "architecture": header.architecture,
        "failures": failures,
    }


def facts(image: Path) -> dict[str, Any]:
    """Return an image's record, labels and definition, without reading the whole file.

    `sha256_from` is `record`; without a record it is `file`, and `sha256` is None.
    """
    header = check_whole(image)
    apptainer.version()
    record = read_record(image)
    if record and record.size_bytes != image.stat().st_size:
        raise ValueError(
            f"{record_path(image)} describes another image, of {record.size_bytes} bytes; remove "
            f"{record_path(image).name}, or build the image again"
        )
    attributes = apptainer.inspect(image)
    labels, text = attributes.get("labels") or {}, attributes.get("deffile") or ""
    return {
        "image": str(image),
        "size_bytes": image.stat().st_size,
        "architecture": header.architecture,
        "sha256": None,
        "sha256_from": "record" if record else "file",
        "git_commit": labels.get(REVISION) or None,
        "bootstrap": read_header_line(text, "bootstrap"),
        "base": read_header_line(text, "from"),
        **(record.model_dump() if record else {}),
        "labels": labels,
        "definition_text": text,
    }


def read_header_line(text: str, name: str) -> str | None:
    """Return the value of `bootstrap` or `from` in a definition's header, or None."""
    line = re.search(rf"^\s*{name}:\s*([^#\n]*)", text, re.IGNORECASE | re.MULTILINE)
    return line[1].strip() if line else None


def sha256(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """Return a file's SHA-256; report the bytes of each piece to `advance`."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
            if advance:
                advance(len(piece))
    return digest.hexdigest()
