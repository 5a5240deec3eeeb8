"""Opening a bundle, which comes from strangers: bounded, and nothing outside its folder.

Only files and folders of plain relative names are taken, up to a number and a size in all; links,
devices and sparse files are refused, and so is every file whose checksum is not the one listed.
"""

import functools
import gzip
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any, TypeVar

from lockstep.report.bundle.archive import BLOCK, SUMS, digest
from lockstep.vocabulary.text.printable import one_line

ENDINGS = (".tar.gz", ".tgz")
MAX_FILES = 100_000
MAX_BYTES = 4 * 2**30
MAX_NAME = 400
# Where a bundle has the results, and what a page of it is called.
DATA = "data"
PAGE = "report.html"

Command = TypeVar("Command", bound=Callable[..., Any])


def is_bundle(path: Path) -> bool:
    """Return whether a path names an archive."""
    return path.name.endswith(ENDINGS) and path.is_file()


def of_bundles(command: Command) -> Command:
    """Let a command of paths take a bundle in place of the results in it.

    The command then runs in the opened bundle's folder, so that its page is the one inside, byte
    for byte; what it writes goes beside the archive.
    """

    @functools.wraps(command)
    def opened_first(paths: tuple[Path, ...], **others: Any) -> Any:
        if not any(map(is_bundle, paths)):
            return command(paths=paths, **others)
        if len(paths) > 1:
            raise ValueError("a bundle is read alone; unpack it to report it beside others")
        here, archive = Path.cwd(), paths[0].resolve()
        with opened(archive) as folder, chdir(folder):
            stem, programme = archive.name.partition(".")[0], others.get("proposal")
            beside = {"output": PAGE, "to": f"{stem}-{programme}" if programme else None}
            others |= _own_work(here, others.get("work"))
            for name, default in beside.items():
                if others.get(name) is not None:
                    others[name] = here / others[name]
                elif default is not None:
                    others[name] = archive.with_name(default)
            return command(paths=(Path(DATA),), **others)

    return opened_first  # type: ignore[return-value]


def _own_work(here: Path, work: str | None) -> dict[str, str]:
    """Return the caller's file of planned runs as it is named from elsewhere."""
    from lockstep.report.pack import planned_runs

    return {"work": str(here / work)} if work and work not in planned_runs.BUILT_IN else {}


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
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{archive}: no bundle, or cut short: {one_line(str(error))}"
            ) from None
        _verify(archive, folder / top)
        yield folder / top


def _unpack(archive: Path, folder: Path) -> str:
    """Unpack what is allowed and return the one folder that all of it is in."""
    tops, count, total = set[str](), 0, 0
    with tarfile.open(archive, mode="r|gz") as tar:
        for member in tar:
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
