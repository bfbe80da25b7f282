"""Options of the reference runs. Free of torch: the command line and run.json are made from these.

Every field becomes an option of the command line (``micro_batches`` → ``--micro-batches``), a key
of the TOML file, and a value in run.json's ``config``.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from distprof.errors import UsageError

__all__ = [
    "PRESETS",
    "DdpOptions",
    "FsdpOptions",
    "ModelOptions",
    "Schedule",
    "TrainingOptions",
    "WorkloadOptions",
    "choices_of",
    "divide",
    "help_of",
    "option",
]

Schedule = Literal[
    "gpipe", "1f1b", "looped-bfs", "interleaved-1f1b", "interleaved-zb", "zbv", "dualpipev"
]


def option(default: Any, text: str) -> Any:
    """A field with its default and help, one line."""
    return field(default=default, metadata={"help": text})


def help_of(item: Field[Any]) -> str:
    """What the option does, one line."""
    return str(item.metadata["help"])


def choices_of(item: Field[Any]) -> tuple[str, ...]:
    """Allowed values of an option of ``Literal`` type; empty for others."""
    text = str(item.type)
    if text == "Schedule":
        return tuple(Schedule.__args__)  # type: ignore[attr-defined]
    if not text.startswith("Literal["):
        return ()
    return tuple(part.strip(" \"'") for part in text[len("Literal[") : -1].split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Size of the transformer. 0 means: as the preset has it."""

    preset: str = option("tiny", "size of the model: tiny, small, 125m, 1b, 7b, 13b, 70b")
    layers: int = option(0, "transformer blocks (0: the preset's)")
    hidden: int = option(0, "hidden size")
    heads: int = option(0, "attention heads")
    kv_heads: int = option(0, "key and value heads (grouped-query attention)")
    ffn: int = option(0, "inner size of the feed-forward layer")
    sequence: int = option(0, "sequence length in tokens")
    vocabulary: int = option(0, "vocabulary size")

    def resolved(self) -> ModelOptions:
        """The same with every 0 filled in from the preset.

        Raises:
            UsageError: If there is no such preset, or the sizes do not fit each other.
        """
        if self.preset not in PRESETS:
            known = ", ".join(PRESETS)
            raise UsageError(f"there is no preset {self.preset!r}; choose one of {known}")
        preset = PRESETS[self.preset]
        chosen: dict[str, Any] = {
            name: getattr(self, name) or size for name, size in preset.items()
        }
        result = replace(self, **chosen)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What every workload has in common."""

    steps: int = option(40, "optimizer steps")
    batch: int = option(4, "sequences per micro-batch and data-parallel rank")
    micro_batches: int = option(
        1, "micro-batches per step: gradient accumulation, or a pipeline's (pp: 8, 3d: 4)"
    )
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto", "auto: bf16 on CUDA devices, fp32 on CPU"
    )
    checkpoint_activations: bool = option(False, "recompute activations of each block in backward")
    learning_rate: float = option(3e-4, "of AdamW")
    clip_grad_norm: float = option(0.0, "clip the gradient's norm (0: do not)")
    device: Literal["auto", "cuda", "cpu"] = option("auto", "auto: CUDA devices where there are")
    seed: int = option(0, "of weights and data")
    threads: int = option(1, "CPU threads of each rank")
    group_timeout_s: float = option(60.0, "how long a collective may wait for a rank")
    compute: Literal["real", "sleep"] = option(
        "real", "sleep: blocks sleep for the times given, for exact ground truth"
    )
    forward_ms: float = option(5.0, "with --compute sleep: forward time of a block")
    backward_ms: float = option(10.0, "with --compute sleep: backward time of a block")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Base of the options that one workload adds.

    ``training_defaults`` replace defaults of :class:`TrainingOptions` in this workload.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    training_defaults: ClassVar[dict[str, Any]] = {}

    def mesh(self, world_size: int) -> dict[str, int]:
        """Mesh axis to size, slowest varying first; the product is ``world_size``.

        Raises:
            UsageError: If the ranks cannot be arranged as asked.
        """
        raise NotImplementedError

    def strategy(self) -> str:
        """Name of the parallelism, for people."""
        raise NotImplementedError

    def check(self, model: ModelOptions, training: TrainingOptions, world_size: int) -> None:
        """Refuse what cannot run.

        Raises:
            UsageError: With the way out.
        """
        del model
        if training.compute == "sleep" and training.checkpoint_activations:
            raise UsageError("--compute sleep has no activations to recompute: use one of the two")
        self.mesh(world_size)

    def notes(
        self, model: ModelOptions, training: TrainingOptions, world_size: int
    ) -> tuple[str, ...]:
        """What a reader of the run should know, one sentence each.

        Args:
            model: Resolved sizes.
            training: Common options.
            world_size: Ranks of the job.
        """
        del model, training, world_size
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Every option with its value."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, kw_only=True)
class DdpOptions(WorkloadOptions):
    """Options of ``ddp``."""

    name = "ddp"
    summary = "DistributedDataParallel: gradients all-reduced in buckets during backward"

    bucket_mb: float = option(1.0, "size of a gradient bucket (torch's default is 25)")
    no_sync: bool = option(True, "reduce gradients only in the last micro-batch of a step")
    static_graph: bool = option(False, "tell DDP that the graph never changes")
    find_unused: bool = option(False, "search for parameters that took no part in each forward")
    hook: Literal["none", "fp16", "bf16", "powersgd", "topk"] = option(
        "none", "compress gradients on the wire"
    )
    topk_ratio: float = option(0.01, "with --hook topk: share of gradients sent")

    def mesh(self, world_size: int) -> dict[str, int]:
        """One data-parallel axis."""
        return {"dp_replicate": world_size}

    def check(self, model: ModelOptions, training: TrainingOptions, world_size: int) -> None:
        """Refuse buckets and shares that cannot be."""
        WorkloadOptions.check(self, model, training, world_size)  # slots: no bare super()
        if self.bucket_mb <= 0:
            raise UsageError(f"--bucket-mb {self.bucket_mb:g}: a bucket has a size above 0")
        if not 0 < self.topk_ratio <= 1:
            raise UsageError(f"--topk-ratio {self.topk_ratio:g}: must be above 0 and at most 1")

    def strategy(self) -> str:
        """DDP, with its hook."""
        return "DDP" if self.hook == "none" else f"DDP ({self.hook} gradients)"


@dataclass(frozen=True, kw_only=True)
class FsdpOptions(WorkloadOptions):
    """Options of ``fsdp``."""

    name = "fsdp"
    summary = "fully_shard (ZeRO-3, ZeRO-2, hybrid) and ZeroRedundancyOptimizer (ZeRO-1)"

    zero: Literal["1", "2", "3"] = option(
        "3", "what is sharded: 1 optimizer, 2 and gradients, 3 all"
    )
    replicas: int = option(1, "replicas of the shard group (hybrid sharding, HSDP)")
    prefetch: bool = option(True, "gather the next block while this one computes")
    no_sync: bool = option(
        False, "reduce gradients in the last micro-batch only, for more memory (ZeRO-1 always does)"
    )
    flat: bool = option(False, "anti-pattern: one group for the whole model, nothing to prefetch")

    def mesh(self, world_size: int) -> dict[str, int]:
        """One sharding axis, or replicas of it."""
        shards = divide(world_size, self.replicas, "--replicas")
        if self.zero == "1":
            return {"dp_replicate": world_size}
        if self.replicas == 1:
            return {"dp_shard": world_size}
        return {"dp_replicate": self.replicas, "dp_shard": shards}

    def check(self, model: ModelOptions, training: TrainingOptions, world_size: int) -> None:
        """Refuse hybrid sharding of the optimizer alone: it is not made."""
        WorkloadOptions.check(self, model, training, world_size)  # slots: no bare super()
        if self.zero == "1" and self.replicas > 1:
            raise UsageError("--replicas needs sharded parameters: use --zero 2 or --zero 3")
        if self.zero == "1" and self.flat:
            raise UsageError("--flat needs sharded parameters: use --zero 2 or --zero 3")

    def notes(
        self, model: ModelOptions, training: TrainingOptions, world_size: int
    ) -> tuple[str, ...]:
        """Says where shards are padded, so that the bytes exceed the formula's."""
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
    """``whole`` ranks shared among ``part``.

    Raises:
        UsageError: If there is a rest; ``what`` names the part.
    """
    if part < 1 or whole % part:
        raise UsageError(f"{what} = {part} does not divide {whole} ranks")
    return whole // part
