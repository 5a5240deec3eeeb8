"""The groups of ranks in each step of a screening, and the findings from their times.

In a step the nodes are divided into groups that work at the same time: first every node alone, then
up to three times all nodes in pairs, each time with another partner.
"""

import json
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from operator import itemgetter
from statistics import median
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from lockstep.core import findings
from lockstep.core.formats import DASH, counted, listed, number, percent, ratio, ratio_span
from lockstep.core.metrics import algbw_gb_per_s, busbw_factor, slowest_rank

# matmul and memory run on one rank; host_copy between its GPU and the host; node_all_reduce among
# the ranks of a node; pair_all_reduce among the ranks of two nodes; all_reduce among all ranks.
Probe = Literal["matmul", "memory", "host_copy", "node_all_reduce", "pair_all_reduce", "all_reduce"]
# slow-node: most ranks of a node are slow alone; slow-device: one rank is; slow-link: an all-reduce
# within a node, of a node with all partners, or of only one pair of nodes is slow.
Kind = Literal["slow-node", "slow-device", "slow-link"]
# Probability of any finding if nothing is slow, divided equally between the two stages.
ERROR = 0.01
# A unit is slow if its ratio is at least SLOW and the interval of the ratio lies above SHOWN.
SLOW, SHOWN = 1.05, 1.02
# With fewer nodes there is no other pair to compare a pair with.
FEWEST_FOR_PAIRS = 3
MOST_ROUNDS = 3
USUAL_REPEATS = 40
# Version of a node's line of JSON, raised by each incompatible change.
SCHEMA = 2
# If a slowness of this fraction may stay unseen, it is not shown that nothing is slow.
NOISY = 0.2
# Most ranks to show, the slowest ones.
MOST_SHOWN = 32
# Probe -> its column, and the end of a sentence about its slowness.
PROBES: dict[Probe, tuple[str, str]] = {
    "matmul": (
        "matrix product",
        "a matrix product takes {ratio} times as long as on the other devices",
    ),
    "memory": (
        "memory copy",
        "a copy in memory takes {ratio} times as long as on the other devices",
    ),
    "host_copy": (
        "copy from host",
        "a copy from the host takes {ratio} times as long as on the other devices",
    ),
    "node_all_reduce": (
        "within node",
        "an all-reduce among the node's ranks takes {ratio} times as long as on the other nodes",
    ),
    "pair_all_reduce": (
        "with other nodes",
        "an all-reduce between this node and another takes {ratio} times as long as between "
        "the other nodes",
    ),
}
UNCOMPARED: dict[Probe, str] = {
    "node_all_reduce": "Links within nodes were not compared, because the nodes have different "
    "numbers of ranks",
    "pair_all_reduce": "Links between nodes were not compared, because a comparison needs three "
    "nodes that are not slow",
}

Pair = tuple[str, str]
Seconds = Sequence[float]  # one value per repeat
Logs = NDArray[np.float64]  # logarithms of seconds, one per repeat
Ratios = tuple[float, float, float, float]  # median_s, ratio, low and high of a Row
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Seat:
    """The place of a rank: its node in Slurm, and the machine, which test nodes may share."""

    rank: int
    local_rank: int
    node: str
    machine: str


@dataclass(frozen=True)
class Row:
    """The comparison of one rank, node or pair of nodes (a unit) with the others in one probe.

    Attributes:
        nodes: The node, or both nodes of a pair.
        median_s: The unit's seconds for a matrix product, copy or all-reduce, median over repeats.
        ratio: The unit's time over that of the others, median over repeats of paired ratios.
        low: Lower end of the ratio's interval.
        high: Upper end of the ratio's interval.
    """

    probe: Probe
    nodes: tuple[str, ...]
    rank: int | None
    median_s: float
    ratio: float
    low: float
    high: float

    @property
    def is_slow(self) -> bool:
        return self.ratio >= SLOW and self.low > SHOWN

    @property
    def text(self) -> str:
        return f"{ratio(self.ratio)} ({ratio_span((self.low, self.high))})"

    @property
    def repeats_factor(self) -> float:
        """How many times as many repeats may narrow the interval enough for a verdict.

        The interval of a logarithm shrinks with the square root of the number of repeats. It must
        end below NOISY or, for a slow unit, begin above SHOWN.
        """
        own, low, high, noisy = map(math.log, (self.ratio, self.low, self.high, 1 + NOISY))
        factors = [((high - own) / (noisy - own)) ** 2] if own < noisy else []
        if self.ratio >= SLOW:
            factors.append(((own - low) / (own - math.log(SHOWN))) ** 2)
        return min(factors)


@dataclass(frozen=True, kw_only=True)
class Finding(findings.Finding):
    """A slow node, device or link, and the comparison that shows its slowness."""

    row: Row


def _make_finding(kind: Kind, row: Row, seats: Sequence[Seat]) -> Finding:
    node = row.nodes[0]
    if len(row.nodes) == 2:
        nodes, times = listed(row.nodes), row.text
        text = (
            f"The link between {nodes} is slow: an all-reduce between these nodes takes {times} "
            "times as long as their all-reduces with other nodes."
        )
        return Finding(kind, text, row=row)
    what = f"Node {node}"
    if kind == "slow-device" and row.rank is not None:
        what = f"Device {seats[row.rank].local_rank} of {node} (rank {row.rank})"
    elif kind == "slow-link":
        what = f"The link {'within' if row.probe == 'node_all_reduce' else 'to'} {node}"
    return Finding(kind, f"{what} is slow: {PROBES[row.probe][1].format(ratio=row.text)}.", row=row)


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce over all ranks, timed on its slowest rank, and the floor of its bandwidth."""

    num_bytes: int
    median_s: float
    bus_gb_per_s: float
    floor_gb_per_s: float
    slowest: Row | None

    @property
    def is_below(self) -> bool:
        return self.bus_gb_per_s < self.floor_gb_per_s

    @property
    def text(self) -> str:
        side = "below" if self.is_below else "above"
        measured = f"{number(self.bus_gb_per_s)} GB/s of bus bandwidth"
        return f"{measured}, {side} the floor of {number(self.floor_gb_per_s)}"


@dataclass(frozen=True)
class Screening:
    """The results of a screening.

    Attributes:
        repeats: How often each probe was timed on each unit.
        steps: Number of divisions of the nodes into groups.
        promised_steps: Largest allowed number of steps.
        rows: Comparisons of every rank, every node's links and every pair of nodes.
        findings: Slow nodes, devices and links, the slowest first.
        all_reduce: All-reduce over all ranks, if a floor was given.
    """

    seats: tuple[Seat, ...]
    repeats: int
    steps: int
    promised_steps: int
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    all_reduce: AllReduce | None = None

    @property
    def is_clean(self) -> bool:
        return not self.findings and not (self.all_reduce and self.all_reduce.is_below)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(nodes_of(self.seats))

    def widest(self, node: str | None = None) -> Row:
        """Return the comparison (of a node) whose interval allows the largest slowness."""
        rows = [row for row in self.rows if node is None or node in row.nodes]
        return max(rows, key=lambda row: row.high)

    @property
    def uncompared(self) -> tuple[Probe, ...]:
        """Probes of links that could not be compared although there are several nodes."""
        timed = {row.probe for row in self.rows}
        has_groups = len(self.nodes) > 1 and len(self.seats) > len(self.nodes)
        links: dict[Probe, bool] = {
            "node_all_reduce": has_groups, "pair_all_reduce": len(self.nodes) > 1,
        }  # fmt: skip
        return tuple(probe for probe, is_there in links.items() if is_there and probe not in timed)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "findings": [{"kind": f.kind, "row": asdict(f.row)} for f in self.findings]
        }


def promised_steps(num_nodes: int) -> int:
    return math.ceil(math.log2(num_nodes)) + 2


def nodes_of(seats: Iterable[Seat]) -> dict[str, list[int]]:
    nodes: dict[str, list[int]] = {}
    for seat in seats:
        nodes.setdefault(seat.node, []).append(seat.rank)
    return nodes


def tournament(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return up to three rounds of pairs, by the circle method, in which no pair repeats."""
    if len(nodes) < FEWEST_FOR_PAIRS:
        return []
    first, *circle = [*nodes, *([""] if len(nodes) % 2 else [])]
    rounds = []
    for turn in range(MOST_ROUNDS):
        seated = [first, *circle[turn:], *circle[:turn]]
        pairs = list(zip(seated, reversed(seated), strict=True))[: len(seated) // 2]
        rounds.append([(a, b) for a, b in pairs if a and b])
    return rounds


def turns(groups: Sequence[Sequence[int]], seats: Sequence[Seat]) -> list[list[int]]:
    """Divide groups, as indices, into turns; no two groups of a turn share a machine."""
    machines = [{seats[rank].machine for rank in group} for group in groups]
    shares: list[list[int]] = []
    for index, own in enumerate(machines):
        free = (turn for turn in shares if not any(own & machines[other] for other in turn))
        turn = next(free, None)
        if turn is None:
            shares.append(turn := [])
        turn.append(index)
    return shares


def judge_alone(
    seats: Sequence[Seat], seconds: Mapping[Probe, Sequence[Seconds]], repeats: int
) -> Screening:
    """Return the results of the first step, in which every node works alone.

    Ranks are compared by their own probes, and nodes by the all-reduce of their ranks. If most
    ranks of a node are slow, the node is named; otherwise each slow rank.

    Args:
        seats: Seats of all ranks.
        seconds: Probe -> shape (num_ranks, num_repeats).
        repeats: How often each probe was timed.
    """
    nodes = nodes_of(seats)
    own = {probe: series for probe, series in seconds.items() if probe != "node_all_reduce"}
    links = seconds.get("node_all_reduce")
    order = _order(repeats, len(own) * len(seats) + (len(nodes) if links else 0))
    rows: list[Row] = []
    findings: list[Finding] = []
    for probe, series in own.items():
        of_ranks = [
            Row(probe, (seats[rank].node,), rank, *ratios)
            for rank, ratios in _compare(dict(enumerate(series)), order).items()
        ]
        rows += of_ranks
        slow = {row.rank: row for row in of_ranks if row.is_slow}
        for node, members in nodes.items():
            named = [rank for rank in members if rank in slow]
            if len(nodes) > 1 and 2 * len(named) > len(members):
                others = [rank for rank in range(len(seats)) if rank not in members]
                own_logs, other_logs = (
                    np.median(np.log([series[rank] for rank in ranks]), axis=0)
                    for ranks in (members, others)
                )
                ratios = _ratio(own_logs, other_logs, order)
                row = Row(probe, (node,), None, *ratios)
                findings.append(_make_finding("slow-node", row, seats))
            else:
                findings += [_make_finding("slow-device", slow[rank], seats) for rank in named]
    if links:
        whole = {node: slowest_rank([links[rank] for rank in nodes[node]]) for node in nodes}
        of_nodes = [
            Row("node_all_reduce", (node,), None, *ratios)
            for node, ratios in _compare(whole, order).items()
        ]
        rows += of_nodes
        findings += [_make_finding("slow-link", row, seats) for row in of_nodes if row.is_slow]
    steps = promised_steps(len(nodes))
    findings.sort(key=lambda finding: -finding.row.ratio)
    return Screening(tuple(seats), repeats, 1, steps, tuple(rows), tuple(findings))


def plan_pairs(alone: Screening) -> list[list[Pair]]:
    """Return the pairs of nodes for each next step, without nodes that are slow alone."""
    slow = {node for finding in alone.findings for node in finding.row.nodes}
    return tournament([node for node in alone.nodes if node not in slow])


def judge_pairs(alone: Screening, num_rounds: int, seconds: Mapping[Pair, Seconds]) -> Screening:
    """Add the results of the steps in pairs to those of the first step.

    A node is slow if all its pairs are slower than the pairs without the node. A pair is slow if it
    is slower than each pair that shares one node with it. The weakest comparison counts, because
    each must show the slowness (an intersection-union test).

    Args:
        alone: Results of the first step.
        num_rounds: Number of steps in pairs.
        seconds: Pair -> times of its slowest rank, shape (num_repeats,).
    """
    nodes = list(dict.fromkeys(chain(*seconds)))
    order = _order(alone.repeats, len(nodes) + len(seconds))
    logs = {pair: np.log(series) for pair, series in seconds.items()}
    rows = []
    for node in nodes:
        others = [series for pair, series in logs.items() if node not in pair]
        usual = np.median(others, axis=0)
        ratios = [_ratio(series, usual, order) for pair, series in logs.items() if node in pair]
        rows.append(Row("pair_all_reduce", (node,), None, *min(ratios, key=itemgetter(2))))
    for pair, own in logs.items():
        beside = [series for other, series in logs.items() if len({*pair, *other}) == 3]
        ratios = [_ratio(own, other, order) for other in beside]
        rows.append(Row("pair_all_reduce", pair, None, *min(ratios, key=itemgetter(2))))
    slow = [_make_finding("slow-link", row, alone.seats) for row in rows if row.is_slow]
    findings = sorted([*alone.findings, *slow], key=lambda finding: -finding.row.ratio)
    return replace(
        alone,
        steps=alone.steps + num_rounds,
        rows=(*alone.rows, *rows),
        findings=tuple(findings),
    )


def add_all_reduce(
    screening: Screening, seconds: Seconds, num_bytes: int, floor_gb_per_s: float
) -> Screening:
    """Add the all-reduce over all ranks, and the floor of its bandwidth, to a screening."""
    factor = busbw_factor("all_reduce", len(screening.seats))
    assert factor is not None
    links = [row for row in screening.rows if row.rank is None and len(row.nodes) == 1]
    named = [finding.row for finding in screening.findings[:1]]
    slowest = max(named or links, key=lambda row: row.ratio, default=None)
    median_s = median(seconds)
    gb_per_s = factor * algbw_gb_per_s(num_bytes, median_s)
    return replace(
        screening, all_reduce=AllReduce(num_bytes, median_s, gb_per_s, floor_gb_per_s, slowest)
    )


def _compare(seconds: Mapping[T, Seconds], order: int) -> dict[T, Ratios]:
    """Compare each unit with the median of the other units; a single unit with none."""
    num = len(seconds)
    if num < 2:
        return {}
    logs = np.log(list(seconds.values()))  # shape (num, num_repeats)
    ordered, place = np.sort(logs, axis=0), np.argsort(np.argsort(logs, axis=0), axis=0)
    # Places of the others' median in the sorted list: after the unit's own place, one further on.
    lower, upper = (k + (k >= place) for k in ((num - 2) // 2, (num - 1) // 2))
    others = np.take_along_axis(ordered, lower, 0) / 2 + np.take_along_axis(ordered, upper, 0) / 2
    each = zip(seconds, logs, others, strict=True)
    return {unit: _ratio(own, beside, order) for unit, own, beside in each}


def _ratio(own: Logs, others: Logs, order: int) -> Ratios:
    """Return a unit's median seconds, its ratio to the others, and the ends of the interval.

    The interval comes from order statistics (Conover 1999), so it holds for any distribution.
    """
    ratios = np.sort(own - others)
    logs = [np.median(own), np.median(ratios), ratios[order - 1], ratios[-order]]
    median_s, ratio, low, high = np.exp(logs).tolist()
    return median_s, ratio, low, high


def _order(repeats: int, num_units: int) -> int:
    """Return k: the k-th smallest and the k-th largest repeat are the ends of the interval.

    The probability that an end misses the true median is P(Binomial(repeats, 1/2) < k); it must not
    exceed a unit's share of the error (Bonferroni).
    """
    allowed = 2**repeats // round(2 * num_units / ERROR)  # whole, as floats end below 2**1024
    order, below = 0, 0
    while (below := below + math.comb(repeats, order)) <= allowed:
        order += 1
    return max(1, order)


def node_lines(screening: Screening) -> Iterator[str]:
    for node in screening.nodes:
        slow = [finding for finding in screening.findings if node in finding.row.nodes]
        slowdown = max(0.0, screening.widest(node).high - 1)
        verdict = "slow" if slow else "not-shown" if slowdown > NOISY else "not-slow"
        yield json.dumps({
            "schema": SCHEMA, "node": node, "is_slow": bool(slow), "verdict": verdict,
            "slowdown_unseen": slowdown,
            "findings": [{"kind": finding.kind, **asdict(finding.row)} for finding in slow],
            "rows": [asdict(row) for row in screening.rows if node in row.nodes],
            "num_nodes": len(screening.nodes), "num_ranks": len(screening.seats),
            "repeats": screening.repeats, "steps": screening.steps,
            "promised_steps": screening.promised_steps,
            "all_reduce": screening.all_reduce and asdict(screening.all_reduce),
        })  # fmt: skip


def describe_floor(screening: Screening) -> str | None:
    """Return a sentence if the all-reduce over all ranks is below the floor, else None."""
    reduced = screening.all_reduce
    if reduced is None or not reduced.is_below:
        return None
    row, ranks = reduced.slowest, counted(len(screening.seats), "rank")
    nodes, bandwidth = listed(screening.nodes), reduced.text
    of_all = f"an all-reduce over {ranks} on {nodes} reaches {bandwidth}"
    slowest = row and f"; {listed(row.nodes)} takes {ratio(row.ratio)} times as long as other nodes"
    return f"{of_all}{slowest or ''}"


def page(screening: Screening) -> str:
    """Return the results of a screening for a terminal: a table and a verdict."""
    nodes, num_ranks = screening.nodes, len(screening.seats)
    lines = [*_table(screening), "", *(finding.text for finding in screening.findings)]
    if not screening.findings:
        widest, repeats = screening.widest(), screening.repeats
        what = listed(widest.nodes) if widest.rank is None else f"rank {widest.rank}"
        slowdown = percent(max(0.0, widest.high - 1))
        if widest.high > 1 + NOISY:
            wide = [row for row in screening.rows if row.high > 1 + NOISY]
            factor = max(row.repeats_factor for row in wide)
            lines.append(
                "Not shown: whether something is slow. The times vary so much that a device or "
                f"link could be up to {slowdown} % slower unseen ({PROBES[widest.probe][0]} of "
                f"{what}). Screen again on idle nodes, or with --repeats "
                f"{math.ceil(repeats * factor / 10) * 10}: if the times vary as before, this would "
                f"probably show it, and take {number(factor, 2)} times as long."
            )
        else:
            lines.append(
                f"Nothing is slow. A device or link could be at most {slowdown} % slower unseen."
            )
    if reduced := screening.all_reduce:
        message, bandwidth = f"{reduced.num_bytes / 2**20:g} MiB", reduced.text
        lines.append(f"An all-reduce of {message} over all ranks reaches {bandwidth}.")
    if screening.findings and len(nodes) > 1:
        # Without one of its two nodes a slow link is not used.
        slow = dict.fromkeys(finding.row.nodes[-1] for finding in screening.findings)
        slow_nodes = ",".join(slow)
        lines.append(
            f"To run jobs without the slow nodes, give sbatch or srun --exclude={slow_nodes}"
        )
    lines += [f"{UNCOMPARED[probe]}." for probe in screening.uncompared]
    steps = f"{counted(screening.steps, 'step')} of at most {screening.promised_steps}"
    who = f"{counted(len(nodes), 'node')}, {counted(num_ranks, 'rank')}, {steps}"
    return "\n".join([*lines, f"({who}, {screening.repeats} repeats)"])


def _table(screening: Screening) -> list[str]:
    """Return a line for each of the slowest ranks: its time over that of the others, per probe."""
    slowest: dict[int | str, float] = defaultdict(float)
    for row in screening.rows:
        for who in row.nodes if row.rank is None else [row.rank]:
            slowest[who] = max(slowest[who], row.ratio)
    order = sorted(screening.seats, key=lambda seat: -max(slowest[seat.rank], slowest[seat.node]))
    probes = [probe for probe in PROBES if any(row.probe == probe for row in screening.rows)]
    rows = {
        (row.probe, row.nodes[0], row.rank): row.text
        for row in screening.rows
        if len(row.nodes) == 1
    }
    lines = [["rank", "node", "device", *(PROBES[probe][0] for probe in probes)]]
    for seat in sorted(order[:MOST_SHOWN], key=lambda seat: seat.rank):
        cells = [
            rows.get((probe, seat.node, seat.rank)) or rows.get((probe, seat.node, None), DASH)
            for probe in probes
        ]
        lines.append([str(seat.rank), seat.node, str(seat.local_rank), *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    left_out = len(order) - MOST_SHOWN
    more = [f"and {counted(left_out, 'rank')}, all faster"] if left_out > 0 else []
    unit = (
        "Each cell is a rank's or node's time divided by the time of the others, with the "
        "interval of this ratio. Above 1 is slower."
    )
    return [unit, "", *table, *more]
