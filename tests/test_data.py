"""Data sets: shapes, augmentation, and one download per shared folder whatever the ranks do."""

import gzip
import hashlib
import pickle
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import commands
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchvision import datasets

from lockstep import workloads
from lockstep.measure.loading import data, download, sample
from lockstep.measure.loading.data import MemmapImages
from lockstep.trainer.training_cli import make

# Port 9 is the discard service: nobody listens there.
NOWHERE = "http://127.0.0.1:9/"


def idx(array: np.ndarray) -> bytes:
    """Return the array in MNIST's file format, compressed."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


class CountingHandler(SimpleHTTPRequestHandler):
    asked: ClassVar[list[object]] = []

    def log_message(self, *args: object) -> None:
        """Keep requests out of the test's output."""
        self.asked.append(args)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a tiny MNIST: 12 training and 4 test images."""
    folder = tmp_path_factory.mktemp("mirror")
    for split, num in (("train", 12), ("t10k", 4)):
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(idx(np.ones((num, 28, 28))))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(idx(np.arange(num) % 10))
    return folder


@pytest.fixture(scope="module")
def mirror(files):
    """The address of a server of those files."""
    handler = partial(CountingHandler, directory=files)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def checksums(files):
    """Return (file, MD5) of all files."""
    return [
        [file.name, hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()]
        for file in sorted(files.iterdir())
    ]


def files_below(root):
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_wrong_checksum_and_no_network_leave_what_is_right(
    tmp_path, monkeypatch, files, mirror, is_reached
):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    root, address = tmp_path / "data", mirror if is_reached else NOWHERE
    sums = checksums(files)
    if is_reached:
        sums[2][1] = "0" * 32
    archives = tuple(
        download.Archive(f"MNIST/raw/{name}", (address + name,), md5) for name, md5 in sums
    )
    with pytest.raises(RuntimeError) as refused:
        download.fetch(archives, root)
    said = str(refused.value)
    if is_reached:
        assert said.startswith("train-images-idx3-ubyte.gz has the MD5 checksum ")
        assert "instead of 00000000000000000000000000000000" in said
    else:
        assert said.startswith(f"the data set is not in {root}, and its download failed")
        assert said.endswith(f"into {root}/MNIST/raw")
        assert "train-images-idx3-ubyte.gz" in said
    right = {f"MNIST/raw/{name}" for name, _ in sums[: 2 * is_reached]}
    assert files_below(root) == right | {download.LOCK_NAME}


def archives_of(sums, address):
    return tuple(
        download.Archive(f"MNIST/raw/{name}", (address + name,), md5) for name, md5 in sums
    )


def test_one_of_three_that_ask_at_once_downloads_and_all_find_it_complete(
    tmp_path, monkeypatch, files, mirror
):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sums = checksums(files)
    monkeypatch.setitem(download.SOURCES, "mnist", archives_of(sums, mirror))
    monkeypatch.setattr(datasets.MNIST, "resources", [tuple(pair) for pair in sums])
    CountingHandler.asked.clear()
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: data.torchvision_arrays("mnist", tmp_path), range(3)))
    for train, validation in answers:
        assert (train[0].shape, train[1].tolist()) == ((12, 1, 28, 28), [*range(10), 0, 1])
        assert validation[0].shape == (4, 1, 28, 28)
    assert len(CountingHandler.asked) == len(sums)
    raw = {f"MNIST/raw/{name}" for name, _ in sums}
    unpacked = {name.removesuffix(".gz") for name in raw}
    assert files_below(tmp_path) == raw | unpacked | {download.LOCK_NAME}


def test_without_a_network_what_is_needed_is_named_with_its_place(tmp_path, files):
    root = tmp_path / "data"
    with pytest.raises(RuntimeError) as refused:
        download.fetch(archives_of(checksums(files), NOWHERE), root)
    said = str(refused.value)
    assert said.startswith(f"the data set is not in {root}, and its download failed")
    assert said.endswith(f"into {root}/MNIST/raw")
    assert "train-images-idx3-ubyte.gz" in said
    assert files_below(root) == {download.LOCK_NAME}


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
def test_a_broken_download_continues_and_its_checksum_is_verified(tmp_path, monkeypatch, is_right):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    BreakingHandler.asked.clear()
    md5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest() if is_right else "0" * 32
    with ThreadingHTTPServer(("127.0.0.1", 0), BreakingHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/a.gz"
        archives = (download.Archive("set/a.gz", (url,), md5),)
        with pytest.raises(
            RuntimeError, match=r"broke after 512000 of 1024000 bytes.* to continue"
        ):
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


def test_the_small_data_set_is_read_as_cifar10_is_and_has_the_checksum_that_is_printed(tmp_path):
    made = commands.run(make, "--to", tmp_path)
    assert made.output.endswith(f"100 images, SHA-256 {sample.SHA256}\n")
    train, validation = data.torchvision_arrays(sample.NAME, tmp_path)
    assert (train[0].shape, validation[0].shape) == ((80, 3, 32, 32), (20, 3, 32, 32))
    assert train[0].dtype == np.uint8
    assert np.bincount(train[1]).tolist() == [8] * 10
    batch = tmp_path / sample.FOLDER / "test_batch"
    altered = pickle.loads(batch.read_bytes()) | {"labels": [0] * 20}  # noqa: S301, our own
    batch.write_bytes(pickle.dumps(altered))
    with pytest.raises(RuntimeError, match=r"has the SHA-256 checksum .*its files were altered"):
        data.torchvision_arrays(sample.NAME, tmp_path)


def test_a_dead_or_failed_process_leaves_nothing_that_matters(tmp_path):
    (tmp_path / download.LOCK_NAME).touch()
    (leftover := tmp_path / f"{data.STAGING_PREFIX}dead").mkdir()
    (leftover / "images.npy").write_bytes(b"half")
    with pytest.raises(KeyError), download.lock_folder(tmp_path), data.staging(tmp_path) as stage:
        (stage / "half").write_bytes(b"half")
        raise KeyError
    assert files_below(tmp_path) == {download.LOCK_NAME}
    data.write_memmap(tmp_path, 4, (1, 2, 2))
    assert files_below(tmp_path) == {"images.npy", "labels.npy", download.LOCK_NAME}


def test_mapped_images_are_the_generated_ones_and_reach_workers_as_a_path(tmp_path):
    folder = data.write_memmap(tmp_path / "images", 300, (3, 16, 16))
    mapped = MemmapImages(folder, augment=True)
    assert len(mapped) == 300
    assert isinstance(mapped.images, np.memmap)
    images, labels = data.generate_images(256, (3, 16, 16))
    assert np.array_equal(mapped.images[:256], images)
    assert np.array_equal(mapped.labels[:256], labels)
    assert [mapped[index][1] for index in (0, 9, 10, 299)] == [0, 9, 0, 9]
    sent = pickle.dumps(mapped)
    assert len(sent) < 1000
    received = pickle.loads(sent)  # noqa: S301 - our own bytes
    assert received.augment
    assert np.array_equal(received.images, mapped.images)
    assert data.write_memmap(folder, 300, (3, 16, 16)) == folder
    with pytest.raises(ValueError, match=r"holds images of shape \(300, 3, 16, 16\)"):
        data.write_memmap(folder, 5, (3, 16, 16))


@given(st.integers(0, 2**32), st.integers(4, 40))
def test_augmenting_moves_pixels_and_invents_none(seed, side):
    torch.manual_seed(seed)
    image = torch.arange(1, side * side + 1, dtype=torch.int32).reshape(1, side, side)
    result = data.crop_and_mirror(image)
    assert result.shape == image.shape
    kept = result[result > 0]
    assert len(kept.unique()) == len(kept)
    assert len(kept) >= (side - max(1, side // 8)) ** 2


def test_digits_are_split_the_same_way_each_time():
    workload = workloads.make("mlp:width=64")
    splits = data.load("digits", Path("unused"), workload, augment=False, num_synthetic=0)
    assert len(splits.train) == 1440
    assert len(splits.validation) == 357
    again = data.load("digits", Path("unused"), workload, augment=False, num_synthetic=0)
    assert torch.equal(splits.train[3][0], again.train[3][0])
    inputs, labels = next(iter(DataLoader(splits.train, batch_size=1440)))
    assert inputs.shape == (1440, 64)
    assert (inputs.min(), labels.bincount().min() > 100) == (-1, True)
