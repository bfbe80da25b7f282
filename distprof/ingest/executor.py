"""Where per-rank work runs: here, in a pool of processes, or on a Dask cluster.

Everything is a ``concurrent.futures.Executor``, so that another one can be given instead.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import msgspec

from distprof.errors import DistprofError, UsageError, in_words
from distprof.ingest.machines.cluster import ClusterError, ClusterExecutor, connect
from distprof.options import whole_number
from distprof.processors import available_processors

__all__ = [
    "Failure",
    "Outcome",
    "ProcessExecutor",
    "Progress",
    "SerialExecutor",
    "import_numpy",
    "make_executor",
    "map_each",
    "running",
]

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]

_IN_FLIGHT_PER_WORKER = 2
_CHECK_S = 2.0
"""How long no task of a pool ends before its workers are looked at."""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
MAX_WORKERS = 4_096
_CLUSTERS = ("dask", "tcp", "tls")
_FORMS = "serial, process, process:N or dask://HOST:PORT"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the work on one item gave no result."""

    reason: str
    error: BaseException


class Outcome(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """The result of one item, or why there is none."""

    result: R | None = None
    failure: Failure | None = None


class SerialExecutor(Executor):
    """Runs each task in the calling thread, when it is submitted."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run ``fn`` now; the future is done."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class ProcessExecutor(Executor):
    """A pool of processes that starts with the first task and outlives a dead worker.

    Args:
        workers: Number of processes; None for one per processor that this process may use.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or available_processors() or 1
        self._pool: Any = None
        self._num_lost = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run ``fn``, which must not be of the program's own file, in a worker.

        A pool that lost a worker is replaced.
        """
        with _main_hidden():
            try:
                return self._started().submit(_called, fn, *args, **kwargs)  # type: ignore[no-any-return]
            except (BrokenExecutor, OSError) as error:
                if isinstance(error, OSError) and not self._is_broken:
                    raise
                self._pool = None
                return self._started().submit(_called, fn, *args, **kwargs)  # type: ignore[no-any-return]

    @property
    def _is_broken(self) -> bool:
        """Whether a worker died: where another is starting, it finds the pool's pipes closed."""
        return bool(getattr(self._pool, "_broken", False))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the pool."""
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)
            self._pool = None

    def terminate(self) -> None:
        """Stop at once: running tasks are killed."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        workers, results = self._workers(pool), getattr(pool, "_result_queue", None)
        pool.shutdown(wait=False, cancel_futures=True)
        _end(workers, results)

    def check(self) -> None:
        """Break the pool if a worker died within a message, which the pool reads without end.

        To be called while no task ends: the death of any other worker ends all of them.
        """
        workers = self._workers(self._pool)
        lost = sum(worker.exitcode is not None for worker in workers)
        if lost and lost == self._num_lost:
            _end(workers, getattr(self._pool, "_result_queue", None))
        self._num_lost = lost

    @staticmethod
    def _workers(pool: Any) -> list[Any]:
        """Before Python 3.14 a pool offers no way to end its workers."""
        return list((getattr(pool, "_processes", None) or {}).values())

    def _started(self) -> Any:
        if self._pool is None:
            from concurrent.futures import ProcessPoolExecutor

            self._pool = ProcessPoolExecutor(
                self.workers, mp_context=_start_method(), initializer=_serve_parent
            )
        return self._pool


def _called(fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call in a worker; an error that cannot be sent, which would break the pool, as its words."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise in_words(error) from None
        raise


def _end(workers: Iterable[Any], results: Any) -> None:
    """End a pool's workers, and what reads their results.

    One that ends while it writes leaves half a message. Its reader waits for the rest, and the
    interpreter's exit for the reader, as long as a process could write: this one too.
    """
    for worker in workers:
        worker.terminate()
    if results is not None:
        results._writer.close()


_hiding = threading.Lock()


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Workers that start now do not run the program's own file.

    ``multiprocessing`` runs it again in each worker that it does not fork, for the functions that
    may be in it. Ours are not, and a script or notebook without ``if __name__ == "__main__":``
    would be analysed by every worker anew.
    """
    main = vars(sys.modules["__main__"])
    with _hiding:
        names: tuple[str, ...] = ("__file__", "__spec__")
        kept = {name: main[name] for name in names if name in main}
        main.pop("__file__", None)
        main["__spec__"] = None
        try:
            yield
        finally:
            main.pop("__spec__", None)
            main.update(kept)


def make_executor(spec: str) -> Executor:
    """The executor that ``spec`` names.

    Args:
        spec: ``serial``; ``process`` (a process per processor) or ``process:N``;
            ``dask://HOST:PORT`` (or ``tcp://``, ``tls://``) of a running Dask scheduler, whose
            workers see the same files.

    Raises:
        UsageError: If it names none, or the scheduler does not answer within seconds.
        MissingExtraError: If Dask is not installed.
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
    """An executor for the time of the block; one that was given stays open.

    An interruption ends worker processes at once.
    """
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
    """Apply ``function`` to each item; what fails on one item costs that item only.

    A single item is done here: a pool would cost more than it brings.

    Args:
        executor: Where to run.
        function: Top-level function, so that it can be sent to another process.
        items: Its arguments.
        progress: Called with the number of items done and of all, after each.
        finished: Called with the index of each item that is done.

    Returns:
        One outcome per item, in order. An item whose worker died was tried again alone, since the
        pool cannot tell which of several running items killed it.

    Raises:
        ClusterError: If a whole cluster is lost.
    """
    if len(items) <= 1:
        executor = SerialExecutor()
    outcomes: dict[int, Outcome[R]] = {}
    suspects: list[int] = []
    for index, future in _completed(executor, function, items):
        outcome = _outcome(future)
        if outcome.failure is not None and isinstance(outcome.failure.error, BrokenExecutor):
            suspects.append(index)
            continue
        outcomes[index] = outcome
        _tell(index, len(outcomes), len(items), progress, finished)
    for index in suspects:
        ((_, future),) = _completed(executor, function, [items[index]])
        outcomes[index] = _outcome(future)
        _tell(index, len(outcomes), len(items), progress, finished)
    return [outcomes[index] for index in range(len(items))]


def _tell(
    index: int,
    done: int,
    total: int,
    progress: Progress | None,
    finished: Callable[[int], None] | None,
) -> None:
    if progress is not None:
        progress(done, total)
    if finished is not None:
        finished(index)


def _completed(
    executor: Executor, function: Callable[[T], R], items: Sequence[T]
) -> Iterator[tuple[int, Future[R]]]:
    """Futures as they finish, a few more submitted at a time than there are workers now."""
    done: SimpleQueue[Future[R]] = SimpleQueue()
    pending: dict[Future[R], int] = {}
    for index, item in enumerate(items):
        future = executor.submit(function, item)
        pending[future] = index
        future.add_done_callback(done.put)
        while len(pending) >= _in_flight(executor):
            yield _next(executor, done, pending)
    while pending:
        yield _next(executor, done, pending)


def _next(
    executor: Executor, done: SimpleQueue[Future[R]], pending: dict[Future[R], int]
) -> tuple[int, Future[R]]:
    future = _checking(executor, done) if isinstance(executor, ProcessExecutor) else done.get()
    return pending.pop(future), future


def _checking(pool: ProcessExecutor, done: SimpleQueue[Future[R]]) -> Future[R]:
    """What is done next in a pool whose workers may die in silence."""
    while True:
        try:
            return done.get(timeout=_CHECK_S)
        except Empty:
            pool.check()


def _in_flight(executor: Executor) -> int:
    """How many futures may be pending."""
    if isinstance(executor, ClusterExecutor):
        return sys.maxsize  # calls wait there until a worker has time
    workers = getattr(executor, "workers", None) or available_processors() or 1
    return _IN_FLIGHT_PER_WORKER * int(workers)


def _outcome(future: Future[R]) -> Outcome[R]:
    try:
        return Outcome(result=future.result())
    except BrokenExecutor as error:
        return Outcome(failure=Failure(reason="its worker process died", error=error))
    except ClusterError:
        raise
    except DistprofError as error:
        return Outcome(failure=Failure(reason=str(error), error=error))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return Outcome(failure=Failure(reason=reason, error=error))


def import_numpy() -> None:
    """Import numpy without threads for linear algebra, which distprof does none of.

    OpenBLAS would start one per processor, each of which spins for up to a tenth of a second before
    it sleeps. For a process of our own: in a user's, numpy is theirs. The variable is set for the
    import only, so that no program started later inherits it.
    """
    if "numpy" in sys.modules or _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        import numpy as np  # noqa: F401 - for what importing does
    finally:
        del os.environ[_BLAS_THREADS]


def _start_method() -> Any:
    """How a pool starts its processes: forked from this one while it has no thread but this.

    A forked process need not start and import anew, which takes as long as reading several small
    traces: what all of them need is best imported before. A thread may hold a lock that its copy
    never gives back: then processes are spawned.
    """
    import multiprocessing

    forks = sys.platform == "linux" and _num_threads() == 1
    return multiprocessing.get_context("fork" if forks else "spawn")


_SURVIVES_FORK = "jemalloc_bg_thd"
"""Of Arrow's allocator, which takes its locks before a fork and gives them back on both sides."""


def _num_threads() -> int | None:
    """Threads of this process, those of libraries too; None where that cannot be told."""
    try:
        tasks = Path("/proc/self/task").iterdir()
        names = [(task / "comm").read_text().strip() for task in tasks]
    except OSError:
        return None
    return sum(name != _SURVIVES_FORK for name in names)


def _serve_parent() -> None:
    """Make a worker process stop with the one that started it, and leave nothing half made.

    Ctrl-C reaches every process of the terminal; only the first one answers it.
    """
    import atexit
    import signal
    import threading

    atexit.register(os._exit, 0)  # runs last: taking modules down takes a fifth of a start's time

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    import_numpy()


def _leave_with_parent() -> None:
    """A pool's worker whose parent was killed would wait for work without end."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        _leave()


def _leave() -> None:
    from distprof.ingest.cache import discard_unfinished

    discard_unfinished()
    os._exit(1)
