"""Apptainer as this machine has it: spoken to through spython, and not taken at spython's word.

spython 0.3.14 calls `singularity`, would use sudo, drops exit codes and stops when a program says
much on stderr. So the command it starts is ours: apptainer, which writes all it says to a log.
Only what spython does not know (tests of signatures) goes to apptainer directly.
"""

import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.vocabulary import commands

# In a folder of its own choice, with all it says in a log; `exec`, so that a signal reaches it.
LOGGED = 'cd "$1" && log=$2 && shift 2 && exec apptainer "$@" >>"$log" 2>&1'
TAIL_BYTES = 1 << 16
LOOK_EVERY_S = 0.2
ASK_TIMEOUT_S = 60
# The first with build arguments (its changelog, 1.2.0).
LEAST_VERSION = (1, 2)
# How long what is asked to end may take, before it is made to.
GRACE_S = 10
# What it notes while it packs the image, which takes longest.
NOTES = ("To see mksquashfs output", "Non-gzip squashfs")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def version() -> str:
    """Return Apptainer's version, such as `1.4.5`.

    Raises:
        RuntimeError: It is not installed, or does not answer.
    """
    if shutil.which("apptainer") is None:
        raise RuntimeError("apptainer is not installed here, or not on PATH; install or load it")
    said = ask("--version")
    if said.code or not said.text.split():
        raise RuntimeError(f"apptainer --version failed: {said.reason}; load or install another")
    return said.text.split()[-1]


def version_that_builds() -> str:
    """Return Apptainer's version where it knows build arguments.

    Raises:
        RuntimeError: It is not installed, does not answer, or is too old.
    """
    found = version()
    numbers = re.match(r"([0-9]+)\.([0-9]+)", found)
    if numbers and (int(numbers[1]), int(numbers[2])) < LEAST_VERSION:
        wanted = ".".join(map(str, LEAST_VERSION))
        raise RuntimeError(
            f"apptainer {found} is installed here, and build arguments need {wanted} or newer; "
            "load or install that"
        )
    return found


@dataclass(frozen=True)
class Said:
    """How a command of Apptainer's ended, and what it said."""

    code: int
    text: str

    @property
    def reason(self) -> str:
        """Why it failed, in Apptainer's words."""
        return reason(self.text) or f"it ended with exit code {self.code} and said nothing"


def ask(*arguments: str, timeout_s: float | None = ASK_TIMEOUT_S) -> Said:
    """Run a command of Apptainer's.

    Raises:
        RuntimeError: It does not answer in time.
    """
    ended = commands.run(["apptainer", *arguments], timeout_s, merge_errors=True)
    return Said(ended.code, ended.output)


def reason(text: str) -> str | None:
    """Return what went wrong by the last words of a log, or None if it does not say."""
    lines = [COLOUR.sub("", line).strip() for line in text.splitlines()]
    full = [line for line in lines if "no space left on device" in line.lower()]
    fatal = [line for line in lines if line.startswith(("FATAL:", "ERROR"))]
    said = full[-1:] or fatal[-1:] or [line for line in lines if line][-1:]
    return re.sub(r"^(FATAL|ERROR)\s*:\s*", "", said[0]) if said else None


def build(
    definition: Path,
    image: Path,
    options: Sequence[str],
    folder: Path,
    log: Path,
    show: Callable[[str], None],
) -> None:
    """Build an image.

    Args:
        definition: The definition file.
        image: The file to make.
        options: Options of `apptainer build`.
        folder: Where apptainer runs, which names in the definition are relative to.
        log: What apptainer says is added to this file.
        show: Called with what apptainer does at the moment, each time it does something else.

    Raises:
        RuntimeError: apptainer failed.
    """
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(_build, definition, image, options, folder, log)
        step = ""
        try:
            while wait([ended], LOOK_EVERY_S).not_done:
                if (now := current_step(tail(log))) and now != step:
                    show(step := now)
        except BaseException:
            _end(ended)
            raise
    if code := ended.result():
        raise RuntimeError(_failure(image, code, log))


def _end(build: Future[int]) -> None:
    """End an unfinished build: nothing may write on once the image's lock is gone."""
    import psutil

    while not build.done():
        begun = psutil.Process().children(recursive=True)
        for process in begun:
            with suppress(psutil.Error):
                process.terminate()
        for process in psutil.wait_procs(begun, GRACE_S)[1]:
            with suppress(psutil.Error):
                process.kill()
        wait([build], LOOK_EVERY_S)


def _build(definition: Path, image: Path, options: Sequence[str], folder: Path, log: Path) -> int:
    command = ["sh", "-c", LOGGED, "sh", str(folder), str(log), "build"]
    _, lines = _client(command).build(
        recipe=str(definition),
        image=str(image),
        options=list(options),
        sudo=False,
        stream=True,
        quiet=True,
    )
    try:
        deque(lines, maxlen=0)  # the command runs while its output, of which none is left, is read
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


def _failure(image: Path, code: int, log: Path) -> str:
    text = tail(log)
    why = reason(text) or f"it ended with exit code {code}"
    todo = "all it said"
    if "no space left" in why.lower():
        todo = "set APPTAINER_TMPDIR to a folder with room for the unpacked image; all it said"
    if "user namespace" in why.lower():
        todo = (
            "where unshare --user --map-root-user true fails, too, ask for user namespaces, or "
            "build on another machine; all it said"
        )
    return f"apptainer could not build {image.stem}: {why}; {todo} is in {log}"


def _client(command: Sequence[str]) -> Any:
    """Return spython's client, with the command that it is to start instead of singularity."""
    from spython.main import Client

    class Ours(type(Client)):  # type: ignore[misc]
        def _init_command(self, action: str, flags: object = None) -> list[str]:  # noqa: ARG002
            return list(command)

    return Ours()


def inspect(image: Path) -> dict[str, Any]:
    """Return what an image says of itself: `labels`, `deffile`, `runscript` and so on.

    Raises:
        ValueError: It is no image that Apptainer reads.
    """
    found = _client(["apptainer", "inspect"]).inspect(str(image))
    if "attributes" not in found:
        why = reason("\n".join(found["message"])) or f"exit code {found['return_code']}"
        raise ValueError(f"{image} is no image that Apptainer reads: {why}")
    attributes: dict[str, Any] = found["attributes"]
    return attributes


def current_step(text: str) -> str | None:
    """Return what apptainer does by the last of its own lines, such as `Copying bench`."""
    steps = re.findall(r"^(?:\x1b\[[0-9;]*m)?INFO:(?:\x1b\[0m)?\s+(.*)$", text, re.MULTILINE)
    own = [step.strip() for step in steps if not step.startswith(NOTES)]
    return own[-1] if own else None


def tail(path: Path) -> str:
    """Return the end of a log; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def has_secret_key() -> bool:
    """Return whether the user's keyring has a key to sign with."""
    return "Fingerprint:" in ask("key", "list", "--secret").text


def sign(image: Path) -> None:
    """Sign an image by the user's key; a terminal is asked for its password.

    Raises:
        RuntimeError: apptainer failed.
    """
    ended = subprocess.run(["apptainer", "sign", str(image)], check=False)
    if ended.returncode:
        raise RuntimeError(f"apptainer sign ended with exit code {ended.returncode}")


@dataclass(frozen=True)
class Signature:
    """What is known of an image's signature.

    Attributes:
        state: `valid`, `unsigned`, `unknown key` (signed by one that the keyring lacks) or
            `invalid`.
        by: Fingerprints of the keys that signed it, where valid.
        reason: Why it is invalid, in Apptainer's words.
    """

    state: str
    by: tuple[str, ...] = ()
    reason: str | None = None


def signature(image: Path) -> Signature:
    """Return what the keyring of this machine says of an image's signature; no server is asked."""
    # However long it takes to read a big image.
    said = ask("verify", "--local", str(image), timeout_s=None)
    if not said.code:
        found = re.findall(r"Fingerprint:\s*([0-9A-Fa-f]+)", said.text)
        return Signature("valid", tuple(dict.fromkeys(found)))
    if "signature not found" in said.reason:
        return Signature("unsigned")
    if "unknown entity" in said.reason:
        return Signature("unknown key")
    return Signature("invalid", reason=said.reason)
