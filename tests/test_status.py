"""How the jobs of a campaign stand, by stand-ins of Slurm's commands that count what is asked."""

import errno
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faults_slurm
import pytest
from cluster import SHARED, TESTBED, need_testbed
from ground import until
from stand_ins import StandIns, keep, leave, lockstep, now, sacct, send

from lockstep.slurm import scheduler as slurm
from lockstep.slurm.status.advice import gist
from lockstep.slurm.status.sent import Results
from lockstep.slurm.submit import sbatch_refusals as refusals
from lockstep.vocabulary.journal import Journal
from lockstep.vocabulary.locks import NoLocksError

pytestmark = pytest.mark.slow  # real commands, many of them

TESTBED_USER = "lockstep"
DISABLED = "Slurm accounting storage is disabled"
GONE = Path("/gone.sh")


@pytest.fixture
def here(tmp_path):
    (tmp_path / "results" / "x" / "jobs").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def folder(here):
    return here / "results" / "x"


@pytest.fixture
def asked(here):
    """Slurm's commands that know of no job."""
    made = StandIns(here / "bin")
    made.say("squeue")
    made.say("sacct", sacct())
    made.say("scancel")
    return made


def account(job_id, state, **fields):
    return {"JobID": job_id, "JobIDRaw": job_id, "State": state} | fields


def status(here, asked, options="--json"):
    ended = lockstep(f"status results/x {options}", here, asked.folder)
    assert "Traceback" not in ended.stderr
    return ended


def jobs(here, asked):
    return json.loads(status(here, asked).stdout)["jobs"]


# As squeue says it for --format=%i|%A|%T|%r|%V|%k: the first five recorded of Slurm 22.05.8, the
# others made up of reasons in the forms that REASONS has to read.
QUEUE = """\
24|24|PENDING|JobHeldUser|1795253711|me|lockstep:held-24
25_[4-9%2]|25|PENDING|JobArrayTaskLimit|1795253711|me|lockstep:arr-25
25_3|31|RUNNING|None|1795253711|me|lockstep:arr-25
25_0|28|COMPLETED|None|1795253711|me|lockstep:arr-25
26|26|PENDING|DependencyNeverSatisfied|1795253711|me|lockstep:after-26
30|30|PENDING|ReqNodeNotAvail, UnavailableNodes:node[3-4]|1795253711|me|lockstep:big-30
31|31|CONFIGURING|None|N/A|me|lockstep:new-31
32|32|PENDING|(launch failed requeued held)|1795253711|me|(null)
"""


def test_each_layer_is_asked_once_however_many_jobs_there_are(here, folder, asked):
    for number in range(40):
        send(folder, f"job{number}", str(number))
    asked.say("sacct", sacct(*(account(str(number), "COMPLETED") for number in range(40))))
    assert {one["state"] for one in jobs(here, asked)} == {"COMPLETED"}
    assert len(asked.calls("squeue")) == len(asked.calls("sacct")) == 1
    assert f"--jobs={','.join(map(str, range(40)))}" in asked.calls("sacct")[0]


def test_what_squeue_holds_is_not_asked_of_sacct(here, folder, asked):
    for name, job_id in (("held", "24"), ("after", "26"), ("big", "30"), ("new", "31")):
        send(folder, name, job_id)
    asked.say("squeue", QUEUE)
    found = {one["job"]: one for one in jobs(here, asked)}
    assert asked.calls("sacct") == []
    assert "for ever: the job it waits for failed" in found["after"]["meaning"]
    assert "scontrol release 24 (JobHeldUser)" in found["held"]["meaning"]
    assert "UnavailableNodes:node[3-4]" in found["big"]["meaning"]
    assert found["big"]["since_submission_s"] > 0
    assert found["big"]["queue_wait_s"] is None  # a dependency may have held it back
    assert found["new"]["meaning"] == "its nodes are being made ready"


def test_whoever_looks_another_user_s_jobs_stand_as_they_are(here, folder, asked):
    send(folder, "arr", "25", [f"p{k}" for k in range(10)], kind="array")
    asked.say("squeue", QUEUE.replace("|me|", "|alice|"))
    asked.say("sacct", sacct(*(account(f"25_{k}", "COMPLETED") for k in (1, 2))))
    assert "arr, job 25, of alice, array: 6 wait, 3 done, 1 run\n" in status(here, asked, "").stdout
    assert "--me" not in asked.calls("squeue")[0]
    asked.say("scancel", rc=1, error="Kill job error on job id 25: Access/permission denied")
    ended = lockstep("cancel results/x", here, asked.folder)
    assert "denied; ask alice, whose jobs these are, to cancel them" in ended.stderr


def test_a_job_that_slurm_hides_from_others_is_not_lost(here, folder, asked):
    record = Journal(folder / "jobs" / "submitted.jsonl")
    head = {"uuid": "lockstep:1", "job": "ladder", "id": "17", "user": "alice", "launches": ["w1"]}
    record.append(head | {"time": "2026-01-01T00:00:00+00:00", "kind": "ladder"})
    record.close()
    (row,) = jobs(here, asked)
    assert asked.calls("squeue")[0].startswith("squeue --user=alice ")
    assert row["state"] == "unknown"
    assert row["meaning"] == "Slurm says nothing of it here; it is a job of alice"


def test_a_script_that_was_only_written_is_to_be_sent(here, folder, asked):
    (folder / "campaign.json").write_text(
        json.dumps({"schema": 1, "launches": [{"name": "w1-r0"}]})
    )
    made = {"x": {"kind": "ladder", "launches": ["w1-r0"], "after": []}}
    after = [{"job": "x", "how": "afterany"}]
    made["x-collect"] = {"kind": "collect", "launches": [], "after": after}
    (folder / "jobs" / "scripts.json").write_text(json.dumps({"schema": 1, "jobs": made}))
    (folder / "jobs" / "x.sh").write_text("")
    _, _, todo = status(here, asked, "").stdout.partition("Next:\n")
    first, second = todo.splitlines()
    assert first == f"  sbatch {folder}/jobs/x.sh"
    assert second.startswith("  sbatch --dependency=afterany:<id of x> --kill-on-invalid-dep=yes ")
    asked.say("squeue", f"41|41|PENDING|Priority|1|me|(null)|{folder}/jobs/x.sh\n")
    said = status(here, asked, "").stdout
    assert "x, job 41, sent by hand: PENDING" in said
    assert "sbatch" not in said  # the collect job measures nothing


def test_scripts_that_nobody_sent_are_named_beside_those_that_ended(here, folder, asked):
    facts = {"schema": 1, "launches": [{"name": "w1-r0"}, {"name": "w1-r1"}]}
    (folder / "campaign.json").write_text(json.dumps(facts))
    for n in (0, 1):
        (folder / "jobs" / f"x-r{n}.sh").write_text("")
    made = {f"x-r{n}": {"kind": "job", "launches": [f"w1-r{n}"], "after": []} for n in (0, 1)}
    (folder / "jobs" / "scripts.json").write_text(json.dumps({"schema": 1, "jobs": made}))
    asked.say("squeue", f"41|41|RUNNING|None|1|me|(null)|{folder}/jobs/x-r0.sh\n")
    assert f"  sbatch {folder}/jobs/x-r1.sh\n" in status(here, asked, "").stdout
    asked.say("squeue", "")
    (folder / "jobs" / "slurm-41.out").write_text("")
    leave(folder, "41", 0, job="x-r0")
    asked.say("sacct", sacct(account("41", "COMPLETED", JobName="x-r0")))
    _, _, todo = status(here, asked, "").stdout.partition("Next:\n")
    assert todo == f"  sbatch {folder}/jobs/x-r1.sh\n"


def test_what_sbatch_refused_is_said_until_it_is_sent(here, folder, asked):
    uuid = send(folder, "ladder", None, ["w1-r0"])
    record = Journal(folder / "jobs" / "submitted.jsonl")
    record.append({"uuid": uuid, "refused": "sbatch said: Invalid qos; change qos"})
    record.close()
    text = status(here, asked, "").stdout
    assert "ladder: not sent; sbatch said: Invalid qos; change qos\n" in text
    assert text.endswith(
        "  lockstep submit CAMPAIGN --site SITE  # once what sbatch refused is mended\n"
    )
    send(folder, "ladder", "17", ["w1-r0"])
    assert "not sent" not in status(here, asked, "").stdout


def test_a_job_sent_by_hand_is_found_by_what_it_left(here, folder, asked):
    (folder / "jobs" / "slurm-41.out").write_text("")
    (folder / "jobs" / "x.sh").write_text("")
    keep(folder, "w1-r0", "a", "b", job_id="41")
    leave(folder, "41", 0)
    asked.say("sacct", sacct(account("41", "COMPLETED", JobName="x", Elapsed="00:01:00")))
    (row,) = jobs(here, asked)
    found = {name: row[name] for name in ("job", "id", "state", "by_hand", "num_complete")}
    assert found == {"job": "x", "id": "41", "state": "COMPLETED", "by_hand": True,
                     "num_complete": 1}  # fmt: skip
    assert "accounting of 1 of 1 job" in lockstep("collect results/x", here, asked.folder).stdout
    assert "  lockstep report results/x\n" in status(here, asked, "").stdout


def test_a_job_whose_output_its_node_could_not_open_says_so(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    asked.say("sacct", sacct(account("17", "FAILED", ExitCode="0:53", NodeList="node1")))
    advice = jobs(here, asked)[0]["advice"]
    assert advice.startswith(
        f"exit code 0:53: node1 could not open {folder}/jobs/slurm-17.out, so "
    )


# As the testbed's preflight wrote it where its nodes had no GPU.
PREFLIGHT = """\
=========================== 44 deselected in 18.56s ============================
! _pytest.outcomes.Exit: rank 0 on vm: local rank 0 needs GPU 0, but 0 are visible on this host !
srun: error: node1: task 0: Exited with exit code 78
srun: launch/slurm: _step_signal: Terminating StepId=10.1
"""


def test_a_preflight_that_failed_says_why(here, folder, asked):
    send(folder, "x-preflight", "10", kind="preflight")
    (folder / "jobs" / "slurm-10.out").write_text("lockstep: every rank: ended with 78\n")
    (folder / "jobs" / "preflight-10.txt").write_text(PREFLIGHT)
    asked.say("sacct", sacct(account("10", "FAILED", ExitCode="1:0")))
    said = (
        "jobs/preflight-10.txt says: rank 0 on vm: local rank 0 needs GPU 0, but 0 are visible on"
    )
    assert jobs(here, asked)[0]["advice"].startswith(said)


def test_an_array_is_summarised_not_listed(here, folder, asked):
    uuid = send(folder, "arr", "25", [f"p{k}" for k in range(10)], kind="array")
    asked.say("squeue", QUEUE)
    asked.say("sacct", sacct(account("25_1", "COMPLETED"), account("25_2", "FAILED")))
    (row,) = jobs(here, asked)
    assert row["elements"] == {"PENDING": 6, "COMPLETED": 2, "FAILED": 1, "RUNNING": 1}
    assert [one["id"] for one in row["ended_badly"]] == ["25_2"]
    assert row["state"] == "RUNNING"
    text = status(here, asked, "").stdout
    assert "arr, job 25, array: 6 wait, 2 done, 1 failed, 1 run\n" in text
    assert uuid not in text


def test_a_thousand_elements_are_a_few_lines(here, folder, asked):
    send(folder, "arr", "25", [f"p{k}" for k in range(1000)], kind="array")
    rows = (account(f"25_{k}", "TIMEOUT" if k % 2 else "COMPLETED") for k in range(1000))
    asked.say("sacct", sacct(*rows))
    text = status(here, asked, "").stdout
    assert "array: 500 done, 500 over time" in text
    assert len(text.splitlines()) < 30
    assert len(asked.calls("sacct")) == 1


def test_a_job_that_was_requeued_waits_although_it_left_a_record(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    leave(folder, "17", 143)
    asked.say("squeue", "17|17|PENDING|BeginTime|1795253711|me|lockstep:ladder-17\n")
    assert jobs(here, asked)[0]["state"] == "PENDING"


def test_a_job_that_its_nodes_did_not_start_says_where_to_look(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    asked.say("sacct", sacct(account("17", "CANCELLED", NodeList="node[1-2]")))
    assert jobs(here, asked)[0]["advice"] == "lockstep resume results/x measures the rest"
    # As slurmd 22.05.8 says it.
    (folder / "jobs" / "slurm-17.out").write_text("Error running slurm prolog: 1\n")
    said = "node[1-2] did not start it (Error running slurm prolog: 1); sinfo -R says more; "
    assert jobs(here, asked)[0]["advice"].startswith(said)


def test_an_element_s_own_record_is_found_by_the_id_it_saw(here, folder, asked):
    send(folder, "arr", "25", ["p0", "p1"], kind="array", time=now())
    leave(folder, "31", 0)
    queue = "25_0|31|RUNNING|None|1|me|c\n25_1|25|PENDING|Priority|1|me|c\n"
    asked.say("squeue", queue)
    assert jobs(here, asked)[0]["elements"] == {"COMPLETING": 1, "PENDING": 1}
    asked.say("squeue", queue.replace("RUNNING", "CANCELLED"))
    assert jobs(here, asked)[0]["elements"] == {"CANCELLED": 1, "PENDING": 1}


@pytest.mark.parametrize("answer", ["fails", "is silent", "is not there"])
def test_where_a_layer_gives_no_answer_the_state_is_unknown(here, folder, asked, answer):
    send(folder, "ladder", "17", ["w1-r0"])
    if answer == "is not there":
        (asked.folder / "squeue").unlink()
        (asked.folder / "sacct").unlink()
    elif answer == "fails":
        asked.say("squeue", rc=1, error="slurm_load_jobs error: Unable to contact controller")
        asked.say("sacct", rc=1, error="Connection refused")
    ended = status(here, asked)
    (row,) = json.loads(ended.stdout)["jobs"]
    # Sent long ago and known to nobody is LOST, but only where both were asked and answered.
    assert row["state"] == ("LOST" if answer == "is silent" else "unknown")
    assert bool(ended.stderr) is (answer != "is silent")
    assert ended.returncode == (1 if answer == "is silent" else 0)


def test_an_outage_of_accounting_loses_no_job_but_its_absence_may(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    asked.say("sacct", rc=1, error="slurmdbd: Connection refused")
    assert jobs(here, asked)[0]["state"] == "unknown"
    asked.say("sacct", rc=1, error=DISABLED)
    assert jobs(here, asked)[0]["state"] == "LOST"


def test_a_job_that_was_just_sent_is_not_lost(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"], time=now())
    assert jobs(here, asked)[0]["state"] == "unknown"


def test_a_job_that_wrote_a_moment_ago_is_not_lost(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    keep(folder, "w1-r0", "a")
    assert jobs(here, asked)[0]["state"] == "unknown"


def test_sacct_that_still_says_running_is_not_believed(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"], time=now())
    asked.say("sacct", sacct(account("17", "RUNNING")))
    (row,) = jobs(here, asked)
    assert row["state"] == "unknown"
    asked.say("squeue", rc=1, error="Unable to contact slurm controller")
    assert jobs(here, asked)[0]["state"] == "RUNNING"  # the best that anyone says


def test_a_job_that_sacct_never_calls_ended_is_lost_in_its_own_words(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    asked.say("sacct", sacct(account("17", "RUNNING")))
    (row,) = jobs(here, asked)
    assert row["state"] == "LOST"
    assert row["meaning"].endswith("no record of its end, though sacct does not call it ended")
    send(folder, "next", "18", time=now())
    asked.say("sacct", sacct(account("18", "RUNNING")))
    assert jobs(here, asked)[1]["meaning"].endswith("sacct does not say yet how it ended")


def test_a_profile_that_ended_well_leaves_nothing_to_make(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    keep(folder, "w1-r0", "a", "b")
    send(folder, "ladder-nsys", "18", kind="profile")
    asked.say("sacct", sacct(account("17", "COMPLETED"), account("18", "COMPLETED")))
    ended = status(here, asked)
    assert ended.returncode == 0
    asked.say("sacct", sacct(account("17", "COMPLETED"), account("18", "FAILED")))
    assert status(here, asked).returncode == 1


def test_what_the_job_itself_left_is_surer_than_that_nobody_knows_it(here, folder, asked):
    send(folder, "good", "17")
    send(folder, "bad", "18", ["w1-r0"])
    leave(folder, "17", 0)
    leave(folder, "18", 75, stopped=True)
    (asked.folder / "squeue").unlink()
    (asked.folder / "sacct").unlink()
    good, bad = jobs(here, asked)
    assert good["state"] == "COMPLETED"
    assert bad["state"] == "FAILED"
    assert bad["advice"].startswith("it stopped in order before its time limit; lockstep resume")


def test_a_job_whose_id_was_never_said_is_found_by_its_comment(here, folder, asked):
    uuid = send(folder, "ladder", None, ["w1-r0"])
    asked.say("squeue", f"41|41|RUNNING|None|1795253711|me|{uuid}\n")
    (row,) = jobs(here, asked)
    assert (row["id"], row["state"]) == ("41", "RUNNING")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"State": "OUT_OF_MEMORY", "ReqMem": "32G", "steps": "31G"},
            "it used 31.0 of 32.0 GiB: raise mem, or lower the batch",
        ),
        (
            {"State": "FAILED", "ExitCode": "137:0", "ReqMem": "32G", "steps": "31G"},
            "which Slurm cannot tell apart without cgroups; it used 31.0 of 32.0 GiB, so raise mem",
        ),
        (
            {"State": "FAILED", "ExitCode": "137:0", "ReqMem": "32G", "steps": "3G"},
            "it used 3.0 of 32.0 GiB, so look at its log first",
        ),
        ({"State": "OUT_OF_MEMORY"}, "how much it used is not known: raise mem"),
        ({"State": "TIMEOUT"}, "raise time in the campaign's [jobs] or in the site file"),
        (
            {"State": "NODE_FAIL", "NodeList": "node[2-3]"},
            "one of node[2-3]; sinfo says which is down",
        ),
        ({"State": "PREEMPTED"}, "lockstep resume results/x measures the rest"),
        ({"State": "CANCELLED by 1001"}, "lockstep resume results/x measures the rest"),
        ({"State": "FAILED", "ExitCode": "1:0"}, "launches/w1-r0/log.txt says: RuntimeError: no"),
    ],
)
def test_what_to_do_is_said(here, folder, asked, fields, said):
    send(folder, "ladder", "17", ["w1-r0"])
    keep(folder, "w1-r0", "a")
    (folder / "launches/w1-r0/log.txt").write_text("RuntimeError: no\x1b[0m data\nbye\n")
    memory = fields.pop("steps", "")
    step = {"JobID": "17.0", "MaxRSS": memory, "NTasks": "1"}
    asked.say("sacct", sacct(account("17", state="") | fields, step))
    ended = status(here, asked)
    advice = json.loads(ended.stdout)["jobs"][0]["advice"]
    assert said in advice
    rest = "lockstep resume results/x measures the rest"
    if fields["State"] == "OUT_OF_MEMORY":  # as before it would run out of it again
        rest = "mend mem in the site file, then lockstep resume results/x --site SITE"
    assert advice.endswith(rest)
    assert "\x1b" not in advice
    assert ended.returncode == 1


def test_a_variable_that_a_record_names_is_called_by_the_site_s_key(here, folder, asked):
    site = {"schema": 1, "name": "s", "cpus_per_node": 4, "gpus_per_node": 0, "time": "01:00:00"}
    site |= {"container": {"image": "/x.sif"}, "interface": "ib0"}
    site |= {"env": {"NCCL_SOCKET_IFNAME": "ib1"}}
    (folder / "jobs/site.json").write_text(json.dumps(site))
    asked.say("sacct", sacct(account("17", "FAILED", ExitCode="1:0")))
    send(folder, "job", "17", ["w1-r0"])
    for variable, key in {"GLOO": "interface", "NCCL": "env.NCCL_SOCKET_IFNAME"}.items():
        record = {"job_id": "17", "exit_code": 1, "stopped": False, "lost": ""}
        record |= {"mend": f"{variable}_SOCKET_IFNAME"}
        (folder / "jobs/exit-17.json").write_text(json.dumps(record))
        (row,) = jobs(here, asked)
        assert row["mend"] == key


@pytest.mark.parametrize(
    ("kind", "mend", "says"),
    [
        ("ladder", "container.image", "; mend container.image in the site file, then lockstep res"),
        ("preflight", "", "; nothing was measured, and the same scripts would end in the same way"),
        ("ladder", "", "; nothing was measured, and the same scripts would end in the same way"),
        ("collect", "", "; lockstep resume results/x measures the rest"),
    ],
)
def test_what_resume_cannot_mend_is_not_left_to_it(here, folder, asked, kind, mend, says):
    send(folder, "job", "17", ["w1-r0"] if kind == "ladder" else [], kind=kind)
    record = {"job_id": "17", "exit_code": 1, "stopped": False, "lost": "", "mend": mend}
    (folder / "jobs/exit-17.json").write_text(json.dumps(record))
    (folder / "jobs/slurm-17.out").write_text("no such thing\n")
    asked.say("sacct", sacct(account("17", "FAILED", ExitCode="1:0")))
    (row,) = jobs(here, asked)
    assert row["advice"].startswith("jobs/slurm-17.out says: no such thing" + says)
    if kind == "ladder":
        assert "\n  lockstep resume results/x --site SITE  #" in status(here, asked, "").stdout


def test_a_job_that_waits_for_ever_is_to_be_sent_again_with_another_site(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    reason = "QOSMaxWallDurationPerJobLimit"
    asked.say("squeue", f"17|17|PENDING|{reason}|1795253711|me|lockstep:ladder-17\n")
    (row,) = jobs(here, asked)
    assert row["advice"] == (
        "lockstep cancel results/x, mend that in the site file, then lockstep resume results/x "
        "--site SITE"
    )


def test_the_node_that_failed_is_named_where_the_output_names_it(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    # The node that says so is the one that runs the script, and is well.
    said = "slurmstepd: error: *** JOB 17 ON node2 CANCELLED AT 2026-11-21T09:00:47 DUE TO NODE "
    (folder / "jobs/slurm-17.out").write_text(f"{said}FAILURE, SEE SLURMCTLD LOG ***\n")
    asked.say("sacct", sacct(account("17", "NODE_FAIL", NodeList="node[2-3]")))
    assert jobs(here, asked)[0]["advice"].startswith("one of node[2-3]; ")
    keep(folder, "w1-r0", "a")
    (folder / "launches/w1-r0/log.txt").write_text("srun: error: Node failure on node3\n")
    assert jobs(here, asked)[0]["advice"].startswith("node3 failed; ")


def test_elements_that_were_cancelled_before_they_began_have_ended(here, folder, asked):
    send(folder, "arr", "25", [f"p{k}" for k in range(10)], kind="array")
    rows = [account("25_3", "CANCELLED"), account("25_[0-2,4-9%2]", "CANCELLED by 1001")]
    asked.say("sacct", sacct(*rows))
    (row,) = jobs(here, asked)
    assert row["elements"] == {"CANCELLED": 10}


def test_all_is_well_once_another_job_has_made_what_one_left(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0", "w4-r0"])
    keep(folder, "w1-r0", "a", "b")
    asked.say("sacct", sacct(account("17", "TIMEOUT"), account("18", "COMPLETED")))
    ended = status(here, asked)
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["abandoned"] == ["w4-r0"]
    send(folder, "ladder", "18", ["w4-r0"])
    asked.say("squeue", "18|18|PENDING|Priority|1795253711|me|lockstep:ladder-18\n")
    assert status(here, asked).returncode == 0  # it is to come
    asked.say("squeue")
    assert status(here, asked).returncode == 1
    keep(folder, "w4-r0", "a", "b")
    ended = status(here, asked, "")
    assert (ended.returncode, "launches: 2 of 2 complete" in ended.stdout) == (0, True)
    assert "  lockstep collect results/x\n" in ended.stdout


@pytest.mark.parametrize(("budget_s", "minutes"), [(None, 15), (1800, 30), (10, 5)])
def test_a_running_job_that_writes_nothing_has_stalled(here, folder, asked, budget_s, minutes):
    send(folder, "ladder", "17", ["w1-r0"])
    keep(folder, "w1-r0", "a")
    (folder / "launches/w1-r0/log.txt").touch()
    claim = {"schema": 1, "studies": ["weak"], "case_budget": budget_s}
    (folder / "campaign.json").write_text(json.dumps(claim))
    asked.say("squeue", "17|17|RUNNING|None|1795253711|me|lockstep:ladder-17\n")

    def seen(name, minutes_ago):
        then = time.time() - 60 * minutes_ago
        os.utime(folder / "launches/w1-r0" / name, (then, then))
        (row,) = jobs(here, asked)
        return row["state"], row["advice"]

    seen("journal.jsonl", 60)
    assert seen("log.txt", minutes - 1) == ("RUNNING", None)
    assert seen("log.txt", minutes + 1) == (
        "STALLED",
        f"its last line is {minutes + 1} min old: lockstep cancel results/x --job ladder, then "
        "lockstep resume results/x measures the rest",
    )


def test_a_stalled_element_of_an_array_is_cancelled_alone(here, folder, asked):
    send(folder, "arr", "25", ["p0", "p1"], kind="array")
    keep(folder, "p0", "a")
    keep(folder, "p1", "a")
    then = time.time() - 3600
    os.utime(folder / "launches/p1/journal.jsonl", (then, then))
    queue = "25_0|26|RUNNING|None|1|me|lockstep:arr-25\n25_1|25|RUNNING|None|1|me|lockstep:arr-25\n"
    asked.say("squeue", queue)
    (row,) = jobs(here, asked)
    assert row["elements"] == {"RUNNING": 1, "STALLED": 1}
    assert "--job arr --point 1, then" in row["advice"]


def test_the_name_of_a_stalled_job_is_one_word_of_a_command(here, folder, asked):
    send(folder, "x; reboot", "17", ["w1-r0"])
    keep(folder, "w1-r0", "a")
    then = time.time() - 3600
    os.utime(folder / "launches/w1-r0/journal.jsonl", (then, then))
    asked.say("squeue", "17|17|RUNNING|None|1|me|lockstep:x; reboot-17\n")
    assert "cancel results/x --job 'x; reboot', then" in jobs(here, asked)[0]["advice"]


def test_commands_can_be_copied_with_real_ids_and_paths(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    asked.say("squeue", "17|17|RUNNING|None|1795253711|me|lockstep:ladder-17\n")
    text = status(here, asked, "").stdout
    assert f"  tail -f {folder}/jobs/slurm-17.out\n" in text
    assert "  squeue --start --jobs=17\n  scancel 17\n" in text
    assert f"  log: {folder}/jobs/slurm-17.out\n" in text


@pytest.mark.parametrize(("cases", "is_left"), [(None, True), (["a"], True), (["a", "b"], False)])
def test_what_a_run_without_jobs_left_is_for_run_to_go_on_with(here, folder, asked, cases, is_left):
    (folder / "jobs").rmdir()
    facts = {"schema": 1, "launches": [{"name": "w1-r0"}], "studies": ["weak"]}
    (folder / "campaign.json").write_text(json.dumps(facts))
    if cases is not None:
        keep(folder, "w1-r0", *cases)
    _, _, todo = status(here, asked, "").stdout.partition("Next:\n")
    again = "  lockstep run CAMPAIGN  # with the options of before: it goes on\n" * is_left
    assert todo == f"{again}  lockstep report results/x\n"


@pytest.mark.parametrize("command", ["status", "collect", "cancel"])
@pytest.mark.parametrize(
    ("given", "what"),
    [("file", "is a file"), ("nowhere", "does not exist"), ("results", "holds no campaign")],
)
def test_what_is_no_results_folder_is_said_in_one_sentence(here, asked, command, given, what):
    (here / "file").write_text("")
    ended = lockstep(f"{command} {given}", here, asked.folder)
    said = f"Error: {given} {what}; give the results folder, such as results/NAME\n"
    assert (ended.returncode, ended.stderr) == (2, said)


@pytest.mark.slow
def test_watching_ends_with_the_jobs_and_tells_each_change_once(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    keep(folder, "w1-r0", "a", "b")
    waits = "17|17|PENDING|Priority|1795253711|me|lockstep:ladder-17\n"
    runs = "17|17|RUNNING|None|1795253711|me|lockstep:ladder-17\n"
    asked.say("squeue", waits, waits, runs, "")
    asked.say("sacct", sacct(account("17", "COMPLETED")))
    ended = lockstep("status --watch 1 results/x", here, asked.folder)
    assert ended.returncode == 0, ended.stderr
    changes = [line.split(": ")[1].split(",")[0] for line in ended.stdout.splitlines()[:3]]
    assert changes == ["PENDING", "RUNNING", "COMPLETED"]
    assert len(asked.calls("squeue")) == 4
    assert len(asked.calls("sacct")) == 1


def test_watching_alone_needs_no_number(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    keep(folder, "w1-r0", "a", "b")
    asked.say("sacct", sacct(account("17", "COMPLETED")))
    ended = lockstep("status --watch results/x --json", here, asked.folder)
    assert json.loads(ended.stdout)["num_complete"] == 1


@pytest.mark.slow
def test_watching_on_a_terminal_ends_with_130_when_interrupted(here, folder, asked):
    send(folder, "ladder", "17", ["w1-r0"])
    asked.say("squeue", "17|17|RUNNING|None|1795253711|me|lockstep:ladder-17\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lockstep", "status", "results/x", "--watch", "1"]
    environ = os.environ | {"PATH": str(asked.folder), "TERM": "xterm"}
    with subprocess.Popen(command, cwd=here, env=environ, stdout=theirs) as watching:
        try:
            give_up = time.monotonic() + 60
            while not asked.calls("squeue"):
                assert time.monotonic() < give_up
                time.sleep(0.1)
            time.sleep(0.5)
            watching.send_signal(signal.SIGINT)
            assert watching.wait(30) == 130
        finally:
            watching.kill()
    assert b"ladder, job 17: RUNNING, runs" in os.read(ours, 65536)


def test_cancel_ends_only_what_is_ours_and_has_not_ended(here, folder, asked):
    mine = send(folder, "ladder", "17")
    send(folder, "done", "18")
    send(folder, "gone", "19")
    asked.say(
        "squeue",
        f"17|17|RUNNING|None|1|me|{mine}\n"
        "18|18|COMPLETED|None|1|me|lockstep:done-18\n"
        "19|19|RUNNING|None|1|me|another campaign's, which got the id anew\n"
        "20|20|RUNNING|None|1|me|(null)\n",
    )
    planned = lockstep("cancel results/x --dry-run", here, asked.folder)
    assert planned.stdout == "scancel 17\n"
    assert asked.calls("scancel") == []
    ended = lockstep("cancel results/x", here, asked.folder)
    assert asked.calls("scancel") == ["scancel 17"]
    assert ended.stdout.startswith("cancelled: ladder, job 17\nNext: lockstep resume results/x")


def test_cancel_of_one_element_leaves_the_others(here, folder, asked):
    mine = send(folder, "arr", "25", [f"p{k}" for k in range(5)], kind="array")
    asked.say("squeue", f"25_[3-4]|25|PENDING|None|1|me|{mine}\n25_2|31|RUNNING|None|1|me|{mine}\n")
    assert lockstep("cancel results/x --point 3", here, asked.folder).returncode == 0
    assert asked.calls("scancel") == ["scancel 25_3"]
    # squeue and sacct keep nothing of an element that had not begun.
    asked.say("squeue", f"25_[4]|25|PENDING|None|1|me|{mine}\n25_2|31|RUNNING|None|1|me|{mine}\n")
    (row,) = jobs(here, asked)
    assert [(one["id"], one["state"]) for one in row["ended_badly"]] == [
        ("25_0", "LOST"),
        ("25_1", "LOST"),
        ("25_3", "CANCELLED"),
    ]
    assert row["ended_badly"][2]["advice"].startswith("once the other jobs have ended, lockstep re")
    ended = lockstep("cancel results/x --point 1", here, asked.folder)
    assert ended.stdout == "No job is waiting or running; nothing to cancel.\n"
    refused = lockstep("cancel results/x --point 9", here, asked.folder)
    assert refused.returncode == 2
    assert lockstep("cancel results/x", here, asked.folder).returncode == 0
    assert asked.calls("scancel")[1:] == ["scancel 25"]


def test_cancel_says_which_names_there_are(here, folder, asked):
    send(folder, "a", "17", ["p0"], kind="array")
    send(folder, "b", "18", ["p0"], kind="array")
    refused = lockstep("cancel results/x --job c", here, asked.folder)
    assert refused.stderr.endswith("its jobs are: a, b\n")
    refused = lockstep("cancel results/x --point 0", here, asked.folder)
    assert refused.stderr == "Error: several arrays have an element 0; name one by --job: a, b\n"


def test_cancel_without_an_answer_cancels_nothing(here, folder, asked):
    send(folder, "ladder", "17")
    asked.say("squeue", rc=1, error="Unable to contact slurm controller")
    ended = lockstep("cancel results/x", here, asked.folder)
    assert (ended.returncode, asked.calls("scancel")) == (3, [])


def test_a_command_that_hangs_is_given_up(asked, monkeypatch):
    asked.say("squeue", seconds=30)
    monkeypatch.setenv("PATH", str(asked.folder))
    monkeypatch.setattr(slurm, "TIMEOUT_S", 0.2)
    with pytest.raises(RuntimeError, match=r"squeue gave no answer within 0\.2 s; ask again later"):
        slurm.queue()


@pytest.mark.parametrize(
    ("said", "elements"),
    [
        ("3", [3]),
        ("[3-5%2]", [3, 4, 5]),
        ("[0,2,7-8]", [0, 2, 7, 8]),
        ("[0-30:10%1]", [0, 10, 20, 30]),
        ("[1-3,...]", [1, 2, 3]),
        ("[9-1]", []),
        ("", []),
        ("[x-y]", []),
    ],
)
def test_the_elements_of_an_array_are_counted_out(said, elements):
    assert list(slurm.numbers(said)) == elements


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("None", "waits: until Slurm has looked at it"),
        ("Priority", "waits: jobs of a higher priority come first"),
        ("Resources", "waits: until enough nodes are free"),
        ("PartitionDown", "another partition in the site file may be (PartitionDown)"),
        ("ReqNodeNotAvail, May be reserved for other job", "(ReqNodeNotAvail, May be reserved"),
        ("BadConstraints", "change constraint, gpu_type or mem"),
        ("launch_failed_requeued_held", "it could not be started on its nodes"),
        ("(launch failed requeued held)", "it could not be started on its nodes"),
        ("JobHeldAdmin", "ask the cluster's support"),
        ("QOSMaxJobsPerUserLimit", "until fewer of your jobs run"),
        ("QOSGrpGRES", "together they are at its limit"),
        ("QOSMaxGRESPerUser", "a limit of the QOS is reached"),
        ("AssocGrpGRES", "together they use all its GPUs"),
        ("AssocGrpGRESMinutes", "its budget is spent"),
        ("AssocMaxJobsLimit", "a limit of the account is reached"),
        ("InvalidQOS", "change qos"),
        ("Strange", "waits: Strange"),
    ],
)
def test_why_a_job_waits_is_said_in_plain_words(reason, said):
    meant = slurm.State("PENDING", reason).meaning
    assert said in meant
    plain = ("None", "Priority", "Resources")
    assert reason in plain or reason.strip("()") in meant  # Slurm's own word is kept


def test_a_state_without_words_of_ours_is_slurm_s():
    assert slurm.State("STAGE_OUT").meaning == "Slurm calls it STAGE_OUT"
    assert slurm.State("TIMEOUT").has_ended
    assert not any(slurm.State(name).has_ended for name in ("RUNNING", "COMPLETING", "unknown"))


@pytest.mark.parametrize(
    ("said", "key", "where"),
    [
        ("invalid partition specified: X", "partition", "site"),
        ("Batch job submission failed: Invalid partition name specified", "partition", "site"),
        ("Invalid account or account/partition combination specified", "account", "site"),
        ("Invalid qos specification", "qos", "site"),
        ("Requested node configuration is not available", "gpus_per_node, gpu_type", "site"),
        ("Invalid generic resource (gres) specification", "gpu_type or gpus_per_node", "site"),
        ("Invalid Trackable RESource (TRES) specification", "gpu_type or gpus_per_node", "site"),
        ("Node count specification invalid", "world_sizes", "campaign"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time", "site"),
        ("Invalid --time specification", "time", "site"),
        ("Memory specification can not be satisfied", "mem", "site"),
        ("Invalid --mem specification", "mem", "site"),
        ("Invalid feature specification", "constraint", "site"),
        ("Invalid node name specified", "extra_directives", "site"),
        ("More processors requested than permitted", "cpus_per_node", "site"),
        ("CPU count per node can not be satisfied", "cpus_per_node", "site"),
        ("Invalid job array specification", "max_array_size", "site"),
        ("Requested reservation is invalid", "reservation", "site"),
        ("Batch script contains DOS line breaks (\\r\\n)", "shell_before", "site"),
        ("This does not look like a batch script.", "template", "site"),
        ("Pathname of a file, directory or other parameter too long", "world_sizes", "campaign"),
        ("unrecognized option '--nodess=3'", "extra_directives", "site"),
        ("Job violates accounting/QOS policy (job submit limit, ...)", "qos, account", "site"),
    ],
)
def test_a_refusal_names_the_key_and_keeps_what_slurm_said(said, key, where):
    explained = refusals.explain(f"sbatch: error: {said}\n", "me", lambda *_: "", GONE)
    assert explained.startswith(f"sbatch said: sbatch: error: {said}; change {key}")
    assert f" in the {where} file" in explained
    assert "\n" not in explained


def test_a_refusal_says_what_there_is():
    def ask(*command):
        assert command[:2] == ("sinfo", "--noheader")
        return "gpu\ndebug\ngpu\n"

    explained = refusals.explain("sbatch: error: Invalid partition name", "me", ask, GONE)
    assert explained.endswith("; change partition in the site file (partitions: gpu, debug)")


def test_a_refusal_is_told_where_nobody_says_what_there_is():
    def ask(*_):
        raise RuntimeError("sacctmgr said: Connection refused")

    explained = refusals.explain("sbatch: error: Invalid qos specification", "me", ask, GONE)
    assert explained.endswith("; change qos in the site file")


@pytest.mark.parametrize("said", ["Socket timed out on send/recv operation", "", "Zero Bytes"])
def test_what_is_no_refusal_names_no_key(said):
    assert refusals.explain(f"sbatch: error: {said}", "me", lambda *_: "", GONE) is None


# A site's banner, which names keys, and the same as a plugin's own line of error.
BANNERS = (
    "",
    "Welcome! default account proj, time limit 24h, invalid qos are refused\n",
    "sbatch: default account proj, time limit 24h\n",
    "sbatch: error: default account proj, time limit 24h\n",
)
LOST_ANSWERS = (
    "Socket timed out on send/recv operation",
    "Unable to contact slurm controller (connect failure)",
    "Transport endpoint is not connected",
    "Zero Bytes were transmitted or received",
)


@pytest.mark.parametrize("lost", LOST_ANSWERS)
@pytest.mark.parametrize("banner", BANNERS)
def test_a_submission_whose_answer_was_lost_is_found_again(here, asked, monkeypatch, banner, lost):
    said = f"{banner}sbatch: error: Batch job submission failed: {lost}\n"
    asked.say("sbatch", rc=1, error=said)
    asked.say("squeue", "41_[0-9]|41|PENDING|None|1|me|mine\n", "")
    monkeypatch.setenv("PATH", str(asked.folder))
    assert slurm.sbatch(here / "x.sh", "mine", "--dependency=afterok:7") == "41"
    (call,) = asked.calls("sbatch")
    assert call == f"sbatch --parsable --comment=mine --dependency=afterok:7 {here}/x.sh"
    with pytest.raises(RuntimeError, match=re.escape(lost)):  # it is not there: nothing refused it
        slurm.sbatch(here / "x.sh", "mine")


def test_a_banner_is_no_refusal_and_hides_none():
    banner = BANNERS[1]
    assert (
        refusals.explain(f"{banner}sbatch: error: something new\n", "me", lambda *_: "", GONE)
        is None
    )
    said = f"{banner}sbatch: error: Batch job submission failed: Invalid qos specification\n"
    assert "; change qos in the site file" in refusals.explain(said, "me", lambda *_: "", GONE)


def test_neither_a_job_around_us_nor_a_user_s_own_filters_reach_slurm(asked, monkeypatch):
    foreign = ("SLURM_MEM_PER_CPU", "SLURM_GPU_BIND", "SLURM_HINT", "SLURM_CLUSTERS")
    foreign += ("SBATCH_QOS", "SQUEUE_STATES", "SACCT_FORMAT", "SINFO_PARTITION")
    for name in (*foreign, "SLURM_CONF", "OTHER"):
        monkeypatch.setenv(name, "1")
    asked.act("squeue", "/usr/bin/env")
    asked.act("sbatch", f"/usr/bin/env >{asked.folder}/job; echo 7")
    monkeypatch.setenv("PATH", str(asked.folder))
    slurm.sbatch(asked.folder / "x.sh", "mine")
    asking, sent = slurm.ask("squeue"), (asked.folder / "job").read_text()
    for said in (asking, sent):
        assert [name for name in foreign if f"{name}=" in said] == []
        assert "SLURM_CONF=1" in said
        assert "OTHER=1" in said
    assert "SLURM_TIME_FORMAT=%s" in asking
    assert "SLURM_" not in sent.replace("SLURM_CONF", "")


@pytest.mark.parametrize(
    "said", ["41\n", "41;cluster\n", "Welcome!\n12 jobs wait\n2026\n41;a b\nBye\n", "41"]
)
def test_the_id_is_found_in_what_a_site_s_sbatch_prints(asked, monkeypatch, said):
    asked.say("sbatch", said)
    monkeypatch.setenv("PATH", str(asked.folder))
    assert slurm.sbatch(asked.folder / "x.sh", "mine") == "41"


@pytest.mark.parametrize("said", ["", "\n", "Submitted batch job 41\n", "41 jobs\n", "-41\n"])
def test_an_answer_without_an_id_is_a_lost_one(asked, monkeypatch, said):
    asked.say("sbatch", said)
    monkeypatch.setenv("PATH", str(asked.folder))
    asked.say("squeue", "41|41|PENDING|Priority|1|me|mine\n")
    assert slurm.sbatch(asked.folder / "x.sh", "mine") == "41"
    asked.say("squeue")
    with pytest.raises(RuntimeError, match="sbatch gave no job id but '"):
        slurm.sbatch(asked.folder / "x.sh", "mine")


def test_a_refused_submission_is_not_found_again_by_the_record_it_leaves(asked, monkeypatch):
    """Slurm keeps a refused job for a while, FAILED for BadConstraints, with its comment."""
    asked.say("squeue", "41|41|FAILED|BadConstraints|1|me|mine\n")
    monkeypatch.setenv("PATH", str(asked.folder))
    asked.say("sbatch", rc=1, error="sbatch: error: Requested node configuration is not available")
    with pytest.raises(ValueError, match=r"; change gpus_per_node, gpu_type, cpus_per_node or mem"):
        slurm.sbatch(asked.folder / "x.sh", "mine")
    asked.say("sbatch", rc=1, error="sbatch: error: something new")
    with pytest.raises(RuntimeError, match=r"sbatch said: sbatch: error: something new"):
        slurm.sbatch(asked.folder / "x.sh", "mine")


def test_the_last_line_that_tells_of_an_error_is_the_gist(tmp_path):
    log = tmp_path / "log.txt"
    assert gist(log) is None
    log.write_text("x" * 20000 + "\nsrun: error: node2: task 1: Killed\n  \n== done ==\n")
    assert gist(log) == "srun: error: node2: task 1: Killed"
    log.write_bytes(b"\xff\x00 fine\n")
    assert gist(log).endswith(" fine")


def test_two_commands_do_not_change_a_folder_at_once(tmp_path):
    results = Results(tmp_path)
    said = (
        rf"another lockstep command \(process {os.getpid()} on .*\) works in {tmp_path}; "
        "wait for it$"
    )
    with results.alone(), pytest.raises(ValueError, match=said), results.alone():
        pytest.fail("both hold the lock")


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_no_other_command(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(NoLocksError, match=errno.errorcode[code]), Results(tmp_path).alone():
        pytest.fail("nobody is kept out")
    told = []
    with Results(tmp_path).merging(told.append):
        pass
    assert len(told) == 1


@pytest.mark.parametrize("command", ["status", "cancel", "collect"])
def test_each_command_s_help_has_an_example(command, here, asked):
    ended = lockstep(f"{command} --help", here, asked.folder)
    assert ended.returncode == 0
    assert f"  lockstep {command} results/campaign" in ended.stdout


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


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "key", "allowed"),
    [
        ("--partition=nowhere", "partition", "partitions: gpu, debug"),
        ("--account=nobody", "account", "your accounts: project"),
        ("--qos=gold", "qos", "your QOS: normal"),
        ("--gres=banana:1", "gpu_type or gpus_per_node", "gres of a node: gpu:fake:2"),
        ("--gpus-per-node=h100:1", "gpus_per_node, gpu_type", "a node has: gpu: 4 CPUs"),
        ("--mem=99T", "mem", "MiB of a node: 8000"),
        ("--nodes=9", "world_sizes", "partitions: gpu has 4 nodes"),
        ("--nodes=99", "cpus_per_node in the site file, or world_sizes", "gpu has 4 nodes of 4"),
        ("--time=9-00:00:00", "time", "limits: gpu 1-00:00:00, debug 15:00"),
        ("--partition=debug --time=16", "time", "limits: gpu 1-00:00:00, debug 15:00"),
        ("--time=banana", "time", "limits: gpu 1-00:00:00"),
        ("--constraint=banana", "constraint", "features: rack"),
        ("--reservation=banana", "reservation", "reservations: none"),
        ("--cpus-per-task=99", "cpus_per_node", "gpu has 4 nodes of 4 CPUs"),
        ("--array=0-99999999", "max_array_size", "MaxArraySize: "),
        ("--nodelist=nowhere", "extra_directives", "nodes: node[1-"),
        ("--nodess=3", "extra_directives", ""),
    ],
)
def test_what_a_real_sbatch_refuses_names_the_key_and_what_there_is(
    login, monkeypatch, option, key, allowed
):
    monkeypatch.setattr(slurm.getpass, "getuser", lambda: TESTBED_USER)
    script = login / "true.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    with pytest.raises(ValueError, match=r"^sbatch said: ") as refused:
        slurm.sbatch(script, "lockstep:refused", *option.split())
    said = str(refused.value)
    assert f"; change {key}" in said
    assert allowed in said
    assert "\n" not in said


@pytest.fixture
def one_node_a_job():
    """Let a job of the partition debug have one node; to be asked for before `login`."""
    need_testbed()
    update = ["scontrol", "update", "PartitionName=debug"]
    subprocess.run([*update, "MaxNodes=1"], check=True)
    yield
    subprocess.run([*update, "MaxNodes=UNLIMITED"], check=True)


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.usefixtures("one_node_a_job")
def test_a_job_of_more_nodes_than_its_partition_gives_one_is_told_how_many(login):
    script = login / "true.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    too_many = ("--partition=debug", "--nodes=2")
    with pytest.raises(ValueError, match=r"^sbatch said: ") as refused:
        slurm.sbatch(script, "lockstep:refused", *too_many)
    assert "; change world_sizes in the campaign file (partitions: " in str(refused.value)
    assert "debug has 2 nodes, jobs of 1)" in str(refused.value)


@pytest.fixture
def limits_are_not_enforced():
    """Let Slurm take a job that no partition will ever run; to be asked for before `login`."""
    need_testbed()
    with faults_slurm.configured("EnforcePartLimits=NO"):
        yield


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.usefixtures("limits_are_not_enforced")
def test_a_job_that_was_taken_beyond_its_partition_s_limit_waits_for_ever(login):
    sent(login, "long", "true", "--partition=debug", "--time=16")
    path = os.environ["PATH"]
    try:
        until(lambda: row_of(login, "long", path)["reason"] == "PartitionTimeLimit", "its reason")
        said = lockstep(f"status {login}", login, path).stdout
    finally:
        lockstep(f"cancel {login} --job long", login, path)
    assert "waits: for ever: its time is over the partition's limit; lower time (Parti" in said


@pytest.mark.slurm
@pytest.mark.slow
def test_real_jobs_stand_as_they_are(login):
    ended = {"good": "true", "bad": "echo 'RuntimeError: no data'; exit 3", "ended": "sleep 300"}
    ids = {}
    for name, command in ended.items():
        ids[name] = sent(login, name, command)
    ids["held"] = sent(login, "held", "true", "--hold")
    ids["gone"] = sent(login, "gone", "true", f"--output={login}/nowhere/%j.out")
    ids["some"] = sent(login, "some", "true", "--array=0-1", "--hold", num=2)
    by_hand = login / "jobs" / "by-hand.sh"
    by_hand.write_text("#!/bin/bash\ntrue\n")
    where = (f"--output={login}/jobs/slurm-%j.out", "--job-name=by-hand", "--time=1")
    ids["by-hand"] = slurm.sbatch(by_hand, "nobody recorded this", *where)
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
    assert found["bad"]["advice"].startswith("jobs/slurm-")
    assert "RuntimeError: no data" in found["bad"]["advice"]
    assert states["ended"] == states["held"] == states["some"] == "CANCELLED"
    assert found["gone"]["advice"].startswith("exit code 0:53: node")
    assert (states["by-hand"], found["by-hand"]["by_hand"]) == ("COMPLETED", True)
    assert found["by-hand"]["id"] == ids["by-hand"]
    assert found["arr"]["elements"] == {"COMPLETED": 4, "FAILED": 1}
    assert [one["id"] for one in found["arr"]["ended_badly"]] == [f"{ids['arr']}_2"]
    collected = lockstep(f"collect {login} --json", login, path)
    rows = json.loads(collected.stdout)["jobs"]
    assert all(row["accounting"]["elapsed_s"] is not None for row in rows)
    first = (login / "accounting.json").read_bytes()
    lockstep(f"collect {login}", login, path)
    assert (login / "accounting.json").read_bytes() == first


def sent(folder, name, command, *options, num=1):
    """Send a job to the testbed, and record it as `lockstep submit` does."""
    script = folder / "jobs" / f"{name}.sh"
    script.write_text(f"#!/bin/bash\n{command}\n")
    output = "%A_%a" if num > 1 else "%j"
    where = (f"--output={folder}/jobs/slurm-{output}.out", f"--job-name={name}", "--time=1")
    job_id = slurm.sbatch(script, f"lockstep:{name}-testbed", *where, *options)
    record = Journal(folder / "jobs" / "submitted.jsonl")
    launches = [f"{name}-{number}" for number in range(num)]
    kind = "array" if num > 1 else "ladder"
    head = {"uuid": f"lockstep:{name}-testbed", "job": name, "time": now(), "kind": kind}
    record.append(head | {"launches": launches, "id": job_id})
    record.close()
    return job_id


def row_of(folder, name, path):
    found = json.loads(lockstep(f"status {folder} --json", folder, path).stdout)
    return next(row for row in found["jobs"] if row["job"] == name)
