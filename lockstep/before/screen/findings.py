"""What a screening holds: who took part, how each compares with the others, and what is slow."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

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
