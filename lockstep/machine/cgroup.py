"""The control groups of this process, as that of a Slurm step or a container is one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

CGROUP = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")


def groups(controller: str) -> Iterator[tuple[int, Path]]:
    """Yield the version and the folder of each group this process is in, and of those above.

    In version 2 one group serves all controllers.

    Raises:
        OSError: The kernel does not say.
    """
    for line in CGROUP.read_text(encoding="utf-8", errors="replace").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, root = 2, ROOT
        elif controller in controllers.split(","):
            version, root = 1, ROOT / controller
        else:
            continue
        own = root / path.lstrip("/")
        yield from ((version, above) for above in (own, *own.parents) if above.is_relative_to(root))


def numbers(path: Path) -> dict[str, int]:
    """Return the lines `name number` of a group's file; empty where it cannot be read."""
    found = {}
    # A container may not see the group's folder.
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            name, value = line.split()
            found[name] = int(value)
    return found
