"""One connection in a hundred lies too far from its card."""

from distprof.sections.nccl.measure import BETWEEN
from distprof.sections.nccl.result import NcclResult
from tests.rules.samples import Results, healthy, nccl, transport


def results() -> Results:
    ways = (
        transport(BETWEEN, "NET/IB", has_gdr=True, num_lines=99),
        transport(BETWEEN, "NET/IB", num_lines=1),
    )
    return {**healthy(), NcclResult: nccl(transports=ways)}
