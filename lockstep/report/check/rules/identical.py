"""The rule about cases of one launch that do the same work, and so must take the same time."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import geometric_mean
from typing import Any

from lockstep.report.check.evidence import Evidence, Hit
from lockstep.report.compute import replicates
from lockstep.report.compute.statistics import CONFIDENCE, log_interval
from lockstep.report.load.results import Row

# A smaller difference changes no conclusion.
NOTABLE = 1.1
# What a record has in fields of its own, or, of the cap, in its real buckets.
NAMED = {"workload", "precision", "local_batch", "global_batch", "bucket_cap_mb"}
# What a case does that varies none of these.
USUAL = {"accumulation": 1, "no_sync": True}

# World size, and the text of all else that makes steps identical.
Work = tuple[int, str]
# Case -> launch -> row.
Cases = dict[str, dict[str, Row]]


def identical_work(evidence: Evidence) -> Iterator[Hit]:
    """Cases of the same launches do identical work, and one takes longer beyond chance."""
    for (size, _), cases in _alike(evidence).items():
        pairs = list(combinations(cases, 2))
        for pair in pairs:
            shared = tuple(name for name in cases[pair[0]] if name in cases[pair[1]])
            # So many pairs are looked at that one of them lies outside its own 95 % by chance.
            found = _differ(cases, pair, shared, 1 - (1 - CONFIDENCE) / len(pairs))
            if found and found["low"] > 1 and found["factor"] > NOTABLE:
                values = found | {"count": len(shared)}
                yield Hit("identical-work", values, pair, (size,), shared)


def _alike(evidence: Evidence) -> dict[Work, Cases]:
    """Return the cases of equal work, where the gradient buckets are known."""
    found: dict[Work, Cases] = {}
    for series in evidence.measured:
        for row in (row for point in series.points for row in point.rows):
            if row.details.get("bucket_bytes"):
                cases = found.setdefault((row.world_size, _work(row)), {})
                cases.setdefault(row.case, {})[row.launch] = row
    return found


def _work(row: Row) -> str:
    """Return what a step does as one text, since buckets are lists."""
    varied = {name: value for name, value in row.factors.items() if name not in NAMED}
    return str([
        row.workload, row.workload_sha256, row.precision, row.local_batch, row.samples_per_step,
        row.details["bucket_bytes"], sorted((USUAL | varied).items()),
    ])  # fmt: skip


def _differ(
    cases: Cases, pair: tuple[str, str], launches: Sequence[str], confidence: float
) -> dict[str, Any] | None:
    """Return how many times as long the slower of two cases takes; None where no spread is known.

    Each launch that holds both gives one ratio of median steps; what slows a launch as a whole is
    in both. The factor is their geometric mean.
    """
    first, second = (cases[case] for case in pair)
    ratios = [(first[name].step_s or 1) / (second[name].step_s or 1) for name in launches]
    units = replicates.independent([first[name] for name in launches], ratios)
    interval = log_interval(units, confidence)
    if interval is None:
        return None
    factor, (low, high) = geometric_mean(units), interval
    slow, fast = pair
    if factor < 1:
        slow, fast, factor, low, high = fast, slow, 1 / factor, 1 / high, 1 / low
    return {"slow": slow, "fast": fast, "factor": factor, "low": low, "high": high}
