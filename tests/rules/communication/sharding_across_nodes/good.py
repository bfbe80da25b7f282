"""Sharded inside nodes and replicated across them: as much is exposed, but nothing is to change."""

from distprof.sections.collectives.result import CollectivesResult
from tests.rules.samples import Results, changed, collective_class, healthy


def results() -> Results:
    known = {"exposed_ns_per_step": 800_000, "exposed_wait_ns_per_step": 50_000}
    shard = {"group": "mesh_dp_shard", "axis": "dp_shard", "group_size": 4, "num_nodes": 1}
    replicate = {"axis": "dp_replicate", "group_size": 2, "num_nodes": 2}
    classes = (
        collective_class(kind="all_gather", **shard, **known),
        collective_class(kind="reduce_scatter", **shard, **known),
        collective_class(kind="all_reduce", group="mesh_dp_replicate", **replicate),
    )
    return changed(healthy(), CollectivesResult, classes=classes)
