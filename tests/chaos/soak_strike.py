"""What the soaks do to a process, that on this machine and that on the testbed."""

import contextlib
import signal
import time
from random import Random

import psutil

FROZEN_S = 8.0


def strike(process: psutil.Process, name: str, random: Random) -> bool:
    """Send a signal, and return whether there was still somebody to get it.

    What is frozen thaws after a while, or is killed, unless its launcher has killed it by then.
    """
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False  # it would take any signal, and has ended
        process.send_signal(getattr(signal, name))
    except psutil.NoSuchProcess:
        return False
    if name == "SIGSTOP":
        time.sleep(random.uniform(0, FROZEN_S))
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(random.choice((signal.SIGCONT, signal.SIGKILL)))
    return True


def end(process: psutil.Process) -> str:
    """Kill a process that should have ended by itself, and return which it was."""
    said = f"{process.pid} {command(process)[:200]}"
    with contextlib.suppress(psutil.Error):  # which it may do still
        process.kill()
    return said


def command(process: psutil.Process) -> str:
    """Return a process's command line, or a question mark where it has none any more."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "?"
