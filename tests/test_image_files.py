"""Images in files: a cold read comes from below the page cache, a warm one does not."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import finish
from launched import environ

from lockstep.core.record import KEY
from lockstep.machine import network
from lockstep.measure.loading import data, loader_cases
from lockstep.measure.loading.loader_cases import IN_MEMORY, SHAPE, ImageFiles

ROOT = Path(__file__).parents[1]
NUM_IMAGES = 32
IO = Path("/proc/self/io")


def fetched_bytes() -> int:
    """Return what this process had fetched from storage so far, see proc_pid_io(5)."""
    return int(IO.read_text().partition("\nread_bytes: ")[2].split()[0])


def read_all(folder: Path, *, is_cold: bool) -> tuple[int, np.ndarray]:
    images, before = ImageFiles(folder, NUM_IMAGES, is_cold), fetched_bytes()
    read = np.stack([images[index] for index in range(NUM_IMAGES)])
    return fetched_bytes() - before, read


@pytest.mark.skipif(
    not (os.environ.get("CI") or os.access(IO, os.R_OK)),
    reason="the kernel counts no reads of a process",
)
def test_every_cold_read_comes_from_storage_and_no_warm_one(tmp_path):
    if network.file_system(tmp_path) in IN_MEMORY:
        pytest.skip(f"{tmp_path} is memory, where no read is cold")
    images, _ = data.generate_images(NUM_IMAGES, SHAPE)
    loader_cases._write(tmp_path, images)
    warm_bytes, read = read_all(tmp_path, is_cold=False)
    assert warm_bytes == 0
    assert (read == images).all()
    read_all(tmp_path, is_cold=True)  # gives the pages up
    for _ in range(2):
        cold_bytes, read = read_all(tmp_path, is_cold=True)
        assert cold_bytes >= NUM_IMAGES * np.prod(SHAPE)
        assert (read == images).all()


@pytest.mark.parametrize(("kind", "is_refused"), [("tmpfs", True), ("ext4", False), (None, False)])
def test_a_folder_in_memory_has_no_cold_read(monkeypatch, kind, is_refused):
    monkeypatch.setattr(network, "file_system", lambda folder: kind)
    said = loader_cases._problem(Path("data"))
    assert bool(said) == is_refused
    assert not said or said.startswith("data is on the file system tmpfs, which keeps")


def test_striping_is_what_lustre_says_of_a_folder(tmp_path, monkeypatch):
    assert network.striping(tmp_path) is None
    lfs = tmp_path / "lfs"
    lfs.write_text("#!/bin/sh\necho 'stripe_count:  4 stripe_size:   1048576'\necho 'pattern: 0'\n")
    lfs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert network.striping(tmp_path) == "stripe_count: 4 stripe_size: 1048576 pattern: 0"


@pytest.mark.slow
def test_both_caches_are_measured_as_cases_of_their_own_and_leave_no_file(tmp_path):
    options = [
        *("bench", "--size=smoke", "-k", "loader", "--set", "cache=warm,cold", "--no-causes"),
        *(
            "--set",
            "num_workers=0",
            f"--data-root={tmp_path}/data",
            "--rounds=2",
            "--local-batch=4",
        ),
        f"--benchmark-json={tmp_path}/result.json",
    ]
    command = [sys.executable, "-m", "pytest", *options]
    ended = finish(command, cwd=ROOT, env=environ(ROOT), timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = json.loads((tmp_path / "result.json").read_text())
    records = {one["params"]["cache"]: one["extra_info"][KEY] for one in document["benchmarks"]}
    assert set(records) == {"warm", "cold"}
    for cache, one in records.items():
        assert one["details"]["cache"] == one["factors"]["cache"] == cache
        assert one["details"]["file_system"] == network.file_system(tmp_path)
        assert one["checks"] == {"each_sample_once": True}
    assert list((tmp_path / "data").iterdir()) == []
