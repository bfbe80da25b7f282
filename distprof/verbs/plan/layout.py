"""Layouts, which divide a job among ranks, and the objections to a layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Literal

import msgspec

from distprof.bounds import table_beside
from distprof.config import CONFIG_FILE, load_config
from distprof.costs.transformer import Recomputation, Transformer
from distprof.errors import UsageError
from distprof.hardware import SCALE_UP_LATENCY_S, Gpu, Link, Sheet, load_sheet, parse_bandwidth
from distprof.options import whole_number
from distprof.sections.efficiency.models import SHAPE_KEYS, preset, preset_sequence, shape_from
from distprof.units import sentence

TABLE = table_beside(__package__, "objections.toml")
says = partial(sentence, TABLE["said"])
KINDS: Mapping[str, list[str]] = TABLE["kinds"]
"""Kinds of objections: to the degrees of parallelism alone, and to layouts that can still run."""

LEAST_EFFICIENCY = 1e-6
"""Below this, a step would be too long to represent in float seconds or integer ns."""
_DEFAULT_LATENCY_S = 5e-6
_TOKENS = 4 * 2**20
_DEFAULT_SEQUENCE = 4096
_GPU, _PER_NODE, _LINK = "h100", 8, "ndr"


class Path(msgspec.Struct, frozen=True):
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
            raise UsageError(says("partly filled", cluster=self))
        if not LEAST_EFFICIENCY <= self.link_efficiency <= 1:
            raise UsageError(f"the efficiency of links must be from {LEAST_EFFICIENCY:g} to 1")

    def path(self, size: int, stride: int) -> Path:
        """The path between members of the first group, one of the most spread out of its kind."""
        domain = min(self.per_node, self.num_gpus)
        reach = 1 + (size - 1) * stride
        fast = self.gpu.scale_up_bandwidth * self.link_efficiency
        if reach <= domain and (size * stride <= domain and domain % (size * stride) == 0):
            return Path("scale-up", fast, SCALE_UP_LATENCY_S, size, fast)
        port = self.link.bandwidth * self.link_efficiency
        together = min(size, max(1, domain // stride))
        bandwidth = min(fast, together * port)
        return Path("inter-node", bandwidth, self.link.latency_s, together, port)


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
    values = {
        "compute": 100 * question.compute_efficiency,
        "links": 100 * question.cluster.link_efficiency,
        "reserve": 100 * question.reserve_ratio,
        "state": 18 if question.fp32_gradients else 16,
    }
    return tuple(
        one.format_map(values)
        for one in TABLE["assumptions"][: None if question.model.experts else -1]
    )


def question_of(options: Mapping[str, Any]) -> Question:
    """Build the question from the options of ``distprof plan``; None for those not given."""
    model, sequence = _model(options)
    sequence = options["sequence"] or sequence
    if options["gpus"] is None:
        raise UsageError("the number of GPUs is missing: add --gpus N")
    config = load_config()
    sheet = load_sheet(config.hardware, config.source or CONFIG_FILE)
    return Question(
        model=model,
        cluster=Cluster(
            gpu=sheet.gpu(options["gpu"] or _GPU),
            num_gpus=options["gpus"],
            per_node=options["gpus_per_node"] or _PER_NODE,
            link=inter_node_link(options["inter_node"] or _LINK, sheet),
            link_efficiency=options["link_efficiency"],
        ),
        batch=options["batch"] or max(1, _TOKENS // sequence),
        sequence=sequence,
        compute_efficiency=options["compute_efficiency"],
        reserve_ratio=options["reserve"],
        fp32_gradients=options["fp32_gradients"],
    )


def _model(options: Mapping[str, Any]) -> tuple[Transformer, int]:
    """The shape of the model, and its default sequence length."""
    shape = {key: options[key] for key in SHAPE_KEYS}
    given = [key for key in (*SHAPE_KEYS, "params") if options[key] is not None]
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


Sharding = Literal["ddp", "zero-1", "zero-2", "fsdp", "hsdp"]
_STAGE = {"ddp": 0, "zero-1": 1, "zero-2": 2, "fsdp": 3, "hsdp": 3}
_RECOMPUTATION = ("none", "selective", "full")
_NUMBERS = {
    **{name: name for name in ("dp", "tp", "pp", "cp", "ep", "shards")},
    "micro-batch": "micro_batch",
    "micro-batches": "micro_batches",
    "stages": "virtual_stages",
}
LAYOUT_KEYS = (*_NUMBERS, "sharding", "recomputation")
"""Keys of a layout on the command line."""
_MIN_TOKENS_PER_RANK = 8192
_MOST = 10**7


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to divide a job; rank order: tensor (nearest), context, expert, data, pipeline."""

    dp: int = 1  # Data-parallel ranks for each tensor, context and pipeline rank.
    tp: int = 1  # Tensor-parallel ranks; more than one implies sequence parallelism.
    pp: int = 1  # Pipeline-parallel ranks.
    cp: int = 1  # Ranks that share a sequence (ring attention).
    ep: int = 1  # Ranks that share the experts, taken from the data-parallel ranks.
    # Which part of the model state is divided among data- and context-parallel ranks.
    sharding: Sharding = "ddp"
    shards: int = 0  # Ranks that divide the state, for ``hsdp``; 0 for all of them.
    micro_batch: int = 1  # Sequences per micro-batch.
    micro_batches: int = 1  # Micro-batches per step.
    virtual_stages: int = 1  # Stages per pipeline rank.
    # Recomputation of activations; ``selective`` includes flash attention.
    recomputation: Recomputation = "selective"

    @property
    def num_gpus(self) -> int:
        """Number of ranks of the layout."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """Number of ranks that process different data with the same part of the dense model."""
        return self.dp * self.cp

    @property
    def num_shards(self) -> int:
        """Number of ranks that divide the sharded state."""
        if self.sharding == "ddp":
            return 1
        return self.shards if self.sharding == "hsdp" and self.shards else self.replicas

    @property
    def zero_stage(self) -> int:
        """ZeRO stage that the sharding corresponds to."""
        return _STAGE[self.sharding]

    @property
    def batch(self) -> int:
        """Sequences per step."""
        return self.dp * self.micro_batch * self.micro_batches

    @property
    def text(self) -> str:
        """The layout in the form that ``--layout`` takes."""
        parts = [f"{axis}={getattr(self, axis)}" for axis in ("dp", "tp", "pp", "cp", "ep")]
        kept = [part for part in parts if not part.endswith("=1") or part.startswith("dp")]
        kept.append(f"sharding={self.sharding}")
        if self.sharding == "hsdp":
            kept.append(f"shards={self.shards}")
        kept.append(f"micro-batch={self.micro_batch}")
        if self.virtual_stages > 1:
            kept.append(f"stages={self.virtual_stages}")
        kept.append(f"recomputation={self.recomputation}")
        return ",".join(kept)


class Objection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a layout cannot run, or should not."""

    kind: str  # The reason in a few words, without the numbers of the layout.
    message: str  # The reason with this layout's numbers.


def parse_layout(text: str, *, num_gpus: int, batch: int) -> Layout:
    """Parse ``tp=8,pp=4,sharding=zero-1``; keys left out follow from the rest, or are 1."""
    values: dict[str, int | str] = {}
    for part in text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        values.update(_value(key, value))
    sizes = {axis: int(values.get(axis, 1)) for axis in ("tp", "pp", "cp")}
    others = sizes["tp"] * sizes["pp"] * sizes["cp"]
    values.setdefault("dp", max(1, num_gpus // others))
    per_batch = int(values["dp"]) * int(values.get("micro_batch", 1))
    values.setdefault("micro_batches", max(1, batch // per_batch))
    if values.get("sharding") == "hsdp" and "shards" not in values:
        raise UsageError("sharding=hsdp needs shards=N, the number of ranks that divide the state")
    if "shards" in values and values.get("sharding") != "hsdp":
        raise UsageError("shards=N works only with sharding=hsdp: other shardings use all ranks")
    return msgspec.convert(values, Layout)


def _value(key: str, value: str) -> dict[str, int | str]:
    if key in _NUMBERS:
        number = whole_number(value, most=_MOST)
        if not number:
            raise UsageError(f"layout: {key} must be a number of at least 1, not {value[:40]!r}")
        return {_NUMBERS[key]: number}
    choices = {"sharding": tuple(_STAGE), "recomputation": _RECOMPUTATION}
    if key not in choices:
        raise UsageError(f"layout: unknown key {key!r}; choose from {', '.join(LAYOUT_KEYS)}")
    if value not in choices[key]:
        raise UsageError(f"layout: {key} must be one of {', '.join(choices[key])}, not {value!r}")
    return {key: value}


def objections(
    layout: Layout, model: Transformer, cluster: Cluster, *, batch: int, sequence: int
) -> list[Objection]:
    """Reasons against a layout, except memory, the most important first."""
    found = chain(_of_mesh(layout, model, cluster, sequence), _of_batch(layout, batch))
    return [Objection(kind=kind, message=message) for kind, message in found]


def _of_mesh(
    layout: Layout, model: Transformer, cluster: Cluster, sequence: int
) -> Iterator[tuple[str, str]]:
    """Reasons that follow from the degrees of parallelism: kind and message."""
    tp, kv, cp, ep = layout.tp, model.kv_heads, layout.cp, layout.ep
    if layout.num_gpus != cluster.num_gpus:
        product = f"dp {layout.dp} × tp {tp} × pp {layout.pp} × cp {cp}"
        message = f"{product} is {layout.num_gpus:,} ranks, not {cluster.num_gpus:,}"
        yield "ranks do not add up", message
    if model.heads % tp:
        yield "heads not divisible", f"tp {tp} does not divide {model.heads} heads"
    elif model.latent is None and kv % tp and tp % kv:
        message = f"tp {tp} neither divides {kv} key/value heads nor is a multiple of {kv}"
        yield "heads not divisible", message
    if tp > cluster.per_node or cluster.per_node % tp:
        message = f"tp {tp} does not fit within nodes of {cluster.per_node} GPUs"
        yield "tensor parallelism leaves the fast domain", message
    stages = layout.pp * layout.virtual_stages
    if stages > model.layers:
        yield "more stages than layers", f"{stages} stages for {model.layers} layers"
    if cp > 1 and (sequence % (2 * cp) or sequence // cp < _MIN_TOKENS_PER_RANK):
        message = f"cp {cp} leaves each rank {sequence // cp:,} of {sequence:,} tokens"
        yield "sequence too short to share", message
    if ep > 1 and (not model.experts or model.experts % ep):
        yield "experts not divisible", f"ep {ep} does not divide {model.experts} experts"
    elif layout.dp % ep:
        yield "experts not divisible", f"ep {ep} does not divide dp {layout.dp}"


def _of_batch(layout: Layout, batch: int) -> Iterator[tuple[str, str]]:
    """Reasons that follow from shards and micro-batches: kind and message."""
    pp, number = layout.pp, layout.micro_batches
    if layout.sharding == "hsdp" and (not layout.shards or layout.replicas % layout.shards):
        message = f"{layout.shards} shards do not divide {layout.replicas} data-parallel ranks"
        yield "shards not divisible", message
    if layout.batch != batch:
        parts = f"dp {layout.dp} × {layout.micro_batch} per micro-batch × {number}"
        message = f"{parts} is {layout.batch:,} sequences, but the batch is {batch:,}"
        yield "batch not divisible", message
    if number < pp:
        yield "too few micro-batches", f"{pp} stages need at least {pp}, not {number}"
    if layout.virtual_stages > 1 and (pp < 2 or number % pp):
        message = "interleaving needs at least 2 ranks"
        if pp > 1:
            message = f"interleaving needs a multiple of {pp}, not {number}"
        yield "micro-batches not divisible", message
