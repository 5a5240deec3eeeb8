"""The user's own stages on this machine: before the launches and after them, one at a time.

Each leaves its log and how it ended under `stages/NAME/`. What has ended well is not run again, as
long as the campaign says the same of it.
"""

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

TIMED_OUT = 124  # as timeout(1) ends
SIGNALLED = 128  # as a shell says it, the signal added
ENDING_S = 10.0  # that a stage has to end in order


@dataclass(frozen=True)
class Stages:
    """The stages of a campaign on this machine.

    Attributes:
        say: Gets what begins, what does not, and how it ended.
    """

    stages: tuple[Stage, ...]
    folder: Folder
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        """Refuse what only jobs can do.

        Raises:
            ValueError: A stage is to run beside the launches.
        """
        beside = (stage.name for stage in self.of("before") if stage.dependency == "after")
        if name := next(beside, None):
            raise ValueError(
                f'stage {name}: with dependency = "after" it runs beside what measures, and here '
                'stages run one at a time; submit it, or choose "afterok" or "afterany"'
            )

    def of(self, when: str) -> list[Stage]:
        """Return the stages before the launches, or those after them."""
        return [stage for stage in self.stages if stage.when == when]

    def log(self, stage: Stage) -> Path:
        """Return where the output of a stage goes."""
        return self.folder.path / "stages" / stage.name / "log.txt"

    def is_done(self, stage: Stage) -> bool:
        """Return whether a stage has ended well, and is still as it was then."""
        try:
            end = files.parse(files.content(self.log(stage).with_name("end.json")))
        except ValueError:
            return False  # it has not run yet
        return bool(end == {"stage": stage.model_dump(mode="json"), "exit_code": 0})

    def before(self) -> bool:
        """Run what comes first, each after the one before it, and return whether to measure."""
        goes_on = True
        for stage in self.of("before"):
            if self.is_done(stage):
                continue
            if not goes_on:
                self.say(f"stage {stage.name}: not run, as the stage before it failed")
                return False
            goes_on = self._run(stage) or stage.dependency == "afterany"
        return goes_on

    def after(self, *, is_well: bool, has_measured: bool) -> bool:
        """Run what comes last, and return whether each stage that began ended well.

        Args:
            is_well: Whether all that came before has ended well.
            has_measured: Whether anything was measured now: a stage that is done then runs again.
        """
        all_well = True
        for stage in self.of("after"):
            if self.is_done(stage) and not has_measured:
                continue
            if stage.dependency == "afternotok":
                if not is_well:
                    all_well &= self._run(stage)
            elif stage.dependency == "afterok" and not (is_well and all_well):
                self.say(f"stage {stage.name}: not run, as an earlier step failed")
            else:
                all_well &= self._run(stage)
        return all_well

    def _run(self, stage: Stage) -> bool:
        """Run a stage, all of its tasks at once, and return whether it ended well."""
        log = self.log(stage)
        log.parent.mkdir(parents=True, exist_ok=True)
        self.say(f"stage {stage.name}: begins, its output: {log}")
        with log.open("ab") as output:
            tasks = [
                subprocess.Popen(
                    ["/bin/bash", "-c", stage.command],
                    cwd=stage.folder,
                    env=os.environ | {"LOCKSTEP_RESULTS": str(self.folder.path.resolve())},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    preexec_fn=processes.die_with_parent,
                    start_new_session=True,
                )
                for _ in range(stage.nodes * stage.tasks_per_node)
            ]
            code = _wait(tasks, parse_limit(stage.time) if stage.time else None)
        end = {"stage": stage.model_dump(mode="json"), "exit_code": code}
        files.write_atomically(log.with_name("end.json"), json.dumps(end))
        if code:
            late = f", its limit of {stage.time} was reached" if code == TIMED_OUT else ""
            self.say(f"stage {stage.name}: it ended with {code}{late}; see {log}")
        return code == 0


def _wait(tasks: "list[subprocess.Popen[bytes]]", limit_s: float | None) -> int:
    """Return the highest exit code; what is left of the tasks is ended, whatever ends the wait."""
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
