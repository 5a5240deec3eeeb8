"""Network interfaces and InfiniBand ports, as the kernel lists them.

Files of the system, and the type of the file system that a folder lies on.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from lockstep.core import processes

STRIPING_S = 10.0
MAX_STRIPING = 200


def file_system(folder: Path) -> str | None:
    """Return the type of the file system a folder lies on, such as ext4, lustre or nfs4."""
    where = folder.resolve()
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[path] for path in (where, *where.parents) if path in mounts), None)


def striping(folder: Path) -> str | None:
    """Return how Lustre spreads a folder's new files over its servers; None elsewhere."""
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


@dataclass(frozen=True)
class Interface:
    """A network interface.

    Attributes:
        speed_gbit_per_s: Rate of its link; None where the kernel has none.
        is_down: Whether the kernel says that it is down.
        is_hardware: Whether it is a device, or a bond of devices.
    """

    name: str
    speed_gbit_per_s: float | None
    is_down: bool
    is_hardware: bool


@dataclass(frozen=True)
class Port:
    """A port of an InfiniBand device; its link layer is Ethernet where it speaks RoCE.

    Attributes:
        device: The device's name, such as `mlx5_0`.
        port: The port's number.
        state: Such as `4: ACTIVE`; this and what follows None where the kernel does not say.
        rate: Such as `200 Gb/sec (4X HDR)`.
        link_layer: `InfiniBand` or `Ethernet`.
    """

    device: str
    port: str
    state: str | None
    rate: str | None
    link_layer: str | None

    @property
    def is_active(self) -> bool:
        """Whether a cable and a subnet manager, or RoCE's interface, are there to be used."""
        return self.state is not None and self.state.endswith(": ACTIVE")


def interfaces(classes: Path = CLASSES) -> list[Interface]:
    """Return the network interfaces by name."""
    found = []
    for path in sorted((classes / "net").glob("*")):
        if path.is_dir():
            # The kernel gives Mbit/s, and -1 or an error where it has no rate.
            speed = read_text(path / "speed") or ""
            gbit_per_s = int(speed) / 1000 if speed.isdecimal() else None
            is_down = read_text(path / "operstate") == "down"
            is_hardware = (path / "device").exists() or (path / "bonding").exists()
            found.append(Interface(path.name, gbit_per_s, is_down, is_hardware))
    return found


def wire_gb_per_s(
    backend: str, environ: Mapping[str, str], classes: Path = CLASSES
) -> float | None:
    """Return what the ports of this node that a back end uses carry together, in GB/s.

    NCCL spreads its channels over all InfiniBand ports; without any, and in gloo, all goes through
    one interface: the one that is named, or the fastest device.

    Returns:
        None where the kernel knows no rate, as of a virtual machine's or a container's interface.
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
    """Return the ports of the InfiniBand devices."""
    return [
        Port(
            path.parents[1].name,
            path.name,
            *(read_text(path / name) for name in ("state", "rate", "link_layer")),
        )
        for path in sorted((classes / "infiniband").glob("*/ports/*"))
    ]


def fabrics(classes: Path = CLASSES) -> list[str]:
    """Return the adapters that are faster than sockets: InfiniBand's in use, and Slingshot's."""
    slingshot = sorted(path.name for path in (classes / "cxi").glob("cxi*"))
    return [port.device for port in infiniband_ports(classes) if port.is_active] + slingshot
