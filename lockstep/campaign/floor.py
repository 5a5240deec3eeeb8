"""Whether a ladder goes on: `until_efficiency` against the sizes that are measured.

`lockstep run` asks `missed`, `lockstep status` asks `left_out`; a job's script runs
`python3 -m lockstep.campaign.floor` where its ranks run. The efficiency is the report's.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.campaign.folder import Folder

EXIT_MISSED = 3


@dataclass(frozen=True)
class Missed:
    """A world size after which the ladder ends.

    Attributes:
        efficiency: The best that any case reaches there, relative to the smallest size.
        floor: What it had to reach.
    """

    world_size: int
    efficiency: float
    floor: float

    def __str__(self) -> str:
        return (
            f"world size {self.world_size} reaches {100 * self.efficiency:.0f} % efficiency, below "
            f"the {100 * self.floor:.0f} % of until_efficiency"
        )


def missed(launches: Path, world_size: int, floor: float) -> Missed | None:
    """Return the size below a world size that missed the floor; None where the ladder goes on.

    Raises:
        ValueError: What is measured cannot be read.
    """
    below = [
        Missed(size, value, floor)
        for size, value in sorted(efficiencies(launches).items())
        if size < world_size and value < floor
    ]
    return below[0] if below else None


def left_out(launches: Path, claimed: Mapping[str, Any]) -> set[str]:
    """Return the launches of a claimed campaign that are not begun, for the ladder ended before.

    Raises:
        ValueError: What is measured cannot be read.
    """
    floor = claimed.get("until_efficiency")
    if not isinstance(floor, float):
        return set()
    low = [size for size, value in efficiencies(launches).items() if value < floor]
    return {
        launch["name"]
        for launch in claimed.get("launches", ())
        if low and (launch.get("world_size") or 0) > min(low)
        if not (launches / launch["name"] / "journal.jsonl").exists()
    }


def efficiencies(launches: Path) -> dict[int, float]:
    """Return world size -> the best parallel efficiency of any case, as a report has it.

    What the check blocks counts for none; a launch that is not begun is not missing.
    """
    # numpy and scipy take a moment, and most campaigns have no floor.
    from lockstep.report.compute.evaluation import evaluate_folder
    from lockstep.report.compute.scaling import best_efficiencies
    from lockstep.report.load.sources import JOURNAL, RESULT

    planned = {
        launch["name"] for launch in (Folder(launches.parent).claimed() or {}).get("launches", ())
    }
    begun = {path.parent.name for name in (JOURNAL, RESULT) for path in launches.glob(f"*/{name}")}
    return (
        best_efficiencies(evaluate_folder(launches.parent, planned - begun).series) if begun else {}
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Say which smaller size has missed the floor, and exit with 3; else the ladder goes on."""
    parser = argparse.ArgumentParser(prog="lockstep.campaign.floor", description=main.__doc__)
    parser.add_argument("launches", type=Path, help="folder of the campaign's launches")
    parser.add_argument("world_size", type=int, help="what would be measured next")
    parser.add_argument("floor", type=float, help="least parallel efficiency, a fraction")
    given = parser.parse_args(arguments)
    try:
        found = missed(given.launches, given.world_size, given.floor)
    except ModuleNotFoundError as error:  # for the job's log; the ladder goes on
        sys.exit(f"until_efficiency is not judged: install {error.name} where the ranks run")
    if found:
        sys.stdout.write(f"{found}\n")
        sys.exit(EXIT_MISSED)


if __name__ == "__main__":
    main()
