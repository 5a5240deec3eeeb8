"""The record IMAGE.json of an image file: how it was built, and its SHA-256.

(The id in an image's own header is random, or absent, and says nothing about what the file holds.)
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from lockstep.core import files
from lockstep.core.files import write_atomically

SCHEMA_VERSION = 1


class Record(BaseModel):
    """What is kept of an image that was built here.

    Attributes:
        sha256: Of the image file.
        size_bytes: Of the image file.
        file_stat: Its size, its time of change in whole seconds of the epoch, and its inode: a file
            that still has them was not written since, so that a job need not read it for its hash.
            None in the record of an older version.
        key: Digest of all that went into it, see `definition.key`.
        bootstrap: Where its base came from.
        base_digest: Of a base on this machine, see `definition.base_digest`; None where a registry
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
    """Return where an image's record is."""
    return image.with_name(f"{image.name}.json")


def log_path(image: Path) -> Path:
    """Return where the output is of Apptainer as it built an image."""
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
            f"{path} is no record that lockstep image build writes; remove it and build again"
        ) from None


def write_record(image: Path, record: Record) -> None:
    """Write an image's record whole or not at all."""
    write_atomically(record_path(image), record.model_dump_json(indent=1) + "\n")
