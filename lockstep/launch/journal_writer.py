"""What a launch writes: its journal and its JSON, and the folder of stacks next to them."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lockstep.core.errors import AgreedError, RankError
from lockstep.core.flags import flag
from lockstep.core.journal import Journal
from lockstep.core.record import KEY
from lockstep.launch.options import Settings
from lockstep.launch.verdict import Verdict
from lockstep.machine import telemetry
from lockstep.ranks.control import Control
from lockstep.ranks.watchdog import stacks_file

# An NFS client may go on for so long by what it knows of a folder (nfs(5), acdirmax).
SHARED_WITHIN_S = 60.0


@dataclass
class JournalWriter:
    """Writes what a launch measures, on rank 0 alone; all ranks agree on where.

    Attributes:
        name_rank: Returns a rank with its host, in words.
        journal: Open on rank 0, once the ranks have agreed on it.
        broken: Why rank 0 could not write the journal; empty while it can.
        folder: Of the journal, as this host sees it; None where nothing is kept.
        telemetry_file: Where this rank's samples go; None where nothing is kept.
        pending: How the current case ends, unless it still fails; empty while nothing is known.
    """

    settings: Settings
    control: Control
    name_rank: Callable[[int], str]
    journal: Journal | None = None
    broken: str = ""
    folder: Path | None = None
    telemetry_file: Path | None = None
    pending: dict[str, Any] = field(default_factory=dict)
    _has_ended: bool = False  # whether the end of the current case is in the journal

    def open(self) -> Path | None:
        """Open what is written, and keep others out of it, before anything of it is read.

        Returns:
            This rank's file of stacks, or None where nothing is kept.

        Raises:
            AgreedError: A path cannot be written.
            RankError: A rank cannot write there.
        """
        path, result = self.settings.journal_path, self.settings.result_path
        if path is None:
            return None
        if result is not None:
            self._agree("--benchmark-json", result, lambda: self._check_writable(result))
        self._agree("--journal", path, lambda: self._open_journal(path))
        # Without an option for it each rank has made up a path of its own, by the time.
        of_rank_0 = Path(self.control.exchange_all("journal path", str(path.absolute()))[0])
        seen: list[Path] = []
        find = lambda: seen.append(self._find_shared(path, of_rank_0))  # noqa: E731
        self._agree("stacks beside --journal", path, find)
        self.folder = seen[0].parent
        self.telemetry_file = telemetry.file_of(seen[0], self.control.rank)
        return stacks_file(seen[0], self.control.rank)

    def begin(
        self, expected: list[str], document: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        """Begin this session's part of the journal, on rank 0; raises as `open` does.

        `expected` has all cases of the launch; `document` has machine_info, commit_info, datetime
        and version of pytest-benchmark's JSON; `facts` are what the launch says of itself.
        """

        def write_head() -> None:
            if self.journal is not None:
                asked = self.settings
                self.journal.begin_session(
                    {"expected": expected, "document": document, "launch": facts},
                    resume=asked.resume, skip_failed=asked.skip_failed, after=asked.after,
                )  # fmt: skip

        if path := self.settings.journal_path:
            self._agree("head of --journal", path, write_head)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line to the journal, on rank 0."""
        self._write(lambda kept: kept.append(entry))

    def restore(self) -> None:
        """Write again what the journal's file has lost since the last write, on rank 0."""
        self._write(Journal.restore)

    def close(self) -> None:
        """Close the journal."""
        if self.journal:
            self.journal.close()

    def begin_case(self, case: str) -> None:
        """Note in the journal that a case is in flight, on rank 0."""
        self.pending, self._has_ended = {}, False
        self._write(lambda kept: kept.begin(case))

    def note(self, case: str, verdict: Verdict) -> None:
        """Write that a case has failed, whose first failure counts; or note that it is skipped."""
        if verdict.outcome == "skipped":
            self.pending = {"kind": "skip", "case": case, "reason": verdict.reason}
        elif verdict.outcome == "failed":
            causes = [asdict(cause) for cause in verdict.causes]
            facts = {"causes": causes} if causes else {}
            self._end_case({"kind": "fail", "case": case, "reason": verdict.reason} | facts)

    def end_case(
        self, case: str, left: Sequence[Mapping[str, Any]], under: Sequence[Mapping[str, Any]] = ()
    ) -> bool:
        """Write what the case left behind, and how it ended; return whether that is new.

        Each fact is one of `state.LeftBehind`, or for what earlier cases left one of
        `state.Earlier`, with its rank. They become flags of a case that has passed.
        """
        for each in left:
            self.append({"kind": "left", "case": case, "left": each})
        if not self.pending or self._has_ended:
            return False
        block = self.pending.get("benchmark", {}).get("extra_info", {}).get(KEY, {})
        flags = []
        for each in left:
            facts = {name: each[name] for name in ("rank", "before", "after")}
            kind = "left-behind" if each["is_restored"] else "left-in-place"
            flags.append(flag(kind, **facts, what=each["kind"]).to_dict())
        flags += [flag(**each).to_dict() for each in under]
        if flags:
            block.setdefault("flags", []).extend(flags)
        self._end_case(self.pending)
        return True

    def _end_case(self, end: Mapping[str, Any]) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.append(end)

    def _write(self, act: Callable[[Journal], None]) -> None:
        if self.journal is None or self.broken:
            return
        try:
            act(self.journal)
        except OSError as error:
            # The others learn of it with the case's last verdict.
            self.broken = f"the journal {self.journal.path} cannot be written: {error.strerror}"

    def _agree(self, name: str, path: Path, act: Callable[[], None]) -> None:
        """Use a file, or the folder of results, and refuse on all ranks where one cannot."""
        option, problem, is_wrong = name.split()[-1], "", False
        try:
            act()
        except ValueError as error:
            problem, is_wrong = f": {error}; give {option} another file", True
        except OSError as error:
            why = f"cannot write {path}: {error}"
            problem = f" {why}; give {option} a folder that every node sees and may write to"
        answers = self.control.exchange_all(f"write {name}", [problem, is_wrong])
        for rank, (words, is_input) in enumerate(answers):
            if words:
                kind = AgreedError if is_input else RankError
                raise kind(f"{self.name_rank(rank)}{words}", rank)

    def _check_writable(self, path: Path) -> None:
        """Refuse on rank 0 what it could not write at the end, when all is measured."""
        if self.control.rank > 0 or (path.exists() and not path.is_file()):  # as /dev/null
            return
        target = path.resolve()  # of a link to what is not there yet, which stays
        target.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        target.open("ab").close()
        if is_new:
            target.unlink()
        else:  # another will be made in its folder, to take its place
            tempfile.NamedTemporaryFile(dir=target.parent).close()

    def _open_journal(self, path: Path) -> None:
        if self.control.rank == 0:
            self.journal = Journal(path)
            stacks_file(path, 0).parent.mkdir(exist_ok=True)

    def _find_shared(self, path: Path, of_rank_0: Path) -> Path:
        """Return under which of two names this host sees the journal that rank 0 has opened."""
        end = time.monotonic() + min(SHARED_WITHIN_S, self.settings.timeout_s / 2)
        # Rank 0 has made the folder of stacks, whose name no other rank has looked up before.
        while not (seen := [p for p in (path, of_rank_0) if stacks_file(p, 0).parent.is_dir()]):
            if time.monotonic() > end:
                made = stacks_file(of_rank_0, 0).parent
                raise FileNotFoundError(f"this host does not see {made}, which rank 0 has made")
            time.sleep(0.1)
        # A folder that this host sees it may still be unable to write to.
        stacks_file(seen[0], self.control.rank).open("ab").close()
        return seen[0]
