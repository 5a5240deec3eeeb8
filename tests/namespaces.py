"""Nodes of one machine that only links of a known rate join: namespaces of the kernel's network.

Each node is a network namespace with a host name of its own; its one link leads to a bridge in a
namespace of the switch, and a token bucket filter holds to a rate what the node sends (tc-tbf(8)).
It counts whole frames, so a full segment of TCP carries 1448 of 1514 bytes that are of use. Needs
root, `ip` and `tc`; what it makes lies in its own namespaces and goes with them.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from launched import ROOT, free_port

INTERFACE = "wire"
# More than TCP's largest segment of 64 KiB and its headers, which the filter would have to cut up:
# with 64 a link of 1 Gbit/s carries 0.25 both ways. So much of a message is free after a rest.
BURST_KB = 128
QUEUE_MS = 50
# Of a frame of Ethernet: payload over what the filter counts.
PAYLOAD_SHARE = 1448 / 1514
# What a process needs to be on a node: its network, its host name.
ENTER = 'hostname "$0" && exec "$@"'
FIRST = ("nice", "-n", "-15")
NUMBER = count()


@dataclass(frozen=True)
class Rank:
    """Where one rank runs."""

    prefix: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Links:
    """Nodes and the links between them."""

    ranks: list[Rank] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    switch: str = ""

    def run(
        self,
        command: Sequence[str],
        folder: Path,
        patience_s: float,
        *,
        first: bool = True,
        **variables: str,
    ) -> None:
        """Run Python on every rank; what rank N says goes to `rank-N.txt` of a folder."""
        started = []
        for number, rank in enumerate(self.ranks):
            line = [*(FIRST if first else ()), *rank.prefix, sys.executable, *command]
            own = os.environ | {"OMP_NUM_THREADS": "1"} | variables | dict(rank.env)
            with (folder / f"rank-{number}.txt").open("wb") as log:
                started.append(
                    subprocess.Popen(line, cwd=ROOT, env=own, stdout=log, stderr=subprocess.STDOUT)
                )
        codes = [rank.wait(patience_s) for rank in started]
        if any(codes):
            said = "".join(path.read_text()[-2000:] for path in sorted(folder.glob("rank-*.txt")))
            raise RuntimeError(f"a rank failed; see {folder}\n{said}")

    def set_rate(self, rate_bit_per_s: float, node: int | None = None) -> None:
        """Hold what every node sends, or one of them, to a rate."""
        limit = f"tbf rate {rate_bit_per_s:.0f}bit burst {BURST_KB}kb latency {QUEUE_MS}ms"
        for space in self.nodes if node is None else [self.nodes[node]]:
            _run(f"tc -n {space} qdisc replace dev {INTERFACE} root {limit}")


@contextmanager
def linked(rate_bit_per_s: float, ranks: int) -> Iterator[Links]:
    """Join nodes of one rank each by links of one rate, and take them away afterwards."""
    base = f"lockstep-{os.getpid()}-{next(NUMBER)}"
    links = Links(switch=f"{base}-switch")
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": _address(0),
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": INTERFACE,
    }
    try:
        _run(f"ip netns add {links.switch}")
        _run(f"ip -n {links.switch} link add bridge type bridge")
        _run(f"ip -n {links.switch} link set bridge up")
        for rank in range(ranks):
            space = f"{base}-node{rank}"
            _add_node(links, space, rank)
            enter = ["ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", ENTER]
            links.ranks.append(Rank([*enter, f"node{rank}"], common | {"RANK": str(rank)}))
        links.set_rate(rate_bit_per_s)
        yield links
    finally:
        for space in (*links.nodes, links.switch):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)


def is_possible() -> bool:
    """Return whether this process may make links, and the kernel can hold them to a rate."""
    try:
        with linked(1e9, ranks=1):
            return True
    except (OSError, RuntimeError):
        return False


def _add_node(links: Links, space: str, node: int) -> None:
    """Make a node whose link is up."""
    port = f"port{node}"
    _run(f"ip netns add {space}")
    links.nodes.append(space)
    _run(f"ip -n {links.switch} link add {port} type veth peer name {INTERFACE} netns {space}")
    _run(f"ip -n {links.switch} link set {port} master bridge up")
    _run(f"ip -n {space} address add {_address(node)}/24 dev {INTERFACE}")
    for device in ("lo", INTERFACE):
        _run(f"ip -n {space} link set {device} up")


def _address(node: int) -> str:
    return f"10.77.0.{node + 1}"


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stderr.strip()}")
