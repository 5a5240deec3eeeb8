"""Memory of a rank, of its device on a GPU or of its host on a CPU: what is free, the peak.

The control groups of this process, as that of a Slurm step or a container is one.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch


CGROUP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")


def control_groups(controller: str) -> Iterator[tuple[int, Path]]:
    """Yield the version and the folder of each group this process is in, and of those above.

    In version 2 one group serves all controllers.

    Raises:
        OSError: The kernel does not say.
    """
    for line in CGROUP.read_text(encoding="utf-8", errors="replace").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, root = 2, CGROUP_ROOT
        elif controller in controllers.split(","):
            version, root = 1, CGROUP_ROOT / controller
        else:
            continue
        own = root / path.lstrip("/")
        yield from ((version, above) for above in (own, *own.parents) if above.is_relative_to(root))


def control_group_numbers(path: Path) -> dict[str, int]:
    """Return the lines `name number` of a group's file; empty where it cannot be read."""
    found = {}
    # A container may not see the group's folder.
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            name, value = line.split()
            found[name] = int(value)
    return found


GIB = 2**30
# version -> limit, use, and the file pages in it that the kernel takes back (cgroups(7))
_CGROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", r"^total_(?:in)?active_file (\d+)$"),
    2: ("memory.max", "memory.current", r"^(?:in)?active_file (\d+)$"),
}


class NoRoomError(ValueError):
    """What is asked for needs more memory than a rank has, known before any of it is made."""


class ExhaustedError(RuntimeError):
    """A rank ran out of memory, and the case cannot go on at half its batch."""


@dataclass(frozen=True)
class Room:
    """The least that any rank may still take of memory.

    Attributes:
        free_bytes: Of its device on a GPU, of its share on a host.
    """

    rank: int
    host: str
    free_bytes: int


@dataclass(frozen=True)
class Peak:
    """The most memory that a rank had since the last reset.

    Attributes:
        used_bytes: Of tensors on a GPU, resident on a CPU; None where the system does not tell.
        reserved_bytes: What PyTorch's allocator held of the GPU, in use or not; None on a CPU.
    """

    used_bytes: int | None
    reserved_bytes: int | None = None


def least_room(free_bytes: Sequence[int], hosts: Sequence[str]) -> Room:
    """Return the least of what the ranks may still take, from each rank's."""
    rank = min(range(len(free_bytes)), key=free_bytes.__getitem__)
    return Room(rank, hosts[rank], free_bytes[rank])


def refuse_beyond(room: Room, needed: Mapping[str, int], device: "torch.device") -> None:
    """Refuse on all ranks, before any of it is made, what one of them has no room for.

    What is needed, in bytes by what it is for, must be equal on all ranks.

    Raises:
        NoRoomError: It does not fit.
    """
    if sum(needed.values()) > room.free_bytes:
        parts = " and ".join(f"{size / GIB:.1f} GiB for {what}" for what, size in needed.items())
        left = f"{room.free_bytes / GIB:.1f} GiB"
        available = (
            f"only {left} of its GPU are free"
            if device.type == "cuda"
            else f"its share of the free memory of its host or job is {left}"
        )
        raise NoRoomError(
            f"rank {room.rank} on {room.host} needs {parts}, but {available}; "
            "choose a smaller model, batch or data set"
        )


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error says that there is no memory left, of a device or of the host."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError, NoRoomError, ExhaustedError)):
        return True
    # torch raises a bare RuntimeError where the host has no memory; its text alone tells.
    return "DefaultCPUAllocator: can't allocate memory" in str(error)


def free_bytes(device: "torch.device", ranks_per_node: int) -> int:
    """Return what one rank may still take: of its device on a GPU, of its share on a host."""
    if device.type == "cuda":
        import torch

        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    on_host: int = psutil.virtual_memory().available
    return min([on_host, *left_in_groups()]) // ranks_per_node


def left_in_groups() -> list[int]:
    """Return what each control group of this process leaves it, as that of a Slurm step does."""
    left = []
    with contextlib.suppress(OSError):
        for version, folder in control_groups("memory"):
            limit, use, pages = _CGROUP_FILES[version]
            # A container may not see the group's folder, and the uppermost has no limit.
            with contextlib.suppress(OSError, ValueError):
                allowed, used, stat = (
                    (folder / name).read_text(encoding="ascii")
                    for name in (limit, use, "memory.stat")
                )
                cached = sum(map(int, re.findall(pages, stat, re.MULTILINE)))
                left.append(int(allowed) - int(used) + cached)
    return left


def reset_peak(device: "torch.device") -> None:
    """Forget the peak so far, so that the next reading is this case's own."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    # Where /proc is read-only, the reading is the process's own peak.
    with contextlib.suppress(OSError):
        # 5 resets the peak resident size (proc_pid_clear_refs(5)).
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak(device: "torch.device") -> Peak:
    """Return the peaks since the last reset."""
    if device.type == "cuda":
        import torch

        allocated = int(torch.cuda.max_memory_allocated(device))
        return Peak(allocated, int(torch.cuda.max_memory_reserved(device)))
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if most := re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE):
            return Peak(int(most[1]) * 1024)
    return Peak(None)
