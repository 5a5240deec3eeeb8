"""Data sets: shapes, augmentation, and one download per shared folder whatever the ranks do."""

import errno
import fcntl
import gzip
import hashlib
import json
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchvision import datasets

from lockstep import workloads
from lockstep.measure.loading import data, download
from lockstep.measure.loading.data import ImageDataset, MemmapImages

# A process that fetches a tiny MNIST from a mirror, noting each file it downloads.
CHILD = """
import json, os, sys, time
from pathlib import Path
from typing import ClassVar
from torchvision import datasets
from lockstep.measure.loading import data, download

root, mirror, log, resources = sys.argv[1:5]
download.SOURCES["mnist"] = tuple(
    download.Archive(f"MNIST/raw/{name}", (mirror + name,), md5)
    for name, md5 in json.loads(resources)
)
datasets.MNIST.resources = [tuple(pair) for pair in json.loads(resources)]
fetch = datasets.mnist.download_and_extract_archive

def counted(*args, **kwargs):
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(0.1)
    fetch(*args, **kwargs)

datasets.mnist.download_and_extract_archive = counted
print("ready", flush=True)
sys.stdin.readline()
try:
    train, validation = data.torchvision_arrays("mnist", Path(root))
except RuntimeError as error:
    sys.exit(f"refused: {error}")
print(json.dumps([list(train[0].shape), train[1].tolist(), list(validation[0].shape)]))
"""


# Port 9 is the discard service: nobody listens there.
NOWHERE = "http://127.0.0.1:9/"


def idx(array: np.ndarray) -> bytes:
    """Return the array in MNIST's file format, compressed."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Keep requests out of the test's output."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny MNIST: 12 training and 4 test images."""
    folder = tmp_path_factory.mktemp("mirror")
    for split, num in (("train", 12), ("t10k", 4)):
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(idx(np.ones((num, 28, 28))))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(idx(np.arange(num) % 10))
    return folder


@pytest.fixture(scope="module")
def mirror(files: Path) -> Iterator[str]:
    """The address of a server of those files."""
    handler = partial(QuietHandler, directory=files)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def fetch(num_processes: int, root: Path, mirror: str, resources: list[list[str]]) -> list[str]:
    """Let processes fetch at the same moment; return each one's last words."""
    arguments = [str(root), mirror, f"{root}.log", json.dumps(resources)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "no_proxy": "127.0.0.1"},
        )
        for _ in range(num_processes)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        out, err = process.communicate(timeout=60)
        answers.append((out or err).splitlines()[-1])
    return answers


def checksums(files: Path) -> list[list[str]]:
    """Return (file, MD5) of all files."""
    return [
        [file.name, hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()]
        for file in sorted(files.iterdir())
    ]


def files_below(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


@pytest.mark.chaos
@pytest.mark.slow
def test_one_of_three_processes_downloads_and_all_find_it_complete(
    tmp_path: Path, files: Path, mirror: str
) -> None:
    root = tmp_path / "data"
    answers = fetch(3, root, mirror, checksums(files))
    expected = [[12, 1, 28, 28], [*range(10), 0, 1], [4, 1, 28, 28]]
    assert [json.loads(answer) for answer in answers] == [expected] * 3
    log = Path(f"{root}.log").read_text().split()
    assert len(log) == 4
    assert len(set(log)) == 1
    raw = {f"MNIST/raw/{file.name}" for file in files.iterdir()}
    unpacked = {name.removesuffix(".gz") for name in raw}
    assert files_below(root) == raw | unpacked | {data.LOCK_NAME}


@pytest.mark.slow
def test_a_wrong_checksum_is_refused_and_leaves_what_is_right(
    tmp_path: Path, files: Path, mirror: str
) -> None:
    root = tmp_path / "data"
    resources = checksums(files)
    resources[2][1] = "0" * 32
    (answer,) = fetch(1, root, mirror, resources)
    assert answer.startswith("refused: train-images-idx3-ubyte.gz has the MD5 checksum ")
    assert "instead of 00000000000000000000000000000000" in answer
    right = {f"MNIST/raw/{name}" for name, _ in resources[:2]}
    assert files_below(root) == right | {data.LOCK_NAME}


@pytest.mark.slow
def test_without_network_one_sentence_says_what_to_put_where(
    tmp_path: Path, files: Path, mirror: str
) -> None:
    root = tmp_path / "data"
    (answer,) = fetch(1, root, NOWHERE, checksums(files))
    assert answer.startswith(f"refused: the data set is not in {root} and cannot be downloaded")
    assert answer.endswith(f"into {root}/MNIST/raw")
    assert "train-images-idx3-ubyte.gz" in answer
    assert files_below(root) == {data.LOCK_NAME}


@pytest.mark.chaos
@pytest.mark.slow
def test_archives_put_there_by_hand_need_no_network(
    tmp_path: Path, files: Path, mirror: str
) -> None:
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for file in files.iterdir():
        (raw / file.name).write_bytes(file.read_bytes())
    (answer,) = fetch(1, tmp_path / "data", NOWHERE, checksums(files))
    assert json.loads(answer)[0] == [12, 1, 28, 28]
    (raw / "t10k-labels-idx1-ubyte").unlink()
    (raw / "t10k-labels-idx1-ubyte.gz").write_bytes(b"altered")
    (answer,) = fetch(1, tmp_path / "data", mirror, checksums(files))
    assert answer.startswith("refused: t10k-labels-idx1-ubyte.gz has the MD5 checksum ")
    assert (raw / "t10k-labels-idx1-ubyte.gz").read_bytes() == b"altered"


CONTENT = bytes(range(256)) * 4000


class BreakingHandler(BaseHTTPRequestHandler):
    """Serves a file, and breaks off half-way where it is asked for from its beginning."""

    asked: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        first = int(self.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
        self.asked.append(first)
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(CONTENT) - first))
        self.end_headers()
        self.wfile.write(CONTENT[first:] if first else CONTENT[: len(CONTENT) // 2])

    def log_message(self, *args: object) -> None:
        """Keep requests out of the test's output."""


@pytest.mark.parametrize("is_right", [True, False])
def test_a_broken_download_goes_on_and_its_checksum_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_right: bool
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    BreakingHandler.asked.clear()
    md5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest() if is_right else "0" * 32
    with ThreadingHTTPServer(("127.0.0.1", 0), BreakingHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/a.gz"
        archives = (download.Archive("set/a.gz", (url,), md5),)
        with pytest.raises(RuntimeError, match=r"broke after 512000 of 1024000 bytes.* goes on"):
            download.fetch(archives, tmp_path)
        if is_right:
            assert download.fetch(archives, tmp_path) == list(archives)
            assert (tmp_path / "set" / "a.gz").read_bytes() == CONTENT
            assert download.fetch(archives, tmp_path) == []
        else:
            with pytest.raises(RuntimeError, match="instead of 0000"):
                download.fetch(archives, tmp_path)
        server.shutdown()
    assert BreakingHandler.asked == [0, 512000]
    assert list(tmp_path.rglob("*.part")) == []


def test_archives_are_those_that_torchvision_looks_for() -> None:
    (cifar,), mnist = download.SOURCES["cifar10"], download.SOURCES["mnist"]
    assert (cifar.path, cifar.md5) == (datasets.CIFAR10.filename, datasets.CIFAR10.tgz_md5)
    assert [(Path(one.path).name, one.md5) for one in mnist] == datasets.MNIST.resources


def test_a_dead_process_leaves_a_lock_and_a_stage_that_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / data.LOCK_NAME).touch()
    leftover = tmp_path / f"{data.STAGING_PREFIX}dead"
    leftover.mkdir()
    (leftover / "images.npy").write_bytes(b"half")
    data.write_memmap(tmp_path, 4, (1, 2, 2))
    assert files_below(tmp_path) == {"images.npy", "labels.npy", data.LOCK_NAME}


def test_a_failed_stage_installs_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), data.locked(tmp_path), data.staging(tmp_path) as stage:
        (stage / "half").write_bytes(b"half")
        raise KeyError
    assert files_below(tmp_path) == {data.LOCK_NAME}


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RuntimeError, match="without locks"):
        data.write_memmap(tmp_path, 4)


def test_mapped_images_are_the_generated_ones(tmp_path: Path) -> None:
    folder = data.write_memmap(tmp_path / "images", 300, (3, 4, 4))
    mapped = MemmapImages(folder)
    assert len(mapped) == 300
    assert isinstance(mapped.images, np.memmap)
    images, labels = data.generated(256, (3, 4, 4))
    assert np.array_equal(mapped.images[:256], images)
    assert np.array_equal(mapped.labels[:256], labels)
    assert [mapped[index][1] for index in (0, 9, 10, 299)] == [0, 9, 0, 9]


def test_mapped_images_travel_to_workers_as_a_path(tmp_path: Path) -> None:
    mapped = MemmapImages(data.write_memmap(tmp_path, 500, (3, 16, 16)), augment=True)
    sent = pickle.dumps(mapped)
    assert len(sent) < 1000
    received = pickle.loads(sent)  # noqa: S301 - our own bytes
    assert received.augment
    assert np.array_equal(received.images, mapped.images)


def test_another_shape_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    data.write_memmap(tmp_path, 4, (1, 2, 2))
    assert data.write_memmap(tmp_path, 4, (1, 2, 2)) == tmp_path
    with pytest.raises(ValueError, match=r"holds images of shape \(4, 1, 2, 2\)"):
        data.write_memmap(tmp_path, 5, (1, 2, 2))


@pytest.mark.parametrize("shape", [(1, 4, 4), (16,), (3, 4, 4)])
def test_grey_images_fit_flat_and_coloured_models(shape: tuple[int, ...]) -> None:
    images, labels = data.generated(2, (1, 4, 4))
    item = ImageDataset(images, labels, shape)[0][0]
    assert tuple(item.shape) == shape
    plane = torch.from_numpy(images[0, 0]) / 127.5 - 1
    assert torch.equal(item.reshape(-1, 4, 4)[-1], plane)


@given(st.integers(0, 2**32), st.integers(4, 40))
def test_augmenting_moves_pixels_and_invents_none(seed: int, side: int) -> None:
    torch.manual_seed(seed)
    image = torch.arange(1, side * side + 1, dtype=torch.int32).reshape(1, side, side)
    result = data.augmented(image)
    assert result.shape == image.shape
    kept = result[result > 0]
    assert len(kept.unique()) == len(kept)
    assert len(kept) >= (side - max(1, side // 8)) ** 2


def test_digits_are_split_the_same_way_each_time() -> None:
    workload = workloads.make("mlp:width=64")
    splits = data.load("digits", Path("unused"), workload, augment=False, num_synthetic=0)
    assert len(splits.train) == 1440  # type: ignore[arg-type]
    assert len(splits.validation) == 357  # type: ignore[arg-type]
    again = data.load("digits", Path("unused"), workload, augment=False, num_synthetic=0)
    assert torch.equal(splits.train[3][0], again.train[3][0])
    inputs, labels = next(iter(DataLoader(splits.train, batch_size=1440)))
    assert inputs.shape == (1440, 64)
    assert (inputs.min(), labels.bincount().min() > 100) == (-1, True)


def test_synthetic_data_has_the_form_of_any_workload() -> None:
    splits = data.load("synthetic", Path("unused"), workloads.make("gpt:seq=6"), False, 8)
    assert len(splits.train) == 8  # type: ignore[arg-type]
    assert len(splits.validation) == 2  # type: ignore[arg-type]
    assert splits.train[0][0].shape == (6,)
