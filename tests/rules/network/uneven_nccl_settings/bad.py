"""The second node has another algorithm."""

from distprof.sections.nccl.result import NcclResult
from tests.rules.samples import Results, healthy, nccl, nccl_setting


def results() -> Results:
    settings = (
        nccl_setting("NCCL_ALGO", "RING", (0, 1, 2, 3)),
        nccl_setting("NCCL_ALGO", "TREE", (4, 5, 6, 7)),
    )
    return {**healthy(), NcclResult: nccl(settings=settings)}
