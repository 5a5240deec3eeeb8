"""The comparison of two sets of results, point by point, with a verdict on each common point.

A point is a case at one world size on one layout. Its ratio is the median of B's rates / A's.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from statistics import fmean, median
from typing import Any, NamedTuple

from lockstep.core import flags, formats, record
from lockstep.core.findings import Finding as Reason
from lockstep.core.flags import Flag
from lockstep.core.record import DDP_SETTINGS, LOADER_SETTINGS
from lockstep.core.studies import ON_REQUEST
from lockstep.measure.causes.bound import FEWEST_LAUNCHES, Bound, Cause
from lockstep.measure.causes.card import busy
from lockstep.report import looks
from lockstep.report.check.checker import (
    NOT_OF_SPEED,
    OF_SPEED,
    blocked_by,
    find_doubting,
    group_findings,
    touching,
)
from lockstep.report.check.evidence import FLAGGED, Finding
from lockstep.report.compare.judging import BLOCKED, MARGIN, UNKNOWN, Judged, judge
from lockstep.report.compute import learning, quantities, replicates, statistics
from lockstep.report.compute.replicates import independent
from lockstep.report.compute.scaling import label, series_of
from lockstep.report.compute.statistics import CONFIDENCE, median_rate
from lockstep.report.load import layout
from lockstep.report.load.layout import Layout
from lockstep.report.load.results import Launch, Results, Row, largest
from lockstep.report.load.training_runs import FACTORS

# Factors of training runs that --allow covers under other names than `training`.
NOT_OF_TRAINING = ("workload", "data", "precision", "global_batch", "local_batch")
# Name for `--allow` -> facts that must agree for points to be comparable.
MUST_AGREE = {
    "workload": ("study", "workload"),
    "scaling": ("scaling",),
    "precision": ("precision",),
    "batch": ("local_batch", "global_batch", "samples_per_step"),
    "unit": ("sample_unit", "metric"),
    "origin": ("origin",),
    "layout": ("num_nodes", "ranks_per_node"),
    "device": ("device_names", "device"),
    "training": tuple(name for name in FACTORS if name not in NOT_OF_TRAINING),
    "step": (*ON_REQUEST, "bucket_cap_mb", "no_sync"),
}
# Differing facts to name first; the hosts and the rest of the provenance follow.
FIRST_FACTS = ("precision", "driver", "image_sha256", "project_commit", "project_dirty",
    "git_commit", "torch", "nccl", "cuda", "device_names")  # fmt: skip
# Facts that differ by launch, or that another fact covers.
OWN_FACTS = {"ranks", "command", "hostname", "slurm", "environment", "image_path"}


class Key(NamedTuple):
    """The key of a point on one side."""

    case: str
    world_size: int
    layout: Layout = Layout()

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.case} at {self.world_size}", self.layout.text)))


Points = Mapping[Key, list[Row]]
# A value for A and one for B.
Both = tuple[list[Any], list[Any]]


@dataclass(frozen=True)
class Pair:
    """A point that both sides hold, with the rows of each; B's case may have another name."""

    case: str
    world_size: int
    a: list[Row]
    b: list[Row]

    @property
    def rates(self) -> tuple[list[float], list[float]]:
        """Return the rates (work per second) of each launch of A and of B."""
        return [row.rate for row in self.a], [row.rate for row in self.b]

    @property
    def ratio(self) -> float:
        a, b = map(median_rate, self.rates)
        return b / a

    @property
    def step_s(self) -> tuple[float | None, float | None]:
        """Return the median over launches of the step time of A and of B; None if unknown."""
        a, b = ([row.step_s for row in side if row.step_s] for side in (self.a, self.b))
        return median(a) if a else None, median(b) if b else None

    @cached_property
    def bounds(self) -> tuple[Bound | None, Bound | None]:
        """Return the bottleneck of A and of B; None if it was not timed."""
        series = (series_of(rows)[0] for rows in (self.a, self.b))
        a, b = (quantities.find_bottleneck(curve, curve.base) for curve in series)
        return a, b

    @property
    def peak_memory_bytes(self) -> tuple[int | None, int | None]:
        """Return the peak memory of A and of B (bytes), of the rank that needs most."""
        return largest(self.a, "peak_memory_bytes"), largest(self.b, "peak_memory_bytes")

    @property
    def memory_ratio(self) -> float | None:
        """Return the peak memory of B / that of A; None if one is unknown.

        Also None if only one side ran on GPUs: CPU peaks count the process, GPU peaks tensors.
        """
        a, b = self.peak_memory_bytes
        on_gpu = {bool(largest(side, "peak_reserved_bytes")) for side in (self.a, self.b)}
        return b / a if a and b and len(on_gpu) == 1 else None

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Return differing factors, and `num_nodes` if it differs, with the values of A and B."""
        a, b = self.a[0], self.b[0]
        values = {
            name: (a.factors[name], value) for name, value in b.factors.items()
            if name in a.factors and str(a.factors[name]) != str(value)
        }  # fmt: skip
        if b.num_nodes not in (None, a.num_nodes):
            values["num_nodes"] = a.num_nodes, b.num_nodes
        return values

    @property
    def case_label(self) -> str:
        """Return the varied factors, without those that differ between A and B."""
        parts = label(self.a[0]).split(", ")
        changed = tuple(f"{name}=" for name in self.changed)
        return ", ".join(part for part in parts if not part.startswith(changed)) or parts[0]

    @property
    def label(self) -> str:
        """Return study and varied factors, of those that differ with both values."""
        row = self.a[0]
        name = f"{row.study if row.origin == 'measured' else f'[{row.origin}]'} {label(row)}"
        values = [
            formats.counted(b, "node") if name == "num_nodes" else f"{name}={b}"
            for name, (_, b) in self.changed.items()
        ]
        return f"{name} (B: {', '.join(values)})" if values else name

    @property
    def flags(self) -> list[tuple[str, Flag]]:
        """Return the flags of both sides as (side, flag)."""
        sides = (("A", self.a), ("B", self.b))
        return list(
            dict.fromkeys((s, flag) for s, rows in sides for row in rows for flag in row.flags)
        )


class Campaign(NamedTuple):
    """A set of results to compare, and the findings of the check."""

    name: str
    results: Results
    findings: Sequence[Finding]


@dataclass
class Comparison:
    """Two sets of results side by side.

    Attributes:
        error: Error rate at which the intervals are drawn; their level is 1 - error.
        environment: Differing fact -> values of A and of B, the cases' factors first.
        cautions: Reasons to doubt a difference: "copies", "not-in-turn", "one-job", "busy" or
            "checked", for a warning of the check.
        allowing: Name for `--allow` -> number of points that it would add.
    """

    margin: float
    points: list[tuple[Pair, Judged]]
    error: float
    environment: dict[str, Both] = field(default_factory=dict)
    same_facts: list[str] = field(default_factory=list)
    cautions: list[Reason] = field(default_factory=list)
    only_in_a: list[Key] = field(default_factory=list)
    only_in_b: list[Key] = field(default_factory=list)
    ambiguous: list[dict[str, Any]] = field(default_factory=list)
    allowing: dict[str, int] = field(default_factory=dict)
    look: looks.Look = field(default_factory=lambda: looks.UNRECORDED.look((), ()))

    @property
    def has_interval(self) -> bool:
        """Tell whether some point has an interval, so that the comparison counts as a look."""
        return any(judged.interval for _, judged in self.points)


def compare(
    a: Results, b: Results, margin: float = MARGIN, allowed: Collection[str] = (),
    findings: tuple[Sequence[Finding], Sequence[Finding]] = ((), ()),
    history: looks.History = looks.UNRECORDED,
) -> Comparison:  # fmt: skip
    """Match the points of two sets of results and judge each.

    A case's name holds its factors, so other precisions or batches have other names.
    Points of the same name are paired first. If `allowed` lets a factor differ, the others are
    paired by test, remaining factors and world size, provided that each side has exactly one such
    point. Errors of the check in A or B block the points that they touch. The looks of a history
    together have the error rate of one comparison.

    Raises:
        ValueError: The sides have no point in common, or differ in what makes them incomparable.
    """
    b = match_tables(a, b)
    points = _points(a.rows, b.rows)
    keys, ambiguous = _match(*points, allowed)
    allowing = {
        name: more for name in MUST_AGREE
        if (more := len(_match(*points, {*allowed, name})[0]) - len(keys)) > 0
    }  # fmt: skip
    if not keys and ambiguous:
        raise ValueError(f"the points of A and B cannot be paired uniquely: {ambiguity(ambiguous)}")
    if not keys:
        in_a, in_b = (formats.listed(map(str, side), 3) or "nothing" for side in points)
        hints = [f"pass --allow {name}" for name in allowing]
        otherwise = "measure the same cases at the same world sizes"
        sides_of = (a.rows, b.rows)
        if any(side and all(r.origin != "measured" for r in side) for side in sides_of):
            otherwise = "use lockstep report A B, which shows the curves beside each other"
        what_to_do = " or ".join([*hints, otherwise])
        raise ValueError(
            f"A and B have no point in common: A holds {in_a}, and B holds {in_b}; {what_to_do}"
        )
    pairs = [Pair(*key[:2], points[0][key], points[1][theirs]) for key, theirs in keys]
    pairs.sort(key=lambda pair: pair.world_size)
    rows = [row for pair in pairs for row in pair.a], [row for pair in pairs for row in pair.b]
    names = [{row.launch for row in side} for side in rows]
    launches = (
        [launch for launch in a.launches if launch.name in names[0]],
        [launch for launch in b.launches if launch.name in names[1]],
    )
    _refuse_differences(pairs, a, b, launches, allowed)
    look = history.look(rows, (a, b))
    share = look.share * (1 - CONFIDENCE)  # of all allowed false claims
    judged, error = _judge_pairs(pairs, margin, findings, share)
    if not (looks.is_machine(a) and looks.is_machine(b)):
        for index, (pair, each) in enumerate(judged):
            one, other, both = map(replicates.in_one_job, (pair.a, pair.b, [*pair.a, *pair.b]))
            if each.interval and (one or other) and not both:
                judged[index] = pair, replace(each, verdict=UNKNOWN, in_one_job=True)
    factors: dict[str, Both] = {}
    for pair in pairs:
        for name, values in pair.changed.items():
            for side, value in zip(factors.setdefault(name, ([], [])), values, strict=True):
                side += [value] if value not in side else []
    differing, same = environment(launches, rows)
    only_in_a, only_in_b = (
        sorted((key for key in side if key not in paired), key=lambda key: key.world_size)
        for side, paired in zip(points, map(set, zip(*keys, strict=True)), strict=True)
    )
    return Comparison(
        margin, judged, error, factors | differing, same,
        [*_cautions(launches, pairs), *_doubts(pairs, findings)], only_in_a, only_in_b, ambiguous,
        allowing, look,
    )  # fmt: skip


def match_tables(a: Results, b: Results) -> Results:
    """Return B; if each side is a single table, B's takes the name of A's, so that they match."""
    names = [{row.case for row in side.rows} for side in (a, b)]
    is_table = all(
        len(cases) == 1 and cases <= side.tables.keys()
        for side, cases in zip((a, b), names, strict=True)
    )
    if names[0] == names[1] or not is_table:
        return b
    (to,), (own,) = names
    rows = [
        replace(row, case=to, workload=a.rows[0].workload if row.workload == own else row.workload)
        for row in b.rows
    ]
    return replace(b, rows=rows, tables={to: b.tables[own]})


def _points(a: Iterable[Row], b: Iterable[Row]) -> tuple[Points, Points]:
    """Return the rows of each point of A and of B, by case, world size and layout.

    A setting separates points if it varies within a side, and a layout if both sides record it.
    """
    sides: list[dict[tuple[str, int], list[Row]]] = [{}, {}]
    for side, rows in zip(sides, (a, b), strict=True):
        for row in rows:
            side.setdefault((row.case, row.world_size), []).append(row)
    points: tuple[dict[Key, list[Row]], dict[Key, list[Row]]] = ({}, {})
    for of_side, side in zip(points, sides, strict=True):
        for key, rows in side.items():
            both = [each.get(key, []) for each in sides]
            names = dict.fromkeys(name for each in both for name in layout.list_differing(each))
            is_known = all(row.num_nodes for each in both for row in each)
            for row in rows:
                placed = layout.layout(row, names) if is_known else Layout()
                of_side.setdefault(Key(*key, placed), []).append(row)
    return points


def _match(
    a: Points, b: Points, allowed: Collection[str]
) -> tuple[list[tuple[Key, Key]], list[dict[str, Any]]]:
    """Return the pairs of keys of A and B, in the order of A, and what is ambiguous.

    That is each world size with its candidates in A and B, if a side has several.
    """
    pairs = {key: key for key in a if key in b}
    ambiguous = []
    left_out = {name for each in allowed for name in MUST_AGREE[each]}
    groups: dict[tuple[Any, ...], tuple[list[Key], list[Key]]] = {}
    for index, side in enumerate((a, b) if allowed else ()):
        for key, rows in side.items():
            factors = rows[0].factors
            test = key.case.partition("[")[0] if factors else key.case
            kept = frozenset((name, str(v)) for name, v in factors.items() if name not in left_out)
            placed = None if "layout" in allowed else key.layout
            groups.setdefault((test, key.world_size, kept, placed), ([], []))[index].append(key)
    for identity, (mine, theirs) in groups.items():
        rest = [key for key in mine if key not in b], [key for key in theirs if key not in a]
        if len(mine) == len(theirs) == 1:
            pairs[mine[0]] = theirs[0]
        elif all(rest):
            names = [[str(key) for key in side] for side in rest]
            ambiguous.append({"world_size": identity[1], "a": names[0], "b": names[1]})
    return [(key, pairs[key]) for key in a if key in pairs], ambiguous


def ambiguity(points: Sequence[Mapping[str, Any]]) -> str:
    num_points = formats.counted(len(points), "point")
    in_a, in_b = (formats.listed(points[0][side], 3) for side in ("a", "b"))
    return (
        f"{num_points} can be paired in several ways, such as {in_a} of A with {in_b} of B; give "
        "results in which each side has only one of these points"
    )


def _refuse_differences(
    pairs: Iterable[Pair], a: Results, b: Results, launches: Sequence[Sequence[Launch]],
    allowed: Collection[str],
) -> None:  # fmt: skip
    """Raise ValueError for pairs whose rates are not comparable, or on other devices."""

    def listed(values: Collection[Any]) -> str:
        texts = sorted("unknown" if value is None else str(value) for value in values)
        return formats.listed(texts, 4) or "unknown"

    facts = [
        (allow, name) for allow, names in MUST_AGREE.items() for name in names
        if allow not in allowed and name in (*Row.__slots__, "metric")
    ]  # fmt: skip
    for pair, (allow, name) in product(pairs, facts):
        if name == "metric":
            tables = a.tables.get(pair.a[0].case), b.tables.get(pair.b[0].case)
            mine, theirs = ({table.get(name)} if table else set() for table in tables)
        else:
            mine, theirs = ({getattr(row, name) for row in side} for side in (pair.a, pair.b))
        if mine != theirs or len(mine) > 1:
            of_a, of_b = map(listed, (mine, theirs))
            raise ValueError(
                f"{pair.case} at world size {pair.world_size} has {name} {of_a} in A, but {of_b} "
                f"in B, so the rates are not comparable; pass --allow {allow} to compare them "
                "anyway"
            )
    devices = [
        {formats.listed(run.provenance.get("device_names") or ["unknown devices"]) for run in side}
        for side in launches
    ]
    if "device" not in allowed and devices[0] != devices[1] and all(devices):
        of_a, of_b = map(listed, devices)
        raise ValueError(
            f"A was measured on {of_a} and B on {of_b}, so a difference may come from the devices; "
            "pass --allow device to compare them anyway"
        )


def _judge_pairs(
    pairs: Sequence[Pair], margin: float,
    findings: tuple[Sequence[Finding], Sequence[Finding]], allowed: float,
) -> tuple[list[tuple[Pair, Judged]], float]:  # fmt: skip
    """Return each pair with its verdict, and the error rate of the family."""
    of_a, of_b = findings
    rules = [
        tuple(dict.fromkeys([*blocked_by(of_a, pair.a), *blocked_by(of_b, pair.b)]))
        for pair in pairs
    ]
    rates = [
        (independent(pair.a, pair.rates[0]), independent(pair.b, pair.rates[1]))
        for pair, blocking in zip(pairs, rules, strict=True)
        if not blocking
    ]
    judged, error = judge(rates, margin, allowed)
    verdicts = iter(judged)
    return [
        (pair, Judged(pair.ratio, None, BLOCKED, blocked_by=blocking) if blocking
         else replace(next(verdicts), ratio=pair.ratio))
        for pair, blocking in zip(pairs, rules, strict=True)
    ], error  # fmt: skip


def environment(
    launches: tuple[Sequence[Launch], Sequence[Launch]],
    rows: tuple[Sequence[Row], Sequence[Row]],
) -> tuple[dict[str, Both], list[str]]:
    """Return differing facts with the values of A and of B, and the known facts that are equal."""
    sides = [_facts(*side) for side in zip(launches, rows, strict=True)]
    places = {name: place for place, name in enumerate((*FIRST_FACTS, "hosts"))}
    differing: dict[str, Both] = {}
    equal = []
    for name in sorted({**sides[0], **sides[1]}, key=lambda name: places.get(name, len(places))):
        # A fact that a version did not record is unknown; a missing variable is not set.
        unset = {} if name.startswith(("variable ", "source of ")) else {"None": None}
        a, b = (side.get(name, unset) for side in sides)
        if a.keys() != b.keys():
            differing[name] = list(a.values()), list(b.values())
        elif set(a) - {"None"}:
            equal.append(name)
    return differing, equal


def _facts(launches: Sequence[Launch], rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return fact -> text of a value -> value, over the launches and points of a side."""
    facts: dict[str, dict[str, Any]] = {}
    for launch in launches:
        provenance = launch.provenance or launch.about
        slurm = provenance.get("slurm") or {}
        variables = provenance.get("environment") or {}
        values = {
            **{name: value for name, value in provenance.items() if name not in OWN_FACTS},
            "hosts": ", ".join(sorted(launch.named_hosts)) or launch.about.get("hosts"),
            "cores_per_rank": layout.settings(provenance).get("cores_per_rank"),
            "partition": slurm.get("SLURM_JOB_PARTITION"),
            **{f"variable {name}": value for name, value in variables.items()},
        }
        for name, value in values.items():
            facts.setdefault(name, {})[str(value)] = value
    for row in rows:
        values = {
            f"{part} {name}": value
            for key, part in ((DDP_SETTINGS, "DDP"), (LOADER_SETTINGS, "loader"))
            for name, value in (row.details.get(key) or {}).items()
        }
        for name in ("num_nodes", "precision", "steps_per_round"):
            values[name] = getattr(row, name)
        values |= {name: row.factors.get(name) for name in ON_REQUEST}
        if basis := record.basis_of(row.details):
            values["optimizer"] = basis.optimizer
        values[f"source of {row.case.partition('[')[0]}"] = row.workload_sha256
        for name, value in values.items():
            facts.setdefault(name, {})[str(value)] = value
    return {name: dict(sorted(values.items())) for name, values in facts.items()}


def _cautions(
    launches: tuple[Sequence[Launch], Sequence[Launch]], pairs: Sequence[Pair]
) -> Iterator[Reason]:
    facts = ("launch", "campaign", "started", "part")
    of_a, of_b = (
        {tuple(str(launch.facts.get(name)) for name in facts) for launch in side if launch.facts}
        for side in launches
    )
    if count := len(of_a & of_b):
        shared = formats.counted(count, "launch")
        text = (
            f"A and B share {shared}, and shared launches cannot show a difference; measure B again"
        )
        yield Reason("copies", text, "warning", values={"count": count})
    begun = [list(filter(None, map(replicates.begun, side))) for side in launches]
    ahead = replicates.lead(list(product(begun[0], begun[1])))
    if abs(ahead) > replicates.MOST_APART:
        all_or_most = "all" if abs(ahead) == 1 else "most"
        first, last = "AB" if ahead > 0 else "BA"
        text = (
            f"{all_or_most} launches of {first} ran before {all_or_most} launches of {last}, so a "
            "drift of the machine would look like a difference; measure in the order A B B A to "
            "rule out a drift"
        )
        values = {"first": first, "last": last, "share": all_or_most}
        yield Reason("not-in-turn", text, "warning", values=values)
    rows = [pair.a for pair in pairs], [pair.b for pair in pairs]
    for letter, points in zip("AB", rows, strict=True):
        if count := sum(map(replicates.in_one_job, points)):
            num_points = formats.counted(count, "point")
            text = (
                f"all launches of {num_points} of side {letter} ran in one Slurm job, so a "
                "difference may come from the nodes; repeat in several jobs, or set "
                "is_machine = true under [jobs] of both campaigns if only these nodes matter"
            )
            yield Reason("one-job", text, "warning", values={"side": letter, "count": count})


def _doubts(
    pairs: Sequence[Pair], findings: tuple[Sequence[Finding], Sequence[Finding]]
) -> Iterator[Reason]:
    """Yield what makes the rates of one side doubtful: a busy machine, and warnings of the check.

    They are those by which a report asks for a quiet machine, and by which no gate judges.
    """
    for index, letter in enumerate("AB"):
        points = [(pair.a, pair.b)[index] for pair in pairs]
        known = (pair.bounds[index] for pair in pairs)
        slowed = [bound for bound in known if bound and bound.is_busy]
        if most := max(slowed, key=lambda bound: bound.queued, default=None):
            share, ranks = formats.percent(most.queued), formats.counted(most.num_ranks, "rank")
            waited, todo = busy(most)
            text = (
                f"the machine of {letter} was busy: on {ranks}, {waited}, {share} % of the step; "
                f"{todo}"
            )
            yield Reason("busy", text, "warning", values={"side": letter, "share": most.queued})
        own = [each for each in find_doubting(findings[index]) if each.rule != FLAGGED]
        for group in group_findings(touching(own, (row for rows in points for row in rows))):
            rule, places = group.first.rule, formats.counted(len(group.points), "point")
            fact = f"{group.facts[0]}: {group.first.why}"
            text = f"{letter}: lockstep check warns of {rule} on {places}; the first: {fact}"
            yield Reason("checked", text, "warning", values={"side": letter, "rule": rule})


def changed_causes(pair: Pair) -> list[tuple[Cause, float, float]]:
    """Return the causes that take more or less of a step in B than in A, and their seconds.

    Only those whose 95 % intervals in A and in B do not overlap, so there is little risk in many.
    With few launches, these intervals are over turns, and hold for these launches alone.
    """
    units = (independent(side, [row.rate for row in side]) for side in (pair.a, pair.b))
    if min(map(len, units)) < FEWEST_LAUNCHES:
        return []
    a, b = ({share.cause: share for share in known.shares} if known else {}
            for known in pair.bounds)  # fmt: skip
    return [
        (cause, share.seconds, b[cause].seconds) for cause, share in a.items()
        if cause in b and (share.is_shown or b[cause].is_shown)
        and (one := share.interval) and (other := b[cause].interval)
        and (one[1] < other[0] or other[1] < one[0])
    ]  # fmt: skip


def times(pair: Pair) -> list[dict[str, Any]]:
    """Return the times of the training runs of a point: per epoch, and to an accuracy.

    The accuracy is the one given to both sides, else the highest that all runs reach. `a` and `b`
    are medians over runs (s), None if a run does not reach it; the interval is Welch's at 95 %.
    """
    rows = [*pair.a, *pair.b]
    if not all(row.training for row in rows):
        return []
    made = []
    for accuracy in dict.fromkeys([None, learning.target(rows)]):
        sides = []
        for side in (pair.a, pair.b):
            values = [
                record.time_to(accuracy, learning.epochs(row))
                if accuracy
                else learning.epoch_s(row)
                for row in side
            ]
            sides.append((side, [value for value in values if value]))
        a, b = (median(known) if len(known) == len(side) else None for side, known in sides)
        ratio = interval = None
        if a is not None and b is not None:
            below, above = (independent(*side) for side in sides)
            ratio, interval = b / a, statistics.ratio_interval(above, below)
        kind = "epoch" if accuracy is None else "target"
        made.append({"kind": kind, "a": a, "b": b, "ratio": ratio, "interval": interval,
                     "accuracy": accuracy})  # fmt: skip
    return made


def other_quantities(
    pair: Pair, blocked_by: Collection[str] = ()
) -> dict[str, dict[str, float | None]]:
    """Return the quantities other than speed that both sides have, as in a report.

    The difference is b - a; low and high are its Welch interval at 95 %, None without a known
    spread. If only rules of speed block a point, it keeps its accuracy.
    """
    known: dict[str, dict[str, float | None]] = {}
    left = NOT_OF_SPEED if OF_SPEED.issuperset(blocked_by) else ()
    for name in left if blocked_by else quantities.NAMES:
        a, b = (quantities.pool(rows, name)[0] for rows in (pair.a, pair.b))
        if a is not None and b is not None:
            known[name] = {"a": a, "b": b, "difference": b - a, "low": None, "high": None}
            mine, theirs = (quantities.units(rows, name) for rows in (pair.a, pair.b))
            # welch() takes logarithms, so values enter as exponentials.
            test = statistics.welch([math.exp(v) for v in theirs], [math.exp(v) for v in mine])
            if test is not None and test.error:
                gap = fmean(theirs) - fmean(mine)
                half = statistics.t_quantile(test.freedom, CONFIDENCE) * test.error
                known[name] |= {"low": gap - half, "high": gap + half}
    return known


def document(comparison: Comparison, names: tuple[str, str]) -> dict[str, Any]:

    def left_out(points: Iterable[Key]) -> list[dict[str, Any]]:
        return [
            {"case": point.case, "world_size": point.world_size,
             "num_nodes": point.layout.num_nodes, "layout": point.layout.text}
            for point in points
        ]  # fmt: skip

    return {
        "schema": record.SCHEMA_VERSION,
        "a": names[0],
        "b": names[1],
        "ratio": "rate of B divided by the rate of A, so B is faster if the ratio is above 1",
        "margin": comparison.margin,
        "level": 1 - comparison.error,
        "look": comparison.look.to_dict(),
        "environment": [
            {"fact": name, "a": a, "b": b} for name, (a, b) in comparison.environment.items()
        ],
        "warnings": [caution.text for caution in comparison.cautions],
        "points": [_record(pair, judged) for pair, judged in comparison.points],
        "only_in_a": left_out(comparison.only_in_a),
        "only_in_b": left_out(comparison.only_in_b),
        "ambiguous": comparison.ambiguous,
    }


def _record(pair: Pair, judged: Judged) -> dict[str, Any]:
    low, high = judged.interval or (None, None)
    a_step_s, b_step_s = (None, None) if judged.blocked_by else pair.step_s
    return {
        "case": pair.case, "b_case": pair.b[0].case, "world_size": pair.world_size,
        "num_nodes": pair.a[0].num_nodes, "b_num_nodes": pair.b[0].num_nodes,
        "ratio": None if judged.blocked_by else judged.ratio, "low": low, "high": high,
        "smallest_change": judged.smallest_change,
        "verdict": judged.verdict, "blocked_by": list(judged.blocked_by),
        "origin": pair.a[0].origin,
        "a_launches": len(pair.a), "b_launches": len(pair.b),
        "a_rates": pair.rates[0], "b_rates": pair.rates[1],
        "a_step_s": a_step_s, "b_step_s": b_step_s,
        "memory_ratio": None if judged.blocked_by else pair.memory_ratio,
        "a_peak_memory_bytes": pair.peak_memory_bytes[0],
        "b_peak_memory_bytes": pair.peak_memory_bytes[1],
        "quantities": other_quantities(pair, judged.blocked_by),
        "times": [] if judged.blocked_by else times(pair),
        "flags": [
            {"side": side} | to_dict
            for side, flag in pair.flags
            for to_dict in flags.to_dicts([flag])
        ],
    }  # fmt: skip
