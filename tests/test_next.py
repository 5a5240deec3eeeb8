"""What follows when a session of a launch has ended, and why it ended."""

import sys
from pathlib import Path

import pytest
from commands import finish
from data.job_samples import write_lines

from lockstep.campaign.next import Facts, Next, decide, gather, last_words, mark, words_of
from lockstep.core import errors
from lockstep.core.journal import settled_outcomes
from lockstep.core.record import SCHEMA_VERSION

WORDS = "rank 1 ended with SIGKILL"
AGAIN = Next("again", ("--skip-failed", f"--after={WORDS}"))
# Once ranks have met and a case has begun.
BEGUN = {"has_begun": True, "num_recorded": 1}


@pytest.mark.parametrize(
    ("facts", "follows"),
    [
        # Every case is measured or skipped, however the launcher ended.
        ({"has_begun": True}, Next("done")),
        # Every case has ended, and some badly: another session would find nothing to do.
        (BEGUN | {"num_failed": 1}, Next("failed")),
        # Cases are left, and the session brought the launch further.
        (BEGUN | {"num_left": 2}, AGAIN),
        # Cases are left, but the stop file is there.
        (BEGUN | {"num_left": 2, "is_stop_asked": True}, Next("stopped")),
        # Another session would end as this one did.
        ({"has_begun": True, "num_left": 2}, Next("no-progress")),
        ({}, Next("not-begun")),
        ({"is_stop_asked": True}, Next("stopped")),
    ],
)
def test_what_follows_a_session(facts: dict[str, object], follows: Next) -> None:
    assert decide(Facts(WORDS, **facts)) == follows  # type: ignore[arg-type]


def session(
    folder: Path, *lines: tuple[str, str], expected: str = "ab", skips_failed: bool = False
) -> Facts:
    """Write what a session leaves in its launch's folder, and return the facts of it."""
    before = mark(folder)
    head = {"kind": "launch", "schema": SCHEMA_VERSION, "resumed": before.num_lines > 0}
    head["skips_failed"] = skips_failed
    head |= {"expected": list(expected), "document": {}, "launch": {}}
    facts = {"case": {"benchmark": {}}, "begin": {}}
    ended = [
        {"kind": kind, "case": case} | facts.get(kind, {"reason": "because"})
        for kind, case in lines
    ]
    write_lines(folder / "journal.jsonl", head, *ended)
    return gather(folder, before, WORDS)


def test_the_facts_of_sessions_that_end_a_launch(tmp_path: Path) -> None:
    first = session(tmp_path, ("begin", "a"), ("case", "a"), ("begin", "b"))
    assert first == Facts(WORDS, has_begun=True, num_recorded=3, num_left=1)
    second = session(tmp_path, ("fail", "b"))
    assert second == Facts(WORDS, has_begun=True, num_recorded=1, num_failed=1)
    assert gather(tmp_path, mark(tmp_path), WORDS) == Facts(WORDS)  # one that never began


def test_a_case_that_failed_in_an_earlier_run_is_measured_again_in_this_one(tmp_path: Path) -> None:
    session(tmp_path, ("fail", "a"), ("fail", "b"))
    assert session(tmp_path, ("begin", "a")).num_left == 2  # a session that a ends
    assert session(tmp_path, ("fail", "a"), skips_failed=True).num_left == 1
    assert settled_outcomes(tmp_path / "journal.jsonl") == {"a": "fail"}
    assert session(tmp_path, ("fail", "b"), skips_failed=True).num_left == 0


def asked(folder: Path, *more: str) -> list[str]:
    """Return the lines that the script of a job reads."""
    command = [sys.executable, "-m", "lockstep.campaign.next", str(folder), "--num-lines=0"]
    command += ["--num-log-bytes=0", "--began=0", f"--stop-file={folder}/stop", *more]
    ended = finish(command)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.removeprefix("lockstep-next: ").splitlines()


def test_a_script_is_told_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("srun: error: node2: task 1: Killed\n")
    session(tmp_path, ("begin", "a"))
    kind, words, *options = asked(tmp_path, "--exit-code=137")
    assert (kind, options) == ("again", ["--skip-failed", "--after=node2: task 1: Killed"])
    assert words == "srun ended with 137: node2: task 1: Killed"
    assert asked(tmp_path, "--exit-code=75")[0] == "stopped"
    (tmp_path / "stop").touch()
    assert asked(tmp_path, "--exit-code=137")[0] == "stopped"
    (tmp_path / "journal.jsonl").write_text("no journal\n")
    assert asked(tmp_path, "--exit-code=4")[0] == "corrupt"


PRINTED = [
    "lockstep: rank 0 on vm: no room\n",
    "!!!!! _pytest.outcomes.Exit: no licence !!!!!\n",
    "Root Cause (first observed failure):\n  rank : 0 (local_rank: 0)\n  exitcode : 3\n",
]


@pytest.mark.parametrize("printed", PRINTED)
@pytest.mark.parametrize("kept", ["", "rank 1 on vm: the journal cannot be written"])
def test_what_a_case_prints_is_not_why_its_session_ended(
    printed: str, kept: str, tmp_path: Path
) -> None:
    before = mark(tmp_path)
    session(tmp_path, ("begin", "a"))
    errors.keep_in(tmp_path, 1)
    for words in filter(None, [kept, kept and "what came of it"]):
        errors.note(words)
    (tmp_path / "log.txt").write_text(printed + ROOT_CAUSE.format(-9))
    assert words_of(tmp_path, before, by_slurm=False) == (kept or "rank 1 ended with SIGKILL")
    (tmp_path / "log.txt").write_text("srun: error: node1: task 0: Killed\n")
    assert words_of(tmp_path, before, by_slurm=False) == ""


ROOT_CAUSE = "Root Cause (first observed failure):\n  rank : 1 (local_rank: 1)\n  exitcode : {}\n"
EXIT = "! _pytest.outcomes.Exit: rank 0 on vm: no GPU !\n"
RANK = "lockstep: rank 0 on a: rank 1 is lost\n"
KILLED = "srun: error: b: task 1: Killed\nsrun: error: a: task 0: Terminated\n"
REFUSED = "srun: error: a: tasks 0-1: Exited with exit code 78\nsrun: error: b: task 2: Killed\n"
LIMIT = "slurmstepd-node1: error: StepId=30.0 exceeded memory limit (608 > 524), being killed"
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=30.0. Some of the step tasks have"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("fine\n", ""),
        (ROOT_CAUSE.format(78), "rank 1 ended with exit code 78"),
        (EXIT + ROOT_CAUSE.format(78), "rank 0 on vm: no GPU"),
        (
            "ERROR: rounds=0 must be 1 or more\n" + ROOT_CAUSE.format(4),
            "rounds=0 must be 1 or more",
        ),
        (EXIT + ROOT_CAUSE.format(-9), "rank 1 ended with SIGKILL"),
        (ROOT_CAUSE.format(-9) + REFUSED, "rank 1 ended with SIGKILL"),
        (EXIT + KILLED, "b: task 1: Killed"),
        (RANK + KILLED + LIMIT + "\n", LIMIT),
        (RANK + KILLED + OOM + "\n", OOM),
        ("lockstep: rank 1 \x1b[31m\t\u00fc" + "x" * 400, "rank 1 \\x1b[31m \u00fc" + "x" * 283),
    ],
)
def test_the_last_words_of_a_launch_are_those_that_know_why(
    log: str, words: str, tmp_path: Path
) -> None:
    before = "ERROR: of an earlier launch\n"
    (tmp_path / "log.txt").write_text(before + log)
    assert last_words(tmp_path / "log.txt", len(before)) == words
