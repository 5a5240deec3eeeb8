"""The panels of studies that compare settings: precision, bucket size, loader, sensitivity."""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby, islice
from statistics import geometric_mean, median

from lockstep.core import formats
from lockstep.core.formats import counted, number, percent, ratio, ratio_span, span
from lockstep.core.studies import ON_REQUEST, TITLES
from lockstep.report.compute import alternatives, quantities
from lockstep.report.compute.alternatives import Cases, Key, varied
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import ratio_interval
from lockstep.report.page import plots
from lockstep.report.page.parts import (
    GIGA,
    MAX_TABLES,
    MEGA,
    MILLI,
    Panel,
    Table,
    absolute,
    flagged,
    panel,
    step_interval_ms,
    step_ms,
    table,
)

# The loss of throughput against the best that a smaller number of workers may cost.
KNEE = 0.05
# A table of more settings is left to its workload.
MAX_JOINED = 15

Group = tuple[Key, Cases]
Base = tuple[Series, Point] | None

STARTS = (
    "First all-reduce: how long after the backward began the first bucket has all of its "
    "gradients, so that its all-reduce may begin; with a smaller cap that is earlier."
)
WAITS = (
    "Step waits: the share of a training step of resnet18 on batches of the loader that the same "
    "step on one batch in memory does not have."
)


def settings_panel(study: str, series: list[Series]) -> Panel:
    """Return the panel of a study whose cases are settings to choose from."""
    made = panel(study, TITLES.get(study, study.capitalize()))
    groups = alternatives.groups(study, series)
    bases = alternatives.references(study, groups)
    largest = max(size for (_, size, _), _ in groups)
    tables = chain(
        _at_largest(study, groups, bases, largest), _at_others(study, groups, bases, largest)
    )
    made["tables"] = list(islice(tables, MAX_TABLES))
    made["figures"], made["notes"] = plots.settings(study, groups)
    if study == "bucket":
        made["notes"] += [STARTS] * any(map(_knows_start, series)) + _equal_buckets(series)
    sound = alternatives.without_blocked(groups)
    if study == "sensitivity":
        _add_main_effects(made, [one for one in sound if one[0][1] == largest and len(one[1]) > 1])
    if study == "loader":
        made["lead"] += _knees(sound)
        made["notes"].append(WAITS)
    if next(tables, None) or len(made["tables"]) > MAX_TABLES:
        made["notes"].append(f"Tables show the first {MAX_TABLES} groups; --csv prints all.")
        made["tables"] = made["tables"][:MAX_TABLES]
    return made


def requested(study: str, series: Sequence[Series]) -> list[Table]:
    """Return the settings of a step beside one another, time and memory, where they vary."""
    if not any(len({str(curve.row.factors.get(n)) for curve in series}) > 1 for n in ON_REQUEST):
        return []
    groups = alternatives.groups(study, series)
    largest = max(size for (_, size, _), _ in groups)
    tables = _at_largest(study, groups, alternatives.references(study, groups), largest)
    return list(islice(tables, MAX_TABLES))


def _at_largest(
    study: str, groups: Sequence[Group], bases: Sequence[Base], largest: int
) -> Iterator[Table]:
    """Yield the tables of the largest size; workloads that vary the same factors share one."""
    joined: dict[tuple[str, ...], list[tuple[Cases, Base]]] = {}
    for ((_, size, _), cases), base in zip(groups, bases, strict=True):
        if size == largest:
            joined.setdefault((*_shared(cases), str(base is None)), []).append((cases, base))
    # The table of most workloads first.
    for members in sorted(joined.values(), key=len, reverse=True):
        rows = sum(len(cases) for cases, _ in members)
        apart = [members] if rows <= MAX_JOINED else [[member] for member in members]
        yield from (_category_table(study, some, largest) for some in apart)


def _shared(cases: Cases) -> tuple[str, ...]:
    """Return what cases must agree in to stand in one table: unit, layout and factors."""
    curve, names = cases[0][0], varied(cases)
    same = {name: str(value) for name, value in curve.row.factors.items() if name not in names}
    workload = "" if names else curve.row.workload  # a lone case is told by its workload
    return (curve.row.sample_unit, curve.layout, workload, *names, str(same | {"workload": ""}))


def _at_others(
    study: str, groups: Sequence[Group], bases: Sequence[Base], largest: int
) -> Iterator[Table]:
    """Yield the tables of the other sizes, folded by workload."""
    for ((workload, size, _), cases), base in zip(groups, bases, strict=True):
        if size != largest:
            one = _category_table(study, [(cases, base)], size)
            yield one | {"folded": True, "group": f"{workload} at other sizes"}


def _quickest(members: Sequence[tuple[Cases, Base]], names: Sequence[str]) -> str:
    """Name the quickest setting of each workload; empty where none may be compared."""
    sound = [[case for case in own if not case[1].blocked_by] for own, _ in members]
    several = [own for own in sound if len(own) > 1]
    best = [max(own, key=lambda case: case[1].rate)[0] for own in several]
    named = formats.listed(dict.fromkeys(setting(curve, names) for curve in best), 3)
    beside = ", others statistically tied" if any(map(_num_equal, several)) else ""
    return f"quickest {named}{beside}" if named else ""


def _num_equal(cases: Cases) -> int:
    """Return how many settings are not shown to be slower than the quickest."""
    places = alternatives.places([point for _, point in cases], ())
    return sum(place.kind == "not_shown_slower" for place in places)


def _category_table(study: str, members: Sequence[tuple[Cases, Base]], world_size: int) -> Table:
    """Return the settings of one size, of one workload or of several."""
    several = len(members) > 1
    cases = [case for own, _ in members for case in own]
    first = cases[0][0]
    names = varied(members[0][0]) or list(first.row.factors)[:1]
    has_steps = any(point.step_s for _, point in cases)
    texts = [*(["Workload"] if several else []), *names]
    texts += ["Buckets (MB)"] if study == "bucket" else []
    columns = [
        *texts, "Launches", "Step time (ms)" if has_steps else "", "95 % interval (ms)",
        f"Throughput ({first.row.sample_unit}/s)", "Ratio", "95 % interval", "Step waits (%)",
        "First all-reduce (ms)", "Memory (GB)", "Flags",
    ]  # fmt: skip
    rows = [
        ([curve.row.workload] if several else [])
        + [str(curve.row.factors.get(name, formats.DASH)) for name in names]
        + ([_buckets(point)] if study == "bucket" else [])
        + _category_cells(point, base[1] if base else None)
        for own, base in members
        for curve, point in own
    ]
    same = {k: v for k, v in first.row.factors.items() if k not in names}
    fixed = formats.listed(f"{k}={v}" for k, v in same.items() if k != "workload")
    caption = place(
        first, world_size, formats.listed(member[0][0][0].row.workload for member in members)
    )
    note = _ratio_note([base for _, base in members], names) + _without_effect(cases)
    return table(
        f"{caption}, {fixed}" if fixed else caption, columns, rows, len(texts),
        note=note, finding=_quickest(members, names),
    )  # fmt: skip


def _ratio_note(bases: Sequence[Base], names: Sequence[str]) -> str:
    base = bases[0]
    if base is None:
        return "No ratio: the setting that others are compared with was not measured at this size."
    what = setting(base[0], names)
    named = f"{what} of the same workload" if len(bases) > 1 else f"{what}, {absolute(base[1])},"
    return f"Ratio of throughput to {named} at the same world size."


def place(series: Series, world_size: int, what: str = "") -> str:
    """Return workload and ranks of settings that are compared, and their layout if not the main."""
    beside = f", {series.layout}" if series.layout else ""
    return f"{what or series.row.workload} on {counted(world_size, 'rank')}{beside}"


def setting(series: Series, names: Sequence[str]) -> str:
    """Return the values that a case gives to the factors named."""
    return ", ".join(f"{name}={series.row.factors.get(name)}" for name in names) or series.label


def _category_cells(point: Point, base: Point | None) -> list[str]:
    memory = point.peak_memory_bytes
    idle = quantities.values(point.rows, "loader_idle")
    return [
        str(point.num_launches), number(step_ms(point) or None),
        span(step_interval_ms(point)), number(point.throughput_samples_per_s),
        *_ratio_cells(point, base),
        percent(quantities.centre(idle, "loader_idle") if idle else None),
        _first_reduce(point), number(memory / GIGA if memory else None), flagged(point),
    ]  # fmt: skip


def _first_reduce(point: Point) -> str:
    """Return when the first all-reduce may begin, of a study of buckets, in milliseconds."""
    found = [row.first_reduce_s for row in point.rows if row.first_reduce_s is not None]
    is_asked = point.rows[0].study == "bucket"
    return number(median(found) * MILLI if found and is_asked else None)


def _knows_start(series: Series) -> bool:
    return any(_first_reduce(point) != formats.DASH for point in series.points)


def _ratio_cells(point: Point, base: Point | None) -> list[str]:
    """Return a ratio with its interval; dashes where none may be given."""
    if base is None or point.blocked_by or base.blocked_by:
        return [formats.DASH, formats.DASH]
    between = None if point is base else ratio_interval(point.units, base.units)
    return [ratio(point.rate / base.rate), ratio_span(between)]


def _buckets(point: Point) -> str:
    """Return the real bucket sizes of a point in MB, equal neighbours counted."""
    sizes = [number(size / MEGA) for size in point.rows[0].details.get("bucket_bytes") or []]
    runs = [(text, len(list(run))) for text, run in groupby(sizes)]
    return formats.listed((f"{n} \u00d7 {t}" if n > 1 else t for t, n in runs), 5) or formats.DASH


def _equal_buckets(series: Sequence[Series]) -> list[str]:
    """Name the caps that gave equal buckets: a difference between them is noise."""
    return [
        f"{workload}: bucket_cap_mb {formats.listed(caps)} gave the same buckets at world size "
        f"{formats.listed(sizes)}, so a difference between them is noise."
        for workload, caps, sizes in alternatives.equal_buckets(series)
    ]


def _without_effect(cases: Cases) -> str:
    """Name the options that could not act here, with the reason and in how many settings."""
    names: dict[str, dict[str, None]] = {}
    settings: dict[str, int] = {}
    for _, point in cases:
        ignored = point.rows[0].details.get("ignored")
        reasons = dict(ignored) if isinstance(ignored, dict) else {}
        for why in dict.fromkeys(map(str, reasons.values())):
            settings[why] = settings.get(why, 0) + 1
        for name, why in reasons.items():
            names.setdefault(str(why), {})[str(name)] = None
    return "".join(
        f" Without effect in {settings[why]} of {counted(len(cases), 'setting')}, since {why}: "
        f"{formats.listed(options)}."
        for why, options in names.items()
    )


def _knees(groups: list[tuple[Key, Cases]]) -> list[str]:
    """Name the least number of workers that comes close to the best, per data set and size."""
    sentences = []
    for (_, world_size, _), cases in groups:
        best = _best_per_workers(cases)
        if len(best) < 2:
            continue
        top = max(point.rate for point in best.values())
        knee = min(n for n, point in best.items() if point.rate >= (1 - KNEE) * top)
        sentences.append(
            f"Knee of {place(cases[0][0], world_size)}: num_workers={knee} is the "
            f"smallest within {100 * KNEE:.0f} % of the best throughput, at {absolute(best[knee])}."
        )
    return sentences


def _best_per_workers(cases: Cases) -> dict[int, Point]:
    """Return the fastest point of each number of workers, over all other options."""
    best: dict[int, Point] = {}
    for curve, point in cases:
        workers = curve.row.factors.get("num_workers")
        if isinstance(workers, int) and (workers not in best or point.rate > best[workers].rate):
            best[workers] = point
    return best


def _add_main_effects(made: Panel, groups: list[tuple[Key, Cases]]) -> None:
    for (_, world_size, _), cases in groups:
        best, point = max(cases, key=lambda case: case[1].rate)
        names = varied(cases)
        where = place(best, world_size)
        equal = _num_equal(cases)
        start = "Fastest as measured" if equal else "Best setting"
        beside = f"; {counted(equal, 'other')} statistically tied" if equal else ""
        made["lead"].append(
            f"{start} of {len(cases)} for {where}: {setting(best, names)}, {absolute(point)}"
            f"{beside}."
        )
        rows = [row for name in names for row in _effects(name, cases)]
        columns = ("Factor", "Level", "Settings", "Mean throughput", "Effect (%)")
        note = (
            "Geometric mean over the settings that have the level; the effect is relative to the "
            "factor's first level. Effects that depend on each other are not separated."
        )
        made["tables"].insert(0, table(f"Main effects, {where}", columns, rows, 2, note=note))


def _effects(name: str, cases: Cases) -> list[list[str]]:
    levels: dict[str, list[float]] = {}
    for curve, point in cases:
        levels.setdefault(str(curve.row.factors.get(name)), []).append(point.rate)
    means = {level: geometric_mean(rates) for level, rates in levels.items()}
    first = next(iter(means.values()))
    return [
        [name, level, str(len(levels[level])), number(mean), f"{100 * (mean / first - 1):+.1f}"]
        for level, mean in means.items()
    ]
