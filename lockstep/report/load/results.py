"""Loaded results: rows, launches, and conflicts that forbid pooling them."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.core import flags, inputs
from lockstep.core.flags import Flag
from lockstep.core.record import Amount, Count, Positive, Training, Whole
from lockstep.report.load.contents import ADDED_KEYS

ORIGINS = ("measured", "cited", "target")
# `Conflict.fact` of a launch that is a copy of another.
COPY = "copy"


@dataclass(slots=True)
class Row:
    """One case in one launch, or one line of an imported table.

    Attributes:
        launch: Name of the launch, or the line of the imported table.
        case: Name of the benchmark or of the imported table.
        rate: Work per second, from which speed-ups follow: throughput if samples are known.
        step_s: Median round / steps per round.
        time_s: Time of a whole run, in tables of times.
        num_far_out: Rounds far outside the quartiles, which still count; None for too few rounds.
        rank_variant_s: Variant of the step -> seconds per step, shape (num_ranks, num_turns).
        phase_s: Phase (forward, backward, optimizer) -> seconds of a step: the median over turns of
            the mean over ranks. The backward phase includes exposed communication.
        bucket_lead_s: Time from each gradient bucket's readiness to the end of the backward.
        first_reduce_s: Time from the start of the backward until the first bucket is ready.
        position: Place of the case in the order of its launch.
        ranks_per_node: Largest number of ranks on one node.
        settings: Threads, cores and NCCL variables of its launch, see `load.layout`.
        commit: Commit of the code that its launch measured, see `load.reading._commit`.
        started: Start of its launch, ISO 8601.
        own_case: The case's name in its file, if `case` differs: `case` leaves out the seed of a
            training run, and names a batch that is smaller than requested.
    """

    launch: str
    case: str
    study: str
    workload: str
    world_size: Count
    rate: Positive
    scaling: str | None = None
    precision: str | None = None
    num_nodes: Whole | None = None
    local_batch: Whole | None = None
    global_batch: Whole | None = None
    factors: dict[str, Any] = field(default_factory=dict)
    sample_unit: str = ""
    samples_per_step: Whole | None = None
    steps_per_round: Whole | None = None
    step_s: Positive | None = None
    mean_step_s: Amount | None = None
    min_step_s: Amount | None = None
    max_step_s: Amount | None = None
    stddev_step_s: Amount | None = None
    time_s: Positive | None = None
    throughput_samples_per_s: Positive | None = None
    rounds: Whole | None = None
    num_far_out: Whole | None = None
    rank_hosts: list[str] = field(default_factory=list)
    workload_sha256: str | None = None
    position: Whole | None = None
    mfu: Amount | None = None
    peak_memory_bytes: Whole | None = None
    peak_reserved_bytes: Whole | None = None
    rank_variant_s: dict[str, list[list[float]]] = field(default_factory=dict)
    phase_s: dict[str, Amount] = field(default_factory=dict)
    bucket_lead_s: list[float] = field(default_factory=list)
    first_reduce_s: Amount | None = None
    checks: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    flags: list[Flag] = field(default_factory=list)
    ranks_per_node: Whole | None = None
    settings: dict[str, str] = field(default_factory=dict)
    job: str | None = None
    commit: str | None = None
    started: str = ""
    training: Training | None = None
    own_case: str = ""
    origin: str = "measured"

    @property
    def program(self) -> dict[str, Any]:
        """Facts of the program that was run; empty for the suite's own cases."""
        return self.details.get("command") or {}

    @property
    def has_smaller_batch(self) -> bool:
        """Whether the batch was smaller than requested, so that no ratio is computed."""
        return flags.has(self.flags, "smaller-batch")

    @property
    def point(self) -> tuple[str, str, int]:
        """The key that a row shares with its repeats."""
        return self.origin, self.case, self.world_size

    @property
    def recorded_case(self) -> str:
        """Name of the case in its file."""
        return self.own_case or self.case

    @property
    def is_own_test(self) -> bool:
        """Whether the row comes from a user's own test, which then names the workload."""
        name = self.case.partition("[")[0].rpartition("::")[2]
        return name == self.workload and not self.program


def largest(rows: Iterable[Row], count: str) -> int | None:
    """Return the largest value of a field such as `peak_memory_bytes`; None if all lack it."""
    return max((getattr(row, count) or 0 for row in rows), default=0) or None


@dataclass
class Launch:
    """A launch and the facts that its file records.

    Attributes:
        entries: The cases, as its file holds them.
        contradictions: Case -> a fact in which the result contradicts its journal. If there is any,
            the journal is read instead of the result.
        about: Commit, host and machine of a pytest-benchmark file that Lockstep did not write.
    """

    name: str
    path: Path
    facts: dict[str, Any]
    entries: list[dict[str, Any]] = field(default_factory=list, repr=False)
    contradictions: dict[str, tuple[str, str]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def provenance(self) -> dict[str, Any]:
        """Versions, hardware, environment and ranks."""
        return dict(self.facts.get("provenance") or {})

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Facts of each rank; empty if not recorded."""
        return self.provenance.get("ranks") or []

    @property
    def devices(self) -> list[str]:
        """Device of each rank, as torch names it."""
        return [str(rank.get("device", "")) for rank in self.ranks]

    @property
    def hosts(self) -> list[str]:
        """Host of each rank, an empty text if unknown."""
        return [str(rank.get("host") or "") for rank in self.ranks]

    @property
    def named_hosts(self) -> set[str]:
        """Distinct known hosts."""
        return set(filter(None, self.hosts))

    @property
    def complete(self) -> bool:
        """Whether the session reached its end."""
        return bool(self.facts.get("complete", True))


def are_cpus(devices: Sequence[str]) -> bool:
    """Tell whether there are devices, and all of them are CPUs."""
    return bool(devices) and all(device.startswith("cpu") for device in devices)


@dataclass(frozen=True)
class Conflict:
    """Launches, or a case in some launches, that must not be pooled with the majority.

    Attributes:
        fact: A key of provenance, a field of `Row`, or `COPY`.
        path: The file of a copy.
        case: The case that differs; None if the whole launch does.
        values: The fact in the majority and in these launches.
        usual: A launch of the majority.
        launches: The launches that differ; for a copy, the launch that was copied.
        is_tie: Whether both values are equally frequent.
    """

    fact: str
    message: str
    case: str | None = None
    values: tuple[Any, ...] = ()
    usual: str = ""
    launches: tuple[str, ...] = ()
    world_sizes: tuple[int, ...] = ()
    is_tie: bool = False
    path: str = ""

    def holds(self, row: Row) -> bool:
        """Tell whether a row is in conflict; False for a copy, whose rows are not read."""
        in_case = self.case in (None, row.case)
        return self.fact != COPY and in_case and row.launch in self.launches


@dataclass(frozen=True)
class Unread:
    """A launch or a case that cannot be read and is left out.

    Attributes:
        reason: The whole message, which begins with the file.
        case: The case; None for the whole file.
    """

    reason: str
    path: Path
    case: str | None = None

    def __str__(self) -> str:
        return self.reason


@dataclass
class Results:
    """All results of a report.

    Attributes:
        plans: Folder -> content of its `campaign.json`.
        tables: Name of an imported table -> its source, unit and notes.
        conflicts: Results that must not be pooled; empty after `load`, which refuses them.
    """

    plans: dict[Path, dict[str, Any]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)

    def split(self) -> tuple[list[Row], list[Row]]:
        """Return the rows that may be pooled, and those left out.

        A point keeps its launches without a conflict if they are the majority, else it loses all.
        """
        odd = {
            id(row) for row in self.rows if any(conflict.holds(row) for conflict in self.conflicts)
        }
        launches = Counter(row.point for row in self.rows)
        in_conflict = Counter(row.point for row in self.rows if id(row) in odd)
        lost = {point for point, count in in_conflict.items() if 2 * count >= launches[point]}
        free: list[Row] = []
        left_out: list[Row] = []
        for row in self.rows:
            (left_out if id(row) in odd or row.point in lost else free).append(row)
        return free, left_out

    @property
    def campaign(self) -> dict[str, Any]:
        """The campaign's plan, or the plans of several campaigns joined; empty without a plan."""
        plans = list(self.plans.values())
        if len(plans) < 2:
            return dict(*plans)
        name = " + ".join(str(plan.get("name", "?")) for plan in plans)
        joined = {key: [x for plan in plans for x in plan.get(key, [])] for key in ADDED_KEYS}
        return plans[0] | {"name": name} | joined

    @property
    def provenance(self) -> dict[str, Any]:
        """Provenance of the first launch that has any."""
        return next((launch.provenance for launch in self.launches if launch.provenance), {})

    @property
    def device_names(self) -> list[str]:
        """Distinct names of the launches' devices."""
        known = (
            name for launch in self.launches for name in launch.provenance.get("device_names") or []
        )
        return list(dict.fromkeys(map(str, known)))

    @property
    def days(self) -> list[str]:
        """Days on which launches started, ISO 8601, in order."""
        times = (str(launch.facts.get("started") or "") for launch in self.launches)
        return sorted({time[:10] for time in times if time})

    @property
    def doi(self) -> str:
        """The DOI that the campaign names for its results; empty without one."""
        known = str(self.campaign.get("doi") or "")
        return known if re.fullmatch(inputs.DOI, known) else ""

    @property
    def on_cpus(self) -> bool:
        """Whether every rank of every launch ran on a CPU."""
        return are_cpus([device for launch in self.launches for device in launch.devices])

    @property
    def hours(self) -> str:
        """The noun of device-hours."""
        return "rank-hours" if self.on_cpus else "GPU-hours"
