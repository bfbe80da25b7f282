"""Marks around what a pipeline stage itself does, and around its waits for other stages.

torch's own ``PP:`` annotations begin before the wait for a stage's input, so they hide most of the
bubble, and the 1F1B schedule has none. The three methods of a stage that compute, and the one
function that waits, are the same for every schedule: each gets a mark (``record_function``) while
the probe is on. They are private; where torch no longer has them the probe is unavailable.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distprof_probes.probe import Probe, Unavailable

if TYPE_CHECKING:
    from distprof_probes.session import Session

__all__ = ["PREFIX", "WAIT", "PipelineMarksProbe"]

PREFIX = "distprof:pp"
WAIT = "distprof:pp_wait"

_SCHEDULES = "torch.distributed.pipelining.schedules"
_STAGE = "torch.distributed.pipelining.stage"

_Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wrap:
    """One place to be marked.

    Args:
        owner: Module or class.
        name: Of its function.
        original: The function, before the probe came.
        marked: The same inside its mark.
    """

    owner: Any
    name: str
    original: _Function
    marked: _Function

    def install(self) -> None:
        """Put the mark in, unless it is there."""
        if getattr(self.owner, self.name) is self.original:
            setattr(self.owner, self.name, self.marked)

    def remove(self) -> None:
        """Take the mark out, unless somebody has wrapped it since."""
        if getattr(self.owner, self.name) is self.marked:
            setattr(self.owner, self.name, self.original)


class PipelineMarksProbe(Probe):
    """Names in the trace: ``distprof:pp stage=1 op=F mb=3`` and ``distprof:pp_wait``.

    Ops are F (forward), B (full backward), I (backward to the inputs), W (backward to the weights)
    and L (the last stage's loss). Marks come from the host's thread; on CUDA the profiler adds the
    device's side of each.
    """

    name = "pipeline_marks"

    def __init__(self) -> None:
        super().__init__()
        self._wraps: tuple[_Wrap, ...] = ()
        self._active = False

    def start(self, session: Session) -> None:  # noqa: ARG002  # the interface of all probes
        """Put the marks in, if the program has torch's pipelines.

        Raises:
            Unavailable: If they are not as expected.
        """
        self.resume()

    def step_ended(self, step: int) -> None:  # noqa: ARG002
        """Put them in, if it has pipelines only now."""
        if not self._wraps:
            self.resume()

    def pause(self) -> None:
        """Take the marks out: nothing is left in the way."""
        self._active = False
        for wrap in self._wraps:
            wrap.remove()

    def resume(self) -> None:
        """Put them in again."""
        self._active = True
        self._wraps = self._wraps or self._found_wraps()
        for wrap in self._wraps:
            wrap.install()

    def stop(self) -> None:
        """Take the marks out for good."""
        self.pause()
        self._wraps = ()

    def _found_wraps(self) -> tuple[_Wrap, ...]:
        """A wrap for each place; none as long as nobody has imported torch's pipelines.

        They are not imported for it: that takes a second, and most programs have none.
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
            raise Unavailable(f"this torch's pipelines have no {', '.join(missing)}")
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
        """``function`` inside a mark whose name is made of its arguments."""
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
        """What to call the mark; empty for none. Training goes on whatever the arguments are."""
        if not self._active:  # somebody holds on to the wrapped function
            return ""
        try:
            return label(*args, **kwargs)
        except Exception as error:
            self.pause()
            self.remark = f"torch's pipelines call their stages otherwise: {error}"
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
