"""The archive of a bundle: one tar.gz with checksums. The same files give the same bytes.

A bundle from strangers is unpacked by tarfile's `data` filter, up to a number and size of files.
"""

import functools
import gzip
import hashlib
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
# Folder of the results in a bundle, and its page.
DATA = "data"
PAGE = "report.html"
ENDINGS = (".tar.gz", ".tgz")
MAX_FILES = 100_000
MAX_BYTES = 4 * 2**30
Command = TypeVar("Command", bound=Callable[..., Any])


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sums(files: Mapping[str, Path]) -> bytes:
    """Return the checksums of files, as `sha256sum --check` reads them."""
    lines = (f"{digest(files[name])}  {name}\n" for name in sorted(files))
    return "".join(lines).encode("utf-8", "surrogateescape")


def write_archive(path: Path, name: str, files: Mapping[str, Path]) -> int:
    """Write files by their paths in the archive, and return its size."""
    part = path.with_name(f".{path.name}.part")
    try:
        with (  # without a name and a time, which would change the bytes
            part.open("wb") as file,
            gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for inside, source in sorted(files.items()):
                info = tarfile.TarInfo(f"{name}/{inside}")
                info.mode = 0o644
                info.size = source.stat().st_size
                with source.open("rb") as content:
                    tar.addfile(info, content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path.stat().st_size


def accept_bundles(name: str | None = None) -> Callable[[Command], Command]:
    """Let a command take a bundle wherever it takes results.

    The command runs in a folder with the opened bundles; other paths are made absolute. A page or a
    pack is written beside the archive. A single bundle's results are called `name` there, by
    default as the archive; with `DATA` a page has the same bytes as that in the bundle.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def opened_first(*args: Any, **options: Any) -> Any:
            values = (v if isinstance(v, tuple) else (v,) for v in options.values())
            paths = dict.fromkeys(v for each in values for v in each if isinstance(v, Path))
            archives = [path for path in paths if path.name.endswith(ENDINGS) and path.is_file()]
            if not archives:
                return command(*args, **options)
            here, links = Path.cwd(), dict[Path, Path]()

            def moved(key: str, value: Any) -> Any:
                if isinstance(value, tuple):
                    return tuple(moved(key, each) for each in value)
                if isinstance(value, Path):
                    return links.get(value, here / value)
                # These options take a built-in name or a file.
                is_file = key in ("work", "targets") and str(value).endswith(".toml")
                return str(here / value) if is_file else value

            with TemporaryDirectory(prefix="lockstep-bundles-") as place, ExitStack() as stack:
                for number, archive in enumerate(archives):
                    folder = stack.enter_context(open_archive(archive))
                    lone = name if len(archives) == 1 else None
                    # Two archives may have one name.
                    links[archive] = Path(str(number) if number else "", lone or archive.name)
                    link = Path(place, links[archive])
                    link.parent.mkdir(exist_ok=True)
                    link.symlink_to(folder / DATA)
                stack.enter_context(chdir(place))
                there = {key: moved(key, value) for key, value in options.items()}
                first = here / archives[0]
                if "output" in options and options["output"] is None:
                    there["output"] = first.with_name(PAGE)
                if options.get("proposal") and options["to"] is None:
                    stem = first.name.partition(".")[0]
                    there["to"] = first.with_name(f"{stem}-{options['proposal']}")
                return command(*args, **there)

        return opened_first  # type: ignore[return-value]

    return decorate


@contextmanager
def open_archive(archive: Path) -> Iterator[Path]:
    """Unpack an archive into a temporary folder, and yield that; ValueError if it is no bundle."""
    with TemporaryDirectory(prefix="lockstep-bundle-") as name:
        try:
            _unpack(archive, Path(name))
        except (tarfile.TarError, EOFError, RecursionError, OSError, zlib.error) as error:
            reason = one_line(str(error))[:200]
            raise ValueError(
                f"{archive}: this archive is not a bundle, or it is truncated: {reason}"
            ) from None
        tops = list(Path(name).iterdir())
        if len(tops) != 1 or not (tops[0] / SUMS).is_file():
            raise ValueError(
                f"{archive}: this archive is not a bundle, because it has no single folder with a "
                f"file {SUMS}; make a bundle with lockstep bundle FOLDER"
            )
        folder = tops[0]
        lines = (folder / SUMS).read_text("utf-8", "surrogateescape").splitlines()
        sums = {line.partition("  ")[2]: line.partition("  ")[0] for line in lines}
        there = {
            os.fspath(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
        } - {SUMS}  # fmt: skip
        if odd := sorted(there ^ sums.keys()):
            file = one_line(odd[0][:80])
            raise ValueError(
                f"{archive}: file {file!r} is missing, or {SUMS} does not list it; make the bundle "
                "again"
            )
        for file, known in sums.items():
            if digest(folder / file) != known:
                file = one_line(file[:80])
                raise ValueError(
                    f"{archive}: file {file!r} was changed or damaged after it was packed; copy "
                    "the archive again"
                )
        yield folder


def _unpack(archive: Path, folder: Path) -> None:
    names = set[str]()
    total = 0
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            total += member.size
            if len(names) >= MAX_FILES or total > MAX_BYTES:
                max_gib = MAX_BYTES // 2**30
                raise ValueError(
                    f"{archive}: the archive holds more than {MAX_FILES} files or {max_gib} GiB; "
                    "if you trust it, unpack it yourself with tar"
                )
            is_plain = (member.isreg() and not member.issparse()) or member.isdir()
            if not is_plain or member.name in names or member.name.startswith("/"):
                file = one_line(member.name[:80])
                raise ValueError(
                    f"{archive}: {file!r} is not a plain file, or its path is repeated or "
                    "absolute; make the bundle again"
                )
            names.add(member.name)
            tar.extract(member, folder, filter="data")
