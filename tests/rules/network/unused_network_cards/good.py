"""Two GPUs of a node use a card each, and two cards are idle."""

from distprof.sections.nccl.result import NcclResult
from tests.rules.samples import Results, healthy, nccl, nccl_host


def results() -> Results:
    hosts = (nccl_host("node-1", (0, 1), num_used=2), nccl_host("node-2", (4, 5), num_used=2))
    return {**healthy(), NcclResult: nccl(hosts=hosts)}
