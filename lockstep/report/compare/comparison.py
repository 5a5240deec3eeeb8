"""Two sets of results, point by point: which points both hold, and what can be said of each.

A point is a case at one world size on one layout; its ratio is the median of B's rates over that of
A's, one rate per launch, so a ratio above 1 means that B is faster. The interval is of geometric
means, over launches or, where a side has several, over Slurm jobs. `judging` has the rule.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from lockstep.core import flags, formats, record
from lockstep.report import looks
from lockstep.report.check.checker import Finding, blocked_by
from lockstep.report.compare import compare_wording, pairing
from lockstep.report.compare.judging import (
    BLOCKED,
    MARGIN,
    UNKNOWN,
    Comparison,
    Judged,
    judge,
    other_quantities,
)
from lockstep.report.compare.pairing import MUST_AGREE, Key, Pair
from lockstep.report.compute import replicates
from lockstep.report.compute.statistics import CONFIDENCE
from lockstep.report.load.results import Launch, Results, Row

LETTERS = "ABCDEF"


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

    Errors of the check in A or in B block the points that they touch. Several comparisons share the
    false claims that one alone may make, and so do the looks of a history.

    Raises:
        ValueError: The sides have no point in common, or differ in what makes them incomparable.
    """
    b = renamed(a, b)
    sides = pairing.points(a.rows, b.rows)
    keys, ambiguous = pairing.matched(*sides, allowed)
    if not keys:
        raise ValueError(pairing.nothing_common(*sides, allowed))
    pairs = [
        Pair(mine.case, mine.world_size, sides[0][mine], sides[1][theirs]) for mine, theirs in keys
    ]
    for pair in pairs:
        _refuse_difference(pair, _facts_of(pair, a, b), allowed)
    launches = _launches(a, [p.a for p in pairs]), _launches(b, [p.b for p in pairs])
    _refuse_devices(launches, allowed)
    pairs.sort(key=lambda pair: pair.world_size)
    rows = [row for pair in pairs for row in pair.a], [row for pair in pairs for row in pair.b]
    look = history.look(rows, (a, b))
    judged = _judged_pairs(pairs, margin, findings, look.share / comparisons)
    if not (looks.is_machine(a) and looks.is_machine(b)):
        judged = [(pair, _of_jobs(pair, one)) for pair, one in judged[0]], judged[1]
    comparison = Comparison(margin, *judged, comparisons=comparisons, look=look)
    comparison.environment, comparison.same_facts = pairing.environment(launches, rows)
    comparison.cautions = pairing.cautions(launches, [(pair.a, pair.b) for pair in pairs])
    comparison.ambiguous, comparison.allowing = ambiguous, pairing.allowing(*sides, allowed)
    comparison.only_in_a, comparison.only_in_b = (
        sorted((key for key in side if key not in paired), key=lambda key: key.world_size)
        for side, paired in zip(sides, map(set, zip(*keys, strict=True)), strict=True)
    )  # fmt: skip
    return comparison


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
        raise ValueError(f"{len(campaigns)} campaigns are given; {len(LETTERS)} fit side by side")
    base, *others = campaigns
    made = []
    for number, other in enumerate(others, start=1):
        found = findings[0], findings[number]
        try:
            comparison = compare(base, other, margin, allowed, found, len(others), history)
        except ValueError as error:
            if len(others) == 1:
                raise
            raise ValueError(f"{names[number]}, as B, beside {names[0]}, A: {error}") from error
        made.append(replace(comparison, sides=(LETTERS[0], LETTERS[number])))
    return made


def _judged_pairs(
    pairs: Sequence[Pair],
    margin: float,
    findings: tuple[Sequence[Finding], Sequence[Finding]],
    share: float,
) -> tuple[list[tuple[Pair, Judged]], float]:
    """Return each pair with what the rule says of it, and the family's error rate.

    `share` is of the false claims that all looks and comparisons may make.
    """
    rules = [_blocked_by(pair, findings) for pair in pairs]
    sound = [pair for pair, by in zip(pairs, rules, strict=True) if not by]
    judged, error = judge([pair.units for pair in sound], margin, share * (1 - CONFIDENCE))
    verdicts = iter(judged)
    found = [
        (pair, Judged(pair.ratio, None, BLOCKED, blocked_by=by) if by
         else replace(next(verdicts), ratio=pair.ratio))
        for pair, by in zip(pairs, rules, strict=True)
    ]  # fmt: skip
    return found, error


def _of_jobs(pair: Pair, judged: Judged) -> Judged:
    """Leave a point open where the repeats of a side share a job, which is not that of all."""
    alone = any(map(replicates.in_one_job, (pair.a, pair.b)))
    if judged.interval is None or not alone or replicates.in_one_job([*pair.a, *pair.b]):
        return judged
    return replace(judged, verdict=UNKNOWN, in_one_job=True)


def _blocked_by(
    pair: Pair, findings: tuple[Sequence[Finding], Sequence[Finding]]
) -> tuple[str, ...]:
    """Return the rules whose errors touch the results of either side."""
    sides = zip(findings, (pair.a, pair.b), strict=True)
    return tuple(dict.fromkeys(rule for side in sides for rule in blocked_by(*side)))


def renamed(a: Results, b: Results) -> Results:
    """Return B; a lone table takes the name of A's lone table, since files name tables."""
    names = [{row.case for row in side.rows} for side in (a, b)]
    if names[0] == names[1] or not all(map(_is_one_table, (a, b), names)):
        return b
    (to,), (own,) = names
    rows = [
        replace(row, case=to, workload=a.rows[0].workload if row.workload == own else row.workload)
        for row in b.rows
    ]
    return replace(b, rows=rows, tables={to: b.tables[own]})


def _is_one_table(side: Results, cases: Collection[str]) -> bool:
    return len(cases) == 1 and set(cases) <= side.tables.keys()


def _facts_of(pair: Pair, a: Results, b: Results) -> dict[str, tuple[set[Any], set[Any]]]:
    """Return what must agree of a point: fact -> values of A and of B."""
    found = {
        name: ({getattr(row, name) for row in pair.a}, {getattr(row, name) for row in pair.b})
        for names in MUST_AGREE.values()
        for name in names
        if name in Row.__slots__
    }
    metrics = [
        {table.get("metric") for table in [side.tables.get(rows[0].case)] if table}
        for side, rows in ((a, pair.a), (b, pair.b))
    ]
    return found | {"metric": (metrics[0], metrics[1])}


def _refuse_difference(
    pair: Pair, facts: Mapping[str, tuple[set[Any], set[Any]]], allowed: Collection[str]
) -> None:
    for name, members in MUST_AGREE.items():
        for fact in members if name not in allowed else ():
            a, b = facts.get(fact, (set(), set()))
            if a != b or len(a) > 1:
                raise ValueError(
                    f"{pair.case} at {pair.world_size} has {fact} {_shown(a)} in A and {_shown(b)} "
                    f"in B, so its rates are not comparable; pass --allow {name} to compare all "
                    "the same"
                )


def _refuse_devices(launches: Sequence[Sequence[Launch]], allowed: Collection[str]) -> None:
    a, b = (
        {
            ", ".join(map(str, launch.provenance.get("device_names") or ["unknown devices"]))
            for launch in side
        }
        for side in launches
    )
    if "device" not in allowed and a != b and a and b:
        raise ValueError(
            f"A was measured on {_shown(a)} and B on {_shown(b)}, so a difference would be the "
            "devices' own; pass --allow device to compare all the same"
        )


def _launches(side: Results, points: Iterable[list[Row]]) -> list[Launch]:
    """Return the launches that hold one of the points."""
    names = {row.launch for rows in points for row in rows}
    return [launch for launch in side.launches if launch.name in names]


def _shown(values: Collection[Any]) -> str:
    """Return the values of a fact for a sentence."""
    texts = sorted("unknown" if value is None else str(value) for value in values)
    return formats.listed(texts, 4) or "unknown"


def document(comparison: Comparison, names: tuple[str, str]) -> dict[str, Any]:
    """Return a comparison as `--json` prints it."""
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
        "warnings": [compare_wording.caution(caution) for caution in comparison.cautions],
        "points": [_record(pair, judged) for pair, judged in comparison.points],
        "only_in_a": [_only(point) for point in comparison.only_in_a],
        "only_in_b": [_only(point) for point in comparison.only_in_b],
        "ambiguous": [asdict(ambiguous) for ambiguous in comparison.ambiguous],
    }


def document_of_all(comparisons: Sequence[Comparison], names: Sequence[str]) -> dict[str, Any]:
    """Return comparisons with one base as `--json` prints them; a lone one as `document` does."""
    made = [
        document(comparison, (names[0], name))
        for comparison, name in zip(comparisons, names[1:], strict=True)
    ]
    return made[0] if len(made) == 1 else {"schema": record.SCHEMA_VERSION, "comparisons": made}


def _only(point: Key) -> dict[str, Any]:
    found = {"case": point.case, "world_size": point.world_size}
    return found | {"num_nodes": point.layout.num_nodes, "layout": point.layout.text}


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
        "times": [] if judged.blocked_by else [asdict(time_) for time_ in pairing.times(pair)],
        "flags": [
            {"side": side} | to_dict
            for side, flag in pair.flags
            for to_dict in flags.to_dicts([flag])
        ],
    }  # fmt: skip
