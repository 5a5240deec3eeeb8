"""Gaps in results: planned or expected launches and cases without a result."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lockstep.core import record
from lockstep.report.compute.scaling import best_efficiencies, series_of
from lockstep.report.load import sources
from lockstep.report.load.results import COPY, Launch, Results

Kind = Literal[
    "failed", "skipped", "no-result", "not-run", "dropped", "too-few-gpus", "below-floor"
]


@dataclass(frozen=True)
class Gap:
    """A case without a result, or a planned launch without any.

    Attributes:
        launch: Name of the launch; empty for a world size that was left out.
        case: Name of the case; None for all cases of a launch.
        reason: Recorded reason; empty if there is none.
    """

    kind: Kind
    launch: str
    case: str | None
    world_size: int | None
    reason: str = ""
    num_gpus: int | None = None

    @property
    def can_be_filled(self) -> bool:
        """Tell whether another run could fill the gap."""
        return self.kind not in ("skipped", "dropped", "too-few-gpus", "below-floor")

    @property
    def is_explained(self) -> bool:
        """Tell whether a launch recorded the reason."""
        return self.kind not in ("no-result", "not-run")


def gaps(results: Results) -> list[Gap]:
    """Return world sizes left out, then planned launches and cases without results."""
    left_out = [
        Gap(
            "below-floor" if size.get("kind") == "below_floor" else "too-few-gpus",
            "", None, size.get("world_size"), num_gpus=size.get("num_gpus"),
        )
        for size in results.campaign.get("left_out", [])
    ]  # fmt: skip
    not_run = [gap for folder in results.plans for gap in _not_run(folder, results)]
    known: dict[str, set[str]] = {}
    for row in results.rows:
        known.setdefault(row.launch, set()).add(row.recorded_case)
    cases = [
        gap
        for launch in results.launches
        for gap in _of_launch(launch, known.get(launch.name, set()))
    ]
    return left_out + not_run + cases


def _not_run(folder: Path, results: Results) -> Iterator[Gap]:
    """Yield the planned launches of a campaign without a result in its folder."""
    plan = results.plans[folder]
    own = [launch for launch in results.launches if sources.campaign_folder(launch.path) == folder]
    names = {launch.name for launch in own}
    measured = {str(launch.facts.get("launch", launch.name)) for launch in own} | {
        conflict.values[0] for conflict in results.conflicts
        if conflict.fact == COPY and sources.campaign_folder(Path(conflict.path)) == folder
    }  # fmt: skip
    elsewhere = {launch.name for launch in results.launches} - names
    last = math.inf  # the world size at which the efficiency floor ended the ladder
    if isinstance(floor := plan.get("until_efficiency"), float):
        best = best_efficiencies(series_of(row for row in results.rows if row.launch in names))
        last = min((size for size, reached in best.items() if reached < floor), default=last)
    for planned in plan.get("launches", []):
        name, size = str(planned.get("name")), planned.get("world_size")
        if name not in measured:
            shown = f"{name} ({folder / sources.LAUNCHES / name})" if name in elsewhere else name
            yield Gap("below-floor" if (size or 0) > last else "not-run", shown, None, size)
    for planned in plan.get("dropped", []):
        if planned["name"] not in measured:
            yield Gap("dropped", planned["name"], None, planned.get("world_size"))


def _of_launch(launch: Launch, known: set[str]) -> Iterator[Gap]:
    facts, size = launch.facts, launch.facts.get("world_size")
    kinds: tuple[Kind, Kind] = ("failed", "skipped")
    for kind in kinds:
        for entry in facts.get(kind) or []:
            case = sources.case_name(entry.get("case"))
            known.add(case)
            reason = str(entry.get("reason") or "no reason recorded")
            if entry.get("causes"):
                reason = record.failure_gist(entry)
            yield Gap(kind, launch.name, case, size, reason)
    for case in map(sources.case_name, facts.get("expected") or []):
        if case not in known:
            yield Gap("no-result", launch.name, case, size)
