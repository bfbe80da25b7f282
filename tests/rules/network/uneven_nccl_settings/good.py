"""Interfaces have other names on the other node, and one rank's line was cut off by another's."""

from distprof.sections.nccl.result import NcclResult
from tests.rules.samples import Results, healthy, nccl, nccl_setting


def results() -> Results:
    settings = (
        nccl_setting("NCCL_SOCKET_IFNAME", "eth0", (0, 1, 2, 3)),
        nccl_setting("NCCL_SOCKET_IFNAME", "eno1", (4, 5, 6, 7)),
        nccl_setting("NCCL_CROSS_NIC", "1", (0, 1, 2, 4, 5, 6, 7)),
    )
    versions = (nccl_setting("version", "2.25.1", ()), nccl_setting("version", "2.25.1+cuda12.9"))
    return {**healthy(), NcclResult: nccl(settings=settings, versions=versions)}
