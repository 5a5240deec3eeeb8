"""Jobs sent to the testbed's Slurm: what sbatch refuses, and how real jobs stand."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from cluster import SHARED, TESTBED, as_user, need_login, need_testbed
from launched import until
from stand_ins import lockstep, now

from lockstep.core.journal import Journal
from lockstep.slurm import client as slurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

TESTBED_USER = "lockstep"


@pytest.fixture(scope="module")
def testbed():
    """Slurm's commands as the testbed's ordinary user gives them, on PATH."""
    need_testbed()
    folder = Path(tempfile.mkdtemp(dir=SHARED))
    folder.chmod(0o777)
    (folder / "jobs").mkdir()
    (folder / "jobs").chmod(0o777)
    (folder / "bin").mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel", "sinfo", "sacctmgr", "scontrol"):
        told = " ".join(f"{key}={value}" for key, value in slurm.ENVIRONMENT.items())
        script = f'#!/bin/sh\nexec {TESTBED}/as-user env {told} {name} "$@"\n'
        (folder / "bin" / name).write_text(script)
        (folder / "bin" / name).chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def login(testbed, monkeypatch):
    monkeypatch.setenv("PATH", f"{testbed / 'bin'}:{os.environ['PATH']}")
    return testbed


@pytest.mark.parametrize(
    ("option", "key", "allowed"),
    [
        ("--account=nobody", "account", "your accounts: project"),
        ("--gpus-per-node=h100:1", "gpus_per_node, gpu_type", "the nodes have: gpu: 4 CPUs"),
        ("--nodes=9", "world_sizes", "partitions: gpu has 4 nodes"),
        ("--time=9-00:00:00", "time", "limits: gpu 1-00:00:00, debug 15:00"),
        ("--array=0-99999999", "max_array_size", "MaxArraySize: "),
        ("--nodess=3", "extra_directives", ""),
    ],
)
def test_what_a_real_sbatch_refuses_names_the_key_and_what_there_is(
    login, monkeypatch, option, key, allowed
):
    monkeypatch.setattr(slurm, "own_name", lambda: TESTBED_USER)
    script = login / "true.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    with pytest.raises(ValueError, match=r"^sbatch refused the job: ") as refused:
        slurm.sbatch(script, "lockstep:refused", *option.split())
    said = str(refused.value)
    assert f"; change {key}" in said
    assert allowed in said
    assert "\n" not in said


def test_real_jobs_stand_as_they_are(login):
    ended = {"good": "true", "bad": "echo 'RuntimeError: no data'; exit 3", "ended": "sleep 300"}
    ids = {}
    for name, command in ended.items():
        ids[name] = sent(login, name, command)
    ids["held"] = sent(login, "held", "true", "--hold")
    ids["some"] = sent(login, "some", "true", "--array=0-1", "--hold", num=2)
    by_hand = login / "jobs" / "by-hand.sh"
    by_hand.write_text("#!/bin/bash\ntrue\n")
    where = (f"--output={login}/jobs/by-hand-%j.out", "--job-name=by-hand", "--time=1")
    ids["by-hand"] = slurm.sbatch(by_hand, "nobody recorded this", *where).id
    ids["arr"] = sent(login, "arr", "[ $SLURM_ARRAY_TASK_ID -ne 2 ]", "--array=0-4%3", num=5)
    path = os.environ["PATH"]
    given_up = lockstep(f"cancel {login} --job ended", login, path)
    assert f"cancelled: ended, job {ids['ended']}" in given_up.stdout
    held = row_of(login, "held", path)
    assert (held["state"], held["reason"]) == ("PENDING", "JobHeldUser")
    # Root looks at the jobs of another user, and cancels them.
    assert held["user"] == TESTBED_USER
    lockstep(f"cancel {login} --job held", login, path)
    lockstep(f"cancel {login} --job some --point 1", login, path)
    assert row_of(login, "some", path)["elements"] == {"PENDING": 1, "CANCELLED": 1}
    lockstep(f"cancel {login} --job some", login, path)
    watched = lockstep(f"status {login} --watch 1 --json", login, path)
    found = {row["job"]: row for row in json.loads(watched.stdout)["jobs"]}
    states = {name: row["state"] for name, row in found.items()}
    assert states["good"] == "COMPLETED"
    assert states["bad"] == "FAILED"
    assert found["bad"]["advice"].startswith("jobs/bad-")
    assert "RuntimeError: no data" in found["bad"]["advice"]
    assert states["ended"] == states["held"] == states["some"] == "CANCELLED"
    assert (states["by-hand"], found["by-hand"]["by_hand"]) == ("COMPLETED", True)
    assert found["by-hand"]["id"] == ids["by-hand"]
    assert found["arr"]["elements"] == {"COMPLETED": 4, "FAILED": 1}
    assert [one["id"] for one in found["arr"]["ended_badly"]] == [f"{ids['arr']}_2"]
    until(lambda: "|allocation" not in names_in_accounting(login), "the jobs' names in accounting")
    collected = lockstep(f"status --collect {login} --json", login, path)
    rows = json.loads(collected.stdout)["jobs"]
    assert all(row["accounting"]["elapsed_s"] is not None for row in rows)
    first = (login / "accounting.json").read_bytes()
    lockstep(f"status --collect {login}", login, path)
    assert (login / "accounting.json").read_bytes() == first


def sent(folder, name, command, *options, num=1):
    """Send a job to the testbed, and record it as `lockstep submit` does."""
    script = folder / "jobs" / f"{name}.sh"
    script.write_text(f"#!/bin/bash\n{command}\n")
    output = "%A_%a" if num > 1 else "%j"
    where = (f"--output={folder}/jobs/{name}-{output}.out", f"--job-name={name}", "--time=1")
    job_id = slurm.sbatch(script, f"lockstep:{name}-testbed", *where, *options).id
    record = Journal(folder / "jobs" / "submitted.jsonl")
    launches = [f"{name}-{number}" for number in range(num)]
    kind = "array" if num > 1 else "ladder"
    head = {"uuid": f"lockstep:{name}-testbed", "job": name, "time": now(), "kind": kind}
    record.append(head | {"launches": launches, "id": job_id})
    record.close()
    return job_id


def names_in_accounting(folder):
    """Each job's id and name; Slurm says "allocation" until its database has the job's name."""
    lines = map(json.loads, (folder / "jobs" / "submitted.jsonl").read_text().splitlines())
    jobs = ",".join(line["id"] for line in lines if "id" in line)
    return as_user("sacct", "-X", "--parsable2", "--format=JobID,JobName", f"--jobs={jobs}").stdout


def row_of(folder, name, path):
    found = json.loads(lockstep(f"status {folder} --json", folder, path).stdout)
    return next(row for row in found["jobs"] if row["job"] == name)


@pytest.mark.slurm
@pytest.mark.slow
def test_why_ranks_a_waiting_job_as_slurm_does():
    """The larger of two waiting jobs comes first, though it was sent later."""
    need_login()

    def send(num_nodes, seconds):
        asked = ("--partition=gpu", f"--nodes={num_nodes}", "--exclusive", "--output=/dev/null")
        sent = as_user("sbatch", "--parsable", *asked, f"--wrap=sleep {seconds}", cwd=SHARED)
        return sent.stdout.strip()

    def why(job_id):
        (job,) = json.loads(as_user("lockstep", "slurm", "why", job_id, "--json").stdout)["jobs"]
        return job["priority"], job["wait"] or {}

    jobs = [send(4, 300), send(1, 1), send(4, 1)]
    try:
        until(lambda: why(jobs[1])[1].get("num_ahead") == 1, "a job that waits behind another")
        (less, small), (more, large) = why(jobs[1]), why(jobs[2])
        assert (small["num_ahead"], large["num_ahead"]) == (1, 0)
        assert less < more
        assert small["factors"] == {"job size": less}
        assert large["factors"] == {"job size": more}
    finally:
        as_user("scancel", *jobs)
