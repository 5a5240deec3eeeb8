"""One rank of the laboratory, `lab_rank.py PLAN.json OUT.jsonl`, started by `figures_lab.py`.

A plan is a list of runs. In a run the turns of the step's variants with faults and without them are
interleaved, so the truth, what the whole step takes longer with the faults, is measured beside what
is to find it, in turns of its own. Rank 0 writes one line a run.
"""

import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from waiting_device import Seconds, Slowed, sleep

from lockstep.measure import timing
from lockstep.measure.step import variants
from lockstep.measure.step.train_step import bucket_bytes
from lockstep.ranks.process_group import World, join

PERIOD_US = 5000
INTERFACE = "wire"
BURN = "while True: pass"
# Faults that are a part of the step itself; some are the slow rank's alone.
DELAYS = ("forward", "backward", "hook", "loader", "tiny")
OF_SLOW_RANK = ("forward", "backward")
Delays = dict[str, float]


@dataclass
class Faults:
    """The faults of this rank, each set to a strength or to nothing.

    Attributes:
        rank: This rank, which has core `rank` of the machine to itself.
        delays: What the step reads: seconds that it sleeps, and how many operations it adds.
        groups: Where CPU groups are mounted, once one is needed.
        neighbours: Processes on this rank's core, by their niceness; stopped unless wanted.
    """

    rank: int
    delays: Delays = field(default_factory=lambda: dict.fromkeys(DELAYS, 0.0))
    neighbours: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    groups: Path | None = None
    _now: dict[str, float] = field(default_factory=dict)

    def set(self, wanted: dict[str, float]) -> None:
        """Make these faults, name -> strength, the only ones."""
        for name in {*self._now, *wanted}:
            strength = wanted.get(name, 0.0)
            if name in DELAYS:
                self.delays[name] = 0.0 if name in OF_SLOW_RANK and not self._is_slow else strength
            elif self._now.get(name, 0.0) != strength:
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


LOCAL_BATCH = 112
PIXELS = 16
# What a device computes, during which its host waits: in forward, and in each half of backward.
DEVICE_S = 0.02
# Of the steps of a device, as a standard deviation over its mean.
JITTER = 0.02


class Net(nn.Module):
    """What all nets of the laboratory share: faults in forward and backward, tiny operations."""

    def __init__(self, delays: Delays) -> None:
        super().__init__()
        self.delays = delays
        self.register_buffer("tiny", torch.zeros(1))

    def faulty(self, values: torch.Tensor) -> torch.Tensor:
        delays = self.delays
        return Slowed.apply(values, lambda: delays["forward"], lambda: delays["backward"])

    def add_tiny(self) -> None:
        for _ in range(int(self.delays["tiny"])):
            self.tiny.add_(1.0)


class OnCpu(Net):
    """Two convolutions and a classifier, computed by this rank's core; 0.5 MB of gradients."""

    shape = (3, PIXELS, PIXELS)

    def __init__(self, delays: Delays) -> None:
        super().__init__(delays)
        self.first = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())
        self.last = nn.Sequential(
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 96), nn.ReLU(),
            nn.Linear(96, 10),
        )  # fmt: skip

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the classes of images, (B, 3, 16, 16) to (B, 10)."""
        self.add_tiny()
        return self.last(self.faulty(self.second(self.first(inputs))))


class OnDevice(Net):
    """Three linear layers between which a device computes, in proportion to the batch.

    The host sleeps meanwhile, as it waits for a GPU; 0.6 MB of gradients.
    """

    shape = (64,)

    def __init__(self, delays: Delays) -> None:
        super().__init__(delays)
        self.layers = nn.ModuleList([nn.Linear(64, 512), nn.Linear(512, 240), nn.Linear(240, 10)])
        self.draw = random.Random(int(os.environ["RANK"]))  # noqa: S311

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the classes of vectors, (B, 64) to (B, 10)."""
        self.add_tiny()
        share = len(inputs) / LOCAL_BATCH
        first, second, third = self.layers
        values = Slowed.apply(first(inputs), self._of(share), self._of(share))
        values = Slowed.apply(self.faulty(second(values)), float, self._of(share))
        return third(values)

    def _of(self, share: float) -> Seconds:
        return lambda: share * DEVICE_S * self.draw.gauss(1.0, JITTER)


NETS = {"cpu": OnCpu, "device": OnDevice}


class Step:
    """A step with its variants.

    Args:
        delays: What is put into it.
        computes: Where its net computes, of `NETS`.
        bucket_cap_mb: DDP's own parameter.
    """

    def __init__(self, delays: Delays, computes: str, bucket_cap_mb: float | None = None) -> None:
        torch.manual_seed(0)
        self.delays = delays
        net = NETS[computes](delays)
        cap = {} if bucket_cap_mb is None else {"bucket_cap_mb": bucket_cap_mb}
        self.ddp = DistributedDataParallel(net, broadcast_buffers=False, **cap)
        self.ddp.register_comm_hook(None, self._hook)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01)
        self.inputs = torch.randn(LOCAL_BATCH, *net.shape)
        self.targets = torch.randint(0, 10, (LOCAL_BATCH,))

    def resident(self) -> None:
        """Train on the batch that is there."""
        self._train(LOCAL_BATCH)

    def half(self) -> None:
        """Train on half of it, without synchronisation."""
        with self.ddp.no_sync():
            self._train(LOCAL_BATCH // 2)

    def full(self) -> None:
        """Wait for the loader, then train."""
        sleep(self.delays["loader"])
        self.resident()

    def own(self) -> None:
        with self.ddp.no_sync():
            self.resident()

    def _train(self, count: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        outputs = self.ddp(self.inputs[:count])
        nn.functional.cross_entropy(outputs, self.targets[:count]).backward()
        self.optimizer.step()

    def _hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sleep(self.delays["hook"])
        return allreduce_hook(state, bucket)


WARM_UP = 6
TRACED_STEPS = 2
PRIORITY = 10
COMMUNICATION = ("gloo:", "c10d::")

Turn = tuple[str, str]


def main() -> None:
    plan, out = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    os.sched_setaffinity(0, {int(os.environ["RANK"])})
    world = join(device="cpu", threads_per_rank=1)
    faults = Faults(world.rank)
    steps: dict[Any, Step] = {}
    gc.disable()
    try:
        for number, run in enumerate(plan):
            kind = run["computes"], run.get("bucket_cap_mb")
            if kind not in steps:
                steps[kind] = Step(faults.delays, *kind)
                for _ in range(WARM_UP):
                    steps[kind].full()
            step = steps[kind]
            prefer(run["computes"] == "device")
            found: list[Any] = [None] * world.world_size
            dist.all_gather_object(found, measure(world, step, faults, run, number))
            if world.rank == 0:
                with out.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(run | _joined(found)) + "\n")
            gc.collect()
    finally:
        faults.close()
    dist.barrier()
    dist.destroy_process_group()


def prefer(over_all: bool) -> None:
    """Let the threads of this rank run before whatever else the machine does, or as others do.

    A rank whose device computes needs little of its core, and that at once; one that computes
    itself must leave room for a neighbour.
    """
    policy, priority = (os.SCHED_FIFO, PRIORITY) if over_all else (os.SCHED_OTHER, 0)
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))


def measure(
    world: World, step: Step, faults: Faults, run: dict[str, Any], number: int
) -> dict[str, Any]:
    """Return this rank's seconds by state and variant, and what a trace says."""
    each = actions(step, run["states"])
    states = run["faults"]
    seconds: dict[str, dict[str, list[float]]] = {state: {} for state in run["states"]}
    order = variants.turns(list(each), run["blocks"], seed=number)
    for turn in [*each, *order]:
        state, name = turn
        faults.set(states.get(state, {}))
        # A turn of `timing.time_turns`, without the collection of garbage that comes before many.
        taken_s, running_s = timing.time_turn(world, each[turn], 1)
        seconds[state].setdefault(name, []).append(taken_s)
        if name == "own":
            seconds[state].setdefault("running", []).append(running_s)
    timed = {  # the first turn of each is to warm up
        state: {name: values[1:] for name, values in found.items()}
        for state, found in seconds.items()
    }
    faults.set(states.get("fault", {}))
    leads = variants.bucket_leads(step.ddp, step.own)
    traced = share_of_trace(step) if run.get("trace") else None
    faults.set({})
    return {"seconds": timed, "lead_s": leads, "bytes": bucket_bytes(step.ddp), "trace": traced}


def actions(step: Step, states: dict[str, list[str]]) -> dict[Turn, Callable[[], object]]:
    known = variants.ddp_variants(step.ddp, step.full) | {
        "resident": step.resident,
        "half": step.half,
        "own": step.own,
        "reduce": variants.reduce_buckets(step.ddp),
    }
    return {(state, name): known[name] for state, names in states.items() for name in names}


def share_of_trace(step: Step) -> float:
    """Return the share of communication that formulas over a profiler's trace give a few steps.

    It is time in collectives during which nothing is computed, over the step.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(TRACED_STEPS):
            with record_function("lab:step"):
                step.full()
    events = [
        (event.name, event.time_range.start, event.time_range.end) for event in profiler.events()
    ]
    found = []
    for start, end in [(start, end) for name, start, end in events if name == "lab:step"]:
        inside = [one for one in events if one[1] < end and one[2] > start]
        reduce = [one[1:] for one in inside if one[0].startswith(COMMUNICATION)]
        compute = [one[1:] for one in inside if one[0].startswith("aten::")]
        busy, both = _covered(compute, start, end), _covered([*compute, *reduce], start, end)
        found.append((both - busy) / (end - start))
    return fmean(found)


def _covered(spans: list[Any], start: float, end: float) -> float:
    """Return how much of a window the union of spans covers."""
    covered, at = 0.0, start
    for low, high in sorted(spans):
        low, high = max(low, at), min(high, end)
        if high > low:
            covered, at = covered + high - low, high
    return covered


def _joined(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all ranks found: seconds by state and variant, shape (num_ranks, num_turns)."""
    seconds = {
        state: {name: [rank["seconds"][state][name] for rank in ranks] for name in names}
        for state, names in ranks[0]["seconds"].items()
    }
    traced = [rank["trace"] for rank in ranks if rank["trace"] is not None]
    return {"seconds": seconds, "lead_s": ranks[0]["lead_s"], "bytes": ranks[0]["bytes"],
            "share_of_trace": fmean(traced) if traced else None}  # fmt: skip


if __name__ == "__main__":
    main()
