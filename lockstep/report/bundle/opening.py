"""The archive of a bundle: one tar.gz with checksums. The same files give the same bytes.

It comes from strangers: only files and folders inside its own folder are unpacked, up to a number
and a size in all, and every file must have the checksum that is listed.
"""

import functools
import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from lockstep.core.formats import one_line

SUMS = "SHA256SUMS"
# Where a bundle has the results, and what a page of it is called.
DATA = "data"
PAGE = "report.html"
ENDINGS = (".tar.gz", ".tgz")
MAX_FILES = 100_000
MAX_BYTES = 4 * 2**30
# Of a file in an archive: what it holds, or where that lies.
Source = bytes | Path
Command = TypeVar("Command", bound=Callable[..., Any])


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
            for inside, source in sorted(held.items()):
                info = tarfile.TarInfo(f"{name}/{inside}")
                info.mode = 0o644
                if isinstance(source, bytes):
                    info.size = len(source)
                    tar.addfile(info, io.BytesIO(source))
                    continue
                info.size = source.stat().st_size
                with source.open("rb") as content:
                    tar.addfile(info, content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path.stat().st_size


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
            flat = [v for value in given.values() for v in (value if isinstance(value, tuple)
                    else (value,)) if isinstance(v, Path)]  # fmt: skip
            archives = [path for path in flat if path.name.endswith(ENDINGS) and path.is_file()]
            archives = list(dict.fromkeys(archives))
            if not archives:
                return command(*args, **given)
            here, links = Path.cwd(), dict[Path, Path]()

            def moved(key: str, value: Any) -> Any:
                if isinstance(value, tuple):
                    return tuple(moved(key, each) for each in value)
                if isinstance(value, Path):
                    return links.get(value, here / value)
                # Options that take a built-in name, or a file.
                is_file = key in ("work", "targets") and str(value).endswith(".toml")
                return str(here / value) if is_file else value

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
                there = {key: moved(key, value) for key, value in given.items()}
                first = here / archives[0]
                if "output" in given and given["output"] is None:
                    there["output"] = first.with_name(PAGE)
                if given.get("proposal") and given["to"] is None:
                    stem = first.name.partition(".")[0]
                    there["to"] = first.with_name(f"{stem}-{given['proposal']}")
                return command(*args, **there)

        return opened_first  # type: ignore[return-value]

    return decorate


@contextmanager
def opened(archive: Path) -> Iterator[Path]:
    """Unpack an archive for as long as the block takes, and yield its folder.

    Raises:
        ValueError: It is no bundle, holds what no bundle has, or is damaged.
    """
    with TemporaryDirectory(prefix="lockstep-bundle-") as name:
        try:
            _unpack(archive, Path(name))
        except (tarfile.TarError, EOFError, RecursionError, OSError, zlib.error) as error:
            text = one_line(str(error))[:200]
            raise ValueError(f"{archive}: not a bundle, or truncated: {text}") from None
        tops = list(Path(name).iterdir())
        if len(tops) != 1 or not (tops[0] / SUMS).is_file():
            raise ValueError(
                f"{archive}: not a bundle: its files are not in one folder with {SUMS}; make one "
                "with lockstep bundle"
            )
        _verify(archive, tops[0])
        yield tops[0]


def _unpack(archive: Path, folder: Path) -> None:
    names = set[str]()
    total = 0
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            total += member.size
            if len(names) >= MAX_FILES or total > MAX_BYTES:
                raise ValueError(
                    f"{archive}: more than {MAX_FILES} files or {MAX_BYTES // 2**30} GiB; if you "
                    "trust it, unpack it yourself"
                )
            is_plain = (member.isreg() and not member.issparse()) or member.isdir()
            if not is_plain or member.name in names or member.name.startswith("/"):
                shown = one_line(member.name[:80])
                raise ValueError(
                    f"{archive}: {shown!r} is not a kind of file that a bundle may hold"
                )
            names.add(member.name)
            tar.extract(member, folder, filter="data")


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
