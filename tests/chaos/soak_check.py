"""How the soaks strike a process, and what must hold of a campaign's folder at any moment.

The journals are read by the rules of fuzz_ranks_check.py, not by the suite's own reader.
"""

import contextlib
import json
import shutil
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil
from fuzz_ranks_check import fenced

FROZEN_S = 8.0
WRONGS = ("lost", "doubled", "mixed", "invalid")


@dataclass
class Watch:
    """A campaign's folder, and what it held when it was last looked at.

    Attributes:
        folder: The campaign's results.
        finished: Launch -> its cases that were measured.
        said: What was found wrong, in one sentence each.
    """

    folder: Path
    finished: dict[str, set[str]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def look(self) -> Counter[str]:
        """Return how much is wrong now, by kind.

        Ranks may be writing: a copy is looked at, which stands still.
        """
        wrong: Counter[str] = Counter()
        with tempfile.TemporaryDirectory(prefix="lockstep-soak-look-") as still:
            copy = Path(still)
            for path in sorted(self.folder.glob("launches/*/journal.jsonl")):
                name = path.parent.name
                (copy / name).mkdir()
                # The result first: it is made of the journal, which may grow meanwhile.
                for file in (path.with_name("result.json"), path):
                    if file.exists():
                        shutil.copy(file, copy / name)
                self._look_at(name, copy / name, wrong)
        return wrong

    def _look_at(self, name: str, folder: Path, wrong: Counter[str]) -> None:
        try:
            self._compare(name, folder, wrong)
        except (ValueError, KeyError, TypeError) as error:
            self._say(wrong, "invalid", f"{name}: {error!r}")

    def _compare(self, name: str, folder: Path, wrong: Counter[str]) -> None:
        lines = fenced(folder / "journal.jsonl")
        measured = [line["case"] for line in lines if line["kind"] == "case"]
        before = self.finished.get(name, set())
        for case in sorted(before - set(measured)):
            self._say(wrong, "lost", f"{name}: {case} was finished and is no more")
        for case, count in Counter(measured).items():
            if count > 1:
                self._say(wrong, "doubled", f"{name}: {case} was measured {count} times")
        self.finished[name] = before | set(measured)
        self._compare_rebuilt(name, folder, lines, wrong)
        _compare_result(folder)

    def _compare_rebuilt(
        self, name: str, folder: Path, lines: list[dict[str, Any]], wrong: Counter[str]
    ) -> None:
        """Compare what the suite makes of a journal with its lines."""
        from lockstep.core import journal

        if not lines:
            return
        own = {line["case"]: line for line in lines if line["kind"] in ("case", "skip", "fail")}
        expected = [line["benchmark"] for line in own.values() if line["kind"] == "case"]
        found = journal.rebuild(folder / "journal.jsonl")["benchmarks"]
        names = [entry["fullname"] for entry in found]
        if len(set(names)) < len(names):
            self._say(wrong, "doubled", f"{name}: a case stands twice in what is rebuilt: {names}")
        strangers = [entry["fullname"] for entry in found if entry not in expected]
        for stranger in strangers:
            self._say(wrong, "mixed", f"{name}: {stranger} is of another attempt")

    def _say(self, wrong: Counter[str], kind: str, sentence: str) -> None:
        wrong[kind] += 1
        self.said.append(f"{kind}: {sentence}")

    def unfinished(self) -> list[str]:
        """Return the cases that are neither measured nor skipped, as `launch: case`."""
        found = []
        for path in sorted(self.folder.glob("launches/*/journal.jsonl")):
            lines = fenced(path)
            heads = [line for line in lines if line["kind"] == "launch"]
            done = {line["case"] for line in lines if line["kind"] in ("case", "skip")}
            expected = heads[-1]["expected"] if heads else ["no launch"]
            found += [f"{path.parent.name}: {case}" for case in expected if case not in done]
        return found


def _compare_result(folder: Path) -> None:
    """Refuse a result that is no JSON, or holds what its journal does not.

    Raises:
        ValueError: It is so.
    """
    path = folder / "result.json"
    if not path.exists():
        return
    document = json.loads(path.read_text(encoding="utf-8"))
    kept = [line.get("benchmark") for line in fenced(folder / "journal.jsonl")]
    for entry in document["benchmarks"]:
        if entry not in kept:
            raise ValueError(f"result.json holds {entry['fullname']}, its journal does not")


def strike(process: psutil.Process, name: str, random: Random) -> bool:
    """Send a signal, and return whether there was still somebody to get it.

    What is frozen thaws after a while, or is killed, unless its launcher has killed it by then.
    """
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False  # it would take any signal, and has ended
        process.send_signal(getattr(signal, name))
    except psutil.NoSuchProcess:
        return False
    if name == "SIGSTOP":
        time.sleep(random.uniform(0, FROZEN_S))
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(random.choice((signal.SIGCONT, signal.SIGKILL)))
    return True


def end(process: psutil.Process) -> str:
    """Kill a process that should have ended by itself, and return which it was."""
    said = f"{process.pid} {command(process)[:200]}"
    with contextlib.suppress(psutil.Error):  # which it may do still
        process.kill()
    return said


def command(process: psutil.Process) -> str:
    """Return a process's command line, or a question mark where it has none any more."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "?"
