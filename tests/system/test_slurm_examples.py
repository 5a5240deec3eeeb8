"""The examples that need a cluster or a container run on the testbed, as its user types them.

Where an example sends or cancels jobs, its partition is down, so that they wait and measure
nothing. The others look at what `test_slurm_campaign.py` has measured: one campaign, and its
two ranks again on two nodes.
"""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from cluster import SHARED, as_user, done, give, missing, need_base, need_testbed, site_text
from launched import until
from measured import write_campaign
from test_examples import ELSEWHERE, EXAMPLES
from test_walk import DOCUMENTS, commands

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

# Commands that judge -> the exit codes that are answers of theirs: a login node measures nothing.
JUDGES = {
    "lockstep doctor": (0, 1, 3),
    "lockstep image verify": (0, 1),
    "lockstep compare": (0, 1),
}
# These send jobs, or cancel jobs that wait.
SENDERS = ("lockstep submit", "lockstep cancel", "lockstep resume", "sbatch")
# These look at a campaign that has ended.
LOOKERS = ("lockstep status", "lockstep resume", "lockstep status --collect", "lockstep compare")
# A finished campaign -> the names that examples give it.
FINISHED = {
    "campaign": ("campaign", "first", "old/first", "new/first"), "spread": ("spread",),
}  # fmt: skip
SUITE = {"schema": 1, "name": "campaign", "studies": ["weak"], "size": "smoke", "device": "cpu"}
SCRATCH = "/scratch/me"  # which this cluster calls otherwise
# The lines that measure in an image are run by `test_slurm_campaign.py`.
# Nor are those that fetch from the internet, which `test_data.py` does from a server of its own;
# those of README and the tutorial are typed by `test_walk.py`.
WALKED = {line for document in DOCUMENTS for line in commands(document)}
JOB = re.compile(r"\b471[12](_3)?\b")  # which examples call a job


def _chosen():
    """Yield lines that with those walked have every option of every command, the longest first."""
    seen = set().union(*map(_parts, WALKED))
    for line in sorted(EXAMPLES, key=lambda line: -len(line.split())):
        if not line.startswith(ELSEWHERE) or line in WALKED or re.search("apptainer|fetch", line):
            continue
        if not _parts(line) <= seen:
            yield line
        seen |= _parts(line)


def _parts(line):
    words = re.sub(r"results/\S+|471[12]", "", line).split()
    return {(*words[:3], word) for word in words}


LINES = list(_chosen())


@pytest.fixture
def down():
    """While such an example runs no job of its own begins."""
    need_testbed()
    _set_partition("DOWN")
    yield
    subprocess.run(["scancel", "--user=lockstep", "--partition=gpu"], check=True)
    _set_partition("UP")


def _set_partition(state):
    subprocess.run(["scontrol", "update", "PartitionName=gpu", f"State={state}"], check=True)


@pytest.fixture
def folder():
    """A folder of the user's, with the files that the examples name."""
    need_testbed()
    made = Path(tempfile.mkdtemp(prefix="examples-", dir=SHARED))
    (made / "site.toml").write_text(site_text("gpu"))
    # A small one will do: its commands hash all of an image.
    for name in ("lockstep.sif", "pytorch.sif"):
        (made / name).symlink_to(need_base())
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("line", LINES)
def test_an_example_runs_as_it_is_given(folder, request, line):
    if line.startswith(SENDERS) and not JOB.search(line):
        request.getfixturevalue("down")
    _prepare(folder, line)
    if JOB.search(line):
        runs = line.startswith(("lockstep slurm top", "lockstep cancel"))
        line = JOB.sub(_a_job(folder, runs=runs), line)
    ended = _typed(folder, line.replace(SCRATCH, str(SHARED)))
    said = ended.stdout + ended.stderr
    allowed = next((codes for judge, codes in JUDGES.items() if line.startswith(judge)), (0,))
    assert ended.returncode in allowed, said
    assert "Traceback" not in said
    assert ended.returncode or "Error: " not in said
    if "--json" in line.split():
        json.loads(ended.stdout)


def _prepare(folder, line):
    """Give an example what it acts on: a campaign that has ended, one that waits, or a script."""
    jobs = 'allocation = "array"' if "--point" in line else 'allocation = "job"'
    jobs = "" if line.startswith("sbatch") else jobs
    campaign = folder / "campaign.toml"
    sizes = [1] if "--point" in line else [1, 8]
    write_campaign(campaign, **SUITE, world_sizes=sizes, repeats=4)
    campaign.write_text(f"{campaign.read_text()}[jobs]\n{jobs}\n")
    if line.startswith("lockstep init"):
        campaign.unlink()
    # What lockstep doctor says of a site, and of its image, README's walk asks.
    if line.startswith(("lockstep init", "lockstep doctor")):
        (folder / "site.toml").unlink()
    if line.startswith(LOOKERS):
        _copy_finished(folder)
    give(folder)
    if line.startswith("lockstep cancel results"):
        done(_typed(folder, "lockstep submit campaign.toml --site site.toml"))
    if line.startswith("sbatch"):
        done(_typed(folder, "lockstep submit --by-hand campaign.toml --site site.toml"))


def _a_job(folder, *, runs):
    """Return the id of a job of the user's that runs for a while, or that has ended."""
    wait = "" if runs else "--wait "
    line = f"sbatch --parsable {wait}--account=project --output=/dev/null --wrap 'sleep 12'"
    job = done(_typed(folder, line if runs else line.replace("sleep 12", "true"))).split()[0]
    if runs:
        asked = f"squeue --noheader --format %T --jobs {job}"
        until(lambda: _typed(folder, asked).stdout.strip() == "RUNNING", "the job", 30, poll_s=0.5)
    return job


def _copy_finished(folder):
    for campaign, names in FINISHED.items():
        if not (SHARED / campaign).exists():
            missing(f"no {SHARED / campaign}; run tests/system/test_slurm_campaign.py first")
        for name in names:
            shutil.copytree(SHARED / campaign, folder / "results" / name)


def _typed(folder, line):
    return as_user("bash", "-c", line, cwd=folder)
