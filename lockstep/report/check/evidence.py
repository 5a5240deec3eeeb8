"""What the rules of a check look at, how a rule is registered, and the record of what it finds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal

from lockstep.core import metrics
from lockstep.core.flags import threads_at_sizes
from lockstep.core.formats import counted, number, percent, ratio
from lockstep.core.record import KEY, case_name
from lockstep.core.studies import IMPORTED, LADDERS
from lockstep.report.compute.scaling import Point, Series, series_of
from lockstep.report.load.results import Conflict, Launch, Results
from lockstep.report.words.lines import plain

if TYPE_CHECKING:
    from lockstep.report.predict.models import Break


# Case and world size.
Place = tuple[str, int]
# Launches of one point vary by a few per cent; a fastest so many times the slowest is another run.
APART = 1.25
# No noise and no fault makes a launch so many times as fast as another; a unit does.
UNIT = 100.0


@dataclass(frozen=True)
class Hit:
    """What a rule has found, as a record; `FACTS` has the sentence of its kind.

    Attributes:
        kind: Which fact it is, a key of `FACTS`.
        values: The numbers and names of the fact, by the names that its sentence uses.
        cases: Cases or tables concerned; empty where all of the launches or sizes are.
        world_sizes: World sizes concerned; empty where all are.
        launches: Launches concerned; empty where all are. Hits that differ in nothing else are one.
        path: The file concerned, where no launch is.
        doubts: Whether it casts doubt on a ratio, where its rule's warnings do.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    cases: tuple[str, ...] = ()
    world_sizes: tuple[int, ...] = ()
    launches: tuple[str, ...] = ()
    is_table: bool = False
    path: str = ""
    doubts: bool = True


@dataclass(frozen=True)
class Entry:
    """A case as its file has it, with the numbers that the file says follow from it."""

    launch: Launch
    case: str
    block: dict[str, Any]
    stats: dict[str, Any]

    @cached_property
    def round_s(self) -> list[float]:
        """Return each round's duration: that of its slowest rank."""
        return metrics.slowest_rank(self.block["rank_round_s"])

    @property
    def point(self) -> Place:
        """Its case and world size."""
        return self.case, int(self.block["world_size"])

    def hit(self, kind: str, **values: Any) -> Hit:
        """Return what was found in the case, in this launch alone."""
        case, size = self.point
        return Hit(kind, values, (case,), (size,), (self.launch.name,))


@dataclass(frozen=True)
class Evidence:
    """A set of results and its series, conflicts among them included.

    Attributes:
        known: The series of all rows; None where they are still to be formed.
    """

    results: Results
    known: list[Series] | None = None

    @cached_property
    def series(self) -> list[Series]:
        """Return the series of all points whose launches mean the same by their case."""
        if self.known is not None:
            return self.known
        mixed = [conflict for conflict in self.results.conflicts if conflict.case is not None]
        return series_of(replace(self.results, conflicts=mixed).split()[0])

    @property
    def points(self) -> Iterator[tuple[Series, Point]]:
        """Yield each point of each series."""
        return ((curve, point) for curve in self.series for point in curve.points)

    @cached_property
    def measured(self) -> list[Series]:
        """Return the series that were measured by launches."""
        return [curve for curve in self.series if curve.row.origin == "measured"]

    @cached_property
    def ladders(self) -> list[Series]:
        """Return the series of two sizes or more that are meant to show scaling."""
        return [
            curve
            for curve in self.series
            if curve.row.study in (*LADDERS, IMPORTED) and len(curve.points) > 1
        ]

    def table(self, series: Series) -> dict[str, Any]:
        """Return what an imported table says of itself; empty where it has another name."""
        return self.results.tables.get(series.case, {})

    def places(self, found: Hit) -> frozenset[Place]:
        """Return the points that a hit concerns."""
        sizes, launches = self._points
        if found.launches and not (found.cases or found.world_sizes):
            return frozenset(place for name in found.launches for place in launches.get(name, ()))
        return frozenset(
            (case, size)
            for case in found.cases or sizes
            for size in sizes.get(case, ())
            if size in found.world_sizes or not found.world_sizes
        )

    @cached_property
    def _points(self) -> tuple[dict[str, set[int]], dict[str, set[Place]]]:
        """Return the world sizes of each case, and the points of each launch."""
        sizes: dict[str, set[int]] = {}
        launches: dict[str, set[Place]] = {}
        for row in self.results.rows:
            sizes.setdefault(row.case, set()).add(row.world_size)
            launches.setdefault(row.launch, set()).add((row.case, row.world_size))
        return sizes, launches

    @cached_property
    def entries(self) -> list[Entry]:
        """Return the cases of all launches as they are stored."""
        cases = {(row.launch, row.recorded_case): row.case for row in self.results.rows}
        return [
            Entry(launch, case, block, entry["stats"])
            for launch in self.results.launches
            for entry in launch.entries
            if isinstance(entry, dict)
            and (case := cases.get((launch.name, case_name(entry))))
            and (block := (entry.get("extra_info") or {}).get(KEY))
        ]


def hit(kind: str, series: Series, *sizes: int, launches: Sequence[str] = (), **values: Any) -> Hit:
    """Return what was found in a series, at these world sizes or at all."""
    is_table = series.row.origin != "measured"
    return Hit(kind, values, (series.case,), sizes, tuple(launches), is_table)


def difference(conflict: Conflict) -> Hit:
    """Return what a conflict says of its fact."""
    usual, value = conflict.values
    values = {"fact": conflict.fact, "value": value, "usual": usual, "launch": conflict.usual}
    cases = () if conflict.case is None else (conflict.case,)
    kind = "differ" if conflict.is_tie else "differs"
    return Hit(kind, values, cases, conflict.world_sizes, conflict.launches)


def are_apart(point: Point) -> bool:
    """Tell whether launches of one point are no repeats of one another, so far apart they lie."""
    return max(point.rates) > APART * min(point.rates)


def batches(series: Series, name: str) -> list[int]:
    """Return a batch at each size where all points know it, else nothing."""
    found = [getattr(point.rows[0], name) for point in series.points]
    return found if None not in found else []


MILLI = 1e3
# How what is missing is measured, by what began the launches.
AGAIN = {
    "jobs": "lockstep resume",
    "run": "lockstep run again",
    "pytest": "give the same command again, with --resume",
}
_SPECS: dict[str, Callable[[Any], str]] = {
    "percent": lambda value: f"{percent(value)} %",
    "ratio": ratio,
    "ms": lambda seconds: f"{number(seconds * MILLI)} ms",
    "in_ms": lambda seconds: number(seconds * MILLI),
    "rank": lambda count: counted(count, "rank"),
    "core": lambda count: counted(count, "core"),
    "launch": lambda count: counted(count, "launch"),
    "case": lambda count: counted(count, "case"),
    "point": lambda count: counted(count, "point"),
    "threads": threads_at_sizes,
    "again": lambda by: AGAIN[by],
    "of": lambda case: case or "the launch",
}


class _Words(Formatter):
    """`str.format` that writes a list as 1, 2 and 4, and knows the units of a report."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, list | tuple):
            return joined([self.format_field(one, format_spec) for one in value])
        if format_spec in _SPECS:
            return _SPECS[format_spec](value)
        return str(format(value, format_spec)) if format_spec else str(value)


# Kinds of facts that several rules find, with the values of their hits; each rule adds its own.
FACTS = {
    "differs": "{fact} is {value}, and {usual} in launch {launch}",
    "differ": "the launches differ: {fact} is {value}, and {usual} in as many, such as {launch}",
    "smaller-batch": "measured at {measured} samples a rank, for {asked} do not fit its memory",
    "efficiency": "efficiency is {efficiency:percent} ({span} %)",
    "falls": "throughput falls by {change:percent} from that at {below}",
    "saturation": "saturation: {factor:g} times the ranks give {growth:ratio} times the "
    "throughput at {below}",
    "cliff": "cliff: each rank does {loss:percent} less than at {below}",
    "node-boundary": "node boundary: each rank does {loss:percent} less than at {below}",
    "crowded": "{threads} threads of ranks share {cores:core}",
    "unequal-threads": "{threads:threads}",
    "failed": "failed: {reason}",
    "not-run": "the launch was planned and left no result",
    "flag": "{flag}",
    "unit": "{fast} is {factor:.0f} times as fast as {slow}: is one of them in another "
    "unit, such as milliseconds for seconds?",
    "gauge": "{fact} is {value:.3g}, and {usual:.3g} at the other sizes",
}
# What to do about a kind where the action of its rule does not fit; rules add theirs.
ACTIONS = {
    "failed": "mend its cause, then {by:again}",
    "not-run": "{by:again}: it measures what is missing",
}


def fact(hit: Hit) -> str:
    """Return what was found, in a sentence."""
    if hit.kind == "fixed":
        return plain(_fixed(hit.values))
    return fill(FACTS[hit.kind], hit.values)


def of_break(break_: "Break") -> str:
    """Return how a curve breaks, in a sentence."""
    return fill(FACTS[break_.kind], break_.values)


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Return a template with its values as a report writes them, lists as 1, 2 and 4."""
    return plain(_Words().vformat(template, (), values))


def _fixed(values: Mapping[str, Any]) -> str:
    """Return what is fixed in epochs, with as much of it as a table gives."""
    parts = ["local batch and epochs are fixed"]
    if values["batches"]:
        parts.append(", so the global batch is {batches} at world size {sizes}")
    parts.append("; the speed-up of the total time at {last} is {speedup:ratio}")
    if values["samples"]:
        parts.append("; {samples} samples were trained")
    if values["steps_s"]:
        parts.append("; a step takes {steps_s:in_ms} ms, so each rank keeps {kept:percent} of its")
        parts.append(" speed")
    return _Words().vformat("".join(parts), (), values)


def blocked(rules: Sequence[str]) -> str:
    """Return why nothing is concluded from results that errors touch."""
    return f"blocked by check: {', '.join(rules)}"


def where(hit: Hit) -> str:
    """Return which cases, world sizes, launches or file a hit concerns."""
    names = hit.values.get("workload") or joined(
        [f"table {case}" if hit.is_table else case for case in hit.cases]
    )
    noun = "launch" if len(hit.launches) == 1 else "launches"
    places = [
        " at ".join(filter(None, (names, sizes(hit.world_sizes)))),
        f"table {hit.values['other_table']}" if "other_table" in hit.values else "",
        f"host {hit.values['host']}" if "host" in hit.values else "",
        f"{noun} {joined(hit.launches)}" if hit.launches else "",
        hit.path,
    ]
    return plain(", ".join(filter(None, places)))


def sizes(found: Sequence[int]) -> str:
    """Return world sizes as text; empty without any."""
    return f"world size {', '.join(map(str, found))}" if found else ""


def joined(values: Sequence[object]) -> str:
    """Return values as text: 1, 2 and 4."""
    texts = [str(value) for value in values]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


Level = Literal["error", "warning", "note"]
FLAGGED = "flagged"


@dataclass(frozen=True)
class Rule:
    """One thing to look for.

    Attributes:
        doubts: Of a warning: whether a ratio that it touches may be wrong, so that no gate judges
            it; else it limits what may be concluded from a right one.
    """

    name: str
    level: Level
    why: str
    action: str
    check: Callable[[Evidence], Iterator[Hit]]
    doubts: bool = True

    @property
    def what(self) -> str:
        """What is looked for, in one sentence."""
        return (self.check.__doc__ or "").strip().partition("\n")[0]


def rule(
    name: str,
    level: Level,
    why: str,
    action: str,
    *,
    doubts: bool = True,
    facts: Mapping[str, str] | None = None,
    actions: Mapping[str, str] | None = None,
) -> Callable[[Callable[[Evidence], Iterator[Hit]]], Rule]:
    """Make a rule of the function that finds its hits.

    Args:
        name: What `lockstep check` prints, and a gate's reasons name.
        level: An error makes the set no valid study; a warning limits what may be concluded.
        why: What comes of it, after the fact and a colon.
        action: What to do, after "Do: ".
        doubts: Whether a ratio that a warning touches may be wrong.
        facts: Kind of its hits -> its sentence, with the values of the hit.
        actions: Kind -> what to do where `action` does not fit.
    """
    FACTS.update(facts or {})
    ACTIONS.update(actions or {})
    return lambda check: Rule(name, level, why, action, check, doubts)
