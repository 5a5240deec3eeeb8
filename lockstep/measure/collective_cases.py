"""The collective cases: a table of collectives, and one function that measures each of them.

A message's size is S of nccl-tests (doc/PERFORMANCE.md): the buffer of all-reduce, broadcast and
reduce; the gathered buffer of all-gather; the input of reduce-scatter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import distributed as dist

from lockstep.core import metrics
from lockstep.measure.harness import Harness, Part, step_s

ITEM_BYTES = 4  # float32


@dataclass(frozen=True)
class Collective:
    """One collective: its call, and the value it must return."""

    # Function of the whole buffer (S bytes) and this rank's part of it.
    call: Callable[[torch.Tensor, torch.Tensor], object]
    result: str  # the buffer with the result: "whole" or "part"
    # The result if rank r contributes r + 1: "sum" of all values, "root" for the value of rank 0,
    # "ranks" for the values of all ranks in order.
    expected: str
    root_only: bool = False  # whether only rank 0 receives the result

    def expected_values(self, world_size: int) -> list[float]:
        """Return the values of the result's equal parts."""
        values = [float(rank + 1) for rank in range(world_size)]
        return {"sum": [sum(values)], "root": values[:1], "ranks": values}[self.expected]


TABLE = {
    "all_reduce": Collective(lambda whole, _: dist.all_reduce(whole), "whole", "sum"),
    "broadcast": Collective(lambda whole, _: dist.broadcast(whole, 0), "whole", "root"),
    "reduce": Collective(lambda whole, _: dist.reduce(whole, 0), "whole", "sum", True),
    "all_gather": Collective(
        lambda whole, part: dist.all_gather_into_tensor(whole, part), "whole", "ranks"
    ),
    "reduce_scatter": Collective(
        lambda whole, part: dist.reduce_scatter_tensor(part, whole), "part", "sum"
    ),
}


def measure_collective(harness: Harness, *, collective: str, message_bytes: int) -> None:
    """Time one collective at one message size; a call begins as soon as the last has ended."""
    chosen, n = TABLE[collective], harness.world.world_size
    if n == 1:
        pytest.skip(
            "a collective needs at least two ranks, because one rank sends nothing over a link"
        )
    size = harness.size
    harness = replace(harness, size=replace(size, steps_per_round=size.collective_steps_per_round))
    # A whole number of elements per rank, as nccl-tests does; the size used is recorded.
    part_elements = max(1, message_bytes // ITEM_BYTES // n)
    whole = torch.zeros(part_elements * n, device=harness.device)
    part = torch.zeros(part_elements, device=harness.device)
    is_right = [_is_right(harness, chosen, whole, part)]
    whole.zero_()  # sums of other values would overflow in many calls
    part.zero_()
    round_s = harness.time(lambda: chosen.call(whole, part))
    is_right.append(_is_right(harness, chosen, whole, part))
    used_bytes = whole.numel() * ITEM_BYTES

    harness.record(
        round_s,
        own=is_right,
        conclude=lambda parts: _conclude(harness, parts, collective, used_bytes),
        workload=collective,
        scaling=None,
        sample_unit="bytes",
        samples_per_step=used_bytes,
        checks={"result_is_right": True},
    )


def _conclude(
    harness: Harness, parts: Sequence[Part], collective: str, used_bytes: int
) -> dict[str, Any]:
    """Return bandwidths from the ranks' rounds, or raise if a rank has a wrong result."""
    wrong = [rank for rank, part in enumerate(parts) if not all(part.own)]
    if wrong:
        raise RuntimeError(
            f"rank {wrong[0]} on {harness.rank_hosts[wrong[0]]} got a wrong result from the "
            f"collective {collective}"
        )
    time_s = step_s(parts, harness.plan.steps_per_round)
    return {"details": _bandwidth(collective, used_bytes, len(parts), time_s)}


def _bandwidth(
    collective: str, message_bytes: int, world_size: int, time_s: float
) -> dict[str, float | None]:
    algbw = metrics.algbw_gb_per_s(message_bytes, time_s)
    factor = metrics.busbw_factor(collective, world_size)
    return {
        "message_bytes": message_bytes,
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": None if factor is None else algbw * factor,
    }


def _is_right(
    harness: Harness, chosen: Collective, whole: torch.Tensor, part: torch.Tensor
) -> bool:
    """Run the collective once on known values, and return whether this rank's result is right."""
    rank, n = harness.world.rank, harness.world.world_size
    whole.fill_(rank + 1)
    part.fill_(rank + 1)
    chosen.call(whole, part)
    tensor = (whole if chosen.result == "whole" else part).view(-1)
    expected = tensor.new_tensor(chosen.expected_values(n))
    is_right = bool((tensor.view(len(expected), -1) == expected[:, None]).all())
    return is_right or (chosen.root_only and rank > 0)
