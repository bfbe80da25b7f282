"""Faults to inject: the meaning of ``--fault KIND=TARGET:AMOUNT``. Does not import torch.

:mod:`distprof_runs.faults.injection` makes them happen inside a rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from distprof.artefacts.run_file import Fault
from distprof.errors import UsageError
from distprof_runs.model_parallel_options import MoeOptions, PpOptions, ThreeDOptions
from distprof_runs.options import WorkloadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One kind of fault."""

    target: str  # Kind of target: ``rank``, ``stage`` or ``expert``.
    amount: str  # Unit of the amount: ``factor``, ``ms``, ``logit`` or ``step``.
    summary: str  # One line for the user.
    example: str  # A typical one.


def _kind(target: str, amount: str, summary: str, example: str) -> FaultKind:
    return FaultKind(target=target, amount=amount, summary=summary, example=example)


FAULTS: dict[str, FaultKind] = {
    "slow-rank": _kind(
        "rank", "factor", "its compute takes FACTOR times as long", "slow-rank=3:1.2"
    ),
    "slow-host": _kind(
        "rank", "ms", "its Python code loses MS before each block's forward", "slow-host=1:5"
    ),
    "late-input": _kind(
        "rank", "ms", "its data loader takes MS longer per step", "late-input=1:50"
    ),
    "gc-pause": _kind(
        "rank",
        "ms",
        "its garbage collector runs for about MS in the middle of every third step",
        "gc-pause=0:80",
    ),
    "routing-skew": _kind(
        "expert", "logit", "routers add LOGIT in favour of this expert", "routing-skew=2:3"
    ),
    "stage-skew": _kind(
        "stage",
        "factor",
        "it has FACTOR times as much to compute",
        "stage-skew=1:1.5",
    ),
    "sleep-rank": _kind("rank", "ms", "it sleeps MS in each step", "sleep-rank=2:30"),
    "dead-rank": _kind("rank", "step", "it kills itself (SIGKILL) in step STEP", "dead-rank=1:5"),
    "hang-rank": _kind("rank", "step", "it hangs in step STEP", "hang-rank=1:5"),
}

SLOW_LINK = "slow-link"
"""Kind of the only fault between emulated nodes instead of inside a rank."""

_LINK_FORM = f"{SLOW_LINK}=MBIT_PER_S:DELAY_MS, for example {SLOW_LINK}=1000:0.2"


def parse_fault(text: str) -> Fault:
    """The fault that ``KIND=TARGET:AMOUNT`` describes, for example ``slow-rank=3:1.2``."""
    name, _, rest = text.partition("=")
    if name == SLOW_LINK:
        return _parse_link(text)
    kind = FAULTS.get(name)
    if kind is None:
        known = "\n".join(
            f"  {key}={what.target.upper()}:{what.amount.upper():8}{what.summary}"
            for key, what in FAULTS.items()
        )
        known += f"\n  {_LINK_FORM} (with --emulate-nodes)"
        raise UsageError(f"--fault {text}: unknown fault {name!r}. Known faults:\n{known}")
    target, colon, amount = rest.partition(":")
    if not target.isdecimal() or not colon or not _is_number(amount):
        raise UsageError(
            f"--fault {text}: write {name}={kind.target.upper()}:{kind.amount.upper()},"
            f" for example {kind.example}"
        )
    fault = Fault(kind=name, target=int(target), amount=float(amount), text=text)
    _check_amount(fault, kind)
    return fault


def _parse_link(text: str) -> Fault:
    rate, _, delay = text.partition("=")[2].partition(":")
    is_number = _is_number(rate) and _is_number(delay or "0")
    if not is_number or float(rate) <= 0 or float(delay or 0) < 0:
        raise UsageError(f"--fault {text}: write {_LINK_FORM}")
    return Fault(kind=SLOW_LINK, target=None, amount=float(rate), text=text)


def link_of(fault: Fault) -> tuple[float, float]:
    """Rate in Mbit/s and one-way delay in milliseconds of a ``slow-link`` fault."""
    delay = fault.text.partition(":")[2]
    return fault.amount, float(delay or 0)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _check_amount(fault: Fault, kind: FaultKind) -> None:
    problem = ""
    if kind.amount == "factor" and fault.amount < 1:
        problem = "a factor must be at least 1: 1.2 means 20 % slower"
    if kind.amount == "ms" and fault.amount < 0:
        problem = "milliseconds must not be negative"
    if kind.amount == "step" and (fault.amount < 0 or fault.amount % 1):
        problem = "a step must be a whole number from 0"
    if problem:
        raise UsageError(f"--fault {fault.text}: {problem}; for example {kind.example}")


def check_faults(
    faults: tuple[Fault, ...], options: WorkloadOptions, world_size: int, steps: int
) -> None:
    """Reject faults that would have no effect.

    A UsageError says which rank, stage, expert or step does not exist.
    """
    for fault in faults:
        if fault.kind == SLOW_LINK:
            continue
        kind = FAULTS[fault.kind]
        number = {
            "rank": world_size,
            "stage": options.mesh(world_size).get("pp", 1) * _virtual_stages(options),
            "expert": _experts(options),
        }[kind.target]
        if kind.target == "expert" and number == 0:
            raise UsageError(f"--fault {fault.text}: {options.name} has no experts; use moe, or 3d")
        if kind.target == "stage" and not isinstance(options, PpOptions | ThreeDOptions):
            raise UsageError(f"--fault {fault.text}: {options.name} has no stages; use pp, or 3d")
        if fault.target is not None and fault.target >= number:
            raise UsageError(
                f"--fault {fault.text}: {kind.target} {fault.target} does not exist, they are"
                f" numbered 0 to {number - 1}"
            )
        if kind.amount == "step" and fault.amount >= steps:
            raise UsageError(
                f"--fault {fault.text}: the job ends after step {steps - 1}; increase --steps"
            )


def _virtual_stages(options: WorkloadOptions) -> int:
    return max(1, options.virtual_stages) if isinstance(options, PpOptions) else 1


def _experts(options: WorkloadOptions) -> int:
    return options.experts if isinstance(options, MoeOptions | ThreeDOptions) else 0
