"""What training a workload costs in floating-point operations and memory, computed without data."""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from lockstep.workloads import Workload, trees

_META = torch.device("meta")
# Batch norm in training refuses one value per channel, which a single small image gives it.
_COUNTED_ITEMS = 2


def flop_per_item(workload: Workload) -> float | None:
    """Return the FLOP of forward and backward per item of a batch; one multiply-add is two.

    Counted by `torch.utils.flop_counter` over matrix products, convolutions and attention on the
    meta device: no memory, no data. Attention counts in full, masked half included.

    Returns:
        FLOP per item (divide by `samples_per_item` for a sample), or None where the model or its
        batch cannot be made on the meta device.
    """
    try:
        model = meta_model(workload)
        batch = trees.mapped(lambda leaf: leaf.to(_META), _batch(workload, _COUNTED_ITEMS))
        assert workload.loss is not None
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(workload.loss(trees.called(model, batch[0]), batch[1]))
    except Exception:  # noqa: BLE001, of the user's code: an unknown cost is no failure
        return None
    return float(counter.get_total_flops()) / _COUNTED_ITEMS


def model_bytes(workload: Workload, num_moments: int) -> int:
    """Return the memory of a model in DDP at the least: without activations.

    Beside its values each parameter has a gradient, a place in DDP's buckets, and as many values
    as the optimizer keeps of it, such as a momentum.

    Returns:
        Bytes; 0 where the model cannot be made on the meta device.
    """
    try:
        model = meta_model(workload)
    except Exception:  # noqa: BLE001, as above
        return 0
    trained = sum(tensor.nbytes for tensor in model.parameters() if tensor.requires_grad)
    held = sum(tensor.nbytes for tensor in model.parameters() if not tensor.requires_grad)
    buffers = sum(tensor.nbytes for tensor in model.buffers())
    return trained * (3 + num_moments) + held + buffers


def batch_bytes(workload: Workload, num_items: int) -> int:
    """Return the memory of a batch, 0 where one cannot be made on the meta device."""
    try:
        one = _batch(workload, 1)
    except Exception:  # noqa: BLE001, as above
        return 0
    return sum(tensor.nbytes for tensor in trees.leaves(one)) * num_items


def meta_model(workload: Workload) -> torch.nn.Module:
    """Return the model without memory for its values."""
    with _META:
        return workload.build().train()


def _batch(workload: Workload, num_items: int) -> tuple[Any, Any]:
    # Not within _META: what the user's code keeps for later batches would have no memory.
    return workload.make_batch(num_items, _META, None)
