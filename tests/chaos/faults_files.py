"""Faults of the files that launches write and read: a full disk, another checkout, a cut result."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import launched
from fault import Seen
from launched import HUNG_S, alone, ladder, seen

BEFORE, FAULTY, AFTER = "test_a_before", "test_b_breaks", "test_c_after"
NO_SPACE = "No space left on device"
CUT_BYTES = 3000


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Give a file system of 1 MiB, and the file in it that is to fill it."""
    if os.geteuid() != 0:
        raise RuntimeError("only root may mount a small disk; run this row as root")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        yield folder / "filler"
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def disk_full(folder: Path) -> Seen:
    launched.suite(folder)
    with small_disk(folder / "small") as filler:
        where = ("--journal=small/out.journal.jsonl", "--benchmark-json=small/out.json")
        first = alone(folder, "fill", *where, FAULT_FILL=str(filler), FAULT_RANK="0")
        sizes = [path.stat().st_size for path in (folder / "small").glob("*.json")]
        filler.unlink()
        second = alone(folder, "none", *where, "--resume")
    kept = list(first.ends("case"))
    # The line of the JSON, which finds no room either, names the journal, too.
    sentence = first.line(f"the journal .*cannot be written: {NO_SPACE}")
    said = (
        f"ranks exit {first.codes}; said: {sentence or 'nothing'}; kept: {len(kept)} case; with "
        f"room again: {len(second.measured)} cases, exit {second.codes}"
    )
    return seen(
        first,
        said,
        all_exit_74=first.codes == [74, 74],
        said_the_journal="out.journal.jsonl" in sentence,
        # A small line may still fit into the page that its file has.
        finished_case_kept=kept[:1] == [BEFORE],
        no_empty_JSON=0 not in sizes,
        resumed=second.codes == [0, 0] and second.measured == [BEFORE, FAULTY, AFTER],
        in_time=(first.detected_s or HUNG_S) < HUNG_S,
    )


def disk_full_under_ladder(folder: Path) -> Seen:
    with small_disk(folder / "results") as filler:
        ended = ladder(folder, "fill", FAULT_FILL=str(filler), FAULT_RANK="0")
    kept = list(ended.ends("case"))
    sentence = next(iter(re.findall(r"^Error: .*$", ended.said, re.MULTILINE)), "")
    said = f"exit {ended.codes[0]}; {sentence or 'nothing said'}; kept: {len(kept)} case"
    return seen(
        ended,
        said,
        exit_3=ended.codes == [3],
        names_the_file=NO_SPACE in sentence and "results/fault" in sentence,
        # A small line may still fit into the page that its file has.
        finished_case_kept=kept[:1] == [BEFORE],
        in_time=(ended.detected_s or HUNG_S) < HUNG_S,
    )


def another_checkout(folder: Path) -> Seen:
    launched.suite(folder)
    other = folder / "other"
    other.mkdir()
    launched.suite(other)
    with (other / "lockstep" / "measure" / "timing.py").open("a") as file:
        file.write("# Timed otherwise.\n")
    ended = alone(folder, "none", bench_of_rank_1="other/bench")
    sentence = ended.line("rank 1 runs with suite ").strip("! ")
    said = f"ranks exit {ended.codes}; {sentence}; journal lines: {len(ended.lines)}"
    return seen(
        ended,
        said,
        all_exit_78=ended.codes == [78, 78],
        said_the_suite=bool(sentence),
        no_case_ran=not any(ended.told.values()) and not ended.lines,
    )


def result_cut(folder: Path) -> Seen:
    launched.suite(folder)
    with launched.started(folder) as launch:
        launched.begin_ladder(launch, "none", "--world-sizes=1,2")
        launch.wait()
        ended = launch.ended()
    results = folder / "results" / "fault"
    broken = results / "launches" / "w2-r0"
    os.truncate(broken / "result.json", CUT_BYTES)
    mended = _report(folder)
    journal = broken / "journal.jsonl"
    journal.write_text(journal.read_text().replace("\n", "\n{\n", 1))
    marked = _report(folder)
    page = results / "report.html"
    has_page = page.exists()
    said = (
        f"measured: exit {ended.codes[0]}; report: exit {mended.returncode}; with the journal "
        f"broken, too: exit {marked.returncode}, {'a page' if has_page else 'no page'}, "
        f"{' '.join(marked.stderr.split())[:300]}"
    )
    return seen(
        ended,
        said,
        exit_0_of_the_journal=mended.returncode == 0,
        exit_1=marked.returncode == 1,
        a_page=has_page,
        names_it="w2-r0" in marked.stderr and has_page and "w2-r0" in page.read_text(),
    )


def _report(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lockstep", "report", "results/fault", "--force"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
