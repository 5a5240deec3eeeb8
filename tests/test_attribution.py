import numpy as np
import pytest
from data.report_samples import document, record, write
from hypothesis import given, settings
from hypothesis import strategies as st
from injected import judged, measure

from lockstep.report.compute import attribution
from lockstep.report.compute.attribution import COPIES, EXPOSED, IMBALANCE, OWN, extremes, loss
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load
from lockstep.report.load.results import Row
from lockstep.report.page.content_of_page import page
from lockstep.report.page.panels.losses import sentence

NUM_STEPS = 8
# Of three launches that differ by a thousandth.
LAUNCHES = (0.999, 1.0, 1.001)


def ladder(scaling, steps):
    """Rows of (world size, mean step in seconds, each rank's steps alone), in three launches."""
    rows = [
        Row(f"w{size}-r{repeat}", "c", scaling, "w", size, 1 / step, scaling=scaling, step_s=step,
            mean_step_s=step * factor,
            rank_alone_s=[[one * factor for one in own] for own in alone])
        for size, step, alone in steps for repeat, factor in enumerate(LAUNCHES)
    ]  # fmt: skip
    (series,) = series_of(rows)
    return series


def steady(seconds):
    return [seconds] * NUM_STEPS


def lost(scaling, base, here):
    series = ladder(scaling, [(1, *base), (2, *here)])
    return loss(series, series.points[1])


def seconds_of(found):
    return {part.cause: part.seconds for part in found.parts}


BASE = (1.0, [steady(0.9)])


def test_a_steady_step_is_split_by_hand():
    # Of a step of 0.9 s alone and 0.1 of DDP's copies, one rank of two then takes 0.2 s longer.
    found = lost("weak", BASE, (1.3, [steady(0.9), steady(1.1)]))
    assert seconds_of(found) == pytest.approx({OWN: 0, IMBALANCE: 0.2, EXPOSED: 0.1})
    assert (found.kind, [part.cause for part in found.named]) == ("named", [IMBALANCE, EXPOSED])


def test_a_strong_ladder_loses_what_its_share_of_the_baseline_does_not_explain():
    # Half of 0.9 s is the share; the copies take 0.1 s as before, and half of that is lost.
    found = lost("strong", BASE, (0.8, [steady(0.5), steady(0.6)]))
    assert seconds_of(found) == pytest.approx(
        {OWN: 0.05, IMBALANCE: 0.1, EXPOSED: 0.1, COPIES: 0.05}
    )
    assert found.seconds == pytest.approx(0.3)


def test_at_one_rank_nothing_is_called_communication():
    series = ladder("weak", [(1, *BASE)])
    parts = attribution.parts(series.base)
    assert {part.cause: part.seconds for part in parts} == pytest.approx({OWN: 0.9, COPIES: 0.1})


def test_ranks_that_are_slow_in_turn_are_not_blamed_on_communication():
    turns = [0.9, 1.1] * (NUM_STEPS // 2)
    series = ladder("weak", [(1, *BASE), (2, 1.2, [turns, turns[::-1]])])
    found = loss(series, series.points[1])
    assert (found.kind, found.named) == ("open", ())
    low, high = next(part.interval for part in found.parts if part.cause == EXPOSED)
    assert low <= 0 < high
    assert found.uneven_s == pytest.approx(0.1)
    assert "ranks that are slow in turn" in sentence(series, series.points[1])


def test_a_loss_of_one_launch_has_no_cause():
    rows = [row for row in rows_of(ladder("weak", [(1, *BASE), (2, 2.0, [steady(0.9)] * 2)]))
            if row.launch.endswith("r0")]  # fmt: skip
    (series,) = series_of(rows)
    assert loss(series, series.points[1]).kind == "open"


def test_medians_of_an_older_release_are_split_and_name_no_cause():
    found = lost("weak", (1.0, [[0.9]]), (1.3, [[0.9], [1.1]]))
    assert seconds_of(found)[IMBALANCE] == pytest.approx(0.2)
    assert (found.kind, found.parts[0].interval) == ("open", None)


def rows_of(series):
    return [row for point in series.points for row in point.rows]


MEETINGS = {
    "independent": lambda draw, slow: slow,
    "in turn": lambda draw, slow: np.array([slow[0], ~slow[0]]),
    "together": lambda draw, slow: np.array([slow[0], slow[0]]),
    "one rank": lambda draw, slow: np.array([slow[0], slow[0] & False]),
}


@pytest.mark.parametrize("meeting", MEETINGS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_the_bounds_hold_the_truth_however_slow_steps_of_two_ranks_meet(meeting, share):
    draw = np.random.default_rng(1)

    def steps(count):
        slow = MEETINGS[meeting](draw, draw.random((2, count)) < share)
        return 0.04 + 0.02 * slow + 0.001 * draw.standard_normal((2, count))

    drawn = steps(100_000)
    truth = drawn.min(axis=0).mean(), drawn.max(axis=0).mean()
    found = np.mean([extremes(steps(NUM_STEPS)) for _ in range(1000)], axis=0)
    for (low, high), value in zip(found, truth, strict=True):
        assert low < value + 4e-4  # two standard errors of 1000 launches
        assert high > value - 4e-4


seconds = st.floats(1e-3, 10)
ranks = st.lists(st.lists(seconds, min_size=NUM_STEPS, max_size=NUM_STEPS), min_size=4, max_size=4)


@settings(deadline=None)  # what a loaded machine takes says nothing
@given(seconds, seconds, ranks, st.sampled_from(["strong", "weak"]))
def test_the_losses_add_up_to_the_whole(base, step, alone, scaling):
    series = ladder(scaling, [(1, base, [steady(0.9 * base)]), (4, step, alone)])
    factor = 1 / 4 if scaling == "strong" else 1.0
    found = loss(series, series.points[1])
    assert found.seconds == pytest.approx(step - factor * base, abs=1e-9)
    assert sum(seconds_of(found).values()) == pytest.approx(found.seconds, abs=1e-9)


def test_the_sentence_gives_milliseconds_with_signs_intervals_and_the_slow_rank():
    series = ladder("weak", [(1, *BASE), (2, 1.3, [steady(0.9), steady(1.2)])])
    for row, factor in zip(series.points[1].rows, LAUNCHES, strict=True):
        row.rank_alone_s[1] = steady(1.2 * factor**2)  # launches of equal paces have no interval
    said = sentence(series, series.points[1])
    assert "a mean step takes 1300 ms where 1000 ms are ideal, +300 ms (+29" in said
    assert "to imbalance (rank 1 is the slowest in 3 of 3 launches, by 33.3 %" in said
    assert said.endswith("look at its device, its clocks, and what else runs on its host.")


def test_the_sentence_leads_with_the_largest_cause_and_keeps_the_slow_rank_beside_imbalance():
    series = ladder("weak", [(1, *BASE), (2, 1.4, [steady(0.9), steady(1.2)])])
    for row, factor in zip(series.points[1].rows, LAUNCHES, strict=True):
        row.rank_alone_s[1] = steady(1.2 * factor**2)
    assert [part.cause for part in loss(series, series.points[1]).named] == [IMBALANCE, EXPOSED]
    said = sentence(series, series.points[1])
    order = ["to imbalance (rank 1", "look at its device", "to exposed communication"]
    assert [said.index(text) for text in order] == sorted(map(said.index, order))


def test_a_point_that_loses_little_needs_no_reason():
    series = ladder("strong", [(1, *BASE), (2, 0.51, [steady(0.46)] * 2)])
    assert sentence(series, series.points[1]) is None
    assert sentence(series, series.base) is None


def test_a_small_loss_of_noisy_launches_is_open_and_a_sure_cause_is_named_all_the_same():
    series = ladder("weak", [(1, *BASE), (2, 1.01, [steady(0.9)] * 2)])
    for row, factor in zip(series.base.rows, (0.8, 1.0, 1.2), strict=True):
        row.mean_step_s = factor
    assert loss(series, series.points[1]).kind == "open"
    assert "not enough evidence that anything is lost" in sentence(series, series.points[1])
    for row in series.points[1].rows:
        row.rank_alone_s[1] = steady(1.2)
    assert [part.cause for part in loss(series, series.points[1]).named] == [IMBALANCE]


def test_results_without_a_step_alone_are_not_split():
    series = ladder("strong", [(1, 1.0, []), (2, 0.8, [steady(0.5), steady(0.6)])])
    assert attribution.parts(series.base) is None
    assert loss(series, series.points[1]) is None
    assert sentence(series, series.points[1]) is None


def test_the_page_says_why_and_shows_the_table(tmp_path):
    for size, step_s, alone in ((1, *BASE), (2, 0.8, [steady(0.5), steady(0.6)])):
        for repeat, factor in enumerate(LAUNCHES):
            details = {"rank_alone_s": [[one * factor for one in own] for own in alone]}
            case = record("strong", size, step_s * factor, details=details)
            name = f"w{size}-r{repeat}"
            write(tmp_path, document(name, size, {"strong[64]": case}, repeat=repeat))
    results = load([tmp_path])
    made = page(results, series_of(results.rows), 0.7)
    assert any("are ideal, +300 ms" in sentence for sentence in made["verdicts"])
    strong = next(one for one in made["sections"] if one["id"] == "strong")
    (shown,) = [t for t in strong["tables"] if t["caption"].startswith("Where a step's time")]
    assert [row[:3] for row in shown["rows"] if row[0] == "2"] == [
        ["2", "Exposed communication", "200"],
        ["2", "Imbalance", "100"],
        ["2", "Own work", "500"],
        ["2", "DDP's own copies", "\u2013"],
        ["2", "Whole step", "800"],
    ]


@pytest.mark.chaos
@pytest.mark.slow
def test_what_is_put_into_real_launches_is_named_or_called_open(tmp_path):
    found = judged(measure(tmp_path))
    assert [one for one in found if not one.is_right] == []
