"""The cost of training a workload in FLOP and memory, computed without data."""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from lockstep.workloads import Workload, trees

_META = torch.device("meta")
# In training, batch norm refuses one value per channel, as of a single small image.
_COUNTED_ITEMS = 2


def flop_per_item(workload: Workload) -> float | None:
    """Return the FLOP of forward and backward per item of a batch; one multiply-add is two.

    `torch.utils.flop_counter` counts matrix products, convolutions and attention (its masked half
    included) on the meta device. Divide by `samples_per_item` for a sample. None if the model or
    its batch cannot be made on the meta device.
    """
    try:
        model = meta_model(workload)
        batch = trees.map_tensors(lambda leaf: leaf.to(_META), _batch(workload, _COUNTED_ITEMS))
        assert workload.loss is not None
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(workload.loss(trees.call_model(model, batch[0]), batch[1]))
    except Exception:  # noqa: BLE001, of the user's code; the cost stays unknown
        return None
    return float(counter.get_total_flops()) / _COUNTED_ITEMS


def model_bytes(workload: Workload, num_moments: int) -> int:
    """Return the least memory of a model in DDP, without activations; 0 if unknown.

    Beside its values each parameter has a gradient, a place in DDP's buckets, and the values that
    the optimizer keeps for it, such as a momentum.
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
    """Return the memory of a batch; 0 if unknown."""
    try:
        item = _batch(workload, 1)
    except Exception:  # noqa: BLE001, as above
        return 0
    return sum(tensor.nbytes for tensor in trees.leaves(item)) * num_items


def meta_model(workload: Workload) -> torch.nn.Module:
    """Return the model without memory for its values."""
    with _META:
        return workload.build().train()


def _batch(workload: Workload, num_items: int) -> tuple[Any, Any]:
    # Outside of `with _META`: else tensors that the user's code keeps would have no memory.
    return workload.make_batch(num_items, _META, None)
