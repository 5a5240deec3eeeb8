"""A step of one's own: AdamW, a schedule, clipped gradients, and gradients that travel as bf16.

PYTHONPATH=examples/workloads pytest bench/ -m weak --workload own_step:workload
"""

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from lockstep.workloads import Workload

COLUMNS = 32


def make_batch(num_items, device, generator):
    """Return rows and what is to be found in them."""
    rows = torch.randn(num_items, COLUMNS, device=device, generator=generator)
    return rows, rows.sum(1, keepdim=True)


def step(state, batch):
    """Take one update, as a training loop would."""
    rows, sums = batch
    state.optimizer.zero_grad()
    with state.autocast():
        loss = nn.functional.mse_loss(state.ddp(rows), sums)
    loss.backward()
    nn.utils.clip_grad_norm_(state.ddp.parameters(), 1.0)
    state.optimizer.step()
    state.scheduler.step()
    return loss


def workload(width: int = 64) -> Workload:
    """Return what is measured."""
    return Workload(
        name="own step",
        build=lambda: nn.Sequential(nn.Linear(COLUMNS, width), nn.ReLU(), nn.Linear(width, 1)),
        make_batch=make_batch,
        step=step,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0),
        comm_hook=bf16_compress_hook,
        sample_unit="rows",
    )
