"""The words of `lockstep screen`, and its lines of JSON."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict

from lockstep.before.screen.findings import AllReduce, Finding, Probe, Row, Screening, Seat
from lockstep.before.screen.search import would_be_named
from lockstep.core.formats import DASH, counted, listed, number, percent, ratio, ratio_span

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


def page(found: Screening) -> str:
    """Return what a screening found, for a terminal: a table and a verdict."""
    return "\n".join([*_table(found), "", *_verdict(found)])


def node_lines(found: Screening) -> Iterator[str]:
    """Return a line of JSON for each node: its verdict, and how its ranks and links compare."""
    for node in found.nodes:
        findings = [_flat(one) for one in found.findings if node in one.row.nodes]
        yield json.dumps(
            {
                "schema": SCHEMA,
                "node": node,
                "is_slow": bool(findings),
                "findings": findings,
                "rows": [asdict(row) for row in found.rows if node in row.nodes],
                "num_nodes": len(found.nodes),
                "num_ranks": len(found.seats),
                "repeats": found.repeats,
                "steps": found.steps,
                "promised_steps": found.promised_steps,
                "all_reduce": found.all_reduce and asdict(found.all_reduce),
            }
        )


def below_floor(found: Screening) -> str | None:
    """Return that all ranks together reduce more slowly than was asked for, if they do."""
    if found.all_reduce is None or not found.all_reduce.is_below:
        return None
    row, who = found.all_reduce.slowest, listed(found.nodes)
    where = f"{counted(len(found.seats), 'rank')} on {who}"
    outlier = f", slowest {listed(row.nodes)} ({ratio(row.ratio)} times the others)" if row else ""
    return f"all-reduce at {_speeds(found.all_reduce)}{outlier}, over {where}"


def _speeds(one: AllReduce) -> str:
    less = "below" if one.is_below else "over"
    measured = f"{number(one.bus_gb_per_s)} GB/s of bus bandwidth"
    return f"{measured}, {less} the floor of {number(one.floor_gb_per_s)}"


def _flat(finding: Finding) -> dict[str, object]:
    return {"kind": finding.kind, **asdict(finding.row)}


def _table(found: Screening) -> list[str]:
    """Return a line for each rank: its time over the others' by probe, with its interval."""
    probes = [probe for probe in HEADERS if any(row.probe == probe for row in found.rows)]
    lines = [["rank", "node", "device", *(HEADERS[probe] for probe in probes)]]
    rows = {(row.probe, row.nodes[0], row.rank): row for row in found.rows if len(row.nodes) == 1}
    for seat in _shown(found):
        of_seat = [
            rows.get((probe, seat.node, seat.rank)) or rows.get((probe, seat.node, None))
            for probe in probes
        ]
        cells = [_ratio(row) if row else DASH for row in of_seat]
        lines.append([str(seat.rank), seat.node, str(seat.local_rank), *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    left_out = len(found.seats) - (len(lines) - 1)
    return [*table, *([f"and {counted(left_out, 'rank')} that were faster"] if left_out else [])]


def _shown(found: Screening) -> list[Seat]:
    """Return the seats of the slowest ranks, in their order."""
    slowest: dict[int | str, float] = defaultdict(float)
    for row in found.rows:
        for who in row.nodes if row.rank is None else [row.rank]:
            slowest[who] = max(slowest[who], row.ratio)
    order = sorted(found.seats, key=lambda seat: -max(slowest[seat.rank], slowest[seat.node]))
    return sorted(order[:MOST_SHOWN], key=lambda seat: seat.rank)


def _verdict(found: Screening) -> list[str]:
    steps = f"{counted(found.steps, 'step')} of at most {found.promised_steps}"
    who = f"{counted(len(found.nodes), 'node')}, {counted(len(found.seats), 'rank')}, {steps}"
    lines = [_sentence(finding, found) for finding in found.findings]
    if not lines:
        lines = [_nothing(would_be_named(found.rows) - 1)]
    if one := found.all_reduce:
        size = f"{one.num_bytes / 2**20:g} MiB"
        lines.append(f"All ranks together reduce {size} at {_speeds(one)}.")
    if found.findings and len(found.nodes) > 1:
        lines.append(f"Leave out for sbatch and srun: --exclude={','.join(_to_exclude(found))}")
    lines += [f"{UNCOMPARED[probe]}." for probe in found.uncompared]
    return [*lines, f"({who}, {found.repeats} repeats)"]


def _nothing(unseen: float) -> str:
    """Return what a clean screening says, with how much slower something may still be."""
    shown = f"Nothing is shown to be slow. Were any {percent(unseen)} % slower, it would be named."
    less = " That is much: wait for a quiet hour, or give more --repeats."
    return shown + (less if unseen > NOISY else "")


def _to_exclude(found: Screening) -> list[str]:
    """Return the nodes to leave out; of a link between two, the second is enough."""
    return list(dict.fromkeys(finding.row.nodes[-1] for finding in found.findings))


def _sentence(finding: Finding, found: Screening) -> str:
    row = finding.row
    if len(row.nodes) == 2:
        who = f"The link between {listed(row.nodes)} is slow: an all-reduce of both takes"
        return f"{who} {_ratio(row)} times as long as those of either with others."
    node = row.nodes[0]
    if finding.kind == "slow-device":
        who = f"Device {_device(row, found)} of {node} (rank {row.rank}) is slow"
    elif finding.kind == "slow-node":
        who = f"Node {node} is slow"
    else:
        where = "within" if row.probe == "node_all_reduce" else "from others to"
        who = f"The link {where} {node} is slow"
    return f"{who}: {WHAT[row.probe]} {_ratio(row)} times as long as on the others."


def _device(row: Row, found: Screening) -> int:
    assert row.rank is not None
    return found.seats[row.rank].local_rank


def _ratio(row: Row) -> str:
    return f"{ratio(row.ratio)} ({ratio_span((row.low, row.high))})"
