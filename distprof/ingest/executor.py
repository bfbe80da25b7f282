"""Where per-rank work runs: in this process, in a pool of processes, or on a Dask cluster.

Each option is a ``concurrent.futures.Executor``, so callers can pass any other executor.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import msgspec

from distprof.errors import DistprofError, UsageError, in_words
from distprof.ingest.cluster import PER_WORKER, BatchSize, ClusterError, ClusterExecutor, connect
from distprof.kernel import available_processors, import_numpy, share_cpus
from distprof.options import whole_number

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]
_BATCH_S = 0.05  # target duration of a task of a local process, which costs about 1 ms
_CHECK_S = 2.0  # without a finished task after which the workers of a pool are checked
MAX_WORKERS = 4_096
_CLUSTERS = ("dask", "tcp", "tls")
_FORMS = "serial, process, process:N or dask://HOST:PORT"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an item has no result."""

    reason: str
    error: BaseException


class Outcome(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """The result of one item, or the reason for its absence."""

    result: R | None = None
    failure: Failure | None = None


class SerialExecutor(Executor):
    """Runs each task in the calling thread, when it is submitted."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run ``fn`` now and return a finished future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class ProcessExecutor(Executor):
    """A pool of ``workers``, one per processor if None, that survives the death of one."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or available_processors() or 1
        self._pool: Any = None
        self._num_lost = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run ``fn`` in a worker; it must not be defined in the program's own file."""
        with _main_hidden():
            try:
                return self._started().submit(_call, fn, *args, **kwargs)  # type: ignore[no-any-return]
            except (BrokenExecutor, OSError) as error:
                # if a worker died, one that starts meanwhile finds the pool's pipes closed
                if isinstance(error, OSError) and not getattr(self._pool, "_broken", False):
                    raise
                self._pool = None
                return self._started().submit(_call, fn, *args, **kwargs)  # type: ignore[no-any-return]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the pool."""
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)
            self._pool = None

    def terminate(self) -> None:
        """Stop at once and kill running tasks."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        workers, results = self._workers(pool), getattr(pool, "_result_queue", None)
        pool.shutdown(wait=False, cancel_futures=True)
        _end_workers(workers, results)

    def check(self) -> None:
        """Break the pool if a worker died while sending a result.

        The pool would wait for the rest of the message forever. Call this while no task finishes:
        if a worker dies at any other time, the pool ends all workers itself.
        """
        workers = self._workers(self._pool)
        lost = sum(worker.exitcode is not None for worker in workers)
        if lost and lost == self._num_lost:
            _end_workers(workers, getattr(self._pool, "_result_queue", None))
        self._num_lost = lost

    @staticmethod
    def _workers(pool: Any) -> list[Any]:
        """The worker processes: before Python 3.14 a pool offers no way to end them."""
        return list((getattr(pool, "_processes", None) or {}).values())

    def _started(self) -> Any:
        if self._pool is None:
            from concurrent.futures import ProcessPoolExecutor

            self._pool = ProcessPoolExecutor(
                self.workers,
                mp_context=_start_method(),
                initializer=_serve_parent,
                initargs=(self.workers >= (available_processors() or 1),),
            )
        return self._pool


def _call(fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call ``fn`` in a worker."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        if not isinstance(error, DistprofError):
            error.add_note(f"On a worker:\n{traceback.format_exc()}")
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise in_words(error) from None
        raise


def _end_workers(workers: Iterable[Any], results: Any) -> None:
    """End the workers of a pool and the reader of their results.

    A worker that ends while it writes leaves half a message. The reader waits for the rest while
    any process, including this one, holds the write end, and the interpreter's exit waits for the
    reader.
    """
    for worker in workers:
        worker.terminate()
    if results is not None:
        results._writer.close()


_main_lock = threading.Lock()


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep workers that start in this block from running the program's own file.

    ``multiprocessing`` runs that file again in each worker that it does not fork, because tasks may
    be defined there. distprof's are not, and a script or notebook without ``if __name__ ==
    "__main__":`` would start its analysis again in every worker.
    """
    main = vars(sys.modules["__main__"])
    with _main_lock:
        hidden: tuple[str, ...] = ("__file__", "__spec__")
        kept = {name: main[name] for name in hidden if name in main}
        main.pop("__file__", None)
        main["__spec__"] = None
        try:
            yield
        finally:
            main.pop("__spec__", None)
            main.update(kept)


def make_executor(spec: str) -> Executor:
    """The executor that ``spec`` names.

    ``serial``; ``process`` (a process per processor) or ``process:N``; ``dask://HOST:PORT`` (or
    ``tcp://``, ``tls://``) of a running Dask scheduler, whose workers see the same files.
    """
    if spec == "serial":
        return SerialExecutor()
    if spec == "process":
        return ProcessExecutor()
    kind, _, rest = spec.partition(":")
    workers = whole_number(rest, most=MAX_WORKERS) if kind == "process" else None
    if workers:
        return ProcessExecutor(workers)
    if kind in _CLUSTERS and ":" in rest:
        return connect(spec)
    raise UsageError(f"executor {spec!r} is not one of {_FORMS}")


@contextmanager
def running(executor: str | Executor) -> Iterator[Executor]:
    """Yield an executor for the block; one that the caller passed stays open."""
    if isinstance(executor, Executor):
        yield executor
        return
    made = make_executor(executor)
    try:
        yield made
    except BaseException:
        if isinstance(made, ProcessExecutor):
            made.terminate()
        raise
    finally:
        made.shutdown(wait=True, cancel_futures=True)


def map_each(
    executor: Executor,
    function: Callable[[T], R],
    items: Sequence[T],
    progress: Progress | None = None,
    finished: Callable[[int], None] | None = None,
) -> list[Outcome[R]]:
    """Apply a top-level function to each item; a failure affects only its own item.

    A single item runs in this process: a pool would cost more than it saves. An item whose worker
    died is retried alone, because the pool cannot tell which of several running items killed it.
    ``progress`` gets the number of items done and the total, ``finished`` the index of each item.
    """
    if len(items) <= 1:
        executor = SerialExecutor()
    outcomes: dict[int, Outcome[R]] = {}
    suspects: list[int] = []

    def report(index: int) -> None:
        if progress is not None:
            progress(len(outcomes), len(items))
        if finished is not None:
            finished(index)

    if isinstance(executor, ProcessExecutor):
        mapped = _in_batches(executor, function, items)
    else:
        mapped = _each(executor, function, items)
    for index, outcome in mapped:
        if outcome is None:
            suspects.append(index)
            continue
        outcomes[index] = outcome
        report(index)
    for index in suspects:
        outcomes[index] = _alone(executor, function, items[index])
        report(index)
    return [outcomes[index] for index in range(len(items))]


def _each(
    executor: Executor, function: Callable[[T], R], items: Sequence[T]
) -> Iterator[tuple[int, Outcome[R] | None]]:
    """Yield outcomes, keeping more calls in flight than there are workers; None as below."""
    done: SimpleQueue[Future[R]] = SimpleQueue()
    pending: dict[Future[R], int] = {}
    workers = int(getattr(executor, "workers", None) or available_processors() or 1)
    # at a cluster, calls wait until a worker is free
    most = sys.maxsize if isinstance(executor, ClusterExecutor) else PER_WORKER * workers
    for index, item in enumerate(items):
        future = executor.submit(function, item)
        pending[future] = index
        future.add_done_callback(done.put)
        while len(pending) >= (most if index + 1 < len(items) else 1):
            future = done.get()
            is_broken = isinstance(future.exception(), BrokenExecutor)
            yield pending.pop(future), None if is_broken else _outcome(future.result)


def _in_batches(
    pool: ProcessExecutor, function: Callable[[T], R], items: Sequence[T]
) -> Iterator[tuple[int, Outcome[R] | None]]:
    """Yield outcomes of tasks of several short calls each; None if one shall be tried again."""
    done: SimpleQueue[Future[_Answers[R]]] = SimpleQueue()
    pending: dict[Future[_Answers[R]], range] = {}
    size, sent = BatchSize(_BATCH_S), 0
    while pending or sent < len(items):
        while sent < len(items) and len(pending) < PER_WORKER * pool.workers:
            count = size.next(function, len(items) - sent, pool.workers)
            batch = range(sent, sent := sent + count)
            future = pool.submit(_call_each, function, [items[index] for index in batch])
            pending[future] = batch
            future.add_done_callback(done.put)
        future = _next_checked(pool, done)
        batch = pending.pop(future)
        if future.exception() is not None:  # a worker died, or a result cannot be sent
            yield from ((index, None) for index in batch)
            continue
        outcomes, seconds = future.result()
        size.learn(function, len(batch), seconds)
        yield from zip(batch, outcomes, strict=True)


# What a worker made of a batch, and how long it took in seconds.
_Answers = tuple[list[Outcome[R]], float]


def _call_each(function: Callable[[T], R], items: Sequence[T]) -> _Answers[R]:
    """Call ``function`` with each item in a worker; a failure affects only its own item."""
    begun = time.perf_counter()
    outcomes = [_outcome(partial(_call, function, item)) for item in items]
    return outcomes, time.perf_counter() - begun


def _alone(executor: Executor, function: Callable[[T], R], item: T) -> Outcome[R]:
    """The outcome of an item while nothing else runs, so that a worker can only die of it."""
    future, done = executor.submit(function, item), SimpleQueue[Future[R]]()
    future.add_done_callback(done.put)
    finished = _next_checked(executor, done) if isinstance(executor, ProcessExecutor) else future
    return _outcome(finished.result)


def _next_checked(pool: ProcessExecutor, done: SimpleQueue[Future[T]]) -> Future[T]:
    """The next finished future of a pool whose workers may die silently."""
    while True:
        try:
            return done.get(timeout=_CHECK_S)
        except Empty:
            pool.check()


def _outcome(call: Callable[[], R]) -> Outcome[R]:
    """The result of a call, or why there is none."""
    try:
        return Outcome(result=call())
    except BrokenExecutor as error:
        return Outcome(failure=Failure(reason="its worker process died", error=error))
    except ClusterError:
        raise
    except DistprofError as error:
        return Outcome(failure=Failure(reason=str(error), error=error))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return Outcome(failure=Failure(reason=reason, error=error))


def _start_method() -> Any:
    """The context of a pool's processes: fork while this process has a single thread, else spawn.

    A forked process skips start-up and imports, which take as long as reading several small traces,
    so import shared modules before the fork. Another thread may hold a lock, and its copy in a
    forked process would never be released.
    """
    import multiprocessing

    forks = sys.platform == "linux" and _num_threads() == 1
    return multiprocessing.get_context("fork" if forks else "spawn")


# of Arrow's allocator, which takes its locks before a fork and releases them on both sides
_SURVIVES_FORK = "jemalloc_bg_thd"


def _num_threads() -> int | None:
    """Number of threads of this process, including those of libraries; None if unknown."""
    try:
        tasks = Path("/proc/self/task").iterdir()
        names = [(task / "comm").read_text().strip() for task in tasks]
    except OSError:
        return None
    return sum(name != _SURVIVES_FORK for name in names)


def _serve_parent(are_many: bool) -> None:
    """Make a worker process stop with its parent and leave no unfinished files."""
    import atexit
    import signal
    import threading

    if are_many:
        share_cpus()
    atexit.register(os._exit, 0)  # last, without module teardown: a fifth of the start-up time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    import_numpy()


def _leave_with_parent() -> None:
    """Exit when the parent ends: a worker whose parent was killed would wait for work forever."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        _leave()


def _leave() -> None:
    from distprof.ingest.cache import discard_unfinished

    discard_unfinished()
    os._exit(1)
