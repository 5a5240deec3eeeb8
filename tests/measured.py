"""Campaigns that the tests really measured, once a session: what real results look like.

Three campaigns of one suite on this machine, which differ in precision and in batch. A test that
changes results copies them first. `LOCKSTEP_MEASURED` names a folder that keeps them between
sessions, for whoever works on the tests.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import commands
from launched import environ

ROOT = Path(__file__).parents[1]
# campaign -> options of `lockstep run`
CAMPAIGNS = {
    "fp32": {"studies": ["strong", "weak", "bucket", "collective"], "repeats": 3},
    "bf16": {"studies": ["strong", "weak"], "repeats": 2, "precision": "bf16"},
    "batch": {"studies": ["strong", "weak"], "repeats": 2, "global_batch": 128, "local_batch": 64},
}
SHARED = {"schema": 1, "world_sizes": [1, 2], "size": "smoke", "threads_per_rank": 1}
PATIENCE_S = 600


def measure(folder: Path) -> Path:
    """Measure what is missing of the campaigns in a folder, side by side, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(CAMPAIGNS)) as pool:
        list(pool.map(lambda name: _run(folder, name), CAMPAIGNS))
    return folder


def kept(made: Path) -> Path:
    """Return the folder to measure into: the one that is kept between sessions, or a new one."""
    return Path(os.environ.get("LOCKSTEP_MEASURED") or made)


def write_campaign(path: Path, **keys: object) -> Path:
    """Write a campaign file and return its path."""
    path.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in keys.items()))
    return path


def _run(folder: Path, name: str) -> None:
    file = write_campaign(folder / f"{name}.toml", **SHARED, name=name, **CAMPAIGNS[name])
    ended = commands.lockstep(
        "run", file, "--to", folder, cwd=folder, env=environ(ROOT), timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _toml(value: object) -> str:
    return repr(value).replace("'", '"')
