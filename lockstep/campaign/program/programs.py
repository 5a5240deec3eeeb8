"""Programs: what starts their ranks, and one run of them."""

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.campaign.program.failed_runs import RunError
from lockstep.campaign.program.table import GRACE_S, Command, Launcher, marks
from lockstep.core.system import commands
from lockstep.core.system.environment import THREADS
from lockstep.core.system.host import die_with_parent, hostname
from lockstep.core.text.printable import last_line

# Of a rank that its launcher says; a program would take an outer launcher's for its own.
OUTER = ("OMPI_", "PMI_", "PMIX_", "PMI2_")
# Of the end of output; what a program prints before it is on disk, and not searched.
MAX_OUTPUT_BYTES = 16 * 2**20
PROBE_S = 120.0
# What each rank of a trial says; the mark tells it from what prologs, and options as --label, add.
MARK = "lockstep-rank:"
RANK_SAYS = f'echo {MARK} "$(hostname)"'


@dataclass(frozen=True)
class Start:
    """What starts the ranks of a program.

    Attributes:
        words: Its command line, for the program's to follow.
    """

    launcher: Launcher
    words: tuple[str, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A run that has ended well.

    Attributes:
        wall_s: From its start to its end.
        began: When it began, in seconds since the epoch, by the clock of the file system that its
            output is on, which may not be the node's.
        output: What it printed, on standard output and then on standard error.
    """

    wall_s: float
    began: float
    output: str


def launcher_of(command: Command, most_ranks: int, *, in_job: bool) -> Launcher:
    """Return what starts the ranks, the same at every world size up to the largest.

    Raises:
        ValueError: Nothing here starts so many.
    """
    has_srun = in_job or ("SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None)
    has_mpirun = shutil.which("mpirun") is not None
    if command.launcher is None and has_srun:
        return "srun"
    if command.launcher is None and most_ranks > 1 and has_mpirun:
        return "mpirun"
    chosen = command.launcher or "alone"
    if chosen == "mpirun" and not has_mpirun:
        raise ValueError("there is no mpirun on PATH; install an MPI, or set another launcher")
    if chosen == "srun" and not has_srun:
        raise ValueError("srun starts ranks in a Slurm job alone; submit it, or set a launcher")
    if chosen == "alone" and most_ranks > 1 and "ranks" not in marks(command.line):
        raise ValueError(
            f"nothing here starts {most_ranks} ranks: install mpirun, or let the line start them "
            'itself by {ranks}, with launcher = "alone"'
        )
    return chosen


def start(
    command: Command, world_size: int, most_ranks: int, under: Sequence[str], inside: Sequence[str]
) -> Start:
    """Return what starts the ranks, and where they then are.

    `under` is srun with what a job's script tells it, and empty outside one; `inside` puts a rank
    into an image, and is empty where none is used.

    Raises:
        ValueError: Nothing here starts so many ranks.
        RuntimeError: The launcher does not start them.
    """
    launcher = launcher_of(command, most_ranks, in_job=bool(under))
    words = {
        "srun": tuple(under) or ("srun", f"--ntasks={world_size}"),
        "mpirun": ("mpirun", "-np", str(world_size)),
        "alone": (),
    }[launcher]
    options = command.launcher_options if words else ()
    words = (*words, *options, *inside)
    return Start(launcher, words, _hosts(launcher, words, world_size))


def _hosts(launcher: Launcher, words: Sequence[str], world_size: int) -> tuple[str, ...]:
    """Return the host of each rank, as a trial of the launcher shows."""
    if launcher == "alone":
        return (hostname(),) * world_size
    try:
        ended = commands.run([*words, "sh", "-c", RANK_SAYS], PROBE_S, environ=clean(os.environ))
    except commands.CommandError as error:
        raise RuntimeError(f"{launcher} does not start {world_size} ranks: {error}") from None
    names = re.findall(rf"{MARK} (\S+)", ended.output)
    if ended.code or len(names) != world_size:
        said = last_line(ended.errors) or f"{len(names)} answer"
        raise RuntimeError(f"{launcher} does not start {world_size} ranks: {said}")
    return tuple(sorted(names))


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what an outer MPI says of a rank."""
    return {name: value for name, value in environ.items() if not name.startswith(OUTER)}


def environment(threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a program's environment, in which its libraries take so many threads."""
    return clean(environ) | dict.fromkeys(THREADS, str(threads))


def run(
    words: Sequence[str], folder: Path, workdir: str, environ: Mapping[str, str], timeout_s: float
) -> Run:
    """Run a program once; what it prints is kept in files of a folder.

    Raises:
        RunError: It did not start, did not end in time, or ended with another code than 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    output, errors = folder / "stdout.txt", folder / "stderr.txt"
    with output.open("wb") as out, errors.open("wb") as err:
        began, clock_s = output.stat().st_mtime, time.perf_counter()
        try:
            process = subprocess.Popen(
                words, cwd=workdir, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        except OSError as error:
            raise RunError("not-started", error=str(error)) from None
        is_late = _wait(process, timeout_s)
    wall_s = time.perf_counter() - clock_s
    text = end_of(output) + "\n" + end_of(errors)
    if is_late or process.returncode:
        failed = (
            RunError("timeout", limit_s=timeout_s)
            if is_late
            else RunError("exit-code", code=process.returncode)
        )
        failed.said = text
        raise failed
    return Run(wall_s, began, text)


def _wait(process: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    """Wait for a process, and return whether it had to be ended: it took too long."""
    late = threading.Event()

    def end() -> None:
        late.set()
        commands.end_groups([process], GRACE_S)

    # Popen's own time-out looks every 50 ms, which would be part of the time measured.
    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        process.wait()
    finally:
        timer.cancel()
        # What the program has left behind would run beside the next case.
        commands.end_groups([process], GRACE_S)
    return late.is_set()


def end_of(path: Path) -> str:
    """Return the text of a file, of a long one its end.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        if path.stat().st_size > MAX_OUTPUT_BYTES:
            file.seek(-MAX_OUTPUT_BYTES, os.SEEK_END)
        return file.read(MAX_OUTPUT_BYTES).decode(errors="replace")
