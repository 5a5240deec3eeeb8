"""Targets that results must reach, and what can be said of each: met, missed, not shown or blocked.

With an interval (95 %, over launches, with the baseline's uncertainty in it: `statistics`):

    met         the whole interval reaches the target
    missed      no part of it does
    not-shown   it straddles the target, or no result holds the quantity
    blocked     `lockstep check` finds an error in a result behind it (`blocking`)

The value is the report's, of medians over launches; the interval is of the geometric mean.
Results without repeats have no interval, nor have launches equal to the last digit. A cited table
is then judged by its value; a measured point is not shown, since nobody knows where the next launch
falls. What was expected rather than measured may miss a target and never meets one. A gate is
passed where every target is met: among verdicts with intervals all must be, so the chance to pass
one wrongly is no larger than that of one interval, and none is widened for their number (Berger
1982, the intersection-union test).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

from lockstep.report.check.checker import Finding
from lockstep.report.compare.comparison import Comparison
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import WITHOUT_COST, Point, Series, series_of
from lockstep.report.compute.statistics import Interval, log_interval, median_rate, welch
from lockstep.report.gate.targets import Reference, Targets
from lockstep.report.load import replicates
from lockstep.report.load.results import Results, Row
from lockstep.vocabulary import flags, record
from lockstep.vocabulary.durations import TIME_UNITS
from lockstep.vocabulary.flags import Flag
from lockstep.vocabulary.formats import counted, listed, number, percent

MET, MISSED, NOT_SHOWN, BLOCKED = "met", "missed", "not-shown", "blocked"
NO_REPEAT = "no repeat: no interval"
NO_SPREAD = "equal to the last digit: rounded or copied, no spread known"
EXPECTED = "expected rather than measured"
# Relative: a value that equals its target but for the last digits of the arithmetic reaches it.
ROUNDING = 1e-9
# Studies that bear a scaling's name, or tables that say so.
IMPORTED = ("imported", "other")


@dataclass(frozen=True)
class Verdict:
    """What can be said of one target at one point.

    Attributes:
        target: The key of the target, with its world size where it has one.
        where: The point, for a reader; empty where no result holds the quantity.
        least: What the value must reach; None without a lower limit.
        most: What the value must not exceed; None without an upper limit.
        unit: "%" for fractions, "x" for ratios, else what the value counts.
        reason: Why the verdict is so; empty where value and interval say it.
        flags: Why the point is no proposal evidence.
        in_one_job: Whether the interval is over launches of one Slurm job.
        blocked_by: Rules of the check whose errors touch the results behind the verdict.
        rows: The results behind the value, those of the baseline with them.
    """

    target: str
    verdict: str
    where: str = ""
    case: str | None = None
    world_size: int | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    least: float | None = None
    most: float | None = None
    unit: str = "%"
    reason: str = ""
    flags: list[Flag] = field(default_factory=list)
    in_one_job: bool = False
    blocked_by: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Goal:
    """A target's name and limits."""

    target: str
    least: float | None = None
    most: float | None = None
    unit: str = "%"

    def unshown(self, reason: str) -> Verdict:
        """Return that the target is not shown, for want of a result."""
        return Verdict(
            self.target, NOT_SHOWN, least=self.least, most=self.most, unit=self.unit, reason=reason
        )

    def judge(
        self,
        point: Point,
        where: str,
        value: float,
        interval: Interval | None,
        launches: int | None = None,
    ) -> Verdict:
        """Return what can be said of the target where a point has this value.

        Args:
            point: Whose value it is.
            where: The point, for a reader.
            value: What is judged.
            interval: Of the value; None where nothing is known of its spread.
            launches: Fewest launches behind the value, where those of the point are not all.
        """
        row = point.rows[0]
        low, high = interval or (value, value)
        inside, outside = self._inside(low, high), self._outside(low, high)
        verdict = MET if inside else MISSED if outside else NOT_SHOWN
        reasons = [] if interval else [why_none(launches or point.num_launches)]
        if verdict == NOT_SHOWN:
            reasons.append("the interval contains the target")
        if interval is None and row.origin == "measured":
            verdict = NOT_SHOWN
        if verdict == MET and row.origin == "target":
            verdict, reasons = NOT_SHOWN, [EXPECTED]
        if verdict == MISSED:
            reasons.insert(0, self._shortfall(value, low, high))
        ends = interval or (None, None)
        return Verdict(
            self.target, verdict, where, row.case, point.world_size, value, ends[0], ends[1],
            self.least, self.most, self.unit, "; ".join(reasons), point.flags,
            bool(interval) and point.in_one_job, rows=point.rows,
        )  # fmt: skip

    def _inside(self, low: float, high: float) -> bool:
        return (self.least is None or low >= self.least * (1 - ROUNDING)) and (
            self.most is None or high <= self.most * (1 + ROUNDING)
        )

    def _outside(self, low: float, high: float) -> bool:
        short = self.least is not None and high < self.least * (1 - ROUNDING)
        return short or (self.most is not None and low > self.most * (1 + ROUNDING))

    def _shortfall(self, value: float, low: float, high: float) -> str:
        """Return how far a value is from the limit that it misses, in its unit.

        A median may reach a limit that no value of the interval reaches; the nearest end counts.
        """
        if self.least is not None and high < self.least:
            gap, word = self.least - min(value, high), "short"
        else:
            gap, word = max(value, low) - (self.most or 0.0), "too much"
        size = f"{percent(gap)} percentage points" if self.unit == "%" else shown(gap, self.unit)
        return f"{size} {word}"


def why_none(launches: int) -> str:
    """Say why a value of so many launches has no interval."""
    return NO_REPEAT if launches == 1 else NO_SPREAD


def shown(value: float | None, unit: str) -> str:
    """Return a value in its unit: fractions in per cent, counts whole."""
    if unit == "%":
        return f"{percent(value)} %"
    text = str(value) if isinstance(value, int) else number(value)
    return text if unit == "x" else f"{text} {unit}"


def verdicts(
    targets: Targets,
    results: Results,
    against: Comparison | None = None,
    findings: Sequence[Finding] = (),
) -> list[Verdict]:
    """Return what can be said of each target at each point that it speaks of.

    Args:
        targets: What is to be reached.
        results: What was measured or imported.
        against: The results compared with a base, for `throughput_gain`.
        findings: What the check has found in the results; its errors are no clean runs.
    """
    series = series_of(results.rows)
    found: list[Verdict] = []
    found += _efficiencies(targets, series)
    found += _increases(targets, series)
    found += _gains(targets, against)
    found += _quantities(targets, series)
    found += _whole(targets, results, series, findings)
    for one in targets.reference:
        found += _referenced(one, results, series)
    return found


def _efficiencies(targets: Targets, series: Sequence[Series]) -> Iterator[Verdict]:
    for size, least in (targets.strong_efficiency or {}).items():
        goal = Goal(f"strong_efficiency at {size}", least=least)
        own = _scaled(series, "strong")
        if series and not own:
            kinds = listed(sorted({one.row.scaling or "unnamed" for one in series}))
            yield goal.unshown(
                f"no series is of strong scaling but of {kinds} scaling; parallel_efficiency "
                "takes any"
            )
            continue
        yield from _at_size(goal, own, int(size), _efficiency)
    for size, least in (targets.parallel_efficiency or {}).items():
        goal = Goal(f"parallel_efficiency at {size}", least=least)
        yield from _at_size(goal, _scaling(series), int(size), _efficiency)
    for size, (low, high) in (targets.speedup or {}).items():
        goal = Goal(f"speedup at {size}", low, high, "x")
        yield from _at_size(goal, _scaling(series), int(size), _speedup)


def _scaled(series: Sequence[Series], scaling: str) -> list[Series]:
    """Return the series of a scaling: its own study's, and tables that say so."""
    return [s for s in series if s.row.scaling == scaling and s.row.study in (scaling, *IMPORTED)]


def _scaling(series: Sequence[Series]) -> list[Series]:
    """Return the series that ask how training scales: strong, weak, and any table."""
    return [s for s in series if s.row.study in ("strong", "weak", *IMPORTED[:1])]


def _efficiency(point: Point) -> tuple[float, Interval | None]:
    return point.parallel_efficiency, point.efficiency_interval


def _speedup(point: Point) -> tuple[float, Interval | None]:
    return point.speedup, point.speedup_interval


def _at_size(
    goal: Goal,
    series: Sequence[Series],
    world_size: int,
    value: Callable[[Point], tuple[float, Interval | None]],
) -> Iterator[Verdict]:
    """Judge a ratio to the baseline in every series that was measured at a world size."""
    points = [(one, p) for one in series for p in one.points if p.world_size == world_size]
    if not points:
        yield goal.unshown(f"no series was measured at world size {world_size}")
    for one, point in points:
        if point is one.base:
            yield goal.unshown(
                f"{one.label} has its baseline there, whose ratio is 1 by definition"
            )
        else:
            yield _ratio(goal, one, point, *value(point))


def _ratio(
    goal: Goal, series: Series, point: Point, value: float, interval: Interval | None
) -> Verdict:
    where = f"{_name(series, point)} over {series.baseline}"
    spread = welch(point.units, series.base.units)
    if interval is None and spread and spread.error:
        unsure = goal.unshown("the launches differ too much for an interval")
        verdict = replace(unsure, where=where, case=series.case, world_size=point.world_size)
    else:
        launches = min(point.num_launches, series.base.num_launches)
        found = goal.judge(point, where, value, interval, launches)
        alone = point.in_one_job or series.base.in_one_job
        verdict = replace(found, in_one_job=alone and interval is not None)
    return replace(verdict, rows=[*point.rows, *series.base.rows])


def _name(series: Series, point: Point) -> str:
    return f"{series.name} at {point.world_size}"


def _increases(targets: Targets, series: Sequence[Series]) -> Iterator[Verdict]:
    """Judge how much longer a weak step takes: 1 / efficiency - 1, as weak scaling has it."""
    if targets.weak_time_increase is None:
        return
    goal = Goal("weak_time_increase", most=targets.weak_time_increase)
    own = _scaled(series, "weak")
    points = [(one, p) for one in own for p in one.points if p is not one.base]
    if not points:
        yield goal.unshown("no series of weak scaling was measured at two world sizes")
    for one, point in points:
        efficiency, ends = _efficiency(point)
        interval = (1 / ends[1] - 1, 1 / ends[0] - 1) if ends else None
        yield _ratio(goal, one, point, 1 / efficiency - 1, interval)


def _gains(targets: Targets, against: Comparison | None) -> Iterator[Verdict]:
    """Judge the gain over a base; only an interval can show one."""
    if targets.throughput_gain is None:
        return
    goal = Goal("throughput_gain", least=targets.throughput_gain)
    if against is None:
        yield goal.unshown("there is nothing to gain over; pass --against BASE")
        return
    pairs = [pair for pair in against.points if pair[0].b[0].study not in WITHOUT_COST]
    if not pairs:
        yield goal.unshown("no common point trains")
    for pair, judged in pairs:
        if judged.interval is None:
            why = why_none(min(len(pair.a), len(pair.b)))
            yield goal.unshown(f"{pair.label} at {pair.world_size}: {why}")
            continue
        point = Point(
            pair.world_size, 0.0, pair.rates[1], pair.b, flags=[one for _, one in pair.flags]
        )
        low, high = judged.interval
        where = f"{pair.label} at {pair.world_size}"
        verdict = goal.judge(point, where, judged.ratio - 1, (low - 1, high - 1))
        yield replace(verdict, rows=[*pair.a, *pair.b])


def _quantities(targets: Targets, series: Sequence[Series]) -> Iterator[Verdict]:
    least = ("mfu", "validation_accuracy")
    for name, what in quantities.NAMES.items():
        wanted = getattr(targets, name)
        if wanted is None:
            continue
        goal = Goal(name, least=wanted) if name in least else Goal(name, most=wanted)
        points = [(one, p) for one in series for p in one.points if quantities.values(p.rows, name)]
        if not points:
            yield goal.unshown(f"no result holds the {what}")
        for one, point in points:
            value = quantities.centre(quantities.values(point.rows, name), name)
            interval = quantities.interval(point.rows, name)
            yield goal.judge(point, _name(one, point), value, interval)


def _whole(
    targets: Targets, results: Results, series: Sequence[Series], findings: Sequence[Finding]
) -> Iterator[Verdict]:
    """Judge what is asked of all results together; it is counted, so there is no interval.

    What was expected rather than measured was on no node, and never clean.
    """
    real = [row for row in results.rows if row.origin != "target"]
    unreal = EXPECTED if results.rows and not real else ""
    if targets.num_nodes is not None:
        goal = Goal("num_nodes", least=targets.num_nodes, unit="nodes")
        nodes = max((row.num_nodes or 0 for row in real), default=0)
        if nodes:
            verdict = MET if nodes >= targets.num_nodes else MISSED
            widest = [row for row in real if row.num_nodes == nodes]
            yield replace(
                goal.unshown(""), verdict=verdict, where="all results", value=nodes, rows=widest
            )
        else:
            yield goal.unshown(unreal or "no result says on how many nodes it was measured")
    if targets.clean_runs:
        problems = _problems(series, findings)
        verdict = NOT_SHOWN if unreal else MISSED if problems else MET
        whole = Goal("clean_runs", most=0, unit="problems").unshown(unreal or listed(problems, 3))
        yield replace(whole, verdict=verdict, where="all results", value=len(problems))


def _problems(series: Sequence[Series], findings: Sequence[Finding]) -> list[str]:
    """Return what is not clean: flags, and the errors of the check."""
    known = dict.fromkeys(flag for one in series for point in one.points for flag in point.flags)
    errors = [f"{one.rule}: {one.where}" for one in findings if one.level == "error"]
    return [*map(str, known), *errors]


def _referenced(one: Reference, results: Results, series: Sequence[Series]) -> Iterator[Verdict]:
    goal = Goal(
        "reference",
        None if one.lower is None else one.value * (1 + one.lower),
        None if one.upper is None else one.value * (1 + one.upper),
        one.unit,
    )
    points = [
        (own, point)
        for own in series
        if one.case in (own.case, own.label, own.name)
        for point in own.points
        if point.world_size == one.world_size
    ]
    if not points:
        known = listed((_name(own, p) for own in series for p in own.points), 4)
        yield goal.unshown(
            f"no result is of {one.case} at {one.world_size}; known: {known or 'none'}"
        )
    for own, point in points:
        there = _systems(point.rows, results)
        if not any(fnmatchcase(name, one.system) for name in there):
            yield goal.unshown(
                f"{_name(own, point)} was measured on {listed(there, 3)}, not {one.system}"
            )
            continue
        found = _in_unit(point, one.unit)
        if found is None:
            yield goal.unshown(f"{_name(own, point)} has no value in {one.unit}")
        else:
            yield goal.judge(point, _name(own, point), *found)


def _systems(rows: Sequence[Row], results: Results) -> list[str]:
    """Return the names by which a point's system may be called."""
    launches = {row.launch for row in rows}
    names = [str(row.details["system"]) for row in rows if row.details.get("system")]
    for launch in results.launches:
        if launch.name in launches:
            known = launch.provenance
            slurm = known.get("slurm")
            names += [str(rank.get("host")) for rank in known.get("ranks") or []]
            names += map(str, known.get("device_names") or [])
            names += [str(slurm.get("SLURM_JOB_PARTITION"))] if isinstance(slurm, dict) else []
    return list(dict.fromkeys(names)) or ["an unknown system"]


def _in_unit(point: Point, unit: str) -> tuple[float, Interval | None] | None:
    """Return a point's median and its interval, or None where it has none in the unit."""
    row = point.rows[0]
    if unit in TIME_UNITS:
        times = [r.step_s if r.step_s is not None else r.time_s for r in point.rows]
        known = [t / TIME_UNITS[unit] for t in times if t is not None]
    else:
        ranks = {f"{row.sample_unit}/s": 1, f"{row.sample_unit}/s per rank": point.world_size}
        rates = [r.throughput_samples_per_s if unit in ranks else None for r in point.rows]
        known = [rate / ranks[unit] for rate in rates if rate is not None]
    if len(known) < point.num_launches:
        return None
    middle = median(known) if unit in TIME_UNITS else median_rate(known)
    return middle, log_interval(replicates.independent(point.rows, known))


def document(found: Sequence[Verdict]) -> dict[str, Any]:
    """Return the verdicts as `--json` prints them."""
    return {
        "schema": record.SCHEMA_VERSION,
        "met": all(one.verdict == MET for one in found),
        "verdicts": [_as_record(one) for one in found],
    }


def _as_record(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict without the results behind it."""
    names = [one.name for one in fields(verdict) if one.name != "rows"]
    made = {name: getattr(verdict, name) for name in names}
    return made | {"flags": flags.to_dicts(verdict.flags)}


def summary(found: Sequence[Verdict]) -> str:
    """Return in a sentence whether the gate is passed, and which targets fail it."""
    failing: Mapping[str, list[str]] = {
        verdict: list(dict.fromkeys(one.target for one in found if one.verdict == verdict))
        for verdict in (BLOCKED, MISSED, NOT_SHOWN)
    }
    said = [f"{verdict}: {listed(names)}" for verdict, names in failing.items() if names]
    return "; ".join(said) or f"all met: {counted(len(found), 'verdict')}"
