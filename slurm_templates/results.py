"""A campaign's folder as its jobs share it: whose it is, what it lacks, which jobs were sent."""

import fcntl
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import journal
from bench.campaign import Campaign, Launch, differences, plan
from bench.record import KEY
from slurm_templates import slurm
from slurm_templates.job import JobSpec, Mode, jobs, render, settle
from slurm_templates.site import Site


@dataclass(frozen=True)
class Results:
    """The folder of a campaign's results."""

    folder: Path

    @property
    def jobs_folder(self) -> Path:
        """Where scripts, their output and the record of submissions stand."""
        return self.folder / "jobs"

    def journal(self, name: str) -> Path:
        """Return the journal of a launch."""
        return self.folder / "launches" / name / "journal.jsonl"

    def progress(self, name: str) -> dict[str, Any]:
        """Return how far a launch has come, by its journal alone.

        Raises:
            ValueError: The journal is corrupt.
        """
        path = self.journal(name)
        outcomes = journal.outcomes(path)
        if not outcomes:
            return {"measured": 0, "failed": 0, "complete": False, "studies": ()}
        block = journal.rebuild(path)[KEY]
        return {
            "measured": sum(kind == "case" for kind in outcomes.values()),
            "failed": sum(kind == "fail" for kind in outcomes.values()),
            "complete": bool(block["complete"]),
            "studies": tuple(block.get("studies", "").split(",")),
        }

    def missing(self, campaign: Campaign) -> list[Launch]:
        """Return the launches that still lack a case, in the order they are made."""
        return [launch for launch in plan(campaign) if not self._is_done(campaign, launch)]

    def _is_done(self, campaign: Campaign, launch: Launch) -> bool:
        found = self.progress(launch.name)
        return found["complete"] and set(campaign.studies) <= set(found["studies"])

    def launches(self) -> list[str]:
        """Return the names of the launches that have begun."""
        return sorted(path.parent.name for path in self.folder.glob("launches/*/journal.jsonl"))

    def claim(self, campaign: Campaign) -> None:
        """Write the campaign beside its results, or refuse to mix it with another's.

        Raises:
            ValueError: The folder holds results that were measured otherwise.
        """
        path = self.folder / "campaign.json"
        if path.exists():
            self._refuse_other(path, campaign)
        facts = campaign.facts() | {
            "launches": [{"name": launch.name, **vars(launch)} for launch in plan(campaign)]
        }
        journal.write_atomically(path, json.dumps(facts, indent=1))

    def _refuse_other(self, path: Path, campaign: Campaign) -> None:
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: not a campaign: {error}") from error
        for key, (then, now) in differences(stored, campaign).items():
            raise ValueError(
                f"{self.folder} holds results measured with {key} {then}, now it is {now}; "
                "give the campaign another name, or --to another folder"
            )

    def submissions(self) -> list[dict[str, Any]]:
        """Return the jobs that were sent, each with its id, or None where sbatch never said it."""
        path = self.jobs_folder / "submitted.jsonl"
        found: dict[str, dict[str, Any]] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            entry = json.loads(line)
            found[entry["uuid"]] = found.get(entry["uuid"], {"id": None}) | entry
        return [entry for entry in found.values() if not entry.get("refused")]

    def job_ids(self) -> list[str]:
        """Return the ids of the jobs that were sent."""
        return [entry["id"] for entry in self.submissions() if entry["id"] is not None]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder's lock, the same that `lockstep run` holds.

        Raises:
            ValueError: Another command changes the folder.
        """
        self.jobs_folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"another lockstep command works in {self.folder}; wait for it, or --to "
                    "another folder"
                ) from None
            yield


def write_scripts(specs: Sequence[JobSpec], site: Site, *, force: bool) -> list[Path]:
    """Write the scripts of jobs and the folders they need, and return their paths.

    Raises:
        ValueError: A script of that name is there and reads otherwise.
    """
    written = []
    for spec in specs:
        path = Path(spec.folder) / "jobs" / f"{spec.name}.sh"
        text = render(spec, site)
        if not force and path.exists() and path.read_text(encoding="utf-8") != text:
            raise ValueError(f"{path} is there and reads otherwise; give --force to replace it")
        journal.write_atomically(path, text)
        written.append(path)
    return written


def prepare(campaign: Campaign, site: Site, results: Results, mode: Mode) -> list[JobSpec]:
    """Claim the folder for a campaign and return the jobs of what it lacks.

    Raises:
        ValueError: The folder holds other results, or campaign and site do not fit.
    """
    settled = settle(campaign, site)
    specs = jobs(settled, site, results.folder, mode, results.missing(settled))
    results.claim(settled)
    return specs


def submit(
    campaign: Campaign, site: Site, results: Results, mode: Mode
) -> Iterator[tuple[str, str]]:
    """Send the jobs of what is missing, and give each one's name and id once Slurm has taken it.

    Raises:
        ValueError: Jobs of this folder may still write into it, or sbatch refuses the site.
        RuntimeError: Slurm does not answer.
    """
    with results.alone():
        _refuse_unfinished(results)
        specs = prepare(campaign, site, results, mode)
        for spec, script in zip(specs, write_scripts(specs, site, force=True), strict=True):
            yield spec.name, _send(results, spec, script)


def _refuse_unfinished(results: Results) -> None:
    sent = results.submissions()
    queue = slurm.queue()  # also where nothing was sent: that Slurm answers is to be known first
    known = {entry["uuid"] for entry in sent} | set(results.job_ids())
    for job_id, job in queue.items():
        if {job_id, job.comment} & known and not job.state.has_ended:
            raise ValueError(
                f"job {job_id} may still write into {results.folder}: it {job.state.meaning}; "
                "wait for its end, or scancel it"
            )


def _send(results: Results, spec: JobSpec, script: Path) -> str:
    comment = f"lockstep:{uuid.uuid4()}"
    record = journal.Journal(results.jobs_folder / "submitted.jsonl")
    try:
        launches = [step.name for step in spec.steps]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record.append({"uuid": comment, "job": spec.name, "time": now, "launches": launches})
        try:
            job_id = slurm.sbatch(script, comment)
        except ValueError as error:
            record.append({"uuid": comment, "refused": str(error)})
            raise
        record.append({"uuid": comment, "id": job_id})
        return job_id
    finally:
        record.close()


def collect(results: Results) -> dict[str, Any]:
    """Make each launch's JSON from its journal, and write what accounting knows of the jobs.

    What accounting does not know stays None.

    Raises:
        ValueError: A journal is corrupt.
    """
    made = [name for name in results.launches() if journal.outcomes(results.journal(name))]
    for name in made:
        path = results.journal(name)
        journal.write_result(path, path.with_name("result.json"))
    error = None
    try:
        known = slurm.accounting(results.job_ids())
    except RuntimeError as failure:
        known, error = {}, str(failure)
    rows = [
        {"id": entry["id"], "job": entry["job"], "accounting": known.get(entry["id"])}
        for entry in results.submissions()
    ]
    document = {"schema": 1, "error": error, "jobs": rows}
    if rows and error is None:
        path = results.folder / "accounting.json"
        journal.write_atomically(path, json.dumps(document, indent=1))
    return document | {"launches": made}
