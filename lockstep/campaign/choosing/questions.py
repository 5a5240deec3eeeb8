"""The questions that users ask, and the few cases that answer each."""

from dataclasses import dataclass
from typing import Literal

from lockstep.campaign.campaign import Campaign

# A point's ranks on CPUs: more of them share caches and memory, which is no answer.
MOST_CPU_RANKS = 4
LIMIT_S = 300.0


@dataclass(frozen=True)
class Question:
    """What a user asks, and what is measured for it.

    Attributes:
        from_one: Whether one rank is measured, too, to compare with.
        ranks: Fewest ranks that can answer.
        cpu_rounds: Rounds on CPUs; those of the size where None. On GPUs a round is longer than
            one step, and those of the size tell enough.
    """

    text: str
    study: Literal["strong", "weak", "loader"]
    from_one: bool = False
    ranks: int = 2
    cpu_rounds: int | None = None


QUESTIONS = {
    "strong": Question("more GPUs do not help", "strong", from_one=True),
    "straggler": Question("one rank, GPU or node may hold the others up", "weak", cpu_rounds=40),
    "loader": Question("the step may wait for its data", "loader", ranks=1),
}


def campaign_of(
    name: str, *, num_gpus: int, cores: int, device: str | None, workload: str | None
) -> Campaign:
    """Return what to measure for a question on this machine.

    `num_gpus` is 0 where its CPUs are to be measured.

    Raises:
        ValueError: The machine has fewer GPUs than the question needs ranks.
    """
    asked = QUESTIONS[name]
    if 0 < num_gpus < asked.ranks:
        raise ValueError(
            f"{name} needs {asked.ranks} GPUs and ranks see {num_gpus}; ask where there are more, "
            "or pass --device cpu"
        )
    most = _power_of_two(num_gpus or max(asked.ranks, min(cores, MOST_CPU_RANKS)))
    return Campaign.model_validate(
        {
            "schema": 1,
            "name": f"diagnose-{name}",
            "studies": [asked.study],
            "world_sizes": sorted({1, most} if asked.from_one else {most}),
            "size": "node" if num_gpus else "laptop",
            "rounds": None if num_gpus else asked.cpu_rounds,
            "device": device,
            "workload": workload,
        }
    )


def _power_of_two(most: int) -> int:
    """Return the largest power of two that is no larger: batches divide by it."""
    return int(1 << (most.bit_length() - 1))
