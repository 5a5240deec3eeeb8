"""The part of a screening that each rank runs: matrix products, memory copies and all-reduces.

`lockstep screen` starts torchrun ... -m lockstep.before.screen.screening SETTINGS FILE. SETTINGS is
a JSON list of repeats, device and floor; rank 0 writes the screening into FILE.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any

from lockstep.before.screen import search
from lockstep.before.screen.search import Pair, Probe, Screening, Seat, turns
from lockstep.core.errors import EXIT_MACHINE, RankError
from lockstep.core.formats import about, one_line
from lockstep.core.metrics import slowest_rank
from lockstep.core.processes import hostname
from lockstep.measure.timing import meet, time_block
from lockstep.ranks import process_group
from lockstep.ranks.placement import placement

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from lockstep.ranks.process_group import World

SEED = 20_260
TIMEOUT_S = 120.0  # how long ranks wait for each other
# Rank 0 estimates durations from this on; begin of such a line.
SHORT_S, ESTIMATE = 10.0, b"lockstep: timing "
# Random id of the kernel's boot, which distinguishes machines even if they have the same name.
BOOT = Path("/proc/sys/kernel/random/boot_id")

Step = Callable[[], Any]
Group = Sequence[int]  # ranks
# Target duration of one block on the median rank. The faster of two blocks counts, which leaves out
# short disturbances, but not permanent slowness.
BLOCK_S = 0.01
NUM_BLOCKS = 2
# Large enough to keep a device busy, and for copies to exceed its caches.
MATMUL_WIDTH = {"cpu": 512, "cuda": 4096}
COPY_BYTES = {"cpu": 2**25, "cuda": 2**28}
ALL_REDUCE_BYTES = {"cpu": 2**22, "cuda": 2**26}


def run(
    environ: Mapping[str, str], repeats: int | None, device: str | None, floor: float | None
) -> Screening | None:
    """Join the other ranks and screen with them; return the screening on rank 0, else None.

    Args:
        environ: Variables of the launcher, with the address where the ranks meet.
        repeats: How often each probe is timed; by default 40, or more for very many ranks.
        device: "cpu" or "cuda"; by default CUDA if there is a GPU.
        floor: Least bus bandwidth of an all-reduce over all ranks in GB/s, or None.

    Raises:
        ValueError: There is one rank, or too few repeats.
        RuntimeError: Ranks do not meet, or a rank is lost.
    """
    repeats = num_repeats(placement(environ).world_size, repeats)
    world = process_group.join(TIMEOUT_S, device=device, environ=environ)
    try:
        machine = BOOT.read_text(encoding="utf-8").strip() if BOOT.exists() else hostname()
        node = environ.get("SLURMD_NODENAME", hostname())
        own = Seat(world.rank, world.local_rank, node, machine)
        seats = [Seat(**seat) for seat in world.control.exchange_all("seat", asdict(own))]
        prober = Prober(world, seats, repeats, Random(SEED))  # noqa: S311, no secret
        screening = _screen(prober, floor)
        world.control.leave_together()
    finally:
        process_group.leave()
    return screening


def num_repeats(num_ranks: int, wanted: int | None) -> int:
    """Return how often to time each probe: as `wanted`, or by default.

    Raises:
        ValueError: There is one rank, or `wanted` is too small.
    """
    if num_ranks < 2:
        raise ValueError(
            "one rank cannot be compared with others; start two or more ranks, for example with "
            "--ranks 2 or srun -N4 --ntasks-per-node=1"
        )
    # For up to four units per rank; with fewer repeats no interval could lie above its bound.
    least = math.ceil(math.log2(2 * 4 * num_ranks / search.ERROR))
    if wanted is not None and wanted < least:
        raise ValueError(
            f"{wanted} repeats on {num_ranks} ranks are too few to show that a rank is slow; give "
            f"--repeats {least} or more"
        )
    return wanted or max(search.USUAL_REPEATS, least)


def _screen(prober: "Prober", floor: float | None) -> Screening | None:
    """Time the nodes alone, in pairs and, with a floor, all together; rank 0 judges."""
    control, seats = prober.world.control, prober.seats
    nodes = search.nodes_of(seats)
    alone = prober.time_alone()
    sizes = {len(ranks) for ranks in nodes.values()}
    # All-reduces within nodes are comparable if all nodes have the same number of ranks, >= 2.
    if len(nodes) > 1 and len(sizes) == 1 and min(sizes) > 1:
        timed = prober.all_reduces("node_all_reduce", [list(nodes.values())])
        (alone["node_all_reduce"],) = timed.values()
    screening: Screening | None = None

    def judge_alone(times: list[dict[Probe, list[float]]]) -> list[list[Pair]]:
        nonlocal screening
        by_probe = {probe: [of_rank[probe] for of_rank in times] for probe in times[0]}
        screening = search.judge_alone(seats, by_probe, prober.repeats)
        return search.plan_pairs(screening)

    if rounds := control.settle_all("alone", alone, judge_alone):
        groups = [[[*nodes[a], *nodes[b]] for a, b in pairs] for pairs in rounds]
        timed = prober.all_reduces("pair_all_reduce", groups)
        own = {f"{division} {pair}": seconds for (division, pair), seconds in timed.items()}

        def judge_pairs(times: list[dict[str, list[float]]]) -> None:
            nonlocal screening
            assert screening
            by_pair = {
                (a, b): slowest_rank(
                    [ranks[key] for ranks in times if (key := f"{i} {j}") in ranks]
                )
                for i, pairs in enumerate(rounds)
                for j, (a, b) in enumerate(pairs)
            }
            screening = search.judge_pairs(screening, len(rounds), by_pair)

        control.settle_all("pairs", own, judge_pairs)
    if floor is not None:
        timed = prober.all_reduces("all_reduce", [[range(prober.world.world_size)]])
        (together,) = timed.values()

        def judge_all(times: list[list[float]]) -> None:
            nonlocal screening
            assert screening
            num_bytes = ALL_REDUCE_BYTES[prober.world.device.type]
            seconds = slowest_rank(times)
            screening = search.add_all_reduce(screening, seconds, num_bytes, floor)

        control.settle_all("all", together, judge_all)
    return screening


@dataclass
class Prober:
    """Times probes on this rank in step with the other ranks, which draw the same turns."""

    world: "World"
    seats: Sequence[Seat]
    repeats: int
    order: Random
    _num_steps: dict[Probe, int] = field(default_factory=dict)

    def time_alone(self) -> dict[Probe, list[float]]:
        """Return this rank's seconds for one step of each of its probes, shape (num_repeats,)."""
        makers = own_steps(self.world.device)
        timed: dict[Probe, list[float]] = {probe: [] for probe in makers}
        for repeat in self._count_repeats("devices"):
            for group in self._take_turns([[seat.rank] for seat in self.seats]):
                if group is not None:
                    for probe, make in makers.items():  # new buffers, because their pages matter
                        timed[probe].append(self._time(probe, make()))
            if repeat < 0:
                for probe, seconds in timed.items():
                    self._fill_blocks(probe, seconds)
                    seconds.clear()
        return timed

    def all_reduces(
        self, probe: Probe, divisions: Sequence[Sequence[Group]]
    ) -> dict[tuple[int, int], list[float]]:
        """Return (division, group) -> this rank's seconds for an all-reduce, shape (num_repeats,).

        A division divides the ranks into groups. The divisions alternate, so that drift of the
        machine does not look like a difference between them.
        """
        from torch import distributed

        # new_group is a collective call: every rank makes all groups.
        groups_of: list[list[Any]] = [
            [distributed.new_group(list(ranks)) for ranks in groups] for groups in divisions
        ]
        timed: dict[tuple[int, int], list[float]] = {}
        for repeat in self._count_repeats("links"):
            for division in self.order.sample(range(len(divisions)), len(divisions)):
                for group in self._take_turns(divisions[division]):
                    if group is not None:
                        step = all_reduce(self.world.device, groups_of[division][group])
                        seconds = self._time(probe, step)
                        timed.setdefault((division, group), []).append(seconds)
            if repeat < 0:
                self._fill_blocks(probe, list(chain(*timed.values())))
                timed.clear()
        for made in chain(*groups_of):
            if isinstance(made, distributed.ProcessGroup):  # else this rank is outside the group
                distributed.destroy_process_group(made)
        return timed

    def _count_repeats(self, what: str) -> Iterator[int]:
        """Yield -1 and each repeat; after five, rank 0 estimates how long the others take."""
        yield -1
        began = monotonic()
        for repeat in range(self.repeats):
            yield repeat
            left_s = (monotonic() - began) / (repeat + 1) * (self.repeats - repeat - 1)
            if repeat == 4 and self.world.rank == 0 and left_s > SHORT_S:
                sys.stderr.write(f"{ESTIMATE.decode()}{what}: {about(left_s)}\n")

    def _fill_blocks(self, probe: Probe, seconds: Sequence[float]) -> None:
        """Agree with all ranks on the number of steps in a block, from the first repeat."""
        own = median(seconds) if seconds else 0.0
        # 0 is from a rank that did not measure.
        step_s = self.world.control.settle_all(
            f"{probe} once", own, lambda times: median(list(filter(None, times)) or [0.0])
        )
        self._num_steps[probe] = max(1, round(BLOCK_S / step_s)) if step_s else 1

    def _take_turns(self, groups: Sequence[Group]) -> Iterator[int | None]:
        """Meet all ranks before each turn; yield this rank's group in its turn, else None."""
        # On CPUs, groups that share a machine's cores take turns; GPUs work at the same time.
        is_shared = self.world.device.type == "cpu"
        shares = turns(groups, self.seats) if is_shared else [list(range(len(groups)))]
        for turn in self.order.sample(shares, len(shares)):
            meet(self.world)
            yield next((index for index in turn if self.world.rank in groups[index]), None)

    def _time(self, probe: Probe, step: Step) -> float:
        step()  # warms up, and lets the ranks of a group begin together
        num_steps = self._num_steps.get(probe, 1)
        blocks = (time_block(self.world.device, step, num_steps) for _ in range(NUM_BLOCKS))
        return min(blocks) / num_steps


def own_steps(device: "torch.device") -> dict[Probe, Callable[[], Step]]:
    """Return probe -> function that makes a step of one rank, with new buffers."""
    import torch

    def matmul() -> Step:
        dtype = torch.float16 if device.type == "cuda" else torch.float32
        width = MATMUL_WIDTH[device.type]
        left, right = (torch.rand(width, width, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(left)
        return lambda: torch.mm(left, right, out=product)

    def copy_from(source: torch.device) -> Step:
        size, is_pinned = COPY_BYTES[device.type], source.type != device.type
        read = torch.ones(size, dtype=torch.uint8, device=source, pin_memory=is_pinned)
        written = torch.zeros(size, dtype=torch.uint8, device=device)
        return lambda: written.copy_(read, non_blocking=True)

    makers: dict[Probe, Callable[[], Step]] = {
        "matmul": matmul, "memory": lambda: copy_from(device),
    }  # fmt: skip
    if device.type == "cuda":
        makers["host_copy"] = lambda: copy_from(torch.device("cpu"))
    return makers


def all_reduce(device: "torch.device", group: "ProcessGroup") -> Step:
    """Return a step that sums zeros over a group; however often, they stay zeros."""
    import torch
    from torch import distributed

    data = torch.zeros(ALL_REDUCE_BYTES[device.type] // 4, device=device)
    return lambda: distributed.all_reduce(data, group=group)


def main(settings: str, path: str) -> None:
    """Screen as a rank that torchrun started; print a fault of the machine as one line."""
    try:
        screening = run(os.environ, *json.loads(settings))
    except (RuntimeError, OSError) as error:
        who = "" if isinstance(error, RankError) else f"rank {os.environ.get('RANK', 0)}: "
        sys.stderr.write(f"lockstep: {who}{one_line(str(error))}\n")  # one write: ranks share it
        sys.exit(EXIT_MACHINE)
    if screening:
        Path(path).write_text(json.dumps(asdict(screening)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
