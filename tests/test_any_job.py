"""Questions about any job: what Slurm's own answers become, and every example of their help."""

import csv
import json
import re
import time

import pytest
import stand_ins
from commands import finish
from stand_ins import sacct

from examples import collected
from lockstep.slurm.any_job import node_use
from lockstep.slurm.any_job.held import COLUMNS

GIB = 1024**3
RUNS = {"job_id": "4711", "state": "RUNNING", "reason": "None", "elapsed": "2:00", "nodes": "n1",
        "limit": "1:00:00", "name": "train|x"}  # fmt: skip
WAITS = {"job_id": "4712", "state": "PENDING", "reason": "Priority", "elapsed": "0:00",
         "priority": "100", "name": "eval", "limit": "1:00:00",
         "waits_for": "afterok:12(unfulfilled),after:13+5(unfulfilled),singleton"}  # fmt: skip
ENDED = {"JobID": "4711", "JobIDRaw": "4711", "State": "COMPLETED", "ExitCode": "0:0", "User": "me",
         "Elapsed": "00:10:00", "Timelimit": "01:00:00", "AllocCPUS": "8", "NNodes": "1",
         "AllocTRES": "cpu=8,mem=64G,node=1", "JobName": "train", "NodeList": "n1"}  # fmt: skip
STEP = {"JobID": "4711.0", "TotalCPU": "00:20:00", "MaxRSS": "8G", "NTasks": "1"}


def squeue(*rows):
    usual = {"user": "me", "partition": "gpu", "num_nodes": "1", "submitted": "5", "starts": "N/A"}
    return "".join("|".join((usual | row).get(name, "") for name in COLUMNS) + "\n" for row in rows)


@pytest.fixture
def slurm(tmp_path):
    return stand_ins.StandIns(tmp_path / "slurm")


def ask(line, slurm):
    if line.partition(" ")[0] not in ("cancel", "plan"):
        line = f"slurm {line}"
    return stand_ins.lockstep(line, slurm.folder.parent, slurm.folder)


def asked(line, slurm):
    ended = ask(f"{line} --json", slurm)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_my_jobs_are_listed_by_when_they_start(slurm):
    soon = WAITS | {"job_id": "4713", "starts": str(int(time.time()) + 3600)}
    slurm.say("squeue", squeue(WAITS, soon, RUNS))
    found = asked("jobs", slurm)["jobs"]
    assert [job["job_id"] for job in found] == ["4711", "4713", "4712"]
    assert not {"raw_id", "comment", "command", "elements"} & found[0].keys()  # not asked for
    assert (found[0]["name"], found[0]["elapsed_s"], found[0]["limit_s"]) == ("train|x", 120, 3600)
    assert found[2]["waits_for"] == [["afterok", "12"], ["after", "13"], ["singleton", ""]]
    assert "4711 train|x: the job has run for 2 min on n1; 58 min left" in ask("jobs", slurm).stdout


def test_why_a_job_waits_has_its_rank_and_its_factors_if_slurm_has_them(slurm):
    queue = "100|Priority\n200|Resources\n300|Dependency\n150|Priority\n"
    slurm.say("squeue", squeue(WAITS), queue)
    slurm.say("sprio", "  1000|  500|0|0|0|  -100\n")
    (job,) = asked("why 4712", slurm)["jobs"]
    factors = {"age": 1000, "fairshare": 500, "nice": -100}
    assert (job["reason"], job["wait"]) == ("Priority", {"factors": factors, "num_ahead": 2})
    slurm.say("squeue", squeue(WAITS | {"reason": "Dependency"}))
    slurm.say("sprio", rc=1, error="sprio: error: not running a supported priority plugin")
    (job,) = asked("why 4712", slurm)["jobs"]
    assert job["wait"] == {"factors": None, "num_ahead": None}


def test_of_a_job_that_squeue_forgot_accounting_says_how_it_ended(slurm):
    slurm.say("squeue", rc=1, error="slurm_load_jobs error: Invalid job id specified")
    slurm.say("sacct", sacct(ENDED | {"State": "FAILED", "ExitCode": "127:0", "End": "7200"}))
    assert asked("why 4711", slurm)["ended"]["4711"]["exit_code"] == "127:0"
    assert re.search("until 1970.*\n  exit code 127: a command", ask("why 4711", slurm).stdout)
    assert "has ended or never existed; lockstep slurm eff 4711" in ask("top 4711", slurm).stderr
    slurm.say("sacct", sacct())
    assert ask("why 4711", slurm).returncode == 2
    assert ask("why laptop", slurm).returncode == 2


def test_why_names_the_dependency_for_which_slurm_cancelled_a_job(slurm):
    over = squeue(RUNS | {"state": "CANCELLED", "reason": "DependencyNeverSatisfied"})
    slurm.say("squeue", "", over)  # which shows it only with --states=all
    slurm.say("sacct", sacct(ENDED | {"State": "CANCELLED", "Elapsed": "00:00:00"}))
    assert asked("why 4711", slurm)["ended"]["4711"]["reason"] == "DependencyNeverSatisfied"
    assert "--states=all" in slurm.calls("squeue")[-1]
    slurm.say("squeue")
    slurm.say("sacct", sacct(ENDED | {"State": "CANCELLED by 0"}))
    assert "CANCELLED, the job was cancelled by root\n" in ask("why 4711", slurm).stdout


@pytest.mark.parametrize(
    ("change", "step", "shares", "hints"),
    [
        # CPUs, memory, time; what would do with a margin of a quarter
        ({}, {}, (0.25, 0.125, 1 / 6),
         {"memory_ample": 10 * GIB, "time_ample": 750, "cpus_idle": 3}),
        ({"AllocTRES": "cpu=8,mem=64G,gres/gpu=1"}, {"MaxRSS": "40G"}, (0.25, 0.625, 1 / 6),
         {"time_ample": 750}),
        ({"NNodes": "2"}, {"NNodes": "2", "NTasks": "4", "TRESUsageInTot": "mem=9G"},
         (0.25, 9 / 64, 1 / 6),
         {"memory_ample": 1.25 * 9 * GIB, "time_ample": 750, "cpus_idle": 4}),
        # What memory, a limit or a signal cut short has not shown what it needs.
        ({"State": "OUT_OF_MEMORY"}, {"MaxRSS": "63G"}, (0.25, 63 / 64, 1 / 6),
         {"memory_near": 80 * GIB}),
        ({"State": "TIMEOUT", "Elapsed": "01:00:00"}, {}, (1 / 24, 0.125, 1.0),
         {"time_near": 4500}),
        ({"State": "CANCELLED by 1"}, {}, (0.25, 0.125, 1 / 6), {}),
    ],
)  # fmt: skip
def test_what_a_job_used_and_what_would_do(slurm, change, step, shares, hints):
    slurm.say("sacct", sacct(ENDED | change, STEP | step))
    job = asked("eff 4711", slurm)["jobs"]["4711"]
    used = (job["cpu_efficiency"], job["memory_efficiency"], job["time_efficiency"])
    assert used == pytest.approx(shares)
    assert {hint["kind"]: hint["amount"] for hint in job["hints"]} == hints
    said = ask("eff 4711", slurm).stdout
    assert (change.get("State", "COMPLETED") in ("COMPLETED", "TIMEOUT")) == ("Next: " in said)
    assert ("CPUs were busy only" in said) == ("Next: " in said and "AllocTRES" not in change)
    assert ("one per task" in said) == ("2 nodes together" in said) == ("NNodes" in change)


@pytest.mark.parametrize(
    ("state", "code", "step", "says"),
    [
        ("COMPLETED", "0:0", {"State": "CANCELLED", "ExitCode": "0:10"}, ["signal 10 (USR1)"]),
        ("FAILED", "1:0", {"State": "FAILED", "ExitCode": "0:7"}, ["signal 7 (BUS)", "bus error"]),
        ("FAILED", "0:53", {}, ["output"]),
        ("FAILED", "1:0", {"State": "OUT_OF_MEMORY", "ExitCode": "0:125"}, ["step 0", "memory"]),
    ],
)
def test_why_and_eff_say_which_signal_ended_a_job_or_a_step(slurm, state, code, step, says):
    ended = ENDED | {"State": state, "ExitCode": code}
    slurm.say("squeue", rc=1, error="slurm_load_jobs error: Invalid job id specified")
    slurm.say("sacct", sacct(ended, STEP | {"State": "COMPLETED", "ExitCode": "0:0"} | step))
    assert [word for word in says if word not in ask("why 4711", slurm).stdout] == []
    bad = asked("eff 4711", slurm)["jobs"]["4711"]["bad_steps"]
    expected = {"step": "0", "state": step.get("State"), "exit_code": step.get("ExitCode")}
    assert bad == ([expected] if step else [])


@pytest.mark.parametrize(
    ("step", "use"),
    [
        ({"TRESUsageInTot": "cpu=1,gres/gpumem=8G,gres/gpuutil=380",
          "TRESUsageInAve": "gres/gpumem=2G,gres/gpuutil=95"}, ("TRESUsageInAve", 95, 2 * GIB)),
        ({"TRESUsageInTot": "gres/gpumem=7G,gres/gpuutil=0"}, ("TRESUsageInTot", 0, 7 * GIB)),
    ],
)  # fmt: skip
def test_how_busy_gpus_were_is_said_where_slurm_gathers_it(slurm, step, use):
    on_gpus = ENDED | {"AllocTRES": "cpu=8,gres/gpu=4,mem=64G,node=1"}
    script = STEP | {"JobID": "4711.batch", "TRESUsageInTot": "mem=1G"}
    slurm.say("sacct", sacct(on_gpus, script, STEP | step))
    found = asked("eff 4711", slurm)["jobs"]["4711"]["gpu_use"]
    keys = ("step", "column", "busy_percent", "memory_bytes")
    assert [found[key] for key in keys] == ["0", *use]
    assert f"{use[1]}% busy" in ask("eff 4711", slurm).stdout
    slurm.say("sacct", sacct(on_gpus, script, STEP))
    assert "Slurm does not report" in ask("eff 4711", slurm).stdout


NOW = """cores|n1|8
load|n1|3.2
memory|n1|MemTotal:       65536 kB
memory|n1|MemAvailable:   16384 kB
cpu1|n1|cpu  1000 0 0 1000 0 0 0 0 0 0
process1|n1|77 (py (x) y) S 1 1 1 0 -1 0 0 0 0 0 100 50 0 0 20 0 1 0 5 0 256 0
cpu2|n1|cpu  1150 0 0 1050 0 0 0 0 0 0
process2|n1|77 (py (x) y) S 1 1 1 0 -1 0 0 0 0 0 300 150 0 0 20 0 1 0 5 0 256 0
process2|n1|78 (cat) R 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 5 0 9 0
gpu|n1|0, NVIDIA H100, 97, 40960, 81559, 612.50, [N/A]
"""


def test_what_nodes_do_is_computed_from_two_looks(slurm):
    slurm.say("squeue", squeue(RUNS))
    slurm.say("srun", NOW)
    (node,) = asked("top 4711", slurm)["nodes"]
    assert (node["cores"], node["load"], node["busy"]) == (8, 3.2, 0.75)
    assert (node["used_bytes"], node["total_bytes"]) == (48 * 1024**2, 64 * 1024**2)
    (process,) = node["processes"]  # not the one that only the second look has
    assert process == {"pid": 77, "name": "py (x) y", "cpus": 3.0, "rss_bytes": 1024**2}
    (gpu,) = node["gpus"]
    assert (gpu["busy"], gpu["used_bytes"], gpu["temperature_c"]) == (0.97, 40 * GIB, None)
    (call,) = slurm.calls("srun")
    assert "--jobid=4711 --overlap --nodes=1 --ntasks=1" in call


def test_each_look_adds_a_line_a_gpu_to_a_table(slurm, tmp_path):
    slurm.say("squeue", squeue(RUNS))
    slurm.say("srun", f"{NOW}gpu|n1|1, NVIDIA H100, 3, 10, 81559, 70, 41\ncores|n2|4\n")
    table = tmp_path / "use.csv"
    for _ in range(2):
        assert ask(f"top 4711 --csv {table}", slurm).returncode == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    cells = [(row["node"], row["gpu_index"], row["gpu_busy"]) for row in rows]
    assert cells == 2 * [("n1", "0", "0.97"), ("n1", "1", "0.03"), ("n2", "", "")]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}[+-]\d{4}", rows[0]["time"])


@pytest.mark.slow
def test_the_script_of_a_look_runs_here():
    (node,) = node_use.read(finish(["sh", "-c", node_use.SCRIPT]).stdout)
    assert node["cores"]
    assert node["total_bytes"] > node["used_bytes"] > 0
    assert 0 <= node["busy"] <= 1
    assert node["processes"]


def test_where_no_step_can_look_sstat_answers(slurm):
    slurm.say("squeue", squeue(RUNS))
    slurm.say("srun", rc=1, error="srun: error: Unable to create step: Access/permission denied")
    slurm.say("sstat", "4711.0|2|00:01:40|2G|n1\n")
    (step,) = asked("top 4711", slurm)["steps"]
    assert (step["num_tasks"], step["cpu_s"], step["rss_bytes"]) == (2, 100, 2 * GIB)
    slurm.say("squeue", squeue(WAITS))
    assert ask("top 4712", slurm).returncode == 2


CLUSTER = """NodeName=n1 Arch=x86_64 CoresPerSocket=32
   CPUAlloc=24 CPUEfctv=64 CPUTot=64 CPULoad=3.20
   Gres=gpu:h100:4(S:0-1)
   GresUsed=gpu:h100:3(IDX:0-2)
   RealMemory=65536 AllocMem=1024 FreeMem=500 Sockets=2 Boards=1
   State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1
   Partitions=gpu,debug
   CfgTRES=cpu=64,mem=64G,billing=64

NodeName=n02 Arch=x86_64
   CPUAlloc=0 CPUTot=8
   Gres=(null)
   GresUsed=
   RealMemory=1000 AllocMem=0
   State=IDLE+DRAIN
   Partitions=gpu
   Reason=a disk is bad, see ticket=4711 [root@1700000000]
"""


def test_each_node_has_its_state_its_use_and_whose_jobs_run_there(slurm):
    slurm.say("scontrol", CLUSTER)
    slurm.say("squeue", "7_3|alice|n[1,09-11]|train|x\n8|bob|n1|shell\n9|bob||waits\n")
    mixed, drained = asked("nodes", slurm)["nodes"]
    keys = ("used_cpus", "num_cpus", "used_gpus", "num_gpus")
    assert [mixed[key] for key in keys] == [24, 64, 3, 4]
    assert (mixed["used_bytes"], mixed["memory_bytes"]) == (GIB, 64 * GIB)
    own = [(job["job_id"], job["user"], job["name"]) for job in mixed["jobs"]]
    assert own == [("7_3", "alice", "train|x"), ("8", "bob", "shell")]
    assert (drained["state"], drained["jobs"], drained["num_gpus"]) == ("IDLE+DRAIN", [], 0)
    why = {"text": "a disk is bad, see ticket=4711", "user": "root", "since": 1700000000}
    assert drained["reason"] == why
    said = ask("nodes", slurm).stdout.splitlines()
    assert said[0].endswith("3 of 4 GPUs; 7_3 of alice, 8 of bob")
    assert said[2].startswith("  reason: a disk is bad, see ticket=4711, by root, since 2023-11-1")


def test_hosts_are_read_as_slurm_writes_them():
    written = "n[1-3,07],r[0-1]c[08-09]-ib,gpu4"
    racks = ("r0c08-ib", "r0c09-ib", "r1c08-ib", "r1c09-ib")
    assert [*node_use.hosts(written)] == ["n1", "n2", "n3", "n07", *racks, "gpu4"]
    assert len([*node_use.hosts("n[1-999999999]")]) == node_use.MAX_HOSTS


def test_any_job_is_cancelled_once_it_is_said_whose_it_is(slurm):
    slurm.say("squeue", squeue(RUNS | {"user": "alice"}))
    slurm.say("scancel", rc=1, error="scancel: error: Kill job error: Access/permission denied")
    planned = ask("cancel 4711 --dry-run", slurm)
    whose = "4711 train|x: the job has run for 2 min on n1; 58 min left; owner: alice\n"
    assert (planned.stdout, slurm.calls("scancel")) == (f"{whose}scancel 4711\n", [])
    refused = ask("cancel 4711", slurm)
    assert (refused.returncode, refused.stdout) == (3, whose)
    assert "these jobs belong to alice; ask alice to cancel" in refused.stderr
    slurm.say("scancel")
    assert ask("cancel 4711_3", slurm).stdout.endswith("cancelled: job 4711_3\n")
    assert slurm.calls("scancel")[-1] == "scancel 4711_3"
    slurm.say("squeue", rc=1, error="slurm_load_jobs error: Invalid job id specified")
    assert ask("cancel 4711", slurm).returncode == 2
    assert len(slurm.calls("scancel")) == 2


ASKED = (
    *(f"lockstep slurm {name}" for name in ("jobs", "why", "eff", "top", "shell", "nodes")),
    "lockstep cancel 4711",
)


@pytest.mark.parametrize("line", sorted({one for _, one in collected() if one.startswith(ASKED)}))
def test_an_example_runs_as_it_is_given(slurm, line, monkeypatch):
    elements = ENDED | {"JobID": "4712_3"}
    slurm.say("squeue", squeue(RUNS))
    slurm.say("sacct", sacct(ENDED, STEP, elements))
    slurm.say("srun", NOW)
    slurm.say("scontrol", CLUSTER)
    slurm.say("scancel")
    if "--every" in line:
        slurm.say("squeue", squeue(RUNS), "")
        monkeypatch.setattr(time, "sleep", lambda _: None)
    ended = ask(line.removeprefix("lockstep ").removeprefix("slurm "), slurm)
    assert ended.returncode == 0 and ended.stdout, ended.stderr
