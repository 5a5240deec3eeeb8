"""Locks on files, one holder on all hosts; the system frees a lock as its holder ends."""

import errno
import fcntl
import os
import shlex
import sys
import time
import weakref
from pathlib import Path
from typing import IO, Any

from lockstep.core import files
from lockstep.core.processes import hostname

POLL_S = 0.2
MAX_COMMAND_CHARACTERS = 200
# The files whose locks this process has taken; a forked process closes them.
_TAKEN = weakref.WeakSet[Any]()


os.register_at_fork(after_in_child=lambda: [file.close() for file in list(_TAKEN)])


class NoLocksError(ValueError):
    """A file system has no locks."""

    def __init__(self, folder: Path, error: OSError) -> None:
        code = errno.errorcode.get(error.errno or 0, str(error))
        super().__init__(
            f"{folder} is on a file system without locks ({code}); choose a folder on another "
            "file system, or ask the cluster's support to mount Lustre with -o flock"
        )


def take(file: IO[Any], wait_s: float = 0.0) -> bool:
    """Take the lock of an open file until the file is closed; return False if it stays taken."""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(POLL_S)
        except OSError as error:
            raise NoLocksError(Path(file.name).parent, error) from None
        else:
            _TAKEN.add(file)
            return True


def sign(file: IO[str]) -> None:
    """Write this process and its command into a lock's file, open for appending."""
    command = ascii(shlex.join(sys.argv))[1:-1]
    file.truncate(0)
    file.write(f"{os.getpid()} {hostname()} {command[:MAX_COMMAND_CHARACTERS]}")
    file.flush()


def is_held(path: Path) -> bool:
    """Return whether another process holds a file's lock, as far as the file system can tell."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def holder(path: Path) -> tuple[str, str, str]:
    """Return the process, the host and the command that a lock's file names."""
    process, host, command = [*files.text(path).split(maxsplit=2), "", "", ""][:3]
    return process, host, command


def name_holder(folder: Path) -> str:
    """Return a sentence that names the command which holds a folder's `.lock`."""
    process, host, command = holder(folder / ".lock")
    return (
        f"another lockstep command (process {process} on {host}: {command}) works in {folder}; "
        "wait until it has ended"
    )
