"""Files of the system, and the type of the file system that a folder lies on."""

from pathlib import Path

import psutil

from lockstep.core.system import commands

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
        ended = commands.run(["lfs", "getstripe", "-d", str(folder.resolve())], STRIPING_S)
    except commands.CommandError:
        return None
    return " ".join(ended.output.split())[:MAX_STRIPING] or None if ended.code == 0 else None


def read_text(path: str | Path) -> str | None:
    """Return a small system file's text without surrounding space, or None if unreadable."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
