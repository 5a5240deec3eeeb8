"""A site: what a centre's Slurm needs to know, read from a TOML file.

`make docs` publishes its JSON Schema.

What the values of a site file may be: text that a shell, sbatch and Apptainer read as meant.
"""

import difflib
import re
from collections.abc import Iterator
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
    ValidationInfo,
    field_validator,
    model_validator,
)

from lockstep import content
from lockstep.campaign.campaign import Duration
from lockstep.core import inputs
from lockstep.core.processes import INTERFACE_NAMES
from lockstep.report.tracker.tracked import Tracker

# Of sbatch's options those that change nothing of what Lockstep itself asks for: said twice, the
# last one would win unseen.
EXTRA_OPTIONS = (
    *("acctg-freq", "begin", "contiguous", "core-spec", "cores-per-socket", "cpu-freq", "exclude"),
    *("exclusive", "gpu-freq", "gres-flags", "hint", "licenses", "mail-type", "mail-user"),
    *("network", "nice", "nodelist", "power", "prefer", "propagate", "reboot", "segment"),
    *("sockets-per-node", "spread-job", "switches", "thread-spec", "threads-per-core", "tmp"),
    *("use-min-nodes", "wckey"),
)
# Variables of the script itself, of Slurm, and those that bash does not let be set.
OWN_VARIABLES = re.compile(
    "(SLURM|LOCKSTEP|MASTER|APPTAINERENV|BASH)_.*|U?ID|E?UID|PPID|BASHOPTS|SHELLOPTS|PYTHONPATH|"
    "agent|began|by_srun|cache|cache_hits|cache_misses|chosen|driver|failed|floor|had|hand_on|"
    "handed_on|handing|here|hosts|id|image|in_image|inside|job_name|jobs|keeper|launches|leave|"
    "log|lost|measured|meets|mend|name|needs|num_nodes|num_ranks|on_nodes|options|patience|"
    "profiler|results|running|scratch|sent|shape|srun_options|stage_image|stage_in|stage_in_s|"
    "stage_in_script|start|stay|stop|stopping|suite|tests|tool|unfinished|_"
)


# Prefix of a placeholder of `lockstep init`; commands that write or submit jobs refuse it.
FILL_IN = "FILL IN: "


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it contains a line break or control character; remove it")
    return text


def _shell_lines(text: str) -> str:
    if "\r" in text or "\0" in text:
        raise ValueError("it contains a carriage return or NUL; save it with Unix line ends")
    return text


def _directive_value(text: str) -> str:
    if not re.fullmatch(r"[\w.,:+@&|*()\[\]/=-]+", text):
        raise ValueError("a value for sbatch may contain only letters, digits and .,:+@&|*()[]/=_-")
    return text


def absolute(text: str) -> str:
    """Return a path that is absolute or a placeholder.

    Raises:
        ValueError: It is neither.
    """
    if text.startswith(FILL_IN):
        return text
    if "://" in text:
        raise ValueError("not a file; first build the image, for example with lockstep image build")
    if not text.startswith("/"):
        raise ValueError(
            "not an absolute path; begin it with /, because jobs start in another folder"
        )
    return text


def _scratch(text: str) -> str:
    if not text.startswith("$"):
        return _without_colon(_bindable(absolute(text)))
    if not re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*(/[^:,]*)?", text, re.ASCII):
        raise ValueError(
            "not a folder or variable of a job; write for example $TMPDIR or $TMPDIR/mine"
        )
    return text


def _option(text: str) -> str:
    if not re.match(r"--?[A-Za-z]", text):
        raise ValueError("not an option; write --name or --name=value")
    return text


def _bindable(text: str) -> str:
    if "," in text:
        raise ValueError(
            "it contains a comma, which separates binds in Apptainer; list each bind separately"
        )
    return text


def _without_colon(text: str) -> str:
    if ":" in text and not text.startswith(FILL_IN):
        raise ValueError(
            "it contains a colon, which separates parts of a bind in Apptainer; use another path"
        )
    return text


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text, re.ASCII):
        raise ValueError("not the name of a variable; use letters, digits and _")
    if OWN_VARIABLES.fullmatch(text):
        raise ValueError("the job script or Slurm sets this variable; leave it out")
    return text


def _extra(text: str) -> str:
    match = re.fullmatch(r"--([a-z][a-z-]*)(?:=(.+))?", text)
    if match is None:
        raise ValueError("not a long option; write --name or --name=value")
    if match[1] not in EXTRA_OPTIONS:
        near = difflib.get_close_matches(match[1], EXTRA_OPTIONS, n=1)
        hint = f"did you mean --{near[0]}?" if near else f"known: --{', --'.join(EXTRA_OPTIONS)}"
        raise ValueError(
            f"Lockstep does not allow this option here; {hint}; the key directives takes any "
            "option without a check"
        )
    if match[2]:
        _directive_value(match[2])
    return text


Line = Annotated[str, Field(min_length=1), AfterValidator(_printable)]
Word = Annotated[Line, AfterValidator(_directive_value)]
AbsolutePath = Annotated[Line, AfterValidator(absolute)]
Bind = Annotated[AbsolutePath, AfterValidator(_bindable)]
Extra = Annotated[Line, AfterValidator(_extra)]
Scratch = Annotated[Line, AfterValidator(_scratch)]
Option = Annotated[Line, AfterValidator(_option)]
Place = Annotated[Bind, AfterValidator(_without_colon)]
Variable = Annotated[str, AfterValidator(_variable)]
ShellLines = Annotated[str, AfterValidator(_shell_lines)]
Count = Annotated[StrictInt, Field(ge=1, le=100_000)]
Cost = Annotated[StrictFloat, Field(ge=0, le=inputs.MAX_RATE, allow_inf_nan=False)]


DEBUG_COMM = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}


class Container(BaseModel):
    """The image that the ranks run in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runtime: Literal["apptainer", "singularity", "podman-hpc", "pyxis"] = Field(
        default="apptainer",
        description="what runs the image; the scripts of podman-hpc and pyxis were not run there",
    )
    image: Line = Field(
        description="image on storage that all nodes see: a file of Apptainer, or a squashfs file "
        "of Pyxis; the name of an image of Podman-HPC"
    )
    binds: tuple[Bind, ...] = Field(default=(), description="further binds, /from[:/to[:ro]]")
    args: tuple[Line, ...] = Field(default=(), description="further options of the runtime")

    @field_validator("image")
    @classmethod
    def _is_there(cls, image: str, info: ValidationInfo) -> str:
        if info.data.get("runtime") != "podman-hpc":
            return absolute(image)
        if not re.fullmatch(r"[A-Za-z0-9][\w./:@-]*", image, re.ASCII):
            raise ValueError("not the name of an image; migrate the image, and write NAME:TAG")
        return image


class Partition(BaseModel):
    """The limits of a partition."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    time: Duration | None = Field(default=None, description="longest job it takes")
    max_nodes: Count | None = Field(default=None, description="nodes of its largest job")


class Site(BaseModel):
    """The keys of a site file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: inputs.SchemaVersion
    name: Line = Field(description="the centre or machine")
    partition: Word | None = Field(default=None, description="partition of all jobs")
    cluster: Annotated[Word, Field(pattern=r"^[^,]+$")] | None = Field(
        default=None, description="cluster of all jobs, where Slurm has several (sbatch --clusters)"
    )
    collect_partition: Word | None = Field(
        default=None, description="partition, without GPUs, of the job that collects and reports"
    )
    partitions: dict[Word, Partition] = Field(
        default={}, description="limits of partitions, each of which --partition can choose"
    )
    account: Word | None = Field(default=None, description="project that pays")
    qos: Word | None = Field(default=None, description="quality of service")
    constraint: Word | None = Field(default=None, description="features of the nodes")
    reservation: Word | None = Field(default=None, description="reservation to run in")
    gpus_per_node: Annotated[StrictInt, Field(ge=0, le=1024)] = Field(
        description="GPUs of one node; 0 measures on CPUs"
    )
    gpu_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = Field(
        default=None, description="type of GPU where the partition has several, such as a100"
    )
    gpu_types: tuple[Annotated[Word, Field(pattern=r"^[A-Za-z0-9_.-]+$")], ...] = Field(
        default=(),
        description="types of GPU, as features of the nodes name them, any of which a job takes, "
        "all of its nodes the same; in the place of gpu_type and constraint",
    )
    gpu_request: Literal["gpus-per-node", "gres"] = Field(
        default="gpus-per-node",
        description="option that asks for GPUs; gres writes --gres=gpu:TYPE:N",
    )
    gpu_runtime: Literal["cuda", "rocm"] = Field(
        default="cuda", description="what the GPUs need in an image"
    )
    cpus_per_node: Count = Field(description="CPUs of one node, as Slurm counts them")
    mem: Annotated[str, Field(pattern=r"^(0|[1-9][0-9]*[KMGT]?)$")] | None = Field(
        default=None, description="memory of a node for a job, such as 480G; 0 is all of it"
    )
    time: Duration = Field(description="limit of one job, [days-]HH:MM:SS")
    max_ranks_per_node: Count | None = Field(
        default=None, description="ranks of one node; its GPUs, or its CPUs, by default"
    )
    container: Container | None = Field(default=None, description="image of the ranks")
    modules: tuple[Line, ...] = Field(
        default=(), description="load these modules, beside an image or in its place"
    )
    venv: AbsolutePath | None = Field(
        default=None, description="enter this environment, in the place of an image"
    )
    suite: Place | None = Field(
        default=None, description="checkout of Lockstep; the image's own by default"
    )
    scratch: Scratch | None = Field(
        default=None,
        description="folder on every node, or a variable of the job such as $TMPDIR, in which it "
        "keeps its data files until it ends; beside the results by default",
    )
    stage_in: tuple[AbsolutePath, ...] = Field(
        default=(), description="files and folders that a job copies among its data files"
    )
    stage_image: StrictBool = Field(
        default=False, description="copy the image to every node's scratch before a job measures"
    )
    stage_cache: Scratch | None = Field(
        default=None,
        description="folder on every node that outlives jobs: what a job stages stays in it for "
        "those to come, until they have not asked for it for 30 days",
    )
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.=^,:-]+$")] | None = Field(
        default=None, description="network interface of the ranks, such as ib0"
    )
    env: dict[Variable, Line] = Field(default={}, description="variables of every rank, NCCL's say")
    extra_directives: tuple[Extra, ...] = Field(default=(), description="options of sbatch")
    directives: tuple[Option, ...] = Field(
        default=(), description="further options of sbatch, on your own responsibility"
    )
    launcher: Literal["srun", "torchrun"] = Field(
        default="srun",
        description="what starts ranks: srun, a task for each; or torchrun in one task a node, "
        "whose ranks share the node's CPUs",
    )
    cpu_bind: Line = Field(default="cores", description="srun --cpu-bind of the ranks")
    mpi: Word = Field(default="none", description="srun --mpi of the ranks")
    srun_options: tuple[Option, ...] = Field(
        default=(), description="further options of srun, on your own responsibility"
    )
    shell_before: ShellLines = Field(default="", description="shell lines before the first launch")
    shell_after: ShellLines = Field(
        default="", description="shell lines at the end of a job, also of one that fails"
    )
    template: AbsolutePath | None = Field(
        default=None, description='Jinja file that extends "base.sh.j2" and replaces its blocks'
    )
    max_array_size: Annotated[StrictInt, Field(ge=2, le=4_000_001)] = Field(
        default=1001, description="MaxArraySize of `scontrol show config`"
    )
    tracker: Tracker | None = Field(default=None, description="where runs are tracked")
    cost_per_node_hour: Cost | None = Field(default=None, description="what a node costs")
    cost_per_gpu_hour: Cost | None = Field(default=None, description="or what a GPU costs")
    currency: Line | None = Field(default=None, description="of that cost, such as EUR")

    @property
    def to_fill_in(self) -> tuple[str, ...]:
        """Keys that still have the placeholder of `lockstep init`."""
        return tuple(_to_fill_in(self))

    @property
    def limits(self) -> Partition:
        """Limits of the partition that jobs go to, as far as they are known."""
        return self.partitions.get(str(self.partition), Partition())

    @property
    def is_exclusive(self) -> bool:
        """Whether a job gets all GPUs of its nodes, whatever it asks for (sbatch(1))."""
        return "--exclusive" in self.extra_directives

    @property
    def features(self) -> str | None:
        """The value of sbatch's --constraint; in brackets, all nodes of a job have the same one."""
        return f"[{'|'.join(self.gpu_types)}]" if self.gpu_types else self.constraint

    def in_partition(self, name: str) -> Self:
        """Return the site with its jobs in another partition.

        Raises:
            ValueError: The site does not know the partition.
        """
        known = sorted({*self.partitions, *filter(None, [self.partition])})
        if name not in known:
            raise ValueError(
                f"site {self.name} has no partition {name!r}; choose from "
                f"{', '.join(known) or 'none'}, or add [partitions.{name}] to its file"
            )
        return self.model_copy(update={"partition": name})

    def for_collecting(self) -> Self:
        """Return the site of the job that collects, perhaps in a partition of its own."""
        if self.collect_partition is None:
            return self
        shared = tuple(o for o in self.extra_directives if o != "--exclusive")
        elsewhere = {"constraint": None, "gpu_types": (), "reservation": None, "mem": None}
        changes = {"partition": self.collect_partition, "extra_directives": shared, **elsewhere}
        return self.model_copy(update=changes)

    def with_debug_output(self) -> Self:
        """Return the site with NCCL's full debug output."""
        return self.model_copy(update={"env": self.env | DEBUG_COMM})

    def rank_environment(self) -> dict[str, str]:
        """Return the variables that every rank gets."""
        named = {name: self.interface for name in INTERFACE_NAMES if self.interface}
        return named | self.env

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.container is None and not (self.modules or self.venv):
            raise ValueError("neither container nor modules or venv is set; set one of them")
        if self.container is not None and self.venv:
            raise ValueError("container and venv exclude each other; keep one")
        if self.container and self.container.runtime == "podman-hpc" and self.gpu_runtime == "rocm":
            raise ValueError("podman-hpc does not support GPUs with rocm; choose another runtime")
        if self.container is None and self.suite is None:
            raise ValueError(
                "modules and venv need the key 'suite'; set it to a checkout of Lockstep"
            )
        if self.gpu_type and not self.gpus_per_node:
            raise ValueError("gpu_type is set, but gpus_per_node is 0; change one of them")
        if self.gpu_types and (self.gpu_type or self.constraint):
            raise ValueError("gpu_types excludes gpu_type and constraint; keep one of them")
        return self

    @model_validator(mode="after")
    def _staged_to_somewhere(self) -> Self:
        if (self.stage_in or self.stage_image) and self.scratch is None:
            raise ValueError("key 'scratch' is missing, where stage_in and stage_image copy to")
        if self.stage_image and self.container is None:
            raise ValueError("stage_image is set, but there is no [container]; leave it out")
        runtime = self.container.runtime if self.container else ""
        if runtime == "podman-hpc" and self.stage_image:
            raise ValueError(
                "stage_image needs an image file, which podman-hpc does not have; leave it out"
            )
        variables = [one for one in (self.scratch, self.stage_cache) if (one or "").startswith("$")]
        if variables and runtime in ("podman-hpc", "pyxis"):
            raise ValueError(
                f"{runtime} cannot expand {variables[0]}; write the path of the folder"
            )
        if self.stage_cache and not (self.stage_in or self.stage_image):
            raise ValueError(
                "stage_cache is set, but nothing is staged; set stage_in, or leave it out"
            )
        names = [Path(path).name for path in self.stage_in]
        doubled = [name for name in names if names.count(name) > 1]
        if doubled:
            raise ValueError(f"stage_in has two entries named {doubled[0]!r}; rename one of them")
        return self

    @model_validator(mode="after")
    def _one_price(self) -> Self:
        prices = [self.cost_per_node_hour, self.cost_per_gpu_hour]
        if None not in prices:
            raise ValueError(
                "cost_per_node_hour and cost_per_gpu_hour exclude each other; keep one"
            )
        if (prices == [None, None]) != (self.currency is None):
            raise ValueError(
                "a cost needs a currency and a currency needs a cost; give both, or neither"
            )
        return self


def _to_fill_in(table: BaseModel, before: str = "") -> Iterator[str]:
    for name, value in table:
        if isinstance(value, BaseModel):
            yield from _to_fill_in(value, f"{name}.")
        elif FILL_IN in str(value):
            yield f"{before}{name}"


def built_in() -> dict[str, Path]:
    """Return the sites that ship with the suite, name -> file."""
    folder = content.ROOT / "slurm_templates" / "sites"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(source: str, *, is_draft: bool = False) -> Site:
    """Read a site by its path or its built-in name.

    A draft may still have keys to fill in.

    Raises:
        ValueError: The file cannot be read, or has a key or value that is not allowed.
    """
    site = inputs.load(source, Site, built_in())
    if site.to_fill_in and not is_draft:
        raise ValueError(
            f"{source}: not filled in yet: {', '.join(site.to_fill_in)}; replace FILL IN"
        )
    return site
