"""The one caller of Apptainer: builds, inspects, signs and verifies images.

The tables at the top hold every phrase of its output that this package reads.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.core import processes
from lockstep.core.formats import COLOUR

TAIL_BYTES = 1 << 16
LOOK_EVERY_S = 0.2
ASK_TIMEOUT_S = 60
# Seconds that a cancelled build gets before it is killed.
GRACE_S = 10
STEP = re.compile(r"^INFO:\s+(.*)$", re.MULTILINE)
# Lines that it prints while it packs the image, the longest step.
NOTES = ("To see mksquashfs output", "Non-gzip squashfs")
DISK_IS_FULL = "no space left on device"
ERROR = re.compile(r"^(?:FATAL|ERROR)\s*:\s*(.*)$")
# a phrase of the reason why a build failed, in lower case -> what to do
REMEDIES = {
    DISK_IS_FULL: "set APPTAINER_TMPDIR to a folder with room for the unpacked image; ",
    "user namespace": (
        "if unshare --user --map-root-user true fails as well, ask for user namespaces, or build "
        "on another machine; "
    ),
}
# a phrase of `apptainer verify` -> the state of the signature
SIGNATURE_STATES = {"signature not found": "unsigned", "unknown entity": "unknown key"}
FINGERPRINT = re.compile(r"Fingerprint:\s*([0-9A-Fa-f]+)")


def version() -> str:
    """Return Apptainer's version, such as `1.4.5`.

    Raises:
        RuntimeError: It is not installed, or does not answer.
    """
    if shutil.which("apptainer") is None:
        raise RuntimeError("apptainer is not on PATH; install it or load its module")
    ended = ask("--version")
    if ended.code or not ended.output.split():
        why = last_error(ended.output) or f"exit code {ended.code}"
        raise RuntimeError(f"apptainer --version failed: {why}; install or load another version")
    return ended.output.split()[-1]


def is_older(version: str, least: tuple[int, int]) -> bool:
    """Return whether a version, such as `1.0.3-1`, is older; one that has no numbers is not."""
    numbers = re.match(r"([0-9]+)\.([0-9]+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < least


def ask(*arguments: str, timeout_s: float | None = ASK_TIMEOUT_S) -> processes.Ended:
    """Run a command of Apptainer and return how it ended, with stderr in its output.

    Raises:
        RuntimeError: It is absent, or does not answer in time.
    """
    return processes.run(["apptainer", *arguments], timeout_s, merge_errors=True)


def last_error(text: str) -> str | None:
    """Return the error at the end of a log: a full disk, the last error or the last line."""
    lines = [COLOUR.sub("", line).strip() for line in text.splitlines()]
    full = [line for line in lines if DISK_IS_FULL in line.lower()]
    errors = [line for line in lines if ERROR.match(line)]
    last = (full or errors or [line for line in lines if line])[-1:]
    return ERROR.sub(r"\1", last[0]) if last else None


def build(
    definition: Path,
    image: Path,
    options: Sequence[str],
    folder: Path,
    log: Path,
    show: Callable[[str], None],
) -> None:
    """Build an image.

    Apptainer runs in the folder, which names in the definition are relative to; what it prints is
    added to the log, and each thing that it does is shown as it begins.

    Raises:
        RuntimeError: apptainer failed.
    """
    command = ["apptainer", "build", *options, str(image), str(definition)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    step = None
    try:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_EVERY_S)
            if (now := current_step(tail(log))) and now != step:
                show(step := now)
    except BaseException:
        _end(process)
        raise
    if process.returncode:
        why = last_error(tail(log)) or f"exit code {process.returncode}"
        remedy = next((REMEDIES[phrase] for phrase in REMEDIES if phrase in why.lower()), "")
        raise RuntimeError(f"apptainer could not build {image.stem}: {why}; {remedy}see {log}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End an unfinished build and its children, before the image's lock is released."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        running = [parent, *parent.children(recursive=True)]
        for each in running:
            with suppress(psutil.Error):
                each.terminate()
        for each in psutil.wait_procs(running, GRACE_S)[1]:
            with suppress(psutil.Error):
                each.kill()
    process.wait()


def inspect(image: Path) -> dict[str, Any]:
    """Return the attributes `labels` and `deffile` of an image.

    Raises:
        ValueError: Apptainer cannot read the image.
        RuntimeError: Apptainer is absent, or does not answer in time.
    """
    command = ["apptainer", "inspect", "--json", "--labels", "--deffile", str(image)]
    ended = processes.run(command, ASK_TIMEOUT_S)
    if ended.code:
        why = last_error(ended.errors) or f"exit code {ended.code}"
        raise ValueError(f"Apptainer cannot read {image}: {why}")
    attributes: dict[str, Any] = json.loads(ended.output)["data"]["attributes"]
    return attributes


def current_step(text: str) -> str | None:
    """Return the current step from the last line of Apptainer, such as `Copying bench`."""
    steps = [step.strip() for step in STEP.findall(COLOUR.sub("", text))]
    return next((step for step in reversed(steps) if not step.startswith(NOTES)), None)


def tail(path: Path) -> str:
    """Return the end of a log; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def has_secret_key() -> bool:
    """Return whether the user's keyring has a key to sign with."""
    return FINGERPRINT.search(ask("key", "list", "--secret").output) is not None


def sign(image: Path) -> None:
    """Sign an image by the user's key; a terminal is asked for its password.

    Raises:
        RuntimeError: apptainer failed.
    """
    ended = subprocess.run(["apptainer", "sign", str(image)], check=False)
    if ended.returncode:
        raise RuntimeError(f"apptainer sign failed with exit code {ended.returncode}")


@dataclass(frozen=True)
class Signature:
    """The state of an image's signature.

    Attributes:
        state: `valid`, `unsigned`, `unknown key` (signed by a key that the keyring lacks) or
            `invalid`.
        by: Fingerprints of the keys that signed it, if valid.
        reason: Apptainer's message if it is invalid.
    """

    state: str
    by: tuple[str, ...] = ()
    reason: str | None = None


def signature(image: Path) -> Signature:
    """Return the state of an image's signature by the local keyring; no key server is asked."""
    # Without a limit: reading a big image takes long.
    ended = ask("verify", "--local", str(image), timeout_s=None)
    if not ended.code:
        fingerprints = FINGERPRINT.findall(ended.output)
        return Signature("valid", tuple(dict.fromkeys(fingerprints)))
    why = last_error(ended.output) or f"exit code {ended.code}"
    state = next((state for phrase, state in SIGNATURE_STATES.items() if phrase in why), None)
    return Signature(state) if state else Signature("invalid", reason=why)
