"""The phases of a training step, marked where each ends while the step runs freely.

A mark is a reading of the host's clock, on a GPU an event on the current stream that nobody waits
for: what it takes is read once the step is over, so nothing in a step synchronises.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lockstep.measure import timing

if TYPE_CHECKING:
    import torch

    from lockstep.measure.train_step import TrainStep

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
        """Return a step that marks its phases.

        Args:
            step: Tells where its phases end.
            whole: What is to run, which takes that step.
        """

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

    def _seconds(self, marks: list[Mark]) -> list[tuple[str, float]]:
        return [
            (phase, timing.between_s(self.device, before, end))
            for (_, before), (phase, end) in pairwise(marks)
        ]


def unmarked(_phase: str) -> None:
    """Note nothing: what a step tells where nobody asks."""
