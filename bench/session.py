"""One launch as pytest sees it: who takes part, which cases run, and what becomes of each.

Every rank runs the same session. Before the first case the ranks compare what they collected;
each case begins with a handshake and ends with one verdict, equal on all ranks.

Every rank exits with pytest's codes (1 failed case, 4 wrong options, 5 nothing selected), or with
75: ended in order because the stop file is there, 76: ranks out of step, 78: the machine cannot
measure.
"""

import gc
import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from bench import journal, preflight, sizes, workloads, world
from bench.control import Control
from bench.harness import Harness
from bench.journal import Journal
from bench.record import SCHEMA_VERSION
from bench.timing import ReplayClock

if TYPE_CHECKING:
    from bench.sizes import Size

Outcome = Literal["passed", "failed", "skipped"]

EXIT_USAGE = 4
EXIT_STOPPED = 75
EXIT_OUT_OF_STEP = 76
EXIT_MACHINE = 78
MAX_REASON_CHARACTERS = 4000


@dataclass(frozen=True)
class Settings:
    """What the command line asks of a launch; equal on all ranks.

    Attributes:
        size_name: One of `sizes.SIZES`.
        size: That size with the options' changes.
        device: cpu, cuda, or None for CUDA where there is one.
        timeout_s: Time-out of a collective and of the control plane.
        threads_per_rank: Threads of a rank; None for its share of the cores.
        seed: Seed of parameters and data.
        journal_path: Where finished cases are kept; None keeps none.
        resume: Leave out the cases the journal already holds.
        skip_failed: With resume, leave out those that failed, too.
        part: (K, N) for the K-th of N parts of the selected cases, K from 1; None for all.
        stop_file: Once this file exists, the launch ends before its next case; None for never.
        data_root: Folder for data files.
        labels: What the launcher calls this launch (campaign, launch, repeat).
    """

    size_name: str
    size: "Size"
    device: str | None
    timeout_s: float
    threads_per_rank: int | None
    seed: int
    journal_path: Path | None
    resume: bool
    skip_failed: bool
    part: tuple[int, int] | None
    stop_file: Path | None
    data_root: Path
    labels: dict[str, str]


@dataclass
class LaunchSession:
    """The state of one launch on one rank.

    Attributes:
        num_cases: Cases entered in this session.
        num_expected: Cases of the launch, those of an earlier session included.
        num_left: Cases that are not finished yet.
        stopped: Why the launch ends before its next case; empty while it goes on.
        is_in_step: Whether all ranks agreed on the last case's end.
    """

    settings: Settings
    world: world.World
    control: Control
    clock: ReplayClock
    provenance: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    journal: Journal | None = None
    num_cases: int = 0
    num_expected: int = 0
    num_left: int = 0
    stopped: str = ""
    is_in_step: bool = False

    @property
    def is_voice(self) -> bool:
        """Whether this rank prints and writes."""
        return self.world.rank == 0

    def prepare(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Agree with the other ranks on what will run.

        Returns:
            The items left after those a resumed journal already holds.
        """
        self._check_values(items)
        preflight.compare(self.control, [item.nodeid for item in items], self.settings)
        self.provenance = preflight.gather_provenance(self.world, self.control, self.settings.seed)
        self.flags = tuple(preflight.launch_flags(self.provenance))
        chosen = self._without_measured(items)
        self.num_expected, self.num_left = len(items), len(chosen)
        return chosen

    def open_journal(self, expected: list[str], document: dict[str, Any]) -> None:
        """Begin this session's part of the journal, on rank 0.

        Args:
            expected: Every case of the launch, those of an earlier session included.
            document: machine_info, commit_info, datetime and version of pytest-benchmark's JSON.

        Raises:
            RuntimeError: Rank 0 cannot write it.
        """
        error = ""
        if self.is_voice and self.settings.journal_path is not None:
            try:
                self._open_journal(self.settings.journal_path, expected, document)
            except (OSError, ValueError) as problem:
                error = str(problem)
        if error := self.control.exchange("journal", error)[0]:
            raise RuntimeError(f"the journal cannot be written: {error}")
        self.is_in_step = True

    def _open_journal(self, path: Path, expected: list[str], document: dict[str, Any]) -> None:
        self.journal = Journal(path)
        self.journal.append(
            {
                "kind": "launch",
                "schema": SCHEMA_VERSION,
                "resumed": self.settings.resume and bool(journal.current(journal.read(path))),
                "expected": expected,
                "document": document,
                "launch": self._launch_facts(),
            }
        )

    def enter(self, nodeid: str) -> None:
        """Shake hands before a case: every rank must be about to run the same one.

        Where the stop file is there, `stopped` says so on every rank, and the case is not to run.
        """
        self.num_cases += 1
        self.is_in_step = False
        if self.num_cases == 2:
            # The first case has imported all that cases import. A case collects garbage before it
            # is timed; going through a million imported objects each time would cost more than it.
            gc.collect()
            gc.freeze()
        # Rank 0 looks for all: a shared file system may show the others an older folder.
        mine = {"case": nodeid, "stop": self.is_voice and self._is_stop_asked()}
        there = self.control.exchange(f"{self.num_cases}/enter", mine)
        cases = [other and other["case"] for other in there]
        if any(case != nodeid for case in cases):
            rank = next(r for r, case in enumerate(cases) if case != nodeid)
            pytest.exit(
                f"rank {rank} is at {cases[rank] or 'no case'} while rank {self.world.rank} is at "
                f"{nodeid}; nothing measured from here on could be trusted",
                returncode=EXIT_OUT_OF_STEP,
            )
        if there[0]["stop"]:
            self.is_in_step = True
            self.stopped = self._where_it_stands()

    def _is_stop_asked(self) -> bool:
        path = self.settings.stop_file
        # Unlike Path.exists, this raises for no path: the other ranks wait for an answer.
        return path is not None and os.path.exists(path)  # noqa: PTH110

    def _where_it_stands(self) -> str:
        path = self.settings.journal_path
        return (
            f"{self.settings.stop_file} exists: {self.num_expected - self.num_left} of "
            f"{self.num_expected} cases are finished, {self.num_left} left; remove it and "
            f"run again{f' with --resume --journal={path}' if path else ''}"
        )

    def verdict(self, outcome: Outcome, reason: str) -> tuple[Outcome, str]:
        """Return the outcome of a case that holds on all ranks, and its reason.

        Args:
            outcome: This rank's own: passed, failed or skipped.
            reason: Why, if not passed.
        """
        mine = {"outcome": outcome, "reason": reason[-MAX_REASON_CHARACTERS:]}
        found = self.control.exchange(f"{self.num_cases}/leave", mine)
        outcomes = {rank["outcome"] if rank else "silent" for rank in found}
        if len(outcomes) == 1 and outcome != "failed":
            self.is_in_step = True
            self.num_left -= 1
            return outcome, reason
        return "failed", self._blame(found)

    def keep(self, kind: str, case: str, **facts: Any) -> None:
        """Write one case's end to the journal, on rank 0."""
        if self.journal:
            self.journal.append({"kind": kind, "case": case, **facts})

    def harness(self, node: Any, benchmark: Any) -> Harness:
        """Return what one case works with."""
        return Harness(
            world=self.world,
            control=self.control,
            size=self.settings.size,
            case=f"{self.num_cases}/{node.name}",
            factors=dict(node.callspec.params),
            study=node.get_closest_marker("cases").args[0],
            cores_on_host=preflight.cores_beside(self.provenance["ranks"], self.world.rank),
            seed=self.settings.seed,
            data_root=self.settings.data_root,
            flags=self.flags,
            benchmark=benchmark,
            clock=self.clock,
        )

    def close(self) -> None:
        """Leave the other ranks."""
        gc.unfreeze()
        if self.journal:
            self.journal.close()
        world.leave()
        if self.is_in_step:
            self.control.part()

    def _check_values(self, items: list[pytest.Item]) -> None:
        rows = [item.callspec.params for item in items]  # type: ignore[attr-defined]
        for batch in {row["global_batch"] for row in rows if "global_batch" in row}:
            sizes.check_global_batch(batch, self.world.world_size)
        for spec in {row["workload"] for row in rows if "workload" in row}:
            workloads.make(spec)

    def _without_measured(self, items: list[pytest.Item]) -> list[pytest.Item]:
        path = self.settings.journal_path
        if not (self.settings.resume and path):
            return items
        facts = preflight.measured_with(self.world, self.settings)
        done = preflight.done_before(self.control, path, facts, self.provenance)
        leave_out = {"case", "skip"} | ({"fail"} if self.settings.skip_failed else set())
        return [item for item in items if done.get(item.nodeid) not in leave_out]

    def _launch_facts(self) -> dict[str, Any]:
        return {
            **self.settings.labels,
            "size": self.settings.size_name,
            "rounds": self.settings.size.rounds,
            "warmup_rounds": self.settings.size.warmup_rounds,
            "part": self.settings.part,
            "measured_with": preflight.measured_with(self.world, self.settings),
            "world_size": self.world.world_size,
            "num_nodes": self.world.num_nodes,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "provenance": self.provenance,
        }

    def _blame(self, found: list[Any]) -> str:
        """Return what each rank that did not pass says, with its host and device.

        Ranks that were not there come last: they are why the others waited in vain.
        """
        failed, absent = [], []
        for rank, f in enumerate(found):
            where = self._where(rank)
            if f is None:
                absent.append(f"{where} did not answer")
            elif f["outcome"] == "skipped":
                absent.append(f"{where} skips, but not all ranks do: {f['reason']}")
            elif f["outcome"] == "failed":
                failed.append(f"{where}: {f['reason']}")
        return "\n".join(failed + absent)

    def _where(self, rank: int) -> str:
        facts = self.provenance["ranks"][rank]
        return f"rank {rank} on {facts['host']} ({facts['device']})"


def join(settings: Settings) -> LaunchSession:
    """Join the other ranks of this launch.

    Raises:
        ValueError: The launcher's variables or an option's value are wrong.
        RuntimeError: The ranks do not meet, or a GPU is missing.
    """
    joined = world.join(
        settings.timeout_s, device=settings.device, threads_per_rank=settings.threads_per_rank
    )
    control = Control(joined.store, joined.rank, joined.world_size, settings.timeout_s)
    return LaunchSession(settings, joined, control, ReplayClock())


def parse_part(text: str) -> tuple[int, int]:
    """Read `K/N`, K from 1 to N.

    Raises:
        ValueError: It is written otherwise.
    """
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    part = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= part[0] <= part[1]:
        raise ValueError(f"--part {text!r} is not K/N with K from 1 to N, such as 3/27")
    return part


def of_part(items: list[pytest.Item], part: tuple[int, int] | None) -> list[pytest.Item]:
    """Return the K-th of N parts of the items: every N-th from the K-th on.

    Raises:
        ValueError: That part holds nothing.
    """
    if part is None:
        return items
    number, num_parts = part
    if number > len(items):
        raise ValueError(
            f"--part {number}/{num_parts} holds no case, for {len(items)} are selected; "
            f"choose a part from 1 to {len(items)}"
        )
    return items[number - 1 :: num_parts]


def default_size(device: str | None) -> str:
    """Return the size that suits the device: node where there is a GPU, laptop elsewhere."""
    import torch

    has_gpu = device == "cuda" or (device is None and torch.cuda.is_available())
    return "node" if has_gpu else "laptop"
