"""A module as HuggingFace's are: batches are dicts, and the output holds the loss.

PYTHONPATH=examples/workloads pytest bench/ -m weak --workload dict_module:workload
"""

from dataclasses import dataclass

import torch
from torch import nn

from lockstep.workloads import Workload

VOCABULARY = 64


@dataclass
class Output:
    """What a model returns."""

    loss: torch.Tensor
    logits: torch.Tensor


class LanguageModel(nn.Module):
    """A small language model; its second head is for another task and has no gradient here."""

    def __init__(self, width=32):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, batch_first=True, dropout=0.0)
        self.head = nn.Linear(width, VOCABULARY)
        self.other_head = nn.Linear(width, 2)

    def forward(self, input_ids, attention_mask, labels):
        """Return the loss of the labels."""
        hidden = self.layer(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        logits = self.head(hidden)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Output(loss, logits)


def workload(length: int = 16) -> Workload:
    """Return what is measured."""

    def make_batch(num_items, device, generator):
        shape = (num_items, length)
        tokens = torch.randint(VOCABULARY, shape, device=device, generator=generator)
        mask = torch.ones_like(tokens)
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens}, None

    return Workload(
        name="dict module",
        build=LanguageModel,
        make_batch=make_batch,
        loss=lambda output, _: output.loss,
        sample_unit="tokens",
        samples_per_item=length,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        ddp={"find_unused_parameters": True},
    )
