import pytest

from lockstep.core import metrics


@pytest.mark.parametrize(("matrix", "found"), [([[1.0, 2.0], [1.0]], r"\[1, 2\]"), ([], r"\[\]")])
def test_ranks_with_unequal_rounds_are_refused(matrix, found):
    with pytest.raises(ValueError, match=f"the same number of rounds, but the ranks have {found}"):
        metrics.slowest_rank(matrix)


# The table of nccl-tests' PERFORMANCE.md at n = 2, 4 and 8.
@pytest.mark.parametrize(
    ("collective", "factors"),
    [
        ("all_reduce", (1.0, 1.5, 1.75)),
        ("all_gather", (0.5, 0.75, 0.875)),
        ("reduce_scatter", (0.5, 0.75, 0.875)),
        ("broadcast", (1.0, 1.0, 1.0)),
        ("reduce", (1.0, 1.0, 1.0)),
    ],
)
def test_busbw_factors_are_those_of_nccl_tests(collective, factors):
    assert tuple(metrics.busbw_factor(collective, n) for n in (2, 4, 8)) == factors
    assert metrics.busbw_factor(collective, 1) is None


def test_mfu_is_a_fraction_of_the_peak_of_all_ranks():
    # 2470 images/s at 24.6 GFLOP on one A100 in half precision: 60.8 of 312 TFLOP/s.
    assert metrics.mfu(2470, 24.6e9, 312e12, 1) == pytest.approx(0.19475, abs=1e-5)
    assert metrics.mfu(2 * 2470, 24.6e9, 312e12, 2) == metrics.mfu(2470, 24.6e9, 312e12, 1)


def test_the_relative_margin_is_students():
    from scipy import stats

    for values in ([1.0, 1.1], [1.0, 1.1, 0.9, 1.05, 1.2] * 9):
        for confidence in (0.9, 0.95, 0.99):
            standard_error = stats.sem(values)
            t = stats.t.ppf(0.5 + confidence / 2, len(values) - 1)
            exact = t * standard_error / (sum(values) / len(values))
            assert metrics.relative_margin(values, confidence) == pytest.approx(exact, rel=1e-9)
    assert metrics.relative_margin([1.0], 0.95) == float("inf")
    assert metrics.relative_margin([2.0, 2.0], 0.95) == 0.0
