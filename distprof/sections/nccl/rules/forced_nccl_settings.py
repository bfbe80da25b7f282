"""# forced-nccl-settings

## What it detects
Environment variables restrict NCCL's choices: the algorithm or protocol is forced, a transport is
disabled, or the number of channels is limited.

## Why it costs time
NCCL chooses algorithm, protocol and channels by message size and machine. A choice that was right
for one benchmark is wrong for other sizes: a ring for small messages over many nodes, or the
low-latency protocol for large ones. If P2P, shared memory or InfiniBand is disabled, data takes a
slower path although a faster one may exist. These settings often outlive the problem that they
worked around.

## Evidence needed
NCCL's log (`NCCL_DEBUG=INFO`), which lists the variables that NCCL read from the environment, or
the environment in a run directory. `uneven-nccl-settings` covers values that differ between
processes, and `shared-memory-inside-node` covers P2P settings that lead to shared memory.

## How the cost is computed
No cost: the recording does not show how fast the other choice would be. Run `distprof bench` with
and without the variable to measure it.

## How to fix
Run one job without the variable and compare, preferably with `distprof bench`. If the variable must
stay, document next to it the reason and the NCCL version that needs it.

## When it is wrong
The setting may have been measured to be better on these machines, or work around a known bug of
this version. `NCCL_IB_DISABLE=1` is harmless on machines without InfiniBand.

## Sources
NVIDIA NCCL documentation, Environment Variables ("not recommended to be set in production" for
`NCCL_ALGO` and `NCCL_PROTO`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from distprof.rules.base import Draft, Limits, rule
from distprof.sections.nccl.result import INSIDE, NcclResult
from distprof.sections.sharding.result import ShardingResult
from distprof.terms import Confidence, Severity

_LOC = ("0", "LOC")
_ANY: tuple[str, ...] = ()

_CHOICES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "NCCL_ALGO": (_ANY, "the algorithm is forced"),
    "NCCL_PROTO": (_ANY, "the protocol is forced"),
    "NCCL_MAX_NCHANNELS": (_ANY, "channels are limited"),
    "NCCL_MAX_CTAS": (_ANY, "channels are limited"),
    "NCCL_NVLS_ENABLE": (("0",), "no reduction in the NVLink switch"),
    "NCCL_IB_DISABLE": (("1",), "no InfiniBand or RoCE"),
    "NCCL_NET_GDR_LEVEL": (_LOC, "no GPUDirect RDMA"),
}
"""Variables, the values that restrict NCCL (any value if empty), and the effect."""

_TRANSPORTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "NCCL_P2P_DISABLE": (("1",), "no direct access between GPUs"),
    "NCCL_P2P_LEVEL": (_LOC, "no direct access between GPUs"),
    "NCCL_SHM_DISABLE": (("1",), "no shared memory"),
}
"""The same for transports that every machine with several GPUs has and always benefits from."""


@rule(
    code="COM122",
    severity=Severity.INFO,
    since="0.1.0",
    costs_time=False,
)
def check(nccl: NcclResult, sharding: ShardingResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for the run."""
    values = _set(nccl, sharding)
    named = {
        name: (value, *known[name][1:])
        for known in (_TRANSPORTS, _CHOICES)
        for name, value in values.items()
        if name in known and _is_restrictive(value, known[name][0])
    }
    if any(t.where == INSIDE and t.transport.startswith("SHM") for t in nccl.transports):
        named = {name: one for name, one in named.items() if not name.startswith("NCCL_P2P")}
    if not named:
        return
    parts = [f"{name}={value} ({what})" for name, (value, what) in named.items()]
    verb = "is" if len(parts) == 1 else "are"
    yield Draft(
        message=f"{' and '.join(parts)} {verb} set in the environment.",
        fix=(
            "Run once without these settings and compare with distprof bench. Keep only settings "
            "that these machines and this version of NCCL need."
        ),
        confidence=Confidence.MEASURED,
        severity=Severity.WARNING if named.keys() & _TRANSPORTS.keys() else None,
        evidence=("nccl.settings", "sharding.environment"),
    )


def _set(nccl: NcclResult, sharding: ShardingResult) -> dict[str, str]:
    """Values common to all processes: from NCCL's log, otherwise from the environment."""
    found: dict[str, set[str]] = defaultdict(set)
    for setting in nccl.settings:
        found[setting.name].add(setting.value)
    if sharding.device != "cpu":
        for variable in sharding.environment:
            if variable.name not in found:
                found[variable.name].add(variable.value)
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


def _is_restrictive(value: str, values: tuple[str, ...]) -> bool:
    return bool(value) and (not values or value.strip().upper() in values)
