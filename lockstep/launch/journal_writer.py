"""The files that a launch writes: journal, JSON and stacks."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lockstep.core.errors import AgreedError, RankError
from lockstep.core.flags import flag
from lockstep.core.journal import Journal
from lockstep.core.record import KEY
from lockstep.launch.options import Settings
from lockstep.launch.verdict import Verdict
from lockstep.machine import telemetry
from lockstep.ranks.control import Control
from lockstep.ranks.watchdog import stacks_file

Result = TypeVar("Result")
# An NFS client may use its cached list of a folder for so long (nfs(5), acdirmax).
SHARED_WITHIN_S = 60.0


@dataclass
class JournalWriter:
    """Writes the journal on rank 0; all ranks agree on its path."""

    settings: Settings
    control: Control
    name_rank: Callable[[int], str]
    journal: Journal | None = None  # open on rank 0 after the ranks agreed on its path
    broken: str = ""  # why rank 0 could not write the journal
    folder: Path | None = None  # the journal's folder on this host; None without a journal
    telemetry_file: Path | None = None  # file of this rank
    pending: dict[str, Any] = field(default_factory=dict)  # end of the case, unless it fails later
    _has_ended: bool = False  # whether the end of the current case is in the journal

    def open(self) -> Path | None:
        """Open the journal, and return this rank's file of stacks; None without a journal."""
        path, result = self.settings.journal_path, self.settings.result_path
        if path is None:
            return None
        if result is not None:
            self._agree("--benchmark-json", result, lambda: self._check_writable(result))
        self._agree("--journal", path, lambda: self._open_journal(path))
        # Without --journal each rank made a path of the present time; rank 0's path counts.
        of_rank_0 = Path(self.control.exchange_all("journal path", str(path.absolute()))[0])
        find = partial(self._find_shared, path, of_rank_0)
        seen = self._agree("stacks beside --journal", path, find)
        self.folder = seen.parent
        self.telemetry_file = telemetry.file_of(seen, self.control.rank)
        return stacks_file(seen, self.control.rank)

    def begin(
        self, expected: list[str], document: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        """Write the head of this session on rank 0, see `Journal.begin_session`."""
        settings, lines = self.settings, self.journal
        head = {"expected": expected, "document": document, "launch": facts}
        write = partial(lines.begin_session, head, settings) if lines else lambda: None
        if settings.journal_path:
            self._agree("head of --journal", settings.journal_path, write)

    def append(self, entry: Mapping[str, Any]) -> None:
        self._write(lambda lines: lines.append(entry))

    def restore(self) -> None:
        self._write(Journal.restore)

    def close(self) -> None:
        if self.journal:
            self.journal.close()

    def begin_case(self, case: str) -> None:
        self.pending, self._has_ended = {}, False
        self._write(lambda lines: lines.begin(case))

    def note(self, case: str, verdict: Verdict) -> None:
        """Write a failed case, once; keep a skipped case in `pending` until its end."""
        if verdict.outcome == "skipped":
            self.pending = {"kind": "skip", "case": case, "reason": verdict.reason}
        elif verdict.outcome == "failed":
            causes = [asdict(cause) for cause in verdict.causes]
            facts = {"causes": causes} if causes else {}
            self._end_case({"kind": "fail", "case": case, "reason": verdict.reason} | facts)

    def end_case(
        self, case: str, left: Sequence[Mapping[str, Any]], under: Sequence[Mapping[str, Any]] = ()
    ) -> bool:
        """Write what a case left behind, and its end; return whether the end is new.

        `left` has facts of `state.LeftBehind` and `under` of `state.Earlier`; both become flags of
        a passed case.
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
            # The case's last verdict carries this message to the other ranks.
            self.broken = f"the journal {self.journal.path} cannot be written: {error.strerror}"

    def _agree(self, name: str, path: Path, act: Callable[[], Result]) -> Result:
        """Call `act` for a file on this rank; if any rank fails, raise an error on all ranks."""
        option, problem, is_wrong = name.split()[-1], "", False
        try:
            result = act()
        except ValueError as error:
            problem, is_wrong = f": {error}; give {option} another file", True
        except OSError as error:
            problem = (
                f" cannot write {path}: {error}; choose a folder for {option} that every node can "
                "see and write to"
            )
        answers = self.control.exchange_all(f"write {name}", [problem, is_wrong])
        for rank, (words, is_input) in enumerate(answers):
            if words:
                kind = AgreedError if is_input else RankError
                raise kind(f"{self.name_rank(rank)}{words}", rank)
        return result

    def _check_writable(self, path: Path) -> None:
        if self.control.rank > 0 or (path.exists() and not path.is_file()):  # /dev/null
            return
        target = path.resolve()  # a link stays, even a link to a missing file
        target.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        target.open("ab").close()
        if is_new:
            target.unlink()
        else:  # a new file in the same folder will replace it
            tempfile.NamedTemporaryFile(dir=target.parent).close()

    def _open_journal(self, path: Path) -> None:
        if self.control.rank == 0:
            self.journal = Journal(path)
            stacks_file(path, 0).parent.mkdir(exist_ok=True)

    def _find_shared(self, path: Path, of_rank_0: Path) -> Path:
        """Return which of two paths leads to rank 0's journal on this host."""
        end = time.monotonic() + min(SHARED_WITHIN_S, self.settings.timeout_s / 2)
        # Rank 0 made the folder of stacks, a name that no other rank has in its cache.
        while not (seen := [p for p in (path, of_rank_0) if stacks_file(p, 0).parent.is_dir()]):
            if time.monotonic() > end:
                made = stacks_file(of_rank_0, 0).parent
                raise FileNotFoundError(
                    f"this host does not see the folder {made} that rank 0 has made"
                )
            time.sleep(0.1)
        # This host may see the folder, but not be allowed to write into it.
        stacks_file(seen[0], self.control.rank).open("ab").close()
        return seen[0]
