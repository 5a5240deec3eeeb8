"""What a case adds to pytest-benchmark's JSON: one versioned block, under one key.

Each benchmark entry carries a `CaseRecord` under `extra_info["lockstep"]`; the file carries the
facts of its launch under the top-level key `lockstep`. The published schema is
`record.schema.json` beside this file. Readers keep keys they do not know, so a file of a later
minor change still loads; a file of another schema version is refused.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from lockstep.vocabulary import metrics

KEY = "lockstep"
SCHEMA_VERSION = 1

STUDIES = (
    "strong",
    "weak",
    "precision",
    "bucket",
    "sensitivity",
    "accumulation",
    "loader",
    "collective",
)
# What a launch of a user's own tests is asked for; each says itself how it scales.
OWN = "own"
SCALINGS = ("strong", "weak", "fixed-epochs")

# No round lasts 30,000 years, nor as long as light needs for a third of a millimetre; what is
# computed from others may leave the range of numbers.
LONGEST_ROUND_S = 1e12
SHORTEST_ROUND_S = 1e-12

# Two launches may be pooled or compared only if these facts of their provenance are equal.
POOLING_FACTS = ("torch", "cuda", "nccl", "driver", "image_sha256", "device_names", "suite_sha256")


@dataclass(frozen=True)
class CaseRecord:
    """One measured case at one world size in one launch.

    Attributes:
        study: The question the case belongs to, one of `STUDIES`.
        workload: Name of the model, data set or collective measured.
        scaling: One of `SCALINGS`, or None where the batch has no meaning.
        world_size: Number of ranks.
        num_nodes: Number of hosts.
        factors: What the case varies, name -> value, as in its id.
        sample_unit: What one sample is: images, tokens, bytes.
        samples_per_step: Samples of all ranks in one step, counted once.
        steps_per_round: Steps in one timed round.
        rank_round_s: Seconds per round and rank, shape (num_ranks, num_rounds).
        precision: fp32, tf32, bf16 or fp16; None where nothing is computed.
        local_batch: Samples per rank and optimizer update.
        global_batch: Samples over all ranks per optimizer update.
        flop_per_sample: Model FLOP per sample, forward and backward; None if unknown.
        peak_flop_per_s: Datasheet peak of one rank's device; None if unknown.
        peak_memory_bytes: Peak memory per rank: of the device, or resident on a CPU.
        checks: What was verified outside the timed region, name -> value.
        details: What one study adds, such as real bucket sizes or busbw.
        flags: Reasons for which the result is no proposal evidence, each as `Flag.to_dict` has it;
            sentences in the first files.
        rank_hosts: Host of each rank that measured this case; empty in older files.
        workload_sha256: Digest of the workload's source and structure, and of the user's own test
            file; None where the suite alone defines what is measured.
        position: Place in the order in which the launch runs its cases, from 0.
    """

    study: str
    workload: str
    scaling: str | None
    world_size: int
    num_nodes: int
    factors: dict[str, Any]
    sample_unit: str
    samples_per_step: int
    steps_per_round: int
    rank_round_s: list[list[float]]
    precision: str | None = None
    local_batch: int | None = None
    global_batch: int | None = None
    flop_per_sample: float | None = None
    peak_flop_per_s: float | None = None
    peak_memory_bytes: list[int | None] = field(default_factory=list)
    checks: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    flags: list[Any] = field(default_factory=list)
    rank_hosts: list[str] = field(default_factory=list)
    workload_sha256: str | None = None
    position: int | None = None

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

    @classmethod
    def from_dict(cls, block: Mapping[str, Any], where: str) -> "CaseRecord":
        """Read a block back; unknown keys are left aside, a missing one is an error.

        Args:
            block: What stands under `extra_info["lockstep"]`.
            where: The file and entry, for the message.

        Raises:
            ValueError: The block is of another schema version, or lacks a field.
        """
        check_schema(block, where)
        known = {name: block[name] for name in _NAMES if name in block}
        missing = [name for name in _REQUIRED if name not in known]
        if missing:
            raise ValueError(
                f"{where}: the lockstep block lacks {', '.join(missing)}; every field without a "
                "default is needed, so measure again"
            )
        return cls(**known)


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
            "harness.time returned"
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
_NAMES = tuple(f.name for f in fields(CaseRecord))
_REQUIRED = [
    f.name for f in fields(CaseRecord) if f.default is MISSING and f.default_factory is MISSING
]


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
