"""One launch as pytest sees it: who takes part, which cases run, and what becomes of each.

Every rank runs the same session. Before the first case the ranks compare what they collected;
each case begins with a handshake and ends with one verdict, equal on all ranks.
"""

import gc
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
    data_root: Path
    labels: dict[str, str]


@dataclass
class LaunchSession:
    """The state of one launch on one rank.

    Attributes:
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
        return self._without_measured(items)

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
        """Shake hands before a case: every rank must be about to run the same one."""
        self.num_cases += 1
        self.is_in_step = False
        if self.num_cases == 2:
            # The first case has imported all that cases import. A case collects garbage before it
            # is timed; going through a million imported objects each time would cost more than it.
            gc.collect()
            gc.freeze()
        there = self.control.exchange(f"{self.num_cases}/enter", nodeid)
        if any(other != nodeid for other in there):
            rank = next(r for r, other in enumerate(there) if other != nodeid)
            pytest.exit(
                f"rank {rank} is at {there[rank] or 'no case'} while rank {self.world.rank} is at "
                f"{nodeid}; nothing measured from here on could be trusted",
                returncode=EXIT_OUT_OF_STEP,
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
            seed=self.settings.seed,
            data_root=self.settings.data_root,
            flags=self.flags,
            benchmark=benchmark,
            clock=self.clock,
        )

    def close(self) -> None:
        """Leave the other ranks."""
        gc.unfreeze()
        if self.is_in_step:
            # Rank 0 may serve the store: it stays until the others have read the last verdict.
            self.control.exchange("leaving", self.world.rank)
        if self.journal:
            self.journal.close()
        world.leave()

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


def default_size(device: str | None) -> str:
    """Return the size that suits the device: node where there is a GPU, laptop elsewhere."""
    import torch

    has_gpu = device == "cuda" or (device is None and torch.cuda.is_available())
    return "node" if has_gpu else "laptop"
