"""Chooses the optimizer whose updates count as training steps."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 64


@dataclass(slots=True)
class StepClock:
    """The first optimizer seen owns the clock; steps of the others are only counted.

    An optimizer that wraps another (ZeroRedundancyOptimizer) steps around it, so the outer one is
    seen first and the step is counted once. Gradient accumulation needs no special case: the
    optimizer steps once per update. Another optimizer takes the clock when the owner is gone, or
    has not stepped for ``PATIENCE`` steps of the others.

    An update may take several calls of ``step``: DeepSpeed's ZeRO calls it once for each parameter
    group. Calls with no new gradients between them, each for other parameters, are one update.
    Their number is known only from the previous update: the clock ticks after as many calls.
    """

    # Steps of other optimizers, by class name.
    num_others: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)  # One sentence for each change of owner.
    _owner: weakref.ref[object] | None = None
    _since: int = 0
    _stepped: set[int] = field(default_factory=set)
    _has_new_gradients: bool = False
    _num_calls: int = 0
    _num_expected: int = 1

    def begins(self, optimizer: object, stepped: Iterable[int] = ()) -> bool:
        """An optimizer's step starts: the first optimizer seen becomes the owner.

        A mark in ``stepped`` that repeats begins another update. Returns whether an update had
        ended before its expected number of calls.
        """
        if self._owner is None:
            self._owner = weakref.ref(optimizer)
        elif self._owner() is None:
            self._hand_over(optimizer, "the followed optimizer is gone")
        if self._owner() is not optimizer:
            return False
        marks = set(stepped)
        is_next = self._has_new_gradients or not marks or not self._stepped.isdisjoint(marks)
        was_short = is_next and self._ends_update()
        self._stepped |= marks
        return was_short

    def new_gradients(self) -> bool:
        """Gradients are about to be computed, so the calls of the previous update are over.

        Returns whether it had ended before its expected number of calls.
        """
        self._has_new_gradients = True
        return self._ends_update()

    def ticks(self, optimizer: object) -> bool:
        """An optimizer's step has ended. Returns whether that ends a training step."""
        if self._owner is not None and self._owner() is optimizer:
            self._since = 0
            self._has_new_gradients = False
            self._num_calls += 1
            return self._num_calls == self._num_expected
        self.num_others[type(optimizer).__name__] += 1
        self._since += 1
        if self._since < PATIENCE:
            return False
        self._hand_over(optimizer, f"the followed optimizer did not step for {PATIENCE}")
        self._num_calls = 1
        return True

    def _ends_update(self) -> bool:
        """Reset the calls of an update. Returns whether they were fewer than expected."""
        num_calls, self._num_calls = self._num_calls, 0
        self._stepped.clear()
        if not num_calls:
            return False
        was_short = num_calls < self._num_expected
        self._num_expected = num_calls
        return was_short

    def _hand_over(self, optimizer: object, why: str) -> None:
        self._owner = weakref.ref(optimizer)
        self._since = 0
        self._stepped.clear()
        self._num_calls, self._num_expected = 0, 1
        if len(self.notes) < 8:
            self.notes.append(f"{why}; steps are now counted by {type(optimizer).__name__}.")


def stepped_by(optimizer: Any) -> list[int]:
    """Marks of the parameters that a ``step`` updates: the first tensor with a gradient per group.

    One tensor per group is enough, and costs no more for a model with many parameters. Optimizers
    that need no gradients are marked by the first tensor of each group.
    """
    try:
        groups = [group["params"] for group in optimizer.param_groups if group["params"]]
        firsts = [next((p for p in tensors if p.grad is not None), None) for tensors in groups]
    except (AttributeError, KeyError, TypeError):  # an optimizer with its own data structure
        return []
    marked = [first for first in firsts if first is not None]
    return [id(tensor) for tensor in marked or [tensors[0] for tensors in groups]]
