"""How the jobs of a campaign stand, by stand-ins of Slurm's commands that count what is asked."""

import json
import os
import time

import pytest
from data.job_samples import campaign_of, site_of
from stand_ins import StandIns, keep, leave, lockstep, now, sacct, send

from lockstep.campaign import floor
from lockstep.campaign.campaign import plan
from lockstep.report.compute.evaluation import evaluate_folder
from lockstep.slurm.client import ENDED, own_name
from lockstep.slurm.status import status_cli
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import Board

DISABLED = "Slurm accounting storage is disabled"


@pytest.fixture
def here(tmp_path):
    (tmp_path / "results" / "x" / "jobs").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def folder(here):
    return here / "results" / "x"


@pytest.fixture
def asked(here):
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


def next_lines(here, asked):
    return status(here, asked, "").stdout.partition("Next:\n")[2].splitlines()


def write_claim(folder, **facts):
    launches = [{"name": name} for name in facts.pop("names", ())]
    claim = {"schema": 1} | ({"launches": launches} if launches else {}) | facts
    (folder / "campaign.json").write_text(json.dumps(claim))


def write_scripts(folder, **scripts):
    """Write the record of scripts, each given as its launches and what it waits for."""
    made = {
        name: {"kind": "job" if launches else "collect", "launches": launches, "after": [
            {"job": job, "how": how} for job, how in after]}
        for name, (launches, after) in scripts.items()
    }  # fmt: skip
    (folder / "jobs" / "scripts.json").write_text(json.dumps({"schema": 1, "jobs": made}))
    for name in made:
        (folder / "jobs" / f"{name}.sh").write_text("")


def test_each_layer_is_asked_once_however_many_jobs_there_are(here, folder, asked):
    for number in range(40):
        send(folder, f"job{number}", str(number))
    asked.say("sacct", sacct(*(account(str(number), "COMPLETED") for number in range(40))))
    assert {one["state"] for one in jobs(here, asked)} == {"COMPLETED"}
    assert len(asked.calls("squeue")) == len(asked.calls("sacct")) == 1
    assert f"--jobs={','.join(map(str, range(40)))}" in asked.calls("sacct")[0]


def test_a_job_that_slurm_hides_from_others_is_not_lost(here, folder, asked):
    head = {"uuid": "lockstep:1", "job": "ladder", "id": "17", "user": "alice", "launches": ["w1"]}
    Results(folder).note(head | {"time": "2026-01-01T00:00:00+00:00", "kind": "ladder"})
    (row,) = jobs(here, asked)
    assert asked.calls("squeue")[0].startswith(
        f"squeue --user={','.join(sorted({'alice', own_name()}))} "
    )
    assert row["state"] == "unknown"
    assert row["meaning"] == "the job belongs to alice, and Slurm does not show it to you"


def test_a_script_that_was_only_written_is_to_be_sent(here, folder, asked):
    write_claim(folder, names=["w1-r0"])
    write_scripts(folder, x=(["w1-r0"], []), y=([], [("x", "afterany")]))
    _, second, _ = next_lines(here, asked)
    assert second.startswith("  sbatch --dependency=afterany:<id of x> --kill-on-invalid-dep=yes ")
    asked.say("squeue", f"41|41|PENDING|Priority|1|me|(null)|{folder}/jobs/x.sh\n")
    text = status(here, asked, "").stdout
    assert "x, job 41, submitted by hand: PENDING" in text
    assert "sbatch" not in text  # the collect job measures nothing


def test_what_sbatch_refused_is_said_until_it_is_sent(here, folder, asked):
    uuid = send(folder, "ladder", None, ["w1-r0"])
    Results(folder).note({"uuid": uuid, "refused": "sbatch said: Invalid qos; change qos"})
    text = status(here, asked, "").stdout
    assert "ladder: not submitted; sbatch said: Invalid qos; change qos\n" in text
    assert text.endswith(
        "  lockstep submit CAMPAIGN --site SITE  # after you correct the refused key\n"
    )
    send(folder, "ladder", "17", ["w1-r0"])
    assert "not submitted" not in status(here, asked, "").stdout


def test_a_job_sent_by_hand_is_found_by_what_it_left(here, folder, asked):
    (folder / "jobs" / "x-41.out").write_text("")
    (folder / "jobs" / "x.sh").write_text("")
    keep(folder, "w1-r0", "a", "b", job_id="41")
    leave(folder, "41", 0)
    asked.say("sacct", sacct(account("41", "COMPLETED", JobName="x", Elapsed="00:01:00")))
    (row,) = jobs(here, asked)
    found = {name: row[name] for name in ("job", "id", "state", "by_hand", "num_complete")}
    assert found == {"job": "x", "id": "41", "state": "COMPLETED", "by_hand": True,
                     "num_complete": 1}  # fmt: skip
    collected = lockstep("status --collect results/x", here, asked.folder)
    assert "accounting is known for 1 of 1 job" in collected.stdout
    assert "  lockstep report results/x\n" in status(here, asked, "").stdout


ENDED_BY = "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-01-01T00:00:00"
RUNAWAY = "but sacct does not list it as ended"


# What squeue and sacct say of a job, None where they fail; what the job left behind; the state.
@pytest.mark.parametrize(
    ("queue", "sacct_says", "left", "state", "words"),
    [
        ("PENDING|BeginTime", "", {"record": 143}, "PENDING", "waits"),  # it was requeued
        ("", "", {}, "LOST", "left no record of its end"),
        ("", "", {"is_new": True}, "unknown", ""),
        (None, None, {}, "unknown", ""),
        (None, None, {"output": ""}, "CANCELLED", ""),
        (None, None, {"output": " DUE TO TIME LIMIT"}, "TIMEOUT", ""),
        (None, None, {"output": " DUE TO JOB REQUEUE"}, "unknown", ""),
        ("", None, {"record": 143, "sacct.txt": "OUT_OF_MEMORY"}, "OUT_OF_MEMORY", ""),
        ("", DISABLED, {}, "LOST", ""),  # there is no accounting to wait for
        ("", "RUNNING", {"is_new": True}, "unknown", "sacct does not know yet how it ended"),
        ("", "RUNNING", {}, "LOST", RUNAWAY),
        (None, "RUNNING", {}, "RUNNING", ""),  # the best that anyone says
    ],
)
def test_the_state_is_that_of_the_most_reliable_source(
    here, folder, asked, queue, sacct_says, left, state, words
):
    send(folder, "ladder", "17", ["w1-r0"], **({"time": now()} if "is_new" in left else {}))
    row = f"17|17|{queue}|1795253711|me|lockstep:ladder-17\n" if queue else ""
    asked.say("squeue", row, rc=int(queue is None), error="" if queue is not None else "refused")
    error = {None: "refused", DISABLED: DISABLED}.get(sacct_says, "")
    answer = sacct(account("17", sacct_says)) if sacct_says else sacct()
    asked.say("sacct", answer, rc=int(bool(error)), error=error)
    if "record" in left:
        leave(folder, "17", left["record"])
    if "output" in left:
        (folder / "jobs" / "ladder-17.out").write_text(f"{ENDED_BY}{left['output']} ***\n")
    if "sacct.txt" in left:
        (folder / "jobs" / "sacct.txt").write_text(sacct(account("17", left["sacct.txt"])))
    ended = status(here, asked)
    (seen,) = json.loads(ended.stdout)["jobs"]
    assert (seen["state"], words in seen["meaning"]) == (state, True)
    fails = queue is None or bool(error)
    assert bool(ended.stderr) is fails
    is_unknown = state == "unknown" and fails
    assert ended.returncode == (3 if is_unknown else int(state in {*ENDED, "LOST"}))


def test_a_job_that_has_just_written_is_not_lost(here, folder, asked):
    send(folder, "wrote", "18", ["w2-r0"])
    keep(folder, "w2-r0", "a")
    assert [row["state"] for row in jobs(here, asked)] == ["unknown"]


def test_a_job_whose_id_was_never_said_is_found_by_its_comment(here, folder, asked):
    uuid = send(folder, "ladder", None, ["w1-r0"])
    asked.say("squeue", f"41|41|RUNNING|None|1795253711|me|{uuid}\n")
    (row,) = jobs(here, asked)
    assert (row["id"], row["state"]) == ("41", "RUNNING")


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
    assert "  lockstep status --collect results/x\n" in ended.stdout


def test_a_ladder_that_ended_below_its_floor_has_lost_nothing(here, folder, asked):
    sizes = {f"w{size}-r0": size for size in (1, 4, 8)}
    launches = [{"name": name, "world_size": size} for name, size in sizes.items()]
    write_claim(folder, studies=["weak"], until_efficiency=0.6, launches=launches)
    send(folder, "ladder", "17", list(sizes))
    asked.say("sacct", sacct(account("17", "COMPLETED")))
    for name in ("w1-r0", "w4-r0"):  # four ranks at the rate of one
        keep(folder, name, "a", "b", world_size=sizes[name], elapsed_s=2.0 * sizes[name])
    ended = status(here, asked)
    record = json.loads(ended.stdout)
    assert (ended.returncode, record["abandoned"], record["num_planned"]) == (0, [], 2)
    assert record["next"] == ["lockstep status --collect results/x"]


def test_a_floor_judges_no_halved_batch_and_no_other_device(folder):
    halved = [{"kind": "smaller-batch", "asked": 64, "measured": 32}]
    for size, flags, device in ((1, [], "a"), (2, halved, "a"), (4, [], "a"), (8, [], "b")):
        keep(folder, f"w{size}-r0", "a", expected=["a"], world_size=size, elapsed_s=2.0 * size,
             flags=flags, devices=[device])  # fmt: skip
    assert floor.efficiencies(folder / "launches") == {4: pytest.approx(0.25)}


def test_a_floor_is_the_reports_efficiency_although_another_case_lacks_a_result(folder):
    for repeat, factor in enumerate((1.0, 1.001, 0.1)):  # of the last the rates are ten times
        for size in (1, 2):
            keep(folder, f"w{size}-r{repeat}", "a", world_size=size,
                 elapsed_s=2.0 * size * factor)  # fmt: skip
    assert floor.efficiencies(folder / "launches") == pytest.approx({2: 0.5})
    points = [point for series in evaluate_folder(folder).series for point in series.points]
    judged = [point.parallel_efficiency for point in points if not point.blocked_by]
    assert judged[1:] == pytest.approx([0.5])


def test_what_waits_beyond_a_floor_is_cancelled_if_asked_and_left_out(
    here, folder, asked, monkeypatch
):
    results, sizes = Results(folder), (1, 2, 4, 8)
    own = campaign_of(world_sizes=sizes, repeats=2, studies=["weak"], jobs={"allocation": "job"})
    results.claim(own, plan(own))
    (folder / "jobs" / "site.json").write_text(site_of().model_dump_json(by_alias=True))
    rows = {}
    for job_id, size in zip((17, 18, 19, 20), sizes, strict=True):
        state = "PENDING" if size > 2 else "RUNNING"
        uuid = send(folder, f"w{size}", str(job_id), [f"w{size}-r0", f"w{size}-r1"])
        rows[job_id] = f"{job_id}|{job_id}|{state}|None|1795253711|me|{uuid}\n"
    asked.say("squeue", "".join(rows.values()))
    monkeypatch.setenv("PATH", str(asked.folder))
    below = {"world_size": 2, "parallel_efficiency": 0.5, "floor": 0.6}
    measured = {"below_floor": [below], "not_worth_it": ["w4", "w8"]}
    keep(folder, "w2-r0", "a", "b", world_size=2)
    keep(folder, "w2-r1", "a", world_size=2)
    begun = Board(results).look()  # not all of the size is complete
    assert status_cli.end_ladder(begun, results, measured) == []
    keep(folder, "w2-r1", "b", world_size=2)
    campaign = Board(results).look()
    begun = rows[17] + rows[18] + rows[20].replace("PENDING", "RUNNING")
    before = len(asked.calls("squeue"))
    asked.say("squeue", *[""] * before, "".join(rows.values()), begun)
    assert status_cli.end_ladder(campaign, results, measured) == ["w4"]
    assert asked.calls("scancel") == ["scancel --state=PENDING 19 20"]
    noted = [one.get("below_floor") for one in results.submissions()]
    assert noted == [None, None, below, None]
    for name in ("w1-r0", "w1-r1", "w8-r0", "w8-r1"):
        keep(folder, name, "a", "b", world_size=int(name[1]))
    asked.say("squeue")
    asked.say("sacct", sacct(*(account(str(n), "COMPLETED") for n in (17, 18, 20))))
    record = json.loads(status(here, asked).stdout)
    assert (record["abandoned"], record["num_planned"], record["is_bad"]) == ([], 6, False)
    assert [one["world_size"] for one in record["campaign"]["left_out"]] == [4]
    assert record["next"] == ["lockstep status --collect results/x"]


@pytest.mark.parametrize(("budget_s", "minutes"), [(None, 15), (1800, 30)])
def test_a_running_job_that_writes_nothing_has_stalled(here, folder, asked, budget_s, minutes):
    send(folder, "ladder", "17", ["w1-r0"])
    keep(folder, "w1-r0", "a")
    (folder / "launches/w1-r0/log.txt").touch()
    write_claim(folder, studies=["weak"], case_budget=budget_s)
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
        f"the job's last output is {minutes + 1} min old; run lockstep cancel results/x "
        "--job ladder, then lockstep resume results/x to measure the missing launches",
    )


@pytest.mark.parametrize("what", ["program", "stage", "profile", "staging"])
def test_what_may_be_quiet_for_long_has_not_stalled(here, folder, asked, what):
    kind = what if what in ("stage", "profile") else "ladder"
    send(folder, "x", "17", ["w1-r0"], kind=kind)
    output = folder / "jobs/x-17.out"
    output.touch()
    if what != "staging":
        keep(folder, "w1-r0", "a")
    command = {"line": "solve", "timeout": 3600.0} if what == "program" else None
    write_claim(folder, studies=[], size="smoke", command=command)
    for path in (output, *folder.glob("launches/*/*")):
        os.utime(path, (time.time() - 3000,) * 2)
    asked.say("squeue", "17|17|RUNNING|None|1795253711|me|lockstep:x-17\n")
    (row,) = jobs(here, asked)
    assert (row["state"], row["advice"]) == ("RUNNING", None)


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
    assert "--job arr --point 1, then once the other jobs have ended, " in row["advice"]


def test_watching_ends_with_the_jobs_and_tells_each_change_once(here, folder, asked, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
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
    ends = {element["id"]: element["state"] for element in row["ended_badly"]}
    assert ends == {"25_0": "LOST", "25_1": "LOST", "25_3": "CANCELLED"}
    assert row["ended_badly"][2]["meaning"] == "the job was cancelled by a lockstep command"
    assert row["ended_badly"][2]["advice"].startswith(
        "once the other jobs have ended, run lockstep"
    )
    refused = lockstep("cancel results/x --point 9", here, asked.folder)
    assert refused.returncode == 2


def test_cancel_without_an_answer_cancels_nothing(here, folder, asked):
    send(folder, "ladder", "17")
    asked.say("squeue", rc=1, error="Unable to contact slurm controller")
    ended = lockstep("cancel results/x", here, asked.folder)
    assert (ended.returncode, asked.calls("scancel")) == (3, [])
