"""A size of buffers, and direct access as always."""

from distprof.sections.nccl.result import NcclResult
from tests.rules.samples import Results, healthy, nccl, nccl_setting


def results() -> Results:
    settings = (nccl_setting("NCCL_BUFFSIZE", "8388608"), nccl_setting("NCCL_P2P_DISABLE", "0"))
    return {**healthy(), NcclResult: nccl(settings=settings)}
