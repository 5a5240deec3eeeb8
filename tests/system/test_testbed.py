"""The testbed is what it promises: a cluster's answers on one machine, down and up at any time."""

import subprocess
from pathlib import Path

import pytest
from cluster import SHARED, TESTBED, as_user, done, need, need_testbed
from commands import finish
from launched import until

pytestmark = pytest.mark.slurm

PID_FILE = Path("/run/lockstep-testbed/munged.pid")
# Daemons of the testbed as ps names them, and what keeps a job alive.
DAEMONS = {"munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "slurmstepd"}
JOB = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=00:02:00
srun bash -c 'echo "$SLURM_PROCID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'
"""


def run(*command):
    """Return how a command ended, and what it said, as one string."""
    return finish(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, capture_output=False)


@pytest.fixture(scope="module", autouse=True)
def testbed():
    need_testbed()


def states():
    """Return the state of each node by its name."""
    told = run("sinfo", "--noheader", "--Node", "--partition=gpu", "--format=%N %T").stdout
    return dict(line.split() for line in told.splitlines())


def ended(job_id):
    """Wait until accounting knows how a job ended, and return its state and its resources."""
    fields = ["sacct", "-X", "-n", "-P", "-j", job_id, "-o", "State,AllocTRES"]

    def look():
        state, _, resources = as_user(*fields).stdout.strip().partition("|")
        has_ended = state not in ("", "PENDING", "RUNNING", "COMPLETING")
        return has_ended and (state, set(resources.split(",")))

    return until(look, f"the end of job {job_id}", 60, poll_s=0.5)


def daemons():
    """Return the names of the testbed's daemons that run, zombies left out."""
    told = run("ps", "-eo", "stat=,comm=").stdout.splitlines()
    names = {name for stat, name in map(str.split, told) if not stat.startswith("Z")}
    return names & DAEMONS


def test_a_job_of_two_nodes_is_run_and_accounted():
    output = SHARED / "test_testbed-%j.out"
    job_id = done(as_user("sbatch", "--parsable", f"--output={output}", input=JOB)).strip()
    state, resources = ended(job_id)
    said = Path(str(output).replace("%j", job_id)).read_text()
    assert state == "COMPLETED", said
    assert {"gres/gpu=4", "node=2", "cpu=4"} <= resources
    assert sorted(said.splitlines()) == [
        "0 node1 0,1",
        "1 node1 0,1",
        "2 node2 0,1",
        "3 node2 0,1",
    ]


def test_the_scripts_pass_shellcheck():
    need("shellcheck")
    scripts = [path for path in TESTBED.iterdir() if path.is_file()]
    assert len(scripts) >= 6
    checked = run("shellcheck", "--external-sources", f"--source-path={TESTBED}", *scripts)
    assert checked.stdout == ""


@pytest.fixture
def stranger():
    """A process that has nothing to do with the testbed."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.chaos
@pytest.mark.slow
def test_it_goes_down_and_comes_up_again_beside_strangers(stranger):
    as_user("sbatch", "--output=/dev/null", "--wrap=trap '' TERM; sleep 600")
    went = run(TESTBED / "down")
    try:
        assert went.returncode == 0, went.stdout
        assert daemons() == set()
        # As after a crash, when another process may have the pid that was noted.
        PID_FILE.write_text(str(stranger.pid))
    finally:
        came = run(TESTBED / "up")
    assert came.returncode == 0, came.stdout
    assert set(states().values()) == {"idle"}
    assert daemons() == DAEMONS - {"slurmstepd"}
    assert stranger.poll() is None
