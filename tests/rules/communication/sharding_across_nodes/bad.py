"""Eight ranks on two nodes are one sharding group; 1.5 ms of its transfer is exposed."""

from distprof.sections.collectives.result import CollectivesResult
from tests.rules.samples import Results, changed, collective_class, healthy


def results() -> Results:
    known = {
        "group": "mesh_dp_shard",
        "axis": "dp_shard",
        "num_nodes": 2,
        "exposed_ns_per_step": 800_000,
        "exposed_wait_ns_per_step": 50_000,
    }
    classes = (
        collective_class(kind="all_gather", sent_bytes_per_step=14_000_000.0, **known),
        collective_class(kind="reduce_scatter", sent_bytes_per_step=7_000_000.0, **known),
    )
    return changed(healthy(exposed_transfer=1.5), CollectivesResult, classes=classes)
