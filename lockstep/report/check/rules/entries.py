"""Rules about cases as they are stored: the rounds of each rank, and what the launch says."""

from collections.abc import Iterator
from statistics import median

from lockstep.report.check.evidence import Entry, Evidence, Hit, Place
from lockstep.report.load.results import Launch

# The fastest step without communication over the slowest round's step: beyond the noise of few
# steps, the part would be longer than the whole.
LONGER = 1.25
# A first round so many times the longest of the others, in every launch, is no noise.
COLD = 2.0
# Of three rounds in one launch the first is the longest by chance in a third.
FEWEST_ROUNDS = 6
# Rounds of two launches in one proportion to so many digits are one measurement.
DIGITS = 7


def ranks_missing(evidence: Evidence) -> Iterator[Hit]:
    """A case holds the rounds of more or fewer ranks than it ran on."""
    for entry in evidence.entries:
        held, size = len(entry.block["rank_round_s"]), entry.block["world_size"]
        # A program's runs are timed from outside, by one clock.
        if held != size and "command" not in entry.block.get("details", {}):
            yield entry.hit("ranks-missing", held=held, size=size)


def alone_longer(evidence: Evidence) -> Iterator[Hit]:
    """A step without communication takes longer than the whole step, beyond all its rounds."""
    for entry in evidence.entries:
        details = entry.block.get("details", {})
        # The fastest step: a neighbour may slow the steps alone, which come after the rounds.
        steps = details.get("rank_variant_s", {}).get("own") or details.get("rank_alone_s")
        alone = list(map(min, steps or [])) or details.get("alone_step_s")
        step_s = max(entry.round_s) / entry.block["steps_per_round"]
        if entry.block["world_size"] > 1 and alone and min(alone) > LONGER * step_s:
            yield entry.hit("alone-longer", alone_s=min(alone), step_s=step_s)


def launch_disagrees(evidence: Evidence) -> Iterator[Hit]:
    """A case names another world size or number of hosts than its launch."""
    for entry in evidence.entries:
        for fact, known in _of_launch(entry.launch).items():
            value = entry.block.get(fact)
            if known is not None and value != known:
                yield entry.hit("launch-disagrees", fact=fact, value=value, known=known)
        own, ranked = set(entry.block.get("rank_hosts") or []), entry.launch.named_hosts
        # A launch that was resumed may have moved; a flag of the result says so.
        if own and ranked and own != ranked and len(entry.launch.facts.get("sessions") or []) < 2:
            yield entry.hit(
                "launch-disagrees", fact="hosts", value=sorted(own), known=sorted(ranked)
            )
    for launch in evidence.results.launches:
        listed, size = len(launch.ranks), launch.facts.get("world_size")
        if listed and size and listed != size:
            yield Hit("ranks-listed", {"ranks": listed, "size": size}, launches=(launch.name,))


def _of_launch(launch: Launch) -> dict[str, int | None]:
    """Return what a launch says that its cases say, too."""
    # Nodes may share one host name; who launched the ranks knows how many nodes there were.
    nodes = launch.facts.get("num_nodes") or len(launch.named_hosts) or None
    return {"world_size": launch.facts.get("world_size"), "num_nodes": nodes}


def cold_start(evidence: Evidence) -> Iterator[Hit]:
    """The first round is the longest by far in every launch of a point."""
    points: dict[Place, list[Entry]] = {}
    for entry in evidence.entries:
        points.setdefault(entry.point, []).append(entry)
    for (case, size), entries in points.items():
        rounds = [entry.round_s for entry in entries]
        if sum(map(len, rounds)) < FEWEST_ROUNDS or min(map(len, rounds)) < 2:
            continue
        if all(first > COLD * max(others) for first, *others in rounds):
            factor = median(first / median(others) for first, *others in rounds)
            yield Hit("cold-start", {"factor": factor}, (case,), (size,))


def scaled_copies(evidence: Evidence) -> Iterator[Hit]:
    """The rounds of two launches are in one proportion: one launch is the other, multiplied."""
    alike: dict[tuple[str, float], list[Entry]] = {}
    for entry in evidence.entries:
        ends = round(entry.round_s[-1] / entry.round_s[0], DIGITS)
        alike.setdefault((entry.case, ends), []).append(entry)
    shapes: dict[tuple[object, ...], list[Entry]] = {}
    # Most entries are alone in the proportion of their last round to their first.
    for entry in (one for own in alike.values() if len(own) > 1 for one in own):
        rounds = entry.round_s
        shape = tuple(round(one / rounds[0], DIGITS) for one in rounds)
        if len(set(shape)) > 2:
            shapes.setdefault((entry.case, shape), []).append(entry)
    for (case, _), entries in shapes.items():
        # Equal to the last digit is what `duplicate` names by their numbers.
        if len({entry.round_s[0] for entry in entries}) > 1:
            sizes = tuple(dict.fromkeys(int(one.block["world_size"]) for one in entries))
            names = tuple(one.launch.name for one in entries)
            yield Hit("scaled-copy", {"count": len(entries)}, (str(case),), sizes, names)
