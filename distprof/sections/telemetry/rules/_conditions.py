"""GPU memory problems and recovery actions that ``nvidia-smi -q`` reports.

Source: NVIDIA, "GPU Memory Error Management" (row remapping, page retirement); ``nvidia-smi``
manual, "GPU Recovery Action", "GPU Reset Status".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from distprof.rules.base import Draft
from distprof.sections.telemetry.result import DeviceCondition
from distprof.sections.telemetry.rules._shared import name_devices, ranks_of_devices
from distprof.terms import Severity


def wrong_conditions(
    conditions: Sequence[DeviceCondition], counted: Collection[int]
) -> Iterator[Draft]:
    """Yield one draft per problem."""
    failed = [one for one in conditions if one.has_repair_failed]
    if failed:
        yield _draft(
            f"Memory of {name_devices(failed)} could not be repaired: remapping a row failed.",
            "Drain the host, run its diagnostics (dcgmi diag -r 3), and have the GPU replaced.",
            failed,
            Severity.ERROR,
        )
    waiting = [one for one in conditions if one.is_repair_pending and not one.has_repair_failed]
    if waiting:
        yield _draft(
            f"Memory of {name_devices(waiting)} needs a reset to be repaired: a row remapping or "
            "page retirement is pending.",
            "Drain the host and reset the GPU (nvidia-smi -r): the repair takes effect only then.",
            waiting,
        )
    wrong = [one for one in conditions if one.ecc_uncorrected and one.rank not in counted]
    if wrong:
        yield _draft(
            f"Memory of {name_devices(wrong)} had "
            f"{sum(one.ecc_uncorrected or 0 for one in wrong):,} uncorrectable errors since the "
            "driver was loaded.",
            "Look for XID 48, 63, 94 and 95 in the kernel log of the host, reset the GPU, and "
            "replace it if the errors come back.",
            wrong,
        )
    reported = {id(one) for one in (*failed, *waiting)}
    others = [one for one in conditions if one.recovery and id(one) not in reported]
    for action in dict.fromkeys(one.recovery for one in others):
        same_action = [one for one in others if one.recovery == action]
        yield _draft(
            f'The driver requests recovery of {name_devices(same_action)} ("{action}").',
            "Drain the host and perform the GPU Recovery Action that nvidia-smi -q shows.",
            same_action,
            Severity.ERROR,
        )


def _draft(
    message: str, fix: str, devices: Sequence[DeviceCondition], severity: Severity | None = None
) -> Draft:
    return Draft(
        message=message,
        fix=fix,
        ranks=ranks_of_devices(devices),
        evidence=("telemetry.conditions",),
        severity=severity,
    )
