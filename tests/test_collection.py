"""What `status --collect` makes: the same of what has ended, however often and beside whom."""

import json
from types import SimpleNamespace

import pytest
from stand_ins import StandIns, keep, leave, lockstep, now, sacct, send

from lockstep.core import files
from lockstep.slurm.status import collection
from lockstep.slurm.status.sent import Results
from lockstep.slurm.submit.submission import set_aside

GPU_JOB = {
    "JobID": "17", "JobIDRaw": "17", "State": "COMPLETED", "ExitCode": "0:0", "Elapsed": "02:00:00",
    "Submit": "1000", "Eligible": "1010", "Start": "1030", "End": "8230", "AllocCPUS": "16",
    "NNodes": "1", "AllocTRES": "billing=32,cpu=16,gres/gpu=4,mem=64G,node=1",
}  # fmt: skip
OTHER = GPU_JOB | {"JobID": "18", "JobIDRaw": "18"}
RUNNING = GPU_JOB | {"State": "RUNNING"}
REFUSED, DISABLED = "slurmdbd: Connection refused", "Slurm accounting storage is disabled"


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
def collect(folder, asked, monkeypatch):
    """Collect in this process, without waiting; return the rows, what is said, and the pauses."""

    def run():
        said, waited = [], []
        monkeypatch.setenv("PATH", str(asked.folder))
        monkeypatch.setattr(collection, "time", SimpleNamespace(sleep=waited.append))
        collection.collect(Results(folder), said.append)
        document = json.loads((folder / "accounting.json").read_text())
        assert document["schema"] == 2
        return document["jobs"], said, waited

    return run


def made(folder):
    """Return the bytes of all that `collect` makes."""
    paths = [folder / "accounting.json", *folder.glob("launches/*/result.json")]
    return {path: path.read_bytes() for path in sorted(paths)}


def cases(folder, name):
    result = json.loads((folder / f"launches/{name}/result.json").read_text())
    return [benchmark["name"] for benchmark in result["benchmarks"]]


def test_allocated_and_measured_hours_are_printed_side_by_side(here, folder, asked):
    ended = lockstep("status --collect results/x", here, asked.folder)
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads((folder / "accounting.json").read_text())["jobs"]
    assert (row["accounting"]["gpu_hours"], row["accounting"]["queue_wait_s"]) == (8.0, 20)
    # Two cases of 900 s on one rank, one case of 900 s on four.
    assert row["measured_rank_hours"] == pytest.approx(0.5 + 1.0)
    hours = "2 node-hours, 32 CPU-hours, 8 GPU-hours, 64 hours of TRES billing"
    assert f"the jobs took {hours}; the timed regions took 1.5 rank-hours" in ended.stdout
    assert cases(folder, "w4-r0") == ["a"]


@pytest.mark.parametrize(
    ("is_set_aside", "cases", "hours"), [(False, "b", [1.5, 2.0]), (True, "ab", [1.5, 4.0])]
)
def test_each_job_is_credited_with_what_it_measured_itself(
    folder, collect, asked, is_set_aside, cases, hours
):
    if is_set_aside:
        set_aside(Results(folder), ["w4-r0"])
    send(folder, "ladder", "18", ["w4-r0"], time=now())
    keep(folder, "w4-r0", *cases, job_id="18", elapsed_s=1800.0)
    asked.say("sacct", sacct(GPU_JOB, OTHER))
    rows, _, _ = collect()
    assert [row["measured_rank_hours"] for row in rows] == hours


def test_a_job_that_runs_is_left_out_until_it_has_ended(folder, collect, asked):
    send(folder, "next", "18", ["w8-r0"], time=now())
    keep(folder, "w8-r0", "a", job_id="18", world_size=8)
    asked.say("squeue", "18|18|RUNNING|None|1|me|lockstep:next-18\n")
    asked.say("sacct", sacct(GPU_JOB, OTHER | {"State": "RUNNING"}))
    before, _, _ = collect()
    assert before[1]["accounting"] is before[1]["measured_rank_hours"] is None
    assert len(asked.calls("sacct")) == 1  # it runs: there is nothing to wait for
    keep(folder, "w8-r0", "b", job_id="18", world_size=8)
    asked.say("squeue")
    asked.say("sacct", sacct(GPU_JOB, OTHER | {"State": "FAILED"}))
    after, _, _ = collect()
    assert after[0] == before[0]
    assert after[1]["accounting"]["state"] == "FAILED"


UNCHANGED, LATE = "accounting is unchanged: ", "sacct does not know yet how these jobs ended: 17"


@pytest.mark.parametrize(
    ("answers", "error", "state", "waits", "last"),
    [
        # Inside its own job sacct says RUNNING, however often it is asked.
        ([sacct(RUNNING)], "", None, collection.WAITS_S, f"{UNCHANGED}{LATE}"),
        ([sacct(), sacct(RUNNING), sacct(GPU_JOB)], "", "COMPLETED", (1, 2),
         f"{LATE}; the next attempt is in 2 s"),
        ([], REFUSED, None, collection.WAITS_S, f"{UNCHANGED}sacct cannot reach Slurm's"),
        ([], DISABLED, None, (), UNCHANGED),
        (None, "", None, (), UNCHANGED),  # sacct is not installed
    ],
)  # fmt: skip
def test_sacct_is_asked_again_while_another_answer_may_come(
    folder, collect, asked, answers, error, state, waits, last
):
    asked.say("sacct", *(answers or ()), rc=int(bool(error)), error=error)
    if answers is None:
        (asked.folder / "sacct").unlink()
    (row,), said, waited = collect()
    assert (row["accounting"] and row["accounting"]["state"]) == state
    assert tuple(waited) == tuple(waits)
    assert len(said) == len(waits) + (state is None)
    assert said[-1].startswith(last)


def test_values_that_were_known_once_are_kept_and_made_the_same_again(folder, collect, asked):
    collect()
    first = made(folder)
    assert len(asked.calls("sacct")) == 1
    for answer in ({"rc": 1, "error": REFUSED}, {}):  # the latter is of a purged database
        asked.say("sacct", sacct(), **answer)
        collect()
        assert made(folder) == first


def test_the_answer_that_the_collecting_job_saved_is_read_without_sacct(folder, collect, asked):
    path = folder / "jobs" / "sacct.txt"
    path.write_text("sacct: error: no slurmdbd\n")
    rows, said, _ = collect()
    assert said == [f"{path} lists no jobs, so this file is ignored"]
    assert rows[0]["accounting"]["state"] == "COMPLETED"
    (folder / "accounting.json").unlink()
    (asked.folder / "sacct").unlink()
    path.write_text(sacct(GPU_JOB, OTHER | {"State": "RUNNING"}))
    send(folder, "collect", "18", kind="collect", time=now())
    rows, (problem,), _ = collect()
    assert [row["accounting"] and row["accounting"]["state"] for row in rows] == ["COMPLETED", None]
    assert problem.startswith("only jobs/sacct.txt is used: sacct is not installed here")


def test_records_of_the_job_itself_are_merged(folder, collect, asked):
    leave(folder, "17", 0)
    (folder / "jobs" / "exit-18.json").write_text("{torn")
    (folder / "jobs" / "staging.jsonl").write_text(
        '{"job_id": "17", "stage_in_s": 2.5, "stage_out_s": 0.5}\n{"job_id": "18", "sta'
    )
    (row,), _, _ = collect()
    assert (row["stage_in_s"], row["stage_out_s"]) == (2.5, 0.5)
    assert row["exit"]["exit_code"] == 0


def test_elements_of_an_array_are_rows_of_their_own(folder, collect, asked):
    send(folder, "arr", "25", ["p0", "p1"], kind="array", time=now())
    keep(folder, "p1", "a", job_id="31", world_size=4)
    leave(folder, "31", 0)
    element = GPU_JOB | {"JobID": "25_1", "JobIDRaw": "31"}
    waits = {"JobID": "25_[0]", "JobIDRaw": "25", "State": "PENDING"}
    asked.say("sacct", sacct(GPU_JOB, element, waits))
    asked.say("squeue", "25_[0]|25|PENDING|Priority|1|me|lockstep:arr-25\n")
    (_, waiting, ended), _, _ = collect()
    assert waiting["id"] == "25_0"
    assert waiting["accounting"] is waiting["measured_rank_hours"] is None
    assert (ended["id"], ended["launches"], ended["measured_rank_hours"]) == ("25_1", ["p1"], 1.0)
    assert ended["exit"]["job_id"] == "31"


def test_a_torn_line_of_a_launch_that_runs_is_left_to_it(folder, collect):
    path = folder / "launches/w4-r0/journal.jsonl"
    with path.open("a") as running:
        running.write('{"kind": "case", "case": "b", "bench')
    torn = path.read_bytes()
    collect()
    assert path.read_bytes() == torn
    assert cases(folder, "w4-r0") == ["a"]


def test_a_launch_that_grows_while_its_json_is_made_is_read_again(folder, collect, monkeypatch):
    name, once = "w4-r0", [True]
    write = files.write_atomically

    def grow_meanwhile(path, content):
        write(path, content)
        if path.name == "result.json" and name in str(path) and once:
            once.clear()
            keep(folder, name, "b", job_id="17")

    monkeypatch.setattr(files, "write_atomically", grow_meanwhile)
    collect()
    assert cases(folder, name) == ["a", "b"]
