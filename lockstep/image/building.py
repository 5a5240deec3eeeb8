"""Builds an image, unless one with the same content exists: definition, arguments and key.

spython reads `%files`; the header and `%arguments` are read here, since spython supports only
Docker bases, lowers the case of their names and ignores arguments.
"""

import hashlib
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from lockstep import content
from lockstep.core import locks, processes
from lockstep.image import apptainer
from lockstep.image.inspection import (
    Record,
    check_whole,
    log_path,
    read_header_line,
    read_record,
    sha256,
    write_record,
)

BUILT_IN = ("cpu", "pytorch")
COMMIT = "COMMIT"
# The first version with build arguments (its changelog, 1.2.0).
LEAST_VERSION = (1, 2)
# Bootstraps whose `From:` is a file or folder of this machine.
LOCAL = ("localimage", "docker-archive", "oci-archive", "oci")
# Larger files are not definitions.
LIMIT_BYTES = 1 << 20

# Names of secrets; a tokenizer is not one.
SECRET = re.compile(r"TOKEN(?!IZ)|SECRET|PASSW|(^|_|API)KEY", re.IGNORECASE)
PLACE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
STAGE = re.compile(r"^bootstrap:", re.IGNORECASE | re.MULTILINE)
SECTION = re.compile(r"^\s*%(\w+)[^\n]*\n(.*?)(?=^\s*%|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Definition:
    """A definition file with its arguments filled in.

    Attributes:
        folder: What the names in `%files` and `From:` are relative to.
        arguments: Every argument's value: as given, else the file's own default.
        bootstrap: Where the base comes from, such as `docker` or `localimage`.
        base: The base as `From:` names it.
        sources: Files that `%files` copies from this machine, as named there.
    """

    path: Path
    folder: Path
    arguments: Mapping[str, str]
    bootstrap: str
    base: str
    sources: tuple[str, ...]

    @property
    def local_base(self) -> Path | None:
        """The base where it is a file or folder of this machine."""
        return self.folder / self.base if self.bootstrap.lower() in LOCAL else None

    def copied(self) -> list[Path]:
        """Return the files and folders that `%files` copies.

        Raises:
            ValueError: One of them does not exist.
        """
        # The shell's patterns work in `%files`; an absolute name is taken as it is.
        copied = []
        for source in self.sources:
            path = self.folder / source
            root = Path(path.anchor)
            paths = [path] if path.exists() else sorted(root.glob(str(path.relative_to(root))))
            if not paths:
                raise ValueError(
                    f"{self.path.name} copies {source}, which does not exist in {self.folder}; "
                    "build in "
                    "the folder of its files, for a built-in definition a checkout of Lockstep"
                )
            copied += paths
        return copied


def load(name: str, given: Mapping[str, str]) -> Definition:
    """Read a definition file.

    Args:
        name: A path, whose `%files` are relative to the current folder as Apptainer has it; or a
            built-in definition's name, whose files are the suite's own.
        given: Values of arguments.

    Raises:
        ValueError: There is no such file, it has no such argument, one has no value, or the file
            cannot be read.
    """
    if name in BUILT_IN:
        path, folder = content.ROOT / "containers" / f"{name}.def", content.ROOT
    else:
        path, folder = Path(name).absolute(), Path.cwd()
    if not path.is_file():
        raise ValueError(
            f"definition {name} does not exist; give a file or one of {', '.join(BUILT_IN)}"
        )
    if path.suffix == ".sif":
        raise ValueError(f"{name} is an image; give the definition first, then the image")
    if path.stat().st_size > LIMIT_BYTES:
        raise ValueError(f"{name} is larger than {LIMIT_BYTES >> 20} MiB; give a definition file")
    raw = path.read_text(encoding="utf-8", errors="replace")
    arguments = _arguments(path, raw, given)
    text = PLACE.sub(lambda place: arguments[place[1]], raw)
    if len(STAGE.findall(text)) > 1:
        raise ValueError(
            f"{path.name} has more than one stage, but only one base can be recorded; build "
            "its first stage as an image, and use that with Bootstrap: localimage"
        )
    bootstrap = read_header_line(text, "bootstrap")
    if not bootstrap:
        raise ValueError(
            f"{path.name} has no Bootstrap line; begin it with one, such as Bootstrap: docker"
        )
    return Definition(
        path,
        folder,
        arguments,
        bootstrap,
        read_header_line(text, "from") or "",
        _sources(path, text),
    )


def _arguments(path: Path, raw: str, given: Mapping[str, str]) -> dict[str, str]:
    wanted = set(PLACE.findall(raw))
    lines = [line.strip().partition("=") for line in _section(raw, "arguments")]
    defaults = {name.strip(): value.strip() for name, _, value in lines}
    for name, value in given.items():
        if name not in wanted:
            raise ValueError(
                f"{path.name} has no build argument {name}; "
                f"choose from {', '.join(sorted(wanted)) or 'none'}"
            )
        if SECRET.search(name):
            raise ValueError(
                f"the build argument {name} would stay readable in the image and its record; "
                "bind a "
                "file with the secret through --apptainer-options, or rename the argument if it is "
                "not a secret"
            )
        if "\n" in value:
            raise ValueError(f"the build argument {name} contains a newline; give it on one line")
    values = {**defaults, **given}
    for name in sorted(wanted - set(values)):
        raise ValueError(f"{path.name} needs a value for {name}; add --build-arg {name}=VALUE")
    return {name: value for name, value in values.items() if name in wanted}


def _section(text: str, name: str) -> list[str]:
    bodies = [body for heading, body in SECTION.findall(text) if heading.lower() == name]
    lines = [line for body in bodies for line in body.splitlines()]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _sources(path: Path, text: str) -> tuple[str, ...]:
    """Return what `%files` copies from this machine, as spython finds it.

    Raises:
        ValueError: spython cannot read the definition.
    """
    from spython.main.parse.parsers import get_parser

    # spython reads neither every header nor comments, and the first line of a section as a header.
    lines = ["Bootstrap: docker", "From: base", "%files", "", *_section(text, "files")]
    parser = get_parser("singularity")(None, load=False)
    parser.lines = lines
    try:
        stages = parser.parse().values()
    except Exception as error:  # noqa: BLE001, it names no exceptions of its own
        raise ValueError(
            f"spython cannot read {path}: {error}; see Apptainer's documentation of definition "
            "files"
        ) from None
    copied = [line for stage in stages for line in stage.files]
    return tuple(shlex.split(line)[0] for line in copied)


def compute_key(definition: Definition, *others: str) -> str:
    """Return a digest of an image's inputs: equal keys give equal images.

    Args:
        definition: Its text, its arguments, its base and the files it copies are counted. The
            commit is not: the files are.
        others: What else counts.

    Raises:
        ValueError: The base, or a file to copy, does not exist.
    """
    arguments = {k: v for k, v in definition.arguments.items() if k != COMMIT}
    parts = [*others, sha256(definition.path), repr(sorted(arguments.items()))]
    for top in definition.copied():
        inside = (path for path in top.rglob("*") if "__pycache__" not in path.parts)
        paths = [top] if top.is_file() else sorted(filter(Path.is_file, inside))
        parts += [f"{os.path.relpath(path, definition.folder)} {sha256(path)}" for path in paths]
    parts.append(base_digest(definition) or "")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def base_digest(definition: Definition) -> str | None:
    """Return a digest of a base on this machine; None where a registry has it.

    A file's SHA-256; for a folder, one over its files' names, sizes and times.

    Raises:
        ValueError: There is no such base.
    """
    base = definition.local_base
    if base is None:
        return None
    if base.is_file():
        return sha256(base)
    if not base.is_dir():
        raise ValueError(
            f"base {base} does not exist; give a file or a folder, or another BOOTSTRAP"
        )
    digest = hashlib.sha256()
    for path in sorted(base.rglob("*")):
        status = path.lstat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="replace"))
    return digest.hexdigest()


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
        if COMMIT in values and not values[COMMIT] and self.commit:
            values[COMMIT] = self.commit + ("-dirty" if self.dirty else "")
        return values

    @cached_property
    def key(self) -> str:
        """A digest of all that goes into the image."""
        others = (self.version, repr(self.options), repr(self.dirty))
        return compute_key(self.definition, *others)

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
    """Return the plan of an image's build.

    Raises:
        ValueError: The definition cannot be built as asked.
        RuntimeError: There is no Apptainer here, or it is too old.
    """
    origin = load(name, values)
    commit, dirty = processes.git_state(origin.folder, [origin.path, *origin.copied()])
    version = apptainer.version()
    if apptainer.is_older(version, LEAST_VERSION):
        raise RuntimeError(
            f"build arguments need apptainer 1.2 or newer, but {version} is installed; install "
            "or load a newer version"
        )
    return Plan(origin, image.absolute(), tuple(options), commit, dirty, version)


def build(
    plan: Plan,
    show: Callable[[str], None],
    advance: Callable[[int], None] | None = None,
    *,
    is_signed: bool = False,
) -> Record:
    """Build an image and its record; the file appears whole or not at all.

    `show` gets each step as it starts, `advance` the number of hashed bytes after each piece.

    Raises:
        ValueError: A file or base does not exist.
        RuntimeError: The build fails, or another command is building the image.
    """
    if is_signed and not apptainer.has_secret_key():
        raise RuntimeError(
            "the keyring has no key to sign with; create one with apptainer key newpair, or "
            "leave out --sign"
        )
    key, started = plan.key, time.monotonic()
    origin, part, log = plan.definition, plan.part, log_path(plan.image)
    plan.image.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        if not locks.take(output):
            raise RuntimeError(
                f"another command is building {plan.image}; wait for it, or see {log}"
            )
        output.truncate(0)
        part.unlink(missing_ok=True)
        try:
            apptainer.build(origin.path, part, plan.apptainer_options, origin.folder, log, show)
            try:
                check_whole(part)
                apptainer.inspect(part)
            except ValueError as error:
                raise RuntimeError(f"{error}; see {log}") from None
            if is_signed:
                show("Signing the image")
                apptainer.sign(part)
            show("Hashing the image")
            digest, status = sha256(part, advance), part.stat()
            record = Record(
                sha256=digest,
                size_bytes=status.st_size,
                file_stat=f"{status.st_size} {int(status.st_mtime)} {status.st_ino}",
                key=key,
                definition=origin.path.name,
                definition_sha256=sha256(origin.path),
                bootstrap=origin.bootstrap,
                base=origin.base,
                base_digest=base_digest(origin),
                build_args=plan.arguments,
                options=list(plan.options),
                git_commit=plan.commit,
                git_dirty=plan.dirty,
                apptainer=plan.version,
                built_at=datetime.now(UTC).isoformat(timespec="seconds"),
                build_s=round(time.monotonic() - started, 1),
                is_signed=is_signed,
            )
            part.replace(plan.image)
            write_record(plan.image, record)
        finally:
            part.unlink(missing_ok=True)
    return record
