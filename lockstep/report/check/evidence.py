"""The evidence that rules examine, the registry of rules, and the finding that a rule yields."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, starmap
from typing import Any, Literal

from lockstep.core import findings, metrics
from lockstep.core.findings import Level
from lockstep.core.record import KEY, case_name
from lockstep.core.studies import IMPORTED, LADDERS
from lockstep.report.compute.scaling import Point, Series, series_of
from lockstep.report.load.gaps import Gap, gaps
from lockstep.report.load.results import Conflict, Launch, Results, Row
from lockstep.report.words.lines import plain

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
    """One finding of a rule, and where it applies; an empty place stands for all places.

    Attributes:
        why: The consequence of the fact.
        path: The file concerned, if no launch is.
        doubts: Whether it is a warning that makes a ratio of the points doubtful.
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
        """Tell whether the finding concerns a result: by case and world size, else by launch."""
        if not (self.cases or self.world_sizes):
            return not self.launches or row.launch in self.launches
        in_cases = not self.cases or row.case in self.cases
        return in_cases and (not self.world_sizes or row.world_size in self.world_sizes)

    def record(self) -> dict[str, Any]:
        return {
            "rule": self.rule, "level": self.level, "kind": self.kind, "cases": list(self.cases),
            "world_sizes": list(self.world_sizes), "launches": list(self.launches),
            "values": dict(self.values), "where": self.where, "message": self.message,
            "action": self.action,
        }  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A case as stored in its file, with the statistics stored with it.

    Attributes:
        round_s: Duration of each round: that of its slowest rank.
    """

    launch: Launch
    case: str
    block: dict[str, Any]
    stats: dict[str, Any]
    round_s: list[float]

    @property
    def point(self) -> Place:
        return self.case, int(self.block["world_size"])


@dataclass(frozen=True)
class Evidence:
    """A set of results, conflicts included, and its series, which are `known` or formed here."""

    results: Results
    known: list[Series] | None = None

    @cached_property
    def series(self) -> list[Series]:
        """Return the series of all points, except cases whose launches are in conflict."""
        if self.known is not None:
            return self.known
        mixed = [conflict for conflict in self.results.conflicts if conflict.case is not None]
        return series_of(replace(self.results, conflicts=mixed).split()[0])

    @cached_property
    def points(self) -> list[tuple[Series, Point]]:
        return [(curve, point) for curve in self.series for point in curve.points]

    @cached_property
    def measured(self) -> list[Series]:
        return [curve for curve in self.series if curve.row.origin == "measured"]

    @cached_property
    def ladders(self) -> list[Series]:
        """Return the series of two sizes or more that are meant to show scaling."""
        studies = (*LADDERS, IMPORTED)
        return [s for s in self.series if s.row.study in studies and len(s.points) > 1]

    @property
    def launches(self) -> list[Launch]:
        return self.results.launches

    @cached_property
    def rows(self) -> dict[str, list[Row]]:
        """Return the rows of each case, also those in conflict."""
        of_case: dict[str, list[Row]] = {}
        for row in self.results.rows:
            of_case.setdefault(row.case, []).append(row)
        return of_case

    def table(self, series: Series) -> dict[str, Any]:
        """Return the facts stored with an imported table; empty if there are none."""
        return self.results.tables.get(series.case, {})

    @cached_property
    def gaps(self) -> list[Gap]:
        return gaps(self.results)

    @cached_property
    def entries(self) -> list[Entry]:
        """Return the cases of all launches as they are stored."""
        cases = {(row.launch, row.recorded_case): row.case for row in self.results.rows}
        return [
            Entry(launch, case, block, entry["stats"], metrics.slowest_rank(block["rank_round_s"]))
            for launch in self.results.launches
            for entry in launch.entries
            if isinstance(entry, dict)
            and (case := cases.get((launch.name, case_name(entry))))
            and (block := (entry.get("extra_info") or {}).get(KEY))
        ]


# What a rule's function receives: the items of a property of `Evidence`, or the `Evidence`.
Over = Literal["evidence", "series", "measured", "ladders", "points", "entries", "launches"]


@dataclass(eq=False)
class Rule:
    """A rule, which decorates its function; the first line of the docstring describes it.

    Attributes:
        name: What `lockstep check` prints, and a gate's reasons name.
        level: An error makes the set no valid study; a warning limits what may be concluded.
        why: The consequence, printed after the fact and a colon.
        action: What to do, unless a finding has its own action.
        over: What the function receives, which is also the place of a finding without one.
        doubts: Whether a warning makes ratios of the points doubtful, so that no gate judges them.
    """

    name: str
    level: Level
    why: str
    action: str
    over: Over = "evidence"
    doubts: bool = field(default=True, kw_only=True)
    check: Callable[..., Iterator[Finding]] = field(init=False)

    def __call__(self, check: Callable[..., Iterator[Finding]]) -> "Rule":
        self.check = check
        RULES.append(self)
        return self

    @property
    def what(self) -> str:
        """Return the first sentence of the rule's docstring."""
        return (self.check.__doc__ or "").strip().partition("\n")[0]

    def findings(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield the findings; those that differ only in their launches are merged."""
        alike: dict[tuple[Any, ...], list[Finding]] = {}
        items: Any = [evidence] if self.over == "evidence" else getattr(evidence, self.over)
        of_items = (starmap if self.over == "points" else map)(self.check, items)
        for item, of_item in zip(items, of_items, strict=True):
            for finding in of_item:
                whole = place(finding, item)
                key = (whole.kind, whole.text, whole.action, repr(whole.values), whole.cases,
                       whole.world_sizes, whole.is_table, whole.path, whole.doubts)  # fmt: skip
                alike.setdefault(key, []).append(whole)
        for first, *others in alike.values():
            names = dict.fromkeys((*first.launches, *(x for o in others for x in o.launches)))
            merged = replace(
                first, rule=self.name, level=self.level, why=self.why,
                text=plain(first.text), action=plain(first.action or self.action),
                launches=tuple(names),
                doubts=self.level == "warning" and self.doubts and first.doubts,
            )  # fmt: skip
            cases = merged.cases or tuple(evidence.rows)
            rows = chain.from_iterable(evidence.rows.get(case, ()) for case in cases)
            touched = filter(merged.touches, rows)
            points = frozenset((row.case, row.world_size) for row in touched)
            yield replace(merged, points=points)


rule = Rule
# All rules, in the order of their modules and functions.
RULES: list[Rule] = []


def fact(
    kind: str, text: str, *sizes: int, at: object = None, launches: Iterable[str] = (),
    action: str = "", doubts: bool = True, **values: Any,
) -> Finding:  # fmt: skip
    """Return a finding about the item `at`, else about the item that its rule examined.

    It is at these world sizes; without sizes, at all of the item.
    """
    finding = Finding(kind, text, action=action, values=values, world_sizes=sizes,
                      launches=tuple(launches), doubts=doubts)  # fmt: skip
    return place(finding, at)


def place(finding: Finding, item: object) -> Finding:
    """Return a finding with the place of the item that its rule examined."""
    match item:
        case Launch(name=name):
            return replace(finding, launches=(name,))
        case Entry(point=(case, size)):
            return replace(finding, cases=(case,), world_sizes=(size,),
                           launches=(item.launch.name,))  # fmt: skip
        case (Series() as series, Point(world_size=size)):
            return place(replace(finding, world_sizes=finding.world_sizes or (size,)), series)
        case Series(row=row):
            return replace(finding, cases=(row.case,), is_table=row.origin != "measured")
        case Row(case=case, world_size=size):
            return replace(finding, cases=(case,), world_sizes=(size,),
                           is_table=item.origin != "measured")  # fmt: skip
    return finding


def difference(conflict: Conflict) -> Finding:
    usual, value = conflict.values
    fact, launch = conflict.fact, conflict.usual
    kind, text = "differs", f"{fact} is {value}, but {usual} in launch {launch}"
    if conflict.is_tie:
        kind, text = "differ", (f"{fact} is {value} in half of the launches, and {usual} in the "
                                f"others, such as {launch}")  # fmt: skip
    return Finding(
        kind, text, values={"fact": fact, "value": value, "usual": usual, "launch": launch},
        cases=() if conflict.case is None else (conflict.case,), launches=conflict.launches,
        world_sizes=conflict.world_sizes,
    )  # fmt: skip


def are_apart(point: Point) -> bool:
    """Tell whether launches of one point differ too much to be repeats of one another."""
    return max(point.rates) > APART * min(point.rates)


def blocked_text(rules: Sequence[str]) -> str:
    return f"blocked by check: {', '.join(rules)}"


def joined(values: Iterable[object]) -> str:
    """Return values as text: 1, 2 and 4."""
    texts = [str(value) for value in values]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
