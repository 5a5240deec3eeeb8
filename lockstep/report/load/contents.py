"""The form of the files that a report reads; pydantic checks values against it."""

from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from lockstep.core import record
from lockstep.core.record import About, Amount, Count, Rounds, Seconds, Whole

Kind = TypeVar("Kind")
Amounts = Annotated[list[Amount], About(min_length=1)]


@dataclass(frozen=True)
class MetricFacts:
    """A metric of a program, one value per run, and the curve of each run if it has one."""

    unit: str
    better: str
    values: list[float]
    curves: list[list[float]] | None = None


@dataclass(frozen=True)
class ProgramFacts:
    """The program that a case ran."""

    metrics: dict[str, MetricFacts]
    over: list[str]


@dataclass(frozen=True)
class Details:
    """The factors and details of a case that computations need.

    Attributes:
        rank_variant_s: Variant of the step -> seconds per step, shape (num_ranks, num_turns). Older
            files have `rank_alone_s`, shape (num_ranks, num_steps), or its median, `alone_step_s`.
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
    """pytest-benchmark's statistics, in seconds."""

    median: Amount
    mean: Amount
    min: Amount
    max: Amount
    stddev: Amount
    rounds: Count


@dataclass(frozen=True)
class PlannedLaunch:
    """A planned launch of a campaign."""

    name: str
    world_size: Whole | None = None


@dataclass(frozen=True)
class LeftOutSize:
    """A world size that the campaign left out."""

    world_size: Whole | None = None
    num_gpus: Whole | None = None
    kind: str = "too_few_gpus"


# Keys of campaign.json that a campaign file does not have; each is a list.
ADDED_KEYS = ("launches", "left_out", "dropped")


@dataclass(frozen=True)
class CampaignFile:
    """The plan in campaign.json."""

    launches: list[PlannedLaunch] = field(default_factory=list)
    left_out: list[LeftOutSize] = field(default_factory=list)
    dropped: list[PlannedLaunch] = field(default_factory=list)
    studies: list[str] = field(default_factory=list)
    size: str = ""
    case_budget: Amount | None = None
    threads_per_rank: Count | None = None
    rounds: Count | None = None
    warmup_rounds: Whole | None = None
    command: dict[str, Any] | None = None


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


def check_value(kind: type[Kind], value: Any, where: str) -> Kind:
    """Return a JSON value as an instance of `kind`, without unknown keys.

    Raises:
        ValueError: A field is missing, or has a value that the kind does not allow.
    """
    try:
        made: Kind = _adapter(kind).validate_python(value)  # type: ignore[arg-type]  # hashable
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    else:
        return made
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    shown = repr(first["input"])
    shown = f"{shown[:80]}..." if len(shown) > 80 else shown
    problem = f"{place[1:] or 'the value'} is {shown}: {first['msg']}"
    if first["type"] == "missing":
        problem = f"{place[1:]} is missing"
    raise ValueError(f"{where}: {problem}; measure again")


def json_schema() -> dict[str, Any]:
    """Return the published schema of a case's block, with a launch's under `$defs`."""
    case, derived, launch = (
        _adapter(kind).json_schema()
        for kind in (record.CaseRecord, record.Derived, record.LaunchBlock)
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Lockstep case record, version 1",
        "description": (
            "A case record is the block under extra_info.lockstep of each benchmark in a "
            "pytest-benchmark JSON file. $defs/launch is the block under the file's own key "
            "lockstep. Unknown keys are allowed and kept. Older files may lack keys that are not "
            "required."
        ),
        "type": "object",
        "required": derived["required"] + case["required"],
        "properties": derived["properties"] | case["properties"],
        "$defs": case["$defs"] | launch.pop("$defs") | {"launch": launch},
    }
