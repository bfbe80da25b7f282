"""What a report says about the run it came from."""

from __future__ import annotations

from collections.abc import Iterable

from distprof.run.evidence import OperationLog
from distprof.run.logs import NcclLog
from distprof.run.run import Run
from distprof.run.topology import ProcessGroup
from distprof.sections.report import GroupInfo, RunInfo
from distprof.terms import MeshAxis


def describe_run(run: Run, *, num_steps: int) -> RunInfo:
    """Ranks, backend, device, mesh, nodes and versions of ``run``, as in a report."""
    operations, log = run.get(OperationLog), run.get(NcclLog)
    logs = (one.world_size for one in (operations, log) if one is not None)
    mesh = _mesh(run.topology.groups) if operations is None else dict(operations.mesh)
    if run.job and run.job.mesh:
        mesh = dict(run.job.mesh)
    device = _joined(rank.device.name for rank in run.ranks)
    if not device and run.job:
        device = _joined(entry.device for entry in run.job.ranks)
    versions: dict[str, dict[str, None]] = {}
    for rank in run.ranks:
        for name, version in rank.versions.items():
            versions.setdefault(name, {})[version] = None
    return RunInfo(
        source=run.source,
        world_size=run.topology.world_size or next(filter(None, logs), None),
        ranks=tuple(rank.rank for rank in run.ranks),
        num_steps=num_steps,
        backend=_joined(rank.backend for rank in run.ranks),
        device=device,
        strategy=(run.job.strategy or None) if run.job else None,
        mesh=mesh,
        nodes=dict(run.topology.nodes),
        node_origin=run.topology.node_origin,
        groups=_groups(run.topology.groups),
        versions={
            **_nccl_version(log),
            **(run.job.versions if run.job else {}),
            **{name: ", ".join(found) for name, found in sorted(versions.items())},
        },
    )


def _joined(words: Iterable[str]) -> str:
    """Distinct words in order of appearance; several in a mixed run."""
    return ", ".join(dict.fromkeys(word for word in words if word))


def _mesh(groups: Iterable[ProcessGroup]) -> dict[str, int]:
    """Size of each mesh axis, slowest varying first; the world is not an axis."""
    sizes: dict[str, int] = {}
    for group in groups:
        if group.axis not in (None, MeshAxis.WORLD) and group.size:
            sizes[group.axis] = max(sizes.get(group.axis, 0), group.size)
    return {axis.value: sizes[axis] for axis in MeshAxis if axis in sizes}


def _groups(groups: Iterable[ProcessGroup]) -> tuple[GroupInfo, ...]:
    """Groups with the same description, size and axis as one row, with their number."""
    identical: dict[tuple[str, int | None, MeshAxis | None], list[ProcessGroup]] = {}
    for group in groups:
        key = (group.description or group.name, group.size, group.axis)
        identical.setdefault(key, []).append(group)
    return tuple(
        GroupInfo(
            name=members[0].name,
            description=members[0].description,
            size=members[0].size,
            axis=members[0].axis,
            num_groups=len(members),
        )
        for members in identical.values()
    )


def _nccl_version(log: NcclLog | None) -> dict[str, str]:
    """Version from NCCL's log, without versions that were cut off."""
    versions = list(log.versions) if log else []
    whole = [v for v in versions if not any(o != v and o.startswith(v) for o in versions)]
    return {"nccl": ", ".join(whole[:4])} if whole else {}
