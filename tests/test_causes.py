"""Why a job ended badly, and what must be mended: facts by what Slurm, a record and a log say."""

import json
from dataclasses import replace

import pytest
from stand_ins import keep, leave, send

from lockstep.slurm.client import State
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import Standing, advise, find_cause, read_end

GIB = 1024**3


@pytest.fixture
def results(tmp_path):
    (tmp_path / "jobs").mkdir()
    return Results(tmp_path)


def ended(results, state, record=None, *, kind="ladder", begun=True, **account):
    """Return how a job of one launch stands that has ended, as Slurm and its own record say."""
    launches = ["w1-r0"] if kind == "ladder" else []
    send(results.path, "job", "17", launches, kind=kind)
    if launches and begun:
        keep(results.path, "w1-r0", "a")
    (job,) = results.jobs()
    return Standing(job, State(state), account, record)


def write_log(results, text, name="launches/w1-r0/log.txt"):
    path = results.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


MEMORY = {"memory_bytes": 31 * GIB, "requested_bytes": 32 * GIB}
LITTLE = MEMORY | {"memory_bytes": 3 * GIB}
KILLED = {"exit_code": "137:0"}
CODE = {"exit_code": 1}


@pytest.mark.parametrize(
    ("state", "record", "account", "kind", "key", "part"),
    [
        ("OUT_OF_MEMORY", None, MEMORY, "memory", "mem", "GiB of memory; the job needs more"),
        ("OUT_OF_MEMORY", None, {}, "memory", "mem", "the job's memory use is not known"),
        ("NODE_FAIL", None, {"nodes": "node[2-3]"}, "node_unknown", None, "node[2-3]"),
        ("COMPLETED", None, {}, "unknown", None, ""),
        ("LOST", None, {}, "never_began", None, "never started"),
        ("FAILED", {"exit_code": 137}, KILLED | MEMORY, "killed", "mem", "needs more memory"),
        ("FAILED", {"exit_code": 137}, KILLED | LITTLE, "killed", None, "read the job's log first"),
        ("FAILED", CODE | {"stopped": True}, {}, "stopped", None, "stopped cleanly"),
        ("FAILED", None, {"exit_code": "0:53", "nodes": "node1"}, "no_output", None,
         "node1 could not open"),
    ],
)  # fmt: skip
def test_the_cause_is_by_what_slurm_and_the_job_s_record_say(
    results, state, record, account, kind, key, part
):
    cause = find_cause(ended(results, state, record, **account), results)
    assert (cause.kind, cause.key) == (kind, key)
    assert part in cause.text


def test_a_log_says_why_a_job_failed(results):
    name = "jobs/preflight-17.txt"
    said = "lockstep: the check of every rank ended with exit code 78\n"
    write_log(results, said, "jobs/job-17.out")
    write_log(results, "RuntimeError: no\x1b[0m data\nbye\n", name)
    cause = find_cause(ended(results, "FAILED", kind="preflight", exit_code="1:0"), results)
    assert (cause.kind, cause.text) == ("log", f"{name}: RuntimeError: no\\x1b[0m data")


def test_a_job_that_its_nodes_did_not_start_differs_from_one_that_was_cancelled(results):
    standing = ended(results, "CANCELLED", nodes="node[1-2]")
    line = "Error running slurm prolog: 1"  # as slurmd 22.05.8 says it
    write_log(results, f"{line}\n", "jobs/job-17.out")
    cause = find_cause(standing, results)
    assert cause.kind == "not_started"
    assert cause.text.startswith(f"node[1-2] did not start the job ({line})")


def test_a_stage_that_never_began_names_the_job_that_it_waited_for(results):
    standing = ended(results, "CANCELLED", elapsed_s=0.0)
    scripts = {
        name: {"kind": "stage", "launches": [], "after": [{"job": before, "how": "afterok"}]}
        for name, before in (("x", "y"), ("y", "w"))
    }
    results.scripts_file.write_text(json.dumps({"jobs": scripts}))
    standing = replace(standing, job=replace(standing.job, name="x"))
    leave(results.path, "16", 3, job="w")
    assert "because w did not end as required (DependencyNeverSatisfied)" in advise(
        standing, results, "results/x", is_last=True
    )


def test_the_node_that_failed_is_the_one_that_srun_or_the_job_names(results):
    standing = ended(results, "NODE_FAIL", nodes="node[2-3]")
    # The node that says so is the one that runs the script, and is well.
    line = "slurmstepd: error: *** JOB 17 ON node2 CANCELLED AT 2026-11-21 DUE TO NODE FAILURE ***"
    write_log(results, f"{line}\n", "jobs/job-17.out")
    assert find_cause(standing, results).kind == "node_unknown"
    write_log(results, "srun: error: Node failure on node3\n")
    assert find_cause(standing, results).text == "node3 failed"
    silent = ended(results, "NODE_FAIL", {"exit_code": 1, "lost": "node2"})
    assert find_cause(silent, results).text == "node2 no longer answers"


@pytest.mark.parametrize(
    ("kind", "begun", "mend", "key"),
    [
        ("ladder", True, "container.image", "container.image"),
        ("ladder", False, "", ""),
        ("ladder", False, "device", "device"),  # of the campaign, where no GPU is
        ("ladder", True, "", None),
        ("ladder", True, "NCCL_SOCKET_IFNAME", "env.NCCL_SOCKET_IFNAME"),
    ],
)
def test_what_resume_cannot_mend_is_named_by_its_key(results, kind, begun, mend, key):
    site = {"schema": 1, "name": "s", "cpus_per_node": 4, "gpus_per_node": 0, "time": "01:00:00"}
    site |= {"container": {"image": "/x.sif"}, "env": {"NCCL_SOCKET_IFNAME": "ib1"}}
    (results.path / "jobs/site.json").write_text(json.dumps(site))
    standing = ended(results, "FAILED", {"exit_code": 1, "mend": mend}, kind=kind, begun=begun)
    assert find_cause(standing, results).key == key
    advice = advise(standing, results, "results/x", is_last=True)
    assert ("--site SITE" in advice) is (key is not None)
    assert ("lockstep submit CAMPAIGN" in advice) is (key in ("", "command", "device"))
    assert "once the other jobs have ended" in advise(standing, results, "x", is_last=False)


@pytest.mark.parametrize(("reason", "is_for_ever"), [("InvalidAccount", True), ("Priority", False)])
def test_a_job_that_waits_for_ever_is_told_by_slurm_s_reason(results, reason, is_for_ever):
    standing = ended(results, "PENDING")
    standing = Standing(standing.job, State("PENDING", reason))
    assert bool(advise(standing, results, "x", is_last=True)) is is_for_ever


# As the testbed's preflight wrote it below its floor, under torchrun.
TORCHRUN = """\
lockstep: error: all-reduce at 0.329 GB/s of bus bandwidth, below the floor of 50.0
E1124 03:49:40.938000 27408 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exit 1)
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Root Cause (first observed failure):
  exitcode  : 1 (pid: 27975)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
srun: error: node1: task 0: Exited with exit code 1
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TORCHRUN, TORCHRUN.split("\n")[0]),
        ("x" * 20000 + "\nsrun: error: node2: task 1: Killed\n  \n== done ==\n",
         "srun: error: node2: task 1: Killed"),
    ],
)  # fmt: skip
def test_the_line_of_a_log_that_says_most_is_found(tmp_path, text, line):
    log = tmp_path / "log.txt"
    log.write_text(text)
    assert read_end(log).line == line
    assert read_end(tmp_path / "gone").line is None
