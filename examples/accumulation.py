"""Accumulate gradients over micro-batches; `--explain` asks in the middle of the training.

torchrun --nproc-per-node 2 examples/accumulation.py --explain
"""

import argparse
import contextlib
import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import lockstep

ACCUMULATE = 4

parser = argparse.ArgumentParser()
parser.add_argument("--explain", type=float, nargs="?", const=60.0, metavar="SECONDS")
parser.add_argument("--save")
options = parser.parse_args()

distributed.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 32))
model = DistributedDataParallel(encoder, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(rank)
micro_batches = torch.randn(ACCUMULATE, 8, 32)
losses, num_updates = [], 0


def update():
    """Take one step of the optimizer."""
    global num_updates
    total = 0.0
    for number, inputs in enumerate(micro_batches):
        is_last = number == ACCUMULATE - 1
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = (model(inputs) - inputs).square().mean() / ACCUMULATE
            loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    losses.append(total)
    num_updates += 1


for _ in range(4):
    update()
if options.explain:
    lockstep.explain(update, seconds=options.explain)
for _ in range(8):
    update()

print(f"rank {rank}: {num_updates} updates, loss {losses[0]:.4f} to {losses[-1]:.4f}")
if options.save:
    torch.save(
        (model.state_dict(), optimizer.state_dict(), num_updates, losses),
        f"{options.save}-{rank}.pt",
    )
distributed.destroy_process_group()
