"""Who works with whom in which step of a screening, and what is slow by their times.

A step is one division of the nodes into groups that work at the same time: first every node by
itself, then in up to three steps all nodes in pairs, each time with another partner. A node whose
link is slow makes every one of its pairs slow; a link between two nodes makes one pair slow. So a
screening takes no more than four steps, and never more than ceil(log2 n) + 2.

Every unit is compared with the median of the others in the same repeat. The median over repeats of
the logarithms of these ratios is its slowness, and order statistics are its interval, which holds
for noise of any shape, as that of a machine others use; its level allows for all units of a step
(Bonferroni).

What a screening holds: who took part, how each compares with the others, and what is slow.

The words of `lockstep screen`, and its lines of JSON.
"""

import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from statistics import median
from typing import Any, Literal, TypeVar

from lockstep.core.formats import DASH, counted, listed, number, percent, ratio, ratio_span
from lockstep.core.metrics import algbw_gb_per_s, busbw_factor, slowest_rank

# matmul, memory: a rank's own; host_copy: between its GPU and the host; node_all_reduce: among the
# ranks of a node; pair_all_reduce: among the ranks of two nodes; all_reduce: among all ranks.
Probe = Literal["matmul", "memory", "host_copy", "node_all_reduce", "pair_all_reduce", "all_reduce"]
# slow-node: most ranks of it are slow on their own; slow-device: one rank is; slow-link: a node
# with its partners, its ranks among themselves, or two nodes with each other and nobody else.
Kind = Literal["slow-node", "slow-device", "slow-link"]


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
        probe: What was timed.
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


@dataclass(frozen=True)
class Finding:
    """Something slow, and the comparison that shows it."""

    kind: Kind
    row: Row


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
        return tuple(dict.fromkeys(seat.node for seat in self.seats))

    @property
    def uncompared(self) -> tuple[Probe, ...]:
        """What could not be compared of the links that several nodes have."""
        links: dict[Probe, bool] = {
            "node_all_reduce": len(self.seats) > len(self.nodes),
            "pair_all_reduce": True,
        }
        timed = {row.probe for row in self.rows}
        is_alone = len(self.nodes) == 1
        return tuple(p for p, is_there in links.items() if is_there > is_alone and p not in timed)

    def to_json(self) -> dict[str, Any]:
        """Return what JSON can hold; `from_json` reads it."""
        return asdict(self)

    @staticmethod
    def from_json(given: dict[str, Any]) -> "Screening":
        """Return the screening that `to_json` was made of."""
        findings = (Finding(one["kind"], _row(one["row"])) for one in given["findings"])
        made = {
            "seats": tuple(Seat(**seat) for seat in given["seats"]),
            "rows": tuple(map(_row, given["rows"])),
            "findings": tuple(findings),
        }
        return Screening(**given | made | {"all_reduce": _all_reduce(given.get("all_reduce"))})


def _all_reduce(given: dict[str, Any] | None) -> AllReduce | None:
    if given is None:
        return None
    slowest = given["slowest"]
    return AllReduce(**given | {"slowest": slowest and _row(slowest)})


def _row(given: dict[str, Any]) -> Row:
    return Row(**given | {"nodes": tuple(given["nodes"])})


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


# What a program may rely on in a node's line; a change that breaks it raises this.
SCHEMA = 1
# A slowness that may stay unseen, from which on the reader is told what to do.
NOISY = 0.2
# Of more ranks, the slowest are shown.
MOST_SHOWN = 32
HEADERS: dict[Probe, str] = {
    "matmul": "matrix product",
    "memory": "memory copy",
    "host_copy": "copy from host",
    "node_all_reduce": "within node",
    "pair_all_reduce": "with other nodes",
}
WHAT: dict[Probe, str] = {
    "matmul": "a matrix product takes",
    "memory": "a copy in memory takes",
    "host_copy": "a copy from the host takes",
    "node_all_reduce": "an all-reduce among its ranks takes",
    "pair_all_reduce": "an all-reduce with any other node takes",
}
UNCOMPARED: dict[Probe, str] = {
    "node_all_reduce": "Links within nodes were not compared: that takes as many ranks on each",
    "pair_all_reduce": (
        "Links between nodes were not compared: that takes three nodes that are not slow alone"
    ),
}


def page(screening: Screening) -> str:
    """Return what a screening found, for a terminal: a table and a verdict."""
    return "\n".join([*_table(screening), "", *_verdict(screening)])


def node_lines(screening: Screening) -> Iterator[str]:
    """Return a line of JSON for each node: its verdict, and how its ranks and links compare."""
    for node in screening.nodes:
        findings = [_flat(finding) for finding in screening.findings if node in finding.row.nodes]
        yield json.dumps(
            {
                "schema": SCHEMA,
                "node": node,
                "is_slow": bool(findings),
                "findings": findings,
                "rows": [asdict(row) for row in screening.rows if node in row.nodes],
                "num_nodes": len(screening.nodes),
                "num_ranks": len(screening.seats),
                "repeats": screening.repeats,
                "steps": screening.steps,
                "promised_steps": screening.promised_steps,
                "all_reduce": screening.all_reduce and asdict(screening.all_reduce),
            }
        )


def below_floor(screening: Screening) -> str | None:
    """Return that all ranks together reduce more slowly than was asked for, if they do."""
    if screening.all_reduce is None or not screening.all_reduce.is_below:
        return None
    row, who = screening.all_reduce.slowest, listed(screening.nodes)
    where = f"{counted(len(screening.seats), 'rank')} on {who}"
    outlier = f", slowest {listed(row.nodes)} ({ratio(row.ratio)} times the others)" if row else ""
    return f"all-reduce at {_speeds(screening.all_reduce)}{outlier}, over {where}"


def _speeds(all_reduce: AllReduce) -> str:
    less = "below" if all_reduce.is_below else "over"
    measured = f"{number(all_reduce.bus_gb_per_s)} GB/s of bus bandwidth"
    return f"{measured}, {less} the floor of {number(all_reduce.floor_gb_per_s)}"


def _flat(finding: Finding) -> dict[str, object]:
    return {"kind": finding.kind, **asdict(finding.row)}


def _table(screening: Screening) -> list[str]:
    """Return a line for each rank: its time over the others' by probe, with its interval."""
    probes = [probe for probe in HEADERS if any(row.probe == probe for row in screening.rows)]
    lines = [["rank", "node", "device", *(HEADERS[probe] for probe in probes)]]
    rows = {
        (row.probe, row.nodes[0], row.rank): row for row in screening.rows if len(row.nodes) == 1
    }
    for seat in _shown(screening):
        of_seat = [
            rows.get((probe, seat.node, seat.rank)) or rows.get((probe, seat.node, None))
            for probe in probes
        ]
        cells = [_ratio_text(row) if row else DASH for row in of_seat]
        lines.append([str(seat.rank), seat.node, str(seat.local_rank), *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    left_out = len(screening.seats) - (len(lines) - 1)
    return [*table, *([f"and {counted(left_out, 'rank')} that were faster"] if left_out else [])]


def _shown(screening: Screening) -> list[Seat]:
    """Return the seats of the slowest ranks, in their order."""
    slowest: dict[int | str, float] = defaultdict(float)
    for row in screening.rows:
        for who in row.nodes if row.rank is None else [row.rank]:
            slowest[who] = max(slowest[who], row.ratio)
    order = sorted(screening.seats, key=lambda seat: -max(slowest[seat.rank], slowest[seat.node]))
    return sorted(order[:MOST_SHOWN], key=lambda seat: seat.rank)


def _verdict(screening: Screening) -> list[str]:
    steps = f"{counted(screening.steps, 'step')} of at most {screening.promised_steps}"
    who = (
        f"{counted(len(screening.nodes), 'node')}, {counted(len(screening.seats), 'rank')}, {steps}"
    )
    lines = [_sentence(finding, screening) for finding in screening.findings]
    if not lines:
        lines = [_nothing(would_be_named(screening.rows) - 1)]
    if all_reduce := screening.all_reduce:
        size = f"{all_reduce.num_bytes / 2**20:g} MiB"
        lines.append(f"All ranks together reduce {size} at {_speeds(all_reduce)}.")
    if screening.findings and len(screening.nodes) > 1:
        lines.append(f"Leave out for sbatch and srun: --exclude={','.join(_to_exclude(screening))}")
    lines += [f"{UNCOMPARED[probe]}." for probe in screening.uncompared]
    return [*lines, f"({who}, {screening.repeats} repeats)"]


def _nothing(unseen: float) -> str:
    """Return what a clean screening says, with how much slower something may still be."""
    shown = f"Nothing is shown to be slow. Were any {percent(unseen)} % slower, it would be named."
    less = " That is much: wait for a quiet hour, or give more --repeats."
    return shown + (less if unseen > NOISY else "")


def _to_exclude(screening: Screening) -> list[str]:
    """Return the nodes to leave out; of a link between two, the second is enough."""
    return list(dict.fromkeys(finding.row.nodes[-1] for finding in screening.findings))


def _sentence(finding: Finding, screening: Screening) -> str:
    row = finding.row
    if len(row.nodes) == 2:
        who = f"The link between {listed(row.nodes)} is slow: an all-reduce of both takes"
        return f"{who} {_ratio_text(row)} times as long as those of either with others."
    node = row.nodes[0]
    if finding.kind == "slow-device":
        who = f"Device {_device(row, screening)} of {node} (rank {row.rank}) is slow"
    elif finding.kind == "slow-node":
        who = f"Node {node} is slow"
    else:
        where = "within" if row.probe == "node_all_reduce" else "from others to"
        who = f"The link {where} {node} is slow"
    return f"{who}: {WHAT[row.probe]} {_ratio_text(row)} times as long as on the others."


def _device(row: Row, screening: Screening) -> int:
    assert row.rank is not None
    return screening.seats[row.rank].local_rank


def _ratio_text(row: Row) -> str:
    return f"{ratio(row.ratio)} ({ratio_span((row.low, row.high))})"
