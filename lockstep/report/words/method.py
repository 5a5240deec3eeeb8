"""How times were taken and on what they rest, in the same words on the page and in a pack."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockstep.core import formats, record
from lockstep.core.formats import counted, listed
from lockstep.core.record import Basis
from lockstep.core.studies import TRAINING
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.load.results import Results, Row

NOT_RECORDED = "Basis: what a step read is not recorded, so the numbers may be an upper bound."
# What production does beside the steps that are measured.
BOUND = (
    "Throughput and efficiency are an upper bound for production, which also reads and decodes "
    "data, writes checkpoints, and may have batches of unequal length."
)
# Of what was imported and not measured here.
IMPORTED = {
    "cited": "Cited: published or logged by others, not measured by Lockstep.",
    "target": "Targets: expected by their authors, measured by nobody.",
}
# Characters of an image's digest that tell it apart.
DIGEST = 12


def timing(
    points: Sequence[Point], version: str, warmup_rounds: Sequence[object], is_campaign: bool
) -> list[str]:
    """Say how times were taken: clock, synchronisation, warm-up, window, ranks, medians."""
    rows = [row for point in points for row in point.rows]
    rounds = span_of(row.rounds for row in rows)
    steps = span_of(row.steps_per_round for row in rows)
    launches = span_of(point.num_launches for point in points)
    counts = [n for n in warmup_rounds if isinstance(n, int) and n > 0]
    is_warm = counts and len(counts) == len(warmup_rounds)
    warm = f"after untimed warm-up (rounds: {span_of(counts)}), " if is_warm else ""
    order = ", interleaved over sizes in random order" if is_campaign and launches != "1" else ""
    return [
        f"Timers around the main loop (Lockstep {version}): {warm}a round is an untimed barrier, "
        f"then {steps} {_noun(steps, 'step')} running freely, one device synchronisation, and a "
        "monotonic clock is read. Each rank keeps its own time, and a round lasts as long as its "
        "slowest rank. Start-up, data generation and checks are outside.",
        f"A launch, a new process group, has {rounds} timed {_noun(rounds, 'round')} of "
        f"each case; a point has {launches} {_noun(launches, 'launch')}{order}. Step times are the "
        "median over launches of a launch's median round.",
    ]


def days(found: Sequence[str]) -> str:
    """Return days, in order, from the first to the last; empty where none is known."""
    return " to ".join(dict.fromkeys([*found[:1], *found[-1:]]))


def _noun(span: str, noun: str) -> str:
    """Return what a span of counts counts, as one or as several."""
    return counted(1 if span == "1" else 2, noun).partition(" ")[2]


def span_of(values: Iterable[int | None]) -> str:
    """Return counts as the least and the largest of them; a dash where none is known."""
    known = sorted({value for value in values if value})
    if not known:
        return formats.DASH
    return str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


def basis(bases: Sequence[Basis | None], precisions: Iterable[str | None] = ()) -> str:
    """Say what measured steps contain, equal ones once, and of what they are therefore a bound."""
    known = list(dict.fromkeys(one for one in bases if one))
    if not known:
        return NOT_RECORDED
    words = "; ".join(map(_parts, known))
    if named := listed(dict.fromkeys(filter(None, precisions))):
        words += f"; precision {named}"
    if any(one.is_bound for one in known):
        return f"Basis: whole training step excluding I/O ({words}). {BOUND}"
    if any(one.is_bound is None for one in known):
        return f"Basis: {words}."
    return f"Basis: whole application including input ({words})."


def _parts(one: Basis) -> str:
    """Return what is known of one basis, separated by commas."""
    if one == Basis():
        return "a step of the user's own, of which nothing else is recorded"
    texts = [f"{one.data} data" if one.data else "data of the workload's own making"]
    texts += [] if one.times_input is None else [f"input {'' if one.times_input else 'not '}timed"]
    texts += [f"optimizer {one.optimizer}"] if one.optimizer else []
    return ", ".join(texts)


def nodes(rows: Iterable[Row]) -> str:
    """Say on how many nodes rows were measured at most."""
    most = max((row.num_nodes for row in rows if row.num_nodes), default=None)
    return f"up to {counted(most, 'node')}" if most else "an unknown number of nodes"


def basis_sentences(rows: Sequence[Row]) -> list[str]:
    """Say on what training steps rest; nothing where none was taken."""
    steps = [row for row in rows if row.study in TRAINING and not row.program]
    bases = [record.basis_of(row.details) for row in steps]
    return [basis(bases, [row.precision for row in steps])] if steps else []


def put_basis(
    sections: Sequence[dict[str, Any]], results: Results, series: Sequence[Series]
) -> None:
    """Give each figure of the sections what it rests on, as `basis`, for one that is saved alone.

    That is what steps contain, and the machine; of a section of no study, of all that was measured.
    """
    measured = [curve for curve in series if curve.row.origin == "measured"]
    for section in sections:
        own = [curve for curve in measured if curve.row.study == section["id"]] or measured
        rows = [row for curve in own for point in curve.points for row in point.rows]
        imported = IMPORTED.get(section["origin"])
        texts = [imported] if imported else [*basis_sentences(rows), *_machine(results, rows)]
        for figure in section["figures"]:
            figure["basis"] = texts


def _machine(results: Results, rows: Sequence[Row]) -> list[str]:
    known: list[Mapping[str, Any]] = [launch.provenance for launch in results.launches]
    images = {str(one["image_sha256"])[:DIGEST]: None for one in known if one.get("image_sha256")}
    image = f"image {listed(images, 2)}" if images else "no image"
    if not known:
        return []
    return [
        f"Machine: {listed(results.device_names, 3) or 'unknown devices'}, {nodes(rows)}, {image}; "
        "whether others shared the nodes is not recorded."
    ]
