"""Peer access is limited by a setting, and every pair of GPUs has it all the same."""

from distprof.sections.nccl.measure import INSIDE
from distprof.sections.nccl.result import NcclResult
from tests.rules.samples import Results, healthy, nccl, nccl_setting, transport


def results() -> Results:
    return {
        **healthy(),
        NcclResult: nccl(
            settings=(nccl_setting("NCCL_P2P_LEVEL", "NVL"),),
            transports=(transport(INSIDE, "P2P/CUMEM"),),
        ),
    }
