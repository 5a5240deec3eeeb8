"""Faults put into real measurements, each beside what should become of it: `make faults`.

`faults.csv` has a line for each, with the function that puts it in, in an empty folder of its own;
its module may have a function `missing` that says what is not there. A row that raises does not
hold; the others follow. Exit code 1 says that a row does not hold, 3 that something is missing.
"""

import argparse
import csv
import importlib
import platform
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fault import Seen  # noqa: E402, since the paths above make it known

TABLE = Path(__file__).with_suffix(".csv")
COLUMNS = ("#", "fault", "injected", "expected", "seen", "detected", "holds", "took")
EXIT_DOES_NOT_HOLD = 1
EXIT_MISSING = 3


def inject(function: str) -> Seen:
    """Return what was seen after a fault, an error of the row included."""
    module, _, name = function.partition(".")
    with tempfile.TemporaryDirectory(prefix="lockstep-fault-") as folder:
        try:
            seen: Seen = getattr(importlib.import_module(module), name)(Path(folder))
        except Exception as error:  # noqa: BLE001, one row must not end the others
            said = " ".join(str(error).split())
            return Seen(f"{type(error).__name__}: {said[-600:]}", holds=False)
    # The page says what was seen, not where it was for a moment.
    return Seen(seen.text.replace(f"{folder}/", ""), seen.holds, seen.detected_s)


def line(*cells: str) -> str:
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
    """Put in what was asked for, and print and log it row by row, as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="N,...", default="", help="the rows of these numbers")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write the table there, too")
    options = parser.parse_args()
    wanted = {number for number in options.only.split(",") if number}
    with TABLE.open(encoding="utf-8", newline="") as file:
        faults = [row for row in csv.DictReader(file) if not wanted or row["number"] in wanted]
    if unknown := wanted - {row["number"] for row in faults}:
        parser.error(f"--only {min(unknown)} is no row")
    modules = sorted({row["inject"].partition(".")[0] for row in faults})
    missing = {name: getattr(importlib.import_module(name), "missing", None) for name in modules}
    if lacking := [f"{name}: {lack}\n" for name, of in missing.items() if of and (lack := of())]:
        sys.stderr.writelines(lacking)
        return EXIT_MISSING
    if options.log:
        options.log.parent.mkdir(parents=True, exist_ok=True)
        options.log.write_text("", encoding="utf-8")

    def write(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        if options.log:
            with options.log.open("a", encoding="utf-8") as log:
                log.write(f"{text}\n")

    started, num_held = time.monotonic(), 0
    write(f"{facts()}\n\n{line(*COLUMNS)}\n{line(*['---'] * len(COLUMNS))}")
    for row in faults:
        began = time.monotonic()
        seen = inject(row["inject"])
        num_held += seen.holds
        detected = "-" if seen.detected_s is None else f"{seen.detected_s:.1f} s"
        cells = (row["number"], row["name"], row["injected"], row["expected"], seen.text, detected)
        write(line(*cells, "yes" if seen.holds else "**NO**", f"{time.monotonic() - began:.0f} s"))
    write(f"\n{num_held} of {len(faults)} rows hold, {time.monotonic() - started:.0f} s.")
    return 0 if num_held == len(faults) else EXIT_DOES_NOT_HOLD


if __name__ == "__main__":
    sys.exit(main())
