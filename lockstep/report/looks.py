"""Looks: the verdicts requested while launches are still added, and what each may claim.

Each look is one more chance to claim a difference that is not there. So all looks together share
the allowed rate of false claims (Lan and DeMets, Biometrika 70, 1983; `spend`).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lockstep.core import files
from lockstep.report.bundle.opening import ENDINGS
from lockstep.report.load.results import Results, Row

FILE = "looks.jsonl"
# Shares of the allowed false claims: of the planned look, and of all other looks together. A gate
# passes at one end of its interval, so half of the 5 % gives the planned look 95 % intervals.
SPENDING = {"compare": (0.9, 0.1), "gate": (0.5, 0.5)}


@dataclass(frozen=True)
class Look:
    """What a look may claim.

    Attributes:
        planned: Whether this is the first look at the planned launches; without a plan, the first.
        share: Share of the allowed false claims for this look; `next_share`, for the next look.
        launches: Launches of each side.
        unrecorded: Why the look is not recorded; empty if it is.
    """

    number: int
    planned: bool
    share: float
    next_share: float
    launches: tuple[frozenset[str], ...] = ()
    unrecorded: str = ""
    is_known: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the look as `--json` prints it."""
        names = ("number", "planned", "share", "unrecorded")
        return {name: getattr(self, name) for name in names}

    @property
    def sentence(self) -> str:
        """Return a sentence: number of the look, share of false claims, whether it is recorded."""
        when = "made before all planned launches exist" if self.next_share > self.share else (
            "as planned" if self.planned else "made after the planned look")  # fmt: skip
        note = f" This look is not recorded: {self.unrecorded}." if self.unrecorded else ""
        return (
            f"This is look {self.number} at these launches, {when}. All looks share one allowed "
            f"risk of a false claim; this look uses {100 * self.share:.3g} % of that risk.{note}"
        )


@dataclass(frozen=True)
class History:
    """A command's earlier verdicts ("looks") in some folders, the oldest first."""

    command: str
    folders: Sequence[Path] = ()
    lines: Sequence[dict[str, Any]] = ()

    def look(self, rows: Sequence[Sequence[Row]], sides: Sequence[Results]) -> Look:
        """Return what a look at the rows of each side may claim; `sides` hold the campaigns' plans.

        A repeated look at the same launches counts once. Looks that share no launch with a side
        answer another question and do not count.
        """
        launches = tuple(frozenset(map(_launch, side)) for side in rows)
        earlier: list[bool] = []
        for line in self.lines:
            held = tuple(map(frozenset, line["launches"]))
            if held in (launches, launches[::-1]):
                known = spend(self.command, earlier, line["planned"])
                return replace(known, launches=launches, is_known=True)
            ways = (launches, launches[::-1]) if len(held) == len(launches) else ()
            if any(all(map(frozenset.intersection, held, way)) for way in ways):
                earlier.append(line["planned"])
        is_planned = all(map(_is_planned, rows, sides))
        return replace(spend(self.command, earlier, is_planned), launches=launches)

    def record(self, look: Look) -> Look:
        """Write a look into the first folder that is writable, unless a folder has it already."""
        if look.is_known:
            return look
        line = {
            "command": self.command, "when": datetime.now(UTC).isoformat(timespec="microseconds"),
            "planned": look.planned, "share": look.share, "launches": [*map(sorted, look.launches)],
        }  # fmt: skip
        reason = "the results were read from an archive; unpack the archive into a folder"
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
    """Return what a look may claim; `earlier` has whether each earlier look was planned.

    The planned look has a fixed share. Each other look has half of what is left of the rest, so
    the shares of any number of looks add up to at most the whole (Bonferroni).
    """
    planned, others = SPENDING[command]
    is_first = is_planned and not any(earlier)
    num_others = len(earlier) - sum(earlier) + (not is_first)
    share = planned if is_first else others / 2**num_others
    is_ahead = not is_first and not any(earlier)
    left = planned if is_ahead else others / 2 ** (num_others + 1)
    return Look(len(earlier) + 1, is_first, share, left)


UNRECORDED = History("compare")


def history(command: str, paths: Iterable[Path]) -> History:
    """Read the looks of a command from those paths that are folders.

    Raises:
        ValueError: A file of looks is not as Lockstep writes it.
    """
    folders = [path for path in paths if path.is_dir()]
    lines = [line for folder in folders for line in _read(folder) if line["command"] == command]
    # The folder of an unpacked bundle is deleted when the command ends.
    kept = [folder for folder in reversed(folders) if not folder.name.endswith(ENDINGS)]
    return History(command, kept, sorted(lines, key=lambda line: str(line["when"])))


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / FILE
    texts = files.text(path).splitlines() if path.exists() else []
    try:
        looks = [json.loads(text) for text in texts]
        if not all(map(files.are_texts, (side for look in looks for side in look["launches"]))):
            raise TypeError
        return [{**look, "planned": bool(look["planned"]), "when": look["when"]} for look in looks]
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{path}: this file is not as Lockstep writes it; restore it, or delete it to forget "
            "all earlier looks"
        ) from None


def _launch(row: Row) -> str:
    """Return the identity of a launch; a launch measured again under its name is another one."""
    return f"{row.launch} {row.started}".strip()


def _is_planned(rows: Iterable[Row], results: Results) -> bool:
    """Tell whether a point has the launches that were planned; True if no plan is known."""
    points: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        points.setdefault((row.case, row.world_size), set()).add(_launch(row))
    most = max(map(len, points.values()), default=0)
    repeats = [plan.get("repeats") for plan in results.plans.values()]
    return all(most >= count for count in repeats if isinstance(count, int))


def is_machine(results: Results) -> bool:
    """Tell whether the campaigns' jobs use the whole machine, so that no other nodes matter."""
    jobs = [plan.get("jobs") for plan in results.plans.values()]
    return bool(jobs) and all(isinstance(job, dict) and job.get("is_machine") for job in jobs)
