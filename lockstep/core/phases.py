"""Phases of a profiled step, whatever tool recorded it: spans in, one table of shares out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["compute", "communication", "copy", "input"]
Range = tuple[float, float]  # begin and end, in seconds

# How a timed step of ours is marked, and how torch.profiler marks one.
TIMED, STEP = "lockstep:step", "ProfilerStep"
# part -> kind, and how the names of its ranges begin: as torch marks them
# (torch/nn/parallel/distributed.py, torch/autograd, torch/optim/optimizer.py,
# torch/utils/data/dataloader.py, torch/csrc/.../c10d), and as people name ranges of their own
PARTS: dict[str, tuple[Kind, tuple[str, ...]]] = {
    "data": ("input", ("enumerate(dataloader)", "data", "dataload")),
    "forward": ("compute", ("distributeddataparallel.forward", "forward")),
    "backward": ("compute", ("autograd::engine::evaluate_function", "backward")),
    "optimizer": ("compute", ("optimizer", "optim")),
    "communication": ("communication", ("gloo:", "nccl:", "nccl", "all_reduce", "allreduce")),
    "other operations": ("compute", ("aten::",)),
}


@dataclass(frozen=True)
class Span:
    """Something that ran: what kind of work it is, of which part of a step, and when."""

    kind: Kind
    part: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Phases:
    """Where the time of a step goes. Every time is seconds of one step, on average.

    The first five add up to the step: each moment counts once, for the first of them that ran.

    Attributes:
        num_steps: Steps that were profiled.
        step_s: A step, with what the profiler adds to it.
        compute_s: Forward, backward and optimizer, or the kernels of a GPU.
        exposed_s: Communication beside which nothing computed.
        copy_s: Copies between host and device beside which nothing else ran.
        input_s: Reading a batch, beside which nothing else ran.
        idle_s: Nothing of the above ran.
        communication_s: All communication, hidden or not.
        parts: Part -> the time in which it ran; parts may overlap.
    """

    num_steps: int
    step_s: float
    compute_s: float
    exposed_s: float
    copy_s: float
    input_s: float
    idle_s: float
    communication_s: float
    parts: dict[str, float]

    @property
    def overlap(self) -> float | None:
        """Share of the communication that ran beside computing; None without communication."""
        return 1 - self.exposed_s / self.communication_s if self.communication_s > 0 else None


def span_of(name: str, begin_s: float, end_s: float) -> Span | None:
    """Return a host's range as a span by its name; None if it is no part of a step.

    A barrier before a timed step is none.
    """
    lower = name.lower()
    if "barrier" in lower:
        return None
    for part, (kind, starts) in PARTS.items():
        if lower.startswith(starts):
            return Span(kind, part, begin_s, end_s)
    return None


def phases_of(ranges: Iterable[tuple[str, float, float]]) -> Phases | None:
    """Return where the time of a host's steps goes, by named ranges (begin and end in seconds).

    Where steps are timed, those count; else the profiler's own, from one update to the next.
    """
    spans, marks = list[Span](), {TIMED: list[Range](), STEP: list[Range]()}
    for name, begin_s, end_s in ranges:
        if mark := next((mark for mark in marks if name.startswith(mark)), None):
            marks[mark].append((begin_s, end_s))
        elif span := span_of(name, begin_s, end_s):
            spans.append(span)
    return phases(spans, marks[TIMED] or marks[STEP])


def phases(spans: Iterable[Span], steps: Sequence[Range]) -> Phases | None:
    """Return where the time of some steps goes; None without a step."""
    steps = _merged(steps_kept := [one for one in steps if one[1] > one[0]])
    if not steps:
        return None
    kinds: dict[str, list[Range]] = {"compute": [], "communication": [], "copy": [], "input": []}
    parts: dict[str, list[Range]] = {}
    for span in spans:
        kinds[span.kind].append((span.begin_s, span.end_s))
        parts.setdefault(span.part, []).append((span.begin_s, span.end_s))
    count, whole = len(steps_kept), _length(steps)
    reached, taken, covered = 0.0, {}, list[Range]()
    for kind, ranges in kinds.items():
        covered = _merged([*covered, *ranges])
        length = _length(_within(covered, steps))
        taken[kind], reached = (length - reached) / count, length
    return Phases(
        num_steps=count,
        step_s=whole / count,
        compute_s=taken["compute"],
        exposed_s=taken["communication"],
        copy_s=taken["copy"],
        input_s=taken["input"],
        idle_s=(whole - reached) / count,
        communication_s=_length(_within(_merged(kinds["communication"]), steps)) / count,
        parts={
            part: _length(_within(_merged(ranges), steps)) / count for part, ranges in parts.items()
        },
    )


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges that do not overlap and cover the same time, in order."""
    merged: list[Range] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _within(ranges: Sequence[Range], windows: Sequence[Range]) -> list[Range]:
    """Return what of ranges lies within windows; both are in order and do not overlap."""
    found, at = list[Range](), 0
    for begin, end in windows:
        while at < len(ranges) and ranges[at][1] <= begin:
            at += 1
        for low, high in ranges[at:]:
            if low >= end:
                break
            found.append((max(low, begin), min(high, end)))
    return found


def _length(ranges: Iterable[Range]) -> float:
    return sum(end - begin for begin, end in ranges)
