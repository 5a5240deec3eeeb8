"""An error of `lockstep check` blocks the verdicts it touches, and comes first on the page."""

import json

import pytest
from commands import run
from planted_errors import PLANTED, STUDIES, WARNED, copied, give, provenance, twins

from lockstep.report.check.checker import check, errors
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.scaling import series_of
from lockstep.report.gate.gates import block, verdicts
from lockstep.report.gate.targets import Targets
from lockstep.report.load.reading import gather
from lockstep.report.page.content_of_page import KINDS, page
from lockstep.report.page.render import html
from lockstep.report.report_cli import report

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
def test_an_error_blocks_each_verdict_it_touches_and_comes_first_on_the_page(
    measured, tmp_path, name
):
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
    shown = page(evaluate(results), 0.7)
    assert plant.rule in {one.partition(":")[0] for one in shown["errors"]}
    titles = [KINDS[study] for study in plant.studies if study in KINDS]
    kinds = {one["kind"] for one in shown["headlines"] if one["title"] in titles}
    assert kinds == {"blocked"}
    assert not any(
        f", {one.label}:" in text and "blocked by check" not in text
        for one in series_of(results.rows)
        if one.row.study in plant.studies
        for text in shown["verdicts"]
    )


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


@pytest.mark.parametrize(
    "name", ["samples of weak scaling counted per rank", "other gradients at two ranks"]
)
def test_what_no_error_touches_is_judged_as_before(measured, tmp_path, name):
    root = copied(measured / "fp32", tmp_path / "set")
    before = {one.where: one for one in judged(gather([root]))}
    PLANTED[name].edit(root)
    after = {one.where: one for one in judged(gather([root]))}
    strong = [where for where in before if where.startswith("strong")]
    assert strong
    assert all(before[where].verdict == after[where].verdict for where in strong)


@pytest.mark.parametrize(
    ("name", "studies", "size"),
    [("another driver in one launch", STUDIES, 2), ("bf16 in one launch", ("strong",), 2),
     ("another torch in one launch of the baseline", STUDIES, 1)],
)  # fmt: skip
def test_a_report_leaves_out_the_launch_in_conflict(measured, tmp_path, name, studies, size):
    def points(path):
        ended = run(report, path, "--json")
        shown = json.loads(ended.stdout)["points"]
        counts = {(one["case"], one["study"], one["world_size"]): one["num_launches"]
                  for one in shown}  # fmt: skip
        return ended.return_value, counts

    root = copied(measured / "fp32", tmp_path / "set")
    _, whole = points(root)
    PLANTED[name].edit(root)
    held = {point for point in whole if point[1] in studies and point[2] == size}
    assert held
    assert points(root) == (1, {point: whole[point] - (point in held) for point in whole})


def test_a_report_of_points_that_are_all_in_conflict_is_refused(measured, tmp_path):
    root = copied(measured / "fp32", tmp_path / "set")
    for repeat, driver in enumerate(("560", "570", "580")):
        provenance(give(driver=driver), 1, 2, repeats=(repeat,))(root)
    with pytest.raises(ValueError, match="differ in driver"):
        run(report, root)


def test_the_page_has_the_error_above_its_verdict_and_links_what_is_counted(measured, tmp_path):
    root = copied(measured / "fp32", tmp_path / "set")
    PLANTED["a utilisation of 26"].edit(root)
    results = gather([root])
    text = html(page(evaluate(results), 0.7))
    assert text.index("above-peak") < text.index('class="verdict"')
    assert '<a href="#check">' in text
    assert 'id="check"' in text
    assert "No warnings" not in text
