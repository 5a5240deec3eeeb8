"""What a result file says of a case and of its launch, and which values each field may have.

pytest-benchmark's JSON carries a `CaseRecord` under `extra_info["lockstep"]` of each entry, and a
`LaunchBlock` under its top-level key `lockstep`. The readers' checks and the JSON Schema that `make
docs` publishes follow from these dataclasses: pydantic asks each `About` for its limits and its
text. Readers keep keys that they do not know, so a file of a later minor change still loads; one of
another schema version is refused.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from lockstep.core import metrics, studies

# No count, rate or ratio of any machine is larger.
LARGEST_NUMBER = 1e30


class About:
    """What a field means, and the limits of its values.

    Args:
        text: One sentence for the published schema.
        limits: Limits as pydantic names them: ge, gt, le, lt, min_length, strict.
    """

    def __init__(self, text: str = "", **limits: Any) -> None:
        self.text = text
        self.limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return pydantic's schema of the annotated type, with the limits."""
        return {**handler(source), **self.limits}

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        """Return the JSON Schema of the annotated type, with the text."""
        return handler(schema) | ({"description": self.text} if self.text else {})


# JSON's true is no number, and a text of digits is none either: therefore `strict`.
Count = Annotated[int, About(strict=True, ge=1)]
Whole = Annotated[int, About(strict=True, ge=0)]
Amount = Annotated[float, About(strict=True, ge=0, le=LARGEST_NUMBER)]
Positive = Annotated[float, About(strict=True, ge=1 / LARGEST_NUMBER, le=LARGEST_NUMBER)]


def about(text: str, **default: Any) -> Any:
    """Return a field that a file may lack, with its text for the schema; it is None by default."""
    return field(**(default or {"default": None}), metadata={"description": text})


Number = Annotated[float, About(strict=True, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Fraction = Annotated[float, About(strict=True, ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One time through the training set, and the validation that followed it."""

    epoch: Annotated[Count, About("Which, counted from 1.")]
    steps: Annotated[Count, About("Updates.")]
    time_s: Annotated[
        Amount,
        About("Seconds from the barrier before the first update to the slowest rank's last one."),
    ]
    samples_per_s: Annotated[Amount, About("Samples of all ranks, counted once, over time_s.")]
    lr: Annotated[Amount, About("Learning rate of the last update.")]
    loss: Annotated[Number, About("Mean over updates and ranks, each before its update.")]
    validation_loss: Annotated[Number, About("Mean over the whole validation set.")]
    accuracy: Fraction | None = about(
        "Share of the validation set predicted right; null where there are no classes."
    )
    train_accuracy: Fraction | None = about(
        "Share of the epoch's samples predicted right, before each update."
    )
    validation_s: Annotated[Amount, About("Seconds of validation, slowest rank.")]
    checkpoint_s: Amount | None = about(
        "Seconds until the checkpoint was on disk; null if unknown."
    )
    peak_memory_bytes: Whole | None = about(
        "Of the rank that used most: on its GPU, or resident on a CPU."
    )
    is_warmup: bool = about(
        "Whether it is the first epoch of its process, in which libraries load and compile.",
        default=False,
    )
    ended: str = about("When it ended, UTC, ISO 8601.", default="")


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Files of parameters, named from the folder of the launch's journal."""

    last: str | None = about("Of the last epoch, which a resumed run goes on from.")
    best: str | None = about("Of the epoch with the best accuracy.")
    kept: list[str] = about("Of every n-th epoch, where they were asked for.", default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training run: what was asked of it, and how it went."""

    data: Annotated[str, About("The data set.")]
    samples_per_epoch: Annotated[Count, About("Samples of all ranks in an epoch, counted once.")]
    epochs: Annotated[Count, About("Epochs that were asked for.")]
    optimizer: Annotated[str, About("sgd, adam or adamw; the class of a workload's own.")]
    lr: Annotated[Amount, About("Learning rate after warm-up, scaled to the global batch.")]
    schedule: Annotated[str, About("How the rate falls over the epochs; none where it does not.")]
    warmup_epochs: Whole = about("Epochs over which the rate rises to lr.", default=0)
    weight_decay: Amount = about("Of the optimizer.", default=0.0)
    accumulation: Count = about("Micro-batches of an update.", default=1)
    augment: bool = about("Whether training images are cropped and mirrored.", default=False)
    seed: Whole = about("Of parameters, order and augmentation.", default=0)
    device_name: str = about("Device of rank 0.", default="")
    rows: list[Epoch] = about("The epochs, oldest first.", default_factory=list)
    best_accuracy: Fraction | None = about("Largest accuracy of an epoch.")
    target_accuracy: Fraction | None = about("The accuracy that was asked for.")
    time_to_target_s: Amount | None = about(
        "Seconds of training, validation left aside, to the end of the first epoch that reached "
        "the target; null where none did."
    )
    checkpoints: Checkpoints = about("Where its parameters are.", default_factory=Checkpoints)
    steps_file: str | None = about(
        "JSON lines of each step's loss and rate, named from the folder of the launch's journal."
    )


KEY = "lockstep"
SCHEMA_VERSION = 1

if TYPE_CHECKING:
    Study = str
else:
    Study = Literal[studies.NAMES]
# What a launch of a user's own tests is asked for; each says itself how it scales.
OWN = "own"
# Under these names a case's details have the settings in force of DDP and of its loader.
DDP_SETTINGS, LOADER_SETTINGS = "ddp_settings", "loader_settings"
Scaling = Literal["strong", "weak", "fixed-epochs"]

# No round lasts 30,000 years, nor as long as light needs for a third of a millimetre; what is
# computed from others may leave the range of numbers.
LONGEST_ROUND_S = 1e12
SHORTEST_ROUND_S = 1e-12

Text = Annotated[str, About(min_length=1)]
Seconds = Annotated[float, About(strict=True, gt=SHORTEST_ROUND_S, lt=LONGEST_ROUND_S)]
Rounds = Annotated[list[Seconds], About(min_length=1)]

# Two launches may be pooled or compared only if these facts of their provenance are equal.
POOLING_FACTS = (
    *("torch", "cuda", "nccl", "driver", "image_sha256", "device_names", "suite_sha256"),
    "launcher",
)
# A process that nothing started as a rank has none, nor has an older record: it differs from none.
MAY_BE_UNKNOWN = ("launcher",)


@dataclass(frozen=True)
class CaseRecord:
    """One measured case at one world size in one launch; `About` says what each field holds."""

    study: Annotated[Study, About("The question the case belongs to.")]
    workload: Annotated[Text, About("Name of the model, data set or collective measured.")]
    scaling: Annotated[
        Scaling | None,
        About("What the batch does as ranks are added; null where the batch has no meaning."),
    ]
    world_size: Annotated[Count, About("Number of ranks.")]
    num_nodes: Annotated[Count, About("Number of hosts.")]
    factors: Annotated[dict[str, Any], About("What the case varies, name to value, as in its id.")]
    sample_unit: Annotated[Text, About("What one sample is: images, tokens, bytes.")]
    samples_per_step: Annotated[Count, About("Samples of all ranks in one step, counted once.")]
    steps_per_round: Annotated[Count, About("Steps in one timed round.")]
    rank_round_s: Annotated[
        list[Rounds],
        About(
            "Seconds per round and rank, shape (num_ranks, num_rounds); a round lasts as long as "
            "its slowest rank.",
            min_length=1,
        ),
    ]
    precision: str | None = about(
        "Number format of the step, such as bf16; null where none is computed."
    )
    local_batch: Count | None = about("Samples per rank and optimizer update.")
    global_batch: Count | None = about("Samples over all ranks per optimizer update.")
    flop_per_sample: Amount | None = about(
        "Model FLOP per sample, forward and backward; null if unknown."
    )
    peak_flop_per_s: Amount | None = about(
        "Dense datasheet peak of one rank's device in FLOP/s; null if unknown."
    )
    peak_memory_bytes: list[Whole | None] = about(
        "Peak memory per rank: of tensors on the device, or resident on a CPU.",
        default_factory=list,
    )
    peak_reserved_bytes: list[Whole | None] = about(
        "Most memory per rank that PyTorch's allocator held of the device, in use or not; null "
        "on a CPU, absent in older files.",
        default_factory=list,
    )
    checks: dict[str, Any] = about(
        "What was verified outside the timed region, name to value.", default_factory=dict
    )
    details: dict[str, Any] = about(
        "What one study adds, such as real bucket sizes or busbw in GB/s.", default_factory=dict
    )
    flags: list[str | dict[str, Any]] = about(
        "Reasons for which the result is no proposal evidence: a kind and its facts; sentences "
        "in older files.",
        default_factory=list,
    )
    rank_hosts: list[str] = about(
        "Host of each rank that measured this case; absent in older files.", default_factory=list
    )
    workload_sha256: str | None = about(
        "Digest of the workload's source and model structure, and of the user's own test file; "
        "null where the suite alone defines what is measured."
    )
    position: Whole | None = about("Place in the order in which the launch runs its cases, from 0.")
    training: Training | None = about("How a training went; null where the case trains nothing.")

    @property
    def round_s(self) -> list[float]:
        """Each round's duration in seconds: the maximum over ranks."""
        return metrics.slowest_rank(self.rank_round_s)

    @property
    def elapsed_s(self) -> float:
        """Seconds in the timed region: the sum of the rounds."""
        return sum(self.round_s)

    @property
    def samples(self) -> int:
        """Samples of all ranks in the timed region."""
        return self.samples_per_step * self.steps_per_round * len(self.round_s)

    def to_dict(self) -> dict[str, Any]:
        """Return the block as written to JSON, with the numbers that follow from it."""
        samples_per_s = metrics.throughput(self.samples, self.elapsed_s)
        derived = {
            "schema": SCHEMA_VERSION,
            "samples": self.samples,
            "elapsed_s": self.elapsed_s,
            "mean_throughput_samples_per_s": samples_per_s,
            "mean_mfu": metrics.mfu(
                samples_per_s, self.flop_per_sample, self.peak_flop_per_s, self.world_size
            ),
        }
        return derived | asdict(self)


@dataclass(frozen=True, kw_only=True)
class Derived:
    """What a block holds beside the fields of its `CaseRecord`, from which it follows."""

    schema: Annotated[Literal[1], About("Version of this block; a reader refuses another one.")]
    samples: Annotated[
        Count,
        About(
            "Samples of all ranks in the timed region: samples_per_step x steps_per_round x rounds."
        ),
    ]
    elapsed_s: Annotated[Positive, About("Seconds in the timed region: the sum of the rounds.")]
    mean_throughput_samples_per_s: Annotated[Positive, About("samples / elapsed_s.")]
    mean_mfu: Annotated[
        Amount | None,
        About("Model FLOP/s over the peak of all ranks, a fraction; null where either is unknown."),
    ]


Cores = Annotated[list[Whole], About("Cores the process may run on.")]

CauseKind = Literal["fault", "skip", "silence", "consequence"]


@dataclass(frozen=True)
class RankFacts:
    """What one rank ran on."""

    rank: Whole | None = about("Rank.")
    local_rank: Whole | None = about("Rank on its host.")
    host: str | None = about("Host name.")
    pid: Whole | None = about("Process id.")
    device: str | None = about("cpu, or cuda with its index.")
    device_name: str | None = about("Name of the GPU, or of the processor.")
    cpu_model: str | None = about("Processor of the rank's host.")
    gpu_uuid: str | None = about("UUID of the GPU.")
    driver: str | None = about("NVIDIA driver of the host.")
    cores: Cores | None = None
    num_threads: Count | None = about("Threads torch computes with.")


@dataclass(frozen=True)
class Transport:
    """Which links NCCL used between ranks, as its own log of the launch's warm-up says."""

    nccl_log: str | None = about("Version of NCCL that wrote the log.")
    networks: list[str] = about("What it used between nodes, such as IB.", default_factory=list)
    adapters: list[str] = about(
        "InfiniBand ports, or providers of libfabric.", default_factory=list
    )
    transports: dict[str, Count] = about(
        "Transport, such as P2P/CUMEM or NET/IB/GDRDMA, to its links.", default_factory=dict
    )
    links: list[list[Any]] = about(
        "[rank that sends, rank that receives, transport] of each link.", default_factory=list
    )


@dataclass(frozen=True)
class Provenance:
    """Where a launch comes from."""

    lockstep_version: str | None = about("Version of the measuring code.")
    suite_sha256: str | None = about("Digest of the suite's measuring code.")
    git_commit: str | None = about(
        "Commit of the suite's checkout, or that its image was built of."
    )
    git_dirty: bool | None = about("Whether tracked files differ from that commit.")
    project_commit: str | None = about("Commit of the repository of one's own tests or workload.")
    project_dirty: bool | None = about("Whether tracked files differ from that commit.")
    command: list[str] = about(
        "Command line of rank 0, one argument per item.", default_factory=list
    )
    seed: int | None = about("Seed of parameters and data.")
    hostname: str | None = about("Host of rank 0.")
    os: str | None = about("Distribution.")
    kernel: str | None = about("Kernel release.")
    cpu_model: str | None = about("Processor of rank 0's host.")
    cores_per_node: Count | None = about("Logical cores of rank 0's host.")
    memory_bytes: Amount | None = about("Memory of rank 0's host.")
    python: str | None = about("Python version.")
    torch: str | None = about("torch version.")
    torchvision: str | None = about("torchvision version.")
    numpy: str | None = about("numpy version.")
    pytest: str | None = about("pytest version.")
    pytest_benchmark: str | None = about("pytest-benchmark version.")
    cuda: str | None = about("CUDA version of the torch build; null where every rank ran on a CPU.")
    cudnn: str | None = about("cuDNN version; null likewise.")
    nccl: str | None = about("NCCL version; null likewise.")
    driver: str | None = about("NVIDIA driver; null likewise, and all of them where hosts differ.")
    backend: str | None = about("Back end of torch.distributed.")
    wire_gb_per_s: Amount | None = about(
        "What the ports of rank 0's host that carry the ranks' messages carry together."
    )
    transport: Transport | None = about(
        "NCCL's links; null with another back end, or without its log."
    )
    threads_per_rank: Count | None = about("Threads of a rank.")
    launcher: str | None = about(
        "What started the ranks, as slurm (srun) and torchrun; null for one alone."
    )
    image_path: str | None = about("Container image; null outside one.")
    image_sha256: str | None = about(
        "Its SHA-256; null outside one, or where it could not be read."
    )
    device_names: list[str] | None = about("Names of the devices of all ranks, each once.")
    slurm: dict[str, Any] | None = about("Variables of the Slurm job and step; empty outside one.")
    environment: dict[str, str] | None = about("Variables that steer torch and its communication.")
    dropped_environment: list[str] | None = about(
        "Names of variables that the job's script set and the image did not get."
    )
    ranks: list[RankFacts] | None = about("What each rank ran on, in rank order.")


def name_rank(rank: int, host: str, device: str) -> str:
    """Return a rank with its host and device."""
    return f"rank {rank} on {host} ({device})"


@dataclass(frozen=True)
class FailureCause:
    """What one rank met where a case failed."""

    rank: Whole
    host: str
    device: str
    kind: Annotated[
        CauseKind,
        About("Its own fault, a skip of its own, no answer, or only what another rank did."),
    ]
    error: str = about(
        "Its error without the traceback, or why it skips; empty for no answer.", default=""
    )

    def sentence(self, reason: str | None = None, stacks: str = "") -> str:
        """Return what the rank met.

        Args:
            reason: What pytest shows of it, which may be a traceback; else the error's first line.
            stacks: Where the stacks of a silent rank may lie.
        """
        who = name_rank(self.rank, self.host, self.device)
        if self.kind == "silence":
            return f"{who} did not answer in time{stacks}"
        if reason is None:
            reason = next(iter(self.error.strip().splitlines()), "it gave no reason")
        if self.kind == "skip":
            return f"{who} skips, but not all ranks do: {reason}"
        return f"{who}: {reason}"


def failure_gist(failed: Mapping[str, Any]) -> str:
    """Return which ranks made a case fail, and how, without tracebacks."""
    if causes := [FailureCause(**cause) for cause in failed.get("causes") or ()]:
        first = [cause for cause in causes if cause.kind != "consequence"]
        return "; ".join(cause.sentence() for cause in first or causes)
    lines = str(failed.get("reason", "")).strip().splitlines()
    return lines[-1] if lines else "no reason recorded"


@dataclass(frozen=True)
class Unmeasured:
    """A case without a result, and why."""

    case: str
    reason: str = ""
    crashed: bool = about("True where a rank or the whole launch ended with it.", default=False)
    causes: list[FailureCause] = about(
        "What ranks met, the first to blame first; absent if unknown.", default_factory=list
    )
    failure: dict[str, Any] | None = about(
        "Of a program: kind (exit-code, timeout, sanity, missing-metric), run, and its facts."
    )


@dataclass(frozen=True)
class LeftBehind:
    """What a case left changed in its process, on one rank."""

    case: str
    rank: Whole
    kind: str
    is_restored: Annotated[bool, About("Whether it was put back.")]
    before: Any = about("Its value before the case.")
    after: Any = about("Its value after the case.")


@dataclass(frozen=True)
class Session:
    """When and where one session of a launch ran."""

    started: str | None = None
    rank_hosts: list[str | None] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchBlock:
    """The facts of one launch."""

    schema: Literal[1] | None = about("Version of this block.")
    complete: bool | None = about(
        "Whether every expected case was measured, or skipped for a reason."
    )
    launch: str | None = about("Name of the launch in its campaign.")
    campaign: str | None = about("Name of the campaign.")
    repeat: int | str | None = about("Which of the point's repeats this is.")
    size: str | None = about("Name of the size measured.")
    rounds: Count | None = about("Timed rounds of a case.")
    warmup_rounds: Whole | None = about("Untimed rounds before them.")
    order_seed: Whole | None = about("Seed of the random order in which the launch runs its cases.")
    part: list[Count] | None = about(
        "[K, N] where the launch holds the K-th of N parts of the selected cases, which are "
        "every N-th from the K-th on; null where it holds all."
    )
    world_size: Count | None = about("Number of ranks.")
    num_nodes: Count | None = about("Number of hosts.")
    started: str | None = about("When the session began, as ISO 8601.")
    provenance: Provenance | None = None
    expected: list[str] | None = about("Every case the launch was to measure.")
    skipped: list[Unmeasured] | None = about("Cases that do not apply here, and why.")
    left_behind: list[LeftBehind] | None = about("What cases left changed in their processes.")
    sessions: list[Session] | None = about(
        "When and where each session of the launch ran: the first, and those that resumed it. "
        "The block's provenance is that of the last; each case names its own hosts."
    )
    in_flight: str | None = about(
        "The case that was begun and had not ended when this was written."
    )
    failed: list[Unmeasured] | None = about("Cases that failed, and why.")


def sized_name(name: str, world_size: int) -> str:
    """Return a benchmark's name with the world size in its parameters.

    pytest-benchmark compares files by name, so the name must tell the world sizes apart.
    """
    suffix = _size_parameter(world_size)
    return f"{name[:-1]}-{suffix}" if name.endswith("]") else f"{name}[{suffix}"


def case_name(entry: Mapping[str, Any]) -> str:
    """Return what a case is called at every world size; older files hold no other name."""
    name = str(entry["name"])
    extra = entry.get("extra_info")
    block = extra.get(KEY) if isinstance(extra, dict) else None
    suffix = _size_parameter(block.get("world_size") if isinstance(block, dict) else None)
    if name.endswith(f"[{suffix}"):
        return name.removesuffix(f"[{suffix}")
    return f"{name.removesuffix(f'-{suffix}')}]" if name.endswith(f"-{suffix}") else name


def _size_parameter(world_size: object) -> str:
    return f"world_size={world_size}]"


def problem(case: CaseRecord) -> str:
    """Return what no reader could count or time of a record, as a sentence, or nothing.

    A float count or a unit of another type comes from a workload's own fields, such as
    `samples_per_item`.
    """
    if not (isinstance(case.sample_unit, str) and case.sample_unit):
        return f"sample_unit is {case.sample_unit!r}; give a text, such as 'images'"
    for name in _COUNTS:
        count = getattr(case, name)
        if name in _MAY_BE_UNKNOWN and count is None:
            continue
        if type(count) is not int or count < 1:
            return (
                f"{name} is {count!r}, which is no whole number of 1 or more; give whole numbers "
                "of items, and of samples in an item"
            )
    return _rounds_problem(case.rank_round_s)


def _rounds_problem(rank_round_s: Any) -> str:
    ranks = rank_round_s if isinstance(rank_round_s, list) else []
    lengths = {len(rounds) if isinstance(rounds, list) else 0 for rounds in ranks}
    if len(lengths) != 1 or 0 in lengths:
        return (
            f"every rank must hold the same number of rounds, found {sorted(lengths)}; record what "
            "lockstep.time returned"
        )
    for rank, rounds in enumerate(ranks):
        for number, seconds in enumerate(rounds):
            is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
            if not (is_number and SHORTEST_ROUND_S < seconds < LONGEST_ROUND_S):
                return (
                    f"round {number} of rank {rank} is {str(seconds)[:80]} s, which is not a "
                    "positive time; measure again"
                )
    return ""


_COUNTS = (
    "samples_per_step", "steps_per_round", "world_size", "num_nodes", "local_batch", "global_batch",
)  # fmt: skip
_MAY_BE_UNKNOWN = ("local_batch", "global_batch")


def check_schema(block: Mapping[str, Any], where: str) -> None:
    """Refuse a block of another schema version.

    Raises:
        ValueError: The version is missing or not `SCHEMA_VERSION`.
    """
    version = block.get("schema")
    if version != SCHEMA_VERSION:
        shown = repr(version)[:80]
        raise ValueError(
            f"{where}: lockstep schema {shown} is not the schema {SCHEMA_VERSION} this version "
            "reads; use the Lockstep release that wrote the file, or measure again"
        )


def pooling_facts(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that must agree before two launches are pooled."""
    return {name: provenance.get(name) for name in POOLING_FACTS}


Data = Literal["synthetic", "real"]
# Under this name a case has it in its details.
BASIS = "basis"


@dataclass(frozen=True)
class Basis:
    """What a step is made of.

    Attributes:
        data: What its batches hold; None where nobody says.
        times_input: Whether the timed region reads them; None of a step of the user's own.
        optimizer: Name of the optimizer's class; None of a step of the user's own.
    """

    data: Data | None = None
    times_input: bool | None = None
    optimizer: str | None = None

    @property
    def is_bound(self) -> bool | None:
        """Whether it leaves out what production has, so that rates are an upper bound."""
        if self.times_input is None:
            return None
        return not self.times_input or self.data != "real"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self)


def basis_of(details: Mapping[str, Any]) -> Basis | None:
    """Return the basis that a case's details hold; None where an older release wrote none.

    Results made before there was this record have `input` in words, and never timed it.
    """
    given = details.get(BASIS)
    if not isinstance(given, dict):
        return None
    data, timed, optimizer = (given.get(name) for name in ("data", "times_input", "optimizer"))
    return Basis(
        data=data if data in get_args(Data) else None,
        times_input=False if "input" in given else timed if isinstance(timed, bool) else None,
        optimizer=optimizer if isinstance(optimizer, str) else None,
    )
