"""One launch as pytest sees it: who takes part, which cases run, and what becomes of each.

Every rank runs the same session. Before the first case the ranks compare what they collected;
each case begins with a handshake and ends with one verdict, equal on all ranks.
"""

import gc
import importlib
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from bench import journal, provenance, sizes, workloads, world
from bench.control import Control
from bench.harness import Harness
from bench.journal import Journal
from bench.record import KEY, SCHEMA_VERSION, pooling_facts
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
    """The state of one launch on one rank."""

    settings: Settings
    world: world.World
    control: Control
    clock: ReplayClock
    provenance: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    journal: Journal | None = None
    num_cases: int = 0

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
        _spare_imports_from_collection()
        expected = [item.nodeid for item in items]
        facts = [expected, asdict(self.settings.size), self.settings.seed]
        self._refuse_differences(self.control.exchange("collected", facts))
        self._gather_provenance()
        return self._without_measured(items)

    def open_journal(self, expected: list[str], document: dict[str, Any]) -> None:
        """Begin this session's part of the journal, on rank 0.

        Args:
            expected: Every case of the launch, those of an earlier session included.
            document: machine_info, commit_info, datetime and version of pytest-benchmark's JSON.
        """
        path = self.settings.journal_path
        if not self.is_voice or path is None:
            return
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
        if self.journal:
            self.journal.close()
        world.leave()

    def refuse(self, message: str, returncode: int = EXIT_USAGE) -> None:
        """End the session with one sentence, printed by rank 0 alone."""
        if self.is_voice and returncode == EXIT_USAGE:
            raise pytest.UsageError(message)
        pytest.exit(message, returncode=returncode)

    def _check_values(self, items: list[pytest.Item]) -> None:
        rows = [item.callspec.params for item in items]  # type: ignore[attr-defined]
        try:
            for batch in {row["global_batch"] for row in rows if "global_batch" in row}:
                sizes.check_global_batch(batch, self.world.world_size)
            for spec in {row["workload"] for row in rows if "workload" in row}:
                workloads.make(spec)
        except ValueError as error:
            self.refuse(str(error))

    def _refuse_differences(self, found: list[Any]) -> None:
        for rank, facts in enumerate(found):
            if facts is None:
                self.refuse(f"rank {rank} did not answer before the first case", EXIT_MACHINE)
            if facts == found[0]:
                continue
            zero, other = set(found[0][0]), set(facts[0])
            differing = sorted(zero ^ other) or ["the order of cases, the size or the seed"]
            self.refuse(
                f"rank {rank} collected other cases than rank 0 ({len(other)} against "
                f"{len(zero)}), the first difference is {differing[0]}; give every rank the same "
                "files and options"
            )

    def _gather_provenance(self) -> None:
        own = provenance.rank_facts(self.world.rank, self.world.local_rank, self.world.device)
        ranks = self.control.exchange("provenance", own)
        # Rank 0's view of the software stands for all; hashing the image once is enough.
        launch = provenance.launch_facts(self.settings.seed, sys.argv) if self.is_voice else {}
        launch = self.control.exchange("software", launch)[0]
        self.provenance = provenance.launch_provenance(launch, ranks) | {
            "backend": self.world.backend,
            "threads_per_rank": self.world.threads_per_rank,
        }
        self.flags = _launch_flags(self.world, self.provenance)

    def _without_measured(self, items: list[pytest.Item]) -> list[pytest.Item]:
        path = self.settings.journal_path
        if not (self.settings.resume and path):
            return items
        # Rank 0 alone reads: a shared file system may show the others an older file.
        done = self._resumable(path) if self.is_voice else {}
        done = self.control.exchange("done", done)[0]
        leave_out = {"case", "skip"} | ({"fail"} if self.settings.skip_failed else set())
        return [item for item in items if done.get(item.nodeid) not in leave_out]

    def _resumable(self, path: Path) -> dict[str, str]:
        try:
            done = journal.outcomes(path)
            before = journal.rebuild(path)[KEY]["provenance"] if done else self.provenance
        except ValueError as error:
            self.refuse(str(error))
        then, now = pooling_facts(before), pooling_facts(self.provenance)
        for name in (name for name in now if then[name] != now[name]):
            self.refuse(
                f"{path} was measured with {name} {then[name]}, here it is {now[name]}; results "
                "that differ in it are not pooled: measure into another folder"
            )
        return done

    def _launch_facts(self) -> dict[str, Any]:
        return {
            "size": self.settings.size_name,
            "rounds": self.settings.size.rounds,
            "warmup_rounds": self.settings.size.warmup_rounds,
            "world_size": self.world.world_size,
            "num_nodes": self.world.num_nodes,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "provenance": self.provenance,
            **self.settings.labels,
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


def _spare_imports_from_collection() -> None:
    """Take what torch and its like allocated out of every later garbage collection.

    A case collects before it is timed; going through a million imported objects each time would
    cost more than the case.
    """
    importlib.import_module("bench.step_cases")
    importlib.import_module("bench.train_step")
    gc.collect()
    gc.freeze()


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


def _launch_flags(joined: world.World, facts: dict[str, Any]) -> tuple[str, ...]:
    flags = []
    hosts = [rank["host"] for rank in facts["ranks"]]
    on_fullest = max(hosts.count(host) for host in hosts)
    cores = facts["cores_per_node"]
    if cores and on_fullest * joined.threads_per_rank > cores:
        flags.append(
            f"oversubscribed: {on_fullest} ranks of {joined.threads_per_rank} threads "
            f"on {cores} cores"
        )
    if len(facts["device_names"]) > 1:
        flags.append(f"mixed devices: {', '.join(facts['device_names'])}")
    return tuple(flags)
