"""A batch that every rank has memory for: halving it where one has not, and what helps else."""

import contextlib
import gc
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lockstep.core.flags import Flag, flag
from lockstep.core.sizes import LEAST_BATCH
from lockstep.machine import memory
from lockstep.ranks.process_group import num_collectives

if TYPE_CHECKING:
    from lockstep.measure.harness import Harness
    from lockstep.measure.step.train_step import StepConfig

MAX_CHARACTERS = 300


@dataclass(frozen=True)
class Refused:
    """A batch that was tried in vain.

    Attributes:
        rank: The first rank that had no memory for it.
        error: What it said.
    """

    local_batch: int
    rank: int
    host: str
    error: str


@dataclass(frozen=True)
class Fitted:
    """The batch that is measured.

    Attributes:
        refused: What was tried before, the batch asked for first.
    """

    local_batch: int
    refused: tuple[Refused, ...] = ()

    @property
    def flags(self) -> list[Flag]:
        """What is known against a result at another batch than the one asked for."""
        if not self.refused:
            return []
        first, last = self.refused[0], self.refused[-1]
        asked, measured = first.local_batch, self.local_batch
        return [
            flag("smaller-batch", asked=asked, measured=measured, rank=last.rank, host=last.host)
        ]

    @property
    def details(self) -> dict[str, Any]:
        """What a record keeps of the attempts."""
        return {"out_of_memory": list(map(asdict, self.refused))} if self.refused else {}


def halved(local_batch: int, pieces: int) -> int | None:
    """Return half a batch, None where it does not split into so many pieces to train on."""
    half = local_batch // 2
    fits = local_batch % 2 == 0 and half % pieces == 0 and half // pieces >= LEAST_BATCH
    return half if fits else None


def fit(
    harness: "Harness", local_batch: int, pieces: int, attempt: Callable[[int], object]
) -> Fitted:
    """Return the batch, or the largest of its halves, that all ranks take an untimed step with.

    An attempt builds all that a step needs for a batch, and takes one.

    Raises:
        ExhaustedError: No half of the batch fits, or only some ranks came as far as a collective.
    """
    refused: list[Refused] = []
    while (found := _refused(harness, local_batch, attempt)) is not None:
        refused.append(found)
        half = halved(local_batch, pieces)
        if half is None:
            raise memory.ExhaustedError(
                f"rank {found.rank} on {found.host} has no memory for {local_batch} samples, which "
                f"cannot be halved: {found.error}"
            )
        local_batch = half
    return Fitted(local_batch, tuple(refused))


def _refused(
    harness: "Harness", local_batch: int, attempt: Callable[[int], object]
) -> Refused | None:
    """Return the first rank that has no memory for a batch; None where all have. A collective."""
    said = ""
    try:
        attempt(local_batch)
    except Exception as error:
        if not memory.is_exhausted(error):
            raise
        said = _first_line(error)
        traceback.clear_frames(error.__traceback__)  # which hold what was made
    ranks = harness.world.control.exchange_all(
        f"{harness.number}/memory", [said, num_collectives()]
    )
    out = [rank for rank, (text, _) in enumerate(ranks) if text]
    found = None
    if out:
        found = Refused(local_batch, out[0], harness.rank_hosts[out[0]], ranks[out[0]][0])
    if found and len({count for _, count in ranks}) > 1:
        raise memory.ExhaustedError(
            f"rank {found.rank} on {found.host} ran out of memory between collectives of the "
            f"others, so the case cannot go on at half the batch: {found.error}"
        )
    # It waits for the device, where a collective that not all ranks have called never ends.
    _free(harness)
    return found


def _free(harness: "Harness") -> None:
    gc.collect()
    if harness.device.type == "cuda":
        import torch

        torch.cuda.empty_cache()


@contextlib.contextmanager
def advising(local_batch: int, config: "StepConfig", *, is_strong: bool) -> Iterator[None]:
    """Say what helps where a rank has no memory for a step.

    With `is_strong` the batch of all ranks is what the user chose.

    Raises:
        RuntimeError: There was no memory left.
        ValueError: There would be none, known before any of it was made.
    """
    try:
        yield
    except Exception as error:
        if not memory.is_exhausted(error):
            raise
        kind = ValueError if isinstance(error, ValueError) else RuntimeError
        batch = "global" if is_strong else "local"
        halving = "" if isinstance(error, memory.ExhaustedError) else "--on-oom halve, flagged, or "
        recipes = [
            f"a smaller batch, by {halving}--{batch}-batch",
            f"the batch in parts, by --set accumulation={2 * config.accumulation}",
        ]
        if not config.activation_checkpointing:
            recipes.append("fewer activations, by --set activation_checkpointing=true")
        raise kind(
            f"{_first_line(error)}; {local_batch // config.accumulation} samples at once need more "
            f"memory than there is: try {'; '.join(recipes)}"
        ) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0][:MAX_CHARACTERS]
    return text or type(error).__name__
