"""Events of the testbed's slurmctld: its epilog, the receiver, and a receiver that is gone."""

import json
import shutil
import subprocess
import urllib.request

import pytest
from cluster import SHARED, STATE, TESTBED, as_user, done, give, need_login
from launched import until
from stand_ins import send

pytestmark = [pytest.mark.chaos, pytest.mark.slurm, pytest.mark.slow]

PORT = 18765
PATIENCE_S = 50
SCRIPT = """#!/bin/bash
#SBATCH --time=5 --mem=100 --partition=debug
#SBATCH --output={folder}/jobs/by-hand-%j.out
sleep 1
printf '{{"job_id": "%s", "exit_code": {code}, "stopped": false}}' "$SLURM_JOB_ID" \
    >{folder}/jobs/exit-$SLURM_JOB_ID.json
exit {code}
"""


@pytest.fixture
def folder():
    need_login()
    made = SHARED / "events"
    shutil.rmtree(made, ignore_errors=True)
    (made / "jobs").mkdir(parents=True)
    give(made)
    yield made
    (STATE / "epilog.sh").write_text("#!/bin/sh\nexit 0\n")
    shutil.rmtree(made)


@pytest.fixture
def receiver(folder):
    command = ["lockstep", "slurm", "serve", str(folder), "--port", str(PORT), "--every", "3600"]
    as_its_user = [TESTBED / "as-user", *command]
    with subprocess.Popen(as_its_user, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout.readline().startswith("page: "), served.poll()
        _let_slurm_tell(folder)
        yield
        served.terminate()


def _let_slurm_tell(folder):
    """Give slurmctld the epilog that the command prints."""
    line = ["lockstep", "slurm", "serve", str(folder), "--port", str(PORT), "--print-epilog"]
    printed = done(as_user(*line, "--key-file", str(folder / ".events.key")))  # slurmctld is root
    (STATE / "epilog.sh").write_text(printed)


def sent(folder, code):
    """Send a job that ends with a code, as `lockstep submit` records it, and return its id."""
    script = folder / "jobs" / f"end-{code}.sh"
    script.write_text(SCRIPT.format(folder=folder, code=code))
    give(folder)
    job_id = done(as_user("sbatch", "--parsable", script, cwd=folder)).strip()
    send(folder, f"end-{code}", job_id)
    give(folder)
    return job_id


def events(folder):
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["job_id"]: entry for entry in map(json.loads, lines)}


def served():
    """Return id -> state as the receiver shows it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/status.json") as answer:
        return {job["id"]: job["state"] for job in json.load(answer)["jobs"]}


def states(folder):
    """Return id -> state as `lockstep status` says it."""
    ended = as_user("lockstep", "status", str(folder), "--json")
    assert ended.returncode in (0, 1), ended.stderr
    return {job["id"]: job["state"] for job in json.loads(ended.stdout)["jobs"]}


def test_slurmctld_tells_the_receiver_how_each_job_ended(folder, receiver):
    good, bad = sent(folder, 0), sent(folder, 3)
    until(lambda: {good, bad} <= events(folder).keys(), "both events", PATIENCE_S)
    told = {name: (one["status"], one["exit_code"]) for name, one in events(folder).items()}
    assert told == {good: ("COMPLETED", 0), bad: ("FAILED", 3)}
    ends = {good: "COMPLETED", bad: "FAILED"}
    # The page follows, long before it would ask by itself.
    until(lambda: served() == ends, "the page", PATIENCE_S)
    assert states(folder) == ends


def test_with_the_receiver_down_no_node_drains_and_polling_says_the_same(folder):
    log = STATE / "log" / "slurmctld.log"
    before = log.stat().st_size  # other tests drain nodes
    line = ["lockstep", "slurm", "serve", str(folder), "--port", str(PORT), "--print-epilog"]
    done(as_user(*line))  # the key is made
    _let_slurm_tell(folder)
    good, bad = sent(folder, 0), sent(folder, 3)
    ends = {good: "COMPLETED", bad: "FAILED"}
    until(lambda: states(folder) == ends, "both ends", PATIENCE_S)
    assert events(folder) == {}
    said = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%T"], capture_output=True, text=True, check=True
    )
    assert set(said.stdout.split()) == {"idle"}
    assert b"drain" not in log.read_bytes()[before:].lower()
