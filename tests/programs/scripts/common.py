"""What the programs share: their data, their log, and faults that the environment asks for.

A program knows nothing of distprof. ``PROGRAM_FAULT`` is ``KIND:RANK:AMOUNT``; the amount is of
seconds, of matrix products, of processes on the same core, or of objects to collect.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from typing import Any

import torch

VOCABULARY = 256
LENGTH = 64
STEPS = int(os.environ.get("PROGRAM_STEPS", "36"))
RANK = int(os.environ.get("RANK", "0"))


def _fault() -> tuple[str, float]:
    """What befalls this rank: the kind and its amount."""
    kind, rank, amount = os.environ.get("PROGRAM_FAULT", ":-1:0").split(":")
    return (kind, float(amount)) if int(rank) == RANK else ("", 0.0)


KIND, AMOUNT = _fault()
_held: list[Any] = []


def start() -> None:
    """Call it first: one thread per rank, the same numbers in each run."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if KIND == "throttled-core":
        _share_a_core()
    if KIND == "collecting":
        _held.extend([number, []] for number in range(int(AMOUNT)))


def _share_a_core() -> None:
    """Pin this rank to one core, and let other processes compute on it, too."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    burn = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(9999))"
    for _ in range(int(AMOUNT)):
        subprocess.Popen([sys.executable, "-S", "-c", burn])


def in_loader() -> None:
    """Call it where a sample is loaded."""
    if KIND == "late-loader":
        time.sleep(AMOUNT)


def in_step() -> None:
    """Call it once per forward pass."""
    if KIND == "failing":
        raise RuntimeError("as asked")
    if KIND == "sleeping-host":
        time.sleep(AMOUNT)
    if KIND == "collecting":
        gc.collect()
    if KIND == "extra-matmul":
        square = torch.ones(192, 192)
        for _ in range(int(AMOUNT)):
            square = square @ square / 192


def watched(model: torch.nn.Module) -> torch.nn.Module:
    """The model, with the faults of a step in its forward pass."""
    model.register_forward_pre_hook(lambda *_: in_step())
    return model


class Texts(torch.utils.data.Dataset[Any]):
    """Random token sequences, the same in each run."""

    def __init__(self, length: int = 4096, columns: bool = True) -> None:
        self.length, self.columns = length, columns

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        in_loader()
        made = torch.Generator().manual_seed(index)
        ids = torch.randint(VOCABULARY, (LENGTH,), generator=made)
        return {"input_ids": ids, "labels": ids} if self.columns else ids


def gpt2(layers: int = 3, width: int = 96) -> torch.nn.Module:
    """A small GPT-2 without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": layers, "n_head": 4, "n_embd": width, "n_positions": LENGTH}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return watched(GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes, **no_dropout)))


def log(step: int, loss: float) -> None:
    """One line per step and rank, whole even where ranks write at once."""
    os.write(1, f"program rank={RANK} step={step} loss={float(loss).hex()}\n".encode())
