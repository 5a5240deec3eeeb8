"""A campaign's folder of results: whose it is, and how far each launch has come."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from lockstep.campaign.campaign import Campaign, Launch, LeftOut, differences
from lockstep.campaign.command import START_S, Command
from lockstep.campaign.next import Ended
from lockstep.core import files, journal, sizes
from lockstep.core.record import KEY, check_schema

# The time of a case without a limit of its own, as in launch/options.py.
USUAL_BUDGET_S = 900.0
# What readers of a claim rely on; the campaign itself was judged when it was read.
_CLAIM_TYPES: dict[str, tuple[type, ...]] = {
    "launches": (list,),
    "left_out": (list,),
    "studies": (list,),
    "case_budget": (int, float, NoneType),
    "threads_per_rank": (int, NoneType),
    "command": (dict, NoneType),
    "size": (str,),
    "rounds": (int, NoneType),
    "warmup_rounds": (int, NoneType),
}


@dataclass(frozen=True)
class Outcome:
    """How far a launch has come.

    Attributes:
        skipped: Cases that do not apply here, each with its reason in the journal.
        remaining: Cases that were neither measured, skipped nor failed yet.
        in_flight: The case that was begun and has not ended.
        failed: Cases that failed, each with its reason.
        complete: Whether every expected case was measured or skipped.
        ended: How a session that was just made ended, which no journal has.
    """

    name: str
    measured: int = 0
    skipped: int = 0
    remaining: int = 0
    in_flight: str | None = None
    failed: tuple[dict[str, Any], ...] = ()
    complete: bool = False
    ended: Ended | None = None


@dataclass(frozen=True)
class Folder:
    """The folder of a campaign's results.

    Methods that read a journal or the claim raise ValueError where it is corrupt, and those that
    take a launch's name where it is none.
    """

    path: Path

    @property
    def claim_file(self) -> Path:
        """The file that says which campaign the folder is of."""
        return self.path / "campaign.json"

    def launch(self, name: str) -> Path:
        """Return where a launch keeps its files; a name may lead nowhere else."""
        if name in ("", ".", "..") or {"/", "\\"} & {*name} or not name.isprintable():
            raise ValueError(
                f"{self.path}: {name[:80]!r} is no name of a launch; leave no slash and no control "
                "character in it"
            )
        return self.path / "launches" / name

    def journal(self, name: str) -> Path:
        """Return the journal of a launch."""
        return self.launch(name) / "journal.jsonl"

    def result_file(self, name: str) -> Path:
        """Return the JSON of a launch, made from its journal."""
        return self.launch(name) / "result.json"

    def log_file(self, name: str) -> Path:
        """Return where the output of a launch is."""
        return self.launch(name) / "log.txt"

    def names(self) -> list[str]:
        """Return the names of the launches that have begun."""
        return sorted(path.parent.name for path in self.path.glob("launches/*/journal.jsonl"))

    def outcome(self, name: str, studies: Collection[str] = ()) -> Outcome:
        """Return how far a launch has come, by its journal alone.

        A complete launch has measured all of the studies.
        """
        path = self.journal(name)
        if not path.exists() or not journal.current(journal.read(path)):
            return Outcome(name)
        document = journal.rebuild(path)
        block = document[KEY]
        has_studies = set(studies) <= set(str(block.get("studies", "")).split(","))
        return Outcome(
            name,
            measured=len(document["benchmarks"]),
            skipped=len(block["skipped"]),
            remaining=len(set(block["expected"]) - set(journal.outcomes(path))),
            in_flight=block["in_flight"],
            failed=tuple(block["failed"]),
            complete=bool(block["complete"]) and has_studies,
        )

    def missing(self, campaign: Campaign, launches: Sequence[Launch]) -> list[Launch]:
        """Return the launches that still lack a case, in the order given."""
        return [each for each in launches if not self.outcome(each.name, campaign.studies).complete]

    def write_result(self, name: str) -> bool:
        """Make a launch's JSON from its journal, and return whether a case of it has ended."""
        path = self.journal(name)
        has_ended = bool(journal.outcomes(path))
        if has_ended:
            journal.write_result(path, self.result_file(name))
        return has_ended

    def result(self, name: str) -> Any:
        """Return what a launch's JSON holds; None where it is missing, or was cut short."""
        path = self.result_file(name)
        try:
            return files.parse(files.content(path))
        except ValueError:
            return None

    def claim(
        self, campaign: Campaign, launches: Sequence[Launch], left_out: Sequence[LeftOut] = ()
    ) -> None:
        """Write the campaign into the folder of its results, or refuse to mix it with another's."""
        self.refuse(campaign, launches)
        facts = campaign.facts() | {
            "launches": [launch.facts() for launch in launches],
            "left_out": [asdict(each) for each in left_out],
        }
        files.write_atomically(self.claim_file, json.dumps(facts, indent=1))

    def refuse(self, campaign: Campaign, launches: Sequence[Launch]) -> None:
        """Refuse a campaign that would mix with what the folder holds, or write over it.

        Raises:
            ValueError: The folder holds results that were measured otherwise, or cases that only
                the JSON of a launch still has.
        """
        for key, (then, now) in self.held(campaign).items():
            before, here = ("unset" if value is None else value for value in (then, now))
            raise ValueError(
                f"{self.path} holds results measured with {key} {before}, now it is {here}; "
                "measure as before, or keep both: give the campaign another name (--name of "
                "`lockstep run`); or move the launches aside (--replace of `lockstep run`)"
            )
        for name in (launch.name for launch in launches):
            if journal.lacks(self.journal(name), self.result(name)):
                raise ValueError(
                    f"{self.result_file(name)} holds measured cases that its journal lacks; "
                    "move it away to measure again, or give --to another folder"
                )

    def held(self, campaign: Campaign) -> dict[str, tuple[Any, Any]]:
        """Return the keys in which what was measured differs from a campaign, then and now.

        Where no case was measured nothing is held: a typo can be mended.
        """
        if not any(journal.measured(self.journal(name)) for name in self.names()):
            return {}
        return differences(self.claimed() or campaign.facts(), campaign)

    def claimed(self) -> dict[str, Any] | None:
        """Return the campaign that the folder's results were measured for, if there are any."""
        path = self.claim_file
        if not path.exists():
            return None
        content = files.content(path)
        try:
            stored = files.parse(content)
        except ValueError as error:
            raise ValueError(f"{path}: not a campaign: {error}") from error
        if not isinstance(stored, dict):
            raise ValueError(f"{path}: not a campaign: {str(stored)[:80]!r} is no object")
        check_schema(stored, str(path))
        for name, allowed in _CLAIM_TYPES.items():
            if name in stored and not isinstance(stored[name], allowed):
                raise ValueError(f"{path}: not a campaign: {name} is {str(stored[name])[:80]!r}")
        named = all(
            isinstance(launch, dict) and isinstance(launch.get("name"), str)
            for launch in stored.get("launches", ())
        )
        if not named or not files.are_texts(stored.get("studies", [])):
            raise ValueError(f"{path}: not a campaign: its launches or studies have no names")
        return stored

    def below_floor(self) -> list[LeftOut]:
        """Return the claimed campaign's sizes that are left out for a smaller one's efficiency."""
        left_out = (self.claimed() or {}).get("left_out", ())
        return [LeftOut(**each) for each in left_out if each.get("kind") == "below_floor"]


def longest_case_s(claimed: Mapping[str, Any]) -> float:
    """Return how long a launch of a claimed campaign may write nothing: a case, or its start."""
    if not claimed.get("command"):
        return max(claimed.get("case_budget") or USUAL_BUDGET_S, START_S)
    changes = {name: claimed.get(name) for name in ("rounds", "warmup_rounds")}
    try:
        size = sizes.adapt(sizes.find(claimed.get("size", "smoke")), **changes)
        command = Command.model_validate(claimed["command"])
    except ValueError:  # of another version, whose limits are not known
        return math.inf
    return command.longest_s(size.rounds + size.warmup_rounds)
