"""How long launches will take, by how long others took: nothing is guessed where none did."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lockstep.campaign.campaign import Campaign, Launch
from lockstep.campaign.folder import Folder
from lockstep.core.records import journal
from lockstep.core.system.host import hostname

# Between two launches of one run lies no more than a start; a longer gap is another run.
LONGEST_START_S = 300.0


@dataclass(frozen=True)
class Session:
    """A session of a launch that was made here: when its first and last lines were written.

    Attributes:
        world_size: Its ranks.
        begun_s: Its first line, in seconds of the epoch.
        ended_s: Its last line.
        num_cases: Cases that ended in it.
    """

    world_size: int
    begun_s: float
    ended_s: float
    num_cases: int

    @property
    def case_s(self) -> float:
        """Seconds for each case."""
        return (self.ended_s - self.begun_s) / self.num_cases


@dataclass(frozen=True)
class Needed:
    """What launches will take.

    Attributes:
        launches: Launch -> seconds.
        source: The folder whose launches say so.
        is_own: Whether that is the campaign's own.
    """

    launches: Mapping[str, float]
    source: Path
    is_own: bool

    @property
    def total_s(self) -> float:
        """Seconds of all of them."""
        return sum(self.launches.values())


def estimate(campaign: Campaign, folder: Path, launches: Sequence[Launch]) -> Needed | None:
    """Return what launches will take; None where no launch like them was made on this host.

    Those of the campaign itself count; without any, those of the newest other one beside it that
    is of the same size and studies.

    Raises:
        ValueError: A journal of the campaign itself is corrupt.
    """
    for path in (folder, *_alike(campaign, folder)):
        sessions: list[Session] = []
        # What is wrong with another campaign's journal is no reason not to measure this one.
        with suppress(*() if path == folder else (ValueError, OSError)):
            sessions = [one for one in _sessions(Folder(path)) if one.num_cases]
        if sessions:
            needed = {one.name: _launch_s(one, campaign, folder, sessions) for one in launches}
            return Needed(needed, path, path == folder)
    return None


def _alike(campaign: Campaign, folder: Path) -> list[Path]:
    """Return the folders beside a campaign's of others like it, the one claimed last first."""
    found = []
    for claim in folder.parent.glob("*/campaign.json"):
        with suppress(ValueError, OSError):
            other = Folder(claim.parent).claimed() or {}
            if claim.parent != folder and all(
                other.get(key) == campaign.facts()[key]
                for key in ("size", "studies", "tests", "workload", "device", "command")
            ):
                found.append((claim.stat().st_mtime, claim.parent))
    return [path for _, path in sorted(found, reverse=True)]


def _launch_s(
    launch: Launch, campaign: Campaign, folder: Path, sessions: Sequence[Session]
) -> float:
    """Return the seconds of a launch: its start, and each case that it lacks."""
    own = [one for one in sessions if one.world_size == launch.world_size] or sessions
    outcome = Folder(folder).outcome(launch.name)
    num_cases = campaign.num_cases() or max(one.num_cases for one in own)
    left = max(0, num_cases - outcome.measured - outcome.skipped)
    return _start_s(sessions) + left * fmean(one.case_s for one in own)


def _start_s(sessions: Sequence[Session]) -> float:
    """Return the usual seconds from the end of one launch to the first line of the next."""
    in_order = sorted(sessions, key=lambda one: one.begun_s)
    gaps = [after.begun_s - before.ended_s for before, after in pairwise(in_order)]
    return median([gap for gap in gaps if 0 <= gap <= LONGEST_START_S] or [0.0])


def _sessions(folder: Folder) -> Iterator[Session]:
    """Yield the sessions that this host made, as far as their lines have times."""
    for name in folder.names():
        block: list[Mapping[str, Any]] = []
        for entry in [*journal.read(folder.journal(name)), {"kind": "launch"}]:
            if entry.get("kind") == "launch":
                with suppress(AttributeError, IndexError, KeyError, TypeError, ValueError):
                    yield from _session(block)
                block = []
            block.append(entry)


def _session(lines: Sequence[Mapping[str, Any]]) -> Iterator[Session]:
    head = lines[0]["launch"]
    if head["provenance"]["ranks"][0]["host"] == hostname():
        begun_s, ended_s = (
            datetime.fromisoformat(line["time"]).timestamp() for line in (lines[0], lines[-1])
        )
        num_cases = sum(line.get("kind") in journal.ENDS for line in lines)
        yield Session(int(head["world_size"]), begun_s, ended_s, num_cases)
