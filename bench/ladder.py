"""The local ladder: one torchrun launch per world size and repeat, resumable at any point.

Results stand under `results/<campaign>/launches/<launch>/`: the journal, pytest-benchmark's JSON
rebuilt from it, and the launch's output. What they hold is never measured again.
"""

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import journal
from bench.campaign import Campaign, Launch, differences, plan
from bench.record import KEY
from bench.sizes import CHANGES

POLL_S = 0.2
PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True)
class Outcome:
    """How a launch stands.

    Attributes:
        launch: The launch.
        measured: Cases in its journal.
        failed: Cases that failed, each with its reason.
        complete: Whether every expected case was measured or skipped.
    """

    launch: Launch
    measured: int = 0
    failed: tuple[dict[str, str], ...] = ()
    complete: bool = False


@dataclass(frozen=True)
class Ladder:
    """A campaign and the folder of its results."""

    campaign: Campaign
    folder: Path

    def launch_folder(self, launch: Launch) -> Path:
        """Return where a launch keeps its files."""
        return self.folder / "launches" / launch.name

    def outcome(self, launch: Launch) -> Outcome:
        """Return how far a launch has come, by its journal alone.

        Raises:
            ValueError: The journal is corrupt.
        """
        path = self.launch_folder(launch) / "journal.jsonl"
        if not path.exists() or not journal.current(journal.read(path)):
            return Outcome(launch)
        document = journal.rebuild(path)
        block = document[KEY]
        asked = set(self.campaign.studies) <= set(block.get("studies", "").split(","))
        return Outcome(
            launch,
            measured=len(document["benchmarks"]),
            failed=tuple(block["failed"]),
            complete=bool(block["complete"]) and asked,
        )

    def missing(self) -> list[Launch]:
        """Return the launches that still lack a case, in the order they are made."""
        return [launch for launch in plan(self.campaign) if not self.outcome(launch).complete]

    def claim(self) -> None:
        """Write the campaign beside its results, or refuse to mix it with another's.

        Raises:
            ValueError: The folder holds results that were measured otherwise.
        """
        path = self.folder / "campaign.json"
        if path.exists():
            self._refuse_other(path)
        facts = self.campaign.facts() | {
            "launches": [{"name": launch.name, **vars(launch)} for launch in plan(self.campaign)]
        }
        journal.write_atomically(path, json.dumps(facts, indent=1))

    def _refuse_other(self, path: Path) -> None:
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: not a campaign: {error}") from error
        for key, (then, now) in differences(stored, self.campaign).items():
            raise ValueError(
                f"{self.folder} holds results measured with {key} {then}, now it is {now}; "
                "give the campaign another name, or --to another folder"
            )

    def command(self, launch: Launch, *, skip_failed: bool = False) -> list[str]:
        """Return the torchrun command line of a launch."""
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(launch.world_size), "-m", "pytest"),
            str(Path(__file__).parent),
            *("-m", " or ".join(self.campaign.studies)),
            *self._options(launch),
            *("--resume", "--journal", str(self.launch_folder(launch) / "journal.jsonl")),
            *(("--skip-failed",) if skip_failed else ()),
        ]

    def _options(self, launch: Launch) -> Iterator[str]:
        for name in ("size", "device", "threads_per_rank", "seed", *CHANGES):
            value = getattr(self.campaign, name)
            if value is not None:
                yield f"--{name.replace('_', '-')}={value}"
        labels = {
            "campaign": self.campaign.name,
            "launch": launch.name,
            "repeat": launch.repeat,
            "studies": ",".join(self.campaign.studies),
        }
        for name, value in labels.items():
            yield f"--label={name}={value}"

    def run(self, launch: Launch, on_progress: Callable[[Launch, int], None]) -> Outcome:
        """Make one launch, again after a failed case as long as that measures more.

        Args:
            launch: Which one.
            on_progress: Told how many cases have ended, a few times a second.
        """
        before = self.outcome(launch)
        self._start(launch, on_progress, skip_failed=False)
        after = self.outcome(launch)
        while not after.complete and _ended(after) > _ended(before) and after.failed:
            before = after
            self._start(launch, on_progress, skip_failed=True)
            after = self.outcome(launch)
        return after

    def _start(
        self, launch: Launch, on_progress: Callable[[Launch, int], None], *, skip_failed: bool
    ) -> None:
        folder = self.launch_folder(launch)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                self.command(launch, skip_failed=skip_failed),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": str(self.campaign.threads_per_rank)},
                preexec_fn=_die_with_parent,
            )
            try:
                self._wait(process, launch, on_progress)
            finally:
                _stop(process)
                self._write_result(launch)

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        launch: Launch,
        on_progress: Callable[[Launch, int], None],
    ) -> None:
        path = self.launch_folder(launch) / "journal.jsonl"
        while True:
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                on_progress(launch, len(journal.outcomes(path)))
            else:
                on_progress(launch, len(journal.outcomes(path)))
                return

    def _write_result(self, launch: Launch) -> None:
        folder = self.launch_folder(launch)
        if journal.outcomes(folder / "journal.jsonl"):
            journal.write_result(folder / "journal.jsonl", folder / "result.json")


def _ended(outcome: Outcome) -> int:
    return outcome.measured + len(outcome.failed)


def _die_with_parent() -> None:
    # A killed `lockstep run` must not leave a launch behind that goes on writing.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()


@contextmanager
def only_driver(folder: Path) -> Iterator[None]:
    """Hold the campaign's lock, which the system frees when this process ends in any way.

    Raises:
        ValueError: Another process measures into the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"another lockstep run measures into {folder}; wait for it, or --to another folder"
            ) from None
        yield


def step_times(ladder: Ladder) -> dict[str, dict[int, list[float]]]:
    """Return case -> world size -> median seconds per step of each launch measured so far."""
    found: dict[str, dict[int, list[float]]] = {}
    for launch in plan(ladder.campaign):
        path = ladder.launch_folder(launch) / "result.json"
        if not path.exists():
            continue
        for entry in json.loads(path.read_text(encoding="utf-8"))["benchmarks"]:
            step_s = _step_s(entry)
            found.setdefault(entry["name"], {}).setdefault(launch.world_size, []).append(step_s)
    return found


def _step_s(entry: dict[str, Any]) -> float:
    return float(entry["stats"]["median"] / entry["extra_info"][KEY]["steps_per_round"])
