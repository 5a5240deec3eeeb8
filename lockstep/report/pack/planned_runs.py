"""What an applicant plans: a TOML file of run types, from which node-hours follow."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lockstep import content
from lockstep.core import inputs
from lockstep.core.inputs import MAX_RATE, SchemaVersion

Count = Annotated[int, Field(ge=1, le=10**12)]
Amount = Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=MAX_RATE, allow_inf_nan=False)]
Lost = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Month = Annotated[int, Field(ge=1, le=60)]
Text = Annotated[str, Field(max_length=4000)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Run(_Table):
    """One line of the milestones."""

    type: Text = Field(description="what the runs are for")
    code: Text = Field("", description="the code, where it is not the file's `code`")
    runs: Count = Field(1, description="how many different runs")
    repeats: Count = Field(1, description="how often each of them")
    nodes: Count | None = Field(None, description="nodes of a run")
    hours: Amount | None = Field(None, description="hours of a run")
    steps: Count | None = Field(None, description="optimizer updates of a run")
    step_s: Amount | None = Field(
        None, description="seconds of a step; by default the mean measured on so many nodes"
    )
    node_hours: Amount | None = Field(None, description="of the whole line, where it is no product")
    start_month: Month | None = Field(None, description="first month of the work, from 1")
    months: Month = Field(1, description="how many months it takes")

    @model_validator(mode="after")
    def _one_way(self) -> "Run":
        given = [self.hours is not None, self.steps is not None, self.node_hours is not None]
        if sum(given) != 1:
            raise ValueError(f"run {self.type!r}: give one of hours, steps and node_hours")
        if self.node_hours is None and self.nodes is None:
            raise ValueError(f"run {self.type!r}: say on how many nodes")
        if self.step_s is not None and self.steps is None:
            raise ValueError(f"run {self.type!r}: step_s goes with steps")
        return self


class Production(_Table):
    """The point that production runs will use."""

    study: Literal["strong", "weak"] = "strong"
    world_size: Count = Field(description="ranks")


class Work(_Table):
    """What is applied for."""

    schema_version: SchemaVersion = 1
    machine: Text = Field("", description="the machine that is applied for")
    code: Text = Field("", description="the code's name")
    production: Production | None = None
    overhead: Share = Field(0.0, description="restarts, set-up and contingency, as a fraction")
    failed_share: Lost = Field(
        0.0, description="node-hours of failed jobs, as a fraction of all, below 1"
    )
    charge_factor: Amount = Field(1.0, description="what the centre charges for a node-hour")
    runs: tuple[Run, ...] = Field(default=(), description="run types")
    statements: dict[str, Text] = Field(
        default_factory=dict, description="your own sentences, by the part of the text they join"
    )


FOLDER = content.ROOT / "reports" / "pack"
BUILT_IN = {"example": FOLDER / "example.work.toml"}


def read(source: str | None) -> Work:
    """Return what a file plans, or nothing planned without one.

    Raises:
        ValueError: The file cannot be read, or says something that is not allowed.
    """
    return inputs.load(source, Work, BUILT_IN) if source else Work.model_validate({})


def programmes() -> dict[str, Path]:
    """Return the programmes whose headings ship, name -> file."""
    return {
        path.stem: path for path in sorted(FOLDER.glob("*.toml")) if path not in BUILT_IN.values()
    }
