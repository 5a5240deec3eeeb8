"""The targets file (TOML): limits that results must meet.

`make docs` publishes its JSON Schema; `gates` judges by it.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    StrictFloat,
    StrictInt,
    field_validator,
    model_validator,
)

from lockstep import content
from lockstep.core import inputs
from lockstep.core.inputs import key

ENDING = ".targets.toml"


def _refuse_per_cent(value: Any) -> Any:
    if isinstance(value, int | float) and abs(value) > 1:
        raise ValueError("the value is not a fraction; write ten per cent as 0.10")
    return value


NoPerCent = BeforeValidator(_refuse_per_cent)
Fraction = Annotated[StrictFloat, Field(ge=0, le=1, allow_inf_nan=False), NoPerCent]
Gain = Annotated[StrictFloat, Field(gt=-1, le=1, allow_inf_nan=False), NoPerCent]
Positive = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[StrictInt, Field(ge=1)]
WORLD_SIZE = r"^[1-9][0-9]{0,8}$"
WorldSize = Annotated[str, Field(pattern=WORLD_SIZE)]


class Reference(inputs.Table):
    """A value that a case must have on a system, with tolerances, as in ReFrame."""

    case: Annotated[str, Field(min_length=1)] = Field(
        description="the case's name, its label, or its study and label as lockstep report "
        "prints them"
    )
    world_size: Count = Field(description="ranks")
    system: str = key(
        "host, partition or device that the value is for, or `system` of an imported table; "
        "* matches any text, and ? matches any character",
        "*",
    )
    value: Positive = Field(description="expected value")
    unit: str = Field(description="unit of the value, such as images/s or images/s per rank, or "
                                  "ms, s, min, h for a step or a run")  # fmt: skip
    lower: Annotated[StrictFloat, Field(ge=-1, le=0), NoPerCent] | None = key(
        "lower tolerance as a fraction, such as -0.1; no limit by default"
    )
    upper: Fraction | None = key("upper tolerance as a fraction, such as 0.1; no limit by default")

    @model_validator(mode="after")
    def _with_a_limit(self) -> Self:
        if self.lower is None and self.upper is None:
            raise ValueError(
                "lower and upper are both missing, so any value would pass; give at least one of "
                "them"
            )
        return self


class Targets(inputs.Table):
    """A targets file. World sizes are keys: {2 = 0.9, 8 = 0.7}."""

    schema_version: inputs.SchemaVersion
    strong_efficiency: dict[WorldSize, Fraction] | None = key(
        "minimum parallel efficiency of strong scaling, by world size"
    )
    parallel_efficiency: dict[WorldSize, Fraction] | None = key(
        "minimum parallel efficiency of any scaling, by world size"
    )
    weak_time_increase: Fraction | None = key(
        "maximum increase of the step time in weak scaling, as a fraction"
    )
    speedup: dict[WorldSize, tuple[Positive, Positive]] | None = key(
        "expected range of the speed-up, by world size"
    )
    throughput_gain: Gain | None = key(
        "minimum gain of throughput over the results of --against, as a fraction; -0.05 allows 5 "
        "% less"
    )
    mfu: Fraction | None = key("minimum fraction of peak FLOP/s")
    communication_share: Fraction | None = key("maximum share of exposed communication in a step")
    validation_accuracy: Fraction | None = key(
        "minimum share of the validation set predicted correctly"
    )
    gpu_utilisation: Fraction | None = key(
        "minimum share of the time in which a kernel runs on the GPUs"
    )
    loader_idle: Fraction | None = key("maximum share of waiting for the data loader in a step")
    num_nodes: Count | None = key("minimum number of nodes that were measured")
    clean_runs: Literal[True] | None = key(
        "if true, the results must have no flag (warning), no failed case and no launch without a "
        "result"
    )
    reference: tuple[Reference, ...] = key("expected values of single cases", ())

    @field_validator("strong_efficiency", "parallel_efficiency", "speedup", mode="before")
    @classmethod
    def _by_world_size(cls, values: Any) -> Any:
        for size, value in values.items() if isinstance(values, dict) else ():
            # TOML reads the bare key 2.5 as a table 2 that holds a 5.
            name = f"{size}.{next(iter(value), '')}" if isinstance(value, dict) else str(size)
            if not re.fullmatch(WORLD_SIZE, name):
                raise ValueError(
                    f"{name} is not a world size; give whole numbers, as in {{2 = 0.9}}"
                )
        return values

    @model_validator(mode="after")
    def _with_a_target(self) -> Self:
        if not self.model_dump(exclude={"schema_version"}, exclude_defaults=True):
            raise ValueError("the file has no target; give at least one target")
        for world_size, (low, high) in (self.speedup or {}).items():
            if low > high:
                raise ValueError(
                    f"the range of speedup at {world_size} goes from {low} to "
                    f"{high}; swap the two numbers"
                )
        return self


def built_in() -> dict[str, Path]:
    """Return the targets that ship with the suite, name -> file."""
    folder = content.ROOT / "reports" / "targets"
    return {path.name.removesuffix(ENDING): path for path in sorted(folder.glob(f"*{ENDING}"))}


def load(source: str) -> Targets:
    """Read targets by their path or built-in name.

    Raises:
        ValueError: The file cannot be read, or has an invalid entry.
    """
    return inputs.load(source, Targets, built_in())
