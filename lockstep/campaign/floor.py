"""Ends a ladder whose efficiency, as a report shows it, is below `until_efficiency`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.campaign.folder import Folder

EXIT_MISSED = 3


def find_missed(launches: Path, world_size: int, floor: float) -> str | None:
    """Return a phrase about the smallest size below `world_size` that missed the floor, or None."""
    for size, efficiency in sorted(efficiencies(launches).items()):
        if size < world_size and efficiency < floor:
            return (
                f"world size {size} reaches {100 * efficiency:.0f} % parallel "
                f"efficiency, but until_efficiency is {100 * floor:.0f} %"
            )
    return None


def find_left_out(launches: Path, claimed: Mapping[str, Any]) -> set[str]:
    """Return the launches of a claimed campaign that never begin, because the ladder ended."""
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
    """Return world size -> the best parallel efficiency of any case, as in a report.

    Cases that the check blocks do not count; launches that have not begun do not count as missing.
    """
    # Imported late: numpy and scipy load slowly, and most campaigns have no floor.
    from lockstep.report.compute.evaluation import evaluate_folder
    from lockstep.report.compute.scaling import best_efficiencies
    from lockstep.report.load.sources import JOURNAL, RESULT

    claimed = Folder(launches.parent).read_claim() or {}
    planned = {launch["name"] for launch in claimed.get("launches", ())}
    begun = {path.parent.name for name in (JOURNAL, RESULT) for path in launches.glob(f"*/{name}")}
    if not begun:
        return {}
    return best_efficiencies(evaluate_folder(launches.parent, planned - begun).series)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the smaller size that missed the floor and exit with 3; exit with 0 if none did."""
    parser = argparse.ArgumentParser(prog="lockstep.campaign.floor", description=main.__doc__)
    parser.add_argument("launches", type=Path, help="folder of the campaign's launches")
    parser.add_argument("world_size", type=int, help="world size to measure next")
    parser.add_argument("floor", type=float, help="until_efficiency of the campaign")
    options = parser.parse_args(arguments)
    try:
        smaller = find_missed(options.launches, options.world_size, options.floor)
    except ModuleNotFoundError as error:  # for the job's log; the ladder continues
        sys.exit(
            f"until_efficiency needs the package {error.name}; install the package where the ranks "
            "run"
        )
    if smaller:
        sys.stdout.write(f"{smaller}\n")
        sys.exit(EXIT_MISSED)


if __name__ == "__main__":
    main()
