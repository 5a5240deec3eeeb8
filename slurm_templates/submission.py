"""Sending a campaign's jobs: scripts written, claimed, sent once, and recorded before and after."""

import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench import journal
from bench.campaign import Campaign, plan
from slurm_templates import slurm
from slurm_templates.job import JobSpec, Mode, jobs, render, settle
from slurm_templates.results import Results
from slurm_templates.site import Site


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
    specs = jobs(settled, site, results.path, mode, results.missing(settled, plan(settled)))
    results.claim(settled, plan(settled))
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
                f"job {job_id} may still write into {results.path}: it {job.state.meaning}; "
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
