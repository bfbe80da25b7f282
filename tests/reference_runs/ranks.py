"""Several trainings one after another in one set of processes: starting torch takes longest.

``python -m tests.reference_runs.ranks FOLDER SIZE`` starts that many ranks. Without the size it is
one rank: it reads ``variants.json`` and writes what it saw to ``RANK.json``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from distprof_runs.configuration import Configuration
from distprof_runs.launching.join import Place, arrange
from distprof_runs.workloads.alone import batches_of
from distprof_runs.workloads.model import MixtureOfExperts
from distprof_runs.workloads.workload import Trainer, build
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from distprof.errors import UsageError
from tests.warm import Starter

TINY = {"hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "sequence": 16, "vocabulary": 64}
"""Sizes of the model in tests: milliseconds per step."""
LIMIT_S = 240.0
_US = (sys.executable, "-m", "tests.reference_runs.ranks")
FUNCTIONAL = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One training: sections as in run.json's ``config``, and how much work all of it may share."""

    name: str
    workload: str
    sections: dict[str, dict[str, Any]] = {}

    def configuration(self) -> Configuration:
        common = {"model": dict(TINY), "training": {"steps": 4, "batch": 2, "device": "cpu"}}
        sections = {
            name: {**common.get(name, {}), **self.sections.get(name, {})}
            for name in {*common, *self.sections}
        }
        found = Configuration.from_sections(self.workload, sections)
        return replace(found, model=found.model.resolved())


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One collective that was asked for in the last step.

    Args:
        name: As torch calls it, for example ``allreduce_``.
        numel: Elements of the full (unsharded) buffer.
        itemsize: Bytes of an element.
        ranks: Members of the group.
        sent: Elements of the buffer that this rank puts in.
        members: Their global ranks.
    """

    name: str
    numel: int
    itemsize: int
    ranks: int
    sent: int = 0
    members: list[int] = []


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank saw of one variant."""

    losses: list[float | None]
    calls: list[Call]
    num_parameters: int
    error: str = ""
    routing: list[list[int]] = []  # in the last step: tokens per expert, layer after layer


def run_variants(
    folder: Path, variants: Sequence[Variant], world_size: int, start: Starter
) -> Mapping[str, list[Seen]]:
    """What each rank saw, by the variants' names."""
    (folder / "variants.json").write_bytes(msgspec.json.encode(list(variants)))
    done = start([*_US, str(folder), str(world_size)], os.environ)
    logs = "\n".join(log.read_text() for log in sorted(folder.glob("*.log")))
    assert done.returncode == 0, done.stderr + logs
    seen = [
        msgspec.json.decode((folder / f"{rank}.json").read_bytes(), type=list[Seen])
        for rank in range(world_size)
    ]
    return {
        variant.name: [of_rank[index] for of_rank in seen] for index, variant in enumerate(variants)
    }


def launch(folder: Path, world_size: int) -> int:
    """Start the ranks and wait for them; the exit code is 0 if all of theirs are."""
    ranks = [_start(folder, rank, world_size) for rank in range(world_size)]
    try:
        return max(abs(rank.wait(LIMIT_S)) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _start(folder: Path, rank: int, world_size: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank)}
    environment |= {"WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    with (folder / f"{rank}.log").open("wb") as log:
        return subprocess.Popen(
            [*_US, str(folder)],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


class CallLog(TorchDispatchMode):
    """Remembers collectives as the dispatcher sees them, whoever asks: DDP, FSDP or the trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # what it does inside comes here again
        if func.namespace == "c10d":
            self.calls.append(_described(func, args))
        if func.namespace == "_c10d_functional" and func.overloadpacket.__name__ in FUNCTIONAL:
            self.calls.append(_described_functional(func, args))
        return func(*args, **(kwargs or {}))


def _described(func: Any, args: Sequence[Any]) -> Call:
    tensors = [
        tensor
        for value in args
        for tensor in (value if isinstance(value, list) else [value])
        if isinstance(tensor, torch.Tensor)
    ]
    groups = [value for value in args if "ProcessGroup" in str(getattr(value, "_type", str)())]
    largest = max(tensors, key=lambda tensor: tensor.numel(), default=torch.empty(0))
    put_in = tensors[-1] if tensors else largest  # the output, where there is one, comes first
    return Call(
        name=func.overloadpacket.__name__,
        numel=largest.numel(),
        itemsize=largest.element_size(),
        ranks=dist.ProcessGroup.unbox(groups[0]).size() if groups else 0,
        sent=put_in.numel(),
        members=dist.get_process_group_ranks(dist.ProcessGroup.unbox(groups[0])) if groups else [],
    )


def _described_functional(func: Any, args: Sequence[Any]) -> Call:
    name = func.overloadpacket.__name__
    group = _resolve_process_group(args[-1])
    tensor = args[0]
    return Call(
        name=name,
        numel=tensor.numel() * (group.size() if name.startswith("all_gather") else 1),
        itemsize=tensor.element_size(),
        ranks=group.size(),
        sent=tensor.numel(),
        members=dist.get_process_group_ranks(group),
    )


class Silent:
    """Ignores the phases."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


def train(variant: Variant, place: Place) -> Seen:
    configuration = variant.configuration()
    training = configuration.training
    try:
        configuration.workload.check(configuration.model, training, place.world_size)
        job = arrange(place, training, configuration.workload)
        trainer = build(job, configuration.model, training, configuration.workload)
    except UsageError as error:
        return Seen(losses=[], calls=[], num_parameters=0, error=str(error))
    losses, log = [], CallLog()
    routing: list[list[int]] = []
    for layer in _mixtures_of_experts(trainer):
        layer.watchers.append(lambda seen: routing.append(seen.tokens_per_expert.tolist()))
    for step in range(training.steps):
        log = CallLog()
        routing.clear()
        batches = batches_of(configuration.model, training, step=step, part=trainer.data_index)
        with log if step == training.steps - 1 else nullcontext():
            loss = trainer.train_step(batches, Silent())
        losses.append(None if loss is None else loss.item())
    return Seen(
        losses=losses,
        calls=log.calls,
        num_parameters=_num_parameters(trainer),
        routing=routing,
    )


def _mixtures_of_experts(trainer: Trainer) -> list[MixtureOfExperts]:
    return [
        layer
        for module in trainer.modules
        for layer in module.modules()
        if isinstance(layer, MixtureOfExperts)
    ]


def _num_parameters(trainer: Trainer) -> int:
    return sum(weight.numel() for module in trainer.modules for weight in module.parameters())


def main(folder: Path) -> None:
    place = Place.from_environment()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=60),
    )
    variants = msgspec.json.decode((folder / "variants.json").read_bytes(), type=list[Variant])
    seen = [train(variant, place) for variant in variants]
    (folder / f"{place.rank}.json").write_bytes(msgspec.json.encode(seen))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # as the worker leaves


if __name__ == "__main__":
    place, *size = sys.argv[1:]
    if size:
        sys.exit(launch(Path(place), int(size[0])))
    main(Path(place))
