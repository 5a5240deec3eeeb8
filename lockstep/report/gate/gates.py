"""The verdict on each target at each point: met, missed, not shown or blocked.

docs/numbers.md defines the verdicts. `Verdict.judge` compares an interval with a target; `block`,
`doubt_one_job` and `widen_at_look` then withdraw verdicts because of the check, a shared job or
earlier looks.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from math import inf
from statistics import median
from typing import Any

from lockstep.core import flags, record
from lockstep.core.findings import Finding as Reason
from lockstep.core.flags import Flag
from lockstep.core.formats import TIME_UNITS, counted, listed, number, percent
from lockstep.core.studies import IMPORTED, LADDERS, OTHER, WITHOUT_COST, WORK_SCALINGS
from lockstep.measure.causes.bound import FEWEST_LAUNCHES
from lockstep.report import looks
from lockstep.report.check import checker
from lockstep.report.check.checker import NOT_OF_SPEED, Finding, blocked_by, list_touching
from lockstep.report.check.evidence import FLAGGED, blocked_text
from lockstep.report.compare.comparison import Comparison
from lockstep.report.compare.judging import side_of
from lockstep.report.compute import alternatives, quantities, replicates, statistics
from lockstep.report.compute.scaling import Point, Series, series_of
from lockstep.report.compute.statistics import CONFIDENCE, Interval, t_quantile
from lockstep.report.gate.targets import Reference, Targets
from lockstep.report.load.results import Results, Row
from lockstep.report.words.lines import plain

MET, MISSED, NOT_SHOWN, BLOCKED = "met", "missed", "not-shown", "blocked"
# Relative: a value that misses its target by a rounding error only reaches it.
ROUNDING = 1e-9
# Targets on a ratio to a baseline.
RATIOS = ("strong_efficiency", "parallel_efficiency", "speedup", "weak_time_increase")
# Quantities with a minimum as target; the others have a maximum.
AT_LEAST = ("mfu", "validation_accuracy", "gpu_utilisation")
Value = Callable[[Point], tuple[float, Interval | None]]


@dataclass(frozen=True)
class Verdict:
    """The verdict on one target at one point, or on the target alone if there is no value.

    Attributes:
        target: Key of the target, with its world size if it has one.
        least: Lower limit of the value; `most`, its upper limit.
        unit: "%" for fractions, "x" for ratios, else the unit of the value.
        where: Name of the point; empty if no result holds the quantity.
        reasons: Reasons for the verdict; empty if value and interval show it.
        in_one_job: Whether the interval is over launches of one Slurm job.
        apart: Factors in which the training runs of the target differ, so they are not averaged.
        num_units: Launches or jobs that the interval is over, of the point with the fewest.
    """

    target: str
    least: float | None = None
    most: float | None = None
    unit: str = "%"
    verdict: str = NOT_SHOWN
    where: str = ""
    case: str | None = None
    world_size: int | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reasons: tuple[Reason, ...] = ()
    flags: list[Flag] = field(default_factory=list)
    in_one_job: bool = False
    blocked_by: list[str] = field(default_factory=list)
    warned_by: list[str] = field(default_factory=list)
    apart: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list, repr=False)
    num_units: int = field(default=2, repr=False)

    def doubt(self, kind: str, text: str, **values: Any) -> "Verdict":
        """Return the verdict as not shown, with one more reason; a blocked verdict is unchanged."""
        if self.verdict == BLOCKED:
            return self
        known = self.reasons if self.verdict == NOT_SHOWN else ()
        return replace(self, verdict=NOT_SHOWN, reasons=(*known, _reason(kind, text, **values)))

    def judge(
        self, points: Sequence[Point], where: str, value: float, interval: Interval | None
    ) -> "Verdict":
        """Return the verdict on the target, by a value and its interval.

        The value is the median over launches, as in the report; the interval is of the geometric
        mean. Without an interval, a cited value is judged alone, and a measured value is not
        shown, since its noise is unknown. An expected value may miss a target but never meets one.
        `points` is the point and, if the value is a ratio to the baseline, the baseline.
        """
        row = points[0].rows[0]
        verdict, reasons = self._compare(value, interval)
        if interval is None:
            if min(point.num_launches for point in points) == 1:
                reasons.append(
                    _reason("no-repeat", "there is only one launch, so there is no interval")
                )
            else:
                text = ("the values of the launches are equal to the last digit, so they are "
                        "rounded or copied and show no noise")  # fmt: skip
                reasons.append(_reason("no-spread", text))
            verdict = NOT_SHOWN if row.origin == "measured" else verdict
        if verdict == MET and row.origin == "target":
            verdict, reasons = NOT_SHOWN, [EXPECTED]
        low, high = interval or (None, None)
        return replace(
            self, verdict=verdict, where=where, case=row.case, world_size=points[0].world_size,
            value=value, low=low, high=high, reasons=tuple(reasons), flags=points[0].flags,
            in_one_job=interval is not None and any(point.in_one_job for point in points),
            rows=[row for point in points for row in point.rows],
            num_units=min(len(point.units) for point in points),
        )  # fmt: skip

    def widen(self, share: float) -> "Verdict":
        """Return the verdict with its interval widened to a look's `share` of the error rate.

        The share is that of one end, at which the target is met; both ends have twice as much.
        """
        if self.low is None or self.high is None or self.value is None or share >= 0.5:
            return self
        freedom = max(self.num_units - 1, 1)  # Welch's lower bound
        wider = t_quantile(freedom, 1 - 2 * share * (1 - CONFIDENCE)) / t_quantile(freedom)
        is_share = self.target in quantities.NAMES  # its interval may be clipped to 0 to 1
        middle = self.value if is_share else (self.low + self.high) / 2
        half = wider * max(self.high - middle, middle - self.low)
        low, high = middle - half, middle + half
        if is_share:
            low, high = max(low, 0.0), min(high, 1.0)
        wide = replace(self, low=low, high=high)
        verdict, reasons = self._compare(self.value, (low, high))
        if self.verdict not in (MET, MISSED) or verdict == self.verdict:
            return wide
        return replace(wide, verdict=NOT_SHOWN, reasons=tuple(reasons))

    def _compare(self, value: float, interval: Interval | None) -> tuple[str, list[Reason]]:
        """Return the verdict on an interval, or on a value alone, and by how much it misses."""
        low, high = interval or (value, value)
        least = -inf if self.least is None else self.least
        most = inf if self.most is None else self.most
        limits = least - ROUNDING * abs(least), most + ROUNDING * abs(most)
        # The median may lie outside the interval; then the nearest end of the interval counts.
        match side_of((low, high), limits):
            case "below":
                return MISSED, [self._miss("short", least - min(value, high), "short")]
            case "above":
                return MISSED, [self._miss("too-much", max(value, low) - most, "too much")]
            case "within":
                return MET, []
        return NOT_SHOWN, [
            _reason("straddles", "the interval contains the target, so nothing is decided")
        ]

    def _miss(self, kind: str, gap: float, word: str) -> Reason:
        is_share = self.unit == "%"
        text = f"{percent(gap)} percentage points" if is_share else shown(gap, self.unit)
        return _reason(kind, f"{text} {word}", gap=gap, unit=self.unit)

    @property
    def reason(self) -> str:
        """Return the reasons for the verdict as text; empty if value and interval show it."""
        return plain("; ".join(reason.text for reason in self.reasons))

    def to_dict(self) -> dict[str, Any]:
        names = [own.name for own in fields(self) if own.name not in ("rows", "num_units")]
        return {name: getattr(self, name) for name in names} | {
            "reason": self.reason,
            "reasons": [{"kind": own.kind, "values": own.values} for own in self.reasons],
            "flags": flags.to_dicts(self.flags),
        }


def _reason(kind: str, text: str, **values: Any) -> Reason:
    return Reason(kind, text, "note", values=values)


EXPECTED = _reason("expected", "the value is expected, not measured")


def shown(value: float | None, unit: str) -> str:
    """Return a value with its unit as text; fractions are in per cent."""
    if unit == "%":
        return f"{percent(value)} %"
    text = str(value) if isinstance(value, int) else number(value)
    return text if unit == "x" else f"{text} {unit}"


def verdicts(
    targets: Targets, results: Results, against: Comparison | None = None,
    findings: Sequence[Finding] = (),
) -> list[Verdict]:  # fmt: skip
    """Return the verdict on each target at each point that it concerns.

    A gate passes if every target is met, so the chance to pass wrongly is at most that of one
    interval, and no interval is widened for the number of targets (Berger 1982).
    """
    series = series_of(row for row in results.rows if not row.has_smaller_batch)
    return [
        *_ratios(targets, series),
        *_gains(targets, against),
        *_quantities(targets, series),
        *_nodes(targets, results),
        *_clean_runs(targets, results, series, findings),
        *(each for reference in targets.reference
          for each in _reference(reference, results, series)),
    ]  # fmt: skip


def _name(series: Series, point: Point) -> str:
    return f"{series.name} at {point.world_size}"


def _ratios(targets: Targets, series: Sequence[Series]) -> Iterator[Verdict]:
    """Judge the ratios to a baseline: efficiencies, speed-ups and increases of the step time."""
    ladders = [curve for curve in series if curve.row.study in (*LADDERS, IMPORTED)]
    strong, weak = (
        # Series of that study, and tables that state this scaling.
        [s for s in series if s.row.scaling == name and s.row.study in (*LADDERS, IMPORTED, OTHER)]
        for name in WORK_SCALINGS
    )
    for name, curves in (("strong_efficiency", strong), ("parallel_efficiency", ladders)):
        for size, least in (getattr(targets, name) or {}).items():
            wanted = Verdict(f"{name} at {size}", least)
            if curves is strong and series and not strong:
                kinds = sorted({curve.row.scaling or "unnamed" for curve in series})
                text = (f"no series has strong scaling, only {listed(kinds, 4)}; use the target "
                        "parallel_efficiency, which accepts any scaling")  # fmt: skip
                yield wanted.doubt("no-scaling", text, kinds=kinds)
            else:
                yield from _at_size(wanted, curves, int(size), _efficiency)
    for size, (low, high) in (targets.speedup or {}).items():
        wanted = Verdict(f"speedup at {size}", low, high, "x")
        yield from _at_size(wanted, ladders, int(size), lambda p: (p.speedup, p.speedup_interval))
    if targets.weak_time_increase is not None:
        wanted = Verdict("weak_time_increase", most=targets.weak_time_increase)
        points = [(curve, p) for curve in weak for p in curve.points if p is not curve.base]
        if not points:
            text = "no weak-scaling series was measured at two world sizes"
            yield wanted.doubt("no-weak", text)
        for curve, point in points:
            yield _ratio(wanted, curve, point, _increase)


def _efficiency(point: Point) -> tuple[float, Interval | None]:
    return point.parallel_efficiency, point.efficiency_interval


def _increase(point: Point) -> tuple[float, Interval | None]:
    """Return the increase of the step time in weak scaling, 1 / efficiency - 1."""
    efficiency, ends = _efficiency(point)
    return 1 / efficiency - 1, (1 / ends[1] - 1, 1 / ends[0] - 1) if ends else None


def _at_size(
    wanted: Verdict, series: Sequence[Series], size: int, value: Value
) -> Iterator[Verdict]:
    """Judge a ratio to the baseline in every series that was measured at a world size."""
    points = [(curve, p) for curve in series for p in curve.points if p.world_size == size]
    if not points:
        yield wanted.doubt("no-size", f"no series was measured at world size {size}", size=size)
    for curve, point in points:
        if point is curve.base:
            text = f"this size is the baseline of {curve.label}, so the ratio is 1 by definition"
            yield wanted.doubt("is-baseline", text, label=curve.label)
        else:
            yield _ratio(wanted, curve, point, value)


def _ratio(wanted: Verdict, series: Series, point: Point, value: Value) -> Verdict:
    where = f"{_name(series, point)} over {series.baseline}"
    ratio, interval = value(point)
    spread = statistics.welch(point.units, series.base.units)
    if interval is None and spread and spread.error:
        doubtful = replace(wanted, where=where, case=series.case, world_size=point.world_size,
                           rows=[*point.rows, *series.base.rows])  # fmt: skip
        return doubtful.doubt("no-interval", "the launches differ too much for an interval")
    verdict = wanted.judge([point, series.base], where, ratio, interval)
    if point.efficiency_interval is None or point.efficiency_interval[0] <= 1:
        return verdict
    text = (
        "the whole interval is above 100 % efficiency, which is more than perfect scaling; measure "
        "the baseline and this size again in one campaign; if it stays above, publish the cause"
    )
    return verdict.doubt("above-linear", text)


def _gains(targets: Targets, against: Comparison | None) -> Iterator[Verdict]:
    """Judge the gain over a base, or the allowed loss; both need an interval."""
    if targets.throughput_gain is None:
        return
    wanted = Verdict("throughput_gain", targets.throughput_gain)
    if against is None:
        yield wanted.doubt("no-base", "throughput_gain needs earlier results: pass --against PATH")
        return
    pairs = [pair for pair in against.points if pair[0].b[0].study not in WITHOUT_COST]
    if not pairs:
        yield wanted.doubt("no-training", "no training step is in both the results and --against")
    for pair, judged in pairs:
        flags = [flag for _, flag in pair.flags]
        sides = [
            Point(pair.world_size, 0.0, rates, rows, rates, flags=flags)
            for rates, rows in zip(reversed(pair.rates), (pair.b, pair.a), strict=True)
        ]
        ends = judged.interval and (judged.interval[0] - 1, judged.interval[1] - 1)
        where = f"{pair.label} at {pair.world_size}"
        verdict = wanted.judge(sides, where, judged.ratio - 1, ends)
        yield verdict if ends else replace(verdict, verdict=NOT_SHOWN)


def _quantities(targets: Targets, series: Sequence[Series]) -> Iterator[Verdict]:
    for name, quantity in quantities.NAMES.items():
        limit = getattr(targets, name)
        if limit is None:
            continue
        wanted = Verdict(name, limit) if name in AT_LEAST else Verdict(name, most=limit)
        points = [(s, p) for s in series for p in s.points if quantities.values(p.rows, name)]
        if not points:
            text = f"no result holds this quantity: {quantity}"
            yield wanted.doubt("no-quantity", text, what=quantity)
        # Training runs that differ are judged separately and never averaged.
        trained = [(curve, point) for curve, point in points if curve.row.training]
        others: dict[str, set[Any]] = {
            "world_size": {point.world_size for _, point in trained},
            "layout": {curve.layout for curve, _ in trained},
        }
        several = [name for name, values in others.items() if len(values) > 1]
        apart = (*alternatives.find_varied(trained), *several)
        for curve, point in points:
            if name == "communication_share" and quantities.is_divided(point):
                yield _communication(wanted, curve, point)
                continue
            value, interval = quantities.pool(point.rows, name)
            assert value is not None
            verdict = wanted.judge([point], _name(curve, point), value, interval)
            yield replace(verdict, apart=apart) if curve.row.training else verdict


def _communication(wanted: Verdict, series: Series, point: Point) -> Verdict:
    """Judge the exposed communication of the card, which is that of the page."""
    value, interval = quantities.card_share(series, point, "exposed")
    points = [point] if point is series.base else [point, series.base]
    verdict = wanted.judge(points, _name(series, point), value or 0.0, interval)
    fewest = min(len(each.units) for each in points)
    if value is None:
        text = "the machine was busy or changed while causes were measured; measure again"
    elif 1 < fewest < FEWEST_LAUNCHES:
        text = f"the interval needs {FEWEST_LAUNCHES} launches of this size and of the baseline"
    else:
        return verdict
    return replace(verdict, value=value, reasons=()).doubt("card", text)


def _nodes(targets: Targets, results: Results) -> Iterator[Verdict]:
    """Judge the number of nodes; expected values do not count."""
    if targets.num_nodes is None:
        return
    wanted = Verdict("num_nodes", targets.num_nodes, unit="nodes")
    real = [row for row in results.rows if row.origin != "target"]
    nodes = max((row.num_nodes or 0 for row in real), default=0)
    if nodes:
        verdict = MET if nodes >= targets.num_nodes else MISSED
        rows = [row for row in real if row.num_nodes == nodes]
        yield replace(wanted, verdict=verdict, where="all results", value=nodes, rows=rows)
    elif results.rows and not real:
        yield replace(wanted, reasons=(EXPECTED,))
    else:
        yield wanted.doubt("no-nodes", "no result records its number of nodes")


def _clean_runs(
    targets: Targets, results: Results, series: Sequence[Series], findings: Sequence[Finding]
) -> Iterator[Verdict]:
    """Judge that there is no flag and no error of the check; expected values never pass."""
    if not targets.clean_runs:
        return
    flags = dict.fromkeys(flag for s in series for point in s.points for flag in point.flags)
    errors = (f"{finding.rule}: {finding.where}" for finding in checker.errors(findings))
    problems = [*map(str, flags), *errors]
    reasons = (_reason("problems", listed(problems, 4), problems=problems),) if problems else ()
    verdict = MISSED if problems else MET
    if results.rows and all(row.origin == "target" for row in results.rows):
        verdict, reasons = NOT_SHOWN, (EXPECTED,)
    yield Verdict("clean_runs", most=0, unit="problems", verdict=verdict, where="all results",
                  value=len(problems), reasons=reasons)  # fmt: skip


def _reference(
    reference: Reference, results: Results, series: Sequence[Series]
) -> Iterator[Verdict]:
    """Judge each point that a reference names: its value on a system, as in ReFrame."""
    case, size, unit = reference.case, reference.world_size, reference.unit
    lower, upper = (
        None if tolerance is None else reference.value * (1 + tolerance)
        for tolerance in (reference.lower, reference.upper)
    )
    wanted = Verdict("reference", lower, upper, unit)
    points = [(curve, point) for curve in series for point in curve.points]
    named = [
        (_name(curve, point), point)
        for curve, point in points
        if case in (curve.case, curve.label, curve.name) and point.world_size == size
    ]
    if not named:
        known = [_name(*pair) for pair in points] or ["none"]
        points_known = listed(known, 4)
        text = f"{case} at world size {size} has no result; points with a result: {points_known}"
        yield wanted.doubt("no-case", text, case=case, size=size, known=known)
    for name, point in named:
        systems = _systems(point.rows, results)
        if not any(fnmatchcase(system, reference.system) for system in systems):
            text = f"{name} was measured on {listed(systems, 4)}, and not on {reference.system}"
            values = {"name": name, "systems": systems, "wanted": reference.system}
            yield wanted.doubt("other-system", text, **values)
        elif (measured := _in_unit(point, unit)) is None:
            yield wanted.doubt("no-unit", f"{name} has no value in {unit}", name=name, unit=unit)
        else:
            yield wanted.judge([point], name, *measured)


def _systems(rows: Sequence[Row], results: Results) -> list[str]:
    """Return the names of a point's system: hosts, devices, partitions, or a table's system."""
    launches = {row.launch for row in rows}
    names = [str(row.details["system"]) for row in rows if row.details.get("system")]
    for launch in results.launches:
        if launch.name in launches:
            slurm = launch.provenance.get("slurm")
            names += [str(rank.get("host")) for rank in launch.ranks]
            names += map(str, launch.provenance.get("device_names") or [])
            names += [str(slurm.get("SLURM_JOB_PARTITION"))] if isinstance(slurm, dict) else []
    return list(dict.fromkeys(names)) or ["an unknown system"]


def _in_unit(point: Point, unit: str) -> tuple[float, Interval | None] | None:
    """Return a point's median and interval in a unit; None if a launch lacks such a value."""
    if unit in TIME_UNITS:
        times = [row.step_s if row.step_s is not None else row.time_s for row in point.rows]
        values = [time / TIME_UNITS[unit] for time in times if time is not None]
    else:
        name = point.rows[0].sample_unit
        ranks = {f"{name}/s": 1, f"{name}/s per rank": point.world_size}
        rates = [row.throughput_samples_per_s if unit in ranks else None for row in point.rows]
        values = [rate / ranks[unit] for rate in rates if rate is not None]
    if len(values) < point.num_launches:
        return None
    middle = median(values) if unit in TIME_UNITS else statistics.median_rate(values)
    return middle, statistics.log_interval(replicates.independent(point.rows, values))


def block(
    verdicts: Sequence[Verdict], results: Results, findings: Sequence[Finding]
) -> list[Verdict]:
    """Return the verdicts, blocked or doubted by findings of the check in `results`.

    An error blocks verdicts on its results; a warning makes verdicts on doubtful ratios not shown.
    """
    own = {id(row) for row in results.rows}
    warnings = [finding for finding in findings if finding.level == "warning"]
    doubting = checker.find_doubting(findings)
    judged = []
    for verdict in verdicts:
        rows = [row for row in verdict.rows if id(row) in own]
        of_speed = verdict.target not in (*NOT_OF_SPEED, "num_nodes")
        if rules := blocked_by(findings, rows, of_speed=of_speed):
            rules = list(dict.fromkeys([*verdict.blocked_by, *rules]))
            reason = _reason("blocked", blocked_text([listed(rules, 4)]), rules=rules)
            verdict = replace(verdict, verdict=BLOCKED, value=None, low=None, high=None,
                              in_one_job=False, reasons=(reason,), blocked_by=rules)  # fmt: skip
        else:
            warned = list(dict.fromkeys([*verdict.warned_by, *list_touching(warnings, rows)]))
            verdict = replace(verdict, warned_by=warned)
            is_ratio = verdict.target.partition(" ")[0] in RATIOS
            if is_ratio and (doubts := list_touching(doubting, rows)):
                text = (
                    f"lockstep check warns of {listed(doubts, 4)}; fix the cause and measure again"
                )
                verdict = verdict.doubt("warned", text, rules=doubts)
        judged.append(verdict)
    return judged


def doubt_one_job(verdict: Verdict) -> Verdict:
    """Return a verdict; not shown if it is on the speed of repeats that share a job.

    In `make statistics` such intervals contain the truth in 27 to 58 % of ladders, since the effect
    of the job's nodes is in every repeat.
    """
    if not verdict.in_one_job or verdict.target in NOT_OF_SPEED:
        return verdict
    job = verdict.rows[0].job
    text = f"all repeats ran in Slurm job {job}, and jobs on other nodes may differ more"
    return verdict.doubt("one-job", text, job=job)


def widen_at_look(
    verdicts: Sequence[Verdict], history: looks.History, sides: Sequence[Results]
) -> tuple[list[Verdict], looks.Look | None]:
    """Return the verdicts at the error rate of this look, and the look if there is an interval."""
    behind = {id(row) for verdict in verdicts if verdict.low is not None for row in verdict.rows}
    rows = [[row for row in side.rows if id(row) in behind] for side in sides]
    if not rows[0]:
        return list(verdicts), None
    look = history.record(history.look(rows, sides))
    return [verdict.widen(look.share) for verdict in verdicts], look


def document(
    verdicts: Sequence[Verdict], warnings: Sequence[Finding] = (), look: looks.Look | None = None
) -> dict[str, Any]:
    return {
        "schema": record.SCHEMA_VERSION,
        "met": all(verdict.verdict == MET for verdict in verdicts),
        "look": None if look is None else look.to_dict(),
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        "warnings": [finding.record() for finding in warnings],
    }


def row(verdict: Verdict) -> list[str]:
    """Return a verdict as a row of the terminal's table: verdict, target, details."""
    least, most, unit = verdict.least, verdict.most, verdict.unit
    if least is not None and most is not None:
        text = f"{shown(least, unit)} to {shown(most, unit)} wanted"
    elif most == 0 and unit == "problems":
        text = "no problem wanted"
    elif least is not None and least < 0:
        limit, decrease = shown(least, unit), shown(-least, unit)
        text = f">= {limit} wanted, so a decrease may be at most {decrease}"
    else:
        sign, bound = (">=", least) if most is None else ("<=", most)
        text = f"{sign} {shown(bound, unit)} wanted"
    if verdict.value is not None:
        # A long unit is written once, after the value.
        short = unit if unit == "%" else "x"
        ends = [shown(end, short) for end in (verdict.low, verdict.high) if end is not None]
        text += f": {shown(verdict.value, unit)}" + (f" ({' to '.join(ends)})" if ends else "")
    about = "; ".join(filter(None, (text, verdict.where, verdict.reason)))
    return [verdict.verdict, verdict.target, about]


def notes(verdicts: Sequence[Verdict], warnings: Sequence[Finding] = ()) -> list[str]:
    """Return the flags of the points, the check's warnings, remarks, and last the summary."""
    flags = dict.fromkeys(flag for verdict in verdicts for flag in verdict.flags)
    texts = [f"flag: {flag}" for flag in flags]
    for group in checker.group_findings(finding for finding in warnings if finding.rule != FLAGGED):
        message = group.message(checker.MAX_FACTS)
        texts.append(f"check warns, {group.first.rule}: {group.where()}: {message}")
    if alone := sum(verdict.in_one_job for verdict in verdicts):
        intervals = counted(alone, "interval")
        texts.append(
            f"the repeats behind {intervals} ran in one Slurm job, and jobs on other nodes may "
            "differ more; repeat in several jobs, or set is_machine = true under [jobs] in the "
            "campaign if only these nodes matter"
        )
    groups = Counter((verdict.target, verdict.apart) for verdict in verdicts if verdict.apart)
    texts += [
        f"{target}: the training runs form {counted(count, 'group')}, which differ in "
        f"{listed(names)}, so each group is judged separately"
        for (target, names), count in groups.items()
    ]
    failing = {
        kind: list(dict.fromkeys(verdict.target for verdict in verdicts if verdict.verdict == kind))
        for kind in (BLOCKED, MISSED, NOT_SHOWN)
    }
    missed = [f"{kind}: {listed(targets)}" for kind, targets in failing.items() if targets]
    return [*texts, "; ".join(missed) or f"all met: {counted(len(verdicts), 'verdict')}"]
