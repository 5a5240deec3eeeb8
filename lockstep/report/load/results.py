"""What is loaded: rows, launches, and what forbids pooling them.

Rows are plain records and the statistics are taken over numpy blocks: ten thousand entries load
in well under a second, which per-row data frames would not allow.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.core import flags
from lockstep.core.flags import Flag
from lockstep.core.record import Amount, Count, Positive, Training, Whole

ORIGINS = ("measured", "cited", "target")
# A pytest-benchmark file of someone else's tests: timed in one process, with no samples.
# What a campaign's plan lists.
PLANNED = ("launches", "left_out")
# The fact of a conflict between a launch and its copy.
COPY = "copy"


@dataclass(slots=True)
class Row:
    """One case in one launch, or one line of an imported table.

    Attributes:
        launch: Name of the launch, or the line of the imported table.
        case: The benchmark's name, or the imported table's name.
        step_s: Median round / steps per round.
        rate: Work per second that speed-ups divide: the throughput where samples are known.
        time_s: Time of a whole run, in tables of times.
        num_far_out: Rounds far outside the quartiles; they are kept. None of too few rounds.
        rank_variant_s: Seconds per step of each rank's turns of a variant of the step, shape
            (num_ranks, num_turns), by name; empty where none was timed.
        phase_s: Seconds of a step by phase: forward, backward with the communication that it does
            not hide, optimizer. Mean over ranks, median over turns; empty where none is known.
        bucket_lead_s: How long before the end of the backward each gradient bucket is ready.
        first_reduce_s: How long after the beginning of the backward the first one is ready.
        rank_hosts: Host of each rank that measured it; empty where nobody says.
        workload_sha256: Digest of the workload's source, see `CaseRecord`; None where unknown.
        position: Place of the case in its launch's order; None where unknown.
        ranks_per_node: Most ranks on one node; None where nobody says.
        settings: What else its launch gave its ranks, by name (`lockstep.report.load.layout`).
        started: When its launch began, as ISO 8601; empty where nobody says.
        training: How a training run went; None where nothing is trained.
        own_case: Its name in its file, where `case` is another: of a training run, that of all
            its repeats; of a smaller batch than asked for, one that no other point has.
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
    started: str = ""
    training: Training | None = None
    own_case: str = ""
    origin: str = "measured"

    @property
    def program(self) -> dict[str, Any]:
        """What is known of a program that was run; empty of what the suite measured itself."""
        return self.details.get("command") or {}

    @property
    def has_smaller_batch(self) -> bool:
        """Whether it was measured at less than the batch asked for, so nothing compares it."""
        return flags.has(self.flags, "smaller-batch")

    @property
    def point(self) -> tuple[str, str, int]:
        """What it shares with its repeats."""
        return self.origin, self.case, self.world_size

    @property
    def recorded_case(self) -> str:
        """Name of the case in its file."""
        return self.own_case or self.case

    @property
    def is_own_test(self) -> bool:
        """Whether it is of a test of one's own, whose name is then the workload's."""
        name = self.case.partition("[")[0].rpartition("::")[2]
        return name == self.workload and not self.program


def largest(rows: Iterable[Row], count: str) -> int | None:
    """Return the largest of a count over rows, such as bytes; None where no row knows it."""
    return max((getattr(row, count) or 0 for row in rows), default=0) or None


@dataclass
class Launch:
    """What one launch says about itself.

    Attributes:
        entries: Its cases as its file has them.
        contradictions: Case -> a fact of it in the result and in the journal beside it, where they
            differ; then it was read from the journal.
        about: Commit, host and machine of a file of pytest-benchmark's that is no launch.
    """

    name: str
    path: Path
    facts: dict[str, Any]
    num_cases: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list, repr=False)
    contradictions: dict[str, tuple[str, str]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def provenance(self) -> dict[str, Any]:
        """Versions, hardware, environment and the map of ranks."""
        return dict(self.facts.get("provenance") or {})

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """What each rank ran on; empty where none is recorded."""
        return self.provenance.get("ranks") or []

    @property
    def devices(self) -> list[str]:
        """Device of each rank, as torch names it; empty where none is recorded."""
        return [str(rank.get("device", "")) for rank in self.ranks]

    @property
    def hosts(self) -> list[str]:
        """Host of each rank; empty where none is recorded."""
        return [str(rank.get("host") or "") for rank in self.ranks]

    @property
    def named_hosts(self) -> set[str]:
        """The hosts that its ranks name."""
        return set(filter(None, self.hosts))

    @property
    def cpu_threads(self) -> int | None:
        """Threads of a rank where all ranks are CPUs; on GPUs they are no strength."""
        return self.provenance.get("threads_per_rank") if _on_cpus(self.devices) else None

    @property
    def complete(self) -> bool:
        """Whether the session reached its end."""
        return bool(self.facts.get("complete", True))


def _on_cpus(devices: Sequence[str]) -> bool:
    """Tell whether there are devices, and all of them are CPUs."""
    return bool(devices) and all(device.startswith("cpu") for device in devices)


@dataclass(frozen=True)
class Conflict:
    """A part of a set of results that may not be pooled with the others.

    What differs from most is in conflict: launches, or a case in some launches. `Results.split`
    leaves it out.

    Attributes:
        fact: What differs: a fact of provenance, or a field of `Row`.
        where: Two launches that differ, or the case and these.
        message: The fact with both values, and what to do.
        case: The case concerned; None where all of a launch is.
        values: The fact in most launches, and in those in conflict.
        usual: One launch that has the fact as most do.
        launches: Those in conflict; of a copy, the launch that was copied.
        is_tie: Whether as many have the usual value as have the other.
    """

    fact: str
    where: str
    message: str
    case: str | None = None
    values: tuple[Any, ...] = ()
    usual: str = ""
    launches: tuple[str, ...] = ()
    world_sizes: tuple[int, ...] = ()
    is_tie: bool = False

    def holds(self, row: Row) -> bool:
        """Tell whether a row is in conflict; of a launch and its copy, the copy has no rows."""
        in_case = self.case in (None, row.case)
        return self.fact != COPY and in_case and row.launch in self.launches


@dataclass(frozen=True)
class Unread:
    """A launch of a campaign, a case of a launch or a training run that is not read but left out.

    Attributes:
        reason: The whole sentence, which begins with the file.
        case: The case; None where the whole launch is meant.
        world_size: Of a training run, where it is known.
    """

    reason: str
    path: Path
    case: str | None = None
    world_size: int | None = None

    def __str__(self) -> str:
        return self.reason


@dataclass
class Results:
    """Everything a report is made from.

    Attributes:
        plans: What `campaign.json` holds, by its folder.
        tables: Facts of the imported tables, by case name: source, unit, notes.
        unread: Launches of a campaign, cases of a launch and trainings that cannot be read.
        conflicts: What may not be pooled with the rest; empty after `load`.
    """

    plans: dict[Path, dict[str, Any]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)

    def split(self) -> tuple[list[Row], list[Row]]:
        """Return the rows that may be pooled, and those left out.

        A point keeps the launches without a conflict where they are most of its launches, else
        none.
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

    def pooled(self) -> tuple[list[Row], list[Row]]:
        """Return as `split` does.

        Raises:
            ValueError: Conflicts leave nothing that may be pooled.
        """
        free, left_out = self.split()
        if left_out and not free:
            raise ValueError(self.conflicts[0].message)
        return free, left_out

    @property
    def campaign(self) -> dict[str, Any]:
        """The plan, that of several campaigns in one; empty without any."""
        plans = list(self.plans.values())
        if len(plans) < 2:
            return dict(*plans)
        both = {key: [x for plan in plans for x in plan.get(key, [])] for key in PLANNED}
        return plans[0] | {"name": " + ".join(str(plan.get("name", "?")) for plan in plans)} | both

    @property
    def provenance(self) -> dict[str, Any]:
        """Facts of the first launch that has any; they differ in none that matters."""
        return next((launch.provenance for launch in self.launches if launch.provenance), {})

    @property
    def device_names(self) -> list[str]:
        """Names of the launches' devices, each once."""
        known = (
            name for launch in self.launches for name in launch.provenance.get("device_names") or []
        )
        return list(dict.fromkeys(map(str, known)))

    @property
    def days(self) -> list[str]:
        """Days on which launches began, as ISO 8601, in order."""
        began = {
            str(launch.facts["started"])[:10]
            for launch in self.launches
            if launch.facts.get("started")
        }
        return sorted(began)

    @property
    def on_cpus(self) -> bool:
        """Whether every rank of every launch and training run ran on a CPU."""
        devices = [device for launch in self.launches for device in launch.devices]
        # A run of `lockstep run train` is no launch.
        known = (row.details.get("device_type") for row in self.rows if row.training)
        devices += [str(device) for device in known if device]
        return _on_cpus(devices)
