"""A campaign's folder as its jobs share it: which jobs were sent, and who may change it."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.campaign.folder import Folder
from lockstep.core import files, journal, locks
from lockstep.slurm.client import CLUSTER, own_name


@dataclass(frozen=True)
class Job:
    """A job of Slurm that was sent: one of its own, or one element of an array.

    Attributes:
        id: Slurm's id, of an element `ID_K`; None where sbatch never said it.
        kind: ladder, job, array, preflight, profile or collect.
        uuid: The comment by which squeue finds it.
        sent: When it was sent, as ISO 8601 says it.
        element: Which element of an array; None for a job of its own.
        user: Who sent it; None where that is not recorded.
        cancelled: Whether `lockstep cancel` ended it.
        by_hand: Whether it was found by what it left, not by a record of its submission.
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


class Results(Folder):
    """The folder of a campaign that runs under Slurm."""

    @property
    def jobs_folder(self) -> Path:
        """The folder of scripts, their output and the record of submissions."""
        return self.path / "jobs"

    @property
    def submissions_file(self) -> Path:
        """The record of the jobs that were sent, of each a line before and one after."""
        return self.jobs_folder / "submitted.jsonl"

    @property
    def scripts_file(self) -> Path:
        """What each script that was written makes, and which jobs it waits for."""
        return self.jobs_folder / "scripts.json"

    @property
    def accounting_file(self) -> Path:
        """What is known of the jobs that have ended."""
        return self.path / "accounting.json"

    @property
    def events_file(self) -> Path:
        """The record of the events of jobs that ended."""
        return self.path / "events.jsonl"

    @property
    def set_aside_folder(self) -> Path:
        """Where launches went that are measured again, each as NAME-TIME."""
        return self.path / "launches-set-aside"

    def journals(self) -> Iterator[tuple[str, Path]]:
        """Yield (launch, journal) of what was ever measured, what was set aside included."""
        for name in self.names():
            yield name, self.journal(name)
        for path in sorted(self.set_aside_folder.glob("*/journal.jsonl")):
            yield path.parent.name.rpartition("-")[0], path

    def output(self, job: Job) -> Path:
        """Return where a job's batch script writes what it says."""
        return self.jobs_folder / f"slurm-{job.id}.out"

    def _recorded(self) -> list[dict[str, Any]]:
        """Return each submission that was tried, with all that is recorded of it."""
        path = self.submissions_file
        entries: dict[str, dict[str, Any]] = {}
        for entry in journal.read(path) if path.exists() else []:
            _check(entry, path)
            for name in entry.get("launches", ()):
                self.launch(name)  # refuses one that leads elsewhere
            before = entries.get(entry["uuid"], {"id": None})
            cancelled = [*before.get("cancelled", ()), *entry.get("cancelled", ())]
            # Each line has its own time; when the job was sent, the first one says.
            kept = {"cancelled": cancelled, "time": before.get("time", entry.get("time", ""))}
            entries[entry["uuid"]] = before | entry | kept
        return list(entries.values())

    def submissions(self) -> list[dict[str, Any]]:
        """Return the jobs that were sent, each with its id, or None where sbatch never said it.

        Raises:
            ValueError: The record of submissions is corrupt.
        """
        entries = self._recorded()
        return [entry for entry in entries if not entry.get("refused") and "job" in entry]

    def refusals(self) -> dict[str, str]:
        """Return job -> why sbatch refused it, of those that were not sent since.

        Raises:
            ValueError: The record of submissions is corrupt.
        """
        last = {entry["job"]: entry.get("refused") for entry in self._recorded() if "job" in entry}
        return {name: str(why) for name, why in last.items() if why}

    def cluster(self) -> str | None:
        """Return the cluster that took the job that was sent last; None where sbatch named none."""
        named = [entry.get("cluster") for entry in self.submissions() if entry["id"] is not None]
        return named[-1] if named else None

    def is_collected(self) -> bool:
        """Return whether `collect` has run, and its files hold all that the launches wrote.

        Raises:
            ValueError: A journal is corrupt.
        """
        return self.accounting_file.exists() and not any(
            journal.is_ahead(self.journal(name), self.result(name)) for name in self.names()
        )

    def side_log(self, job: Job) -> Path:
        """Return where what a preflight or a collecting job starts writes what it says."""
        return self.jobs_folder / f"{job.kind}-{job.id}.txt"

    def users(self) -> list[str]:
        """Return who may have sent jobs, this user included; none where that is not known."""
        users = {entry.get("user") for entry in self.submissions()}
        return [] if None in users or not users else sorted({own_name(), *map(str, users)})

    def scripts(self) -> dict[str, dict[str, Any]]:
        """Return job -> what its script makes, of the scripts that were written."""
        try:
            scripts = files.parse(files.content(self.scripts_file))["jobs"]
            return {str(name): script for name, script in scripts.items() if _is_script(script)}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}  # none, or of an earlier version

    def jobs_of_launches(self) -> dict[str, set[str]]:
        """Return launch -> the jobs that wrote to its journal, of an array's also `ID_K`.

        Raises:
            ValueError: A journal is corrupt.
        """
        jobs: dict[str, set[str]] = {}
        for name in self.names():
            for entry in journal.read(self.journal(name)):
                if entry.get("kind") == "launch":
                    jobs.setdefault(name, set()).update(writers(entry))
        return jobs

    def set_down(self, entry: Mapping[str, Any]) -> None:
        """Add a line to the record of submissions.

        Raises:
            OSError: It cannot be written.
        """
        record = journal.Journal(self.submissions_file)
        try:
            record.append(entry)
        finally:
            record.close()

    def job_ids(self) -> list[str]:
        """Return the ids of the jobs that were sent, an array's once."""
        return [entry["id"] for entry in self.submissions() if entry["id"] is not None]

    def jobs(self) -> list[Job]:
        """Return the jobs that were sent, each element of an array by itself.

        Raises:
            ValueError: The record of submissions is corrupt.
        """
        return [job for entry in self.submissions() for job in _jobs(entry)]

    def exits(self) -> dict[str, dict[str, Any]]:
        """Return SLURM_JOB_ID -> how the job's own script said that it ended."""
        records = {}
        for path in sorted(self.jobs_folder.glob("exit-*.json")):
            try:
                record = files.parse(files.content(path))
            except ValueError:
                continue  # not a record: the job is then as if it had left none
            if isinstance(record, dict) and isinstance(record.get("exit_code"), int):
                records[str(record.get("job_id", path.stem.removeprefix("exit-")))] = record
        return records

    def staging(self) -> dict[str, dict[str, float]]:
        """Return SLURM_JOB_ID -> seconds that it copied files in and out, and nodes of its cache.

        Raises:
            ValueError: The record is corrupt.
        """
        path = self.jobs_folder / "staging.jsonl"
        entries = journal.read(path) if path.exists() else []
        names = ("stage_in_s", "stage_out_s", "cache_hits", "cache_misses")
        staged = {}
        for entry in entries:
            if "job_id" in entry:
                numbers = {n: entry[n] for n in names if isinstance(entry.get(n), int | float)}
                staged[str(entry["job_id"])] = numbers
        return staged

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
        """Wait until no other `collect` merges what it found, which takes an instant.

        No job holds this lock, nor a command that asks Slurm.

        Args:
            say: Told where there are no locks: two at once may then undo each other's work.
        """
        with (self.path / ".collect.lock").open("a", encoding="utf-8") as lock:
            try:
                locks.take(lock, math.inf)
            except locks.NoLocksError:
                say(f"{self.path} is on a file system without locks; run one collect at a time")
            yield


def _check(entry: dict[str, Any], path: Path) -> None:
    """Refuse a line that is no record of a submission, or of what came of it."""
    for name in ("uuid", "job", "kind", "time"):
        if not isinstance(entry.get(name, "" if name != "uuid" else None), str):
            raise ValueError(f"{path}: a line names no {name}; it is no record of submissions")
    job = entry.get("job", "")
    if not job.isprintable():  # it would act on a terminal
        raise ValueError(f"{path}: a line has the job {job[:80]!r}, which is no job's name")
    job_id = entry.get("id")
    is_id = isinstance(job_id, str) and re.fullmatch("[0-9]+", job_id)
    if job_id is not None and not is_id:
        raise ValueError(f"{path}: a line has the id {str(job_id)[:80]!r}, which is no job's")
    cluster = entry.get("cluster")
    if cluster is not None and not (isinstance(cluster, str) and CLUSTER.fullmatch(cluster)):
        raise ValueError(
            f"{path}: a line has the cluster {str(cluster)[:80]!r}, which is no cluster's name"
        )
    if not files.are_texts(entry.get("launches", [])):
        raise ValueError(f"{path}: a line names no launches; it is no record of submissions")
    cancelled = entry.get("cancelled", [])
    if not isinstance(cancelled, list) or not all(isinstance(number, int) for number in cancelled):
        raise ValueError(f"{path}: a line names no elements; it is no record of submissions")


def _is_script(script: object) -> bool:
    if not isinstance(script, dict) or not isinstance(script.get("kind"), str):
        return False
    after = script.get("after")
    is_whole = isinstance(after, list) and all(isinstance(job, dict) for job in after)
    return is_whole and files.are_texts(script.get("launches"))


def writers(header: Mapping[str, Any]) -> Iterator[str]:
    """Yield the job of a session that wrote to a journal, of an array also `ID_K`; else nothing."""
    slurm: Any = header.get("launch")
    for name in ("provenance", "slurm"):
        slurm = slurm.get(name) if isinstance(slurm, dict) else None
    if isinstance(slurm, dict):
        yield str(slurm.get("SLURM_JOB_ID", ""))
        if "SLURM_ARRAY_JOB_ID" in slurm:
            yield f"{slurm['SLURM_ARRAY_JOB_ID']}_{slurm.get('SLURM_ARRAY_TASK_ID')}"


def _jobs(entry: dict[str, Any]) -> Iterator[Job]:
    launches = tuple(entry.get("launches", ()))
    shared = (entry["job"], entry.get("kind", "ladder"), entry["uuid"], entry.get("time", ""))
    user, ended = entry.get("user"), set(entry["cancelled"])
    if entry.get("kind") != "array":
        yield Job(entry["id"], *shared, launches, user=user, cancelled=bool(ended))
        return
    for number, launch in enumerate(launches):
        job_id = entry["id"] and f"{entry['id']}_{number}"
        yield Job(job_id, *shared, (launch,), number, user, number in ended)
