"""The store outside the ranks: it serves while its parent lives, and says where."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from launched import until

pytestmark = pytest.mark.slow  # each starts a process that imports torch

PATIENCE_S = 60


@contextmanager
def served(folder, environ, host="127.0.0.1"):
    path = folder / "address"
    process = subprocess.Popen(
        [sys.executable, "-m", "lockstep.ranks.store", "--host", host, "--address-file", path],
        env=environ,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, path
    finally:
        process.kill()
        process.communicate()


def await_address(process, path):
    until(lambda: path.exists() or process.poll() is not None, "its address", PATIENCE_S)
    assert path.exists(), process.stderr.read()


@pytest.mark.parametrize("end", ["input", "SIGTERM"])
def test_it_ends_with_its_parent_s_input_or_when_it_is_told_to(tmp_path, clean_environ, end):
    with served(tmp_path, clean_environ) as (process, path):
        await_address(process, path)
        if end == "input":
            process.stdin.close()
            process.stdin = None
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == (0 if end == "input" else -signal.SIGTERM)


@pytest.mark.chaos
def test_a_store_without_a_known_host_is_one_line(tmp_path, clean_environ):
    host = "nowhere.invalid"
    with served(tmp_path, clean_environ, host=host) as (process, path):
        *_, last = process.communicate(timeout=PATIENCE_S)[1].splitlines()
    assert process.returncode == 3
    assert last.startswith(f"lockstep: cannot open the ranks' store on {host}: ")
    assert not path.is_file()
