"""All connections between nodes go over sockets, and collectives cross nodes."""

from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.nccl.measure import BETWEEN, INSIDE
from distprof.sections.nccl.result import NcclResult
from tests.rules.samples import Results, collective_class, collectives, healthy, nccl, transport


def results() -> Results:
    known = {"exposed_ns_per_step": 800_000, "exposed_wait_ns_per_step": 50_000, "num_nodes": 2}
    return {
        **healthy(),
        CollectivesResult: collectives(collective_class(**known)),
        NcclResult: nccl(
            networks=("Socket",),
            missing_networks=("IB",),
            transports=(transport(BETWEEN, "NET/Socket"), transport(INSIDE, "P2P/CUMEM")),
        ),
    }
