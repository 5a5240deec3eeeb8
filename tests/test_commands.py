"""Other programs: how they end, and that none is waited for without end."""

import sys

import pytest

from lockstep.core import processes
from lockstep.core.processes import CommandError, Ended

SHELL = ("/bin/sh", "-c")


def test_a_command_ends_with_its_code_and_what_it_printed(tmp_path):
    script = "cat; pwd; echo $NAME >&2; exit 3"
    ended = processes.run(
        [*SHELL, script], 60, environ={"NAME": "value"}, folder=tmp_path, text="in\n"
    )
    assert ended == Ended(3, f"in\n{tmp_path}\n", "value\n")


@pytest.mark.parametrize(
    ("command", "timeout_s", "message"),
    [(["/no/such/program"], 60, "No such file"), ([*SHELL, "exec sleep 60"], 0.1, "did not end")],
)
def test_a_command_that_does_not_end_is_an_error(command, timeout_s, message):
    with pytest.raises(CommandError, match=f"{command[0]}.*{message}"):
        processes.run(command, timeout_s)
    assert processes.answer(command, timeout_s) is None


def test_an_answer_is_what_a_command_prints_if_it_does_not_fail():
    assert processes.answer([sys.executable, "-c", "print(' x ')"], 60) == "x"
    assert processes.answer([*SHELL, "exit 0"], 60) == ""
    assert processes.answer([*SHELL, "echo x; exit 1"], 60) is None
