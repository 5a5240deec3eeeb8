"""Builds an image from a definition, unless an image with the same content exists."""

import hashlib
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
    read_header_line,
    read_record,
    sha256,
    write_record,
)

BUILT_IN = ("cpu", "pytorch")
COMMIT = "COMMIT"
LEAST_VERSION = (1, 2)  # the first version with build arguments (Apptainer's changelog, 1.2.0)
# Bootstraps whose `From:` is a file or folder of this machine.
LOCAL = ("localimage", "docker-archive", "oci-archive", "oci")
LIMIT_BYTES = 1 << 20  # larger files are not definitions
# Names of secrets; a tokenizer is no secret.
SECRET = re.compile(r"TOKEN(?!IZ)|SECRET|PASSW|(^|_|API)KEY", re.IGNORECASE)
PLACE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
STAGE = re.compile(r"^bootstrap:", re.IGNORECASE | re.MULTILINE)
SECTION = re.compile(r"^\s*%(\w+)[^\n]*\n(.*?)(?=^\s*%|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Definition:
    """A definition file with its arguments filled in."""

    path: Path
    folder: Path  # names in `%files` and `From:` are relative to this folder
    arguments: Mapping[str, str]  # the value of every argument, perhaps its default
    bootstrap: str  # the source of the base, such as `docker` or `localimage`
    base: str  # as `From:` names it
    sources: tuple[str, ...]  # files of this machine as `%files` names them

    def find_files(self) -> list[Path]:
        """Return the files and folders that `%files` copies; raise ValueError if one is missing."""
        copied = []  # `%files` may contain patterns of the shell
        for source in self.sources:
            path = self.folder / source
            root = Path(path.anchor)
            paths = [path] if path.exists() else sorted(root.glob(str(path.relative_to(root))))
            if not paths:
                raise ValueError(
                    f"{self.path.name} copies {source}, which does not exist in {self.folder}; run "
                    "the command in the folder that holds the file. A built-in definition needs a "
                    "checkout of Lockstep"
                )
            copied += paths
        return copied


def load(name: str, values: Mapping[str, str]) -> Definition:
    """Read a definition file by its path or built-in name, with values of arguments.

    `%files` of a built-in definition are relative to the checkout, and of another definition to the
    current folder, as in Apptainer. Raises ValueError if these values do not allow a build.
    """
    if name in BUILT_IN:
        path, folder = content.ROOT / "containers" / f"{name}.def", content.ROOT
    else:
        path, folder = Path(name).absolute(), Path.cwd()
    if not path.is_file():
        built_in = ", ".join(BUILT_IN)
        raise ValueError(f"definition {name} does not exist; give a file or one of {built_in}")
    if path.stat().st_size > LIMIT_BYTES:
        limit_mib = LIMIT_BYTES >> 20
        raise ValueError(
            f"{name} is larger than {limit_mib} MiB and cannot be a definition file; give a "
            "definition file"
        )
    raw = path.read_text(encoding="utf-8", errors="replace")
    arguments = _arguments(path, raw, values)
    text = PLACE.sub(lambda place: arguments[place[1]], raw)
    if len(STAGE.findall(text)) > 1:
        raise ValueError(
            f"{path.name} has more than one stage, but only one base can be recorded; build "
            "the first stage as an image, and use this image with Bootstrap: localimage"
        )
    bootstrap = read_header_line(text, "bootstrap")
    if not bootstrap:
        raise ValueError(
            f"{path.name} has no Bootstrap line; give a definition file, not an image, with a "
            "line such as Bootstrap: docker"
        )
    base = read_header_line(text, "from") or ""
    return Definition(path, folder, arguments, bootstrap, base, _sources(path, text))


def _arguments(path: Path, raw: str, own: Mapping[str, str]) -> dict[str, str]:
    wanted = set(PLACE.findall(raw))
    lines = [line.strip().partition("=") for line in _section(raw, "arguments")]
    defaults = {name.strip(): value.strip() for name, _, value in lines}
    for argument in own:
        if argument not in wanted:
            known = ", ".join(sorted(wanted)) or "none"
            raise ValueError(f"{path.name} has no build argument {argument}; choose from {known}")
        if "\n" in own[argument]:
            raise ValueError(
                f"the build argument {argument} contains a newline; write its value on one line"
            )
        if SECRET.search(argument):
            raise ValueError(
                f"the build argument {argument} looks like a secret, but the image and its record "
                "would show its value; put a secret into a file that --apptainer-options binds, "
                "or rename the argument"
            )
    values = {**defaults, **own}
    for argument in sorted(wanted - set(values)):
        text = f"definition {path.name} needs a value for the build argument {argument}"
        raise ValueError(f"{text}; add --build-arg {argument}=VALUE")
    return {name: value for name, value in values.items() if name in wanted}


def _section(text: str, name: str) -> list[str]:
    bodies = [body for heading, body in SECTION.findall(text) if heading.lower() == name]
    lines = [line for body in bodies for line in body.splitlines()]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _sources(path: Path, text: str) -> tuple[str, ...]:
    """Return the files of this machine that `%files` copies; raise ValueError if unreadable."""
    try:
        return tuple(shlex.split(line)[0] for line in _section(text, "files"))
    except ValueError as error:
        raise ValueError(
            f"the definition file {path} cannot be read: {error}; see Apptainer's documentation of "
            "definition files"
        ) from None


def compute_key(definition: Definition, *others: str) -> str:
    """Return a digest of an image's inputs: equal keys give equal images.

    The digest is over `others` and the definition's text, arguments, base and copied files, which
    replace the commit. Raises ValueError if the base or a file does not exist.
    """
    arguments = {k: v for k, v in definition.arguments.items() if k != COMMIT}
    parts = [*others, sha256(definition.path), repr(sorted(arguments.items()))]
    for top in definition.find_files():
        inside = (path for path in top.rglob("*") if "__pycache__" not in path.parts)
        paths = [top] if top.is_file() else sorted(filter(Path.is_file, inside))
        parts += [f"{os.path.relpath(path, definition.folder)} {sha256(path)}" for path in paths]
    parts.append(base_digest(definition) or "")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def base_digest(definition: Definition) -> str | None:
    """Return a digest of a base on this machine; None for a base from a registry.

    For a file it is the SHA-256; for a folder, a digest of its files' names, sizes and times.
    """
    if definition.bootstrap.lower() not in LOCAL:
        return None
    base = definition.folder / definition.base
    if base.is_file():
        return sha256(base)
    if not base.is_dir():
        raise ValueError(
            f"the base image {base} does not exist; give an existing file or folder, or another "
            "BOOTSTRAP"
        )
    digest = hashlib.sha256()
    for path in sorted(base.rglob("*")):
        status = path.lstat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="replace"))
    return digest.hexdigest()


@dataclass(frozen=True)
class Plan:
    """An image to build."""

    definition: Definition
    image: Path
    options: tuple[str, ...]
    commit: str | None  # commit of the copied files; None if unknown
    dirty: bool | None  # whether the files differ from the commit
    version: str

    @property
    def arguments(self) -> dict[str, str]:
        """The value of every argument; COMMIT is filled in if it is empty."""
        values = dict(self.definition.arguments)
        if COMMIT in values and not values[COMMIT] and self.commit:
            values[COMMIT] = self.commit + ("-dirty" if self.dirty else "")
        return values

    @cached_property
    def key(self) -> str:
        return compute_key(self.definition, self.version, repr(self.options), repr(self.dirty))

    @property
    def part(self) -> Path:
        return self.image.with_name(f"{self.image.name}.part")

    @property
    def apptainer_options(self) -> list[str]:
        options = [*self.options]
        for name, value in self.arguments.items():
            options += ["--build-arg", _quote(f"{name}={value}")]
        return options

    @property
    def command(self) -> str:
        words = ["build", *self.apptainer_options, str(self.part), str(self.definition.path)]
        folder = shlex.quote(str(self.definition.folder))
        return f"cd {folder} && {shlex.join(['apptainer', *words])}"

    def state(self) -> str:
        """Return whether the image is `missing`, `foreign`, `outdated` or `up to date`.

        A file that does not match its record in size, or has no record, is foreign.
        """
        if not self.image.exists():
            return "missing"
        record = None
        with suppress(ValueError):
            record = read_record(self.image)
        if record is None or record.size_bytes != self.image.stat().st_size:
            return "foreign"
        return "up to date" if record.key == self.key else "outdated"


def _quote(text: str) -> str:
    """Quote an argument for `--build-arg`, which reads CSV."""
    if not set(text) & set(',"'):
        return text
    return '"' + text.replace('"', '""') + '"'


def plan(name: str, image: Path, values: Mapping[str, str], options: Sequence[str]) -> Plan:
    """Return the plan of an image's build; raise RuntimeError without a recent Apptainer."""
    origin = load(name, values)
    commit, dirty = processes.git_state(origin.folder, [origin.path, *origin.find_files()])
    version = apptainer.version()
    if apptainer.is_older(version, LEAST_VERSION):
        raise RuntimeError(
            f"build arguments need apptainer 1.2 or newer, but {version} is installed; install "
            "or load a newer version"
        )
    return Plan(origin, image.absolute(), tuple(options), commit, dirty, version)


def build(
    plan: Plan, show: Callable[[str], None], advance: Callable[[int], None] | None = None
) -> Record:
    """Build an image and its record; the image file is never incomplete.

    `show` gets each step as it starts, `advance` the number of bytes of each hashed piece. Raises
    RuntimeError if the build fails, or if another command is building the image.
    """
    key, started = plan.key, time.monotonic()
    origin, part, log = plan.definition, plan.part, plan.image.with_name(f"{plan.image.name}.log")
    plan.image.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        if not locks.take(output):
            raise RuntimeError(
                f"another command is building {plan.image}; wait until that build has ended, or "
                f"see {log}"
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
            )
            part.replace(plan.image)
            write_record(plan.image, record)
        finally:
            part.unlink(missing_ok=True)
    return record
