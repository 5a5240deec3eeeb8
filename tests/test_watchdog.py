"""The watchdog: processes that overrun end by it, those that do not are left alone."""

import os
import signal
import sys
from pathlib import Path

import pytest
from commands import finish

from lockstep.launch import session
from lockstep.launch.options import Settings
from lockstep.ranks.placement import Placement
from lockstep.ranks.watchdog import GRACE_S, stacks_file

ROOT = Path(__file__).parents[1]
# Far beyond the bound, so that a process that its watchdog forgot is told from a slow machine.
HANG_S = 120

SCRIPT = """
import ctypes, threading, time
from pathlib import Path
from lockstep.ranks.watchdog import Watchdog

def overrun():
    time.sleep(600)

watchdog = Watchdog({path})
{deed}
"""


def run(tmp_path, deed, path=None):
    script = SCRIPT.format(path=f"Path({str(path)!r})" if path else None, deed=deed)
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    return finish([sys.executable, "-c", script], cwd=tmp_path, env=variables, timeout=HANG_S)


@pytest.mark.slow
def test_an_overrun_ends_the_process_and_leaves_its_stacks_in_the_file(tmp_path):
    path = tmp_path / "stacks.txt"
    ended = run(tmp_path, "watchdog.arm(0.1)\noverrun()", path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")
    assert " in overrun\n" in path.read_text()


@pytest.mark.slow
def test_without_a_file_the_stacks_go_to_standard_error_whatever_stands_in_its_place(tmp_path):
    replaced = "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 2)"
    ended = run(tmp_path, f"{replaced}\nwatchdog.arm(0.1)\noverrun()")
    assert ended.returncode == 1
    assert " in overrun\n" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "deed",
    [
        "watchdog.disarm()",
        "watchdog.arm(600)",  # the latest counts
        # What the first guard holds must not warn of it where the second takes its place.
        "import warnings; warnings.simplefilter('always')\n" + 2 * "watchdog.close(600)\n",
    ],
)
def test_who_ends_in_time_ends_well_and_says_nothing(tmp_path, deed):
    path = tmp_path / "stacks.txt"
    sleep = f"watchdog.arm(1)\n{deed}\ntime.sleep(1.2 + {GRACE_S})"
    ended = run(tmp_path, sleep, path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "deed",
    [
        "threading.Thread(target=overrun).start()",
        "class Slow:\n    __del__ = lambda self: overrun()\nslow = Slow()",
    ],
    ids=["thread", "destructor"],
)
def test_who_hangs_at_its_end_is_ended_with_its_stacks_on_standard_error(tmp_path, deed):
    path = stacks_file(tmp_path / "journal.jsonl", 1)
    path.parent.mkdir()
    ended = run(tmp_path, f"{deed}\nwatchdog.close(0.1)", path)
    assert ended.returncode == 1
    assert " in overrun\n" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_who_hangs_once_python_has_ended_is_ended_by_the_kernel(tmp_path):
    hang = "c = ctypes.CDLL(None); c.__cxa_atexit(c.pause, None, None)"
    ended = run(tmp_path, f"{hang}\nwatchdog.close(0.1)")
    assert (ended.returncode, ended.stdout) == (-signal.SIGALRM, "")


def settings(timeout_s):
    """Return the settings of a launch that has this time-out, and nothing else."""
    made = object.__new__(Settings)
    object.__setattr__(made, "timeout_s", timeout_s)
    return made


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(20.0, 60.0), (20.5, 61.5)])
def test_outside_a_case_a_rank_may_take_three_time_outs_and_a_minute_at_least(
    timeout_s, patience_s
):
    assert session.patience_s(settings(timeout_s)) == patience_s
    # A single process may be a notebook, where nothing may be left to end it.
    assert session.end_s(settings(timeout_s), Placement()) is None
    assert session.end_s(settings(timeout_s), Placement(1, 1, 2, 2)) == patience_s
