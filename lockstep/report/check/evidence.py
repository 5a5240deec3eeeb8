"""The evidence that rules examine, the registry of rules, and the finding that a rule yields."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lockstep.core import findings, metrics
from lockstep.core.findings import Level
from lockstep.core.formats import number, percent, ratio
from lockstep.core.record import KEY, case_name
from lockstep.core.studies import IMPORTED, LADDERS
from lockstep.report.compute.scaling import Point, Series, series_of
from lockstep.report.load.results import Conflict, Launch, Results, Row
from lockstep.report.words.lines import plain

if TYPE_CHECKING:
    from lockstep.report.predict.models import Break

# Case and world size.
Place = tuple[str, int]
# Launches of one point vary by a few per cent; a larger ratio of fastest to slowest is no noise.
APART = 1.25
# Only a wrong unit makes one launch this many times as fast as another.
UNIT = 100.0
# Loss of parallel efficiency from one size to the next that is worth a finding.
NOTABLE_LOSS = 0.1
FLAGGED = "flagged"


@dataclass(frozen=True)
class Finding(findings.Finding):
    """One finding of a rule, and where it applies.

    Attributes:
        rule: Name of the rule, which gives the level, `why` and the default action.
        why: The consequence of the fact.
        cases: Cases or tables concerned; empty for all of the launches or sizes.
        world_sizes: World sizes concerned; empty for all.
        launches: Launches concerned; empty for all.
        path: The file concerned, if no launch is.
        doubts: Whether it is a warning that makes a ratio of the points doubtful.
        points: The points concerned.
    """

    rule: str = ""
    why: str = ""
    cases: tuple[str, ...] = ()
    world_sizes: tuple[int, ...] = ()
    launches: tuple[str, ...] = ()
    is_table: bool = False
    path: str = ""
    doubts: bool = True
    points: frozenset[Place] = frozenset()

    @property
    def message(self) -> str:
        """Return the fact and its consequence as one sentence without a full stop."""
        return f"{self.text}: {self.why}"

    @property
    def where(self) -> str:
        """Return the cases, world sizes, launches or file concerned, as text."""
        cases = [f"table {case}" if self.is_table else case for case in self.cases]
        names = self.values.get("workload") or joined(cases)
        sizes = f"world size {', '.join(map(str, self.world_sizes))}" if self.world_sizes else ""
        launches = "launch" if len(self.launches) == 1 else "launches"
        places = [
            " at ".join(filter(None, (names, sizes))),
            f"table {self.values['other_table']}" if "other_table" in self.values else "",
            f"host {self.values['host']}" if "host" in self.values else "",
            f"{launches} {joined(self.launches)}" if self.launches else "",
            self.path,
        ]
        return plain(", ".join(filter(None, places)))

    def touches(self, row: Row) -> bool:
        """Tell whether the finding concerns a result: by case and world size, else by launch.

        A point pools its launches, so a fault in one of them concerns all.
        """
        if not (self.cases or self.world_sizes):
            return not self.launches or row.launch in self.launches
        in_cases = not self.cases or row.case in self.cases
        return in_cases and (not self.world_sizes or row.world_size in self.world_sizes)

    def record(self) -> dict[str, Any]:
        """Return the finding as `--json` prints it."""
        return {
            "rule": self.rule, "level": self.level, "kind": self.kind, "cases": list(self.cases),
            "world_sizes": list(self.world_sizes), "launches": list(self.launches),
            "values": dict(self.values), "where": self.where, "message": self.message,
            "action": self.action,
        }  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A case as stored in its file, with the statistics stored with it."""

    launch: Launch
    case: str
    block: dict[str, Any]
    stats: dict[str, Any]

    @cached_property
    def round_s(self) -> list[float]:
        """Return the duration of each round (s): that of its slowest rank."""
        return metrics.slowest_rank(self.block["rank_round_s"])

    @property
    def point(self) -> Place:
        """Return the case and its world size."""
        return self.case, int(self.block["world_size"])

    def finding(self, kind: str, text: str, **values: Any) -> Finding:
        """Return a finding about this case in this launch."""
        case, size = self.point
        return Finding(kind, text, values=values, cases=(case,), world_sizes=(size,),
                       launches=(self.launch.name,))  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """A set of results and its series, conflicts among them included.

    Attributes:
        known: The series of all rows; None if they are to be formed from `results`.
    """

    results: Results
    known: list[Series] | None = None

    @cached_property
    def series(self) -> list[Series]:
        """Return the series of all points, except cases whose launches are in conflict."""
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
        studies = (*LADDERS, IMPORTED)
        return [s for s in self.series if s.row.study in studies and len(s.points) > 1]

    def table(self, series: Series) -> dict[str, Any]:
        """Return the facts stored with an imported table; empty if there are none."""
        return self.results.tables.get(series.case, {})

    def places(self, finding: Finding) -> frozenset[Place]:
        """Return the points that a finding concerns."""
        sizes, launches = self._places
        if finding.launches and not (finding.cases or finding.world_sizes):
            return frozenset(p for name in finding.launches for p in launches.get(name, ()))
        return frozenset(
            (case, size)
            for case in finding.cases or sizes
            for size in sizes.get(case, ())
            if size in finding.world_sizes or not finding.world_sizes
        )

    @cached_property
    def _places(self) -> tuple[dict[str, set[int]], dict[str, set[Place]]]:
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


@dataclass(frozen=True)
class Rule:
    """A rule as `rule` registers it."""

    name: str
    level: Level
    why: str
    action: str
    check: Callable[[Evidence], Iterator[Finding]]
    doubts: bool = True

    @property
    def what(self) -> str:
        """Return what the rule looks for, in one sentence."""
        return (self.check.__doc__ or "").strip().partition("\n")[0]

    def findings(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield the findings; those that differ only in their launches are merged."""
        alike: dict[str, list[Finding]] = {}
        for finding in self.check(evidence):
            alike.setdefault(repr(replace(finding, launches=())), []).append(finding)
        for same in alike.values():
            launches = tuple(dict.fromkeys(name for finding in same for name in finding.launches))
            merged = replace(
                same[0], rule=self.name, level=self.level, why=self.why, launches=launches,
                text=plain(same[0].text), action=plain(same[0].action or self.action),
                doubts=self.level == "warning" and self.doubts and same[0].doubts,
            )  # fmt: skip
            yield replace(merged, points=evidence.places(merged))


# All rules, in the order of their modules and functions; `rule` adds each.
RULES: list[Rule] = []


def rule(
    name: str, level: Level, why: str, action: str, *, doubts: bool = True
) -> Callable[[Callable[[Evidence], Iterator[Finding]]], Rule]:
    """Register a function as a rule; the first line of its docstring describes the rule.

    Args:
        name: What `lockstep check` prints, and a gate's reasons name.
        level: An error makes the set no valid study; a warning limits what may be concluded.
        why: The consequence, printed after the fact and a colon.
        action: What to do, printed after "Do: " unless a finding has its own action.
        doubts: Whether a warning makes ratios of the points doubtful, so that no gate judges
            them; otherwise it only limits what a correct ratio means.
    """

    def register(check: Callable[[Evidence], Iterator[Finding]]) -> Rule:
        RULES.append(Rule(name, level, why, action, check, doubts))
        return RULES[-1]

    return register


def in_series(
    kind: str,
    text: str,
    series: Series,
    *sizes: int,
    launches: Sequence[str] = (),
    action: str = "",
    **values: Any,
) -> Finding:
    """Return a finding about a series, at these world sizes or at all."""
    return Finding(kind, text, action=action, values=values, cases=(series.case,),
                   world_sizes=sizes, launches=tuple(launches),
                   is_table=series.row.origin != "measured")  # fmt: skip


def difference(conflict: Conflict) -> Finding:
    """Return the finding of a conflict between launches."""
    usual, value = conflict.values
    fact, launch = conflict.fact, conflict.usual
    kind, text = "differs", f"{fact} is {value}, but {usual} in launch {launch}"
    if conflict.is_tie:
        kind = "differ"
        text = (
            f"the launches differ: {fact} is {value} in half of them, and {usual} in the "
            f"others, such as {launch}"
        )
    return Finding(
        kind, text, values={"fact": fact, "value": value, "usual": usual, "launch": launch},
        cases=() if conflict.case is None else (conflict.case,), launches=conflict.launches,
        world_sizes=conflict.world_sizes,
    )  # fmt: skip


def are_apart(point: Point) -> bool:
    """Tell whether launches of one point differ too much to be repeats of one another."""
    return max(point.rates) > APART * min(point.rates)


def of_break(break_: "Break") -> str:
    """Return a sentence that describes a break of a curve."""
    below, values = break_.below, break_.values
    if break_.kind == "falls":
        return f"throughput falls by {percent(values['change'])} % from {below} ranks"
    if break_.kind == "saturation":
        times = f"{break_.factor:g} times the ranks give {ratio(break_.growth)} times"
        return f"saturation: {times} the throughput at {below}"
    name = break_.kind.replace("-", " ")
    return f"{name}: each rank does {percent(values['loss'])} % less than at {below}"


def blocked(rules: Sequence[str]) -> str:
    """Return the reason why results with errors allow no conclusion."""
    return f"blocked by check: {', '.join(rules)}"


def in_ms(seconds: float) -> str:
    """Return a time in milliseconds, without the unit."""
    return number(1e3 * seconds)


def joined(values: Iterable[object]) -> str:
    """Return values as text: 1, 2 and 4."""
    texts = [str(value) for value in values]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
