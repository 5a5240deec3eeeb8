"""Looks: how often a verdict was asked for while launches were added, and what each may claim.

Whoever measures more and looks again has more chances to claim what is not there, so the false
claims that are allowed are spent over the looks (Lan and DeMets, Biometrika 70, 1983): the look at
the planned launches has a fixed share, each look before or after it half of what is left of the
rest. The shares add up to no more than the whole at any number of looks, and nothing is assumed of
how looks depend on each other (Bonferroni). Chosen by power: an always-valid test (Howard et al.,
Annals of Statistics 49, 2021) needs no record, but costs the planned look most of its power where
launches are few (`make statistics`). The same launches are the same look; looks at other launches
on one side, every one of them, are of another question.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lockstep.core import files
from lockstep.report.bundle.opening import ENDINGS
from lockstep.report.load.results import Results, Row

FILE = "looks.jsonl"
# Of the false claims allowed, what the planned look has and what all others share. A gate is passed
# at one end of its 95 % interval, so the other half of 5 % is free for further looks.
SPENDING = {"compare": (0.9, 0.1), "gate": (1.0, 1.0)}


@dataclass(frozen=True)
class Look:
    """What a look may claim.

    Attributes:
        number: The first is 1.
        planned: Whether it is the first at the planned launches, or at any where no plan is known.
        share: Of the false claims allowed, what it may spend; `next_share`, what the next one may.
        launches: The launches that it looks at, of each side.
        unrecorded: Why a later look will not know of it; empty where one will.
    """

    number: int
    planned: bool
    share: float
    next_share: float
    launches: tuple[frozenset[str], ...] = ()
    unrecorded: str = ""
    is_known: bool = field(default=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the look as `--json` prints it."""
        names = ("number", "planned", "share", "unrecorded")
        return {name: getattr(self, name) for name in names}

    @property
    def sentence(self) -> str:
        """Which look it is, what it may claim, and whether it is recorded."""
        which = "before the planned launches are there" if self.next_share > self.share else (
            "as planned" if self.planned else "beyond the planned one")  # fmt: skip
        lost = f"; a later look will not know of it: {self.unrecorded}" if self.unrecorded else ""
        return (
            f"Look {self.number}, {which}: it may spend {100 * self.share:.3g} "
            f"% of the false claims that all looks together may make{lost}."
        )


@dataclass(frozen=True)
class History:
    """The looks of a command that some folders hold.

    Attributes:
        folders: Where a look is recorded: in the first that can be written.
        lines: Looks as their files hold them, the oldest first.
    """

    command: str
    folders: Sequence[Path] = ()
    lines: Sequence[dict[str, Any]] = ()

    def look(self, rows: Sequence[Sequence[Row]], sides: Sequence[Results]) -> Look:
        """Return what a look at the rows of each side may claim; their results have the plans."""
        launches = tuple(frozenset(map(_launch, side)) for side in rows)
        is_planned = all(map(_is_planned, rows, sides))
        earlier: list[bool] = []
        for line in self.lines:
            held = tuple(map(frozenset, line["launches"]))
            if held in (launches, launches[::-1]):
                return replace(
                    spend(self.command, earlier, line["planned"]), launches=launches, is_known=True
                )
            ways = (launches, launches[::-1]) if len(held) == len(launches) else ()
            if any(all(map(frozenset.intersection, held, way)) for way in ways):
                earlier.append(line["planned"])
        return replace(spend(self.command, earlier, is_planned), launches=launches)

    def record(self, look: Look) -> Look:
        """Write a look into the first folder that takes it, unless one holds it already."""
        if look.is_known:
            return look
        line = {
            "command": self.command, "when": datetime.now(UTC).isoformat(timespec="microseconds"),
            "planned": look.planned, "share": look.share, "launches": [*map(sorted, look.launches)],
        }  # fmt: skip
        reason = "none of the results is a folder that stays"
        for folder in self.folders:
            try:
                with (folder / FILE).open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps(line)}\n")
            except OSError as error:
                reason = f"{FILE} cannot be written: {error.strerror}"
            else:
                return replace(look, is_known=True)
        return replace(look, unrecorded=reason)


def spend(command: str, earlier: Sequence[bool], is_planned: bool) -> Look:
    """Return what a look may claim after others, each of which was the planned one or not."""
    planned, others = SPENDING[command]
    is_first = is_planned and not any(earlier)
    num_others = len(earlier) - sum(earlier) + (not is_first)
    share = planned if is_first else others / 2**num_others
    is_ahead = not is_first and not any(earlier)
    left = planned if is_ahead else others / 2 ** (num_others + 1)
    return Look(len(earlier) + 1, is_first, share, left)


UNRECORDED = History("compare")


def history(command: str, paths: Iterable[Path]) -> History:
    """Read the looks of a command from the folders among some paths.

    Raises:
        ValueError: A file of looks is not as Lockstep writes it.
    """
    folders = [path for path in paths if path.is_dir()]
    lines = [line for folder in folders for line in _read(folder) if line["command"] == command]
    # A bundle is unpacked for as long as the command takes.
    kept = [folder for folder in reversed(folders) if not folder.name.endswith(ENDINGS)]
    return History(command, kept, sorted(lines, key=lambda line: str(line["when"])))


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / FILE
    lines = files.text(path).splitlines() if path.exists() else []
    try:
        found = [json.loads(line) for line in lines]
        if not all(map(files.are_texts, (side for one in found for side in one["launches"]))):
            raise TypeError
        return [{**one, "planned": bool(one["planned"]), "when": one["when"]} for one in found]
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{path}: holds something else than the looks that Lockstep writes; put it back as it "
            "was, or delete it where no earlier verdict counts"
        ) from None


def _launch(row: Row) -> str:
    """Return what a launch is known by: made again under its name, it is another."""
    return f"{row.launch} {row.started}".strip()


def _is_planned(rows: Iterable[Row], results: Results) -> bool:
    """Tell whether a point has the launches that were planned; also where no plan is known."""
    points: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        points.setdefault((row.case, row.world_size), set()).add(_launch(row))
    most = max(map(len, points.values()), default=0)
    wanted = [plan.get("repeats") for plan in results.plans.values()]
    return all(most >= one for one in wanted if isinstance(one, int))


def is_machine(results: Results) -> bool:
    """Tell whether the campaigns say that their job's nodes are the machine that is meant."""
    jobs = [plan.get("jobs") for plan in results.plans.values()]
    return bool(jobs) and all(isinstance(job, dict) and job.get("is_machine") for job in jobs)
