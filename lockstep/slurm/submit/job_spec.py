"""One job as it is rendered and sent: every number and every option of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lockstep.campaign.campaign import Launch
from lockstep.campaign.job_cuts import Stage

# A fallback is a stage that begins where a job has failed, and is cancelled where none has.
Kind = Literal[
    "ladder", "job", "array", "preflight", "profile", "collect", "stage", "fallback",
]  # fmt: skip
Profiler = Literal["nsys", "ncu", "torch"]
How = Literal["afterok", "afternotok", "afterany", "after", "singleton"]


@dataclass(frozen=True)
class Dependency:
    """What a job waits for.

    Attributes:
        job: Name of the other job; with `singleton` its own.
        how: Whether that must have succeeded (`afterok`), failed (`afternotok`, one of several),
            only ended (`afterany`) or only begun (`after`), or no earlier job of its name may be
            there (`singleton`).
    """

    job: str
    how: How


@dataclass(frozen=True)
class JobSpec:
    """One batch job, or one array of them.

    Attributes:
        kind: Which template renders it.
        folder: The campaign's folder, absolute.
        num_nodes: Nodes of the allocation, of each element's where it is an array.
        billed_per_node: GPUs that Slurm allocates on each of them, and accounts for.
        cpus_per_task: CPUs of a rank, equal at every world size.
        num_threads: Threads of a rank, for OpenMP and the libraries of linear algebra.
        shapes: World size -> srun's options for nodes, tasks, CPUs and GPUs.
        agents: World size -> torchrun's options for nodes and ranks; empty where each task of srun
            is a rank.
        tests: What pytest measures, absolute; nothing for the suite's own.
        launches: The launches in the order they are made; an array's element K makes the K-th.
        profiler: What each rank runs under, if anything.
        workdir: Where a program runs, absolute; None where pytest measures.
        floor: Least efficiency of a world size for a larger one to be begun; None for any.
        continues: The job of whose launches it makes what that left; None for the first of them.
        screen: Options of the screening that a preflight ends with; empty without one.
    """

    name: str
    kind: Kind
    folder: str
    num_nodes: int
    cpus_per_node: int
    gpus_per_node: int
    billed_per_node: int
    time_s: int
    cpus_per_task: int
    num_threads: int
    directives: tuple[str, ...]
    shapes: dict[int, tuple[str, ...]]
    options: tuple[str, ...]
    agents: dict[int, tuple[str, ...]] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()
    after: tuple[Dependency, ...] = ()
    profiler: Profiler | None = None
    tests: tuple[str, ...] = ()
    workdir: str | None = None
    floor: float | None = None
    continues: str | None = None
    stage: Stage | None = None
    screen: tuple[str, ...] = ()

    @property
    def num_ranks(self) -> int:
        """Ranks of the largest step."""
        return max(self.shapes)

    @property
    def num_elements(self) -> int:
        """Elements of the array; 1 for any other job."""
        return len(self.launches) if self.kind == "array" else 1

    @property
    def node_hours(self) -> float:
        """Node-hours if every element takes all of its time."""
        return self.num_elements * self.num_nodes * self.time_s / 3600

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that Slurm accounts for if every element takes all of its time."""
        return self.billed_per_node * self.node_hours

    @property
    def script(self) -> Path:
        """The file of its script."""
        return Path(self.folder, "jobs", f"{self.name}.sh")
