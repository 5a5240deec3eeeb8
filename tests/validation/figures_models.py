"""What predictions are worth on published ladders, beside a ruler.

    python tests/validation/figures_models.py

Each hidden size is predicted with constants that were learned without any table of its source.
Deterministic; no table is fetched.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import published

# The source of most ladders, all on four nodes of eight V100.
LARGEST = "Oneflow-Inc/DLPerf"
HEADER = (
    "| predicted size | predictions | median error | worst error | `level`: median error "
    "| `level`: worst error | 90 % intervals that contain the truth "
    "| median lower and upper end of these intervals |",
    "|---|---|---|---|---|---|---|---|",
)


def table() -> list[str]:
    """Return the lines of the table in docs/validation.md."""
    answered = [case for case in published.cases() if not case.is_refused]
    last = [case for case in answered if case.is_last]
    rows = {
        "the last size, from \u2265 4 smaller sizes": [c for c in last if len(c.known.sizes) > 3],
        "the last size, from \u2265 3 smaller sizes": last,
        "any size up to twice the largest of \u2265 3 measured sizes": answered,
    }
    return [*HEADER, *(line for name, own in rows.items() for line in _rows(name, own))]


def _rows(name: str, cases: Sequence[published.Case]) -> list[str]:
    """Return the row of these cases, and that of those from other sources than the largest."""
    others = [case for case in cases if case.source != LARGEST]
    ladders = len({case.table for case in cases if case.source == LARGEST})
    apart = f"{name}, without {LARGEST.partition('/')[2]}'s {ladders} ladders"
    return [_row(name, cases), _row(apart, others)]


def _row(name: str, cases: Sequence[published.Case]) -> str:
    found = [case.foretold(published.learned(case.source)) for case in cases]
    pairs = list(zip(cases, found, strict=True))
    errors = [abs(case.error(one)) for case, one in pairs]
    ruler = [abs(case.ruler()) for case in cases]
    holds = sum((one.low or 0) <= case.true <= (one.high or 0) for case, one in pairs)
    low = statistics.median((one.low or 0) / (one.value or 1) - 1 for one in found)
    high = statistics.median((one.high or 0) / (one.value or 1) - 1 for one in found)
    cells = [
        name, str(len(cases)), *map(_percent, (statistics.median(errors), max(errors))),
        *map(_percent, (statistics.median(ruler), max(ruler))), f"{holds} of {len(cases)}",
        f"{100 * low:+.0f} to {100 * high:+.0f} %",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    print("\n".join(table()))
