"""The testbed is what it promises: a cluster's answers on one machine, down and up at any time."""

import subprocess
from pathlib import Path

import pytest
from cluster import TESTBED, as_user, need, need_testbed
from commands import finish

pytestmark = pytest.mark.slurm

PID_FILE = Path("/run/lockstep-testbed/munged.pid")
# Daemons of the testbed as ps names them, and what keeps a job alive.
DAEMONS = {"munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "slurmstepd"}


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


def daemons():
    """Return the names of the testbed's daemons that run, zombies left out."""
    told = run("ps", "-eo", "stat=,comm=").stdout.splitlines()
    names = {name for stat, name in map(str.split, told) if not stat.startswith("Z")}
    return names & DAEMONS


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
