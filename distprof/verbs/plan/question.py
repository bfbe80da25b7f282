"""The question that a plan answers: the model, the batch, and the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from distprof.config import CONFIG_FILE, ModelShape, load_config
from distprof.costs.transformer import Transformer
from distprof.errors import UsageError
from distprof.hardware import SCALE_UP_LATENCY_S, Gpu, Link, Sheet, load_sheet, parse_bandwidth
from distprof.sections.efficiency.models import preset, preset_sequence, shape_from

SHAPE = ModelShape.__struct_fields__
"""Options of ``distprof plan`` that describe a model's shape."""

LEAST_EFFICIENCY = 1e-6
"""Below this, a step would be too long to represent in float seconds or integer ns."""

_DEFAULT_LATENCY_S = 5e-6
_TOKENS = 4 * 2**20
_DEFAULT_SEQUENCE = 4096
_GPU, _PER_NODE, _LINK = "h100", 8, "ndr"


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """The links between the members of a group."""

    tier: str  # ``scale-up`` within the fast domain, else ``inter-node``.
    bandwidth: float  # Bytes per second and direction that each member gets in a ring.
    latency_s: float  # Latency of one step.
    per_domain: int  # Members of the group within one fast domain.
    link_bandwidth: float  # Bytes per second of one GPU's own link of that tier.


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs and the links between them."""

    gpu: Gpu  # Kind of GPU.
    num_gpus: int  # GPUs of the job.
    per_node: int  # GPUs per fast domain.
    link: Link  # Link between nodes; one port per GPU.
    link_efficiency: float = 0.8  # Share of a link's bandwidth that collectives reach.

    def __post_init__(self) -> None:
        if self.num_gpus < 1 or self.per_node < 1:
            raise UsageError("a cluster and a node need at least one GPU each")
        if self.num_gpus > self.per_node and self.num_gpus % self.per_node:
            raise UsageError(
                f"{self.num_gpus} GPUs do not fill nodes of {self.per_node}: choose a multiple, or"
                " set --gpus-per-node"
            )
        if not LEAST_EFFICIENCY <= self.link_efficiency <= 1:
            raise UsageError(f"the efficiency of links must be from {LEAST_EFFICIENCY:g} to 1")

    @property
    def num_nodes(self) -> int:
        """Number of fast domains in use."""
        return -(-self.num_gpus // self.per_node)

    def path(self, size: int, stride: int) -> Path:
        """The path between the members of groups of ``size`` ranks with a stride of ``stride``.

        A ring through several nodes uses the ports of all members in a node. If groups do not fit
        evenly into nodes, the path is that of the first group, one of the most spread out.
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
    """The link with a name (``ndr``) or a bandwidth (``50GB/s``, ``400Gb/s``)."""
    bandwidth = parse_bandwidth(text)
    if bandwidth is None:
        return sheet.link(text)
    return Link(name=text, title=text, bandwidth=bandwidth, latency_s=_DEFAULT_LATENCY_S)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A model, a cluster and a batch."""

    model: Transformer  # Shape of the model.
    cluster: Cluster  # The cluster that it runs on.
    batch: int  # Sequences per step, over all ranks.
    sequence: int  # Tokens per sequence.
    compute_efficiency: float = 0.6  # Share of the dense peak that kernels reach while they run.
    # Share of a GPU's memory that stays free for contexts, communication buffers and fragmentation.
    reserve_ratio: float = 0.1
    fp32_gradients: bool = False  # Whether gradients are accumulated in fp32.

    def __post_init__(self) -> None:
        if self.batch < 1 or self.sequence < 1:
            raise UsageError("a step needs at least one sequence of at least one token")
        if not LEAST_EFFICIENCY <= self.compute_efficiency <= 1:
            raise UsageError(f"the efficiency of kernels must be from {LEAST_EFFICIENCY:g} to 1")
        if not 0 <= self.reserve_ratio < 1:
            raise UsageError("the reserved share of memory must be at least 0 and below 1")

    @property
    def usable_bytes(self) -> float:
        """Bytes of a GPU's memory that a layout may fill."""
        return self.cluster.gpu.memory_bytes * (1 - self.reserve_ratio)


def assumptions(question: Question) -> tuple[str, ...]:
    """Assumptions of an estimate, one sentence each."""
    cluster = question.cluster
    sentences = [
        f"Kernels reach {100 * question.compute_efficiency:.0f} % of the dense bf16 peak, links"
        f" {100 * cluster.link_efficiency:.0f} % of their bandwidth.",
        f"{100 * question.reserve_ratio:.0f} % of memory stays free for contexts, buffers and"
        " fragmentation.",
        "The optimizer is Adam in mixed precision, with"
        f" {18 if question.fp32_gradients else 16} bytes of state per parameter. Attention is"
        " causal flash attention.",
        "Communication of tensor parallelism (with sequence parallelism) and expert parallelism is"
        " fully exposed. Data parallelism overlaps with forward and backward, ring attention with"
        " attention.",
        "The pipeline schedule is 1F1B, interleaved if a rank holds several stages. Messages"
        " overlap except at fill and drain.",
        "Small matrices are as efficient as large ones, which favours high tp and ep too much.",
        "Every GPU has its own link between nodes. No rank fails, waits for input or lags.",
    ]
    if question.model.experts:
        sentences.append("Tokens are routed evenly, and tp divides every expert like a dense MLP.")
    return tuple(sentences)


def question_of(options: Mapping[str, Any]) -> Question:
    """Build the question from the options of ``distprof plan``; None for those not given."""
    model, sequence = _model(options)
    sequence = options["sequence"] or sequence
    return Question(
        model=model,
        cluster=_cluster(options),
        batch=options["batch"] or max(1, _TOKENS // sequence),
        sequence=sequence,
        compute_efficiency=options["compute_efficiency"],
        reserve_ratio=options["reserve"],
        fp32_gradients=options["fp32_gradients"],
    )


def _model(options: Mapping[str, Any]) -> tuple[Transformer, int]:
    """The shape of the model, and its default sequence length."""
    shape = {key: options[key] for key in SHAPE}
    given = [key for key in (*SHAPE, "params") if options[key] is not None]
    if options["model"] is None:
        is_gated = options.get("gated", True)
        model = shape_from(shape, params=options["params"], is_gated=is_gated)
        return model, _DEFAULT_SEQUENCE
    if given:
        option = given[0].replace("_", "-")
        raise UsageError(
            f"--model and --{option} exclude each other: a published model has a fixed shape"
        )
    return preset(options["model"]), preset_sequence(options["model"])


def _cluster(options: Mapping[str, Any]) -> Cluster:
    if options["gpus"] is None:
        raise UsageError("the number of GPUs is missing: add --gpus N")
    config = load_config()
    sheet = load_sheet(config.hardware, config.source or CONFIG_FILE)
    return Cluster(
        gpu=sheet.gpu(options["gpu"] or _GPU),
        num_gpus=options["gpus"],
        per_node=options["gpus_per_node"] or _PER_NODE,
        link=inter_node_link(options["inter_node"] or _LINK, sheet),
        link_efficiency=options["link_efficiency"],
    )
