"""A first campaign file: of a cluster, of a built-in site, or of one machine."""

import math
from collections.abc import Iterator, Sequence

from lockstep.before.init.draft import Draft, line
from lockstep.campaign.campaign import Campaign
from lockstep.core import studies
from lockstep.slurm.cluster import Kind

MAX_LADDER_NODES = 4
STUDIES = tuple(name for name, study in studies.STUDIES.items() if study.is_usual)


def campaign_file(
    ranks_per_node: int, num_nodes: int, *, has_gpus: bool, is_cluster: bool = False
) -> Draft:
    """Return a first campaign of nodes."""
    world_sizes = ladder(ranks_per_node, min(num_nodes, MAX_LADDER_NODES))
    # Not "cluster": its batch of the strong study is too large for the first rung, one GPU.
    size = "node" if has_gpus else "laptop"
    parts = [
        "# The first campaign of this place: how training scales, and what holds it back.",
        "schema = 1",
        line("name", "first", "of its folder of results"),
        line("studies", STUDIES, "the questions"),
        line("world_sizes", world_sizes, "how many ranks; the ladder"),
        line("repeats", 3, "launches of each, in random order"),
        line("size", size, "how much: smoke, laptop, node or cluster"),
        line("workload", "resnet50", "the model; the size's by default", is_set=False),
        line("precision", "bf16", "fp32 by default", is_set=False),
        _global_batch(size, world_sizes),
        *(_jobs() if is_cluster else ()),
    ]
    return Draft("\n".join(parts) + "\n")


def ranks_per_node(kind: Kind) -> int:
    """Return a rank for each GPU; on CPUs one for each socket, and two to have a ladder."""
    return kind.num_gpus or min(kind.num_cpus, max(2, kind.num_sockets))


def ladder(ranks_per_node: int, num_nodes: int) -> list[int]:
    """Return world sizes that double: within a node, and then in whole nodes."""
    within = [2**i for i in range(ranks_per_node.bit_length()) if 2**i < ranks_per_node]
    nodes = [2**i for i in range(num_nodes.bit_length()) if 2**i <= num_nodes]
    return [*within, *(ranks_per_node * number for number in nodes)]


def _jobs() -> Iterator[str]:
    """Yield the table of what goes into which job."""
    yield from ("", "[jobs]")
    yield line("allocation", "ladder", "a job each repeat; job: each world size; array: each case")
    yield line("preflight", True, "first show that the nodes answer")
    yield line("collect", True, "and make the report in the end")
    yield line("launch_time", "00:15:00", "of one launch; the site's time if off", is_set=False)


def _global_batch(size: str, world_sizes: Sequence[int]) -> str:
    """Return a batch that all world sizes divide, set where the size's own does not."""
    fields = {"schema": 1, "name": "x", "studies": STUDIES, "world_sizes": world_sizes}
    usual = Campaign.model_validate(fields | {"size": size}).measured_size().global_batch
    common = math.lcm(*world_sizes)
    batch = -(-usual // common) * common
    return line("global_batch", batch, "of all ranks, in the strong study", is_set=batch != usual)
