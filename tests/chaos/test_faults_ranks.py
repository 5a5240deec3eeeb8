"""Faults of ranks, of their store and of their files, put into real launches."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import launched
import pytest
from cluster import missing
from launched import BUDGET_S, alone, ladder

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

BEFORE, FAULTY, AFTER = "test_a_before", "test_b_breaks", "test_c_after"
NO_SPACE = "No space left on device"
# A terminal's Ctrl-C: the whole launch is over by then.
INTERRUPTED_S = 5.0


def assert_costs_its_case_alone(ended, num_launches):
    assert list(ended.ends("fail")) == [FAULTY]
    assert ended.measured == [BEFORE, AFTER]
    launches = sum(line["kind"] == "launch" for line in ended.lines)
    assert (launches, ended.num_left, ended.codes) == (num_launches, 0, [1])


@pytest.mark.parametrize(
    ("fault", "phase", "blames"),
    [
        ("raise", "setup", "OSError: the disk of this rank is full"),
        ("raise", "teardown", "OSError: the disk of this rank is full"),
        ("more", "after", "Timed out waiting"),
    ],
)
def test_a_case_that_fails_on_one_rank_fails_on_all(fault, phase, blames, tmp_path):
    ended = ladder(tmp_path, fault, FAULT_PHASE=phase)
    assert_costs_its_case_alone(ended, num_launches=1)
    when = "call" if phase == "after" else phase
    assert [own[FAULTY] for own in ended.told.values()] == [[f"{when} failed"]] * 2
    assert re.match(rf"rank 1 on [\s\S]*{blames}", ended.ends("fail")[FAULTY])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("shape", r"crashed: rank \d ended with SIGABRT$"),
        ("stop", r"rank 1 on \S+ \(cpu\) did not answer"),
        ("descriptors", "rank 1 on "),
    ],
)
def test_a_launch_that_a_rank_ends_is_started_again_without_the_case(fault, reason, tmp_path):
    ended = ladder(tmp_path, fault)
    assert_costs_its_case_alone(ended, num_launches=2)
    assert re.match(reason, ended.ends("fail")[FAULTY].partition("\n")[0])
    if fault == "descriptors":
        assert "rank 1 on " in ended.line("process group could not be rebuilt")
        assert ended.line("exitcode *: 70")


def test_a_store_that_is_killed_ends_all_ranks_which_say_so(tmp_path):
    launched.suite(tmp_path)
    ended = alone(tmp_path, "store")
    assert ended.codes == [70, 70]
    assert ended.line("lockstep: rank 1 on .* store")
    assert list(ended.ends("case")) == [BEFORE] == ended.measured
    assert "INTERNALERROR" not in ended.said


def test_ranks_of_another_checkout_are_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "other"):
        folder.mkdir(exist_ok=True)
        launched.suite(folder)
    with (tmp_path / "other" / "lockstep" / "measure" / "timing.py").open("a") as file:
        file.write("# Timed otherwise.\n")
    ended = alone(tmp_path, "none", bench_of_rank_1="other/bench")
    assert ended.codes == [78, 78]
    assert not any(ended.told.values())
    assert ended.lines == []
    assert ended.line("rank 1 runs with suite ")


def test_ctrl_c_ends_all_processes_and_the_same_command_goes_on(tmp_path):
    # A shell's background job ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    launched.suite(tmp_path)
    with launched.started(tmp_path) as launch:
        driver = launched.begin_ladder(launch, "sleep", FAULT_RANK="all")
        launched.until((tmp_path / "injected").exists, "the case that sleeps")
        os.killpg(driver.pid, signal.SIGINT)
        launched.until(lambda: not launched.inside(tmp_path), "all processes' end", INTERRUPTED_S)
        driver.wait()
        first = launch.ended()
        launched.begin_ladder(launch, "none")
        launch.wait()
        second = launch.ended()
    assert (first.codes, list(first.ends("case"))) == ([130], [BEFORE])
    printed = (tmp_path / "out-0.log").read_text()
    assert "results/fault keeps all measured cases. Next: run the same command" in printed
    assert "Traceback" not in printed
    assert (second.codes[1:], second.measured) == ([0], [BEFORE, FAULTY, AFTER])


def test_a_clock_that_is_off_is_a_flag_and_durations_are_right(tmp_path):
    ended = ladder(tmp_path, "clock")
    assert ended.codes == [0]
    blocks = [one["extra_info"]["lockstep"] for one in ended.document["benchmarks"]]
    assert len(blocks) == 3
    rounds = [s for block in blocks for rank in block["rank_round_s"] for s in rank]
    assert 0 < min(rounds) <= max(rounds) < BUDGET_S
    flags = [flag for block in blocks for flag in block["flags"] if flag["kind"] == "clock-off"]
    assert any(round(flag["offset_s"]) == 3600 for flag in flags), flags


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Give a file system of 1 MiB, and the file in it that is to fill it."""
    if os.geteuid() != 0:
        missing("only root may mount a small disk")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        yield folder / "filler"
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_is_full_ends_the_ranks_and_keeps_what_was_measured(tmp_path):
    launched.suite(tmp_path)
    with small_disk(tmp_path / "small") as filler:
        where = ("--journal=small/out.journal.jsonl", "--benchmark-json=small/out.json")
        first = alone(tmp_path, "fill", *where, FAULT_FILL=str(filler), FAULT_RANK="0")
        assert all(path.stat().st_size for path in (tmp_path / "small").glob("*.json"))
        filler.unlink()
        second = alone(tmp_path, "none", *where, "--resume")
    assert first.codes == [74, 74]
    # The line of the JSON, which finds no room either, names the journal, too.
    assert "out.journal.jsonl" in first.line(f"the journal .*cannot be written: {NO_SPACE}")
    # A small line may still fit into the page that its file has.
    assert list(first.ends("case"))[:1] == [BEFORE]
    assert (second.codes, second.measured) == ([0, 0], [BEFORE, FAULTY, AFTER])


def test_a_disk_that_is_full_under_a_campaign_is_named_by_its_file(tmp_path):
    with small_disk(tmp_path / "results") as filler:
        ended = ladder(tmp_path, "fill", FAULT_FILL=str(filler), FAULT_RANK="0")
    assert ended.codes == [3]
    sentence = ended.line("Error: ")
    assert NO_SPACE in sentence
    assert "results/fault" in sentence
    assert list(ended.ends("case"))[:1] == [BEFORE]
