"""What a case adds to pytest-benchmark's JSON: one versioned block, under one key.

Each benchmark entry carries a `CaseRecord` under `extra_info["lockstep"]`; the file carries the
facts of its launch under the top-level key `lockstep`, a `launch_block.LaunchBlock`. Readers and
the JSON Schema that `make docs` publishes follow from these classes. Readers keep keys that they do
not know, so a file of a later minor change still loads; one of another schema version is refused.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from lockstep.core import metrics, studies
from lockstep.core.described import LARGEST_NUMBER, About, Amount, Count, Positive, Whole

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
    accuracy: Annotated[
        Fraction | None,
        About("Share of the validation set predicted right; null where there are no classes."),
    ] = None
    train_accuracy: Annotated[
        Fraction | None, About("Share of the epoch's samples predicted right, before each update.")
    ] = None
    validation_s: Annotated[Amount, About("Seconds of validation, slowest rank.")]
    checkpoint_s: Annotated[
        Amount | None, About("Seconds until the checkpoint was on disk; null if unknown.")
    ] = None
    peak_memory_bytes: Annotated[
        Whole | None, About("Of the rank that used most: on its GPU, or resident on a CPU.")
    ] = None
    is_warmup: Annotated[
        bool, About("Whether it is the first epoch of its process, which loads and compiles.")
    ] = False
    ended: Annotated[str, About("When it ended, UTC, ISO 8601.")] = ""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Files of parameters, named from the folder of the launch's journal."""

    last: Annotated[str | None, About("Of the last epoch, which a resumed run goes on from.")] = (
        None
    )
    best: Annotated[str | None, About("Of the epoch with the best accuracy.")] = None
    kept: Annotated[list[str], About("Of every n-th epoch, where they were asked for.")] = field(
        default_factory=list
    )


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training run: what was asked of it, and how it went."""

    data: Annotated[str, About("The data set.")]
    samples_per_epoch: Annotated[Count, About("Samples of all ranks in an epoch, counted once.")]
    epochs: Annotated[Count, About("Epochs that were asked for.")]
    optimizer: Annotated[str, About("sgd, adam or adamw; the class of a workload's own.")]
    lr: Annotated[Amount, About("Learning rate after warm-up, scaled to the global batch.")]
    schedule: Annotated[str, About("How the rate falls over the epochs; none where it does not.")]
    warmup_epochs: Annotated[Whole, About("Epochs over which the rate rises to lr.")] = 0
    weight_decay: Annotated[Amount, About("Of the optimizer.")] = 0.0
    accumulation: Annotated[Count, About("Micro-batches of an update.")] = 1
    augment: Annotated[bool, About("Whether training images are cropped and mirrored.")] = False
    seed: Annotated[Whole, About("Of parameters, order and augmentation.")] = 0
    device_name: Annotated[str, About("Device of rank 0.")] = ""
    rows: Annotated[list[Epoch], About("The epochs, oldest first.")] = field(default_factory=list)
    best_accuracy: Annotated[Fraction | None, About("Largest accuracy of an epoch.")] = None
    target_accuracy: Annotated[Fraction | None, About("The accuracy that was asked for.")] = None
    time_to_target_s: Annotated[
        Amount | None,
        About(
            "Seconds of training, validation left aside, to the end of the first epoch that "
            "reached the target; null where none did."
        ),
    ] = None
    checkpoints: Annotated[Checkpoints, About("Where its parameters are.")] = field(
        default_factory=Checkpoints
    )
    steps_file: Annotated[
        str | None,
        About(
            "JSON lines of each step's loss and rate, named from the folder of the launch's "
            "journal."
        ),
    ] = None


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
    precision: Annotated[
        str | None, About("Number format of the step, such as bf16; null where none is computed.")
    ] = None
    local_batch: Annotated[Count | None, About("Samples per rank and optimizer update.")] = None
    global_batch: Annotated[Count | None, About("Samples over all ranks per optimizer update.")] = (
        None
    )
    flop_per_sample: Annotated[
        Amount | None, About("Model FLOP per sample, forward and backward; null if unknown.")
    ] = None
    peak_flop_per_s: Annotated[
        Amount | None,
        About("Dense datasheet peak of one rank's device in FLOP/s; null if unknown."),
    ] = None
    peak_memory_bytes: Annotated[
        list[Whole | None],
        About("Peak memory per rank: of tensors on the device, or resident on a CPU."),
    ] = field(default_factory=list)
    peak_reserved_bytes: Annotated[
        list[Whole | None],
        About(
            "Most memory per rank that PyTorch's allocator held of the device, in use or not; "
            "null on a CPU, absent in older files."
        ),
    ] = field(default_factory=list)
    checks: Annotated[
        dict[str, Any], About("What was verified outside the timed region, name to value.")
    ] = field(default_factory=dict)
    details: Annotated[
        dict[str, Any],
        About("What one study adds, such as real bucket sizes or busbw in GB/s."),
    ] = field(default_factory=dict)
    flags: Annotated[
        list[str | dict[str, Any]],
        About(
            "Reasons for which the result is no proposal evidence: a kind and its facts; "
            "sentences in older files."
        ),
    ] = field(default_factory=list)
    rank_hosts: Annotated[
        list[str], About("Host of each rank that measured this case; absent in older files.")
    ] = field(default_factory=list)
    workload_sha256: Annotated[
        str | None,
        About(
            "Digest of the workload's source and model structure, and of the user's own test "
            "file; null where the suite alone defines what is measured."
        ),
    ] = None
    position: Annotated[
        Whole | None, About("Place in the order in which the launch runs its cases, from 0.")
    ] = None
    training: Annotated[
        Training | None, About("How a training went; null where the case trains nothing.")
    ] = None

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
