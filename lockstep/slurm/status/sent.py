"""The folder of a campaign under Slurm: its submitted jobs and the files that they wrote.

Functions that read a journal or a record of the folder raise ValueError for a corrupt file.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.campaign.folder import Folder
from lockstep.core import files, journal, locks
from lockstep.slurm import client as slurm
from lockstep.slurm.client import CLUSTER, ENDED, own_name

UNNAMED = "sent by hand"
# Keys of a job's staging record: seconds of copying to a node and back, files that were or were
# not in the node's cache.
STAGING = ("stage_in_s", "stage_out_s", "cache_hits", "cache_misses")
LARGEST_CODE = 255  # the largest exit code of a process
_OUTPUT = re.compile(r".+-([0-9]+(?:_[0-9]+)?)\.out", re.ASCII)
_TEXT = re.compile(".*", re.DOTALL)
# Keys of a line of the record of submissions -> patterns of their texts. Control characters in a
# job's name would act on a terminal.
_FORMS = {"uuid": _TEXT, "job": re.compile(r"[^\x00-\x1f\x7f-\x9f]*"), "kind": _TEXT, "time": _TEXT,
          "id": re.compile("[0-9]+"), "cluster": CLUSTER}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A submitted job: a single one, or one element of an array."""

    id: str | None  # Slurm's id, `ID_K` for an element; None if sbatch's answer was lost
    name: str
    kind: str  # ladder, job, array, stage, fallback, preflight, profile or collect
    uuid: str  # value of sbatch's --comment, which identifies the job in squeue
    sent: str  # time of submission, in ISO 8601
    launches: tuple[str, ...]
    element: int | None = None  # number of the array element
    user: str | None = None  # who submitted the job, if recorded
    cancelled: bool = False  # by `lockstep cancel`
    by_hand: bool = False  # submitted by sbatch itself, so without a record of its submission


@dataclass(frozen=True)
class JobEvent:
    """The end of a job, reported by Slurm's `EpilogSlurmctld`.

    The status is less reliable than the job's own record or accounting: Slurm 22.05 gives the
    epilog exit code 0 even for a job that reached its time limit, was cancelled, or lost a node.
    """

    job_id: str
    status: str
    exit_code: int  # of the script, or 128 + its signal
    at: int  # when the event was sent, in seconds since the epoch


def parse_event(value: object, at: int) -> JobEvent:
    """Return the event of a JSON value; ValueError if a key is missing or has a wrong value."""
    if not isinstance(value, dict):
        raise ValueError(
            "the event is not a JSON object; send an object with job_id, status and exit_code"
        )
    job_id, status, code = (value.get(name) for name in ("job_id", "status", "exit_code"))
    if not isinstance(job_id, str) or not re.fullmatch("[0-9]{1,18}(_[0-9]{1,9})?", job_id):
        raise ValueError("job_id is not the id of a Slurm job, such as 17 or 17_3")
    if status not in ENDED:
        allowed = ", ".join(sorted(ENDED))
        raise ValueError(f"status is not one of {allowed}")
    if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code <= LARGEST_CODE:
        raise ValueError(f"exit_code is not a number from 0 to {LARGEST_CODE}")
    return JobEvent(job_id, str(status), code, at)


class _Place:
    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, results: Folder, _: type) -> Path:
        return results.path / self.name


class Results(Folder):
    """The folder of a campaign that runs under Slurm."""

    jobs_folder = _Place("jobs")  # scripts, their output and the record of submissions
    submissions_file = _Place("jobs/submitted.jsonl")  # a line before and after each submission
    scripts_file = _Place("jobs/scripts.json")  # launches and dependencies of each written script
    accounting_file = _Place("accounting.json")  # the accounting of the jobs that have ended
    events_file = _Place("events.jsonl")  # the events of jobs that ended
    set_aside_folder = _Place("launches-set-aside")  # replaced launches, each as NAME-TIME

    def journals(self) -> Iterator[tuple[str, Path]]:
        """Yield (launch, journal) of all launches, including those set aside."""
        for name in self.names():
            yield name, self.journal(name)
        for path in sorted(self.set_aside_folder.glob("*/journal.jsonl")):
            yield path.parent.name.rpartition("-")[0], path

    def output(self, job: Job) -> Path:
        path = self.jobs_folder / f"{job.name}-{job.id}.out"
        if job.by_hand:  # its name may differ from that in its script
            return next(self.jobs_folder.glob(f"*-{job.id}.out"), path)
        older = self.jobs_folder / f"slurm-{job.id}.out"  # of scripts of earlier versions
        return older if older.exists() else path

    def _attempts(self) -> list[dict[str, Any]]:
        """Return each attempted submission with all its recorded keys."""
        entries: dict[str, dict[str, Any]] = {}
        for entry in read_lines(self.submissions_file):
            _check(entry, self.submissions_file)
            for name in entry.get("launches", ()):
                self.launch(name)  # raises ValueError for a name that leads out of the folder
            before = entries.get(entry["uuid"], {"id": None})
            cancelled = [*before.get("cancelled", ()), *entry.get("cancelled", ())]
            # Each line has a time; the time of the first line is that of the submission.
            kept = {"cancelled": cancelled, "time": before.get("time", entry.get("time", ""))}
            entries[entry["uuid"]] = before | entry | kept
        return list(entries.values())

    def submissions(self) -> list[dict[str, Any]]:
        """Return the submitted jobs, each with its id, or None if sbatch's answer was lost."""
        entries = self._attempts()
        return [entry for entry in entries if not entry.get("refused") and "job" in entry]

    def refusals(self) -> dict[str, str]:
        """Return job -> sbatch's refusal, for jobs that have not been submitted since."""
        last = {entry["job"]: entry.get("refused") for entry in self._attempts() if "job" in entry}
        return {name: str(why) for name, why in last.items() if why}

    def cluster(self) -> str | None:
        """Return the cluster of the last submitted job; None if sbatch did not name it."""
        named = [entry.get("cluster") for entry in self.submissions() if entry["id"] is not None]
        return named[-1] if named else None

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

    def note(self, entry: Mapping[str, Any]) -> None:
        append_line(self.submissions_file, entry)

    def scripts(self) -> dict[str, dict[str, Any]]:
        """Return job -> the record of its script, for the written scripts."""
        if not self.scripts_file.exists():
            return {}
        try:
            scripts = dict(files.parse(files.content(self.scripts_file))["jobs"])
            is_whole = all(
                isinstance(script["kind"], str)
                and files.are_texts(script["launches"])
                and all(files.are_texts([wait["job"], wait["how"]]) for wait in script["after"])
                for script in scripts.values()
            )
        except (ValueError, KeyError, TypeError):
            is_whole = False
        if not is_whole:
            raise ValueError(
                f"{self.scripts_file} is damaged; delete this file, then run lockstep submit, "
                "which writes a new file"
            )
        return scripts

    def exits(self) -> dict[str, dict[str, Any]]:
        """Return SLURM_JOB_ID -> the record that the job's script wrote at its end."""
        records = {}
        for path in sorted(self.jobs_folder.glob("exit-*.json")):
            try:
                record = files.parse(files.content(path))
            except ValueError:
                continue  # an unreadable record counts as missing
            if isinstance(record, dict) and isinstance(record.get("exit_code"), int):
                records[str(record.get("job_id", path.stem.removeprefix("exit-")))] = record
        return records

    def staging(self) -> dict[str, dict[str, float]]:
        """Return SLURM_JOB_ID -> the recorded values of `STAGING`."""
        return {
            str(entry["job_id"]): {
                name: entry[name] for name in STAGING if isinstance(entry.get(name), int | float)
            }
            for entry in read_lines(self.jobs_folder / "staging.jsonl")
            if "job_id" in entry
        }

    def events(self) -> dict[str, JobEvent]:
        events = {}
        for entry in read_lines(self.events_file):
            try:
                event = parse_event(entry, int(entry.get("at", 0)))
            except (ValueError, TypeError):
                continue  # an event of another version counts as missing
            events[event.job_id] = event
        return events

    def is_ours(self, command: str) -> bool:
        """Return whether a job's script, whose path squeue shows, is in this folder."""
        if not command.startswith("/"):
            return False  # squeue does not show the path
        return Path(command).resolve().is_relative_to(self.jobs_folder.resolve())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock that `lockstep run` holds; ValueError if another command holds it."""
        try:
            self.jobs_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{self.path}: {error.strerror}; give --to another folder") from error
        with (self.path / ".lock").open("a", encoding="utf-8") as lock:
            if not locks.take(lock):
                raise ValueError(locks.name_holder(self.path))
            locks.sign(lock)
            yield

    @contextmanager
    def hold_collect_lock(self, say: Callable[[str], None]) -> Iterator[None]:
        """Hold the lock under which `collect` writes accounting.json.

        Without locks in the file system, `say` gets a warning: two collects may overwrite each
        other.
        """
        with (self.path / ".collect.lock").open("a", encoding="utf-8") as lock:
            try:
                locks.take(lock, math.inf)
            except locks.NoLocksError:
                say(
                    f"the file system of {self.path} has no locks; run only one lockstep status "
                    "--collect at a time"
                )
            yield


def append_line(path: Path, entry: Mapping[str, Any]) -> None:
    """Add a line to a record of the folder, on disk when this returns."""
    with closing(journal.Journal(path)) as record:
        record.append(entry)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return journal.read(path) if path.exists() else []


def _check(entry: dict[str, Any], path: Path) -> None:
    """Raise ValueError for a line that is no record of a submission or of its outcome."""
    if "uuid" not in entry:
        raise ValueError(f"{path} is not a record of submissions, because a line has no uuid")
    cancelled = entry.get("cancelled", [])
    are_right = {
        name: isinstance(entry[name], str) and form.fullmatch(entry[name]) is not None
        for name, form in _FORMS.items()
        if name in entry and (entry[name] is not None or name not in ("id", "cluster"))
    }
    are_right["launches"] = files.are_texts(entry.get("launches", []))
    are_right["cancelled"] = isinstance(cancelled, list) and all(
        isinstance(number, int) for number in cancelled
    )
    for name in (name for name, is_right in are_right.items() if not is_right):
        value = str(entry[name])[:80]
        raise ValueError(f"{path}: a line has the invalid value {value!r} for the key {name}")


def find_table(entry: Any, *keys: str) -> dict[str, Any]:
    """Return the table at a path of keys in a line of a journal; empty if there is none."""
    for key in keys:
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry if isinstance(entry, dict) else {}


def writers(header: Mapping[str, Any]) -> Iterator[str]:
    """Yield the SLURM_JOB_ID in a journal's launch line; for an array element also `ID_K`."""
    if facts := find_table(header, "launch", "provenance", "slurm"):
        yield str(facts.get("SLURM_JOB_ID", ""))
        if "SLURM_ARRAY_JOB_ID" in facts:
            yield f"{facts['SLURM_ARRAY_JOB_ID']}_{facts.get('SLURM_ARRAY_TASK_ID')}"


def written_at(path: Path) -> float | None:
    """Return when a file last changed, in seconds since the epoch; None for a missing file."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def strip_element(job_id: str) -> str:
    """Return a job's id; for an array element, the id of its array."""
    return job_id.partition("_")[0]


@dataclass(frozen=True)
class Open:
    """A pending or running job of a folder, or an element of an array."""

    queued: slurm.Queued
    element: int | None
    name: str
    uuid: str | None  # of the submission; None if the job was submitted by hand

    def scancel_id(self, point: int | None) -> str:
        """Return the id for scancel: of the array's element `point`, or of the whole job."""
        return self.queued.array_id + ("" if point is None else f"_{point}")


def find_open(results: Results) -> Iterator[Open]:
    """Yield the folder's pending and running jobs; squeue is asked even if no job was sent."""
    sent = results.submissions()
    by_comment = {entry["uuid"]: entry for entry in sent}
    by_id = {entry["id"]: entry for entry in sent}
    for queued in slurm.queue().values():
        entry = by_comment.get(queued.comment)
        if entry is None and queued.comment in ("", "(null)"):  # Slurm reuses ids after a while
            entry = by_id.get(queued.array_id)
        if queued.state.has_ended:
            continue
        if entry is not None:
            name, uuid = entry["job"], entry["uuid"]
        elif results.is_ours(queued.command):
            name, uuid = Path(queued.command.split(" ")[0]).stem, None
        else:
            continue
        for element in queued.elements or (None,):
            yield Open(queued, element, name, uuid)


# Jobs submitted by hand are found by the files that their scripts write: `NAME-ID.out` from the
# start, `exit-ID.json` at the end, and journals. squeue shows the script's path of a pending job.


def ids_by_hand(
    results: Results, sent: Sequence[Job], queue: Mapping[str, slurm.Queued] | None
) -> list[str]:
    """Return the ids of jobs without a record of their submission; `ID_K` for array elements."""
    recorded = {strip_element(job.id) for job in sent if job.id}
    comments = {job.uuid for job in sent}
    left = [job_id for job_id, record in results.exits().items() if record.get("job")]
    # A job of `lockstep submit` has a comment; if Slurm refused it, squeue shows it as failed.
    waiting = [
        job_id
        for job_id, queued in (queue or {}).items()
        if results.is_ours(queued.command)
        and queued.comment not in comments
        and not (queued.comment and queued.state.has_ended)
    ]
    candidates = dict.fromkeys([*_outputs(results), *left, *waiting])
    return [job_id for job_id in candidates if strip_element(job_id) not in recorded]


def users_to_ask(results: Results, sent: Sequence[Job]) -> list[str]:
    """Return the users to ask squeue about; empty, for all users, if a job's user is unknown."""
    recorded = {strip_element(job.id) for job in sent if job.id and not job.by_hand}
    users = {job.user for job in sent if not job.by_hand}
    if not users or None in users or not {*map(strip_element, _outputs(results))} <= recorded:
        return []
    return sorted({own_name(), *map(str, users)})


def _outputs(results: Results) -> list[str]:
    names = [path.name for path in results.jobs_folder.glob("*.out")]
    return [match[1] for name in sorted(names) if (match := _OUTPUT.fullmatch(name))]


def jobs_by_hand(
    results: Results,
    job_ids: Sequence[str],
    queue: Mapping[str, slurm.Queued] | None,
    accounts: Mapping[str, Mapping[str, Any]],
) -> list[Job]:
    """Return the jobs with these ids, and their launches as far as known."""
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
        queued, account = (queue or {}).get(job_id), accounts.get(job_id, {})
        path = Path(queued.command.split(" ")[0]).stem if queued else None
        name = str(exits.get(job_id, {}).get("job") or path or account.get("name") or UNNAMED)
        if script := scripts.get(name):
            kind, launches = script["kind"], script["launches"]
            launches = launches[int(element) :][:1] if element else launches
        else:  # the launches are those whose journals the job wrote to
            kind = "array" if element else "ladder"
            launches = [launch for launch, ids in wrote.items() if job_id in ids]
        number = int(element) if element else None
        user = queued.user if queued else account.get("user")
        uuid = f"by hand:{array_id}"  # the same for all elements of an array
        jobs.append(Job(job_id, name, kind, uuid, "", tuple(launches), number, user, by_hand=True))
    return jobs
