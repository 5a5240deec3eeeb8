"""How a round is timed.

After an untimed entry barrier, `steps_per_round` steps run freely; then one device synchronisation
waits for their end. Each rank keeps its own durations; nothing inside the timed region synchronises
with the host. The clock is a pair of CUDA events on the current stream, or on a CPU the host's
monotonic clock.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.core.processes import collector_paused
from lockstep.ranks.process_group import World

if TYPE_CHECKING:
    import torch

Step = Callable[[], Any]

SCHEDSTAT = Path("/proc/thread-self/schedstat")
SHORTEST_S = 1e-9


def time_rounds(world: World, step: Step, *, rounds: int, steps_per_round: int) -> list[float]:
    """Return this rank's seconds per round, shape (num_rounds,)."""
    clock = _event_round if world.device.type == "cuda" else _host_round
    gc.collect()
    round_s = []
    with collector_paused():
        for _ in range(rounds):
            _enter(world)
            round_s.append(clock(step, steps_per_round))
    return round_s


def time_turns(world: World, turns: Sequence[Step], steps: int) -> list[tuple[float, float | None]]:
    """Return (seconds per step, those without waits for a core) of each turn, on this rank.

    Each turn is a round of `steps` calls.
    """
    gc.collect()
    with collector_paused():
        return [time_turn(world, step, steps) for step in turns]


def time_turn(world: World, step: Step, steps: int) -> tuple[float, float | None]:
    """Return this rank's seconds per step of one turn, and those without waits for a core.

    The latter are None if the kernel does not report waits, and on a GPU, which does not wait for
    a thread that launches ahead of it.
    """
    clock = _event_round if world.device.type == "cuda" else _host_round
    _enter(world)
    before_s = _queued_s(world.device)
    taken_s = clock(step, steps)
    after_s = _queued_s(world.device)
    if before_s is None or after_s is None:
        return taken_s / steps, None
    return taken_s / steps, max(taken_s - (after_s - before_s), SHORTEST_S) / steps


def mark(device: "torch.device") -> Any:
    """Return the current time on the clock of a device, for `elapsed_s`."""
    if device.type != "cuda":
        return time.perf_counter()
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def elapsed_s(device: "torch.device", start: Any, end: Any) -> float:
    """Return the seconds from one mark to another; a GPU must be synchronised before."""
    return float(end - start if device.type != "cuda" else start.elapsed_time(end) / 1e3)


def synchronise(device: "torch.device") -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def time_block(device: "torch.device", step: Step, num_steps: int) -> float:
    """Return the seconds of a block of steps on this rank, without an entry barrier."""
    synchronise(device)
    clock = _event_round if device.type == "cuda" else _host_round
    return clock(step, num_steps)


def _queued_s(device: "torch.device") -> float | None:
    """Return how long this thread has waited for a core so far; None if unknown.

    proc_pid_schedstat: the second number, in nanoseconds, is the time on a run queue.
    """
    if device.type == "cuda":
        return None
    with suppress(OSError, ValueError, IndexError):
        return int(SCHEDSTAT.read_bytes().split()[1]) * 1e-9
    return None


def _enter(world: World) -> None:
    meet(world)
    synchronise(world.device)


def meet(world: World) -> None:
    """Wait until all ranks have called this."""
    from torch import distributed

    if world.world_size > 1:
        distributed.barrier(
            device_ids=[world.device.index] if world.device.type == "cuda" else None
        )


def _host_round(step: Step, n: int) -> float:
    start = time.perf_counter()
    for _ in range(n):
        step()
    return time.perf_counter() - start


def _event_round(step: Step, n: int) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(n):
        step()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


class ReplayClock:
    """A timer for pytest-benchmark that replays durations already measured.

    `pedantic` reads its timer twice a round. Replaying our own durations, the maximum over ranks,
    keeps its statistics, JSON and compare, and leaves rounds and synchronisation to us. Reports use
    the rounds of all ranks, not these statistics.
    """

    __name__ = "slowest_rank"

    def __init__(self) -> None:
        self._readings: Iterator[float] = iter(())

    def __call__(self) -> float:
        return next(self._readings)

    def show(self, round_s: list[float], benchmark: Any) -> None:
        """Give the rounds of a case to pytest-benchmark's fixture, whose timer this is."""
        self._readings = iter([reading for duration in round_s for reading in (0.0, duration)])
        # The call takes no time: the clock replays how long each round took.
        benchmark.pedantic(lambda: None, rounds=len(round_s), iterations=1)
