"""What is asked of a plan: the model, the batch, and the cluster it runs on."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.costs.transformer import Transformer
from distprof.errors import UsageError
from distprof.hardware import Gpu, Link, Sheet, parse_bandwidth
from distprof.hardware.sheet import SCALE_UP_LATENCY_S

__all__ = ["Cluster", "Path", "Question", "assumptions", "inter_node_link"]

_DEFAULT_LATENCY_S = 5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """How the members of a group reach each other.

    Args:
        tier: ``scale-up`` within the fast domain, else ``inter-node``.
        bandwidth: Bytes per second and direction that one member gets in rings.
        latency_s: Of one step.
        per_domain: Members of the group in one fast domain.
        link_bandwidth: Bytes per second of one GPU's own link of that tier.
    """

    tier: str
    bandwidth: float
    latency_s: float
    per_domain: int
    link_bandwidth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """GPUs, and what joins them.

    Args:
        gpu: Which.
        num_gpus: Of the job.
        per_node: GPUs of a fast domain.
        link: Between nodes; one port per GPU.
        link_efficiency: Share of a link's bandwidth that collectives reach.
    """

    gpu: Gpu
    num_gpus: int
    per_node: int
    link: Link
    link_efficiency: float = 0.8

    def __post_init__(self) -> None:
        if self.num_gpus < 1 or self.per_node < 1:
            raise UsageError("a cluster has at least one GPU, and a node too")
        if self.num_gpus > self.per_node and self.num_gpus % self.per_node:
            raise UsageError(
                f"{self.num_gpus} GPUs do not fill nodes of {self.per_node}: give a multiple, or"
                " --gpus-per-node"
            )
        if not 0 < self.link_efficiency <= 1:
            raise UsageError("the efficiency of links lies above 0 and at most at 1")

    @property
    def num_nodes(self) -> int:
        """Fast domains in use."""
        return -(-self.num_gpus // self.per_node)

    def path(self, size: int, stride: int) -> Path:
        """How ranks reach each other of which ``size`` are one group, ``stride`` ranks apart.

        A ring through several nodes uses the ports of all members in a node. The first group is
        judged, which is one of the most spread ones where groups do not fit evenly.
        """
        domain = min(self.per_node, self.num_gpus)
        reach = 1 + (size - 1) * stride
        fast = self.gpu.scale_up_bandwidth * self.link_efficiency
        if reach <= domain and (size * stride <= domain and domain % (size * stride) == 0):
            return Path(
                tier="scale-up",
                bandwidth=fast,
                latency_s=SCALE_UP_LATENCY_S,
                per_domain=size,
                link_bandwidth=fast,
            )
        port = self.link.bandwidth * self.link_efficiency
        together = min(size, max(1, domain // stride))
        return Path(
            tier="inter-node",
            bandwidth=min(fast, together * port),
            latency_s=self.link.latency_s,
            per_domain=together,
            link_bandwidth=port,
        )


def inter_node_link(text: str, sheet: Sheet) -> Link:
    """A link by name (``ndr``) or by its bandwidth (``50GB/s``, ``400Gb/s``).

    Raises:
        UsageError: If it is neither.
    """
    bandwidth = parse_bandwidth(text)
    if bandwidth is None:
        return sheet.link(text)
    return Link(name=text, title=text, bandwidth=bandwidth, latency_s=_DEFAULT_LATENCY_S)


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
