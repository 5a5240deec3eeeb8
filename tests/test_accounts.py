"""The report's section on the jobs: what they cost, by what `lockstep status --collect` wrote."""

import json

import pytest
from data.report_samples import full_tree
from test_render import data_of

from lockstep.report.load.reading import load


def row(job_id, job="ladder", accounting=(), **more):
    account = {
        "state": "COMPLETED", "elapsed_s": 7200.0, "queue_wait_s": 90, "cpu_efficiency": 0.8375,
        "memory_efficiency": 0.890625, "node_hours": 2.0, "cpu_hours": 32.0, "gpu_hours": 8.0,
        "billing_hours": 64.0,
    }  # fmt: skip
    own = None if accounting is None else account | dict(accounting)
    return {"id": job_id, "job": job, "accounting": own, "measured_rank_hours": 2.0} | more


def report(root, *rows):
    full_tree(root)
    (root / "accounting.json").write_text(json.dumps({"schema": 2, "jobs": rows}))
    return next((part for part in data_of(root)["sections"] if part["id"] == "jobs"), None)


def test_a_job_s_cost_stands_with_its_efficiency(tmp_path):
    found = report(tmp_path, row("17"))
    assert found["lead"] == [
        "1 job ran for 2 h in total.",
        "Allocated were 2.00 node-hours, 32.0 CPU-hours, 8.00 GPU-hours, "
        "64.0 hours of TRES billing.",
        "2 of the GPU-hours (25.0 %) were spent in timed regions.",
    ]
    (jobs,) = found["tables"]
    assert report(tmp_path / "none", row("17", accounting=None)) is None
    expected = "ladder|17|COMPLETED|90 s|2 h|83.8|89.1|2.00|32.0|8.00|64.0|2.00"
    assert jobs["rows"] == [expected.split("|")]


@pytest.mark.parametrize(
    ("accounting", "fault"), [("[]", "holds no jobs"), ('{"schema": 1, "jobs": []}', "schema 1")]
)
def test_an_accounting_that_is_broken_or_of_another_schema_is_refused(tmp_path, accounting, fault):
    full_tree(tmp_path)
    (tmp_path / "accounting.json").write_text(accounting)
    with pytest.raises(ValueError, match=f"{fault}.*; run lockstep status --collect again"):
        data_of(tmp_path)


def test_a_folder_whose_jobs_have_measured_nothing_is_said_so(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "exit-7.json").write_text('{"job_id": "7", "exit_code": 1}')
    with pytest.raises(ValueError, match=r"jobs have no results yet; run lockstep status "):
        load([tmp_path])
