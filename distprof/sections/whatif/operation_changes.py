"""A log of operations, simulated with any set of its changes.

Two kinds of change can affect the same operation. Levelling stages and micro-batches gives it the
length of its stage, scaled. Other changes shorten it directly. The change that shortens it more
counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.schema import Int64Array
from distprof.sections.whatif import operation_replay as by
from distprof.sections.whatif.changes import Change, Made, lower
from distprof.sections.whatif.operation_replay import Mask, OperationReplay
from distprof.sections.whatif.result import TRANSFERS
from distprof.units import name_ranks


class OperationChange(Change, frozen=True, kw_only=True):
    """What a scenario changes in a log; None for what stays the same."""

    ideal: Mask | None = None  # Operations, shape ``(n,)``, that take the ideal time of their kind.
    # int64, shape ``(n,)``: usual length on the operation's own stage.
    level_ns: Int64Array | None = None
    # float64, shape ``(n,)``, for the length of each operation.
    factor: NDArray[np.float64] | None = None
    is_prompt: bool = False  # Whether no operation is launched late.


def operation_changes(replay: OperationReplay, slowest: Int64Array) -> Iterator[OperationChange]:
    """Changes that apply to a log."""
    rows, ranks = replay.rows, tuple(slowest.tolist())
    yield OperationChange(
        what="slowest-workers",
        title=f"{name_ranks(ranks)}, the slowest 3 % of the workers, were as fast as the mean",
        ranks=ranks,
        ideal=np.isin(rows.rank, slowest),
    )
    if rows.num_stages > 1:
        title = "all pipeline stages had equal work"
        yield OperationChange(what="stage-imbalance", title=title, factor=by.level_stages(replay))
    title = "micro-batches of a stage were equally long"
    level = by.level_micro_batches(replay)
    yield OperationChange(what="micro-batch-imbalance", title=title, level_ns=level)
    for kind, mask in by.masks_by_kind(rows).items():
        if any(word in kind for word in TRANSFERS):
            title = f"every {kind} took the median time"
            yield OperationChange(what=f"kind {kind}", title=title, ideal=mask)
    title = "every operation was launched as soon as possible"
    yield OperationChange(what="launch-gaps", title=title, is_prompt=True)


class OperationModel(msgspec.Struct, frozen=True, kw_only=True):
    """See :class:`~distprof.sections.whatif.changes.Model`.

    Late launches add the same time to the step regardless of other changes, because it is unknown
    how late an operation would be launched if another one took less time.
    """

    replay: OperationReplay  # The log.
    changes: Mapping[str, OperationChange]  # Changes by key.
    # Measured step less the simulated one, which leaves out late launches; at least 0.
    gaps_ns: int

    def step_times(self, made: Sequence[Made]) -> list[int]:
        """Mean step of each set of changes, ns."""
        actual = self.replay.actual
        lengths = self.replay.lengths(
            len(made), lambda i, step: self._together(made[i], actual[:, step])
        )
        prompt = [any(self.changes[what].is_prompt for what in one) for one in made]
        steps = np.rint(lengths.mean(axis=1)).astype(np.int64).tolist()
        return [
            ns if is_prompt else ns + self.gaps_ns
            for ns, is_prompt in zip(steps, prompt, strict=True)
        ]

    def stage_work(self, made: Made) -> Mapping[int, float]:
        """Computation of each rank, mean per step, ns."""
        rows = self.replay.rows
        compute = np.flatnonzero(rows.of(*by.COMPUTE))
        mean = np.zeros(len(rows))
        for step in self.replay.batches(self.replay.num_steps):
            mean += self._together(made, self.replay.actual[:, step]).sum(axis=1)
        ranks, index = np.unique(rows.rank[compute], return_inverse=True)
        work = np.bincount(index, mean[compute] / self.replay.num_steps)
        return dict(zip(ranks.tolist(), work.tolist(), strict=True))

    def _together(self, made: Made, actual: Int64Array) -> Int64Array:
        """Lengths in some of the steps, shape ``(n, k)``, with all changes."""
        parts = [(self.changes[what], share) for what, share in made.items()]
        usual = [
            _between(actual, self.replay.ideal, share, where=change.ideal)
            for change, share in parts
            if change.ideal is not None
        ]
        return _or(lower(actual, [*usual, _levelled(actual, parts)]), actual)


def _levelled(
    actual: Int64Array, parts: Sequence[tuple[OperationChange, float]]
) -> Int64Array | None:
    """Lengths with stages and micro-batches levelled; None if neither is."""
    levels = [
        _between(actual, change.level_ns, share, where=change.level_ns >= 0)
        for change, share in parts
        if change.level_ns is not None
    ]
    factors = [1 + share * (part.factor - 1) for part, share in parts if part.factor is not None]
    if not factors:
        return lower(actual, levels)
    factor = np.prod(factors, axis=0)[:, np.newaxis]
    scaled: Int64Array = np.rint(_or(lower(actual, levels), actual) * factor).astype(np.int64)
    return scaled


def _between(actual: Int64Array, target: Int64Array, share: float, *, where: Mask) -> Int64Array:
    """Lengths moved towards the target by a share of the difference, only for some operations."""
    changed = actual.copy()
    difference = target[where, np.newaxis] - actual[where]
    changed[where] += difference if share >= 1 else np.rint(share * difference).astype(np.int64)
    return changed


def _or(changed: Int64Array | None, otherwise: Int64Array) -> Int64Array:
    return otherwise if changed is None else changed
