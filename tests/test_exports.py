"""Every export holds the numbers of the page, and none that the page does not have."""

import base64
import csv
import gzip
import io
import json
import math
import re
import shutil
from statistics import median

import pytest
from commands import ROOT, run
from test_tracker import needed
from tracker_server import KEY, serving

import lockstep
from lockstep.core import formats
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.load.reading import gather
from lockstep.report.page.content_of_page import page
from lockstep.report.report_cli import import_table, report
from lockstep.report.tracker import sending, tracked
from lockstep.report.tracker.runs import read_runs
from lockstep.report.tracker.tracked import metric_name
from lockstep.report.words import names

needed("pandas")
pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own, and what frames leave out

# Of a table of the page: the start of a column's heading -> the point's column and its scale.
SHOWN = {
    "Step time ms": ("step_s", 1e3), "Throughput": ("throughput_samples_per_s", 1),
    "Speed-up": ("speedup", 1), "Efficiency %": ("parallel_efficiency", 100),
    "Time h": ("time_s", 1 / 3600),
}  # fmt: skip
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


def name_of(point, column):
    return metric_name(point["case"], column), point["world_size"]


@of_all
def test_json_holds_the_numbers_of_the_page(folder, points):
    assert json.loads(run(report, folder, "--json").stdout)["points"] == points


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


@of_all
def test_the_tables_of_the_page_are_its_numbers_rounded(folder, points):
    results = gather([folder])
    evaluation = evaluate(results)
    data = page(evaluation, 0.7)
    shown, _ = names.short(evaluation.series)
    titles = {
        whole.label: short.label for whole, short in zip(evaluation.series, shown, strict=True)
    }
    tables = {
        (table["caption"], part["id"]): table for part in data["sections"]
        for table in part["tables"]
    }  # fmt: skip
    compared = 0
    for point in points:
        kind = point["study"] if point["origin"] == "measured" else point["origin"]
        if (table := tables.get((titles[point["series"]], kind))) is None:
            continue
        labels = [f"{one['label']} {one['unit']}".strip() for one in table["columns"]]
        (cells,) = [row for row in table["rows"] if row[0] == str(point["world_size"])]
        for label, cell in zip(labels, cells, strict=True):
            for begin, (name, scale) in SHOWN.items():
                # A table of times shows the throughput of the same runs, of another series.
                if label.startswith(begin) and (name, point["step_s"]) != (
                    "throughput_samples_per_s",
                    None,
                ):
                    compared += 1
                    assert read_number(cell) == rounded(point[name], scale, cell), (label, point)
    assert compared >= 12


def read_number(cell):
    return None if cell == formats.DASH else float(re.sub(r"[^0-9.e+-]", "", cell))


def rounded(value, scale, cell):
    """Return a number with the digits that its cell has, three of a whole one at least."""
    if value is None:
        return None
    decimals = len(cell.partition(".")[2])
    return round(value * scale, decimals or min(0, 2 - math.floor(math.log10(value * scale))))


@of_a_campaign
def test_each_run_of_a_tracker_has_the_numbers_of_its_launch_and_its_point(folder, points):
    ratios = {name_of(one, "parallel_efficiency"): one["parallel_efficiency"] for one in points}
    frame = lockstep.read(folder, launches=True)
    launches = frame.astype(object).where(frame.notna(), None).to_dict("records")
    runs = {one.name: one for one in read_runs(folder)[0] if one.kind == "launch"}
    for row in launches:
        values = {}
        for metric in runs[row["launch"]].metrics:
            values.setdefault(metric.name, []).append(metric.value)
        own = {name: values.get(metric_name(row["case"], name)) for name in (
            "step_s", "throughput_samples_per_s", "mfu", "peak_memory_bytes")}  # fmt: skip
        assert median(own.pop("step_s")) == pytest.approx(row["step_s"], rel=1e-12)
        known = {name: row[name] for name in own if row[name] is not None}
        # Equal but for the last digit of the arithmetic.
        assert {name: one[0] for name, one in own.items() if one} == pytest.approx(known, rel=1e-12)
        name = name_of(row, "parallel_efficiency")
        assert values.get(name[0], [None])[-1] == ratios[name]


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
