"""A screening as each of its ranks goes through it, and what it times.

    torchrun ... -m lockstep.before.screen.screening FILE

takes its settings from FILE and writes what it found to FILE.found; `lockstep screen` starts this.

Timed are a matrix product, copies of memory, all-reduces among groups of ranks. Before every block
all ranks meet at an untimed barrier. On CPUs ranks that share a machine take turns, in another
order at each repeat, since they would share its cores; GPUs all work at the same time, as they do
in training. Buffers are new at each repeat: where the pages of one lie is luck.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from lockstep.before.screen import search
from lockstep.before.screen.search import Probe, Screening, Seat, turns
from lockstep.core.errors import RankError
from lockstep.core.formats import one_line
from lockstep.core.metrics import slowest_rank
from lockstep.core.processes import hostname
from lockstep.measure.timing import meet, time_block
from lockstep.ranks import process_group
from lockstep.ranks.placement import placement
from lockstep.ranks.store import EXIT_MACHINE

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from lockstep.ranks.process_group import World

SEED = 20_260
# Random id of the kernel's boot: it distinguishes machines whatever their names.
BOOT = Path("/proc/sys/kernel/random/boot_id")

Step = Callable[[], Any]
Group = Sequence[int]  # ranks
# Target duration of one block on the median rank. The faster of two blocks counts: it leaves out
# short disturbances and shows permanent slowness.
BLOCK_S = 0.01
NUM_BLOCKS = 2
# Large enough that a device is busy, and that its caches do not hold what is copied.
MATMUL_WIDTH = {"cpu": 512, "cuda": 4096}
COPY_BYTES = {"cpu": 2**25, "cuda": 2**28}
ALL_REDUCE_BYTES = {"cpu": 2**22, "cuda": 2**26}


@dataclass(frozen=True)
class Settings:
    """How to screen.

    Attributes:
        repeats: How often each probe is timed; 40 by default, more for very many ranks.
        device: "cpu" or "cuda"; CUDA where there is one, by default.
        floor_gb_per_s: Least bus bandwidth of an all-reduce over all ranks, if any is asked for.
    """

    repeats: int | None = None
    device: str | None = None
    timeout_s: float = 120.0
    floor_gb_per_s: float | None = None


def run(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[int, Screening]:
    """Join the other ranks, screen with them, and return this rank's number and what was found.

    Raises:
        ValueError: There is one rank, or too few repeats.
        RuntimeError: Ranks do not meet, or one is lost.
    """
    repeats = num_repeats(placement(environ).world_size, settings.repeats)
    world = process_group.join(settings.timeout_s, device=settings.device, environ=environ)
    try:
        try:
            machine = BOOT.read_text(encoding="utf-8").strip()
        except OSError:
            machine = hostname()
        node = environ.get("SLURMD_NODENAME", hostname())
        own = Seat(world.rank, world.local_rank, node, machine)
        seats = [Seat(**seat) for seat in world.control.exchange_all("seat", asdict(own))]
        prober = Prober(world, seats, repeats, Random(SEED))  # noqa: S311, no secret
        screening = _screen(prober, settings.floor_gb_per_s)
        world.control.part()
    finally:
        process_group.leave()
    return world.rank, screening


def num_repeats(num_ranks: int, asked: int | None) -> int:
    """Return how often to time each probe.

    Raises:
        ValueError: There is one rank, or `asked` is too small.
    """
    if num_ranks < 2:
        raise ValueError(
            "a single rank cannot be compared with others; start two or more, for example with "
            "srun -N4 --ntasks-per-node=1 or --ranks 2"
        )
    least = search.least_repeats(num_ranks)
    if asked is not None and asked < least:
        raise ValueError(
            f"{asked} repeats on {num_ranks} ranks are too few to show that one is slow; give "
            f"{least} or more"
        )
    return asked or max(search.USUAL_REPEATS, least)


def _screen(prober: "Prober", floor_gb_per_s: float | None) -> Screening:
    """Let every node work by itself, then in pairs, then all together where a floor is given.

    Rank 0 judges what all ranks have timed, and every rank gets the same screening.
    """
    control, seats = prober.world.control, prober.seats
    nodes = search.nodes_of(seats)
    alone = prober.alone()
    sizes = {len(ranks) for ranks in nodes.values()}
    # The nodes' own all-reduces compare where all have as many ranks, two or more.
    if len(nodes) > 1 and len(sizes) == 1 and min(sizes) > 1:
        (alone["node_all_reduce"],) = prober.all_reduces(
            "node_all_reduce", [list(nodes.values())]
        ).values()

    def judge_alone(given: list[dict[Probe, list[float]]]) -> dict[str, Any]:
        by_probe = {probe: [of_rank[probe] for of_rank in given] for probe in given[0]}
        return search.after_alone(seats, by_probe, prober.repeats).to_json()

    screening = Screening.from_json(control.settle_all("alone", alone, judge_alone))
    if rounds := search.rounds_after(screening):
        groups = [[[*nodes[a], *nodes[b]] for a, b in pairs] for pairs in rounds]
        timed = prober.all_reduces("pair_all_reduce", groups)
        own = {f"{division} {pair}": seconds for (division, pair), seconds in timed.items()}

        def judge_pairs(given: list[dict[str, list[float]]]) -> dict[str, Any]:
            by_pair = {
                pair: slowest_rank([ranks[key] for ranks in given if (key := f"{i} {j}") in ranks])
                for i, pairs in enumerate(rounds)
                for j, pair in enumerate(pairs)
            }
            return search.after_pairs(screening, rounds, by_pair).to_json()

        screening = Screening.from_json(control.settle_all("pairs", own, judge_pairs))
    if floor_gb_per_s is None:
        return screening
    everyone = list(range(prober.world.world_size))
    (together,) = prober.all_reduces("all_reduce", [[everyone]]).values()

    def judge_all(given: list[list[float]]) -> dict[str, Any]:
        num_bytes = ALL_REDUCE_BYTES[prober.world.device.type]
        seconds = slowest_rank(given)
        return search.held_against(screening, seconds, num_bytes, floor_gb_per_s).to_json()

    return Screening.from_json(control.settle_all("all", together, judge_all))


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
        timed: dict[Probe, list[float]] = {probe: [] for probe in makers}
        for repeat in range(-1, self.repeats):
            for group in self._in_turn([[seat.rank] for seat in self.seats]):
                if group is not None:
                    for probe, make in makers.items():
                        timed[probe].append(self._time(probe, make()))
            if repeat < 0:
                for probe, seconds in timed.items():
                    self._fill_blocks(probe, seconds)
                    seconds.clear()
        return timed

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
        from torch import distributed

        # Every rank takes part in making all groups.
        groups_of: list[list[Any]] = [
            [distributed.new_group(list(ranks)) for ranks in groups] for groups in divisions
        ]
        timed: dict[tuple[int, int], list[float]] = {}
        for repeat in range(-1, self.repeats):
            for division in self.order.sample(range(len(divisions)), len(divisions)):
                for group in self._in_turn(divisions[division]):
                    if group is not None:
                        step = all_reduce(self.world.device, groups_of[division][group])
                        seconds = self._time(probe, step)
                        timed.setdefault((division, group), []).append(seconds)
            if repeat < 0:
                self._fill_blocks(probe, list(chain(*timed.values())))
                timed.clear()
        for made in chain(*groups_of):
            if isinstance(made, distributed.ProcessGroup):  # a number on ranks outside it
                distributed.destroy_process_group(made)
        return timed

    def _fill_blocks(self, probe: Probe, seconds: Sequence[float]) -> None:
        """Settle with all ranks how many steps make a block, by what the first repeat took."""
        own = median(seconds) if seconds else 0.0
        # Ranks that did not measure gave 0.
        step_s = self.world.control.settle_all(
            f"{probe} once", own, lambda given: median(list(filter(None, given)) or [0.0])
        )
        self._num_steps[probe] = max(1, round(BLOCK_S / step_s)) if step_s else 1

    def _in_turn(self, groups: Sequence[Group]) -> Iterator[int | None]:
        """Meet all ranks before each turn, and give the group of this rank whose turn it is."""
        is_shared = self.world.device.type == "cpu"
        shares = turns(groups, self.seats) if is_shared else [list(range(len(groups)))]
        for turn in self.order.sample(shares, len(shares)):
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
    makers: dict[Probe, Callable[[], Step]] = {
        "matmul": lambda: _matmul(device),
        "memory": lambda: _copy(device, device),
    }
    if device.type == "cuda":
        import torch

        makers["host_copy"] = lambda: _copy(torch.device("cpu"), device)
    return makers


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


def main(arguments: Sequence[str]) -> None:
    """Screen as a rank that torchrun has started; what the machine refuses is one line."""
    path = Path(arguments[0])
    try:
        rank, screening = run(Settings(**json.loads(path.read_text(encoding="utf-8"))))
    except (RuntimeError, OSError) as error:
        who = "" if isinstance(error, RankError) else f"rank {os.environ.get('RANK', 0)}: "
        sys.stderr.write(f"lockstep: {who}{one_line(str(error))}\n")  # in one piece: ranks share it
        sys.exit(EXIT_MACHINE)
    if rank == 0:
        path.with_suffix(".found").write_text(json.dumps(screening.to_json()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
