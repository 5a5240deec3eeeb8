"""A rank's free and peak memory: of its device on a GPU, or of its host on a CPU.

The module also reads the control groups of this process, as of a Slurm step or a container.
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
    """Yield the version and folder of each control group of this process, and those above it.

    Version 2 has one group for all controllers.

    Raises:
        OSError: The kernel does not provide them.
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


GIB = 2**30
# Version -> files with the limit and the use, and lines with reclaimable file pages (cgroups(7)).
_CGROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", r"^total_(?:in)?active_file (\d+)$"),
    2: ("memory.max", "memory.current", r"^(?:in)?active_file (\d+)$"),
}


class NoRoomError(ValueError):
    """A case needs more memory than a rank has; raised before anything is allocated."""


class ExhaustedError(RuntimeError):
    """A rank ran out of memory, and the case cannot continue with half its batch."""


@dataclass(frozen=True)
class Room:
    """The rank with the least free memory: of its device on a GPU, of its share of the host."""

    rank: int
    host: str
    free_bytes: int


@dataclass(frozen=True)
class Peak:
    """The peak memory of a rank since the last reset."""

    used_bytes: int | None  # of tensors on a GPU, resident on a CPU; None if unknown
    reserved_bytes: int | None = None  # by PyTorch's allocator on a GPU; None on a CPU


def least_room(free_bytes: Sequence[int], hosts: Sequence[str]) -> Room:
    rank = min(range(len(free_bytes)), key=free_bytes.__getitem__)
    return Room(rank, hosts[rank], free_bytes[rank])


def refuse_beyond(room: Room, needed: Mapping[str, int], device: "torch.device") -> None:
    """Raise NoRoomError for a case that does not fit `room`; `needed` is purpose -> bytes."""
    if sum(needed.values()) > room.free_bytes:
        sizes = " and ".join(f"{size / GIB:.1f} GiB for {what}" for what, size in needed.items())
        left = f"{room.free_bytes / GIB:.1f} GiB"
        available = (
            f"only {left} of the GPU's memory is free"
            if device.type == "cuda"
            else f"the rank's share of the free memory of the host or job is only {left}"
        )
        raise NoRoomError(
            f"rank {room.rank} on {room.host} needs {sizes}, but {available}; "
            "choose a smaller model, batch or data set"
        )


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error means that a device or the host has no memory left."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError, NoRoomError, ExhaustedError)):
        return True
    # If the host has no memory, torch raises a plain RuntimeError with this text.
    return "DefaultCPUAllocator: can't allocate memory" in str(error)


def free_bytes(device: "torch.device", ranks_per_node: int) -> int:
    """Return a rank's free memory: of its device on a GPU, of its share of the host on a CPU."""
    if device.type == "cuda":
        import torch

        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    on_host: int = psutil.virtual_memory().available
    return min([on_host, *left_in_groups()]) // ranks_per_node


def left_in_groups() -> list[int]:
    """Return the free memory within each control group of this process."""
    left = []
    with contextlib.suppress(OSError):
        for version, folder in control_groups("memory"):
            limit, use, pages = _CGROUP_FILES[version]
            # A container may not see the folder, and the topmost group has no limit.
            with contextlib.suppress(OSError, ValueError):
                allowed, used, stat = (
                    (folder / name).read_text(encoding="ascii")
                    for name in (limit, use, "memory.stat")
                )
                cached = sum(map(int, re.findall(pages, stat, re.MULTILINE)))
                left.append(int(allowed) - int(used) + cached)
    return left


def reset_peak(device: "torch.device") -> None:
    """Reset the peak, so that the next reading is the peak of this case."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    # If /proc is read-only, the reading is the peak of the whole process.
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
