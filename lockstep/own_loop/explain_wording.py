"""The words of `lockstep.explain`: the card that rank 0 prints."""

from lockstep.causes.card import card
from lockstep.own_loop.explain_record import Explanation, Note
from lockstep.vocabulary.text.formats import counted, listed, number


def lines(explanation: Explanation, kept: str) -> list[str]:
    """Return the card.

    Args:
        explanation: What was found.
        kept: Where the record is, or why it is nowhere; empty where none was asked for.
    """
    found = [_measured(explanation), *card(explanation.bound, explanation.hosts)]
    found += [f"note      {note_text(note)}" for note in explanation.notes]
    return found + ([f"record    {kept}"] if kept else [])


def _measured(explanation: Explanation) -> str:
    hosts = counted(len(set(explanation.hosts)), "host")
    ranks = counted(len(explanation.hosts), "rank")
    rate = explanation.samples_per_s
    speed = "" if rate is None else f", {number(rate)} samples/s"
    return (
        f"lockstep: {ranks} on {hosts} ({explanation.device}){speed}; {explanation.num_steps} "
        f"steps in {number(explanation.seconds)} s, all put back"
    )


def note_text(note: Note) -> str:
    """Return a note as a sentence."""
    names = listed(note.names)
    return {
        "alone": "one rank communicates with nobody; ask again under torchrun or srun with more",
        "drawn": f"the step may have drawn from {names}, which cannot be put back; give a step "
        "that holds one batch, or batches=loader",
        "changed": f"the step changed {names}, too large to keep a copy of",
        "collectives": f"a step has {counted(note.count, 'collective')} of its own; what it waits "
        "in them counts as compute",
    }[note.kind]
