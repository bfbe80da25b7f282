"""What was recorded, and what the recording lacks, in the results and findings of its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from distprof.rules.base import Finding
from distprof.rules.engine import is_on_recording
from distprof.run.evidence import OperationLog
from distprof.run.logs import NcclLog
from distprof.run.run import Run
from distprof.run.topology import ProcessGroup
from distprof.sections.base import Result
from distprof.sections.capture.result import CaptureGap, CaptureResult
from distprof.sections.report import GroupInfo, RunInfo
from distprof.terms import Confidence, MeshAxis


def describe_run(run: Run, *, num_steps: int) -> RunInfo:
    """Ranks, backend, device, mesh, nodes and versions of ``run``, as in a report."""
    # world size from the traces, else from the log of operations, else from NCCL's log
    operations, log = run.get(OperationLog), run.get(NcclLog)
    size = run.topology.world_size or (operations.world_size if operations else None)
    traced = _joined(rank.device.name for rank in run.ranks)
    found: dict[str, dict[str, None]] = {}
    for rank in run.ranks:
        for name, version in rank.versions.items():
            found.setdefault(name, {})[version] = None
    # groups with the same description, size and axis as one row, with their number
    identical: dict[tuple[str, int | None, MeshAxis | None], list[ProcessGroup]] = {}
    for group in run.topology.groups:
        key = (group.description or group.name, group.size, group.axis)
        identical.setdefault(key, []).append(group)
    nccl = run.get(NcclLog)
    versions = list(nccl.versions) if nccl else []
    whole = [v for v in versions if not any(o != v and o.startswith(v) for o in versions)]
    return RunInfo(
        source=run.source,
        world_size=size or (log.world_size if log else None),
        ranks=tuple(rank.rank for rank in run.ranks),
        num_steps=num_steps,
        backend=_joined(rank.backend for rank in run.ranks),
        device=traced or _joined(entry.device for entry in run.job.ranks) if run.job else traced,
        strategy=(run.job.strategy or None) if run.job else None,
        mesh=_mesh_of(run),
        nodes=dict(run.topology.nodes),
        node_origin=run.topology.node_origin,
        groups=tuple(
            GroupInfo(
                name=members[0].name,
                description=members[0].description,
                size=members[0].size,
                axis=members[0].axis,
                num_groups=len(members),
            )
            for members in identical.values()
        ),
        versions={
            **({"nccl": ", ".join(whole[:4])} if whole else {}),
            **(run.job.versions if run.job else {}),
            **{name: ", ".join(versions) for name, versions in sorted(found.items())},
        },
    )


def _mesh_of(run: Run) -> dict[str, int]:
    if run.job and run.job.mesh:
        return dict(run.job.mesh)
    operations = run.get(OperationLog)
    return dict(operations.mesh) if operations else _mesh(run.topology.groups)


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


def explain_untraced(run: Run, results: Mapping[str, Result]) -> dict[str, Result]:
    """The results, with one common reason if they need traces; unchanged for a run with traces.

    Sentences such as "one rank alone cannot show who waits for whom" are about missing traces, and
    would make the reader search for them.
    """
    if run.ranks or not run.origin:
        return dict(results)
    article = "an" if run.origin[:1] in "aeiou" else "a"
    why = f"The source is {article} {run.origin}: only traces show this, so it was not measured."
    return {
        name: msgspec.structs.replace(result, unavailable=(why,)) if result.needs_traces else result
        for name, result in results.items()
    }


def in_doubt(findings: Iterable[Finding], capture: CaptureResult) -> tuple[Finding, ...]:
    """The findings, with lower confidence in those about ranks whose recording is damaged."""
    damaged = [gap for gap in capture.gaps if gap.fact]
    return tuple(
        replace(found, confidence=Confidence.INFERRED) if _depends(found, damaged) else found
        for found in findings
    )


def _depends(found: Finding, damaged: Iterable[CaptureGap]) -> bool:
    if found.confidence is not Confidence.MEASURED or is_on_recording(found.code):
        return False
    return any(
        not gap.ranks or not found.ranks or set(gap.ranks).intersection(found.ranks)
        for gap in damaged
    )
