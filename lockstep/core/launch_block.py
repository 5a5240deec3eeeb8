"""What a file says of its launch, under its top-level key `lockstep`.

Nothing here is required: files of older versions lack some of it, and a reader takes what is there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from lockstep.core.described import About, Amount, Count, Whole

Cores = Annotated[list[Whole], About("Cores the process may run on.")]

CauseKind = Literal["fault", "skip", "silence", "consequence"]


@dataclass(frozen=True)
class RankFacts:
    """What one rank ran on."""

    rank: Annotated[Whole | None, About("Rank.")] = None
    local_rank: Annotated[Whole | None, About("Rank on its host.")] = None
    host: Annotated[str | None, About("Host name.")] = None
    pid: Annotated[Whole | None, About("Process id.")] = None
    device: Annotated[str | None, About("cpu, or cuda with its index.")] = None
    device_name: Annotated[str | None, About("Name of the GPU, or of the processor.")] = None
    cpu_model: Annotated[str | None, About("Processor of the rank's host.")] = None
    gpu_uuid: Annotated[str | None, About("UUID of the GPU.")] = None
    driver: Annotated[str | None, About("NVIDIA driver of the host.")] = None
    cores: Cores | None = None
    num_threads: Annotated[Count | None, About("Threads torch computes with.")] = None


@dataclass(frozen=True)
class Transport:
    """Which links NCCL used between ranks, as its own log of the launch's warm-up says."""

    nccl_log: Annotated[str | None, About("Version of NCCL that wrote the log.")] = None
    networks: Annotated[list[str], About("What it used between nodes, such as IB.")] = field(
        default_factory=list
    )
    adapters: Annotated[list[str], About("InfiniBand ports, or providers of libfabric.")] = field(
        default_factory=list
    )
    transports: Annotated[
        dict[str, Count], About("Transport, such as P2P/CUMEM or NET/IB/GDRDMA, to its links.")
    ] = field(default_factory=dict)
    links: Annotated[
        list[list[Any]], About("[rank that sends, rank that receives, transport] of each link.")
    ] = field(default_factory=list)


@dataclass(frozen=True)
class Provenance:
    """Where a launch comes from."""

    lockstep_version: Annotated[str | None, About("Version of the measuring code.")] = None
    suite_sha256: Annotated[str | None, About("Digest of the suite's measuring code.")] = None
    git_commit: Annotated[
        str | None, About("Commit of the suite's checkout, or that its image was built of.")
    ] = None
    git_dirty: Annotated[bool | None, About("Whether tracked files differ from that commit.")] = (
        None
    )
    project_commit: Annotated[
        str | None, About("Commit of the repository of one's own tests or workload.")
    ] = None
    project_dirty: Annotated[
        bool | None, About("Whether tracked files differ from that commit.")
    ] = None
    command: Annotated[list[str], About("Command line of rank 0, one argument per item.")] = field(
        default_factory=list
    )
    seed: Annotated[int | None, About("Seed of parameters and data.")] = None
    hostname: Annotated[str | None, About("Host of rank 0.")] = None
    os: Annotated[str | None, About("Distribution.")] = None
    kernel: Annotated[str | None, About("Kernel release.")] = None
    cpu_model: Annotated[str | None, About("Processor of rank 0's host.")] = None
    cores_per_node: Annotated[Count | None, About("Logical cores of rank 0's host.")] = None
    memory_bytes: Annotated[Amount | None, About("Memory of rank 0's host.")] = None
    python: Annotated[str | None, About("Python version.")] = None
    torch: Annotated[str | None, About("torch version.")] = None
    torchvision: Annotated[str | None, About("torchvision version.")] = None
    numpy: Annotated[str | None, About("numpy version.")] = None
    pytest: Annotated[str | None, About("pytest version.")] = None
    pytest_benchmark: Annotated[str | None, About("pytest-benchmark version.")] = None
    cuda: Annotated[
        str | None, About("CUDA version of the torch build; null where every rank ran on a CPU.")
    ] = None
    cudnn: Annotated[str | None, About("cuDNN version; null likewise.")] = None
    nccl: Annotated[str | None, About("NCCL version; null likewise.")] = None
    driver: Annotated[
        str | None, About("NVIDIA driver; null likewise, and all of them where hosts differ.")
    ] = None
    backend: Annotated[str | None, About("Back end of torch.distributed.")] = None
    wire_gb_per_s: Annotated[
        Amount | None,
        About("What the ports of rank 0's host that carry the ranks' messages carry together."),
    ] = None
    transport: Annotated[
        Transport | None, About("NCCL's links; null with another back end, or without its log.")
    ] = None
    threads_per_rank: Annotated[Count | None, About("Threads of a rank.")] = None
    launcher: Annotated[
        str | None,
        About("What started the ranks, as slurm (srun) and torchrun; null for one alone."),
    ] = None
    image_path: Annotated[str | None, About("Container image; null outside one.")] = None
    image_sha256: Annotated[
        str | None, About("Its SHA-256; null outside one, or where it could not be read.")
    ] = None
    device_names: Annotated[
        list[str] | None, About("Names of the devices of all ranks, each once.")
    ] = None
    slurm: Annotated[
        dict[str, Any] | None, About("Variables of the Slurm job and step; empty outside one.")
    ] = None
    environment: Annotated[
        dict[str, str] | None, About("Variables that steer torch and its communication.")
    ] = None
    dropped_environment: Annotated[
        list[str] | None,
        About("Names of variables that the job's script set and the image did not get."),
    ] = None
    ranks: Annotated[list[RankFacts] | None, About("What each rank ran on, in rank order.")] = None


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
    error: Annotated[
        str, About("Its error without the traceback, or why it skips; empty for no answer.")
    ] = ""

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
    crashed: Annotated[bool, About("True where a rank or the whole launch ended with it.")] = False
    causes: Annotated[
        list[FailureCause], About("What ranks met, the first to blame first; absent if unknown.")
    ] = field(default_factory=list)
    failure: Annotated[
        dict[str, Any] | None,
        About(
            "Of a program: kind (exit-code, timeout, sanity, missing-metric), run, and its facts."
        ),
    ] = None


@dataclass(frozen=True)
class LeftBehind:
    """What a case left changed in its process, on one rank."""

    case: str
    rank: Whole
    kind: str
    is_restored: Annotated[bool, About("Whether it was put back.")]
    before: Annotated[Any, About("Its value before the case.")] = None
    after: Annotated[Any, About("Its value after the case.")] = None


@dataclass(frozen=True)
class Session:
    """When and where one session of a launch ran."""

    started: str | None = None
    rank_hosts: list[str | None] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchBlock:
    """The facts of one launch."""

    schema: Annotated[Literal[1] | None, About("Version of this block.")] = None
    complete: Annotated[
        bool | None, About("Whether every expected case was measured, or skipped for a reason.")
    ] = None
    launch: Annotated[str | None, About("Name of the launch in its campaign.")] = None
    campaign: Annotated[str | None, About("Name of the campaign.")] = None
    repeat: Annotated[int | str | None, About("Which of the point's repeats this is.")] = None
    size: Annotated[str | None, About("Name of the size measured.")] = None
    rounds: Annotated[Count | None, About("Timed rounds of a case.")] = None
    warmup_rounds: Annotated[Whole | None, About("Untimed rounds before them.")] = None
    order_seed: Annotated[
        Whole | None, About("Seed of the random order in which the launch runs its cases.")
    ] = None
    part: Annotated[
        list[Count] | None,
        About(
            "[K, N] where the launch holds the K-th of N parts of the selected cases, which are "
            "every N-th from the K-th on; null where it holds all."
        ),
    ] = None
    world_size: Annotated[Count | None, About("Number of ranks.")] = None
    num_nodes: Annotated[Count | None, About("Number of hosts.")] = None
    started: Annotated[str | None, About("When the session began, as ISO 8601.")] = None
    provenance: Provenance | None = None
    expected: Annotated[list[str] | None, About("Every case the launch was to measure.")] = None
    skipped: Annotated[list[Unmeasured] | None, About("Cases that do not apply here, and why.")] = (
        None
    )
    left_behind: Annotated[
        list[LeftBehind] | None, About("What cases left changed in their processes.")
    ] = None
    sessions: Annotated[
        list[Session] | None,
        About(
            "When and where each session of the launch ran: the first, and those that resumed it. "
            "The block's provenance is that of the last; each case names its own hosts."
        ),
    ] = None
    in_flight: Annotated[
        str | None, About("The case that was begun and had not ended when this was written.")
    ] = None
    failed: Annotated[list[Unmeasured] | None, About("Cases that failed, and why.")] = None
