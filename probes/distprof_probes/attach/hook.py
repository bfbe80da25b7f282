"""Runs in a captured process: finds the training loop by its optimizer and drives a session.

A process counts as a rank when it joins a process group or builds a
:class:`torch.optim.Optimizer`. Launchers, data loader workers and compile workers never do. Until
then nothing is started or written. The steps of the optimizer are the steps of the session
(:mod:`distprof_probes.attach.step_clock`). The phases are ``backward``, from
:func:`torch.autograd.backward`, and ``optimizer``. The probe ``pauses`` finds waits for input.
There is no phase ``forward``: it would need a hook on every call of every module. No exception from
here reaches the training.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from distprof.artefacts import RANK_DIR_FORMAT
from distprof_probes.attach.diary import write_down
from distprof_probes.attach.ending import when_it_ends
from distprof_probes.attach.step_clock import StepClock, stepped_by

if TYPE_CHECKING:
    from distprof_probes.session import Session

RUN_DIR_VARIABLE = "DISTPROF_RUN_DIR"
_MARK = "_distprof_capture"
_STEP_MARK = "_distprof_wrapped"
_CLAIM = ".claimed"
_MOMENT_S = 0.05


def install(torch: ModuleType) -> None:
    """Hook ``torch``, which has just been imported; a second call does nothing."""
    if hasattr(torch, _MARK):
        return
    capture = Capture(Path(os.environ[RUN_DIR_VARIABLE]))
    setattr(torch, _MARK, capture)
    optimizer = torch.optim.Optimizer
    original = optimizer.__init__

    @functools.wraps(original)
    def build(self: object, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        capture.optimizer_built(self)

    optimizer.__init__ = build
    _wrap_group_functions(capture)
    os.register_at_fork(after_in_child=capture.forked)


def _never_raises(method: Callable[..., Any]) -> Callable[..., Any]:
    """Training continues after any error here: the error ends the capture of this process."""

    @functools.wraps(method)
    def guarded(self: Capture, *args: Any) -> Any:
        if self.is_over:
            return None
        try:
            return method(self, *args)
        except Exception as error:
            self.give_up("unusable", f"the capture failed: {type(error).__name__}: {error}")
            return None

    return guarded


class Capture:
    """The capture of one process."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.is_over = False
        self.clock = StepClock()
        self._session: Session | None = None
        self._hooks_are_set = False
        self._stepping: list[int] = []
        self._phase: AbstractContextManager[None] | None = None
        self._in_backward = False
        self._is_due = False
        self._calls = 0
        self._num_steps = 0
        self._thread: int | None = None

    @_never_raises
    def joins_group(self, rank: int | None, world_size: int | None) -> None:
        """The process is about to join the job's process group, so it is a rank.

        The session opens now, because NCCL and the Flight Recorder read their settings when the
        group is created.
        """
        if self._session is None and (rank is not None or "RANK" in os.environ):
            self._open(rank, world_size)

    @_never_raises
    def leaves_group(self) -> None:
        """The process is about to destroy its process groups.

        gloo's threads release the Python objects of the last collectives, for which they need the
        interpreter lock. torch joins those threads while it holds the lock. distprof's threads
        delay them further, so this method gives them a moment.
        """
        if self._session is not None:
            time.sleep(_MOMENT_S)

    @_never_raises
    def optimizer_built(self, optimizer: object) -> None:
        """An optimizer has been built: this process trains."""
        self._set_hooks()
        _wrap_step(type(optimizer), self)
        if self._session is None and _knows_its_rank():
            self._open()

    @_never_raises
    def step_begins(self, optimizer: object, args: Any, kwargs: Any) -> Any:
        """An optimizer is about to step; returns None, or its arguments with a wrapped closure.

        A closure runs forward and backward of a whole micro-batch, which is not work of the
        optimizer.
        """
        if self._session is None:
            self._open()
        if self._session is None or not self._is_training_thread():
            return None
        was_short = self.clock.begins(optimizer, stepped_by(optimizer))
        if id(optimizer) in self._stepping:  # its last step ended in an exception
            self._leave_phase()
            self._stepping.clear()
        if was_short:
            self._is_due = True
            self._end_step()
        if not self._stepping:
            self._enter_phase("optimizer")
        self._stepping.append(id(optimizer))
        return _with_closure(args, kwargs, self._outside)

    def _outside(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, which then runs outside the phase ``optimizer``."""

        @functools.wraps(closure)
        def run() -> Any:
            is_inside = self._phase is not None
            self._leave_phase()
            try:
                return closure()
            finally:
                if is_inside and not self.is_over:
                    self._enter_phase("optimizer")

        return run

    @_never_raises
    def step_ends(self, optimizer: object, *_: object) -> None:
        """An optimizer has stepped."""
        if self._session is None or id(optimizer) not in self._stepping:
            return
        del self._stepping[self._stepping.index(id(optimizer)) :]
        self._is_due = self.clock.ticks(optimizer) or self._is_due
        if not self._stepping:
            self._leave_phase()
        if not self._calls:
            self._end_step()

    @_never_raises
    def call_begins(self) -> None:
        """An optimizer's ``step`` is called; this wraps torch's own mark in the trace."""
        if self._is_training_thread():
            self._calls += 1

    @_never_raises
    def call_ends(self) -> None:
        """``step`` has returned: the step and the profiler can end without cutting that mark."""
        if self._calls and self._is_training_thread():
            self._calls -= 1
            if not self._calls:
                self._end_step()

    @_never_raises
    def backward_begins(self) -> None:
        """A backward pass begins. Only those of the main thread are a phase."""
        if self.clock.new_gradients():
            self._is_due = True
            if self._is_training_thread():
                self._end_step()
        is_free = self._session is not None and self._phase is None
        if not is_free or not self._is_training_thread():
            return
        self._in_backward = True
        self._enter_phase("backward")

    @_never_raises
    def backward_ends(self) -> None:
        """The backward pass has ended or failed."""
        if self._in_backward and self._is_training_thread():
            self._in_backward = False
            self._leave_phase()

    def finish(self, error: BaseException | None) -> None:
        """Close the session because the process ends."""
        session, self._session = self._session, None
        self.is_over = True
        if session is None:
            return
        try:
            session.close(error)
        finally:
            self._say_closed(session.rank)

    def forked(self) -> None:
        """Runs in a forked child: the session belongs to the parent and stays there."""
        if self._session is not None:
            self._session = None
            self.is_over = True

    def give_up(self, event: Any, why: str) -> None:
        """Stop recording this process, and record the reason."""
        session, self._session = self._session, None
        self.is_over = True
        write_down(self.run_dir, event, detail=why, python=sys.executable)
        if session is not None:
            session.close()

    def _open(self, rank: int | None = None, world_size: int | None = None) -> None:
        if rank is None:
            rank, world_size = _place()
        if not _claim(self.run_dir, rank):
            self.give_up("passed_over", f"another process is already recorded as rank {rank}")
            return
        import distprof_probes

        self._session = distprof_probes.session(self.run_dir, rank=rank, world_size=world_size)
        write_down(self.run_dir, "recording", rank=rank, python=sys.executable)
        when_it_ends(self.finish)

    def _set_hooks(self) -> None:
        """Hook the steps of all optimizers, and the backward pass."""
        if self._hooks_are_set:
            return
        self._hooks_are_set = True
        import torch.optim.optimizer as optimizer

        torch: Any = sys.modules["torch"]

        # A compiled step also calls the hooks, which must run unchanged instead of being traced.
        begins = torch.compiler.disable(self.step_begins)
        ends = torch.compiler.disable(self.step_ends)
        optimizer.register_optimizer_step_pre_hook(begins)
        optimizer.register_optimizer_step_post_hook(ends)
        _wrap_backward(torch, self)

    def _is_training_thread(self) -> bool:
        """Whether this is the first thread seen; autograd's threads also run backward passes."""
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        return thread == self._thread

    def _end_step(self) -> None:
        if self._session is not None and self._is_due and not self._stepping:
            self._is_due = False
            self._num_steps += 1
            self._session.step()

    def _enter_phase(self, name: str) -> None:
        if self._session is not None:
            self._phase = self._session.phase(name)
            self._phase.__enter__()

    def _leave_phase(self) -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.__exit__(None, None, None)

    def _say_closed(self, rank: int) -> None:
        others = ", ".join(
            f"{count} steps of {name}" for name, count in sorted(self.clock.num_others.items())
        )
        notes = [*self.clock.notes, f"Also seen: {others}."] if others else self.clock.notes
        write_down(self.run_dir, "closed", rank=rank, steps=self._num_steps, detail=" ".join(notes))


def _knows_its_rank() -> bool:
    """Whether the rank is known.

    A child of ``torch.multiprocessing`` gets its rank as an argument. It becomes known when the
    process group exists, at the latest when the optimizer steps.
    """
    if _process_group() is not None or multiprocessing.parent_process() is None:
        return True
    return "RANK" in os.environ


def _place() -> tuple[int, int | None]:
    """Global rank and world size; the process group takes precedence over the environment."""
    from distprof_probes.environment import placement

    group = _process_group()
    if group is not None:
        return group
    place = placement()
    return place.rank, place.world_size


def _process_group() -> tuple[int, int] | None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _claim(run_dir: Path, rank: int) -> bool:
    """Claim this rank for this process; a restarted rank comes too late and fails."""
    folder = run_dir / RANK_DIR_FORMAT.format(rank=rank)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        to = os.open(folder / _CLAIM, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    os.write(to, str(os.getpid()).encode())
    os.close(to)
    return True


# Wraps of torch functions, which do what they did before ------------------------------------------


def _wrap_group_functions(capture: Capture) -> None:
    """Notify the capture before a process group is created or destroyed."""
    distributed = sys.modules.get("torch.distributed")
    make = getattr(distributed, "init_process_group", None)
    destroy = getattr(distributed, "destroy_process_group", None)
    if make is None or destroy is None:  # torch was built without distributed
        return

    @functools.wraps(make)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        capture.joins_group(*_asked_place(make, args, kwargs))
        return make(*args, **kwargs)

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        capture.leaves_group()
        return destroy(*args, **kwargs)

    _replace_in_torch("init_process_group", make, init_process_group)
    _replace_in_torch("destroy_process_group", destroy, destroy_process_group)


def _replace_in_torch(name: str, original: object, replacement: object) -> None:
    """Replace the function in every torch module that has imported it."""
    for place, module in list(sys.modules.items()):
        if place.startswith("torch.distributed") and vars(module).get(name) is original:
            setattr(module, name, replacement)


def _asked_place(function: Any, args: Any, kwargs: Any) -> tuple[int | None, int | None]:
    """Rank and world size that the program passed; None if the environment decides."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:  # torch will report what is wrong with the call
        return None, None
    rank, world_size = given.get("rank", -1), given.get("world_size", -1)
    if not isinstance(rank, int) or rank < 0:
        return None, None
    return rank, world_size if isinstance(world_size, int) and world_size > 0 else None


def _wrap_step(kind: type, capture: Capture) -> None:
    """Notify the capture when an optimizer of this class starts and ends ``step``."""
    original: Any = getattr(kind, "step", None)
    if original is None or hasattr(original, _STEP_MARK):
        return
    torch: Any = sys.modules["torch"]

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # do not change the compiler's view of it
            return original(*args, **kwargs)
        capture.call_begins()
        try:
            return original(*args, **kwargs)
        finally:
            capture.call_ends()

    setattr(step, _STEP_MARK, True)
    kind.step = step  # type: ignore[attr-defined]


def _with_closure(
    args: Any, kwargs: Any, wrap: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> tuple[Any, Any] | None:
    """Arguments of ``optimizer.step`` with the closure wrapped; None if it has no closure."""
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": wrap(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], wrap(args[1]), *args[2:]), kwargs
    return None


def _wrap_backward(torch: Any, capture: Capture) -> None:
    """Notify the capture of backward passes; ``Tensor.backward`` looks up this name per call."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        if torch.compiler.is_compiling():  # do not change the compiler's view of it
            original(*args, **kwargs)
            return
        capture.backward_begins()
        try:
            original(*args, **kwargs)
        finally:
            capture.backward_ends()

    torch.autograd.backward = backward
