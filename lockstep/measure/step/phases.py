"""The phases of a training step, marked where each ends while the step runs freely.

A mark is a reading of the host's clock, on a GPU an event on the current stream that nobody waits
for: what it takes is read once the step is over, so nothing in a step synchronises.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lockstep.measure import timing

if TYPE_CHECKING:
    import torch

    from lockstep.measure.step.train_step import TrainStep

Step = Callable[[], Any]
# A phase, and when it ended.
Mark = tuple[str, Any]


@dataclass
class Marks:
    """When the phases of steps ended.

    Attributes:
        device: On whose clock.
        of_steps: The marks of each step, behind that of its beginning.
    """

    device: "torch.device"
    of_steps: list[list[Mark]] = field(default_factory=list)

    def marking(self, step: "TrainStep", whole: Step) -> Step:
        """Return a step that marks its phases."""

        def marked() -> None:
            self.begin()
            step.on_phase = self.end
            try:
                whole()
            finally:
                step.on_phase = unmarked

        return marked

    def begin(self) -> None:
        """Note that a step begins."""
        self.of_steps.append([("", timing.mark(self.device))])

    def end(self, phase: str) -> None:
        """Note that a phase ends."""
        self.of_steps[-1].append((phase, timing.mark(self.device)))

    def last_s(self, phase: str) -> list[float]:
        """Return the seconds of a phase in each step that has it; where it comes again, the last.

        The device must be synchronised before.
        """
        found = [dict(self._seconds(marks)) for marks in self.of_steps]
        return [step[phase] for step in found if phase in step]

    def in_turns(self, num_turns: int) -> dict[str, list[float]]:
        """Return the seconds a step of each phase, shape (num_turns,), by its name.

        What ran before the turns, a step fewer than there are turns, is left out. The device must
        be synchronised before.
        """
        if num_turns == 0:
            return {}
        steps = [self._phases(marks) for marks in self.of_steps[len(self.of_steps) % num_turns :]]
        size = len(steps) // num_turns
        turns = [steps[first : first + size] for first in range(0, len(steps), size)]
        return {name: [fmean(step[name] for step in turn) for turn in turns] for name in steps[0]}

    def _phases(self, marks: list[Mark]) -> dict[str, float]:
        """Return the seconds of each phase of a step; one that comes again adds up."""
        found: dict[str, float] = {}
        for phase, seconds in self._seconds(marks):
            found[phase] = found.get(phase, 0.0) + seconds
        return found

    def _seconds(self, marks: list[Mark]) -> list[tuple[str, float]]:
        return [
            (phase, timing.between_s(self.device, before, end))
            for (_, before), (phase, end) in pairwise(marks)
        ]


def unmarked(_phase: str) -> None:
    """Note nothing: what a step tells where nobody asks."""
