"""Half of the connections inside nodes go through shared memory, by a setting."""

from distprof.sections.nccl.measure import INSIDE
from distprof.sections.nccl.result import NcclResult
from tests.rules.samples import Results, healthy, nccl, nccl_setting, transport


def results() -> Results:
    return {
        **healthy(),
        NcclResult: nccl(
            settings=(nccl_setting("NCCL_P2P_LEVEL", "PIX"),),
            transports=(transport(INSIDE, "SHM"), transport(INSIDE, "P2P/IPC")),
        ),
    }
