"""What `lockstep.explain` found: a record, and the card that rank 0 prints of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from lockstep.core.text.formats import counted, listed, number
from lockstep.machine.provenance import lockstep_version
from lockstep.measure.causes.bound import Bound, Kind, judge
from lockstep.measure.causes.buckets import Buckets
from lockstep.measure.causes.card import MILLI, NEXT_OWN, card
from lockstep.measure.explain.meeting import Met

SCHEMA = 1
NoteKind = Literal["alone", "drawn", "collectives"]
LOST = {"drawn"}
# Then it is asked again.
NEXT: dict[Kind, str] = NEXT_OWN | {
    "own": "batches=loader, to see its fixed cost and its input as well; or profile one rank",
    "open": "explain(..., seconds=300), and batches=loader to see the input as well",
}


@dataclass(frozen=True)
class Part:
    """What one rank measured; JSON can hold all of it.

    Attributes:
        turns: Seconds of a step in each turn, shape (num_turns,), by variant.
        bucket_lead_s: How long before the end of the backward each bucket is ready.
        bucket_bytes: Of each bucket, in the order in which they are reduced.
        collectives: Of a step that synchronises no gradients, see `variants.waits`.
        num_steps: Taken in all.
        order_seed: Of the order of the turns; drawn anew in each run.
        again: Turns after which the step was put back as it was.
        drawn: Names of iterators that the step may have drawn from.
        samples: In one step, where they are known.
    """

    turns: dict[str, list[float]]
    bucket_lead_s: list[float] = field(default_factory=list)
    bucket_bytes: list[int] = field(default_factory=list)
    collectives: int = 0
    num_steps: int = 0
    order_seed: int = 0
    again: int | None = None
    drawn: list[str] = field(default_factory=list)
    samples: int | None = None


@dataclass(frozen=True)
class Note:
    """What a reader should know beside what bounds the step.

    Attributes:
        kind: `alone`: there is one rank, which communicates with nobody. `drawn`: the step may have
            drawn from iterators, which cannot be put back. `collectives`: ranks wait for each other
            also in a step that synchronises no gradients, so no causes are told.
        names: Of variables.
        count: Of collectives.
    """

    kind: NoteKind
    names: tuple[str, ...] = ()
    count: int = 0


@dataclass(frozen=True)
class Explanation:
    """What was found.

    Attributes:
        device: Name of rank 0's device.
        seconds: That it took.
        order_seed: Of the order of the turns, drawn anew in each run; and `again`, after how many
            turns the step was put back as it was.
        samples_per_s: Of all ranks in the whole step, where the samples are known.
        rank_variant_s: Seconds of a step in each turn, shape (num_ranks, num_turns), by variant.
    """

    bound: Bound
    notes: tuple[Note, ...]
    hosts: tuple[str, ...]
    device: str
    num_steps: int
    seconds: float
    order_seed: int
    again: int | None
    samples_per_s: float | None
    rank_variant_s: dict[str, list[list[float]]]

    def summary(self) -> dict[str, Any]:
        """Return the record without the seconds of single turns."""
        found = {"schema": SCHEMA, "lockstep": lockstep_version(), "torch": torch.__version__}
        return found | {name: value for name, value in asdict(self).items() if name != TURNS}

    def to_dict(self) -> dict[str, Any]:
        """Return the whole record."""
        return self.summary() | {TURNS: self.rank_variant_s}


TURNS = "rank_variant_s"


def made(met: Met, parts: Sequence[Part], seconds: float) -> Explanation:
    """Return what all ranks' parts come to."""
    names = [name for name in parts[0].turns if all(name in part.turns for part in parts)]
    turns = {name: [part.turns[name] for part in parts] for name in names}
    arrays = {name: np.array(each) for name, each in turns.items()}
    bound = judge([arrays], buckets=_buckets(parts), again=parts[0].again)
    notes = _notes(parts)
    if any(note.kind == "collectives" for note in notes):
        bound = replace(
            bound, kind="open", compute_s=bound.step_s, shares=(), gains=(), slow=None, late=None,
            exposed_bucket_s=(), rare=None, drift=None,
        )  # fmt: skip
    samples = [part.samples for part in parts if part.samples is not None]
    is_known = len(samples) == len(parts)
    return Explanation(
        bound=bound,
        notes=tuple(notes),
        hosts=met.hosts,
        device=_device_name(met.world.device),
        num_steps=parts[0].num_steps,
        seconds=seconds,
        order_seed=parts[0].order_seed,
        again=parts[0].again,
        samples_per_s=sum(samples) / bound.step_s if is_known else None,
        rank_variant_s=turns,
    )


def _buckets(parts: Sequence[Part]) -> Buckets | None:
    """Return the buckets, each as late as on the rank where it is latest: the others wait."""
    if not parts[0].bucket_lead_s or len(parts) == 1:
        return None
    lead_s = [min(leads) for leads in zip(*(part.bucket_lead_s for part in parts), strict=True)]
    return Buckets(parts[0].bucket_bytes, lead_s)


def _notes(parts: Sequence[Part]) -> list[Note]:
    drawn = sorted({name for part in parts for name in part.drawn})
    most = max(part.collectives for part in parts)
    notes = {
        Note("alone"): len(parts) == 1,
        Note("drawn", tuple(drawn)): drawn,
        Note("collectives", count=most): most and len(parts) > 1,
    }
    return [note for note, holds in notes.items() if holds]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def lines(explanation: Explanation, kept: str) -> list[str]:
    """Return the card; `kept` says where the record is, or why nowhere, if one was asked for."""
    found = [_measured(explanation), *_causes(explanation)]
    found += [f"note      {_note_text(note)}" for note in explanation.notes]
    return found + ([f"record    {kept}"] if kept else [])


def _causes(explanation: Explanation) -> list[str]:
    if any(note.kind == "collectives" for note in explanation.notes):
        step = f"{number(explanation.bound.step_s * MILLI)} ms"
        return [
            "No cause is told: ranks wait for each other even where no gradients are synchronised. "
            f"A step takes {step}."
        ]
    return card(explanation.bound, explanation.hosts, NEXT)


def _measured(explanation: Explanation) -> str:
    hosts = counted(len(set(explanation.hosts)), "host")
    ranks = counted(len(explanation.hosts), "rank")
    steps = counted(explanation.num_steps, "step")
    rate = explanation.samples_per_s
    speed = "" if rate is None else f", {number(rate)} samples/s"
    return (
        f"lockstep: {ranks} on {hosts} ({explanation.device}){speed}; {steps} in "
        f"{number(explanation.seconds)} s, put back{_but(explanation.notes)}"
    )


def _but(notes: Sequence[Note]) -> str:
    return " but for what the notes say" if {note.kind for note in notes} & LOST else ""


def _note_text(note: Note) -> str:
    """Return a note as a sentence."""
    names = listed(note.names)
    return {
        "alone": "one rank communicates with nobody; ask again under torchrun or srun with more",
        "drawn": f"the step may have drawn from {names}, which cannot be put back; give a step "
        "that holds one batch, or batches=loader",
        "collectives": f"a step has {counted(note.count, 'collective')} beside its gradients', as "
        "SyncBatchNorm or an all_reduce of the loss: take them out to ask; and use no_sync() "
        "where the step sets require_backward_grad_sync",
    }[note.kind]
