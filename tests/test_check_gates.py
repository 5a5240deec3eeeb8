"""An error of `lockstep check` blocks the verdicts it touches, and comes first on the page."""

from types import SimpleNamespace

import pytest
from planted_errors import PLANTED, WARNED, copied, twins

from lockstep.campaign import run_cli
from lockstep.report.check.checker import check, errors
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.gate.gates import block, verdicts
from lockstep.report.gate.targets import Targets
from lockstep.report.load.reading import gather
from lockstep.report.page.content_of_page import KINDS, page
from lockstep.report.page.render import html

# Of wide limits: what is really measured meets them, or is too noisy to show it.
TARGETS = Targets.model_validate({
    "schema": 1, "parallel_efficiency": {"2": 1e-6}, "speedup": {"2": [1e-6, 1e6]},
    "communication_share": 1.0, "clean_runs": True,
})  # fmt: skip


def judged(results):
    findings = check(results)
    return block(verdicts(TARGETS, results, findings=findings), results, findings)


def test_a_measured_campaign_has_no_error_and_nothing_blocked(measured):
    for name in ("fp32", "bf16", "batch"):
        results = gather([measured / name])
        # A CPU without bf16 emulates it, which is an error of the campaign that asks for it.
        found = {one.rule for one in errors(check(results))} - {"precision-fell-back"}
        blocking = {rule for one in judged(results) for rule in one.blocked_by}
        assert (found, blocking - {"precision-fell-back"}) == (set(), set())


@pytest.mark.parametrize("name", PLANTED)
def test_an_error_blocks_each_verdict_it_touches(measured, tmp_path, name):
    plant = PLANTED[name]
    root = copied(measured / "fp32", tmp_path / "set")
    plant.edit(root)
    results = gather([root])
    found = judged(results)
    touched = [
        one for one in found
        if one.world_size == 2 and one.target != "communication_share"
        and one.rows[0].study in plant.studies
    ]  # fmt: skip
    assert touched
    assert all(one.verdict == "blocked" and plant.rule in one.blocked_by for one in touched)
    (clean,) = (one for one in found if one.target == "clean_runs")
    assert clean.verdict == "missed"
    actions = [one.action for one in check(results) if one.rule == "mixed-cases"]
    assert all("--replace-launch w2-r2" in action for action in actions)


# One of a case, and one of a launch that cannot be read.
@pytest.mark.parametrize("name", ["a loss that rises", "a launch cut short on disk"])
def test_an_error_comes_first_on_the_page_and_ends_a_run(measured, tmp_path, name, capsys):
    plant = PLANTED[name]
    root = copied(measured / "fp32", tmp_path / "set")
    plant.edit(root)
    shown = page(evaluate(gather([root])), 0.7)
    text = html(shown)
    assert text.index(plant.rule) < text.index('class="verdict"')
    assert all(part in text for part in ('<a href="#check">', 'id="check"'))
    assert plant.rule in {one.partition(":")[0] for one in shown["errors"]}
    titles = [KINDS[study] for study in plant.studies if study in KINDS]
    kinds = {one["kind"] for one in shown["headlines"] if one["title"] in titles}
    assert kinds == {"blocked"}
    ladder = SimpleNamespace(campaign=SimpleNamespace(factors={}), folder=root, missing=list)
    run_cli._show_verdict(ladder)
    assert "No verdict on " in capsys.readouterr().err


@pytest.mark.parametrize("name", WARNED)
def test_what_may_mislead_is_a_warning_that_the_measured_campaign_does_not_have(
    measured, tmp_path, name
):
    rule, edit = WARNED[name]
    root = copied(measured / "fp32", tmp_path / "set")
    before = check(gather([root]))  # a busy machine may have given it some of its own
    edit(root)
    found = check(gather([root]))
    assert rule in {one.rule for one in found if one.level == "warning" and one not in before}
    assert errors(found) == []


def test_identical_work_that_differs_beyond_chance_is_a_warning_with_both_names(measured, tmp_path):
    def found(*factors):
        root = copied(measured / "fp32", tmp_path / str(factors[0]))
        twins(*factors)(root)
        made = [one for one in check(gather([root])) if one.rule == "identical-work"]
        pair = ["test_strong_scaling", "test_weak_scaling"]
        return [one for one in made if [case.partition("[")[0] for case in one.cases] == pair]

    (one,) = found(1.49, 1.5, 1.51)
    assert (one.level, one.world_sizes) == ("warning", (2,))
    assert one.values["slow"].startswith("test_strong_scaling[")
    assert one.values["fast"].startswith("test_weak_scaling[")
    assert one.values["factor"] == pytest.approx(1.5, rel=1e-3)
    assert 1.3 < one.values["low"] < 1.5 < one.values["high"] < 1.7
    assert found(1.04, 1.05, 1.06) == []  # too little to matter
    assert found(0.9, 1.5, 1.9) == []  # chance may do that
