"""One rank of a reference run: ``python -m reference_runs.worker``.

What to do stands in run.json of the folder that DISTPROF_RUN_DIR names; who it is, in torchrun's
variables. The process leaves by ``os._exit``: gloo's threads may abort an interpreter that is being
torn down, when all work is done and written.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from distprof.artefacts import ERROR_FILE, RANK_DIR_FORMAT, RUN_FILE
from distprof.artefacts.rank_file import ErrorFile
from distprof.artefacts.run_file import RunFile
from distprof.errors import UsageError
from reference_runs.alone import batches_of
from reference_runs.configuration import Configuration
from reference_runs.injection import Injection
from reference_runs.join import Place, coordinates_of, join
from reference_runs.workload import Batch, Job, Phases, Trainer, build

__all__ = ["Log", "main", "train"]


class Log(Phases, Protocol):
    """What training tells of itself; :class:`probes.Session` is one."""

    def step(
        self,
        *,
        loss: Tensor | float | None = None,
        tokens: int | None = None,
        samples: int | None = None,
    ) -> None:
        """A step has ended."""
        ...


class Stopped(BaseException):
    """Somebody asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def train(
    job: Job, trainer: Trainer, configuration: Configuration, log: Log, injection: Injection
) -> list[float | None]:
    """All steps.

    Args:
        job: This rank's place.
        trainer: Its share of the training.
        configuration: Sizes, steps and seed.
        log: Told of phases and steps.
        injection: Faults to order.

    Returns:
        This rank's loss after each step, None where it has none.
    """
    losses: list[Tensor | None] = []
    for step in range(configuration.training.steps):
        with log.phase("input"):
            injection.input_begins()
            micro_batches = _batches(configuration, trainer, step)
        injection.training_begins(step)
        with injection.slowing():
            loss = trainer.train_step(micro_batches, log)
        tokens, samples = _share(job, trainer, micro_batches)
        log.step(loss=loss, tokens=tokens, samples=samples)
        losses.append(loss)
    return [None if loss is None else loss.item() for loss in losses]


def _batches(configuration: Configuration, trainer: Trainer, step: int) -> Sequence[Batch]:
    return batches_of(
        configuration.model, configuration.training, step=step, part=trainer.data_index
    )


def _share(job: Job, trainer: Trainer, batches: Sequence[Batch]) -> tuple[int, int]:
    """Tokens and samples of the global batch for each rank, so that the ranks' sum is right.

    Ranks that work on the same tokens (tensor, pipeline, context parallel) count a part of them.
    """
    tokens = sum(batch.tokens.numel() for batch in batches) * trainer.num_data_parts
    samples = sum(len(batch.tokens) for batch in batches) * trainer.num_data_parts
    first, more = divmod(tokens, job.world_size), divmod(samples, job.world_size)
    return (
        first[0] + (job.rank < first[1]),
        more[0] + (job.rank < more[1]),
    )


def _work(run_dir: Path, place: Place) -> None:
    """Join, train under probes, leave."""
    from probes import session  # here, because tests train without probes

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
    """error.json, unless the session wrote one: this is for what happens before it opens."""
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
        is_peer_loss=_is_peer_loss(str(error)),
    )
    temporary = file.with_suffix(".partial")
    temporary.write_bytes(msgspec.json.encode(content))
    temporary.replace(file)


def _is_peer_loss(text: str) -> bool:
    from probes.peer_loss import is_peer_loss

    return is_peer_loss(text)


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # as signal wants it
    raise Stopped(number)


def main() -> NoReturn:
    """Be one rank, and leave with 0, 1 after an error, or 128 + the signal that asked to end."""
    place = Place.from_environment()
    run_dir = Path(os.environ["DISTPROF_RUN_DIR"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    code = 1
    try:
        _work(run_dir, place)
        code = 0
    except Stopped as stopped:
        code = stopped.exit_code
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        _write_error(run_dir, place, error)
        code = error.exit_code
    except Exception as error:
        traceback.print_exc()
        _write_error(run_dir, place, error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
