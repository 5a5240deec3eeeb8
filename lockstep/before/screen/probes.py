"""What a screening times: a matrix product, copies of memory, all-reduces among groups of ranks.

Before every block all ranks meet at an untimed barrier. On CPUs ranks that share a machine take
turns, in another order at each repeat, since they would share its cores; GPUs all work at the same
time, as they do in training. Buffers are new at each repeat: where the pages of one lie is luck.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from lockstep.before.screen.search import Probe, Seat, turns
from lockstep.measure.timing import meet, time_block

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from lockstep.ranks.process_group import World

Step = Callable[[], Any]
Group = Sequence[int]  # ranks
# A block of one probe takes about so long on the median rank. The faster of two counts: it leaves
# out what disturbs a machine for a moment, and shows what slows it for good.
BLOCK_S = 0.01
NUM_BLOCKS = 2
# Large enough that a device is busy, and that its caches do not hold what is copied.
MATMUL_WIDTH = {"cpu": 512, "cuda": 4096}
COPY_BYTES = {"cpu": 2**25, "cuda": 2**28}
ALL_REDUCE_BYTES = {"cpu": 2**22, "cuda": 2**26}


@dataclass
class Prober:
    """Times probes on this rank, in step with all others.

    Attributes:
        repeats: How often each probe is timed.
        order: Draws the order of turns; equal on all ranks.
    """

    world: "World"
    seats: Sequence[Seat]
    repeats: int
    order: Random
    _num_steps: dict[Probe, int] = field(default_factory=dict)

    def alone(self) -> dict[Probe, list[float]]:
        """Return this rank's seconds for one step of its own probes, shape (num_repeats,) each."""
        makers = own_steps(self.world.device)
        found: dict[Probe, list[float]] = {probe: [] for probe in makers}
        for repeat in range(-1, self.repeats):
            for group in self._in_turn([[seat.rank] for seat in self.seats]):
                if group is not None:
                    for probe, make in makers.items():
                        found[probe].append(self._time(probe, make()))
            if repeat < 0:
                for probe, seconds in found.items():
                    self._fill_blocks(probe, seconds)
                    seconds.clear()
        return found

    def all_reduces(
        self, probe: Probe, divisions: Sequence[Sequence[Group]]
    ) -> dict[tuple[int, int], list[float]]:
        """Return this rank's seconds for one all-reduce within each of its groups.

        Args:
            probe: What the groups are.
            divisions: Of the ranks into groups that work at the same time; they are repeated in
                turn, so that a machine's drift is no difference between them.

        Returns:
            (division, group within it) -> seconds, shape (num_repeats,).
        """
        process_groupses = [_process_groups(groups) for groups in divisions]
        found: dict[tuple[int, int], list[float]] = {}
        for repeat in range(-1, self.repeats):
            for division in self.order.sample(range(len(divisions)), len(divisions)):
                for group in self._in_turn(divisions[division]):
                    if group is not None:
                        step = all_reduce(self.world.device, process_groupses[division][group])
                        seconds = self._time(probe, step)
                        found.setdefault((division, group), []).append(seconds)
            if repeat < 0:
                self._fill_blocks(probe, list(chain(*found.values())))
                found.clear()
        _end(process_groupses)
        return found

    def _fill_blocks(self, probe: Probe, seconds: Sequence[float]) -> None:
        """Settle with all ranks how many steps make a block, by what the first repeat took."""
        own = median(seconds) if seconds else 0.0
        step_s = self.world.control.settle_all(f"{probe} once", own, _usual)
        self._num_steps[probe] = max(1, round(BLOCK_S / step_s)) if step_s else 1

    def _in_turn(self, groups: Sequence[Group]) -> Iterator[int | None]:
        """Meet all ranks before each turn, and give the group of this rank whose turn it is."""
        is_shared = self.world.device.type == "cpu"
        found = turns(groups, self.seats) if is_shared else [list(range(len(groups)))]
        for turn in self.order.sample(found, len(found)):
            meet(self.world)
            yield next((index for index in turn if self.world.rank in groups[index]), None)

    def _time(self, probe: Probe, step: Step) -> float:
        """Return the seconds of one step in the faster of two blocks."""
        step()  # which also lets the ranks of a group begin together
        num_steps = self._num_steps.get(probe, 1)
        blocks = (time_block(self.world.device, step, num_steps) for _ in range(NUM_BLOCKS))
        return min(blocks) / num_steps


def own_steps(device: "torch.device") -> dict[Probe, Callable[[], Step]]:
    """Return what makes the steps that a rank takes alone, each with buffers of its own."""
    found: dict[Probe, Callable[[], Step]] = {
        "matmul": lambda: _matmul(device),
        "memory": lambda: _copy(device, device),
    }
    if device.type == "cuda":
        import torch

        found["host_copy"] = lambda: _copy(torch.device("cpu"), device)
    return found


def _matmul(device: "torch.device") -> Step:
    import torch

    dtype = torch.float16 if device.type == "cuda" else torch.float32
    width = MATMUL_WIDTH[device.type]
    left, right = (torch.rand(width, width, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=product)


def _copy(source: "torch.device", target: "torch.device") -> Step:
    import torch

    is_pinned = source.type != target.type
    size = COPY_BYTES[target.type]
    read = torch.ones(size, dtype=torch.uint8, device=source, pin_memory=is_pinned)
    written = torch.zeros(size, dtype=torch.uint8, device=target)
    return lambda: written.copy_(read, non_blocking=True)


def all_reduce(device: "torch.device", group: "ProcessGroup") -> Step:
    """Return a step that sums zeros, which stay zeros however often, over a group."""
    import torch
    from torch import distributed

    data = torch.zeros(ALL_REDUCE_BYTES[device.type] // 4, device=device)
    return lambda: distributed.all_reduce(data, group=group)


def _process_groups(groups: Sequence[Group]) -> list["ProcessGroup"]:
    """Return a process group for each group of ranks; every rank takes part in making all."""
    from torch import distributed

    made: list[Any] = [distributed.new_group(list(ranks)) for ranks in groups]
    return made


def _end(process_groupses: Sequence[Sequence["ProcessGroup"]]) -> None:
    from torch import distributed

    for group in (group for groups in process_groupses for group in groups):
        if isinstance(group, distributed.ProcessGroup):  # a number on ranks outside it
            distributed.destroy_process_group(group)


def _usual(seconds: Sequence[float]) -> float:
    """Return the median of what ranks measured; those that did not, gave 0."""
    return median([one for one in seconds if one] or [0.0])
