"""An image file and the record beside it: how it was built, whether it is whole, whose it is.

The record, IMAGE.json, holds the SHA-256 of the file. (The id in an image's own header is random,
or absent, and says nothing about what the file holds.)
"""

import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from lockstep.image import apptainer, definition, sif
from lockstep.image.definition import COMMIT, Definition
from lockstep.machine import git
from lockstep.vocabulary import locks

SCHEMA_VERSION = 1
REVISION = "org.opencontainers.image.revision"
# No record is larger.
RECORD_BYTES = 1 << 20


class Record(BaseModel):
    """What is kept beside an image that was built here.

    Attributes:
        sha256: Of the image file.
        size_bytes: Of the image file.
        key: Stands for all that went into it; see `definition.key`.
        definition: Name of the definition file.
        definition_sha256: Of that file.
        bootstrap: Where its base came from.
        base: The base.
        base_digest: Of a base on this machine, see `definition.base_digest`; None where a registry
            had it.
        build_args: Every argument's value.
        options: Further options of `apptainer build`.
        git_commit: Commit of the files copied into it; None where git does not know.
        git_dirty: Whether they differed from that commit.
        apptainer: Version that built it.
        built_at: When, in UTC.
        build_s: How long that took.
        is_signed: Whether it was signed after that.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = SCHEMA_VERSION
    sha256: str
    size_bytes: int
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
    """Return where all is that Apptainer said as it built an image."""
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
        # A pipe would be waited for, and a device never ends.
        is_record = path.is_file() and path.stat().st_size <= RECORD_BYTES
        return Record.model_validate_json(path.read_bytes() if is_record else b"")
    except ValidationError:
        raise ValueError(
            f"{path} is no record that lockstep image build writes; remove it and build again"
        ) from None


def write_record(image: Path, record: Record) -> None:
    """Write an image's record whole or not at all."""
    path = record_path(image)
    part = path.with_name(f"{path.name}.part")
    part.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def read_header(image: Path) -> sif.Header:
    """Return the header of an image file.

    Raises:
        ValueError: There is no such file, or it is no image.
    """
    if not image.is_file():
        raise ValueError(f"there is no image file {image}; lockstep image build makes one")
    header = sif.read_header(image)
    if header is None:
        raise ValueError(f"{image} is no SIF image; build one with lockstep image build")
    return header


def check_whole(image: Path) -> sif.Header:
    """Return the header of an image that has nothing cut off.

    Raises:
        ValueError: It is no image, or not whole.
    """
    header = read_header(image)
    if missing := header.missing_bytes(image):
        raise ValueError(
            f"{image} is cut short: {missing} bytes of it are missing; copy or build it again"
        )
    return header


@dataclass(frozen=True)
class Plan:
    """An image to build.

    Attributes:
        definition: What it is built from.
        image: The file to make.
        options: Further options of `apptainer build`.
        commit: Commit of the files it copies; None where git does not know.
        dirty: Whether they differ from it.
        version: Apptainer's.
    """

    definition: Definition
    image: Path
    options: tuple[str, ...]
    commit: str | None
    dirty: bool | None
    version: str

    @property
    def arguments(self) -> dict[str, str]:
        """Every argument's value, the commit's included unless it was given."""
        found = dict(self.definition.arguments)
        if self.definition.takes_commit and not found[COMMIT] and self.commit:
            found[COMMIT] = self.commit + ("-dirty" if self.dirty else "")
        return found

    @cached_property
    def key(self) -> str:
        """What stands for all that goes into the image."""
        others = (self.version, repr(self.options), repr(self.dirty))
        return definition.key(self.definition, *others)

    @property
    def part(self) -> Path:
        """The file while it is made."""
        return self.image.with_name(f"{self.image.name}.part")

    @property
    def apptainer_options(self) -> list[str]:
        """Every option of `apptainer build`."""
        given = (f"{name}={value}" for name, value in self.arguments.items())
        return [*self.options, *(part for text in given for part in ("--build-arg", _quoted(text)))]

    @property
    def command(self) -> str:
        """The command line, as one would type it."""
        words = ["build", *self.apptainer_options, str(self.part), str(self.definition.path)]
        return (
            f"cd {shlex.quote(str(self.definition.folder))} && {shlex.join(['apptainer', *words])}"
        )

    def state(self, *, must_be_signed: bool = False) -> str:
        """Return whether it is `missing`, `foreign`, `outdated`, `unsigned` or `up to date`.

        By its record and its size: the file is not read.
        """
        if not self.image.exists():
            return "missing"
        try:
            record = read_record(self.image)
        except ValueError:
            return "foreign"
        if record is None or record.size_bytes != self.image.stat().st_size:
            return "foreign"
        if record.key != self.key:
            return "outdated"
        return "unsigned" if must_be_signed and not record.is_signed else "up to date"


def _quoted(text: str) -> str:
    """Return an argument as `--build-arg` takes it: a line of CSV, in which a comma separates."""
    if not set(text) & set(',"'):
        return text
    return '"' + text.replace('"', '""') + '"'


def plan(name: str, image: Path, given: Mapping[str, str], options: Sequence[str]) -> Plan:
    """Return what it takes to build an image.

    Args:
        name: A definition file or a built-in definition's name.
        image: The file to make.
        given: Build arguments.
        options: Further options of `apptainer build`.

    Raises:
        ValueError: The definition cannot be built as asked.
        RuntimeError: There is no Apptainer here, or it is too old.
    """
    found = definition.load(name, given)
    commit, dirty = git.state(found.folder, [found.path, *found.copied()])
    version = apptainer.version_that_builds()
    return Plan(found, image.absolute(), tuple(options), commit, dirty, version)


def refuse_foreign(wanted: Plan) -> None:
    """Check that the image may be replaced.

    Raises:
        ValueError: There is a file of that name that was not built here.
    """
    if wanted.state() == "foreign":
        raise ValueError(
            f"{wanted.image} is there and is not what {record_path(wanted.image).name} records "
            "as built; give another name, or replace it with --force"
        )


def build(
    wanted: Plan,
    show: Callable[[str], None],
    advance: Callable[[int], None] | None = None,
    *,
    is_signed: bool = False,
) -> Record:
    """Build an image and its record; the file appears whole or not at all.

    Args:
        wanted: What to build.
        show: Called with what is done at the moment.
        advance: Called with the number of bytes that have been hashed, after each piece.
        is_signed: Sign it by the user's key.

    Raises:
        ValueError: What it is to hold does not exist.
        RuntimeError: It cannot be built, or is built by another command now.
    """
    if is_signed and not apptainer.has_secret_key():
        raise RuntimeError(
            "there is no key to sign with; apptainer key newpair makes one, or leave out --sign"
        )
    key, started = wanted.key, time.monotonic()
    with _alone(wanted) as log:
        origin = wanted.definition
        options = wanted.apptainer_options
        apptainer.build(origin.path, wanted.part, options, origin.folder, log, show)
        _check_made(wanted.part, log)
        if is_signed:
            show("Signing the image")
            apptainer.sign(wanted.part)
        show("Hashing the image")
        facts = {"sha256": definition.sha256(wanted.part, advance), "is_signed": is_signed}
        facts |= {"key": key, "build_s": round(time.monotonic() - started, 1)}
        record = _record(wanted, facts)
        wanted.part.replace(wanted.image)
        write_record(wanted.image, record)
    return record


@contextmanager
def _alone(wanted: Plan) -> Iterator[Path]:
    """Hold the image's log, empty, and leave no half of an image behind.

    Raises:
        RuntimeError: Another build holds it.
    """
    log = log_path(wanted.image)
    wanted.image.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        if not locks.take(file):
            raise RuntimeError(
                f"another command builds {wanted.image} now; wait for it, or see {log}"
            )
        file.truncate(0)
        wanted.part.unlink(missing_ok=True)
        try:
            yield log
        finally:
            wanted.part.unlink(missing_ok=True)


def _check_made(part: Path, log: Path) -> None:
    """Check that Apptainer has made what it says it has.

    Raises:
        RuntimeError: It has not.
    """
    try:
        check_whole(part)
        apptainer.inspect(part)
    except ValueError as error:
        raise RuntimeError(f"{error}; all Apptainer said is in {log}") from None


def _record(wanted: Plan, facts: Mapping[str, Any]) -> Record:
    origin = wanted.definition
    return Record(
        size_bytes=wanted.part.stat().st_size,
        definition=origin.path.name,
        definition_sha256=definition.sha256(origin.path),
        bootstrap=origin.bootstrap,
        base=origin.base,
        base_digest=definition.base_digest(origin),
        build_args=wanted.arguments,
        options=list(wanted.options),
        git_commit=wanted.commit,
        git_dirty=wanted.dirty,
        apptainer=wanted.version,
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
    )


@dataclass(frozen=True)
class Verdict:
    """What checking an image has found.

    Attributes:
        sha256: Of the file.
        recorded: What its record says; None where it has none.
        missing_bytes: How much of the file is cut off.
        signature: What Apptainer says of its signature; None where there is no Apptainer.
        architecture: What machines the image is for; None where it does not say.
    """

    sha256: str
    recorded: str | None
    missing_bytes: int
    signature: apptainer.Signature | None
    architecture: str | None

    def failures(self, *, must_be_signed: bool) -> list[str]:
        """Return what is wrong, a sentence each; nothing where all is well."""
        found = []
        if self.missing_bytes:
            found.append(f"it is cut short, {self.missing_bytes} bytes are missing")
        if self.recorded not in (None, self.sha256):
            found.append(f"its SHA-256 is {self.sha256}, and {self.recorded} was recorded")
        here = sif.architecture_here()
        if self.architecture not in (None, here):
            found.append(
                f"it is built for {self.architecture}, and this machine is {here}; "
                "verify it where it will run"
            )
        state = self.signature.state if self.signature else "not checked, for want of apptainer"
        if self.signature and state == "invalid":
            found.append(f"its signature is invalid: {self.signature.reason}")
        elif must_be_signed and state != "valid":
            found.append(f"its signature is wanted and is: {state}")
        return found

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

    Args:
        image: The image file.
        advance: Called with the number of bytes that have been hashed, after each piece.

    Raises:
        ValueError: There is no such image, or its record cannot be read.
    """
    header = read_header(image)
    record = read_record(image)
    return Verdict(
        definition.sha256(image, advance),
        record.sha256 if record else None,
        header.missing_bytes(image),
        apptainer.signature(image) if shutil.which("apptainer") else None,
        header.architecture,
    )


def facts(image: Path) -> dict[str, Any]:
    """Return what an image is: its record and what it says of itself.

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
            f"{record_path(image)} is of another file of {record.size_bytes} bytes; remove it"
        )
    said = apptainer.inspect(image)
    labels, text = said.get("labels") or {}, said.get("deffile") or ""
    own = {
        "image": str(image),
        "size_bytes": image.stat().st_size,
        "architecture": header.architecture,
        "sha256": None,
        "sha256_from": "record" if record else "file",
        "git_commit": labels.get(REVISION) or None,
        "bootstrap": definition.header(text, "bootstrap"),
        "base": definition.header(text, "from"),
    }
    recorded = record.model_dump() if record else {}
    return {**own, **recorded, "labels": labels, "definition_text": text}
