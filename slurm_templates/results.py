"""A campaign's folder as its jobs share it: which jobs were sent, and who may change it."""

import fcntl
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import files, journal
from bench.folder import Folder, in_use, no_locks, sign_lock, take_lock


@dataclass(frozen=True)
class Job:
    """A job of Slurm that was sent: one of its own, or one element of an array.

    Attributes:
        id: Slurm's id, of an element `ID_K`; None where sbatch never said it.
        name: The job's name.
        kind: ladder, job, array, preflight, profile or collect.
        uuid: The comment by which squeue finds it.
        sent: When it was sent, as ISO 8601 says it.
        launches: What it makes.
        element: Which element of an array; None for a job of its own.
    """

    id: str | None
    name: str
    kind: str
    uuid: str
    sent: str
    launches: tuple[str, ...]
    element: int | None = None


class Results(Folder):
    """The folder of a campaign that runs under Slurm."""

    @property
    def jobs_folder(self) -> Path:
        """Where scripts, their output and the record of submissions stand."""
        return self.path / "jobs"

    @property
    def submissions_file(self) -> Path:
        """The record of the jobs that were sent, of each a line before and one after."""
        return self.jobs_folder / "submitted.jsonl"

    @property
    def accounting_file(self) -> Path:
        """What is known of the jobs that have ended."""
        return self.path / "accounting.json"

    @property
    def set_aside_folder(self) -> Path:
        """Where launches went that are measured again, each as NAME-TIME."""
        return self.path / "launches-set-aside"

    def journals(self) -> Iterator[tuple[str, Path]]:
        """Yield (launch, journal) of what was ever measured, what was set aside included."""
        for name in self.names():
            yield name, self.journal(name)
        for path in sorted(self.set_aside_folder.glob("*/journal.jsonl")):
            files.refuse_link_out(path, self.path)
            yield path.parent.name.rpartition("-")[0], path

    def output(self, job: Job) -> Path:
        """Return where a job's batch script writes what it says."""
        return self.jobs_folder / f"slurm-{job.id}.out"

    def submissions(self) -> list[dict[str, Any]]:
        """Return the jobs that were sent, each with its id, or None where sbatch never said it.

        Raises:
            ValueError: The record of submissions is corrupt.
        """
        path = self.submissions_file
        found: dict[str, dict[str, Any]] = {}
        for entry in journal.read(path) if path.exists() else []:
            _check(entry, path)
            for name in entry.get("launches", ()):
                self.launch(name)  # refuses one that leads elsewhere
            found[entry["uuid"]] = found.get(entry["uuid"], {"id": None}) | entry
        return [entry for entry in found.values() if not entry.get("refused") and "job" in entry]

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
        found = {}
        for path in sorted(self.jobs_folder.glob("exit-*.json")):
            try:
                record = files.parse(files.content(path))
            except ValueError:
                continue  # not a record: the job is then as if it had left none
            if isinstance(record, dict) and isinstance(record.get("exit_code"), int):
                found[str(record.get("job_id", path.stem.removeprefix("exit-")))] = record
        return found

    def staging(self) -> dict[str, dict[str, float]]:
        """Return SLURM_JOB_ID -> seconds that it copied files in and out.

        Raises:
            ValueError: The record is corrupt.
        """
        path = self.jobs_folder / "staging.jsonl"
        entries = journal.read(path) if path.exists() else []
        names = ("stage_in_s", "stage_out_s")
        return {
            str(one["job_id"]): {n: one[n] for n in names if isinstance(one.get(n), int | float)}
            for one in entries
            if "job_id" in one
        }

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder's lock, the same that `lockstep run` holds.

        Raises:
            ValueError: Another command changes the folder, its lock is no regular file, or its file
                system has no locks.
        """
        try:
            self.jobs_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{self.path}: {error.strerror}; give --to another folder") from error
        with files.opened_lock(self.path / ".lock") as lock:
            if not take_lock(lock, self.path):
                raise ValueError(in_use(self.path))
            sign_lock(lock)
            yield

    @contextmanager
    def merging(self, say: Callable[[str], None]) -> Iterator[None]:
        """Wait until no other `collect` merges what it found, which takes an instant.

        No job holds this lock, nor a command that asks Slurm.

        Args:
            say: Told where there are no locks: two at once may then undo each other's work.

        Raises:
            ValueError: The lock is no regular file.
        """
        with files.opened_lock(self.path / ".collect.lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                say(f"{no_locks(self.path, error)}; run one collect at a time")
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
    if not files.are_texts(entry.get("launches", [])):
        raise ValueError(f"{path}: a line names no launches; it is no record of submissions")


def _jobs(entry: dict[str, Any]) -> Iterator[Job]:
    launches = tuple(entry.get("launches", ()))
    own = (entry["job"], entry.get("kind", "ladder"), entry["uuid"], entry.get("time", ""))
    if entry.get("kind") != "array":
        yield Job(entry["id"], *own, launches)
        return
    for number, launch in enumerate(launches):
        job_id = entry["id"] and f"{entry['id']}_{number}"
        yield Job(job_id, *own, (launch,), number)
