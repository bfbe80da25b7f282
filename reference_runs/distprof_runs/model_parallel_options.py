"""Options of the reference runs that split the model itself. Does not import torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from distprof.errors import UsageError
from distprof.options import option
from distprof.units import MOST_RANKS
from distprof_runs.options import (
    ModelOptions,
    Schedule,
    TrainingOptions,
    WorkloadOptions,
    divide,
)
from distprof_runs.pipeline_plan import PipelinePlan, plan_pipeline


class TpOptions(WorkloadOptions, frozen=True, kw_only=True):
    """Options of ``tp``."""

    name = "tp"
    summary = "tensor parallelism: column and row parallel blocks, sequence and loss parallel"

    sequence_parallel: Annotated[
        bool, option("Keep norms and residuals sharded along the sequence.")
    ] = False
    loss_parallel: Annotated[bool, option("Keep logits sharded along the vocabulary.")] = False
    partial_norm_gradients: Annotated[
        bool,
        option("Anti-pattern: leave norm gradients unreduced, so that the optimizer reduces each."),
    ] = False

    def mesh(self, world_size: int) -> dict[str, int]:
        """One tensor-parallel axis."""
        return {"tp": world_size}

    def strategy(self) -> str:
        """TP, with sequence parallelism or without."""
        return "TP + sequence parallel" if self.sequence_parallel else "TP"

    def check(self, model: ModelOptions, training: TrainingOptions, world_size: int) -> None:
        """Refuse sizes that do not divide, and an anti-pattern that would have no effect."""
        super().check(model, training, world_size)
        _check_tensor_parallel(model, world_size)
        if self.sequence_parallel:
            _check_divides("sequence length", model.sequence, world_size)
        if self.loss_parallel:
            _check_divides("vocabulary size", model.vocabulary, world_size)
        if self.partial_norm_gradients and not self.sequence_parallel:
            raise UsageError(
                "--partial-norm-gradients needs --sequence-parallel: otherwise every rank has the"
                " whole gradient of its norms"
            )
        if self.partial_norm_gradients and training.clip_grad_norm:
            raise UsageError("--partial-norm-gradients leaves no norm to clip: use one of the two")


class PpOptions(WorkloadOptions, frozen=True, kw_only=True):
    """Options of ``pp``."""

    name = "pp"
    summary = "pipeline parallelism with every schedule of torch"
    training_defaults: ClassVar[dict[str, Any]] = {"micro_batches": 8}

    schedule: Annotated[Schedule, option("Pipeline schedule.")] = "1f1b"
    virtual_stages: Annotated[
        int, option("Stages per rank (0: 1, or 2 if the schedule needs more).", le=1_000)
    ] = 0
    split: Annotated[str, option("Blocks per stage, for example 2,3,3 (empty: even).")] = ""

    def mesh(self, world_size: int) -> dict[str, int]:
        """One pipeline axis."""
        return {"pp": world_size}

    def strategy(self) -> str:
        """PP and its schedule."""
        return f"PP ({self.schedule})"

    def plan(self, model: ModelOptions, training: TrainingOptions, ranks: int) -> PipelinePlan:
        """Which blocks go where; UsageError if the schedule cannot run so."""
        return plan_pipeline(
            self.schedule,
            ranks=ranks,
            layers=model.layers,
            micro_batches=training.micro_batches,
            virtual_stages=self.virtual_stages,
            split=self.split,
        )

    def check(self, model: ModelOptions, training: TrainingOptions, world_size: int) -> None:
        """Refuse options that the schedule cannot run."""
        super().check(model, training, world_size)
        self.plan(model, training, world_size)


class MoeOptions(WorkloadOptions, frozen=True, kw_only=True):
    """Options of ``moe``."""

    name = "moe"
    summary = "expert parallelism: tokens sent to their experts and back by all-to-all"

    experts: Annotated[int, option("Experts per layer.", le=100_000)] = 8
    top_k: Annotated[int, option("Experts per token.", le=100_000)] = 2
    capacity_factor: Annotated[float, option("Tokens per expert / even share (0: no limit).")] = 0.0
    aux_loss_weight: Annotated[float, option("Weight of the load-balancing loss.")] = 0.01
    skew: Annotated[float, option("Added to the router's logit of the first expert.")] = 0.0

    def mesh(self, world_size: int) -> dict[str, int]:
        """Experts spread over all ranks, which are data-parallel otherwise."""
        return {"ep": world_size}

    def strategy(self) -> str:
        """EP."""
        return "MoE (EP)"

    def check(self, model: ModelOptions, training: TrainingOptions, world_size: int) -> None:
        """Refuse experts that do not divide or are too few."""
        super().check(model, training, world_size)
        _check_experts(self.experts, self.top_k, world_size)
        if self.capacity_factor < 0 or self.aux_loss_weight < 0:
            raise UsageError("--capacity-factor and --aux-loss-weight must be 0 or more")


class CpOptions(WorkloadOptions, frozen=True, kw_only=True):
    """Options of ``cp``."""

    name = "cp"
    summary = "context parallelism: ring attention or Ulysses"

    method: Annotated[
        Literal["ring", "ulysses"], option("How attention sees the whole sequence.")
    ] = "ring"
    zigzag: Annotated[
        bool,
        option(
            "With --method ring: two pieces per rank, one from each end, so that all ranks"
            " have equal work under a causal mask; off is the anti-pattern."
        ),
    ] = True

    def mesh(self, world_size: int) -> dict[str, int]:
        """One context-parallel axis."""
        return {"cp": world_size}

    def strategy(self) -> str:
        """CP and its method."""
        return f"CP ({self.method})"

    def check(self, model: ModelOptions, training: TrainingOptions, world_size: int) -> None:
        """Refuse sequences or heads that do not divide."""
        super().check(model, training, world_size)
        if self.method == "ring":
            _check_divides("sequence length", model.sequence, world_size * (1 + self.zigzag))
            return
        _check_divides("sequence length", model.sequence, world_size)
        _check_divides("number of heads", model.heads, world_size)
        _check_divides("number of key/value heads", model.kv_heads, world_size)


class ThreeDOptions(WorkloadOptions, frozen=True, kw_only=True):
    """Options of ``3d``."""

    name = "3d"
    summary = "any mesh of pipeline, data, sharding, tensor and expert parallelism"
    training_defaults: ClassVar[dict[str, Any]] = {"micro_batches": 4}

    pp: Annotated[int, option("Pipeline stages.", le=MOST_RANKS)] = 2
    dp: Annotated[int, option("Replicas.", le=MOST_RANKS)] = 1
    fsdp: Annotated[int, option("Shards (FSDP2); 0: the remaining ranks.", le=MOST_RANKS)] = 2
    tp: Annotated[int, option("Tensor-parallel ranks.", le=MOST_RANKS)] = 2
    ep: Annotated[
        int,
        option(
            "Expert-parallel ranks: 1, or as many as shards, over which experts are spread.",
            le=MOST_RANKS,
        ),
    ] = 1
    schedule: Annotated[Schedule, option("Pipeline schedule.")] = "1f1b"
    order: Annotated[str, option("Mesh order, slowest varying axis first.")] = "pp,dp,fsdp,tp"
    experts: Annotated[int, option("Experts per layer (0: dense).", le=100_000)] = 0
    top_k: Annotated[int, option("Experts per token.", le=100_000)] = 2

    def mesh(self, world_size: int) -> dict[str, int]:
        """The axes in the requested order, without axes of size 1."""
        axes = {"pp": "pp", "dp": "dp_replicate", "fsdp": "dp_shard", "tp": "tp"}
        order = [part.strip() for part in self.order.split(",")]
        if sorted(order) != sorted(axes):
            raise UsageError(f"--order {self.order}: name each of {', '.join(axes)} once")
        rest = divide(world_size, self.pp * self.dp * self.tp, "--pp × --dp × --tp")
        sizes = {"pp": self.pp, "dp": self.dp, "fsdp": self.fsdp or rest, "tp": self.tp}
        if self.pp * self.dp * sizes["fsdp"] * self.tp != world_size:
            asked = " × ".join(f"{name} {size}" for name, size in sizes.items())
            raise UsageError(f"{asked} does not make {world_size} ranks; change one of them")
        return {axes[name]: sizes[name] for name in order if sizes[name] > 1}

    def strategy(self) -> str:
        """The axes that are used."""
        used = [
            ("PP", self.pp),
            ("DP", self.dp),
            ("FSDP", self.fsdp),
            ("TP", self.tp),
            ("EP", self.ep),
        ]
        return " × ".join(f"{name} {size}" for name, size in used if size > 1) or "one rank"

    def plan(self, model: ModelOptions, training: TrainingOptions) -> PipelinePlan:
        """Which blocks go where, for more than one stage; UsageError if that cannot run."""
        return plan_pipeline(
            self.schedule,
            ranks=self.pp,
            layers=model.layers,
            micro_batches=training.micro_batches,
        )

    def check(self, model: ModelOptions, training: TrainingOptions, world_size: int) -> None:
        """Refuse options that one of the axes cannot run."""
        super().check(model, training, world_size)
        shards = self.mesh(world_size).get("dp_shard", 1)
        if self.pp > 1:
            self.plan(model, training)
        _check_tensor_parallel(model, self.tp)
        if self.experts:
            _check_experts(self.experts, self.top_k, self.ep)
        elif self.ep > 1:
            raise UsageError(f"--ep {self.ep} needs experts: use --experts {4 * self.ep}")
        if self.ep not in (1, shards):
            raise UsageError(
                f"--ep {self.ep}: experts are spread over all {shards} sharding ranks or none; use"
                f" --ep {shards} or --fsdp {self.ep}"
            )


def _check_divides(what: str, size: int, parts: int) -> None:
    if size % parts:
        raise UsageError(f"{what} {size} cannot be split into {parts} equal parts")


def _check_tensor_parallel(model: ModelOptions, ranks: int) -> None:
    _check_divides("number of heads", model.heads, ranks)
    _check_divides("number of key/value heads", model.kv_heads, ranks)
    _check_divides("feed-forward size", model.ffn, ranks)


def _check_experts(experts: int, top_k: int, ranks: int) -> None:
    if experts < 1 or experts % ranks:
        raise UsageError(f"--experts {experts} cannot be spread evenly over {ranks} ranks")
    if not 1 <= top_k <= experts:
        raise UsageError(f"--top-k {top_k}: each token goes to between 1 and {experts} experts")
