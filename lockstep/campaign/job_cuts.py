"""How a campaign is cut into jobs of a cluster, and the user's own jobs before and after them."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

from lockstep.core.formats import parse_limit
from lockstep.core.sizes import MAX_COUNT

Count = Annotated[StrictInt, Field(ge=1, le=MAX_COUNT)]
Floor = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]

MINUTE_S = 60
YEAR_S = 365 * 24 * 3600
# Jobs that one continues another: more hold a place in the queue for nothing.
MAX_CHAIN = 50


def _limiting(duration: str) -> str:
    # Slurm counts limits in minutes, and takes 0 for no limit (sbatch(1), --time).
    if parse_limit(duration) < MINUTE_S:
        raise ValueError("shorter than a minute, which Slurm cannot limit; give 00:01:00 or more")
    if parse_limit(duration) > YEAR_S:
        raise ValueError("longer than a year; write [days-]HH:MM:SS")
    return duration


def _without_nul(text: str) -> str:
    if "\r" in text or "\0" in text:
        raise ValueError("a carriage return or NUL breaks a shell script; leave it out")
    return text


Duration = Annotated[
    str,
    Field(pattern=r"^([0-9]+-)?[0-9]{1,2}:[0-5][0-9]:[0-5][0-9]$"),
    AfterValidator(_limiting),
]


class Stage(BaseModel):
    """A job of the user's own, before or after those that measure."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$",
        description="its job is called CAMPAIGN-NAME: letters, digits and . _ -",
    )
    command: Annotated[str, Field(min_length=1), AfterValidator(_without_nul)] = Field(
        description="shell lines that each task runs, in the site's image or environment; "
        "$LOCKSTEP_RESULTS is the folder of results"
    )
    when: Literal["before", "after"] = Field(
        default="before", description="before the jobs that measure, or after them"
    )
    dependency: Literal["afterok", "afternotok", "afterany", "after", "singleton"] = Field(
        default="afterok",
        description="before: the others begin once it has ended well, ended at all (afterany) or "
        "begun (after); after: it begins once the others have ended well, one of them badly, ended "
        "at all, or begun; singleton: not beside an earlier job of its name",
    )
    time: Duration | None = Field(
        default=None, description="its limit, [days-]HH:MM:SS; the site's by default"
    )
    nodes: Count = Field(default=1, description="its nodes")
    tasks_per_node: Count = Field(default=1, description="how often each node runs the command")
    cpus_per_task: Count | None = Field(
        default=None, description="CPUs of a task; a node's over its tasks by default"
    )
    gpus: StrictBool = Field(default=False, description="give each node as many GPUs as tasks")
    folder: str | None = Field(
        default=None, description="where it runs; from where the jobs are sent by default"
    )

    @model_validator(mode="after")
    def _can_begin(self) -> Self:
        if self.when == "before" and self.dependency == "afternotok":
            raise ValueError(
                f'stage {self.name}: with when = "before" afternotok would measure only where it '
                'failed; choose "afterok" or "afterany"'
            )
        return self

    def placed(self) -> Self:
        """Return the stage with the folder that it runs in, absolute."""
        return self.model_copy(update={"folder": str(Path(self.folder or "").absolute())})


class Jobs(BaseModel):
    """What goes into one allocation on a cluster, and what into jobs of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allocation: Literal["ladder", "job", "array"] = Field(
        default="ladder",
        description="of each repeat: one allocation for the whole ladder, one job per world size, "
        "each after the smaller one, or array elements of one case each",
    )
    share_job: StrictBool = Field(
        default=False,
        description="keep all repeats in the jobs of one, where a centre wants few jobs; repeats "
        "on the same nodes are not independent",
    )
    is_machine: StrictBool = Field(
        default=False,
        description="the nodes of the one job are the machine that verdicts are about, not a "
        "sample of it: compare and check --targets judge repeats that share a job",
    )
    max_running: Count | None = Field(
        default=None, description="elements of the arrays that run at once; all by default"
    )
    chain: Annotated[StrictInt, Field(ge=1, le=MAX_CHAIN)] = Field(
        default=1,
        description="jobs in the place of one, each of which goes on where the one before it was "
        "cut by its time limit or preempted",
    )
    time: Duration | None = Field(
        default=None, description="limit of one job, [days-]HH:MM:SS; the site's by default"
    )
    launch_time: Duration | None = Field(
        default=None,
        description="limit of one launch, [days-]HH:MM:SS; then a job asks for their sum",
    )
    preflight: StrictBool = Field(
        default=False, description="check the nodes in a job before the others"
    )
    screen: StrictBool = Field(
        default=False,
        description="let that job fail, and the others not begin, where a node, device or link of "
        "it is slower than the rest",
    )
    min_all_reduce_gb_per_s: Floor | None = Field(
        default=None,
        description="least bus bandwidth of an all-reduce over all ranks of the largest size, "
        "of 64 MiB on GPUs and 4 MiB on CPUs: below it the screening fails, too",
    )
    collect: StrictBool = Field(
        default=False, description="collect and report in a job after the others"
    )
    stage: tuple[Stage, ...] = Field(
        default=(), description="jobs of your own before or after, such as preprocess and evaluate"
    )

    @model_validator(mode="after")
    def _without_contradiction(self) -> Self:
        if self.time is not None and self.launch_time is not None:
            raise ValueError("time and launch_time both set a job's limit; keep one")
        if self.max_running is not None and self.allocation != "array":
            raise ValueError(f'max_running is for allocation = "array", not {self.allocation!r}')
        if self.share_job and self.allocation == "array":
            raise ValueError('share_job is for allocation = "ladder" or "job", not "array"')
        if self.screen and not self.preflight:
            raise ValueError("screen is a part of the preflight; set preflight = true")
        if self.min_all_reduce_gb_per_s is not None and not self.screen:
            raise ValueError(
                "min_all_reduce_gb_per_s is a part of the screening; set screen = true"
            )
        if self.chain > 1 and self.allocation == "array":
            raise ValueError('chain is for allocation = "ladder" or "job", not "array"')
        return self

    @model_validator(mode="after")
    def _with_names_apart(self) -> Self:
        ours = ("preflight", "collect", "nsys", "ncu")
        names = Counter([*(stage.name for stage in self.stage), *ours])
        for name in (name for name, count in names.items() if count > 1):
            raise ValueError(f"two jobs would be called {name!r}; give the stage another name")
        return self

    def placed(self) -> Self:
        """Return them with each stage's folder absolute: jobs start elsewhere."""
        return self.model_copy(update={"stage": tuple(stage.placed() for stage in self.stage)})
