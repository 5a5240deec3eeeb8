"""The groups of ranks in each step of a screening, and the findings from their times.

A step is one division of the nodes into groups that work at the same time: first every node by
itself, then in up to three steps all nodes in pairs, each time with another partner. A node whose
link is slow makes every one of its pairs slow; a link between two nodes makes one pair slow. So a
screening takes no more than four steps, and never more than ceil(log2 n) + 2.

Every unit is compared with the median of the others in the same repeat. The median over repeats of
the logarithms of these ratios is its slowness, and order statistics are its interval, which holds
for noise of any shape, as that of a machine others use; its level allows for all units of a step
(Bonferroni).

What a screening holds: who took part, how each compares with the others, and what is slow; the
page and the lines of JSON that `lockstep screen` prints of it.
"""

import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from operator import itemgetter
from statistics import median
from typing import Any, Literal, TypeVar

from lockstep.core import findings
from lockstep.core.formats import DASH, counted, listed, number, percent, ratio, ratio_span
from lockstep.core.metrics import algbw_gb_per_s, busbw_factor, slowest_rank

# matmul, memory: a rank's own; host_copy: between its GPU and the host; node_all_reduce: among the
# ranks of a node; pair_all_reduce: among the ranks of two nodes; all_reduce: among all ranks.
Probe = Literal["matmul", "memory", "host_copy", "node_all_reduce", "pair_all_reduce", "all_reduce"]
# slow-node: most ranks of it are slow on their own; slow-device: one rank is; slow-link: a node
# with its partners, its ranks among themselves, or two nodes with each other and nobody else.
Kind = Literal["slow-node", "slow-device", "slow-link"]
# Chance that anything at all is named where nothing is slow; each of the two stages has a half.
ERROR = 0.01
# What is named is slower by so much, and its interval lies beyond the second.
SLOW, SHOWN = 1.05, 1.02
# Fewer nodes have no pair to compare a pair with.
FEWEST_FOR_PAIRS = 3
MOST_ROUNDS = 3
USUAL_REPEATS = 40
# What a program may rely on in a node's line; a change that breaks it raises this.
SCHEMA = 1
# A slowness that may stay unseen, from which on the reader is told what to do.
NOISY = 0.2
# Of more ranks, the slowest are shown.
MOST_SHOWN = 32
# Probe -> its column, and what is slow by it.
PROBES: dict[Probe, tuple[str, str]] = {
    "matmul": ("matrix product", "a matrix product takes"),
    "memory": ("memory copy", "a copy in memory takes"),
    "host_copy": ("copy from host", "a copy from the host takes"),
    "node_all_reduce": ("within node", "an all-reduce among its ranks takes"),
    "pair_all_reduce": ("with other nodes", "an all-reduce with any other node takes"),
}
UNCOMPARED: dict[Probe, str] = {
    "node_all_reduce": "Links within nodes were not compared: this needs the same number of "
    "ranks on each node",
    "pair_all_reduce": (
        "Links between nodes were not compared: this needs three nodes that are not slow alone"
    ),
}

Pair = tuple[str, str]
Seconds = Sequence[float]  # one value per repeat
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Seat:
    """Where a rank is.

    Attributes:
        local_rank: Its number on its node, which is that of its device.
        node: The node's name, as Slurm knows it.
        machine: What it runs on; nodes of a test cluster may share one.
    """

    rank: int
    local_rank: int
    node: str
    machine: str


@dataclass(frozen=True)
class Row:
    """How one rank, node or pair of nodes compares with the others in one probe.

    Attributes:
        nodes: The node; both nodes of a pair.
        median_s: Its seconds for one matrix product, copy or all-reduce, median over repeats.
        ratio: Its time over that of the others, median over repeats of paired ratios.
        low: Lower end of the ratio's interval.
        high: Upper end of it.
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
        """Whether it is named."""
        return self.ratio >= SLOW and self.low > SHOWN

    @property
    def text(self) -> str:
        """Its ratio, with the interval."""
        return f"{ratio(self.ratio)} ({ratio_span((self.low, self.high))})"


@dataclass(frozen=True, kw_only=True)
class Finding(findings.Finding):
    """Something slow, and the comparison that shows it."""

    row: Row


def _finding(kind: Kind, row: Row, seats: Sequence[Seat]) -> Finding:
    node, times = row.nodes[0], f"{row.text} times as long as"
    if len(row.nodes) == 2:
        text = f"The link between {listed(row.nodes)} is slow: an all-reduce of both takes"
        return Finding(kind, f"{text} {times} those of each with other nodes.", row=row)
    what = f"Node {node}"
    if kind == "slow-device" and row.rank is not None:
        what = f"Device {seats[row.rank].local_rank} of {node} (rank {row.rank})"
    elif kind == "slow-link":
        what = f"The link {'within' if row.probe == 'node_all_reduce' else 'from others to'} {node}"
    return Finding(kind, f"{what} is slow: {PROBES[row.probe][1]} {times} on the others.", row=row)


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce over all ranks beside the least bandwidth that was asked for.

    Attributes:
        median_s: Its seconds on the slowest rank, median over repeats.
        bus_gb_per_s: Its bus bandwidth, as nccl-tests defines it.
        slowest: The comparison that shows the slowest node, or link; None where none was made.
    """

    num_bytes: int
    median_s: float
    bus_gb_per_s: float
    floor_gb_per_s: float
    slowest: Row | None

    @property
    def is_below(self) -> bool:
        """Whether it is slower than was asked for."""
        return self.bus_gb_per_s < self.floor_gb_per_s

    @property
    def text(self) -> str:
        """Its bandwidth beside the floor."""
        side = "below" if self.is_below else "above"
        measured = f"{number(self.bus_gb_per_s)} GB/s of bus bandwidth"
        return f"{measured}, {side} the floor of {number(self.floor_gb_per_s)}"


@dataclass(frozen=True)
class Screening:
    """All that a screening found.

    Attributes:
        repeats: How often each probe was timed on each unit.
        steps: Divisions of the nodes into groups that worked at the same time.
        promised_steps: How many there may be at most.
        rows: Of every rank, of every node's links, of every pair of nodes.
        findings: What is slow, the slowest first.
        all_reduce: Of all ranks, where a floor was given.
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
        """Whether nothing is slow, by comparison or by the floor."""
        return not self.findings and not (self.all_reduce and self.all_reduce.is_below)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes, in the order of their ranks."""
        return tuple(nodes_of(self.seats))

    @property
    def uncompared(self) -> tuple[Probe, ...]:
        """What could not be compared of the links that several nodes have."""
        timed = {row.probe for row in self.rows}
        has_groups = len(self.nodes) > 1 and len(self.seats) > len(self.nodes)
        links: dict[Probe, bool] = {
            "node_all_reduce": has_groups, "pair_all_reduce": len(self.nodes) > 1,
        }  # fmt: skip
        return tuple(probe for probe, is_there in links.items() if is_there and probe not in timed)

    def to_json(self) -> dict[str, Any]:
        """Return what JSON can hold; `from_json` reads it."""
        return asdict(self) | {
            "findings": [{"kind": f.kind, "row": asdict(f.row)} for f in self.findings]
        }

    @staticmethod
    def from_json(given: dict[str, Any]) -> "Screening":
        """Return the screening that `to_json` was made of."""

        def row(fields: dict[str, Any]) -> Row:
            return Row(**fields | {"nodes": tuple(fields["nodes"])})

        seats = tuple(Seat(**seat) for seat in given["seats"])
        made: dict[str, Any] = {
            "seats": seats,
            "rows": tuple(map(row, given["rows"])),
            "findings": tuple(_finding(f["kind"], row(f["row"]), seats) for f in given["findings"]),
        }
        if held := given.get("all_reduce"):
            slowest = held["slowest"] and row(held["slowest"])
            made["all_reduce"] = AllReduce(**held | {"slowest": slowest})
        return Screening(**given | made)


def promised_steps(num_nodes: int) -> int:
    """Return how many steps a screening takes at most."""
    return math.ceil(math.log2(num_nodes)) + 2


def least_repeats(num_ranks: int) -> int:
    """Return how many repeats an interval needs at least, so that anything can be named."""
    most_units = 4 * num_ranks
    return math.ceil(math.log2(2 * most_units / ERROR))


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
        pairs = list(zip(seated, reversed(seated), strict=True))[: len(seated) // 2]
        rounds.append([(a, b) for a, b in pairs if a and b])
    return rounds


def turns(groups: Sequence[Sequence[int]], seats: Sequence[Seat]) -> list[list[int]]:
    """Share groups of ranks out to as few turns as let no two of one turn share a machine.

    Returns:
        The indices of the groups of each turn.
    """
    machines = [{seats[rank].machine for rank in group} for group in groups]
    shares: list[list[int]] = []
    for index, own in enumerate(machines):
        free = (turn for turn in shares if not any(own & machines[other] for other in turn))
        turn = next(free, None)
        if turn is None:
            shares.append(turn := [])
        turn.append(index)
    return shares


def after_alone(
    seats: Sequence[Seat], seconds: Mapping[Probe, Sequence[Seconds]], repeats: int
) -> Screening:
    """Return what the first step shows, in which every node works by itself.

    Ranks are compared by what they did on their own, and nodes by what their ranks did together. A
    node is named for most of its ranks, else each slow rank.

    Args:
        seats: Of all ranks.
        seconds: Probe -> shape (num_ranks, num_repeats).
        repeats: How often each probe was timed.
    """
    nodes = nodes_of(seats)
    own = {probe: series for probe, series in seconds.items() if probe != "node_all_reduce"}
    links = seconds.get("node_all_reduce")
    order = _order(repeats, len(own) * len(seats) + (len(nodes) if links else 0))
    rows: list[Row] = []
    found: list[Finding] = []
    for probe, series in own.items():
        ranks = _compare(dict(enumerate(series)), order)
        of_ranks = [Row(probe, (seats[rank].node,), rank, *ranks[rank]) for rank in ranks]
        rows += of_ranks
        slow = {row.rank: row for row in of_ranks if row.is_slow}
        for node, members in nodes.items():
            named = [rank for rank in members if rank in slow]
            if len(nodes) > 1 and 2 * len(named) > len(members):
                others = [rank for rank in range(len(seats)) if rank not in members]
                ratios = _ratio(_medians(series, members), _medians(series, others), order)
                found.append(_finding("slow-node", Row(probe, (node,), None, *ratios), seats))
            else:
                found += [_finding("slow-device", slow[rank], seats) for rank in named]
    if links:
        whole = {node: slowest_rank([links[rank] for rank in nodes[node]]) for node in nodes}
        of_nodes = [
            Row("node_all_reduce", (node,), None, *ratios)
            for node, ratios in _compare(whole, order).items()
        ]
        rows += of_nodes
        found += [_finding("slow-link", row, seats) for row in of_nodes if row.is_slow]
    steps = promised_steps(len(nodes))
    return Screening(tuple(seats), repeats, 1, steps, tuple(rows), _slowest_first(found))


def rounds_after(alone: Screening) -> list[list[Pair]]:
    """Return the pairs of the next steps: of the nodes in which nothing was slow on its own."""
    slow = {node for finding in alone.findings for node in finding.row.nodes}
    return tournament([node for node in alone.nodes if node not in slow])


def after_pairs(
    alone: Screening, rounds: Sequence[Sequence[Pair]], seconds: Mapping[Pair, Seconds]
) -> Screening:
    """Return what the steps in pairs show beside what the first has shown.

    Named are the nodes all of whose pairs are slow, and the pairs that alone are slow. A node's
    pairs are set against those without it, a pair against each that shares one node with it. The
    comparison that shows least counts: each must show it (an intersection-union test).

    Args:
        alone: What the first step has shown.
        rounds: The pairs of each step.
        seconds: Of the slowest rank of each pair, shape (num_repeats,).
    """
    nodes = list(dict.fromkeys(chain(*seconds)))
    order = _order(alone.repeats, len(nodes) + len(seconds))
    logs = {pair: _logs(series) for pair, series in seconds.items()}
    rows = []
    for node in nodes:
        others = [series for pair, series in logs.items() if node not in pair]
        usual = [median(repeat) for repeat in zip(*others, strict=True)]
        ratios = [_ratio(series, usual, order) for pair, series in logs.items() if node in pair]
        rows.append(Row("pair_all_reduce", (node,), None, *min(ratios, key=itemgetter(2))))
    for pair, own in logs.items():
        beside = [series for other, series in logs.items() if len({*pair, *other}) == 3]
        ratios = [_ratio(own, other, order) for other in beside]
        rows.append(Row("pair_all_reduce", pair, None, *min(ratios, key=itemgetter(2))))
    slow = [_finding("slow-link", row, alone.seats) for row in rows if row.is_slow]
    return replace(
        alone,
        steps=alone.steps + len(rounds),
        rows=(*alone.rows, *rows),
        findings=_slowest_first([*alone.findings, *slow]),
    )


def held_against(
    screening: Screening, seconds: Seconds, num_bytes: int, floor_gb_per_s: float
) -> Screening:
    """Return a screening with its all-reduce over all ranks beside a floor.

    Seconds are those of the slowest rank, shape (num_repeats,).
    """
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


def _slowest_first(found: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda finding: -finding.row.ratio))


def _compare(
    seconds: Mapping[T, Seconds], order: int
) -> dict[T, tuple[float, float, float, float]]:
    """Compare each unit with the median of the others; one alone is compared with nobody."""
    logs = {unit: _logs(series) for unit, series in seconds.items()}
    if len(logs) < 2:
        return {}
    by_repeat = [_medians_without_each(repeat) for repeat in zip(*logs.values(), strict=True)]
    each = zip(logs.items(), zip(*by_repeat, strict=True), strict=True)
    return {unit: _ratio(own, beside, order) for (unit, own), beside in each}


def _medians_without_each(values: Sequence[float]) -> list[float]:
    """Return, for each of several values, the median of the others."""
    ordered = sorted(values)
    medians = []
    for value in values:
        place = bisect_left(ordered, value)
        lower, upper = (k + (k >= place) for k in ((len(values) - 2) // 2, (len(values) - 1) // 2))
        medians.append((ordered[lower] + ordered[upper]) / 2)
    return medians


def _medians(seconds: Sequence[Seconds], ranks: Sequence[int]) -> list[float]:
    """Return the median logarithm of some ranks in each repeat."""
    logs = [_logs(seconds[rank]) for rank in ranks]
    return [median(repeat) for repeat in zip(*logs, strict=True)]


def _ratio(
    own: Sequence[float], others: Sequence[float], order: int
) -> tuple[float, float, float, float]:
    """Return a unit's median seconds, and its ratio to the others with the ends of its interval."""
    ratios = sorted(a - b for a, b in zip(own, others, strict=True))
    logs = (median(own), median(ratios), ratios[order - 1], ratios[-order])
    median_s, ratio, low, high = map(math.exp, logs)
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


def _logs(seconds: Seconds) -> list[float]:
    return list(map(math.log, seconds))


def node_lines(screening: Screening) -> Iterator[str]:
    """Return a line of JSON for each node: its verdict, and how its ranks and links compare."""
    for node in screening.nodes:
        slow = [finding for finding in screening.findings if node in finding.row.nodes]
        yield json.dumps({
            "schema": SCHEMA, "node": node, "is_slow": bool(slow),
            "findings": [{"kind": finding.kind, **asdict(finding.row)} for finding in slow],
            "rows": [asdict(row) for row in screening.rows if node in row.nodes],
            "num_nodes": len(screening.nodes), "num_ranks": len(screening.seats),
            "repeats": screening.repeats, "steps": screening.steps,
            "promised_steps": screening.promised_steps,
            "all_reduce": screening.all_reduce and asdict(screening.all_reduce),
        })  # fmt: skip


def below_floor(screening: Screening) -> str | None:
    """Return that all ranks together reduce more slowly than was asked for, if they do."""
    held = screening.all_reduce
    if held is None or not held.is_below:
        return None
    row, ranks = held.slowest, counted(len(screening.seats), "rank")
    outlier = f", slowest {listed(row.nodes)} ({ratio(row.ratio)} times the others)" if row else ""
    return f"all-reduce at {held.text}{outlier}, over {ranks} on {listed(screening.nodes)}"


def page(screening: Screening) -> str:
    """Return what a screening found, for a terminal: a table and a verdict."""
    nodes, num_ranks = screening.nodes, len(screening.seats)
    lines = [*_table(screening), "", *(finding.text for finding in screening.findings)]
    if not screening.findings:
        # The factor by which the noisiest would have to be slower to be named.
        unseen = max(max(SLOW / row.ratio, SHOWN / row.low) for row in screening.rows) - 1
        text = (
            f"Nothing is slow. A device or link that is {percent(unseen)} % slower would have been"
        )
        less = " This is a coarse result: repeat it at a quieter time, or with more --repeats."
        lines.append(f"{text} found.{less if unseen > NOISY else ''}")
    if held := screening.all_reduce:
        lines.append(
            f"An all-reduce of {held.num_bytes / 2**20:g} MiB over all ranks has {held.text}."
        )
    if screening.findings and len(nodes) > 1:
        # Of a link between two, the second node is enough.
        slow = dict.fromkeys(finding.row.nodes[-1] for finding in screening.findings)
        lines.append(f"Option of sbatch and srun to leave them out: --exclude={','.join(slow)}")
    lines += [f"{UNCOMPARED[probe]}." for probe in screening.uncompared]
    steps = f"{counted(screening.steps, 'step')} of at most {screening.promised_steps}"
    who = f"{counted(len(nodes), 'node')}, {counted(num_ranks, 'rank')}, {steps}"
    return "\n".join([*lines, f"({who}, {screening.repeats} repeats)"])


def _table(screening: Screening) -> list[str]:
    """Return a line for each of the slowest ranks: its time over the others' by probe."""
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
    return [*table, *more]
