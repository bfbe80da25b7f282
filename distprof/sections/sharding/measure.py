"""Traffic of sharded parameters and tensor parallelism: what is gathered when.

Ranks that share the parameters of a model gather a *unit* of them (a block, say) before they
compute with it, and reduce-scatter its gradients after. Forward and backward each gather every unit
(ZeRO-3), or only one of them does (ZeRO-2); that is a *pass*. How many passes a step makes follows
from the order of operations: forward gathers many units in a row, backward has a reduce-scatter
after each.
"""

from __future__ import annotations

from distprof.artefacts.fabric_file import FabricFile
from distprof.run.run import Run
from distprof.sections.context import RankAnalyses
from distprof.sections.sharding.result import ShardingResult, Variable

__all__ = ["analyze_sharding"]

_VARIABLES = ("CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_")


def analyze_sharding(
    run: Run, analyses: RankAnalyses, profile: FabricFile | None = None
) -> ShardingResult:
    """What sharded parameters and tensor parallelism move, and when.

    Args:
        run: The recording.
        analyses: By global rank; ranks without one take no part.
        profile: Of the network, for the start-up of a gather.

    Returns:
        Nothing but the environment where no rank shares parameters or tensors.

    Source:
        Formula sheet, "Volume per training step" (FSDP, TP).
    """
    from distprof.sections.sharding.rows import traffic_of
    from distprof.sections.sharding.traffic import sharded_axes, shared_streams, tensor_traffic

    traffic = [traffic_of(analyses[r.rank], r) for r in run.ranks if r.rank in analyses]
    if profile is not None and (profile.device == "cpu") != analyses.is_cpu:
        profile = None
    known = run.job.environment if run.job is not None else {}
    axes = sharded_axes(traffic, run.topology, profile)
    return ShardingResult(
        axes=axes,
        tensor=tensor_traffic(traffic),
        shared_streams=shared_streams(traffic, {axis.axis for axis in axes}),
        is_environment_known=run.job is not None,
        environment=tuple(
            Variable(name=name, value=value)
            for name, value in sorted(known.items())
            if name.startswith(_VARIABLES)
        ),
        device=run.ranks[0].device.name if run.ranks else "",
    )
