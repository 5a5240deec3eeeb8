"""A campaign: the launches that answer one question, read from a TOML file, and their options."""

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
from lockstep.core.inputs import Table, key
from lockstep.core.record import OWN
from lockstep.core.sizes import CHANGES, MAX_COUNT, Size
from lockstep.core.studies import NAMES, STEPS, STUDIES, rows

# Each launch has a folder, which every command reads.
MAX_LAUNCHES = 10_000
MAX_NAME = 64  # characters of a campaign's name

if TYPE_CHECKING:
    StudyName = str
else:
    StudyName = Literal[(*NAMES, "command")]
Value = StrictBool | StrictInt | StrictFloat | str
IDENTITY = ("size", *CHANGES, "seed", "device", "threads_per_rank")


Count = Annotated[StrictInt, Field(ge=1, le=MAX_COUNT)]
Whole = Annotated[StrictInt, Field(ge=0, le=MAX_COUNT)]
Seed = Annotated[StrictInt, Field(ge=0, lt=2**32)]
Floor = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]

# The most jobs of which each continues the one before; more would only fill the queue.
MAX_CHAIN = 50


def _refuse(rules: Mapping[str, bool]) -> None:
    for sentence, is_broken in rules.items():
        if is_broken:
            raise ValueError(sentence)


def _check_shell(text: str) -> str:
    is_broken = bool({*text} & {*"\r\0"})
    fault = "a carriage return or a NUL character breaks a shell script; remove this character"
    _refuse({fault: is_broken})
    return text


def _check_limit(duration: str) -> str:
    # Slurm counts limits in minutes, and 0 means no limit (sbatch(1), --time).
    limit_s = parse_limit(duration)
    _refuse({
        "the time limit must be at least a minute; write 00:01:00 or more": limit_s < 60,
        "the time limit is longer than a year; write a shorter limit as "
        "[days-]HH:MM:SS": limit_s > 365 * 24 * 3600,
    })  # fmt: skip
    return duration


Duration = Annotated[
    str,
    Field(pattern=r"^([0-9]+-)?[0-9]{1,2}:[0-5][0-9]:[0-5][0-9]$"),
    AfterValidator(_check_limit),
]


class Stage(Table):
    """A job with a command of the user's own, before or after the jobs that measure."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$",
        description="name of the stage, made of letters, digits, '.', '_' and '-'; the stage's "
        "Slurm job is called CAMPAIGN-NAME",
    )
    command: Annotated[str, Field(min_length=1), AfterValidator(_check_shell)] = Field(
        description="shell lines that each task runs in the site's image or environment; "
        "the variable LOCKSTEP_RESULTS holds the path of the results folder"
    )
    when: Literal["before", "after"] = key(
        "whether the stage runs before or after the jobs that measure", default="before"
    )
    dependency: Literal["afterok", "afternotok", "afterany", "after", "singleton"] = key(
        "condition on which the later job begins: the earlier job has succeeded (afterok), ended "
        "(afterany), begun (after) or failed (afternotok), or no other job of the same name runs "
        "or waits (singleton)",
        default="afterok",
    )
    time: Duration | None = key(
        "time limit of the stage, as [days-]HH:MM:SS; by default the limit in the site file"
    )
    nodes: Count = key("number of nodes", default=1)
    tasks_per_node: Count = key(
        "number of tasks per node; each task runs the command of the stage", default=1
    )
    cpus_per_task: Count | None = key(
        "number of CPUs of each task; by default an equal share of the node"
    )
    gpus: StrictBool = key("give each task a GPU", default=False)
    folder: str | None = key(
        "folder in which the command runs; by default the folder in which lockstep submit is called"
    )

    @model_validator(mode="after")
    def _can_begin(self) -> Self:
        if self.when == "before" and self.dependency == "afternotok":
            raise ValueError(
                f'stage {self.name} has when = "before" and dependency = "afternotok", so only a '
                'failed stage would start the launches; set dependency = "afterok" or "afterany"'
            )
        return self


class Ncu(Table):
    """Which kernels `lockstep submit --profile ncu` records."""

    kernels: Annotated[str, Field(min_length=1), AfterValidator(_check_shell)] | None = key(
        "regular expression for the names of the kernels to record; by default all kernels are "
        "recorded"
    )
    # The first launches load libraries. ncu repeats each launch that it records many times.
    launch_skip: Whole = key(
        "number of kernel launches to skip before the first recorded kernel launch", default=200
    )
    launch_count: Count = key("number of kernel launches to record", default=20)


class Jobs(Table):
    """How the launches of a campaign are divided into jobs of a cluster."""

    allocation: Literal["ladder", "job", "array"] = key(
        "how launches become Slurm jobs: ladder makes one job for all world sizes of a repeat, job "
        "makes one job per world size, smallest first, and array makes one element of a job array "
        "per case",
        default="ladder",
    )
    share_job: StrictBool = key(
        "run all repeats in one job; such repeats do not count as independent",
        default=False,
    )
    is_machine: StrictBool = key(
        "count the repeats of a shared job as independent; the results then describe only the "
        "nodes of this job",
        default=False,
    )
    max_running: Count | None = key(
        "largest number of array elements that run at once; by default all run at once"
    )
    chain: Annotated[StrictInt, Field(ge=1, le=MAX_CHAIN)] = key(
        "number of jobs in a chain; each job continues the previous job if the previous job "
        "reached its time limit or was preempted",
        default=1,
    )
    time: Duration | None = key(
        "time limit of one job, as [days-]HH:MM:SS; by default the limit in the site file"
    )
    launch_time: Duration | None = key(
        "time limit of one launch; each job requests the sum of its launches' limits"
    )
    preflight: StrictBool = key(
        "check the nodes in a job that runs before all other jobs", default=False
    )
    screen: StrictBool = key(
        "if a node, device or link is slow, let the preflight job fail, which cancels all other "
        "jobs",
        default=False,
    )
    min_all_reduce_gb_per_s: Floor | None = key(
        "lowest bus bandwidth (busbw) in GB/s that passes the screening; an all-reduce of 64 MiB "
        "on GPUs, or 4 MiB on CPUs, over all ranks measures this bandwidth"
    )
    collect: StrictBool = key(
        "collect the results and write the report in a job after all other jobs", default=False
    )
    stage: tuple[Stage, ...] = key(
        "jobs of your own before or after the launches, such as preprocessing", default=()
    )
    ncu: Ncu = key("kernels that lockstep submit --profile ncu records", default=Ncu())

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        is_array = self.allocation == "array"
        has_floor = self.min_all_reduce_gb_per_s is not None
        _refuse({
            "time and launch_time both set the time limit of a job; remove one of them":
                None not in (self.time, self.launch_time),
            f'max_running needs allocation = "array", but allocation is {self.allocation!r}; '
            "remove max_running":
                self.max_running is not None and not is_array,
            'share_job does not work with allocation = "array"; set allocation = "ladder" or "job"':
                self.share_job and is_array,
            "screen = true needs preflight = true; set both":
                self.screen and not self.preflight,
            "min_all_reduce_gb_per_s needs screen = true; set both":
                has_floor and not self.screen,
            'chain does not work with allocation = "array"; set allocation = "ladder" or "job"':
                self.chain > 1 and is_array,
        })  # fmt: skip
        ours = ("preflight", "collect", "nsys", "ncu", "perf")
        names = Counter([*(stage.name for stage in self.stage), *ours])
        for name in (name for name, count in names.items() if count > 1):
            raise ValueError(f"two jobs would be called {name!r}; give the stage another name")
        return self

    def resolve_folders(self) -> Self:
        """Return the jobs with absolute folders of their stages: jobs start in another folder."""
        stages = (
            stage.model_copy(update={"folder": str(Path(stage.folder or "").absolute())})
            for stage in self.stage
        )
        return self.model_copy(update={"stage": tuple(stages)})


class Campaign(Table):
    """The keys of a campaign file."""

    schema_version: inputs.SchemaVersion
    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="name of the campaign and its results folder, made of letters, digits, '.', "
        "'_' and '-'",
    )
    studies: tuple[StudyName, ...] = key(
        'studies to measure; "command" measures a program of your own', default=()
    )
    tests: tuple[str, ...] = key(
        "files or folders of your own tests, which use the pytest fixture lockstep; set either "
        "tests or studies",
        default=(),
    )
    world_sizes: tuple[Count, ...] = Field(
        min_length=1, description="world sizes (numbers of ranks) to measure"
    )
    repeats: Count = key("number of times that each world size is launched", default=3)
    seed: Seed = key("random seed of the data, the parameters and the order of launches", default=0)
    order_seed: Seed | None = key(
        "random seed of the order of cases; by default each launch draws its own seed"
    )
    size: Literal["smoke", "laptop", "node", "cluster"] = Field(
        description="how much to measure: smoke (the least), laptop, node or cluster (the most)"
    )
    device: Literal["cpu", "cuda"] | None = key(
        "device on which the ranks run; by default cuda if there is a GPU, else cpu"
    )
    threads_per_rank: Count | None = key(
        "number of threads of each rank; by default the cores divided by the largest world size"
    )
    workload: str | None = key("model to train in all studies, such as mlp:width=512")
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = key(
        "precision of all studies but `precision`, which varies it; by default fp32"
    )
    global_batch: Count | None = key(
        "global batch of the study strong: samples per optimizer update over all ranks"
    )
    local_batch: Count | None = key(
        "local batch of all studies except strong: samples per optimizer update on each rank"
    )
    rounds: Count | None = key(
        "number of timed rounds of each case; the default depends on the key size"
    )
    warmup_rounds: Whole | None = key("number of untimed rounds before the timed rounds")
    steps_per_round: Count | None = key("number of steps in a round")
    case_budget: Annotated[StrictFloat, Field(gt=0, le=MAX_COUNT)] | None = key(
        "time limit of each case in seconds; by default 900"
    )
    on_oom: Literal["halve"] | None = key(
        f"if a rank runs out of memory in the studies {listed(STEPS)}, measure the step with half "
        "the batch"
    )
    until_efficiency: Annotated[StrictFloat, Field(gt=0, le=1)] | None = key(
        "measure world sizes in rising order, and stop after the first size with a parallel "
        "efficiency below this value"
    )
    command: Command | None = key('program to measure if studies = ["command"]')
    factors: dict[str, tuple[Value, ...]] = key(
        "values of factors that replace the values in the study, such as bucket_cap_mb = [1, 5, "
        "10]",
        default={},
    )
    jobs: Jobs = key("how the campaign's launches are divided into Slurm jobs", default=Jobs())
    doi: str | None = key(
        "DOI reserved for the results, such as 10.5281/zenodo.1234567; you may set doi later",
        pattern=inputs.DOI,
    )

    @model_validator(mode="before")
    @classmethod
    def _complete_program(cls, keys: Any) -> Any:
        if not isinstance(keys, dict) or not keys.get("command"):
            return keys
        table = keys.get("factors")
        threads = table.get("threads") if isinstance(table, dict) else None
        several = threads if isinstance(threads, list | tuple) else ()
        most = max((count for count in several if type(count) is int), default=None)
        return {"size": "smoke", "threads_per_rank": most} | keys

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        is_array = self.jobs.allocation == "array"
        _refuse({
            'a campaign needs either studies, such as studies = ["strong"], or tests, such as '
            'tests = ["benchmarks"]; set one of these two keys':
                bool(self.studies) == bool(self.tests),
            'until_efficiency does not work with allocation = "array"; set allocation = "ladder" '
            'or "job"':
                self.until_efficiency is not None and is_array,
            'allocation = "array" works with studies, but not with tests; set allocation = '
            '"ladder" or "job"': bool(self.tests) and is_array,
            f"on_oom works only in the studies {listed(STEPS)}; remove on_oom, or measure these "
            "studies only":
                self.on_oom is not None and not {*STEPS} & {*self.studies},
            'a campaign that measures a program needs both studies = ["command"] and the table '
            "[command]; add the missing one, or remove both":
                ("command" in self.studies) != (self.command is not None),
        })  # fmt: skip
        return self

    @model_validator(mode="after")
    def _has_its_factors(self) -> Self:
        if self.command is not None:
            _refuse({
                "a campaign that measures a program cannot have other studies; set studies = "
                '["command"]':
                    len(self.studies) > 1,
                "preflight needs torch and does not work for a program; set preflight = "
                "false": self.jobs.preflight,
            })  # fmt: skip
            self.command.check(self.factors, max(self.world_sizes))
            return self
        for name in self.factors:
            if not any(
                factors.has_factors(study, [name], self.measured_size()) for study in self.studies
            ):
                raise ValueError(
                    f"none of the studies {listed(self.studies)} has a factor "
                    f"{name!r}; remove the factor, or choose another study"
                )
        return self

    @field_validator("factors")
    @classmethod
    def _check_factors(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
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
            factors = " x ".join(f"{count:,} {name}" for name, count in counts.items())
            raise ValueError(
                f"the campaign has {number:,} launches ({factors}), but the limit is "
                f"{MAX_LAUNCHES:,}; lower repeats, or divide the campaign into several"
            )
        return self

    def facts(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    def measured_size(self) -> Size:
        changes = {name: getattr(self, name) for name in CHANGES}
        changes["factors"] = tuple(self.factors.items())
        return sizes.adapt(sizes.find(self.size), **changes)

    def num_cases(self, world_size: int | None = None) -> int:
        """Return the number of cases of a launch, or those that fit a world size; 0 for tests."""
        return sum(
            count
            for study, count in self.cases_of_studies().items()
            if world_size is None or study not in STUDIES or world_size >= STUDIES[study].min_ranks
        )

    def cases_of_studies(self) -> dict[str, int]:
        if self.command is not None:
            return {"command": math.prod(map(len, self.factors.values()))}
        return {study: len(rows(study, self.measured_size())) for study in self.studies}


@dataclass(frozen=True)
class Launch:
    """One pytest session over one process group."""

    world_size: int
    repeat: int  # number of the repeat, from 0
    part: int | None = None  # number of the part of the cases, from 1 to `num_parts`
    num_parts: int | None = None  # None if the launch has all cases

    @property
    def name(self) -> str:
        """The name of the launch's folder, such as w2-r0."""
        whole = f"w{self.world_size}-r{self.repeat}"
        if self.part is None:
            return whole
        return f"{whole}-p{self.part:0{len(str(self.num_parts))}}"

    def facts(self) -> dict[str, Any]:
        facts = {key: value for key, value in vars(self).items() if value is not None}
        return {"name": self.name, **facts}


def plan(campaign: Campaign, *, by_case: bool = False) -> list[Launch]:
    """Return the launches in their order, or with `by_case` one launch per case.

    Each repeat visits every world size once, in a seeded random order, so that a drift of the
    machine does not look like scaling. With `until_efficiency` the sizes ascend instead.
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
    """A world size that is not measured: too few GPUs, or a smaller size missed the floor."""

    world_size: int
    num_gpus: int | None = None  # GPUs of the machine, if they are too few
    kind: Literal["too_few_gpus", "below_floor"] = "too_few_gpus"


def built_in() -> dict[str, Path]:
    folder = content.ROOT / "bench" / "campaigns"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(source: str, **changes: Any) -> Campaign:
    """Read a campaign by its path or its built-in name, with changed keys; None changes nothing.

    With changed studies, factors of the file that no study has are left out.
    """
    studies = changes.get("studies")
    if studies is not None and "command" not in studies and "factors" not in changes:
        plain = inputs.load(source, Campaign, built_in())
        changes["factors"] = factors.keep_known(plain.factors, studies, plain.measured_size())
    campaign = inputs.load(source, Campaign, built_in(), **changes)
    path = built_in().get(source, Path(source))
    names = (key for key in ("workload", "global_batch", "world_sizes") if changes.get(key))
    where = ", ".join(f"--{key.replace('_', '-')}" for key in names) or str(path)
    try:
        _check_launches(campaign)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    tests = []
    for test in campaign.tests:  # as absolute paths, because jobs start in another folder
        file, colons, case = test.partition("::")
        if not Path(file).exists():
            key = "--tests" if changes.get("tests") else f"{path}: the key tests"
            raise ValueError(f"{key}: {file} does not exist in the current folder, {Path.cwd()}")
        tests.append(f"{Path(file).absolute()}{colons}{case}")
    command = campaign.command and campaign.command.resolve_folder(path)
    placed = {"tests": tuple(tests), "command": command, "jobs": campaign.jobs.resolve_folders()}
    return campaign.model_copy(update=placed)


def _check_launches(campaign: Campaign) -> None:
    for study in (study for study in campaign.studies if study in STUDIES):
        cases = rows(study, campaign.measured_size())
        for batch in filter(None, {row.get("global_batch") for row in cases}):
            for world_size in campaign.world_sizes:
                sizes.local_batch_of(batch, world_size)
    for spec in campaign.factors.get("workload", filter(None, [campaign.workload])):
        # Making a workload loads torch, which a login node may lack; a plain name needs no check.
        name, options = workloads.parse(str(spec))
        if (options or name not in workloads.TABLE) and find_spec("torch"):
            workloads.make(str(spec))


def differences(stored: Mapping[str, Any], campaign: Campaign) -> dict[str, tuple[Any, Any]]:
    """Return key -> (value in stored results, value in a campaign), for values that differ."""
    then, now = (
        {**facts, "command": facts.get("command") and _command_facts(facts["command"])}
        for facts in (stored, campaign.facts())
    )
    return {
        key: (then.get(key), now[key])  # older files have fewer keys
        for key in ("tests", "factors", "command", *IDENTITY)
        if (then.get(key) or None) != (now[key] or None)
    }


def _command_facts(command: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a command without defaults, as older files have fewer keys, and without its folder.

    The folder of a program may move.
    """
    try:
        known = Command.model_validate({**command, "workdir": None})
    except (TypeError, ValueError):  # of another version, or changed by hand
        return command
    return known.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def set_threads(campaign: Campaign, before: int | None, cores: int) -> Campaign:
    """Return the campaign with threads_per_rank: its own, else `before`, else a share of cores."""
    share = max(1, cores // max(campaign.world_sizes))
    threads = campaign.threads_per_rank or before or share
    return campaign.model_copy(update={"threads_per_rank": threads})


def common_options(campaign: Campaign) -> Iterator[str]:
    """Yield the options of all launches of a campaign, for pytest or a program's driver."""
    if campaign.command:
        size = campaign.measured_size()
        table = {
            "command": campaign.command.model_dump(
                mode="json", by_alias=True, exclude_defaults=True
            ),
            "factors": campaign.factors, "rounds": size.rounds, "warmup_rounds": size.warmup_rounds,
            "most_ranks": max(campaign.world_sizes),
        }  # fmt: skip
        yield f"--table={json.dumps(table)}"
    elif campaign.studies:
        yield from ("-m", " or ".join(campaign.studies))
    for name in IDENTITY:
        value = getattr(campaign, name)
        if value is not None:
            yield f"--{name.replace('_', '-')}={value}"
    if not campaign.command:
        yield from (f"--set={text}" for text in factors.format_options(campaign.factors))
    if campaign.order_seed is not None:
        yield f"--order-seed={campaign.order_seed}"
    if campaign.case_budget is not None:
        yield f"--case-budget={campaign.case_budget:g}"
    if campaign.on_oom is not None:
        yield f"--on-oom={campaign.on_oom}"
    yield f"--label=campaign={campaign.name}"
    yield f"--label=studies={','.join(campaign.studies or [OWN])}"


def own_options(launch: Launch) -> Iterator[str]:
    yield f"--label=launch={launch.name}"
    yield f"--label=repeat={launch.repeat}"
    if launch.part is not None:
        yield f"--part={launch.part}/{launch.num_parts}"


# More ranks on CPUs mostly compete for caches and memory.
MOST_CPU_RANKS = 4
DIAGNOSE_S = 300.0  # approximate time to answer a question


@dataclass(frozen=True)
class Question:
    """A question of `lockstep diagnose`, and the measurement that answers it."""

    study: str
    from_one: bool = False  # whether one rank is also measured, for comparison
    ranks: int = 2  # least number of ranks that can answer
    cpu_rounds: int | None = None  # rounds on CPUs, of one step each; None for the size's number


QUESTIONS = {
    "strong": Question("strong", from_one=True),
    "straggler": Question("weak", cpu_rounds=40),
    "loader": Question("loader", ranks=1),
}


def campaign_of(
    name: str, *, num_gpus: int, cores: int, device: str | None, workload: str | None
) -> Campaign:
    """Return the campaign of a question; `num_gpus` is 0 to measure on CPUs."""
    question = QUESTIONS[name]
    if 0 < num_gpus < question.ranks:
        raise ValueError(
            f"the question {name} needs {question.ranks} GPUs, but torch sees only {num_gpus} on "
            "this machine; use a machine with more GPUs, or pass --device cpu"
        )
    most = int(1 << (num_gpus or max(question.ranks, min(cores, MOST_CPU_RANKS))).bit_length() - 1)
    return Campaign.model_validate({
        "schema": 1, "name": f"diagnose-{name}", "studies": [question.study],
        "world_sizes": sorted({1, most} if question.from_one else {most}),
        "size": "node" if num_gpus else "laptop",
        "rounds": None if num_gpus else question.cpu_rounds, "device": device,
        "workload": workload,
    })  # fmt: skip


def load_factors(source: str, values: Mapping[str, Sequence[Value]], **changes: Any) -> Campaign:
    """Read a campaign and replace its values of factors.

    Without `studies`, the campaign's study with the fewest other cases is measured; without `name`,
    the factors' names are added to the campaign's name.
    """
    if not values:
        return load(source, **changes)
    if changes.get("tests"):
        raise ValueError(
            "--set changes factors of studies, not of your own tests; use "
            "pytest.mark.parametrize in your tests"
        )
    plain = load(source, **changes)
    if plain.command is None:
        factors.check(values)
        if changes.get("studies") is None:
            study = factors.study_of(list(values), plain.studies, plain.measured_size())
            changes["studies"] = (study,)
    changes["name"] = changes.get("name") or "-".join([plain.name, *values])[:MAX_NAME]
    return load(source, **changes, factors=dict(values))
