"""Why a training run failed, reported once, by the rank that had the fault."""

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep.core.errors import RankError
from lockstep.core.processes import hostname
from lockstep.launch import verdict

# A rank that only lost the others gives the one that had the fault this time to speak first.
YIELD_S = 2.0


class DivergedError(RankError):
    """The loss of a step is not finite on some rank."""


@dataclass(frozen=True)
class Failure:
    """What the first rank to speak says.

    Attributes:
        kind: What was wrong: the configuration, the machine or code, or the training itself.
        message: A sentence, with the rank and its host where not all ranks say the same.
        is_agreed: Whether it is all there is to say; else the rank's traceback is needed, too.
        is_consequence: Whether the rank only lost the others.
    """

    kind: Literal["input", "machine", "diverged"]
    message: str
    is_agreed: bool
    is_consequence: bool

    @classmethod
    def of(cls, rank: int, error: Exception) -> "Failure":
        """Return what a rank has run into."""
        if isinstance(error, ValueError):
            return cls("input", str(error), True, False)
        named = f"{type(error).__name__}: {error}"
        is_consequence = verdict.is_consequence(error)
        is_system = isinstance(error.__cause__, OSError)
        if isinstance(error, RankError) and not is_system:
            return cls(_kind(error), str(error), True, is_consequence)
        text = str(error) if isinstance(error, RuntimeError) else named
        return cls(_kind(error), f"rank {rank} on {hostname()}: {text}", is_system, is_consequence)


def _kind(error: Exception) -> Literal["machine", "diverged"]:
    return "diverged" if isinstance(error, DivergedError) else "machine"


def report(path: Path, failure: Failure) -> None:
    """Write a failure down unless another rank has."""
    if failure.is_consequence:
        time.sleep(YIELD_S)
    with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
        json.dump(asdict(failure), file)


def read(path: Path) -> Failure | None:
    """Return what a rank has written down; None where no rank had the time."""
    return Failure(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def first_step(losses: Sequence[float], finite: Sequence[bool]) -> dict[str, Any]:
    """Return this rank's first step without a finite loss, for the others to compare."""
    step = finite.index(False) if False in finite else None
    loss = "" if step is None else f"{losses[step]:g}"
    return {"step": step, "loss": loss, "host": hostname()}


def diverged(epoch: int, ranks: Sequence[dict[str, Any]]) -> DivergedError:
    """Return the error that names the ranks whose loss was the first that is not finite.

    Epochs count from 1; at least one of the ranks has a `first_step`.
    """
    step = min(end["step"] for end in ranks if end["step"] is not None)
    there = [rank for rank, end in enumerate(ranks) if end["step"] == step]
    first = ranks[there[0]]
    who = f"rank {there[0]} on {first['host']}"
    if len(there) == len(ranks) > 1:
        hosts = ", ".join(dict.fromkeys(rank["host"] for rank in ranks))
        who = f"all {len(ranks)} ranks on {hosts}"
    return DivergedError(
        f"{who}: the loss is {first['loss']} in step {step + 1} of epoch {epoch}; lower --lr, or "
        "look at the data of that step",
        *there,
    )
