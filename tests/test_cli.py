"""The command `lockstep`, started as a user starts it: help, plans, and how bad input ends."""

import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import BOUNDED

from lockstep.campaign.run_cli import _with_tests
from lockstep.core.record import failure_gist

ROOT = Path(__file__).parents[1]

BAD_TOML = {
    "key.toml": 'schema = 1\nname = "x"\nstudies = ["weak"]\nworld_size = [1]\nsize = "smoke"\n',
}
# what is typed after `lockstep` -> what the one sentence says
REFUSED = {
    "run key.toml": "key.toml: unknown key 'world_size'; did you mean 'world_sizes'?",
    "run smoke --world-sizes 1,3": "global_batch=64 does not divide by world_size=3; ",
    "run --studies nosuch": "Error: --studies: studies.0 = 'nosuch': input should be 'strong', ",
    "run smoke --repeats 0": "Error: --repeats: repeats = 0: input should be greater than or ",
    "run --frobnicate": "No such option '--frobnicate'",
    "explain train.py": "call lockstep.explain(step, model=ddp, batches=loader) in it",
    "reprot": "No such command 'reprot'; did you mean 'report'?",
    "run smoke --set bucket=1": "no factor 'bucket'; choose from workload, precision,",
    "run --set num_workers=0 --set prefetch_factor=4": "no case of the study loader is left",
    "run --tests . --set precision=bf16": "--set is about studies",
}


def lockstep(arguments, cwd):
    """Run the command as it is typed, in a folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", "lockstep", *shlex.split(arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        **BOUNDED,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("cli")
    for name, text in BAD_TOML.items():
        (made / name).write_text(text)
    return made


@pytest.fixture(scope="module")
def refusals(folder):
    """Each bad line's end, the processes side by side."""
    with ThreadPoolExecutor(4) as pool:
        ended = pool.map(lambda line: lockstep(line, folder), REFUSED)
        return dict(zip(REFUSED, ended, strict=True))


def assert_one_sentence(ended, sentence):
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    (error,) = [line for line in ended.stderr.splitlines() if line.startswith("Error: ")]
    assert ended.stderr.endswith(f"{error}\n")
    assert sentence in error
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_one_sentence(refusals, line):
    assert_one_sentence(refusals[line], REFUSED[line])


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ("nosuchmodel", "no workload 'nosuchmodel': "),
        ("mlp:depth=0", "workload 'mlp:depth=0': mlp needs width >= 1 and depth >= 1 and <= 1"),
    ],
)
def test_an_unknown_workload_is_refused_before_any_launch(folder, workload, sentence):
    assert_one_sentence(lockstep(f"run smoke --workload {workload}", folder), sentence)
    assert not (folder / "results").exists()


@pytest.mark.parametrize("arguments", ["--help", "run --help", "-h"])
def test_help_shows_examples_that_name_the_command(folder, arguments):
    ended = lockstep(arguments, folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    _, _, examples = ended.stdout.partition("Examples:\n")
    assert examples.lstrip().startswith("lockstep ")


def test_the_gist_of_a_failure_names_the_ranks_at_fault_and_their_errors():
    causes = [
        {"rank": 0, "host": "n1", "device": "cpu", "kind": "fault", "error": "ValueError: bad\n1"},
        {"rank": 1, "host": "n2", "device": "cpu", "kind": "silence", "error": ""},
        {"rank": 2, "host": "n2", "device": "cpu", "kind": "consequence", "error": "[gloo/x]"},
    ]
    assert failure_gist({"reason": "a traceback", "causes": causes}) == (
        "rank 0 on n1 (cpu): ValueError: bad; rank 1 on n2 (cpu) did not answer in time"
    )
    assert failure_gist({"reason": "x", "causes": causes[2:]}) == "rank 2 on n2 (cpu): [gloo/x]"
    assert failure_gist({"reason": "f()\nf.py:3: KeyError\n"}) == "f.py:3: KeyError"


def test_the_command_lists_every_command_in_its_group(folder):
    sys.path.insert(0, str(ROOT))
    try:
        from lockstep.cli import GROUPS
    finally:
        sys.path.remove(str(ROOT))
    text = lockstep("--help", folder).stdout
    for title, commands in GROUPS.items():
        listed = text.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in listed.splitlines()] == list(commands)


@pytest.mark.parametrize("group", ["", "image"])
def test_a_group_alone_prints_its_help(group, tmp_path):
    alone, asked = lockstep(group, tmp_path), lockstep(f"{group} --help", tmp_path)
    assert (alone.returncode, alone.stdout + alone.stderr) == (2, asked.stdout)


def test_a_dry_run_prints_the_launches_and_touches_nothing(tmp_path):
    ended = lockstep("run smoke --device cpu --dry-run --repeats 2 --to out", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    summary, duration, *commands = ended.stdout.splitlines()
    assert "until the first case has ended" in duration
    start = (
        "smoke: 4 launches to make (2 at 1 rank, 2 at 2 ranks), each with 14 to 28 cases of strong,"
    )
    assert summary.startswith(start)
    assert len(commands) == 4
    assert all("--size=smoke" in shlex.split(command) for command in commands)
    assert list(tmp_path.iterdir()) == []


def test_tests_of_this_folder_are_named_after_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = _with_tests({"tests": ["."], "studies": None, "name": None})
    assert changes["name"] == re.sub("[^A-Za-z0-9]+", "-", tmp_path.name)
