"""Hostile contents for every reader of files that others may have written: `make fuzz`.

A content is good when its reader returns, or refuses it in a sentence, within its time and memory.
What else happens is a finding: the least content that shows it is written into tests/data/fuzz,
where tests/chaos/test_fuzz.py reads it from then on.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import fuzz_readers  # noqa: E402, this script's own folder

FOUND = ROOT / "tests" / "data" / "fuzz"
CHILD = ROOT / "tests" / "chaos" / "fuzz_child.py"
# To import, to make the samples, and to minimise what was found.
SLACK_S = 300
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108, contents are written a thousand times a second


@dataclass(frozen=True)
class Seen:
    """What became of one reader.

    Attributes:
        name: The reader.
        engine: What made the contents.
        inputs: How many were read.
        refused: How many of them were refused in a sentence.
        seconds: How long that took.
        faults: What went wrong -> the least content that shows it.
    """

    name: str
    engine: str
    inputs: int
    refused: int
    seconds: float
    faults: dict[str, bytes]

    def row(self) -> str:
        """Return it as a line of the table."""
        rate = self.inputs / self.seconds if self.seconds else 0.0
        refused = self.refused / max(1, self.inputs)
        return (
            f"{self.name:<11} {self.engine:<10} {self.seconds:>7.0f} {self.inputs:>10} "
            f"{rate:>9.0f} {refused:>8.0%} {len(self.faults):>9}"
        )


HEADER = "reader      engine     seconds     inputs  inputs/s  refused  findings"


def fuzz(name: str, seconds: float, seed: int) -> Seen:
    """Fuzz one reader in a process of its own."""
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        folder, report = Path(temporary) / "folder", Path(temporary) / "report.json"
        folder.mkdir()
        words = (name, seconds, seed, folder, report)
        ended = _end_of_child([str(word) for word in words], seconds + SLACK_S)
        if not report.exists():  # it died, or hangs, over what still stands there
            last = folder / fuzz_readers.READERS[name].place
            content = last.read_bytes() if last.exists() else b""
            return Seen(name, "?", 0, 0, 0.0, {ended: content})
        told = json.loads(report.read_text())
    told["faults"] = {key: value.encode("latin-1") for key, value in told["faults"].items()}
    return Seen(name=name, **told)


def _end_of_child(words: list[str], patience_s: float) -> str:
    """Let the child read until its time is over, and return how it ended."""
    try:
        ended = subprocess.run(
            [sys.executable, CHILD, *words],
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            check=False,
        )
    except subprocess.TimeoutExpired:  # a reader that waits takes none of its processor time
        return f"did not end within {patience_s:g} s"
    return f"ended with {ended.returncode}: {' / '.join(ended.stderr.strip().splitlines()[-3:])}"


def keep(seen: Seen) -> list[str]:
    """Write what shows each fault into a file, and return lines that say where."""
    lines = []
    for fault, content in seen.faults.items():
        path = FOUND / seen.name / f"{crc32(content):08x}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        found = {"fault": fault, "content": content.decode("latin-1")}  # which has all bytes
        path.write_text(json.dumps(found, indent=1) + "\n")
        lines.append(f"  {seen.name}: {fault}: {path.relative_to(ROOT)} ({len(content)} bytes)")
    return lines


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def main() -> int:
    """Fuzz the readers one after the other; return 1 where one has a finding."""
    parser = argparse.ArgumentParser(description="Feed hostile contents to every reader.")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each reader [60]")
    parser.add_argument("--only", default=",".join(fuzz_readers.READERS), help="readers, by commas")
    parser.add_argument("--seed", type=int, default=1, help="of what is changed, and how [1]")
    given = parser.parse_args()
    names = given.only.split(",")
    if unknown := set(names) - set(fuzz_readers.READERS):
        parser.error(f"no reader {unknown}; choose from {', '.join(fuzz_readers.READERS)}")
    _say(HEADER)
    found = 0
    for name in names:
        seen = fuzz(name, given.seconds, given.seed)
        _say(seen.row(), *keep(seen))
        found += len(seen.faults)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
