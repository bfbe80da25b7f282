"""One rank of pipelines whose stages sleep.

``python -m tests.probes.sleep_pipeline FOLDER SIZE`` starts that many ranks, each of which is this
program with its rank behind. All schedules run one after the other in the same processes. Two-rank
pipelines run twice at the same time, on the first and on the second half of the ranks. Each leaves
the trace of a step.
"""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from distprof_probes.options import ProbeOptions
from distprof_probes.probes.pipeline_marks import PipelineMarksProbe
from distprof_probes.session import Session
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

FORWARD_S = 0.030
HALF_BACKWARD_S = 0.030
MICRO_BATCHES = 8
LIMIT_S = 180

# Name, torch's class, ranks of the pipeline, stages per rank, V-shaped placement of the stages.
CASES: tuple[tuple[str, str, int, int, bool], ...] = (
    ("gpipe-2", "ScheduleGPipe", 2, 1, False),
    ("1f1b-2", "Schedule1F1B", 2, 1, False),
    ("gpipe-4", "ScheduleGPipe", 4, 1, False),
    ("1f1b-4", "Schedule1F1B", 4, 1, False),
    ("interleaved-4", "ScheduleInterleaved1F1B", 4, 2, False),
    ("zbv-4", "ScheduleZBVZeroBubble", 4, 2, True),
)

CLASSES = {case[0]: case[1] for case in CASES}


class _ForInput(torch.autograd.Function):
    """Sleeps in forward, and for the input's half of backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        time.sleep(HALF_BACKWARD_S)
        return gradients[0].clone()


class _ForWeight(torch.autograd.Function):
    """Sleeps for the weight's half of backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x + weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0].clone(), gradients[0].sum(0)


class _WeightCost(torch.autograd.Function):
    """Between the weight and its use: its backward is part of the weight's half only."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0].clone(), None


class SleepStage(nn.Module):
    """Forward 30 ms, backward 60 ms, half of it for the weight.

    The first stage's input has no gradient: there the weight costs the whole of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        seconds = HALF_BACKWARD_S if x.requires_grad else 2 * HALF_BACKWARD_S
        return _ForWeight.apply(_ForInput.apply(x), _WeightCost.apply(self.weight, seconds))


def run(name: str, rank: int, group: Any, out: Path, stages_per_rank: int, v_shape: bool) -> None:
    """One step of one schedule to warm up, and one that is traced."""
    pipelining = import_module("torch.distributed.pipelining")  # not where pytest looks for tests
    schedule_class = getattr(pipelining.schedules, CLASSES[name])
    place, size = group.rank(), group.size()
    indices = [place + size * number for number in range(stages_per_rank)]
    if v_shape:
        indices = [place, 2 * size - 1 - place]
    stages = [
        pipelining.PipelineStage(
            SleepStage(), index, size * stages_per_rank, torch.device("cpu"), group=group
        )
        for index in indices
    ]
    schedule = schedule_class(
        stages if stages_per_rank > 1 else stages[0],
        n_microbatches=MICRO_BATCHES,
        loss_fn=lambda output, target: ((output - target) ** 2).mean(),
    )
    has = {"first": 0 in indices, "last": size * stages_per_rank - 1 in indices}
    batch = torch.zeros(2 * MICRO_BATCHES, 4)
    inputs = (batch,) if has["first"] else ()
    target = {"target": batch} if has["last"] else {}
    schedule.step(*inputs, **target)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        dist.barrier(group)  # starting a profiler takes its time
        schedule.step(*inputs, **target)
    profiler.export_chrome_trace(str(out / f"{name}.{rank}.json"))


def main(rank: int, size: int, folder: Path) -> None:
    """All cases, with the probe on."""
    torch.set_num_threads(1)
    timeout = timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timeout
    )
    halves = [dist.new_group([0, 1], timeout=timeout), dist.new_group([2, 3], timeout=timeout)]
    options = ProbeOptions(measure_overhead=False)
    with Session(folder / "run", options=options, rank=rank, probes=[PipelineMarksProbe()]):
        for name, _, ranks, stages_per_rank, v_shape in CASES:
            group = dist.group.WORLD if ranks == size else halves[rank // 2]
            run(name, rank, group, folder, stages_per_rank, v_shape)
    dist.barrier()
    dist.destroy_process_group()


def launch(arguments: list[str], size: int) -> int:
    """Start all ranks and wait for them; the exit code is 0 if all of theirs are."""
    command = [sys.executable, "-m", "tests.probes.sleep_pipeline", *arguments]
    ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(size)]
    return max(abs(rank.wait(LIMIT_S)) for rank in ranks)


if __name__ == "__main__":
    where, number, *which = sys.argv[1:]
    if not which:
        sys.exit(launch(sys.argv[1:], int(number)))
    main(int(which[0]), int(number), Path(where))
