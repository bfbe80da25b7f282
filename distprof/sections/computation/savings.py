"""What changes of the program would save of one rank's computation, kernel by kernel.

Each change is an estimate from the sizes of inputs: kernels that it removes save their whole time,
kernels that move less memory the same share of their time as of their bytes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import cache, partial
from math import prod
from statistics import median_low

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import EMPTY, Intervals, covered
from distprof.sections.computation import FP32_KERNELS, Pass, Region, Saves, Saving
from distprof.sections.computation.groups import MEMORY_BOUND, Change, Groups
from distprof.sections.computation.operators import KernelCalls
from distprof.sections.computation.recomputation import recomputed_regions, without_recomputation
from distprof.sections.context import RankContext


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """Savings of one rank."""

    groups: Groups  # Its kernels.
    spans: Mapping[str, Intervals]  # Key of a change to the time that it saves, a set; own clock.
    idle: Mapping[str, Intervals]  # Key to time between its kernels, a set.
    stats: tuple[Saving, ...]  # The same, summed up.
    regions: tuple[Region, ...]  # What one backward pass repeats.


def rank_savings(kernel_calls: KernelCalls | None, context: RankContext) -> Savings | None:
    """What each change would save on one rank; None if its computation is not explained."""
    if kernel_calls is None:
        return None
    groups = Groups(kernel_calls)
    regions = recomputed_regions(groups)
    changes = {Saves.NO_RECOMPUTATION: without_recomputation(groups, regions)}
    changes |= {what: change(groups) for what, change in _CHANGES.items()}
    counted = kernel_calls.counted_ns
    spans, idle, stats = {}, {}, []
    claimed = np.zeros(len(kernel_calls.row), np.bool_)
    for what, change in changes.items():
        if change is None or not change.share.any():
            continue
        share = np.where(claimed, 0.0, change.share)  # so that savings add up
        chosen = share > 0
        claimed |= chosen
        saved = np.rint(kernel_calls.own_ns * share).astype(np.int64)
        begins = kernel_calls.start_ns[saved > 0]
        spans[what] = Intervals(begins, begins + saved[saved > 0])
        # A profiler makes each launch longer: only without its cost is the time between real.
        is_real = change.ends_idling and context.is_corrected
        idle[what] = _between(kernel_calls, chosen) if is_real else EMPTY
        stats.append(
            Saving(
                what=what,
                spent_ns=int(counted[chosen].sum()),
                saved_ns=round(float((counted * share).sum())),
                idle_ns=int(covered(idle[what], context.windows).sum()),
                num_bytes=change.num_bytes,
                size=change.size,
            )
        )
    return Savings(groups=groups, spans=spans, idle=idle, stats=tuple(stats), regions=regions)


def _between(calls: KernelCalls, chosen: NDArray[np.bool_]) -> Intervals:
    """Time between two chosen kernels without another kernel between them."""
    ends = np.maximum.accumulate(calls.start_ns + calls.own_ns)
    gap = np.flatnonzero(chosen[:-1] & chosen[1:] & (calls.start_ns[1:] > ends[:-1]))
    return Intervals(ends[gap], calls.start_ns[gap + 1])


# Products, attention and loss ---------------------------------------------------------------------

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

ALIGNED = 8
"""Elements of 16 bits that tensor cores read at once: 16 bytes."""

PADDED = 64
"""Multiple to which a dimension is padded."""

LEAST_DIMENSION = 128
"""Products with a smaller dimension are slow for other reasons."""

COMPARABLE = 1 / 32
"""Share of the FLOP of a product from which others show the rate that it could have. The projection
to a vocabulary is often much larger than all others; smaller ones are slower, if anything."""

_SIXTEEN_BITS = ("c10::BFloat16", "c10::Half")


def _on_tensor_cores(groups: Groups) -> Change:
    chosen = groups.calls.kernels.finds(_FP32) & groups.is_a("gemm", "convolution")[groups.group]
    return Change(share=np.where(chosen, 1 - 1 / FP32_SPEED_UP, 0.0))


def _with_fused_attention(groups: Groups) -> Change | None:
    """Softmax of scores that a batched product made, and all that runs on tensors of this size."""
    scores = {
        prod(size): size
        for group in groups.named("_softmax", "_safe_softmax")
        if len(size := groups.tensor(group, 0)) >= _SCORES and min(size[-2:]) >= LEAST_SCORES
    }
    made: set[int] = set()
    products = []
    for group, (batch, rows, inner, columns) in groups.products("bmm", "baddbmm"):
        if inner <= LONGEST_HEAD:
            made.add(batch * rows * columns)
        products.append(
            (group, {batch * n for n in (rows * columns, rows * inner, inner * columns)})
        )
    sizes = made & scores.keys()
    if not sizes:
        return None
    share = groups.on(sizes).astype(float)
    for group, concerned in products:
        share[group] = PRODUCTS_OF_ATTENTION if concerned & sizes else 0.0
    return Change(share=share[groups.group], size=str(list(scores[max(sizes)])))


_SCORES = 3


def _with_fused_loss(groups: Groups) -> Change | None:
    """Logits over a vocabulary, which softmax, loss and casts read and write again and again."""
    logits = {
        prod(size): size
        for group in groups.named("_log_softmax", "_softmax")
        if (size := groups.tensor(group, 0)) and size[-1] >= LEAST_VOCABULARY
    }
    made = {rows * columns for _, (_, rows, _, columns) in groups.products("mm", "addmm")}
    sizes = made & logits.keys()
    if not sizes:
        return None
    chosen = groups.on(sizes) & ~groups.is_a("gemm", "attention")
    moved = sum(groups.work[group].bytes or 0 for group in np.flatnonzero(chosen))
    largest = max(sizes)
    least = PASSES_OF_FUSED_LOSS * _BYTES_OF_LOGIT * largest
    kept = min(least / moved, 1.0) if moved else 1.0
    rows, vocabulary = prod(logits[largest][:-1]), logits[largest][-1]
    share = np.where(chosen, 1 - kept, 0.0)
    return Change(share=share[groups.group], size=f"{rows:,} × {vocabulary:,}")


_BYTES_OF_LOGIT = 2


def _with_padded_products(groups: Groups) -> Change:
    """Products in 16 bits with a dimension that tensor cores cannot read in whole pieces.

    What aligned products of similar size reach is the rate after padding.
    """
    rate, is_product = groups.memory_rate, groups.is_a("gemm")
    calls, spent = groups.num_calls, groups.own_ns
    products = {
        group: dimensions
        for group, dimensions in groups.products("mm", "bmm", "addmm", "baddbmm")
        if is_product[group]
        and groups.inputs[group].first_type in _SIXTEEN_BITS
        and min(dimensions[1:]) >= LEAST_DIMENSION
        and spent[group] > 0
    }
    aligned = {one for one, size in products.items() if not any(n % ALIGNED for n in size[1:])}
    share = np.zeros(len(groups.work))
    worst, size = 0.0, ""
    for group in products.keys() - aligned:
        batch, *whole = products[group]
        padded = float(batch * prod(-(-n // PADDED) * PADDED for n in whole))
        similar = [one for one in aligned if prod(products[one]) >= COMPARABLE * padded]
        if not similar:
            continue
        done = sum(prod(products[one]) * float(calls[one]) for one in similar)
        needs = padded * float(sum(spent[one] for one in similar)) / done
        moved = groups.work[group].bytes
        needs = max(needs, moved / rate if moved and rate else 0.0) * float(calls[group])
        share[group] = max(0.0, 1 - needs / float(spent[group]))
        if share[group] * spent[group] > worst:
            worst = float(share[group] * spent[group])
            size = str(next(n for n in whole if n % ALIGNED))
    return Change(share=share[groups.group], size=size)


_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|convertTensor_kernel|batched_transpose_\d+x\d+")
"""Kernels around convolutions that change the order of channels."""


# Optimizer ----------------------------------------------------------------------------------------

_MANY_TENSORS = re.compile(r"(?i)multi_tensor|fused|triton_")

_ONE_TENSOR = (
    *("mul_", "add_", "lerp_", "addcmul_", "addcdiv_", "sub_", "div_", "sqrt_", "neg_", "maximum_"),
    *("mul", "add", "sub", "div", "sqrt", "sign", "maximum", "addcmul", "addcdiv", "lerp"),
)


def _with_fused_optimizer(groups: Groups) -> Change | None:
    """An optimizer that launches kernels per tensor: a fused one reads and writes each byte once.

    It reads the gradient, and reads and writes parameters and states.
    """
    rate = groups.memory_rate
    chosen = [
        group
        for group in groups.named(*_ONE_TENSOR)
        if groups.part[group] == Pass.OPTIMIZER
        and groups.tensor(group, 0)
        and not _MANY_TENSORS.search(groups.kernels[group])
    ]
    elements: dict[str, float] = defaultdict(float)
    for group in chosen:
        if (name := groups.operator(group)).endswith("_"):
            elements[name] += float(groups.num_calls[group]) * prod(groups.tensor(group, 0))
    spent = float(groups.own_ns[chosen].sum())
    if rate is None or not elements or not spent:
        return None
    states = 2 if "addcdiv_" in elements else int("mul_" in elements)
    width = max(groups.inputs[group].width for group in chosen)
    least = (_PARAMETER_AND_GRADIENT + 2 * states) * width * median_low(elements.values())
    where = np.isin(groups.group, chosen)
    return Change(share=np.where(where, max(0.0, 1 - least / rate / spent), 0.0), ends_idling=True)


_PARAMETER_AND_GRADIENT = 3


def _with_unset_gradients(groups: Groups) -> Change:
    """Gradients set to zero: their fills, and the additions of gradients to zeros."""
    calls, share = groups.num_calls, np.zeros(len(groups.work))
    filled: Counter[tuple[int, ...]] = Counter()
    for group in groups.named("zero_", "fill_", "_foreach_zero_"):
        if groups.part[group] == Pass.OPTIMIZER:
            filled[groups.tensor(group, 0)] += int(calls[group])
            share[group] = 1.0
    for group in groups.named("add_"):
        size = groups.tensor(group, 0)
        is_gradient = groups.part[group] == Pass.BACKWARD and size in filled
        if is_gradient and size == groups.tensor(group, 1):
            share[group] = min(1.0, filled[size] / max(int(calls[group]), 1))
    return Change(share=share[groups.group])


# Kernels bound by memory --------------------------------------------------------------------------

HOT_SPOT = 2.0
"""Times the traffic of memory from which indexing is a hot spot."""

_INDEXED = (
    *("embedding_dense_backward", "_index_put_impl_", "scatter_add_", "scatter_add"),
    *("index_add_", "index_add", "gather"),
)


def _with_spread_indices(groups: Groups) -> Change | None:
    """Indexing that takes much longer than its traffic, as if rows met at the same address."""
    rate = groups.memory_rate
    if rate is None:
        return None
    moved, spent = groups.moved, groups.own_ns
    share = np.zeros(len(groups.work))
    for group in groups.named(*_INDEXED):
        if moved[group] and spent[group] >= HOT_SPOT * moved[group] / rate:
            share[group] = 1 - moved[group] / rate / spent[group]
    longest = groups.names[int(np.argmax(np.where(share > 0, spent, 0)))]
    return Change(share=share[groups.group], size=longest.removeprefix("aten::"))


_RANDOM = ("bernoulli_", "uniform_", "normal_", "random_", "exponential_")

_LONGEST_CHAIN = 4


def _with_fused_dropout(groups: Groups) -> Change:
    """Random numbers of a kernel of their own, and the kernels that make a mask of them.

    Dropout in one kernel reads its input, and writes its output and a mask of one byte.
    """
    group_of, share = groups.group.tolist(), np.zeros(len(groups.group))
    random, fits = list(groups.named(*_RANDOM)), groups.is_a("elementwise", "random")
    fits[random] = False
    for at, later in groups.followed(random, _LONGEST_CHAIN):
        first = group_of[at]
        size = groups.tensor(first, 0)
        if groups.part[first] == Pass.OPTIMIZER or not size:
            continue
        chain = []
        for kernel in later:
            if not fits[group_of[kernel]] or groups.tensor(group_of[kernel], 0) != size:
                break
            chain.append(kernel)
        if not chain:
            continue
        rest, number = [group_of[kernel] for kernel in chain], prod(size)
        width = min(groups.inputs[one].width for one in rest)
        moved = sum(groups.work[one].bytes or 0 for one in rest)
        moved += number * groups.inputs[first].width
        share[[at, *chain]] = max(0.0, 1 - number * (2 * width + 1) / moved) if moved else 0.0
    return Change(share=share)


def _with_narrow_casts(groups: Groups) -> Change:
    """Casts to fp32 and back around small kernels: both casts, and half of the bytes between."""
    part, group_of = groups.calls.part, groups.group.tolist()
    casts = {group: _cast(groups, group) for group in groups.named("copy_")}
    is_small, share = groups.is_a(*MEMORY_BOUND), np.zeros(len(group_of))
    up = [
        group
        for group, (before, after, _) in casts.items()
        if before in _SIXTEEN_BITS and after == "float" and groups.tensor(group, 0)
    ]
    for at, later in groups.followed(up, _LONGEST_CHAIN + 1):
        before, after, number = casts[group_of[at]]
        inside: list[int] = []
        for kernel in later:
            group = group_of[kernel]
            if part[kernel] != part[at]:
                break
            if inside and casts.get(group) == (after, before, number):
                share[[at, kernel]] = 1.0
                share[inside] = np.maximum(share[inside], 0.5)
                break
            if not is_small[group] or number not in groups.inputs[group].elements:
                break
            inside.append(kernel)
    return Change(share=share)


def _cast(groups: Groups, group: int) -> tuple[str, str, int]:
    """Type before and after a copy, empty if unknown, and number of elements."""
    after, before, *_ = (*groups.inputs[group].types, "", "")
    return before, after, prod(groups.tensor(group, 0))


def _with_merged_kernels(groups: Groups) -> Change:
    """A kernel that reads what the one before it wrote, in the same pass, need not read it."""
    calls, group = groups.calls, groups.group
    merged = groups.is_a(*MEMORY_BOUND)[group]
    merged &= np.isin(calls.part, (Pass.FORWARD, Pass.BACKWARD, Pass.RECOMPUTATION))
    order = np.lexsort((calls.start_ns, calls.stream))
    first, second = order[:-1], order[1:]
    near = (calls.stream[first] == calls.stream[second]) & (calls.part[first] == calls.part[second])
    near &= merged[first] & merged[second] & (calls.row[first] != calls.row[second])
    share, handed_over = np.zeros(len(group)), cache(partial(_handed_over, groups))
    for one, other in zip(first[near].tolist(), second[near].tolist(), strict=True):
        share[other] = handed_over(int(group[one]), int(group[other]))
    return Change(share=share)


def _handed_over(groups: Groups, first: int, second: int) -> float:
    """Share of the second operator's bytes that the first one wrote."""
    work, inputs = groups.work[second], groups.inputs[second]
    written = groups.work[first].written
    if not work.bytes or not written:
        return 0.0
    if any(groups.names[one].startswith("triton_") for one in (first, second)):
        return 0.0
    sizes = [inputs.bytes(at) for at, size in enumerate(inputs.sizes) if size is not None]
    return written / work.bytes if written in sizes else 0.0


_CHANGES: Mapping[str, Callable[[Groups], Change | None]] = {
    Saves.FUSED_ATTENTION: _with_fused_attention,
    Saves.TENSOR_CORES: _on_tensor_cores,
    Saves.FUSED_LOSS: _with_fused_loss,
    Saves.PADDED_PRODUCTS: _with_padded_products,
    Saves.ONE_LAYOUT: lambda g: Change(share=g.calls.kernels.finds(_LAYOUT).astype(float)),
    Saves.FUSED_OPTIMIZER: _with_fused_optimizer,
    Saves.UNSET_GRADIENTS: _with_unset_gradients,
    Saves.SPREAD_INDICES: _with_spread_indices,
    Saves.FUSED_DROPOUT: _with_fused_dropout,
    Saves.NARROW_CASTS: _with_narrow_casts,
    Saves.MERGED_KERNELS: _with_merged_kernels,
}
"""Each change in the order in which kernels count for it: a kernel counts for the first one."""
