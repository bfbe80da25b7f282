"""The models: a stem, blocks and a head, as a transformer, a convolutional network and an MoE."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.gpu_programs.settings import Settings

__all__ = ["MODELS", "Shape", "Stack", "build", "shape_of"]

TERMS, TERM = 600, 4
"""Terms of the penalty, and the outputs in each."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model and of its batches.

    Args:
        batch: Sequences or images.
        length: Tokens of a sequence, or pixels along an image.
        classes: Size of the vocabulary, or number of classes.
        layers: Number of blocks; of a convolutional network, at each of its four resolutions.
        width: Channels.
        heads: Of attention.
        experts: Of each MoE block.
        is_image: Whether inputs are images.
    """

    batch: int
    length: int
    classes: int
    layers: tuple[int, ...]
    width: int
    heads: int = 1
    experts: int = 0
    is_image: bool = False


MODELS: dict[str, tuple[Shape, Shape, Shape]] = {
    "transformer": (
        Shape(batch=8, length=1024, classes=50304, layers=(12,), width=768, heads=12),
        Shape(batch=2, length=256, classes=32768, layers=(12,), width=512, heads=8),
        Shape(batch=2, length=16, classes=2560, layers=(2,), width=16, heads=2),
    ),
    "convolution": (
        Shape(batch=160, length=224, classes=1000, layers=(3, 4, 6, 3), width=64, is_image=True),
        Shape(batch=4, length=128, classes=1000, layers=(3, 4, 6, 3), width=64, is_image=True),
        Shape(batch=2, length=32, classes=2560, layers=(1, 1), width=4, is_image=True),
    ),
    "moe": (
        Shape(batch=8, length=1024, classes=32768, layers=(8,), width=768, heads=12, experts=8),
        Shape(batch=2, length=256, classes=32768, layers=(8,), width=512, heads=8, experts=4),
        Shape(batch=2, length=16, classes=2560, layers=(2,), width=16, heads=2, experts=2),
    ),
    "ranks": (
        Shape(batch=16, length=512, classes=4096, layers=(6,), width=256, heads=4),
        Shape(batch=2, length=128, classes=4096, layers=(6,), width=256, heads=4),
        Shape(batch=2, length=16, classes=2560, layers=(2,), width=16, heads=2),
    ),
}
"""Usual, small and tiny shapes; the gradients of ranks are few, since they go through sockets."""


def shape_of(model: str, settings: Settings) -> Shape:
    """The shape that the settings choose."""
    usual, small, tiny = MODELS[model]
    return tiny if settings.tiny else small if settings.small else usual


def build(model: str, settings: Settings) -> Stack:
    """A model with new weights."""
    shape = shape_of(model, settings)
    if shape.is_image:
        return Stack(ImageStem(shape), _resolutions(shape), ImageHead(shape), settings)
    blocks: list[nn.Module] = [Block(shape, naive=settings.naive) for _ in range(shape.layers[0])]
    return Stack(TokenStem(shape), blocks, TokenHead(shape), settings)


class Stack(nn.Module):
    """A stem, blocks and a head."""

    bad: Tensor

    def __init__(
        self, stem: nn.Module, blocks: list[nn.Module], head: nn.Module, settings: Settings
    ) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head
        self.settings = settings
        self.register_buffer("bad", torch.zeros((), dtype=torch.bool), persistent=False)
        self.loss: Callable[..., Tensor] = functional.cross_entropy
        if settings.guarded:
            # a compiled function is valid for one value of a string argument
            torch._dynamo.config.recompile_limit = 100_000
            torch._dynamo.config.accumulated_recompile_limit = 100_000
            self.loss = torch.compile(tagged_loss, backend="aot_eager")
        if settings.compiled:
            for block in self.blocks:
                block.compile()

    def forward(self, inputs: Tensor, targets: Tensor, tag: str = "") -> tuple[Tensor, Tensor]:
        """The loss and the logits; the tag is an argument of the loss."""
        hidden = self.stem(inputs)
        for block in self.blocks:
            if self.settings.recompute and self.training:
                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
            self._look_at(hidden)
        logits = self.head(hidden)
        return self._loss(logits, targets.flatten(), tag), logits.detach()

    def _look_at(self, hidden: Tensor) -> None:
        if self.settings.sync_layers:
            torch.cuda.synchronize()
        if self.settings.check == "device":
            self.bad |= hidden.isnan().any()
        if self.settings.check == "host" and hidden.isnan().any():
            raise FloatingPointError("NaN in the activations of a block")

    def _loss(self, logits: Tensor, targets: Tensor, tag: str) -> Tensor:
        settings = self.settings
        extra = (tag,) if settings.guarded else ()
        if settings.masked:
            losses = self.loss(logits.float(), targets, reduction="none")
            kept = targets % 8 != 0
            if settings.masked == "index":
                return losses[kept].mean()
            return (losses * kept).sum() / kept.sum()
        loss = self.loss(logits.float(), targets, *extra)
        return loss + penalty(logits, settings) if settings.penalty else loss


def tagged_loss(logits: Tensor, targets: Tensor, tag: str) -> Tensor:
    """Cross entropy, scaled if the tag says so."""
    loss = functional.cross_entropy(logits, targets)
    return loss * 0.5 if tag == "half" else loss


def penalty(logits: Tensor, settings: Settings) -> Tensor:
    """Weighted squares of some outputs, in many terms."""
    some = logits.flatten()[: TERMS * TERM].float()
    if settings.penalty == "vector":
        weights = torch.arange(TERMS, device=some.device) / TERMS
        return (some.view(TERMS, TERM).square().mean(1) * weights).sum()
    total = some.new_zeros(())
    for term in range(TERMS):
        total = total + some[term * TERM : (term + 1) * TERM].square().mean() * (term / TERMS)
    return total


# Sequences ----------------------------------------------------------------------------------------


class TokenStem(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.classes, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return embedded


class TokenHead(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.out = nn.Linear(shape.width, shape.classes, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.out(self.norm(hidden))
        return logits.flatten(0, 1)


class Block(nn.Module):
    """Attention, then a dense or an expert layer."""

    def __init__(self, shape: Shape, *, naive: bool) -> None:
        super().__init__()
        self.heads, self.naive = shape.heads, naive
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.wide = Experts(shape) if shape.experts else dense(shape)

    def forward(self, hidden: Tensor) -> Tensor:
        rows, length, width = hidden.shape
        split = (rows, length, self.heads, width // self.heads)
        parts = self.qkv(self.norm_1(hidden)).chunk(3, -1)
        query, key, value = (part.view(split).transpose(1, 2) for part in parts)
        mixed = self._attention(query, key, value).transpose(1, 2).reshape(rows, length, width)
        hidden = hidden + self.out(mixed)
        return hidden + self.wide(self.norm_2(hidden))  # type: ignore[no-any-return]

    def _attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.naive:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        length = query.shape[-2]
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        later = torch.ones(length, length, device=query.device, dtype=torch.bool).triu(1)
        return scores.masked_fill(later, float("-inf")).softmax(-1) @ value


def dense(shape: Shape) -> nn.Module:
    """The usual two layers."""
    return nn.Sequential(
        nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
    )


class Experts(nn.Module):
    """Each expert chooses its tokens, twice as many as there are on average (arXiv 2202.09368)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, experts = shape.width, shape.experts
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) / math.sqrt(4 * width))

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, 1)
        capacity = 2 * len(tokens) // len(self.up)
        gates, chosen = self.router(tokens).softmax(-1).t().topk(capacity, dim=-1)
        taken = tokens.index_select(0, chosen.flatten()).view(len(self.up), capacity, -1)
        wide = functional.gelu(torch.bmm(taken, self.up))
        back = torch.bmm(wide, self.down) * gates.unsqueeze(-1)
        summed = torch.zeros_like(tokens).index_add(
            0, chosen.flatten(), back.flatten(0, 1).to(tokens.dtype)
        )
        return summed.view_as(hidden)


# Images -------------------------------------------------------------------------------------------


class ImageStem(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, shape.width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(shape.width)

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.to(memory_format=torch.channels_last).float() / 255
        hidden = functional.relu(self.norm(self.convolution(pixels)))
        return functional.max_pool2d(hidden, 3, stride=2, padding=1)


class ImageHead(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels = 4 * shape.width * 2 ** (len(shape.layers) - 1)
        self.out = nn.Linear(channels, shape.classes)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.out(hidden.mean((2, 3)))
        return logits


def _resolutions(shape: Shape) -> list[nn.Module]:
    """The blocks of a ResNet with bottlenecks (arXiv 1512.03385)."""
    blocks: list[nn.Module] = []
    channels = shape.width
    for place, count in enumerate(shape.layers):
        inner = shape.width * 2**place
        for number in range(count):
            blocks.append(Bottleneck(channels, inner, stride=2 if place and not number else 1))
            channels = 4 * inner
    return blocks


class Bottleneck(nn.Module):
    def __init__(self, channels: int, inner: int, *, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, inner, 1, bias=False)
        self.second = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.third = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in (inner, inner, 4 * inner))
        self.shortcut = (
            nn.Identity()
            if channels == 4 * inner
            else nn.Sequential(
                nn.Conv2d(channels, 4 * inner, 1, stride=stride, bias=False),
                nn.BatchNorm2d(4 * inner),
            )
        )

    def forward(self, hidden: Tensor) -> Tensor:
        inner = functional.relu(self.norms[0](self.first(hidden)))
        inner = functional.relu(self.norms[1](self.second(inner)))
        return functional.relu(self.norms[2](self.third(inner)) + self.shortcut(hidden))
