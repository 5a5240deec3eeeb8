"""Faults put into real measurements, each beside what should become of it: `make faults`.

Every module `faults_*.py` beside this one exports `FAULTS`, and where it needs more than Python a
function `missing` that says what is not there. A row that raises does not hold; the others follow.
Exit code 1 says that a row does not hold, 3 that what a row needs is missing.
"""

import argparse
import importlib
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fault import Fault, Seen  # noqa: E402, this script's own folder

COLUMNS = ("#", "fault", "injected", "expected", "seen", "detected", "holds", "date")
NO = "**NO**"
EXIT_DOES_NOT_HOLD = 1
EXIT_MISSING = 3


def chosen(numbers: Sequence[int]) -> tuple[list[Fault], list[str]]:
    """Return the faults of all modules by number, and what some of them lack here.

    Args:
        numbers: Which; empty for all.
    """
    faults: list[Fault] = []
    lacking: list[str] = []
    for path in sorted(Path(__file__).parent.glob("faults_*.py")):
        module = importlib.import_module(path.stem)
        own = [one for one in module.FAULTS if not numbers or one.number in numbers]
        if own and hasattr(module, "missing") and (lack := module.missing()):
            lacking.append(f"{path.stem}: {lack}")
        faults += own
    return sorted(faults, key=lambda one: one.number), lacking


def inject(fault: Fault) -> Seen:
    """Return what was seen after a fault, an error of the row included."""
    with tempfile.TemporaryDirectory(prefix="lockstep-fault-") as folder:
        try:
            seen = fault.inject(Path(folder))
            # The page says what was seen, not where it was for a moment.
            return replace(seen, text=seen.text.replace(f"{folder}/", ""))
        except Exception as error:  # noqa: BLE001, one row must not end the others
            said = " ".join(str(error).split())
            return Seen(f"{type(error).__name__}: {said[-600:]}", holds=False)


def rows(faults: Sequence[Fault]) -> Iterator[tuple[Seen, str]]:
    """Yield what was seen of each fault, and its line of the table, as soon as it is known."""
    at = commit()
    for fault in faults:
        seen = inject(fault)
        took = "-" if seen.detected_s is None else f"{seen.detected_s:.1f} s"
        told = (fault.name, fault.injected, fault.expected, seen.text, took)
        verdict = "yes" if seen.holds else NO
        cells = [str(fault.number), *told, verdict, f"{datetime.now(UTC):%Y-%m-%d} {at}"]
        yield seen, line(cells)


def line(cells: Sequence[str]) -> str:
    """Return cells as a line of a Markdown table."""
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |"


def head() -> str:
    """Return the first two lines of the table."""
    return f"{line(COLUMNS)}\n{line(['---'] * len(COLUMNS))}"


def keep(path: Path, text: str) -> None:
    """Put a row into a page, in the place of what an earlier run saw of the same fault."""
    known = {_key(one): one for one in path.read_text().splitlines()} if path.exists() else {}
    known[_key(text)] = text
    lines = [known[key] for key in sorted(key for key in known if key is not None)]
    path.write_text(page(lines), encoding="utf-8")


def _key(text: str) -> tuple[int, str] | None:
    """Return a row's number and fault; None of any other line."""
    found = re.match(r"\| (\d+) \| (.*?) \|", text)
    return (int(found[1]), found[2]) if found else None


def page(lines: Sequence[str]) -> str:
    """Return the table as a page, with what a reader must know to repeat it."""
    held = sum(NO not in one for one in lines)
    return "\n".join(
        [
            "# Faults, and what becomes of them",
            "",
            f"{held} of {len(lines)} faults end as expected. By `make faults`, the latest with",
            f"{facts()}.",
            "",
            "Each fault was put into a real measurement. `detected` counts from the fault to the",
            "first sign that names it; a dash says that no clock ran. `date` is that of the row,",
            "with the commit that it was run at.",
            "",
            head(),
            *lines,
            "",
        ]
    )


def facts() -> str:
    """Return what the faults were put into."""
    slurm = _version("sinfo", "--version").removeprefix("slurm ")
    apptainer = _version("apptainer", "--version").rpartition(" ")[2]
    return (
        f"Linux {platform.release()}, Slurm {slurm}, Apptainer {apptainer}, "
        f"torch {metadata.version('torch')}, pytest {metadata.version('pytest')}, "
        "gloo on the CPU"
    )


def commit() -> str:
    """Return the short commit of what is run, marked where files differ; a dash without git."""
    git = ("git", "-c", "safe.directory=*", "-C", str(ROOT))
    known = _version(*git, "rev-parse", "--short", "HEAD").strip("-")
    # Each row that is kept changes the page, and no document changes what is run.
    changes = _version(*git, "status", "--porcelain", "--untracked-files=no", "--", ":!*.md")
    return f"{known}-dirty" if known and changes else known or "-"


def _version(*command: str) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "-"
    return ended.stdout.strip()


def main() -> int:
    """Put in what was asked for and print it row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", metavar="N,...", default="", help="only the rows of these numbers"
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="keep the rows in this page, the latest of each"
    )
    asked = parser.parse_args()
    numbers = [int(number) for number in asked.only.split(",") if number]
    faults, lacking = chosen(numbers)
    if unknown := set(numbers) - {one.number for one in faults}:
        known = ", ".join(str(number) for number in sorted({one.number for one in chosen([])[0]}))
        parser.error(f"--only {min(unknown)} is no row; rows are {known}")
    if lacking:
        sys.stderr.write("\n".join([*lacking, ""]))
        return EXIT_MISSING
    sys.stdout.write(head() + "\n")
    started = time.perf_counter()
    seen = []
    for one, text in rows(faults):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        seen.append(one)
        if asked.page:
            keep(asked.page, text)
    held = sum(one.holds for one in seen)
    summary = f"{held} of {len(seen)} rows hold, {time.perf_counter() - started:.0f} s."
    sys.stdout.write(f"\n{summary}\n")
    return 0 if held == len(seen) else EXIT_DOES_NOT_HOLD


if __name__ == "__main__":
    sys.exit(main())
