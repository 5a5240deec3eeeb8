"""Processes: how they are run and ended, their variables, this host's name, and git's answers."""

import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.core.formats import last_line, visible

if TYPE_CHECKING:
    import psutil


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int  # its exit code; negative where a signal ended it
    output: str
    errors: str  # empty where standard error went into `output`


class CommandError(RuntimeError):
    """A command that cannot be started, or took longer than its limit."""


def run(
    command: Sequence[str],
    timeout_s: float | None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    text: str = "",
    merge_errors: bool = False,
) -> Ended:
    """Run a command with `text` as its standard input; return how it ended, or raise CommandError.

    Its output cannot act on a terminal: colours are left out, control characters are escaped.
    """
    try:
        ended = subprocess.run(
            command, input=text, env=environ, cwd=folder, timeout=timeout_s, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if merge_errors else subprocess.PIPE,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        message = f"the command {command[0]} did not end within {timeout_s:g} s; try again later"
        raise CommandError(message) from None
    except OSError as error:
        raise CommandError(f"{command[0]}: {error.strerror}") from error
    return Ended(ended.returncode, visible(ended.stdout), visible(ended.stderr or ""))


def output(
    command: Sequence[str],
    timeout_s: float,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """Return what a command prints; raise RuntimeError where it fails or is absent."""
    ended = run(command, timeout_s, environ=environ, folder=folder)
    if ended.code:
        raise RuntimeError(last_line(ended.errors) or f"it ended with {ended.code}")
    return ended.output


def answer(
    command: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None
) -> str | None:
    """Return what a command prints; None where it is absent, fails or does not answer."""
    try:
        return output(command, timeout_s, environ=environ).strip()
    except RuntimeError:
        return None


def end_groups(processes: "Sequence[subprocess.Popen[bytes]]", grace_s: float) -> None:
    """Terminate processes with their process groups, and kill what is left after `grace_s`."""
    for end in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, end)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)


def end_tree(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """End a process: ask it, and after `grace_s` kill it with all that it started."""
    import psutil  # here, since a job's own Python may lack it

    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()


def runs(pid: str) -> bool:
    """Return whether a process of this host runs; False for a zombie, or if `pid` is no number."""
    import psutil

    try:
        return bool(psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE)
    except (ValueError, psutil.NoSuchProcess):
        return False


def descendants() -> "list[psutil.Process]":
    """Return the processes that this one has started, and those below them.

    psutil looks for them among all processes of the host, which takes milliseconds. So one call
    asks first whether there is a child at all.
    """
    import psutil

    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    return list(psutil.Process().children(recursive=True))


# Variables of NCCL, RCCL, gloo and libraries below them: libfabric, the plugin of AWS that joins
# NCCL to it, UCX and ROCm's runtime. A job passes all of them into an image.
COMMUNICATION_PREFIXES = (
    *("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "OFI_NCCL_", "UCX_", "HSA_"),
)
ENVIRONMENT_PREFIXES = (*COMMUNICATION_PREFIXES, "TORCH_", "OMP_", "MKL_", "OPENBLAS_")
# Variables for the threads of OpenMP and the usual libraries of linear algebra.
THREAD_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Variables for the interface of NCCL and gloo (their documentation, "Environment Variables";
# PyTorch, "Distributed communication package").
INTERFACE_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
ENVIRONMENT_NAMES = (
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "TOKENIZERS_PARALLELISM", "TORCH_DISTRIBUTED_DEBUG",
)  # fmt: skip


def steers_torch(name: str) -> bool:
    """Return whether torch, its threads or its communication reads a variable."""
    return name in ENVIRONMENT_NAMES or name.startswith(ENVIRONMENT_PREFIXES)


PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent() -> None:
    """Let Linux send this process SIGTERM when its parent ends: a killed run leaves no ranks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def hostname() -> str:
    return os.fsencode(socket.gethostname()).decode(errors="replace")


GIT_TIMEOUT_S = 20


def run_git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints in a folder; None where git is absent or refuses."""
    # A job often runs as another user than the checkout's owner, or in a user namespace, which git
    # calls dubious: reading is harmless, so every folder counts as safe.
    options = ["--no-optional-locks", "-c", "safe.directory=*", "-C", str(folder)]
    # A git hook exports GIT_DIR, which would point every answer at the hook's repository.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return answer(["git", *options, *arguments], GIT_TIMEOUT_S, environ)


def git_state(folder: Path, paths: Sequence[Path] = ()) -> tuple[str | None, bool | None]:
    """Return a checkout's commit and whether its files differ from it; None where git fails.

    `paths` are the files that count, untracked ones included; all tracked files by default.
    """
    commit = run_git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None, None
    files = ["--", *map(str, paths)] if paths else ["--untracked-files=no"]
    changes = run_git(folder, "status", "--porcelain", *files)
    return commit, None if changes is None else bool(changes)


@contextmanager
def collector_paused(*, is_last: bool = False) -> Iterator[None]:
    """Keep Python's garbage collector off; if `is_last`, it never scans the present objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_last:
            gc.freeze()
        if was_enabled:
            gc.enable()
