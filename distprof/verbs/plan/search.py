"""Evaluates all layouts of a job: feasible ones by step time, and why the others fail."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from distprof.units import format_bytes
from distprof.verbs.plan import ClusterFacts, Estimate, MemoryParts, ModelFacts, Plan, Rejection
from distprof.verbs.plan.estimate import estimate, footprint
from distprof.verbs.plan.layout import (
    KINDS,
    Layout,
    Objection,
    Question,
    assumptions,
    objections,
)
from distprof.version import __version__

_TENSOR_LIMIT = 2
_MICRO_BATCHES = (1, 2, 4, 8)
_VIRTUAL = (1, 2, 4)
_CONTEXTS = (1, 2, 4, 8, 16)
_SHARDINGS = ("ddp", "zero-1", "zero-2", "fsdp", "hsdp")
_RECOMPUTATIONS = ("selective", "full")


class _Rejections(msgspec.Struct):
    """Counts the reasons for rejection and keeps the first example of each."""

    count: Counter[str] = msgspec.field(default_factory=Counter)
    example: dict[str, str] = msgspec.field(default_factory=dict)

    def add(self, objection: Objection) -> None:
        self.count[objection.kind] += 1
        self.example.setdefault(objection.kind, objection.message)

    def ranked(self) -> tuple[Rejection, ...]:
        order = sorted(self.count.items(), key=lambda item: (-item[1], item[0]))
        return tuple(Rejection(reason=k, count=n, example=self.example[k]) for k, n in order)


def make_plan(question: Question, *, most: int = 10) -> Plan:
    """Evaluate every layout of a job."""
    rejections = _Rejections()
    found = sorted(_fitting(question, rejections), key=_by_time)
    return _plan(
        question,
        best=tuple(found[:most]),
        considered=len(found) + sum(rejections.count.values()),
        fitting=len(found),
        rejections=rejections.ranked(),
        objections=(),
    )


def judge_layout(question: Question, layout: Layout) -> Plan:
    """Judge one layout: its costs, and the objections to it."""
    against, memory = _against(question, layout), footprint(question, layout)
    best: tuple[Estimate, ...] = ()
    if not against:
        against = [o for o in (_too_large(question, layout, memory),) if o is not None]
        best = (estimate(question, layout, memory),)
    return _plan(
        question,
        best=best,
        considered=1,
        fitting=0 if against else 1,
        rejections=(),
        objections=tuple(objection.message for objection in against),
    )


def _by_time(found: Estimate) -> tuple[float, int, str]:
    """Sort key: step time, then simplicity."""
    layout = found.layout
    axes = sum(getattr(layout, axis) > 1 for axis in ("tp", "pp", "cp", "ep"))
    simple = axes + layout.zero_stage + layout.virtual_stages
    return found.step_ns, simple, layout.text


def _against(question: Question, layout: Layout) -> list[Objection]:
    model, cluster = question.model, question.cluster
    return objections(layout, model, cluster, batch=question.batch, sequence=question.sequence)


def _too_large(question: Question, layout: Layout, memory: MemoryParts) -> Objection | None:
    if memory.total_bytes <= question.usable_bytes:
        return None
    where = layout.text.replace(",", ", ")
    needed, free = format_bytes(memory.total_bytes), format_bytes(question.usable_bytes)
    message = f"{where} needs {needed} per GPU, but only {free} are usable"
    return Objection(kind="memory", message=message)


def _fitting(question: Question, rejections: _Rejections) -> Iterator[Estimate]:
    for bare in _meshes(question, rejections):
        for layout in _variants(question, bare, rejections):
            memory = footprint(question, layout)
            objection = _too_large(question, layout, memory)
            if objection is None:
                yield estimate(question, layout, memory)
            else:
                rejections.add(objection)


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def _meshes(question: Question, rejections: _Rejections) -> Iterator[Layout]:
    """Degrees of parallelism; impossible ones are rejected before other choices are varied."""
    model, cluster = question.model, question.cluster
    gpus = cluster.num_gpus
    for tp in (size for size in _divisors(gpus) if size <= _TENSOR_LIMIT * cluster.per_node):
        for pp in _divisors(gpus // tp):
            for cp in (size for size in _CONTEXTS if gpus // (tp * pp) % size == 0):
                dp = gpus // (tp * pp * cp)
                choices = _divisors(dp) if model.experts else [1]
                for ep in (size for size in choices if size <= max(1, model.experts)):
                    mesh = Layout(
                        dp=dp, tp=tp, pp=pp, cp=cp, ep=ep,
                        micro_batches=max(pp, question.batch // dp),
                    )  # fmt: skip
                    against = [o for o in _against(question, mesh) if o.kind in KINDS["of mesh"]]
                    if not against:
                        yield mesh
                        continue
                    rejections.add(against[0])
                    if against[0].kind != "experts not divisible":  # no other ep helps
                        break


def _variants(question: Question, mesh: Layout, rejections: _Rejections) -> Iterator[Layout]:
    """Every choice of micro-batches, stages, sharding and recomputation for one mesh."""
    for layout in _batches(question, mesh, rejections):
        for sharding, shards in _shardings(question, layout):
            for recomputation in _RECOMPUTATIONS:
                yield replace(layout, sharding=sharding, shards=shards, recomputation=recomputation)


def _batches(question: Question, mesh: Layout, rejections: _Rejections) -> Iterator[Layout]:
    for micro_batch in _MICRO_BATCHES:
        number = max(1, question.batch // (mesh.dp * micro_batch))
        for stages in _VIRTUAL if mesh.pp > 1 else (1,):
            layout = replace(
                mesh, micro_batch=micro_batch, micro_batches=number, virtual_stages=stages
            )
            against = _against(question, layout)
            if not against:
                yield layout
            else:
                rejections.add(against[0])


def _shardings(question: Question, layout: Layout) -> Iterator[tuple[str, int]]:
    """Possible shardings with their shards; hybrid sharding divides one of several fast domains."""
    within = min(question.cluster.per_node // layout.tp, layout.replicas)
    for sharding in _SHARDINGS:
        if sharding == "ddp" or (layout.replicas > 1 and sharding != "hsdp"):
            yield sharding, 0
        elif 1 < within < layout.replicas and layout.replicas % within == 0:
            yield sharding, within


def _plan(question: Question, **found: Any) -> Plan:
    """The plan with what the question says, and what was found."""
    cluster = question.cluster
    return Plan(
        version=__version__,
        model=msgspec.convert(question.model, ModelFacts, from_attributes=True),
        cluster=ClusterFacts(
            gpu=cluster.gpu.title,
            num_gpus=cluster.num_gpus,
            gpus_per_node=cluster.per_node,
            peak_flops=cluster.gpu.bf16_flops,
            memory_bytes=round(cluster.gpu.memory_bytes),
            usable_bytes=round(question.usable_bytes),
            scale_up_bandwidth=cluster.gpu.scale_up_bandwidth,
            inter_node_bandwidth=cluster.link.bandwidth,
        ),
        batch=question.batch,
        sequence=question.sequence,
        assumptions=assumptions(question),
        **found,
    )
