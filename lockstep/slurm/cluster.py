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
# Words in the state of a node that takes no jobs; a POWERED_DOWN node does: Slurm powers it up for
# a job.
GONE = {
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID_REG"),
    *("MAINT", "MAINTENANCE", "UNKNOWN"),
}


@dataclass(frozen=True)
class Kind:
    """The hardware of equal nodes.

    Attributes:
        num_gpus: GPUs of a node, of the type it has most of.
        gpu_type: Their type as `Gres` names it; None where it has no name.
        num_cpus: CPUs that jobs can have, as Slurm counts them.
    """

    num_gpus: int
    gpu_type: str | None
    num_cpus: int
    num_sockets: int
    memory_mib: int

    @property
    def shape(self) -> tuple[int, str | None, int]:
        """GPUs, their type and CPUs; nodes that differ only in memory have the same shape."""
        return self.num_gpus, self.gpu_type, self.num_cpus

    @property
    def gpus(self) -> str:
        """The GPUs of a node in words."""
        if not self.num_gpus:
            return "none"
        return f"{self.num_gpus} x {self.gpu_type or 'GPU'}"


@dataclass(frozen=True)
class Node:
    """A node as `scontrol show node` describes it.

    Attributes:
        state: Words, and signs of flags, such as `IDLE+CLOUD+POWERED_DOWN` or `DOWN*`.
        reason: Why it takes no jobs, as an administrator or Slurm wrote it; empty without one.
    """

    name: str
    kind: Kind
    features: frozenset[str]
    partitions: frozenset[str]
    state: str
    reason: str = ""

    @property
    def is_here(self) -> bool:
        """Whether it takes jobs, if necessary after powering up."""
        return GONE.isdisjoint(re.findall(r"\w+", self.state))


@dataclass(frozen=True)
class Partition:
    """A partition as `scontrol show partition` describes it.

    Attributes:
        is_default: Whether a job that names none comes here.
        is_up: Whether it takes and starts jobs.
        max_time: Its longest job, `[days-]HH:MM:SS`; None without a limit.
        max_nodes: Nodes of its largest job; None without a limit.
        accounts: Who may use it; None for everybody.
        qos: The QOS that may use it; None for all.
        own_qos: The QOS whose limits count for all of its jobs; None without.
    """

    name: str
    is_default: bool
    is_up: bool
    max_time: str | None
    max_nodes: int | None
    accounts: tuple[str, ...] | None
    qos: tuple[str, ...] | None
    nodes: tuple[Node, ...]
    own_qos: str | None = None

    @property
    def kinds(self) -> list[tuple[Kind, int]]:
        """Kinds of its nodes and how many it has of each: GPUs first, then the most nodes.

        The node with the least memory represents all nodes of its shape.
        """
        counted = Counter(node.kind.shape for node in self.nodes)
        least = sorted((node.kind for node in self.nodes), key=lambda kind: -kind.memory_mib)
        by_shape = {kind.shape: kind for kind in least}
        kinds = [(by_shape[shape], number) for shape, number in counted.items()]
        return sorted(kinds, key=lambda kind: (not kind[0].num_gpus, -kind[1]))

    @property
    def num_usable_nodes(self) -> int:
        """Nodes that one job can have."""
        return min(len(self.nodes), self.max_nodes or len(self.nodes))

    @property
    def has_gpus(self) -> bool:
        """Whether any of its nodes has a GPU."""
        return any(node.kind.num_gpus for node in self.nodes)


@dataclass(frozen=True)
class Cluster:
    """A cluster as its own commands describe it.

    Attributes:
        max_array_size: Elements of a job array, and one more.
        keeps_accounts: Whether sacct can answer.
        partitions: Those this user sees.
        enforces_limits: Whether the limits of accounts and QOS count.
    """

    name: str
    version: str | None
    max_array_size: int | None
    keeps_accounts: bool
    partitions: tuple[Partition, ...]
    enforces_limits: bool = False

    def partition(self, name: str | None) -> Partition | None:
        """Return a partition by its name, the default one for None; None if it does not exist."""
        chosen = (p for p in self.partitions if p.name == name or (name is None and p.is_default))
        return next(chosen, None)


def read() -> Cluster:
    """Ask Slurm what it is."""
    return parse(
        slurm.ask("scontrol", "show", "config"),
        slurm.ask("scontrol", "show", "partition"),
        slurm.ask("scontrol", "show", "node"),
    )


def parse(config: str, partitions: str, nodes: str) -> Cluster:
    """Read a cluster from the three texts of `scontrol show`."""
    pairs = (line.partition(" = ") for line in config.splitlines() if " = " in line)
    settings = {name.strip(): value.strip() for name, _, value in pairs}
    described = []
    for record in records(nodes, "NodeName"):
        features = record.get("AvailableFeatures") or record.get("Features")
        described.append(
            Node(
                name=record["NodeName"],
                kind=kind(record),
                features=frozenset(_listed(features) or ()),
                partitions=frozenset(_listed(record.get("Partitions")) or ()),
                state=record.get("State", ""),
                reason=record.get("Reason", ""),
            )
        )
    return Cluster(
        name=settings.get("ClusterName", "cluster"),
        version=settings.get("SLURM_VERSION"),
        max_array_size=slurm.count(settings.get("MaxArraySize", "")),
        # It reads accounting_storage/none, or (null) since 23.02, where accounting is off.
        keeps_accounts=settings.get("AccountingStorageType", "").endswith("slurmdbd"),
        partitions=tuple(_partition(r, described) for r in records(partitions, "PartitionName")),
        # It reads associations,limits,qos; "safe" brings "limits" with it (slurm.conf(5)).
        enforces_limits="limits" in settings.get("AccountingStorageEnforce", ""),
    )


def records(text: str, first: str) -> list[dict[str, str]]:
    """Return a text's `Key=Value` records, on a line each or on several; `first` begins one.

    A word without = belongs to the value before it. The first of two equal keys counts: what comes
    last is an administrator's comment. A line that begins with what an administrator wrote holds
    nothing else, whatever looks like a key in it.
    """
    found = []
    for part in re.split(rf"^(?={first}=)", text, flags=re.MULTILINE):
        pairs: list[list[str]] = []
        for line in part.splitlines() if part.startswith(f"{first}=") else ():
            is_written = re.match(r"\s+(Reason|Comment|Extra)=", line)
            for word in [line.strip()] if is_written else line.split():
                if re.match(r"[A-Za-z][\w/:]*=", word):
                    pairs.append(word.split("=", 1))
                elif pairs:
                    pairs[-1][1] += f" {word}"
        if pairs:
            found.append({name: value.strip() for name, value in reversed(pairs)})
    return found


def kind(record: Mapping[str, str]) -> Kind:
    """Return what a record of a node says that it has."""
    gpu_type, of_type = parse_gres(record.get("Gres", ""))
    return Kind(
        num_gpus=of_type,
        gpu_type=gpu_type,
        # CPUEfctv, since 22.05, leaves out the CPUs that are kept from jobs.
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
    """Return how many GPUs there are in a node's generic resources, of all types."""
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
    name = record["PartitionName"]
    limit = record.get("MaxTime", "")
    members = tuple(node for node in nodes if name in node.partitions)
    return Partition(
        name=name,
        is_default=record.get("Default") == "YES",
        is_up=record.get("State", "UP") == "UP",
        max_time=limit if LIMITING_TIME.fullmatch(limit) else None,
        max_nodes=slurm.count(record.get("MaxNodes")),
        accounts=_listed(record.get("AllowAccounts")),
        qos=_listed(record.get("AllowQos")),
        nodes=members,
        own_qos=next(iter(_listed(record.get("QoS")) or ()), None),
    )


def _listed(text: str | None) -> tuple[str, ...] | None:
    """Return a list's items; None where it says all, none or nothing."""
    if text in (None, "", "ALL", "(null)", "N/A"):
        return None
    assert text is not None
    return tuple(item for item in text.split(",") if item)
