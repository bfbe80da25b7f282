"""Groups of alike kernels of one rank, and what a change saves of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.costs.operators import Inputs, Size, Work, parse_inputs, work_of
from distprof.run.tables import DistinctRows, runs_of
from distprof.sections.computation.categories import number_of
from distprof.sections.computation.operators import KernelCalls
from distprof.sections.computation.shapes import tensors

MEMORY_BOUND = ("elementwise", "copy", "random", "normalisation", "reduction", "softmax")

_OF_LARGEST = 0.5
"""Share of the bytes of the largest transfer from which the launch hardly counts."""


class Groups:
    """Kernels that have operator, inputs, category and pass in common."""

    def __init__(self, calls: KernelCalls) -> None:
        self.calls = calls
        names = calls.host.coded("name")
        known = calls.row >= 0
        shown = len(names.values) + calls.kernels.codes.astype(np.int64)
        shown[known] = names.codes[calls.row[known]]
        given = np.zeros(len(shown), np.int64)
        given[known] = calls.inputs.codes[known] + 1
        _, group = DistinctRows().of((shown, given, calls.category, calls.part))
        order = np.lexsort((-calls.counted_ns, group))
        size = len(calls.host) + len(known)
        call = np.where(known, calls.row, len(calls.host) + np.arange(len(known)))
        texts, inputs = (*names.values, *calls.kernels.values), ("", *calls.inputs.values)
        self.group = group  # Group of each kernel.
        self.longest = order[runs_of(group[order])[0]]  # The longest kernel of each group.
        self.kernels = calls.kernels.take(self.longest).decode()  # Their names.
        # Operators of each group, or kernels without an operator; their names and HOST's inputs.
        self.num_calls = np.bincount(np.unique(group * size + call) // size)
        self.names: tuple[str, ...] = tuple(texts[code] for code in shown[self.longest].tolist())
        self.given = tuple(inputs[code] for code in given[self.longest].tolist())
        self.category, self.part = calls.category[self.longest], calls.part[self.longest]

    @cached_property
    def inputs(self) -> tuple[Inputs, ...]:
        """The inputs of each group."""
        return tuple(map(parse_inputs, self.given))

    @cached_property
    def work(self) -> tuple[Work, ...]:
        """FLOP and bytes of one call of each group."""
        return tuple(map(work_of, self.names, self.given))

    @cached_property
    def own_ns(self) -> NDArray[np.float64]:
        """Time of the kernels of each group."""
        return np.bincount(self.group, self.calls.own_ns, len(self.names)).astype(np.float64)

    @cached_property
    def moved(self) -> NDArray[np.float64]:
        """Bytes of all calls of each group; 0 where they are unknown."""
        each = np.array([one.bytes or 0 for one in self.work])
        return np.asarray(self.num_calls * each, np.float64)

    @cached_property
    def memory_rate(self) -> float | None:
        """Bytes per ns that the largest transfers reach; None if no sizes are known."""
        known = self.is_a(*MEMORY_BOUND, "optimizer") & (self.moved > 0) & (self.own_ns > 0)
        if not known.any():
            return None
        each = self.moved / self.num_calls
        known &= each >= _OF_LARGEST * each[known].max()
        return float((self.moved[known] / self.own_ns[known]).max())

    def is_a(self, *categories: str) -> NDArray[np.bool_]:
        """Whether each group is of one of these categories."""
        return np.isin(self.category, [number_of(name) for name in categories])

    def on(self, sizes: set[int]) -> NDArray[np.bool_]:
        """Whether each group gets a tensor with one of these numbers of elements."""
        return np.array([not sizes.isdisjoint(inputs.elements) for inputs in self.inputs])

    def named(self, *names: str) -> Iterator[int]:
        """Groups of operators that end with one of these names."""
        return (group for group in range(len(self.names)) if self.operator(group) in names)

    def operator(self, group: int) -> str:
        """Its name without the library."""
        return self.names[group].rpartition("::")[2]

    def call(self, group: int) -> str:
        """Its name with its tensors, for example ``aten::mm on bf16[8, 4] · bf16[4, 2]``."""
        sizes = " · ".join(tensors(self.given[group]))
        return f"{self.names[group]} on {sizes}" if sizes else self.names[group]

    def followed(self, chosen: Iterable[int], most: int) -> Iterator[tuple[int, list[int]]]:
        """Kernels of some groups, each with the next ones of its stream."""
        order = np.lexsort((self.calls.start_ns, self.calls.stream))
        stream = self.calls.stream[order]
        places = np.flatnonzero(np.isin(self.group[order], list(chosen)))
        ends = np.minimum(np.searchsorted(stream, stream[places], "right"), places + 1 + most)
        ordered = order.tolist()
        for place, end in zip(places.tolist(), ends.tolist(), strict=True):
            yield ordered[place], ordered[place + 1 : end]

    def products(self, *names: str) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        """Products by these operators with their batch, rows, inner dimension and columns."""
        for group in self.named(*names):
            at = int("add" in self.operator(group))
            first, second = self.tensor(group, at), self.tensor(group, at + 1)
            if len(first) >= _MATRIX and len(second) >= _MATRIX:
                yield group, (prod(first[:-2]), first[-2], first[-1], second[-1])

    def tensor(self, group: int, at: int) -> Size:
        """Size of an input; empty if unknown."""
        sizes = self.inputs[group].sizes
        return (sizes[at] if at < len(sizes) else None) or ()


_MATRIX = 2


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a change saves of each kernel."""

    share: NDArray[np.float64]  # Of each kernel's time.
    num_bytes: int | None = None
    size: str = ""
    ends_idling: bool = False  # Whether idle time between its kernels goes as well.
