"""One point has one step time, one throughput and one efficiency, wherever they are told."""

from types import SimpleNamespace

import pytest

from lockstep.core.formats import number, percent
from lockstep.report.columns import table
from lockstep.report.compare.comparison import compare
from lockstep.report.compare.comparison import document as compared
from lockstep.report.compute import quantities
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.scaling import series_of
from lockstep.report.gate import gates
from lockstep.report.gate.targets import Targets
from lockstep.report.load.reading import gather
from lockstep.report.page.content_of_page import page
from lockstep.report.page.parts import MILLI, ratio_cell
from lockstep.report.words.console import console_table

LADDERS = ("strong", "weak")


@pytest.fixture(scope="module", params=["fp32", "bf16"])
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
    assert column(told.page, "Time", "Whole step") == shown
    lines = console_table(told.results, told.series, 400)[1:]
    assert [line.rsplit("  ", 1)[-1] for line in lines] == [f"{one} ms" for one in shown]
    bars = [
        bar["total"]
        for section in told.page["sections"] if section["id"] in LADDERS
        for figure in section["figures"] if figure["kind"] == "stack" for bar in figure["bars"]
    ]  # fmt: skip
    assert [number(one) for one in bars] == shown


def test_the_card_and_the_headline_part_the_step_time_of_the_table(told):
    for series, point in told.points:
        card = quantities.find_bottleneck(series, point)
        assert card.step_s == point.step_s
        assert card.compute_s + card.lost_s == pytest.approx(point.step_s)
        parts, lost = quantities.parts_and_loss(series, point)
        assert sum(part.seconds for part in parts) == pytest.approx(point.step_s)
        if lost:
            assert lost.step_s == point.step_s
            assert sum(part.seconds for part in lost.parts) == pytest.approx(lost.seconds)
            # What is lost of a step is what its efficiency lacks.
            assert 1 - lost.seconds / lost.step_s == pytest.approx(point.parallel_efficiency)


def test_the_efficiency_is_one_on_page_and_in_csv_and_gate(told):
    records = {(one["case"], one["world_size"]): one for one in table(told.series)}
    cells = column(told.page, "Efficiency")
    assert cells == [
        ratio_cell(point, percent(point.parallel_efficiency)) for _, point in told.points
    ]
    for series, point in told.points:
        one = records[series.case, point.world_size]
        assert (one["step_s"], one["parallel_efficiency"]) == (
            point.step_s, point.parallel_efficiency
        )  # fmt: skip
        assert one["throughput_samples_per_s"] * one["step_s"] == pytest.approx(
            one["samples_per_step"]
        )
    judged = gates.verdicts(_targets(told.points), told.results)
    found = {(one.case, one.world_size, one.unit): one.value for one in judged}
    for series, point in told.points:
        assert found[series.case, point.world_size, "ms"] == pytest.approx(point.step_s * MILLI)
        if point is not series.base:  # of launches that lie far apart a gate gives no value
            judged_at = found[series.case, point.world_size, "%"]
            assert judged_at in (None, point.parallel_efficiency)


def _targets(points):
    """Return a target on the step time of each point, and on the efficiencies."""
    references = [
        {"case": one.case, "world_size": point.world_size, "value": 1.0, "unit": "ms", "upper": 0.0}
        for one, point in points
    ]
    sizes = {str(point.world_size): 0.5 for _, point in points}
    return Targets.model_validate(
        {"schema": 1, "reference": references, "parallel_efficiency": sizes}
    )


def test_compare_holds_the_rates_of_the_report_against_each_other(measured):
    a, b = (gather([measured / name]) for name in ("fp32", "bf16"))
    rates = [
        {(one.row.study, p.world_size): p.rate for one in series_of(side.rows) for p in one.points}
        for side in (a, b)
    ]
    made = compared(compare(a, b, allowed=("precision",)), ("a", "b"))["points"]
    assert len(made) == 4
    for one in made:
        key = one["case"].split("_")[1], one["world_size"]
        assert one["ratio"] == pytest.approx(rates[1][key] / rates[0][key])
