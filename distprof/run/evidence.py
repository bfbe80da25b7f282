"""Evidence from other tools on a job without traces; each type is requested from a run.

Operations as a tool logged them (a table of a what-if study, or the timeline that a pipeline's own
timers wrote), tokens per expert, collectives by rank, readiness of input, and how the devices of a
machine are joined. Times are int64 ns; each log says whether its ranks share a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.schema import Column, Int64Array, Table, TableSchema
from distprof.terms import CollectiveKind

__all__ = [
    "OPERATIONS",
    "PATHS",
    "CollectiveSummary",
    "ExpertCounts",
    "InputReadiness",
    "Machine",
    "Machines",
    "OperationLog",
    "SummaryClass",
]

OPERATIONS = TableSchema(
    name="operations",
    doc="Operations of workers as logged by another tool, by rank, step and start.",
    columns=(
        Column(name="rank", dtype="int32", doc="Worker: a rank, or several ranks that act as one."),
        Column(name="dp_rank", dtype="int32", nullable=True, doc="Data-parallel index."),
        Column(name="stage", dtype="int32", nullable=True, doc="Pipeline stage."),
        Column(name="step", dtype="int64", doc="Training step."),
        Column(
            name="kind",
            dtype="category",
            doc="forward-compute, backward-compute, or the name that the log uses.",
        ),
        Column(
            name="start_ns", dtype="int64", unit="ns", doc="Start, since the start of the step."
        ),
        Column(name="end_ns", dtype="int64", unit="ns", doc="End, never before the start."),
        Column(
            name="seq",
            dtype="int64",
            nullable=True,
            doc="Number among the operations of its kind in the step.",
        ),
        Column(name="chunk", dtype="int32", nullable=True, doc="Model chunk of the rank."),
        Column(name="micro_batch", dtype="int32", nullable=True, doc="Micro-batch."),
    ),
)


class OperationLog(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of a job, and the facts that the log gives about it.

    Args:
        operations: OPERATIONS table.
        origin: What kind of log, for people: ``operation table`` or ``pipeline timeline``.
        world_size: Of the job, None where the log does not say.
        mesh: Axis to size, for example ``{"dp": 2, "pp": 4}``.
        num_micro_batches: Per step, None where the log does not say.
        shares_clock: Whether times of different ranks can be compared.
        step_ns: Step number to the step's length, where the log says it.
        notes: What was assumed, one sentence each.
    """

    operations: Table
    origin: str
    world_size: int | None = None
    mesh: Mapping[str, int] = msgspec.field(default_factory=dict)
    num_micro_batches: int | None = None
    shares_clock: bool = True
    step_ns: Mapping[int, int] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()


# Tokens per expert --------------------------------------------------------------------------------


class ExpertCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Assignments per expert of each layer, once for each part of the data.

    Args:
        tokens: Part of the data (a domain, a step) to int64, shape ``(layers, experts)``.
        layers: Name of each layer.
        top_k: Experts per token, None where the file does not say.
        model: As the file names it, else empty.
        notes: What was assumed, one sentence each.
    """

    tokens: Mapping[str, NDArray[np.int64]] = msgspec.field(default_factory=dict)
    layers: tuple[str, ...] = ()
    top_k: int | None = None
    model: str = ""
    notes: tuple[str, ...] = ()


# Tables without a time line -----------------------------------------------------------------------


class SummaryClass(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives with the same group, kind, type and size.

    Args:
        group: Name of the process group.
        ranks: Its members as the table lists them; empty where it does not.
        kind: Operation.
        dtype: As the table spells it.
        num_bytes: Of the full buffer, None if unknown.
    """

    group: str
    ranks: tuple[int, ...]
    kind: CollectiveKind
    dtype: str
    num_bytes: int | None


class CollectiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of collectives by rank and class; one entry per row of the table.

    Args:
        classes: Classes of collectives.
        class_index: int64, index into ``classes``.
        rank: int64, global rank.
        num_calls: int64.
        mean_ns: int64, mean duration of a call on that rank.
        notes: What was left out, one sentence each.
    """

    classes: tuple[SummaryClass, ...]
    class_index: Int64Array
    rank: Int64Array
    num_calls: Int64Array
    mean_ns: Int64Array
    notes: tuple[str, ...] = ()


class InputReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """How ready each rank's input was, over time: 1 where the loader was never waited for.

    Args:
        time_s: int64, shape ``(samples,)``, seconds since 1970, ascending.
        ranks: Global ranks, ascending.
        ratio: float64, shape ``(ranks, samples)``, 0 to 1, NaN where missing.
        notes: What was left out, one sentence each.
    """

    time_s: Int64Array
    ranks: tuple[int, ...]
    ratio: NDArray[np.float64]
    notes: tuple[str, ...] = ()


# Machines -----------------------------------------------------------------------------------------

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Paths over PCIe, shortest first: one bridge, several, the host bridge, a NUMA node, sockets."""

_NVLINK = re.compile(r"NV\d{1,3}")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, or several identical ones.

    Args:
        host: Host name; empty if unknown.
        gpus: GPUs as the driver calls them, in its order: ``GPU0``, …
        cards: Network cards by their own names, for example ``mlx5_0``; as the driver calls them
            (``NIC0``) if unknown.
        links: Path from each device (GPUs, then cards) to each, as ``NV18``, ``PIX``, ``SYS``;
            ``X`` to itself, empty if unknown. Square.
        cpus: CPUs next to each GPU, for example ``0-55``; empty if unknown.
        numa: NUMA nodes next to each GPU; empty if unknown.
    """

    host: str
    gpus: tuple[str, ...]
    cards: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]
    numa: tuple[str, ...]

    def between(self, first: int, second: int) -> str:
        """Path between two devices, numbered as in ``links``."""
        return self.links[first][second]

    def path_to_card(self, gpu: int, card: int) -> str:
        """Path between a GPU and a card, each by its own number."""
        return self.between(gpu, len(self.gpus) + card)

    def nearest_cards(self, gpu: int) -> tuple[str, tuple[int, ...]]:
        """The shortest path to any card, and the cards at its end; empty where none is known."""
        paths = [self.path_to_card(gpu, card) for card in range(len(self.cards))]
        best = next((path for path in PATHS if path in paths), "")
        return best, tuple(c for c, path in enumerate(paths) if best and path == best)

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """GPUs that NVLink joins, directly or by others, ascending; each GPU is in one of them."""
        left, found = set(range(len(self.gpus))), []
        while left:
            island = self._reached(min(left))
            left -= island
            found.append(tuple(sorted(island)))
        return tuple(found)

    def _reached(self, start: int) -> set[int]:
        """GPUs that NVLink joins with ``start``."""
        reached, front = {start}, [start]
        while front:
            gpu = front.pop()
            near = self._linked(gpu) - reached
            reached |= near
            front += near
        return reached

    def _linked(self, gpu: int) -> set[int]:
        others: Iterable[int] = range(len(self.gpus))
        return {other for other in others if _NVLINK.fullmatch(self.between(gpu, other))}


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that a file describes.

    Args:
        machines: In order of appearance.
        notes: What was damaged or assumed, one sentence each.
    """

    machines: tuple[Machine, ...]
    notes: tuple[str, ...] = ()
