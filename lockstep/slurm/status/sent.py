"""The folder of a campaign under Slurm: its submitted jobs and the files that they wrote.

Functions that read a journal or a record of the folder raise ValueError if it is corrupt.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.campaign.folder import Folder
from lockstep.core import files, journal, locks
from lockstep.slurm import client as slurm
from lockstep.slurm.client import CLUSTER, ENDED, own_name

UNNAMED = "sent by hand"
# What a process can end with, also 128 + its signal.
LARGEST_CODE = 255
_OUTPUT = re.compile(r"slurm-([0-9]+(?:_[0-9]+)?)\.out", re.ASCII)


@dataclass(frozen=True)
class Job:
    """A submitted job: a single one, or one element of an array.

    Attributes:
        id: Slurm's id, `ID_K` for an element; None if sbatch's answer was lost.
        kind: ladder, job, array, preflight, profile or collect.
        uuid: The comment by which squeue finds it.
        sent: When it was submitted, in ISO 8601.
        element: Number of the element of an array; None for a single job.
        user: Who submitted it; None if that is not recorded.
        cancelled: Whether `lockstep cancel` ended it.
        by_hand: Whether it was found by its files, without a record of its submission.
    """

    id: str | None
    name: str
    kind: str
    uuid: str
    sent: str
    launches: tuple[str, ...]
    element: int | None = None
    user: str | None = None
    cancelled: bool = False
    by_hand: bool = False


@dataclass(frozen=True)
class JobEvent:
    """The end of a job, reported by Slurm's `EpilogSlurmctld`.

    That the job has ended is certain; the status is less reliable than the job's own record or
    accounting: Slurm 22.05 gives the epilog exit code 0 also for a job that reached its time
    limit, was cancelled, or lost a node.

    Attributes:
        job_id: Its id, `ID_K` for an element of an array.
        status: Slurm's state, as far as the epilog knows it.
        exit_code: Exit code of its script, or 128 + its signal.
        at: When the event was sent, in seconds since the epoch.
    """

    job_id: str
    status: str
    exit_code: int
    at: int


def parse_event(value: object, at: int) -> JobEvent:
    """Return the event of a JSON value.

    Raises:
        ValueError: A key is missing or has a wrong value.
    """
    if not isinstance(value, dict):
        raise ValueError("not a JSON object; send job_id, status and exit_code")
    job_id, status, code = (value.get(name) for name in ("job_id", "status", "exit_code"))
    if not isinstance(job_id, str) or not re.fullmatch("[0-9]{1,18}(_[0-9]{1,9})?", job_id):
        raise ValueError("job_id is not an id of Slurm, such as 17 or 17_3")
    if status not in ENDED:
        raise ValueError(f"status is not one of {', '.join(sorted(ENDED))}")
    if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code <= LARGEST_CODE:
        raise ValueError(f"exit_code is not a number from 0 to {LARGEST_CODE}")
    return JobEvent(job_id, str(status), code, at)


class Results(Folder):
    """The folder of a campaign that runs under Slurm."""

    @property
    def jobs_folder(self) -> Path:
        """The folder of scripts, their output and the record of submissions."""
        return self.path / "jobs"

    @property
    def submissions_file(self) -> Path:
        """The record of submissions, with a line before and one after each."""
        return self.jobs_folder / "submitted.jsonl"

    @property
    def scripts_file(self) -> Path:
        """The launches and dependencies of each written script."""
        return self.jobs_folder / "scripts.json"

    @property
    def accounting_file(self) -> Path:
        """The accounting of the jobs that have ended."""
        return self.path / "accounting.json"

    @property
    def events_file(self) -> Path:
        """The record of the events of jobs that ended."""
        return self.path / "events.jsonl"

    @property
    def set_aside_folder(self) -> Path:
        """The folder of launches that were replaced by new ones, each as NAME-TIME."""
        return self.path / "launches-set-aside"

    def journals(self) -> Iterator[tuple[str, Path]]:
        """Yield (launch, journal) of all launches, including those set aside."""
        for name in self.names():
            yield name, self.journal(name)
        for path in sorted(self.set_aside_folder.glob("*/journal.jsonl")):
            yield path.parent.name.rpartition("-")[0], path

    def output(self, job: Job) -> Path:
        """Return the output file of a job's batch script."""
        return self.jobs_folder / f"slurm-{job.id}.out"

    def side_log(self, job: Job) -> Path:
        """Return the output file of the program that a preflight or collecting job starts."""
        return self.jobs_folder / f"{job.kind}-{job.id}.txt"

    def _recorded(self) -> list[dict[str, Any]]:
        """Return each attempted submission with all its recorded keys."""
        path = self.submissions_file
        entries: dict[str, dict[str, Any]] = {}
        for entry in journal.read(path) if path.exists() else []:
            _check(entry, path)
            for name in entry.get("launches", ()):
                self.launch(name)  # refuses one that leads elsewhere
            before = entries.get(entry["uuid"], {"id": None})
            cancelled = [*before.get("cancelled", ()), *entry.get("cancelled", ())]
            # Each line has a time; the first one is that of the submission.
            kept = {"cancelled": cancelled, "time": before.get("time", entry.get("time", ""))}
            entries[entry["uuid"]] = before | entry | kept
        return list(entries.values())

    def submissions(self) -> list[dict[str, Any]]:
        """Return the submitted jobs, each with its id, or None if sbatch's answer was lost."""
        entries = self._recorded()
        return [entry for entry in entries if not entry.get("refused") and "job" in entry]

    def refusals(self) -> dict[str, str]:
        """Return job -> sbatch's refusal, for jobs that were not submitted since."""
        last = {entry["job"]: entry.get("refused") for entry in self._recorded() if "job" in entry}
        return {name: str(why) for name, why in last.items() if why}

    def cluster(self) -> str | None:
        """Return the cluster of the last submitted job; None if sbatch named none."""
        named = [entry.get("cluster") for entry in self.submissions() if entry["id"] is not None]
        return named[-1] if named else None

    def job_ids(self) -> list[str]:
        """Return the ids of the submitted jobs, an array's once."""
        return [entry["id"] for entry in self.submissions() if entry["id"] is not None]

    def jobs(self) -> list[Job]:
        """Return the submitted jobs, with each element of an array as one job."""
        jobs = []
        for entry in self.submissions():
            launches, ended = tuple(entry.get("launches", ())), set(entry["cancelled"])
            kind, user = entry.get("kind", "ladder"), entry.get("user")
            shared = (entry["job"], kind, entry["uuid"], entry.get("time", ""))
            if kind == "array":
                for number, launch in enumerate(launches):
                    job_id = entry["id"] and f"{entry['id']}_{number}"
                    jobs.append(Job(job_id, *shared, (launch,), number, user, number in ended))
            else:
                jobs.append(Job(entry["id"], *shared, launches, user=user, cancelled=bool(ended)))
        return jobs

    def users(self) -> list[str]:
        """Return who may have submitted jobs, including this user; empty if that is not known."""
        users = {entry.get("user") for entry in self.submissions()}
        return [] if None in users or not users else sorted({own_name(), *map(str, users)})

    def note(self, entry: Mapping[str, Any]) -> None:
        """Add a line to the record of submissions.

        Raises:
            OSError: It cannot be written.
        """
        record = journal.Journal(self.submissions_file)
        try:
            record.append(entry)
        finally:
            record.close()

    def is_collected(self) -> bool:
        """Return whether `collect` has run since the launches last wrote."""
        return self.accounting_file.exists() and not any(
            journal.is_ahead(self.journal(name), self.result(name)) for name in self.names()
        )

    def scripts(self) -> dict[str, dict[str, Any]]:
        """Return job -> the record of its script, for the written scripts."""
        try:
            scripts = files.parse(files.content(self.scripts_file))["jobs"]
            return {str(name): script for name, script in scripts.items() if _is_script(script)}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}  # none, or of an earlier version

    def exits(self) -> dict[str, dict[str, Any]]:
        """Return SLURM_JOB_ID -> the record that the job's script wrote at its end."""
        records = {}
        for path in sorted(self.jobs_folder.glob("exit-*.json")):
            try:
                record = files.parse(files.content(path))
            except ValueError:
                continue  # not a record: the job counts as one without
            if isinstance(record, dict) and isinstance(record.get("exit_code"), int):
                records[str(record.get("job_id", path.stem.removeprefix("exit-")))] = record
        return records

    def staging(self) -> dict[str, dict[str, float]]:
        """Return SLURM_JOB_ID -> seconds of copying files in and out, and cache hits and misses."""
        path = self.jobs_folder / "staging.jsonl"
        entries = journal.read(path) if path.exists() else []
        names = ("stage_in_s", "stage_out_s", "cache_hits", "cache_misses")
        return {
            str(entry["job_id"]): {
                name: entry[name] for name in names if isinstance(entry.get(name), int | float)
            }
            for entry in entries
            if "job_id" in entry
        }

    def event_entries(self) -> list[dict[str, Any]]:
        """Return the lines of the record of events, oldest first."""
        return journal.read(self.events_file) if self.events_file.exists() else []

    def events(self) -> dict[str, JobEvent]:
        """Return job id -> its last event."""
        events = {}
        for entry in self.event_entries():
            try:
                event = parse_event(entry, int(entry.get("at", 0)))
            except (ValueError, TypeError):
                continue  # of another version: the job counts as one without
            events[event.job_id] = event
        return events

    def is_ours(self, command: str) -> bool:
        """Return whether a job's script, whose path squeue shows, is in this folder."""
        if not command.startswith("/"):
            return False  # Slurm does not show it
        return Path(command).resolve().is_relative_to(self.jobs_folder.resolve())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder's lock, the same that `lockstep run` holds.

        Raises:
            ValueError: Another command changes the folder, or its file system has no locks.
        """
        try:
            self.jobs_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{self.path}: {error.strerror}; give --to another folder") from error
        with (self.path / ".lock").open("a", encoding="utf-8") as lock:
            if not locks.take(lock):
                raise ValueError(locks.in_use(self.path))
            locks.sign(lock)
            yield

    @contextmanager
    def merging(self, say: Callable[[str], None]) -> Iterator[None]:
        """Hold the lock under which `collect` merges its findings, for an instant.

        No job holds this lock, nor a command that asks Slurm. `say` gets a warning on a file system
        without locks, where two concurrent collects may overwrite each other.
        """
        with (self.path / ".collect.lock").open("a", encoding="utf-8") as lock:
            try:
                locks.take(lock, math.inf)
            except locks.NoLocksError:
                say(
                    f"{self.path} is on a file system without locks; run only one collect at a time"
                )
            yield


def _check(entry: dict[str, Any], path: Path) -> None:
    """Refuse a line that is not a record of a submission or of its outcome."""
    for name in ("uuid", "job", "kind", "time"):
        if not isinstance(entry.get(name, "" if name != "uuid" else None), str):
            raise ValueError(
                f"{path}: a line has no {name}, so this is not a record of submissions"
            )
    job, job_id, cluster = entry.get("job", ""), entry.get("id"), entry.get("cluster")
    cancelled = entry.get("cancelled", [])
    # Control characters in a name would act on a terminal.
    for name, value, is_right in (
        ("job", job, job.isprintable()),
        ("id", job_id, job_id is None or _fits("[0-9]+", job_id)),
        ("cluster", cluster, cluster is None or _fits(CLUSTER.pattern, cluster)),
        ("launches", entry.get("launches"), files.are_texts(entry.get("launches", []))),
        ("cancelled", cancelled, isinstance(cancelled, list)
         and all(isinstance(number, int) for number in cancelled)),
    ):  # fmt: skip
        if not is_right:
            given = str(value)[:80]
            raise ValueError(f"{path}: a line has the {name} {given!r}, which is not that of a job")


def _fits(pattern: str, value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_script(script: object) -> bool:
    if not isinstance(script, dict) or not isinstance(script.get("kind"), str):
        return False
    after = script.get("after")
    is_whole = isinstance(after, list) and all(isinstance(job, dict) for job in after)
    return is_whole and files.are_texts(script.get("launches"))


def writers(header: Mapping[str, Any]) -> Iterator[str]:
    """Yield the SLURM_JOB_ID of a session that wrote to a journal, for an array also `ID_K`."""
    facts: Any = header.get("launch")
    for name in ("provenance", "slurm"):
        facts = facts.get(name) if isinstance(facts, dict) else None
    if isinstance(facts, dict):
        yield str(facts.get("SLURM_JOB_ID", ""))
        if "SLURM_ARRAY_JOB_ID" in facts:
            yield f"{facts['SLURM_ARRAY_JOB_ID']}_{facts.get('SLURM_ARRAY_TASK_ID')}"


def whole(job_id: str) -> str:
    """Return a job's id, for an element the id of its array."""
    return job_id.partition("_")[0]


# Jobs submitted by hand are found by their scripts' files: `slurm-ID.out` from the start,
# `exit-ID.json` at the end, and the journals of their sessions. A pending one is found in squeue by
# its script's path.


def ids_by_hand(
    results: Results, sent: Sequence[Job], queue: Mapping[str, slurm.Queued] | None
) -> list[str]:
    """Return the ids of jobs without a record of their submission, `ID_K` for an array."""
    recorded = {whole(job.id) for job in sent if job.id}
    comments = {job.uuid for job in sent}
    # An earlier version's record names no job, and may have another id for an element than squeue.
    left = [job_id for job_id, record in results.exits().items() if record.get("job")]
    # A job of `submit` has a comment, and stays in squeue as failed if Slurm refused it.
    waiting = [
        job_id
        for job_id, held in (queue or {}).items()
        if results.is_ours(held.command)
        and held.comment not in comments
        and not (held.comment and held.state.has_ended)
    ]
    candidates = dict.fromkeys([*_outputs(results), *left, *waiting])
    return [job_id for job_id in candidates if whole(job_id) not in recorded]


def users_to_ask(results: Results, sent: Sequence[Job]) -> list[str]:
    """Return the users to ask squeue about; empty for everybody if jobs were submitted by hand."""
    recorded = {whole(job.id) for job in sent if job.id and not job.by_hand}
    return results.users() if {*map(whole, _outputs(results))} <= recorded else []


def _outputs(results: Results) -> list[str]:
    names = [path.name for path in results.jobs_folder.glob("slurm-*.out")]
    return [match[1] for name in sorted(names) if (match := _OUTPUT.fullmatch(name))]


def jobs_by_hand(
    results: Results,
    job_ids: Sequence[str],
    queue: Mapping[str, slurm.Queued] | None,
    accounts: Mapping[str, Mapping[str, Any]],
) -> list[Job]:
    """Return the jobs of these ids, with their launches as far as known."""
    if not job_ids:
        return []
    scripts, exits, jobs = results.scripts(), results.exits(), []
    wrote = {
        name: {
            writer
            for entry in journal.read(results.journal(name))
            if entry.get("kind") == "launch"
            for writer in writers(entry)
        }
        for name in results.names()
    }
    for job_id in job_ids:
        array_id, _, element = job_id.partition("_")
        held, account = (queue or {}).get(job_id), accounts.get(job_id, {})
        path = Path(held.command.split(" ")[0]).stem if held else None
        name = str(exits.get(job_id, {}).get("job") or path or account.get("name") or UNNAMED)
        if script := scripts.get(name):
            kind, launches = script["kind"], script["launches"]
            launches = launches[int(element) :][:1] if element else launches
        else:  # by the journals that it wrote to
            kind = "array" if element else "ladder"
            launches = [launch for launch, jobs_of in wrote.items() if job_id in jobs_of]
        number = int(element) if element else None
        user = held.user if held else account.get("user")
        uuid = f"by hand:{array_id}"  # the same for all elements of an array
        made = tuple(launches)
        jobs.append(Job(job_id, name, kind, uuid, "", made, number, user, by_hand=True))
    return jobs
