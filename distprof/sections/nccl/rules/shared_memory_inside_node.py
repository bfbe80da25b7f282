"""# shared-memory-inside-node

## What it detects
GPUs of one node communicate through CPU memory although the log shows a faster path.

## Why it costs time
Through shared memory each byte crosses PCIe twice and CPU memory once. Peer access over NVLink, or
over one PCIe switch, is several times faster, and a ring is as slow as its slowest connection.

## Evidence needed
An NCCL log (`NCCL_DEBUG=INFO`) that names connections inside a node and shows the faster path: a
setting that disables or limits peer access (`NCCL_P2P_DISABLE`, `NCCL_P2P_LEVEL`), or NVLink in the
graph search (`NCCL_DEBUG_SUBSYS=INIT,GRAPH`). Or NCCL's own words that P2P is disabled between
connected GPUs. Without any of them the rule is not checked.

## How the cost is computed
No cost: a log holds no times, and traces do not show which part of a collective used which
connection.

## How to fix
Unset `NCCL_P2P_DISABLE`, raise `NCCL_P2P_LEVEL` (NVL < PIX < PXB < PHB < SYS), pass all GPUs of the
node into the container, disable ACS and, in virtual machines, set up peer access.

## When it is wrong
Between the sockets of a PCIe machine shared memory can be faster than peer access. `NCCL_P2P_LEVEL`
may have been set after measuring this.

## Sources
NCCL's user guide, `NCCL_P2P_DISABLE`, `NCCL_P2P_LEVEL` and "GPU-to-GPU communication".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.nccl.result import INSIDE, NcclResult
from distprof.sections.nccl.rules._shared import connections, has_log, said, setting_of
from distprof.terms import Confidence, NcclRemark, Severity


@rule(
    code="NET103",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "shared_ratio": Limit(0.01, "smallest share of connections inside nodes over shared memory")
    },
    costs_time=False,
)
def check(nccl: NcclResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for all nodes."""
    refused = said(nccl, NcclRemark.PEER_OFF)
    if has_log(nccl) and not nccl.transports and refused:
        yield _by_remarks(nccl, {remark.value for remark in refused})
        return
    shared, total = connections(nccl, INSIDE, lambda way: way.transport == "SHM")
    if not shared or shared < limits["shared_ratio"] * total:
        return
    yield Draft(
        message=(
            f"{shared:,} of {total:,} connections inside nodes go through CPU memory (SHM); "
            f"{_why(nccl)}."
        ),
        fix="Enable peer access: unset NCCL_P2P_DISABLE, raise NCCL_P2P_LEVEL, disable ACS.",
        confidence=Confidence.INFERRED,
        evidence=("nccl.transports", "nccl.settings"),
    )


def _by_remarks(nccl: NcclResult, links: set[str]) -> Draft:
    """From what NCCL says of GPUs, where the log names no connection."""
    by = "NVLink" if "NVLink" in links else "PCIe"
    value = setting_of(nccl, "NCCL_P2P_DISABLE")
    because = f"; NCCL_P2P_DISABLE is set to {value}" if value else ""
    look = "" if value else " Look for a broken link (nvidia-smi topo -p2p r, dmesg)."
    return Draft(
        message=(
            f"NCCL says that access between GPUs connected by {by} is disabled, so that every byte "
            f"between them goes through CPU memory{because}."
        ),
        fix=f"Enable peer access: unset NCCL_P2P_DISABLE, disable ACS.{look}",
        confidence=Confidence.INFERRED,
        evidence=("nccl.remarks", "nccl.settings"),
    )


def _why(nccl: NcclResult) -> str:
    for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"):
        value = setting_of(nccl, name)
        if value and (name, value) != ("NCCL_P2P_DISABLE", "0"):
            return f"{name} is set to {value}"
    if {"NVL", "NVB", "C2C", "XGMI"} & set(nccl.paths):
        return "NCCL's graph search found NVLink between GPUs"
    raise InsufficientEvidenceError(
        "connections go through CPU memory, but the log does not show a faster path: log with "
        "NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH"
    )
