"""What a launch writes: its journal and its JSON, and the folder of stacks next to them."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lockstep.core import journal
from lockstep.core.errors import AgreedError, RankError
from lockstep.core.flags import flag
from lockstep.core.journal import Journal
from lockstep.core.record import KEY, SCHEMA_VERSION, FailureCause
from lockstep.launch.options import Settings
from lockstep.machine import telemetry
from lockstep.ranks.control import Control
from lockstep.ranks.watchdog import stacks_file

# An NFS client may go on for so long by what it knows of a folder (nfs(5), acdirmax).
SHARED_WITHIN_S = 60.0


@dataclass
class Keeper:
    """Keeps what a launch measures; rank 0 alone writes, and all ranks agree on where.

    Attributes:
        where: Rank -> the rank with its host, in words.
        journal: Open on rank 0, once the ranks have agreed on it.
        broken: Why rank 0 could not write the journal; empty while it can.
        folder: Of the journal, as this host sees it; None where nothing is kept.
        telemetry_file: Where this rank's samples go; None where nothing is kept.
    """

    settings: Settings
    control: Control
    where: Callable[[int], str]
    journal: Journal | None = None
    broken: str = ""
    folder: Path | None = None
    telemetry_file: Path | None = None

    @property
    def is_voice(self) -> bool:
        """Whether this rank writes."""
        return self.control.rank == 0

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
        there = Path(self.control.exchange_all("journal path", str(path.absolute()))[0])
        seen: list[Path] = []
        self._agree("stacks beside --journal", path, lambda: seen.append(self._shared(path, there)))
        self.folder = seen[0].parent
        self.telemetry_file = telemetry.file_of(seen[0], self.control.rank)
        return stacks_file(seen[0], self.control.rank)

    def begin(
        self, expected: list[str], document: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        """Begin this session's part of the journal, on rank 0.

        `expected` has all cases of the launch; `document` has machine_info, commit_info, datetime
        and version of pytest-benchmark's JSON; `facts` are what the launch says of itself.

        Raises:
            AgreedError: It is no journal.
            RankError: Rank 0 cannot write it.
        """
        path = self.settings.journal_path
        if path is not None:
            self._agree(
                "head of --journal", path, lambda: self._begin_journal(expected, document, facts)
            )

    def keep(self, end: Mapping[str, Any]) -> None:
        """Write one case's end to the journal, on rank 0."""
        self._write(lambda kept: kept.append(end))

    def note_begin(self, case: str) -> None:
        """Note in the journal that a case is in flight, on rank 0."""
        self._write(lambda kept: kept.begin(case))

    def restore(self) -> None:
        """Write again what the journal's file has lost since the last write, on rank 0."""
        self._write(Journal.restore)

    def close(self) -> None:
        """Close the journal."""
        if self.journal:
            self.journal.close()

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
        there = self.control.exchange_all(f"write {name}", [problem, is_wrong])
        for rank, (said, is_input) in enumerate(there):
            if said:
                kind = AgreedError if is_input else RankError
                raise kind(f"{self.where(rank)}{said}", rank)

    def _check_writable(self, path: Path) -> None:
        """Refuse on rank 0 what it could not write at the end, when all is measured."""
        if not self.is_voice:
            return
        if path.exists() and not path.is_file():  # as /dev/null
            return
        if path.exists():
            path.open("ab").close()
            # another will be made in its folder, to take its place
            tempfile.NamedTemporaryFile(dir=path.resolve().parent).close()
            return
        target = path.resolve()  # of a link to what is not there yet, which stays
        target.parent.mkdir(parents=True, exist_ok=True)
        target.open("ab").close()
        target.unlink()

    def _open_journal(self, path: Path) -> None:
        if self.is_voice:
            self.journal = Journal(path)
            stacks_file(path, 0).parent.mkdir(exist_ok=True)

    def _shared(self, path: Path, of_rank_0: Path) -> Path:
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

    def _begin_journal(
        self, expected: list[str], document: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        if self.journal is None:
            return
        path = self.journal.path
        flight = journal.in_flight(path)
        self.journal.append(
            {
                "kind": "launch",
                "schema": SCHEMA_VERSION,
                "resumed": self.settings.resume and bool(journal.current(journal.read(path))),
                "skips_failed": self.settings.skip_failed,
                "expected": expected,
                "document": document,
                "launch": facts,
            }
        )
        if flight and self.settings.resume and self.settings.skip_failed:
            self.keep(journal.crash(flight, self.settings.after))

    def _write(self, act: Callable[[Journal], None]) -> None:
        if self.journal is None or self.broken:
            return
        try:
            act(self.journal)
        except OSError as error:
            # The others learn of it with the case's last verdict.
            self.broken = f"the journal {self.journal.path} cannot be written: {error.strerror}"


@dataclass
class CaseEnd:
    """How a case ends, as the journal is to hold it: once, and on rank 0 alone.

    Attributes:
        pending: What is written unless the case still fails; empty while there is nothing.
    """

    keeper: Keeper
    case: str
    pending: dict[str, Any] = field(default_factory=dict)
    is_kept: bool = False

    def skip(self, reason: str) -> None:
        """Note that the case is skipped."""
        self.pending = {"kind": "skip", "case": self.case, "reason": reason}

    def fail(self, reason: str, causes: Sequence[FailureCause]) -> None:
        """Write that the case has failed; its first failure counts."""
        facts = {"causes": [asdict(cause) for cause in causes]} if causes else {}
        self._keep({"kind": "fail", "case": self.case, "reason": reason} | facts)

    def finish(
        self, left: Sequence[Mapping[str, Any]], under: Sequence[Mapping[str, Any]] = ()
    ) -> bool:
        """Write what the case left behind, and how it ended; return whether that is new.

        Each fact is one of `state.LeftBehind`, or for what earlier cases left one of
        `state.Earlier`, with its rank.
        """
        for each in left:
            self.keeper.keep({"kind": "left", "case": self.case, "left": each})
        if not self.pending or self.is_kept:
            return False
        _flag(self.pending, left, under)
        self._keep(self.pending)
        return True

    def _keep(self, end: Mapping[str, Any]) -> None:
        if not self.is_kept:
            self.is_kept = True
            self.keeper.keep(end)


def _flag(
    end: dict[str, Any], left: Sequence[Mapping[str, Any]], under: Sequence[Mapping[str, Any]]
) -> None:
    """Flag a case that was measured in another state than its launch has."""
    block = end.get("benchmark", {}).get("extra_info", {}).get(KEY, {})
    for each in left:
        facts = {name: each[name] for name in ("rank", "before", "after")} | {"what": each["kind"]}
        made = flag("left-behind" if each["is_restored"] else "left-in-place", **facts)
        block.setdefault("flags", []).append(made.to_dict())
    for each in under:
        block.setdefault("flags", []).append(flag(**each).to_dict())
