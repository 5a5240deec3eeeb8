import json
import subprocess
import sys
from functools import partial

import commands
import pytest
from commands import ROOT, lockstep
from data.report_samples import strong_tree

from lockstep.report.gate.gate_cli import gate
from lockstep.report.words.lines import WIDTH
from lockstep.vocabulary.flags import flag
from lockstep.vocabulary.record import KEY

run = partial(commands.run, gate)
LADDER = "schema = 1\nstrong_efficiency = {2 = 0.75}\n"


@pytest.fixture
def file(tmp_path):
    def written(text, name="t.toml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return written


@pytest.fixture
def tree(tmp_path):
    # Efficiency 0.8, launches without spread.
    return strong_tree(tmp_path / "results")


@pytest.mark.parametrize(("least", "code", "verdict"), [(0.75, 0, "met"), (0.85, 1, "missed")])
def test_the_exit_code_is_1_where_a_target_is_not_met(tree, file, least, code, verdict):
    done = run(tree, "--targets", file(f"schema = 1\nstrong_efficiency = {{2 = {least}}}"))
    assert done.return_value == code
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{verdict} ")]
    assert f">= {100 * least:.1f} % wanted: 80.0 % (80.0 % to 80.0 %)" in line
    end = "missed: strong_efficiency at 2" if code else "all met: 1 verdict"
    assert done.stdout.rstrip().endswith(end)


def test_clean_runs_want_no_problem(tree, file):
    assert (
        "no problem wanted: 0 problems"
        in run(tree, "--targets", file("schema = 1\nclean_runs = true\n")).stdout
    )


def test_what_is_not_shown_fails_the_gate_and_is_named(tree, file):
    done = run(tree, "--targets", file(LADDER + "validation_accuracy = 0.8\n"))
    assert done.return_value == 1
    assert done.stdout.rstrip().endswith("not-shown: validation_accuracy")
    assert "no result holds the share of the validation set" in " ".join(done.stdout.split())


def test_the_json_holds_every_verdict_with_its_interval_and_target(tree, file):
    path = tree / "launches" / "w2-r0" / "result.json"
    measured = json.loads(path.read_text())
    measured["benchmarks"][0]["extra_info"][KEY]["flags"] = [flag("git-dirty").to_dict()]
    path.write_text(json.dumps(measured))
    done = run(tree, "--targets", file(LADDER + "mfu = 0.5\n"), "--json")
    found = json.loads(done.stdout)
    assert (found["met"], done.return_value) == (False, 1)
    first, second = found["verdicts"]
    assert (first["target"], first["verdict"], first["world_size"]) == (
        "strong_efficiency at 2", "met", 2,
    )  # fmt: skip
    assert [first[k] for k in ("value", "low", "high", "least")] == pytest.approx(
        [0.8, 0.8, 0.8, 0.75]
    )
    assert [one["kind"] for one in first["flags"]] == ["git-dirty"]
    assert (second["verdict"], second["value"], second["low"]) == ("not-shown", None, None)


def test_a_gain_over_a_base(tree, tmp_path, file):
    slower = strong_tree(tmp_path / "base", {1: (0.15, 0.151), 2: (0.1, 0.101)})
    targets = file("schema = 1\nthroughput_gain = 0.2\n")
    assert run(tree, "--targets", targets, "--against", slower).return_value == 0
    assert run(slower, "--targets", targets, "--against", tree).return_value == 1


def test_the_built_in_targets_are_judged_and_every_line_fits(tree):
    done = run(tree, "--targets", "proposal")
    assert done.return_value == 1
    assert "strong_efficiency at 8" in done.stdout
    assert done.stdout.isascii()
    assert max(map(len, done.stdout.splitlines())) <= WIDTH


def test_a_launch_that_cannot_be_read_is_named(tree, file):
    (tree / "launches" / "w1-r0" / "result.json").write_text("{")
    assert "unreadable-launch" in run(tree, "--targets", file(LADDER)).stderr


def test_help_has_examples():
    assert "lockstep gate results/node --targets" in run("--help").stdout


def test_a_missing_targets_file_names_the_built_in_one(tree):
    with pytest.raises(ValueError, match=r"none\.toml: No such file.*built-in one: proposal"):
        run(tree, "--targets", "none.toml")


@pytest.mark.slow
def test_the_assembled_command_ends_with_its_codes(tree, file):
    met, missed = file(LADDER), file("schema = 1\nnum_nodes = 2\n", "more.toml")
    wrong = file("schema = 1\nmfu = 50\n", "wrong.toml")
    done = [lockstep("gate", tree, "--targets", path) for path in (met, missed, wrong)]
    assert [one.returncode for one in done] == [0, 1, 2]
    assert done[2].stderr.startswith("Error: ")
    assert len(done[2].stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_help_loads_nothing_heavy_and_gating_no_torch(tree, file):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import lockstep.report.gate.gate_cli\n"
        "assert not {'numpy', 'scipy', 'matplotlib', 'pydantic'} & set(sys.modules)\n"
        f"lockstep.report.gate.gate_cli.gate([{str(tree)!r}, '--targets', {str(file(LADDER))!r}],"
        " standalone_mode=False)\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
