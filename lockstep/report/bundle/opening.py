"""Opening a bundle, which comes from strangers: bounded, and nothing outside its folder.

Only files and folders of plain relative names are taken, up to a number and a size in all; links,
devices and sparse files are refused, and so is every file whose checksum is not the one listed.

One tar.gz with checksums: the same files give the same bytes.
"""

import functools
import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any, TypeVar

from lockstep.core.formats import one_line

SUMS = "SHA256SUMS"
BLOCK = 2**20
# Of a file in an archive: what it holds, or where that lies.
Source = bytes | Path


def digest(source: Source) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sums(files: Mapping[str, Source]) -> bytes:
    """Return the checksums of files, as `sha256sum --check` reads them."""
    lines = (f"{digest(files[name])}  {name}\n" for name in sorted(files))
    return "".join(lines).encode("utf-8", "surrogateescape")


def write_archive(path: Path, name: str, files: Mapping[str, Source]) -> int:
    """Write files, by their paths in a folder, and their checksums; return the archive's size."""
    held: dict[str, Source] = {**files, SUMS: sums(files)}
    part = path.with_name(f".{path.name}.part")
    try:
        # Neither a name nor a time of writing, which would differ from one writing to the next.
        with (
            part.open("wb") as file,
            gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for inside in sorted(held):
                _add(tar, f"{name}/{inside}", held[inside])
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path.stat().st_size


def _add(tar: tarfile.TarFile, name: str, source: Source) -> None:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    if isinstance(source, bytes):
        info.size = len(source)
        tar.addfile(info, io.BytesIO(source))
        return
    with source.open("rb") as file:
        info.size = source.stat().st_size
        tar.addfile(info, file)


ENDINGS = (".tar.gz", ".tgz")
MAX_FILES = 100_000
MAX_BYTES = 4 * 2**30
MAX_NAME = 400
# Between the contents of two files; a header may claim any length, and tarfile reads all of it.
MAX_HEADER = 2**16
# tarfile reads so much ahead.
AHEAD = 20 * tarfile.BLOCKSIZE
# Where a bundle has the results, and what a page of it is called.
DATA = "data"
PAGE = "report.html"

Command = TypeVar("Command", bound=Callable[..., Any])


def is_bundle(path: Path) -> bool:
    """Return whether a path names an archive."""
    return path.name.endswith(ENDINGS) and path.is_file()


def of_bundles(name: str | None = None) -> Callable[[Command], Command]:
    """Let a command take a bundle wherever it takes results.

    The command then runs in a folder where each bundle lies opened; whatever else is named lies
    where it was. A page or a pack goes beside the archive.

    Args:
        name: What a lone bundle's results are called there; by default as the archive. A page that
            is made of `DATA` is the one inside, byte for byte.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def opened_first(*args: Any, **given: Any) -> Any:
            archives = list(dict.fromkeys(filter(is_bundle, _paths(given))))
            if not archives:
                return command(*args, **given)
            here = Path.cwd()
            with _placed(archives, name) as links:
                there = {key: _moved(key, value, here, links) for key, value in given.items()}
                return command(*args, **there | _beside(given, here / archives[0]))

        return opened_first  # type: ignore[return-value]

    return decorate


@contextmanager
def _placed(archives: Sequence[Path], name: str | None) -> Iterator[dict[Path, Path]]:
    """Go to a folder in which each bundle's results have a link, and yield the links."""
    links = {}
    with TemporaryDirectory(prefix="lockstep-bundles-") as place, ExitStack() as stack:
        for number, archive in enumerate(archives):
            folder = stack.enter_context(opened(archive))
            lone = name if len(archives) == 1 else None
            # Two archives of one name lie apart.
            links[archive] = Path(str(number) if number else "", lone or archive.name)
            link = Path(place, links[archive])
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(folder / DATA)
        stack.enter_context(chdir(place))
        yield links


def _paths(given: Mapping[str, Any]) -> Iterator[Path]:
    for value in given.values():
        yield from (one for one in (value if isinstance(value, tuple) else (value,))
                    if isinstance(one, Path))  # fmt: skip


def _moved(key: str, value: Any, here: Path, links: Mapping[Path, Path]) -> Any:
    """Return what an argument is called in another folder; a bundle has a link there."""
    if isinstance(value, tuple):
        return tuple(_moved(key, one, here, links) for one in value)
    if isinstance(value, Path):
        return links.get(value, here / value)
    # Options that take a built-in name, or a file.
    is_file = key in ("work", "targets") and str(value).endswith(".toml")
    return str(here / value) if is_file else value


def _beside(given: Mapping[str, Any], archive: Path) -> dict[str, Path]:
    """Return where a page and a pack go by default."""
    found = {}
    if "output" in given and given["output"] is None:
        found["output"] = archive.with_name(PAGE)
    if given.get("proposal") and given["to"] is None:
        stem = archive.name.partition(".")[0]
        found["to"] = archive.with_name(f"{stem}-{given['proposal']}")
    return found


@contextmanager
def opened(archive: Path) -> Iterator[Path]:
    """Unpack an archive for as long as the block takes, and yield its folder.

    Raises:
        ValueError: It is no bundle, holds what no bundle has, or is damaged.
    """
    with TemporaryDirectory(prefix="lockstep-bundle-") as name:
        folder = Path(name)
        try:
            top = _unpack(archive, folder)
        except (tarfile.TarError, EOFError, RecursionError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{archive}: no bundle, or cut short: {one_line(str(error))}"
            ) from None
        _verify(archive, folder / top)
        yield folder / top


class _Bounded:
    """A stream that ends with an error where a header is longer than any bundle has."""

    def __init__(self, stream: gzip.GzipFile, archive: Path) -> None:
        self.left = MAX_HEADER + AHEAD
        self._stream, self._archive = stream, archive

    def read(self, size: int) -> bytes:
        """Return up to so many bytes.

        Raises:
            ValueError: More than `left` were read.
        """
        block = self._stream.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise ValueError(f"{self._archive}: a header longer than {MAX_HEADER} bytes")
        return block


def _unpack(archive: Path, folder: Path) -> str:
    """Unpack what is allowed and return the one folder that all of it is in."""
    tops, count, total = set[str](), 0, 0
    with (
        gzip.open(archive) as packed,
        tarfile.open(
            fileobj=(bounded := _Bounded(packed, archive)),
            mode="r|",  # type: ignore[call-overload]
        ) as tar,
    ):
        for member in tar:
            bounded.left = member.size + MAX_HEADER + AHEAD
            count, total = count + 1, total + member.size
            if count > MAX_FILES or total > MAX_BYTES:
                raise ValueError(
                    f"{archive}: more than {MAX_FILES} files or {MAX_BYTES // 2**30} GiB; unpack "
                    "it yourself, if you trust it"
                )
            parts = _parts(archive, member)
            tops.add(parts[0])
            if len(tops) > 1:
                raise ValueError(f"{archive}: no bundle: its files are not in one folder")
            if member.isreg():
                _copy(tar.extractfile(member), folder.joinpath(*parts))
    if not tops or not (folder / min(tops) / SUMS).is_file():
        raise ValueError(f"{archive}: no bundle: it holds no {SUMS}; lockstep bundle makes one")
    return tops.pop()


def _parts(archive: Path, member: tarfile.TarInfo) -> tuple[str, ...]:
    """Return the parts of a member's name, or refuse it."""
    parts = PurePosixPath(member.name).parts
    plain = member.isreg() or member.isdir()
    strange = not parts or member.name.startswith("/") or ".." in parts or "\0" in member.name
    if not plain or member.issparse() or strange or len(member.name) > MAX_NAME:
        shown = one_line(member.name[:80])
        raise ValueError(f"{archive}: {shown!r} is no file that a bundle may hold")
    return parts


def _copy(source: IO[bytes] | None, path: Path) -> None:
    assert source is not None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            while block := source.read(BLOCK):
                file.write(block)
    except OSError as error:
        if error.errno is None or isinstance(error, gzip.BadGzipFile):
            raise
        raise ValueError(f"{one_line(path.name)} of the bundle: {error.strerror}") from None


def _verify(archive: Path, folder: Path) -> None:
    """Refuse a bundle in which a file is missing, more, or not the one that was packed."""
    listed = {}
    for line in (folder / SUMS).read_text("utf-8", "surrogateescape").splitlines():
        known, _, name = line.partition("  ")
        listed[name] = known
    there = {
        os.fspath(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    } - {SUMS}  # fmt: skip
    if odd := sorted(there ^ listed.keys()):
        raise ValueError(f"{archive}: {one_line(odd[0][:80])!r} is missing, or not in {SUMS}")
    for name, known in listed.items():
        if digest(folder / name) != known:
            raise ValueError(f"{archive}: {one_line(name[:80])!r} is not the file that was packed")
