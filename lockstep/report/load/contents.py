"""Which values a report's files may hold, and how others are refused.

`lockstep.core` describes what a launch writes; here are the descriptions of other files, and
pydantic checks a value by any of them.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from lockstep.core import record
from lockstep.core.record import About, Amount, Count, Rounds, Seconds, Whole

Kind = TypeVar("Kind")
Amounts = Annotated[list[Amount], About(min_length=1)]

# Characters of a wrong value that a message shows.
LONGEST_SHOWN = 80


@dataclass(frozen=True)
class MetricFacts:
    """A metric of a program: one value a run."""

    unit: str
    better: str
    values: list[float]


@dataclass(frozen=True)
class ProgramFacts:
    """What panels show of a program."""

    metrics: dict[str, MetricFacts]
    over: list[str]


@dataclass(frozen=True)
class Details:
    """What panels compute with, of the factors and details of a case.

    Attributes:
        rank_variant_s: Seconds per step of each rank's turns, shape (num_ranks, num_turns), by the
            name of the step's variant; `rank_phase_s` has their phases. What came before it is
            `rank_alone_s`, shape (num_ranks, num_steps), and before that its median,
            `alone_step_s`.
    """

    message_bytes: Amount | None = None
    algbw_gb_per_s: Amount | None = None
    busbw_gb_per_s: Amount | None = None
    gradient_bytes: Amount | None = None
    bucket_bytes: list[Amount] | None = None
    alone_step_s: list[Seconds] | None = None
    rank_alone_s: list[Rounds] | None = None
    rank_variant_s: dict[str, list[Rounds]] | None = None
    rank_phase_s: dict[str, list[Amounts]] | None = None
    bucket_lead_s: list[Amount] | None = None
    first_reduce_s: Amount | None = None
    command: ProgramFacts | None = None
    ddp_settings: dict[str, Any] | None = None
    loader_settings: dict[str, Any] | None = None


@dataclass(frozen=True)
class Stats:
    """The statistics of pytest-benchmark, in seconds."""

    median: Amount
    mean: Amount
    min: Amount
    max: Amount
    stddev: Amount
    rounds: Count


@dataclass(frozen=True)
class PlannedLaunch:
    """A launch that a campaign has planned."""

    name: str
    world_size: Whole | None = None


@dataclass(frozen=True)
class LeftOutSize:
    """A world size that the campaign's machine could not measure."""

    world_size: Whole | None = None
    num_gpus: Whole | None = None
    kind: str = "too_few_gpus"


@dataclass(frozen=True)
class CampaignFile:
    """What a campaign's folder says of its plan."""

    launches: list[PlannedLaunch] = field(default_factory=list)
    left_out: list[LeftOutSize] = field(default_factory=list)


@dataclass(frozen=True)
class ImportedTable:
    """A table brought in by `lockstep import`."""

    rows: list[dict[str, Any]]
    notes: list[str] | None = None
    metric: str | None = None
    unit: str | None = None
    scaling_text: str | None = None
    source: str | None = None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def checked(kind: type[Kind], value: Any, where: str) -> Kind:
    """Return the record that a JSON value describes; keys that the kind lacks are left aside.

    Raises:
        ValueError: A field is missing, or its value is not one that the kind allows.
    """
    try:
        made: Kind = _adapter(kind).validate_python(value)  # type: ignore[arg-type]  # hashable
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    else:
        return made
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    shown = repr(first["input"])
    if len(shown) > LONGEST_SHOWN:
        shown = f"{shown[:LONGEST_SHOWN]}..."
    what = f"{place[1:] or 'the value'} is {shown}: {first['msg']}"
    if first["type"] == "missing":
        what = f"{place[1:]} is missing"
    raise ValueError(f"{where}: {what}; measure again")


def json_schema() -> dict[str, Any]:
    """Return the published schema of a case's block, with that of a launch under `$defs`."""
    case, derived, launch = (
        _adapter(kind).json_schema()
        for kind in (record.CaseRecord, record.Derived, record.LaunchBlock)
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Lockstep case record, version 1",
        "description": (
            "The block under extra_info.lockstep of each benchmark in a pytest-benchmark JSON "
            "file. The block under the file's own key lockstep is $defs/launch. Unknown keys are "
            "allowed and kept; keys that are not required may be absent in older files."
        ),
        "type": "object",
        "required": derived["required"] + case["required"],
        "properties": derived["properties"] | case["properties"],
        "$defs": case["$defs"] | launch.pop("$defs") | {"launch": launch},
    }
