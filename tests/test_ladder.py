"""The local ladder: what is measured is never lost and never measured again."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from commands import finish
from data.job_samples import write_lines
from launched import until

from lockstep.campaign import ladder
from lockstep.campaign.campaign import Campaign, Launch, plan
from lockstep.campaign.folder import Outcome
from lockstep.campaign.ladder import Ladder
from lockstep.campaign.next import Ended, Facts
from lockstep.core import journal, processes
from lockstep.core.journal import Journal
from lockstep.core.record import KEY, SCHEMA_VERSION

ROOT = Path(__file__).parents[1]
W1, W2 = Launch(1, 0), Launch(2, 0)
PATIENCE_S = 300


def campaign(**changes):
    given = {
        "schema": 1, "name": "test", "studies": ["strong", "collective"], "world_sizes": [1, 2],
        "repeats": 1, "size": "smoke", "threads_per_rank": 1,
    }  # fmt: skip
    return Campaign.model_validate(given | changes)


@pytest.fixture
def rungs(tmp_path):
    return Ladder(campaign(), tmp_path / "test")


def header(expected, *, studies="strong,collective", resumed=False):
    return {
        "kind": "launch", "schema": SCHEMA_VERSION, "resumed": resumed,
        "expected": list(expected), "document": {}, "launch": {"studies": studies},
    }  # fmt: skip


def keep(ladder_, launch, *ends, expected="ab", studies="strong,collective"):
    """Write a launch's journal: a header, then (kind, case) each."""
    lines = [header(expected, studies=studies)]
    for kind, case in ends:
        benchmark = {"name": case, "extra_info": {KEY: {"schema": 1}}}
        facts = {"benchmark": benchmark} if kind == "case" else {"reason": "because"}
        lines.append({"kind": kind, "case": case} | facts)
    write_lines(ladder_.results.journal(launch.name), *lines)


@pytest.mark.parametrize(("ends", "expected"), [
    ([], Outcome(W2.name, remaining=2)),
    ([("case", "a")], Outcome(W2.name, measured=1, remaining=1)),
    ([("case", "a"), ("skip", "b")], Outcome(W2.name, measured=1, skipped=1, complete=True)),
    ([("case", "a"), ("fail", "b")],
     Outcome(W2.name, measured=1, failed=({"case": "b", "reason": "because"},))),
])  # fmt: skip
def test_a_launch_stands_as_its_journal_says(rungs, ends, expected):
    keep(rungs, W2, *ends)
    assert rungs.outcome(W2) == expected
    assert rungs.outcome(W1) == Outcome(W1.name)


def test_what_is_missing_is_in_the_order_of_the_plan(tmp_path):
    rungs = Ladder(campaign(repeats=3), tmp_path)
    launches = plan(rungs.campaign)
    assert rungs.missing() == launches
    keep(rungs, launches[2], ("case", "a"), ("case", "b"))
    keep(rungs, launches[4], ("case", "a"))
    assert rungs.missing() == [*launches[:2], *launches[3:]]


def test_fewer_repeats_or_sizes_leave_a_trace_of_what_was_planned(rungs):
    def dropped(**changes):
        Ladder(campaign(**changes), rungs.folder).claim()
        claim = json.loads((rungs.folder / "campaign.json").read_text())
        return [launch["name"] for launch in claim["dropped"]]

    assert dropped(repeats=3) == []
    assert dropped(repeats=2) == []  # until a case is measured
    for launch in (W1, W2, Launch(1, 1)):
        keep(rungs, launch, ("case", "a"), ("case", "b"))
    assert dropped(repeats=2) == []
    assert dropped(repeats=1) == ["w2-r1"]  # w1-r1 is complete
    assert dropped(repeats=1) == ["w2-r1"]
    assert dropped(repeats=1, world_sizes=[1]) == ["w2-r1"]
    assert dropped(repeats=2) == []


def test_a_result_that_its_journal_is_ahead_of_is_made_again(rungs):
    keep(rungs, W2, ("case", "a"), expected="a")
    rungs.write_results()
    result = rungs.results.launch(W2.name) / "result.json"
    (kept,) = json.loads(result.read_text())["benchmarks"]
    assert kept["name"] == "a"
    for text in ("{}", '{"benchmarks": [', ""):
        result.write_text(text)
        os.utime(rungs.results.journal(W2.name), (1, 1))  # as a copy may be
        rungs.write_results()
        assert json.loads(result.read_text())["benchmarks"] == [kept]
    as_it_was = result.stat()
    rungs.write_results()
    assert result.stat() == as_it_was
    assert not rungs.results.launch(W1.name).exists()


@pytest.mark.parametrize("left", [0, 2])
def test_measured_cases_that_only_a_result_has_are_never_written_over(rungs, left):
    keep(rungs, W2, ("case", "a"), ("case", "b"))
    rungs.write_results()
    rungs.claim()  # the journal has them, too
    path = rungs.results.journal(W2.name)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:left]))
    before = contents(rungs.folder)
    said = r"w2-r0/result\.json holds measured cases"
    with pytest.raises(ValueError, match=said):
        rungs.claim()
    assert contents(rungs.folder) == before


def test_one_driver_at_a_time(tmp_path):
    with ladder.only_driver(tmp_path):
        said = rf"another lockstep command \(process {os.getpid()} on {socket.gethostname()}: "
        with pytest.raises(ValueError, match=said), ladder.only_driver(tmp_path):
            pass
    with ladder.only_driver(tmp_path):
        pass


def test_a_launch_that_does_not_end_is_killed_with_its_ranks(tmp_path):
    script = "trap '' TERM; sleep 600 & echo $! >rank; while :; do wait; done"
    launch = subprocess.Popen(["sh", "-c", script], cwd=tmp_path)
    until(lambda: (tmp_path / "rank").exists() and (tmp_path / "rank").read_text(), "the rank")
    stopping = threading.Thread(target=processes.end_tree, args=(launch, 0.2), daemon=True)
    stopping.start()
    stopping.join(PATIENCE_S / 10)
    try:
        assert launch.returncode == -signal.SIGKILL
        until(lambda: not processes.runs((tmp_path / "rank").read_text()), "the rank's end")
    finally:
        launch.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "rank").read_text()), signal.SIGKILL)


def test_a_launch_whose_starts_bring_nothing_comes_to_an_end(rungs, monkeypatch):
    keep(rungs, W2, ("case", "a"), expected=list("abcd"))
    starts = []

    def start(*given):
        starts.append(given)
        return Ended(Facts("words"))

    monkeypatch.setattr(Ladder, "_start", start)
    ended = rungs.run(W2, lambda *_: None)
    assert (ended.remaining, ended.ended, len(starts)) == (3, Ended(Facts("words")), 1)


# What follows starts torchrun, kills the driver, and goes on.


def lockstep_run(*options):
    return [sys.executable, "-m", "lockstep", "run", "ladder.toml", *options]


def run(folder, *options):
    return finish(lockstep_run(*options), cwd=folder)


def ends(folder):
    return [
        (path.parent.name, line["case"])
        for path in folder.glob("results/ladder/launches/*/journal.jsonl")
        for line in journal.read(path)
        if line["kind"] in journal.ENDS
    ]


def contents(folder):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A campaign whose driver was killed after three cases, then run again to its end."""
    folder = tmp_path_factory.mktemp("ladder")
    (folder / "ladder.toml").write_text(
        'schema = 1\nname = "ladder"\nstudies = ["strong", "collective"]\n'
        'world_sizes = [1, 2]\nrepeats = 1\nsize = "smoke"\nthreads_per_rank = 1\n'
        "seed = 1\nrounds = 20\nsteps_per_round = 20\n"  # two ranks first, and not at once
    )
    driver = subprocess.Popen(
        lockstep_run(), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: len(ends(folder)) >= 3 or driver.poll() is not None, "cases", PATIENCE_S)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    left = ends(folder)
    return folder, left, run(folder, "--json")  # at once, while the ranks still end


@pytest.mark.slow
def test_a_killed_campaign_goes_on_where_it_was(killed):
    folder, left, ended = killed
    assert {launch for launch, _ in left} == {"w2-r0"}
    assert 3 <= len(left) < 11  # no rank went on after its driver
    assert ended.returncode == 0, ended.stderr
    cases = Counter(ends(folder))
    assert set(cases.values()) == {1}
    assert set(left) <= set(cases)
    # one strong case and five collectives at two sizes, in each of two launches
    assert Counter(launch for launch, _ in cases) == {"w1-r0": 11, "w2-r0": 11}
    assert all(outcome["complete"] for outcome in json.loads(ended.stdout))
    for launch, num_measured in (("w1-r0", 1), ("w2-r0", 11)):  # a single rank skips collectives
        path = folder / "results" / "ladder" / "launches" / launch / "result.json"
        document = json.loads(path.read_text())
        assert document == journal.rebuild(path.with_name("journal.jsonl"))
        assert (document[KEY]["complete"], len(document["benchmarks"])) == (True, num_measured)
        assert num_measured + len(document[KEY]["skipped"]) == 11


@pytest.mark.slow
def test_a_finished_campaign_is_left_as_it_is_until_it_is_measured_again(killed):
    folder = killed[0] / "results" / "ladder"
    before = contents(folder / "launches")
    assert run(killed[0], "--global-batch", "32").returncode == 2
    ended = run(killed[0])
    assert (ended.returncode, "same command with --replace" in ended.stderr) == (0, True)
    assert contents(folder / "launches") == before
    ended = run(killed[0], "--replace", "--world-sizes", "1")
    assert ended.returncode == 0, ended.stderr
    (aside,) = folder.glob("replaced/*")
    held = contents(aside / "launches")
    assert {path.relative_to(aside): seen for path, seen in held.items()} == {
        path.relative_to(folder): seen for path, seen in before.items()
    }
    assert "Changes since the last measurement, as printed by lockstep compare " in ended.stdout


@pytest.mark.parametrize(("edit", "kind", "is_refused"), [
    ("", "case", False),
    ("import os\n", "case", True),
    ("import os\n", "fail", False),  # what was never measured holds nothing
])  # fmt: skip
def test_edited_tests_are_not_measured_into_a_folder_of_before(tmp_path, edit, kind, is_refused):
    test = tmp_path / "test_mine.py"
    test.write_text("def test_a(lockstep): ...\n")
    digest = hashlib.sha256(test.read_bytes()).hexdigest()
    rungs = Ladder(campaign(studies=[], tests=[str(test)]), tmp_path / "mine")
    measured = {"name": "test_a", "extra_info": {KEY: {"workload_sha256": digest}}}
    facts = {"benchmark": measured} if kind == "case" else {"reason": "because"}
    line = {"kind": kind, "case": "test_mine.py::test_a"} | facts
    write_lines(rungs.results.journal(W1.name), header(["test_mine.py::test_a"]), line)
    test.write_text(test.read_text() + edit)
    if not is_refused:
        assert rungs.choose_replaced((), replace=False) == []
        return
    with pytest.raises(ValueError, match="--replace"):
        rungs.choose_replaced((), replace=False)
    rungs.set_aside(rungs.choose_replaced((), replace=True))
    assert not rungs.results.launch(W1.name).exists()
    (aside,) = rungs.folder.glob(f"replaced/*/launches/{W1.name}/journal.jsonl")
    assert journal.measured(aside)
    assert rungs.choose_replaced((), replace=False) == []


def test_a_launch_is_measured_again_by_its_name(tmp_path):
    rungs = Ladder(campaign(), tmp_path / "mine")
    for name in ("w1-r0", "w2-r0"):
        Journal(rungs.results.journal(name)).close()
    with pytest.raises(ValueError, match=r"no launch w9-r0; the folder holds w1-r0, w2-r0"):
        rungs.choose_replaced(["w9-r0"], replace=False)
    rungs.claim()
    rungs.set_aside(rungs.choose_replaced(["w2-r0"], replace=False))
    assert (rungs.results.names(), rungs.earlier) == (["w1-r0"], None)


def test_all_launches_move_aside_as_a_campaign_and_a_cut_run_goes_on(rungs):
    rungs.claim()
    for launch in (W1, W2):
        keep(rungs, launch, ("case", "a"), ("case", "b"))
    assert rungs.missing() == []
    launches = rungs.choose_replaced((), replace=True)
    assert rungs.missing(launches) == plan(rungs.campaign)
    assert rungs.set_aside(launches) == rungs.earlier.path
    assert rungs.earlier.names() == ["w1-r0", "w2-r0"]
    assert rungs.earlier.read_claim() == rungs.results.read_claim()
    keep(rungs, W1, ("case", "a"), ("case", "b"))
    assert rungs.choose_replaced((), replace=True) == []
    keep(rungs, W2, ("case", "a"), ("fail", "b"))
    assert rungs.choose_replaced((), replace=True) == ["w1-r0", "w2-r0"]
