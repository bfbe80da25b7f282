"""Batches for the training programs, and the CPU work that prepares them."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from benchmarks.gpu_programs.models import Shape
from benchmarks.gpu_programs.settings import Settings

__all__ = ["Samples", "loader", "prepare"]

IMAGES, PIXELS = 120, 256
WORDS = 80_000


class Samples(Dataset[tuple[Tensor, ...]]):
    """Random sequences or images, read at different places of one buffer."""

    def __init__(self, shape: Shape, settings: Settings) -> None:
        self.shape, self.settings = shape, settings
        made = torch.Generator().manual_seed(0)
        if shape.is_image:
            self.size = 3 * shape.length**2
            room = (2 * self.size,)
            self.buffer = torch.randint(256, room, generator=made, dtype=torch.uint8)
        else:
            self.size = shape.length + 1
            self.buffer = torch.randint(shape.classes, (100 * self.size,), generator=made)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        settings, shape = self.settings, self.shape
        if settings.load_ms:
            time.sleep(settings.load_ms / shape.batch / 1e3)
        if settings.preparing and settings.prepared_by == "workers" and index % shape.batch == 0:
            prepare(settings)
        start = index * 7919 % (len(self.buffer) - self.size)
        row = self.buffer[start : start + self.size]
        if shape.is_image:
            sides = (3, shape.length, shape.length)
            sample: tuple[Tensor, ...] = (row.view(sides), torch.tensor(index % shape.classes))
        else:
            sample = (row[:-1], row[1:])
        if settings.extra_mb:
            sample += (torch.zeros(settings.extra_mb * 250_000 // shape.batch),)
        return sample


def loader(
    shape: Shape, settings: Settings, *, cuda: bool, ranks: int = 1, rank: int = 0
) -> DataLoader[tuple[Tensor, ...]]:
    """The data loader that the settings describe, of one of several ranks."""
    samples = Samples(shape, settings)
    sampler: Sampler[int] | None = None
    if ranks > 1:
        sampler = DistributedSampler(samples, ranks, rank, shuffle=False)
    return DataLoader(
        samples,
        shape.batch,
        sampler=sampler,
        num_workers=settings.workers,
        pin_memory=settings.pinned and cuda,
        drop_last=True,
    )


def prepare(settings: Settings) -> None:
    """Work of the CPU on one batch: change images, or split text into tokens."""
    scale = 10 if settings.tiny else 1
    if settings.preparing == "images":
        image = torch.full((3, PIXELS, PIXELS), 0.5)
        for number in range(IMAGES // scale):
            image = image.flip(-1).roll(number, 1).mul(0.9).add(0.05).clamp(0, 1)
    else:
        words = [f"word{number % 977}" for number in range(WORDS // scale)]
        known = {word: place for place, word in enumerate(dict.fromkeys(words))}
        ids = [known.get(word.lower().strip(), 0) for word in " ".join(words).split()]
        assert len(ids) == len(words)
