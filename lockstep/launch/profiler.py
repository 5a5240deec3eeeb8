"""Traces of a few steps of each case by torch.profiler, and the share of each part of a step.

In a training, which times no steps, one begins with the first forward pass after an update. Under
a profiler each step, its phases and each bucket of gradients have a named range, for
torch.profiler or Nsight Systems; in any other session nothing of it is there.
"""

import json
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from lockstep.core.formats import percent
from lockstep.core.phases import BUCKET, OURS, TIMED, Phases, phases_of
from lockstep.launch import FIXTURE
from lockstep.launch.items import is_measured
from lockstep.measure.harness import Harness
from lockstep.measure.timing import Step, meet
from lockstep.ranks.placement import placement

# Numbers of steps to ignore, to warm up the profiler, and to trace.
WAIT, WARMUP, ACTIVE = 1, 1, 3
MAX_NAME = 180  # of a file, with what is put after it
# Nsight Systems sets this variable for what it profiles; GROMACS and NVTX.jl ask for it, too.
NSYS = "NSYS_PROFILING_SESSION_ID"
MakeRange = Callable[[str], AbstractContextManager[Any]]


def shares(phases: Phases) -> dict[str, Any]:
    return {
        "num_steps": phases.num_steps,
        "step_s": phases.step_s,
        "parts": {part: seconds / phases.step_s for part, seconds in phases.parts.items()},
        "exposed": phases.exposed_s / phases.step_s,
        "rest": phases.idle_s / phases.step_s,
    }


def describe(shares: dict[str, Any]) -> str:
    exposed = f" (communication that compute does not hide: {percent(shares['exposed'])} %)"
    parts = [
        f"{part} {percent(share)} %" + (exposed if part == "communication" else "")
        for part, share in (shares["parts"] | {"rest": shares["rest"]}).items()
        if not part.startswith(BUCKET)
    ]
    return f"{shares['num_steps']} steps of {1e3 * shares['step_s']:.3g} ms: {', '.join(parts)}"


@contextmanager
def phase_ranges(make_range: MakeRange) -> Iterator[None]:
    """Open a range around each forward, backward, update, and all-reduce of a bucket of DDP.

    This sees the phases of any step, the user's own included. An all-reduce then goes through
    torch's Python hook, which divides and sums as DDP does without one. Its range lasts until the
    all-reduce has been launched.
    """
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.modules import module as modules
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import optimizer as optimizers

    is_compiling = torch.compiler.is_compiling
    depth = 0  # of nested modules, and of backwards, in which a checkpoint computes forward again
    opened: dict[str, AbstractContextManager[Any]] = {}

    def begin(phase: str) -> None:
        opened[phase] = make_range(OURS + phase)
        opened[phase].__enter__()

    def end(phase: str) -> None:
        if phase in opened:
            opened.pop(phase).__exit__(None, None, None)

    def enter(module: torch.nn.Module, *_: Any) -> None:
        nonlocal depth
        if is_compiling():
            return
        if isinstance(module, DistributedDataParallel) and not module._comm_hooks:  # noqa: SLF001
            module.register_comm_hook(module.process_group, allreduce_hook)
        depth += 1
        if depth == 1:
            begin("forward")

    def leave(*_: Any) -> None:
        nonlocal depth
        if not is_compiling():
            depth -= 1
            if depth == 0:
                end("forward")

    run_backward, register = torch.autograd.backward, DistributedDataParallel.register_comm_hook

    def backward(*given: Any, **named: Any) -> None:
        nonlocal depth
        depth += 1
        try:
            with make_range(f"{OURS}backward"):
                run_backward(*given, **named)
        finally:
            depth -= 1

    def register_comm_hook(ddp: Any, state: Any, hook: Callable[..., Any]) -> None:
        @wraps(hook)  # DDP looks at the hook's signature
        def in_range(state: Any, bucket: Any) -> Any:
            with make_range(f"{OURS}{BUCKET}{bucket.index()}"):
                return hook(state, bucket)

        register(ddp, state, in_range)

    hooks = (
        modules.register_module_forward_pre_hook(enter),
        modules.register_module_forward_hook(leave, always_call=True),
        optimizers.register_optimizer_step_pre_hook(lambda *_: begin("optimizer")),
        optimizers.register_optimizer_step_post_hook(lambda *_: end("optimizer")),
    )
    patched: Any = torch.autograd, DistributedDataParallel
    patched[0].backward, patched[1].register_comm_hook = backward, register_comm_hook
    try:
        yield
    finally:
        patched[0].backward, patched[1].register_comm_hook = run_backward, register
        for hook in hooks:
            hook.remove()


class Marking:
    """The plugin of a session under Nsight Systems: steps and their phases are NVTX ranges."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        if not is_measured(item):
            return (yield)
        import torch
        from torch.profiler import record_function

        # A torch without CUDA has no NVTX.
        make_range: Any = torch.cuda.nvtx.range if torch.cuda.is_available() else record_function

        def marked(step: Step) -> Step:
            def timed() -> None:
                with make_range(TIMED):
                    step()

            return timed

        if harness := getattr(item, "funcargs", {}).get(FIXTURE):
            harness.case.around = marked
        with phase_ranges(make_range):
            return (yield)


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Tracing:
    """The pytest plugin that traces cases; rank 0 prints `lines` at the end."""

    folder: Path
    lines: list[str] = field(default_factory=list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        if not is_measured(item):
            return (yield)
        with self._trace(item, getattr(item, "funcargs", {}).get(FIXTURE)):
            return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the paths of the traces, and on a CPU the share of each part of a step."""
        terminalreporter.section("rank 0 wrote these traces; open them in ui.perfetto.dev")
        for line in self.lines:
            terminalreporter.write_line(line)
        terminalreporter.write_line(
            "Tracing slows the steps, so do not use these times as results."
        )

    @contextmanager
    def _trace(self, item: pytest.Item, harness: Harness | None) -> Iterator[None]:
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.profiler import profile, record_function, schedule

        plan = schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1)
        has_updated = is_timed = False

        def mark(step: Step) -> Step:
            nonlocal is_timed
            assert harness
            is_timed = True

            def trace_step() -> None:
                profiler.step()
                meet(harness.world)  # so that the step does not wait for other ranks' profilers
                with record_function(TIMED):
                    step()

            return trace_step

        def note_update(*_: Any) -> None:
            nonlocal has_updated
            has_updated = True

        def note_forward(*_: Any) -> None:
            nonlocal has_updated
            if has_updated and not is_timed:
                has_updated = False
                profiler.step()

        with profile(
            schedule=plan, on_trace_ready=partial(self._keep, f"{item.path.stem}-{item.name}")
        ) as profiler:
            hooks = (
                register_optimizer_step_post_hook(note_update),
                register_module_forward_pre_hook(note_forward),
            )
            if harness:
                harness.case.around = mark
            try:
                with phase_ranges(record_function):
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
        # On a GPU these ranges show when work was submitted, not when it ran.
        if not any("cuda" in str(event.device_type).lower() for event in events):
            ranges = [(e.name, e.time_range.start / 1e6, e.time_range.end / 1e6) for e in events]
            if phases := phases_of(ranges):
                facts = {"case": name, "world_size": place.world_size, "rank": place.rank}
                text = json.dumps(facts | shares(phases), indent=1)
                path.with_name(f"{stem}.shares.json").write_text(text, encoding="utf-8")
                self.lines.append(f"  {describe(shares(phases))}")
