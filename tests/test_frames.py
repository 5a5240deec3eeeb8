"""Results as data frames: the same numbers as the report's, with documented columns."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from data.report_samples import document, provenance, record, write

import lockstep
from lockstep.core.record import KEY
from lockstep.report import columns
from lockstep.report.columns import table
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load

if not os.environ.get("CI"):
    pytest.importorskip("pandas")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(measured):
    return measured / "fp32"


def test_every_column_of_the_points_is_described_and_no_other(folder):
    points = table(series_of(load([folder]).rows))
    assert {tuple(point) for point in points} == {(*columns.POINTS, *columns.DETAILS)}


def test_launches_and_rounds_are_the_rows_below_the_points(folder):
    launches, rounds = (lockstep.read(folder, **{kind: True}) for kind in ("launches", "rounds"))
    points = lockstep.read(folder)
    assert len(launches) == points.num_launches.sum()
    assert launches.is_pooled.all()
    assert rounds.is_pooled.all()
    one = launches[(launches.launch == "w2-r0") & (launches.study == "strong")].iloc[0]
    own = rounds[(rounds.launch == "w2-r0") & (rounds.case == one.case)]
    document = json.loads((folder / "launches" / "w2-r0" / "result.json").read_text())
    (block,) = [
        entry["extra_info"][KEY]
        for entry in document["benchmarks"]
        if entry["extra_info"][KEY]["study"] == "strong"
    ]
    assert own.pivot_table("round_s", "rank", "round").values.tolist() == block["rank_round_s"]
    assert own.groupby("round").step_s.max().median() == pytest.approx(one.step_s)


def test_a_launch_has_the_commit_of_the_code_that_it_measured(tmp_path):
    ours = {"git_commit": "a1", "git_dirty": True}
    theirs = {"project_commit": "b2", "project_dirty": False}
    for repeat, facts in enumerate(({}, ours, ours | theirs)):
        case = {"strong[a]": record(step_s=0.1 + 0.001 * repeat)}
        known = provenance(git_commit=None, git_dirty=None) | facts
        write(tmp_path, document(f"w1-r{repeat}", 1, case, provenance=known))
    commits = lockstep.read(tmp_path, launches=True).set_index("launch").commit
    assert commits.isna()["w1-r0"]
    assert (commits["w1-r1"], commits["w1-r2"]) == ("a1-dirty", "b2")


def test_a_launch_that_cannot_be_read_is_told(tmp_path):
    write(tmp_path, document("w1-r0", 1, {"strong[a]": record()}))
    broken = write(tmp_path, document("w2-r0", 2, {"strong[a]": record(world_size=2)}))
    broken.write_text("{")
    with pytest.warns(UserWarning, match="w2-r0"):
        rounds = lockstep.read(tmp_path, rounds=True)
    assert set(rounds.launch) == {"w1-r0"}


def test_a_campaign_without_a_measured_case_is_an_empty_frame(tmp_path):
    lost = {"failed": [{"case": "strong[a]", "reason": "it broke"}]}
    write(tmp_path, document("w1-r0", 1, {}, expected=["strong[a]"], **lost))
    frame = lockstep.read(tmp_path)
    assert (len(frame), list(frame.columns)) == (0, list(columns.POINTS))


def test_the_notebook_draws_a_curve(folder, tmp_path):
    notebook = json.loads((ROOT / "examples" / "scaling_curve.ipynb").read_text())
    cells = ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code"]
    assert 10 <= sum(len(cell.splitlines()) for cell in cells) <= 16
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "laptop").symlink_to(folder)
    script = "\n".join([*cells, "axes.figure.savefig('curve.svg')"])
    environ = os.environ | {"MPLBACKEND": "svg", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environ, check=True)
    assert "<svg" in (tmp_path / "curve.svg").read_text()
