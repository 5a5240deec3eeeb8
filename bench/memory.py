"""Peak memory of one case: of the device on a GPU, resident in the process on a CPU."""

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch


def free_bytes(device: "torch.device", ranks_per_node: int) -> int:
    """Return what one rank may still take: of its device on a GPU, of its share on a host."""
    if device.type == "cuda":
        import torch

        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    return int(psutil.virtual_memory().available // ranks_per_node)


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


def peak_bytes(device: "torch.device") -> int | None:
    """Return the peak since the last reset in bytes, None where the system does not tell."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(peak[1]) * 1024 if peak else None
