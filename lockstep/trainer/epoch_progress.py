"""How far an epoch has come, for the person who waits at a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

INTERVAL_S = 1.0


def counted(
    num_steps: int,
    samples_per_step: int,
    label: str,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[int]:
    """Count steps from 0, and about once a second rewrite a line with the samples so far.

    The line goes away when the steps end. A GPU is not waited for, so its samples are those it was
    given.

    Args:
        num_steps: Steps of the epoch.
        samples_per_step: Samples of one step, over all ranks.
        label: What the line begins with.
        stream: The terminal; stdout by default.
        clock: Seconds that only grow.
    """
    out = stream or sys.stdout
    total = num_steps * samples_per_step
    line, written_s = "", clock()
    try:
        for step in range(num_steps):
            yield step
            if clock() - written_s >= INTERVAL_S:
                written_s = clock()
                done = (step + 1) * samples_per_step
                line = f"{label}  {done:>{len(str(total))}}/{total} samples"
                _write(out, f"\r{line}")
    finally:
        if line:
            _write(out, f"\r{' ' * len(line)}\r")


def _write(out: TextIO, text: str) -> None:
    out.write(text)
    out.flush()
