"""The checklist of twelve rules: what it reads off results that keep them and that do not."""

import math

import numpy as np
import pytest
from data.report_samples import document, record, strong_tree, write
from planted import PLANTED, Case, measured, ranks
from scipy import stats

from lockstep.report.compute.scaling import series_of
from lockstep.report.load import imports
from lockstep.report.load.reading import load
from lockstep.report.page.twelve_rules import anderson_darling, checklist


def listed(*paths):
    results = load(paths)
    return checklist(results, series_of(results.rows))


def states(kept):
    return {one.number: one.state for one in kept}


def test_a_sound_campaign_holds_all_and_its_noise_is_checked(tmp_path):
    peak = {"flop_per_sample": 1e9, "peak_flop_per_s": 1e13}
    folder = measured(tmp_path, 7, (Case(changes=lambda n, r: peak),), sizes=(1, 2, 4))
    kept = listed(folder)
    assert set(states(kept).values()) == {"held"}
    assert kept[4].evidence == "3 of 3 points had a 95 % interval over launches"
    assert "of 9 launches were checked: the Anderson-Darling statistic 0." in kept[5].evidence


def test_two_launches_a_point_are_too_few_to_check_and_have_no_peak(tmp_path):
    found = states(listed(strong_tree(tmp_path)))
    assert {number for number, state in found.items() if state == "not held"} == {6, 11}
    assert found[12] == "does not apply"


def test_a_cited_table_keeps_few(tmp_path):
    path = imports.built_in()["cyclone"]
    imports.write(imports.read([path], 50_000), [path], tmp_path)
    found = states(listed(tmp_path))
    assert {number for number, state in found.items() if state == "held"} == {4, 12}
    assert {number for number, state in found.items() if state == "not held"} == {1, 7, 9}


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("a launch that never ran", 2, "1 gap without a reason"),
        ("one launch at 4", 7, "2 of 3 ratios"),
        ("nothing between 2 and 8", 12, "connects 2 and 8 ranks"),
    ],
)
def test_what_is_missing_is_named(tmp_path, name, number, words):
    kept = listed(PLANTED[name].make(tmp_path / "set"))[number - 1]
    assert kept.state == "not held"
    assert words in kept.evidence


def test_heavy_tails_are_no_normal_noise(tmp_path):
    draw = np.random.default_rng(3)
    for repeat in range(40):
        step_s = 0.1 * math.exp(0.02 * draw.standard_t(1.2))
        own = {"provenance": ranks(1), "repeat": repeat}
        write(tmp_path, document(f"w1-r{repeat}", 1, {"a": record(step_s=step_s)}, **own))
    kept = listed(tmp_path)[5]
    assert kept.state == "not held"
    assert "is above its critical value 0.752 at 5 %" in kept.evidence


@pytest.mark.filterwarnings("ignore:As of SciPy:FutureWarning")
@pytest.mark.parametrize("count", [8, 100])
def test_the_statistic_is_scipys_with_stephens_factor(count):
    values = list(np.random.default_rng(count).standard_normal(count))
    expected = stats.anderson(values).statistic * (1 + 0.75 / count + 2.25 / count**2)
    assert anderson_darling(values) == pytest.approx(expected)
