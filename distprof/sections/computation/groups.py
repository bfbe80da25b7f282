"""Groups of alike kernels of one rank, and what a change saves of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.costs.operators import Inputs, Size, Work, element_bytes, parse_inputs, work_of
from distprof.sections.computation.categories import number_of
from distprof.sections.computation.operators import Alike, KernelCalls
from distprof.sections.computation.shapes import tensors

MEMORY_BOUND = ("elementwise", "copy", "random", "normalisation", "reduction", "softmax")

_OF_LARGEST = 0.5
"""Share of the bytes of the largest transfer from which the launch hardly counts."""


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of each group of alike kernels."""

    calls: KernelCalls
    alike: Alike
    inputs: tuple[Inputs | None, ...]
    work: tuple[Work, ...]
    category: NDArray[np.int32]
    part: NDArray[np.int32]
    num_calls: NDArray[np.int64]  # Operators.
    own_ns: NDArray[np.float64]  # Time of their kernels.
    moved: NDArray[np.float64]  # Bytes of all calls; 0 where they are unknown.

    @staticmethod
    def of(calls: KernelCalls) -> Groups:
        """The groups of one rank."""
        alike = Alike.of(calls)
        work = tuple(map(work_of, alike.names, alike.inputs))
        pairs = np.unique(np.stack((alike.group, calls.row)), axis=1)
        num_calls = np.bincount(pairs[0], minlength=len(work)).astype(np.int64)
        return Groups(
            calls=calls,
            alike=alike,
            inputs=tuple(map(parse_inputs, alike.inputs)),
            work=work,
            category=calls.category[alike.longest],
            part=calls.part[alike.longest],
            num_calls=num_calls,
            own_ns=np.bincount(alike.group, calls.own_ns, len(work)).astype(np.float64),
            moved=(num_calls * np.array([one.bytes or 0 for one in work])).astype(np.float64),
        )

    @property
    def memory_rate(self) -> float | None:
        """Bytes per ns that the largest transfers reach; None if no sizes are known."""
        known = np.isin(self.category, [number_of(name) for name in (*MEMORY_BOUND, "optimizer")])
        known &= (self.moved > 0) & (self.own_ns > 0)
        if not known.any():
            return None
        each = self.moved / np.maximum(self.num_calls, 1)
        known &= each >= _OF_LARGEST * each[known].max()
        return float((self.moved[known] / self.own_ns[known]).max())

    def where(self, chosen: list[bool]) -> NDArray[np.bool_]:
        """Mask of the kernels of some groups."""
        return np.array(chosen, np.bool_)[self.alike.group]

    def named(self, *names: str) -> Iterator[int]:
        """Groups of operators that end with one of these names."""
        for group, name in enumerate(self.alike.names):
            if name.rpartition("::")[2] in names:
                yield group

    def operator(self, group: int) -> str:
        """Its name without the library."""
        return self.alike.names[group].rpartition("::")[2]

    def call(self, group: int) -> str:
        """Its name with its tensors, for example ``aten::mm on bf16[8, 4] · bf16[4, 2]``."""
        sizes = " · ".join(tensors(self.alike.inputs[group]))
        return f"{self.alike.names[group]} on {sizes}" if sizes else self.alike.names[group]

    def kernel(self, group: int) -> str:
        """Name of its longest kernel."""
        return self.calls.kernel_names[int(self.calls.kernel[self.alike.longest[group]])]

    def in_order(self, chosen: Iterable[int]) -> tuple[list[int], list[int]]:
        """Kernels stream by stream, and the places in this order of those of some groups."""
        order = np.lexsort((self.calls.start_ns, self.calls.stream))
        places = np.flatnonzero(np.isin(self.alike.group[order], list(chosen)))
        return order.tolist(), places.tolist()

    def width(self, group: int) -> int:
        """Bytes per element of the first tensor; 0 if unknown."""
        inputs = self.inputs[group]
        return 0 if inputs is None else element_bytes(inputs.first_type)

    def elements(self, group: int) -> set[int]:
        """Number of elements of each tensor among the inputs."""
        inputs = self.inputs[group]
        return {prod(size) for size in inputs.sizes if size} if inputs is not None else set()

    def tensor(self, group: int, at: int) -> Size:
        """Size of an input; empty if unknown."""
        inputs = self.inputs[group]
        known = inputs is not None and len(inputs.sizes) > at
        return (inputs.sizes[at] or ()) if inputs is not None and known else ()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a change saves of each kernel."""

    what: str
    share: NDArray[np.float64]  # Of each kernel's time.
    num_bytes: int | None = None
    size: str = ""
    ends_idling: bool = False  # Whether idle time between its kernels goes as well.
