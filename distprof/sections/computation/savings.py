"""What changes of the program would save of one rank's computation, kernel by kernel.

Each change is an estimate from the sizes of inputs: kernels that it removes save their whole time,
kernels that move less memory the same share of their time as of their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.intervals import EMPTY, Intervals, covered
from distprof.sections.computation import FP32_KERNELS, Pass, Region, Saves, Saving
from distprof.sections.computation.categories import number_of
from distprof.sections.computation.groups import MEMORY_BOUND, Change, Groups
from distprof.sections.computation.operators import Alike, KernelCalls
from distprof.sections.computation.recomputation import recomputed_regions, without_recomputation
from distprof.sections.computation.waste import (
    with_fused_dropout,
    with_fused_optimizer,
    with_narrow_casts,
    with_one_layout,
    with_padded_products,
    with_spread_indices,
    with_unset_gradients,
)
from distprof.sections.context import RankContext

FP32_SPEED_UP = 8.0
"""Tensor cores against other cores, TF32 against fp32 from Ampere on, fp16 against fp32 before."""

PRODUCTS_OF_ATTENTION = 0.5
"""Share of the time of attention's products that a fused kernel saves: it writes no scores."""

LEAST_SCORES = 64
"""Sequence from which scores count as attention's."""

LONGEST_HEAD = 512

LEAST_VOCABULARY = 8_192

PASSES_OF_FUSED_LOSS = 3
"""A fused loss reads the logits twice and writes their gradient once, in their own type."""

_FP32 = re.compile(FP32_KERNELS + "|simt_sgemm|f32f32_f32f32_f32|_s_f32_")


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """Savings of one rank."""

    alike: Alike  # Groups of its kernels.
    spans: Mapping[str, Intervals]  # Key of a change to the time that it saves, a set; own clock.
    idle: Mapping[str, Intervals]  # Key to time between its kernels, a set.
    stats: tuple[Saving, ...]  # The same, summed up.
    regions: tuple[Region, ...]  # What one backward pass repeats.


def rank_savings(kernel_calls: KernelCalls | None, context: RankContext) -> Savings | None:
    """What each change would save on one rank; None if its computation is not explained."""
    if kernel_calls is None:
        return None
    groups = Groups.of(kernel_calls)
    regions = recomputed_regions(groups)
    found = [
        without_recomputation(groups, regions),
        _with_fused_attention(groups),
        _on_tensor_cores(groups),
        _with_fused_loss(groups),
        with_padded_products(groups),
        with_one_layout(groups),
        with_fused_optimizer(groups),
        with_unset_gradients(groups),
        with_spread_indices(groups),
        with_fused_dropout(groups),
        with_narrow_casts(groups),
        _with_merged_kernels(groups),
    ]
    spans, idle, stats = {}, {}, []
    claimed = np.zeros(len(kernel_calls.row), np.bool_)
    for one in filter(None, found):
        one = replace(one, share=np.where(claimed, 0.0, one.share))  # so that savings add up
        claimed |= one.share > 0
        saved = np.rint(kernel_calls.own_ns * one.share).astype(np.int64)
        begins = kernel_calls.start_ns[saved > 0]
        spans[one.what] = Intervals(begins, begins + saved[saved > 0])
        # A profiler makes each launch longer: only without its cost is the time between real.
        is_real = one.ends_idling and context.is_corrected
        idle[one.what] = _between(kernel_calls, one.share > 0) if is_real else EMPTY
        counted = kernel_calls.counted_ns
        stats.append(
            Saving(
                what=one.what,
                spent_ns=int(counted[one.share > 0].sum()),
                saved_ns=round(float((counted * one.share).sum())),
                idle_ns=int(covered(idle[one.what], context.windows).sum()),
                num_bytes=one.num_bytes,
                size=one.size,
            )
        )
    return Savings(alike=groups.alike, spans=spans, idle=idle, stats=tuple(stats), regions=regions)


def _between(calls: KernelCalls, chosen: NDArray[np.bool_]) -> Intervals:
    """Time between two chosen kernels without another kernel between them."""
    ends = np.maximum.accumulate(calls.start_ns + calls.own_ns)
    gap = np.flatnonzero(chosen[:-1] & chosen[1:] & (calls.start_ns[1:] > ends[:-1]))
    return Intervals(ends[gap], calls.start_ns[gap + 1])


def _on_tensor_cores(groups: Groups) -> Change | None:
    calls = groups.calls
    slow = np.array([bool(_FP32.search(name)) for name in calls.kernel_names], np.bool_)
    products = (number_of("gemm"), number_of("convolution"))
    chosen = slow[calls.kernel] & np.isin(calls.category, products)
    if not chosen.any():
        return None
    return Change(what=Saves.TENSOR_CORES, share=np.where(chosen, 1 - 1 / FP32_SPEED_UP, 0.0))


def _with_fused_attention(groups: Groups) -> Change | None:
    """Softmax of scores that a batched product made, and all that runs on tensors of this size."""
    scores = {
        prod(size): size
        for group in groups.named("_softmax", "_safe_softmax")
        if len(size := groups.tensor(group, 0)) >= _SCORES and min(size[-2:]) >= LEAST_SCORES
    }
    made: set[int] = set()
    products = []
    for group in groups.named("bmm", "baddbmm"):
        at = int(groups.alike.names[group].endswith("baddbmm"))
        first, second = groups.tensor(group, at), groups.tensor(group, at + 1)
        if len(first) != _BATCHED or len(second) != _BATCHED:
            continue
        if first[2] <= LONGEST_HEAD:
            made.add(prod(first[:2]) * second[2])
        products.append((group, {prod(first[:2]) * second[2], prod(first), prod(second)}))
    sizes = set(scores) & made
    if not sizes:
        return None
    share = np.array(
        [float(bool(groups.elements(group) & sizes)) for group in range(len(groups.work))]
    )
    for group, concerned in products:
        share[group] = PRODUCTS_OF_ATTENTION if concerned & sizes else 0.0
    largest = str(list(scores[max(sizes)]))
    return Change(what=Saves.FUSED_ATTENTION, share=share[groups.alike.group], size=largest)


_SCORES = 3

_BATCHED = 3


def _with_fused_loss(groups: Groups) -> Change | None:
    """Logits over a vocabulary, which softmax, loss and casts read and write again and again."""
    logits = {
        prod(size): size
        for group in groups.named("_log_softmax", "_softmax")
        if (size := groups.tensor(group, 0)) and size[-1] >= LEAST_VOCABULARY
    }
    made = {
        prod(first[:-1]) * second[-1]
        for group in groups.named("mm", "addmm")
        for at in (int(groups.alike.names[group].endswith("addmm")),)
        if (first := groups.tensor(group, at)) and (second := groups.tensor(group, at + 1))
    }
    sizes = set(logits) & made
    if not sizes:
        return None
    counted = (number_of("gemm"), number_of("attention"))
    chosen = [
        bool(groups.elements(group) & sizes) and groups.category[group] not in counted
        for group in range(len(groups.work))
    ]
    moved = sum(groups.work[group].bytes or 0 for group, one in enumerate(chosen) if one)
    largest = max(sizes)
    least = PASSES_OF_FUSED_LOSS * _BYTES_OF_LOGIT * largest
    kept = min(least / moved, 1.0) if moved else 1.0
    share = np.where(groups.where(chosen), 1 - kept, 0.0)
    rows, vocabulary = prod(logits[largest][:-1]), logits[largest][-1]
    return Change(what=Saves.FUSED_LOSS, share=share, size=f"{rows:,} × {vocabulary:,}")


_BYTES_OF_LOGIT = 2


def _with_merged_kernels(groups: Groups) -> Change | None:
    """A kernel that reads what the one before it wrote, in the same pass, need not read it."""
    calls, group = groups.calls, groups.alike.group
    merged = np.isin(calls.category, [number_of(name) for name in MEMORY_BOUND])
    inside = np.isin(calls.part, (Pass.FORWARD, Pass.BACKWARD, Pass.RECOMPUTATION))
    order = np.lexsort((calls.start_ns, calls.stream))
    first, second = order[:-1], order[1:]
    near = (calls.stream[first] == calls.stream[second]) & (calls.part[first] == calls.part[second])
    near &= merged[first] & merged[second] & inside[first] & (calls.row[first] != calls.row[second])
    share = np.zeros(len(group))
    pairs: dict[tuple[int, int], float] = {}
    for one, other in zip(first[near].tolist(), second[near].tolist(), strict=True):
        pair = int(group[one]), int(group[other])
        if pair not in pairs:
            pairs[pair] = _handed_over(groups, *pair)
        share[other] = pairs[pair]
    return Change(what=Saves.MERGED_KERNELS, share=share) if share.any() else None


def _handed_over(groups: Groups, first: int, second: int) -> float:
    """Share of the second operator's bytes that the first one wrote."""
    work, inputs = groups.work[second], groups.inputs[second]
    written = groups.work[first].written
    if not work.bytes or not written or inputs is None:
        return 0.0
    if any(groups.alike.names[one].startswith("triton_") for one in (first, second)):
        return 0.0
    sizes = [inputs.bytes(at) for at, size in enumerate(inputs.sizes) if size is not None]
    return written / work.bytes if written in sizes else 0.0
