"""What the laboratory puts into a step, on one rank, and takes out of it again.

A fault is a state of this rank: delays that the step reads, a limit on the rank's link, a quota of
its process, a neighbour on its core. Setting one takes no part in any timed turn.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PERIOD_US = 5000
INTERFACE = "wire"
BURN = "while True: pass"


@dataclass
class Delays:
    """Seconds that the step sleeps, and operations that it adds; 0 for none."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    hook_s: float = 0.0
    input_s: float = 0.0
    num_tiny: int = 0


@dataclass
class Faults:
    """The faults of this rank, each set to a strength or to nothing.

    Attributes:
        rank: This rank, which has core `rank` of the machine to itself.
        delays: What the step reads.
        groups: Where CPU groups are mounted, once one is needed.
        neighbours: Processes on this rank's core, by their niceness; stopped unless wanted.
    """

    rank: int
    delays: Delays = field(default_factory=Delays)
    neighbours: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    groups: Path | None = None
    _now: dict[str, float] = field(default_factory=dict)

    def set(self, wanted: dict[str, float]) -> None:
        """Make these faults, name -> strength, the only ones."""
        for name in {*self._now, *wanted}:
            strength = wanted.get(name, 0.0)
            if self._now.get(name, 0.0) != strength:
                getattr(self, f"_set_{name}")(strength)
        self._now = dict(wanted)

    def close(self) -> None:
        """End the neighbours and the quota."""
        self.set({})
        for process in self.neighbours.values():
            process.kill()
            process.wait()
        if self.groups:
            (self.groups / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            (self.groups / "lockstep-lab").rmdir()
            subprocess.run(["umount", self.groups], check=True)

    def _set_forward(self, seconds: float) -> None:
        self.delays.forward_s = seconds * self._is_slow

    def _set_backward(self, seconds: float) -> None:
        self.delays.backward_s = seconds * self._is_slow

    def _set_hook(self, seconds: float) -> None:
        self.delays.hook_s = seconds

    def _set_loader(self, seconds: float) -> None:
        self.delays.input_s = seconds

    def _set_tiny(self, count: float) -> None:
        self.delays.num_tiny = int(count)

    def _set_link(self, bit_per_s: float) -> None:
        limit = f"tbf rate {bit_per_s:.0f}bit burst 32kb latency 400ms"
        change = (
            f"replace dev {INTERFACE} root {limit}" if bit_per_s else f"del dev {INTERFACE} root"
        )
        with suppress(subprocess.CalledProcessError):  # there is no limit yet
            subprocess.run(["tc", "qdisc", *change.split()], check=True, stderr=subprocess.DEVNULL)

    def _set_quota(self, share: float) -> None:
        """Let the slow rank's process have so much of a core; 0 for all of it.

        It is in a group of its own meanwhile: a neighbour outside would have next to nothing of the
        core beside a group of that weight.
        """
        if not self._is_slow:
            return
        group = self._group()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(share * PERIOD_US) or -1))
        home = group if share else group.parent
        (home / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def _group(self) -> Path:
        """Return this process's CPU group; the node's /sys has none, so it is mounted again."""
        if self.groups is None:
            self.groups = Path(tempfile.mkdtemp())
            subprocess.run(
                ["mount", "-t", "cgroup", "-o", "cpu", "cgroup", self.groups], check=True
            )
            (self.groups / "lockstep-lab").mkdir(exist_ok=True)
            # A group has no time for real-time threads unless it is given some.
            runtime = self.groups / "lockstep-lab" / "cpu.rt_runtime_us"
            runtime.write_text("900000", encoding="ascii")
            # Beside the processes of the root, each of which weighs as much as a whole group does.
            (self.groups / "lockstep-lab" / "cpu.shares").write_text("262144", encoding="ascii")
        return self.groups / "lockstep-lab"

    def _set_neighbour(self, niceness: float) -> None:
        """Let a busy process of this niceness, from 1, share the core; 0 for none."""
        for other, process in self.neighbours.items():
            if other != int(niceness):
                process.send_signal(signal.SIGSTOP)
        if niceness:
            self._neighbour(int(niceness)).send_signal(signal.SIGCONT)

    def _neighbour(self, niceness: int) -> subprocess.Popen[bytes]:
        if niceness not in self.neighbours:
            command = ["nice", "-n", str(niceness), sys.executable, "-c", BURN]
            self.neighbours[niceness] = subprocess.Popen(command)  # it inherits the rank's core
        return self.neighbours[niceness]

    @property
    def _is_slow(self) -> bool:
        return self.rank == 1
