"""The rules of `lockstep check`: each planted defect is named, and clean campaigns are not."""

import json
from dataclasses import fields
from typing import get_type_hints

import pytest
from click.testing import CliRunner
from data.report_samples import document, record, strong_tree, write
from planted import CLEAN, PLANTED, always, cited, measured, table
from planted_errors import PLANTED as ERRORS
from planted_errors import WARNED, copy_launch

from lockstep.core.record import (
    Basis,
    CaseRecord,
    Derived,
    LaunchBlock,
    Provenance,
    RankFacts,
    Training,
    Transport,
)
from lockstep.machine.nvidia import GAUGES
from lockstep.machine.provenance import SLURM_NAMES
from lockstep.machine.telemetry import TOTALS
from lockstep.report.check import recorded_facts
from lockstep.report.check.check_cli import check as command
from lockstep.report.check.checker import blocked_by, check
from lockstep.report.check.curve_rules import super_linear
from lockstep.report.check.evidence import RULES, Evidence
from lockstep.report.compute.scaling import series_of
from lockstep.report.load import imports
from lockstep.report.load.contents import Details
from lockstep.report.load.reading import gather, load
from lockstep.report.load.results import Results, Row


def run(*arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)


def findings(path):
    return json.loads(run(path, "--json").stdout)["findings"]


def rules(path):
    return [one.rule for one in check(gather([path]))]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_named_and_nothing_else(tmp_path, name):
    plant = PLANTED[name]
    folder = plant.make(tmp_path / "set")
    made = findings(folder)
    named = [one for one in made if one["rule"] == plant.rule]
    assert any(plant.where in one["where"] for one in named), made
    assert {one["rule"] for one in made} - {plant.rule, *plant.also} == set(), made


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_campaign_gives_no_finding(tmp_path, name):
    done = run(CLEAN[name](tmp_path / "set"), "--json")
    assert json.loads(done.stdout) == {"findings": []}
    assert done.exit_code == 0


def test_every_rule_is_planted():
    on_measured = {plant.rule for plant in ERRORS.values()} | {rule for rule, _ in WARNED.values()}
    planted = {plant.rule for plant in PLANTED.values()} | on_measured
    assert planted == {rule.name for rule in RULES}, "each rule needs a defect in planted.py"


def fields_of(kind, path):
    """Return the path of each field of a record -> a value of a form that it may have."""
    of_type = get_type_hints(kind)
    return {f"{path}{one.name}": sample(of_type[one.name]) for one in fields(kind)}


def sample(kind):
    """Return numbers for a list of numbers, a text for all that is one value or several texts."""
    text = str(kind)
    return [1.0] if "list[" in text and "list[str]" not in text else "x"


def test_each_recorded_fact_is_compared_or_listed_with_the_rule_or_the_reason():
    known = (
        fields_of(LaunchBlock, "")
        | fields_of(Provenance, "provenance.")
        | fields_of(RankFacts, f"{recorded_facts.RANKS}.")
        | fields_of(Transport, "provenance.transport.")
        | dict.fromkeys((f"provenance.slurm.{name}" for name in SLURM_NAMES), "x")
        | fields_of(CaseRecord, "case.")
        | fields_of(Derived, "case.")
        | fields_of(Training, "case.training.")
        | fields_of(Details, f"{recorded_facts.DETAILS}.")
        | fields_of(Basis, f"{recorded_facts.DETAILS}.basis.")
        | {f"{recorded_facts.TELEMETRY}.{name}": [1.0] for name in (*GAUGES, *TOTALS)}
    )
    parts = {"provenance", recorded_facts.RANKS, "provenance.transport", recorded_facts.DETAILS}
    unsaid = {
        path for path, value in known.items()
        if path not in recorded_facts.LISTED | parts and not recorded_facts.flat(value, path)
    }  # fmt: skip
    assert unsaid == set()


def test_neither_an_order_drawn_anew_nor_a_precision_that_a_test_does_not_record_is_a_finding(
    tmp_path,
):
    factors = {"workload": "mlp", "precision": "bf16"}
    for number in range(3):
        case = record(world_size=2, details={"order_seed": number}, precision=None, factors=factors)
        write(tmp_path, document(f"w2-r{number}", 2, {"strong[64]": case}))
    assert not {"circumstances", "precision-fell-back"} & {*rules(tmp_path)}


def test_true_is_another_value_than_1(tmp_path):
    for number, value in enumerate((True, True, 1)):
        case = record(world_size=2, details={"ddp_settings": {"static_graph": value}})
        write(tmp_path, document(f"w2-r{number}", 2, {"strong[64]": case}))
    assert "circumstances" in rules(tmp_path)


def test_a_falling_throughput_is_a_break_and_no_odd_point(tmp_path):
    # 200 is below 210, and 37 % below the line through 210 and 480.
    text = table({1: 110, 2: 210, 4: 200, 8: 480}, scaling="weak")
    assert rules(cited(tmp_path, text)) == ["break"]


@pytest.mark.parametrize(("rates", "repeat"), [
    # The launch of 385 lies on the curve, that of 230 saturates.
    ({1: 100, 2: 195, 4: 230, 8: 460}, {4: 385}),
    # Saturation at 4 as seen from the launch of 200 at 2, and none from that of 150.
    ({1: 100, 2: 200, 4: 235, 8: 470}, {2: 150}),
])  # fmt: skip
def test_launches_that_disagree_make_no_break_beside_them(tmp_path, rates, repeat):
    tables = (table(rates, scaling="weak"), table(repeat, scaling="weak"))
    text = "\n".join([tables[0].strip(), *tables[1].splitlines()[1:]])
    assert rules(cited(tmp_path, text)) == ["launches-apart"]


TIME = "n,value,metric,unit,model,scaling\n1,12,time,h,{0},{1}\n2,6.5,time,h,{0},{1}\n"
RATE = "n,value,metric,unit,model,scaling\n1,40,throughput,samples/s,{0},{1}\n" \
       "2,80,throughput,samples/s,{0},{1}\n"  # fmt: skip


@pytest.mark.parametrize(("time", "rate", "twins"), [
    (("vgg", ""), ("", "strong"), True),
    (("vgg", ""), ("gpt", ""), False),
    (("", "strong"), ("", "weak"), False),
    # Times of unknown scaling are read as those of fixed work, which weak scaling is not.
    (("", ""), ("", "weak"), False),
])  # fmt: skip
def test_tables_of_one_import_are_one_study_where_nothing_stated_parts_them(
    tmp_path, time, rate, twins
):
    made = rules(cited(tmp_path, TIME.format(*time), RATE.format(*rate)))
    assert ("contradiction" in made) == twins


@pytest.mark.parametrize(("sizes", "rates", "factor", "accused"), [
    # Of 2 launches 5 % above those of the base, one interval of 95 % leaves out 1, three hold it.
    ((1, 2), (0.995, 1.005), 1.05, [2]),
    ((1, 2, 4, 8), (0.995, 1.005), 1.05, []),
    ((1, 2), (0.6, 1.4), 2.28, [2]),  # too far apart for an interval
])  # fmt: skip
def test_an_efficiency_is_held_against_an_interval_for_all_sizes_together(
    sizes, rates, factor, accused
):
    series = series_of(
        Row(f"l{i}", "c", "weak", "w", size, size * rate * (factor if size > 1 else 1))
        for size in sizes
        for i, rate in enumerate(rates)
    )
    assert (series[0].points[1].efficiency_interval is None) == (0.6 in rates)
    found = super_linear.findings(Evidence(Results(), series))
    assert [size for hit in found for size in hit.world_sizes] == accused


def test_a_copied_launch_is_a_finding_with_its_place_and_pooling_it_is_refused(tmp_path):
    folder = measured(tmp_path / "set", 60)
    copy_launch(folder)
    (one,) = findings(folder)
    assert (one["kind"], one["values"]["name"]) == ("read-twice", "w2-r1")
    with pytest.raises(ValueError, match="a copy is not a repeat"):
        load([folder])


def test_cyclone_is_fixed_epochs_and_its_batch_is_too_small(tmp_path):
    path = imports.built_in()["cyclone"]
    imports.write(imports.read([path], 50_000), [path], tmp_path)
    made = check(gather([tmp_path]))
    found = {(one.rule, *one.cases, *one.world_sizes): one.values for one in made}
    view = found["fixed-epochs", "cyclone"]
    assert (view["batches"], view["sizes"]) == ([16, 32, 64], [1, 2, 4])
    assert view["samples"] == [300000, 300000, 299840]
    assert view["steps_s"] == pytest.approx([0.00392, 0.00449, 0.00547], rel=2e-3)
    assert view["kept"] == pytest.approx([0.873, 0.717], abs=5e-4)
    added = found["small-batch", "cyclone", 2, 4]["added_s"]
    assert added == pytest.approx([0.000568, 0.00155], rel=5e-3)


def test_errors_come_first_and_end_with_1_and_warnings_alone_with_0(tmp_path):
    one = run(PLANTED["no single rank"].make(tmp_path / "warned"))
    assert one.stdout.splitlines()[-1] == "0 errors, 1 warning on 1 of 3 points"
    assert one.exit_code == 0
    failed = [{"case": "strong[64]", "reason": "out of memory"}]
    facts = {"complete": False, "failed": failed}
    two = run(strong_tree(tmp_path / "wrong", {2: (0.1,), 4: (0.06,)}, **facts))
    assert two.exit_code == 1
    lines = two.stdout.splitlines()
    heads = [line.split()[0] for line in lines if line[:1].strip()]
    assert heads == sorted(heads[:-1]) + heads[-1:]


def test_a_failed_launch_that_no_campaign_plans_is_to_be_deleted(tmp_path):
    tree = strong_tree(tmp_path, {1: (0.1, 0.101)})
    plan = [{"name": f"w1-r{repeat}", "world_size": 1, "repeat": repeat} for repeat in (0, 1)]
    (tree / "campaign.json").write_text(json.dumps({"schema": 1, "launches": plan}))
    failed = [{"case": "strong[64]", "reason": "died"}]
    write(tree, document("w1-r2", 1, {}, failed=failed))
    (one,) = [one for one in findings(tree) if one["rule"] == "failed-case"]
    assert one["action"].startswith(f"delete the folder {tree / 'launches' / 'w1-r2'}")


@pytest.mark.parametrize("ended", [
    {"failed": [{"case": "mine.py::weak[64]", "reason": "NameError"}]},  # a typo, a refusal
    {},  # the session ended before the case began
])  # fmt: skip
def test_a_case_without_result_blocks_its_own_series_alone(tmp_path, ended):
    facts = {"complete": False, "expected": ["mine.py::weak[64]", "mine.py::strong[64]"], **ended}
    folder = measured(tmp_path, 1, launches=lambda size: 2, facts=always(**facts))
    results = gather([folder])
    wrong = [one for one in check(results) if one.level == "error"]
    assert {one.cases for one in wrong} == {("weak[64]",)}
    assert {one.rule for one in wrong} == {"failed-case" if ended else "unfinished-launch"}
    assert blocked_by(wrong, results.rows) == []
    assert {one.values["by"] for one in wrong} == {"pytest"}
