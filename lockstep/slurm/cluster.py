"""A cluster's partitions and nodes, read from `scontrol show`.

Its `Key=Value` output is stable over Slurm's releases, unlike its JSON.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockstep.slurm import client as slurm

MIB_PER_GIB = 1024
LIMITING_TIME = re.compile("([0-9]{1,9}-)?[0-9]{1,2}(:[0-9]{2}){2}")
# Words in the state of a node that takes no jobs. POWERED_DOWN is none of them: Slurm powers such
# a node up for a job.
GONE = {
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID_REG"),
    *("MAINT", "MAINTENANCE", "UNKNOWN"),
}


@dataclass(frozen=True)
class Kind:
    """The hardware of equal nodes."""

    num_gpus: int  # GPUs of the most frequent type in a node
    gpu_type: str | None  # that type, as `Gres` names it
    num_cpus: int  # CPUs that jobs can use, as Slurm counts them
    num_sockets: int
    memory_mib: int

    @property
    def shape(self) -> tuple[int, str | None, int]:
        """Number of GPUs, their type and number of CPUs, without the memory."""
        return self.num_gpus, self.gpu_type, self.num_cpus

    @property
    def gpus(self) -> str:
        if not self.num_gpus:
            return "none"
        return f"{self.num_gpus} x {self.gpu_type or 'GPU'}"


@dataclass(frozen=True)
class Node:
    """A node as `scontrol show node` describes it."""

    name: str
    kind: Kind
    features: frozenset[str]
    partitions: frozenset[str]
    state: str  # with Slurm's flags, such as `IDLE+CLOUD+POWERED_DOWN` or `DOWN*`
    reason: str = ""  # why the node takes no jobs, as an administrator or Slurm wrote it

    @property
    def is_here(self) -> bool:
        """Whether the node takes jobs, if necessary after it powers up."""
        return GONE.isdisjoint(re.findall(r"\w+", self.state))


@dataclass(frozen=True)
class Partition:
    """A partition as `scontrol show partition` describes it; None for no limit."""

    name: str
    is_default: bool  # whether jobs without --partition come here
    is_up: bool  # whether the partition takes and starts jobs
    max_time: str | None  # limit of one job, `[days-]HH:MM:SS`
    max_nodes: int | None  # limit of one job
    accounts: tuple[str, ...] | None  # accounts that may use the partition
    qos: tuple[str, ...] | None  # QOS that may use the partition
    nodes: tuple[Node, ...]
    own_qos: str | None = None  # QOS whose limits apply to all jobs of the partition

    @property
    def kinds(self) -> list[tuple[Kind, int]]:
        """Kinds of nodes and their numbers: nodes with GPUs first, then the most frequent kind.

        The node with the least memory represents all nodes of its shape.
        """
        counted = Counter(node.kind.shape for node in self.nodes)
        least = sorted((node.kind for node in self.nodes), key=lambda kind: -kind.memory_mib)
        by_shape = {kind.shape: kind for kind in least}
        kinds = [(by_shape[shape], number) for shape, number in counted.items()]
        return sorted(kinds, key=lambda kind: (not kind[0].num_gpus, -kind[1]))

    @property
    def num_usable_nodes(self) -> int:
        return min(len(self.nodes), self.max_nodes or len(self.nodes))

    @property
    def has_gpus(self) -> bool:
        return any(node.kind.num_gpus for node in self.nodes)


@dataclass(frozen=True)
class Cluster:
    """A cluster as its own commands describe it."""

    name: str
    version: str | None
    max_array_size: int | None  # MaxArraySize; an array has at most one element fewer
    keeps_accounts: bool  # whether sacct can answer
    partitions: tuple[Partition, ...]  # partitions that this user sees
    enforces_limits: bool = False  # whether Slurm enforces limits of accounts and QOS

    def partition(self, name: str | None) -> Partition | None:
        """Return a partition by its name, the default one for None; None if it does not exist."""
        chosen = (p for p in self.partitions if p.name == name or (name is None and p.is_default))
        return next(chosen, None)


def read() -> Cluster:
    return parse(
        slurm.ask("scontrol", "show", "config"),
        slurm.ask("scontrol", "show", "partition"),
        slurm.ask("scontrol", "show", "node"),
    )


def parse(config: str, partitions: str, nodes: str) -> Cluster:
    pairs = (line.partition(" = ") for line in config.splitlines() if " = " in line)
    settings = {name.strip(): value.strip() for name, _, value in pairs}
    described = [
        Node(
            name=record["NodeName"],
            kind=kind(record),
            features=frozenset(_split_list(record.get("AvailableFeatures", "")) or ()),
            partitions=frozenset(_split_list(record.get("Partitions", "")) or ()),
            state=record.get("State", ""),
            reason=record.get("Reason", ""),
        )
        for record in records(nodes, "NodeName")
    ]
    return Cluster(
        name=settings.get("ClusterName", "cluster"),
        version=settings.get("SLURM_VERSION"),
        max_array_size=slurm.count(settings.get("MaxArraySize", "")),
        # Without accounting it is accounting_storage/none or, since 23.02, (null).
        keeps_accounts=settings.get("AccountingStorageType", "").endswith("slurmdbd"),
        partitions=tuple(_partition(r, described) for r in records(partitions, "PartitionName")),
        # Such as associations,limits,qos; "safe" implies "limits" (slurm.conf(5)).
        enforces_limits="limits" in settings.get("AccountingStorageEnforce", ""),
    )


def records(text: str, first: str) -> list[dict[str, str]]:
    """Return a text's `Key=Value` records, on a line each or on several; `first` begins one.

    A word without = belongs to the value before it. Of two equal keys the first counts, because
    the second is part of an administrator's comment, whose line holds no other key.
    """
    rows = []
    for part in re.split(rf"^(?={first}=)", text, flags=re.MULTILINE):
        pairs: list[list[str]] = []
        for line in part.splitlines() if part.startswith(f"{first}=") else ():
            is_comment = re.match(r"\s+(Reason|Comment|Extra)=", line)
            for word in [line.strip()] if is_comment else line.split():
                if re.match(r"[A-Za-z][\w/:]*=", word):
                    pairs.append(word.split("=", 1))
                elif pairs:
                    pairs[-1][1] += f" {word}"
        if pairs:
            rows.append({name: value.strip() for name, value in reversed(pairs)})
    return rows


def kind(record: Mapping[str, str]) -> Kind:
    gpu_type, of_type = parse_gres(record.get("Gres", ""))
    return Kind(
        num_gpus=of_type,
        gpu_type=gpu_type,
        # CPUEfctv, since 22.05, leaves out the CPUs that are reserved for the system.
        num_cpus=slurm.count(record.get("CPUEfctv")) or slurm.count(record.get("CPUTot")) or 1,
        num_sockets=slurm.count(record.get("Sockets")) or 1,
        memory_mib=slurm.count(record.get("RealMemory")) or 0,
    )


def parse_gres(text: str) -> tuple[str | None, int]:
    """Return type and number of the GPUs in a node's generic resources.

    `gpu:a100:2(S:0-1),nvme:1` is `("a100", 2)`: a name, perhaps a type, perhaps a number, and in
    brackets the sockets (gres.conf(5)). Of several types the most numerous is returned.
    """
    return max(_gpus_by_type(text), key=lambda gpu: gpu[1], default=(None, 0))


def num_gpus(text: str) -> int:
    """Return the number of GPUs of all types in a node's generic resources."""
    return sum(number for _, number in _gpus_by_type(text))


def _gpus_by_type(text: str) -> list[tuple[str | None, int]]:
    gpus: list[tuple[str | None, int]] = []
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *rest = item.strip().split(":")
        if name == "gpu":
            numbers = [number for part in rest if (number := slurm.count(part)) is not None]
            types = [part for part in rest if not part.isdecimal() and part != "no_consume"]
            gpus.append((types[0] if types else None, numbers[-1] if numbers else 1))
    return gpus


def _partition(record: Mapping[str, str], nodes: Iterable[Node]) -> Partition:
    name, limit = record["PartitionName"], record.get("MaxTime", "")
    return Partition(
        name=name,
        is_default=record.get("Default") == "YES",
        is_up=record.get("State", "UP") == "UP",
        max_time=limit if LIMITING_TIME.fullmatch(limit) else None,
        max_nodes=slurm.count(record.get("MaxNodes")),
        accounts=_split_list(record.get("AllowAccounts", "")),
        qos=_split_list(record.get("AllowQos", "")),
        nodes=tuple(node for node in nodes if name in node.partitions),
        own_qos=next(iter(_split_list(record.get("QoS", "")) or ()), None),
    )


def _split_list(text: str) -> tuple[str, ...] | None:
    """Return the items of a list; None for `ALL`, `(null)`, `N/A` and an empty text."""
    return None if text in ("", "ALL", "(null)", "N/A") else tuple(filter(None, text.split(",")))
