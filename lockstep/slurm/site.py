"""A site file: a TOML file about a centre's Slurm, its nodes and the image.

Every value is checked, because it ends in a shell script, an option of sbatch or of Apptainer.
"""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

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
from lockstep.core.formats import parse_limit
from lockstep.core.processes import INTERFACE_NAMES
from lockstep.report.tracker.tracked import Tracker

# Options of sbatch that a site file may add. Lockstep writes all others itself, and sbatch
# silently uses the last one of two equal options.
EXTRA_OPTIONS = (
    *("acctg-freq", "begin", "contiguous", "core-spec", "cores-per-socket", "cpu-freq", "exclude"),
    *("exclusive", "gpu-freq", "gres-flags", "hint", "licenses", "mail-type", "mail-user"),
    *("network", "nice", "nodelist", "power", "prefer", "propagate", "reboot", "segment"),
    *("sockets-per-node", "spread-job", "switches", "thread-spec", "threads-per-core", "tmp"),
    *("use-min-nodes", "wckey"),
)
# Variables that the job script or Slurm sets, and variables that bash does not allow to be set.
OWN_VARIABLES = re.compile(
    "(SLURM|LOCKSTEP|MASTER|APPTAINERENV|BASH)_.*|U?ID|E?UID|PPID|BASHOPTS|SHELLOPTS|PYTHONPATH|"
    "agent|began|by_srun|cache|cache_hits|cache_misses|chosen|driver|failed|floor|had|hand_on|"
    "handed_on|handing|here|hosts|id|image|in_image|inside|job_name|jobs|keeper|launches|leave|"
    "log|lost|measured|meets|mend|name|ncu_options|needs|num_nodes|num_ranks|on_nodes|options|"
    "patience|profiler|results|running|scratch|sent|shape|srun_options|stage_image|stage_in|"
    "stage_in_s|stage_in_script|start|stay|stop|stopping|suite|tests|tool|unfinished|_"
)


# Prefix of a placeholder of `lockstep init`, and the placeholders of it and of the built-in sites;
# commands that write or submit jobs refuse them.
FILL_IN = "FILL IN: "
PLACEHOLDER = re.compile(rf"{FILL_IN}|/path/to/|\bproject_ID\b")


def fullmatch(pattern: str, reason: str) -> AfterValidator:
    """Return a check that raises ValueError unless a whole text matches a regular expression."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(reason)
        return text

    return AfterValidator(check)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("the text contains a line break or control character; remove it")
    return text


def absolute(text: str) -> str:
    """Return a path that is absolute or a placeholder; raise ValueError for any other."""
    if "://" in text and not text.startswith(FILL_IN):
        raise ValueError(
            "the value is the registry address of an image, not a file; build the image first, "
            "for example with lockstep image build"
        )
    if not text.startswith(("/", FILL_IN)):
        raise ValueError(
            "the path is not absolute; begin it with /, because jobs start in another folder"
        )
    return text


def _place(text: str) -> str:
    if set(",:") & set(text) and not text.startswith(FILL_IN):
        raise ValueError(
            "the path contains a comma or colon, which separate the parts of binds in Apptainer; "
            "use another path"
        )
    return absolute(text)


def _scratch(text: str) -> str:
    if not text.startswith("$"):
        return _place(text)
    if not re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*(/[^:,]*)?", text):
        raise ValueError(
            "the value is neither a folder nor a variable; write for example $TMPDIR or "
            "$TMPDIR/mine"
        )
    return text


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError(
            "the key is not a valid name of a variable; use only letters, digits and _"
        )
    if OWN_VARIABLES.fullmatch(text):
        raise ValueError("the job script or Slurm sets this variable; remove it from the site file")
    return text


DIRECTIVE_VALUE = r"[\w.,:+@&|*()\[\]/=-]+"


def _extra(text: str) -> str:
    match = re.fullmatch(r"--([a-z][a-z-]*)(?:=(.+))?", text)
    if match is None:
        raise ValueError("the value is not a long option; write --name or --name=value")
    if match[1] not in EXTRA_OPTIONS:
        near = difflib.get_close_matches(match[1], EXTRA_OPTIONS, n=1)
        hint = f"did you mean --{near[0]}?" if near else f"known: --{', --'.join(EXTRA_OPTIONS)}"
        raise ValueError(
            f"this key does not allow the option; {hint}; put other options into the key "
            "'directives', which Lockstep does not check"
        )
    if match[2] and not re.fullmatch(DIRECTIVE_VALUE, match[2]):
        raise ValueError(NOT_A_VALUE)
    return text


NOT_A_VALUE = "a value for sbatch may contain only letters, digits and .,:+@&|*()[]/=_-"
Line = Annotated[str, Field(min_length=1), AfterValidator(_printable)]
Word = Annotated[Line, fullmatch(DIRECTIVE_VALUE, NOT_A_VALUE)]
AbsolutePath = Annotated[Line, AfterValidator(absolute)]
Bind = Annotated[
    AbsolutePath,
    fullmatch(
        "[^,]*", "the bind contains a comma, which separates binds; list each bind separately"
    ),
]
Extra = Annotated[Line, AfterValidator(_extra)]
Scratch = Annotated[Line, AfterValidator(_scratch)]
NOT_AN_OPTION = "the value is not an option; write --name or --name=value"
Option = Annotated[Line, fullmatch("--?[A-Za-z].*", NOT_AN_OPTION)]
Place = Annotated[Line, AfterValidator(_place)]
Variable = Annotated[str, AfterValidator(_variable)]
ShellLines = Annotated[
    str,
    fullmatch(
        r"[^\r\0]*", "the text has a carriage return or NUL; save the file with Unix line ends"
    ),
]
GpuType = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
Gpus = Annotated[StrictInt, Field(ge=0, le=1024)]
Memory = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]*[KMGT]?)$")]
Count = Annotated[StrictInt, Field(ge=1, le=100_000)]
Cost = Annotated[StrictFloat, Field(ge=0, le=inputs.MAX_RATE, allow_inf_nan=False)]


class Table(BaseModel):
    """A table of a site file; the string below a key describes the key."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Container(Table):
    """The image that the ranks run in."""

    runtime: Literal["apptainer", "singularity", "podman-hpc", "pyxis"] = "apptainer"
    """program that runs the image; podman-hpc and pyxis have not been tested on a cluster"""
    image: Line
    "image: a SIF file that all nodes see, a squashfs file for pyxis, or a name for podman-hpc"
    binds: tuple[Bind, ...] = ()
    """folders to bind into the image, each as /from[:/to[:ro]]"""
    args: tuple[Line, ...] = ()
    """further options of the container runtime"""

    @field_validator("image")
    @classmethod
    def _is_there(cls, image: str, info: ValidationInfo) -> str:
        if info.data.get("runtime") != "podman-hpc":
            return absolute(image)
        if not re.fullmatch(r"[A-Za-z0-9][\w./:@-]*", image, re.ASCII):
            raise ValueError(
                "the value is not an image's name; run podman-hpc migrate, and write the "
                "image's NAME:TAG"
            )
        return image


class Partition(Table):
    """A partition: its limits, and keys that replace those of the site in its jobs."""

    time: Duration | None = None
    """time limit of a job in this partition"""
    max_nodes: Count | None = None
    """maximum number of nodes of a job in this partition"""
    account: Word | None = None
    """project that pays"""
    constraint: Word | None = None
    """features that the nodes must have"""
    gpus_per_node: Gpus | None = None
    """GPUs of one node; with 0 the ranks measure on CPUs"""
    gpu_type: GpuType | None = None
    """type of GPU in this partition"""
    cpus_per_node: Count | None = None
    """CPUs of one node, as Slurm counts them"""
    mem: Memory | None = None
    """memory that a job gets on a node"""

    @property
    def changes(self) -> dict[str, Any]:
        """Keys of the site that this partition replaces, with their values."""
        limits = {"time", "max_nodes"}
        changes = self.model_dump(exclude_none=True, exclude=limits)
        # The site's types of GPU exclude these keys, and are those of its other partitions.
        if self.constraint or self.gpu_type or self.gpus_per_node == 0:
            changes["gpu_types"] = ()
        return changes | ({"gpu_type": None} if self.gpus_per_node == 0 else {})


class Site(Table):
    """The keys of a site file."""

    schema_version: inputs.SchemaVersion
    name: Line
    """name of the centre or machine"""
    partition: Word | None = None
    """partition of all jobs"""
    cluster: Annotated[Word, Field(pattern=r"^[^,]+$")] | None = None
    """cluster of all jobs, if Slurm has several clusters (sbatch --clusters)"""
    collect_partition: Word | None = None
    """partition for the job that collects the results and makes the report; it needs no GPU"""
    partitions: dict[Word, Partition] = {}
    """partitions that --partition can choose; each has its limits, and may set other keys"""
    account: Word | None = None
    """project that pays for the jobs"""
    qos: Word | None = None
    """quality of service"""
    constraint: Word | None = None
    """features that the nodes must have"""
    reservation: Word | None = None
    """reservation in which the jobs run"""
    gpus_per_node: Gpus
    """GPUs of one node; with 0 the ranks measure on CPUs"""
    gpu_type: GpuType | None = None
    """type of GPU, such as a100, if the partition has several types"""
    gpu_types: tuple[GpuType, ...] = ()
    """node features, one for each type of GPU; all nodes of a job get the same feature"""
    gpu_request: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    """option of sbatch that requests GPUs; gres stands for --gres=gpu:TYPE:N"""
    gpu_runtime: Literal["cuda", "rocm"] = "cuda"
    """GPU driver libraries that the container runtime adds to the image"""
    cpus_per_node: Count
    """CPUs of one node, as Slurm counts them"""
    mem: Memory | None = None
    """memory that a job gets on a node, such as 480G; 0 means all memory of the node"""
    time: Duration
    """time limit of one job, [days-]HH:MM:SS"""
    max_ranks_per_node: Count | None = None
    """maximum number of ranks on a node; by default one per GPU, or one per CPU if it has no GPU"""
    container: Container | None = None
    """container image in which the ranks run"""
    modules: tuple[Line, ...] = ()
    """environment modules to load, with an image or instead of an image"""
    venv: AbsolutePath | None = None
    """Python environment to use instead of an image"""
    suite: Place | None = None
    """folder with a checkout of Lockstep; by default the copy in the image"""
    scratch: Scratch | None = None
    """folder for a job's data, or a variable such as $TMPDIR; by default the results folder"""
    stage_in: tuple[AbsolutePath, ...] = ()
    """files and folders that a job copies to scratch before it measures"""
    stage_image: StrictBool = False
    """whether each job first copies the image to the scratch folder of its nodes"""
    stage_cache: Scratch | None = None
    """folder on every node for staged files; they are deleted 30 days after their last use"""
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.=^,:-]+$")] | None = None
    """network interface that the ranks use, such as ib0"""
    env: dict[Variable, Line] = {}
    """environment variables of every rank, such as NCCL_DEBUG"""
    extra_directives: tuple[Extra, ...] = ()
    """options of sbatch"""
    directives: tuple[Option, ...] = ()
    """further options of sbatch; Lockstep does not check them"""
    launcher: Literal["srun", "torchrun"] = "srun"
    """program that starts ranks: srun (a task per rank) or torchrun (ranks share a node's CPUs)"""
    cpu_bind: Line = "cores"
    """value of --cpu-bind for the srun that starts the ranks"""
    mpi: Word = "none"
    """value of --mpi for the srun that starts the ranks"""
    srun_options: tuple[Option, ...] = ()
    """further options of srun; Lockstep does not check them"""
    shell_before: ShellLines = ""
    """shell lines that run before the first launch"""
    shell_after: ShellLines = ""
    """shell lines that run at the end of a job, even if the job fails"""
    template: AbsolutePath | None = None
    """Jinja file that extends "base.sh.j2" and replaces its blocks"""
    max_array_size: Annotated[StrictInt, Field(ge=2, le=4_000_001)] = 1001
    """MaxArraySize of `scontrol show config`"""
    tracker: Tracker | None = None
    """experiment tracker that receives the results"""
    cost_per_node_hour: Cost | None = None
    """price of a node-hour"""
    cost_per_gpu_hour: Cost | None = None
    """price of a GPU-hour, instead of a node-hour"""
    currency: Line | None = None
    """currency of the price, such as EUR"""

    _whole: "Site | None" = None  # None if the partition has no keys of its own

    @property
    def whole(self) -> "Site":
        """The site without the keys of its partition."""
        return self._whole or self

    @property
    def to_fill_in(self) -> tuple[str, ...]:
        return tuple(_placeholders(self))

    @property
    def limits(self) -> Partition:
        return self.partitions.get(str(self.partition), Partition())

    @property
    def limit_s(self) -> int | None:
        """Time of the partition's longest job, in seconds; None if it is not known."""
        return parse_limit(self.limits.time) if self.limits.time else None

    @property
    def time_s(self) -> int:
        """Time limit of a job in seconds: `time`, but at most the partition's limit."""
        time_s = parse_limit(self.time)
        return min(time_s, self.limit_s or time_s)

    @property
    def is_exclusive(self) -> bool:
        """Whether a job gets all GPUs of its nodes, whatever it asks for (sbatch(1))."""
        return "--exclusive" in self.extra_directives

    @property
    def features(self) -> str | None:
        """The value of sbatch's --constraint; `[a|b]` means the same feature on all nodes."""
        return f"[{'|'.join(self.gpu_types)}]" if self.gpu_types else self.constraint

    def choose_partition(self, name: str) -> Self:
        """Return the site with its jobs in another partition; raise ValueError if unknown."""
        known = sorted({*self.partitions, *filter(None, [self.partition])})
        if name not in known:
            partitions = ", ".join(known) or "none"
            raise ValueError(
                f"site {self.name} has no partition {name!r}; choose from "
                f"{partitions}, or add [partitions.{name}] to the site file"
            )
        whole = self.model_copy(update={"partition": name})
        changes = self.partitions.get(name, Partition()).changes
        if not changes:
            return whole
        site = whole.model_copy(update=changes)
        site._whole = whole  # noqa: SLF001, of the same class
        site.check_keys()
        return site

    def collecting_site(self) -> "Site":
        """Return the site of the collecting job, in `collect_partition` if that is set."""
        if self.collect_partition is None:
            return self
        # Keys of the partition that measures do not hold in another one.
        shared = tuple(o for o in self.extra_directives if o != "--exclusive")
        elsewhere = {"constraint": None, "gpu_types": (), "reservation": None, "mem": None}
        changes = {"partition": self.collect_partition, "extra_directives": shared, **elsewhere}
        changes |= self.partitions.get(self.collect_partition, Partition()).changes
        return self.whole.model_copy(update=changes)

    def rank_environment(self) -> dict[str, str]:
        return {name: self.interface for name in INTERFACE_NAMES if self.interface} | self.env

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        self.check_keys()
        return self

    def check_keys(self) -> None:
        """Raise ValueError for keys that exclude or need each other."""
        runtime = self.container.runtime if self.container else ""
        folders = [folder or "" for folder in (self.scratch, self.stage_cache)]
        variable = next((folder for folder in folders if folder.startswith("$")), "")
        names = [Path(path).name for path in self.stage_in]
        doubled = next((name for name in names if names.count(name) > 1), None)
        prices = [self.cost_per_node_hour, self.cost_per_gpu_hour]
        is_native, is_staged = self.container is None, bool(self.stage_in or self.stage_image)
        refusals = (
            (is_native and not (self.modules or self.venv),
             "container, modules and venv are all missing; set one of them"),
            (self.venv and not is_native, "container and venv exclude each other; keep one"),
            (runtime == "podman-hpc" and self.gpu_runtime == "rocm",
             "podman-hpc does not support GPUs with rocm; choose another runtime"),
            (is_native and self.suite is None,
             "modules and venv need the key 'suite'; set 'suite' to a checkout of Lockstep"),
            (self.gpu_type and not self.gpus_per_node,
             "gpu_type is set, but gpus_per_node is 0; remove gpu_type, or raise gpus_per_node"),
            (self.gpu_types and (self.gpu_type or self.constraint),
             "gpu_types excludes gpu_type and constraint; keep one of them"),
            (is_staged and self.scratch is None,
             "stage_in and stage_image are set, but the key 'scratch' is missing; set scratch"),
            (self.stage_image and is_native,
             "stage_image is set, but there is no [container]; remove stage_image"),
            (self.stage_image and runtime == "podman-hpc",
             "stage_image needs an image file, which podman-hpc does not have; remove stage_image"),
            (variable and runtime in ("podman-hpc", "pyxis"),
             f"{runtime} cannot expand {variable}; write the path of the folder"),
            (self.stage_cache and not is_staged,
             "stage_cache is set, but nothing is staged; set stage_in, or remove stage_cache"),
            (doubled, f"stage_in has two entries named {doubled!r}; rename one of them"),
            (None not in prices,
             "cost_per_node_hour and cost_per_gpu_hour exclude each other; keep one"),
            ((prices == [None, None]) != (self.currency is None),
             "a cost needs a currency, and a currency needs a cost; set both or neither"),
        )  # fmt: skip
        for is_refused, reason in refusals:
            if is_refused:
                raise ValueError(reason)


def _placeholders(table: BaseModel, before: str = "") -> Iterator[str]:
    for name, value in table:
        if isinstance(value, BaseModel):
            yield from _placeholders(value, f"{name}.")
        elif PLACEHOLDER.search(str(value)):
            yield f"{before}{name}"


def built_in() -> dict[str, Path]:
    """Return the sites that ship with the suite, name -> file."""
    folder = content.ROOT / "slurm_templates" / "sites"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(source: str, partition: str | None = None, *, is_draft: bool = False) -> Site:
    """Read a site by its path or built-in name, for a partition; None is that of its file.

    Keys to fill in raise ValueError, unless the site is a draft.
    """
    site = inputs.load(source, Site, built_in())
    if site.to_fill_in and not is_draft:
        keys = ", ".join(site.to_fill_in)
        raise ValueError(
            f"{source}: these keys are not filled in yet: {keys}; write "
            "your own values instead of the example's"
        )
    chosen = partition or site.partition
    return site.choose_partition(chosen) if chosen else site
