"""Runs probes in a Lightning ``Trainer`` through a callback.

::

    from distprof_probes.integrations.lightning import DistprofCallback

    trainer = Trainer(..., callbacks=[DistprofCallback("runs/mine")])
"""

from __future__ import annotations

import os
from typing import Any

from distprof_probes.integrations.phase_switch import PhaseSwitch
from distprof_probes.options import ProbeOptions
from distprof_probes.session import Session, session

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError:
        raise ImportError("this needs Lightning: pip install 'distprof[lightning]'") from None


class DistprofCallback(Callback):  # type: ignore[misc]
    """Opens a session for each ``fit``. A step is an optimizer update, as ``global_step`` counts.

    With automatic optimization the phases are ``input``, ``forward``, ``backward`` and
    ``optimizer``; with manual optimization only ``input`` can be detected. ``validation`` and
    ``checkpoint`` are phases of the step that follows them. The phase ``checkpoint`` includes
    fetching the first batch after it. The loss of a step is the sum of the losses of its
    micro-batches, which Lightning has divided by their number; with manual optimization, their
    mean.

    Args:
        out: The run directory, the same on all ranks.
        options: Which probes run and when; by default the options that a launcher passed, else
            the defaults.

    Attributes:
        session: While training, and after it until the next ``fit``; None before.
    """

    def __init__(self, out: str | os.PathLike[str], *, options: ProbeOptions | None = None) -> None:
        super().__init__()
        self.session: Session | None = None
        self._out = out
        self._options = options
        self._phases: PhaseSwitch | None = None
        self._updates = 0  # optimizer updates up to the last batch
        self._loss: Any = None  # of the micro-batches of this step
        self._num_batches = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the session: the ranks are known, and the sanity check has ended."""
        self._end()
        self.session = session(
            self._out,
            options=self._options,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
        )
        self._phases = PhaseSwitch(self.session)
        self._updates = trainer.global_step
        self._loss, self._num_batches = None, 0
        self._switch("input")

    def on_train_batch_start(
        self,
        trainer: Any,
        pl_module: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """The batch has arrived."""
        self._switch("forward" if pl_module.automatic_optimization else None)

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Between forward and backward of a step's first micro-batch."""
        if pl_module.automatic_optimization:
            self._switch(None)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Backward starts."""
        if pl_module.automatic_optimization:
            self._switch("backward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Backward ends."""
        if pl_module.automatic_optimization:
            self._switch(None)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The update starts."""
        if pl_module.automatic_optimization:
            self._switch("optimizer")

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """The step ends if the optimizer has made an update."""
        if self.session is None:
            return
        self._switch(None)
        self._add_loss(outputs)
        if trainer.global_step != self._updates:
            self._updates = trainer.global_step
            divisor = 1 if pl_module.automatic_optimization else max(self._num_batches, 1)
            self.session.step(loss=None if self._loss is None else self._loss / divisor)
            self._loss, self._num_batches = None, 0
        self._switch("input")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """The time until validation ends is not a wait for input."""
        self._switch("validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Back to training."""
        self._switch("input")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """No callback marks the end of writing, so the phase ends when the next batch arrives."""
        self._switch("checkpoint")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the session."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the session, which records the reason."""
        self._end(exception)

    def _switch(self, name: str | None) -> None:
        if self._phases is not None:
            self._phases.to(name)

    def _add_loss(self, outputs: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is None:
            return
        loss = loss.detach() if hasattr(loss, "detach") else loss
        self._loss = loss if self._loss is None else self._loss + loss
        self._num_batches += 1

    def _end(self, error: BaseException | None = None) -> None:
        self._switch(None)
        self._phases = None
        if self.session is not None:
            self.session.close(error)
