"""Rules about single results: precision, buckets, checks, flags, and where a number comes from."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from textwrap import shorten
from typing import Any

from lockstep.core.flags import SYSTEMATIC
from lockstep.core.formats import listed
from lockstep.report.check.evidence import Evidence, Hit, hit
from lockstep.report.compute.scaling import Point
from lockstep.report.page.panels.settings import equal_buckets

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


def other_samples(evidence: Evidence) -> Iterator[Hit]:
    """A step of a user's own was said to take other samples than its batch holds."""
    for series, point in evidence.points:
        for flag in point.flags:
            if flag.kind == "other-samples":
                yield hit("flag", series, point.world_size, flag=str(flag), **flag.values)


def same_buckets(evidence: Evidence) -> Iterator[Hit]:
    """Two bucket sizes gave DDP the very same buckets."""
    buckets = [one for one in evidence.measured if one.row.study == "bucket"]
    for workload, caps, sizes in equal_buckets(buckets):
        cases = [one.case for one in buckets if one.row.workload == workload]
        values = {"caps": listed(caps), "workload": workload}
        yield Hit("equal-buckets", values, tuple(cases), tuple(sizes))


def above_peak(evidence: Evidence) -> Iterator[Hit]:
    """More floating point operations per second than the device has."""
    for series, point in evidence.points:
        found = max((row.mfu for row in point.rows if row.mfu is not None), default=0.0)
        if found > 1:
            yield hit("over-peak", series, point.world_size, factor=found)


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


def not_measured(evidence: Evidence) -> Iterator[Hit]:
    """A table holds what was expected or aimed at."""
    for series in evidence.series:
        if series.row.origin == "target":
            notes = evidence.table(series).get("notes") or [""]
            note = f", {shorten(notes[0], LONGEST_NOTE)}" if notes[0] else ""
            yield hit("targets", series, note=note)
