"""The panels of a report: from series to tables and figures, as plain data.

A panel is a dict of id, title, origin, lead sentences, figures, tables and notes. Figures are
descriptions that `reports.figures` draws; tables hold formatted cells. Nothing here knows HTML.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from math import exp, fsum, log
from typing import Any

from bench import metrics
from reports import formats
from reports.formats import counted, number, percent, percent_span, ratio, ratio_span, span
from reports.load import OTHER, Results
from reports.scaling import Interval, Point, Series, median, pooled_step_s, ratio_interval

Panel = dict[str, Any]
Table = dict[str, Any]
Figure = dict[str, Any]

MAX_CURVES = 6
MAX_ITEMS = 12
MAX_TABLES = 80
MAX_ROWS = 200
MILLI = 1e3
MICRO = 1e6
GIGA = 1e9
MEGA = 1e6

# What each study compares its cases with: the factor it varies, and that factor's reference.
REFERENCES = {
    "precision": ("precision", "fp32"),
    "bucket": ("bucket_cap_mb", 25),
    "loader": ("num_workers", 0),
    "accumulation": ("accumulation", 1),
}
TITLES = {
    "strong": "Strong scaling",
    "weak": "Weak scaling",
    "precision": "Precision",
    "bucket": "DDP bucket size",
    "sensitivity": "Sensitivity to settings",
    "accumulation": "Gradient accumulation",
    "loader": "Data loader",
    "collective": "Collectives",
    OTHER: "Other benchmarks",
}


def panels(results: Results, series: Sequence[Series], threshold: float, hours: str) -> list[Panel]:
    """Return the panels of everything measured and imported, in the order of the page.

    Args:
        results: What was loaded.
        series: Its series.
        threshold: Least parallel efficiency called good.
        hours: Name of a device hour: GPU-hours, or rank-hours on CPUs.
    """
    measured = [one for one in series if one.row.origin == "measured"]
    studies = list(dict.fromkeys([*TITLES, *(one.row.study for one in measured)]))
    made = []
    for study in studies:
        chosen = [one for one in measured if one.row.study == study]
        if chosen:
            made.append(_panel(study, chosen, threshold, hours))
    for origin in ("cited", "target"):
        chosen = [one for one in series if one.row.origin == origin]
        if chosen:
            made.append(_imported(results, chosen, origin, threshold))
    return made


def _panel(study: str, series: list[Series], threshold: float, hours: str) -> Panel:
    if study in ("strong", "weak"):
        return _scaling(study, series, threshold, hours)
    if study == "collective":
        return _collectives(series)
    if study == OTHER:
        return _others(series)
    return _categories(study, series)


def panel(study: str, title: str, origin: str = "measured", **parts: Any) -> Panel:
    """Return a panel with the parts given and empty lists for the others."""
    empty: Panel = {"lead": [], "figures": [], "tables": [], "notes": []}
    return {"id": study, "title": title, "origin": origin} | empty | parts


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 0, **more: Any
) -> Table:
    """Return a table; its first `texts` columns are text, the others numbers.

    Columns in which every cell is unknown are left out.
    """
    kept = [i for i in range(len(columns)) if any(row[i] not in ("", formats.DASH) for row in rows)]
    return {
        "caption": caption,
        "columns": [_column(columns[i], i < texts) for i in kept],
        "rows": [[row[i] for i in kept] for row in rows],
        **more,
    }


def _column(name: str, text: bool) -> dict[str, Any]:
    """Part a column's name from its unit, which stands in brackets behind it."""
    label, _, unit = name.partition(" (")
    return {"label": label, "unit": unit.rstrip(")"), "text": text}


# Strong and weak scaling


def _scaling(study: str, series: list[Series], threshold: float, hours: str) -> Panel:
    strong = study == "strong"
    lead = (
        "The global batch is fixed, so each rank's share of it shrinks as ranks are added."
        if strong
        else "The local batch is fixed: ideally a step takes as long on many ranks as on one."
    )
    drawn = [one for one in series if len(one.points) > 1]
    first = _throughput_figure(drawn) if strong else _step_figure(drawn)
    figures = [first, _efficiency_figure(study, drawn, 0.9 if not strong else threshold)]
    made = panel(study, TITLES[study], lead=[lead])
    made["figures"] = figures if drawn else []
    made["tables"] = [_scaling_table(one, hours) for one in series[:MAX_TABLES]]
    made["notes"] = _left_out(series, drawn)
    return made


def _left_out(series: list[Series], drawn: list[Series]) -> list[str]:
    notes = []
    if len(drawn) > MAX_CURVES:
        names = formats.listed((one.label for one in drawn[MAX_CURVES:]), 6)
        notes.append(f"The figures show the first {MAX_CURVES} series; left out: {names}.")
    if len(series) > MAX_TABLES:
        notes.append(
            f"{len(series) - MAX_TABLES} further series have no table here; --csv prints them."
        )
    return notes


def baseline_text(series: Series) -> str:
    """Name a series' baseline with its absolute performance."""
    base = series.base
    noun = "rank" if series.row.origin == "measured" else "device"
    return f"{counted(base.world_size, noun)} at {_absolute(base)}"


def _repeat_text(series: Series) -> str:
    """Say why intervals are missing."""
    if all(point.num_launches == 1 for point in series.points):
        return " No repeat: no interval."
    if series.base.num_launches == 1:
        return " The baseline has no repeat: no interval of ratios."
    return ""


def _absolute(point: Point) -> str:
    row = point.rows[0]
    if point.time_s is not None:
        return f"{formats.duration(point.time_s)} a run"
    if point.throughput_samples_per_s is not None:
        return f"{number(point.throughput_samples_per_s)} {row.sample_unit}/s"
    if point.step_s is not None:
        return f"{number(point.step_s * MILLI)} ms a step"
    return f"{number(point.rate)} {row.sample_unit} (no unit of time)"


def _caption(series: Series) -> str:
    """Return a series' label with the precision and batch that the label does not tell."""
    row = series.row
    name = "global_batch" if row.scaling == "strong" else "local_batch"
    told = [] if "precision" in row.factors else [row.precision or "no arithmetic"]
    if name not in row.factors and getattr(row, name):
        told.append(f"{name}={getattr(row, name)}")
    return f"{series.label} ({', '.join(told)})" if told else series.label


def _scaling_table(series: Series, hours: str) -> Table:
    unit, strong = series.row.sample_unit, series.row.study == "strong"
    columns = (
        "Ranks", "Nodes", "Local batch" if strong else "Global batch", "Launches",
        "Step time (ms)",
        "95 % interval (ms)", f"Throughput ({unit}/s)", "Speed-up", "Efficiency (%)",
        "95 % interval (%)", "Time ratio", f"{hours} (per 10\u2076 {unit})", "MFU (%)",
        "Memory (GB)", "Imbalance", "Flags",
    )  # fmt: skip
    note = f"Ratios are relative to {baseline_text(series)}.{_repeat_text(series)}"
    rows = [_scaling_row(point, strong) for point in series.points]
    if {row.num_nodes for point in series.points for row in point.rows} == {1}:
        rows = [[row[0], "", *row[2:]] for row in rows]
    return table(_caption(series), columns, rows, note=note)


def _scaling_row(point: Point, strong: bool) -> list[str]:
    row = point.rows[0]
    memory = max((r.peak_memory_bytes for r in point.rows if r.peak_memory_bytes), default=None)
    mfus = [r.mfu for r in point.rows if r.mfu is not None]
    imbalance = [r.imbalance for r in point.rows if r.imbalance is not None]
    scale = MILLI if point.step_s is not None else 1.0
    return [
        str(point.world_size), _text(row.num_nodes),
        _text(row.local_batch if strong else row.global_batch), str(point.num_launches),
        number(None if point.step_s is None else point.step_s * MILLI),
        span(point.step_interval, scale), number(point.throughput_samples_per_s),
        ratio(point.speedup), percent(point.parallel_efficiency),
        percent_span(point.efficiency_interval), ratio(point.time_ratio),
        formats.trimmed(point.device_hours), percent(median(mfus) if mfus else None),
        number(memory / GIGA if memory else None), ratio(max(imbalance, default=None)),
        str(len(point.flags)) if point.flags else "",
    ]  # fmt: skip


def _text(value: object) -> str:
    return formats.DASH if value is None else str(value)


# Curves


def _curve(
    series: Series,
    value: Callable[[Point], float],
    interval: Callable[[Point], Interval | None],
    dots: Callable[[Point], list[float]],
) -> dict[str, Any]:
    """Return one series for a figure: its points, their intervals and every repeat."""
    return {
        "label": series.label,
        "x": [p.world_size for p in series.points],
        "y": [value(p) for p in series.points],
        "intervals": [_ends(interval(p)) for p in series.points],
        "dots": [[p.world_size, y] for p in series.points for y in dots(p) if len(p.rates) > 1],
        "ideal": [],
    }


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _pairs(curve: dict[str, Any]) -> list[tuple[float, float]]:
    return list(zip(curve["x"], curve["y"], strict=True))


def _figure(key: str, title: str, ylabel: str, curves: list[dict[str, Any]], **more: Any) -> Figure:
    sizes = sorted({x for curve in curves for x in curve["x"]})
    described = "; ".join(
        f"{curve['label']}: " + ", ".join(f"{number(y)} at {x}" for x, y in _pairs(curve))
        for curve in curves
    )
    return {
        "kind": "curve", "id": key, "title": title, "xlabel": "Ranks", "ylabel": ylabel,
        "ylog": False, "ticks": sizes, "series": curves, "lines": [],
        "desc": f"{ylabel} against ranks. {described}.",
    } | more  # fmt: skip


def _throughput_figure(series: list[Series]) -> Figure:
    unit = series[0].row.sample_unit if series else ""
    curves = []
    for one in [s for s in series if s.row.sample_unit == unit][:MAX_CURVES]:
        curve = _curve(one, lambda p: p.rate, lambda p: p.rate_interval, lambda p: p.rates)
        base = one.base
        curve["ideal"] = [
            [p.world_size, base.rate * p.world_size / base.world_size] for p in one.points
        ]
        curves.append(curve)
    return _figure(
        "strong-throughput", "Strong scaling: throughput", f"Throughput ({unit}/s)", curves,
        ylog=True,
    )  # fmt: skip


def _step_figure(series: list[Series]) -> Figure:
    curves = []
    for one in series[:MAX_CURVES]:
        curve = _curve(one, _step_ms, _step_interval_ms, _steps_ms)
        curve["ideal"] = [[p.world_size, _step_ms(one.base)] for p in one.points]
        curves.append(curve)
    figure = _figure("weak-step-time", "Weak scaling: step time", "Step time (ms)", curves)
    if len(curves) == 1:
        figure["lines"] = [{"y": 1.1 * curves[0]["ideal"][0][1], "label": "+10 %"}]
    return figure


def _step_ms(point: Point) -> float:
    return (point.step_s or 0.0) * MILLI


def _steps_ms(point: Point) -> list[float]:
    return [row.step_s * MILLI for row in point.rows if row.step_s is not None]


def _step_interval_ms(point: Point) -> Interval | None:
    if point.step_interval is None:
        return None
    return point.step_interval[0] * MILLI, point.step_interval[1] * MILLI


def _efficiency_figure(study: str, series: list[Series], threshold: float) -> Figure:
    curves = []
    for one in series[:MAX_CURVES]:
        base = one.base.rate / one.base.world_size

        def repeats(point: Point, base: float = base) -> list[float]:
            return [rate / point.world_size / base for rate in point.rates]

        curves.append(
            _curve(one, lambda p: p.parallel_efficiency, lambda p: p.efficiency_interval, repeats)
        )
    lines = [{"y": 1.0, "label": "100 %"}, {"y": threshold, "label": f"{100 * threshold:.0f} %"}]
    title = f"{TITLES.get(study, 'Imported tables')}: parallel efficiency"
    bases = dict.fromkeys(baseline_text(one) for one in series[:MAX_CURVES])
    return _figure(
        f"{study}-efficiency", title, "Parallel efficiency (%)", curves, lines=lines, percent=True,
        note=f"Relative to {'; '.join(bases)}.",
    )  # fmt: skip


# Studies that compare settings


def _categories(study: str, series: list[Series]) -> Panel:
    made = panel(study, TITLES.get(study, study.capitalize()))
    groups = _groups(study, series)
    for (_, world_size, _), cases in groups:
        made["tables"].append(_category_table(study, cases, world_size))
    largest = max(size for (_, size, _), _ in groups)
    shown = [(key, cases) for key, cases in groups if key[1] == largest and len(cases) > 1]
    made["figures"] = [
        _category_figure(study, i, key[1], c) for i, (key, c) in enumerate(shown[:2])
    ]
    if len(shown) > 2:
        made["notes"].append(f"Figures show the first 2 of {len(shown)} groups of settings.")
    if study == "bucket":
        made["notes"] += _equal_buckets(groups)
    if study == "sensitivity":
        _add_main_effects(made, shown)
    if len(made["tables"]) > MAX_TABLES:
        made["notes"].append(f"Tables show the first {MAX_TABLES} groups; --csv prints all.")
        made["tables"] = made["tables"][:MAX_TABLES]
    return made


Cases = list[tuple[Series, Point]]
Key = tuple[str, int, str]


def _groups(study: str, series: list[Series]) -> list[tuple[Key, Cases]]:
    """Group points that may be compared: same workload and size, and same other factors."""
    groups: dict[Key, Cases] = {}
    for one in series:
        others = ""
        if study in ("precision", "bucket"):
            varied = REFERENCES[study][0]
            others = str(sorted((k, str(v)) for k, v in one.row.factors.items() if k != varied))
        for point in one.points:
            groups.setdefault((one.row.workload, point.world_size, others), []).append((one, point))
    return sorted(groups.items(), key=lambda item: item[0][:2])


def _reference(study: str, cases: Cases) -> int:
    """Return the index of the case the others are compared with."""
    name, value = REFERENCES.get(study, ("", None))
    for index, (one, _) in enumerate(cases):
        if name in one.row.factors and one.row.factors[name] == value:
            return index
    return 0


def _varied(cases: Cases) -> list[str]:
    """Return the factors that take more than one value among the cases."""
    names = list(dict.fromkeys(name for one, _ in cases for name in one.row.factors))
    return [n for n in names if len({str(one.row.factors.get(n)) for one, _ in cases}) > 1]


def _category_table(study: str, cases: Cases, world_size: int) -> Table:
    names = _varied(cases) or list(cases[0][0].row.factors)[:1]
    unit = cases[0][0].row.sample_unit
    base = cases[_reference(study, cases)]
    has_steps = any(point.step_s for _, point in cases)
    buckets = ["Buckets (MB)"] if study == "bucket" else []
    columns = [
        *names, *buckets, "Launches", "Step time (ms)" if has_steps else "", "95 % interval (ms)",
        f"Throughput ({unit}/s)", "Ratio", "95 % interval", "Memory (GB)", "Flags",
    ]  # fmt: skip
    rows = [
        [str(one.row.factors.get(name, formats.DASH)) for name in names]
        + ([_buckets(point)] if buckets else [])
        + _category_cells(point, base[1])
        for one, point in cases
    ]
    same = {k: v for k, v in cases[0][0].row.factors.items() if k not in names}
    fixed = formats.listed(f"{k}={v}" for k, v in same.items() if k != "workload")
    caption = f"{cases[0][0].row.workload} on {counted(world_size, 'rank')}"
    note = (
        f"Ratio of throughput to {setting(base[0], names)}, {_absolute(base[1])}, "
        "at the same world size."
    )
    texts = len(names) + len(buckets)
    return table(f"{caption}, {fixed}" if fixed else caption, columns, rows[:MAX_ROWS], texts,
                 note=note)  # fmt: skip


def setting(series: Series, names: Sequence[str]) -> str:
    """Return the values that a case gives to the factors named."""
    return ", ".join(f"{name}={series.row.factors.get(name)}" for name in names) or series.label


def _category_cells(point: Point, base: Point) -> list[str]:
    memory = max((r.peak_memory_bytes for r in point.rows if r.peak_memory_bytes), default=None)
    between = None if point is base else ratio_interval(point.rates, base.rates)
    return [
        str(point.num_launches), number(_step_ms(point) or None),
        span(_step_interval_ms(point)), number(point.throughput_samples_per_s),
        ratio(point.rate / base.rate), ratio_span(between),
        number(memory / GIGA if memory else None), str(len(point.flags)) if point.flags else "",
    ]  # fmt: skip


def _buckets(point: Point) -> str:
    """Return the real bucket sizes of a point in MB, equal neighbours counted."""
    sizes = [number(size / MEGA) for size in point.rows[0].details.get("bucket_bytes") or []]
    runs = [(text, len(list(run))) for text, run in groupby(sizes)]
    return formats.listed((f"{n} \u00d7 {t}" if n > 1 else t for t, n in runs), 5) or formats.DASH


def _equal_buckets(groups: list[tuple[Key, Cases]]) -> list[str]:
    """Name the caps that gave equal buckets: a difference between them is noise."""
    found: dict[tuple[str, str], list[int]] = {}
    for (workload, world_size, _), cases in groups:
        same: dict[str, list[str]] = {}
        for one, point in cases:
            real = point.rows[0].details.get("bucket_bytes")
            if real:
                same.setdefault(str(real), []).append(str(one.row.factors.get("bucket_cap_mb")))
        for caps in same.values():
            if len(caps) > 1:
                found.setdefault((workload, formats.listed(caps)), []).append(world_size)
    return [
        f"{workload}: bucket_cap_mb {caps} gave the same buckets at world size "
        f"{formats.listed(sizes)}, so a difference between them is noise."
        for (workload, caps), sizes in found.items()
    ]


def _independent(names: list[str], cases: Cases) -> list[str]:
    """Return the factors that no factor before them already determines."""
    kept: list[str] = []
    for name in names:
        values = [str(one.row.factors.get(name)) for one, _ in cases]
        befores = [[str(one.row.factors.get(other)) for one, _ in cases] for other in kept]
        if not any(len(set(zip(b, values, strict=True))) == len(set(b)) for b in befores):
            kept.append(name)
    return kept


def _category_figure(study: str, index: int, world_size: int, cases: Cases) -> Figure:
    names = _independent(_varied(cases), cases)
    unit = cases[0][0].row.sample_unit
    items: list[dict[str, Any]] = [
        {
            "label": ", ".join(str(one.row.factors.get(name)) for name in names) or one.label,
            "value": point.rate,
            "interval": _ends(point.rate_interval),
            "dots": point.rates if len(point.rates) > 1 else [],
        }
        for one, point in cases[:MAX_ITEMS]
    ]
    title = (
        f"{TITLES.get(study, study)}: {cases[0][0].row.workload} on {counted(world_size, 'rank')}"
    )
    if len(cases) > MAX_ITEMS:
        title += f" (first {MAX_ITEMS} of {len(cases)} settings)"
    described = "; ".join(f"{item['label']}: {number(item['value'])}" for item in items)
    return {
        "kind": "category", "id": f"{study}-{index}", "title": title, "items": items,
        "xlabel": f"Throughput ({unit}/s)", "ylabel": ", ".join(names),
        "desc": f"Throughput by {', '.join(names)}. {described}.",
    }  # fmt: skip


def _add_main_effects(made: Panel, groups: list[tuple[Key, Cases]]) -> None:
    for (workload, world_size, _), cases in groups:
        best, point = max(cases, key=lambda case: case[1].rate)
        names = _varied(cases)
        place = f"{workload} on {counted(world_size, 'rank')}"
        made["lead"].append(
            f"Best setting of {len(cases)} for {place}: {setting(best, names)}, {_absolute(point)}."
        )
        rows = [row for name in names for row in _effects(name, cases)]
        columns = ("Factor", "Level", "Settings", "Mean throughput", "Effect (%)")
        note = (
            "Geometric mean over the settings that have the level; the effect is relative to the "
            "factor's first level. Effects that depend on each other are not separated."
        )
        made["tables"].insert(0, table(f"Main effects, {place}", columns, rows, 2, note=note))


def _effects(name: str, cases: Cases) -> list[list[str]]:
    levels: dict[str, list[float]] = {}
    for one, point in cases:
        levels.setdefault(str(one.row.factors.get(name)), []).append(point.rate)
    means = {level: exp(fsum(map(log, r)) / len(r)) for level, r in levels.items()}
    first = next(iter(means.values()))
    return [
        [name, level, str(len(levels[level])), number(mean), f"{100 * (mean / first - 1):+.1f}"]
        for level, mean in means.items()
    ]


# Collectives


def _collectives(series: list[Series]) -> Panel:
    made = panel("collective", TITLES["collective"])
    made["lead"] = [
        "algbw is message size over time; busbw multiplies it by the factor nccl-tests defines, "
        "so that it compares with the speed of a link. At one rank nothing crosses a bus."
    ]
    groups: dict[tuple[str, int], list[tuple[float, Point]]] = {}
    for one in series:
        for point in one.points:
            size = _message_bytes(point)
            groups.setdefault((one.row.workload, point.world_size), []).append((size, point))
    ordered = {key: sorted(groups[key], key=lambda item: item[0]) for key in sorted(groups)}
    made["tables"] = [_collective_table(*key, points) for key, points in ordered.items()]
    largest = max(world_size for _, world_size in ordered)
    swept = {key: points for key, points in ordered.items() if len(points) > 1}
    drawn = {key: points for key, points in swept.items() if key[1] == largest}
    figure = _bandwidth_figure(drawn, largest)
    made["figures"] = [figure] if figure["series"] else []
    if drawn and len(swept) > min(len(drawn), MAX_CURVES):
        names = formats.listed((workload for workload, _ in list(drawn)[:MAX_CURVES]), MAX_CURVES)
        made["notes"] = [f"The figure shows {names} at the largest world size, {largest}."]
    return made


def _message_bytes(point: Point) -> float:
    row = point.rows[0]
    given = row.details.get("message_bytes", row.factors.get("message_bytes"))
    return float(given or row.samples_per_step or 0)


def _bandwidths(point: Point) -> tuple[float | None, float | None]:
    """Return (algbw, busbw) in GB/s: the medians over launches of what the case recorded."""
    found = []
    for name in ("algbw_gb_per_s", "busbw_gb_per_s"):
        given = [row.details.get(name) for row in point.rows]
        known = [value for value in given if isinstance(value, int | float)]
        found.append(median(known) if known else None)
    algbw, busbw = found
    if algbw is None and point.step_s:
        algbw = metrics.algbw_gb_per_s(int(_message_bytes(point)), point.step_s)
    return algbw, busbw


def _collective_table(workload: str, world_size: int, points: list[tuple[float, Point]]) -> Table:
    columns = (
        "Message", "Launches", "Time (\u00b5s)", "95 % interval (\u00b5s)", "algbw (GB/s)",
        "busbw (GB/s)", "Flags",
    )  # fmt: skip
    rows = [
        [
            formats.size_of(size), str(point.num_launches),
            number(None if point.step_s is None else point.step_s * MICRO),
            span(point.step_interval, MICRO), *map(number, _bandwidths(point)),
            str(len(point.flags)) if point.flags else "",
        ]
        for size, point in points
    ]  # fmt: skip
    return table(f"{workload} on {counted(world_size, 'rank')}", columns, rows)


def _bandwidth_figure(
    groups: dict[tuple[str, int], list[tuple[float, Point]]], world_size: int
) -> Figure:
    """Return bandwidth against message size: busbw, or algbw at one rank."""
    index, name = (1, "busbw") if world_size > 1 else (0, "algbw")
    curves = []
    for (workload, _), points in list(groups.items())[:MAX_CURVES]:
        pairs = [(size, _bandwidths(point)[index]) for size, point in points]
        known = [(size, value) for size, value in pairs if value]
        curves.append({
            "label": workload, "x": [size for size, _ in known], "y": [y for _, y in known],
            "intervals": [None] * len(known), "dots": [], "ideal": [],
        })  # fmt: skip
    curves = [curve for curve in curves if curve["x"]]
    title = f"Collectives: {name} on {counted(world_size, 'rank')}"
    figure = _figure("collective-bandwidth", title, f"{name} (GB/s)", curves, ylog=True)
    figure |= {"xlabel": "Message size", "size_ticks": True}
    figure["desc"] = figure["desc"].replace("against ranks", "against message size in bytes")
    return figure


# Benchmarks that are not ours, and imported tables


def _others(series: list[Series]) -> Panel:
    columns = ("Benchmark", "Launches", "Rounds", "Median (ms)", "Mean (ms)", "Min (ms)",
               "Max (ms)", "Flags")  # fmt: skip
    rows = []
    for one in series[:MAX_ROWS]:
        point = one.points[0]
        numbers = pooled_step_s(point.rows)
        times = (point.step_s, *(numbers[f"{n}_step_s"] for n in ("mean", "min", "max")))
        rows.append([
            one.case, str(point.num_launches), str(sum(r.rounds or 0 for r in point.rows)),
            *(number(None if t is None else t * MILLI) for t in times), "",
        ])  # fmt: skip
    made = panel(OTHER, TITLES[OTHER], tables=[table("Times of one process", columns, rows, 1)])
    if len(series) > MAX_ROWS:
        made["notes"] = [f"The first {MAX_ROWS} of {len(series)} benchmarks; --csv prints all."]
    return made


def _imported(results: Results, series: list[Series], origin: str, threshold: float) -> Panel:
    title = {"cited": "Cited numbers", "target": "Targets"}[origin]
    lead = {
        "cited": "Published or logged by others and not measured by Lockstep; "
        "ratios are computed here from the absolute numbers.",
        "target": "Expected by their authors and measured by nobody: targets, not results.",
    }[origin]
    made = panel(origin, title, origin, lead=[lead])
    drawn = [one for one in series if len(one.points) > 2]
    if drawn:
        figure = _efficiency_figure(origin, drawn, threshold)
        figure |= {"title": f"{title}: parallel efficiency", "xlabel": "Devices"}
        made["figures"] = [figure]
    shown = series[:MAX_TABLES]
    made["tables"] = [_imported_table(one, results.tables.get(one.case, {})) for one in shown]
    made["notes"] = _left_out(series, drawn)
    return made


TIME_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _imported_table(series: Series, facts: dict[str, Any]) -> Table:
    unit = facts.get("unit", "s") if series.base.time_s is not None else "s"
    per = TIME_UNITS.get(unit, 1.0)
    sample = series.row.sample_unit or "samples"
    fixed = series.row.scaling == "fixed-epochs"
    cost = "GPU-hours" if series.base.time_s else f"GPU-hours (per 10\u2076 {sample})"
    relative = series.base.throughput_samples_per_s is None and series.base.time_s is None
    columns = (
        "n", "Global batch", "Rows", f"Time ({unit})", "Step time (ms)",
        f"Rate ({facts.get('unit', '')})" if relative else f"Throughput ({sample}/s)", "Speed-up",
        "Efficiency (%)", "95 % interval (%)", "Weak view (%)" if fixed else "Time ratio", cost,
        "Flags",
    )  # fmt: skip
    rows = [_imported_row(p, per, fixed, relative) for p in series.points]
    said = [_scaling_text(series, facts), f"Ratios are relative to {baseline_text(series)}."]
    said += [_repeat_text(series).strip()] if len(series.points) > 1 else []
    said += [f"Source: {facts['source']}."] if facts.get("source") else []
    said += [f"Note: {note}." for note in facts.get("notes", [])[:2]]
    return table(series.label, columns, rows, note=" ".join(said), origin=series.row.origin)


def _imported_row(point: Point, per: float, fixed: bool, relative: bool) -> list[str]:
    step = None if point.step_s is None else point.step_s * MILLI
    view = percent(point.time_ratio) if fixed else ratio(point.time_ratio)
    steps_only = relative and step is not None
    rate = None if steps_only else point.rate if relative else point.throughput_samples_per_s
    return [
        str(point.world_size), _text(point.rows[0].global_batch), str(point.num_launches),
        number(None if point.time_s is None else point.time_s / per), number(step), number(rate),
        ratio(point.speedup), percent(point.parallel_efficiency),
        percent_span(point.efficiency_interval), view, formats.trimmed(point.device_hours),
        str(len(point.flags)) if point.flags else "",
    ]  # fmt: skip


def _scaling_text(series: Series, facts: dict[str, Any]) -> str:
    texts = {
        "strong": "Strong scaling: the total work is fixed.",
        "weak": "Weak scaling: the work of each device is fixed.",
        "fixed-epochs": "Local batch and epochs fixed, so the global batch grows and the steps "
        "fall: neither strong nor weak scaling. Speed-up and efficiency are of the total time.",
    }
    if series.row.scaling in texts:
        view = " The weak view compares step times." if series.base.time_ratio else ""
        return texts[series.row.scaling] + view
    said = facts.get("scaling_text")
    return (
        f"Scaling as stated: {said}." if said else "Scaling not stated: total work taken as fixed."
    )
