"""Where the time of a step goes, and so why a ladder stops scaling.

After the timed rounds every rank runs the same step without gradient synchronisation, waiting for
nobody. With a_r the seconds of rank r in that step, and s the step time of the point:

    own work                mean over ranks of a_r
    imbalance               max over ranks of a_r - mean
    exposed communication   s - max over ranks of a_r

which add up to s. Their shares of the step are taken in each launch; a point's are the means. With
f the time an ideal step has over the baseline's (p0/p for strong scaling, 1 where the local batch
is fixed), a cause's loss is its time less f times its time at the baseline; the losses add up to
s - f s0, the whole loss: 1 - efficiency of the step.
"""

from collections.abc import Mapping
from statistics import fmean

from reports.results import Row
from reports.scaling import Point, Series

OWN, IMBALANCE, EXPOSED = "own work", "imbalance", "exposed communication"
CAUSES = (EXPOSED, IMBALANCE, OWN)
# Of a step; less is lost in the noise of a few steps.
LEAST_LOSS = 0.02

ADVICE = {
    EXPOSED: "try a larger batch per rank, lower precision of the gradients, and the bucket sizes",
    IMBALANCE: "find the slow rank: its device, its clocks, and what else runs on its node",
    OWN: "each rank computes longer than its share of the baseline: its batch is too small to "
    "fill the device, or ranks share cores and memory bandwidth",
}

Split = Mapping[str, float]


def split(point: Point) -> Split | None:
    """Return the seconds of a step by cause; None where no launch timed a step alone.

    Each is the mean over launches of its share, of the point's step; so they add up to the step,
    and the exposed communication is the communication share that a gate judges.
    """
    known = [found for row in point.rows if (found := shares(row))]
    if point.step_s is None or not known:
        return None
    return {cause: point.step_s * fmean(one[cause] for one in known) for cause in CAUSES}


def shares(row: Row) -> Split | None:
    """Return the share of a launch's median step by cause; None where no step was timed alone."""
    alone = row.details.get("alone_step_s")
    if not isinstance(alone, list) or not alone or not row.step_s:
        return None
    if not all(isinstance(seconds, int | float) for seconds in alone):
        return None
    slowest, own = max(alone) / row.step_s, fmean(alone) / row.step_s
    return {EXPOSED: 1 - slowest, IMBALANCE: slowest - own, OWN: own}


def losses(series: Series, point: Point) -> Split | None:
    """Return the seconds of a step that a point loses to the baseline, by cause.

    Negative where a cause took less than its share: what one cause loses another may gain.
    """
    here, base = split(point), split(series.base)
    if here is None or base is None or point is series.base:
        return None
    strong = series.row.scaling == "strong"
    factor = series.baseline / point.world_size if strong else 1.0
    return {cause: here[cause] - factor * base[cause] for cause in CAUSES}


def reason(series: Series, point: Point) -> str | None:
    """Return in a sentence why a point falls short, and what to try; None where little is lost."""
    lost = losses(series, point)
    whole = sum(lost.values()) if lost else 0.0
    if lost is None or point.step_s is None or whole < LEAST_LOSS * point.step_s:
        return None
    worst = max(CAUSES, key=lambda cause: lost[cause])
    shares = ", ".join(f"{100 * lost[cause] / whole:.0f} % to {cause}" for cause in CAUSES)
    return (
        f"{series.label} on {point.world_size} ranks loses {100 * whole / point.step_s:.0f} % of "
        f"a step to the baseline; of that {shares}; {ADVICE[worst]}."
    )
