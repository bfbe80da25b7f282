"""Work of one rank that the same training does not need, or that it could do with fewer bytes."""

from __future__ import annotations

import re
from math import prod
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from distprof.costs.operators import Inputs
from distprof.sections.computation import Pass, Saves
from distprof.sections.computation.categories import number_of
from distprof.sections.computation.groups import MEMORY_BOUND, Change, Groups

ALIGNED = 8
"""Elements of 16 bits that tensor cores read at once: 16 bytes."""

PADDED = 64
"""Multiple to which a dimension is padded."""

LEAST_DIMENSION = 128
"""Products with a smaller dimension are slow for other reasons."""

COMPARABLE = 1 / 32
"""Share of the FLOP of a product from which others show the rate that it could have. The projection
to a vocabulary is often much larger than all others; smaller ones are slower, if anything."""

HOT_SPOT = 2.0
"""Times the traffic of memory from which indexing is a hot spot."""

_SIXTEEN_BITS = ("c10::BFloat16", "c10::Half")

_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|convertTensor_kernel|batched_transpose_\d+x\d+")

_MANY_TENSORS = re.compile(r"(?i)multi_tensor|fused|triton_")

_ONE_TENSOR = (
    *("mul_", "add_", "lerp_", "addcmul_", "addcdiv_", "sub_", "div_", "sqrt_", "neg_", "maximum_"),
    *("mul", "add", "sub", "div", "sqrt", "sign", "maximum", "addcmul", "addcdiv", "lerp"),
)

_RANDOM = ("bernoulli_", "uniform_", "normal_", "random_", "exponential_")

_INDEXED = (
    *("embedding_dense_backward", "_index_put_impl_", "scatter_add_", "scatter_add"),
    *("index_add_", "index_add", "gather"),
)


def with_fused_optimizer(groups: Groups) -> Change | None:
    """An optimizer that launches kernels per tensor: a fused one reads and writes each byte once.

    It reads the gradient, and reads and writes parameters and states.
    """
    rate = groups.memory_rate
    chosen = [
        group
        for group in groups.named(*_ONE_TENSOR)
        if groups.part[group] == Pass.OPTIMIZER
        and groups.tensor(group, 0)
        and not _MANY_TENSORS.search(groups.kernel(group))
    ]
    if not chosen or rate is None:
        return None
    calls = groups.num_calls
    elements: dict[str, float] = {}
    for group in chosen:
        name = groups.operator(group)
        if name.endswith("_"):
            number = float(calls[group]) * prod(groups.tensor(group, 0))
            elements[name] = elements.get(name, 0.0) + number
    if not elements:
        return None
    states = 2 if "addcdiv_" in elements else int("mul_" in elements)
    width = max(groups.width(group) for group in chosen)
    least = (_PARAMETER_AND_GRADIENT + 2 * states) * width * median_low(elements.values())
    spent = float(groups.own_ns[chosen].sum())
    share = max(0.0, 1 - least / rate / spent) if spent else 0.0
    where = np.isin(groups.alike.group, chosen)
    return Change(what=Saves.FUSED_OPTIMIZER, share=np.where(where, share, 0.0), ends_idling=True)


_PARAMETER_AND_GRADIENT = 3


def with_unset_gradients(groups: Groups) -> Change | None:
    """Gradients set to zero: their fills, and the additions of gradients to zeros."""
    fills = [
        group
        for group in groups.named("zero_", "fill_", "_foreach_zero_")
        if groups.part[group] == Pass.OPTIMIZER
    ]
    if not fills:
        return None
    calls = groups.num_calls
    filled: dict[tuple[int, ...], int] = {}
    for group in fills:
        size = groups.tensor(group, 0)
        filled[size] = filled.get(size, 0) + int(calls[group])
    share = np.zeros(len(groups.work))
    share[fills] = 1.0
    for group in groups.named("add_"):
        size = groups.tensor(group, 0)
        is_gradient = groups.part[group] == Pass.BACKWARD and size in filled
        if is_gradient and size == groups.tensor(group, 1):
            share[group] = min(1.0, filled[size] / max(int(calls[group]), 1))
    return _change(Saves.UNSET_GRADIENTS, share[groups.alike.group])


def with_one_layout(groups: Groups) -> Change | None:
    """Kernels around convolutions that change the order of channels."""
    names = groups.calls.kernel_names
    chosen = np.array([bool(_LAYOUT.search(name)) for name in names], np.bool_)
    return _change(Saves.ONE_LAYOUT, chosen[groups.calls.kernel].astype(float))


def with_padded_products(groups: Groups) -> Change | None:
    """Products in 16 bits with a dimension that tensor cores cannot read in whole pieces.

    What aligned products of similar size and of the same pass reach is the rate after padding.
    """
    rate = groups.memory_rate
    calls, spent = groups.num_calls, groups.own_ns
    products = {
        group: dimensions
        for group in range(len(groups.work))
        if groups.category[group] == number_of("gemm")
        and (dimensions := _dimensions(groups, group))
        and min(dimensions[1:]) >= LEAST_DIMENSION
        and spent[group] > 0
    }
    aligned = {one for one, size in products.items() if not any(n % ALIGNED for n in size[1:])}
    share = np.zeros(len(groups.work))
    worst, size = 0.0, ""
    for group in products.keys() - aligned:
        batch, *whole = products[group]
        flop = 2.0 * batch * prod(-(-n // PADDED) * PADDED for n in whole)
        similar = [one for one in aligned if _flop(products[one]) >= COMPARABLE * flop]
        if not similar:
            continue
        done = sum(_flop(products[one]) * float(calls[one]) for one in similar)
        needs = flop * float(sum(spent[one] for one in similar)) / done
        moved = groups.work[group].bytes
        needs = max(needs, moved / rate if moved and rate else 0.0) * float(calls[group])
        share[group] = max(0.0, 1 - needs / float(spent[group]))
        if share[group] * spent[group] > worst:
            worst = float(share[group] * spent[group])
            size = str(next(n for n in whole if n % ALIGNED))
    return _change(Saves.PADDED_PRODUCTS, share[groups.alike.group], size)


def _dimensions(groups: Groups, group: int) -> tuple[int, int, int, int] | None:
    """Batch, rows, inner and columns of a product in 16 bits."""
    inputs = groups.inputs[group]
    name = groups.operator(group)
    at = int(name in ("addmm", "baddbmm"))
    if inputs is None or name not in ("mm", "bmm", "addmm", "baddbmm"):
        return None
    first, second = groups.tensor(group, at), groups.tensor(group, at + 1)
    if len(first) < _MATRIX or len(second) < _MATRIX or inputs.first_type not in _SIXTEEN_BITS:
        return None
    return prod(first[:-2]), first[-2], first[-1], second[-1]


_MATRIX = 2


def _flop(dimensions: tuple[int, int, int, int]) -> float:
    return 2.0 * prod(dimensions)


def with_spread_indices(groups: Groups) -> Change | None:
    """Indexing that takes much longer than its traffic, as if rows met at the same address."""
    rate = groups.memory_rate
    if rate is None:
        return None
    moved, spent = groups.moved, groups.own_ns
    share, name, worst = np.zeros(len(groups.work)), "", 0.0
    for group in groups.named(*_INDEXED):
        if moved[group] and spent[group] >= HOT_SPOT * moved[group] / rate:
            share[group] = 1 - moved[group] / rate / spent[group]
            if spent[group] > worst:
                worst, name = float(spent[group]), groups.alike.names[group]
    return _change(Saves.SPREAD_INDICES, share[groups.alike.group], name.removeprefix("aten::"))


def with_fused_dropout(groups: Groups) -> Change | None:
    """Random numbers of a kernel of their own, and the kernels that make a mask of them.

    Dropout in one kernel reads its input, and writes its output and a mask of one byte.
    """
    group_of, share = groups.alike.group, np.zeros(len(groups.alike.group))
    elementwise = {number_of("elementwise"), number_of("random")}
    random = set(groups.named(*_RANDOM))
    order, places = groups.in_order(random)
    for place in places:
        at = order[place]
        first = int(group_of[at])
        size = groups.tensor(first, 0)
        if groups.part[first] == Pass.OPTIMIZER or not size:
            continue
        chain = [at]
        for later in order[place + 1 : place + 1 + _LONGEST_CHAIN]:
            group = int(group_of[later])
            if groups.calls.stream[later] != groups.calls.stream[at] or group in random:
                break
            if groups.category[group] not in elementwise or groups.tensor(group, 0) != size:
                break
            chain.append(later)
        if len(chain) == 1:
            continue
        whole = [int(group_of[one]) for one in chain]
        width = min(groups.width(group) for group in whole[1:])
        number = prod(size)
        moved = number * groups.width(first) + sum(groups.work[one].bytes or 0 for one in whole[1:])
        share[chain] = max(0.0, 1 - number * (2 * width + 1) / moved) if moved else 0.0
    return _change(Saves.FUSED_DROPOUT, share)


_LONGEST_CHAIN = 4


def with_narrow_casts(groups: Groups) -> Change | None:
    """Casts to fp32 and back around small kernels: both casts, and half of the bytes between."""
    calls, group_of = groups.calls, groups.alike.group
    casts = {
        group: cast
        for group in groups.named("copy_")
        if (cast := _cast(groups.inputs[group])) is not None
    }
    between = {number_of(name) for name in MEMORY_BOUND}
    share = np.zeros(len(group_of))
    up = [one for one, cast in casts.items() if cast[0] in _SIXTEEN_BITS and cast[1] == "float"]
    order, places = groups.in_order(up)
    for place in places:
        at = order[place]
        cast = casts[int(group_of[at])]
        inside: list[int] = []
        for later in order[place + 1 : place + 2 + _LONGEST_CHAIN]:
            group = int(group_of[later])
            if calls.stream[later] != calls.stream[at] or calls.part[later] != calls.part[at]:
                break
            if inside and casts.get(group) == (cast[1], cast[0], cast[2]):
                share[[at, later]] = 1.0
                share[inside] = np.maximum(share[inside], _HALF)
                break
            if groups.category[group] not in between or cast[2] not in groups.elements(group):
                break
            inside.append(later)
    return _change(Saves.NARROW_CASTS, share)


_HALF = 0.5


def _cast(inputs: Inputs | None) -> tuple[str, str, int] | None:
    """Type before and after, and number of elements; None for a copy that changes no type."""
    if inputs is None or len(inputs.sizes) < _MATRIX or not inputs.sizes[0]:
        return None
    after, before = inputs.types[:2]
    return (before, after, prod(inputs.sizes[0])) if before != after else None


def _change(what: str, share: NDArray[np.float64], size: str = "") -> Change | None:
    return Change(what=what, share=share, size=size) if share.any() else None
