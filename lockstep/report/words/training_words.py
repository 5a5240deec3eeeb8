"""Training runs in words: the rows that the page and the terminal share, and a line for each."""

from collections.abc import Sequence

from lockstep.core import formats
from lockstep.core.formats import counted, number, percent, percent_span, ratio, span
from lockstep.report.compute import alternatives, learning
from lockstep.report.compute.learning import Learned, Targets
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.page import parts

# Factors whose value says what they are.
BARE = ("workload", "data", "precision", "device")
GOAL = "Time to"
# Columns of the page that a terminal has room for, and their names there.
SHORT = {
    "Ranks": "n", "Nodes": "nodes", "Runs": "runs", "Epoch time (s)": "epoch, s",
    "Throughput (samples/s)": "samples/s", "Speed-up": "speed-up", "Efficiency (%)": "eff., %",
    "Over first row": "x first", "Accuracy (%)": "acc., %", "95 % interval (%)": "95 %",
    "Best (%)": "best, %",
}  # fmt: skip


def ordered(series: Sequence[Series]) -> list[Series]:
    """Return the series of training runs, those of the slowest device first: the rungs of a ladder.

    Series of one device keep their order.
    """
    curves = learning.trained(series)
    devices: dict[str, float] = {}
    for curve in curves:
        slowest = min(point.rate for point in curve.points)
        devices[_device(curve)] = min(slowest, devices.get(_device(curve), slowest))
    return sorted(curves, key=lambda one: devices[_device(one)])


def _device(series: Series) -> str:
    return str(series.row.factors.get("device"))


def varied(series: Sequence[Series]) -> list[str]:
    """Return the factors in which runs differ, and so are not pooled."""
    return alternatives.varied([(curve, curve.points[0]) for curve in series])


def label(series: Series, names: Sequence[str]) -> str:
    """Name a series by the factors that tell it from the others."""
    factors = series.row.factors
    texts = [
        str(factors[name]) if name in BARE else f"{name}={factors[name]}"
        for name in names
        if factors.get(name) is not None
    ]
    return ", ".join(filter(None, [*texts, series.layout]))


def common(series: Sequence[Series], names: Sequence[str]) -> str:
    """Say what all runs have in common."""
    shared = {k: v for k, v in series[0].row.factors.items() if k not in names}
    return formats.listed((str(v) if k in BARE else f"{k}={v}" for k, v in shared.items()), 24)


def columns(series: Sequence[Series], targets: Targets) -> list[str]:
    """Return the names of the columns of `cells`, each with its unit."""
    goals = {targets.get(learning.learns(curve)) for curve in series}
    goal = percent_of(next(iter(goals)) if len(goals) == 1 else None)
    return [
        "Ranks", "Nodes", "Runs", "Epoch time (s)", "95 % interval (s)", "Throughput (samples/s)",
        "Speed-up", "Efficiency (%)", "Over first row", "Accuracy (%)", "95 % interval (%)",
        "Best (%)", f"{GOAL} {goal} (s)", "Memory (GB)",
    ]  # fmt: skip


def percent_of(target: float | None) -> str:
    """Return an accuracy to reach."""
    return "goal" if target is None else f"{formats.trimmed(100 * target)} %"


def cells(series: Sequence[Series], targets: Targets) -> list[list[list[str]]]:
    """Return a line of cells for each point of each series; other rows are over the first."""
    several = len({_device(curve) for curve in series}) > 1
    first = series[0].points[0] if several else None
    return [
        [_line(curve, p, learning.learned(p, targets.get(learning.learns(curve))), first)
         for p in curve.points]
        for curve in series
    ]  # fmt: skip


def for_terminal(series: Sequence[Series]) -> tuple[list[str], list[str], list[list[list[str]]]]:
    """Return the names of series, the columns that say something, and the cells of each series."""
    names, targets = varied(series), learning.targets(series)
    header, found = columns(series, targets), cells(series, targets)
    empty = ("", formats.DASH)
    said = [any(line[i] not in empty for one in found for line in one) for i in range(len(header))]
    kept = [i for i, name in enumerate(header) if said[i] and (name in SHORT or GOAL in name)]
    return (
        [label(curve, names) or curve.row.workload for curve in series],
        [SHORT.get(header[i], header[i].lower()) for i in kept],
        [[[line[i] for i in kept] for line in one] for one in found],
    )


def _line(series: Series, point: Point, learned: Learned, first: Point | None) -> list[str]:
    nodes = {row.num_nodes for row in point.rows}
    alone = len(series.points) == 1 and series.main is None
    memory = point.peak_memory_bytes
    over_first = reached = formats.DASH
    if first and not (first.blocked_by or point.blocked_by):
        over_first = ratio(point.rate / first.rate)
    if learned.target is not None:
        reached = f"{learned.num_reached} of {point.num_launches} runs"
        if learned.reached_s:
            reached = number(learned.reached_s.value)
    accuracy, best = learned.accuracy, learned.best
    return [
        str(point.world_size), "" if nodes == {1} else parts.shown(point.rows[0].num_nodes),
        runs(point, learned), number(learned.epoch_s.value), span(learned.epoch_s.interval),
        number(point.throughput_samples_per_s),
        *((formats.DASH if alone else parts.allowed(point, text)) for text in (
            ratio(point.speedup), percent(point.parallel_efficiency))),
        over_first,
        percent(accuracy.value) if accuracy else formats.DASH,
        percent_span(accuracy.interval) if accuracy else formats.DASH,
        percent(best.value) if best else formats.DASH, reached,
        number(memory / parts.GIGA) if memory else formats.DASH,
    ]  # fmt: skip


def runs(point: Point, learned: Learned) -> str:
    """Return how many runs a point has, and of how many seeds where some repeat one."""
    count = point.num_launches
    text = "" if learned.num_seeds == count else f" ({counted(learned.num_seeds, 'seed')})"
    return f"{count}{text}"


def sentence(series: Series, targets: Targets) -> str:
    """Say what the largest size of a series reaches, in what time, and over which size."""
    point, base = series.points[-1], series.base
    learned = learning.learned(point, targets.get(learning.learns(series)))
    epochs = counted(series.row.training.epochs, "epoch") if series.row.training else ""
    text = f"{epochs} of {number(learned.epoch_s.value)} s on {counted(point.world_size, 'rank')}"
    if learned.accuracy:
        spread = learned.accuracy.interval
        ends = percent_span(spread) if spread else "no interval"
        backed = f"{counted(point.num_launches, 'run')}, {ends}"
        text += f" reach {percent(learned.accuracy.value)} % ({backed})"
    if learned.target is not None and learned.reached_s:
        text += f", {percent_of(learned.target)} after {number(learned.reached_s.value)} s"
    if point.blocked_by:
        rules = ", ".join(point.blocked_by)
        text += f"; no verdict on its speed, for what lockstep check says of {rules}"
    elif point is not base:
        text += f"; {ratio(point.speedup)}\u00d7 the rate of {counted(base.world_size, 'rank')}"
        text += f" ({percent(point.parallel_efficiency)} %)"
    return f"{text}."


def sentences(series: Sequence[Series]) -> list[tuple[str, str]]:
    """Return label and sentence of each series of training runs, the most accurate first."""
    curves = ordered(series)
    targets, names = learning.targets(curves), varied(curves)
    curves.sort(key=lambda curve: -learning.mean_accuracy(curve.points[-1].rows))
    return [(label(curve, names) or curve.label, sentence(curve, targets)) for curve in curves]
