"""A campaign: the launches that answer one question, read from a TOML file.

The published JSON Schema is `bench/campaign.schema.json`.
"""

import difflib
import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, field_validator

from bench import sizes, workloads
from bench.sizes import CHANGES, Size

Study = Literal[
    "strong", "weak", "precision", "bucket", "sensitivity", "accumulation", "loader", "collective"
]
Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]

IDENTITY = ("size", *CHANGES, "seed", "device", "threads_per_rank")


class Campaign(BaseModel):
    """What a campaign file may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = Field(alias="schema", description="version of this format")
    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="name of its results folder"
    )
    studies: tuple[Study, ...] = Field(min_length=1, description="the questions to answer")
    world_sizes: tuple[Count, ...] = Field(min_length=1, description="the ladder")
    repeats: Count = Field(default=3, description="launches of each world size")
    seed: StrictInt = Field(default=0, ge=0, description="seed of data, parameters and order")
    size: Literal["smoke", "laptop", "node", "cluster"] = Field(description="how much to measure")
    device: Literal["cpu", "cuda"] | None = Field(default=None, description="cuda if there is one")
    threads_per_rank: Count | None = Field(
        default=None, description="threads of a rank; the cores over the largest world size"
    )
    workload: str | None = Field(default=None, description="model of every training study")
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = Field(
        default=None, description="precision where it is not the question"
    )
    global_batch: Count | None = Field(default=None, description="batch of all ranks, strong study")
    local_batch: Count | None = Field(default=None, description="batch per rank, other studies")
    rounds: Count | None = Field(default=None, description="timed rounds of a case")
    warmup_rounds: Annotated[StrictInt, Field(ge=0)] | None = Field(
        default=None, description="untimed rounds before them"
    )
    steps_per_round: Count | None = Field(default=None, description="steps in a round")

    @field_validator("studies", "world_sizes")
    @classmethod
    def _no_doubles(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        doubled = [value for value in values if values.count(value) > 1]
        if doubled:
            raise ValueError(f"{doubled[0]!r} stands twice")
        return values

    def facts(self) -> dict[str, Any]:
        """Return the campaign as its file would say it."""
        return self.model_dump(mode="json", by_alias=True)

    def measured_size(self) -> Size:
        """Return the named size with this campaign's changes."""
        changes = {name: getattr(self, name) for name in CHANGES}
        return sizes.adapt(sizes.find(self.size), **changes)

    def num_cases(self) -> int:
        """Return how many cases one launch holds."""
        return sum(len(sizes.rows(study, self.measured_size())) for study in self.studies)


@dataclass(frozen=True)
class Launch:
    """One pytest session over one process group."""

    world_size: int
    repeat: int

    @property
    def name(self) -> str:
        """Name of the launch's folder."""
        return f"w{self.world_size}-r{self.repeat}"


def plan(campaign: Campaign) -> list[Launch]:
    """Return the launches in the order they are made.

    Repeats are interleaved: each one visits every world size once, in a seeded random order, so
    that a drift of the machine does not look like scaling.
    """
    order = random.Random(campaign.seed)  # noqa: S311, no secret
    launches = []
    for repeat in range(campaign.repeats):
        block = [Launch(world_size, repeat) for world_size in sorted(campaign.world_sizes)]
        order.shuffle(block)
        launches += block
    return launches


def built_in() -> dict[str, Path]:
    """Return the campaigns that ship with the suite, name -> file."""
    folder = Path(str(resources.files("bench") / "campaigns"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(source: str, **changes: Any) -> Campaign:
    """Read a campaign by its path or its built-in name.

    Args:
        source: A TOML file, or the name of a built-in campaign.
        changes: Keys to set over the file's; None leaves a key as it is.

    Raises:
        ValueError: The file cannot be read, or says something that is not allowed.
    """
    path = built_in().get(source, Path(source))
    given = _read(path) | {key: value for key, value in changes.items() if value is not None}
    try:
        campaign = Campaign.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"{path}: {_sentence(error)}") from None
    _check(campaign, path)
    return campaign


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        names = ", ".join(built_in())
        raise ValueError(
            f"{path}: {error.strerror}; give a campaign file, or a built-in one: {names}"
        ) from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise ValueError(f"{path}: not a TOML file: {error}") from error


def _sentence(error: ValidationError) -> str:
    """Return the first thing that is wrong, in one sentence."""
    # A misspelt key is missing as well; what was meant shows in the unknown one.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"])
    allowed = [field.alias or name for name, field in Campaign.model_fields.items()]
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, allowed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(allowed)}"
        return f"unknown key {key!r}; {hint}"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"{key} = {first['input']!r}: {message[0].lower()}{message[1:]}"


def _check(campaign: Campaign, path: Path) -> None:
    """Refuse before the first launch what a launch would refuse."""
    try:
        if "strong" in campaign.studies:
            for world_size in campaign.world_sizes:
                sizes.check_global_batch(campaign.measured_size().global_batch, world_size)
        if campaign.workload is not None:
            _check_workload(campaign.workload)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _check_workload(spec: str) -> None:
    # Making it loads torch: not for a plain name, nor on a login node that has none.
    name, options = workloads.parse(spec)
    if name not in workloads.TABLE or (options and find_spec("torch")):
        workloads.make(spec)


def differences(stored: Mapping[str, Any], campaign: Campaign) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which results already there were measured otherwise."""
    now = campaign.facts()
    return {key: (stored.get(key), now[key]) for key in IDENTITY if stored.get(key) != now[key]}


def with_threads(campaign: Campaign, before: int | None, cores: int) -> Campaign:
    """Return the campaign with one rank's threads settled: the same at every world size.

    Args:
        campaign: What may say how many.
        before: How many the results already there were measured with, so that a ladder can grow.
        cores: What the largest world size shares otherwise.
    """
    share = max(1, cores // max(campaign.world_sizes))
    threads = campaign.threads_per_rank or before or share
    return campaign.model_copy(update={"threads_per_rank": threads})
