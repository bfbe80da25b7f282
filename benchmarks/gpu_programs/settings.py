"""Everything that can be switched in the training programs; the defaults are a healthy training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train.

    Args:
        tiny: A model of a few thousand parameters, for CPUs.
        small: Few rows in a batch, so that kernels are shorter than their launches.
        ragged: Batches of different lengths or image sizes, in turns.
        precision: Of matrix products and convolutions.
        graphed: Replay forward and backward as CUDA graphs.
        compiled: Compile the blocks of the model.
        guarded: Compile the loss; "changing": with a string argument that changes each step.
        recompute: Recompute activations of the blocks in backward.
        naive: Attention that stores all scores.
        fused: Fused optimizer; otherwise one kernel per operation and parameter.
        workers: Processes of the data loader.
        load_ms: Milliseconds to load a batch, asleep.
        extra_mb: Megabytes that each batch carries in addition.
        pinned: Whether the loader copies batches to pinned memory.
        non_blocking: Whether copies to the GPU are asynchronous.
        preparing: CPU work on each batch.
        prepared_by: Whether workers or the training thread do it.
        annotated: Whether work on the CPU, evaluations and checkpoints run in a record_function.
        sync_layers: Call torch.cuda.synchronize() after each block.
        check: Look for NaN after each block; "host": with an if statement on the result.
        masked: Leave out part of the samples from the loss; "index": with a boolean index.
        penalty: Penalty of 600 terms; "loop": one term after another.
        norm: Gradient norm from those of each parameter; "item": each read on the CPU.
        accuracy: Count right answers; "list": as a Python list, each step.
        log: Log the loss: never, each step as a number, printed, or 60 scalars every 5th step.
        empty_cache: Call torch.cuda.empty_cache() in each step.
        objects: Python objects that the program keeps alive.
        collect: Call gc.collect() in each step.
        save_every: Save part of the model every this many steps; 0: never.
        evaluate_every: Evaluate every this many steps; 0: never.
        offload: Keep and update the parameters of the last blocks on the CPU.
        spin_ms: Milliseconds of Python in each step.
        sleep_ms: Milliseconds asleep in each step.
        limited: Limit the GPU's memory to hardly more than a step needs.
        neighbour: Another process computes on the GPU.
        cpus: CPUs that the program may use; 0: all.
        competitors: Other processes that compute on the same CPUs.
        late_rank: What delays the last rank: nothing, Python, or its data loader.
    """

    tiny: bool = False
    small: bool = False
    ragged: bool = False
    precision: Literal["bf16", "tf32", "fp32"] = "bf16"
    graphed: bool = False
    compiled: bool = False
    guarded: Literal["", "same", "changing"] = ""
    recompute: bool = False
    naive: bool = False
    fused: bool = True
    workers: int = 4
    load_ms: float = 0.0
    extra_mb: int = 0
    pinned: bool = True
    non_blocking: bool = True
    preparing: Literal["", "images", "text"] = ""
    prepared_by: Literal["workers", "thread"] = "workers"
    annotated: bool = False
    sync_layers: bool = False
    check: Literal["", "device", "host"] = ""
    masked: Literal["", "multiply", "index"] = ""
    penalty: Literal["", "vector", "loop"] = ""
    norm: Literal["", "device", "item"] = ""
    accuracy: Literal["", "device", "list"] = ""
    log: Literal["", "item", "print", "many"] = ""
    empty_cache: bool = False
    objects: int = 0
    collect: bool = False
    save_every: int = 0
    evaluate_every: int = 0
    offload: bool = False
    spin_ms: float = 0.0
    sleep_ms: float = 0.0
    limited: bool = False
    neighbour: bool = False
    cpus: int = 0
    competitors: int = 0
    late_rank: Literal["", "python", "loader"] = ""
