"""Pipeline stages and schedules of torch, filled with parts of the transformer.

Each boundary between ranks carries one activation forward and one gradient backward per
micro-batch, each of batch · sequence · hidden elements. Shapes are given in advance, so nothing
else is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

from distprof_runs.options import ModelOptions, TrainingOptions
from distprof_runs.pipeline_plan import PipelinePlan
from distprof_runs.workloads.model import Transformer, loss_of
from distprof_runs.workloads.trainer_parts import autocast
from distprof_runs.workloads.workload import Batch, Job

_ONE_STAGE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_MANY_STAGES = {
    "looped-bfs": ScheduleLoopedBFS,
    "interleaved-1f1b": ScheduleInterleaved1F1B,
    "interleaved-zb": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}


class Pipeline:
    """This rank's stages under a schedule.

    Args:
        job: This rank's place.
        model: Resolved sizes.
        training: Common options.
        plan: Which blocks go where.
        group: Ranks of the pipeline, in order.
        make_part: Returns the part of the transformer with these blocks (first, count), ready to
            train.
    """

    def __init__(
        self,
        job: Job,
        model: ModelOptions,
        training: TrainingOptions,
        plan: PipelinePlan,
        group: dist.ProcessGroup,
        make_part: Callable[[int, int], Transformer],
    ) -> None:
        self._job, self._plan = job, plan
        self._numbers = plan.stages_of(group.rank())
        self.parts = [make_part(plan.first_block(n), plan.blocks[n]) for n in self._numbers]
        stages = [
            self._stage(number, part, model, training, group)
            for number, part in zip(self._numbers, self.parts, strict=True)
        ]
        self._schedule = _schedule(plan.schedule, stages, training.micro_batches)

    def step(self, micro_batches: Sequence[Batch]) -> Tensor | None:
        """Forward and backward of all micro-batches, with the gradients of their mean loss.

        Returns:
            That loss, detached, on the rank that has the last stage; None on other ranks.
        """
        device = self._job.device
        arguments: tuple[Tensor, ...] = ()
        keywords: dict[str, Any] = {}
        losses: list[Tensor] = []
        if 0 in self._numbers:
            arguments = (torch.cat([batch.tokens for batch in micro_batches]).to(device),)
        if self._plan.num_stages - 1 in self._numbers:
            targets = torch.cat([batch.targets for batch in micro_batches]).to(device)
            keywords = {"target": targets, "losses": losses}
        with autocast(self._job):
            self._schedule.step(*arguments, return_outputs=False, **keywords)
        return torch.stack(losses).detach().mean() if losses else None

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of all stages on this rank."""
        return [weight for part in self.parts for weight in part.parameters()]

    def _narrow(self, _part: nn.Module, _inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """Send the residual stream, float32 under autocast, in the job's dtype."""
        return out.to(self._job.dtype)

    def _stage(
        self,
        number: int,
        part: Transformer,
        model: ModelOptions,
        training: TrainingOptions,
        group: dist.ProcessGroup,
    ) -> PipelineStage:
        is_last = number == self._plan.num_stages - 1
        if not is_last:
            part.register_forward_hook(self._narrow)
        shape = (training.batch, model.sequence)
        hidden = torch.empty(
            *shape, model.hidden, dtype=self._job.dtype, device="meta", requires_grad=True
        )
        tokens = torch.empty(shape, dtype=torch.int64, device="meta")
        logits = torch.empty(*shape, model.vocabulary, dtype=self._job.dtype, device="meta")
        return PipelineStage(
            part,
            number,
            self._plan.num_stages,
            self._job.device,
            input_args=tokens if number == 0 else hidden,
            output_args=logits.requires_grad_() if is_last else hidden,
            group=group,
        )


def widen_inputs(part: Transformer) -> None:
    """Continue the residual stream of the previous stage in float32, as under autocast."""

    def widen(_part: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(x.float() if x.is_floating_point() else x for x in inputs)

    part.register_forward_pre_hook(widen)


def _schedule(name: str, stages: list[PipelineStage], micro_batches: int) -> Any:
    if name in _ONE_STAGE:
        return _ONE_STAGE[name](stages[0], micro_batches, loss_fn=loss_of)
    return _MANY_STAGES[name](list(stages), micro_batches, loss_fn=loss_of)
