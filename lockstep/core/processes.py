"""Other programs: started with a time limit, what they printed, and how they are ended.

Variables that torch, its threads and its communication read: what of them is recorded.

What this host is called, and that a process of ours ends with the one that started it.

What git says of a checkout.

Python's collector of cycles, which walks all that is in memory again and again.
"""

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
from typing import Literal

from lockstep.core.formats import last_line, visible


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: Its exit code; negative where a signal ended it.
        errors: What it printed on standard error; empty where that went into `output`.
    """

    code: int
    output: str
    errors: str


class CommandError(RuntimeError):
    """A command did not run to its end.

    Args:
        kind: `absent` where it cannot be started, `late` where it took longer than its limit.
    """

    def __init__(self, message: str, kind: Literal["absent", "late"]) -> None:
        super().__init__(message)
        self.kind = kind


def run(
    command: Sequence[str],
    timeout_s: float | None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    text: str = "",
    merge_errors: bool = False,
) -> Ended:
    """Run a command and return how it ended, whatever its exit code.

    `text` is its standard input. With `merge_errors` its standard error is in `output`, in the
    order of printing. Without a time limit it is waited for as long as it takes. What it printed
    cannot act on a terminal: it has no colours, and escapes for control characters.

    Raises:
        CommandError: It cannot be started, or takes longer than its limit.
    """
    try:
        ended = subprocess.run(
            command, input=text, env=environ, cwd=folder, timeout=timeout_s, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if merge_errors else subprocess.PIPE,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        message = f"{command[0]} gave no answer within {timeout_s:g} s; ask again later"
        raise CommandError(message, "late") from None
    except OSError as error:
        raise CommandError(f"{command[0]}: {error.strerror}", "absent") from error
    return Ended(ended.returncode, visible(ended.stdout), visible(ended.stderr or ""))


def output(
    command: Sequence[str],
    timeout_s: float,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """Return what a command prints.

    Raises:
        RuntimeError: It is not there, fails, or does not answer in time.
    """
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
    """End processes that lead groups of their own, with all that they started.

    They are asked first. What is left of their groups after `grace_s` is killed, of those that have
    ended before, too.
    """
    for end in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, end)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)


def end_tree(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """End a process: ask it, and after `grace_s` kill it with all that it started."""
    import psutil  # which a job's own Python may lack

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
    """Return whether a process of this host runs; a zombie, or what is no number, does not."""
    import psutil

    try:
        return bool(psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE)
    except (ValueError, psutil.NoSuchProcess):
        return False


# What NCCL, RCCL, gloo and the libraries below them read: libfabric, the plugin of AWS that joins
# NCCL to it, UCX and ROCm's runtime. A job hands all of it on into an image.
COMMUNICATION_PREFIXES = (
    *("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "OFI_NCCL_", "UCX_", "HSA_"),
)
ENVIRONMENT_PREFIXES = (*COMMUNICATION_PREFIXES, "TORCH_", "OMP_", "MKL_", "OPENBLAS_")
# How many threads OpenMP and the usual libraries of linear algebra take.
THREAD_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Which network interface NCCL and gloo take (their documentation, "Environment Variables";
# PyTorch, "Distributed communication package").
INTERFACE_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
ENVIRONMENT_NAMES = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TOKENIZERS_PARALLELISM",
    "TORCH_DISTRIBUTED_DEBUG",
)


def steers_torch(name: str) -> bool:
    """Return whether torch, its threads or its communication read a variable."""
    return name in ENVIRONMENT_NAMES or name.startswith(ENVIRONMENT_PREFIXES)


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
    """Return a checkout's commit, and whether files differ from it.

    Args:
        folder: A folder of the checkout.
        paths: The files that count, those unknown to git included; all tracked files by default.

    Returns:
        Commit and dirtiness; None for what git does not say.
    """
    commit = run_git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None, None
    files = ["--", *map(str, paths)] if paths else ["--untracked-files=no"]
    changes = run_git(folder, "status", "--porcelain", *files)
    return commit, None if changes is None else bool(changes)


@contextmanager
def collector_paused(*, is_last: bool = False) -> Iterator[None]:
    """Keep the collector off.

    Results are trees, and a command that reads them ends soon; of a timed round, a collection would
    be charged to whichever rank it struck. Where `is_last`, the process does nothing more: then it
    never walks what there is by then.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_last:
            gc.freeze()
        if was_enabled:
            gc.enable()
