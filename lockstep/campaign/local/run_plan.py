"""What `lockstep run` is about to start, and how long that will take, in words or as JSON."""

import hashlib
import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from lockstep.campaign.campaign import Campaign
from lockstep.campaign.local.ladder import Ladder
from lockstep.campaign.local.local_stages import Stages
from lockstep.campaign.local.time_needed import Needed, estimate
from lockstep.core.records import journal
from lockstep.core.records.record import KEY
from lockstep.core.system import git
from lockstep.core.text.durations import in_words
from lockstep.core.text.formats import counted, listed


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
    here = {git.state(path if path.is_dir() else path.parent)[0] for path in paths}
    results = ladder.results
    heads = [next(iter(journal.read(results.journal(name))), {}) for name in results.names()]
    launches = (head.get("launch") or {} for head in heads)
    known = [(one.get("provenance") or {}).get("project_commit") for one in launches]
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
