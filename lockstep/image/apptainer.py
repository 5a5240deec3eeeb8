"""Builds and inspects images; no other module calls Apptainer to do so.

The tables at the top hold every phrase of Apptainer's output that Lockstep reads.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.core import files, processes
from lockstep.core.formats import COLOUR

TAIL_BYTES = 1 << 16
LOOK_EVERY_S = 0.2
ASK_TIMEOUT_S = 60
GRACE_S = 10  # time for a cancelled build to end before it is killed
STEP = re.compile(r"^INFO:\s+(.*)$", re.MULTILINE)
# Lines that Apptainer prints while it packs the image, which is the longest step.
NOTES = ("To see mksquashfs output", "Non-gzip squashfs")
DISK_IS_FULL = "no space left on device"
ERROR = re.compile(r"^(?:FATAL|ERROR)\s*:\s*(.*)$")
# Phrase in the reason of a failed build, in lower case -> what to do.
REMEDIES = {
    DISK_IS_FULL: "set APPTAINER_TMPDIR to a folder with room for the unpacked image",
    "user namespace": (
        "run unshare --user --map-root-user true; if this command also fails, ask the machine's "
        "support for user namespaces, or build on another machine"
    ),
}


def version() -> str:
    """Return Apptainer's version, such as `1.4.5`; raise RuntimeError if it does not answer."""
    if shutil.which("apptainer") is None:
        raise RuntimeError("apptainer is not on PATH; install Apptainer, or load its module")
    ended = processes.run(["apptainer", "--version"], ASK_TIMEOUT_S, merge_errors=True)
    if ended.code or not ended.output.split():
        why = last_error(ended.output) or f"exit code {ended.code}"
        raise RuntimeError(
            f"apptainer --version failed: {why}; install or load another version of Apptainer"
        )
    return ended.output.split()[-1]


def is_older(version: str, least: tuple[int, int]) -> bool:
    """Return whether a version such as `1.0.3-1` is older; False for a text without numbers."""
    numbers = re.match(r"([0-9]+)\.([0-9]+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < least


def last_error(text: str) -> str | None:
    """Return the reason at the end of a log: a full disk, else the last error or last line."""
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
    """Build an image; raise RuntimeError if Apptainer fails.

    Apptainer runs in `folder`, to which names in the definition are relative. Its output goes into
    the log, and `show` gets each step as it begins.
    """
    command = ["apptainer", "build", *options, str(image), str(definition)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    step = None
    try:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_EVERY_S)
            if (now := current_step(files.tail(log, TAIL_BYTES))) and now != step:
                show(step := now)
    except BaseException:  # end the build with its children before the image's lock is released
        processes.end_groups([process], GRACE_S)
        raise
    if process.returncode:
        why = last_error(files.tail(log, TAIL_BYTES)) or f"exit code {process.returncode}"
        remedies = [REMEDIES[phrase] for phrase in REMEDIES if phrase in why.lower()]
        action = "; ".join([*remedies[:1], f"see {log}"])
        raise RuntimeError(f"apptainer could not build {image.stem}: {why}; {action}")


def current_step(text: str) -> str | None:
    """Return the current step of a build from the end of its log, such as `Copying bench`."""
    steps = [step.strip() for step in STEP.findall(COLOUR.sub("", text))]
    return next((step for step in reversed(steps) if not step.startswith(NOTES)), None)


def inspect(image: Path) -> dict[str, Any]:
    """Return the attributes `labels` and `deffile` of an image; raise ValueError if unreadable."""
    command = ["apptainer", "inspect", "--json", "--labels", "--deffile", str(image)]
    ended = processes.run(command, ASK_TIMEOUT_S)
    if ended.code:
        why = last_error(ended.errors) or f"exit code {ended.code}"
        raise ValueError(f"Apptainer cannot read {image}: {why}")
    attributes: dict[str, Any] = json.loads(ended.output)["data"]["attributes"]
    return attributes
