"""Options of the reference runs, without torch: the source of the command line and run.json.

Every field becomes an option of the command line (``micro_batches`` → ``--micro-batches``), a key
of the TOML file, and a value in run.json's ``config``.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from distprof.errors import UsageError
from distprof.options import option
from distprof.units import MOST_RANKS

Schedule = Literal[
    "gpipe", "1f1b", "looped-bfs", "interleaved-1f1b", "interleaved-zb", "zbv", "dualpipev"
]


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size of the transformer. 0 means the preset's value."""

    preset: Annotated[str, option("Size of the model: tiny, small, 125m, 1b, 7b, 13b, 70b.")] = (
        "tiny"
    )
    layers: Annotated[int, option("Transformer blocks (0: the preset's).", le=10_000)] = 0
    hidden: Annotated[int, option("Hidden size.", le=1_000_000)] = 0
    heads: Annotated[int, option("Attention heads.", le=10_000)] = 0
    kv_heads: Annotated[
        int, option("Key and value heads (grouped-query attention).", le=10_000)
    ] = 0
    ffn: Annotated[int, option("Inner size of the feed-forward layer.", le=10_000_000)] = 0
    sequence: Annotated[int, option("Sequence length in tokens.", le=100_000_000)] = 0
    vocabulary: Annotated[int, option("Vocabulary size.", le=100_000_000)] = 0

    def resolved(self) -> ModelOptions:
        """The same sizes, with every 0 replaced by the preset's value."""
        if self.preset not in PRESETS:
            known = ", ".join(PRESETS)
            raise UsageError(f"unknown preset {self.preset!r}; choose one of {known}")
        preset = PRESETS[self.preset]
        chosen: dict[str, Any] = {
            name: getattr(self, name) or size for name, size in preset.items()
        }
        result = msgspec.structs.replace(self, **chosen)
        if result.hidden % result.heads or result.heads % result.kv_heads:
            raise UsageError(
                f"hidden size {result.hidden}, {result.heads} heads and {result.kv_heads}"
                " key/value heads do not divide: each must be a multiple of the next"
            )
        return result


def _size(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, sequence: int, vocabulary: int
) -> dict[str, int]:
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "ffn": ffn,
        "sequence": sequence,
        "vocabulary": vocabulary,
    }


PRESETS: dict[str, dict[str, int]] = {
    "tiny": _size(4, 256, 8, 8, 1024, 128, 1024),
    "small": _size(8, 512, 8, 8, 2048, 256, 8192),
    "125m": _size(12, 768, 12, 12, 2048, 1024, 32000),
    "1b": _size(16, 2048, 32, 8, 8192, 2048, 128256),
    "7b": _size(32, 4096, 32, 32, 11008, 4096, 32000),
    "13b": _size(40, 5120, 40, 40, 13824, 4096, 32000),
    "70b": _size(80, 8192, 64, 8, 28672, 4096, 128256),
}


class TrainingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options common to all workloads."""

    steps: Annotated[int, option("Optimizer steps.", le=1_000_000_000)] = 40
    batch: Annotated[
        int, option("Sequences per micro-batch and data-parallel rank.", le=1_000_000)
    ] = 4
    micro_batches: Annotated[
        int,
        option(
            "Micro-batches per step: gradient accumulation, or a pipeline's (pp: 8, 3d: 4).",
            le=10_000,
        ),
    ] = 1
    precision: Annotated[
        Literal["auto", "fp32", "bf16"], option("Auto: bf16 on CUDA devices, fp32 on CPU.")
    ] = "auto"
    checkpoint_activations: Annotated[
        bool, option("Recompute activations of each block in backward.")
    ] = False
    learning_rate: Annotated[float, option("Of AdamW.")] = 0.0003
    clip_grad_norm: Annotated[float, option("Clip the gradient's norm (0: do not).")] = 0.0
    device: Annotated[Literal["auto", "cuda", "cpu"], option("Auto: CUDA if available.")] = "auto"
    seed: Annotated[int, option("Random seed of weights and data.", ge=-(2**63), le=2**63 - 1)] = 0
    threads: Annotated[int, option("CPU threads of each rank.", le=1_024)] = 1
    group_timeout_s: Annotated[float, option("Seconds a collective may wait for a rank.")] = 60.0
    compute: Annotated[
        Literal["real", "sleep"],
        option("Sleep: blocks sleep for given times, for exact ground truth."),
    ] = "real"
    forward_ms: Annotated[float, option("With --compute sleep: forward time of a block.")] = 5.0
    backward_ms: Annotated[float, option("With --compute sleep: backward time of a block.")] = 10.0


class WorkloadOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the options that one workload adds.

    ``training_defaults`` replace defaults of :class:`TrainingOptions` in this workload.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    training_defaults: ClassVar[dict[str, Any]] = {}

    def mesh(self, world_size: int) -> dict[str, int]:
        """Mesh axis to size, slowest varying first; the product is ``world_size``."""
        raise NotImplementedError

    def strategy(self) -> str:
        """Name of the parallelism, as shown to users."""
        raise NotImplementedError

    def check(self, model: ModelOptions, training: TrainingOptions, world_size: int) -> None:
        """Refuse options that cannot run."""
        del model
        if training.compute == "sleep" and training.checkpoint_activations:
            raise UsageError("--compute sleep has no activations to recompute: use one of the two")
        self.mesh(world_size)

    def notes(
        self, model: ModelOptions, training: TrainingOptions, world_size: int
    ) -> tuple[str, ...]:
        """Notes for a reader of the run, one sentence each."""
        del model, training, world_size
        return ()


class DdpOptions(WorkloadOptions, frozen=True, kw_only=True):
    """Options of ``ddp``."""

    name = "ddp"
    summary = "DistributedDataParallel: gradients all-reduced in buckets during backward"

    bucket_mb: Annotated[float, option("Size of a gradient bucket (torch's default is 25).")] = 1.0
    no_sync: Annotated[bool, option("Reduce gradients only in the last micro-batch of a step.")] = (
        True
    )
    static_graph: Annotated[bool, option("Tell DDP that the graph never changes.")] = False
    find_unused: Annotated[bool, option("Search for unused parameters in each forward.")] = False
    hook: Annotated[
        Literal["none", "fp16", "bf16", "powersgd", "topk"],
        option("Compress gradients on the wire."),
    ] = "none"
    topk_ratio: Annotated[float, option("With --hook topk: share of gradients sent.")] = 0.01

    def mesh(self, world_size: int) -> dict[str, int]:
        """One data-parallel axis."""
        return {"dp_replicate": world_size}

    def check(self, model: ModelOptions, training: TrainingOptions, world_size: int) -> None:
        """Reject impossible bucket sizes and shares."""
        super().check(model, training, world_size)
        if self.bucket_mb <= 0:
            raise UsageError(f"--bucket-mb {self.bucket_mb:g}: must be above 0")
        if not 0 < self.topk_ratio <= 1:
            raise UsageError(f"--topk-ratio {self.topk_ratio:g}: must be above 0 and at most 1")

    def strategy(self) -> str:
        """DDP, with its hook."""
        return "DDP" if self.hook == "none" else f"DDP ({self.hook} gradients)"


class FsdpOptions(WorkloadOptions, frozen=True, kw_only=True):
    """Options of ``fsdp``."""

    name = "fsdp"
    summary = "fully_shard (ZeRO-3, ZeRO-2, hybrid) and ZeroRedundancyOptimizer (ZeRO-1)"

    zero: Annotated[
        Literal["1", "2", "3"], option("What is sharded: 1 optimizer, 2 and gradients, 3 all.")
    ] = "3"
    replicas: Annotated[
        int, option("Replicas of the shard group (hybrid sharding, HSDP).", le=MOST_RANKS)
    ] = 1
    prefetch: Annotated[bool, option("Gather the next block while this one computes.")] = True
    no_sync: Annotated[
        bool,
        option(
            "Reduce gradients in the last micro-batch only, for more memory (ZeRO-1 always does)."
        ),
    ] = False
    flat: Annotated[
        bool, option("Anti-pattern: one group for the whole model, nothing to prefetch.")
    ] = False

    def mesh(self, world_size: int) -> dict[str, int]:
        """One sharding axis, or replicas of it."""
        shards = divide(world_size, self.replicas, "--replicas")
        if self.zero == "1":
            return {"dp_replicate": world_size}
        if self.replicas == 1:
            return {"dp_shard": world_size}
        return {"dp_replicate": self.replicas, "dp_shard": shards}

    def check(self, model: ModelOptions, training: TrainingOptions, world_size: int) -> None:
        """Reject hybrid sharding of the optimizer alone, which is not implemented."""
        super().check(model, training, world_size)
        if self.zero == "1" and self.replicas > 1:
            raise UsageError("--replicas needs sharded parameters: use --zero 2 or --zero 3")
        if self.zero == "1" and self.flat:
            raise UsageError("--flat needs sharded parameters: use --zero 2 or --zero 3")

    def notes(
        self, model: ModelOptions, training: TrainingOptions, world_size: int
    ) -> tuple[str, ...]:
        """Say which shards are padded, so that the bytes exceed the formula's."""
        del training
        shards = self.mesh(world_size).get("dp_shard", 1)
        kv = model.kv_heads * model.hidden // model.heads
        rows = {"vocabulary": model.vocabulary, "hidden size": model.hidden}
        rows |= {"key/value size": kv, "feed-forward size": model.ffn}
        uneven = [f"{name} {size}" for name, size in rows.items() if size % shards]
        if not uneven:
            return ()
        return (
            f"Parameters are padded to divide by {shards} shards ({', '.join(uneven)}), so slightly"
            " more bytes are sent than parameters times their size.",
        )

    def strategy(self) -> str:
        """ZeRO stage, or HSDP."""
        sharded = f"FSDP (ZeRO-{self.zero})" if self.zero != "1" else "DDP (ZeRO-1)"
        return f"HSDP (ZeRO-{self.zero})" if self.replicas > 1 else sharded


def divide(whole: int, part: int, what: str) -> int:
    """``whole`` ranks shared among ``part``; a UsageError on a remainder names the part."""
    if part < 1 or whole % part:
        raise UsageError(f"{what} = {part} does not divide {whole} ranks")
    return whole // part
