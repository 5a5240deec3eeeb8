"""Whether a ladder goes on: `until_efficiency` against the sizes that are measured.

`lockstep run` asks `missed`, `lockstep status` asks `left_out`; a job's script runs
`python3 -m lockstep.campaign.floor` where its ranks run; there is no more than Python's own
library.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.vocabulary.metrics import best_efficiencies
from lockstep.vocabulary.records import flags, journal
from lockstep.vocabulary.records.record import KEY, case_name

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
        ValueError: A journal is corrupt.
    """
    found = efficiencies(launches)
    low = [size for size, value in found.items() if size < world_size and value < floor]
    return Missed(min(low), found[min(low)], floor) if low else None


def left_out(launches: Path, claimed: Mapping[str, Any]) -> set[str]:
    """Return the launches of a claimed campaign that are not begun, for the ladder ended before.

    Raises:
        ValueError: A journal is corrupt.
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
    """Return world size -> the best parallel efficiency of any case that is in a journal.

    Rates of unlike devices, or of a batch that was halved, are compared with none.
    """
    rates: dict[str, dict[int, list[float]]] = {}
    for path in sorted(launches.glob("*/journal.jsonl")):
        if not journal.outcomes(path):
            continue
        document = journal.rebuild(path)
        devices = (document[KEY].get("provenance") or {}).get("device_names") or []
        for entry in document["benchmarks"]:
            block = entry["extra_info"][KEY]
            if block["scaling"] is not None and not flags.says_smaller_batch(block):
                own = rates.setdefault(" ".join([case_name(entry), *devices]), {})
                own.setdefault(block["world_size"], []).append(_rate(entry, block))
    return best_efficiencies(rates)


def _rate(entry: Mapping[str, Any], block: Mapping[str, Any]) -> float:
    work: float = block["samples_per_step"] * block["steps_per_round"]
    return work / float(entry["stats"]["median"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Say which smaller size has missed the floor, and exit with 3; else say nothing."""
    parser = argparse.ArgumentParser(prog="lockstep.campaign.floor", description=main.__doc__)
    parser.add_argument("launches", type=Path, help="folder of the campaign's launches")
    parser.add_argument("world_size", type=int, help="what would be measured next")
    parser.add_argument("floor", type=float, help="least parallel efficiency, a fraction")
    given = parser.parse_args(arguments)
    if found := missed(given.launches, given.world_size, given.floor):
        sys.stdout.write(f"{found}\n")
        sys.exit(EXIT_MISSED)


if __name__ == "__main__":
    main()
