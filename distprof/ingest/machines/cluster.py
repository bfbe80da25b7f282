"""Per-rank work on a Dask cluster: an executor that ends when the cluster does.

Dask itself moves the tasks of a worker that died to another one. What it does not do is give up: it
waits without end for workers, and for minutes for a scheduler that is gone. Nor does it join short
tasks, which cost more than they do (:mod:`distprof.ingest.machines.batches`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from functools import partial
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

__all__ = ["ClusterError", "ClusterExecutor", "connect"]

T = TypeVar("T")

CONNECT_S = 5
"""In this time a scheduler has to answer."""

ANSWER_S = 30.0
"""For this long a scheduler that has answered before may be silent."""

FETCH_S = 600.0
"""In this time a result arrives."""

WORKER_S = 60.0
"""For this long work may wait for a worker."""

LEAVE_S = 2.0
"""In this time a connection that is lost is closed. Until then Dask does not log its loss."""

_LOOK_S = 0.5
ASK_S = 5.0
"""How often the connection is looked at, and how often the scheduler is asked for its workers."""

_PROTOCOLS = ("tcp", "tls")
_QUIET = ("distributed.client", "distributed.comm", "distributed.core")
_places: dict[tuple[str, str], str] = {}
"""Scheduler and path of a trace to the worker that read it, which has its tables on its disk."""


class ClusterError(DistprofError):
    """The cluster as a whole is of no use any more; no rank is to blame."""


def connect(spec: str) -> ClusterExecutor:
    """An executor on a running cluster.

    Args:
        spec: ``dask://HOST:PORT``, or the address as Dask writes it: ``tcp://`` or ``tls://``.

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
            f"({type(error).__name__}); start one with: dask scheduler"
        ) from error
    return ClusterExecutor(client, address, levels)


class ClusterExecutor(Executor):
    """Runs functions on the workers of a cluster, and watches the cluster.

    Args:
        client: The connection, which is closed with this.
        address: Of the scheduler.
        levels: Levels of Dask's own loggers, to be set again when this is closed.

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
        """Run ``fn`` on the cluster: on the worker that read the same trace, if it is idle.

        Raises:
            ClusterError: If the cluster is lost.
            RuntimeError: If this is closed.
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
        """Send what waits, as far as the workers have too little to do; with the lock held."""
        while self._client.status == "running":  # what cannot be sent any more, the watch ends
            batch = self._queue.take(self.workers)
            if batch is None:
                return
            try:
                self._tasks[batch] = self._submitted(batch)
            except Exception as error:  # of arguments that cannot be sent
                self._done.put((batch, error))

    def _submitted(self, batch: Batch) -> Any:
        """Dask's future of a batch."""
        task = self._client.submit(
            _on_worker,
            __version__,
            packed(batch.content),
            pure=False,
            workers=[batch.place] if batch.place else None,
            allow_other_workers=bool(batch.place),
        )
        task.add_done_callback(partial(self._when_done, batch))
        return task

    def _when_done(self, batch: Batch, task: Any) -> None:
        self._done.put((batch, task))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster, which keeps running."""
        del wait  # nothing of ours would run on
        self._closed.set()
        self._done.put(None)
        with self._lock:
            left = list(self._tasks.values())
            self._queue.clear()
        with suppress(Exception):  # a connection that is lost cannot be closed in order
            if cancel_futures and left and self._problem is None:
                self._client.cancel(left, force=True)
            self._client.close(timeout=CONNECT_S if self._problem is None else LEAVE_S)
        _restore(self._levels)

    def _take_each(self) -> None:
        """Take results until this is closed.

        Dask calls back in one thread for all its clients: a result that is not to be had from one
        cluster any more would hold up all later ones for ever.
        """
        for batch, task in iter(self._done.get, None):
            if isinstance(task, Exception):
                self._take_failure(batch, task)
            else:
                self._take(batch, task)

    def _take(self, batch: Batch, task: Any) -> None:
        """Pass on what a worker returned."""
        try:
            content, seconds, place = task.result(timeout=FETCH_S)
            found: list[Answer] = unpacked(content)
        except BaseException as error:
            if isinstance(error, CancelledError) or task.status == "cancelled":
                return self._lose(self._gone())
            return self._take_failure(batch, error)
        with self._lock:
            self._tasks.pop(batch, None)
            if not self._queue.done(batch, seconds):
                return None  # the cluster was lost meanwhile
            _places.update(((self._address, call.path), place) for call in batch.calls if call.path)
            self._send()
        for call, (result, problem) in zip(batch.calls, found, strict=True):
            _answer(call.future, result, problem)
        return None

    def _take_failure(self, batch: Batch, error: BaseException) -> None:
        """A batch came to nothing: its calls are tried again, each alone."""
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
        """Look after the cluster until this is closed."""
        waiting_since = answered = asked = time.monotonic()
        while not self._closed.wait(_LOOK_S):
            if self._client.status != "running":
                return None if self._closed.is_set() else self._lose(self._gone())
            if time.monotonic() - asked < ASK_S:
                continue
            asked = time.monotonic()
            try:
                threads = self._threads()
            except Exception:  # Dask's own, of many kinds
                if asked - answered > ANSWER_S and not self._closed.is_set():
                    return self._lose(self._gone())
                continue
            answered = time.monotonic()
            if threads or self._queue.is_idle:
                waiting_since = answered
                self._use(sum(threads.values()))
            elif answered - waiting_since > WORKER_S:
                return self._lose(self._deserted())
        return None

    def _use(self, threads: int) -> None:
        """Give work to workers that have come."""
        with self._lock:
            self.workers = max(1, threads)
            if self._problem is None and not self._closed.is_set():
                self._send()

    def _threads(self) -> dict[str, int]:
        """Workers and their threads, as the scheduler knows them now."""
        found = self._client.sync(self._client.scheduler.ncores, callback_timeout=ANSWER_S)
        return dict(found)

    def _gone(self) -> ClusterError:
        return ClusterError(
            f"the Dask scheduler at {self._address} is gone; ranks that were read are in the "
            "cache: start it again and repeat the command"
        )

    def _deserted(self) -> ClusterError:
        return ClusterError(
            f"the Dask scheduler at {self._address} has had no worker for {WORKER_S:g} s; "
            f"start one with: dask worker {self._address}"
        )

    def _lose(self, problem: ClusterError) -> None:
        """Fail everything that is waited for."""
        with self._lock:
            if self._problem is None:
                self._problem = problem
            waiting = self._queue.clear()
            self._tasks.clear()
        for call in waiting:
            _answer(call.future, None, self._problem)


def _on_worker(version: str, content: bytes) -> tuple[bytes, float, str]:
    """What a worker runs: the answers, how long they took, and where they were made.

    Raises:
        ClusterError: If the worker has another version of distprof.
    """
    from distributed import get_worker

    if version != __version__:
        raise ClusterError(
            f"a Dask worker has distprof {__version__}, this machine {version}: install the same"
        )
    return (*call_each(*unpacked(content)), str(get_worker().address))


def _answer(future: Future[Any], result: Any, error: BaseException | None) -> None:
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _explained(error: BaseException) -> BaseException:
    """The error of one item, in words where Dask gave up on it."""
    if isinstance(error, ModuleNotFoundError) and error.name == "distprof":
        return ClusterError("the Dask workers have no distprof: install it there, too")
    if type(error).__name__ == "KilledWorker":
        tries = getattr(error, "allowed_failures", 3) + 1
        return DistprofError(
            f"{tries} workers died while they worked on it; they may have had too little memory"
        )
    return error


def _quietened() -> dict[str, int]:
    """Keep Dask from writing what distprof says in a sentence; the levels as they were."""
    levels = {name: logging.getLogger(name).level for name in _QUIET}
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return levels


def _restore(levels: dict[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
