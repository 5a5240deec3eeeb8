"""From the matrix of a case's rounds to what a report says of them.

The rounds of ten thousand cases are reduced in numpy blocks of equal shape.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.record import CaseRecord
from reports import diagnosis

Array = np.ndarray[Any, np.dtype[np.float64]]
Named = tuple[str, CaseRecord]

# No round lasts 30,000 years, nor as long as light needs for a third of a millimetre; what is
# computed from others may leave the range of numbers.
LONGEST_ROUND_S = 1e12
SHORTEST_ROUND_S = 1e-12


@dataclass(slots=True)
class Rounds:
    """The rounds of one case in one launch; a round is as long as its slowest rank took.

    Attributes:
        num_far_out: Rounds far outside the quartiles; they are kept.
        findings: What is odd about the rounds, one sentence each.
    """

    median_s: float
    mean_s: float
    min_s: float
    max_s: float
    stddev_s: float
    num_far_out: int
    findings: list[str]


def reduced(path: Path, records: list[Named]) -> list[Rounds]:
    """Return the rounds of each record, reduced.

    Args:
        path: The file they stand in, for messages.
        records: Each case by its name.

    Raises:
        ValueError: A record's ranks hold no, unequal or impossible rounds.
    """
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, (name, case) in enumerate(records):
        shapes.setdefault(_shape(path, name, case), []).append(index)
    found: dict[int, Rounds] = {}
    for indices in shapes.values():
        block = _block(path, [records[i] for i in indices])
        found.update(zip(indices, _of_block(block), strict=True))
    return [found[index] for index in range(len(records))]


def _block(path: Path, records: list[Named]) -> Array:
    """Return the rounds as one block of shape (num_records, num_ranks, num_rounds)."""
    name = records[0][0]
    try:
        block = np.array([case.rank_round_s for _, case in records], dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: entry {name} or one like it holds no numbers: {error}"
        ) from error
    if block.ndim != 3:
        raise ValueError(f"{path}: entry {name} or one like it holds lists in place of seconds")
    bad = ~((block > SHORTEST_ROUND_S) & (block < LONGEST_ROUND_S)).all(axis=(1, 2))
    if bad.any():
        name = records[int(np.argmax(bad))][0]
        raise ValueError(f"{path}: entry {name} holds a round that is not a positive time")
    return block


def _shape(path: Path, name: str, case: CaseRecord) -> tuple[int, int]:
    lengths = {len(rounds) if isinstance(rounds, list) else 0 for rounds in case.rank_round_s}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"{path}: entry {name}: every rank must hold the same number of rounds, "
            f"found {sorted(lengths)}"
        )
    if min(case.samples_per_step, case.steps_per_round, case.world_size) < 1:
        raise ValueError(f"{path}: entry {name}: samples, steps and ranks must be at least 1")
    return len(case.rank_round_s), lengths.pop()


def _of_block(block: Array) -> list[Rounds]:
    """Reduce a block of shape (num_records, num_ranks, num_rounds)."""
    rounds = block.max(axis=1)
    spread = rounds.std(axis=1, ddof=1) if rounds.shape[1] > 1 else np.zeros(len(rounds))
    columns: list[list[float]] = [
        np.median(rounds, axis=1).tolist(), rounds.mean(axis=1).tolist(),
        rounds.min(axis=1).tolist(), rounds.max(axis=1).tolist(), spread.tolist(),
    ]  # fmt: skip
    counts: list[int] = diagnosis.far_out(rounds).tolist()
    findings = diagnosis.of_rounds(rounds)
    return list(map(Rounds, *columns, counts, findings))
