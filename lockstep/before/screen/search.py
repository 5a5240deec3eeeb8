"""Who works with whom in which step of a screening, and what is slow by their times.

A step is one division of the nodes into groups that work at the same time: first every node by
itself, then in up to three steps all nodes in pairs, each time with another partner. A node whose
link is slow makes every one of its pairs slow; a link between two nodes makes one pair slow. So a
screening takes no more than four steps, and never more than ceil(log2 n) + 2.

Every unit is compared with the median of the others in the same repeat. The median over repeats of
the logarithms of these ratios is its slowness, and order statistics are its interval, which holds
for noise of any shape, as that of a machine others use; its level allows for all units of a step
(Bonferroni).
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import TypeVar

from lockstep.before.screen.findings import AllReduce, Finding, Kind, Probe, Row, Screening, Seat
from lockstep.core.metrics import algbw_gb_per_s, busbw_factor, slowest_rank

# Chance that anything at all is named where nothing is slow; each of the two stages has a half.
ERROR = 0.01
# What is named is slower by so much, and its interval lies beyond the second.
SLOW = 1.05
SHOWN = 1.02
# Fewer nodes have no pair to compare a pair with.
FEWEST_FOR_PAIRS = 3
MOST_ROUNDS = 3
USUAL_REPEATS = 40

Pair = tuple[str, str]
Seconds = Sequence[float]  # one value per repeat
Judged = tuple[tuple[Row, ...], list[Finding]]
T = TypeVar("T", bound=Hashable)


def promised_steps(num_nodes: int) -> int:
    """Return how many steps a screening takes at most."""
    return math.ceil(math.log2(num_nodes)) + 2


def nodes_of(seats: Iterable[Seat]) -> dict[str, list[int]]:
    """Return the ranks of each node."""
    nodes: dict[str, list[int]] = {}
    for seat in seats:
        nodes.setdefault(seat.node, []).append(seat.rank)
    return nodes


def tournament(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return up to three rounds of pairs in which nobody meets a partner twice.

    By the circle method of tournaments. Of an odd number one node rests in each round. Fewer than
    three nodes have no round.
    """
    if len(nodes) < FEWEST_FOR_PAIRS:
        return []
    first, *circle = [*nodes, *([""] if len(nodes) % 2 else [])]
    rounds = []
    for turn in range(MOST_ROUNDS):
        seated = [first, *circle[turn:], *circle[:turn]]
        halves = zip(seated, reversed(seated), strict=True)
        pairs = list(halves)[: len(seated) // 2]
        rounds.append([(a, b) for a, b in pairs if a and b])
    return rounds


def turns(groups: Sequence[Sequence[int]], seats: Sequence[Seat]) -> list[list[int]]:
    """Share groups of ranks out to as few turns as let no two of one turn share a machine.

    Returns:
        The indices of the groups of each turn.
    """
    machines = [{seats[rank].machine for rank in group} for group in groups]
    found: list[list[int]] = []
    for index, own in enumerate(machines):
        free = (turn for turn in found if not any(own & machines[other] for other in turn))
        turn = next(free, None)
        if turn is None:
            found.append(turn := [])
        turn.append(index)
    return found


def least_repeats(num_ranks: int) -> int:
    """Return how many repeats an interval needs at least, so that anything can be named."""
    most_units = 4 * num_ranks
    return math.ceil(math.log2(2 * most_units / ERROR))


def after_alone(
    seats: Sequence[Seat], seconds: Mapping[Probe, Sequence[Seconds]], repeats: int
) -> Screening:
    """Return what the first step shows, in which every node works by itself.

    Seconds have shape (num_ranks, num_repeats).
    """
    rows, findings = _judge_alone(seats, seconds, repeats)
    steps = promised_steps(len(nodes_of(seats)))
    return Screening(tuple(seats), repeats, 1, steps, rows, slowest_first(findings))


def rounds_after(alone: Screening) -> list[list[Pair]]:
    """Return the pairs of the next steps: of the nodes in which nothing was slow on its own."""
    slow = {node for finding in alone.findings for node in finding.row.nodes}
    return tournament([node for node in alone.nodes if node not in slow])


def after_pairs(
    alone: Screening, rounds: Sequence[Sequence[Pair]], seconds: Mapping[Pair, Seconds]
) -> Screening:
    """Return what the steps in pairs show beside what the first has shown.

    Seconds are those of the slowest rank of each pair, shape (num_repeats,).
    """
    rows, findings = _judge_pairs(seconds, alone.repeats)
    return replace(
        alone,
        steps=alone.steps + len(rounds),
        rows=alone.rows + rows,
        findings=slowest_first([*alone.findings, *findings]),
    )


def held_against(
    found: Screening, seconds: Seconds, num_bytes: int, floor_gb_per_s: float
) -> Screening:
    """Return a screening with its all-reduce over all ranks beside a floor.

    Seconds are those of the slowest rank, shape (num_repeats,).
    """
    factor = busbw_factor("all_reduce", len(found.seats))
    assert factor is not None
    links = [row for row in found.rows if row.rank is None and len(row.nodes) == 1]
    named = [finding.row for finding in found.findings[:1]]
    slowest = max(named or links, key=lambda row: row.ratio, default=None)
    median_s = median(seconds)
    gb_per_s = factor * algbw_gb_per_s(num_bytes, median_s)
    return replace(
        found, all_reduce=AllReduce(num_bytes, median_s, gb_per_s, floor_gb_per_s, slowest)
    )


def _judge_alone(
    seats: Sequence[Seat], seconds: Mapping[Probe, Sequence[Seconds]], repeats: int
) -> Judged:
    """Compare ranks by what they did on their own, and nodes by what their ranks did together."""
    nodes = nodes_of(seats)
    own = {probe: found for probe, found in seconds.items() if probe != "node_all_reduce"}
    links = seconds.get("node_all_reduce")
    order = _order(repeats, len(own) * len(seats) + (len(nodes) if links else 0))
    rows: list[Row] = []
    findings: list[Finding] = []
    for probe, found in own.items():
        ranks = _compare(dict(enumerate(found)), order)
        of_ranks = [Row(probe, (seats[rank].node,), rank, *ranks[rank]) for rank in ranks]
        rows += of_ranks
        findings += _slow_alone(probe, of_ranks, nodes, found, order)
    if links:
        whole = {
            node: slowest_rank([links[rank] for rank in ranks]) for node, ranks in nodes.items()
        }
        of_nodes = [
            Row("node_all_reduce", (node,), None, *values)
            for node, values in _compare(whole, order).items()
        ]
        rows += of_nodes
        findings += _named("slow-link", of_nodes)
    return tuple(rows), findings


def _judge_pairs(seconds: Mapping[Pair, Seconds], repeats: int) -> Judged:
    """Find the nodes all of whose pairs are slow, and the pairs that alone are slow.

    A node's pairs are set against those without it, a pair against each that shares one node with
    it. The comparison that shows least counts: each must show it (an intersection-union test).
    """
    nodes = list(dict.fromkeys(chain(*seconds)))
    order = _order(repeats, len(nodes) + len(seconds))
    logs = {pair: _logs(found) for pair, found in seconds.items()}
    rows = []
    for node in nodes:
        usual = _each(median, [found for pair, found in logs.items() if node not in pair])
        ratios = [_ratio(found, usual, order) for pair, found in logs.items() if node in pair]
        rows.append(Row("pair_all_reduce", (node,), None, *min(ratios, key=_low)))
    for pair, own in logs.items():
        beside = [found for other, found in logs.items() if len({*pair, *other}) == 3]
        ratios = [_ratio(own, other, order) for other in beside]
        rows.append(Row("pair_all_reduce", pair, None, *min(ratios, key=_low)))
    return tuple(rows), _named("slow-link", rows)


def _low(ratio: tuple[float, float, float, float]) -> float:
    return ratio[2]


def slowest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by their ratio."""
    return tuple(sorted(findings, key=lambda finding: -finding.row.ratio))


def would_be_named(rows: Iterable[Row]) -> float:
    """Return the factor by which the noisiest of them would have to be slower to be named."""
    return max(max(SLOW / row.ratio, SHOWN / row.low) for row in rows)


def _slow_alone(
    probe: Probe,
    rows: Sequence[Row],
    nodes: Mapping[str, Sequence[int]],
    seconds: Sequence[Seconds],
    order: int,
) -> Iterable[Finding]:
    """Name a node for most of its ranks, else each slow rank."""
    slow = {row.rank for row in rows if _is_slow(row)}
    for node, ranks in nodes.items():
        found = [rank for rank in ranks if rank in slow]
        if len(nodes) > 1 and 2 * len(found) > len(ranks):
            own = _each(median, [_logs(seconds[rank]) for rank in ranks])
            other_ranks = [_logs(one) for rank, one in enumerate(seconds) if rank not in ranks]
            values = _ratio(own, _each(median, other_ranks), order)
            yield Finding("slow-node", Row(probe, (node,), None, *values))
        else:
            yield from (Finding("slow-device", rows[rank]) for rank in found)


def _named(kind: Kind, rows: Iterable[Row]) -> list[Finding]:
    return [Finding(kind, row) for row in rows if _is_slow(row)]


def _is_slow(row: Row) -> bool:
    return row.ratio >= SLOW and row.low > SHOWN


def _compare(
    seconds: Mapping[T, Seconds], order: int
) -> dict[T, tuple[float, float, float, float]]:
    """Compare each unit with the median of the others; one alone is compared with nobody."""
    logs = {unit: _logs(found) for unit, found in seconds.items()}
    if len(logs) < 2:
        return {}
    by_repeat = [_medians_without_each(one) for one in zip(*logs.values(), strict=True)]
    each = zip(logs.items(), zip(*by_repeat, strict=True), strict=True)
    return {unit: _ratio(own, beside, order) for (unit, own), beside in each}


def _medians_without_each(values: Sequence[float]) -> list[float]:
    """Return, for each of several values, the median of the others."""
    ordered = sorted(values)
    found = []
    for value in values:
        place = bisect_left(ordered, value)
        lower, upper = (k + (k >= place) for k in ((len(values) - 2) // 2, (len(values) - 1) // 2))
        found.append((ordered[lower] + ordered[upper]) / 2)
    return found


def _ratio(
    own: Sequence[float], others: Sequence[float], order: int
) -> tuple[float, float, float, float]:
    """Return a unit's median seconds, and its ratio to the others with the ends of its interval."""
    ratios = sorted(a - b for a, b in zip(own, others, strict=True))
    found = (median(own), median(ratios), ratios[order - 1], ratios[-order])
    median_s, ratio, low, high = map(math.exp, found)
    return median_s, ratio, low, high


def _order(repeats: int, num_units: int) -> int:
    """Return k: the k-th smallest and k-th largest of the repeats are the ends of an interval.

    The largest k for which an end misses the true median no oftener than a unit's share of the
    error, which is P(Binomial(repeats, 1/2) < k).
    """
    allowed = ERROR / 2 / num_units * 2**repeats
    order, below = 0, 0
    while (below := below + math.comb(repeats, order)) <= allowed:
        order += 1
    return max(1, order)


def _each(
    chosen: Callable[[Sequence[float]], float], found: Sequence[Sequence[float]]
) -> list[float]:
    return [chosen(each) for each in zip(*found, strict=True)]


def _logs(seconds: Seconds) -> list[float]:
    return list(map(math.log, seconds))
