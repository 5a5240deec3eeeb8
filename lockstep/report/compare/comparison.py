"""The comparison of two sets of results, point by point, with a verdict on each common point.

A point is a case at one world size on one layout. Its ratio is the median of B's rates over that of
A's, one rate per launch: above 1, B is faster. The interval is of geometric means over launches or,
if a side has several, over Slurm jobs. `judging` has the rule.

A case's name holds its factors, so results that differ in precision or batch differ in name. Points
of the same name are paired first. If `--allow` lets a factor differ, the others are paired by test,
remaining factors and world size, provided that each side has exactly one such point; points with
several candidates are ambiguous.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from statistics import fmean, median
from typing import Any, NamedTuple

from lockstep.core import flags, formats, record
from lockstep.core.flags import Flag
from lockstep.core.record import DDP_SETTINGS, LOADER_SETTINGS
from lockstep.report import looks
from lockstep.report.check.checker import NOT_OF_SPEED, OF_SPEED, Finding, blocked_by
from lockstep.report.compare.judging import BLOCKED, MARGIN, SLOWER, UNKNOWN, Judged, judge
from lockstep.report.compute import learning, quantities, replicates
from lockstep.report.compute.replicates import independent
from lockstep.report.compute.scaling import label
from lockstep.report.compute.statistics import (
    CONFIDENCE,
    median_rate,
    ratio_interval,
    t_quantile,
    welch,
)
from lockstep.report.load import layout
from lockstep.report.load.layout import Layout
from lockstep.report.load.results import Launch, Results, Row, largest
from lockstep.report.load.training_runs import FACTORS

LETTERS = "ABCDEF"
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
}
# Differing facts that are named first; the rest of the provenance follows.
FIRST_FACTS = ("precision", "image_sha256", "driver", "cuda", "nccl", "torch", "device_names",
    "project_commit", "project_dirty", "git_commit")  # fmt: skip
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


@dataclass(frozen=True)
class Pair:
    """A point that both sides hold.

    Attributes:
        a: Rows of A, one per launch.
        b: Rows of B; with `--allow`, their case may have another name.
    """

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
        """Return the median rate of B / the median rate of A."""
        a, b = map(median_rate, self.rates)
        return b / a

    @property
    def peak_memory_bytes(self) -> tuple[int | None, int | None]:
        """Return the peak memory of A and of B (bytes), of the rank that needs most."""
        return largest(self.a, "peak_memory_bytes"), largest(self.b, "peak_memory_bytes")

    @property
    def memory_ratio(self) -> float | None:
        """Return the peak memory of B / that of A; None if one is unknown.

        None also if only one side ran on GPUs: a CPU's peak is of the process, a GPU's of tensors.
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
    def name(self) -> str:
        """Return the study and what varies; for a factor that differs, the value of A."""
        row = self.a[0]
        return f"{row.study if row.origin == 'measured' else f'[{row.origin}]'} {label(row)}"

    @property
    def case_label(self) -> str:
        """Return what varies, without the factors that differ between A and B."""
        parts = label(self.a[0]).split(", ")
        changed = tuple(f"{name}=" for name in self.changed)
        return ", ".join(part for part in parts if not part.startswith(changed)) or parts[0]

    @property
    def label(self) -> str:
        """Return the name, and the value of B for each factor that differs."""
        values = [
            formats.counted(b, "node") if name == "num_nodes" else f"{name}={b}"
            for name, (_, b) in self.changed.items()
        ]
        return f"{self.name} (B: {', '.join(values)})" if values else self.name

    @property
    def flags(self) -> list[tuple[str, Flag]]:
        """Return the flags of both sides as (side, flag)."""
        sides = (("A", self.a), ("B", self.b))
        return list(
            dict.fromkeys((s, flag) for s, rows in sides for row in rows for flag in row.flags)
        )


@dataclass(frozen=True)
class Ambiguous:
    """Points that could be paired in several ways, since a side has several candidates."""

    world_size: int
    a: list[str]
    b: list[str]


# Kind of a caution -> short text.
CAUTIONS = {
    "copies": "both sides hold the same launches",
    "not-in-turn": "not measured in turn",
    "one-job": "all repeats in one job",
}


@dataclass(frozen=True)
class Caution:
    """A reason to doubt a difference between the sides.

    Attributes:
        kind: One of `CAUTIONS`; "one-job": the launches of a point ran in one Slurm job.
    """

    kind: str
    values: Mapping[str, Any]

    def sentence(self, sides: tuple[str, str] = ("A", "B")) -> str:
        """Return the caution as a sentence; `sides` are the names of A and B."""
        (a, b), values = sides, self.values
        names = dict(zip("AB", sides, strict=True))
        if self.kind == "copies":
            verb = "is" if values["count"] == 1 else "are"
            return (
                f"{formats.counted(values['count'], 'launch')} of {a} {verb} also in {b}, and "
                f"shared launches cannot show a difference; measure {b} again"
            )
        if self.kind == "one-job":
            return (
                f"all launches of {formats.counted(values['count'], 'point')} of "
                f"{names[values['side']]} ran in one job, so a difference may come from the nodes; "
                "repeat in several jobs, or set is_machine = true under [jobs] of both campaigns "
                "if only these nodes matter"
            )
        share = values["share"]
        return (
            f"{share} launches of {names[values['first']]} ran before {share} of "
            f"{names[values['last']]}, so a drift of the machine would look like a difference; "
            f"measure in turn, {a} {b} {b} {a}, to rule this out"
        )


@dataclass
class Comparison:
    """Two sets of results side by side.

    Attributes:
        points: The common points, each with its verdict.
        error: Error rate at which the intervals are drawn; their level is 1 - error.
        environment: Differing fact -> values of A and of B.
        ambiguous: Points that were not paired, since there are several ways.
        allowing: Name for `--allow` -> number of points that it would add.
        sides: Names of A and B in texts; with a third side, B may be C.
        comparisons: Number of comparisons with one base, which share the error rate.
        look: Which look at these launches this is, and its error rate.
    """

    margin: float
    points: list[tuple[Pair, Judged]]
    error: float
    environment: dict[str, tuple[list[Any], list[Any]]] = field(default_factory=dict)
    same_facts: list[str] = field(default_factory=list)
    cautions: list[Caution] = field(default_factory=list)
    only_in_a: list[Key] = field(default_factory=list)
    only_in_b: list[Key] = field(default_factory=list)
    ambiguous: list[Ambiguous] = field(default_factory=list)
    allowing: dict[str, int] = field(default_factory=dict)
    sides: tuple[str, str] = ("A", "B")
    comparisons: int = 1
    look: looks.Look = field(default_factory=lambda: looks.UNRECORDED.look((), ()))

    @property
    def next_error(self) -> float:
        """Return the error rate of the next look at more launches."""
        return self.error * self.look.next_share / self.look.share

    @property
    def has_interval(self) -> bool:
        """Tell whether some point has an interval, so that this counts as a look."""
        return any(judged.interval for _, judged in self.points)

    @property
    def is_bad(self) -> bool:
        """Tell whether B is slower at some point, or blocked there by errors of the check."""
        return any(judged.verdict in (SLOWER, BLOCKED) for _, judged in self.points)


def compare(
    a: Results,
    b: Results,
    margin: float = MARGIN,
    allowed: Collection[str] = (),
    findings: tuple[Sequence[Finding], Sequence[Finding]] = ((), ()),
    comparisons: int = 1,
    history: looks.History = looks.UNRECORDED,
) -> Comparison:
    """Match the points of two sets of results and judge each.

    Errors of the check in A or B block the points that they touch. Several comparisons, and the
    looks of a history, share the error rate of one.

    Raises:
        ValueError: The sides have no point in common, or differ in what makes them incomparable.
    """
    b = renamed(a, b)
    sides = _points(a.rows, b.rows)
    keys, ambiguous = _match(*sides, allowed)
    allowing = {
        name: more for name in MUST_AGREE
        if (more := len(_match(*sides, {*allowed, name})[0]) - len(keys)) > 0
    }  # fmt: skip
    if not keys and ambiguous:
        raise ValueError(f"A and B have no unique pair of points: {ambiguity(ambiguous)}")
    if not keys:
        held = [formats.listed(map(str, side), 3) or "nothing" for side in sides]
        hints = [f"pass --allow {name}" for name in allowing]
        todo = " or ".join([*hints, "measure the same cases at the same world sizes"])
        raise ValueError(
            f"A and B have no point in common: A holds {held[0]}; B holds {held[1]}; {todo}"
        )
    pairs = [
        Pair(mine.case, mine.world_size, sides[0][mine], sides[1][theirs]) for mine, theirs in keys
    ]
    pairs.sort(key=lambda pair: pair.world_size)
    rows = [row for pair in pairs for row in pair.a], [row for pair in pairs for row in pair.b]
    names = [{row.launch for row in side} for side in rows]
    launches = (
        [launch for launch in a.launches if launch.name in names[0]],
        [launch for launch in b.launches if launch.name in names[1]],
    )
    _refuse_differences(pairs, a, b, launches, allowed)
    look = history.look(rows, (a, b))
    share = look.share / comparisons * (1 - CONFIDENCE)  # of all looks' and comparisons' claims
    judged, error = _judge_pairs(pairs, margin, findings, share)
    if not (looks.is_machine(a) and looks.is_machine(b)):
        judged = [(pair, _leave_open_in_one_job(pair, one)) for pair, one in judged]
    differing, same = environment(launches, rows)
    only_in_a, only_in_b = (
        sorted((key for key in side if key not in paired), key=lambda key: key.world_size)
        for side, paired in zip(sides, map(set, zip(*keys, strict=True)), strict=True)
    )
    return Comparison(
        margin, judged, error, differing, same, _cautions(launches, pairs), only_in_a, only_in_b,
        ambiguous, allowing, comparisons=comparisons, look=look,
    )  # fmt: skip


def compare_all(
    campaigns: Sequence[Results],
    names: Sequence[str],
    margin: float,
    allowed: Collection[str],
    findings: Sequence[Sequence[Finding]],
    history: looks.History = looks.UNRECORDED,
) -> list[Comparison]:
    """Compare each campaign but the first with the first, as `compare` does.

    Raises:
        ValueError: More than six campaigns, or one that cannot be compared with the first.
    """
    if len(campaigns) > len(LETTERS):
        raise ValueError(
            f"{len(campaigns)} campaigns are given, but at most {len(LETTERS)} can be compared"
        )
    base, *others = campaigns
    made = []
    for number, other in enumerate(others, start=1):
        both = findings[0], findings[number]
        try:
            comparison = compare(base, other, margin, allowed, both, len(others), history)
        except ValueError as error:
            if len(others) == 1:
                raise
            raise ValueError(f"{names[number]} (B) against {names[0]} (A): {error}") from error
        made.append(replace(comparison, sides=(LETTERS[0], LETTERS[number])))
    return made


def renamed(a: Results, b: Results) -> Results:
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

    A layout setting that varies within a side separates the points of both sides; one that only
    differs between the sides does not. Nor does a layout that a side does not know.
    """
    sides: list[dict[tuple[str, int], list[Row]]] = [{}, {}]
    for side, rows in zip(sides, (a, b), strict=True):
        for row in rows:
            side.setdefault((row.case, row.world_size), []).append(row)
    made: tuple[dict[Key, list[Row]], dict[Key, list[Row]]] = ({}, {})
    for points, side in zip(made, sides, strict=True):
        for key, rows in side.items():
            both = [each.get(key, []) for each in sides]
            names = dict.fromkeys(name for each in both for name in layout.differing(each))
            is_known = all(row.num_nodes for each in both for row in each)
            for row in rows:
                placed = layout.layout(row, names) if is_known else Layout()
                points.setdefault(Key(*key, placed), []).append(row)
    return made


def _match(
    a: Points, b: Points, allowed: Collection[str]
) -> tuple[list[tuple[Key, Key]], list[Ambiguous]]:
    """Return the pairs of keys of A and B, in the order of A, and the ambiguous points."""
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
            ambiguous.append(Ambiguous(identity[1], *([str(key) for key in side] for side in rest)))
    return [(key, pairs[key]) for key in a if key in pairs], ambiguous


def ambiguity(points: Sequence[Ambiguous], sides: tuple[str, str] = ("A", "B")) -> str:
    """Return a sentence on points that could be paired in several ways."""
    return (
        f"{formats.counted(len(points), 'point')} could be paired in several ways, such as "
        f"{formats.listed(points[0].a, 3)} in {sides[0]} with {formats.listed(points[0].b, 3)} in "
        f"{sides[1]}; give sides that hold one of each"
    )


def _refuse_differences(
    pairs: Iterable[Pair],
    a: Results,
    b: Results,
    launches: Sequence[Sequence[Launch]],
    allowed: Collection[str],
) -> None:
    """Raise ValueError for pairs whose rates are not comparable, or other devices."""

    def listed(values: Collection[Any]) -> str:
        texts = sorted("unknown" if value is None else str(value) for value in values)
        return formats.listed(texts, 4) or "unknown"

    for pair in pairs:
        for allow, facts in MUST_AGREE.items():
            for fact in facts if allow not in allowed else ():
                if fact in Row.__slots__:
                    mine, theirs = (
                        {getattr(row, fact) for row in side} for side in (pair.a, pair.b)
                    )
                elif fact == "metric":
                    tables = a.tables.get(pair.a[0].case), b.tables.get(pair.b[0].case)
                    mine, theirs = ({table.get(fact)} if table else set() for table in tables)
                else:
                    continue
                if mine != theirs or len(mine) > 1:
                    raise ValueError(
                        f"{pair.case} at {pair.world_size} has {fact} {listed(mine)} in A and "
                        f"{listed(theirs)} in B, so the rates are not comparable; pass --allow "
                        f"{allow} to compare them anyway"
                    )
    devices = [
        {
            ", ".join(map(str, launch.provenance.get("device_names") or ["unknown devices"]))
            for launch in side
        }
        for side in launches
    ]
    if "device" not in allowed and devices[0] != devices[1] and all(devices):
        raise ValueError(
            f"A was measured on {listed(devices[0])} and B on {listed(devices[1])}, so a "
            "difference may come from the devices; pass --allow device to compare them anyway"
        )


def _judge_pairs(
    pairs: Sequence[Pair],
    margin: float,
    findings: tuple[Sequence[Finding], Sequence[Finding]],
    allowed: float,
) -> tuple[list[tuple[Pair, Judged]], float]:
    """Return each pair with its verdict, and the error rate of the family."""
    sides = [[(findings[0], pair.a), (findings[1], pair.b)] for pair in pairs]
    rules = [tuple(dict.fromkeys(rule for s in both for rule in blocked_by(*s))) for both in sides]
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


def _leave_open_in_one_job(pair: Pair, judged: Judged) -> Judged:
    """Withdraw a verdict if the repeats of one side share a job that the other side does not."""
    alone = any(map(replicates.in_one_job, (pair.a, pair.b)))
    if judged.interval is None or not alone or replicates.in_one_job([*pair.a, *pair.b]):
        return judged
    return replace(judged, verdict=UNKNOWN, in_one_job=True)


def environment(
    launches: tuple[Sequence[Launch], Sequence[Launch]],
    rows: tuple[Sequence[Row], Sequence[Row]],
) -> tuple[dict[str, tuple[list[Any], list[Any]]], list[str]]:
    """Return differing facts with the values of A and of B, and the known facts that are equal."""
    sides = [_facts(*side) for side in zip(launches, rows, strict=True)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    places = {name: place for place, name in enumerate(FIRST_FACTS)}
    differing: dict[str, tuple[list[Any], list[Any]]] = {}
    equal = []
    for name in sorted(names, key=lambda name: places.get(name, len(places))):
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
        values = (
            {name: value for name, value in provenance.items() if name not in OWN_FACTS}
            | {"hosts": ", ".join(sorted(launch.named_hosts)) or launch.about.get("hosts")}
            | {"cores_per_rank": layout.settings(provenance).get("cores_per_rank")}
            | {"partition": slurm.get("SLURM_JOB_PARTITION")}
            | {f"variable {name}": value for name, value in variables.items()}
        )
        for name, value in values.items():
            facts.setdefault(name, {})[str(value)] = value
    for row in rows:
        settings = {DDP_SETTINGS: "DDP", LOADER_SETTINGS: "loader"}
        values = {
            f"{part} {name}": value
            for key, part in settings.items()
            for name, value in (row.details.get(key) or {}).items()
        }
        for name in ("num_nodes", "precision", "steps_per_round"):
            values[name] = getattr(row, name)
        values[f"source of {row.case.partition('[')[0]}"] = row.workload_sha256
        for name, value in values.items():
            facts.setdefault(name, {})[str(value)] = value
    return {name: dict(sorted(values.items())) for name, values in facts.items()}


def _cautions(
    launches: tuple[Sequence[Launch], Sequence[Launch]], pairs: Sequence[Pair]
) -> list[Caution]:
    """Return the reasons to doubt differences between the sides."""
    cautions = []
    names = ("launch", "campaign", "started", "part")
    a, b = (
        {tuple(str(launch.facts.get(name)) for name in names) for launch in side if launch.facts}
        for side in launches
    )
    if a & b:
        cautions.append(Caution("copies", {"count": len(a & b)}))
    begun = [list(filter(None, map(replicates.begun, side))) for side in launches]
    ahead = replicates.lead(list(product(begun[0], begun[1])))
    if abs(ahead) > replicates.MOST_APART:
        first, last = ("A", "B") if ahead > 0 else ("B", "A")
        share = "all" if abs(ahead) == 1 else "most"
        cautions.append(Caution("not-in-turn", {"first": first, "last": last, "share": share}))
    for name, side in (("A", [pair.a for pair in pairs]), ("B", [pair.b for pair in pairs])):
        if count := sum(map(replicates.in_one_job, side)):
            cautions.append(Caution("one-job", {"side": name, "count": count}))
    return cautions


def times(pair: Pair) -> list[dict[str, Any]]:
    """Return the times of the training runs of a point: per epoch, and to an accuracy.

    The accuracy is the one given to both sides, else the highest that all runs reach.

    Returns:
        kind: epoch or target; a, b: median over runs (s), None if a run does not reach the
        accuracy; ratio: b / a; interval: Welch's at 95 %, over runs or jobs, not corrected for the
        number of points; accuracy: the one to reach. Empty if a row is not a training run.
    """
    rows = [*pair.a, *pair.b]
    if not all(row.training for row in rows):
        return []
    made = []
    for accuracy in dict.fromkeys([None, learning.target(rows)]):
        sides = []
        for side in (pair.a, pair.b):
            values = [
                learning.epoch_s(row) if accuracy is None else learning.reached_s(row, accuracy)
                for row in side
            ]
            sides.append((side, [value for value in values if value]))
        a, b = (median(known) if len(known) == len(side) else None for side, known in sides)
        ratio = interval = None
        if a is not None and b is not None:
            below, above = (independent(*side) for side in sides)
            ratio, interval = b / a, ratio_interval(above, below)
        kind = "epoch" if accuracy is None else "target"
        made.append({"kind": kind, "a": a, "b": b, "ratio": ratio, "interval": interval,
                     "accuracy": accuracy})  # fmt: skip
    return made


def other_quantities(
    pair: Pair, blocked_by: Collection[str] = ()
) -> dict[str, dict[str, float | None]]:
    """Return the quantities other than speed that both sides have.

    Args:
        pair: The point of both sides.
        blocked_by: Rules of the check that block the point; rules of speed keep the accuracy.

    Returns:
        Quantity -> a, b: values as in a report; difference: b - a; low, high: its Welch interval
        at 95 %, None without a known spread; not corrected for the number of points.
    """
    known: dict[str, dict[str, float | None]] = {}
    left = NOT_OF_SPEED if OF_SPEED.issuperset(blocked_by) else ()
    for name in left if blocked_by else quantities.NAMES:
        values = [quantities.values(rows, name) for rows in (pair.a, pair.b)]
        if all(values):
            a, b = (quantities.centre(side, name) for side in values)
            known[name] = {"a": a, "b": b, "difference": b - a, "low": None, "high": None}
            mine, theirs = (quantities.units(rows, name) for rows in (pair.a, pair.b))
            # A difference is the logarithm of a ratio of exponentials.
            test = welch([math.exp(v) for v in theirs], [math.exp(v) for v in mine])
            if test is not None and test.error:
                gap = fmean(theirs) - fmean(mine)
                half = t_quantile(test.freedom, CONFIDENCE) * test.error
                known[name] |= {"low": gap - half, "high": gap + half}
    return known


def document(comparison: Comparison, names: tuple[str, str]) -> dict[str, Any]:
    """Return a comparison as `--json` prints it."""

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
        "ratio": "rate of B over rate of A: above 1, B is faster",
        "margin": comparison.margin,
        "level": 1 - comparison.error,
        "look": comparison.look.to_dict(),
        "environment": [
            {"fact": name, "a": a, "b": b} for name, (a, b) in comparison.environment.items()
        ],
        "warnings": [caution.sentence() for caution in comparison.cautions],
        "points": [_record(pair, judged) for pair, judged in comparison.points],
        "only_in_a": left_out(comparison.only_in_a),
        "only_in_b": left_out(comparison.only_in_b),
        "ambiguous": [asdict(ambiguous) for ambiguous in comparison.ambiguous],
    }


def document_of_all(comparisons: Sequence[Comparison], names: Sequence[str]) -> dict[str, Any]:
    """Return comparisons with one base as `--json` prints them; a single one as `document`."""
    made = [
        document(comparison, (names[0], name))
        for comparison, name in zip(comparisons, names[1:], strict=True)
    ]
    return made[0] if len(made) == 1 else {"schema": record.SCHEMA_VERSION, "comparisons": made}


def _record(pair: Pair, judged: Judged) -> dict[str, Any]:
    low, high = judged.interval or (None, None)
    return {
        "case": pair.case, "b_case": pair.b[0].case, "world_size": pair.world_size,
        "num_nodes": pair.a[0].num_nodes, "b_num_nodes": pair.b[0].num_nodes,
        "ratio": None if judged.blocked_by else judged.ratio, "low": low, "high": high,
        "smallest_change": judged.smallest_change,
        "verdict": judged.verdict, "blocked_by": list(judged.blocked_by),
        "origin": pair.a[0].origin,
        "a_launches": len(pair.a), "b_launches": len(pair.b),
        "a_rates": pair.rates[0], "b_rates": pair.rates[1],
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
