"""Train a small classifier: the first of four rungs, one process on a CPU.

python examples/rungs/train.py; docs/how-to/four-rungs.md leads from here to several nodes.
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, GLOBAL_BATCH = 3, 64


def main() -> None:
    """Train, and print the loss and the rate of each epoch."""
    torch.manual_seed(0)
    data = torch.randn(4096, 64)
    samples = TensorDataset(data, data[:, :10].argmax(1))
    loader = DataLoader(samples, batch_size=GLOBAL_BATCH, shuffle=True)

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for epoch in range(EPOCHS):
        started, total = time.perf_counter(), torch.zeros(())
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        mean = total.item() / len(loader)
        rate = len(samples) / (time.perf_counter() - started)
        print(f"epoch {epoch}: loss {mean:.3f}, {rate:,.0f} samples/s")


if __name__ == "__main__":
    main()
