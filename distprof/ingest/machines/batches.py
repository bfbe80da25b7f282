"""Send calls to workers in batches.

A Dask task costs about 3 ms of CPU time in the client and 4 ms in the scheduler, regardless of its
content, and a task of a local process about 1 ms. Short calls are therefore sent together, and
fewer towards the end, so that all workers finish together. If a worker dies, at most the work of a
batch is lost.
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

BATCH_S = 2.0
"""Target duration of a batch on a cluster."""

MOST_CALLS = 64
"""Largest number of calls in a batch."""

PER_WORKER = 2
"""Batches sent per thread of a worker: one that runs, and one that waits there."""

ANYWHERE = ""
"""Place of calls that any worker may run."""

Answer: TypeAlias = "tuple[Any, BaseException | None]"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call, and the future that receives its result."""

    fn: Callable[..., Any]  # Function to call.
    args: tuple[Any, ...]  # Positional arguments.
    kwargs: dict[str, Any]  # Keyword arguments.
    future: Future[Any]  # Receives the result.
    path: str  # The trace that the call works on; empty for none.


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Calls of one function that go to a worker together."""

    calls: tuple[Call, ...]  # At least one.
    place: str  # The worker; :data:`ANYWHERE` for any.

    @property
    def content(self) -> tuple[Callable[..., Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]:
        """The function and the arguments of each call, as a worker needs them."""
        return self.calls[0].fn, [(call.args, call.kwargs) for call in self.calls]


class BatchSize:
    """The number of calls in the next batch, learned from the duration of earlier ones."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._fn: Callable[..., Any] | None = None
        self._call_s = target_s

    def next(self, fn: Callable[..., Any], waiting: int, workers: int) -> int:
        """Number of calls of a function that take as long as a batch should.

        1 until a call has returned. ``waiting`` calls are not sent yet, to ``workers`` threads in
        all.
        """
        if fn is not self._fn:
            return 1
        count = int(self._target_s / max(self._call_s, self._target_s / MOST_CALLS))
        return max(1, min(count, waiting // (PER_WORKER * workers)))

    def learn(self, fn: Callable[..., Any], count: int, seconds: float) -> None:
        """Update the mean duration; later calls have more weight, as the first one also imports."""
        mean = seconds / count
        self._call_s = (self._call_s + mean) / 2 if fn is self._fn else mean
        self._fn = fn


class Queue:
    """Calls waiting to be sent, and batches already sent.

    The duration of a call is learned from finished batches of the same function. Until one has
    finished, calls are sent one by one.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Call]] = {}
        self._alone: deque[Call] = deque()
        self._sent: set[Batch] = set()
        self._load: Counter[str] = Counter()
        self._size = BatchSize(BATCH_S)

    def __len__(self) -> int:
        """Number of calls not sent yet."""
        return len(self._alone) + sum(map(len, self._waiting.values()))

    def add(self, call: Call, place: str = ANYWHERE) -> None:
        """Add a call, with the preferred worker if there is one."""
        self._waiting.setdefault(place, deque()).append(call)

    def add_alone(self, calls: Iterable[Call]) -> None:
        """Add calls that each go to any worker in a separate batch, before all others."""
        self._alone.extend(calls)

    def take(self, workers: int) -> Batch | None:
        """The next batch to send; None while the threads have enough to do."""
        if not len(self) or len(self._sent) >= PER_WORKER * workers:
            return None
        batch = self._next(workers)
        self._sent.add(batch)
        self._load[batch.place] += 1
        return batch

    def done(self, batch: Batch, seconds: float | None = None) -> bool:
        """Record that a batch is done (None: failed); returns whether it was still expected."""
        if batch not in self._sent:
            return False
        self._sent.remove(batch)
        self._load[batch.place] -= 1
        if seconds is not None:
            self._size.learn(batch.calls[0].fn, len(batch.calls), seconds)
        return True

    def clear(self) -> list[Call]:
        """Remove everything, and return the calls without a result."""
        sent = [call for batch in self._sent for call in batch.calls]
        waiting = [call for queue in self._waiting.values() for call in queue]
        left = [*sent, *self._alone, *waiting]
        self._sent.clear()
        self._alone.clear()
        self._waiting.clear()
        return left

    @property
    def is_idle(self) -> bool:
        """Whether no call is waiting or running."""
        return not self._sent and not len(self)

    def _next(self, workers: int) -> Batch:
        if self._alone:
            return Batch((self._alone.popleft(),), ANYWHERE)
        place = min(self._waiting, key=lambda place: self._load[place])
        queue = self._waiting[place]
        fn = queue[0].fn
        count = min(self._size.next(fn, len(self), workers), len(queue))
        calls = [queue.popleft()]
        while len(calls) < count and queue[0].fn is fn:
            calls.append(queue.popleft())
        if not queue:
            del self._waiting[place]
        return Batch(tuple(calls), place)


# What a worker does with a batch ------------------------------------------------------------------


def call_each(
    fn: Callable[..., Any], calls: Collection[tuple[tuple[Any, ...], dict[str, Any]]]
) -> tuple[bytes, float]:
    """Run calls one after another; a failure affects only its own call.

    Returns the results or errors as :func:`packed`, and the duration in seconds.
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
    """An argument or a result for sending, without data that the receiver can read itself."""
    return content.light() if hasattr(content, "light") else content


def _all_sendable(made: list[Answer]) -> bytes:
    """Answers as bytes, in which objects that ranks share are stored once."""
    with suppress(Exception):  # answers that cannot be sent are found below
        if not any(error for _, error in made):
            return packed(made)
    return packed([_sendable(answer) for answer in made])


def _sendable(answer: Answer) -> Answer:
    """The answer, or a description of its error if it cannot be sent."""
    try:
        unpacked(packed(answer))
    except Exception as error:
        return None, in_words(answer[1] or error)
    return answer


def packed(content: Any) -> bytes:
    """Any object as bytes, pickled by Dask: one message instead of one per column."""
    from distributed.protocol import pickle

    return bytes(pickle.dumps(content))  # type: ignore[no-untyped-call]


def unpacked(content: bytes) -> Any:
    """The content of bytes from :func:`packed`, which come from the trusted cluster."""
    from distributed.protocol import pickle

    return pickle.loads(content)  # type: ignore[no-untyped-call]
