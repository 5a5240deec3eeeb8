"""Rules about single results: precision, checks, flags, rounds, and where a number comes from.

One looks at cases of a launch that do the same work, and so must take the same time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import geometric_mean, median
from textwrap import shorten
from typing import Any

from lockstep.core.flags import SYSTEMATIC
from lockstep.core.formats import listed
from lockstep.report.check.evidence import FLAGGED, Entry, Evidence, Hit, Place, hit, rule
from lockstep.report.compute import replicates
from lockstep.report.compute.alternatives import equal_buckets
from lockstep.report.compute.scaling import Point
from lockstep.report.compute.statistics import CONFIDENCE, log_interval
from lockstep.report.load.results import Launch, Row

FELL_BACK = {"bf16-emulated"}
LONGEST_NOTE = 90
# A loss that falls by less than this share of what it must does not fall. Where labels are noise,
# the gradient of a batch n times as large is 1/sqrt(n) as long, and a step gains 1/n, its square.
STAYS = 0.1
LOSSES = ("loss_first", "loss_last")
# What other rules say of the same results, in more words.
OTHER_RULES = {
    "unequal-threads", "oversubscribed", "loader-oversubscribed", "logged-rate", "smaller-batch",
    "other-samples",
}  # fmt: skip


@rule(
    "precision-fell-back", "error", "the label names a speed that this hardware does not have",
    "leave the case out, or measure where the precision exists",
    facts={"other-precision": "{asked} was asked for, {used} was computed"},
)  # fmt: skip
def fell_back(evidence: Evidence) -> Iterator[Hit]:
    """A case was computed in another precision than the one asked for."""
    for series, point in evidence.points:
        row = point.rows[0]
        asked = row.factors.get("precision")
        flag = next((flag for flag in point.flags if flag.kind in FELL_BACK), None)
        used = row.checks.get("precision", row.precision)
        # A test of a user's own may vary a precision that it does not record.
        is_known = used is not None
        if is_known and (asked not in (None, used) or used != row.precision):
            wanted = asked or row.precision
            yield hit("other-precision", series, point.world_size, asked=wanted, used=used)
        elif flag:
            yield hit("flag", series, point.world_size, flag=str(flag))


@rule(
    "other-samples", "error", "throughput is counted in samples, and is wrong by as much",
    "give samples= the local batch, as a number: len() of a pair or a dict is that of its "
    "parts; then measure again",
)  # fmt: skip
def other_samples(evidence: Evidence) -> Iterator[Hit]:
    """A step of a user's own was said to take other samples than its batch holds."""
    for series, point in evidence.points:
        for flag in point.flags:
            if flag.kind == "other-samples":
                yield hit("flag", series, point.world_size, flag=str(flag), **flag.values)


@rule(
    "duplicate-buckets", "warning", "a difference between them is noise",
    "keep one of them, or choose sizes below the model's gradients",
    doubts=False,
    facts={"equal-buckets": "bucket_cap_mb {caps} gave the same buckets"},
)  # fmt: skip
def same_buckets(evidence: Evidence) -> Iterator[Hit]:
    """Two bucket sizes gave DDP the very same buckets."""
    buckets = [curve for curve in evidence.measured if curve.row.study == "bucket"]
    for workload, caps, sizes in equal_buckets(buckets):
        cases = [curve.case for curve in buckets if curve.row.workload == workload]
        values = {"caps": listed(caps), "workload": workload}
        yield Hit("equal-buckets", values, tuple(cases), tuple(sizes))


@rule(
    "above-peak", "error", "no device does that: operations, time or peak are wrong",
    "look at the FLOP of a sample, the device's name and the clock",
    facts={"over-peak": "{factor:.2f} times the datasheet peak"},
)  # fmt: skip
def above_peak(evidence: Evidence) -> Iterator[Hit]:
    """More floating point operations per second than the device has."""
    for series, point in evidence.points:
        found = max((row.mfu for row in point.rows if row.mfu is not None), default=0.0)
        if found > 1:
            yield hit("over-peak", series, point.world_size, factor=found)


@rule(
    "wrong-result", "error", "a fast wrong case is a failed case",
    "mend it and measure again",
    facts={
        "check-failed": "{names} did not hold",
        "loss-unknown": "the loss is NaN or infinite",
        "loss-rose": "the loss rose over the timed steps",
    },
)  # fmt: skip
def wrong_result(evidence: Evidence) -> Iterator[Hit]:
    """A check of the result, made outside the timed region, did not hold, or the loss rose."""
    for series, point in evidence.points:
        for row in point.rows:
            failed = sorted(name for name, held in row.checks.items() if held is False)
            place = (series, point.world_size)
            if failed:
                yield hit("check-failed", *place, launches=[row.launch], names=listed(failed))
            if any(row.checks.get(name, 0.0) is None for name in LOSSES):
                yield hit("loss-unknown", *place, launches=[row.launch])
            if _loss_rose(row.checks):
                yield hit("loss-rose", *place, launches=[row.launch])


def _loss_rose(checks: dict[str, Any]) -> bool:
    first, last = checks.get("loss_first"), checks.get("loss_last")
    return isinstance(first, int | float) and isinstance(last, int | float) and last > first


@rule(
    "loss-stays", "warning", "that size does not train what the others do",
    "look at its learning rate and at how its gradients are averaged",
    facts={
        "loss-stays": "the loss goes from {first:.4g} to {last:.4g}, and at world size "
        "{other} from {other_first:.4g} to {other_last:.4g}",
    },
)  # fmt: skip
def loss_stays(evidence: Evidence) -> Iterator[Hit]:
    """The loss hardly falls at one size in the steps in which it falls at others."""
    for series in evidence.measured:
        known = {point.world_size: found for point in series.points if (found := _losses(point))}
        for size, (first, last, batch) in known.items():
            others = [
                (min(1.0, its_batch / batch) * (start - end), other)
                for other, (start, end, its_batch) in known.items()
                if other != size
            ]
            least, other = max(others, default=(0.0, size))
            # What rises is a wrong result.
            if 0 <= first - last < STAYS * least:
                values: dict[str, Any] = {"first": first, "last": last, "other": other}
                values |= {"other_first": known[other][0], "other_last": known[other][1]}
                yield hit("loss-stays", series, size, **values)


def _losses(point: Point) -> tuple[float, float, float] | None:
    """Return the median losses before and after the steps, and the batch of all ranks."""
    pairs = [[row.checks.get(name) for name in LOSSES] for row in point.rows]
    numbers = [pair for pair in pairs if all(isinstance(one, int | float) for one in pair)]
    if not numbers:
        return None
    first, last = (median(column) for column in zip(*numbers, strict=True))
    return first, last, float(point.rows[0].global_batch or 1)


@rule(
    FLAGGED, "warning", "a flagged point is no evidence for a proposal",
    "remove the cause and measure the point again",
)  # fmt: skip
def flagged(evidence: Evidence) -> Iterator[Hit]:
    """A result carries a flag that no other rule speaks of."""
    for series, point in evidence.points:
        for flag in point.flags:
            if flag.kind not in OTHER_RULES | FELL_BACK:
                names = [row.launch for row in point.rows if flag in row.flags]
                # Flags in an older file's words alone are each of their own kind.
                kind = str(flag) if flag.kind == "note" else flag.kind
                found = hit(
                    "flag", series, point.world_size, launches=names, flag=str(flag),
                    flag_kind=kind,
                )  # fmt: skip
                yield replace(found, doubts=flag.kind in SYSTEMATIC)


@rule(
    "not-measured", "error", "what is hoped for must not be mixed with what was measured",
    "keep targets in a file of their own, and measure",
    facts={"targets": "its numbers are targets{note}"},
)  # fmt: skip
def not_measured(evidence: Evidence) -> Iterator[Hit]:
    """A table holds what was expected or aimed at."""
    for series in evidence.series:
        if series.row.origin == "target":
            notes = evidence.table(series).get("notes") or [""]
            note = f", {shorten(notes[0], LONGEST_NOTE)}" if notes[0] else ""
            yield hit("targets", series, note=note)


# The fastest step without communication over the slowest round's step: beyond the noise of few
# steps, the part would be longer than the whole.
LONGER = 1.25
# A first round so many times the longest of the others, in every launch, is no noise.
COLD = 2.0
# Of three rounds in one launch the first is the longest by chance in a third.
FEWEST_ROUNDS = 6
# Rounds of two launches in one proportion to so many digits are one measurement.
DIGITS = 7


@rule(
    "ranks-missing", "error", "a round lasts as long as its slowest rank, which may be missing",
    "rebuild the file from its journal, or measure again",
    facts={"ranks-missing": "it holds the rounds of {held:rank}, but ran on {size}"},
)  # fmt: skip
def ranks_missing(evidence: Evidence) -> Iterator[Hit]:
    """A case holds the rounds of more or fewer ranks than it ran on."""
    for entry in evidence.entries:
        held, size = len(entry.block["rank_round_s"]), entry.block["world_size"]
        # A program's runs are timed from outside, by one clock.
        if held != size and "command" not in entry.block.get("details", {}):
            yield entry.hit("ranks-missing", held=held, size=size)


@rule(
    "alone-longer", "error", "the part cannot take longer than the whole, so one time is wrong",
    "measure the case again",
    facts={
        "alone-longer": "the step without communication takes {alone_s:ms}, longer than "
        "the longest whole step, {step_s:ms}",
    },
)  # fmt: skip
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


@rule(
    "launch-disagrees", "error", "one of them names another experiment",
    "find out which is true, and measure the other again",
    facts={
        "launch-disagrees": "its {fact} is {value}, but its launch has {known}",
        "ranks-listed": "it lists {ranks:rank}, but its world size is {size}",
    },
)  # fmt: skip
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


@rule(
    "cold-start", "warning", "the mean and the cost hold what happens once",
    "measure with more warm-up rounds: warmup_rounds in the campaign",
    doubts=False,
    facts={
        "cold-start": "the first round takes {factor:.1f} times as long as the others in "
        "every launch",
    },
)  # fmt: skip
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


@rule(
    "copied-rounds", "error", "a copy is no repeat, and makes the interval too small",
    "remove the copy",
    facts={"scaled-copy": "their rounds are in one proportion to the last digit"},
)  # fmt: skip
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


# A smaller difference changes no conclusion.
NOTABLE = 1.1
# What a record has in fields of its own, or, of the cap, in its real buckets.
NAMED = {"workload", "precision", "local_batch", "global_batch", "bucket_cap_mb"}
# What a case does that varies none of these.
USUAL = {"accumulation": 1, "no_sync": True}

# World size, and the text of all else that makes steps identical.
Work = tuple[int, str]
# Case -> launch -> row.
Cases = dict[str, dict[str, Row]]


@rule(
    "identical-work", "warning", "what separates them is no setting, and no effect of one",
    "measure with more warm-up rounds, and trust no smaller difference between cases",
    doubts=False,
    facts={
        "identical-work": "both do identical work, and {slow} takes {factor:.2f} times as "
        "long as {fast} ({low:.2f} to {high:.2f}, over {count:launch})",
    },
)  # fmt: skip
def identical_work(evidence: Evidence) -> Iterator[Hit]:
    """Cases of the same launches do identical work, and one takes longer beyond chance."""
    for (size, _), cases in _alike(evidence).items():
        pairs = list(combinations(cases, 2))
        for pair in pairs:
            shared = tuple(name for name in cases[pair[0]] if name in cases[pair[1]])
            # So many pairs are looked at that one of them lies outside its own 95 % by chance.
            found = _differ(cases, pair, shared, 1 - (1 - CONFIDENCE) / len(pairs))
            if found and found["low"] > 1 and found["factor"] > NOTABLE:
                values = found | {"count": len(shared)}
                yield Hit("identical-work", values, pair, (size,), shared)


def _alike(evidence: Evidence) -> dict[Work, Cases]:
    """Return the cases of equal work, where the gradient buckets are known."""
    found: dict[Work, Cases] = {}
    for series in evidence.measured:
        for row in (row for point in series.points for row in point.rows):
            if row.details.get("bucket_bytes"):
                cases = found.setdefault((row.world_size, _work(row)), {})
                cases.setdefault(row.case, {})[row.launch] = row
    return found


def _work(row: Row) -> str:
    """Return what a step does as one text, since buckets are lists."""
    varied = {name: value for name, value in row.factors.items() if name not in NAMED}
    return str([
        row.workload, row.workload_sha256, row.precision, row.local_batch, row.samples_per_step,
        row.details["bucket_bytes"], sorted((USUAL | varied).items()),
    ])  # fmt: skip


def _differ(
    cases: Cases, pair: tuple[str, str], launches: Sequence[str], confidence: float
) -> dict[str, Any] | None:
    """Return how many times as long the slower of two cases takes; None where no spread is known.

    Each launch that holds both gives one ratio of median steps; what slows a launch as a whole is
    in both. The factor is their geometric mean.
    """
    first, second = (cases[case] for case in pair)
    ratios = [(first[name].step_s or 1) / (second[name].step_s or 1) for name in launches]
    units = replicates.independent([first[name] for name in launches], ratios)
    interval = log_interval(units, confidence)
    if interval is None:
        return None
    factor, (low, high) = geometric_mean(units), interval
    slow, fast = pair
    if factor < 1:
        slow, fast, factor, low, high = fast, slow, 1 / factor, 1 / high, 1 / low
    return {"slow": slow, "fast": fast, "factor": factor, "low": low, "high": high}
