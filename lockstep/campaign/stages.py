"""Runs the user's own stages on this machine, one at a time, with logs in `stages/NAME/`."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lockstep.campaign.campaign import Stage
from lockstep.campaign.folder import Folder
from lockstep.core import files, processes
from lockstep.core.formats import parse_limit

TIMED_OUT = 124  # exit code of timeout(1)
SIGNALLED = 128  # a shell's exit code is this number + the signal
ENDING_S = 10.0  # time for a stage to end after SIGTERM


@dataclass(frozen=True)
class Stages:
    """The stages of a campaign on this machine; `say` prints a line about each."""

    stages: tuple[Stage, ...]
    folder: Folder
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        """Refuse a stage that must run at the same time as the launches, which only jobs can do."""
        beside = (stage.name for stage in self.select("before") if stage.dependency == "after")
        if name := next(beside, None):
            raise ValueError(
                f'stage {name} has dependency = "after", but lockstep run cannot run a stage '
                "at the same time as the launches; use lockstep submit, or set dependency = "
                '"afterok" or "afterany"'
            )

    def select(self, when: str) -> list[Stage]:
        return [stage for stage in self.stages if stage.when == when]

    def log(self, stage: Stage) -> Path:
        return self.folder.path / "stages" / stage.name / "log.txt"

    def is_done(self, stage: Stage) -> bool:
        try:
            end = files.parse(files.content(self.log(stage).with_name("end.json")))
        except ValueError:
            return False  # the stage has not run yet
        return bool(end == {"stage": stage.model_dump(mode="json"), "exit_code": 0})

    def run_before(self) -> bool:
        """Run the stages before the launches one by one, and return whether to measure."""
        goes_on = True
        for stage in self.select("before"):
            if self.is_done(stage):
                continue
            if not goes_on:
                self.say(f"stage {stage.name} did not run, because an earlier stage failed")
                return False
            goes_on = self._run(stage) or stage.dependency == "afterany"
        return goes_on

    def run_after(self, *, is_well: bool, has_measured: bool) -> bool:
        """Run the stages after the launches, and return whether all that began succeeded.

        `is_well` is whether the launches succeeded; with `has_measured` a finished stage runs
        again.
        """
        all_well = True
        for stage in self.select("after"):
            if self.is_done(stage) and not has_measured:
                continue
            begins = {"afternotok": not is_well, "afterok": is_well and all_well}
            if begins.get(stage.dependency, True):
                all_well &= self._run(stage)
            elif stage.dependency == "afterok":
                self.say(
                    f"stage {stage.name} did not run, because a launch or an earlier stage failed"
                )
        return all_well

    def _run(self, stage: Stage) -> bool:
        log = self.log(stage)
        log.parent.mkdir(parents=True, exist_ok=True)
        self.say(f"stage {stage.name} has started; its output is in {log}")
        environ = os.environ | {"LOCKSTEP_RESULTS": str(self.folder.path.resolve())}
        with log.open("ab") as output:
            tasks: list[subprocess.Popen[bytes]] = []
            for _ in range(stage.nodes * stage.tasks_per_node):
                task = subprocess.Popen(
                    ["/bin/bash", "-c", stage.command], cwd=stage.folder, env=environ,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    preexec_fn=processes.die_with_parent, start_new_session=True,
                )  # fmt: skip
                tasks.append(task)
            code = _wait(tasks, parse_limit(stage.time) if stage.time else None)
        end = {"stage": stage.model_dump(mode="json"), "exit_code": code}
        files.write_atomically(log.with_name("end.json"), json.dumps(end))
        if code:
            text = f"stage {stage.name} ended with exit code {code}"
            if code == TIMED_OUT and stage.time:
                text = f"stage {stage.name} was stopped at its time limit of {stage.time}"
            self.say(f"{text}; see {log}")
        return code == 0


def _wait(tasks: "list[subprocess.Popen[bytes]]", limit_s: float | None) -> int:
    deadline_s = time.monotonic() + (limit_s or 0)
    codes = []
    try:
        for task in tasks:
            code = task.wait(limit_s and max(0.0, deadline_s - time.monotonic()))
            codes.append(code if code >= 0 else SIGNALLED - code)
    except subprocess.TimeoutExpired:
        codes.append(TIMED_OUT)
    finally:
        processes.end_groups(tasks, ENDING_S)
    return max(codes)
