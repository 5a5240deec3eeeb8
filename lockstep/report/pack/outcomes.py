"""What Slurm's accounting knows of a campaign's jobs: how they ended, waited and what was lost."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.report.load.results import Results
from lockstep.report.page.panels import accounts

GOOD = "COMPLETED"


@dataclass(frozen=True)
class Outcome:
    """The jobs that ended in one state."""

    state: str
    num_jobs: int
    node_hours: float


@dataclass(frozen=True)
class Outcomes:
    """All jobs.

    Attributes:
        node_hours: What was allocated to all.
        failed_share: Share of them in jobs that did not complete.
        wait_s: Median and 90th percentile of the queue wait; None where it is not known.
    """

    outcomes: tuple[Outcome, ...]
    node_hours: float
    failed_share: float
    wait_s: tuple[float, float] | None


def outcomes(results: Results) -> Outcomes | None:
    """Return how the jobs ended; None where accounting says nothing.

    Raises:
        ValueError: An accounting cannot be read.
    """
    known = [
        account for row in accounts.accounted(results) if (account := row.get("accounting"))
    ]  # fmt: skip
    if not known:
        return None
    states = dict.fromkeys(str(one.get("state")) for one in known)
    made = tuple(_outcome(state, known) for state in states)
    total = math.fsum(one.node_hours for one in made)
    lost = math.fsum(one.node_hours for one in made if one.state != GOOD)
    waits = sorted(_numbers(known, "queue_wait_s"))
    return Outcomes(
        made, total, lost / total if total else 0.0,
        (_quantile(waits, 0.5), _quantile(waits, 0.9)) if waits else None,
    )  # fmt: skip


def _outcome(state: str, known: Sequence[dict[str, Any]]) -> Outcome:
    own = [one for one in known if str(one.get("state")) == state]
    return Outcome(state, len(own), math.fsum(_numbers(own, "node_hours")))


def _numbers(known: Iterable[dict[str, Any]], name: str) -> list[float]:
    values = (one.get(name) for one in known)
    return [value for value in values if isinstance(value, int | float)]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of the values does not exceed."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]
