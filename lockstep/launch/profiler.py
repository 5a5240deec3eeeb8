"""Traces of a few steps of each case by torch.profiler, and what part of a step takes how long.

A profiler slows what it sees, so a session that traces keeps no result. A timed step is marked, and
all ranks enter it together: what lies between two, such as barriers and the profiler's own start,
is no part of either. In a training, which times no steps, one begins with the first forward pass
after an update.
"""

import json
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockstep.core.formats import percent
from lockstep.launch import FIXTURE
from lockstep.launch.items import is_measured
from lockstep.measure.batches import Step
from lockstep.measure.harness import Harness
from lockstep.measure.timing import meet
from lockstep.ranks.placement import placement

# Steps that pass by, that warm the profiler up, and that are kept.
WAIT, WARMUP, ACTIVE = 1, 1, 3
STEP, TIMED = "ProfilerStep", "lockstep:step"
COMMUNICATION = "communication"
# part -> how the ranges begin by which torch marks it (torch/nn/parallel/distributed.py,
# torch/autograd, torch/optim/optimizer.py, torch/utils/data/dataloader.py, torch/csrc/.../c10d)
PARTS = {
    "data": ("enumerate(DataLoader)",),
    "forward": ("DistributedDataParallel.forward",),
    "backward": ("autograd::engine::evaluate_function",),
    "optimizer": ("Optimizer.",),
    COMMUNICATION: ("gloo:", "nccl:"),
}
MAX_NAME = 180  # of a file, with what is put after it

Range = tuple[float, float]  # beginning and end
Span = tuple[str, float, float]  # name, beginning and end, in microseconds


@dataclass(frozen=True)
class Shares:
    """What of the traced steps each part takes; parts may run beside each other.

    Attributes:
        step_s: Mean of the steps, with what the profiler adds to each operation.
        parts: Part -> fraction of the time in which it ran, where torch marks it (not the forward
            pass of FSDP2).
        exposed: Fraction in which communication ran and no other part did.
        rest: Fraction in which none of them ran.
    """

    num_steps: int
    step_s: float
    parts: dict[str, float]
    exposed: float
    rest: float


def shares(spans: Iterable[Span]) -> Shares | None:
    """Return what of its steps the parts of a trace take; None where it holds no step."""
    ranges: dict[str, list[Range]] = {part: [] for part in (TIMED, STEP, *PARTS)}
    for name, begin, end in spans:
        for part, starts in ((TIMED, (TIMED,)), (STEP, (STEP,)), *PARTS.items()):
            if name.startswith(starts) and "barrier" not in name:  # ours before each step
                ranges[part].append((begin, end))
    timed, between_updates = ranges.pop(TIMED), ranges.pop(STEP)
    steps = timed or between_updates
    if not steps:
        return None
    whole = sum(end - begin for begin, end in steps)
    every = _covered([range_ for part in ranges.values() for range_ in part], steps)
    others = [range_ for part in PARTS if part != COMMUNICATION for range_ in ranges[part]]
    return Shares(
        num_steps=len(steps),
        step_s=whole / len(steps) / 1e6,
        parts={part: _covered(each, steps) / whole for part, each in ranges.items() if each},
        exposed=(every - _covered(others, steps)) / whole,
        rest=1 - every / whole,
    )


def _covered(ranges: Sequence[Range], steps: Sequence[Range]) -> float:
    """Return how long at least one of some ranges lasts within steps, which do not overlap."""
    covered, ordered = 0.0, sorted(ranges)
    for reached, last in steps:
        for begin, end in ordered:
            begin, end = max(begin, reached), min(end, last)
            covered += max(end - begin, 0.0)
            reached = max(reached, end)
    return covered


def in_words(found: Shares) -> str:
    """Return what the parts take, as a line."""
    alone = f" ({percent(found.exposed)} % beside nothing else)"
    parts = [
        f"{part} {percent(share)} %{alone if part == COMMUNICATION else ''}"
        for part, share in (found.parts | {"rest": found.rest}).items()
    ]
    return f"{found.num_steps} steps of {1e3 * found.step_s:.3g} ms: {', '.join(parts)}"


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Tracing:
    """The plugin of a session that traces.

    Attributes:
        folder: Where the traces of all ranks go.
        lines: What rank 0 says of them at the end.
    """

    folder: Path
    lines: list[str] = field(default_factory=list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Trace a case while it runs."""
        if not is_measured(item):
            return (yield)
        with self._traced(item, getattr(item, "funcargs", {}).get(FIXTURE)):
            return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where the traces are, and on a CPU what of a step each part takes."""
        terminalreporter.section("traces of rank 0, which ui.perfetto.dev shows")
        for line in self.lines:
            terminalreporter.write_line(line)
        terminalreporter.write_line("Times in tables are of traced steps; no result was kept.")

    @contextmanager
    def _traced(self, item: pytest.Item, harness: Harness | None) -> Iterator[None]:
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.profiler import profile, schedule

        plan = schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1)
        has_updated = is_timed = False

        def marked(step: Step) -> Step:
            nonlocal is_timed
            assert harness
            is_timed = True
            from torch.profiler import record_function

            def timed() -> None:
                profiler.step()
                meet(harness.world)  # or the ranks' profilers would be waited for in the step
                with record_function(TIMED):
                    step()

            return timed

        def updated(*_: Any) -> None:
            nonlocal has_updated
            has_updated = True

        def goes_forward(*_: Any) -> None:
            nonlocal has_updated
            if has_updated and not is_timed:
                has_updated = False
                profiler.step()

        with profile(
            schedule=plan, on_trace_ready=partial(self._keep, f"{item.path.stem}-{item.name}")
        ) as profiler:
            hooks = (
                register_optimizer_step_post_hook(updated),
                register_module_forward_pre_hook(goes_forward),
            )
            if harness:
                harness.case.around = marked
            try:
                yield
            finally:
                for hook in hooks:
                    hook.remove()

    def _keep(self, name: str, profiler: Any) -> None:
        place = placement()
        stem = re.sub(r"[^\w.=,-]+", "_", name)[:MAX_NAME].strip("_")
        stem = f"{stem}-w{place.world_size}-r{place.rank}"
        path = self.folder / f"{stem}.json.gz"
        self.folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        events = list(profiler.events())
        self.lines.append(str(path))
        # On a GPU these ranges say when work was handed over, not when it was done.
        if not any("cuda" in str(event.device_type).lower() for event in events):
            spans = ((e.name, e.time_range.start, e.time_range.end) for e in events)
            if found := shares(spans):
                facts = {"case": name, "world_size": place.world_size, "rank": place.rank}
                text = json.dumps(facts | asdict(found), indent=1)
                path.with_name(f"{stem}.shares.json").write_text(text, encoding="utf-8")
                self.lines.append(f"  {in_words(found)}")
