"""# sharp-unavailable

## What it detects
NCCL was told to reduce in the switches (SHARP, CollNet), tried to, and failed.

## Why it costs time
Without SHARP every all-reduce between nodes moves its data twice, and each rank adds it up. Every
start also spends seconds on attempts that fail.

## Evidence needed
An NCCL log (`NCCL_DEBUG=WARN` suffices) with the warnings of the attempt.

## How the cost is computed
No cost: a log does not show how fast SHARP would be. `distprof bench` with and without
`NCCL_COLLNET_ENABLE=1` measures it.

## How to fix
If the fabric has SHARP: start the aggregation manager (`sharp_am`) next to the subnet manager, give
the job an allocation (`SHARP_COLL_ENABLE_SAT`, the partition of the nodes), and use a plug-in of
the same release. If not, set `NCCL_COLLNET_ENABLE=0`.

## When it is wrong
The cluster may offer SHARP to one job at a time on purpose.

## Sources
NVIDIA NCCL documentation, `NCCL_COLLNET_ENABLE`; nccl-rdma-sharp-plugins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.sections.nccl.result import NcclResult
from distprof.sections.nccl.rules._shared import has_log
from distprof.terms import Severity

_FAILED = re.compile(r"(?i)SHARP coll init error|cannot initialize CollNet")


@rule(
    code="NET112",
    severity=Severity.WARNING,
    since="0.1.0",
    costs_time=False,
)
def check(nccl: NcclResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for all attempts."""
    if not has_log(nccl):
        return
    failed = [warning for warning in nccl.warnings if _FAILED.search(warning.text)]
    if not failed:
        return
    most = max(failed, key=lambda warning: warning.num_lines)
    times = "once" if most.num_lines == 1 else f"{most.num_lines:,} times"
    yield Draft(
        message=(
            f"NCCL could not use SHARP and reduces on the GPUs instead; it warned {times}: "
            f"{most.text.rstrip('.')}."
        ),
        fix=(
            "Start SHARP's aggregation manager (sharp_am) and allow the job to use it, or stop "
            "trying with NCCL_COLLNET_ENABLE=0."
        ),
        ranks=most.ranks,
        evidence=("nccl.warnings",),
    )
