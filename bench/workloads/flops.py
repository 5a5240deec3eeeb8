"""How many floating-point operations a workload's item costs, counted by torch on no data."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.workloads import Workload

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
    meta = torch.device("meta")
    try:
        with meta:
            model = workload.build().train()
            inputs, targets = workload.make_batch(_COUNTED_ITEMS, meta, None)
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(workload.loss(model(inputs), targets))
    except (RuntimeError, TypeError):
        return None
    return float(counter.get_total_flops()) / _COUNTED_ITEMS
