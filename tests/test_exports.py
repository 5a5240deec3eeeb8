"""Every export holds the numbers of the page, and none that the page does not have."""

import base64
import csv
import gzip
import io
import json
import re
import shutil

import pytest
from commands import ROOT, run
from test_tracker import needed
from tracker_server import KEY, serving

import lockstep
from lockstep.report.report_cli import import_table, report
from lockstep.report.tracker import sending, tracked
from lockstep.report.tracker.runs import read_runs

needed("pandas")
pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own, and what frames leave out

of_all = pytest.mark.parametrize("folder", ["guide", "measured"], indirect=True)
of_a_campaign = pytest.mark.parametrize("folder", ["measured"], indirect=True)


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    """Results of a kind, with their page."""
    made = tmp_path_factory.mktemp(request.param) / "results"
    if request.param == "guide":
        run(import_table, ROOT / "reports" / "seeds" / "guide.csv", "--to", made)
    else:
        shutil.copytree(ROOT / "tests" / "data" / "measured_before", made)
    run(report, made, "--force")
    return made


@pytest.fixture(scope="module")
def points(folder):
    """The points as the written page has them."""
    text = (folder / "report.html").read_text()
    (packed,) = re.findall(r'<script type="text/plain" id="data">([^<]+)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))["points"]


@of_all
def test_json_holds_the_numbers_of_the_page(folder, points):
    assert json.loads(run(report, folder, "--json").stdout)["points"] == points


@of_a_campaign
def test_a_pack_holds_the_numbers_of_the_page(folder, points, tmp_path):
    run(report, folder, "--proposal", "generic", "--despite", "--to", tmp_path / "pack")
    assert json.loads((tmp_path / "pack" / "numbers.json").read_text())["points"] == points


@of_all
def test_csv_and_data_frames_hold_each_number_of_the_page(folder, points):
    lines = list(csv.DictReader(io.StringIO(run(report, folder, "--csv").stdout)))
    frame = lockstep.read(folder)
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    for point, line, row in zip(points, lines, rows, strict=True):
        numbers = {name: value for name, value in point.items()
                   if isinstance(value, int | float) or value is None}  # fmt: skip
        assert {name: float(line[name]) if line[name] else None for name in numbers} == numbers
        assert {name: row[name] for name in numbers} == numbers


@of_a_campaign
def test_trackers_are_sent_those_numbers_unchanged(folder, monkeypatch):
    monkeypatch.setenv(tracked.KEY_VARIABLE, KEY)
    runs = read_runs(folder)[0]
    expected = sorted((m.name, m.value, m.step) for one in runs for m in one.metrics)
    with serving() as tracker:
        assert sending.send(folder, tracked.Tracker(kind="http", uri=tracker.uri)).kind == "sent"
        found = [
            (m["name"], m["value"], m["step"]) for one in tracker.runs.values()
            for m in one["metrics"]
        ]  # fmt: skip
    assert sorted(found) == expected
