"""What the performance figures are computed from: ratios, the table, the listing of imports."""

import json
from collections.abc import Callable
from pathlib import Path

import figures
import figures_report
import figures_runner
import pytest

from lockstep.core.record import KEY
from lockstep.report.load.reading import load


def test_overhead_is_the_ratio_of_medians_over_the_slowest_rank_of_each_round() -> None:
    rank_0 = ([1.0, 4.0, 2.0], [2.0, 2.0, 9.0])
    rank_1 = ([3.0, 1.0, 2.0], [1.0, 6.0, 1.0])
    # slowest ranks: bare 3, 4, 2 with median 3; runner 2, 6, 9 with median 6
    assert figures_runner.overhead([rank_0, rank_1]) == (2.0, 3.0)


def test_turns_swap_their_order_after_one_untimed_turn_of_each() -> None:
    order = []

    def turn(name: str) -> Callable[[], list[float]]:
        def take() -> list[float]:
            order.append(name)
            return [float(len(order))]

        return take

    times = figures_runner.alternate((turn("A"), turn("B")), 3)
    assert "".join(order) == "AB" + "ABBAAB"
    assert times == ([3.0, 6.0, 7.0], [4.0, 5.0, 8.0])


def test_imported_modules_are_read_from_the_listing_by_their_top_level_name() -> None:
    listing = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:       120 |        120 |   pandas._libs\n"
        "import time:        10 |       1310 | click\n"
        "Usage: lockstep torch matplotlib\n"
    )
    assert figures.imported(listing) == {"pandas", "click"}


@pytest.mark.parametrize(("values", "reached"), [([0.9, 3.0, 1.0], True), ([1.1, 1.2, 0.1], False)])
def test_a_figure_is_judged_by_its_median(values: list[float], reached: bool) -> None:
    figure = figures.Figure("a / b", values, 1.0, "note")
    assert figure.to_dict()["reached"] is reached
    assert figure.row()[3] == ("yes" if reached else "NO")


def test_the_table_names_the_goal_and_the_spread_beside_each_figure() -> None:
    header = figures.line(figures.HEADER)
    line = figures.line(figures.Figure("a / b", [1.0, 1.25, 3.0], 2.0, "busy").row())
    assert line.split("  ")[0] == "a / b"
    assert line[header.index("measured") :].split() == [
        *("1.25", "<=", "2", "yes", "1..3", "3", "busy"),
    ]


def test_a_figure_that_cannot_be_measured_is_named_and_the_others_are_kept(monkeypatch, capsys):
    def broken(_bench: figures.Bench) -> list[figures.Figure]:
        raise RuntimeError("11 cases were measured, 20 were expected")

    found = [figures.Figure("a / b", [1.0], 2.0)]
    parts = {"first": lambda _: found, "broken": broken, "last": lambda _: found}
    monkeypatch.setattr(figures, "FIGURES", parts)
    monkeypatch.setattr("sys.argv", ["figures.py"])
    assert figures.main() == 1
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()[:3]] == ["figure", "a", "a"]
    assert said.err == "broken: not measured: 11 cases were measured, 20 were expected\n"


def test_generated_files_hold_so_many_points_of_two_world_sizes(tmp_path: Path) -> None:
    paths = figures_report.write_files(tmp_path, 100)
    results = load(paths)
    assert len(results.rows) == 100
    assert len({row.case for row in results.rows}) == 50
    assert {row.world_size for row in results.rows} == {1, 2}
    assert {row.rounds for row in results.rows} == {figures_report.ROUNDS}
    for one in json.loads(paths[1].read_text(encoding="utf-8"))["benchmarks"]:
        assert one["stats"]["data"] == [max(t) for t in zip(*_rank_rounds(one), strict=True)]


def _rank_rounds(entry: dict[str, dict[str, dict[str, list[list[float]]]]]) -> list[list[float]]:
    return entry["extra_info"][KEY]["rank_round_s"]
