"""A campaign's standing as plain data and as text, arrays summarised."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from lockstep.campaign.folder import Outcome
from lockstep.core.formats import in_words
from lockstep.slurm import client as slurm
from lockstep.slurm.client import State
from lockstep.slurm.status import by_hand
from lockstep.slurm.status.causes import OF_CAMPAIGN, advise, key_to_mend
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import Campaign, Standing, counts

# A thousand elements or launches are counted; so many of those that need a look are named.
MAX_NAMED = 8
# state -> how a summary of an array calls the elements in it
SHORT = {
    "COMPLETED": "done",
    "RUNNING": "run",
    "STALLED": "stalled",
    "COMPLETING": "end",
    "PENDING": "wait",
    "CANCELLED": "cancelled",
    "FAILED": "failed",
    "TIMEOUT": "over time",
    "OUT_OF_MEMORY": "out of memory",
    "NODE_FAIL": "lost a node",
    "PREEMPTED": "preempted",
}
# The state that an array has as a whole is the first of these that an element is in.
ORDER = ("STALLED", "RUNNING", "COMPLETING", "PENDING", "unknown", "LOST")


def facts(campaign: Campaign, results: Results, folder: str) -> dict[str, Any]:
    """Return a campaign's state as JSON has it: a row for each job, an array being one."""
    return {
        "jobs": [_row(group, campaign, results, folder) for group in _groups(campaign.jobs)],
        "launches": {name: vars(outcome) for name, outcome in campaign.launches.items()},
        "refused": results.refusals(),
        "num_planned": len(campaign.planned),
        "num_complete": campaign.num_complete,
        "abandoned": campaign.abandoned,
        "errors": list(campaign.errors),
    }


def lines(known: Mapping[str, Any], campaign: Campaign, results: Results, folder: str) -> list[str]:
    """Return a campaign's state as lines for a terminal, by its `facts`."""
    text = []
    for row in known["jobs"]:
        text += _job_lines(row)
    text += [f"{name}: not sent; {why}" for name, why in results.refusals().items()]
    text += _launch_lines(campaign)
    return text + _command_lines(campaign, results, folder)


def _groups(standings: Sequence[Standing]) -> list[list[Standing]]:
    return [list(group) for _, group in groupby(standings, key=lambda standing: standing.job.uuid)]


def _row(
    group: Sequence[Standing], campaign: Campaign, results: Results, folder: str
) -> dict[str, Any]:
    head = _representative(group)
    job, account = head.job, head.account or {}
    launches = [name for element in group for name in element.job.launches]
    left = [element for element in group if not _is_done(element, campaign)]
    typed = shlex.quote(folder)
    array = {} if job.element is None else _array(group, left, campaign, results, typed)
    return {
        "id": by_hand.whole(job.id) if job.id else None,
        "job": job.name,
        "kind": job.kind,
        "user": head.user,
        "by_hand": job.by_hand,
        "state": head.state.name,
        "reason": head.state.reason if head.state.name == "PENDING" else None,
        "meaning": head.state.meaning.replace("{id}", str(job.id)),
        "advice": _advice(head, campaign, results, typed) if head in left else None,
        "mend": key_to_mend(head, results) if head in left else None,
        "queue_wait_s": head.wait_s,
        "since_submission_s": head.sent_s,
        "elapsed_s": account.get("elapsed_s"),
        "nodes": account.get("nodes"),
        "num_launches": len(launches),
        "num_complete": sum(map(campaign.is_complete, launches)),
        "script": str(results.jobs_folder / f"{job.name}.sh"),
        "log": _log(head, results),
        **array,
    }


def _is_done(standing: Standing, campaign: Campaign) -> bool:
    """Return whether nothing is left of a job's launches; one of no launches never is done."""
    launches = standing.job.launches
    return bool(launches) and all(map(campaign.is_settled, launches))


def _advice(standing: Standing, campaign: Campaign, results: Results, typed: str) -> str | None:
    """Return what to do about a job, by what the others of its campaign do."""
    left = {name for name in standing.job.launches if not campaign.is_settled(name)}
    return advise(
        standing,
        results,
        typed,
        is_last=all(other.has_ended for other in campaign.jobs if other is not standing),
        is_continued=bool(left) and left <= campaign.coming,
    )


def _representative(group: Sequence[Standing]) -> Standing:
    """Return the element whose state tells most of its array: what goes on, else what is wrong."""

    def rank(element: Standing) -> int:
        name = element.state.name
        return ORDER.index(name) if name in ORDER else len(ORDER) + (not element.is_bad)

    return min(group, key=rank)


def _array(
    group: Sequence[Standing],
    left: Sequence[Standing],
    campaign: Campaign,
    results: Results,
    typed: str,
) -> dict[str, Any]:
    """Return what a row says of an array: all its elements, and those that left work undone."""
    bad = [element for element in left if element.is_bad]
    return {
        "elements": counts(group),
        "ended_badly": [
            {
                "id": element.job.id,
                "state": element.state.name,
                "meaning": element.state.meaning,
                "launch": (*element.job.launches, None)[0],
                "advice": _advice(element, campaign, results, typed),
            }
            for element in bad
        ],
    }


def _log(standing: Standing, results: Results) -> str | None:
    job = standing.job
    if job.id is None:
        return None
    path = results.output(job)
    return str(
        path if job.element is None else path.with_name(f"slurm-{by_hand.whole(job.id)}_*.out")
    )


def headlines(campaign: Campaign, results: Results, folder: str) -> list[str]:
    """Return a line for each job that changes only when the job's standing does."""
    return [
        f"{_headline(row)} ({_complete(row)})" if row["num_launches"] else _headline(row)
        for row in facts(campaign, results, folder)["jobs"]
    ]


def _headline(row: Mapping[str, Any]) -> str:
    title = f"{row['job']}, job {row['id'] or '-'}{whose(row)}"
    if "elements" in row:
        return f"{title}, array: {_summary(row['elements'])}"
    return f"{title}: {row['state']}, {row['meaning']}"


def whose(row: Mapping[str, Any]) -> str:
    """Say of a job if it was sent by hand, and whose it is if that is another user."""
    by_hand = ", sent by hand" if row["by_hand"] else ""
    is_own = row["user"] in (None, slurm.own_name())
    return by_hand if is_own else f"{by_hand}, of {row['user']}"


def _job_lines(row: Mapping[str, Any]) -> list[str]:
    text = [_headline(row), *_last_known(row)]
    if "elements" in row:
        text += [f"  {row['meaning']}"] if row["state"] == "PENDING" else []
        text += _bad_elements(row["ended_badly"])
    elif row["advice"]:
        text.append(f"  {row['advice']}")
    times = "; ".join(_times(row))
    text += [f"  {times}"] if times else []
    return text + ([f"  log: {row['log']}"] if row["log"] else [])


def _last_known(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what Slurm last said of a job that it says nothing of now, with the age of that."""
    if known := row.get("last_known"):
        ago_s = time.time() - datetime.fromisoformat(known["time"]).timestamp()
        meaning = State(known["state"]).meaning.replace("{id}", str(row["id"]))
        yield f"  {in_words(max(0.0, ago_s))} ago: {known['state']}, {meaning}"


def _times(row: Mapping[str, Any]) -> Iterator[str]:
    if row["queue_wait_s"] is not None:
        yield f"waited {in_words(row['queue_wait_s'])}"
    if row["since_submission_s"] is not None:
        yield f"submitted {in_words(row['since_submission_s'])} ago"
    if "elements" not in row and _has_begun(row):
        yield f"ran {ran(row)}"
    if row["num_launches"]:
        yield _complete(row)


def ran(row: Mapping[str, Any]) -> str:
    """Say how long a job ran and on which nodes, which an array's elements do not share."""
    where = f" on {row['nodes']}" if row["nodes"] and "elements" not in row else ""
    return f"{in_words(row['elapsed_s'] if _has_begun(row) else None)}{where}"


def _has_begun(row: Mapping[str, Any]) -> bool:
    """Return whether Slurm says of a job that it ran: one that never began has an elapsed 0 s."""
    return bool(row["elapsed_s"] or row["nodes"])


def _complete(row: Mapping[str, Any]) -> str:
    return f"{row['num_complete']} of {row['num_launches']} launches complete{by_whom(row)}"


def by_whom(row: Mapping[str, Any]) -> str:
    """Say that launches of a job may be complete by another, as after a bad end."""
    is_bad_end = row["state"] in slurm.ENDED and row["state"] != "COMPLETED"
    return ", by any job" if is_bad_end else ""


def _summary(elements: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {SHORT.get(name, name)}" for name, count in elements.items())


def _bad_elements(bad: Sequence[Mapping[str, Any]]) -> list[str]:
    text = [
        f"  {element['id']} ({element['launch']}): {element['state']}, {element['meaning']}; "
        f"{element['advice']}"
        for element in bad[:MAX_NAMED]
    ]
    return text + (
        [f"  and {len(bad) - MAX_NAMED} more; --json names them"] if bad[MAX_NAMED:] else []
    )


def _launch_lines(campaign: Campaign) -> list[str]:
    text = [f"launches: {campaign.num_complete} of {len(campaign.planned)} complete"]
    begun = [outcome for outcome in campaign.launches.values() if not outcome.complete]
    text += [f"  {outcome.name}: {_how_far(outcome)}" for outcome in begun[:MAX_NAMED]]
    if begun[MAX_NAMED:]:
        text.append(f"  and {len(begun) - MAX_NAMED} more that have begun")
    return text


def _how_far(outcome: Outcome) -> str:
    if outcome == Outcome(outcome.name):
        return "begins, and has not said yet what it will measure"
    counted = f"{outcome.measured} measured, {len(outcome.failed)} failed"
    return f"{counted}, {outcome.remaining} left"


def _command_lines(campaign: Campaign, results: Results, folder: str) -> list[str]:
    """Return commands to copy, with the ids and paths they need."""
    monitor = monitor_commands(campaign, results, folder)
    text = [*monitor[:-1], *next_commands(campaign, results, folder), *monitor[-1:]]
    return ["Next:", *(f"  {line}" for line in text)]


def monitor_commands(campaign: Campaign, results: Results, folder: str) -> list[str]:
    """Return the commands that follow the jobs which may still write; the last is ours."""
    opened = _opened(campaign)
    watch = f"lockstep status {shlex.quote(folder)} --watch"
    return [*_open_lines(opened, results, folder), watch] if opened else []


def next_commands(campaign: Campaign, results: Results, folder: str) -> list[str]:
    """Return the commands that go on from here."""
    typed = shlex.quote(folder)
    unsent = _unsent(campaign, results)
    if _opened(campaign) or (unsent and campaign.jobs):
        return unsent
    if campaign.jobs:
        verb = _after_jobs(campaign, results)
        keys = _to_mend(campaign, results) if verb == "resume" else set()
        if keys & {"", *OF_CAMPAIGN}:
            return ["lockstep submit CAMPAIGN --site SITE  # once the cause is mended"]
        if keys:
            return [f"lockstep resume {typed} --site SITE  # once that file is mended"]
        return [f"lockstep {verb} {typed}"]
    if results.refusals():
        return ["lockstep submit CAMPAIGN --site SITE  # once what sbatch refused is mended"]
    is_left = campaign.num_complete < len(campaign.planned)
    if unsent:
        return [*unsent, f"lockstep resume {typed}  # or all at once, as lockstep submit does"]
    if results.jobs_folder.exists() and is_left:
        return ["lockstep submit CAMPAIGN --site SITE"]
    # Where no jobs were written, `lockstep run` measured: nothing else takes up what it left.
    claimed = results.claimed() or {}
    tests, name = ",".join(claimed.get("tests") or ()), str(claimed.get("name"))
    measured = shlex.join(["--tests", tests, "--name", name]) if tests else "CAMPAIGN"
    again = [f"lockstep run {measured}  # with the options of before: it goes on"] * is_left
    return [*again, f"lockstep report {typed}"]


def _opened(campaign: Campaign) -> list[Standing]:
    """Return the jobs that may still write."""
    sent = (standing for standing in campaign.jobs if standing.job.id)
    return [standing for standing in sent if _may_write(standing, campaign)]


def _unsent(campaign: Campaign, results: Results) -> list[str]:
    """Return the commands for scripts that were not sent, where jobs are sent by hand."""
    if not all(standing.job.by_hand for standing in campaign.jobs):
        return []
    sent = {standing.job.name for standing in campaign.jobs}
    scripts = {name: facts for name, facts in results.scripts().items() if name not in sent}
    launches = {launch for facts in scripts.values() for launch in facts["launches"]}
    if campaign.jobs and all(map(campaign.is_complete, launches)):
        return []  # what is left of them measures nothing
    return [by_hand_command(name, facts, results) for name, facts in scripts.items()]


def _to_mend(campaign: Campaign, results: Results) -> set[str]:
    """Return the keys without which a job that left work undone would end in the same way."""
    left = set(campaign.abandoned)
    last = {standing.job.name: standing for standing in campaign.jobs}.values()
    bad = (
        standing
        for standing in last
        if not standing.job.launches or left & {*standing.job.launches}
    )
    return {key for standing in bad if (key := key_to_mend(standing, results)) is not None}


def _may_write(standing: Standing, campaign: Campaign) -> bool:
    """Return whether a job may still write: of an unknown one that left work undone, too."""
    is_over = standing.state.name == "unknown" and _is_done(standing, campaign)
    return not standing.has_ended and not is_over


def _open_lines(opened: Sequence[Standing], results: Results, folder: str) -> Iterator[str]:
    in_line = [
        standing
        for standing in opened
        if (standing.state.name == "PENDING" and standing.state.reason in slurm.IN_LINE)
    ]
    ids = dict.fromkeys(by_hand.whole(str(standing.job.id)) for standing in in_line or opened)
    running = [standing for standing in opened if standing.state.name == "RUNNING"]
    if running:
        yield f"tail -f {shlex.quote(str(results.output(running[0].job)))}"
    options = [*slurm.cluster_options(), *(["--start"] if in_line else [])]
    yield " ".join(["squeue", *options, f"--jobs={','.join(ids)}"])
    if all(standing.user in (None, slurm.own_name()) for standing in opened):
        # A comment: pasted with the other lines, it must end nothing.
        yield f"# to end them: lockstep cancel {shlex.quote(folder)}"


def _after_jobs(campaign: Campaign, results: Results) -> str:
    if campaign.abandoned:
        return "resume"
    return "report" if results.is_collected() else "status --collect"


def by_hand_command(name: str, script: Mapping[str, Any], results: Results) -> str:
    """Return how a script that is written is sent by hand."""
    after = [(str(wait.get("job")), str(wait.get("how"))) for wait in script["after"]]
    return by_hand.command(results.jobs_folder / f"{name}.sh", after)
