"""Fetching a data set's archives: broken downloads continue, and a checksum verifies the result.

This needs no torch, so that a login node can fetch data for nodes without internet.
"""

import contextlib
import hashlib
import http.client
import math
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from lockstep.core import locks

LOCK_NAME = ".lockstep.lock"
PART = ".part"
ATTEMPTS = 5
TIMEOUT_S = 60.0
CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Archive:
    """One file of a data set; its path is below the data root, as torchvision has it."""

    path: str
    urls: tuple[str, ...]
    md5: str


# URLs and checksums as in torchvision.datasets.
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
SOURCES = {
    "mnist": tuple(
        Archive(f"MNIST/raw/{name}", tuple(f"{mirror}{name}" for mirror in _MNIST), md5)
        for name, md5 in (
            ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
            ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
            ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
        )
    ),
    "cifar10": (
        Archive(
            "cifar-10-python.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
            "c58f30108f718f92721af3b95e74349a",
        ),
    ),
}


def fetch(archives: tuple[Archive, ...], root: Path) -> list[Archive]:
    """Download missing archives under the folder's lock; return the downloaded ones."""
    with lock_folder(root):
        for archive in archives:
            _check(archive, root / archive.path)
        missing = [archive for archive in archives if not (root / archive.path).exists()]
        for archive in missing:
            path = root / archive.path
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + PART)
            why: Exception | None = None
            for url in archive.urls:
                try:
                    _download(url, part)
                    break
                except (OSError, http.client.HTTPException) as error:
                    why = error
            else:
                names = ", ".join(Path(needed.path).name for needed in archives)
                raise RuntimeError(
                    f"the data set is not in {root}, and its download failed ({archive.urls[-1]}: "
                    f"{why}); run the same command again to continue the download, or put {names} "
                    f"into {path.parent}"
                ) from why
            try:
                _check(archive, part)
            except RuntimeError:
                part.unlink()  # else the next attempt would append to the broken part
                raise
            part.replace(path)
        return missing


def _check(archive: Archive, path: Path) -> None:
    """Refuse an existing file with another checksum than its archive's."""
    if not path.exists():
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if digest != archive.md5:
        raise RuntimeError(
            f"{Path(archive.path).name} has the MD5 checksum {digest} instead of {archive.md5}, "
            "so the file is incomplete or was altered; remove the file and download it again"
        )


def _download(url: str, part: Path) -> None:
    """Download a file; after a broken connection go on, as long as each attempt adds bytes."""
    for attempt in range(ATTEMPTS):
        before = _size(part)
        try:
            _download_rest(url, part, before)
            return
        except (OSError, http.client.HTTPException):
            if attempt == ATTEMPTS - 1 or _size(part) <= before:
                raise


def _download_rest(url: str, part: Path, done_bytes: int) -> None:
    """Request the missing part of a file, and append it; raise OSError if the connection fails."""
    ranged = {"Range": f"bytes={done_bytes}-"} if done_bytes else {}
    request = urllib.request.Request(url, headers=ranged)  # noqa: S310, our own addresses
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        if done_bytes and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # the file is complete; its checksum is checked next
        raise
    with answer:
        is_rest = answer.status == HTTPStatus.PARTIAL_CONTENT
        wanted = answer.headers.get("Content-Length")
        num_bytes = 0
        with part.open("ab" if is_rest else "wb") as file:
            while chunk := answer.read(CHUNK_BYTES):
                file.write(chunk)
                num_bytes += len(chunk)
    if wanted is not None and num_bytes < int(wanted):
        raise ConnectionError(f"the connection broke after {num_bytes} of {wanted} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextlib.contextmanager
def lock_folder(root: Path) -> Iterator[None]:
    """Hold the lock of a shared folder: one process on all hosts has it at a time."""
    with contextlib.ExitStack() as stack:
        try:
            root.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((root / LOCK_NAME).open("a", encoding="utf-8"))
        except OSError as error:
            raise RuntimeError(
                f"the folder {root} cannot be written ({error.strerror}); choose another "
                "--data-root, or put the data set into this folder beforehand"
            ) from error
        try:
            locks.take(lock, math.inf)
        except locks.NoLocksError as error:
            raise RuntimeError(str(error)) from error
        yield
