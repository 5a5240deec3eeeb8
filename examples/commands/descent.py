"""A training script that prints its loss after each epoch: gradient descent, no torch."""

import argparse
import random

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=20)
given = parser.parse_args()

rng = random.Random(given.seed)  # noqa: S311, no secret
data = [(x, 3 * x + rng.gauss(0, 0.1)) for x in (rng.uniform(-1, 1) for _ in range(200))]
slope = 0.0
for epoch in range(given.epochs):
    slope -= given.lr * sum(2 * x * (slope * x - y) for x, y in data) / len(data)
    loss = sum((slope * x - y) ** 2 for x, y in data) / len(data)
    print(f"epoch {epoch} loss {loss:.6f}")
