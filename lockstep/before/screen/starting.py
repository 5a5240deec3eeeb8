"""How a screening's ranks come to be: each task of an srun is one, or this machine starts them."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from lockstep.before.screen.screening import Settings, num_repeats
from lockstep.before.screen.search import Screening
from lockstep.campaign import launcher
from lockstep.campaign.next import last_words
from lockstep.core.processes import die_with_parent
from lockstep.ranks.placement import integer
from lockstep.ranks.process_group import usable_cores

# On CPUs, where nobody says how many.
USUAL_RANKS = 2
# Ports below those that a kernel gives out by itself; steps of one node get different ones.
FIRST_PORT, NUM_PORTS = 15_000, 15_000


def as_rank(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables of a rank that a launcher started; None where none did.

    The tasks of a plain srun meet at the first node of their step, unless MASTER_ADDR says where.

    Raises:
        ValueError: This is the shell of an allocation of several nodes, not a step in it.
    """
    if "RANK" in environ or "LOCKSTEP_LAUNCHER" in environ:
        return dict(environ)
    if int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return _of_slurm(environ) | dict(environ)
    if "SLURM_JOB_ID" in environ and int(environ.get("SLURM_NNODES", "1")) > 1:
        raise ValueError(
            f"this job has {environ['SLURM_NNODES']} nodes, and this is one process on one of "
            "them; start with srun --ntasks-per-node=1, or a task for each GPU"
        )
    return None


def _of_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    job, step = integer(environ, "SLURM_JOB_ID"), integer(environ, "SLURM_STEP_ID")
    return {
        "LOCKSTEP_LAUNCHER": "slurm",
        "MASTER_ADDR": first_host(environ["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(FIRST_PORT + (31 * job + step) % NUM_PORTS),
    }


def first_host(hosts: str) -> str:
    """Return the first name of a list as Slurm writes it, `n1` of `n[1-4,7],login`."""
    first = re.match(r"(?:[^,\[]|\[[^]]*\])*", hosts)
    assert first
    return re.sub(r"\[(\w+)[^]]*\]", r"\1", first[0])


def on_this_machine(num_ranks: int | None, settings: Settings) -> Screening:
    """Screen with ranks that torchrun starts here: one for each GPU, where nobody says how many.

    Raises:
        ValueError: There is one rank, or there are too few repeats to name anything.
        RuntimeError: Ranks cannot be started, or fail.
    """
    if absent := launcher.missing_packages():
        raise RuntimeError(absent)
    gpus = 0 if settings.device == "cpu" else launcher.num_gpus()
    num_ranks = num_ranks or gpus or USUAL_RANKS
    num_repeats(num_ranks, settings.repeats)
    with tempfile.TemporaryDirectory(prefix="lockstep-screen-") as folder:
        path, log_file = Path(folder) / "settings.json", Path(folder) / "log"
        path.write_text(json.dumps(asdict(settings)), encoding="utf-8")
        with log_file.open("wb") as log:
            ended = subprocess.run(
                [
                    *launcher.torchrun(num_ranks),
                    "-m",
                    "lockstep.before.screen.screening",
                    str(path),
                ],
                env=launcher.local_environment(os.environ, max(1, usable_cores() // num_ranks)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
                check=False,
            )
        found = path.with_suffix(".found")
        if ended.returncode or not found.exists():
            words = last_words(log_file, 0) or f"torchrun ended with {ended.returncode}"
            raise RuntimeError(words)
        return Screening.from_json(json.loads(found.read_text(encoding="utf-8")))
