"""Four GPUs share one of four cards."""

from distprof.sections.nccl.result import NcclResult
from tests.rules.samples import Results, healthy, nccl, nccl_host


def results() -> Results:
    hosts = (nccl_host("node-1", (0, 1, 2, 3), num_used=1), nccl_host("node-2", (4, 5, 6, 7)))
    return {**healthy(), NcclResult: nccl(hosts=hosts)}
