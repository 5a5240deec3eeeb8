"""Train a classifier with DDP, a schedule and mixed precision; `--explain` says what holds it up.

torchrun --nproc-per-node 2 examples/plain_ddp.py --explain
"""

import argparse

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lockstep


def main() -> None:
    """Train a few epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--explain", type=float, nargs="?", const=60.0, metavar="SECONDS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save")
    options = parser.parse_args()

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    images = TensorDataset(torch.randn(256, 64), torch.randint(10, (256,)))
    sampler = DistributedSampler(images)
    loader = DataLoader(images, batch_size=16, sampler=sampler)

    layers = nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 10)
    ddp = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    num_steps = options.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=num_steps)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=4)
    losses = []

    def train_step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        inputs, targets = batch
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(ddp(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        losses.append(loss.item())

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            train_step(batch)
            if options.explain and epoch == 0 and number == 2:
                lockstep.explain(train_step, model=ddp, batches=loader, seconds=options.explain)

    print(f"rank {rank}: loss {losses[0]:.4f} to {losses[-1]:.4f}")
    if options.save:
        state = ddp.state_dict(), optimizer.state_dict(), scaler.state_dict(), losses
        torch.save(state, f"{options.save}-{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
