"""The rule about cases of one launch that do the same work, and so must take the same time."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from statistics import geometric_mean

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
VALUES = ("slow", "fast", "factor", "low", "high")


@dataclass(frozen=True)
class Twins:
    """Two cases of identical work, and how many times as long the slower one's step takes.

    Attributes:
        factor: Geometric mean over launches of the ratio of median steps.
        low: Lower end of its interval.
        high: Upper end.
        launches: The launches that hold both.
    """

    slow: str
    fast: str
    factor: float
    low: float
    high: float
    launches: tuple[str, ...]


def identical_work(evidence: Evidence) -> Iterator[Hit]:
    """Cases of the same launches do identical work, and one takes longer beyond chance."""
    for (size, _), cases in _alike(evidence).items():
        pairs = list(combinations(cases, 2))
        for pair in pairs:
            # So many pairs are looked at that one of them lies outside its own 95 % by chance.
            found = _differ(cases, pair, 1 - (1 - CONFIDENCE) / len(pairs))
            if found and found.low > 1 and found.factor > NOTABLE:
                values = {name: getattr(found, name) for name in VALUES}
                values["count"] = len(found.launches)
                yield Hit("identical-work", values, pair, (size,), found.launches)


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


def _differ(cases: Cases, pair: tuple[str, str], confidence: float) -> Twins | None:
    """Return how two cases differ; None where no spread is known, as with one launch.

    Each launch that holds both gives one ratio of median steps; what slows a launch as a whole is
    in both.
    """
    first, second = (cases[case] for case in pair)
    shared = [name for name in first if name in second]
    ratios = [(first[name].step_s or 1) / (second[name].step_s or 1) for name in shared]
    units = replicates.independent([first[name] for name in shared], ratios)
    interval = log_interval(units, confidence)
    if interval is None:
        return None
    factor, (low, high) = geometric_mean(units), interval
    if factor < 1:
        return Twins(pair[1], pair[0], 1 / factor, 1 / high, 1 / low, tuple(shared))
    return Twins(*pair, factor, low, high, tuple(shared))
