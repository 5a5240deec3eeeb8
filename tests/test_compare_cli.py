import json
import subprocess
import sys
from functools import partial

import commands
import pytest
from commands import ROOT, lockstep
from data.report_samples import document, provenance, record, strong_tree, write
from planted_errors import copied, scaled

from lockstep.report.compare.compare_cli import compare
from lockstep.report.words.lines import WIDTH

run = partial(commands.run, compare)
VERDICTS = {"faster", "slower", "same", "not-enough-evidence", "blocked"}
# Times of a step whose launches vary by 1 %, and the same 10 % slower.
STEADY = (0.1, 0.101, 0.099, 0.1002, 0.0998)
SLOW = tuple(1.1 * seconds for seconds in STEADY)


@pytest.fixture
def sides(tmp_path):
    def made(b, a=STEADY, **facts):
        return strong_tree(tmp_path / "a", {1: a}), strong_tree(tmp_path / "b", {1: b}, **facts)

    return made


@pytest.mark.parametrize(
    ("b", "verdict", "code"), [(SLOW, "slower", 1), (STEADY, "same", 0), (STEADY[:1], "not", 0)]
)
def test_the_exit_code_says_whether_something_is_slower(sides, b, verdict, code):
    done = run(*sides(b))
    assert done.return_value == code
    assert f"\n{verdict}" in done.stdout


def test_the_points_are_printed_with_what_a_ratio_means(sides):
    out = run(*sides(SLOW)).stdout
    assert "ratio: rate of B / rate of A; above 1, B is faster" in out
    (line,) = [line for line in out.splitlines() if line.startswith("slower")]
    assert line.split()[:5] == ["slower", "1", "5", "+", "5"]
    assert line.split()[5] == "0.909"
    assert line.endswith("strong mlp, global_batch=64")


def test_what_differs_around_the_numbers_comes_first(sides):
    out = run(*sides(SLOW, provenance=provenance(driver="575.2", image_sha256="cd" * 32))).stdout
    at = [out.index(text) for text in ("image_sha256: ab12 in A", "driver: 570.1", "verdict")]
    assert at == sorted(at)
    assert "cdcdcdcdcdcd... in B" in out


def test_every_line_fits_a_terminal_that_knows_only_ascii(sides):
    flags = ["oversubscribed: " + "a very long reason " * 12]
    a, b = sides(STEADY)
    for tree in (a, b):
        for repeat in range(2):
            case = record("weak", flags=flags, factors={"workload": "mlp", "options": "x=1," * 40})
            write(tree, document(f"w1-x{repeat}", 1, {"weak[64]": case}))
    for options in ((), ("--markdown",)):
        assert run(a, b, *options).stdout.isascii()
    assert max(map(len, run(a, b).stdout.splitlines())) <= WIDTH


def test_the_json_is_the_published_form(sides):
    done = run(*sides(SLOW), "--json")
    document = json.loads(done.stdout)
    (point,) = document["points"]
    assert done.return_value == 1
    assert point["case"] == "test_strong_scaling[workload=mlp-global_batch=64]"
    assert (point["world_size"], point["verdict"]) == (1, "slower")
    assert point["low"] < point["ratio"] < point["high"] < 1
    assert document["level"] == pytest.approx(0.95)


def test_without_repeats_the_json_has_no_interval_and_the_text_says_what_to_do(sides):
    trees = sides(STEADY[:1], STEADY[:1])
    (point,) = json.loads(run(*trees, "--json").stdout)["points"]
    assert (point["low"], point["high"]) == (None, None)
    assert point["verdict"] == "not-enough-evidence"
    assert "measure five launches a side" in run(*trees).stdout


def test_a_point_that_an_error_of_either_side_touches_is_blocked(sides):
    done = run(*sides((0.11, 0.11), STEADY), "--json")
    assert done.return_value == 1
    (point,) = json.loads(done.stdout)["points"]
    assert (point["verdict"], point["blocked_by"]) == ("blocked", ["duplicate"])
    assert (point["ratio"], point["low"], point["quantities"]) == (None, None, {})


def test_an_error_at_one_size_blocks_the_points_of_its_cases_alone(measured, tmp_path):
    wrong = copied(measured / "fp32", tmp_path / "wrong")
    scaled(1000.0, 2, (0, 1, 2))(wrong)
    done = run(measured / "fp32", wrong, "--json")
    points = json.loads(done.stdout)["points"]
    assert done.return_value == 1
    assert {one["case"].partition("[")[0] for one in points if one["blocked_by"] == ["unit"]} == {
        "test_strong_scaling"
    }
    assert not {"slower", "faster"} & {one["verdict"] for one in points}


def test_what_stands_beside_the_speed_says_that_it_is_not_corrected(tmp_path):
    for side, share in (("a", 0.8), ("b", 0.7)):
        for repeat in range(2):
            details = {"validation_accuracy": share + 0.01 * repeat}
            case = record(step_s=0.1 + 0.001 * repeat, details=details)
            write(tmp_path / side, document(f"w1-r{repeat}", 1, {"case": case}))
    out = run(tmp_path / "a", tmp_path / "b").stdout
    assert "none is corrected for the number of points" in out
    assert "none is corrected" not in run(*[strong_tree(tmp_path / "c")] * 2).stdout


def test_the_launches_that_would_settle_it_are_named(sides):
    out = run(*sides((0.1, 0.11, 0.095), (0.1, 0.105, 0.101))).stdout
    assert "to find a difference of 3 % nine times of ten takes" in " ".join(out.split())


def test_markdown_is_a_table(sides):
    lines = run(*sides(SLOW), "--markdown").stdout.splitlines()
    head = lines.index("| verdict | ranks | launches | ratio | interval | case |")
    assert lines[head + 1] == "| --- | --- | --- | --- | --- | --- |"
    assert lines[head + 2].startswith("| slower | 1 | 5 + 5 | 0.909 |")


def test_a_wider_margin_makes_more_the_same(sides):
    trees = sides(tuple(1.04 * seconds for seconds in STEADY))
    verdicts = [
        json.loads(run(*trees, "--json", "--margin", margin).stdout)["points"][0]["verdict"]
        for margin in (0.01, 0.1)
    ]
    assert verdicts == ["slower", "same"]


def test_points_of_one_side_alone_are_named(tmp_path):
    a = strong_tree(tmp_path / "a", {1: STEADY, 2: STEADY})
    b = strong_tree(tmp_path / "b", {1: STEADY})
    assert "only in A: 1 point: test_strong_scaling" in run(a, b).stdout


def test_a_launch_that_cannot_be_read_is_named(sides):
    a, b = sides(STEADY)
    (b / "launches" / "w1-r0" / "result.json").write_text("{")
    done = run(a, b)
    assert "left out: " in done.stderr
    assert "5 + 4" in done.stdout


@pytest.mark.parametrize(
    "arguments", [("--margin", "0"), ("--margin", "nan"), ("--markdown", "--json")]
)
def test_bad_options_are_refused_in_one_sentence(sides, arguments):
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        run(*sides(STEADY), *arguments)


def test_what_may_differ_is_told_by_name(tmp_path):
    for side, precision in (("a", "fp32"), ("b", "bf16")):
        write(tmp_path / side, document("w1-r0", 1, {"case": record(precision=precision)}))
    with pytest.raises(ValueError, match="pass --allow precision"):
        run(tmp_path / "a", tmp_path / "b")
    assert run(tmp_path / "a", tmp_path / "b", "--allow", "precision").return_value == 0


def test_help_has_examples():
    assert "lockstep compare results/before" in run("--help").stdout


@pytest.mark.slow
def test_the_assembled_command_ends_with_its_codes(tmp_path):
    a = strong_tree(tmp_path / "a", {1: STEADY})
    b = strong_tree(tmp_path / "b", {1: SLOW})
    other = strong_tree(tmp_path / "c", {2: STEADY})
    done = [lockstep("compare", *pair).returncode for pair in ((a, a), (a, b), (a, other))]
    assert done == [0, 1, 2]
    refused = lockstep("compare", a, other)
    assert refused.stdout == ""
    assert refused.stderr.startswith("Error: A and B have no point in common")
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_help_loads_nothing_heavy_and_comparing_no_torch(tmp_path):
    a, b = strong_tree(tmp_path / "a"), strong_tree(tmp_path / "b")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import lockstep.report.compare.compare_cli\n"
        "assert not {'numpy', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "from lockstep.report.compare.compare_cli import compare\n"
        f"compare([{str(a)!r}, {str(b)!r}], standalone_mode=False)\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
