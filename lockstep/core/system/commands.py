"""Other programs: started with a time limit, what they printed, and how they are ended."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lockstep.core.text.printable import last_line, visible


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
