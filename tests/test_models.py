import math

import published
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.report.predict import models


def oracle(table):
    rows = published.rows_of(table)
    return [row.world_size for row in rows], [row.rate for row in rows]


def rounded(fitted, digits):
    return {name: float(f"{value:.{digits}g}") for name, value in fitted.items()}


def test_usl_of_specsdm91_equals_the_r_package_with_standard_errors():
    fitted = models.fit_usl(*oracle("usl_oracle_specsdm91"))
    assert rounded(fitted.coefficients, 6) == pytest.approx(
        {"alpha": 0.0277285, "beta": 0.0001044, "gamma": 89.9952}, rel=4e-4
    )
    assert fitted.coefficients["alpha"] == pytest.approx(0.0277285, abs=5e-8)
    assert fitted.errors == pytest.approx(
        {"alpha": 0.00912, "beta": 0.0000199, "gamma": 14.21}, rel=2e-3
    )
    assert models.peak_size(fitted) == pytest.approx(96.52, abs=5e-3)


def test_usl_of_raytracer_equals_the_published_fit_and_standard_errors():
    sizes, rates = oracle("usl_oracle_raytracer")
    fitted = models.fit_usl(sizes[:6], rates[:6])
    assert fitted.coefficients == pytest.approx(
        {"alpha": 0.02444, "beta": 0.00163, "gamma": 20.85605}, rel=2e-3
    )
    assert fitted.coefficients["gamma"] == pytest.approx(20.85605, abs=1e-5)
    # The published intervals reach 2.015 standard errors to either side: Student's t with five
    # degrees of freedom at 90 %, where six points and three coefficients leave three, and 3.18.
    published_halves = {"alpha": 0.016905, "gamma": 1.588875}
    for name, half in published_halves.items():
        assert half / fitted.errors[name] == pytest.approx(2.015, abs=1e-3)
        low, high = fitted.interval(name)
        assert (high - low) / 2 == pytest.approx(3.1824 * fitted.errors[name], rel=1e-4)


def test_a_usl_bound_is_kept_and_called_not_identifiable():
    fitted = models.fit_usl(*oracle("usl_oracle_raytracer"))
    assert rounded(fitted.coefficients, 3) == {"alpha": 0.0578, "beta": 0.0, "gamma": 21.8}
    assert fitted.errors["beta"] is None and fitted.interval("beta") is None
    assert models.peak_size(fitted) is None


@settings(max_examples=60)
@given(rates=st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=8), first=st.integers(1, 16))
def test_no_coefficient_is_negative(rates, first):
    fitted = models.fit_usl([first * 2**i for i in range(len(rates))], rates)
    assert all(0 <= value < math.inf for value in fitted.coefficients.values())


def test_karp_flatt_of_known_tables():
    cyclone = published.ladder("seed_cyclone_t04")
    speedups = [rate / cyclone.rates[0] for rate in cyclone.rates]
    found = [models.karp_flatt(s, n) for s, n in zip(speedups[1:], (2, 4), strict=True)]
    assert [round(f, 4) for f in found] == [0.1449, 0.1314]
    fractions = [models.karp_flatt(12 / t, n) for n, t in ((2, 6.5), (4, 3.5), (8, 2.0))]
    assert [round(f, 4) for f in fractions] == [0.0833, 0.0556, 0.0476]
    assert models.karp_flatt(1.0, 1) is None


def test_marginal_efficiency_of_the_guide():
    found = models.marginal_efficiencies([1, 2, 4, 8], [1 / 12, 1 / 6.5, 1 / 3.5, 1 / 2])
    assert [(p, q) for p, q, _ in found] == [(1, 2), (2, 4), (4, 8)]
    assert found[-1][2] == pytest.approx(0.643, abs=5e-4)
    assert models.marginal_efficiencies([4, 8], [10.0, 20.0]) == [(4, 8, pytest.approx(1.0))]


def test_breaks_of_published_tables():
    def breaks(table):
        ladder = published.ladder(table)
        return models.breaks(ladder.sizes, ladder.repeats, ladder.nodes)

    for table in ("cscs_inceptionv3_p2xlarge_synthetic", "cscs_inceptionv3_p2xlarge_real"):
        assert (128, "saturation") in [(b.world_size, b.kind) for b in breaks(table)]
    (cliff,) = breaks("dlperf_pytorch_rn50_fp32_dali_workers8")
    assert cliff.world_size == 8
    (boundary,) = breaks("dlperf_ngcpytorch_bertbase_amp_b64")
    assert (boundary.world_size, boundary.kind) == (16, "node-boundary")
    assert boundary.values["loss"] == pytest.approx(0.241, abs=5e-4)
    for table in ("kempner_a100_resnet50", "nv_txl_large_dgx2h_fp32"):
        assert breaks(table) == []


@pytest.mark.parametrize(
    ("above", "below", "kinds"),
    [
        ([99.9], [100.0], ["saturation"]),
        ([122.0], [100.0], []),  # a true 128 would be no saturation, and no interval excludes it
        ([90.0, 90.2, 89.8], [100.0, 100.1, 99.9], ["falls"]),
        ([100.0, 140.0, 120.0], [100.0, 90.0, 110.0], []),
    ],
)
def test_a_break_is_one_even_at_the_end_of_noise(above, below, kinds):
    assert [break_.kind for break_ in models.breaks([1, 2], [below, above])] == kinds


@given(
    st.lists(st.integers(1, 512), min_size=1, max_size=8, unique=True).map(sorted),
    st.floats(1e-3, 1e3),
)
def test_a_straight_line_has_no_break(sizes, per_rank):
    assert models.breaks(sizes, [[per_rank * p] for p in sizes]) == []


@given(st.integers(1, 6), st.floats(0.5, 0.8))
def test_a_planted_cliff_is_found_where_it_is(index, left):
    sizes = [2**i for i in range(7)]
    rates = [[p * (left if i >= index else 1.0)] for i, p in enumerate(sizes)]
    assert [break_.world_size for break_ in models.breaks(sizes, rates)] == [sizes[index]]
