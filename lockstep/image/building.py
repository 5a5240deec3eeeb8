"""How an image is built, once for its content."""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.core import locks, processes
from lockstep.image import apptainer, definition
from lockstep.image.definition import COMMIT, Definition
from lockstep.image.inspection import (
    Record,
    check_whole,
    log_path,
    read_record,
    record_path,
    write_record,
)


@dataclass(frozen=True)
class Plan:
    """An image to build.

    Attributes:
        definition: What it is built from.
        commit: Commit of the files it copies; None where git does not know.
        dirty: Whether they differ from it.
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
        values = dict(self.definition.arguments)
        if self.definition.takes_commit and not values[COMMIT] and self.commit:
            values[COMMIT] = self.commit + ("-dirty" if self.dirty else "")
        return values

    @cached_property
    def key(self) -> str:
        """A digest of all that goes into the image."""
        others = (self.version, repr(self.options), repr(self.dirty))
        return definition.key(self.definition, *others)

    @property
    def part(self) -> Path:
        """The file while it is made."""
        return self.image.with_name(f"{self.image.name}.part")

    @property
    def apptainer_options(self) -> list[str]:
        """Every option of `apptainer build`."""
        options = [*self.options]
        for name, value in self.arguments.items():
            options += ["--build-arg", _quoted(f"{name}={value}")]
        return options

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


def plan(name: str, image: Path, values: Mapping[str, str], options: Sequence[str]) -> Plan:
    """Return what it takes to build an image.

    Raises:
        ValueError: The definition cannot be built as asked.
        RuntimeError: There is no Apptainer here, or it is too old.
    """
    origin = definition.load(name, values)
    commit, dirty = processes.git_state(origin.folder, [origin.path, *origin.copied()])
    version = apptainer.version_that_builds()
    return Plan(origin, image.absolute(), tuple(options), commit, dirty, version)


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

    What is done is shown as it begins; `advance` is called with the number of bytes that have been
    hashed, after each piece.

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
    origin, file = wanted.definition, wanted.part.stat()
    return Record(
        size_bytes=file.st_size,
        file_stat=f"{file.st_size} {int(file.st_mtime)} {file.st_ino}",
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
