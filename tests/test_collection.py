"""What `status --collect` makes: the same of what has ended, however often and beside whom."""

import json
import os
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from stand_ins import StandIns, keep, leave, lockstep, now, sacct, send

from lockstep.core import files
from lockstep.core.journal import Journal
from lockstep.slurm.status import collection
from lockstep.slurm.status.sent import Results
from lockstep.slurm.submit.submission import set_aside

GPU_JOB = {
    "JobID": "17",
    "JobIDRaw": "17",
    "State": "COMPLETED",
    "ExitCode": "0:0",
    "Elapsed": "02:00:00",
    "Submit": "1000",
    "Eligible": "1010",
    "Start": "1030",
    "End": "8230",
    "AllocTRES": "billing=32,cpu=16,gres/gpu=4,mem=64G,node=1",
    "AllocCPUS": "16",
    "NNodes": "1",
}


@pytest.fixture
def here(tmp_path):
    folder = tmp_path / "results" / "x"
    (folder / "jobs").mkdir(parents=True)
    send(folder, "ladder", "17", ["w1-r0", "w4-r0"], time=now())
    keep(folder, "w1-r0", "a", "b", job_id="17", world_size=1)
    keep(folder, "w4-r0", "a", job_id="17", world_size=4)
    return tmp_path


@pytest.fixture
def folder(here):
    return here / "results" / "x"


@pytest.fixture
def asked(here):
    made = StandIns(here / "bin")
    made.say("squeue")
    made.say("sacct", sacct(GPU_JOB))
    return made


@pytest.fixture
def in_process(asked, monkeypatch):
    """Collect in this process, without waiting; return what was said and how long it waited."""
    waited = []
    monkeypatch.setenv("PATH", str(asked.folder))
    monkeypatch.setattr(collection, "time", SimpleNamespace(sleep=waited.append))
    return waited


def collect(here, asked):
    ended = lockstep("status --collect results/x", here, asked.folder)
    assert "Traceback" not in ended.stderr
    return ended


def rows(folder):
    document = json.loads((folder / "accounting.json").read_text())
    assert document["schema"] == 2
    return document["jobs"]


def made(folder):
    """Return the bytes of all that `collect` makes."""
    paths = [folder / "accounting.json", *folder.glob("launches/*/result.json")]
    return {path: path.read_bytes() for path in sorted(paths)}


def test_allocated_and_measured_hours_stand_side_by_side(here, folder, asked):
    ended = collect(here, asked)
    assert ended.returncode == 0, ended.stderr
    (row,) = rows(folder)
    assert row["accounting"]["gpu_hours"] == 8.0
    assert row["accounting"]["queue_wait_s"] == 20
    # Two cases of 900 s on one rank, one case of 900 s on four.
    assert row["measured_rank_hours"] == pytest.approx(0.5 + 1.0)
    hours = "2 node-hours, 32 CPU-hours, 8 GPU-hours, 64 hours of TRES billing"
    assert f"accounting of 1 of 1 job: {hours}; 1.5 rank-hours in timed regions" in ended.stdout
    result = json.loads((folder / "launches/w4-r0/result.json").read_text())
    assert [one["name"] for one in result["benchmarks"]] == ["a"]


def test_each_job_is_credited_with_what_it_measured_itself(here, folder, asked):
    send(folder, "ladder", "18", ["w4-r0"], time=now())
    keep(folder, "w4-r0", "b", job_id="18", elapsed_s=1800.0)
    again = GPU_JOB | {"JobID": "18", "JobIDRaw": "18"}
    asked.say("sacct", sacct(GPU_JOB, again))
    collect(here, asked)
    assert [row["measured_rank_hours"] for row in rows(folder)] == [1.5, 2.0]


def test_what_was_set_aside_is_still_what_its_job_measured(folder, in_process, asked):
    set_aside(Results(folder), ["w4-r0"])
    send(folder, "ladder", "18", ["w4-r0"], time=now())
    keep(folder, "w4-r0", "a", "b", job_id="18", elapsed_s=1800.0)
    asked.say("sacct", sacct(GPU_JOB, GPU_JOB | {"JobID": "18", "JobIDRaw": "18"}))
    collection.collect(Results(folder))
    assert [row["measured_rank_hours"] for row in rows(folder)] == [1.5, 4.0]


def test_where_no_journal_is_left_nobody_knows_what_was_measured(folder, in_process):
    shutil.rmtree(folder / "launches")
    collection.collect(Results(folder))
    assert rows(folder)[0]["measured_rank_hours"] is None


def test_a_profile_measured_nothing(folder, in_process, asked):
    send(folder, "ladder-nsys", "18", kind="profile", time=now())
    asked.say("sacct", sacct(GPU_JOB, GPU_JOB | {"JobID": "18", "JobIDRaw": "18"}))
    collection.collect(Results(folder))
    row = rows(folder)[1]
    assert (row["launches"], row["measured_rank_hours"]) == ([], None)


def test_it_asks_once_and_makes_the_same_bytes_again(here, folder, asked):
    collect(here, asked)
    first = made(folder)
    assert len(asked.calls("sacct")) == 1
    collect(here, asked)
    assert made(folder) == first


def test_what_runs_is_left_out_until_it_has_ended(here, folder, asked):
    send(folder, "next", "18", ["w8-r0"], time=now())
    keep(folder, "w8-r0", "a", job_id="18", world_size=8)
    running = GPU_JOB | {"JobID": "18", "JobIDRaw": "18", "State": "RUNNING"}
    asked.say("squeue", "18|18|RUNNING|None|1|me|lockstep:next-18\n")
    asked.say("sacct", sacct(GPU_JOB, running))
    collect(here, asked)
    before = rows(folder)
    assert before[1]["accounting"] is before[1]["measured_rank_hours"] is None
    assert len(asked.calls("sacct")) == 1  # it runs: there is nothing to wait for
    keep(folder, "w8-r0", "b", job_id="18", world_size=8)
    asked.say("squeue")
    asked.say("sacct", sacct(GPU_JOB, running | {"State": "FAILED"}))
    collect(here, asked)
    assert rows(folder)[0] == before[0]
    assert rows(folder)[1]["accounting"]["state"] == "FAILED"


def test_what_sacct_says_inside_the_job_is_not_kept(folder, in_process, asked):
    """A row that still runs is rejected, however often it is asked for."""
    asked.say("sacct", sacct(GPU_JOB | {"State": "RUNNING"}))
    said = []
    collection.collect(Results(folder), said.append)
    assert rows(folder)[0]["accounting"] is None
    assert in_process == list(collection.WAITS_S)
    assert said[-1].startswith("accounting is unchanged: sacct does not know yet how 17 ended")


def test_a_late_answer_is_waited_for(folder, in_process, asked):
    asked.say("sacct", sacct(), sacct(GPU_JOB | {"State": "RUNNING"}), sacct(GPU_JOB))
    said = []
    collection.collect(Results(folder), said.append)
    assert rows(folder)[0]["accounting"]["state"] == "COMPLETED"
    assert in_process == [1, 2]
    assert said == [
        "sacct does not know yet how 17 ended; next attempt in 1 s",
        "sacct does not know yet how 17 ended; next attempt in 2 s",
    ]


def test_a_failure_is_waited_for_and_then_said(folder, in_process, asked):
    asked.say("sacct", rc=1, error="slurmdbd: Connection refused")
    said = []
    collection.collect(Results(folder), said.append)
    assert in_process == list(collection.WAITS_S)
    assert said[-1].startswith("accounting is unchanged: sacct cannot reach Slurm's accounting")
    assert rows(folder)[0] | {"accounting": None, "measured_rank_hours": None} == rows(folder)[0]


@pytest.mark.parametrize("why", ["not installed", "disabled"])
def test_where_there_is_no_accounting_nothing_is_waited_for(folder, in_process, asked, why):
    if why == "disabled":
        asked.say("sacct", rc=1, error="Slurm accounting storage is disabled")
    else:
        (asked.folder / "sacct").unlink()
    said = []
    collection.collect(Results(folder), said.append)
    assert (in_process, len(said)) == ([], 1)
    assert rows(folder)[0]["accounting"] is None


def test_an_element_that_never_began_is_known_where_sacct_answers_no_more(here, folder, asked):
    uuid = send(folder, "arr", "25", ["p0"], kind="array")
    record = Journal(folder / "jobs" / "submitted.jsonl")
    record.append({"uuid": uuid, "cancelled": [0]})
    record.close()
    collect(here, asked)
    asked.say("sacct", rc=1, error="slurmdbd: Connection refused")
    ended = lockstep("status results/x --json", here, asked.folder)
    row = json.loads(ended.stdout)["jobs"][-1]
    assert (row["state"], row["queue_wait_s"]) == ("CANCELLED", None)


def test_what_was_known_once_is_not_lost_again(folder, in_process, asked):
    collection.collect(Results(folder))
    first = made(folder)
    asked.say("sacct", rc=1, error="slurmdbd: Connection refused")
    collection.collect(Results(folder))
    assert made(folder) == first
    asked.say("sacct", sacct())  # purged
    collection.collect(Results(folder))
    assert made(folder) == first


def test_what_the_collecting_job_asked_is_read_where_sacct_is_not(folder, in_process, asked):
    (asked.folder / "sacct").unlink()
    running = {"JobID": "18", "JobIDRaw": "18", "State": "RUNNING"}
    (folder / "jobs" / "sacct.txt").write_text(sacct(GPU_JOB, running))
    send(folder, "collect", "18", kind="collect", time=now())
    said = []
    collection.collect(Results(folder), said.append)
    assert [row["accounting"] and row["accounting"]["state"] for row in rows(folder)] == [
        "COMPLETED",
        None,
    ]
    assert said == [
        "only jobs/sacct.txt is used: sacct is not installed here; use a login node of the cluster"
    ]


def test_a_broken_answer_of_the_collecting_job_is_said(folder, in_process):
    (folder / "jobs" / "sacct.txt").write_text("sacct: error: no slurmdbd\n")
    said = []
    collection.collect(Results(folder), said.append)
    assert said == [f"{folder}/jobs/sacct.txt has no jobs and is ignored"]
    assert rows(folder)[0]["accounting"]["state"] == "COMPLETED"


def test_records_of_the_job_itself_are_merged(here, folder, asked):
    leave(folder, "17", 0)
    (folder / "jobs" / "exit-18.json").write_text("{torn")
    (folder / "jobs" / "staging.jsonl").write_text(
        '{"job_id": "17", "stage_in_s": 2.5, "stage_out_s": 0.5}\n{"job_id": "18", "sta'
    )
    collect(here, asked)
    (row,) = rows(folder)
    assert (row["stage_in_s"], row["stage_out_s"]) == (2.5, 0.5)
    assert row["exit"]["exit_code"] == 0


def test_elements_of_an_array_are_rows_of_their_own(here, folder, asked):
    send(folder, "arr", "25", ["p0", "p1"], kind="array", time=now())
    keep(folder, "p1", "a", job_id="31", world_size=4)
    leave(folder, "31", 0)
    element = GPU_JOB | {"JobID": "25_1", "JobIDRaw": "31"}
    waits = {"JobID": "25_[0]", "JobIDRaw": "25", "State": "PENDING"}
    asked.say("sacct", sacct(GPU_JOB, element, waits))
    asked.say("squeue", "25_[0]|25|PENDING|Priority|1|me|lockstep:arr-25\n")
    collect(here, asked)
    _, waiting, ended = rows(folder)
    assert waiting["id"] == "25_0"
    assert waiting["accounting"] is waiting["measured_rank_hours"] is None
    assert (ended["id"], ended["launches"], ended["measured_rank_hours"]) == ("25_1", ["p1"], 1.0)
    assert ended["exit"]["job_id"] == "31"


def test_a_torn_line_of_a_launch_that_runs_is_left_to_it(here, folder, asked):
    path = folder / "launches/w4-r0/journal.jsonl"
    with path.open("a") as running:
        running.write('{"kind": "case", "case": "b", "bench')
    torn = path.read_bytes()
    assert collect(here, asked).returncode == 0
    assert path.read_bytes() == torn
    result = json.loads((folder / "launches/w4-r0/result.json").read_text())
    assert len(result["benchmarks"]) == 1


def test_an_older_result_never_replaces_a_newer_one(folder, in_process, monkeypatch):
    """A launch that grows while its JSON is made is looked at again."""
    name, once = "w4-r0", [True]
    write = files.write_atomically

    def grow_meanwhile(path, content):
        write(path, content)
        if path.name == "result.json" and name in str(path) and once:
            once.clear()
            keep(folder, name, "b", job_id="17")

    monkeypatch.setattr(files, "write_atomically", grow_meanwhile)
    collection.collect(Results(folder))
    result = json.loads((folder / f"launches/{name}/result.json").read_text())
    assert [one["name"] for one in result["benchmarks"]] == ["a", "b"]


def test_an_accounting_of_the_first_schema_is_made_anew(here, folder, asked):
    (folder / "accounting.json").write_text('{"schema": 1, "error": null, "jobs": []}')
    collect(here, asked)
    assert rows(folder)[0]["accounting"]["state"] == "COMPLETED"


def test_a_corrupt_record_of_submissions_is_one_sentence(here, folder, asked):
    (folder / "jobs" / "submitted.jsonl").write_text('{"no": "uuid"}\n')
    ended = collect(here, asked)
    assert ended.returncode == 2
    assert "has no uuid, so this is not a record of submissions" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_two_at_once_and_a_launch_that_runs_make_the_same_of_what_has_ended(here, folder, asked):
    """Processes race in pairs, one without an answer of sacct, while a launch writes on."""
    silent = StandIns(here / "silent")
    silent.say("squeue")
    silent.say("sacct", rc=1, error="Slurm accounting storage is disabled")
    send(folder, "next", "18", ["w8-r0"], time=now())
    keep(folder, "w8-r0", "a", job_id="18", expected=[str(n) for n in range(10_000)])
    for made_by in (asked, silent):
        made_by.say("squeue", "18|18|RUNNING|None|1|me|lockstep:next-18\n")
    collect(here, asked)
    ended = [path for path in made(folder) if "w8" not in str(path)]
    first = {path: path.read_bytes() for path in ended}
    is_over = threading.Event()

    def run():
        path = folder / "launches/w8-r0/journal.jsonl"
        entry = {"kind": "case", "benchmark": {"name": "n", "stats": {"min": 1.0}}}
        number = 0
        while not is_over.is_set():
            text = json.dumps(entry | {"case": str(number)}) + "\n"
            with path.open("a") as file:  # a line comes in two parts, as a reader may see it
                file.write(text[:20])
                file.flush()
                file.write(text[20:])
            number += 1
            is_over.wait(0.001)

    running = threading.Thread(target=run)
    running.start()
    try:
        for _ in range(4):
            pair = [start(here, one) for one in (asked, silent)]
            assert [process.wait(60) for process in pair] == [0, 0]
            assert {path: path.read_bytes() for path in ended} == first
    finally:
        is_over.set()
        running.join()
    assert not list(folder.rglob("*.tmp"))


def start(here, asked):
    return subprocess.Popen(
        [sys.executable, "-m", "lockstep", "status", "--collect", "results/x"],
        cwd=here,
        env=os.environ | {"PATH": str(asked.folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
