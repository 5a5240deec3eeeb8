"""A transformer encoder on texts of unequal length, padded to the longest of a batch.

Each step takes other texts. If each rank draws from all lengths, their longest texts differ, and
the rank with the longest one is slow in that step: padding is an imbalance. With `bucketed=1` all
ranks draw a step's texts from one range of lengths, as a sampler that buckets by length does.
Letters: B batch, S steps before texts repeat, T tokens of the longest text, D width.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lockstep.workloads import Workload

VOCABULARY, NUM_CLASSES = 1000, 10
# Lengths are log-normal: median tokens, and spread of their logarithm.
MEDIAN_TOKENS, SPREAD, FEWEST_TOKENS = 48, 0.6, 4
NUM_STEPS = 16


def sequences(bucketed: int = 0, layers: int = 2, width: int = 64, longest: int = 256) -> Workload:
    """Return a classifier of random texts.

    Args:
        bucketed: 1 takes texts of similar length in each step.
        layers: Layers of the encoder.
        width: Width of a token, divided over four heads.
        longest: Most tokens of a text.

    Raises:
        ValueError: The width is not a multiple of 4.
    """
    if width % 4:
        raise ValueError(f"workload sequences: width {width} is not a multiple of 4")

    def make_batch(
        num_items: int, device: torch.device, generator: torch.Generator | None
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return tokens (B, S, T), their lengths (B, S) in tokens, and classes (B,)."""
        share = torch.rand((num_items, NUM_STEPS), device=device, generator=generator)
        if bucketed:  # a step has one of S equal ranges of lengths
            share = (torch.arange(NUM_STEPS, device=device) + share) / NUM_STEPS
        normal = torch.special.ndtri(share.clamp(1e-6, 1 - 1e-6))
        drawn = MEDIAN_TOKENS * torch.exp(SPREAD * normal)
        lengths = drawn.round().clamp(FEWEST_TOKENS, longest).long()
        shape = (num_items, NUM_STEPS, longest)
        tokens = torch.randint(VOCABULARY, shape, device=device, generator=generator)
        classes = torch.randint(NUM_CLASSES, (num_items,), device=device, generator=generator)
        return {"tokens": tokens, "lengths": lengths}, classes

    return Workload(
        "sequences", lambda: Encoder(layers, width, longest), make_batch, cross_entropy,
        "texts", data="synthetic",
    )  # fmt: skip


class Encoder(nn.Module):
    """Tokens (B, S, T) with lengths (B, S) to classes (B, NUM_CLASSES): one of S texts per call."""

    def __init__(self, layers: int, width: int, longest: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classes = nn.Linear(width, NUM_CLASSES)
        self.num_calls = 0  # equal on all ranks, which take the same steps

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Classify the next text of each item."""
        step = self.num_calls % lengths.shape[1]
        self.num_calls += 1
        length = lengths[:, step]
        padded = int(length.max())  # on a GPU the host waits here, as a loader's padding does not
        places = torch.arange(padded, device=tokens.device)
        hidden = self.tokens(tokens[:, step, :padded]) + self.positions(places)
        is_padding = places[None] >= length[:, None]
        encoded = self.encoder(hidden, src_key_padding_mask=is_padding)
        kept = encoded.masked_fill(is_padding[..., None], 0.0).sum(1) / length[:, None]
        classes: torch.Tensor = self.classes(kept)
        return classes
