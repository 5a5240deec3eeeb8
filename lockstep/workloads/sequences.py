"""A transformer encoder on texts of unequal length, padded to the longest of a batch.

Each step takes other texts. Where each rank draws from all lengths, one rank's longest text is
longer than another's, and that rank is slow in that step: padding is an imbalance. With
`bucketed=1` all ranks draw a step's texts from one range of lengths, as a sampler that buckets by
length does. Letters: B batch, S steps before texts come again, T tokens of the longest text,
D width.
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
        bucketed: 1 takes texts of like length in each step.
        layers: Of the encoder.
        width: Of a token; four heads share it.
        longest: Tokens of a text at most.

    Raises:
        ValueError: A width that four heads cannot share.
    """
    if width % 4:
        raise ValueError(f"sequences takes a width that is a multiple of 4, got {width}")

    def make_batch(
        num_items: int, device: torch.device, generator: torch.Generator | None
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return tokens (B, S, T), their lengths (B, S), and classes (B,)."""
        lengths = draw_lengths(num_items, bool(bucketed), longest, device, generator)
        shape = (num_items, NUM_STEPS, longest)
        tokens = torch.randint(VOCABULARY, shape, device=device, generator=generator)
        classes = torch.randint(NUM_CLASSES, (num_items,), device=device, generator=generator)
        return {"tokens": tokens, "lengths": lengths}, classes

    return Workload(
        "sequences", lambda: Encoder(layers, width, longest), make_batch, cross_entropy,
        "texts", data="synthetic",
    )  # fmt: skip


def draw_lengths(
    num_items: int,
    is_bucketed: bool,
    longest: int,
    device: torch.device,
    generator: torch.Generator | None,
) -> torch.Tensor:
    """Return lengths in tokens, shape (B, S); bucketed, each step has one of S equal ranges."""
    share = torch.rand((num_items, NUM_STEPS), device=device, generator=generator)
    if is_bucketed:
        share = (torch.arange(NUM_STEPS, device=device) + share) / NUM_STEPS
    normal = torch.special.ndtri(share.clamp(1e-6, 1 - 1e-6))
    tokens = MEDIAN_TOKENS * torch.exp(SPREAD * normal)
    return tokens.round().clamp(FEWEST_TOKENS, longest).long()


class Encoder(nn.Module):
    """Tokens (B, S, T) with lengths (B, S) to classes (B, NUM_CLASSES): one of S texts a call."""

    def __init__(self, layers: int, width: int, longest: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classes = nn.Linear(width, NUM_CLASSES)
        self.num_calls = 0  # equal on all ranks: they take the same steps

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
