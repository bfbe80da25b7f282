"""What ``nvidia-smi -q`` shows to be wrong with the memory of GPUs, and what their drivers ask for.

Source: NVIDIA, "GPU Memory Error Management" (row remapping, page retirement); ``nvidia-smi``
manual, "GPU Recovery Action", "GPU Reset Status".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from distprof.rules.base import Draft
from distprof.sections.telemetry.result import DeviceCondition
from distprof.sections.telemetry.rules._shared import name_devices, ranks_of_devices
from distprof.terms import Severity

__all__ = ["wrong_conditions"]


def wrong_conditions(
    conditions: Sequence[DeviceCondition], counted: Collection[int]
) -> Iterator[Draft]:
    """Yield one draft for each thing that is wrong.

    Args:
        conditions: Of all devices.
        counted: Ranks whose uncorrectable errors another draft counts.
    """
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
            f"Memory of {name_devices(waiting)} waits for a reset to be repaired (a row to be "
            "remapped or a page to be retired).",
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
    told = {id(one) for one in (*failed, *waiting)}
    asking = [one for one in conditions if one.recovery and id(one) not in told]
    for action in dict.fromkeys(one.recovery for one in asking):
        found = [one for one in asking if one.recovery == action]
        yield _draft(
            f'The driver asks to recover {name_devices(found)} ("{action}").',
            "Drain the host and do what nvidia-smi -q names under GPU Recovery Action.",
            found,
            Severity.ERROR,
        )


def _draft(
    message: str, fix: str, found: Sequence[DeviceCondition], severity: Severity | None = None
) -> Draft:
    return Draft(
        message=message,
        fix=fix,
        ranks=ranks_of_devices(found),
        evidence=("telemetry.conditions",),
        severity=severity,
    )
