"""Benchmarks in one's own repository: pip install "/path/to/checkout[bench]" is all it takes."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def test_step(lockstep):
    """How much does a step lose on more ranks?"""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(lockstep.device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    rows = torch.randn(32, 64, device=lockstep.device)

    def step():
        optimizer.zero_grad()
        loss = ddp(rows).square().mean()
        loss.backward()
        optimizer.step()

    lockstep.measure(step, samples=len(rows), ddp=ddp, unit="rows")
