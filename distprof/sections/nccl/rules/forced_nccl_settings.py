"""# forced-nccl-settings

## What it detects
Variables of the environment take choices away from NCCL: the algorithm or protocol is forced, a way
of connecting ranks is switched off, or the number of channels is limited.

## Why it costs time
NCCL chooses algorithm, protocol and channels by size and machine. A choice that was right for one
benchmark is wrong for other sizes: a ring for small messages over many nodes, the low-latency
protocol for large ones. With P2P, shared memory or InfiniBand switched off, data goes a slower way
though a faster one may exist. Such settings mostly outlive the problem that they were a way around.

## Evidence needed
NCCL's own log (`NCCL_DEBUG=INFO`), which names what it took from the environment, or the
environment in a run directory. Values on which processes differ belong to `uneven-nccl-settings`,
and P2P settings that lead to shared memory to `shared-memory-inside-node`.

## How the cost is computed
It is not: nothing recorded shows how fast the other choice would have been. `distprof bench` with
and without the variable does.

## How to fix
Start one job without the variable and compare, best with `distprof bench`. If it must stay, say why
beside it, with the version of NCCL that needs it.

## When it is wrong
Where the setting was measured to be better on these machines, or works around a known bug of this
version; where `NCCL_IB_DISABLE=1` stands on machines that have no InfiniBand.

## Sources
NVIDIA NCCL documentation, Environment Variables ("not recommended to be set in production" for
`NCCL_ALGO` and `NCCL_PROTO`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from distprof.rules.base import Draft, Limits, rule
from distprof.sections.nccl.measure import INSIDE
from distprof.sections.nccl.result import NcclResult
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
"""Variables to the values that take a choice away (any, where empty), and what is lost."""

_WAYS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "NCCL_P2P_DISABLE": (("1",), "no direct access between GPUs"),
    "NCCL_P2P_LEVEL": (_LOC, "no direct access between GPUs"),
    "NCCL_SHM_DISABLE": (("1",), "no shared memory"),
}
"""The same for ways that every machine with several GPUs has: none loses by having them."""


@rule(
    code="COM122",
    severity=Severity.INFO,
    since="0.1.0",
    needs=(NcclResult, ShardingResult),
    costs_time=False,
)
def check(nccl: NcclResult, sharding: ShardingResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for the run."""
    values = _set(nccl, sharding)
    named = {
        name: (value, *known[name][1:])
        for known in (_WAYS, _CHOICES)
        for name, value in values.items()
        if name in known and _takes_away(value, known[name][0])
    }
    if any(t.where == INSIDE and t.transport.startswith("SHM") for t in nccl.transports):
        named = {name: one for name, one in named.items() if not name.startswith("NCCL_P2P")}
    if not named:
        return
    parts = [f"{name}={value} ({what})" for name, (value, what) in named.items()]
    verb = "is" if len(parts) == 1 else "are"
    yield Draft(
        message=f"{' and '.join(parts)} {verb} set for NCCL by the environment.",
        fix=(
            "Run once without, and compare with distprof bench; keep only what these machines and "
            "this version of NCCL need."
        ),
        confidence=Confidence.MEASURED,
        severity=Severity.WARNING if named.keys() & _WAYS.keys() else None,
        evidence=("nccl.settings", "sharding.environment"),
    )


def _set(nccl: NcclResult, sharding: ShardingResult) -> dict[str, str]:
    """What all processes agree on: by NCCL's log, and where it says nothing by the environment."""
    found: dict[str, set[str]] = defaultdict(set)
    for setting in nccl.settings:
        found[setting.name].add(setting.value)
    if sharding.device != "cpu":
        for variable in sharding.environment:
            if variable.name not in found:
                found[variable.name].add(variable.value)
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


def _takes_away(value: str, values: tuple[str, ...]) -> bool:
    return bool(value) and (not values or value.strip().upper() in values)
