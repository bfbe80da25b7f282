"""Records time lost to Python's garbage collector and to waiting for data loaders.

Garbage collections shorter than 0.1 ms are counted and summed, not listed: there are hundreds per
second and none matters. Waits for a ``DataLoader`` are those of the training thread, from the
request for a batch until it arrives, including the start of an epoch (where workers start). Waits
inside ``session.phase("input")`` are marked, because ``steps.jsonl`` holds the phase. So the input
time of a step is the sum of its phases and of the other waits.

Loaders also wait for a free CPU. So, on a busy machine, each wait also records how long the
training thread, and the worker that owes the batch, ran and how long they were ready to run but had
no CPU.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from distprof.artefacts import PAUSES_FILE
from distprof.artefacts.records import Pause
from distprof_probes.probe import Probe, Recording
from distprof_probes.run_queue import CpuTime, ProcessTimes, RunQueue, spent

SHORTEST_NS = 100_000

BUSY = 0.02
"""Loading is observed if the training thread lacks a CPU for this share of the time for which it is
ready to run. Observing takes 0.2 ms of a step."""

_LOOK_EVERY = 8  # waits

_Function = Callable[..., Any]


class PausesProbe(Probe):
    """Writes ``pauses.jsonl``."""

    name = "pauses"

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        super().__init__()
        self._clock = clock
        self._session: Recording | None = None
        self._collecting_since: int | None = None
        self._num_short = 0
        self._short_ns = 0
        self._loader = _LoaderWaits(clock)

    def start(self, session: Recording) -> None:
        """Start to observe the garbage collector and data loaders."""
        self._session = session
        about = {"shortest_ns": SHORTEST_NS}
        self.open_writer(session, PAUSES_FILE, "distprof.pauses/1", about)
        self._loader.thread = threading.get_ident()
        self.resume()

    def step_ended(self, step: int) -> None:
        """Write the waits of the step."""
        self._loader.install()  # torch may have been imported since
        self._write_waits(step)

    def phase_ended(self, name: str, start_ns: int, end_ns: int) -> None:
        """Mark the waits inside an input phase."""
        if name == "input":
            self._loader.waits = [
                msgspec.structs.replace(wait, in_phase=True)
                if start_ns <= wait.start_ns and wait.end_ns <= end_ns
                else wait
                for wait in self._loader.waits
            ]

    def pause(self) -> None:
        """Stop observing."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        self._collecting_since = None
        self._loader.remove()

    def resume(self) -> None:
        """Observe again."""
        if self._on_collection not in gc.callbacks:
            gc.callbacks.append(self._on_collection)
        self._loader.active = True
        self._loader.install()

    def stop(self) -> None:
        """Write the remaining records."""
        self.pause()
        self._loader.close()
        if self._session is not None:
            self._write_waits(self._session.current_step)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Called by the interpreter before and after each collection, in any thread.

        It may run between any two bytecodes, so it must not take a lock (``put`` takes none).
        """
        if phase == "start":
            self._collecting_since = self._clock()
            return
        start, self._collecting_since = self._collecting_since, None
        if start is None or self.writer is None or self._session is None:
            return
        end = self._clock()
        if end - start < SHORTEST_NS:
            self._count_short(end - start)
            return
        self.writer.put(
            Pause(
                kind="gc",
                start_ns=start,
                end_ns=end,
                step=self._session.current_step,
                generation=info.get("generation"),
                num_collected=info.get("collected"),
            )
        )

    def _count_short(self, duration_ns: int) -> None:
        self._num_short += 1
        self._short_ns += duration_ns
        self.remark = (
            f"{self._num_short} garbage collections under {SHORTEST_NS / 1e6:g} ms are not listed"
            f" ({self._short_ns / 1e6:.1f} ms in total)"
        )

    def _write_waits(self, step: int) -> None:
        waits, self._loader.waits = self._loader.waits, []
        for wait in waits:
            if self.writer is not None:
                self.writer.put(msgspec.structs.replace(wait, step=step))


class _LoaderWaits:
    """Times the training thread's calls to DataLoader and its iterators.

    Args:
        clock: Epoch nanoseconds.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.waits: list[Pause] = []  # Those in the current step.
        self.thread = threading.get_ident()  # The training thread.
        self.active = False  # Whether to observe.
        self._clock = clock
        self._installed: list[tuple[type, str, _Function, _Function]] = []
        self._inside = False  # nested loaders wait once
        self._queue = RunQueue()
        self._workers = ProcessTimes()
        self._is_busy = False
        self._num_waits = 0
        self._before = CpuTime(0, 0)

    def install(self) -> None:
        """Wrap torch's classes, if torch has imported them."""
        module = sys.modules.get("torch.utils.data.dataloader")
        if module is None or self._installed or not self.active:
            return
        for owner_name, name in (("DataLoader", "__iter__"), ("_BaseDataLoaderIter", "__next__")):
            owner = getattr(module, owner_name, None)
            if owner is None or name not in vars(owner):
                continue  # another torch version: records less, breaks nothing
            original = vars(owner)[name]
            timed = self._timed(original)
            setattr(owner, name, timed)
            self._installed.append((owner, name, original, timed))

    def remove(self) -> None:
        """Unwrap them, unless other code has wrapped them since."""
        self.active = False
        for owner, name, original, timed in self._installed:
            if vars(owner)[name] is timed:
                setattr(owner, name, original)
        self._installed.clear()

    def close(self) -> None:
        """Close the files through which loading is observed."""
        self._queue.close()
        self._workers.close()

    def _timed(self, original: _Function) -> _Function:
        @functools.wraps(original)
        def timed(loader: Any) -> Any:
            if not self.active or self._inside or threading.get_ident() != self.thread:
                return original(loader)
            self._inside = True
            loading = self._observed(loader)
            start = self._clock()
            try:
                return original(loader)
            finally:
                end = self._clock()
                self._inside = False
                if end - start >= SHORTEST_NS:
                    wait = Pause(kind="input", start_ns=start, end_ns=end)
                    self.waits.append(wait if loading is None else loading.completed(wait))

        return timed

    def _observed(self, loader: Any) -> _Loading | None:
        """An observer of the loading, if the machine is busy, which is checked periodically."""
        if self._num_waits % _LOOK_EVERY == 0:
            now = self._queue.total()
            ran_ns, waited_ns = spent(self._before, now)
            ready_ns = max((ran_ns or 0) + (waited_ns or 0), 1)
            self._is_busy = waited_ns is not None and waited_ns >= BUSY * ready_ns
            self._before = now
        self._num_waits += 1
        return _Loading(self._queue, self._workers, loader) if self._is_busy else None


class _Loading:
    """Observes the training thread and the worker that load a batch while training waits for it.

    Args:
        queue: Observes the training thread.
        workers: Observes processes.
        loader: The iterator that provides the batch, or a loader.
    """

    def __init__(self, queue: RunQueue, workers: ProcessTimes, loader: Any) -> None:
        self._queue = queue
        self._workers = workers
        self._worker = _owing(loader)
        self._before = self._totals()

    def completed(self, wait: Pause) -> Pause:
        """The wait, with their CPU times during it."""
        passed = [spent(*totals) for totals in zip(self._before, self._totals(), strict=True)]
        ran = [time.ran_ns for time in passed if time.ran_ns is not None]
        waited = [time.waited_ns for time in passed if time.waited_ns is not None]
        is_known = len(ran) == len(waited) == len(passed)
        if not is_known:
            return wait
        most = wait.end_ns - wait.start_ns
        return msgspec.structs.replace(
            wait, cpu_ns=min(sum(ran), most), run_queue_ns=min(sum(waited), most)
        )

    def _totals(self) -> list[CpuTime]:
        thread = self._queue.total()
        return [thread] if self._worker is None else [thread, self._workers.total(self._worker)]


def _owing(iterator: Any) -> int | None:
    """Process ID of the worker that loads the next batch.

    None for loaders without workers, if the batch has arrived, and for other torch versions.
    """
    try:
        (worker,) = iterator._task_info[iterator._rcvd_idx]
        number = iterator._workers[worker].pid
    except Exception:
        return None
    return number if isinstance(number, int) else None
