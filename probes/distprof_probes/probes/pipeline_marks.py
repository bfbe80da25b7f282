"""Marks the work of pipeline stages and their waits for other stages in the trace.

torch's own ``PP:`` annotations start before the wait for a stage's input, so they hide most of the
bubble, and the 1F1B schedule has none. Every schedule uses the same three stage methods that
compute and the same function that waits: each gets a mark (``record_function``) while the probe is
on. They are private to torch. If a version lacks them, the probe is unavailable.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distprof_probes.probe import Probe, Recording, Unavailable

PREFIX = "distprof:pp"
WAIT = "distprof:pp_wait"

_SCHEDULES = "torch.distributed.pipelining.schedules"
_STAGE = "torch.distributed.pipelining.stage"

_Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wrap:
    """One function to mark."""

    owner: Any  # Module or class.
    name: str  # Name of the function.
    original: _Function  # The original function.
    marked: _Function  # The function inside its mark.

    def install(self) -> None:
        """Install the mark, unless it is installed already."""
        if getattr(self.owner, self.name) is self.original:
            setattr(self.owner, self.name, self.marked)

    def remove(self) -> None:
        """Remove the mark, unless other code has wrapped the function since."""
        if getattr(self.owner, self.name) is self.marked:
            setattr(self.owner, self.name, self.original)


class PipelineMarksProbe(Probe):
    """Names in the trace: ``distprof:pp stage=1 op=F mb=3`` and ``distprof:pp_wait``.

    Ops are F (forward), B (full backward), I (backward to the inputs), W (backward to the weights)
    and L (the last stage's loss). Marks are set on the CPU thread; with CUDA, the profiler adds the
    GPU's side of each.
    """

    name = "pipeline_marks"

    def __init__(self) -> None:
        super().__init__()
        self._wraps: tuple[_Wrap, ...] = ()
        self._active = False

    def start(self, session: Recording) -> None:  # noqa: ARG002  # the interface of all probes
        """Install the marks, if the program has imported torch's pipelines."""
        self.resume()

    def step_ended(self, step: int) -> None:  # noqa: ARG002
        """Install them, if the program has imported pipelines since."""
        if not self._wraps:
            self.resume()

    def pause(self) -> None:
        """Remove the marks completely."""
        self._active = False
        for wrap in self._wraps:
            wrap.remove()

    def resume(self) -> None:
        """Install them again."""
        self._active = True
        self._wraps = self._wraps or self._found_wraps()
        for wrap in self._wraps:
            wrap.install()

    def stop(self) -> None:
        """Remove the marks for good."""
        self.pause()
        self._wraps = ()

    def _found_wraps(self) -> tuple[_Wrap, ...]:
        """A wrap for each function; none until the program imports torch's pipelines.

        This does not import them: that takes a second, and most programs have none.
        """
        schedules, stage = sys.modules.get(_SCHEDULES), sys.modules.get(_STAGE)
        if schedules is None or stage is None:
            return ()
        base = getattr(stage, "_PipelineStageBase", None)
        schedule = getattr(schedules, "_PipelineSchedule", None)
        places: tuple[tuple[Any, str, Callable[..., str]], ...] = (
            (schedules, "_wait_batch_p2p", lambda *_, **__: WAIT),
            (base, "forward_one_chunk", _forward),
            (base, "backward_one_chunk", _backward),
            (base, "backward_weight_one_chunk", _weight),
            (schedule, "_maybe_compute_loss", _loss),
        )
        missing = [name for owner, name, _ in places if not hasattr(owner, name)]
        if missing:
            raise Unavailable(f"this torch's pipelines lack {', '.join(missing)}")
        return tuple(
            _Wrap(
                owner=owner,
                name=name,
                original=getattr(owner, name),
                marked=self._mark(getattr(owner, name), label),
            )
            for owner, name, label in places
        )

    def _mark(self, function: _Function, label: Callable[..., str]) -> _Function:
        """``function`` inside a mark, named after its arguments."""
        from torch.autograd.profiler import record_function

        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            name = self._name(label, args, kwargs)
            if not name:
                return function(*args, **kwargs)
            self.num_records += 1
            with record_function(name):
                return function(*args, **kwargs)

        return marked

    def _name(
        self, label: Callable[..., str], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        """Name of the mark; empty for none. Never raises, for any arguments."""
        if not self._active:  # other code still holds the wrapped function
            return ""
        try:
            return label(*args, **kwargs)
        except Exception as error:
            self.pause()
            self.remark = f"torch's pipelines call their stages in an unknown way: {error}"
            return ""


def _forward(stage: Any, fwd_chunk_id: int, *_: Any, **__: Any) -> str:
    return _label(stage, "F", fwd_chunk_id)


def _backward(
    stage: Any, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, *_: Any, **__: Any
) -> str:
    del loss
    return _label(stage, "B" if full_backward else "I", bwd_chunk_id)


def _weight(stage: Any, bwd_chunk_id: int, *_: Any, **__: Any) -> str:
    return _label(stage, "W", bwd_chunk_id)


def _loss(
    schedule: Any, stage: Any, output: Any, target: Any, mb_index: int, *_: Any, **__: Any
) -> str:
    del output, target
    has_loss = stage.is_last and getattr(schedule, "_loss_fn", None) is not None
    return _label(stage, "L", mb_index) if has_loss else ""


def _label(stage: Any, op: str, micro_batch: int) -> str:
    return f"{PREFIX} stage={int(stage.stage_index)} op={op} mb={int(micro_batch)}"
