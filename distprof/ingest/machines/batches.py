"""Calls for a cluster, sent several at a time.

A task of its own costs the process that asks for it about 3 ms of CPU and the scheduler 4 ms,
whatever is done in it. Calls that are short go together for that reason: as many as take about two
seconds, fewer towards the end so that all workers finish together. A worker that dies loses these
seconds and no more.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from distprof.errors import in_words

__all__ = [
    "ANYWHERE",
    "BATCH_S",
    "MOST_CALLS",
    "Batch",
    "Call",
    "Queue",
    "call_each",
    "light",
    "packed",
    "unpacked",
]

BATCH_S = 2.0
"""A batch takes about this long."""

MOST_CALLS = 64
"""A batch has at most this many calls."""

PER_WORKER = 2
"""Batches that are sent per thread of a worker: one that runs, and one that waits there."""

ANYWHERE = ""
"""The place of calls that any worker may take."""

Answer: TypeAlias = "tuple[Any, BaseException | None]"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call, and whom its result is for.

    Args:
        fn: What to call.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        future: Gets the result.
        path: The trace that it is about; empty for none.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    future: Future[Any]
    path: str


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Calls of one function that go to a worker together.

    Args:
        calls: At least one.
        place: The worker; :data:`ANYWHERE` for any.
    """

    calls: tuple[Call, ...]
    place: str

    @property
    def content(self) -> tuple[Callable[..., Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]:
        """What a worker needs."""
        return self.calls[0].fn, [(call.args, call.kwargs) for call in self.calls]


class Queue:
    """Calls that wait to be sent, and batches that were.

    The time that a call takes is learned from batches of the same function that are done. Until
    one is, calls go singly.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Call]] = {}
        self._alone: deque[Call] = deque()
        self._sent: set[Batch] = set()
        self._load: Counter[str] = Counter()
        self._fn: Callable[..., Any] | None = None
        self._call_s = BATCH_S

    def __len__(self) -> int:
        """Calls that were not sent."""
        return len(self._alone) + sum(map(len, self._waiting.values()))

    def add(self, call: Call, place: str = ANYWHERE) -> None:
        """Let a call wait, for one worker if it is better there."""
        self._waiting.setdefault(place, deque()).append(call)

    def add_alone(self, calls: Iterable[Call]) -> None:
        """Let calls wait that each go in a batch of their own, to any worker, before all others."""
        self._alone.extend(calls)

    def take(self, workers: int) -> Batch | None:
        """The next batch to send; None while these threads have enough to do."""
        if not len(self) or len(self._sent) >= PER_WORKER * workers:
            return None
        batch = self._next(max(1, len(self) // (PER_WORKER * workers)))
        self._sent.add(batch)
        self._load[batch.place] += 1
        return batch

    def done(self, batch: Batch, seconds: float | None = None) -> bool:
        """Take note that a batch is done.

        Args:
            batch: One that was sent.
            seconds: How long it took; None where it came to nothing.

        Returns:
            Whether it was still waited for.
        """
        if batch not in self._sent:
            return False
        self._sent.remove(batch)
        self._load[batch.place] -= 1
        if seconds is not None:
            self._learn(batch, seconds)
        return True

    def clear(self) -> list[Call]:
        """Forget everything; returns the calls that have no result."""
        sent = [call for batch in self._sent for call in batch.calls]
        waiting = [call for queue in self._waiting.values() for call in queue]
        left = [*sent, *self._alone, *waiting]
        self._sent.clear()
        self._alone.clear()
        self._waiting.clear()
        return left

    @property
    def is_idle(self) -> bool:
        """Whether nothing is waited for."""
        return not self._sent and not len(self)

    def _next(self, most: int) -> Batch:
        if self._alone:
            return Batch((self._alone.popleft(),), ANYWHERE)
        place = min(self._waiting, key=lambda place: self._load[place])
        queue = self._waiting[place]
        fn = queue[0].fn
        count = min(most, MOST_CALLS, self._in_a_batch(fn), len(queue))
        calls = [queue.popleft()]
        while len(calls) < count and queue[0].fn is fn:
            calls.append(queue.popleft())
        if not queue:
            del self._waiting[place]
        return Batch(tuple(calls), place)

    def _in_a_batch(self, fn: Callable[..., Any]) -> int:
        """How many calls of a function take as long as a batch should."""
        if fn is not self._fn:
            return 1
        return max(1, int(BATCH_S / max(self._call_s, BATCH_S / MOST_CALLS)))

    def _learn(self, batch: Batch, seconds: float) -> None:
        """A first call also imports: later ones count for more."""
        fn, mean = batch.calls[0].fn, seconds / len(batch.calls)
        self._call_s = (self._call_s + mean) / 2 if fn is self._fn else mean
        self._fn = fn


# What a worker does with a batch ------------------------------------------------------------------


def call_each(
    fn: Callable[..., Any], calls: Collection[tuple[tuple[Any, ...], dict[str, Any]]]
) -> tuple[bytes, float]:
    """Make calls one after another; what fails in one of them costs that one only.

    Returns:
        The results or errors as :func:`packed`, and how long it took in seconds.
    """
    begun = time.perf_counter()
    made = [_answer(fn, args, kwargs) for args, kwargs in calls]
    return _all_sendable(made), time.perf_counter() - begun


def _answer(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
    try:
        return light(fn(*args, **kwargs)), None
    except Exception as error:
        error.add_note(f"On a worker:\n{traceback.format_exc()}")
        return None, error


def light(content: Any) -> Any:
    """An argument or a result as it is sent: without what can be read where it arrives."""
    return content.light() if hasattr(content, "light") else content


def _all_sendable(made: list[Answer]) -> bytes:
    """Answers as bytes: what ranks have in common is in them once."""
    with suppress(Exception):  # whatever refuses to be sent is looked for below
        if not any(error for _, error in made):
            return packed(made)
    return packed([_sendable(answer) for answer in made])


def _sendable(answer: Answer) -> Answer:
    """The answer, or its error in words where it cannot be made again elsewhere."""
    try:
        unpacked(packed(answer))
    except Exception as error:
        return None, in_words(answer[1] or error)
    return answer


def packed(content: Any) -> bytes:
    """Anything as bytes, by Dask's own means: one message instead of one for each column."""
    from distributed.protocol import pickle

    return bytes(pickle.dumps(content))  # type: ignore[no-untyped-call]


def unpacked(content: bytes) -> Any:
    """What was :func:`packed`, from the cluster, which is trusted."""
    from distributed.protocol import pickle

    return pickle.loads(content)  # type: ignore[no-untyped-call]
