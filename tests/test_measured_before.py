"""Results and journals that an earlier version measured give the numbers that it gave."""

import json
from pathlib import Path

import pytest

from lockstep.report.columns import table
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load

# Measured, and its points printed by `report --json`, before flags became records.
FOLDER = Path(__file__).parent / "data" / "measured_before"
POINTS = json.loads((FOLDER / "points.json").read_text())


def test_three_results_and_a_journal_of_an_earlier_version_give_its_numbers():
    results = load([FOLDER])
    assert {launch.name for launch in results.launches} == {"w1-r0", "w1-r1", "w2-r0", "w2-r1"}
    assert (results.conflicts, results.unread) == ([], [])
    points = table(series_of(results.rows))
    assert len(points) == len(POINTS) == 4
    for point, before in zip(points, POINTS, strict=True):
        assert {name: point[name] for name in before} == pytest.approx(before, nan_ok=True)
