"""Sentences on how times were measured and on which steps, for the page and a pack."""

from collections.abc import Iterable, Sequence
from typing import Any

from lockstep.core import formats, record
from lockstep.core.formats import counted, listed, number
from lockstep.core.record import Basis
from lockstep.core.studies import TRAINING
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.load.recorded import KEY as RECORDED
from lockstep.report.load.results import Results, Row

NOT_RECORDED = (
    "Basis: the results do not record which data a step read, so the numbers may be an upper bound."
)
BOUND = (
    "Throughput and efficiency are an upper bound for production, which also reads and decodes "
    "data, writes checkpoints, and may have batches of unequal length."
)
# The basis of figures that were not measured here.
IMPORTED = {
    "cited": "Cited: others published or logged these numbers; Lockstep did not measure them.",
    "target": "Targets: their authors expect these numbers; nobody measured them.",
}


def timing(results: Results, points: Sequence[Point]) -> list[str]:
    """Return how times were measured: clock, synchronisation, warm-up, ranks, medians."""
    versions = (launch.provenance.get("lockstep_version") for launch in results.launches)
    version = listed(dict.fromkeys(filter(None, versions))) or formats.DASH
    rows = [row for point in points for row in point.rows]
    rounds = span_of(row.rounds for row in rows)
    steps = span_of(row.steps_per_round for row in rows)
    launches = span_of(point.num_launches for point in points)
    warm_ups = [launch.facts.get("warmup_rounds") for launch in results.launches]
    counts = [n for n in warm_ups if isinstance(n, int) and n > 0]
    is_warm = counts and len(counts) == len(warm_ups)
    warm_up_rounds = span_of(counts) if is_warm else ""
    warm = f" Warm-up is not timed (rounds: {warm_up_rounds})." if is_warm else ""
    is_ordered = results.campaign.get("launches") and launches != "1"
    order = " The launches of all sizes ran in random order." if is_ordered else ""
    num_steps, num_rounds = f"{steps} {_noun(steps, 'step')}", f"{rounds} {_noun(rounds, 'round')}"
    num_launches = f"{launches} {_noun(launches, 'launch')}"
    return [
        f"Lockstep {version} measured with timers around the main loop and a monotonic clock. A "
        f"round follows an untimed barrier. It has {num_steps} without synchronisation with the "
        "host, and ends with one device synchronisation. Each rank keeps its own time, and a round "
        "lasts as long as its slowest rank. Start-up, data generation and checks are not timed."
        f"{warm}",
        f"A launch is a new process group and times {num_rounds} of each case. A point has "
        f"{num_launches}.{order} A step time is the median over the rounds of a launch, and then "
        "the median over launches.",
    ]


def days(known: Sequence[str]) -> str:
    """Return the first and the last of ordered days; empty without days."""
    return " to ".join(dict.fromkeys([*known[:1], *known[-1:]]))


def _noun(span: str, noun: str) -> str:
    return counted(1 if span == "1" else 2, noun).partition(" ")[2]


def span_of(values: Iterable[int | None]) -> str:
    """Return counts as the least and the largest of them; a dash if none is known."""
    known = sorted({value for value in values if value})
    if not known:
        return formats.DASH
    return str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


def basis(bases: Sequence[Basis | None], precisions: Iterable[str | None] = ()) -> str:
    """Return the content of measured steps (equal steps once), and what production adds."""
    known = list(dict.fromkeys(filter(None, bases)))
    if not known:
        return NOT_RECORDED
    contents = "; ".join(map(_contents, known))
    if named := listed(dict.fromkeys(filter(None, precisions))):
        contents += f"; precision {named}"
    if any(basis.is_bound for basis in known):
        return f"Basis: whole training step excluding I/O ({contents}). {BOUND}"
    if any(basis.is_bound is None for basis in known):
        return f"Basis: {contents}."
    return f"Basis: whole application including input ({contents})."


def _contents(basis: Basis) -> str:
    if basis == Basis():
        return "a step of the user's own code, about which nothing more is recorded"
    timed = {None: "", True: "input timed", False: "input not timed"}[basis.times_input]
    optimizer = f"optimizer {basis.optimizer}" if basis.optimizer else ""
    data = f"{basis.data} data" if basis.data else "data that the workload generates"
    return ", ".join(filter(None, (data, timed, optimizer)))


def recorded(results: Results) -> list[str]:
    """Return sentences on what a recorded campaign was measured on; empty if it is not one."""
    facts = results.campaign.get(RECORDED)
    if not facts:
        return []
    texts = ["These results were recorded, and not measured on this machine."]
    if facts.get("kind") == "links":
        nodes = counted(int(facts["num_nodes"]), "node")
        rate = number(float(facts["rate_bit_per_s"]) / 1e6)
        texts.append(
            f"The results are from {nodes} simulated on one machine, with links of {rate} Mbit/s."
        )
        if wait := facts.get("ms_per_item"):
            texts.append(
                f"Ranks, DDP and network are real; each device waits {number(float(wait))} ms per "
                "sample instead of computing."
            )
    return texts


def nodes(rows: Iterable[Row]) -> str:
    """Return the largest number of nodes of the measured rows, as text."""
    known = (row.num_nodes for row in rows if row.num_nodes and row.origin == "measured")
    most = max(known, default=None)
    return f"up to {counted(most, 'node')}" if most else "an unknown number of nodes"


def basis_sentences(rows: Sequence[Row]) -> list[str]:
    """Return sentences on the content of training steps; empty if none was measured."""
    steps = [row for row in rows if row.study in TRAINING and not row.program]
    bases = [record.basis_of(row.details) for row in steps]
    return [basis(bases, [row.precision for row in steps])] if steps else []


def put_basis(
    sections: Sequence[dict[str, Any]], results: Results, series: Sequence[Series],
    warning: str | None,
) -> None:  # fmt: skip
    """Add lines on steps and machine to each figure as `basis`; it may be saved alone.

    The warning, that results are no evidence, comes first in figures of measurements.
    A section without measured cases of its study has the lines of all measured cases.
    """
    measured = [curve for curve in series if curve.row.origin == "measured"]
    for section in sections:
        own = [curve for curve in measured if curve.row.study == section["id"]] or measured
        rows = [row for curve in own for point in curve.points for row in point.rows]
        imported = IMPORTED.get(section["origin"])
        texts = [*filter(None, [warning]), *basis_sentences(rows), *_machine(results, rows)]
        texts = [imported] if imported else texts
        for figure in section["figures"]:
            figure["basis"] = texts


def _machine(results: Results, rows: Sequence[Row]) -> list[str]:
    if not results.launches:
        return []
    digests = filter(None, (each.provenance.get("image_sha256") for each in results.launches))
    images = dict.fromkeys(str(digest)[:12] for digest in digests)  # 12 letters identify an image
    image = f"image {listed(images, 2)}" if images else "no image"
    devices = listed(results.device_names, 3) or "unknown devices"
    return [
        f"Machine: {devices}, {nodes(rows)}, {image}. It is not recorded whether other jobs shared "
        "the nodes."
    ]
