"""The rules of `lockstep check`: each planted defect is named, and clean campaigns are not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import BOUNDED
from data.report_samples import document, read_or_refused, record, strong_tree, write
from planted import CLEAN, PLANTED, Case, always, cited, measured, ranks, strong, table
from planted_errors import PLANTED as ERRORS
from planted_errors import WARNED

from lockstep import content
from lockstep.report.check.check_cli import check as command
from lockstep.report.check.checker import RULES, check
from lockstep.report.check.evidence import Evidence
from lockstep.report.check.ladders import super_linear
from lockstep.report.check.work import _is_one
from lockstep.report.compute.scaling import series_of
from lockstep.report.load import imports
from lockstep.report.load.reading import gather, load
from lockstep.report.load.results import Results, Row
from lockstep.report.page.content_of_page import page
from lockstep.report.page.twelve_rules import checklist

ROOT = Path(__file__).parents[1]


def run(*arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)


def findings(path):
    return json.loads(run(path, "--json").stdout)["findings"]


def found(path):
    return {(one.rule, one.where): one.message for one in check(gather([path]))}


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


def test_there_are_forty_of_each_and_every_rule_is_planted():
    assert len(PLANTED) >= 40
    assert len(CLEAN) >= 40
    on_measured = {plant.rule for plant in ERRORS.values()} | {rule for rule, _ in WARNED.values()}
    assert {plant.rule for plant in PLANTED.values()} | on_measured == {rule.name for rule in RULES}


def seed(tmp_path, name):
    path = imports.built_in()[name]
    imports.write(imports.read([path], 50_000), [path], tmp_path)
    return found(tmp_path)


def test_a_falling_throughput_is_a_break_and_no_odd_point(tmp_path):
    # 200 is below 210, and 37 % below the line through 210 and 480.
    text = table({1: 110, 2: 210, 4: 200, 8: 480}, scaling="weak")
    assert [rule for rule, _ in found(cited(tmp_path, text))] == ["break"]


@pytest.mark.parametrize(("rates", "repeat"), [
    # The launch of 385 lies on the curve, that of 230 saturates.
    ({1: 100, 2: 195, 4: 230, 8: 460}, {4: 385}),
    # Saturation at 4 as seen from the launch of 200 at 2, and none from that of 150.
    ({1: 100, 2: 200, 4: 235, 8: 470}, {2: 150}),
])  # fmt: skip
def test_launches_that_disagree_make_no_break_beside_them(tmp_path, rates, repeat):
    tables = (table(rates, scaling="weak"), table(repeat, scaling="weak"))
    text = "\n".join([tables[0].strip(), *tables[1].splitlines()[1:]])
    assert [rule for rule, _ in found(cited(tmp_path, text))] == ["launches-apart"]


def test_a_launch_far_from_five_is_flagged_and_no_disagreement(tmp_path):
    slow = Case(step_s=strong, changes=lambda size, repeat: {
        "rank_round_s": [[0.6 + 0.001 * k for k in range(5)]]} if repeat == 4 else {})  # fmt: skip
    made = found(measured(tmp_path, 1, (slow,), sizes=(1,), launches=lambda size: 5))
    assert [rule for rule, _ in made] == ["flagged"]


TIME = "n,value,metric,unit,model,scaling\n1,12,time,h,{0},{1}\n2,6.5,time,h,{0},{1}\n"
RATE = "n,value,metric,unit,model,scaling\n1,40,throughput,samples/s,{0},{1}\n" \
       "2,80,throughput,samples/s,{0},{1}\n"  # fmt: skip


@pytest.mark.parametrize(("time", "rate", "twins"), [
    (("", ""), ("", ""), True),
    (("vgg", ""), ("", "strong"), True),
    (("vgg", ""), ("gpt", ""), False),
    (("", "strong"), ("", "weak"), False),
    # Times of unknown scaling are read as those of fixed work, which weak scaling is not.
    (("", ""), ("", "weak"), False),
])  # fmt: skip
def test_tables_of_one_import_are_one_study_where_nothing_stated_parts_them(
    tmp_path, time, rate, twins
):
    made = found(cited(tmp_path, TIME.format(*time), RATE.format(*rate)))
    assert ("contradiction" in {rule for rule, _ in made}) == twins


def test_tables_of_two_imports_are_no_study(tmp_path):
    cited(tmp_path / "a", TIME.format("", ""))
    folder = cited(tmp_path / "b", "table_id," + RATE.format("", "").replace("\n", "\nr,")[:-2])
    assert check(gather([tmp_path / "a" / "imported", folder])) == []


def test_an_unfinished_launch_is_read_from_its_journal_without_a_warning(tmp_path):
    folder = PLANTED["a result taken away beside its journal"].make(tmp_path / "set")
    journal = folder / "launches" / "w2-r1" / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"expected": [', '"expected": ["late", '))
    rules = {rule for rule, _ in found(folder)}
    assert "unfinished-launch" in rules
    assert "journal-only" not in rules


def test_an_efficiency_is_held_against_an_interval_for_all_sizes_together(tmp_path):
    # Of 2 launches 5 % above those of the base, one interval of 95 % leaves out 1, three hold it.
    def points(*sizes):
        return series_of(
            Row(f"l{i}", "c", "weak", "w", size, size * rate * (1.05 if size > 1 else 1))
            for size in (1, *sizes)
            for i, rate in enumerate((0.995, 1.005))
        )

    assert accused(points(2)) == [2]
    assert accused(points(2, 4, 8)) == []


def accused(series):
    evidence = Evidence(Results())
    vars(evidence)["series"] = series
    return [size for hit in super_linear(evidence) for size in hit.world_sizes]


def test_a_straggler_and_an_early_end_name_their_launches_once(tmp_path):
    flag = "straggler: rank 3 takes 1.30 times as long"
    changes = lambda size, repeat: {"flags": [flag]} if (size, repeat) == (2, 1) else {}  # noqa: E731
    facts = lambda size, repeat: {"complete": repeat == 0}  # noqa: E731
    made = found(measured(tmp_path, 1, (Case(changes=changes),), sizes=(1, 2), facts=facts))
    assert set(made) == {
        ("flagged", "strong[64] at world size 2, launch w2-r1"),
        ("unfinished-launch", "launches w1-r1, w1-r2, w2-r1 and w2-r2"),
    }


def test_a_copied_launch_is_a_finding_with_its_place_and_pooling_it_is_refused(tmp_path):
    folder = PLANTED["a launch folder given twice"].make(tmp_path / "set")
    done = run(folder, "--json")
    (one,) = json.loads(done.stdout)["findings"]
    assert done.exit_code == 1
    assert one["where"].endswith("w2-r0-copy/result.json")
    assert one["message"].startswith("launch w2-r0 is already read from ")
    with pytest.raises(ValueError, match="a copy is no repeat"):
        load([folder])


def test_a_stored_number_that_is_none_is_not_taken_for_right():
    assert not _is_one(float("nan"))


def test_the_guides_throughput_contradicts_its_hours(tmp_path):
    made = seed(tmp_path, "guide")
    message = made["contradiction", "table guide_throughput at world size 2, table guide_time"]
    assert "grows 2.00 times from 1 to 2, but the time says 1.85 times" in message
    message = made["contradiction", "table guide_throughput at world size 4, table guide_time"]
    assert "grows 4.00 times from 1 to 4, but the time says 3.43 times" in message
    assert ("not-measured", "table guide_time") in made
    # 240 / 40 = 6.00 and 12 / 2 = 6.00 agree.
    assert not any(where.startswith("table guide_throughput at world size 8, table")
                   for _, where in made)  # fmt: skip


def test_the_logged_images_of_two_ranks_are_counted_twice(tmp_path):
    made = seed(tmp_path, "hpc_t4")
    assert (
        "is 2 times the samples"
        in made["doubled-world-size", "table hpc_t4_logged at world size 2"]
    )
    assert ("doubled-world-size", "table hpc_t4_logged at world size 1") not in made


def test_cyclone_is_fixed_epochs_and_its_batch_is_too_small(tmp_path):
    made = seed(tmp_path, "cyclone")
    view = made["fixed-epochs", "table cyclone"]
    assert "the global batch is 16, 32 and 64 at world size 1, 2 and 4" in view
    assert "a step takes 3.92, 4.49 and 5.47 ms, so each rank keeps 87.3 % and 71.7 %" in view
    assert "300000, 300000 and 299840 samples were trained" in view
    small = made["small-batch", "table cyclone at world size 2, 4"]
    assert small.startswith("0.568 ms and 1.55 ms are added to a step of 3.92 ms")


def test_what_was_expected_of_the_planned_cluster_is_no_measurement(tmp_path):
    assert list(seed(tmp_path, "hpc_expected")) == [("not-measured", "table hpc_expected")]


def test_every_seed_has_a_source_and_a_place(tmp_path):
    known = imports.built_in()
    assert set(known) == {"guide", "cyclone", "hpc_t4", "hpc_expected"}
    for path in known.values():
        for facts in imports.read([path], 50_000).tables.values():
            assert facts["source"]
            for row in facts["rows"]:
                assert row["details"]["locator"]
                assert row["details"]["year"] in ("2024", "2025")
                assert row["details"]["verified"] == "read"


def test_a_mixed_set_gives_every_difference_and_no_refusal(tmp_path):
    for number, (driver, torch) in enumerate((("1", "a"), ("2", "a"), ("3", "b"))):
        facts = {"provenance": {"driver": driver, "torch": torch}}
        case = record(precision=("fp32", "bf16", "fp32")[number])
        write(tmp_path, document(f"w1-r{number}", 1, {"strong[64]": case}, **facts))
    rules = [one["rule"] for one in findings(tmp_path)]
    assert rules.count("mixed-provenance") == 3
    assert rules.count("mixed-cases") == 1


def test_errors_come_first_and_end_with_1_and_warnings_alone_with_0(tmp_path):
    one = run(PLANTED["no single rank"].make(tmp_path / "warned"))
    assert (one.exit_code, one.stdout.splitlines()[-1]) == (0, "0 errors, 1 warning")
    facts = {"complete": False}
    two = run(strong_tree(tmp_path / "wrong", {2: (0.1,), 4: (0.06,)}, **facts))
    assert two.exit_code == 1
    heads = [line.split()[0] for line in two.stdout.splitlines() if line[:1].strip()]
    assert heads == sorted(heads[:-1]) + heads[-1:]


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match="cut short"):
        run(tmp_path)


def test_the_text_fits_a_terminal_of_100_ascii_columns(tmp_path):
    failed = [{"case": "weak[64]", "reason": "out of memory " * 20}]
    facts = {"complete": False, "failed": failed}
    folder = measured(tmp_path, 1, launches=lambda size: 1, facts=always(**facts))
    text = run(folder).stdout
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 100
    assert "Do: " in text
    assert "failed-case" in text


def test_large_numbers_hold_no_thin_space(tmp_path):
    grown = {"global_batch": lambda n: 16_000 * n, "steps": lambda n: 10 // n}
    text = table({1: 1000.0, 2: 520.0}, "time", "s", scaling="fixed epochs", **grown)
    folder = cited(tmp_path, text)
    assert all(one["message"].isascii() for one in findings(folder))


def test_the_places_of_one_finding_are_counted_on_the_terminal_and_named_in_json(tmp_path):
    cases = {f"loader[{n}]": record("loader", factors={"n": n}) for n in range(9)}
    write(tmp_path, document("w1-r0", 1, cases))
    assert "and 5 more places" in run(tmp_path).stdout
    assert sum(one["rule"] == "no-repeat" for one in findings(tmp_path)) == 9


def test_the_rules_are_listed_with_what_they_look_for():
    lines = run("--rules").stdout.splitlines()
    assert lines[0].split()[:2] == ["constant-work", "error"]
    listed = json.loads(run("--rules", "--json").stdout)["rules"]
    assert [one["rule"] for one in listed] == [rule.name for rule in RULES]
    assert all(one["what"].endswith(".") and one["why"] and one["action"] for one in listed)
    assert len({one["rule"] for one in listed}) == len(listed)


def test_without_results_the_command_says_what_it_wants():
    done = run()
    assert done.exit_code == 2
    assert "give results, or --rules" in done.output


def test_help_has_examples_and_the_exit_codes():
    text = run("--help").stdout
    assert "lockstep check results/laptop" in text
    assert "Exit code: 0" in text


def test_the_page_and_the_check_name_the_same_buckets(tmp_path):
    folder = PLANTED["bucket caps of 50 and 100 MB"].make(tmp_path / "set")
    results = gather([folder])
    shown = json.dumps(page(results, series_of(results.rows), 0.7))
    assert "bucket_cap_mb 50, 100 gave the same buckets at world size 2, 4" in shown
    (one,) = check(results)
    assert one.message.startswith("bucket_cap_mb 50, 100 gave the same buckets")


def test_the_tables_ship_with_the_package():
    seeds = content.ROOT / "reports" / "seeds"
    assert {path.parent for path in imports.built_in().values()} == {seeds}


@pytest.mark.slow
def test_one_wrong_value_anywhere_is_checked_or_refused_by_name(tmp_path):
    case = record("strong", 2, details={"bucket_bytes": [1]}, checks={"precision": "fp32"})
    facts = {"provenance": ranks(2), "failed": [{"case": "z", "reason": "r"}]}
    content = document("w2-r0", 2, {"strong[64]": case}, **facts)
    for results in read_or_refused(tmp_path / "fuzzed.json", content, gather):
        assert check(results) is not None
        assert checklist(results, series_of(results.rows))


@pytest.mark.slow
def test_the_assembled_command_ends_as_its_help_says(tmp_path):
    def lockstep(*arguments):
        code = "import sys; sys.modules['torch'] = None; from lockstep.cli import main; main()"
        command = [sys.executable, "-c", code, *map(str, arguments)]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, **BOUNDED
        )

    assert lockstep("import", "guide", "--to", tmp_path / "guide").returncode == 0
    done = lockstep("check", tmp_path / "guide", "--json")
    assert done.returncode == 1
    keys = {"rule", "level", "kind", "cases", "world_sizes", "launches", "values"}
    texts = {"where", "message", "action"}
    assert all(set(one) == keys | texts for one in json.loads(done.stdout)["findings"])
    assert lockstep("check", CLEAN["two sizes"](tmp_path / "clean")).returncode == 0
    (tmp_path / "x.json").write_text('{"benchmarks": [')
    done = lockstep("check", tmp_path / "x.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert "x.json" in done.stderr
