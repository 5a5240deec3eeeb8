import json
import re
from functools import partial

import commands
import pytest
from data.report_samples import document, provenance, record, strong_tree, write

from lockstep.report.compare.compare_cli import compare

run = partial(commands.run, compare)
# Times of a step whose launches vary by 1 %, and the same 10 % slower.
STEADY = (0.1, 0.101, 0.099, 0.1002, 0.0998)
SLOW = tuple(1.1 * seconds for seconds in STEADY)


@pytest.fixture
def sides(tmp_path):
    def made(b, a=STEADY, **facts):
        return strong_tree(tmp_path / "a", {1: a}), strong_tree(tmp_path / "b", {1: b}, **facts)

    return made


def test_the_json_is_the_published_form(sides):
    done = run(*sides(SLOW), "--json")
    document = json.loads(done.stdout)
    (point,) = document["points"]
    assert done.return_value == 1
    assert "\nslower" in run(*sides(SLOW)).stdout
    assert point["case"] == "test_strong_scaling[workload=mlp-global_batch=64]"
    assert (point["world_size"], point["verdict"]) == (1, "slower")
    assert point["low"] < point["ratio"] < point["high"] < 1
    assert document["level"] == pytest.approx(0.955)  # the rest is for later looks


def test_a_point_that_an_error_of_either_side_touches_is_blocked(sides):
    done = run(*sides((0.11, 0.11), STEADY), "--json")
    assert done.return_value == 1
    (point,) = json.loads(done.stdout)["points"]
    assert (point["verdict"], point["blocked_by"]) == ("blocked", ["duplicate"])
    assert not any(point[key] for key in ("ratio", "low", "a_step_s", "b_step_s", "quantities"))


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
    assert columns == {0, 10}


@pytest.mark.parametrize(("b", "a", "texts"), [
    ((0.1, 0.11, 0.095), (0.1, 0.105, 0.101), ["a point {} faster or ", "A (ms) B (ms)"]),
    ((0.1, 0.11), (0.1, 0.15), ["could have gone undetected", "warns of launches-apart on 1"]),
    (STEADY[:1], STEADY[:1], ["without repeats"]),
])  # fmt: skip
def test_what_cannot_be_judged_names_the_change_it_could_have_shown(sides, b, a, texts):
    trees = sides(b, a)
    done = run(*trees)
    (point,) = json.loads(run(*trees, "--json").stdout)["points"]
    least = point["smallest_change"]
    assert (done.return_value, point["verdict"]) == (0, "not-enough-evidence")
    assert (least is None) == (point["low"] is None) == (len(b) == 1)
    shown = " ".join(done.stdout.split())
    change = least and f"{float(f'{100 * least:.2g}'):g} %"
    assert all(text.format(change) in shown for text in texts)
