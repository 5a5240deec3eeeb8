"""Training runs in words: the rows that the page and the terminal share, and a line for each."""

from collections.abc import Mapping, Sequence

from lockstep.core import formats
from lockstep.core.formats import counted, number, percent, percent_span, ratio, span
from lockstep.report.compute import alternatives, learning
from lockstep.report.compute.learning import Learned
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.page import parts
from lockstep.report.words.names import factors_text

# Factors that are printed by their value alone.
BARE = ("workload", "data", "precision", "device")
GOAL = "Time to"
# Columns of the page that fit a terminal -> their short names.
SHORT = {
    "Ranks": "n", "Nodes": "nodes", "Runs": "runs", "Epoch time (s)": "epoch, s",
    "Throughput (samples/s)": "samples/s", "Speed-up": "speed-up", "Efficiency (%)": "eff., %",
    "Over first row": "x first", "Accuracy (%)": "acc., %", "95 % interval (%)": "95 %",
    "Best (%)": "best, %",
}  # fmt: skip


def ordered(series: Sequence[Series]) -> list[Series]:
    """Return the series of training runs, those of the slowest device first."""
    rates: dict[object, list[float]] = {}
    trainings = learning.select_trainings(series)
    for curve in trainings:
        rates.setdefault(curve.row.factors.get("device"), []).extend(p.rate for p in curve.points)
    return sorted(trainings, key=lambda curve: min(rates[curve.row.factors.get("device")]))


def varied(series: Sequence[Series]) -> list[str]:
    """Return the factors that differ between runs and forbid pooling."""
    return alternatives.find_varied([(curve, curve.points[0]) for curve in series])


def label(series: Series, names: Sequence[str]) -> str:
    """Return a name of a series: the factors in which it differs from the others."""
    factors = series.row.factors
    known = {name: factors[name] for name in names if factors.get(name) is not None}
    return ", ".join(filter(None, (factors_text(known, BARE), series.layout)))


def common(series: Sequence[Series], names: Sequence[str]) -> str:
    """Return the factors that all runs share, as text."""
    shared = {k: v for k, v in series[0].row.factors.items() if k not in names}
    return formats.listed((str(v) if k in BARE else f"{k}={v}" for k, v in shared.items()), 24)


def columns(learned: Mapping[Point, Learned]) -> list[str]:
    """Return the names of the columns of `cells`, each with its unit."""
    goals = {each.target for each in learned.values()}
    goal = percent_of(next(iter(goals)) if len(goals) == 1 else None)
    return [
        "Ranks", "Nodes", "Runs", "Epoch time (s)", "95 % interval (s)", "Throughput (samples/s)",
        "Speed-up", "Efficiency (%)", "Over first row", "Accuracy (%)", "95 % interval (%)",
        "Best (%)", f"{GOAL} {goal} (s)", "Memory (GB)",
    ]  # fmt: skip


def percent_of(target: float | None) -> str:
    """Return an accuracy to reach, as text."""
    return "goal" if target is None else f"{formats.trimmed(100 * target)} %"


def cells(series: Sequence[Series], learned: Mapping[Point, Learned]) -> list[list[list[str]]]:
    """Return a line of cells for each point of each series; ratios are over the first row."""
    several = len({curve.row.factors.get("device") for curve in series}) > 1
    first = series[0].points[0] if several else None
    return [[_line(curve, p, learned[p], first) for p in curve.points] for curve in series]


def for_terminal(series: Sequence[Series]) -> tuple[list[str], list[str], list[list[list[str]]]]:
    """Return the names of series, the columns with known cells, and the cells of each series."""
    names, learned = varied(series), learning.learn(series)
    header, rows = columns(learned), cells(series, learned)
    kept = [
        i for i, name in enumerate(header) if (name in SHORT or GOAL in name)
        and any(line[i] not in ("", formats.DASH) for lines in rows for line in lines)
    ]  # fmt: skip
    return (
        [label(curve, names) or curve.row.workload for curve in series],
        [SHORT.get(header[i], header[i].lower()) for i in kept],
        [[[line[i] for i in kept] for line in lines] for lines in rows],
    )


def _line(series: Series, point: Point, learned: Learned, first: Point | None) -> list[str]:
    nodes = {row.num_nodes for row in point.rows}
    alone = len(series.points) == 1 and series.main is None
    over_first = reached = formats.DASH
    if first and not (first.blocked_by or point.blocked_by):
        over_first = ratio(point.rate / first.rate)
    if learned.target is not None:
        reached = f"{learned.num_reached} of {point.num_launches} runs"
        if learned.reached_s:
            reached = number(learned.reached_s.value)
    accuracy, best = learned.accuracy, learned.best
    count = point.num_launches
    seeds = "" if learned.num_seeds == count else f" ({counted(learned.num_seeds, 'seed')})"
    return [
        str(point.world_size), "" if nodes == {1} else parts.shown(point.rows[0].num_nodes),
        f"{count}{seeds}", number(learned.epoch_s.value), span(learned.epoch_s.interval),
        number(point.throughput_samples_per_s),
        *((formats.DASH if alone else parts.ratio_cell(point, text)) for text in (
            ratio(point.speedup), percent(point.parallel_efficiency))),
        over_first,
        percent(accuracy.value) if accuracy else formats.DASH,
        percent_span(accuracy.interval) if accuracy else formats.DASH,
        percent(best.value) if best else formats.DASH, reached,
        parts.CELLS["Memory (GB)"](point),
    ]  # fmt: skip


def sentence(series: Series, learned: Learned) -> str:
    """Return a sentence on the largest size: accuracy, time, and speed-up over which size."""
    point, base = series.points[-1], series.base
    epochs = counted(series.row.training.epochs, "epoch") if series.row.training else ""
    text = f"{epochs} of {number(learned.epoch_s.value)} s on {counted(point.world_size, 'rank')}"
    if learned.accuracy:
        spread = learned.accuracy.interval
        ends = percent_span(spread) if spread else "no interval over seeds"
        backed = f"{counted(point.num_launches, 'run')}, {ends}"
        text += f" reach {percent(learned.accuracy.value)} % ({backed})"
    if learned.target is not None and learned.reached_s:
        text += f", {percent_of(learned.target)} after {number(learned.reached_s.value)} s"
    if point.blocked_by:
        rules = ", ".join(point.blocked_by)
        text += (
            f". There is no verdict on the speed, because lockstep check found an error ({rules})"
        )
    elif point is not base:
        text += f"; {ratio(point.speedup)}\u00d7 the rate of {counted(base.world_size, 'rank')}"
        text += f" ({percent(point.parallel_efficiency)} %)"
    return f"{text}."


def sentences(series: Sequence[Series]) -> list[tuple[str, str]]:
    """Return label and sentence of each series of training runs, the most accurate first."""
    curves = ordered(series)
    learned, names = learning.learn(curves), varied(curves)
    by_largest = [(curve, learned[curve.points[-1]]) for curve in curves]
    by_largest.sort(key=lambda pair: -pair[1].accuracy.value if pair[1].accuracy else 0.0)
    return [(label(curve, names) or curve.label, sentence(curve, own)) for curve, own in by_largest]
