"""What `lockstep run` is about to start, and how long that will take, in words or as JSON.

How long launches will take, by how long others took: nothing is guessed where none did.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import click

from lockstep.campaign.campaign import Campaign, Launch
from lockstep.campaign.folder import Folder
from lockstep.campaign.local.ladder import Ladder
from lockstep.campaign.local.local_stages import Stages
from lockstep.core import journal, processes
from lockstep.core.formats import counted, in_words, listed
from lockstep.core.processes import hostname
from lockstep.core.record import KEY

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
            sessions = [session for session in _sessions(Folder(path)) if session.num_cases]
        if sessions:
            needed = {
                launch.name: _launch_s(launch, campaign, folder, sessions) for launch in launches
            }
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
    own = [session for session in sessions if session.world_size == launch.world_size] or sessions
    outcome = Folder(folder).outcome(launch.name)
    num_cases = campaign.num_cases() or max(session.num_cases for session in own)
    left = max(0, num_cases - outcome.measured - outcome.skipped)
    return _start_s(sessions) + left * fmean(session.case_s for session in own)


def _start_s(sessions: Sequence[Session]) -> float:
    """Return the usual seconds from the end of one launch to the first line of the next."""
    in_order = sorted(sessions, key=lambda session: session.begun_s)
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


def show(ladder: Ladder, *, as_json: bool) -> None:
    """Print what would be started: the stages and the launches, or all of it as JSON."""
    missing = ladder.missing()
    commands = {launch.name: ladder.command(launch) for launch in missing}
    needed = estimate(ladder.campaign, ladder.folder, missing)
    stages = Stages(ladder.campaign.jobs.stage, ladder.results, click.echo)
    if as_json:
        facts = {
            "folder": str(ladder.folder),
            "launches": commands,
            "expected_s": needed and needed.total_s,
            "stages": [stage.name for stage in stages.stages],
        }
        click.echo(json.dumps(facts, indent=1))
        return
    click.echo(summary(ladder.campaign, len(missing)))
    if missing:
        click.echo(expected(needed))
    for stage in stages.of("before"):
        click.echo(f"# stage {stage.name}{', done' if stages.is_done(stage) else ''}")
        click.echo(stage.command)
    for command in commands.values():
        click.echo(shlex.join(command))
    for stage in stages.of("after"):
        click.echo(f"# stage {stage.name}, {stage.dependency}\n{stage.command}")


def expected(needed: Needed | None) -> str:
    """Say how long the launches will take, as far as anything tells."""
    if needed is None:
        return "No campaign like it has run here: how long it takes is said after the first case."
    whose = "this campaign's" if needed.is_own else f"{needed.source}'s"
    return f"About {in_words(needed.total_s)}, by how long {whose} launches took here."


def _cases(campaign: Campaign) -> str:
    return counted(campaign.num_cases(), "case") if campaign.studies else "all cases"


def announce(ladder: Ladder, num_missing: int) -> None:
    """Print what is to be measured, and a warning where other tests were measured before."""
    click.echo(summary(ladder.campaign, num_missing), err=True)
    if warning := other_commit(ladder):
        click.echo(warning, err=True)


def other_commit(ladder: Ladder) -> str:
    """Return a warning of launches that measured another commit of one's own tests, if any did."""
    paths = [Path(test.partition("::")[0]) for test in ladder.campaign.tests]
    here = {processes.git_state(path if path.is_dir() else path.parent)[0] for path in paths}
    results = ladder.results
    heads = [next(iter(journal.read(results.journal(name))), {}) for name in results.names()]
    launches = (head.get("launch") or {} for head in heads)
    known = [(launch.get("provenance") or {}).get("project_commit") for launch in launches]
    others = sorted({str(commit) for commit in known if commit} - here)
    if not others or None in here:
        return ""
    return (
        f"Warning: {ladder.folder} holds launches of commit {listed(others)}, and the tests are at "
        f"{listed(sorted(filter(None, here)))}; give --name for a folder of this commit, and "
        "compare the two"
    )


def changed_tests(ladder: Ladder) -> dict[str, list[str]]:
    """Return the files of one's own tests that were edited since, and the launches of before.

    A case that has no result holds nothing: it may have failed, and be mended.
    """
    found: dict[str, set[str]] = {}
    paths = [Path(test.partition("::")[0]) for test in ladder.campaign.tests]
    files = [
        file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])
    ]
    now = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    for name in ladder.results.names():
        for case, entry in journal.measured(ladder.results.journal(name)).items():
            record = entry.get("extra_info", {}).get(KEY, {})
            named = Path(case.partition("::")[0]).name
            alike = {file: sha256 for file, sha256 in now.items() if file.name == named}
            then = record.get("workload_sha256")
            # A case of a size has its workload in the digest as well: its ranks compare that.
            is_own = "workload=" not in case
            if is_own and then and alike and then not in alike.values():
                for file in alike:
                    found.setdefault(str(file), set()).add(name)
    return {file: sorted(launches) for file, launches in sorted(found.items())}


def to_replace(ladder: Ladder, named: Sequence[str], *, replace: bool) -> list[str]:
    """Return the launches to measure again: those named, and those of other settings or tests.

    Raises:
        ValueError: No launch has a name, or tests were edited and `replace` is not given.
    """
    names = ladder.results.names()
    if unknown := sorted(set(named) - set(names)):
        raise ValueError(
            f"--replace-launch: {ladder.folder} holds no launch {listed(unknown)}; it holds "
            f"{listed(names, 8) or 'none'}"
        )
    if replace and ladder.results.held(ladder.campaign):
        return names
    changed = changed_tests(ladder)
    launches = sorted({name for of_file in changed.values() for name in of_file} - set(named))
    if launches and not replace:
        raise ValueError(
            f"{listed(list(changed), 3)} changed after {listed(launches, 3)} of {ladder.folder} "
            "measured it; give --name for a folder of what the tests measure now, or --replace to "
            "move those launches aside and measure them again"
        )
    return sorted({*launches, *named})


def set_aside(ladder: Ladder, launches: Sequence[str]) -> None:
    """Move launches into a folder of their own beside those that count, and say where."""
    if not launches:
        return
    aside = ladder.folder / "replaced" / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    aside.mkdir(parents=True)
    for name in launches:
        ladder.results.launch(name).rename(aside / name)
    click.echo(f"Moved to {aside}: {listed(launches, 3)}", err=True)


def summary(campaign: Campaign, num_missing: int) -> str:
    """Return in a line what is to be measured."""
    ladder = ", ".join(map(str, campaign.world_sizes))
    return (
        f"{campaign.name}: {', '.join(campaign.studies or campaign.tests)} at world size {ladder}, "
        f"{_cases(campaign)} a launch, "
        f"{counted(campaign.repeats, 'repeat')}; {counted(num_missing, 'launch')} to make"
    )
