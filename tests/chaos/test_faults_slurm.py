"""Faults of Slurm, its daemons and its jobs, put into campaigns on the testbed."""

import json
import time

import pytest
from cluster import SHARED, done, need_image
from ground import all_idle, ask, configured, frozen, ground, node, processes, queued, state
from launched import until

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.slurm]

BEFORE = ["collective", "strong", "weak"]  # the strong case, which is gated, has some before it
NUM_BEFORE = 10
# A rank that does not answer is given up after 15 s.
SHORT = {"PYTEST_ADDOPTS": "--comm-timeout=5"}


@pytest.fixture(scope="module", autouse=True)
def testbed():
    need_image()


def assert_complete(here):
    """Assert that every case was measured, and none twice."""
    good = here.measured()
    assert len(set(good)) == len(good) == NUM_BEFORE + 2


def test_a_rank_that_fills_the_memory_costs_its_case_alone():
    with (
        configured("JobAcctGatherParams=OverMemoryKill"),
        ground("memory", site={"mem": "3G"}) as here,
    ):
        here.put("eat-1")
        job_id = here.submit_and_hold()
        here.let_go()
        facts = here.finished(job_id)
        (failed,) = here.entries("fail")
        assert "memory" in failed["reason"]
        assert (len(here.measured()), facts["exit_code"]) == (1, 1)


def test_a_job_whose_time_is_nearly_over_ends_its_case_and_is_resumed():
    with ground("nearly-over", jobs={"time": "00:02:00"}) as here:
        job_id = here.submit_and_hold()
        until(lambda: (here.results / "jobs" / f"stop-{job_id}").exists(), "the stop file", 200)
        here.let_go()
        facts = here.finished(job_id)
        assert (facts["exit_code"], facts["stopped"], len(here.measured())) == (75, True, 1)
        assert here.finished(here.resume())["exit_code"] == 0
        assert len(here.measured()) == 2


def test_a_forced_requeue_goes_on_where_the_first_attempt_was():
    with ground("requeued", studies=BEFORE) as here:
        job_id = here.submit_and_hold()
        ask("scontrol", "update", f"jobid={job_id}", "requeue=1")
        ask("scontrol", "requeue", job_id)
        here.let_go()
        until(lambda: state(job_id) == "PENDING", "the requeued job")
        ask("scontrol", "update", f"jobid={job_id}", "starttime=now")
        until(lambda: len(here.entries("launch")) == 2, "a second attempt")
        assert here.finished(job_id)["exit_code"] == 0
        assert_complete(here)


def test_a_lost_node_is_named_and_what_it_took_is_resumed():
    with ground("node-lost", site={"max_ranks_per_node": 1}, studies=BEFORE, env=SHORT) as here:
        here.submit_and_hold()
        node("lose", "node2")
        try:
            until(lambda: here.job()["state"] == "NODE_FAIL", "NODE_FAIL")
            told = here.told()
        finally:
            node("return", "node2")
        until(all_idle, "four idle nodes", 90)
        assert "node2" in told
        here.let_go()
        here.finished(here.resume())
        assert_complete(here)


def test_attempts_that_run_at_once_are_never_mixed():
    with ground("split-brain", studies=BEFORE) as here:
        job_id = here.submit_and_hold()
        with frozen(ask("squeue", "--noheader", f"--job={job_id}", "--format=%N")):
            until(lambda: state(job_id) == "NODE_FAIL", "NODE_FAIL")
            here.finished(here.resume())
            assert "writes into" in here.log()
            here.let_go()  # the old ranks go on, unknown to Slurm
            until(lambda: not processes("pytest", job_id=job_id), "the old ranks' end")
        until(all_idle, "four idle nodes", 90)
        assert here.finished(here.resume())["exit_code"] == 0
        stray = {"kind": "fail", "case": here.measured()[0], "reason": "late", "attempt": "0" * 8}
        with (here.launch / "journal.jsonl").open("a") as file:  # as without locks
            file.write(json.dumps(stray) + "\n")
        done(here.lockstep("status", "--collect", "results/fault"))
        block = json.loads((here.launch / "result.json").read_text())["lockstep"]
        assert (block["failed"], block["complete"]) == ([], True)
        assert_complete(here)


def test_a_prolog_that_fails_is_named():
    prolog = SHARED / "prolog-that-fails"
    prolog.write_text("#!/bin/sh\nexit 1\n")
    prolog.chmod(0o755)
    with ground("unstarted") as here:
        try:
            with configured(f"Prolog={prolog}"):
                job_id = here.submit()
                until(lambda: "drain" in ask("sinfo", "-h", "-o", "%T"), "a drained node")
                until(lambda: state(job_id) not in ("RUNNING", "CONFIGURING"), "its end")
                until(lambda: "did not start" in here.told(), "accounting to hear of it", 30)
                row, told = here.job(), here.told()
        finally:
            for name in ("node1", "node2", "node3", "node4"):
                ask("scontrol", "update", f"nodename={name}", "state=resume")
            prolog.unlink()
        assert ("prolog" in told, row["state"]) == (True, "CANCELLED")


# The real sbatch, once a file says so: slurmctld can then be frozen at the right moment.
GATED_SBATCH = 'touch sending; until [ -e go ]; do sleep 0.05; done; exec /usr/bin/sbatch "$@"'


def test_a_job_that_slurm_took_without_an_answer_is_found_and_never_sent_twice():
    with ground("frozen") as here:
        here.put("hold")
        command = here.begin_submit(GATED_SBATCH)
        until((here.folder / "sending").exists, "sbatch")
        with frozen("slurmctld"):
            here.put("go")
            time.sleep(12)  # sbatch gives up after 10 s
        command.communicate(timeout=120)
        until(lambda: bool(queued()), "the job")
        again = here.lockstep("submit", "campaign.toml", "--site", "site.toml")
        assert again.returncode == 2
        lines = (here.results / "jobs" / "submitted.jsonl").read_text().splitlines()
        asked = [entry["uuid"] for entry in map(json.loads, lines) if "job" in entry]
        assert ask("squeue", "--noheader", "--format=%k").split() == asked
        assert here.job()["id"] is not None
