"""The last steps of all ranks, and the collectives of GPU ranks in them, as far as reported."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.records import CollectivesRecord, GroupTimes, StepRecord
from distprof.join.gpu_waits import bounded_groups
from distprof.units import NS_PER_S
from distprof.verbs.watch.slowness import WINDOW

CAPACITY: Final = 128
"""Number of steps that are kept; ranks that are further behind count as silent.

As many steps at most wait for the collectives of all ranks."""

PATIENCE_NS: Final = 5 * NS_PER_S
"""A step is complete when all living ranks have reported it, or most are this far past it."""

FIELDS: Final = (
    *("step_ns", "cpu_ns", "queue_ns", "asleep_ns"),
    *("input_ns", "tokens", "gpu_behind"),
)

INPUT: Final = "input"

_MOST_NS = 1 << 62
_MOST_STEPS = 1 << 53
_MOST_AHEAD = 100_000  # steps: a rank that claims to be further ahead is wrong


class StepTable:
    """A ring buffer of steps, with a column per rank."""

    def __init__(self) -> None:
        self.ranks: list[int] = []  # Global rank of each column.
        # Last step that each column has reported; -1 before the first.
        self.last_step: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        # End of that step on the rank's own clock, ns since the epoch; 0 before the first.
        self.ended_ns: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        # The last steps that were returned as complete.
        self.done: deque[int] = deque(maxlen=WINDOW)
        self._column_of: dict[int, int] = {}
        self._values = {name: np.empty((CAPACITY, 0), dtype=np.float32) for name in FIELDS}
        self._numbers = np.full(CAPACITY, -1, dtype=np.int64)
        self._first_end_ns = np.zeros(CAPACITY, dtype=np.int64)
        self._is_traced = np.zeros(CAPACITY, dtype=np.bool_)
        self._next = 0

    def know(self, ranks: Sequence[int]) -> None:
        """Add columns for new ranks."""
        new = [rank for rank in ranks if rank not in self._column_of]
        if not new:
            return
        self._column_of |= {rank: len(self.ranks) + i for i, rank in enumerate(new)}
        self.ranks += new
        self.last_step = np.append(self.last_step, np.full(len(new), -1))
        self.ended_ns = np.append(self.ended_ns, np.zeros(len(new), dtype=np.int64))
        for name, values in self._values.items():
            self._values[name] = np.pad(values, ((0, 0), (0, len(new))), constant_values=np.nan)

    def column(self, rank: int) -> int:
        """The column of a rank."""
        return self._column_of[rank]

    def add(self, rank: int, record: StepRecord) -> None:
        """Add one step of a rank; steps older than the ring are ignored."""
        column, slot = self.column(rank), record.step % CAPACITY
        duration = record.end_ns - record.start_ns
        most = self._next + _MOST_AHEAD if self._next else _MOST_STEPS
        is_sane = 0 <= record.step < most and 0 < duration <= record.end_ns < _MOST_NS
        if not is_sane or record.step < self._numbers[slot]:
            return
        if record.step > self._numbers[slot]:
            self._clear(slot, record)
        self.last_step[column] = max(self.last_step[column], record.step)
        self.ended_ns[column] = record.end_ns
        self._is_traced[slot] |= record.is_traced
        row = {
            "step_ns": duration,
            "cpu_ns": record.cpu_ns,
            "queue_ns": record.run_queue_ns,
            "asleep_ns": record.input_asleep_ns or 0,
            "input_ns": sum(p.end_ns - p.start_ns for p in record.phases if p.name == INPUT),
            "tokens": record.tokens,
            "gpu_behind": None if record.gpu_behind is None else int(record.gpu_behind),
        }
        for name, value in row.items():
            if value is not None:
                self._values[name][slot, column] = min(max(value, 0), _MOST_NS)

    def add_input(self, rank: int, step: int, waited_ns: int) -> None:
        """Add a wait for input that is not part of a phase of that step."""
        slot = step % CAPACITY
        if self._numbers[slot] == step and waited_ns > 0:
            self._values["input_ns"][slot, self.column(rank)] += min(waited_ns, _MOST_NS)

    @property
    def usual_end_ns(self) -> int:
        """Median end of the ranks' last steps, ns since the epoch; 0 if there are none."""
        known = self.ended_ns[self.ended_ns > 0]
        return int(np.median(known)) if known.size else 0

    def complete(self, living: NDArray[np.bool_]) -> Iterator[int]:
        """Steps that have become complete, in ascending order, each once."""
        newest, reached_ns = self._newest(int(living.sum())), self.usual_end_ns
        for step in range(max(self._next, newest - CAPACITY + 1), newest + 1):
            slot = step % CAPACITY
            if self._numbers[slot] == step:
                reported = np.isfinite(self._values["step_ns"][slot])
                is_late = reached_ns - self._first_end_ns[slot] > PATIENCE_NS
                if not is_late and not bool((reported | ~living).all()):
                    return
                if 2 * reported.sum() >= living.sum():
                    self.done.append(step)
                    yield step
            self._next = step + 1

    def _newest(self, num_living: int) -> int:
        """Newest step that half of the ranks have reported, or -1: a single rank may be wrong."""
        reported = np.isfinite(self._values["step_ns"]).sum(axis=1)
        known = self._numbers[2 * reported >= max(num_living, 1)]
        return int(known.max(initial=-1))

    def is_traced(self, step: int) -> bool:
        """Whether torch.profiler recorded the step on any rank; False if it is no longer kept."""
        slot = step % CAPACITY
        return bool(self._numbers[slot] == step and self._is_traced[slot])

    def of(self, name: str, steps: Sequence[int]) -> NDArray[np.float64]:
        """One of ``FIELDS`` in these steps, shape (steps, ranks); NaN if unknown."""
        slots = [step % CAPACITY for step in steps]
        return self._values[name][slots].astype(np.float64)

    def own(self, steps: Sequence[int]) -> NDArray[np.float64]:
        """Own time, ns: running on a CPU, waiting for one, or asleep for input; NaN if unknown."""
        cpu, queue = self.of("cpu_ns", steps), self.of("queue_ns", steps)
        return cpu + queue + self.of("asleep_ns", steps)

    def _clear(self, slot: int, record: StepRecord) -> None:
        for values in self._values.values():
            values[slot] = np.nan
        self._numbers[slot], self._first_end_ns[slot] = record.step, record.end_ns
        self._is_traced[slot] = False


class WaitTable:
    """Collectives of the steps that not all ranks have reported yet."""

    def __init__(self) -> None:
        self.ranks: set[int] = set()  # Ranks that have reported any step.
        self._steps: dict[int, dict[int, tuple[GroupTimes, ...]]] = {}
        self._last: dict[int, int] = {}
        self._next = 0

    def add(self, rank: int, record: CollectivesRecord) -> None:
        """Add a step of a rank; steps that were already returned are ignored."""
        if not 0 <= record.step < (self._next + _MOST_AHEAD if self._next else _MOST_STEPS):
            return
        self.ranks.add(rank)
        self._last[rank] = max(self._last.get(rank, -1), record.step)
        if record.step >= self._next:
            self._steps.setdefault(record.step, {})[rank] = bounded_groups(record)

    def complete(self, living: set[int]) -> Iterator[tuple[int, dict[int, tuple[GroupTimes, ...]]]]:
        """Steps that have become complete, in ascending order, each once."""
        waiting = [self._last[rank] for rank in self.ranks & living]
        reported = min(waiting, default=max(self._last.values(), default=-1))
        for step in sorted(self._steps):
            if step > reported and len(self._steps) <= CAPACITY:
                return
            self._next = step + 1
            yield step, self._steps.pop(step)
