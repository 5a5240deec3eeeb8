"""A definition file: which arguments an image is built with, its base, and what is copied into it.

spython reads the sections; the header and `%arguments` are read here, since spython knows Docker
bases only, lowers the case of their names and knows no arguments.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep import content

BUILT_IN = ("cpu", "pytorch")
COMMIT = "COMMIT"
# Bootstraps whose `From:` is a file or folder of this machine.
LOCAL = ("localimage", "docker-archive", "oci-archive", "oci")
CHUNK_BYTES = 1 << 22
# Written by hand, and so never larger.
LIMIT_BYTES = 1 << 20

# Names of secrets; a tokenizer is none.
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
        sources: What `%files` copies from this machine, as named there.
    """

    path: Path
    folder: Path
    arguments: Mapping[str, str]
    bootstrap: str
    base: str
    sources: tuple[str, ...]

    @property
    def takes_commit(self) -> bool:
        """Whether an argument names the commit that the image holds."""
        return COMMIT in self.arguments

    @property
    def local_base(self) -> Path | None:
        """The base where it is a file or folder of this machine."""
        return self.folder / self.base if self.bootstrap.lower() in LOCAL else None

    def copied(self) -> list[Path]:
        """Return the files and folders that `%files` copies.

        Raises:
            ValueError: One of them does not exist.
        """
        return [path for source in self.sources for path in self._expanded(source)]

    def _expanded(self, source: str) -> list[Path]:
        # The shell's patterns work in `%files`; an absolute name is taken as it is.
        path = self.folder / source
        root = Path(path.anchor)
        paths = [path] if path.exists() else sorted(root.glob(str(path.relative_to(root))))
        if not paths:
            raise ValueError(
                f"{self.path.name} copies {source}, which is not in {self.folder}; "
                "build where its files are, a checkout of Lockstep for the built-in definitions"
            )
        return paths


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
    path, folder = _find(name)
    if path.suffix == ".sif":
        raise ValueError(f"{name} is an image; the definition comes first, then the image")
    if path.stat().st_size > LIMIT_BYTES:
        raise ValueError(f"{name} is larger than {LIMIT_BYTES >> 20} MiB, and so no definition")
    raw = path.read_text(encoding="utf-8", errors="replace")
    arguments = _arguments(path, raw, given)
    text = PLACE.sub(lambda place: arguments[place[1]], raw)
    if len(STAGE.findall(text)) > 1:
        raise ValueError(
            f"{path.name} has more than one stage, whose bases would go unrecorded; "
            "build its first stage as an image, and use that by Bootstrap: localimage"
        )
    bootstrap = header(text, "bootstrap")
    if not bootstrap:
        raise ValueError(
            f"{path.name} does not say where its base comes from; begin it with a line such as "
            "Bootstrap: docker"
        )
    return Definition(
        path,
        folder,
        arguments,
        bootstrap,
        header(text, "from") or "",
        _sources(path, text),
    )


def _find(name: str) -> tuple[Path, Path]:
    if name in BUILT_IN:
        return content.ROOT / "containers" / f"{name}.def", content.ROOT
    path = Path(name).absolute()
    if not path.is_file():
        raise ValueError(
            f"there is no definition {name}; give a file or one of {', '.join(BUILT_IN)}"
        )
    return path, Path.cwd()


def _arguments(path: Path, raw: str, given: Mapping[str, str]) -> dict[str, str]:
    wanted = set(PLACE.findall(raw))
    lines = [line.strip().partition("=") for line in _section(raw, "arguments")]
    defaults = {name.strip(): value.strip() for name, _, value in lines}
    for name, value in given.items():
        if name not in wanted:
            raise ValueError(
                f"{path.name} has no build argument {name}; "
                f"it has {', '.join(sorted(wanted)) or 'none'}"
            )
        if SECRET.search(name):
            raise ValueError(
                f"the build argument {name} would stay readable in the image and its record; "
                "bind a file that holds it by --apptainer-options, "
                "or name the argument otherwise if it is no secret"
            )
        if "\n" in value:
            raise ValueError(f"the build argument {name} holds a newline; give it on one line")
    values = {**defaults, **given}
    for name in sorted(wanted - set(values)):
        raise ValueError(f"{path.name} needs a value of {name}; add --build-arg {name}=VALUE")
    return {name: value for name, value in values.items() if name in wanted}


def _section(text: str, name: str) -> list[str]:
    bodies = [body for heading, body in SECTION.findall(text) if heading.lower() == name]
    lines = [line for body in bodies for line in body.splitlines()]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def header(text: str, name: str) -> str | None:
    """Return what a definition's header says of `bootstrap` or `from`, or None."""
    line = re.search(rf"^\s*{name}:\s*([^#\n]*)", text, re.IGNORECASE | re.MULTILINE)
    return line[1].strip() if line else None


def _sources(path: Path, text: str) -> tuple[str, ...]:
    """Return what `%files` copies from this machine, as spython finds it.

    Raises:
        ValueError: spython cannot read the definition.
    """
    from spython.main.parse.parsers import get_parser

    parser = get_parser("singularity")(None, load=False)
    parser.lines = _for_spython(text)
    try:
        stages = parser.parse().values()
    except Exception as error:  # noqa: BLE001, it names no exceptions of its own
        raise ValueError(
            f"spython cannot read {path}: {error}; see Apptainer's page of definition files"
        ) from None
    copied = [line for stage in stages for line in stage.files]
    return tuple(shlex.split(line)[0] for line in copied)


def _for_spython(text: str) -> list[str]:
    """Return the `%files` sections, and a header that spython can read.

    A blank line comes first in a section, whose first line it would also read as a header's.
    """
    lines = ["Bootstrap: docker", "From: base"]
    for section in SECTION.finditer(text):
        if section[1].lower() == "files":
            heading, *body = section[0].strip().splitlines()
            lines += [heading, "", *(line for line in body if not line.lstrip().startswith("#"))]
    return lines


def key(definition: Definition, *others: str) -> str:
    """Return a digest of all that goes into an image: equal keys make like images.

    Args:
        definition: Its text, its arguments, its base and the files it copies are counted. The
            commit is not: the files are.
        others: What else counts.

    Raises:
        ValueError: The base, or a file to copy, does not exist.
    """
    arguments = {k: v for k, v in definition.arguments.items() if k != COMMIT}
    parts = [*others, sha256(definition.path), repr(sorted(arguments.items()))]
    parts += [f"{name} {digest}" for name, digest in _contents(definition)]
    parts.append(base_digest(definition) or "")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _contents(definition: Definition) -> Iterator[tuple[str, str]]:
    for top in definition.copied():
        for path in _files(top):
            yield os.path.relpath(path, definition.folder), sha256(path)


def _files(top: Path) -> list[Path]:
    """Return a folder's files without Python's caches, or the file itself."""
    if top.is_file():
        return [top]
    paths = (path for path in top.rglob("*") if "__pycache__" not in path.parts)
    return sorted(path for path in paths if path.is_file())


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
        raise ValueError(f"there is no base {base}; give a file or a folder, or another BOOTSTRAP")
    digest = hashlib.sha256()
    for path in sorted(base.rglob("*")):
        status = path.lstat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="replace"))
    return digest.hexdigest()


def sha256(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """Return a file's SHA-256 as sha256sum prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
            if advance:
                advance(len(piece))
    return digest.hexdigest()
