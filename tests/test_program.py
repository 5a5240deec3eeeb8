"""Any program as a study: what it is told, what is read of it, and what a failed run leaves.

The programs are shell scripts whose metric is known: 100 a rank, or the threads that they are told.
"""

import contextlib
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import commands
import pytest
from launched import environ, until

from lockstep.campaign import command as table
from lockstep.campaign import floor, run_cli
from lockstep.campaign import program as programs
from lockstep.campaign.campaign import Campaign, load, plan
from lockstep.campaign.command import Command
from lockstep.campaign.ladder import Ladder
from lockstep.core import journal as journals
from lockstep.core.processes import hostname
from lockstep.core.record import KEY
from lockstep.report.compute.alternatives import factor_ladders
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import gather
from lockstep.report.page.by_study import programs_panels

ROOT = Path(__file__).parents[1]
PATIENCE_S = 120
HEAD = """
schema = 1
name = "{name}"
studies = ["command"]
world_sizes = [{sizes}]
repeats = {repeats}
rounds = 2
warmup_rounds = 0
{keys}
[command]
launcher = "alone"
"""
RATE = """
[[command.metrics]]
name = "rate"
unit = "items/s"
regex = "rate ([0-9.]+)"
primary = true
"""
# Each run differs by a thousandth, so that there is an interval.
HUNDRED = "line = 'echo rate $((100 * {ranks})).$((RANDOM % 100))'\n"


@pytest.fixture
def written(tmp_path):
    def write(text, *, name="test", sizes="1, 2", repeats=1, keys=""):
        path = tmp_path / f"{name}.toml"
        path.write_text(HEAD.format(name=name, sizes=sizes, repeats=repeats, keys=keys) + text)
        return path

    return write


@pytest.fixture
def drive(written, tmp_path, monkeypatch):
    """Measure the launch of a campaign in this process; return its exit code and its document."""
    monkeypatch.setattr(programs.signal, "signal", lambda *_: None)

    def drive(text):
        rungs = Ladder(load(str(written(text, sizes="1"))), tmp_path / "results")
        (launch,) = plan(rungs.campaign)
        with pytest.raises(SystemExit) as ended:
            programs.main(rungs.command(launch)[3:])
        return ended.value.code, journals.rebuild(rungs.results.journal(launch.name))

    return drive


def lockstep(folder, *arguments):
    return commands.lockstep(*arguments, cwd=folder, env=environ(ROOT), timeout=PATIENCE_S)


def result(folder, launch="w1-r0"):
    return json.loads((folder / "launches" / launch / "result.json").read_text())


@pytest.mark.parametrize(
    ("line", "filled"),
    [
        ("echo ${HOME} {{ranks}} $((3 * {ranks}))", "echo ${HOME} {ranks} $((3 * 2))"),
        ("awk '{print $1}' --flag={word}", "awk '{print $1}' --flag='two words'"),
    ],
)
def test_a_line_gets_its_values_and_keeps_the_shells_braces(line, filled):
    assert table.fill(line, {"ranks": 2, "size": 8, "word": "two words"}) == filled


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"line": "a {thread}"}, "thread"),
        ({"line": "a", "factors": {"size": [1]}}, "does not use the factor 'size'"),
        ({"metrics": [{"name": "m", "unit": "s", "regex": "no group"}]}, "has no group"),
        ({"metrics": [{"name": "m", "unit": "K", "regex": "(.)", "primary": True}]}, "no speed-up"),
        ({"line": "a {threads}", "factors": {"threads": 4}}, r"factors\.threads"),
    ],
)
def test_a_table_that_could_not_be_measured_is_refused(changes, said):
    factors = changes.pop("factors", {})
    given = {"schema": 1, "name": "x", "studies": ["command"], "world_sizes": [1]}
    with pytest.raises(ValueError, match=said):
        Campaign.model_validate(given | {"factors": factors, "command": {"line": "true"} | changes})


def test_the_hosts_of_ranks_are_read_beside_what_srun_adds(tmp_path, monkeypatch):
    srun = tmp_path / "srun"
    srun.write_text(
        '#!/bin/sh\necho welcome\nfor rank in 0 1; do "$@" | sed s/^/$rank:\\ /; done\n'
    )
    srun.chmod(0o755)
    started = programs.start(Command(line="solve"), 2, 2, [str(srun)], [])
    assert started.hosts == (hostname(),) * 2


@pytest.mark.slow
def test_a_program_goes_through_run_report_and_gate(written, tmp_path):
    path = written(HUNDRED + 'sanity = "^rate"\n' + RATE, name="a", repeats=3)
    ended = lockstep(tmp_path, "run", path)
    assert ended.returncode == 0, ended.stderr
    (series,) = series_of(gather([tmp_path / "results" / "a"]).rows)
    assert [point.rate for point in series.points] == pytest.approx([100, 200], rel=0.01)
    assert series.points[1].parallel_efficiency == pytest.approx(1, abs=0.01)
    assert series.points[1].efficiency_interval is not None
    (entry,) = result(tmp_path / "results" / "a", "w2-r0")["benchmarks"]
    facts = entry["extra_info"][KEY]["details"]["command"]
    assert facts["metrics"]["wall"]["values"] != facts["metrics"]["rate"]["values"]
    assert facts["launcher"] == "alone"
    reported = lockstep(tmp_path, "report", "results/a")
    assert reported.returncode == 0, reported.stderr
    assert "items/s" in reported.stdout
    (tmp_path / "t.toml").write_text("schema = 1\n[parallel_efficiency]\n2 = 0.9\n")
    assert lockstep(tmp_path, "check", "results/a", "--targets", "t.toml").returncode == 0
    (tmp_path / "t.toml").write_text("schema = 1\n[speedup]\n2 = [2.5, 3.0]\n")
    assert lockstep(tmp_path, "check", "results/a", "--targets", "t.toml").returncode == 1


@pytest.mark.slow
def test_threads_are_told_to_the_program_and_have_a_ladder_of_their_own(written, tmp_path):
    line = "line = 'echo rate $((OMP_NUM_THREADS + MKL_NUM_THREADS)).$((RANDOM % 10))'\n"
    text = line + RATE + "[factors]\nthreads = [1, 2, 4]\n"
    assert lockstep(tmp_path, "run", written(text, sizes="1", repeats=2)).returncode == 0
    (ladder,) = factor_ladders(series_of(gather([tmp_path / "results" / "test"]).rows))
    assert ladder.factor == "threads"
    assert [*map(ladder.value, ladder.points)] == [1, 2, 4]
    assert ladder.points[-1].speedup == pytest.approx(4, rel=0.5)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("line = 'echo rate 1; exit 3'\n" + RATE, {"kind": "exit-code", "code": 3}),
        ("line = 'echo rat 1'\n" + RATE, {"kind": "missing-metric", "lack": "no-match"}),
        ("line = 'echo rate 1'\nsanity = 'done'\n" + RATE, {"kind": "sanity", "pattern": "done"}),
        ("line = 'sleep 60'\ntimeout = 0.3\n", {"kind": "timeout", "limit_s": 0.3}),
        (
            "line = 'true'\n[[command.metrics]]\nname = 'm'\nunit = 'K'\njson = 'a.0'\n"
            "file = '{out}/m.json'\n",
            {"kind": "missing-metric", "lack": "no-file"},
        ),
    ],
)
def test_a_run_that_does_not_count_is_a_failed_case_with_its_kind(drive, text, failure):
    code, document = drive(text)
    (failed,) = document[KEY]["failed"]
    assert (code, document["benchmarks"]) == (1, [])
    assert failed["failure"]["run"] == 1
    assert failure.items() <= failed["failure"].items()


def test_a_metric_is_the_last_match_or_a_path_into_the_last_json(tmp_path):
    output = 'rate 1\nrate 2e3\n{"a": [{"b": 7}]}\nbye\n'
    metrics = [
        {"name": "rate", "unit": "x/s", "regex": "rate ([0-9e]+)"},
        {"name": "b", "unit": "K", "json": "a.0.b"},
    ]
    command = Command.model_validate({"line": "true", "metrics": metrics})
    assert programs.values(command, programs.Run(1.0, 0.0, output), {}) == {
        "rate": 2000.0,
        "b": 7.0,
    }


def test_a_curve_has_every_match_of_its_regex(tmp_path):
    metric = {"name": "loss", "unit": "nats", "regex": "loss (\\S+)", "curve": True}
    command = Command.model_validate({"line": "true", "metrics": [metric]})

    def curve(*losses):
        output = "".join(f"loss {loss}\n" for loss in losses)
        return programs.curves(command, programs.Run(1.0, 0.0, output), {})["loss"]

    assert curve(3, 2.5, 1e-3) == [3.0, 2.5, 0.001]
    assert curve(*range(programs.MAX_CURVE + 1)) == list(range(programs.MAX_CURVE))
    with pytest.raises(programs.RunError, match="not a finite number"):
        curve(1, "nan")


@pytest.mark.slow
def test_a_sweep_over_a_training_script_is_one_table_and_one_figure(written, tmp_path):
    metric = '[[command.metrics]]\nname = "loss"\nunit = "nats"\nbetter = "lower"\n'
    metric += "regex = 'loss ([0-9.]+)'\ncurve = true\n[factors]\nlr = [1, 2, 3]\n"
    line = "line = 'for i in 3 2 1; do echo loss $((i * {lr})).$((RANDOM % 9)); done'\n"
    ended = lockstep(tmp_path, "run", written(line + metric, sizes="1", repeats=2))
    assert ended.returncode == 0, ended.stderr
    series = series_of(gather([tmp_path / "results" / "test"]).rows)
    (made,) = programs_panels(series)
    _, losses = made["tables"]
    assert losses["caption"] == "loss (nats), the lowest first"
    assert [row[0].rpartition(", ")[2] for row in losses["rows"]] == ["lr=1", "lr=2", "lr=3"]
    (figure,) = made["figures"]
    assert [curve["x"] for curve in figure["series"]] == [[1, 2, 3]] * 3
    assert all(curve["y"] == sorted(curve["y"], reverse=True) for curve in figure["series"])


@pytest.mark.slow
@pytest.mark.parametrize(("wait", "is_late"), [("", False), ("; sleep 60", True)])
def test_nothing_that_a_run_started_outlives_it(tmp_path, wait, is_late):
    child = f"(trap '' TERM; echo $BASHPID >{tmp_path}/child; while :; do sleep 1; done) &"
    line = f"{child} until [ -s {tmp_path}/child ]; do sleep 0.05; done{wait}"
    with pytest.raises(programs.RunError) if is_late else contextlib.nullcontext():
        limit_s = 3.0 if is_late else PATIENCE_S
        programs.run(["bash", "-c", line], tmp_path, ".", os.environ, limit_s)
    child = Path("/proc", (tmp_path / "child").read_text().strip())
    until(lambda: not child.exists(), "the end of what it started", 10)


def test_the_digest_of_a_program_is_of_its_scripts_and_not_of_its_data(tmp_path):
    line = "./solve mine.py in.dat >out.sh | tee log.sh"
    command = Command(line=line, workdir=str(tmp_path))
    changes = {}
    for name in ("solve", "mine.py", "in.dat", "out.sh", "log.sh"):
        before = programs.source_sha256(command)
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o755 if name == "solve" else 0o644)
        changes[name] = programs.source_sha256(command) != before
    assert [name for name, is_other in changes.items() if is_other] == ["solve", "mine.py"]


@pytest.mark.slow
def test_a_ladder_ends_after_the_size_that_misses_the_floor(written, tmp_path):
    line = "line = 'echo rate $((100 + 10 * {ranks})).$((RANDOM % 10))'\n"
    path = written(line + RATE, sizes="1, 2, 4", repeats=2, keys="until_efficiency = 0.7")
    assert [launch.world_size for launch in plan(load(str(path)))] == [1, 1, 2, 2, 4, 4]
    for _ in range(2):  # and does not go on when it is asked again
        ended = lockstep(tmp_path, "run", path)
        assert ended.returncode == 0, ended.stderr
    folder = tmp_path / "results" / "test"
    assert {path.name for path in (folder / "launches").iterdir()} == {
        *("w1-r0", "w1-r1", "w2-r0", "w2-r1")
    }
    missed = floor.find_missed(folder / "launches", 4, 0.7)
    assert missed is not None
    assert missed.startswith("world size 2 reaches 5")
    claimed = json.loads((folder / "campaign.json").read_text())
    assert claimed["left_out"] == [{"world_size": 4, "num_gpus": None, "kind": "below_floor"}]


def test_a_stage_that_waits_for_a_good_end_does_not_follow_time_that_is_up(written, tmp_path):
    more = {"name": "publish", "command": "touch $LOCKSTEP_RESULTS/done", "when": "after"}
    asked = {"stage": [more | {"folder": "/", "dependency": "afterok"}]}
    path = written("line = 'echo rate 1'\n" + RATE, sizes="1")
    run_cli.measure(load(str(path), jobs=asked), tmp_path, limit_s=-1.0)
    assert not (tmp_path / "test" / "done").exists()


def test_what_has_ended_is_not_run_again_and_an_edited_program_not_pooled(drive, tmp_path, capsys):
    script = tmp_path / "mine.sh"
    script.write_text("echo $1 >>runs; echo rate 1")
    text = "line = 'bash mine.sh {size}'\n" + RATE + "[factors]\nsize = [1, 2]\n"
    assert drive(text)[0] == 0
    (journal,) = tmp_path.glob("results/launches/*/journal.jsonl")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:4]))  # a case has ended, and the other has begun
    code, document = drive(text)
    assert (code, len(document["benchmarks"])) == (0, 2)
    assert len((tmp_path / "runs").read_text().split()) == 4 + 2
    journal.write_text("".join(lines[:4]))
    script.write_text("echo rate 2")
    assert drive(text)[0] == programs.EXIT_USAGE
    assert "changed; undo the change" in capsys.readouterr().err


# Campaigns of the suite's own studies lie beside those of programs.
EXAMPLES = sorted((ROOT / "examples" / "commands").glob("*.toml"))
PROGRAMS = [path for path in EXAMPLES if "[command]" in path.read_text()]

# What each example is told for a run of seconds.
SMALL = {
    "shell": ["--set", "numbers=200", "--world-sizes", "1,2"],
    "mpi": ["--set", "terms=1000", "--world-sizes", "1,2"],
    "sweep": ["--set", "lr=0.1"],
    **{name: ["--set", "threads=1", "--set", "rows=500"] for name in ("xgboost", "lightgbm")},
}
# As Open MPI starts ranks and tells each of them its number.
MPIRUN = """#!/bin/bash
shift
ranks=$1
shift
for ((rank = 0; rank < ranks; rank++)); do
    OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$ranks "$@" &
done
wait
"""


@pytest.mark.slow
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_of_a_program_runs(path, tmp_path, monkeypatch):
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text(MPIRUN)
    mpirun.chmod(0o755)
    own = [str(mpirun.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(own))
    usual = ["--repeats", "1", "--rounds", "1", "--name", "example"]
    ended = lockstep(tmp_path, "run", path, *usual, *SMALL[path.stem])
    document = result(tmp_path / "results" / "example")
    if path.stem in ("xgboost", "lightgbm") and find_spec(path.stem) is None:
        (failed,) = document[KEY]["failed"]
        assert failed["failure"]["kind"] == "exit-code"
        assert "checkout[trees]" in failed["failure"]["said"]
        return
    assert ended.returncode == 0, ended.stderr
    (entry,) = document["benchmarks"]
    assert entry["extra_info"][KEY]["details"]["command"]["launcher"] == (
        "mpirun" if path.stem == "mpi" else "alone"
    )
