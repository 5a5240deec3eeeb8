"""One tar.gz with checksums: the same files give the same bytes."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

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


def write(path: Path, name: str, files: Mapping[str, Source]) -> int:
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
