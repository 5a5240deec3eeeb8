"""The links that NCCL uses between ranks, read from its log under NCCL_DEBUG=INFO.

Lines differ between releases and have no documented form, so unknown lines are skipped. Known are
lines of NCCL 2.4 to 2.28, of AMD's RCCL (which end in ` comm 0x... nRanks 16`), of InfiniBand
plugins and of AWS's plugin for libfabric:

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

_MESSAGE = re.compile(r"NCCL (?:INFO|WARN) (.*)")
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
# Kind of finding -> settings of a user, as NAME=VALUE, that cause it.
_CAUSES = {
    "sockets-beside-infiniband": r"NCCL_IB(EXT)?_DISABLE(=(?!0$).*)?|NCCL_NET=Socket",
    "no-gpu-direct": r"NCCL_NET_GDR_LEVEL=(?!SYS|5).*|NCCL_(NET_GDR_READ|DMABUF_ENABLE)=0",
    "no-peer-to-peer": r"NCCL_P2P_DISABLE(=(?!0$).*)?|NCCL_P2P_LEVEL=(?!SYS|5).*",
}


@dataclass(frozen=True, order=True)
class Link:
    """The transport from one rank to another."""

    source: int
    target: int
    # Without channel and device: `P2P/CUMEM`, `SHM`, `NET/IB/GDRDMA`, `NET/Socket`.
    transport: str


@dataclass(frozen=True)
class NcclLog:
    """What NCCL logged as it started."""

    version: str | None = None  # such as `2.27.5+cuda12.9`; None if no line contains it
    networks: tuple[str, ...] = ()  # between nodes, such as `IB`, `Socket` or `AWS Libfabric`
    adapters: tuple[str, ...] = ()  # InfiniBand ports, `mlx5_0:1/IB`, and providers of libfabric
    links: tuple[Link, ...] = ()  # every pair of ranks with each transport between them, once
    warnings: tuple[str, ...] = ()  # shortened
    settings: tuple[str, ...] = ()  # of a user, such as `NCCL_IB_DISABLE=1`

    @property
    def transports(self) -> dict[str, int]:
        """Transport -> number of links."""
        return dict(sorted(Counter(link.transport for link in self.links).items()))


def parse(text: str) -> NcclLog:
    """Read a log of one or several ranks; incomplete or mixed lines are skipped."""
    version: str | None = None
    facts: dict[str, list[Any]] = {
        name: [] for name in ("networks", "adapters", "links", "warnings", "settings")
    }
    complete, _, _ = text.rpartition("\n")  # the last line may be cut in the middle of a word
    for line in complete.splitlines():
        if version is None and (match := _VERSION.search(line)):
            version = match[1]
        message = _MESSAGE.search(line)
        if message is None:
            continue
        fact = _COMMUNICATOR.sub("", message[1]).strip()
        if "NCCL WARN" in line:
            facts["warnings"].append(one_line(fact)[:MAX_CHARACTERS])
        elif (match := _LINK.fullmatch(fact)) and (transport := _transport(match[3])):
            facts["links"].append(Link(int(match[1]), int(match[2]), transport))
        elif match := _NETWORK.fullmatch(fact):
            facts["networks"].append(match[1])
        elif match := _ADAPTERS.fullmatch(fact):
            facts["adapters"] += re.findall(r"\[\d+\] ?(\S+?:\d+/\w+)", match[1])
        elif match := _PROVIDER.fullmatch(fact):
            facts["adapters"].append(match[1])
        elif match := _SETTING.fullmatch(fact):
            facts["settings"].append("=".join(filter(None, match.groups()))[:MAX_CHARACTERS])
    return merge([NcclLog(version, **{name: tuple(items) for name, items in facts.items()})])


def read(path: Path) -> NcclLog:
    """Read the log's file; an unreadable file counts as empty."""
    try:
        with path.open("rb") as file:
            return parse(file.read(MAX_FILE_BYTES).decode(errors="replace"))
    except OSError:
        return NcclLog()


def merge(logs: Iterable[NcclLog]) -> NcclLog:
    """Return the facts of several logs, each once."""
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
    """Yield a flag for each way in which communication is slower than the machine allows.

    A flag names the user's settings that cause it. `fabrics` are the names of the InfiniBand, EFA
    or Slingshot devices of the nodes.
    """
    for slow in _slow(log, hosts, fabrics):
        causes = [setting for setting in log.settings if re.fullmatch(_CAUSES[slow.kind], setting)]
        yield flag(slow.kind, **slow.values, environment=causes) if causes else slow


def _slow(log: NcclLog, hosts: Sequence[str], fabrics: Sequence[str]) -> Iterator[Flag]:
    tcp = [name for name in log.adapters if _OVER_TCP.fullmatch(name)]
    beside = [name for name in dict.fromkeys([*fabrics, *log.adapters]) if name not in tcp]
    between = [link for link in log.links if link.transport.startswith("NET/")]
    by_socket = (SOCKETS, "NET/AWS Libfabric", "NET/Libfabric") if tcp else (SOCKETS,)
    sockets = [link for link in between if link.transport in by_socket]
    if sockets and beside:
        yield flag("sockets-beside-infiniband", devices=beside[:MAX_NAMED], links=len(sockets))
    others = [link for link in between if link not in sockets]
    # If the adapter may write to a GPU but not read it, only the receiver's line says GDRDMA.
    direct = {(link.source, link.target) for link in others if link.transport.endswith("/GDRDMA")}
    through_host = [link for link in others if (link.source, link.target) not in direct]
    if through_host:
        transports = sorted({link.transport for link in through_host})
        yield flag("no-gpu-direct", transports=transports, links=len(through_host))
    # The first pair of GPUs on each host that do not exchange data directly.
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
    """Return a transport without channel and device; None if unknown or incomplete."""
    if peer := _P2P.fullmatch(text):
        return f"P2P/{peer[1].removesuffix(' pointer')}"
    if net := _NET.fullmatch(text):
        return f"NET/{net[1]}" + ("/GDRDMA" if net[2] else "")
    return "SHM" if _SHARED.fullmatch(text) else None
