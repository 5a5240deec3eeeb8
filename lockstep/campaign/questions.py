"""The questions that users ask, and the few cases that answer each.

A campaign about factors: the values that a user gives take the place of a study's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lockstep.campaign.campaign import Campaign, load
from lockstep.core import factors as known
from lockstep.core.sizes import Value

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
    most = int(1 << (num_gpus or max(asked.ranks, min(cores, MOST_CPU_RANKS))).bit_length() - 1)
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


MAX_NAME = 64  # what a campaign's name may have


def load_with(source: str, factors: Mapping[str, Sequence[Value]], **changes: Any) -> Campaign:
    """Read a campaign and set factors over it.

    Without studies in the changes, the one that varies the least else is asked: of the campaign's
    where they have the factors. Without a name, the factors become part of it, since their results
    do not mix with the campaign's own. A program has its study.

    Raises:
        ValueError: As `load`; or no study has the factors.
    """
    if not factors:
        return load(source, **changes)
    if changes.get("tests"):
        raise ValueError("--set is about studies; parametrize tests of your own by pytest")
    plain = load(source, **changes)
    if plain.command is None:
        known.check(factors)
        if changes.get("studies") is None:
            asked = known.study_of(list(factors), plain.studies, plain.measured_size())
            changes["studies"] = (asked,)
    changes["name"] = changes.get("name") or "-".join([plain.name, *factors])[:MAX_NAME]
    return load(source, **changes, factors=dict(factors))
