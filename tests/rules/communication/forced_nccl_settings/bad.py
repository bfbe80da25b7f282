"""A ring for everything, and no direct access between GPUs."""

from distprof.sections.nccl.result import NcclResult
from tests.rules.samples import Results, healthy, nccl, nccl_setting


def results() -> Results:
    settings = (nccl_setting("NCCL_ALGO", "RING"), nccl_setting("NCCL_P2P_DISABLE", "1"))
    return {**healthy(), NcclResult: nccl(settings=settings)}
