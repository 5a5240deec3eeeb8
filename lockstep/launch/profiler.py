"""Traces of a few steps of each case by torch.profiler, and what part of a step takes how long.

A profiler slows what it sees, so a session that traces keeps no result. A timed step is marked, and
all ranks enter it together: what lies between two, such as barriers and the profiler's own start,
is no part of either. In a training, which times no steps, one begins with the first forward pass
after an update.
"""

import json
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockstep.core.formats import percent
from lockstep.core.phases import TIMED, Phases, phases_of
from lockstep.launch import FIXTURE
from lockstep.launch.items import is_measured
from lockstep.measure.batches import Step
from lockstep.measure.harness import Harness
from lockstep.measure.timing import meet
from lockstep.ranks.placement import placement

# Steps that pass by, that warm the profiler up, and that are kept.
WAIT, WARMUP, ACTIVE = 1, 1, 3
MAX_NAME = 180  # of a file, with what is put after it


def shares(found: Phases) -> dict[str, Any]:
    """Return a profile's phases as fractions of a step: of each part, exposed, and of no part."""
    return {
        "num_steps": found.num_steps,
        "step_s": found.step_s,
        "parts": {part: seconds / found.step_s for part, seconds in found.parts.items()},
        "exposed": found.exposed_s / found.step_s,
        "rest": found.idle_s / found.step_s,
    }


def in_words(found: dict[str, Any]) -> str:
    """Return what the parts take, as a line."""
    alone = f" ({percent(found['exposed'])} % beside nothing else)"
    parts = [
        f"{part} {percent(share)} %{alone if part == 'communication' else ''}"
        for part, share in (found["parts"] | {"rest": found["rest"]}).items()
    ]
    return f"{found['num_steps']} steps of {1e3 * found['step_s']:.3g} ms: {', '.join(parts)}"


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
            ranges = [(e.name, e.time_range.start / 1e6, e.time_range.end / 1e6) for e in events]
            if phases := phases_of(ranges):
                found = shares(phases)
                facts = {"case": name, "world_size": place.world_size, "rank": place.rank}
                text = json.dumps(facts | found, indent=1)
                path.with_name(f"{stem}.shares.json").write_text(text, encoding="utf-8")
                self.lines.append(f"  {in_words(found)}")
