"""Per-rank work on a Dask cluster: an executor that fails when the cluster does.

Dask itself moves the tasks of a dead worker to another one. But it never gives up: it waits for
workers forever, and for a lost scheduler for minutes. It also does not combine short tasks, whose
overhead exceeds their work (:mod:`distprof.ingest.machines.batches`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from distprof.errors import DistprofError, MissingExtraError, UsageError
from distprof.ingest.machines.batches import (
    ANYWHERE,
    Answer,
    Batch,
    Call,
    Queue,
    call_each,
    light,
    packed,
    unpacked,
)
from distprof.version import __version__

T = TypeVar("T")

CONNECT_S = 5
"""Time limit for connecting to a scheduler."""

ANSWER_S = 30.0
"""Longest silence of a connected scheduler before it counts as lost."""

FETCH_S = 600.0
"""Time limit for fetching a result."""

WORKER_S = 60.0
"""Longest time that work waits for a worker."""

LEAVE_S = 2.0
"""Time limit for closing a lost connection. Until then, Dask does not log the loss."""

_LOOK_S = 0.5
"""Interval between checks of the connection."""
ASK_S = 5.0
"""Interval between requests to the scheduler for its workers."""

_PROTOCOLS = ("tcp", "tls")
_QUIET = ("distributed.client", "distributed.comm", "distributed.core")
_places: dict[tuple[str, str], str] = {}
"""Scheduler and path of a trace to the worker that read it and has the tables on its disk."""


class ClusterError(DistprofError):
    """The cluster as a whole is unusable; no single rank is the cause."""


def connect(spec: str) -> ClusterExecutor:
    """Create an executor on a running cluster.

    Args:
        spec: ``dask://HOST:PORT``, or an address in Dask's form: ``tcp://`` or ``tls://``.

    Raises:
        UsageError: If no scheduler answers within seconds.
        MissingExtraError: If Dask is not installed.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtraError("An executor on a Dask cluster", "dask") from error
    protocol, _, place = spec.rstrip("/").partition("://")
    address = f"{protocol if protocol in _PROTOCOLS else 'tcp'}://{place}"
    levels = _quietened()
    try:
        client = Client(  # type: ignore[no-untyped-call]
            address, timeout=CONNECT_S, set_as_default=False
        )
    except (OSError, TimeoutError, ValueError) as error:
        _restore(levels)
        raise UsageError(
            f"no Dask scheduler answered at {place} within {CONNECT_S} s "
            f"({type(error).__name__}): run dask scheduler to start one"
        ) from error
    return ClusterExecutor(client, address, levels)


class ClusterExecutor(Executor):
    """Runs functions on the workers of a cluster, and monitors the cluster.

    It closes the connection, and restores the ``levels`` of Dask's loggers, when it is shut down.

    Attributes:
        workers: Threads of all workers, at least 1.
    """

    def __init__(self, client: Any, address: str, levels: dict[str, int]) -> None:
        self._client, self._address, self._levels = client, address, levels
        self._queue = Queue()
        self._tasks: dict[Batch, Any] = {}
        self._lock = threading.Lock()
        self._problem: ClusterError | None = None
        self._closed = threading.Event()
        self.workers = max(1, sum(client.nthreads().values()))
        self._done: SimpleQueue[tuple[Batch, Any] | None] = SimpleQueue()
        threading.Thread(target=self._watch, daemon=True).start()
        threading.Thread(target=self._take_each, daemon=True).start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run ``fn`` on the cluster, preferably on the worker that read the same trace.

        Raises:
            ClusterError: If the cluster is lost.
            RuntimeError: If the executor is closed.
        """
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
        _restore(self._levels)

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
                threads = self._threads()
            except Exception:  # Dask raises many kinds
                if queried - answered > ANSWER_S and not self._closed.is_set():
                    return self._lose(self._lost_scheduler())
                continue
            answered = time.monotonic()
            if threads or self._queue.is_idle:
                waiting_since = answered
                self._use(sum(threads.values()))
            elif answered - waiting_since > WORKER_S:
                return self._lose(self._no_workers())
        return None

    def _use(self, threads: int) -> None:
        """Update the number of threads and send more work."""
        with self._lock:
            self.workers = max(1, threads)
            if self._problem is None and not self._closed.is_set():
                self._send()

    def _threads(self) -> dict[str, int]:
        """Workers and their threads, queried from the scheduler."""
        found = self._client.sync(self._client.scheduler.ncores, callback_timeout=ANSWER_S)
        return dict(found)

    def _lost_scheduler(self) -> ClusterError:
        return ClusterError(
            f"the Dask scheduler at {self._address} is gone: start it again and repeat the "
            "command, which takes the ranks already read from the cache"
        )

    def _no_workers(self) -> ClusterError:
        return ClusterError(
            f"the Dask scheduler at {self._address} has had no worker for {WORKER_S:g} s: "
            f"run dask worker {self._address} to start one"
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
    """Run a batch on a worker; returns the answers, the duration, and the worker's address.

    Raises:
        ClusterError: If the worker has another version of distprof.
    """
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


def _quietened() -> dict[str, int]:
    """Silence Dask's loggers, as distprof reports problems itself; returns the original levels."""
    levels = {name: logging.getLogger(name).level for name in _QUIET}
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return levels


def _restore(levels: dict[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
