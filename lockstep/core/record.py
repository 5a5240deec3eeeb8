"""The records in a result file: of a case and of its launch, and the values of each field.

From these dataclasses pydantic makes the readers' checks and the JSON Schema, with each `About`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from lockstep.core import metrics, studies

# No count, rate or ratio of any machine is larger.
LARGEST_NUMBER = 1e30


class About:
    """A field's text for the schema, and its limits as pydantic names them: ge, gt, strict, ..."""

    def __init__(self, text: str = "", **limits: Any) -> None:
        self.text, self.limits = text, limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), **self.limits}

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        return handler(schema) | ({"description": self.text} if self.text else {})


# Strict: JSON's true and a text of digits are no numbers.
Count = Annotated[int, About(strict=True, ge=1)]
Whole = Annotated[int, About(strict=True, ge=0)]
Amount = Annotated[float, About(strict=True, ge=0, le=LARGEST_NUMBER)]
Positive = Annotated[float, About(strict=True, ge=1 / LARGEST_NUMBER, le=LARGEST_NUMBER)]


def about(text: str, **default: Any) -> Any:
    """Return a field that a file may lack, with its text for the schema; it is None by default."""
    return field(**(default or {"default": None}), metadata={"description": text})


about_list = partial(about, default_factory=list)
about_dict = partial(about, default_factory=dict)
Number = Annotated[float, About(strict=True, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Fraction = Annotated[float, About(strict=True, ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One time through the training set, and the validation that followed it."""

    epoch: Annotated[Count, About("Number of the epoch; the first is 1.")]
    steps: Annotated[Count, About("Number of optimizer updates in the epoch.")]
    time_s: Annotated[
        Amount,
        About("Seconds of the epoch, from the entry barrier until the slowest rank has finished."),
    ]
    samples_per_s: Annotated[
        Amount, About("Samples per second over all ranks; each sample counts once.")
    ]
    lr: Annotated[Amount, About("Learning rate of the last update.")]
    loss: Annotated[
        Number, About("Training loss before each update, as the mean over updates and ranks.")
    ]
    data_s: Amount | None = about("Seconds that the steps waited for batches; mean over ranks.")
    forward_s: Amount | None = about("Seconds of the forward passes; mean over ranks.")
    backward_s: Amount | None = about("Seconds of the backward passes; mean over ranks.")
    communication_s: Amount | None = about(
        "Seconds from the start of a step's first all-reduce to the end of its last all-reduce, "
        "including time hidden by computing; mean over ranks. Null on a GPU, where this "
        "measurement would delay the steps."
    )
    validation_loss: Annotated[Number, About("Mean loss over the whole validation set.")]
    accuracy: Fraction | None = about(
        "Fraction of correct predictions in validation; null without validation."
    )
    train_accuracy: Fraction | None = about("Fraction of training samples predicted correctly.")
    validation_s: Annotated[Amount, About("Seconds that validation took on the slowest rank.")]
    checkpoint_s: Amount | None = about("Seconds to write the checkpoint; null if unknown.")
    peak_memory_bytes: Whole | None = about(
        "Peak memory in bytes of the rank that needed most: GPU memory, or resident memory on "
        "a CPU."
    )
    is_warmup: bool = about(
        "Whether the epoch is the first that its process trained.", default=False
    )
    ended: str = about("Time at which the epoch ended, UTC, ISO 8601.", default="")


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Files of parameters, named from the folder of the launch's journal."""

    last: str | None = about(
        "Checkpoint file of the last epoch, from which a resumed run continues."
    )
    best: str | None = about("File with the parameters of the epoch with the best accuracy.")
    kept: list[str] = about_list(
        "Files with the parameters of every n-th epoch. Without checkpoint_every the list is empty."
    )


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training run: its settings, its epochs and its result."""

    data: Annotated[str, About("The data set.")]
    samples_per_epoch: Annotated[Count, About("Samples that all ranks train on in an epoch.")]
    epochs: Annotated[Count, About("Epochs to train.")]
    optimizer: Annotated[str, About("Optimizer: sgd, adam, adamw, or a class of the workload.")]
    lr: Annotated[Amount, About("Learning rate after warm-up, scaled to the global batch.")]
    schedule: Annotated[
        str,
        About("Name of the schedule by which the learning rate falls; none for a constant rate."),
    ]
    warmup_epochs: Whole = about("Epochs over which the learning rate rises to lr.", default=0)
    weight_decay: Amount = about("Weight decay of the optimizer.", default=0.0)
    accumulation: Count = about("Number of micro-batches per update.", default=1)
    augment: bool = about("Whether training images are cropped and mirrored.", default=False)
    seed: Whole = about("Random seed of parameters, order of samples and augmentation.", default=0)
    device_name: str = about("Device of rank 0.", default="")
    rows: list[Epoch] = about_list("The trained epochs, the first epoch first.")
    best_accuracy: Fraction | None = about("Highest accuracy of any epoch.")
    target_accuracy: Fraction | None = about("Validation accuracy to reach; null without a target.")
    time_to_target_s: Amount | None = about(
        "Seconds of training until target_accuracy was reached; null if it was never reached."
    )
    checkpoints: Checkpoints = about(
        "Files of the trained parameters.", default_factory=Checkpoints
    )
    steps_file: str | None = about("JSON Lines file with the loss and learning rate of each step.")


def time_to(target: float | None, rows: Sequence[Epoch]) -> float | None:
    """Return the seconds of training until the end of the first epoch that reached an accuracy."""
    ends = zip(rows, accumulate(row.time_s for row in rows), strict=True)
    reached = (end_s for row, end_s in ends if target and (row.accuracy or 0.0) >= target)
    return next(reached, None)


KEY = "lockstep"
SCHEMA_VERSION = 1

if TYPE_CHECKING:
    Study = str
else:
    Study = Literal[studies.NAMES]
# The study of a user's own tests, each of which sets its scaling.
OWN = "own"
# Under these names a case's details have the settings in force of DDP and of its loader.
DDP_SETTINGS, LOADER_SETTINGS = "ddp_settings", "loader_settings"
Scaling = Literal[studies.WorkScaling, "fixed-epochs"]
# The schema of accounting.json, and each amount of a job in it -> its unit. Slurm bills the last,
# before a QOS's usage factor.
ACCOUNTING_SCHEMA = 2
ACCOUNTED = {
    "node_hours": "node-hours", "cpu_hours": "CPU-hours", "gpu_hours": "GPU-hours",
    "billing_hours": "hours of TRES billing",
}  # fmt: skip

# Outside this range a round is an error, and arithmetic may overflow.
SHORTEST_ROUND_S, LONGEST_ROUND_S = 1e-12, 1e12

Text = Annotated[str, About(min_length=1)]
Seconds = Annotated[float, About(strict=True, gt=SHORTEST_ROUND_S, lt=LONGEST_ROUND_S)]
Rounds = Annotated[list[Seconds], About(min_length=1)]

# Two launches may be pooled or compared only if these facts of their provenance are equal.
POOLING_FACTS = (
    "torch", "cuda", "nccl", "driver", "image_sha256", "device_names", "suite_sha256", "launcher",
)  # fmt: skip
# Absent in older records and for a process that no launcher started; absent equals any value.
MAY_BE_UNKNOWN = ("launcher",)


@dataclass(frozen=True)
class CaseRecord:
    """One measured case at one world size in one launch; `About` says what each field holds."""

    study: Annotated[Study, About("The study to which the case belongs.")]
    workload: Annotated[Text, About("Name of the model, data set or collective that was measured.")]
    scaling: Annotated[
        Scaling | None, About("How the work grows with the number of ranks; null if unknown.")
    ]
    world_size: Annotated[Count, About("Number of ranks.")]
    num_nodes: Annotated[Count, About("Number of hosts.")]
    factors: Annotated[dict[str, Any], About("Name and value of each factor, as in the case's id.")]
    sample_unit: Annotated[Text, About("Unit of a sample, such as images, tokens or bytes.")]
    samples_per_step: Annotated[Count, About("Samples that all ranks process in one step.")]
    steps_per_round: Annotated[Count, About("Number of steps in one timed round.")]
    rank_round_s: Annotated[
        list[Rounds], About("Seconds, shape (num_ranks, num_rounds).", min_length=1)
    ]
    precision: str | None = about(
        "Precision of the step, such as bf16; null if the step has no precision."
    )
    local_batch: Count | None = about("Samples per optimizer update on each rank.")
    global_batch: Count | None = about("Samples per optimizer update over all ranks.")
    flop_per_sample: Amount | None = about("Model FLOP per sample, forward and backward, or null.")
    peak_flop_per_s: Amount | None = about(
        "Dense peak FLOP/s of a rank's device by its datasheet; null if unknown."
    )
    peak_memory_bytes: list[Whole | None] = about_list(
        "Peak memory of each rank in bytes: tensors on a GPU, or resident memory on a CPU."
    )
    peak_reserved_bytes: list[Whole | None] = about_list(
        "Peak GPU memory in bytes that PyTorch's allocator held on each rank; null on a CPU."
    )
    checks: dict[str, Any] = about_dict(
        "Results of the checks that ran outside the timed region, by name."
    )
    details: dict[str, Any] = about_dict(
        "Further values that this study measures, such as busbw in GB/s."
    )
    flags: list[str | dict[str, Any]] = about_list(
        "Flags: reasons why the result is not evidence. A flag has a kind and facts; in older "
        "files a flag is a sentence."
    )
    rank_hosts: list[str] = about_list("Host of each rank; empty in older files.")
    workload_sha256: str | None = about(
        "SHA-256 of the user's own workload or test; null if there is none."
    )
    position: Whole | None = about(
        "Position of the case in the order in which the launch ran its cases; the first is 0."
    )
    training: Training | None = about(
        "Settings, epochs and result of a training run; null for all other cases."
    )

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
        return self.samples_per_step * self.steps_per_round * len(self.round_s)

    def to_dict(self) -> dict[str, Any]:
        samples_per_s = metrics.throughput(self.samples, self.elapsed_s)
        flop, peak = self.flop_per_sample, self.peak_flop_per_s
        derived = {
            "schema": SCHEMA_VERSION,
            "samples": self.samples,
            "elapsed_s": self.elapsed_s,
            "mean_throughput_samples_per_s": samples_per_s,
            "mean_mfu": metrics.mfu(samples_per_s, flop, peak, self.world_size),
        }
        return derived | asdict(self)


@dataclass(frozen=True, kw_only=True)
class Derived:
    """Fields of a block that follow from those of its `CaseRecord`."""

    schema: Annotated[
        Literal[1],
        About("Schema version of a case's record; readers refuse other versions."),
    ]
    samples: Annotated[
        Count, About("Number of timed samples: samples_per_step x steps_per_round x rounds.")
    ]
    elapsed_s: Annotated[Positive, About("Seconds in the timed region: the sum of the rounds.")]
    mean_throughput_samples_per_s: Annotated[Positive, About("samples / elapsed_s.")]
    mean_mfu: Annotated[
        Amount | None, About("Model FLOP/s divided by all ranks' peak FLOP/s; null if unknown.")
    ]


Cores = Annotated[list[Whole], About("Numbers of the cores on which the process may run.")]

CauseKind = Literal["fault", "skip", "silence", "consequence"]


@dataclass(frozen=True)
class RankFacts:
    """The host, device and cores of one rank."""

    rank: Whole | None = about("Rank of the process in the process group.")
    local_rank: Whole | None = about("Local rank: number of the rank on its host.")
    host: str | None = about("Host name.")
    pid: Whole | None = about("Process id.")
    device: str | None = about(
        "Device of the rank: cpu, or cuda with the GPU's index, such as cuda:0."
    )
    device_name: str | None = about("Name of the rank's GPU, or of its processor.")
    cpu_model: str | None = about("Processor of the rank's host.")
    gpu_uuid: str | None = about("UUID of the GPU.")
    driver: str | None = about("Version of the NVIDIA driver on the rank's host.")
    cores: Cores | None = None
    num_threads: Count | None = about("Number of threads with which torch computes.")


@dataclass(frozen=True)
class Transport:
    """Which links NCCL used between ranks, as its own log of the launch's warm-up says."""

    nccl_log: str | None = about("Version of NCCL that wrote the log.")
    networks: list[str] = about_list("Networks that NCCL used between nodes, such as IB.")
    adapters: list[str] = about_list(
        "Adapters that NCCL used: InfiniBand ports, or libfabric providers."
    )
    transports: dict[str, Count] = about_dict(
        "Number of links of each transport, such as NET/IB/GDRDMA."
    )
    links: list[list[Any]] = about_list("Sending rank, receiving rank and transport of each link.")


@dataclass(frozen=True)
class Provenance:
    """Where a launch comes from."""

    lockstep_version: str | None = about("Version of Lockstep that measured the launch.")
    suite_sha256: str | None = about("SHA-256 of the benchmark suite's measuring code.")
    git_commit: str | None = about("Git commit of the benchmark suite's checkout, or of its image.")
    git_dirty: bool | None = about("Whether tracked files differ from git_commit.")
    project_commit: str | None = about(
        "Git commit of the repository with the user's tests or workload."
    )
    project_dirty: bool | None = about("Whether tracked files differ from project_commit.")
    command: list[str] = about_list("Command line of rank 0, with one argument per item.")
    seed: int | None = about("Random seed of parameters and data.")
    hostname: str | None = about("Host of rank 0.")
    os: str | None = about("Distribution.")
    kernel: str | None = about("Kernel release.")
    cpu_model: str | None = about("Processor of rank 0's host.")
    cores_per_node: Count | None = about("Logical cores of rank 0's host.")
    memory_bytes: Amount | None = about("Memory of rank 0's host in bytes.")
    python: str | None = about("Python version.")
    torch: str | None = about("torch version.")
    torchvision: str | None = about("torchvision version.")
    numpy: str | None = about("numpy version.")
    pytest: str | None = about("pytest version.")
    pytest_benchmark: str | None = about("pytest-benchmark version.")
    cuda: str | None = about("CUDA version of the torch build; null where every rank ran on a CPU.")
    cudnn: str | None = about("cuDNN version; null where every rank ran on a CPU.")
    nccl: str | None = about("NCCL version; null where every rank ran on a CPU.")
    driver: str | None = about("NVIDIA driver of each host; null where every rank ran on a CPU.")
    gpu_topology: list[str] | None = about("Lines of nvidia-smi topo -m on rank 0's host.")
    nvlink: list[str] | None = about("Lines of nvidia-smi nvlink -s on rank 0's host.")
    backend: str | None = about("Back end of torch.distributed.")
    wire_gb_per_s: Amount | None = about("Data rate of the network ports that rank 0's host uses.")
    gpu_link_gb_per_s: Amount | None = about(
        "Data rate of NVLink or PCIe in one direction, by the GPU's datasheet."
    )
    transport: Transport | None = about("Links that NCCL used; null without NCCL or its log.")
    threads_per_rank: Count | None = about("Number of threads of each rank.")
    launcher: str | None = about(
        "Launcher of the ranks, such as slurm or torchrun; null if there is none."
    )
    image_path: str | None = about("Path of the container image; null without an image.")
    image_sha256: str | None = about(
        "SHA-256 of the container image; null without an image, or if it is unreadable."
    )
    device_names: list[str] | None = about("Names of the ranks' devices, each name once.")
    slurm: dict[str, Any] | None = about(
        "Environment variables of the Slurm job and step; empty outside a job."
    )
    environment: dict[str, str] | None = about(
        "Environment variables that control torch and its communication."
    )
    dropped_environment: list[str] | None = about(
        "The job's environment variables that did not reach the container image."
    )
    ranks: list[RankFacts] | None = about("Host, device and cores of each rank, in rank order.")


def are_apart(error: str) -> bool:
    """Whether torch complains about tensors on different devices."""
    if "Expected all tensors to be on the same device" in error:
        return True
    # A convolution names the types alone, which also differ where only the precision does.
    kinds = re.search(r"Input type \(torch\.(cuda)?.*\) and weight type \(torch\.(cuda)?", error)
    return kinds is not None and kinds[1] != kinds[2]


def name_rank(rank: int, host: str, device: str) -> str:
    return f"rank {rank} on {host} ({device})"


@dataclass(frozen=True)
class FailureCause:
    """The failure, or the consequence of a failure, on one rank of a case."""

    rank: Whole
    host: str
    device: str
    kind: Annotated[
        CauseKind,
        About(
            "Kind of failure. fault: the rank failed; skip: the rank skipped the case; silence: "
            "the rank did not answer; consequence: the rank failed because another rank failed."
        ),
    ]
    error: str = about(
        "The rank's error without its traceback; empty if the rank did not answer.", default=""
    )

    def sentence(self, reason: str | None = None, stacks: str = "") -> str:
        """Return the failure in a sentence: the first line of its error, or the given `reason`.

        `stacks` says where the stacks of a silent rank may lie.
        """
        rank = name_rank(self.rank, self.host, self.device)
        if self.kind == "silence":
            return f"{rank} did not answer in time{stacks}"
        if reason is None:
            reason = next(iter(self.error.strip().splitlines()), "the rank gave no reason")
        if self.kind == "skip":
            return f"{rank} skipped the case, but other ranks did not: {reason}"
        if not are_apart(self.error):
            return f"{rank}: {reason}"
        cure = (
            "the model and the batch are on different devices; move both to the same device "
            "with .to(device)"
        )
        return f"{rank}: {reason}" + ("\n" if "\n" in reason else "; ") + cure


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
    crashed: bool = about("Whether a rank or the launch crashed during the case.", default=False)
    causes: list[FailureCause] = about_list("Failures of ranks; the rank at fault comes first.")
    failure: dict[str, Any] | None = about(
        "How a measured program failed: kind of failure, number of the run, facts."
    )


@dataclass(frozen=True)
class LeftBehind:
    """What a case left changed in its process, on one rank."""

    case: str
    rank: Whole
    kind: str
    is_restored: Annotated[bool, About("Whether Lockstep restored the old value after the case.")]
    before: Any = about("Value of the changed setting before the case.")
    after: Any = about("Value of the changed setting after the case.")


@dataclass(frozen=True)
class Session:
    """When and where one session of a launch ran."""

    started: str | None = None
    rank_hosts: list[str | None] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchBlock:
    """The facts of one launch."""

    schema: Literal[1] | None = about("Schema version of a launch's record.")
    complete: bool | None = about("Whether every expected case was measured or skipped.")
    launch: str | None = about("Name of the launch in its campaign.")
    campaign: str | None = about("Name of the campaign.")
    repeat: int | str | None = about("Number of the repeat to which the launch belongs.")
    size: str | None = about("Name of the size, which sets the amount of work, such as laptop.")
    rounds: Count | None = about("Number of timed rounds of each case.")
    warmup_rounds: Whole | None = about("Number of untimed rounds before the timed rounds.")
    order_seed: Whole | None = about("Seed of the random order in which the launch runs its cases.")
    part: list[Count] | None = about(
        "[K, N] if the launch measures only part K of N parts of its cases, else null."
    )
    world_size: Count | None = about("Number of ranks.")
    num_nodes: Count | None = about("Number of hosts.")
    started: str | None = about("Time at which the session began, UTC, ISO 8601.")
    provenance: Provenance | None = None
    expected: list[str] | None = about("All cases that the launch is to measure.")
    skipped: list[Unmeasured] | None = about("Cases that the launch skipped, and why.")
    left_behind: list[LeftBehind] | None = about("Settings that cases changed and did not restore.")
    sessions: list[Session] | None = about("Start and hosts of each session of the launch.")
    in_flight: str | None = about("The case that began but did not end; null if there is none.")
    failed: list[Unmeasured] | None = about("Cases that failed, and the reasons.")


def sized_name(name: str, world_size: int) -> str:
    """Return a benchmark's name with the world size in its parameters.

    pytest-benchmark compares files by name, so the name must tell the world sizes apart.
    """
    suffix = _size_parameter(world_size)
    return f"{name[:-1]}-{suffix}" if name.endswith("]") else f"{name}[{suffix}"


def case_name(entry: Mapping[str, Any]) -> str:
    """Return a case's name without the world size; a name in older files has none."""
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
    """Return what is wrong with a record, as a sentence; empty if nothing.

    Wrong types come from a workload's own fields, such as `samples_per_item`.
    """
    if not (isinstance(case.sample_unit, str) and case.sample_unit):
        return f"sample_unit is {case.sample_unit!r}, but must be a text, such as 'images'"
    counts = ("samples_per_step", "steps_per_round", "world_size", "num_nodes")
    for name in (*counts, "local_batch", "global_batch"):
        count = getattr(case, name)
        if (type(count) is int and count >= 1) or (count is None and name not in counts):
            continue
        return (
            f"{name} is {count!r}, but must be a whole number of 1 or more; give whole numbers of "
            "items and of samples per item"
        )
    return _rounds_problem(case.rank_round_s)


def _rounds_problem(rank_round_s: Any) -> str:
    ranks = rank_round_s if isinstance(rank_round_s, list) else []
    lengths = {len(rounds) if isinstance(rounds, list) else 0 for rounds in ranks}
    if len(lengths) != 1 or 0 in lengths:
        counts = sorted(lengths)
        return (
            f"every rank must have the same number of rounds, but the ranks have {counts}; record "
            "the rounds that lockstep.time returned"
        )
    for rank, rounds in enumerate(ranks):
        for number, seconds in enumerate(rounds):
            is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
            if not (is_number and SHORTEST_ROUND_S < seconds < LONGEST_ROUND_S):
                duration = str(seconds)[:80]
                return (
                    f"round {number} of rank {rank} took {duration} s, which is not a positive "
                    "time; measure again"
                )
    return ""


def check_schema(block: Mapping[str, Any], where: str) -> None:
    version = block.get("schema")
    if version != SCHEMA_VERSION:
        schema = repr(version)[:80]
        raise ValueError(
            f"{where} has the Lockstep schema {schema}, but this version of Lockstep "
            f"reads schema {SCHEMA_VERSION}; use the version that wrote the file, or measure again"
        )


def pooling_facts(provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {name: provenance.get(name) for name in POOLING_FACTS}


Data = Literal["synthetic", "real"]
BASIS = "basis"  # the key of a basis in a case's details


@dataclass(frozen=True)
class Basis:
    """The contents of a step; a field is None for a user's own step, or if unknown."""

    data: Data | None = None  # kind of data in the batches
    times_input: bool | None = None  # whether the timed region reads them
    optimizer: str | None = None  # name of the optimizer's class

    @property
    def is_bound(self) -> bool | None:
        """Whether it leaves out a part of production, so that rates are an upper bound."""
        if self.times_input is None:
            return None
        return not self.times_input or self.data != "real"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def basis_of(details: Mapping[str, Any]) -> Basis | None:
    """Return the basis in a case's details; None where an older release wrote none.

    Older results have the key `input`, a sentence, and never timed their input.
    """
    basis = details.get(BASIS)
    if not isinstance(basis, dict):
        return None
    data, timed, optimizer = (basis.get(name) for name in ("data", "times_input", "optimizer"))
    return Basis(
        data=data if data in get_args(Data) else None,
        times_input=False if "input" in basis else timed if isinstance(timed, bool) else None,
        optimizer=optimizer if isinstance(optimizer, str) else None,
    )
