"""The command `lockstep`, typed as a user types it: help, plans, and how bad input ends."""

import re
import shlex
import sys

import pytest

from lockstep.cli import main
from lockstep.core.record import failure_gist


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Run what is typed, in an empty folder; return exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(line):
        monkeypatch.setattr(sys, "argv", ["lockstep", *shlex.split(line)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


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


TYPES = "Input type (torch.{}) and weight type (torch.{}) should be the same"


# As torch prints them, by release and operator.
@pytest.mark.parametrize(("error", "is_cured"), [
    ("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
     "cpu!", True),
    (TYPES.format("FloatTensor", "cuda.FloatTensor"), True),
    (TYPES.format("FloatTensor", "DoubleTensor"), False),
])  # fmt: skip
def test_tensors_on_two_devices_have_their_cure(error, is_cured):
    cause = {"rank": 0, "host": "n1", "device": "cuda:0", "kind": "fault", "error": error}
    gist = failure_gist({"causes": [cause]})
    cure = (
        "; the model and the batch are on different devices; move both to the same device with "
        ".to(device)"
    )
    assert gist == f"rank 0 on n1 (cuda:0): {error}{cure if is_cured else ''}"


@pytest.mark.parametrize("group", ["", "image"])
def test_a_group_alone_prints_its_help(typed, group):
    code, output, errors = typed(group)
    assert (code, output + errors) == (2, typed(f"{group} --help")[1])


def test_a_dry_run_prints_the_launches_and_touches_nothing(typed, tmp_path):
    code, output, errors = typed("run smoke --device cpu --dry-run --repeats 2 --to out")
    assert (code, errors) == (0, "")
    summary, duration, trial, *commands = output.splitlines()
    assert re.search(r"about 2 min, if each case takes 1 s; .* --repeats 3: about \d min", duration)
    assert "6 steps of a case" in trial
    start = "smoke: 4 launches to measure (2 at 1 rank, 2 at 2 ranks), each with 14 to 28 cases"
    assert summary.startswith(start)
    assert len(commands) == 4
    assert all("--size=smoke" in shlex.split(command) for command in commands)
    assert list(tmp_path.iterdir()) == []
