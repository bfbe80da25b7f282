"""What is asked of a plan, and what it assumes."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.costs.transformer import Transformer
from distprof.errors import UsageError
from distprof.verbs.plan.cluster import Cluster

__all__ = ["Question", "assumptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model, a cluster, a batch.

    Args:
        model: Its shape.
        cluster: Where.
        batch: Sequences of a step, all ranks.
        sequence: Tokens of a sequence.
        compute_efficiency: Share of the dense peak that kernels reach while they compute.
        reserve_ratio: Share of a GPU's memory that nothing is planned into: contexts, buffers of
            communication, fragments.
        fp32_gradients: Whether gradients are accumulated in fp32.
    """

    model: Transformer
    cluster: Cluster
    batch: int
    sequence: int
    compute_efficiency: float = 0.6
    reserve_ratio: float = 0.1
    fp32_gradients: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1 or self.sequence < 1:
            raise UsageError("a step has at least one sequence of at least one token")
        if not 0 < self.compute_efficiency <= 1:
            raise UsageError("the efficiency of kernels lies above 0 and at most at 1")
        if not 0 <= self.reserve_ratio < 1:
            raise UsageError("the share of memory held back lies at 0 or above, and below 1")

    @property
    def usable_bytes(self) -> float:
        """Memory of a GPU that a layout may fill."""
        return self.cluster.gpu.memory_bytes * (1 - self.reserve_ratio)


def assumptions(question: Question) -> tuple[str, ...]:
    """What an estimate rests on, one sentence each."""
    cluster = question.cluster
    said = [
        f"Kernels reach {100 * question.compute_efficiency:.0f} % of the dense bf16 peak, links"
        f" {100 * cluster.link_efficiency:.0f} % of their bandwidth.",
        f"{100 * question.reserve_ratio:.0f} % of memory stays free for contexts, buffers and"
        " fragments.",
        f"Adam in mixed precision, {18 if question.fp32_gradients else 16} bytes of state per"
        " parameter; flash attention, causal.",
        "Tensor and expert parallelism are fully exposed, with sequence parallelism where tp > 1;"
        " data parallelism hides behind forward and backward; ring attention behind attention.",
        "1F1B, interleaved where a rank holds several stages; its messages hide but for fill and"
        " drain.",
        "Small matrices are as efficient as large ones, which favours high tp and ep too much.",
        "Every GPU has a link between nodes of its own; nothing fails, waits for input or lags.",
    ]
    if question.model.experts:
        said.append("Tokens are routed evenly; every expert is divided like a dense MLP by tp.")
    return tuple(said)
