"""Real screenings of four nodes, one truly slowed: its CPU by a quota, its link by a filter.

The nodes are those of the testbed's Slurm, or network namespaces. Both need root.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from namespaces import FIRST, linked

ROOT = Path(__file__).resolve().parents[2]
NUM_NODES = 4
TIMEOUT_S = 300
# A slowed process runs for this share of each period, which is shorter than any probe.
SHARE = 0.5
PERIOD_US = 5_000
LINK_BIT_PER_S = 1e9
SCREEN = (sys.executable, "-m", "lockstep", "screen", "--device", "cpu", "--json")
SHARES = 30_000
# $0 is the slowed node, $1 its group; the rest is the command.
ENTER = 'slow=$0 group=$1; shift; [ "$SLURMD_NODENAME" != "$slow" ] || echo $$ >"$group"; exec "$@"'


@dataclass(frozen=True)
class Ended:
    """How a screening ended: its exit code, and its lines by node."""

    code: int
    lines: dict[str, dict[str, Any]]

    @property
    def kinds(self) -> dict[str, set[str]]:
        return {
            node: {finding["kind"] for finding in line["findings"]}
            for node, line in self.lines.items()
            if line["is_slow"]
        }

    @property
    def is_within_promise(self) -> bool:
        """Whether it took no more steps than promised."""
        return all(line["steps"] <= line["promised_steps"] for line in self.lines.values())


def on_testbed(slow: str | None = None) -> Ended:
    """Screen the testbed's four nodes under srun, one of them with a share of a core."""
    with _group() if slow else nullcontext(Path(os.devnull)) as group:
        command = ["srun", f"-N{NUM_NODES}", "--ntasks-per-node=1", "--cpus-per-task=1"]
        entered = ["bash", "-c", ENTER, slow or "none", str(group)]
        return _ended([_start([*command, *entered, *FIRST, *SCREEN])])


def over_links(slow: int | None = None) -> Ended:
    """Screen four namespaces whose links have one rate, one of them a share of it."""
    with linked(LINK_BIT_PER_S, NUM_NODES) as links:
        if slow is not None:
            links.set_rate(LINK_BIT_PER_S * SHARE, slow)
        return _ended([_start([*rank.prefix, *FIRST, *SCREEN], **rank.env) for rank in links.ranks])


def can_slow() -> bool:
    """Return whether this process may hold others to a share of a core."""
    try:
        with _group():
            return True
    except OSError:
        return False


@contextmanager
def _group() -> Iterator[Path]:
    """Make a control group with a share of one core, and give the file that takes its processes."""
    version_1 = Path("/sys/fs/cgroup/cpu")
    parent = version_1 if version_1.exists() else Path("/sys/fs/cgroup")
    group = parent / f"lockstep-screen-{os.getpid()}"
    group.mkdir()
    quota_us = round(SHARE * PERIOD_US)
    try:
        if parent == version_1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            (group / "cpu.shares").write_text(str(SHARES))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def _start(command: Sequence[str], **env: str) -> "subprocess.Popen[str]":
    own = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | env
    return subprocess.Popen(
        command, cwd="/", env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _ended(processes: Sequence["subprocess.Popen[str]"]) -> Ended:
    said = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    code = max(process.returncode for process in processes)
    if code not in (0, 1):
        raise RuntimeError("\n".join(errors for _, errors in said))
    lines = [json.loads(line) for text, _ in said for line in text.splitlines()]
    return Ended(code, {line["node"]: line for line in lines})
