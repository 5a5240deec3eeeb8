"""The panels of studies that compare settings: precision, bucket size, loader, sensitivity."""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from statistics import geometric_mean, median

from lockstep.core import formats
from lockstep.core.formats import counted, number, ratio
from lockstep.core.studies import BUCKETS, CROSSED, LOADERS, ON_REQUEST, TITLES
from lockstep.report.compute import alternatives
from lockstep.report.compute.alternatives import Cases, Key, Place, find_varied
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import ratio_interval
from lockstep.report.page import parts
from lockstep.report.page.parts import MAX_TABLES, Figure, Panel, Table, absolute, table
from lockstep.report.words import ranking_card
from lockstep.report.words.names import factors_text

# The share of the best throughput that fewer workers may lose.
KNEE = 0.05
# Most settings of a table that workloads share.
MAX_JOINED = 15

Group = tuple[Key, Cases]
Base = tuple[Series, Point] | None
# Settings of one workload and size, and the setting that they are compared with.
Member = tuple[Cases, Base]

STARTS = (
    "First all-reduce: time from the start of the backward pass until the first bucket has all of "
    "its gradients and its all-reduce may begin. A smaller bucket_cap_mb makes this time shorter."
)
WAITS = (
    "Step waits: share of a training step of resnet18 that is spent waiting for the loader. It is "
    "found by comparison with the same step on one batch in memory."
)


def settings_panel(study: str, series: list[Series]) -> Panel:
    """Return the panel of a study whose cases are settings to choose from."""
    groups = alternatives.groups(study, series)
    tables = list(islice(_tables(study, groups), MAX_TABLES + 1))
    figures, notes = _figures(study, groups)
    sound, lead = alternatives.drop_blocked(groups), []
    if study in BUCKETS:
        points = [point for curve in series for point in curve.points]
        notes += [STARTS] * any(_first_reduce(p) != formats.DASH for p in points)
        notes += [
            f"{workload}: bucket_cap_mb {formats.listed(bucket_caps)} gave the same buckets at "
            f"world size {formats.listed(world_sizes)}, so a difference between these settings is "
            "noise."
            for workload, bucket_caps, world_sizes in alternatives.equal_buckets(series)
        ]
    if study in CROSSED:
        largest = max(size for (_, size, _), _ in groups)
        for (_, size, _), cases in sound:
            if size == largest and len(cases) > 1:
                lead.append(_best(cases, size))
                tables.insert(0, _main_effects(cases, size))
    if study in LOADERS:
        lead, notes = _knees(sound), [*notes, WAITS]
    if len(tables) > MAX_TABLES:
        notes.append(f"Tables show the first {MAX_TABLES} groups; --csv prints all groups.")
    return parts.panel(
        study, TITLES.get(study, study.capitalize()), lead=lead, tables=tables[:MAX_TABLES],
        figures=figures, notes=notes,
    )  # fmt: skip


def requested_tables(study: str, series: Sequence[Series]) -> list[Table]:
    """Return tables that compare settings of a step, or of the user's own tests, at each size."""
    groups = [
        (key, cases)
        for key, cases in alternatives.groups(study, series)
        if len(cases) > 1 and (cases[0][0].row.is_own_test or {*ON_REQUEST} & {*find_varied(cases)})
    ]
    return list(islice(_tables(study, groups), MAX_TABLES)) if groups else []


def _tables(study: str, groups: Sequence[Group]) -> Iterator[Table]:
    """Yield the tables of the largest size, then those of the others, folded by workload.

    Workloads that vary the same factors share a table, the table of most workloads first.
    """
    largest = max(size for (_, size, _), _ in groups)
    both = list(zip(groups, alternatives.references(study, groups), strict=True))
    joined: dict[tuple[str, ...], list[Member]] = {}
    for ((_, size, _), cases), base in both:
        if size == largest:
            # Cases share a table if they agree in unit, layout and factors.
            curve, names = cases[0][0], find_varied(cases)
            same = {n: str(value) for n, value in curve.row.factors.items() if n not in names}
            workload = "" if names else curve.row.workload  # a lone case has no other name
            key = (curve.row.sample_unit, curve.layout, workload, *names,
                   str(same | {"workload": ""}), str(base is None))  # fmt: skip
            joined.setdefault(key, []).append((cases, base))
    for members in sorted(joined.values(), key=len, reverse=True):
        fits = sum(len(cases) for cases, _ in members) <= MAX_JOINED
        for some in [members] if fits else [[member] for member in members]:
            yield _category_table(study, some, largest)
    for ((workload, size, _), cases), base in both:
        if size != largest:
            made = _category_table(study, [(cases, base)], size)
            yield made | {"folded": True, "group": f"{workload} at other sizes"}


def _category_table(study: str, members: Sequence[Member], world_size: int) -> Table:
    cases = [case for own, _ in members for case in own]
    first = cases[0][0]
    names = find_varied(members[0][0]) or list(first.row.factors)[:1]
    several, is_bucket = len(members) > 1, study in BUCKETS
    placed = {
        place.point: place
        for own, _ in members
        for place in alternatives.places([p for _, p in own if not p.blocked_by], names)
    }
    texts = [*["Workload"] * several, *names, *["Buckets (MB)"] * is_bucket]
    throughput = f"Throughput ({first.row.sample_unit}/s)"
    times = ("Launches", "Step time (ms)", "95 % interval (ms)")
    shared = ("Memory (GB)", parts.FLAGS)
    rows = [
        [
            *[curve.row.workload] * several,
            *(str(curve.row.factors.get(name, formats.DASH)) for name in names),
            *[_buckets(point)] * is_bucket,
            *(parts.CELLS[name](point) for name in times), number(point.throughput_samples_per_s),
            *_ratio_cells(point, base[1] if base else None, placed.get(point)),
            parts.share(point.rows, "loader_idle"), _first_reduce(point),
            *(parts.CELLS[name](point) for name in shared),
        ]
        for own, base in members
        for curve, point in sorted(own, key=lambda case: -case[1].rate)
    ]  # fmt: skip
    note = "There is no ratio, because the reference setting was not measured at this size."
    if base := members[0][1]:
        reference = _setting(base[0], names)
        note = f"The ratio is relative to {reference} of the same workload at the same world size."
        if not several:
            rate = absolute(base[1])
            note = f"The ratio is relative to {reference} ({rate}) at the same world size."
    note += (
        " The verdict compares each setting with the quickest one, and is corrected for comparing "
        "all pairs of settings."
    )
    same = {k: v for k, v in first.row.factors.items() if k not in names}
    fixed = formats.listed(f"{k}={v}" for k, v in same.items() if k != "workload")
    caption = _place(
        first, world_size, formats.listed(own[0][0].row.workload for own, _ in members)
    )
    return table(
        f"{caption}, {fixed}" if fixed else caption,
        [*texts, *times, throughput, "Ratio", "95 % interval", "Verdict", "Step waits (%)",
         "First all-reduce (ms)", *shared], rows, len(texts),
        note=note + _without_effect(cases),
        finding=_quickest(members, names),
    )  # fmt: skip


def _buckets(point: Point) -> str:
    sizes = [number(size / 1e6) for size in point.rows[0].details.get("bucket_bytes") or []]
    runs = [(text, len(list(run))) for text, run in groupby(sizes)]
    return formats.listed((f"{n} \u00d7 {t}" if n > 1 else t for t, n in runs), 5) or formats.DASH


def _first_reduce(point: Point) -> str:
    """Return the earliest start of the first all-reduce in ms, for the study of buckets."""
    times_s = [row.first_reduce_s for row in point.rows if row.first_reduce_s is not None]
    is_asked = point.rows[0].study in BUCKETS
    return number(median(times_s) * parts.MILLI if times_s and is_asked else None)


def _ratio_cells(point: Point, base: Point | None, place: Place | None) -> list[str]:
    """Return the ratio to the reference, its interval, and the verdict against the quickest."""
    verdict = ranking_card.VERDICTS[place.kind] if place else formats.DASH
    if base is None or point.blocked_by or base.blocked_by:
        return [formats.DASH, formats.DASH, verdict]
    interval = None if point is base else ratio_interval(point.units, base.units)
    return [ratio(point.rate / base.rate), formats.ratio_span(interval), verdict]


def _without_effect(cases: Cases) -> str:
    options: dict[str, dict[str, None]] = {}
    settings: dict[str, set[int]] = {}
    for index, (_, point) in enumerate(cases):
        ignored = point.rows[0].details.get("ignored")
        for name, why in ignored.items() if isinstance(ignored, dict) else ():
            options.setdefault(str(why), {})[str(name)] = None
            settings.setdefault(str(why), set()).add(index)
    every = counted(len(cases), "setting")
    return "".join(
        f" Some options have no effect in {num_settings} of {every}, because {why}: {ignored}."
        for why, names in options.items()
        for num_settings, ignored in [(len(settings[why]), formats.listed(names))]
    )


def _quickest(members: Sequence[Member], names: Sequence[str]) -> str:
    sound = [[case for case in own if not case[1].blocked_by] for own, _ in members]
    several = [own for own in sound if len(own) > 1]
    best = [max(own, key=lambda case: case[1].rate)[0] for own in several]
    named = formats.listed(dict.fromkeys(_setting(curve, names) for curve in best), 3)
    unsure = dict.fromkeys(verdict for own in several for verdict in _unsure(own))
    beside = f", others {' or '.join(unsure)}" if unsure else ""
    return f"quickest {named}{beside}" if named else ""


def _unsure(cases: Cases) -> list[str]:
    places = alternatives.places([point for _, point in cases], ())
    kinds = [place.kind for place in places if place.kind in ("not_shown_slower", "too_noisy")]
    return [ranking_card.VERDICTS[kind] for kind in kinds]


def _place(series: Series, world_size: int, what: str = "") -> str:
    beside = f", {series.layout}" if series.layout else ""
    return f"{what or series.row.workload} on {counted(world_size, 'rank')}{beside}"


def _setting(series: Series, names: Sequence[str]) -> str:
    return factors_text({name: series.row.factors.get(name) for name in names}) or series.label


def _knees(groups: Sequence[Group]) -> list[str]:
    sentences = []
    for (_, world_size, _), cases in groups:
        best: dict[int, Point] = {}  # number of workers -> best point over all other options
        for curve, point in cases:
            num = curve.row.factors.get("num_workers")
            if isinstance(num, int):
                best[num] = max(best.get(num, point), point, key=lambda p: p.rate)
        if len(best) < 2:
            continue
        top = max(point.rate for point in best.values())
        knee = min(n for n, point in best.items() if point.rate >= (1 - KNEE) * top)
        place, rate = _place(cases[0][0], world_size), absolute(best[knee])
        sentences.append(
            f"For {place}, num_workers={knee} ({rate}) is the smallest number of workers whose "
            f"throughput is within {100 * KNEE:.0f} % of the best."
        )
    return sentences


def _best(cases: Cases, world_size: int) -> str:
    best, point = max(cases, key=lambda case: case[1].rate)
    unsure = _unsure(cases)
    start = "Fastest as measured" if unsure else "Best setting"
    verdicts = " or ".join(dict.fromkeys(unsure))
    beside = f"; {counted(len(unsure), 'other')} {verdicts}" if unsure else ""
    return (
        f"{start} of {len(cases)} for {_place(best, world_size)}: "
        f"{_setting(best, find_varied(cases))}, {absolute(point)}{beside}."
    )


def _main_effects(cases: Cases, world_size: int) -> Table:
    rows = []
    for name in find_varied(cases):
        levels: dict[str, list[float]] = {}
        for curve, point in cases:
            levels.setdefault(str(curve.row.factors.get(name)), []).append(point.rate)
        first = geometric_mean(next(iter(levels.values())))
        for level, rates in levels.items():
            mean = geometric_mean(rates)
            effect = f"{100 * (mean / first - 1):+.1f}"
            rows.append([name, level, str(len(rates)), number(mean), effect])
    best = max(cases, key=lambda case: case[1].rate)[0]
    return table(
        f"Main effects, {_place(best, world_size)}",
        ("Factor", "Level", "Settings", "Mean throughput", "Effect (%)"), rows, 2,
        note="The mean is the geometric mean over the settings with this level. The effect is "
             "relative to the factor's first level. Interactions of factors are not separated.",
    )  # fmt: skip


MAX_FIGURES, MAX_ITEMS = 2, 12


def _figures(study: str, groups: Sequence[Group]) -> tuple[list[Figure], list[str]]:
    # The largest size first, since campaigns are made for it.
    compare = sorted((each for each in groups if len(each[1]) > 1), key=lambda item: -item[0][1])
    made = [_rates(study, i, key[1], c) for i, (key, c) in enumerate(compare[:MAX_FIGURES])]
    num_groups = len(compare)
    note = f"Figures show the first {MAX_FIGURES} of {num_groups} groups of settings."
    return made, [note] if num_groups > MAX_FIGURES else []


def _rates(study: str, index: int, world_size: int, cases: Cases) -> Figure:
    names = alternatives.independent(alternatives.find_varied(cases), cases)
    first = cases[0][0]
    items = [
        {
            "label": ", ".join(str(curve.row.factors.get(name)) for name in names) or curve.label,
            "value": point.rate,
            "interval": parts.ends(point.rate_interval),
            "dots": point.rates if len(point.rates) > 1 else [],
        }
        for curve, point in cases[:MAX_ITEMS]
    ]
    title = f"{TITLES.get(study, study)}: {_place(first, world_size)}"
    if len(cases) > MAX_ITEMS:
        title += f" (first {MAX_ITEMS} of {len(cases)} settings)"
    described = "; ".join(f"{item['label']}: {number(point.rate)}"
                          for item, (_, point) in zip(items, cases, strict=False))  # fmt: skip
    return {
        "kind": "category", "id": f"{study}-{index}", "title": title, "items": items,
        "xlabel": f"Throughput ({first.row.sample_unit}/s)", "ylabel": ", ".join(names),
        "desc": f"Throughput by {', '.join(names)}. {described}.",
    }  # fmt: skip
