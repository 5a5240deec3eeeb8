"""A screening as each of its ranks goes through it.

    torchrun ... -m lockstep.before.screen.screening FILE

takes its settings from FILE and writes what it found to FILE.found; `lockstep screen` starts this.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from lockstep.before.screen import search
from lockstep.before.screen.probes import ALL_REDUCE_BYTES, Prober
from lockstep.before.screen.search import Probe, Screening, Seat
from lockstep.core.errors import RankError
from lockstep.core.formats import one_line
from lockstep.core.metrics import slowest_rank
from lockstep.core.processes import hostname
from lockstep.ranks import process_group
from lockstep.ranks.placement import placement
from lockstep.ranks.store import EXIT_MACHINE

if TYPE_CHECKING:
    from lockstep.ranks.process_group import World

SEED = 20_260
# Drawn by the kernel when it starts.
BOOT = Path("/proc/sys/kernel/random/boot_id")


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
        ValueError: There is one rank, or there are too few repeats to name anything.
        RuntimeError: Ranks do not meet, or one is lost.
    """
    repeats = num_repeats(placement(environ).world_size, settings.repeats)
    world = process_group.join(settings.timeout_s, device=settings.device, environ=environ)
    try:
        screening = _screen(world, repeats, settings.floor_gb_per_s, environ)
        world.control.part()
    finally:
        process_group.leave()
    return world.rank, screening


def _screen(
    world: "World", repeats: int, floor_gb_per_s: float | None, environ: Mapping[str, str]
) -> Screening:
    node = environ.get("SLURMD_NODENAME", hostname())
    own = Seat(world.rank, world.local_rank, node, _machine())
    seats = [Seat(**seat) for seat in world.control.exchange_all("seat", asdict(own))]
    prober = Prober(world, seats, repeats, Random(SEED))  # noqa: S311, no secret
    alone = _alone(world, prober)
    rounds = search.rounds_after(alone)
    screening = _with_pairs(world, prober, rounds, alone) if rounds else alone
    return (
        screening if floor_gb_per_s is None else _with_all(world, prober, screening, floor_gb_per_s)
    )


def _machine() -> str:
    """Return what tells this machine from others, whatever names its nodes or containers have."""
    try:
        return BOOT.read_text(encoding="utf-8").strip()
    except OSError:
        return hostname()


def num_repeats(num_ranks: int, asked: int | None) -> int:
    """Return how often to time each probe.

    Raises:
        ValueError: There is one rank, or the number that was asked for can show nothing.
    """
    if num_ranks < 2:
        raise ValueError(
            "one rank has nobody to be compared with; start two or more, as srun -N4 "
            "--ntasks-per-node=1 does, or --ranks 2"
        )
    least = search.least_repeats(num_ranks)
    if asked is not None and asked < least:
        raise ValueError(
            f"{asked} repeats of {num_ranks} ranks cannot show that one is slow; give {least} or "
            "more"
        )
    return asked or max(search.USUAL_REPEATS, least)


def _alone(world: "World", prober: Prober) -> Screening:
    """Take the first step: every node by itself."""
    seconds = prober.alone()
    nodes = search.nodes_of(prober.seats)
    if len(nodes) > 1 and _has_groups(nodes.values()):
        ((_, found),) = prober.all_reduces("node_all_reduce", [list(nodes.values())]).items()
        seconds["node_all_reduce"] = found

    def judge(given: list[dict[Probe, list[float]]]) -> dict[str, Any]:
        by_probe = {probe: [one[probe] for one in given] for probe in given[0]}
        return search.after_alone(prober.seats, by_probe, prober.repeats).to_json()

    return Screening.from_json(world.control.settle_all("alone", seconds, judge))


def _has_groups(nodes: Iterable[Sequence[int]]) -> bool:
    """Return whether the nodes' own all-reduces compare: all have as many ranks, two or more."""
    sizes = {len(ranks) for ranks in nodes}
    return len(sizes) == 1 and min(sizes) > 1


def _with_pairs(
    world: "World",
    prober: Prober,
    rounds: Sequence[Sequence[search.Pair]],
    alone: Screening,
) -> Screening:
    """Take the steps in which the nodes work in pairs."""
    nodes = search.nodes_of(prober.seats)
    groups = [[[*nodes[a], *nodes[b]] for a, b in pairs] for pairs in rounds]
    own = prober.all_reduces("pair_all_reduce", groups)
    seconds = {f"{division} {pair}": found for (division, pair), found in own.items()}

    def judge(given: list[dict[str, list[float]]]) -> dict[str, Any]:
        by_pair = {
            pair: slowest_rank([one[key] for one in given if (key := f"{i} {j}") in one])
            for i, pairs in enumerate(rounds)
            for j, pair in enumerate(pairs)
        }
        return search.after_pairs(alone, rounds, by_pair).to_json()

    return Screening.from_json(world.control.settle_all("pairs", seconds, judge))


def _with_all(
    world: "World", prober: Prober, screening: Screening, floor_gb_per_s: float
) -> Screening:
    """Let all ranks reduce together, and hold that against the floor."""
    ((_, seconds),) = prober.all_reduces("all_reduce", [[list(range(world.world_size))]]).items()

    def judge(given: list[list[float]]) -> dict[str, Any]:
        num_bytes = ALL_REDUCE_BYTES[world.device.type]
        held = search.held_against(screening, slowest_rank(given), num_bytes, floor_gb_per_s)
        return held.to_json()

    return Screening.from_json(world.control.settle_all("all", seconds, judge))


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
