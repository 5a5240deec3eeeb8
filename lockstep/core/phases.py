"""Phases of a profiled step, whatever tool recorded it: spans in, one table of shares out."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

# A range is the name of a whole phase: operations and waits are inside it.
Kind = Literal["compute", "communication", "copy", "input", "range"]
Range = tuple[float, float]  # begin and end, in seconds
Named = tuple[str, float, float]  # name, begin and end of a host's range

# Prefix of Lockstep's own range names: a timed step, its phases, and gradient buckets by number.
# torch.profiler names steps itself.
OURS = "lockstep:"
TIMED, STEP = f"{OURS}step", "ProfilerStep"
BUCKET = "bucket "
# part, kind, and how the names of its ranges begin: as torch marks them
# (torch/nn/parallel/distributed.py, torch/autograd, torch/optim/optimizer.py,
# torch/utils/data/dataloader.py, torch/csrc/.../c10d), and as people and Lockstep name theirs
PARTS: tuple[tuple[str, Kind, tuple[str, ...]], ...] = (
    ("data", "input", ("enumerate(dataloader)", "data", "dataload")),
    ("forward", "compute", ("distributeddataparallel.forward",)),
    ("forward", "range", ("forward",)),
    ("backward", "compute", ("autograd::engine::evaluate_function",)),
    ("backward", "range", ("backward",)),
    ("optimizer", "compute", ("optimizer", "optim")),
    ("communication", "communication", ("gloo:", "nccl", "all_reduce", "allreduce")),
    ("other operations", "compute", ("aten::",)),
)


@dataclass(frozen=True)
class Span:
    """Something that ran: what kind of work it is, of which part of a step, and when."""

    kind: Kind
    part: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Phases:
    """Seconds of one step, on average; the parts from `compute_s` to `idle_s` add up to it.

    Each moment counts once, for the first of these parts that ran in it.
    """

    num_steps: int
    step_s: float  # with the time that the profiler adds
    compute_s: float  # forward, backward and optimizer without their waits, or kernels of a GPU
    exposed_s: float  # communication beside which nothing computed
    copy_s: float  # between host and device, beside which nothing else ran
    input_s: float  # reading a batch, likewise
    idle_s: float
    communication_s: float  # all of it, hidden or not
    parts: dict[str, float]  # part -> its time without waits; parts may overlap

    @property
    def overlap(self) -> float | None:
        """Share of the communication that ran beside computing; None without communication."""
        return 1 - self.exposed_s / self.communication_s if self.communication_s > 0 else None


def span_of(name: str, begin_s: float, end_s: float) -> Span | None:
    """Return a host's range as a span by its name; None for a barrier or no part of a step."""
    lower = name.lower().removeprefix(OURS)
    if "barrier" in lower:
        return None
    for part, kind, starts in PARTS:
        if lower.startswith(starts):
            return Span(kind, part, begin_s, end_s)
    return None


def by_launch(launches: Iterable[tuple[Span, float]], ranges: Iterable[Named]) -> list[Span]:
    """Return spans, given with the moment of their launch, again under the host's ranges then.

    A kernel counts for forward, backward or optimizer as well, and a collective for its bucket of
    gradients. The host may have left the range long before the span begins.
    """
    windows: dict[Kind, dict[str, list[Range]]] = {"compute": {}, "communication": {}}
    for name, begin_s, end_s in ranges:
        span = span_of(name, begin_s, end_s)
        if bucket := _bucket(name):
            windows["communication"].setdefault(bucket, []).append((begin_s, end_s))
        elif span and span.part in ("forward", "backward", "optimizer"):
            windows["compute"].setdefault(span.part, []).append((begin_s, end_s))
    merged = {kind: {part: _merged(own) for part, own in parts.items()}
              for kind, parts in windows.items()}  # fmt: skip
    return [
        replace(span, part=part)
        for span, launched_s in launches
        for part, own in merged.get(span.kind, {}).items()
        if (at := bisect_right(own, (launched_s, math.inf))) and launched_s <= own[at - 1][1]
    ]


def of_host(ranges: Sequence[Named]) -> list[Span]:
    """Return a host's ranges as spans, its collectives also under their buckets.

    gloo begins collectives in their order, but later than they are launched.
    """
    spans = [span for each in ranges if (span := span_of(*each))]
    collectives = (span for span in spans if span.kind == "communication")
    begun = deque(sorted(collectives, key=lambda span: span.begin_s))
    for name, launched_s, _ in sorted(ranges, key=lambda each: each[1]):
        if bucket := _bucket(name):
            while begun and begun[0].begin_s < launched_s:
                begun.popleft()
            spans += [replace(begun.popleft(), part=bucket)] if begun else []
    return spans


def _bucket(name: str) -> str:
    own = name.removeprefix(OURS)
    return own if own.startswith(BUCKET) and own.removeprefix(BUCKET).isdecimal() else ""


def phases_of(ranges: Iterable[Named]) -> Phases | None:
    """Return where the time of a host's steps goes, by named ranges.

    Where steps are timed, those count; else the profiler's own, from one update to the next.
    """
    parts, marks = list[Named](), {TIMED: list[Range](), STEP: list[Range]()}
    for name, begin_s, end_s in ranges:
        if mark := next((mark for mark in marks if name.startswith(mark)), None):
            marks[mark].append((begin_s, end_s))
        else:
            parts.append((name, begin_s, end_s))
    return phases(of_host(parts), marks[TIMED] or marks[STEP])


def phases(spans: Iterable[Span], steps: Sequence[Range]) -> Phases | None:
    """Return where the time of some steps goes; None without a step."""
    steps = _merged(steps_kept := [step for step in steps if step[1] > step[0]])
    if not steps:
        return None
    # What a moment counts for: a range only where nothing else ran in it.
    kinds: dict[str, list[Range]] = {
        "compute": [], "communication": [], "copy": [], "input": [], "range": []
    }  # fmt: skip
    parts: dict[str, tuple[list[Range], list[Range]]] = {}  # what ran, and ranges
    for span in spans:
        kinds[span.kind].append((span.begin_s, span.end_s))
        own = parts.setdefault(span.part, ([], []))[span.kind == "range"]
        own.append((span.begin_s, span.end_s))

    def covered(*several: Iterable[Range]) -> float:
        return _length(_within(_merged(chain(*several)), steps)) / count

    def part_s(ran: list[Range], ranges: list[Range]) -> float:
        if not ranges:
            return covered(ran)
        # A range counts where nothing of this part, and no wait, ran.
        others = [*ran, *kinds["communication"], *kinds["copy"], *kinds["input"]]
        return covered(ran) + covered(ranges, others) - covered(others)

    count, whole = len(steps_kept), _length(steps)
    reached, taken, ran = 0.0, {}, list[Range]()
    for kind, ranges in kinds.items():
        ran = _merged([*ran, *ranges])
        taken[kind], reached = covered(ran) - reached, covered(ran)
    return Phases(
        num_steps=count, step_s=whole / count, compute_s=taken["compute"] + taken["range"],
        exposed_s=taken["communication"], copy_s=taken["copy"], input_s=taken["input"],
        idle_s=whole / count - reached, communication_s=covered(kinds["communication"]),
        parts={name: part_s(*own) for name, own in parts.items()},
    )  # fmt: skip


def _merged(ranges: Iterable[Range]) -> list[Range]:
    merged: list[Range] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _within(ranges: Sequence[Range], windows: Sequence[Range]) -> list[Range]:
    """Return what of ranges lies within windows; both are in order and do not overlap."""
    parts, at = list[Range](), 0
    for begin, end in windows:
        while at < len(ranges) and ranges[at][1] <= begin:
            at += 1
        for low, high in ranges[at:]:
            if low >= end:
                break
            parts.append((max(low, begin), min(high, end)))
    return parts


def _length(ranges: Iterable[Range]) -> float:
    return sum(end - begin for begin, end in ranges)
