"""A campaign's folder as its jobs share it: which jobs were sent, and who may change it."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.folder import Folder


class Results(Folder):
    """The folder of a campaign that runs under Slurm."""

    @property
    def jobs_folder(self) -> Path:
        """Where scripts, their output and the record of submissions stand."""
        return self.path / "jobs"

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
        with (self.path / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"another lockstep command works in {self.path}; wait for it, or --to "
                    "another folder"
                ) from None
            yield
