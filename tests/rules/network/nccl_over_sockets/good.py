"""One node: NCCL chose sockets for a network that nothing crosses."""

from distprof.sections.nccl.measure import INSIDE
from distprof.sections.nccl.result import NcclResult
from tests.rules.samples import Results, healthy, nccl, transport


def results() -> Results:
    one = nccl(networks=("Socket",), transports=(transport(INSIDE, "P2P/IPC"),))
    return {**healthy(), NcclResult: one}
