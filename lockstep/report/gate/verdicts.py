"""What can be said of one target at one point: met, missed, not shown or blocked.

With an interval (95 %, over launches, with the baseline's uncertainty in it):

    met         the whole interval reaches the target
    missed      no part of it does
    not-shown   it straddles the target, or no result holds the quantity
    blocked     `lockstep check` finds an error in a result behind it

A ratio to a baseline is not shown, either, where its whole interval lies above that of as many
ranks, or where a warning of the check that may make it wrong touches its point or the baseline.
Nor is what rests on repeats of one Slurm job: in `make statistics` their intervals hold the truth
in 27 to 58 % of ladders, as what the job's nodes add is in all of them. Launches without a
scheduler are of one machine, which is then what the target is about; a campaign may say the same of
its job (`is_machine`). At a further look at more launches the intervals are wider (`looks`).

The value is the report's, of medians over launches; the interval is of the geometric mean. Results
without repeats have no interval, nor have launches equal to the last digit. A cited table is then
judged by its value; a measured point is not shown, since where the next launch falls is unknown.
What was expected rather than measured may miss a target and never meets one. A gate is passed where
every target is met, so the chance to pass one wrongly is no larger than that of one interval, and
no interval is widened for their number (Berger 1982, the intersection-union test).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from lockstep.core import flags, record
from lockstep.core.flags import Flag
from lockstep.core.formats import counted, listed, number, percent
from lockstep.report import looks
from lockstep.report.check import evidence, terminal
from lockstep.report.check.checker import NOT_OF_SPEED, Finding, blocked_by, touching
from lockstep.report.check.evidence import FLAGGED
from lockstep.report.compute.scaling import Point
from lockstep.report.compute.statistics import CONFIDENCE, Interval, t_quantile
from lockstep.report.load.results import Results, Row

MET, MISSED, NOT_SHOWN, BLOCKED = "met", "missed", "not-shown", "blocked"
# Relative: a value that equals its target but for the last digits of the arithmetic reaches it.
ROUNDING = 1e-9
# Targets on a ratio to a baseline.
RATIOS = ("strong_efficiency", "parallel_efficiency", "speedup", "weak_time_increase")


# Kind of reason -> its sentence, with the values of its record.
REASONS = {
    "short": "{gap} short",
    "too-much": "{gap} too much",
    "no-repeat": "no repeat: no interval",
    "no-spread": "equal to the last digit: rounded or copied, no spread known",
    "one-job": "one job, {job}: other nodes may differ by more",
    "straddles": "the interval contains the target",
    "expected": "expected rather than measured",
    "no-scaling": "no series is of strong scaling but of {kinds} scaling; parallel_efficiency "
    "takes any",
    "no-size": "no series was measured at world size {size}",
    "is-baseline": "{label} has its baseline there, whose ratio is 1 by definition",
    "no-interval": "the launches differ too much for an interval",
    "no-weak": "no series of weak scaling was measured at two world sizes",
    "no-base": "there is nothing to gain over; pass --against BASE",
    "no-training": "no common point trains",
    "no-quantity": "no result holds the {what}",
    "no-nodes": "no result says on how many nodes it was measured",
    "problems": "{problems}",
    "no-case": "no result is of {case} at {size}; known: {known}",
    "other-system": "{name} was measured on {systems}, not {wanted}",
    "no-unit": "{name} has no value in {unit}",
    "above-linear": "the whole interval lies above 100 % efficiency, more than each rank can do "
    "alone; measure the baseline again with this size, and say why",
    "warned": "check warns: {rules}; mend that and measure again",
    "blocked": "blocked by check: {rules}",
}


@dataclass(frozen=True)
class Reason:
    """Why a verdict is what it is: a kind of `REASONS`, and the values of its sentence."""

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What can be said of one target at one point.

    Attributes:
        target: The key of the target, with its world size where it has one.
        where: The point, for a reader; empty where no result holds the quantity.
        unit: "%" for fractions, "x" for ratios, else what the value counts.
        reasons: Why the verdict is so; empty where value and interval show it.
        in_one_job: Whether the interval is over launches of one Slurm job.
        blocked_by: Rules of the check whose errors touch the results behind the verdict.
        warned_by: Rules of the check whose warnings do.
        apart: In what the training runs behind it differ from those of other verdicts on the
            target, with which they are not averaged.
        num_units: Launches or jobs that the interval is over, those of the point with the fewest.
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
    reasons: tuple[Reason, ...] = ()
    flags: list[Flag] = field(default_factory=list)
    in_one_job: bool = False
    blocked_by: list[str] = field(default_factory=list)
    warned_by: list[str] = field(default_factory=list)
    apart: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list, repr=False)
    num_units: int = field(default=2, repr=False)

    def unshown(self, *reasons: Reason) -> "Verdict":
        """Return it as not shown, for reasons beside those that it has; a blocked one as it is."""
        known = self.reasons if self.verdict == NOT_SHOWN else ()
        is_open = self.verdict != BLOCKED
        return replace(self, verdict=NOT_SHOWN, reasons=(*known, *reasons)) if is_open else self

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as `--json` prints it, without the results behind it."""
        names = [one.name for one in fields(self) if one.name not in ("rows", "num_units")]
        return {name: getattr(self, name) for name in names} | {
            "reason": reason(self),
            "reasons": [asdict(one) for one in self.reasons],
            "flags": flags.to_dicts(self.flags),
        }


@dataclass(frozen=True)
class Goal:
    """A target's name and limits."""

    target: str
    least: float | None = None
    most: float | None = None
    unit: str = "%"

    def unshown(self, kind: str, **values: Any) -> Verdict:
        """Return that the target is not shown, since no result holds what it asks for."""
        return self.counted(NOT_SHOWN, reasons=(Reason(kind, values),))

    def counted(self, verdict: str, **facts: Any) -> Verdict:
        """Return a verdict that rests on no interval."""
        return Verdict(
            self.target, verdict, least=self.least, most=self.most, unit=self.unit, **facts
        )

    def judge(
        self, points: Sequence[Point], where: str, value: float, interval: Interval | None
    ) -> Verdict:
        """Return what can be said of the target where a point has this value.

        With the point comes its baseline, where the value is a ratio to it.
        """
        row = points[0].rows[0]
        verdict, reasons = self._verdict(value, interval)
        if interval is None:
            single = min(point.num_launches for point in points) == 1
            reasons.append(Reason("no-repeat" if single else "no-spread"))
            verdict = NOT_SHOWN if row.origin == "measured" else verdict
        if verdict == MET and row.origin == "target":
            verdict, reasons = NOT_SHOWN, [Reason("expected")]
        low, high = interval or (None, None)
        return self.counted(
            verdict, where=where, case=row.case, world_size=points[0].world_size,
            value=value, low=low, high=high, reasons=tuple(reasons), flags=points[0].flags,
            in_one_job=interval is not None and any(point.in_one_job for point in points),
            rows=[row for point in points for row in point.rows],
            num_units=min(len(point.units) for point in points),
        )  # fmt: skip

    def seen_again(self, verdict: Verdict, share: float) -> Verdict:
        """Return a verdict whose interval holds at a share of the false claims of one look."""
        if verdict.low is None or verdict.high is None or verdict.value is None or share >= 1:
            return verdict
        freedom = max(verdict.num_units - 1, 1)  # Welch's lower bound
        wider = t_quantile(freedom, 1 - share * (1 - CONFIDENCE)) / t_quantile(freedom)
        middle, half = (verdict.low + verdict.high) / 2, (verdict.high - verdict.low) / 2
        ends = middle - wider * half, middle + wider * half
        seen = replace(verdict, low=ends[0], high=ends[1])
        text, reasons = self._verdict(verdict.value, ends)
        was_shown = verdict.verdict in (MET, MISSED)
        return seen.unshown(*reasons) if was_shown and text != verdict.verdict else seen

    def _verdict(self, value: float, interval: Interval | None) -> tuple[str, list[Reason]]:
        """Return the verdict of an interval, or of a value alone, with how far it misses."""
        low, high = interval or (value, value)
        # A median may reach a limit that no value of the interval reaches; the nearest end counts.
        short = 0.0 if self.least is None else self.least - min(value, high)
        over = 0.0 if self.most is None else max(value, low) - self.most
        if self.least is not None and high < self.least - _rounding(self.least):
            return MISSED, [Reason("short", {"gap": short, "unit": self.unit})]
        if self.most is not None and low > self.most + _rounding(self.most):
            return MISSED, [Reason("too-much", {"gap": over, "unit": self.unit})]
        reached = self.least is None or low >= self.least - _rounding(self.least)
        if reached and (self.most is None or high <= self.most + _rounding(self.most)):
            return MET, []
        return NOT_SHOWN, [Reason("straddles")]


def reason(verdict: Verdict) -> str:
    """Return why a verdict is what it is; empty where value and interval show it."""
    texts = []
    for one in verdict.reasons:
        values: dict[str, Any] = {
            name: listed(value, 4) if isinstance(value, list) else value
            for name, value in one.values.items()
        }
        if "gap" in values:
            values["gap"] = _gap(values["gap"], values["unit"])
        texts.append(evidence.fill(REASONS[one.kind], values))
    return "; ".join(texts)


def _gap(gap: float, unit: str) -> str:
    return f"{percent(gap)} percentage points" if unit == "%" else shown(gap, unit)


def shown(value: float | None, unit: str) -> str:
    """Return a value in its unit: fractions in per cent, counts whole."""
    if unit == "%":
        return f"{percent(value)} %"
    text = str(value) if isinstance(value, int) else number(value)
    return text if unit == "x" else f"{text} {unit}"


def _rounding(limit: float) -> float:
    return ROUNDING * abs(limit)


def block(
    verdicts: Sequence[Verdict], results: Results, findings: Sequence[Finding]
) -> list[Verdict]:
    """Return the verdicts as far as the check allows them.

    Blocked and without a value where an error touches a result behind them, and not shown where a
    warning puts a ratio in doubt. Rows of another set of results than this one are not looked at.
    """
    own = {id(row) for row in results.rows}
    return [_block(verdict, own, findings) for verdict in verdicts]


def _block(verdict: Verdict, own: set[int], findings: Sequence[Finding]) -> Verdict:
    rows = [row for row in verdict.rows if id(row) in own]
    rules = blocked_by(findings, rows, of_speed=verdict.target not in (*NOT_OF_SPEED, "num_nodes"))
    if not rules:
        warnings = [finding for finding in findings if finding.level == "warning"]
        warned = list(dict.fromkeys([*verdict.warned_by, *touching(warnings, rows)]))
        doubts = touching((finding for finding in warnings if finding.doubts), rows)
        doubts = doubts if verdict.target.partition(" ")[0] in RATIOS else []
        verdict = replace(verdict, warned_by=warned)
        return verdict.unshown(Reason("warned", {"rules": doubts})) if doubts else verdict
    names = list(dict.fromkeys([*verdict.blocked_by, *rules]))
    return replace(
        verdict, verdict=BLOCKED, value=None, low=None, high=None, in_one_job=False,
        reasons=(Reason("blocked", {"rules": names}),), blocked_by=names,
    )  # fmt: skip


def of_one_job(verdict: Verdict) -> Verdict:
    """Return a verdict, not shown where it rests on the speed of repeats that share a job."""
    if not verdict.in_one_job or verdict.target in NOT_OF_SPEED:
        return verdict
    return verdict.unshown(Reason("one-job", {"job": verdict.rows[0].job}))


def at_look(
    verdicts: Sequence[Verdict], history: looks.History, sides: Sequence[Results]
) -> tuple[list[Verdict], looks.Look | None]:
    """Return the verdicts as this look at their launches may claim them, and the look, recorded.

    None where no verdict rests on an interval.
    """
    behind = {id(row) for verdict in verdicts if verdict.low is not None for row in verdict.rows}
    rows = [[row for row in side.rows if id(row) in behind] for side in sides]
    if not rows[0]:
        return list(verdicts), None
    look = history.record(history.look(rows, sides))
    return at_share(verdicts, look.share), look


def at_share(verdicts: Sequence[Verdict], share: float) -> list[Verdict]:
    """Return verdicts whose intervals hold at a share of the false claims of a single look."""
    goals = [
        Goal(verdict.target, verdict.least, verdict.most, verdict.unit) for verdict in verdicts
    ]
    return [goal.seen_again(verdict, share) for goal, verdict in zip(goals, verdicts, strict=True)]


def heard(verdicts: Sequence[Verdict], findings: Sequence[Finding]) -> list[Finding]:
    """Return the warnings of the rules that verdicts are warned by."""
    rules = {rule for verdict in verdicts for rule in verdict.warned_by}
    return [finding for finding in findings if finding.level == "warning" and finding.rule in rules]


def document(
    verdicts: Sequence[Verdict],
    warnings: Sequence[Finding] = (),
    look: looks.Look | None = None,
) -> dict[str, Any]:
    """Return the verdicts as `--json` prints them, with the warnings of the check beside them."""
    return {
        "schema": record.SCHEMA_VERSION,
        "met": all(verdict.verdict == MET for verdict in verdicts),
        "look": None if look is None else look.to_dict(),
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        "warnings": [finding.record() for finding in warnings],
    }


def row(verdict: Verdict) -> list[str]:
    """Return a verdict as a row of the terminal's table: verdict, target, and all else."""
    about = (f"{_wanted(verdict)}{_value(verdict)}", verdict.where, reason(verdict))
    return [verdict.verdict, verdict.target, "; ".join(filter(None, about))]


def _wanted(verdict: Verdict) -> str:
    least, most, unit = verdict.least, verdict.most, verdict.unit
    if least is not None and most is not None:
        return f"{shown(least, unit)} to {shown(most, unit)} wanted"
    if most == 0 and unit == "problems":
        return "no problem wanted"
    if least is not None and least < 0:
        return f">= {shown(least, unit)} wanted, at most {shown(-least, unit)} less"
    sign, limit = (">=", least) if most is None else ("<=", most)
    return f"{sign} {shown(limit, unit)} wanted"


def _value(verdict: Verdict) -> str:
    """Return the value, and its interval in brackets."""
    if verdict.value is None:
        return ""
    # A long unit is written once, after the value.
    unit = verdict.unit if verdict.unit == "%" else "x"
    ends = [shown(end, unit) for end in (verdict.low, verdict.high) if end is not None]
    interval = f" ({' to '.join(ends)})" if ends else ""
    return f": {shown(verdict.value, verdict.unit)}{interval}"


def notes(verdicts: Sequence[Verdict], warnings: Sequence[Finding] = ()) -> list[str]:
    """Return the flags of the points, check's warnings of them, and the summary.

    The summary is the last; before it comes what the intervals of one job leave out.
    """
    flags = dict.fromkeys(flag for verdict in verdicts for flag in verdict.flags)
    alone = sum(verdict.in_one_job for verdict in verdicts)
    job = (
        f"{counted(alone, 'interval')} over launches of one job: another job may get other nodes "
        "and differ by more; repeat in several jobs, or say is_machine = true under [jobs]"
    )
    groups = terminal.grouped(finding for finding in warnings if finding.rule != FLAGGED)
    told = (
        f"check warns, {group.rule}: {group.where()}: {group.message(terminal.MAX_FACTS)}"
        for group in groups
    )
    return [*(f"flag: {flag}" for flag in flags), *told, *[job] * bool(alone), *_apart(verdicts),
            summary(verdicts)]  # fmt: skip


def _apart(verdicts: Sequence[Verdict]) -> list[str]:
    """Say why a target on training runs has several verdicts."""
    groups = Counter((verdict.target, verdict.apart) for verdict in verdicts if verdict.apart)
    return [
        f"{target}: {counted(number, 'group')} of training runs, each judged alone: they differ in "
        f"{listed(names)}, and runs that differ are not averaged"
        for (target, names), number in groups.items()
    ]


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return in a sentence whether the gate is passed, and which targets fail it."""
    failing = {
        kind: list(dict.fromkeys(verdict.target for verdict in verdicts if verdict.verdict == kind))
        for kind in ("blocked", "missed", "not-shown")
    }
    texts = [f"{kind}: {listed(targets)}" for kind, targets in failing.items() if targets]
    return "; ".join(texts) or f"all met: {counted(len(verdicts), 'verdict')}"
