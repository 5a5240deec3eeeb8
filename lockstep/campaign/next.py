"""What follows when a session of a launch has ended, and why it ended.

A launch is measured by one session after another, each under one torchrun or srun. Whatever ends
a session, the cases that are left follow in the next one, as long as each brings the launch
further. `lockstep run` calls `decide`. A job's script runs `python3 -m lockstep.campaign.next`
where its ranks run, where there may be no more than Python's own library.

Why a session ended is what its ranks have kept, or else the words of the programs that took part:
a process that is killed leaves no record. The table below is the one place that reads such output.
Once cases run, they write into it, too: then only what launchers alone print counts, and of that
what comes last.
"""

import argparse
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lockstep.core import errors, journal
from lockstep.core.errors import EXIT_STOPPED
from lockstep.core.formats import one_line
from lockstep.core.record import KEY

# A rank may print without end; why a launch ended is at the end of its log.
MAX_LOG_BYTES = 2**20
MAX_CHARACTERS = 300

# program -> the line that says why, the programs that know best first
LINES = {
    # What ranks say when memory ran out is what came of it.
    "Slurm on memory": re.compile(
        r"^(?:srun: error: |(?=slurmstepd))(.*(?:exceeded memory limit|oom.kill|Out Of Memory).*)$",
        re.MULTILINE,
    ),
    "a rank": re.compile(r"^lockstep: (rank .*)$", re.MULTILINE),
    # In rank 0's words; of a rank that was killed it knows only the silence.
    "pytest": re.compile(
        r"^(?:!+ _pytest\.outcomes\.Exit:|ERROR:(?! usage:)) (.*?)(?: !+)?$", re.MULTILINE
    ),
    "srun": re.compile(r"^srun: error: (\S+: tasks? .*)$", re.MULTILINE),
    # Of torch that does not load, say, no rank is left to say anything.
    "Python": re.compile(r"^((?:ModuleNotFound|Import)Error: .*)$", re.MULTILINE),
}
TORCHRUN = re.compile(r".*?^ *rank *: (\d+).*?^ *exitcode *: (-?\d+)", re.MULTILINE | re.DOTALL)
# How srun says that a task ended by itself, not by a signal.
EXITED = "Exited with"
# Of programs that start ranks, which go on when a case has begun.
STARTERS = ("Slurm on memory", "srun")


def last_words(
    log: Path, start: int, kept: str = "", *, has_begun: bool = False, by_slurm: bool = True
) -> str:
    """Return what tells why the session ended whose output begins at byte `start`; or nothing.

    Args:
        log: The output of the session and its launchers.
        start: Where it begins.
        kept: What its ranks have kept of why they ended, if anything.
        has_begun: Whether cases may have printed into the log.
        by_slurm: Whether Slurm started the ranks.
    """
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - MAX_LOG_BYTES))
        text = file.read(MAX_LOG_BYTES).decode(errors="replace")
    programs = [
        program for program in LINES if (by_slurm if program in STARTERS else not has_begun)
    ]
    lines = {program: line[1] for program in programs if (line := LINES[program].search(text))}
    _, is_there, block = text.rpartition("Root Cause ")
    root = TORCHRUN.match(block) if is_there else None
    is_killed = bool(root and int(root[2]) < 0) or EXITED not in lines.get("srun", EXITED)
    if is_killed:
        lines.pop("pytest", None)
    if root and EXITED in lines.get("srun", ""):
        lines.pop("srun")  # its task was torchrun, which knows the rank
    torchruns = f"rank {root[1]} ended with {how(int(root[2]))}" if root else ""
    lines = {"Slurm on memory": "", "a rank": ""} | lines | ({"a rank": kept} if kept else {})
    words = [*lines.values(), torchruns]
    return one_line(next(filter(None, words), ""))[:MAX_CHARACTERS]


def how(exit_code: int) -> str:
    """Return an exit code in words; subprocess gives a signal as its negative."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


MARK = "lockstep-next: "  # before the first line that a script reads
Kind = Literal["done", "again", "failed", "stopped", "not-begun", "no-progress"]


@dataclass(frozen=True)
class Facts:
    """The facts of a launch when a session of it has ended.

    Attributes:
        words: Why the session ended.
        has_begun: Whether its ranks met and wrote to the journal.
        num_recorded: What it wrote there of cases: that one began, or how it ended.
        num_left: Cases that are still to be settled: neither finished before, nor ended by the
            sessions since the launch was last started anew. The case in flight is one of them.
        num_failed: Cases that have failed.
        is_stop_asked: Whether the stop file is there, by a user or since the job's time is nearly
            over.
    """

    words: str
    has_begun: bool = False
    num_recorded: int = 0
    num_left: int = 0
    num_failed: int = 0
    is_stop_asked: bool = False


@dataclass(frozen=True)
class Next:
    """What follows.

    Attributes:
        kind: `done`, `again` for another session, or why no session follows.
        options: Of that session's pytest, besides those of the first session.
    """

    kind: Kind
    options: tuple[str, ...] = ()


HangKind = Literal["start", "case", "between", "end"]


@dataclass(frozen=True)
class LeftRank:
    """A rank that still runs: its number, and whether its process is stopped, as by SIGSTOP."""

    rank: int
    is_stopped: bool


@dataclass(frozen=True)
class Hang:
    """Where a launch brought nothing for so long that it was ended.

    Attributes:
        kind: Before its first case, in one, between two, or after its last one.
        limit_s: How long it brought nothing.
        ranks: Those that still ran, on this machine.
        case: The case that ran, in one.
    """

    kind: HangKind
    limit_s: float
    ranks: tuple[LeftRank, ...]
    case: str | None = None

    def __str__(self) -> str:
        late = {
            "start": f"its ranks began no case within {self.limit_s:g} s",
            "case": f"{self.case} did not end within {self.limit_s:g} s",
            "between": f"its ranks began no further case within {self.limit_s:g} s",
            "end": f"its ranks did not end within {self.limit_s:g} s of their last case",
        }[self.kind]
        who = ", ".join(
            f"rank {left.rank}{' (its process is stopped)' if left.is_stopped else ''}"
            for left in self.ranks
        )
        return f"{late}; {who or 'torchrun alone'} still ran"


@dataclass(frozen=True)
class Ended:
    """How a session of a launch ended.

    Attributes:
        facts: Of the launch then.
        hung: Where it hung, and was ended.
    """

    facts: Facts
    exit_code: int = 0
    hung: Hang | None = None


def decide(facts: Facts) -> Next:
    """Return what follows a session.

    The journal decides, never a launcher's exit code. Each further session begins a case that no
    session has begun, or settles the case that ended the session before it: so they come to an
    end.
    """
    if facts.has_begun and not facts.num_left:
        return Next("failed" if facts.num_failed else "done")
    if facts.is_stop_asked:
        return Next("stopped")
    if not facts.has_begun:
        return Next("not-begun")
    if not facts.num_recorded:
        return Next("no-progress")
    return Next("again", ("--skip-failed", f"--after={facts.words}"))


@dataclass(frozen=True)
class Mark:
    """How far a launch's folder was filled before a session.

    Attributes:
        num_lines: Lines of the journal.
        num_log_bytes: Bytes of the log.
        time_s: When that was, in whole seconds since the epoch, by the clock of the file system.
    """

    num_lines: int
    num_log_bytes: int
    time_s: int


def mark(folder: Path) -> Mark:
    """Return how far a launch's folder is filled now."""
    path, log = folder / "journal.jsonl", folder / "log.txt"
    num_lines = path.read_bytes().count(b"\n") if path.exists() else 0
    log.touch()  # the time of other files is compared with its time: hosts' clocks differ
    status = log.stat()
    return Mark(num_lines, status.st_size, int(status.st_mtime))


def words_of(folder: Path, before: Mark, *, by_slurm: bool) -> str:
    """Return why the session ended that followed a mark, as `last_words` does; or nothing.

    Raises:
        ValueError: The journal is corrupt.
    """
    path, kept = folder / "journal.jsonl", errors.take(folder, before.time_s)
    entries = journal.read(path) if path.exists() else []
    has_begun = any(entry.get("kind") == "launch" for entry in entries[before.num_lines :])
    log = folder / "log.txt"
    return last_words(log, before.num_log_bytes, kept, has_begun=has_begun, by_slurm=by_slurm)


def gather(folder: Path, before: Mark, words: str, *, is_stop_asked: bool = False) -> Facts:
    """Return the facts of a launch whose session has just ended.

    Args:
        folder: The launch's folder.
        before: How far that was filled before the session.
        words: Why the session ended.
        is_stop_asked: Whether the stop file is there.

    Raises:
        ValueError: The journal is corrupt.
    """
    late = [  # ranks write their stacks for a case that takes too long
        str(file)
        for file in sorted(folder.glob("stacks/*"))
        if file.stat().st_mtime >= before.time_s and file.stat().st_size
    ]
    if late:
        words += f"; the case took too long, stacks: {', '.join(late)}"
    facts = Facts(words, is_stop_asked=is_stop_asked)
    path = folder / "journal.jsonl"
    entries = journal.read(path) if path.exists() else []
    heads = [i for i, entry in enumerate(entries) if entry.get("kind") == "launch"]
    if not heads or heads[-1] < before.num_lines:
        return facts
    block, ended = journal.rebuild(path)[KEY], journal.settled(path)
    head, *since = entries[heads[-1] :]
    left = set(block["expected"]) - set(ended) | ({block["in_flight"]} - {None})
    return replace(
        facts,
        has_begun=True,
        num_recorded=sum(entry.get("attempt") == head.get("attempt") for entry in since),
        num_left=len(left),
        num_failed=len(block["failed"]),
    )


# What a job's output adds to how srun ended.
_ADDED: dict[Kind, str] = {
    "done": "",
    "again": "",
    "failed": "; cases have failed",
    "stopped": "; the stop file is there",
    "not-begun": "; no case began",
    "no-progress": "; no further case began",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what follows a session under srun, a line each: kind, words for people, options."""
    parser = argparse.ArgumentParser(prog="lockstep.campaign.next", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="of the launch")
    parser.add_argument("--num-lines", type=int, required=True, help="of its journal before")
    parser.add_argument("--num-log-bytes", type=int, required=True, help="of its log before")
    parser.add_argument(
        "--began", type=int, required=True, help="seconds since the epoch, as the log's disk counts"
    )
    parser.add_argument("--exit-code", type=int, required=True, help="of srun")
    parser.add_argument("--stop-file", type=Path, required=True)
    given = parser.parse_args(arguments)
    before = Mark(given.num_lines, given.num_log_bytes, given.began)
    ended = f"srun ended with {given.exit_code}"
    try:
        why = words_of(given.folder, before, by_slurm=True)
        is_stop_asked = given.exit_code == EXIT_STOPPED or given.stop_file.exists()
        facts = gather(given.folder, before, why or ended, is_stop_asked=is_stop_asked)
    except ValueError as error:
        lines = [MARK + "corrupt", f"{ended}: {error}"]
    else:
        following = decide(facts)
        words = f"{ended}{f': {why}' if why else ''}{_ADDED[following.kind]}"
        lines = [MARK + following.kind, words, *following.options]
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
