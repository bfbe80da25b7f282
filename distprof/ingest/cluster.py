"""Per-rank work on a Dask cluster: an executor that fails when the cluster does.

Dask itself moves the tasks of a dead worker to another one. But it never gives up: it waits for
workers forever, and for a lost scheduler for minutes. A task costs it about 3 ms of CPU time in the
client and 4 ms in the scheduler, and a task of a local process about 1 ms. Short calls are
therefore sent together, and fewer towards the end, so that all workers finish together. If a worker
dies, at most the work of a batch is lost.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from distprof.errors import DistprofError, MissingExtraError, UsageError, in_words
from distprof.run.run import light
from distprof.version import __version__

BATCH_S = 2.0  # target duration of a batch on a cluster
MOST_CALLS = 64  # in a batch
PER_WORKER = 2  # batches sent per thread of a worker: one that runs, and one that waits there
ANYWHERE = ""  # place of calls that any worker may run
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
        """Number of calls that take as long as a batch should; 1 until one has returned."""
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
    """Calls to be sent, in batches once it is known how long a call of the function takes."""

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
    """Run calls one after another; a failure affects only its own call."""
    begun = time.perf_counter()
    made: list[Answer] = []
    for args, kwargs in calls:
        try:
            made.append((light(fn(*args, **kwargs)), None))
        except Exception as error:
            error.add_note(f"On a worker:\n{traceback.format_exc()}")
            made.append((None, error))
    return _all_sendable(made), time.perf_counter() - begun


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


T = TypeVar("T")

# Time limits
CONNECT_S = 5  # to a scheduler
ANSWER_S = 30.0  # longest silence of a connected scheduler before it counts as lost
FETCH_S = 600.0  # of a result
WORKER_S = 60.0  # that work waits for a worker
LEAVE_S = 2.0  # to close a lost connection; until then, Dask does not log the loss
_LOOK_S = 0.5  # between checks of the connection
ASK_S = 5.0  # between requests to the scheduler for its workers
_PROTOCOLS = ("tcp", "tls")
_QUIET = ("distributed.client", "distributed.comm", "distributed.core")
# Scheduler and path of a trace to the worker that read it and has the tables on its disk.
_places: dict[tuple[str, str], str] = {}


class ClusterError(DistprofError):
    """The cluster as a whole is unusable; no single rank is the cause."""


def connect(spec: str) -> ClusterExecutor:
    """An executor on a running cluster, at ``dask://HOST:PORT``, ``tcp://`` or ``tls://``.

    It is an error if no scheduler answers within seconds.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtraError("An executor on a Dask cluster", "dask") from error
    protocol, _, place = spec.rstrip("/").partition("://")
    address = f"{protocol if protocol in _PROTOCOLS else 'tcp'}://{place}"
    levels = {name: logging.getLogger(name).level for name in _QUIET}
    _set_levels(dict.fromkeys(_QUIET, logging.CRITICAL + 1))  # distprof reports problems itself
    try:
        client = Client(  # type: ignore[no-untyped-call]
            address, timeout=CONNECT_S, set_as_default=False
        )
    except (OSError, TimeoutError, ValueError) as error:
        _set_levels(levels)
        raise UsageError(
            f"no Dask scheduler answered at {place} within {CONNECT_S} s "
            f"({type(error).__name__}): run dask scheduler to start one"
        ) from error
    return ClusterExecutor(client, address, levels)


class ClusterExecutor(Executor):
    """Runs functions on the workers of a cluster, and monitors the cluster.

    It closes the connection, and restores the ``levels`` of Dask's loggers, when it is shut down.
    """

    def __init__(self, client: Any, address: str, levels: dict[str, int]) -> None:
        self._client, self._address, self._levels = client, address, levels
        self._queue = Queue()
        self._tasks: dict[Batch, Any] = {}
        self._lock = threading.Lock()
        self._problem: ClusterError | None = None
        self._closed = threading.Event()
        self.workers = max(1, sum(client.nthreads().values()))  # threads of all
        self._done: SimpleQueue[tuple[Batch, Any] | None] = SimpleQueue()
        threading.Thread(target=self._watch, daemon=True).start()
        threading.Thread(target=self._take_each, daemon=True).start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run ``fn`` on the cluster, preferably on the worker that read the same trace."""
        if self._closed.is_set():
            raise RuntimeError("the executor is closed")
        path = getattr(args[0], "path", "") if args else ""
        call = Call(fn=fn, args=tuple(map(light, args)), kwargs=kwargs, future=Future(), path=path)
        with self._lock:
            if self._problem is not None:
                raise self._problem
            self._queue.add(call, _places.get((self._address, path), ANYWHERE))
            self._send()
        return call.future

    def _send(self) -> None:
        """Send waiting calls while the workers have capacity; requires the lock."""
        while self._client.status == "running":  # otherwise the watch thread fails the calls
            batch = self._queue.take(self.workers)
            if batch is None:
                return
            try:
                self._tasks[batch] = self._submitted(batch)
            except Exception as error:  # arguments that cannot be sent
                self._done.put((batch, error))

    def _submitted(self, batch: Batch) -> Any:
        task = self._client.submit(
            _on_worker,
            __version__,
            packed(batch.content),
            pure=False,
            workers=[batch.place] if batch.place else None,
            allow_other_workers=bool(batch.place),
        )
        task.add_done_callback(lambda done: self._done.put((batch, done)))
        return task

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster, which keeps running."""
        del wait  # no local work remains
        self._closed.set()
        self._done.put(None)
        with self._lock:
            left = list(self._tasks.values())
            self._queue.clear()
        with suppress(Exception):  # a lost connection cannot be closed properly
            if cancel_futures and left and self._problem is None:
                self._client.cancel(left, force=True)
            self._client.close(timeout=CONNECT_S if self._problem is None else LEAVE_S)
        _set_levels(self._levels)

    def _take_each(self) -> None:
        """Process results until the executor is closed.

        Dask runs the callbacks of all its clients in one thread, in which waiting for a result from
        a lost cluster would block all later results.
        """
        for batch, task in iter(self._done.get, None):
            if isinstance(task, Exception):
                self._take_failure(batch, task)
            else:
                self._take(batch, task)

    def _take(self, batch: Batch, task: Any) -> None:
        try:
            content, seconds, place = task.result(timeout=FETCH_S)
            found: list[Answer] = unpacked(content)
        except BaseException as error:
            if isinstance(error, CancelledError) or task.status == "cancelled":
                return self._lose(self._lost_scheduler())
            return self._take_failure(batch, error)
        with self._lock:
            self._tasks.pop(batch, None)
            if not self._queue.done(batch, seconds):
                return None  # the cluster was lost in the meantime
            _places.update(((self._address, call.path), place) for call in batch.calls if call.path)
            self._send()
        for call, (result, problem) in zip(batch.calls, found, strict=True):
            _answer(call.future, result, problem)
        return None

    def _take_failure(self, batch: Batch, error: BaseException) -> None:
        """Handle a failed batch: retry its calls one by one, or fail them."""
        problem = _explained(error)
        again = len(batch.calls) > 1 and not isinstance(problem, ClusterError)
        with self._lock:
            self._tasks.pop(batch, None)
            if not self._queue.done(batch):
                return
            if again:
                self._queue.add_alone(batch.calls)
            self._send()
        if not again:
            for call in batch.calls:
                call.future.set_exception(problem)

    def _watch(self) -> None:
        waiting_since = answered = queried = time.monotonic()
        while not self._closed.wait(_LOOK_S):
            if self._client.status != "running":
                return None if self._closed.is_set() else self._lose(self._lost_scheduler())
            if time.monotonic() - queried < ASK_S:
                continue
            queried = time.monotonic()
            try:
                found = self._client.sync(self._client.scheduler.ncores, callback_timeout=ANSWER_S)
                threads = sum(dict(found).values())
            except Exception:  # Dask raises many kinds
                if queried - answered > ANSWER_S and not self._closed.is_set():
                    return self._lose(self._lost_scheduler())
                continue
            answered = time.monotonic()
            if threads or self._queue.is_idle:
                waiting_since = answered
                with self._lock:
                    self.workers = max(1, threads)
                    if self._problem is None and not self._closed.is_set():
                        self._send()
            elif answered - waiting_since > WORKER_S:
                return self._lose(
                    ClusterError(
                        f"the Dask scheduler at {self._address} has had no worker for "
                        f"{WORKER_S:g} s: run dask worker {self._address} to start one"
                    )
                )
        return None

    def _lost_scheduler(self) -> ClusterError:
        return ClusterError(
            f"the Dask scheduler at {self._address} is gone: start it again and repeat the "
            "command, which takes the ranks already read from the cache"
        )

    def _lose(self, problem: ClusterError) -> None:
        with self._lock:
            if self._problem is None:
                self._problem = problem
            waiting = self._queue.clear()
            self._tasks.clear()
        for call in waiting:
            _answer(call.future, None, self._problem)


def _on_worker(version: str, content: bytes) -> tuple[bytes, float, str]:
    """Run a batch on a worker; returns the answers, the duration, and the worker's address."""
    from distributed import get_worker

    if version != __version__:
        raise ClusterError(
            f"a Dask worker has distprof {__version__}, this machine {version}: install the same "
            "version"
        )
    return (*call_each(*unpacked(content)), str(get_worker().address))


def _answer(future: Future[Any], result: Any, error: BaseException | None) -> None:
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _explained(error: BaseException) -> BaseException:
    """The error of one item, with a clear message if Dask gave up on it."""
    if isinstance(error, ModuleNotFoundError) and error.name == "distprof":
        return ClusterError("the Dask workers do not have distprof: install it there as well")
    if type(error).__name__ == "KilledWorker":
        tries = getattr(error, "allowed_failures", 3) + 1
        return DistprofError(
            f"{tries} workers died while they worked on it, possibly because of too little memory"
        )
    return error


def _set_levels(levels: dict[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
