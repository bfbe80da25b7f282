"""One rank of a reference run: ``python -m distprof_runs.launching.worker``.

run.json in the folder that DISTPROF_RUN_DIR names holds the configuration; torchrun's variables
hold the rank.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from distprof.artefacts import ERROR_FILE, RANK_DIR_FORMAT, RUN_FILE
from distprof.artefacts.run_file import ErrorFile, RunFile
from distprof_runs.configuration import Configuration
from distprof_runs.faults.injection import Injection
from distprof_runs.launching.join import Place, coordinates_of, join
from distprof_runs.launching.rank_process import run_and_leave
from distprof_runs.workloads.alone import batches_of
from distprof_runs.workloads.workload import Batch, Job, Phases, Trainer, build


class Log(Phases, Protocol):
    """Receives the progress of training, as :class:`distprof_probes.Session` does."""

    def step(
        self,
        *,
        loss: Tensor | float | None = None,
        tokens: int | None = None,
        samples: int | None = None,
    ) -> None:
        """A step has ended."""
        ...


def train(
    job: Job, trainer: Trainer, configuration: Configuration, log: Log, injection: Injection
) -> None:
    """Run all steps."""
    for step in range(configuration.training.steps):
        with log.phase("input"):
            injection.input_begins()
            micro_batches = _batches(configuration, trainer, step)
        injection.training_begins(step)
        with injection.slowing():
            loss = trainer.train_step(micro_batches, log)
        tokens = sum(batch.tokens.numel() for batch in micro_batches)
        samples = sum(len(batch.tokens) for batch in micro_batches)
        log.step(
            loss=loss,
            tokens=_share(tokens, job, trainer),
            samples=_share(samples, job, trainer),
        )


def _batches(configuration: Configuration, trainer: Trainer, step: int) -> Sequence[Batch]:
    return batches_of(
        configuration.model, configuration.training, step=step, part=trainer.data_index
    )


def _share(of_part: int, job: Job, trainer: Trainer) -> int:
    """The share of tokens to log for this rank, so that the sum over ranks is the global batch.

    Ranks that work on the same tokens (tensor, pipeline, context parallel) each count a part of
    them.
    """
    each, rest = divmod(of_part * trainer.num_data_parts, job.world_size)
    return each + (job.rank < rest)


def _work(run_dir: Path, place: Place) -> None:
    """Join, train under probes, leave."""
    from distprof_probes import session  # imported here, because tests train without probes

    run = msgspec.json.decode((run_dir / RUN_FILE).read_bytes(), type=RunFile)
    configuration = Configuration.from_run_file(run)
    sizes = configuration.workload.mesh(place.world_size)
    job = join(place, configuration.training, configuration.workload)
    with session(
        run_dir,
        rank=place.rank,
        world_size=place.world_size,
        mesh=sizes,
        coordinates=coordinates_of(place.rank, sizes),
    ) as log:
        log.close_on_sigterm()
        trainer = build(job, configuration.model, configuration.training, configuration.workload)
        log.watch(*trainer.modules)
        injection = Injection(configuration.faults, job, trainer)
        train(job, trainer, configuration, log, injection)
    _leave(job)


def _leave(job: Job) -> None:
    if job.device.type == "cuda":
        torch.cuda.synchronize(job.device)
    dist.barrier()
    dist.destroy_process_group()


def _write_error(run_dir: Path, place: Place, error: BaseException) -> None:
    """Write error.json for errors before the session opens, unless the session wrote one."""
    file = run_dir / RANK_DIR_FORMAT.format(rank=place.rank) / ERROR_FILE
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    content = ErrorFile(
        rank=place.rank,
        time_ns=time.time_ns(),
        kind=type(error).__name__,
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
        is_peer_loss=_has_lost_a_peer(error),
    )
    temporary = file.with_suffix(".partial")
    temporary.write_bytes(msgspec.json.encode(content))
    temporary.replace(file)


def _has_lost_a_peer(error: BaseException) -> bool:
    from distprof_probes.peer_loss import has_lost_a_peer

    return has_lost_a_peer(error)


def main() -> NoReturn:
    """Run one rank and exit."""
    place = Place.from_environment()
    run_dir = Path(os.environ["DISTPROF_RUN_DIR"])
    run_and_leave(
        lambda: _work(run_dir, place), note=lambda error: _write_error(run_dir, place, error)
    )


if __name__ == "__main__":
    main()
