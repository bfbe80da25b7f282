"""Broken inputs by name: mistakes, damage and attacks, with what must come of each.

Each case builds one input in an empty folder and says what must come of it. Most start from one
intact trace: two steps of one rank with kernels, copies, launches and one collective.
"""

from __future__ import annotations

from tests.broken_inputs import (
    damage,
    device_logs,
    exports,
    fields,
    files,
    found,
    heavy,
    inspector_records,
    machines,
    nccl_logs,
    not_traces,
    operation_tables,
    ras,
    training_logs,
)
from tests.broken_inputs.intact import Case, Outcome, intact

__all__ = ["CASES", "HEAVY", "Case", "Outcome", "intact"]

CASES: list[Case] = [
    *not_traces.CASES,
    *fields.CASES,
    *damage.CASES,
    *files.CASES,
    *operation_tables.CASES,
    *nccl_logs.CASES,
    *training_logs.CASES,
    *machines.CASES,
    *device_logs.CASES,
    *inspector_records.CASES,
    *ras.CASES,
    *exports.CASES,
    *found.CASES,
]
"""Inputs that the test's own process can be shown."""

HEAVY: list[Case] = list(heavy.CASES)
"""Inputs for a process of its own with limits."""
