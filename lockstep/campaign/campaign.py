"""A campaign: the launches that answer one question, read from a TOML file.

`make docs` publishes its JSON Schema. Here is also what a campaign tells pytest, or the driver of a
program, in the options of each launch, and which campaign answers a question of `diagnose`.
"""

import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from lockstep import content, workloads
from lockstep.campaign.command import Command
from lockstep.core import factors, inputs, sizes
from lockstep.core.formats import listed, parse_limit
from lockstep.core.record import OWN
from lockstep.core.sizes import CHANGES, MAX_COUNT, Size
from lockstep.core.studies import NAMES, STEPS, STUDIES, rows

# Each is a folder, looked at every time; a campaign of more is never finished.
MAX_LAUNCHES = 10_000
MAX_NAME = 64  # characters of a campaign's name

if TYPE_CHECKING:
    Asked = str
else:
    Asked = Literal[(*NAMES, "command")]
Value = StrictBool | StrictInt | StrictFloat | str
IDENTITY = ("size", *CHANGES, "seed", "device", "threads_per_rank")


Count = Annotated[StrictInt, Field(ge=1, le=MAX_COUNT)]
Floor = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]

MINUTE_S = 60
YEAR_S = 365 * 24 * 3600
# Jobs that one continues another: more hold a place in the queue for nothing.
MAX_CHAIN = 50


def _check_limit(duration: str) -> str:
    # Slurm counts limits in minutes, and takes 0 for no limit (sbatch(1), --time).
    if parse_limit(duration) < MINUTE_S:
        raise ValueError("shorter than a minute, which Slurm cannot limit; give 00:01:00 or more")
    if parse_limit(duration) > YEAR_S:
        raise ValueError("longer than a year; write [days-]HH:MM:SS")
    return duration


def _check_shell(text: str) -> str:
    if "\r" in text or "\0" in text:
        raise ValueError("a carriage return or NUL breaks a shell script; leave it out")
    return text


Duration = Annotated[
    str,
    Field(pattern=r"^([0-9]+-)?[0-9]{1,2}:[0-5][0-9]:[0-5][0-9]$"),
    AfterValidator(_check_limit),
]


class Stage(BaseModel):
    """A job of the user's own, before or after those that measure."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$",
        description="its job is called CAMPAIGN-NAME: letters, digits and . _ -",
    )
    command: Annotated[str, Field(min_length=1), AfterValidator(_check_shell)] = Field(
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
    def _check_combination(self) -> Self:
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
        ours = ("preflight", "collect", "nsys", "ncu")
        names = Counter([*(stage.name for stage in self.stage), *ours])
        for name in (name for name, count in names.items() if count > 1):
            raise ValueError(f"two jobs would be called {name!r}; give the stage another name")
        return self

    def placed(self) -> Self:
        """Return them with each stage's folder absolute: jobs start elsewhere."""
        stages = (
            stage.model_copy(update={"folder": str(Path(stage.folder or "").absolute())})
            for stage in self.stage
        )
        return self.model_copy(update={"stage": tuple(stages)})


class Campaign(BaseModel):
    """What a campaign file may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: inputs.SchemaVersion
    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="name of its results folder: letters, digits and . _ -",
    )
    studies: tuple[Asked, ...] = Field(
        default=(), description="the questions to answer; command for the program of [command]"
    )
    tests: tuple[str, ...] = Field(
        default=(),
        description="instead of studies: your own tests that ask for the fixture lockstep, as "
        "files or folders from where the command is given",
    )
    world_sizes: tuple[Count, ...] = Field(min_length=1, description="the ladder")
    repeats: Count = Field(default=3, description="launches of each world size")
    seed: Annotated[StrictInt, Field(ge=0, lt=2**32)] = Field(
        default=0, description="seed of data, parameters and the order of launches"
    )
    order_seed: Annotated[StrictInt, Field(ge=0, lt=2**32)] | None = Field(
        default=None, description="seed of the order of cases; drawn for each launch by default"
    )
    size: Literal["smoke", "laptop", "node", "cluster"] = Field(description="how much to measure")
    device: Literal["cpu", "cuda"] | None = Field(
        default=None, description="CUDA where there is one, by default"
    )
    threads_per_rank: Count | None = Field(
        default=None, description="threads of a rank; the cores over the largest world size"
    )
    workload: str | None = Field(
        default=None, description="model of every training study, such as mlp:width=512"
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = Field(
        default=None, description="precision where it is not the question; fp32 by default"
    )
    global_batch: Count | None = Field(
        default=None, description="batch of all ranks in the strong study"
    )
    local_batch: Count | None = Field(
        default=None, description="batch per rank in the other studies"
    )
    rounds: Count | None = Field(
        default=None, description="timed rounds of a case; those of the size by default"
    )
    warmup_rounds: Annotated[StrictInt, Field(ge=0, le=MAX_COUNT)] | None = Field(
        default=None, description="untimed rounds before them"
    )
    steps_per_round: Count | None = Field(default=None, description="steps in a round")
    case_budget: Annotated[StrictFloat, Field(gt=0, le=MAX_COUNT)] | None = Field(
        default=None, description="seconds that a case may take, 900 by default"
    )
    on_oom: Literal["halve"] | None = Field(
        default=None,
        description="measure a step that a rank has no memory for with half the batch, in the "
        "studies strong, weak, precision, bucket, sensitivity and accumulation",
    )
    until_efficiency: Annotated[StrictFloat, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="measure from the smallest world size on, and stop after one whose efficiency "
        "is below this",
    )
    command: Command | None = Field(
        default=None, description='the program of studies = ["command"]: a table'
    )
    factors: dict[str, tuple[Value, ...]] = Field(
        default={}, description="values in the place of a study's own: bucket_cap_mb = [1, 5, 10]"
    )
    jobs: Jobs = Field(default=Jobs(), description="how a cluster's jobs are cut")

    @model_validator(mode="before")
    @classmethod
    def _of_a_program(cls, given: Any) -> Any:
        """Fill in what need not be chosen for a program: how long it runs is its own."""
        if not isinstance(given, dict) or not given.get("command"):
            return given
        asked = given.get("factors")
        threads = asked.get("threads") if isinstance(asked, dict) else None
        several = threads if isinstance(threads, list | tuple) else ()
        most = max((one for one in several if type(one) is int), default=None)
        return {"size": "smoke", "threads_per_rank": most} | given

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if bool(self.studies) == bool(self.tests):
            raise ValueError(
                'give either studies, such as studies = ["strong"], or tests = ["benchmarks"]'
            )
        if self.until_efficiency is not None and self.jobs.allocation == "array":
            raise ValueError(
                'until_efficiency ends a ladder; choose allocation = "ladder" or "job", not "array"'
            )
        if self.tests and self.jobs.allocation == "array":
            raise ValueError(
                'allocation = "array" needs studies, whose cases are known before they run; '
                'for tests choose "ladder" or "job"'
            )
        if self.on_oom is not None and not {*STEPS} & {*self.studies}:
            raise ValueError(
                f"on_oom halves the batch of {listed(STEPS)}; leave it out for other studies, a "
                "program and your own tests"
            )
        if ("command" in self.studies) != (self.command is not None):
            raise ValueError('studies = ["command"] and a table [command] belong together')
        return self

    @model_validator(mode="after")
    def _has_its_factors(self) -> Self:
        if self.command is not None:
            if len(self.studies) > 1:
                raise ValueError('a program is a campaign of its own; keep studies = ["command"]')
            if self.jobs.preflight:
                raise ValueError("preflight measures by torch; set it to false for a program")
            self.command.check(self.factors, max(self.world_sizes))
            return self
        for name in self.factors:
            if not any(factors.has(study, [name], self.measured_size()) for study in self.studies):
                raise ValueError(f"none of the studies {list(self.studies)} has a factor {name!r}")
        return self

    @field_validator("factors")
    @classmethod
    def _known(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        # Those of a program are its own.
        return values if info.data.get("command") else dict(factors.check(values))

    @field_validator("studies", "tests", "world_sizes")
    @classmethod
    def _no_doubles(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        for value in (value for value, count in Counter(values).items() if count > 1):
            raise ValueError(f"{value!r} is named twice")
        return values

    @model_validator(mode="after")
    def _can_be_finished(self) -> Self:
        counts = {"world sizes": len(self.world_sizes), "repeats": self.repeats}
        if self.jobs.allocation == "array":
            counts["cases"] = self.num_cases()
        number = math.prod(counts.values())
        if number > MAX_LAUNCHES:
            product_of = " x ".join(f"{count:,} {name}" for name, count in counts.items())
            raise ValueError(
                f"{product_of} make {number:,} launches, over the limit of {MAX_LAUNCHES:,}; "
                "lower repeats, or cut it into several campaigns"
            )
        return self

    def facts(self) -> dict[str, Any]:
        """Return the campaign as its file would say it."""
        return self.model_dump(mode="json", by_alias=True)

    def measured_size(self) -> Size:
        """Return the named size with this campaign's changes."""
        changes = {name: getattr(self, name) for name in CHANGES}
        changes["factors"] = tuple(self.factors.items())
        return sizes.adapt(sizes.find(self.size), **changes)

    def num_cases(self, world_size: int | None = None) -> int:
        """Return how many cases a launch holds, or can measure at a size; tests are not counted."""
        return sum(
            count
            for study, count in self.cases_of_studies().items()
            if world_size is None or study not in STUDIES or world_size >= STUDIES[study].min_ranks
        )

    def cases_of_studies(self) -> dict[str, int]:
        """Return study -> how many cases of it one launch holds."""
        if self.command is not None:
            return {"command": math.prod(map(len, self.factors.values()))}
        return {study: len(rows(study, self.measured_size())) for study in self.studies}


@dataclass(frozen=True)
class Launch:
    """One pytest session over one process group.

    Attributes:
        repeat: Which visit of that world size, from 0.
        part: Which of `num_parts` equal parts of the cases, from 1; None for all cases.
        num_parts: Into how many parts they are cut.
    """

    world_size: int
    repeat: int
    part: int | None = None
    num_parts: int | None = None

    @property
    def name(self) -> str:
        """Name of the launch's folder."""
        whole = f"w{self.world_size}-r{self.repeat}"
        if self.part is None:
            return whole
        return f"{whole}-p{self.part:0{len(str(self.num_parts))}}"

    def facts(self) -> dict[str, Any]:
        """Return the launch as a campaign's folder records it."""
        facts = {key: value for key, value in vars(self).items() if value is not None}
        return {"name": self.name, **facts}


def plan(campaign: Campaign, *, by_case: bool = False) -> list[Launch]:
    """Return the launches in the order they are made.

    Repeats are interleaved: each one visits every world size once, in a seeded random order, so
    that a drift of the machine does not look like scaling. With `until_efficiency` all repeats of a
    size are made before the next one, whose turn may never come. `by_case` cuts each launch into
    one per case.
    """
    order = random.Random(campaign.seed)  # noqa: S311, no secret
    num_parts = campaign.num_cases()
    launches = []
    for repeat in range(campaign.repeats):
        block = [Launch(world_size, repeat) for world_size in sorted(campaign.world_sizes)]
        if by_case:
            block = [
                replace(launch, part=part, num_parts=num_parts)
                for launch, part in product(block, range(1, num_parts + 1))
            ]
        order.shuffle(block)
        launches += block
    if campaign.until_efficiency is not None:
        launches.sort(key=lambda launch: launch.world_size)
    return launches


@dataclass(frozen=True)
class LeftOut:
    """A world size that is not measured.

    Attributes:
        world_size: Its ranks, each of which needs a GPU of its own.
        num_gpus: How many GPUs the machine has, where they are too few.
        kind: Why it is left out: `below_floor` where a smaller size missed `until_efficiency`.
    """

    world_size: int
    num_gpus: int | None = None
    kind: Literal["too_few_gpus", "below_floor"] = "too_few_gpus"


def within_gpus(campaign: Campaign, num_gpus: int) -> tuple[Campaign, list[LeftOut]]:
    """Return the campaign with the world sizes that a machine's GPUs can measure, and the others.

    A campaign without a device goes to the CPU where there is no GPU.

    Raises:
        RuntimeError: No world size is left.
    """
    if campaign.device == "cpu" or (campaign.device is None and num_gpus == 0):
        return campaign, []
    kept = tuple(size for size in campaign.world_sizes if size <= num_gpus)
    others = [LeftOut(size, num_gpus) for size in campaign.world_sizes if size > num_gpus]
    if not kept:
        raise RuntimeError(
            f"world size {min(campaign.world_sizes)} needs as many GPUs, and ranks see {num_gpus} "
            "on this machine; measure a smaller one by --world-sizes, or pass --device cpu"
        )
    return campaign.model_copy(update={"world_sizes": kept}), others


def built_in() -> dict[str, Path]:
    """Return the campaigns that ship with the suite, name -> file."""
    folder = content.ROOT / "bench" / "campaigns"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(source: str, **changes: Any) -> Campaign:
    """Read a campaign by its path or its built-in name.

    Changes are keys to set over the file's, None leaves one as it is; other studies leave out the
    file's factors that none of them has.

    Raises:
        ValueError: The file cannot be read, or says something that is not allowed.
    """
    studies = changes.get("studies")
    if studies is not None and "command" not in studies and "factors" not in changes:
        plain = inputs.load(source, Campaign, built_in())
        changes["factors"] = factors.kept(plain.factors, studies, plain.measured_size())
    campaign = inputs.load(source, Campaign, built_in(), **changes)
    path = built_in().get(source, Path(source))
    given = (key for key in ("workload", "global_batch", "world_sizes") if changes.get(key))
    where = ", ".join(f"--{key.replace('_', '-')}" for key in given) or str(path)
    try:
        _check_launches(campaign)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    tests = []
    for test in campaign.tests:  # absolute, for jobs that start elsewhere
        file, colons, case = test.partition("::")
        if not Path(file).exists():
            raise ValueError(
                f"{path}: tests: there is no file or folder {file}; name one from here"
            )
        tests.append(f"{Path(file).absolute()}{colons}{case}")
    command = campaign.command and campaign.command.beside(path)
    placed = {"tests": tuple(tests), "command": command, "jobs": campaign.jobs.placed()}
    return campaign.model_copy(update=placed)


def _check_launches(campaign: Campaign) -> None:
    """Refuse before the first launch what a launch would refuse."""
    for study in (study for study in campaign.studies if study in STUDIES):
        cases = rows(study, campaign.measured_size())
        for batch in filter(None, {row.get("global_batch") for row in cases}):
            for world_size in campaign.world_sizes:
                sizes.local_batch_of(batch, world_size)
    for spec in campaign.factors.get("workload", filter(None, [campaign.workload])):
        # Making a workload loads torch, which a login node lacks and a plain name does not need.
        name, options = workloads.parse(str(spec))
        if (options or name not in workloads.TABLE) and find_spec("torch"):
            workloads.make(str(spec))


def differences(stored: Mapping[str, Any], campaign: Campaign) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which results already there were measured otherwise."""
    then, now = (
        # A program's folder may move.
        {**facts, "command": facts.get("command") and {**facts["command"], "workdir": None}}
        for facts in (stored, campaign.facts())
    )
    return {
        key: (then.get(key), now[key])  # older files know fewer keys
        for key in ("tests", "factors", "command", *IDENTITY)
        if (then.get(key) or None) != (now[key] or None)
    }


def with_threads(campaign: Campaign, before: int | None, cores: int) -> Campaign:
    """Return the campaign with one rank's threads settled: the same at every world size.

    Results that are there were measured with as many as `before`, so that a ladder can grow; else
    the largest world size shares the cores.
    """
    share = max(1, cores // max(campaign.world_sizes))
    threads = campaign.threads_per_rank or before or share
    return campaign.model_copy(update={"threads_per_rank": threads})


def common_options(campaign: Campaign) -> Iterator[str]:
    """Yield the options in every launch of a campaign: of pytest, or of a program's driver."""
    if campaign.command:
        size = campaign.measured_size()
        table = {
            "command": campaign.command.model_dump(
                mode="json", by_alias=True, exclude_defaults=True
            ),
            "factors": campaign.factors,
            "rounds": size.rounds,
            "warmup_rounds": size.warmup_rounds,
            "most_ranks": max(campaign.world_sizes),
        }
        yield f"--table={json.dumps(table)}"
    elif campaign.studies:
        yield from ("-m", " or ".join(campaign.studies))
    for name in IDENTITY:
        value = getattr(campaign, name)
        if value is not None:
            yield f"--{name.replace('_', '-')}={value}"
    if not campaign.command:
        yield from (f"--set={text}" for text in factors.written(campaign.factors))
    if campaign.order_seed is not None:
        yield f"--order-seed={campaign.order_seed}"
    if campaign.case_budget is not None:
        yield f"--case-budget={campaign.case_budget:g}"
    if campaign.on_oom is not None:
        yield f"--on-oom={campaign.on_oom}"
    yield f"--label=campaign={campaign.name}"
    yield f"--label=studies={','.join(campaign.studies or [OWN])}"


def own_options(launch: Launch) -> Iterator[str]:
    """Yield the options of pytest in one launch alone."""
    yield f"--label=launch={launch.name}"
    yield f"--label=repeat={launch.repeat}"
    if launch.part is not None:
        yield f"--part={launch.part}/{launch.num_parts}"


# A point's ranks on CPUs: more of them share caches and memory, which is no answer.
MOST_CPU_RANKS = 4
DIAGNOSE_S = 300.0  # a question is answered within about that


@dataclass(frozen=True)
class Question:
    """What a user asks, and what is measured for it.

    Attributes:
        from_one: Whether one rank is measured, too, to compare with.
        ranks: Fewest ranks that can answer.
        cpu_rounds: Rounds on CPUs; those of the size where None. On GPUs a round is longer than
            one step, and those of the size tell enough.
    """

    text: str
    study: Literal["strong", "weak", "loader"]
    from_one: bool = False
    ranks: int = 2
    cpu_rounds: int | None = None


QUESTIONS = {
    "strong": Question("more GPUs do not help", "strong", from_one=True),
    "straggler": Question("one rank, GPU or node may hold the others up", "weak", cpu_rounds=40),
    "loader": Question("the step may wait for its data", "loader", ranks=1),
}


def campaign_of(
    name: str, *, num_gpus: int, cores: int, device: str | None, workload: str | None
) -> Campaign:
    """Return what to measure for a question on this machine.

    `num_gpus` is 0 where its CPUs are to be measured.

    Raises:
        ValueError: The machine has fewer GPUs than the question needs ranks.
    """
    asked = QUESTIONS[name]
    if 0 < num_gpus < asked.ranks:
        raise ValueError(
            f"the question {name} needs {asked.ranks} GPUs, but ranks see only {num_gpus} here; "
            "run it on a machine with more, or pass --device cpu"
        )
    most = int(1 << (num_gpus or max(asked.ranks, min(cores, MOST_CPU_RANKS))).bit_length() - 1)
    return Campaign.model_validate(
        {
            "schema": 1,
            "name": f"diagnose-{name}",
            "studies": [asked.study],
            "world_sizes": sorted({1, most} if asked.from_one else {most}),
            "size": "node" if num_gpus else "laptop",
            "rounds": None if num_gpus else asked.cpu_rounds,
            "device": device,
            "workload": workload,
        }
    )


def load_with(source: str, values: Mapping[str, Sequence[Value]], **changes: Any) -> Campaign:
    """Read a campaign and set values of factors over it.

    Without studies in the changes, the one that varies the least else is asked: of the campaign's
    where they have the factors. Without a name, the factors become part of it, since their results
    do not mix with the campaign's own. A program has its study.

    Raises:
        ValueError: As `load`; or no study has the factors.
    """
    if not values:
        return load(source, **changes)
    if changes.get("tests"):
        raise ValueError("--set is about studies; parametrize tests of your own by pytest")
    plain = load(source, **changes)
    if plain.command is None:
        factors.check(values)
        if changes.get("studies") is None:
            asked = factors.study_of(list(values), plain.studies, plain.measured_size())
            changes["studies"] = (asked,)
    changes["name"] = changes.get("name") or "-".join([plain.name, *values])[:MAX_NAME]
    return load(source, **changes, factors=dict(values))
