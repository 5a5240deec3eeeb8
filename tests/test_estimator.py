"""One point has one step time, one throughput and one efficiency, wherever they are told."""

from types import SimpleNamespace

import pytest

from lockstep.core.formats import number
from lockstep.report.compute import quantities
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import gather
from lockstep.report.page.content_of_page import page
from lockstep.report.page.parts import MILLI
from lockstep.report.words.console import console_table

LADDERS = ("strong", "weak")


@pytest.fixture(scope="module", params=["fp32", "batch"])
def told(measured, request):
    """What was really measured, in three launches a size and in two, and what is made of it."""
    results = gather([measured / request.param])
    every = series_of(results.rows)
    made = page(evaluate(results), 0.7)
    series = [one for one in every if one.row.study in LADDERS]
    points = [(one, point) for one in series for point in one.points]
    return SimpleNamespace(results=results, series=series, points=points, page=made)


def column(made, name, holding=None):
    """Return the cells of a column in the tables of both ladders, of rows that hold a text."""
    return [
        row[[one["label"] for one in shown["columns"]].index(name)]
        for section in made["sections"] if section["id"] in LADDERS
        for shown in section["tables"] if name in [one["label"] for one in shown["columns"]]
        for row in shown["rows"] if holding is None or holding in row
    ]  # fmt: skip


def test_the_step_time_is_one_on_page_and_terminal_and_in_every_figure(told):
    shown = [number(point.step_s * MILLI) for _, point in told.points]
    assert column(told.page, "Step time") == shown
    parted = [number(point.step_s * MILLI) for series, point in told.points
              if quantities.parts_and_loss(series, point)[0]]  # fmt: skip
    assert column(told.page, "Time", "Whole step") == parted
    lines = console_table(told.results, told.series, 400)[1:]
    assert [line.rsplit("  ", 1)[-1] for line in lines] == [f"{one} ms" for one in shown]
    bars = [
        bar["total"]
        for section in told.page["sections"] if section["id"] in LADDERS
        for figure in section["figures"] if figure["kind"] == "stack" for bar in figure["bars"]
    ]  # fmt: skip
    assert {number(one) for one in bars} <= set(parted)
