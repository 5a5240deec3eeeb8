"""A campaign's results folder: the campaign that it belongs to, and the progress of launches."""

import contextlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.campaign.campaign import Campaign, Launch, LeftOut, differences
from lockstep.campaign.command import START_S, Command
from lockstep.campaign.next import Ended
from lockstep.core import files, journal, sizes
from lockstep.core.record import KEY, check_schema
from lockstep.report.load.contents import CampaignFile, check_value

# Time limit of a case without --case-budget, as in launch/options.py.
USUAL_BUDGET_S = 900.0


@dataclass(frozen=True)
class Outcome:
    """The progress of a launch."""

    name: str
    measured: int = 0
    skipped: int = 0  # cases that do not apply here
    remaining: int = 0  # cases that have not been measured, skipped or failed yet
    in_flight: str | None = None  # the case that has begun, but not ended
    failed: tuple[dict[str, Any], ...] = ()  # failed cases, each with its reason
    complete: bool = False  # whether every expected case was measured or skipped
    ended: Ended | None = None  # end of the last session, if this process started it


@dataclass(frozen=True)
class Folder:
    """The folder of a campaign's results; its methods raise ValueError for a corrupt file."""

    path: Path

    @property
    def claim_file(self) -> Path:
        return self.path / "campaign.json"

    def launch(self, name: str) -> Path:
        if name in ("", ".", "..") or {"/", "\\"} & {*name} or not name.isprintable():
            raise ValueError(
                f"{self.path}: the launch name {name[:80]!r} is not allowed; remove slashes and "
                "control characters"
            )
        return self.path / "launches" / name

    def journal(self, name: str) -> Path:
        return self.launch(name) / "journal.jsonl"

    def result_file(self, name: str) -> Path:
        return self.launch(name) / "result.json"

    def log_file(self, name: str) -> Path:
        return self.launch(name) / "log.txt"

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.path.glob("launches/*/journal.jsonl"))

    def outcome(self, name: str, studies: Collection[str] = ()) -> Outcome:
        """Return the progress of a launch from its journal; complete only with all `studies`."""
        path = self.journal(name)
        if not path.exists() or not journal.current(journal.read(path)):
            return Outcome(name)
        document = journal.rebuild(path)
        block = document[KEY]
        has_studies = set(studies) <= set(str(block.get("studies", "")).split(","))
        return Outcome(
            name, measured=len(document["benchmarks"]), skipped=len(block["skipped"]),
            remaining=len(set(block["expected"]) - set(journal.outcomes(path))),
            in_flight=block["in_flight"], failed=tuple(block["failed"]),
            complete=bool(block["complete"]) and has_studies,
        )  # fmt: skip

    def missing(
        self, campaign: Campaign, launches: Sequence[Launch], aside: Collection[str] = ()
    ) -> list[Launch]:
        """Return the launches that lack a case, and those in `aside`, which will be moved."""
        return [
            launch
            for launch in launches
            if launch.name in aside or not self.outcome(launch.name, campaign.studies).complete
        ]

    def write_result(self, name: str) -> bool:
        """Write a launch's JSON from its journal; return False if no case has ended yet."""
        path = self.journal(name)
        has_ended = bool(journal.outcomes(path))
        if has_ended:
            journal.write_result(path, self.result_file(name))
        return has_ended

    def result(self, name: str) -> Any:
        """Return the content of a launch's JSON; None if the file is missing or incomplete."""
        with contextlib.suppress(ValueError):
            return files.parse(files.content(self.result_file(name)))
        return None

    def claim(
        self, campaign: Campaign, launches: Sequence[Launch], left_out: Sequence[LeftOut] = ()
    ) -> None:
        self.refuse(campaign, launches)
        facts = campaign.facts() | {
            "launches": [launch.facts() for launch in launches],
            "left_out": [asdict(each) for each in left_out],
            "dropped": self.dropped(campaign, left_out),
        }
        files.write_atomically(self.claim_file, json.dumps(facts, indent=1))

    def dropped(self, campaign: Campaign, left_out: Sequence[LeftOut] = ()) -> list[dict[str, Any]]:
        """Return the launches once planned that fewer repeats or world sizes leave unmeasured.

        Until a case is measured nothing is dropped: what is dropped later may be dropped for its
        result.
        """
        before, without = self.read_claim() or {}, {size.world_size for size in left_out}
        if not any(journal.measured(self.journal(name)) for name in self.names()):
            return []
        return [
            launch
            for launch in [*before.get("launches", []), *before.get("dropped", [])]
            if launch.get("world_size") not in without
            and (
                launch.get("repeat", 0) >= campaign.repeats
                or launch.get("world_size") not in campaign.world_sizes
            )
            and not self.outcome(launch["name"]).complete
        ]

    def refuse(self, campaign: Campaign, launches: Sequence[Launch]) -> None:
        """Refuse a campaign that would mix with the folder's results or overwrite them."""
        for key, (then, now) in self.find_conflicts(campaign).items():
            old_value, new_value = ("unset" if value is None else value for value in (then, now))
            raise ValueError(
                f"{self.path} holds results measured with {key} = {old_value}, but {key} is now "
                f"{new_value}; restore the old value, give the campaign another name (lockstep run "
                "--name), or move the old launches aside (lockstep run --replace)"
            )
        for name in (launch.name for launch in launches):
            if journal.lacks(self.journal(name), self.result(name)):
                raise ValueError(
                    f"{self.result_file(name)} holds measured cases that its journal lacks; "
                    "move the file away to measure again, or choose another folder with --to"
                )

    def find_conflicts(self, campaign: Campaign) -> dict[str, tuple[Any, Any]]:
        """Return key -> (value of the results, value of a campaign), for values that differ.

        The result is empty until a case is measured: until then the campaign may change.
        """
        if not any(journal.measured(self.journal(name)) for name in self.names()):
            return {}
        return differences(self.read_claim() or campaign.facts(), campaign)

    def read_claim(self) -> dict[str, Any] | None:
        """Return the campaign that the folder belongs to; None in a new folder."""
        path = self.claim_file
        if not path.exists():
            return None
        content = files.content(path)
        try:
            stored = files.parse(content)
        except ValueError as error:
            raise ValueError(f"{path} does not hold a campaign: {error}") from error
        if not isinstance(stored, dict):
            value = str(stored)[:80]
            raise ValueError(f"{path} does not hold a campaign: {value!r} is not a JSON object")
        check_schema(stored, str(path))
        check_value(CampaignFile, stored, f"{path} does not hold a campaign")
        return stored

    def below_floor(self) -> list[LeftOut]:
        """Return the world sizes left out because a smaller size missed `until_efficiency`."""
        left_out = (self.read_claim() or {}).get("left_out", ())
        return [LeftOut(**each) for each in left_out if each.get("kind") == "below_floor"]


def longest_case_s(claimed: Mapping[str, Any]) -> float:
    """Return the most seconds without a line in the journal: of a case, or of the start."""
    if not claimed.get("command"):
        return max(claimed.get("case_budget") or USUAL_BUDGET_S, START_S)
    changes = {name: claimed.get(name) for name in ("rounds", "warmup_rounds")}
    try:
        size = sizes.adapt(sizes.find(claimed.get("size", "smoke")), **changes)
        command = Command.model_validate(claimed["command"])
    except ValueError:  # a claim of another version, whose limits are unknown
        return math.inf
    return command.longest_s(size.rounds + size.warmup_rounds)
