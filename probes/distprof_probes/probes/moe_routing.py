"""Records how the tokens of each micro-batch are distributed over the experts, per layer.

Layers with a list ``watchers`` are watched (the reference runs' mixture of experts has one). Other
code passes its counts to ``session.record_routing``. Counts on a GPU are copied in the background:
the training thread never waits for the GPU.
"""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from distprof.artefacts import MOE_FILE
from distprof.artefacts.records import MoeRecord
from distprof_probes.host_copy import HostCopy
from distprof_probes.probe import Probe, Recording


class MoeRoutingProbe(Probe):
    """Writes ``moe.jsonl``, created at the first routing."""

    name = "moe_routing"

    def __init__(self) -> None:
        super().__init__()
        self._session: Recording | None = None
        self._is_paused = False
        self._num_seen: dict[str, int] = defaultdict(int)  # micro-batches of the step, per layer
        self._step = -1
        self._removals: list[Callable[[], None]] = []

    def start(self, session: Recording) -> None:
        """Get ready; nothing is written before the first routing."""
        self._session = session

    def watch(self, *modules: Any) -> int:
        """Watch the layers of ``modules`` that have ``watchers``, by name; return their number."""
        found = 0
        for module in modules:
            for name, layer in module.named_modules():
                if isinstance(getattr(layer, "watchers", None), list):
                    self._watch_layer(name or type(layer).__name__, layer)
                    found += 1
        return found

    def record_routing(
        self,
        layer: str | int,
        tokens_per_expert: Any,
        *,
        num_tokens: int,
        top_k: int,
        micro_batch: int | None = None,
        capacity: int | None = None,
        dropped: Any = 0,
        aux_loss: Any = None,
    ) -> None:
        """Record one routing.

        Args:
            layer: Name or index of the layer.
            tokens_per_expert: Number of assignments to each expert, all experts, before drops: a
                tensor of integers (on any device) or numbers.
            num_tokens: Tokens routed.
            top_k: Experts per token.
            micro_batch: Index within the step; None to count the calls of each layer.
            capacity: Maximum number of assignments per expert, None if unlimited.
            dropped: Assignments over capacity, a number or a tensor.
            aux_loss: Load-balancing loss, a number or a tensor; None without one.
        """
        session = self._session
        if session is None or self._is_paused:
            return
        writer = self.writer or self.open_writer(session, MOE_FILE, "distprof.moe/1")
        self._begin_step(session.current_step)
        index = self._num_seen[str(layer)] if micro_batch is None else int(micro_batch)
        self._num_seen[str(layer)] += 1
        writer.put(
            _Routing(
                step=session.current_step,
                layer=str(layer),
                micro_batch=index,
                tokens_per_expert=_leave(tokens_per_expert),
                num_tokens=int(num_tokens),
                top_k=int(top_k),
                capacity=None if capacity is None else int(capacity),
                dropped=_leave(dropped),
                aux_loss=None if aux_loss is None else _leave(aux_loss),
            )
        )

    def pause(self) -> None:
        """Ignore routings."""
        self._is_paused = True

    def resume(self) -> None:
        """Record routings again."""
        self._is_paused = False

    def stop(self) -> None:
        """Remove the watchers."""
        for remove in self._removals:
            remove()
        self._removals.clear()
        self._session = None

    def _begin_step(self, step: int) -> None:
        if step != self._step:
            self._step = step
            self._num_seen.clear()

    def _watch_layer(self, name: str, layer: Any) -> None:
        reference = weakref.ref(layer)

        def watcher(routing: Any) -> None:
            watched = reference()
            if watched is not None and watched.training and not _is_replayed():
                self._take(name, routing)

        layer.watchers.append(watcher)

        def remove() -> None:
            watched = reference()
            if watched is not None and watcher in watched.watchers:
                watched.watchers.remove(watcher)

        self._removals.append(remove)

    def _take(self, name: str, routing: Any) -> None:
        """Record a layer's routing, inside the model's forward: this must never raise."""
        try:
            self.record_routing(
                name,
                routing.tokens_per_expert,
                num_tokens=routing.num_tokens,
                top_k=routing.top_k,
                capacity=routing.capacity,
                dropped=routing.dropped,
                aux_loss=routing.aux_loss,
            )
        except Exception as error:
            self.stop()
            self.num_dropped += 1
            self.remark = f"stopped watching: {type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Routing:
    """A record whose numbers may still be on the GPU."""

    step: int
    layer: str
    micro_batch: int
    tokens_per_expert: _Numbers
    num_tokens: int
    top_k: int
    capacity: int | None
    dropped: _Numbers
    aux_loss: _Numbers | None

    def resolve(self, *, is_last_chance: bool) -> MoeRecord | None:  # noqa: ARG002
        """The record; None while its numbers are being copied."""
        parts = (self.tokens_per_expert, self.dropped, self.aux_loss)
        if not all(part is None or part.is_ready() for part in parts):
            return None
        return MoeRecord(
            step=self.step,
            layer=self.layer,
            micro_batch=self.micro_batch,
            tokens_per_expert=tuple(int(count) for count in self.tokens_per_expert.values()),
            num_tokens=self.num_tokens,
            top_k=self.top_k,
            capacity=self.capacity,
            dropped=int(self.dropped.values()[0]),
            aux_loss=None if self.aux_loss is None else float(self.aux_loss.values()[0]),
        )


class _Numbers(Protocol):
    """Numbers that are available, or being copied."""

    def is_ready(self) -> bool: ...

    def values(self) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class _Here:
    """Numbers that were never on a GPU."""

    numbers: list[float]

    def is_ready(self) -> bool:
        return True

    def values(self) -> list[float]:
        return self.numbers


def _leave(value: Any) -> _Numbers:
    """Start to copy ``value`` from its device without waiting."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        own = value.to_local() if hasattr(value, "to_local") else value  # a DTensor's local part
        return HostCopy(own)
    return _Here(list(value) if isinstance(value, Iterable) else [value])


def _is_replayed() -> bool:
    """Whether this forward must not be counted.

    Activation checkpointing runs a block again during backward. Compiling or capturing a graph is
    not a run, and a watcher inside would break the graph.
    """
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling():
        return True
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return True
    current_backward = getattr(torch._C, "_current_graph_task_id", None)
    return current_backward is not None and current_backward() != -1
