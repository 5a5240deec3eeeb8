"""Faults put into real measurements, each beside what should become of it: `make faults`.

Every module `faults_*.py` beside this one exports `FAULTS`, and where it needs more than Python a
function `missing` that says what is not there. A row that raises does not hold; the others follow.
Exit code 1 says that a row does not hold, 3 that what a row needs is missing.
"""

import argparse
import importlib
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fault import Fault, Seen  # noqa: E402, this script's own folder

COLUMNS = ("#", "fault", "injected", "expected", "seen", "detected", "holds", "took")
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
    for fault in faults:
        began = time.monotonic()
        seen = inject(fault)
        took = "-" if seen.detected_s is None else f"{seen.detected_s:.1f} s"
        cells = (fault.name, fault.injected, fault.expected, seen.text, took)
        ends = ("yes" if seen.holds else "**NO**", f"{time.monotonic() - began:.0f} s")
        yield seen, line([str(fault.number), *cells, *ends])


def line(cells: Sequence[str]) -> str:
    """Return cells as a line of a Markdown table."""
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |"


def facts() -> str:
    """Return what the faults were put into."""
    slurm = _version("sinfo", "--version").removeprefix("slurm ")
    apptainer = _version("apptainer", "--version").rpartition(" ")[2]
    return (
        f"Linux {platform.release()}, Slurm {slurm}, Apptainer {apptainer}, "
        f"torch {metadata.version('torch')}, pytest {metadata.version('pytest')}, "
        "gloo on the CPU"
    )


def _version(*command: str) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "-"
    return ended.stdout.strip()


def main() -> int:
    """Put in what was asked for, and print and log it row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="N,...", default="", help="the rows of these numbers")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write the table there, too")
    options = parser.parse_args()
    numbers = [int(number) for number in options.only.split(",") if number]
    faults, lacking = chosen(numbers)
    if unknown := set(numbers) - {fault.number for fault in faults}:
        parser.error(f"--only {min(unknown)} is no row")
    if lacking:
        sys.stderr.write("\n".join([*lacking, ""]))
        return EXIT_MISSING
    with ExitStack() as stack:
        outputs = [sys.stdout]
        if options.log:
            options.log.parent.mkdir(parents=True, exist_ok=True)
            outputs.append(stack.enter_context(options.log.open("w", encoding="utf-8")))
        return _write(faults, outputs)


def _write(faults: Sequence[Fault], outputs: Sequence[TextIO]) -> int:
    """Write the table to all outputs, each row as it ends, and return the exit code."""

    def write(text: str) -> None:
        for output in outputs:
            output.write(f"{text}\n")
            output.flush()

    began = time.monotonic()
    write(f"{facts()}\n\n{line(COLUMNS)}\n{line(['---'] * len(COLUMNS))}")
    held = 0
    for seen, text in rows(faults):
        held += seen.holds
        write(text)
    write(f"\n{held} of {len(faults)} rows hold, {time.monotonic() - began:.0f} s.")
    return 0 if held == len(faults) else EXIT_DOES_NOT_HOLD


if __name__ == "__main__":
    sys.exit(main())
