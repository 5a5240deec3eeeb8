"""The words of `lockstep.explain`: the card that rank 0 prints."""

from collections.abc import Sequence

from lockstep.causes.bound import Kind
from lockstep.causes.card import MILLI, NEXT_OWN, card
from lockstep.own_loop.explain_record import Explanation, Note
from lockstep.vocabulary.text.formats import counted, listed, number

LOST = {"drawn"}
# Then it is asked again.
NEXT: dict[Kind, str] = NEXT_OWN | {
    "own": "batches=loader, to see its fixed cost and its input as well; or profile one rank",
    "open": "explain(..., seconds=300), and batches=loader to see the input as well",
}


def lines(explanation: Explanation, kept: str) -> list[str]:
    """Return the card; `kept` says where the record is, or why nowhere, if one was asked for."""
    found = [_measured(explanation), *_causes(explanation)]
    found += [f"note      {note_text(note)}" for note in explanation.notes]
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


def note_text(note: Note) -> str:
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
