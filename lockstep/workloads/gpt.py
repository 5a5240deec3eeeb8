"""A decoder-only transformer in plain torch, from a toy to GPT-2 small.

Architecture: Radford et al., Language Models are Unsupervised Multitask Learners, 2019: learned
positions, normalisation before each sub-layer, output weights tied to the token embedding.
Letters: B batch, T tokens in a sequence, D width, H heads, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from lockstep.workloads import Workload

INIT_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """The numbers that fix a model's size."""

    layers: int
    heads: int
    width: int
    vocabulary: int
    context: int


SHAPES = {
    "toy": Shape(layers=2, heads=2, width=64, vocabulary=256, context=64),
    "small": Shape(layers=6, heads=6, width=384, vocabulary=50257, context=256),
    "124m": Shape(layers=12, heads=12, width=768, vocabulary=50257, context=1024),
}


def gpt(size: str = "toy", seq: int = 0) -> Workload:
    """Return a language model fed with random tokens.

    Args:
        size: `toy` (0.12 million parameters), `small` (30 million) or `124m` (GPT-2 small:
            124,439,808).
        seq: Tokens per sequence, at most the context of the size; 0 takes all of it.

    Raises:
        ValueError: No such size, or a sequence longer than its context.
    """
    if size not in SHAPES:
        known = ", ".join(SHAPES)
        raise ValueError(f"gpt has no size {size!r}; choose from {known}")
    shape = SHAPES[size]
    tokens = seq or shape.context
    if tokens > shape.context:
        raise ValueError(
            f"workload gpt of size {size} takes a seq of at most {shape.context}, but got {seq}"
        )

    def make_batch(
        num_items: int, device: torch.device, generator: torch.Generator | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens (B, T) and the tokens that follow them (B, T)."""
        sequence = torch.randint(
            shape.vocabulary, (num_items, tokens + 1), device=device, generator=generator
        )
        return sequence[:, :-1].contiguous(), sequence[:, 1:].contiguous()

    return Workload(
        "gpt", lambda: Decoder(shape), make_batch, _next_token_loss, "tokens", tokens,
        data="synthetic",
    )  # fmt: skip


def _next_token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of logits (B, T, V) against targets (B, T)."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.dense_norm = nn.LayerNorm(shape.width)
        self.dense_in = nn.Linear(shape.width, 4 * shape.width)
        self.dense_out = nn.Linear(4 * shape.width, shape.width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (B, T, D) to (B, T, D)."""
        hidden = hidden + self._attend(self.attention_norm(hidden))
        dense = nn.functional.gelu(self.dense_in(self.dense_norm(hidden)), approximate="tanh")
        widened: torch.Tensor = self.dense_out(dense)
        return hidden + widened

    def _attend(self, hidden: torch.Tensor) -> torch.Tensor:
        per_head = self.query_key_value(hidden).unflatten(2, (3, self.heads, -1))
        query, key, value = per_head.permute(2, 0, 3, 1, 4)  # each (B, H, T, D/H)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        attended: torch.Tensor = self.attention_out(mixed.transpose(1, 2).flatten(2))
        return attended


class Decoder(nn.Module):
    """The language model: tokens (B, T) to logits (B, T, V)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.apply(_initialise)
        # Each block adds twice to the residual stream: keep its variance independent of depth.
        residual_std = INIT_STD / (2 * shape.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if name.endswith(("attention_out.weight", "dense_out.weight")):
                nn.init.normal_(parameter, std=residual_std)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens (B, T) to logits (B, T, V)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.blocks(self.tokens(tokens) + self.positions(places))
        return nn.functional.linear(self.norm(hidden), self.tokens.weight)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
