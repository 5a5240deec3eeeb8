"""Screenings of simulated nodes: what is slow is known, the noise is that of shared machines."""

from dataclasses import dataclass
from random import Random

from lockstep.before.screen import search
from lockstep.before.screen.search import Screening, Seat

REPEATS, SPREAD = 40, 0.02


@dataclass(frozen=True)
class Slow:
    """What takes `factor` times as long: a node, a rank of one, or the link of one or two nodes."""

    kind: str
    nodes: tuple[str, ...]
    rank: int | None = None
    factor: float = 1.3


@dataclass
class Noise:
    """Drift that all share, normal noise of each, and now and then a neighbour for some repeats."""

    rng: Random
    neighbours: float = 0.05

    def series(self, repeats: int = REPEATS) -> list[float]:
        found, busy = [], 1.0
        for _ in range(repeats):
            if self.rng.random() < 0.5:  # so a neighbour stays for two repeats on average
                busy = 1 + self.rng.random() if self.rng.random() < self.neighbours else 1.0
            found.append(busy * self.rng.lognormvariate(0, SPREAD))
        return found


def seats(num_nodes: int, ranks_per_node: int) -> list[Seat]:
    """Return the seats of nodes n0, n1, ..."""
    ranks = range(num_nodes * ranks_per_node)
    return [Seat(r, r % ranks_per_node, name := f"n{r // ranks_per_node}", name) for r in ranks]


def screened(
    num_nodes: int, ranks_per_node: int, noise: Noise, slow: Slow | None = None
) -> Screening:
    placed = seats(num_nodes, ranks_per_node)
    drift = [1 + 0.01 * repeat for repeat in range(REPEATS)]

    def series(factor: float) -> list[float]:
        return [0.02 * factor * a * b for a, b in zip(noise.series(), drift, strict=True)]

    own = [[series(_own(slow, seat)) for seat in placed] for _ in range(2)]
    seconds = dict(zip(("matmul", "memory"), own, strict=True))
    if ranks_per_node > 1 and num_nodes > 1:
        seconds["node_all_reduce"] = [series(1.0) for _ in placed]
    found = search.judge_alone(placed, seconds, REPEATS)
    if rounds := search.plan_pairs(found):
        pairs = {pair: series(_link(slow, pair)) for pairs in rounds for pair in pairs}
        found = search.judge_pairs(found, len(rounds), pairs)
    return found


def _own(slow: Slow | None, seat: Seat) -> float:
    if slow is None or slow.kind == "slow-link" or seat.node not in slow.nodes:
        return 1.0
    return slow.factor if slow.rank in (None, seat.rank) else 1.0


def _link(slow: Slow | None, pair: search.Pair) -> float:
    if slow is None or slow.kind != "slow-link":
        return 1.0
    return slow.factor if set(slow.nodes) <= set(pair) else 1.0
