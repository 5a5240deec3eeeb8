"""An image file: its header, its record IMAGE.json and the checks of both.

The format of the header is the struct `header` of https://github.com/apptainer/sif,
pkg/sif/sif.go; the numbers of architectures are in pkg/sif/arch.go. The id in the header is random
or absent, so the record has the SHA-256 of the file.
"""

import hashlib
import platform
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from lockstep.core import files
from lockstep.core.files import write_atomically
from lockstep.image import apptainer

SCHEMA_VERSION = 1
CHUNK_BYTES = 1 << 22


class Record(BaseModel):
    """The record of an image that was built here.

    Attributes:
        sha256: Of the image file.
        size_bytes: Of the image file.
        file_stat: Its size, its time of change in whole seconds of the epoch, and its inode: a file
            that still has them was not written since, so that a job need not read it for its hash.
            None in the record of an older version.
        key: Digest of all that went into it, see `building.compute_key`.
        bootstrap: Where its base came from.
        base_digest: Of a base on this machine, see `building.base_digest`; None where a registry
            had it.
        options: Further options of `apptainer build`.
        git_commit: Commit of the files copied into it; None where git does not know.
        git_dirty: Whether they differed from that commit.
        built_at: When, in UTC.
        build_s: How long that took.
        is_signed: Whether it was signed after that.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = SCHEMA_VERSION
    sha256: str
    size_bytes: int
    file_stat: str | None = None
    key: str
    definition: str
    definition_sha256: str
    bootstrap: str
    base: str
    base_digest: str | None
    build_args: dict[str, str]
    options: list[str]
    git_commit: str | None
    git_dirty: bool | None
    apptainer: str
    built_at: str
    build_s: float
    is_signed: bool


def record_path(image: Path) -> Path:
    """Return the path of an image's record."""
    return image.with_name(f"{image.name}.json")


def log_path(image: Path) -> Path:
    """Return the path of Apptainer's output during a build."""
    return image.with_name(f"{image.name}.log")


def read_record(image: Path) -> Record | None:
    """Return an image's record, or None where it has none.

    Raises:
        ValueError: The record cannot be read.
    """
    path = record_path(image)
    if not path.exists():
        return None
    try:
        return Record.model_validate_json(files.content(path))
    except ValidationError:
        raise ValueError(
            f"{path} is not a record of lockstep image build; remove it, and build the image again"
        ) from None


def write_record(image: Path, record: Record) -> None:
    """Write an image's record whole or not at all."""
    write_atomically(record_path(image), record.model_dump_json(indent=1) + "\n")


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
    """The header of an image file.

    Attributes:
        architecture: Architecture of its machines, such as `amd64`; None if it names none.
        file_bytes: Size of the complete file.
    """

    architecture: str | None
    file_bytes: int

    def missing_bytes(self, image: Path) -> int:
        """Return how many bytes a file with this header lacks."""
        return max(0, self.file_bytes - image.stat().st_size)


def read_header(image: Path) -> Header | None:
    """Return the header of an image file; None if it is not a SIF image.

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


REVISION = "org.opencontainers.image.revision"


def check_exists(image: Path) -> None:
    """Raise ValueError where there is no image file."""
    if not image.is_file():
        raise ValueError(f"image file {image} does not exist; build it with lockstep image build")


def read_known_header(image: Path) -> Header:
    """Return the header of an image file.

    Raises:
        ValueError: There is no such file, or it is no image.
    """
    check_exists(image)
    header = read_header(image)
    if header is None:
        raise ValueError(f"{image} is not a SIF image; build one with lockstep image build")
    return header


def check_whole(image: Path) -> Header:
    """Return the header of an image that has nothing cut off.

    Raises:
        ValueError: It is no image, or not whole.
    """
    header = read_known_header(image)
    if missing := header.missing_bytes(image):
        raise ValueError(
            f"{image} is incomplete: {missing} bytes are missing; copy or build it again"
        )
    return header


@dataclass(frozen=True)
class Verdict:
    """The result of checking an image.

    Attributes:
        recorded: SHA-256 of its record; None without a record.
        missing_bytes: Bytes that are missing at the end of the file.
        signature: State of its signature; None without Apptainer.
    """

    sha256: str
    recorded: str | None
    missing_bytes: int
    signature: apptainer.Signature | None
    architecture: str | None

    @property
    def signature_state(self) -> str:
        """The signature's state in words."""
        return (
            self.signature.state
            if self.signature
            else "not checked, because apptainer is not installed"
        )

    def failures(self, *, must_be_signed: bool) -> list[str]:
        """Return a sentence for each problem."""
        failures = []
        if self.missing_bytes:
            failures.append(f"it is incomplete: {self.missing_bytes} bytes are missing")
        if self.recorded not in (None, self.sha256):
            failures.append(f"its SHA-256 is {self.sha256}, but its record has {self.recorded}")
        here = architecture_here()
        if self.architecture not in (None, here):
            failures.append(
                f"it is built for {self.architecture}, but this machine is {here}; "
                "verify it where it will run"
            )
        if self.signature and self.signature.state == "invalid":
            failures.append(f"its signature is invalid: {self.signature.reason}")
        elif must_be_signed and self.signature_state != "valid":
            failures.append(f"its signature is not valid: {self.signature_state}")
        return failures

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as `--json` prints them."""
        return {
            "sha256": self.sha256,
            "recorded_sha256": self.recorded,
            "missing_bytes": self.missing_bytes,
            "architecture": self.architecture,
            "signature": self.signature.state if self.signature else None,
            "signed_by": list(self.signature.by) if self.signature else [],
        }


def verify(image: Path, advance: Callable[[int], None] | None = None) -> Verdict:
    """Check an image against its record and its signature.

    Raises:
        ValueError: There is no such image, or its record cannot be read.
    """
    header = read_known_header(image)
    record = read_record(image)
    return Verdict(
        sha256(image, advance),
        record.sha256 if record else None,
        header.missing_bytes(image),
        apptainer.signature(image) if shutil.which("apptainer") else None,
        header.architecture,
    )


def facts(image: Path) -> dict[str, Any]:
    """Return an image's record, labels and definition.

    The file is not read: `sha256_from` is `record`, or `file` where it has no record and the
    SHA-256 is None until it is asked for.

    Raises:
        ValueError: It is no whole image, or its record is of another file.
        RuntimeError: There is no Apptainer here.
    """
    header = check_whole(image)
    apptainer.version()
    record = read_record(image)
    if record and record.size_bytes != image.stat().st_size:
        raise ValueError(
            f"{record_path(image)} belongs to another file, of {record.size_bytes} bytes; remove it"
        )
    attributes = apptainer.inspect(image)
    labels, text = attributes.get("labels") or {}, attributes.get("deffile") or ""
    read = {
        "image": str(image),
        "size_bytes": image.stat().st_size,
        "architecture": header.architecture,
        "sha256": None,
        "sha256_from": "record" if record else "file",
        "git_commit": labels.get(REVISION) or None,
        "bootstrap": read_header_line(text, "bootstrap"),
        "base": read_header_line(text, "from"),
    }
    recorded = record.model_dump() if record else {}
    return {**read, **recorded, "labels": labels, "definition_text": text}


def read_header_line(text: str, name: str) -> str | None:
    """Return what a definition's header says of `bootstrap` or `from`, or None."""
    line = re.search(rf"^\s*{name}:\s*([^#\n]*)", text, re.IGNORECASE | re.MULTILINE)
    return line[1].strip() if line else None


def sha256(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """Return a file's SHA-256 as sha256sum prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
            if advance:
                advance(len(piece))
    return digest.hexdigest()
