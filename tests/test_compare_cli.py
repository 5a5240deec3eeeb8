import json
import re
import subprocess
import sys
from functools import partial

import commands
import pytest
from commands import ROOT, lockstep
from data.report_samples import document, provenance, record, strong_tree, write
from planted import others
from planted_errors import copied, scaled

from lockstep.report.compare.compare_cli import compare
from lockstep.report.compare.comparison import environment
from lockstep.report.load.reading import load
from lockstep.report.words.lines import WIDTH

run = partial(commands.run, compare)
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
    assert document["level"] == pytest.approx(0.955)  # the rest is for later looks


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


def test_markdown_shows_strangers_text_as_it_is_and_leaves_out_names_before(tmp_path):
    hostile = "x <!-- | @octocat **b**"
    for side, step_s in (("a", 0.1), ("b_side", 0.2)):
        facts = {"provenance": provenance(1, hostname="gpu_node") | {"torch": f"{step_s} @octocat"}}
        flags = [f"on gpu_node, {hostile}"]
        case = record("weak", step_s=step_s, factors={}, flags=flags)
        write(tmp_path / side, document("w1-r0", 1, {hostile: case}, **facts))
    done = run(tmp_path / "a", tmp_path / "b_side", "--markdown", "--redact")
    assert not re.search(r"<|@o|\*\*|gpu|(?<!\\)_|<path>", done.stdout)
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in done.stdout.splitlines()}
    assert columns == {0, 8}


@pytest.mark.parametrize(
    ("b", "a", "text"),
    [
        (
            (0.1, 0.11, 0.095),
            (0.1, 0.105, 0.101),
            "a change of {} or more would have been detected",
        ),
        (STEADY[:1], STEADY[:1], "without repeats"),
    ],
)
def test_what_cannot_be_judged_names_the_change_it_could_have_shown(sides, b, a, text):
    trees = sides(b, a)
    done = run(*trees)
    (point,) = json.loads(run(*trees, "--json").stdout)["points"]
    least = point["smallest_change"]
    assert (done.return_value, point["verdict"]) == (0, "not-enough-evidence")
    assert (least is None) == (point["low"] is None) == (len(b) == 1)
    shown = text.format(least and f"{100 * least:.2g} %")
    assert shown in " ".join(done.stdout.split())


def test_the_text_names_what_differs_what_is_missing_and_what_cannot_be_read(tmp_path):
    facts = {"provenance": provenance(driver="575.2", image_sha256="cd" * 32)}
    a = strong_tree(tmp_path / "a", {1: STEADY, 2: STEADY})
    b = strong_tree(tmp_path / "b", {1: SLOW}, **facts)
    (b / "launches" / "w1-r0" / "result.json").write_text("{")
    done = run(a, b)
    texts = ("image_sha256: ab12 in A", "driver: 570.1", "\nverdict", "5 + 4", "only in A: 1 point")
    places = [done.stdout.index(text) for text in texts]
    assert places == sorted(places)
    assert "cdcdcdcdcdcd... in B" in done.stdout
    assert "left out: " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("about", "differing", "equal"), [
    ({"machine_info": [{"node": "ci-1"}, {"node": "ci-2"}]}, ["hosts"], []),
    ({"commit_info": [{"id": "1f0c"}, {"id": "92be"}], "machine_info": [{"node": "ci-1"}] * 2},
     ["project_commit"], ["hosts"]),
    ({"commit_info": [None, "unversioned"]}, [], []),
])  # fmt: skip
def test_others_benchmarks_say_of_what_commit_and_host_they_are(tmp_path, about, differing, equal):
    root = others(tmp_path / "history", **about)
    a, b = (load([root / name]) for name in ("0.json", "1.json"))
    found, same = environment((a.launches, b.launches), (a.rows, b.rows))
    assert (list(found), [name for name in same if name == "hosts"]) == (differing, equal)


def test_the_assembled_command_loads_no_torch_and_ends_with_its_codes(tmp_path):
    a = strong_tree(tmp_path / "a", {1: STEADY})
    b = strong_tree(tmp_path / "b", {1: SLOW})
    other = strong_tree(tmp_path / "c", {2: STEADY})
    done = [lockstep("compare", *pair) for pair in ((a, a), (a, b), (a, other))]
    assert [one.returncode for one in done] == [0, 1, 2]
    assert (done[2].stdout, len(done[2].stderr.strip().splitlines())) == ("", 1)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import lockstep.report.compare.compare_cli as cli\n"
        "assert not {'numpy', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "from lockstep.report.compare.comparison import MUST_AGREE\n"
        "assert tuple(MUST_AGREE) == cli.ALLOWABLE\n"
    )
    assert not subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode
