import pytest
from data.report_samples import document, record, write
from hypothesis import given
from hypothesis import strategies as st

from reports.attribution import EXPOSED, IMBALANCE, OWN, losses, reason, split
from reports.load import load
from reports.page import page
from reports.results import Row
from reports.scaling import series_of


def ladder(scaling, steps):
    """Rows of (world size, step in seconds, each rank's step alone)."""
    rows = [
        Row("l", "c", scaling, "w", size, 1 / step, scaling=scaling, step_s=step,
            details={"alone_step_s": alone})
        for size, step, alone in steps
    ]  # fmt: skip
    (series,) = series_of(rows)
    return series


STRONG = [(1, 1.0, [0.96]), (2, 0.8, [0.5, 0.6])]


def test_a_step_is_split_by_hand():
    base, point = ladder("strong", STRONG).points
    assert split(base) == pytest.approx({OWN: 0.96, IMBALANCE: 0.0, EXPOSED: 0.04})
    assert split(point) == pytest.approx({OWN: 0.55, IMBALANCE: 0.05, EXPOSED: 0.2})


def test_a_strong_ladder_loses_what_its_share_of_the_baseline_does_not_explain():
    series = ladder("strong", STRONG)
    found = losses(series, series.points[1])
    # Half of the baseline: 0.48, 0 and 0.02; the ideal step is 0.5 and 0.3 are lost.
    assert found == pytest.approx({OWN: 0.07, IMBALANCE: 0.05, EXPOSED: 0.18})
    assert sum(found.values()) == pytest.approx(0.3)


def test_where_the_local_batch_is_fixed_the_whole_baseline_is_the_ideal():
    series = ladder("weak", [(1, 1.0, [0.96]), (2, 1.2, [0.97, 0.99])])
    assert losses(series, series.points[1]) == pytest.approx(
        {OWN: 0.02, IMBALANCE: 0.01, EXPOSED: 0.17}
    )


def test_the_sentence_names_the_largest_cause_and_what_to_try():
    series = ladder("strong", STRONG)
    said = reason(series, series.points[1])
    assert (
        "on 2 ranks loses 38 % of a step to the baseline; of that 60 % to exposed communication"
        in said
    )
    assert "try a larger batch per rank" in said
    slow = ladder("strong", [(1, 1.0, [1.0]), (2, 0.8, [0.5, 0.8])])
    assert "find the slow rank" in reason(slow, slow.points[1])
    small = ladder("strong", [(1, 1.0, [1.0]), (2, 0.8, [0.8, 0.8])])
    assert "batch is too small" in reason(small, small.points[1])


def test_a_point_that_loses_nothing_needs_no_reason():
    series = ladder("strong", [(1, 1.0, [0.96]), (2, 0.505, [0.48, 0.48])])
    assert reason(series, series.points[1]) is None
    assert reason(series, series.base) is None


def test_results_without_a_step_alone_are_not_split():
    series = ladder("strong", [(1, 1.0, []), (2, 0.8, [0.5, 0.6])])
    assert split(series.base) is None
    assert losses(series, series.points[1]) is None
    assert reason(series, series.points[1]) is None


seconds = st.floats(1e-3, 10)


scalings = st.sampled_from(["strong", "weak"])


@given(seconds, seconds, st.lists(seconds, min_size=4, max_size=4), scalings)
def test_the_losses_add_up_to_what_the_efficiency_says(base, step, alone, scaling):
    series = ladder(scaling, [(1, base, [0.9 * base]), (4, step, alone)])
    factor = 1 / 4 if scaling == "strong" else 1.0
    found = losses(series, series.points[1])
    assert sum(found.values()) == pytest.approx(step - factor * base, abs=1e-9)


def test_the_page_says_why_and_shows_the_table(tmp_path):
    for size, step_s, alone in STRONG:
        case = record("strong", size, step_s, details={"alone_step_s": alone})
        write(tmp_path, document(f"w{size}-r0", size, {"strong[64]": case}))
    results = load([tmp_path])
    made = page(results, series_of(results.rows), 0.7)
    assert any("loses 38 % of a step to the baseline" in sentence for sentence in made["verdicts"])
    strong = next(one for one in made["sections"] if one["id"] == "strong")
    (shown,) = [t for t in strong["tables"] if t["caption"].startswith("Where a step's time")]
    assert shown["rows"][1][:5] == ["2", "800", "200", "50.0", "550"]
