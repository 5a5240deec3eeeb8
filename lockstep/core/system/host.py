"""What this host is called, and that a process of ours ends with the one that started it."""

import ctypes
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent() -> None:
    """Ask the kernel to end this process, by SIGTERM, when the one that started it ends.

    However that does: a killed command must not leave ranks behind that go on. Linux alone has it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def hostname() -> str:
    """Return this host's name; what is not UTF-8 in it, with replacement characters."""
    return os.fsencode(socket.gethostname()).decode(errors="replace")
