"""The status page and its record at five moments of a campaign, with stand-ins for Slurm."""

import json
import shutil
from datetime import datetime

import pytest
from data.report_samples import strong_tree
from stand_ins import StandIns, keep, leave, lockstep, sacct, send

from lockstep.slurm.client import MEANINGS
from lockstep.slurm.status import status_page

CLAIM = {
    "schema": 1, "name": "campaign", "studies": ["weak"], "world_sizes": [1, 4], "repeats": 1,
    "size": "node", "jobs": {"allocation": "job", "preflight": True},
    "launches": [{"name": f"w{n}-r0", "world_size": n, "repeat": 0} for n in (1, 4)],
}  # fmt: skip
SCRIPTS = {
    "campaign-w1-r0": {"kind": "job", "launches": ["w1-r0"], "after": [], "num_nodes": 1,
                       "gpus_per_node": 1, "time_limit": "00:20:00"},
    "campaign-w4-r0": {"kind": "job", "launches": ["w4-r0"], "num_nodes": 2, "gpus_per_node": 2,
                       "after": [{"job": "campaign-w1-r0", "how": "afterok"}],
                       "time_limit": "00:20:00"},
}  # fmt: skip


def campaign_at(moment, here):
    """Return the stand-ins of Slurm at a moment of a campaign in `here`/results/x."""
    folder = here / "results" / "x"
    (folder / "jobs").mkdir(parents=True)
    (folder / "campaign.json").write_text(json.dumps(CLAIM))
    (folder / "jobs" / "scripts.json").write_text(json.dumps({"schema": 1, "jobs": SCRIPTS}))
    asked = StandIns(here / "bin")
    asked.say("squeue")
    asked.say("sacct", sacct())
    if moment == "rendered":
        return asked
    ids = [send(folder, name, str(17 + n), one["launches"], "job")
           for n, (name, one) in enumerate(SCRIPTS.items())]  # fmt: skip
    first = {"pending": "17|17|PENDING|Resources", "running": "17|17|RUNNING|None"}.get(moment)
    if first:
        waits = f"18|18|PENDING|Dependency|1795253711|me|{ids[1]}\n"
        asked.say("squeue", f"{first}|1795253711|me|{ids[0]}\n{waits}")
    if moment != "pending":
        keep(folder, "w1-r0", "a", "b", job_id="17", world_size=1)
    if moment in ("failed", "done"):
        keep(folder, "w4-r0", *("ab" if moment == "done" else "a"), job_id="18")
        code = 0 if moment == "done" else 1
        leave(folder, "17", 0)
        leave(folder, "18", code)
        rows = [{"JobID": "17", "JobIDRaw": "17", "State": "COMPLETED", "Elapsed": "00:04:00"},
                {"JobID": "18", "JobIDRaw": "18", "State": "FAILED" if code else "COMPLETED",
                 "ExitCode": f"{code}:0", "Elapsed": "00:09:00",
                 "NodeList": "node[2-3]"}]  # fmt: skip
        asked.say("sacct", sacct(*rows))
    return asked


def look(here, asked, options=""):
    ended = lockstep(f"status results/x --json --html {options}", here, asked.folder)
    assert "Traceback" not in ended.stderr, ended.stderr
    return json.loads(ended.stdout), (here / "results" / "x" / "status.html").read_text()


@pytest.mark.parametrize(
    ("moment", "states", "prepared", "nexts"),
    [
        ("rendered", [], 2, ["sbatch ", "sbatch --dependency=afterok", "lockstep resume"]),
        ("pending", ["PENDING", "PENDING"], 0, []),
        ("running", ["RUNNING", "PENDING"], 0, []),
        ("failed", ["COMPLETED", "FAILED"], 0, ["lockstep resume results/x"]),
        ("done", ["COMPLETED", "COMPLETED"], 0, ["lockstep status --collect results/x"]),
    ],
)
def test_the_record_and_the_page_of_each_moment(tmp_path, moment, states, prepared, nexts):
    record, page = look(tmp_path, campaign_at(moment, tmp_path))
    assert [job["state"] for job in record["jobs"]] == states
    assert len(record["prepared"]) == prepared
    assert len(record["next"]) == len(nexts)
    assert all(map(str.startswith, record["next"], nexts))
    assert bool(record["monitor"]) == (moment in ("pending", "running"))
    assert all(MEANINGS[name].replace("'", "&#39;") in page for name in states)
    assert ("9 min on node[2-3]" in page) == (moment in ("failed", "done"))
    assert ("0 of 1, by any job" in page) == (moment == "failed")
    assert ("location.reload" in page) == (moment in ("pending", "running"))
    for at in (record["time"], record["as_of"]["slurm"]):
        assert datetime.fromisoformat(at).tzinfo is not None
        assert at in page


def test_what_slurm_last_said_is_shown_with_its_age_where_it_is_silent(tmp_path):
    asked = campaign_at("running", tmp_path)
    before, _ = look(tmp_path, asked)
    for name in ("squeue", "sacct"):
        asked.say(name, rc=1, error="Unable to contact slurm controller")
    record, page = look(tmp_path, asked)
    assert [job["state"] for job in record["jobs"]] == ["unknown", "unknown"]
    last = {"state": "RUNNING", "time": before["as_of"]["slurm"]}
    assert record["jobs"][0]["last_known"] == last
    assert record["as_of"]["slurm"] == last["time"]
    assert f"last known: RUNNING at {last['time']}" in page
    assert "Slurm does not answer" in page


@pytest.fixture
def measured(tmp_path):
    """A campaign of which a ladder is measured: its step takes 20 + 80 / p ms."""
    asked = campaign_at("done", tmp_path)
    folder = tmp_path / "results" / "x"
    shutil.rmtree(folder / "launches")
    strong_tree(folder, {p: (t := 0.02 + 0.08 / p, t * (1 + 1e-9)) for p in (1, 2, 4)})
    return asked


TARGETS = "schema = 1\nstrong_efficiency = {2 = 0.8, 4 = 0.75, 8 = 0.7}\nspeedup = {4 = [2, 3]}\n"
TABLE = (
    "n,value,metric,unit,scaling,note\n1,10,time,h,strong,TARGETS\n2,5.5,time,h,strong,TARGETS\n"
)


def test_targets_lie_beside_what_is_measured(tmp_path, measured):
    (tmp_path / "my.targets.toml").write_text(TARGETS)
    record, page = look(tmp_path, measured, "--expect my.targets.toml --floor 0.7")
    rows = record["measured"]["expected"]
    measured_at = {(row["quantity"], row["world_size"]): row["measured"] for row in rows}
    # Efficiency at p is 100 / (80 + 20 p), and the speed-up p times that.
    assert measured_at == {
        ("parallel_efficiency", 2): pytest.approx(5 / 6),
        ("parallel_efficiency", 4): pytest.approx(5 / 8),
        ("parallel_efficiency", 8): None,
        ("speedup", 4): pytest.approx(2.5),
    }
    (below,) = record["measured"]["below_floor"]
    assert (below["world_size"], below["floor"]) == (4, 0.7)
    assert "below the floor of 70.0 %" in page
    assert "at least 75.0" in page


@pytest.mark.parametrize(("moment", "rules"), [("done", ["unfinished-launch"]), ("pending", [])])
def test_a_ratio_that_check_blocks_is_a_dash_with_the_reason_and_misses_no_floor(
    tmp_path, moment, rules
):
    asked = campaign_at(moment, tmp_path)
    folder = tmp_path / "results" / "x"
    shutil.rmtree(folder / "launches", ignore_errors=True)
    strong_tree(folder, {p: (0.02 + 0.08 / p,) for p in (1, 2, 4)})
    path = folder / "launches" / "w4-r0" / "result.json"
    path.write_text(path.read_text().replace('"complete": true', '"complete": false'))
    (folder / "expected.targets.toml").write_text(TARGETS)
    record, page = look(tmp_path, asked, "--floor 0.7")
    *_, last = record["measured"]["points"]
    assert last["blocked_by"] == rules  # none while a job is still to complete the launch
    assert (last["parallel_efficiency"], last["speedup"]) == (
        (None, None) if rules else (pytest.approx(5 / 8), pytest.approx(2.5))
    )
    of_four = [row for row in record["measured"]["expected"] if row["world_size"] == 4]
    assert {row["measured"] is None for row in of_four} == {bool(rules)}
    assert bool(record["measured"]["below_floor"]) is not bool(rules)
    assert ("blocked by check: unfinished-launch" in page) is bool(rules)
    if rules:  # as the report has it
        said = lockstep("report results/x --json", tmp_path, asked.folder).stdout
        assert {p["world_size"]: p["blocked_by"] for p in json.loads(said)["points"]}[4] == rules


@pytest.mark.parametrize(("name", "quantity", "deviation"), [
    ("expected.csv", "speedup", 5 / 3 / (10 / 5.5) - 1),
    ("expected.json", "throughput", 0.0),
])  # fmt: skip
def test_a_table_and_a_prediction_in_the_folder_are_expected(
    tmp_path, measured, name, quantity, deviation
):
    text = TABLE
    if name == "expected.json":
        text = lockstep("predict results/x --json", tmp_path, measured.folder).stdout
        assert text
    (tmp_path / "results" / "x" / name).write_text(text)
    record, _ = look(tmp_path, measured)
    (row,) = [row for row in record["measured"]["expected"]
              if (row["quantity"], row["world_size"]) == (quantity, 2)]  # fmt: skip
    assert row["deviation"] == pytest.approx(deviation, abs=1e-6)


def test_pending_jobs_of_sizes_above_one_that_misses_the_floor_are_to_be_cancelled(tmp_path):
    asked = campaign_at("pending", tmp_path)
    strong_tree(tmp_path / "results" / "x", {p: (0.02 + 0.08 / p,) for p in (1, 2)})
    for above, commands in ((0.9, ["lockstep cancel results/x --job campaign-w4-r0"]), (0.8, [])):
        record, _ = look(tmp_path, asked, f"--floor {above}")
        assert [line.partition("  #")[0] for line in record["next"]] == commands


def test_what_strangers_wrote_is_text(tmp_path):
    asked = campaign_at("running", tmp_path)
    hostile = "<img src=x onerror=alert(1)>"
    claim = CLAIM | {"name": hostile, "workload": hostile}
    (tmp_path / "results" / "x" / "campaign.json").write_text(json.dumps(claim))
    record, page = look(tmp_path, asked)
    assert "<img" not in page
    assert "default-src 'none'" in page
    served = status_page.html(record, None, is_served=True)
    assert served.count("<script>") == 1
    assert "connect-src 'self'" in served
