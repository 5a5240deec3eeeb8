"""Network interfaces and InfiniBand ports, as the kernel lists them, and types of file systems."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from lockstep.core import processes

STRIPING_S = 10.0
MAX_STRIPING = 200


def file_system(folder: Path) -> str | None:
    """Return the type of a folder's file system, such as ext4, lustre or nfs4."""
    where = folder.resolve()
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[path] for path in (where, *where.parents) if path in mounts), None)


def striping(folder: Path) -> str | None:
    """Return how Lustre stripes a folder's new files over its servers; None elsewhere."""
    try:
        ended = processes.run(["lfs", "getstripe", "-d", str(folder.resolve())], STRIPING_S)
    except processes.CommandError:
        return None
    return " ".join(ended.output.split())[:MAX_STRIPING] or None if ended.code == 0 else None


def read_text(path: str | Path) -> str | None:
    """Return a small system file's text without surrounding space, or None if unreadable."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


CLASSES = Path("/sys/class")
ARPHRD_INFINIBAND = "32"  # include/uapi/linux/if_arp.h


@dataclass(frozen=True)
class Interface:
    """A network interface."""

    name: str
    speed_gbit_per_s: float | None  # rate of its link; None if the kernel has none
    is_down: bool
    is_hardware: bool  # whether it is a device, or a bond of devices


@dataclass(frozen=True)
class Port:
    """A port of an InfiniBand device; state, rate and link layer are None if unknown."""

    device: str  # name, such as `mlx5_0`
    port: str  # number
    state: str | None  # such as `4: ACTIVE`
    rate: str | None  # such as `200 Gb/sec (4X HDR)`
    link_layer: str | None  # `InfiniBand`, or `Ethernet` for RoCE

    @property
    def is_active(self) -> bool:
        return self.state is not None and self.state.endswith(": ACTIVE")


def interfaces(classes: Path = CLASSES) -> list[Interface]:
    links = []
    for path in sorted((classes / "net").glob("*")):
        if path.is_dir():
            # The kernel gives Mbit/s, or -1 or an error if it has no rate.
            speed = read_text(path / "speed") or ""
            gbit_per_s = int(speed) / 1000 if speed.isdecimal() else None
            is_down = read_text(path / "operstate") == "down"
            is_hardware = (path / "device").exists() or (path / "bonding").exists()
            links.append(Interface(path.name, gbit_per_s, is_down, is_hardware))
    return links


def wire_gb_per_s(
    backend: str, environ: Mapping[str, str], classes: Path = CLASSES
) -> float | None:
    """Return the rate of this node's ports that a back end uses, in GB/s; None if unknown.

    NCCL spreads its channels over all InfiniBand ports; without any, and in gloo, all traffic uses
    one interface: the one that is named, or the fastest device.
    """
    if backend == "nccl" and not environ.get("NCCL_IB_DISABLE", "0").strip("0"):
        active = [port.rate or "" for port in infiniband_ports(classes) if port.is_active]
        # The kernel writes `200 Gb/sec (4X HDR)`.
        matches = [re.match(r"([0-9.]+) Gb/sec", rate) for rate in active]
        if gbit_per_s := sum(float(match[1]) for match in matches if match):
            return gbit_per_s / 8
    named = environ.get(f"{backend.upper()}_SOCKET_IFNAME", "").removeprefix("=")
    rates = [
        link.speed_gbit_per_s
        for link in interfaces(classes)
        if link.speed_gbit_per_s and link.is_hardware and not link.is_down
        and named in ("", link.name)
    ]  # fmt: skip
    return max(rates) / 8 if rates else None


def infiniband_ports(classes: Path = CLASSES) -> list[Port]:
    return [
        Port(
            path.parents[1].name,
            path.name,
            *(read_text(path / name) for name in ("state", "rate", "link_layer")),
        )
        for path in sorted((classes / "infiniband").glob("*/ports/*"))
    ]


def sent_bytes(classes: Path = CLASSES) -> int | None:
    """Return what all InfiniBand ports of this host have sent, by any process; None without one.

    The kernel counts in units of 4 bytes (Documentation/ABI/stable/sysfs-class-infiniband).
    """
    paths = (classes / "infiniband").glob("*/ports/*/counters/port_xmit_data")
    counts = [text for path in paths if (text := read_text(path)) and text.isdecimal()]
    return 4 * sum(map(int, counts)) if counts else None


def interfaces_sent_bytes(classes: Path = CLASSES) -> int | None:
    """Return what the network devices of this host have sent, by any process; None without one.

    A bond's traffic is counted at its devices, and IP over InfiniBand at the ports. In a network
    namespace without devices, all interfaces but the loopback count.
    """
    counters = psutil.net_io_counters(pernic=True)
    devices = [path.parent for path in (classes / "net").glob("*/device")]
    names = [path.name for path in devices if read_text(path / "type") != ARPHRD_INFINIBAND]
    if not devices:
        names = [name for name in counters if name != "lo"]
    counts = [counters[name].bytes_sent for name in names if name in counters]
    return sum(counts) if counts else None


def fabrics(classes: Path = CLASSES) -> list[str]:
    """Return the adapters faster than sockets: active InfiniBand ports, and Slingshot's."""
    slingshot = sorted(path.name for path in (classes / "cxi").glob("cxi*"))
    return [port.device for port in infiniband_ports(classes) if port.is_active] + slingshot
