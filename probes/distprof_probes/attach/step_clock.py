"""Chooses the optimizer whose steps count as training steps."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field

__all__ = ["StepClock"]

PATIENCE = 64


@dataclass(slots=True)
class StepClock:
    """The first optimizer seen owns the clock; steps of the others are only counted.

    An optimizer that wraps another (ZeroRedundancyOptimizer) steps around it, so the outer one is
    seen first and the step is counted once. Gradient accumulation needs no special case: the
    optimizer steps once per update. Another optimizer takes the clock when the owner is gone, or
    has not stepped for ``PATIENCE`` steps of the others.

    Args:
        num_others: Steps of other optimizers, by class name.
        notes: One sentence for each change of owner.
    """

    num_others: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    _owner: weakref.ref[object] | None = None
    _since: int = 0

    def begins(self, optimizer: object) -> None:
        """An optimizer's step starts: the first optimizer seen becomes the owner."""
        if self._owner is None:
            self._owner = weakref.ref(optimizer)
        elif self._owner() is None:
            self._hand_over(optimizer, "the followed optimizer is gone")

    def ticks(self, optimizer: object) -> bool:
        """An optimizer's step ended; returns whether that ends a step of the training."""
        if self._owner is not None and self._owner() is optimizer:
            self._since = 0
            return True
        self.num_others[type(optimizer).__name__] += 1
        self._since += 1
        if self._since < PATIENCE:
            return False
        self._hand_over(optimizer, f"the followed optimizer did not step for {PATIENCE}")
        return True

    def _hand_over(self, optimizer: object, why: str) -> None:
        self._owner = weakref.ref(optimizer)
        self._since = 0
        if len(self.notes) < 8:
            self.notes.append(f"{why}; steps are now counted by {type(optimizer).__name__}.")
