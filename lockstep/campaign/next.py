"""Why a session of a launch ended, and whether another session follows; also for job scripts.

The reason is the one that the ranks wrote down, else a line of a program in the log. Once cases
run, only lines of launchers count, because cases print into the log, too.
"""

import argparse
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from lockstep.core import errors, files, journal
from lockstep.core.errors import EXIT_STOPPED
from lockstep.core.formats import one_line
from lockstep.core.record import KEY

# A rank may print very much; the reason is at the end of the log.
MAX_LOG_BYTES = 2**20
MAX_CHARACTERS = 300

# program -> pattern of its line with the reason; the more reliable programs come first
LINES = {
    # If memory ran out, errors of the ranks are only a consequence.
    "Slurm on memory": re.compile(
        r"^(?:srun: error: |(?=slurmstepd))(.*(?:exceeded memory limit|oom.kill|Out Of Memory).*)$",
        re.MULTILINE,
    ),
    "a rank": re.compile(r"^lockstep: (rank .*)$", re.MULTILINE),
    # A line of rank 0, which does not know why another rank is silent.
    "pytest": re.compile(
        r"^(?:!+ _pytest\.outcomes\.Exit:|ERROR:(?! usage:)) (.*?)(?: !+)?$", re.MULTILINE
    ),
    "srun": re.compile(r"^srun: error: (\S+: tasks? .*)$", re.MULTILINE),
    # If torch does not load, no rank writes a reason.
    "Python": re.compile(r"^((?:ModuleNotFound|Import)Error: .*)$", re.MULTILINE),
}
TORCHRUN = re.compile(r".*?^ *rank *: (\d+).*?^ *exitcode *: (-?\d+)", re.MULTILINE | re.DOTALL)
# Words of srun about a task that ended by itself, not by a signal.
EXITED = "Exited with"
# Programs whose lines also count after a case has begun.
STARTERS = ("Slurm on memory", "srun")


def last_words(
    log: Path, start: int, kept: str = "", *, has_begun: bool = False, by_slurm: bool = True
) -> str:
    """Return why a session ended, from its output after byte `start` of a log; empty if unknown.

    `kept` is the reason that the ranks wrote down, `has_begun` is whether cases may have printed
    into the log, and `by_slurm` is whether Slurm started the ranks.
    """
    text = files.tail(log, MAX_LOG_BYTES, start)
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
        lines.pop("srun")  # srun's task was torchrun, whose own line names the rank
    torchruns = f"rank {root[1]} ended with {how(int(root[2]))}" if root else ""
    lines = {"Slurm on memory": "", "a rank": ""} | lines | ({"a rank": kept} if kept else {})
    words = [*lines.values(), torchruns]
    return one_line(next(filter(None, words), ""))[:MAX_CHARACTERS]


def how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


MARK = "lockstep-next: "  # prefix of the first line that a job script reads
Kind = Literal["done", "again", "failed", "stopped", "not-begun", "no-progress"]


@dataclass(frozen=True)
class Facts:
    """The facts of a launch at the end of a session."""

    words: str  # why the session ended
    has_begun: bool = False  # whether the ranks met and wrote to the journal
    num_recorded: int = 0  # lines about cases that the session wrote to the journal
    num_left: int = 0  # cases that have not ended since the launch was started anew
    num_failed: int = 0
    is_stop_asked: bool = False  # by the user, or because the job's time is nearly over


class Next(NamedTuple):
    """Whether another session follows, with its further options of pytest, or why not."""

    kind: Kind
    options: tuple[str, ...] = ()


HangKind = Literal["start", "case", "between", "end"]


@dataclass(frozen=True)
class LeftRank:
    """A rank that still runs."""

    rank: int
    is_stopped: bool  # by SIGSTOP


@dataclass(frozen=True)
class Hang:
    """A launch that made no progress for `limit_s` and was ended."""

    kind: HangKind  # before the first case, in a case, between cases, or after the last case
    limit_s: float
    ranks: tuple[LeftRank, ...]  # ranks that still ran
    case: str | None = None  # case that ran

    def __str__(self) -> str:
        late = {
            "start": f"the ranks began no case within {self.limit_s:g} s",
            "case": f"the case {self.case} did not end within {self.limit_s:g} s",
            "between": f"the ranks began no further case within {self.limit_s:g} s",
            "end": f"the ranks did not end within {self.limit_s:g} s after their last case",
        }[self.kind]
        left_ranks = ", ".join(
            f"rank {left.rank}{' (its process is stopped)' if left.is_stopped else ''}"
            for left in self.ranks
        )
        running = left_ranks or "only torchrun"
        return f"{late}, and {running} still ran"


@dataclass(frozen=True)
class Ended:
    """The end of a session of a launch."""

    facts: Facts
    exit_code: int = 0
    hung: Hang | None = None


def decide(facts: Facts) -> Next:
    """Return what follows a session; the journal decides, never a launcher's exit code."""
    if facts.has_begun and not facts.num_left:
        return Next("failed" if facts.num_failed else "done")
    if facts.is_stop_asked:
        return Next("stopped")
    if not facts.has_begun:
        return Next("not-begun")
    if not facts.num_recorded:
        return Next("no-progress")
    return Next("again", ("--skip-failed", f"--after={facts.words}"))


class Mark(NamedTuple):
    """The size of a launch's files before a session."""

    num_lines: int  # lines of the journal
    num_log_bytes: int
    time_s: int  # seconds since the epoch, by the clock of the file system


def mark(folder: Path) -> Mark:
    path, log = folder / "journal.jsonl", folder / "log.txt"
    num_lines = path.read_bytes().count(b"\n") if path.exists() else 0
    log.touch()  # its time is compared with that of other files, because hosts' clocks differ
    status = log.stat()
    return Mark(num_lines, status.st_size, int(status.st_mtime))


def words_of(folder: Path, before: Mark, *, by_slurm: bool) -> str:
    path, kept = folder / "journal.jsonl", errors.take(folder, before.time_s)
    entries = journal.read(path) if path.exists() else []
    has_begun = any(entry.get("kind") == "launch" for entry in entries[before.num_lines :])
    log = folder / "log.txt"
    return last_words(log, before.num_log_bytes, kept, has_begun=has_begun, by_slurm=by_slurm)


def gather(folder: Path, before: Mark, words: str, *, is_stop_asked: bool = False) -> Facts:
    """Return the facts of a launch at the end of the session after a mark."""
    late = [  # a rank writes its stacks when a case takes too long
        str(file)
        for file in sorted(folder.glob("stacks/*"))
        if file.stat().st_mtime >= before.time_s and file.stat().st_size
    ]
    if late:
        words += f"; the case took too long, and its stacks are in {', '.join(late)}"
    facts = Facts(words, is_stop_asked=is_stop_asked)
    path = folder / "journal.jsonl"
    entries = journal.read(path) if path.exists() else []
    heads = [i for i, entry in enumerate(entries) if entry.get("kind") == "launch"]
    if not heads or heads[-1] < before.num_lines:
        return facts
    block, ended = journal.rebuild(path)[KEY], journal.settled_outcomes(path)
    head, *since = entries[heads[-1] :]
    left = set(block["expected"]) - set(ended) | ({block["in_flight"]} - {None})
    return replace(
        facts, has_begun=True,
        num_recorded=sum(entry.get("attempt") == head.get("attempt") for entry in since),
        num_left=len(left), num_failed=len(block["failed"]),
    )  # fmt: skip


# kind -> phrase that a job's output adds to the exit code of srun
_ADDED: dict[Kind, str] = {
    "failed": "; cases failed",
    "stopped": "; a stop was requested",
    "not-begun": "; no case began",
    "no-progress": "; no further case began",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what follows a session under srun: lines with kind, words for people, and options."""
    parser = argparse.ArgumentParser(prog="lockstep.campaign.next", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="folder of the launch")
    for name in ("--num-lines", "--num-log-bytes", "--began"):  # of the `Mark` before the session
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--exit-code", type=int, required=True, help="exit code of srun")
    parser.add_argument("--stop-file", type=Path, required=True)
    options = parser.parse_args(arguments)
    before = Mark(options.num_lines, options.num_log_bytes, options.began)
    ended = f"srun ended with {options.exit_code}"
    try:
        why = words_of(options.folder, before, by_slurm=True)
        is_stop_asked = options.exit_code == EXIT_STOPPED or options.stop_file.exists()
        facts = gather(options.folder, before, why or ended, is_stop_asked=is_stop_asked)
    except ValueError as error:
        lines = [MARK + "corrupt", f"{ended}: {error}"]
    else:
        following = decide(facts)
        words = f"{ended}{f': {why}' if why else ''}{_ADDED.get(following.kind, '')}"
        lines = [MARK + following.kind, words, *following.options]
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
