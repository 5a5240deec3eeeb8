"""Locks: one holder at a time, and what signs them."""

import errno
import fcntl
import os
import signal
import socket
import sys
import time

import pytest

from lockstep.core import locks


def forked():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid


def test_a_lock_is_not_held_by_what_its_holder_forks(tmp_path):
    with (tmp_path / ".lock").open("a") as first:
        assert locks.take(first)
        pid = forked()
    try:
        with (tmp_path / ".lock").open("a") as second:
            assert locks.take(second, 5.0)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_file_system_without_locks_is_an_error_of_its_own(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (tmp_path / ".lock").open("a") as lock, pytest.raises(locks.NoLocksError) as raised:
        locks.take(lock)
    assert f"{tmp_path} " in str(raised.value)
    assert "ENOLCK" in str(raised.value)


def test_a_lock_names_its_holder_whatever_bytes_its_command_has(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["lockstep", "run", "--to", os.fsdecode(b"r\xe9sults")])
    with (tmp_path / ".lock").open("a") as lock:
        locks.sign(lock)
    process, host, command = locks.holder(tmp_path / ".lock")
    assert (process, host) == (str(os.getpid()), socket.gethostname())
    assert command.startswith("lockstep run --to ")
