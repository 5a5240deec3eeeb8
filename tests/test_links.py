"""Latency and rate of a collective from its sweep of message sizes: known lines come out again."""

import pytest
from data.report_samples import document, record, write

from lockstep.report.compute import links
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load
from lockstep.report.load.results import Row
from lockstep.report.page.collective_tables import message_bytes

ALPHA_S, BETA = 2e-4, 1.25e8  # of a link of 1 Gbit/s
SIZES = (2**16, 2**18, 2**20, 2**22)


def line(beta=BETA, alpha_s=ALPHA_S, sizes=SIZES):
    return {float(size): alpha_s + size / beta for size in sizes}


def test_a_line_comes_out_as_it_went_in():
    found = links.fit_launches([line()])
    assert found.alpha_s == pytest.approx(ALPHA_S)
    assert found.beta_gb_per_s == pytest.approx(0.125)
    assert found.error == pytest.approx(0.0, abs=1e-12)
    assert (found.num_sizes, found.alpha_interval, found.beta_interval) == (4, None, None)


def test_launches_give_intervals_that_hold_the_truth():
    found = links.fit_launches([line(BETA * k, ALPHA_S * k) for k in (0.98, 1.0, 1.02)])
    low, high = found.beta_interval
    assert low < 0.125 < high < 0.14
    low, high = found.alpha_interval
    assert low < ALPHA_S < high < 1.2 * ALPHA_S


@pytest.mark.parametrize(
    ("times", "error"),
    [
        ({**line(), 2.0**24: 2 * (ALPHA_S + 2**24 / BETA)}, 0.2),  # another algorithm for the last
        (line(alpha_s=-2e-4), 0.01),  # faster than any line through 0: alpha is 0
    ],
)
def test_what_is_no_line_has_an_error(times, error):
    found = links.fit_launches([times])
    assert found.alpha_s >= 0
    assert found.error > error


@pytest.mark.parametrize(
    "times", [{}, line(sizes=SIZES[:2]), dict.fromkeys(map(float, SIZES), 1.0)]
)
def test_too_few_sizes_or_no_growth_are_no_link(times):
    assert links.fit_launches([times]) is None


def test_a_sweep_is_fitted_by_the_bytes_that_cross_the_link(tmp_path):
    cases = {
        f"collective[{size}]": record(
            "collective", 4, ALPHA_S + 1.5 * size / BETA, workload="all_reduce", scaling=None,
            details={"message_bytes": size}, factors={"message_bytes": size}, samples_per_step=size,
        )
        for size in SIZES
    }  # fmt: skip
    write(tmp_path, document("w4-r0", 4, cases))
    points = [(message_bytes(p), p) for one in series_of(load([tmp_path]).rows) for p in one.points]
    assert links.fit_points("all_reduce", points).beta_gb_per_s == pytest.approx(0.125)
    assert links.fit_points("of my own", points) is None


@pytest.mark.parametrize(("jobs", "holds_both"), [("000111222", True), ("012345678", False)])
def test_intervals_are_over_jobs_where_each_had_links_of_its_own(jobs, holds_both):
    paces = [pace + n % 3 / 1000 for n, pace in enumerate((0.8,) * 3 + (1.0,) * 3 + (1.2,) * 3)]
    found = [
        Row(f"w4-r{n}", str(size), "collective", "all_reduce", 4, 1.0, job=job,
            step_s=(ALPHA_S + 1.5 * size / BETA) / pace)
        for size in SIZES for n, (job, pace) in enumerate(zip(jobs, paces, strict=True))
    ]  # fmt: skip
    points = [(float(one.case), point) for one in series_of(found) for point in one.points]
    low, high = links.fit_points("all_reduce", points).beta_interval
    assert (low < 0.8 * 0.125 and high > 1.2 * 0.125) == holds_both
