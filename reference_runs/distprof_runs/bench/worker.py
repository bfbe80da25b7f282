"""One rank of a benchmark: ``python -m distprof_runs.bench.worker``.

All ranks time the same iterations between two synchronisations; the slowest rank's time counts. A
round is the mean over its iterations, a size the median over its rounds.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import torch
import torch.distributed as dist
from distprof_probes.environment import tool_version, versions

from distprof.artefacts.fabric_file import FabricCurve, FabricFile, FabricPoint
from distprof.costs.fabric import fitted, point
from distprof.terms import CollectiveKind
from distprof_runs.bench.operations import Ranks, operation
from distprof_runs.bench.plan import KINDS, PLAN_VARIABLE, Plan
from distprof_runs.launching.join import Place, join
from distprof_runs.launching.rank_process import run_and_leave
from distprof_runs.options import DdpOptions, TrainingOptions
from distprof_runs.workloads.workload import Job

_WARM_UP = 3
_FEWEST, _MOST = 3, 400


def measure(job: Job, plan: Plan) -> FabricFile:
    """Measure everything in the plan; all ranks take part, and all get the profile."""
    hosts, nodes = _hosts_and_nodes(job)
    notes: list[str] = []
    curves = []
    for ranks in _groups(job, nodes):
        for label in plan.kinds:
            points = list(_sweep(job, plan, KINDS[label], ranks, notes))
            if points:
                curves.append(_curve(KINDS[label], ranks, points))
    return FabricFile(
        origin="distprof bench",
        distprof_version=tool_version(),
        measured_ns=time.time_ns(),
        device=_device_name(job),
        backend=str(dist.get_backend()),
        world_size=job.world_size,
        hosts=hosts,
        versions=versions(),
        curves=tuple(curves),
        notes=tuple(dict.fromkeys(notes)),
    )


def _hosts_and_nodes(job: Job) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Host and node of each rank; if no launcher numbers nodes, each host is a node."""
    host = socket.gethostname()
    mine = (host, os.environ.get("GROUP_RANK") or host)
    everybody: list[tuple[str, str]] = [mine] * job.world_size
    if job.world_size > 1:
        dist.all_gather_object(everybody, mine)
    hosts, nodes = zip(*everybody, strict=True)
    return hosts, nodes


def _groups(job: Job, nodes: tuple[str, ...]) -> list[Ranks]:
    """All ranks and, if they span nodes of several ranks, the ranks of each node."""
    everybody = tuple(range(job.world_size))
    names = list(dict.fromkeys(nodes))
    groups = [Ranks(group=None, members=everybody, num_nodes=len(names), rank=job.rank)]
    sizes = {nodes.count(name) for name in names}
    if len(names) == 1 or len(sizes) > 1 or 1 in sizes:
        return groups
    for name in names:
        members = tuple(rank for rank in everybody if nodes[rank] == name)
        group = dist.new_group(list(members), timeout=job.timeout)  # each rank creates every group
        if job.rank in members:
            groups.append(Ranks(group=group, members=members, num_nodes=1, rank=job.rank))
    return groups


def _sweep(
    job: Job, plan: Plan, kind: CollectiveKind, ranks: Ranks, notes: list[str]
) -> Iterator[FabricPoint]:
    """Measure every size of one collective."""
    group_size = len(ranks.members)
    for num_bytes in plan.sizes(group_size, job.device.type):
        try:
            run = operation(kind, ranks, num_bytes, job.device)
            _repeat(job, run, _WARM_UP)
        except torch.OutOfMemoryError:
            notes.append(f"{kind.label} of {num_bytes:,} bytes does not fit in memory.")
            return
        except (NotImplementedError, RuntimeError) as error:
            if not _is_unsupported(error):
                raise
            notes.append(f"{dist.get_backend()} does not support {kind.label}.")
            return
        iterations = plan.iterations or _fitting(plan, _round(job, run, _WARM_UP))
        rounds = [_round(job, run, iterations) for _ in range(plan.rounds)]
        yield point(kind, group_size, num_bytes, rounds, num_iterations=iterations)


def _is_unsupported(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, NotImplementedError) or "not support" in text


def _fitting(plan: Plan, time_ns: float) -> int:
    return min(max(round(plan.round_s * 1e9 / max(time_ns, 1.0)), _FEWEST), _MOST)


def _round(job: Job, run: object, iterations: int) -> float:
    """Time of one operation on the slowest rank, ns."""
    _meet(job)
    before = time.perf_counter_ns()
    _repeat(job, run, iterations)
    mine = (time.perf_counter_ns() - before) / iterations
    slowest = torch.tensor([mine], dtype=torch.float64, device=job.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.item())


def _repeat(job: Job, run: object, iterations: int) -> None:
    assert callable(run)  # an operation
    for number in range(iterations):
        run(number)
    if job.device.type == "cuda":
        torch.cuda.synchronize(job.device)


def _meet(job: Job) -> None:
    """Synchronise: all ranks leave at about the same time."""
    token = torch.zeros(1, device=job.device)
    dist.all_reduce(token)
    if job.device.type == "cuda":
        torch.cuda.synchronize(job.device)


def _curve(kind: CollectiveKind, ranks: Ranks, points: list[FabricPoint]) -> FabricCurve:
    return fitted(
        FabricCurve(
            kind=kind.label,
            group_size=len(ranks.members),
            num_nodes=ranks.num_nodes,
            tier="node" if ranks.num_nodes == 1 else "across",
            dtype="float32",
            points=tuple(points),
        )
    )


def _device_name(job: Job) -> str:
    return torch.cuda.get_device_name(job.device) if job.device.type == "cuda" else "cpu"


def _work(place: Place) -> None:
    plan = msgspec.json.decode(os.environ[PLAN_VARIABLE], type=Plan)
    device = "cuda" if plan.device == "cuda" else "cpu" if plan.device == "cpu" else "auto"
    training = TrainingOptions(device=device, group_timeout_s=plan.timeout_s)  # type: ignore[arg-type]
    job = join(place, training, DdpOptions())
    profile = measure(job, plan)
    if place.rank == 0:
        temporary = Path(f"{plan.result}.partial")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2))
        temporary.replace(plan.result)
    _meet(job)
    dist.destroy_process_group()


def main() -> NoReturn:
    """Run one rank and exit."""
    run_and_leave(lambda: _work(Place.from_environment()))


if __name__ == "__main__":
    main()
