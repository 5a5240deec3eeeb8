"""Faults of ranks, of what they run and of the store between them, put into real launches."""

import os
import re
import shutil
import signal
import time
from pathlib import Path

import launched
from fault import Seen
from launched import BUDGET_S, DEAD_S, HUNG_S, Ended, alone, ladder, seen

from lockstep.core.flags import read as flags_of

BEFORE, FAULTY, AFTER = "test_a_before", "test_b_breaks", "test_c_after"
# A terminal's Ctrl-C: the whole launch is over by then.
INTERRUPTED_S = 5.0


def gist(reason: str) -> str:
    """Return who is blamed for a failed case, and the error, in one line."""
    culprit = re.split(r"\n(?=rank \d+ on )", reason)[0]
    error = re.search(r"^E +(.*)$", culprit, re.MULTILINE)
    first = reason.partition("\n")[0]
    return f"{first.partition(': ')[0]}: {error[1]}" if error else first


def others_measured(ended: Ended) -> bool:
    """Return whether the cases before and after the faulty one, and they alone, have timings."""
    return ended.measured == [BEFORE, AFTER]


def failed_on_all(
    folder: Path, fault: str, *, blames: str, phase: str = "before", when: str = "call"
) -> Seen:
    """Break a case on rank 1 and expect it to fail on both ranks, and the next to run."""
    ended = ladder(folder, fault, FAULT_PHASE=phase)
    failed = ended.ends("fail")
    reason = failed.get(FAULTY, "")
    phases = {rank: own.get(FAULTY) for rank, own in ended.told.items()}
    said = (
        f"ranks say {phases}; {gist(reason)}; measured: {len(ended.measured)} others; "
        f"exit {ended.codes[0]}"
    )
    return seen(
        ended,
        said,
        failed_alone=list(failed) == [FAULTY],
        on_all_ranks=phases == {0: [f"{when} failed"], 1: [f"{when} failed"]},
        names_rank_1=reason.startswith("rank 1 on ") and blames in reason,
        the_others_measured=others_measured(ended),
        in_one_session=launches(ended) == 1,
        in_time=(ended.detected_s or HUNG_S) < HUNG_S,
        exit_1=ended.codes == [1],
    )


def launches(ended: Ended) -> int:
    """Return how many sessions wrote to the journal."""
    return sum(line["kind"] == "launch" for line in ended.lines)


def raises(folder: Path) -> Seen:
    return failed_on_all(folder, "raise", blames="OSError: the disk of this rank is full")


def raises_after(folder: Path) -> Seen:
    return failed_on_all(folder, "raise", phase="after", blames="OSError: the disk of this rank")


def skips_alone(folder: Path) -> Seen:
    return failed_on_all(folder, "skip", blames="skips, but not all ranks do: this rank has no")


def skips_on_all(folder: Path) -> Seen:
    ended = ladder(folder, "skip", FAULT_RANK="all")
    skips = [line for line in ended.lines if line["kind"] == "skip"]
    said = f"{len(skips)} skip line ({ended.ends('skip').get(FAULTY)}); exit {ended.codes[0]}"
    return seen(
        ended,
        said,
        skipped_once=[launched.short(line["case"]) for line in skips] == [FAULTY],
        none_failed=not ended.ends("fail"),
        the_others_measured=others_measured(ended),
        exit_0=ended.codes == [0],
    )


def sums_more(folder: Path) -> Seen:
    return failed_on_all(folder, "more", phase="after", blames="Timed out waiting")


def another_operation(folder: Path) -> Seen:
    ended = ladder(folder, "broadcast")
    failed = ended.ends("fail")
    said = (
        f"{gist(failed.get(FAULTY, ''))}; measured: {len(ended.measured)} others; "
        f"{launches(ended)} session(s); exit {ended.codes[0]}"
    )
    return seen(
        ended,
        said,
        failed_alone=list(failed) == [FAULTY],
        names_a_rank=failed.get(FAULTY, "").startswith(("rank ", "crashed: rank ")),
        the_others_measured=others_measured(ended),
        in_time=(ended.detected_s or HUNG_S) < HUNG_S,
        exit_1=ended.codes == [1],
    )


def crashed(ended: Ended, words: str) -> Seen:
    """Expect the faulty case to have crashed with these words, and one more session to go on."""
    crashes = [line for line in ended.lines if line.get("crashed")]
    reason = ended.ends("fail").get(FAULTY, "")
    said = (
        f"{gist(reason)}; {launches(ended)} sessions; measured: {len(ended.measured)} others; "
        f"exit {ended.codes[0]}"
    )
    return seen(
        ended,
        said,
        crashed_once=[launched.short(line["case"]) for line in crashes] == [FAULTY],
        tells_the_end=re.search(words, reason) is not None,
        the_others_measured=others_measured(ended),
        relaunched_once=launches(ended) == 2,
        within_2_s=(ended.detected_s or DEAD_S) < DEAD_S,
        none_left=ended.num_left == 0,
        exit_1=ended.codes == [1],
    )


def another_shape(folder: Path) -> Seen:
    return crashed(ladder(folder, "shape"), r"^crashed: rank \d ended with SIGABRT$")


def killed(folder: Path) -> Seen:
    return crashed(ladder(folder, "kill"), r"^crashed: rank 1 ended with SIGKILL$")


def rank_0_killed(folder: Path) -> Seen:
    ended = ladder(folder, "kill", ranks=3, FAULT_RANK="0")
    return crashed(ended, r"^crashed: rank 0 ended with SIGKILL$")


def hung(ended: Ended, rank: int) -> Seen:
    """Expect the verdict that a rank did not answer, and one more session to go on."""
    failed = ended.ends("fail")
    reason = failed.get(FAULTY, "").partition("\n")[0]
    said = (
        f"{reason}; {launches(ended)} sessions; measured: {len(ended.measured)} others; "
        f"{ended.num_left} processes left; exit {ended.codes[0]}"
    )
    return seen(
        ended,
        said,
        failed_alone=list(failed) == [FAULTY],
        named=re.match(rf"rank {rank} on \S+ \(cpu\) did not answer", reason) is not None,
        the_others_measured=others_measured(ended),
        relaunched_once=launches(ended) == 2,
        in_time=(ended.detected_s or HUNG_S) < HUNG_S,
        none_left=ended.num_left == 0,
        exit_1=ended.codes == [1],
    )


def sleeps(folder: Path) -> Seen:
    found = hung(ladder(folder, "sleep", ranks=3, FAULT_RANK="2"), rank=2)
    stacks = {path.name: path.read_text() for path in folder.rglob("*-rank-2.txt")}
    frames = [text for text in stacks.values() if "in test_b_breaks" in text]
    said = f"{found.text}; stacks of rank 2: {'its sleep in the case' if frames else stacks}"
    return Seen(said, found.holds and bool(frames), found.detected_s)


def frozen(folder: Path) -> Seen:
    return hung(ladder(folder, "stop"), rank=1)


def store_killed(folder: Path) -> Seen:
    launched.suite(folder)
    ended = alone(folder, "store")
    sentence = ended.line("lockstep: rank 1 on .* store")
    kept = list(ended.ends("case"))
    said = f"ranks exit {ended.codes}; {sentence}; kept: {len(kept)} case"
    return seen(
        ended,
        said,
        all_exit_70=ended.codes == [70, 70],
        said_the_store=bool(sentence),
        finished_case_kept=kept == [BEFORE] == ended.measured,
        in_time=(ended.detected_s or HUNG_S) < HUNG_S,
        no_traceback="INTERNALERROR" not in ended.said,
    )


def refused(folder: Path, fault: str, sentence: str) -> Seen:
    """Expect all ranks to end with exit code 4 before the first case, with one sentence."""
    launched.suite(folder)
    ended = alone(folder, fault)
    said = f"ranks exit {ended.codes}; {ended.line('^ERROR: ')}; journal lines: {len(ended.lines)}"
    return seen(
        ended,
        said,
        all_exit_4=ended.codes == [4, 4],
        one_sentence=len(re.findall(rf"^ERROR: .*{sentence}", ended.said, re.MULTILINE)) == 1,
        no_case_ran=not any(ended.told.values()) and not ended.lines,
    )


def another_collection(folder: Path) -> Seen:
    return refused(folder, "collect", "rank 1 collected other cases .*test_d_on_this_rank_alone")


def another_order(folder: Path) -> Seen:
    return refused(folder, "shuffle", "rank 1 collected other cases .*order of cases")


def calibrates(folder: Path) -> Seen:
    return refused(folder, "calibrate", "test_d_calibrates.* asks for `benchmark`.*lockstep.time")


def set_up_raises(folder: Path) -> Seen:
    return failed_on_all(folder, "raise", phase="setup", when="setup", blames="OSError: the disk")


def teardown_raises(folder: Path) -> Seen:
    blames = "OSError: the disk"
    return failed_on_all(folder, "raise", phase="teardown", when="teardown", blames=blames)


def not_rebuilt(folder: Path) -> Seen:
    ended = ladder(folder, "descriptors")
    sentence = ended.line("process group could not be built again")
    said = (
        f"{sentence}; exit code 70 of a rank: {bool(ended.line('exitcode *: 70'))}; "
        f"{launches(ended)} sessions; measured: {len(ended.measured)} others; "
        f"exit {ended.codes[0]}"
    )
    return seen(
        ended,
        said,
        named="rank 1 on " in sentence,
        exit_70=bool(ended.line("exitcode *: 70")),
        failed_alone=list(ended.ends("fail")) == [FAULTY],
        the_others_measured=others_measured(ended),
        relaunched_once=launches(ended) == 2,
        exit_1=ended.codes == [1],
    )


def interrupted(folder: Path) -> Seen:
    # A shell's background job ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    launched.suite(folder)
    with launched.started(folder) as launch:
        driver = launched.begin_ladder(launch, "sleep", FAULT_RANK="all")
        launched.until((folder / "injected").exists, "the case that sleeps")
        (folder / "injected").write_text(repr(time.time()))
        os.killpg(driver.pid, signal.SIGINT)
        launched.until(lambda: not launched.inside(folder), "the end of all processes")
        took = time.time() - float((folder / "injected").read_text())
        driver.wait()
        first = launch.ended()
        launched.begin_ladder(launch, "none")
        launch.wait()
        second = launch.ended()
    kept = list(first.ends("case"))
    printed = (folder / "out-0.log").read_text()
    said = (
        f"all processes ended; exit {first.codes[0]}; kept: {len(kept)} case; run again: "
        f"{len(second.measured)} cases, exit {second.codes[1]}"
    )
    found = seen(
        second,
        said,
        within_5_s=took < INTERRUPTED_S,
        exit_130=first.codes == [130],
        finished_case_kept=kept == [BEFORE],
        says_so="results/fault keeps what is measured. Next: the same command" in printed,
        no_traceback="Traceback" not in printed,
        resumed=second.codes[1:] == [0] and second.measured == [BEFORE, FAULTY, AFTER],
    )
    return Seen(found.text, found.holds, took)


def clock_ahead(folder: Path) -> Seen:
    ended = ladder(folder, "clock")
    blocks = [one["extra_info"]["lockstep"] for one in ended.document.get("benchmarks", ())]
    rounds = [s for block in blocks for rank in block["rank_round_s"] for s in rank]
    flags = {
        str(one)
        for block in blocks
        for one in map(flags_of, block["flags"])
        if one.kind == "clock-off"
    }
    said = (
        f"{len(blocks)} cases measured, flagged: {', '.join(flags)}; rounds of "
        f"{min(rounds, default=0):.1e} to {max(rounds, default=0):.1e} s; exit {ended.codes[0]}"
    )
    return seen(
        ended,
        said,
        flagged=any("3600 s off rank 0's" in flag for flag in flags),
        rounds_are_durations=bool(rounds) and min(rounds) > 0 and max(rounds) < BUDGET_S,
        all_measured=len(blocks) == 3,
        exit_0=ended.codes == [0],
    )


def straggles(folder: Path) -> Seen:
    launched.suite(folder, launched.ROOT / "bench" / "test_weak_scaling.py")
    shutil.copy(launched.SAMPLES / "straggler.py", folder)
    with launched.started(folder) as launch:
        # Nothing hangs here, and this case imports much: a machine that is busy may take its time.
        # So many rounds give the six turns of its variants that show a slow rank.
        launched.begin_ladder(
            launch, "none", "--workload=straggler:slow", "--rounds=35", budget_s=60
        )
        launch.wait()
        ended = launch.ended()
    blocks = [one["extra_info"]["lockstep"] for one in ended.document.get("benchmarks", ())]
    flags = [
        str(one)
        for block in blocks
        for one in map(flags_of, block["flags"])
        if one.kind == "straggler"
    ]
    said = f"{len(blocks)} case measured; flagged: {', '.join(flags)}; exit {ended.codes[0]}"
    return seen(
        ended,
        said,
        measured=bool(blocks),
        flagged=len(flags) == len(blocks) and all("rank 1 on " in flag for flag in flags),
        exit_0=ended.codes == [0],
    )
