"""Runs probes in a Hugging Face ``Trainer`` through a callback.

::

    from distprof_probes.integrations.transformers import DistprofCallback

    trainer = Trainer(..., callbacks=[DistprofCallback("runs/mine")])
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from distprof_probes.integrations.phase_switch import PhaseSwitch
from distprof_probes.options import ProbeOptions
from distprof_probes.session import Session, session

try:
    from transformers import TrainerCallback
except ImportError:
    raise ImportError("this needs Transformers: pip install 'distprof[transformers]'") from None


class DistprofCallback(TrainerCallback):  # type: ignore[misc]
    """Opens a session for each ``train``. A step is an optimizer update, as ``global_step`` counts.

    Phases: ``input`` (all micro-batches of a step are fetched at its start), ``forward``,
    ``backward`` (with the clipping of gradients), ``optimizer``; ``evaluation`` and ``checkpoint``
    belong to the step that follows them. Hooks on the model separate forward from backward. With
    ``torch_compile``, hooks would break the graph, so both are the phase ``forward_backward``.

    A step has a loss if the Trainer logs one (``logging_steps``): the Trainer's own figure, the
    mean over the steps since the last log and over all ranks. Tokens and samples are counted from
    the model's ``input_ids``, including padding.

    Args:
        out: The run directory, the same on all ranks.
        options: Which probes run and when; by default the options that a launcher passed, else
            the defaults.

    Attributes:
        session: While training, and after it until the next ``train``; None before.
    """

    def __init__(self, out: str | os.PathLike[str], *, options: ProbeOptions | None = None) -> None:
        super().__init__()
        self.session: Session | None = None
        self._out = out
        self._options = options
        self._phases: PhaseSwitch | None = None
        self._hooks: list[Any] = []
        self._is_ending_step = False  # the loss is about to be logged
        self._tokens = self._samples = 0

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        **_: Any,
    ) -> None:
        """Open the session."""
        self._end()
        self.session = session(
            self._out, options=self._options, rank=args.process_index, world_size=args.world_size
        )
        self._phases = PhaseSwitch(self.session)
        self._is_ending_step = False
        self._tokens = self._samples = 0
        atexit.register(self._at_exit)
        if model is not None and not args.torch_compile:
            self._hooks = [
                model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
                model.register_forward_hook(self._after_forward),
            ]
        self._switch("input")

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The batches of the step have arrived."""
        self._end_step()
        self._switch(None if self._hooks else "forward_backward")

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A micro-batch other than the last one has ended."""
        self._switch(None if self._hooks else "forward_backward")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The update starts."""
        self._switch("optimizer")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The update is done. The step ends here, or with its loss."""
        self._switch(None)
        self._is_ending_step = True
        if not control.should_log:
            self._end_step()
            self._after_step(control)

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Any = None,
        **_: Any,
    ) -> None:
        """The loss of the step that is ending."""
        if self._is_ending_step:
            self._end_step((logs or {}).get("loss"))
            self._after_step(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluation has ended."""
        self._switch("checkpoint" if control.should_save else "input")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint is written."""
        self._switch("input")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the session."""
        self._end()

    def _before_forward(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if not model.training or self.session is None:
            return
        self._switch("forward")
        ids: Any = kwargs.get("input_ids", args[0] if args else None)
        if getattr(ids, "ndim", 0) == 2:
            self._tokens += ids.numel()
            self._samples += ids.shape[0]

    def _after_forward(self, model: Any, args: Any, output: Any) -> None:
        if model.training:
            self._switch("backward")

    def _end_step(self, loss: float | None = None) -> None:
        if self._is_ending_step and self.session is not None:
            self.session.step(loss=loss, tokens=self._tokens or None, samples=self._samples or None)
            self._tokens = self._samples = 0
        self._is_ending_step = False

    def _after_step(self, control: Any) -> None:
        """Switch to the phase that the Trainer's control flags announce."""
        if control.should_evaluate:
            self._switch("evaluation")
        else:
            self._switch("checkpoint" if control.should_save else "input")

    def _switch(self, name: str | None) -> None:
        if self._phases is not None:
            self._phases.to(name)

    def _end(self, error: BaseException | None = None) -> None:
        self._switch(None)
        self._end_step()
        self._phases = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self.session is not None:
            self.session.close(error)
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """Find the exception that ended the program: the Trainer has no hook for exceptions."""
        self._end(getattr(sys, "last_value", None))
