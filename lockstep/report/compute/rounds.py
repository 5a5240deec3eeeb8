"""From the matrix of a case's rounds to what a report says of them.

The rounds of ten thousand cases are reduced in numpy blocks of equal shape.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.core.flags import Flag
from lockstep.core.record import CaseRecord
from lockstep.report.compute import diagnosis

Array = np.ndarray[Any, np.dtype[np.float64]]
Named = tuple[str, CaseRecord]


@dataclass(slots=True)
class Rounds:
    """The rounds of one case in one launch; a round is as long as its slowest rank took.

    Attributes:
        num_far_out: Rounds far outside the quartiles; they are kept. None where there are too
            few to tell.
        findings: What is odd about the rounds.
    """

    median_s: float
    mean_s: float
    min_s: float
    max_s: float
    stddev_s: float
    num_far_out: int | None
    findings: list[Flag]


def reduce_rounds(records: list[Named]) -> list[Rounds]:
    """Return the rounds of each record, reduced.

    Args:
        records: Each case by its name; `record.problem` has found nothing wrong with them.
    """
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, (_, case) in enumerate(records):
        shape = (len(case.rank_round_s), len(case.rank_round_s[0]))
        shapes.setdefault(shape, []).append(index)
    found: dict[int, Rounds] = {}
    for indices in shapes.values():
        # Of shape (num_records, num_ranks, num_rounds).
        block = np.array([records[index][1].rank_round_s for index in indices], dtype=float)
        found.update(zip(indices, _of_block(block), strict=True))
    return [found[index] for index in range(len(records))]


def _of_block(block: Array) -> list[Rounds]:
    """Reduce a block of shape (num_records, num_ranks, num_rounds)."""
    rounds = block.max(axis=1)
    spread = rounds.std(axis=1, ddof=1) if rounds.shape[1] > 1 else np.zeros(len(rounds))
    columns: list[list[float]] = [
        np.median(rounds, axis=1).tolist(), rounds.mean(axis=1).tolist(),
        rounds.min(axis=1).tolist(), rounds.max(axis=1).tolist(), spread.tolist(),
    ]  # fmt: skip
    enough = rounds.shape[1] >= diagnosis.FEWEST
    counts = diagnosis.far_out(rounds).tolist() if enough else [None] * len(rounds)
    findings = diagnosis.of_rounds(rounds)
    return list(map(Rounds, *columns, counts, findings))
