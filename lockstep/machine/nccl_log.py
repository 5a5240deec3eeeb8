"""Which links NCCL uses between which ranks, as it says itself under NCCL_DEBUG=INFO.

Lines differ between releases, and are of no promised form: what is not known is left aside. Read
are those of NCCL 2.4 to 2.28 and of AMD's RCCL, which ends them in ` comm 0x... nRanks 16`, with
their own transports, InfiniBand plugins and AWS's for libfabric:

    rank 7 to 4 of a node    `Ring 00 : 7[3d000] -> 4[b2000] via P2P/IPC`, since 2.8
                             `Channel 00/0 : 7[7] -> 4[4] via P2P/CUMEM`, at times with `/read`
    without peer-to-peer     `... via SHM/direct/direct`
    between nodes            `... [send] via NET/IB/0(3)/GDRDMA`, `NET/Socket/1`,
                             `NET/AWS Libfabric/0/GDRDMA`, `NET/IBext_v8/2`
    the network              `Using network IB`, or `Initialized NET plugin IB`
    its adapters             `NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:...`,
                             two as one `[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}`,
                             `NET/OFI Selected provider is efa`
    what a user set          `NCCL_IB_DISABLE set by environment to 1.`
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.core.flags import Flag, flag
from lockstep.core.formats import one_line

MAX_FILE_BYTES = 2**24
MAX_WARNINGS = 20
MAX_CHARACTERS = 200
MAX_NAMED = 8
SOCKETS = "NET/Socket"

_SAID = re.compile(r"NCCL (?:INFO|WARN) (.*)")
_COMMUNICATOR = re.compile(r" comm 0x[0-9a-f]+ n[rR]anks \d+.*")
_VERSION = re.compile(r"N?R?CCL version (?:: )?(\d+\.\d+[\w.+]*)")
_NETWORK = re.compile(
    r"(?:Using network|Initialized NET plugin|Assigned NET plugin) ([\w. -]+?)(?: to comm)?"
)
_ADAPTERS = re.compile(r"NET/IB ?: Using (\[\d+\].*)")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;-]+).*")
_END = r"(\d+)(?:\[\w+\])?"
_LINK = re.compile(
    rf"(?:Ring|Channel) [\d/]+ : {_END} -> {_END}(?: \[(?:send|receive)\])? via (.*)"
)
_P2P = re.compile(r"P2P/(IPC|CUMEM|MNNVL|direct pointer|indirect)(?:/.*)?")
_SHARED = re.compile(r"direct shared memory|SHM(?:/.*)?")
_SETTING = re.compile(r"(NCCL_\w+) set by environment(?: to (.+?))?\.?")
_NET = re.compile(r"NET/([\w .-]+)/\d+(?:\(\d+\))?(/GDRDMA(?:\(\w+\))?)?(?:/Shared)?")
_OVER_TCP = re.compile(r"(tcp|sockets|udp)\b.*")  # providers of libfabric
# What of a user's settings, as NAME=VALUE, takes a faster way away.
_CAUSES = {
    "sockets-beside-infiniband": r"NCCL_IB(EXT)?_DISABLE(=(?!0$).*)?|NCCL_NET=Socket",
    "no-gpu-direct": r"NCCL_NET_GDR_LEVEL=(?!SYS|5).*|NCCL_(NET_GDR_READ|DMABUF_ENABLE)=0",
    "no-peer-to-peer": r"NCCL_P2P_DISABLE(=(?!0$).*)?|NCCL_P2P_LEVEL=(?!SYS|5).*",
}


@dataclass(frozen=True, order=True)
class Link:
    """What one rank sends to another by.

    Attributes:
        transport: Without channel and device: `P2P/CUMEM`, `SHM`, `NET/IB/GDRDMA`, `NET/Socket`.
    """

    source: int
    target: int
    transport: str


@dataclass(frozen=True)
class NcclLog:
    """What NCCL said as it started.

    Attributes:
        version: Of NCCL, such as `2.27.5+cuda12.9`; None where no line tells it.
        networks: What it sends between nodes with, such as `IB`, `Socket` or `AWS Libfabric`.
        adapters: Names of InfiniBand ports, such as `mlx5_0:1/IB`, and providers of libfabric.
        links: Every pair of ranks with each transport between them, once.
        warnings: What it warned of, shortened.
        settings: What a user set, such as `NCCL_IB_DISABLE=1`.
    """

    version: str | None = None
    networks: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    warnings: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def transports(self) -> dict[str, int]:
        """Transport -> number of links."""
        return dict(sorted(Counter(link.transport for link in self.links).items()))


def parse(text: str) -> NcclLog:
    """Read a log, that of one rank or of several; a line that is cut or mixed is left aside."""
    version: str | None = None
    networks: list[str] = []
    adapters: list[str] = []
    links: list[Link] = []
    warnings: list[str] = []
    settings: list[str] = []
    whole, _, _ = text.rpartition("\n")  # what follows may be cut in the middle of a word
    for line in whole.splitlines():
        if version is None and (match := _VERSION.search(line)):
            version = match[1]
        said = _SAID.search(line)
        if said is None:
            continue
        fact = _COMMUNICATOR.sub("", said[1]).strip()
        if "NCCL WARN" in line:
            warnings.append(one_line(fact)[:MAX_CHARACTERS])
        elif (match := _LINK.fullmatch(fact)) and (transport := _transport(match[3])):
            links.append(Link(int(match[1]), int(match[2]), transport))
        elif match := _NETWORK.fullmatch(fact):
            networks.append(match[1])
        elif match := _ADAPTERS.fullmatch(fact):
            adapters += re.findall(r"\[\d+\] ?(\S+?:\d+/\w+)", match[1])
        elif match := _PROVIDER.fullmatch(fact):
            adapters.append(match[1])
        elif match := _SETTING.fullmatch(fact):
            settings.append("=".join(filter(None, match.groups()))[:MAX_CHARACTERS])
    log = NcclLog(
        version, tuple(networks), tuple(adapters), tuple(links), tuple(warnings), tuple(settings)
    )
    return merged([log])


def read(path: Path) -> NcclLog:
    """Read a file of it; what cannot be read tells nothing."""
    try:
        with path.open("rb") as file:
            return parse(file.read(MAX_FILE_BYTES).decode(errors="replace"))
    except OSError:
        return NcclLog()


def merged(logs: Iterable[NcclLog]) -> NcclLog:
    """Return what logs tell together, each thing once."""
    logs = list(logs)

    def join(name: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(item for log in logs for item in getattr(log, name)))

    return NcclLog(
        next((log.version for log in logs if log.version), None),
        join("networks"),
        join("adapters"),
        tuple(sorted(join("links"))),
        join("warnings")[:MAX_WARNINGS],
        tuple(sorted(join("settings"))),
    )


def findings(log: NcclLog, hosts: Sequence[str], fabrics: Sequence[str]) -> Iterator[Flag]:
    """Yield what is slower than the machine could be, and what a user set that makes it so.

    The fabrics are names of the InfiniBand, EFA or Slingshot devices that the nodes have.
    """
    for each in _slow(log, hosts, fabrics):
        settings = [
            setting for setting in log.settings if re.fullmatch(_CAUSES[each.kind], setting)
        ]
        yield flag(each.kind, **each.values, environment=settings) if settings else each


def _slow(log: NcclLog, hosts: Sequence[str], fabrics: Sequence[str]) -> Iterator[Flag]:
    tcp = [name for name in log.adapters if _OVER_TCP.fullmatch(name)]
    beside = [name for name in dict.fromkeys([*fabrics, *log.adapters]) if name not in tcp]
    between = [link for link in log.links if link.transport.startswith("NET/")]
    by_socket = (SOCKETS, "NET/AWS Libfabric", "NET/Libfabric") if tcp else (SOCKETS,)
    sockets = [link for link in between if link.transport in by_socket]
    if sockets and beside:
        yield flag("sockets-beside-infiniband", devices=beside[:MAX_NAMED], links=len(sockets))
    others = [link for link in between if link not in sockets]
    # Where a GPU may not be read by the card, but written to, only the receiver's line says GDRDMA.
    direct = {(link.source, link.target) for link in others if link.transport.endswith("/GDRDMA")}
    through_host = [link for link in others if (link.source, link.target) not in direct]
    if through_host:
        transports = sorted({link.transport for link in through_host})
        yield flag("no-gpu-direct", transports=transports, links=len(through_host))
    # A host whose GPUs exchange data otherwise than directly is named with its first such pair.
    indirect: dict[str, Link] = {}
    for link in log.links:
        if max(link.source, link.target) >= len(hosts) or link.transport.startswith("P2P/"):
            continue
        if hosts[link.source] == hosts[link.target]:
            indirect.setdefault(hosts[link.source], link)
    for host, link in indirect.items():
        ranks = [link.source, link.target]
        yield flag("no-peer-to-peer", host=host, ranks=ranks, transport=link.transport)


def _transport(text: str) -> str | None:
    """Return a transport without channel and device; None for what is cut or not known."""
    if peer := _P2P.fullmatch(text):
        return f"P2P/{peer[1].removesuffix(' pointer')}"
    if net := _NET.fullmatch(text):
        return f"NET/{net[1]}" + ("/GDRDMA" if net[2] else "")
    return "SHM" if _SHARED.fullmatch(text) else None
