"""What jobs have left: the JSON of each launch, and what accounting knows of the jobs."""

import json
from typing import Any

from bench import journal
from slurm_templates import slurm
from slurm_templates.results import Results


def collect(results: Results) -> dict[str, Any]:
    """Make each launch's JSON from its journal, and write what accounting knows of the jobs.

    What accounting does not know stays None.

    Raises:
        ValueError: A journal is corrupt.
    """
    made = results.write_results()
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
        path = results.path / "accounting.json"
        journal.write_atomically(path, json.dumps(document, indent=1))
    return document | {"launches": made}
