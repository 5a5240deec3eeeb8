"""Train a module that takes batches as dicts and returns its own loss, with a small trainer.

torchrun --nproc-per-node 2 examples/dict_batches.py --explain
"""

import argparse
from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import lockstep


@dataclass
class Output:
    """What a model returns."""

    loss: torch.Tensor
    logits: torch.Tensor


class LanguageModel(nn.Module):
    """A small language model with tied embeddings."""

    def __init__(self, vocabulary: int = 64, width: int = 32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids, attention_mask, labels):
        """Return the loss of the labels."""
        hidden = self.layer(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        logits = self.head(hidden)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Output(loss, logits)


class Trainer:
    """Trains a model on batches."""

    def __init__(self, model, batches):
        self.model, self.batches = model, batches
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 1 / (1 + n))
        self.history = {"loss": [], "global_step": 0}

    def training_step(self, batch):
        """Take one step."""
        outputs = self.model(**batch)
        outputs.loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.history["loss"].append(outputs.loss.item())
        self.history["global_step"] += 1


def made_batch(size=8, length=16):
    """Return a batch as a tokenizer would."""
    tokens = torch.randint(64, (size, length))
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": tokens.roll(-1, 1),
    }


def main():
    """Train a few steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--explain", type=float, nargs="?", const=60.0, metavar="SECONDS")
    parser.add_argument("--save")
    options = parser.parse_args()

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(LanguageModel())
    torch.manual_seed(rank)
    trainer = Trainer(model, [made_batch() for _ in range(10)])
    for number, batch in enumerate(trainer.batches):
        trainer.training_step(batch)
        if options.explain and number == 3:
            step = lambda: trainer.training_step(trainer.batches[0])  # noqa: E731
            lockstep.explain(step, model=model, seconds=options.explain, samples=8)

    losses = trainer.history["loss"]
    print(f"rank {rank}: loss {losses[0]:.4f} to {losses[-1]:.4f}")
    if options.save:
        state = model.state_dict(), trainer.optimizer.state_dict(), trainer.scheduler.state_dict()
        torch.save((*state, trainer.history), f"{options.save}-{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
