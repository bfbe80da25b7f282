"""Which runtime call launched which device activity."""

from __future__ import annotations

import numpy as np

from distprof.schema import ABSENT, Int64Array, Table

__all__ = ["launch_rows", "launch_times"]


def launch_times(correlation: Int64Array, host: Table) -> Int64Array:
    """Start of the runtime call that launched each activity, ABSENT where there is none.

    Args:
        correlation: Correlation of each activity.
        host: HOST table with the runtime and driver calls.
    """
    rows = launch_rows(correlation, host)
    found = rows != ABSENT
    result = np.full(len(correlation), ABSENT, dtype=np.int64)
    result[found] = host["start_ns"][rows[found]]
    return result


def launch_rows(correlation: Int64Array, host: Table) -> Int64Array:
    """Row in ``host`` of the call that launched each activity, ABSENT where there is none."""
    calls = np.flatnonzero(
        host.coded("category").isin(("runtime", "driver")) & (host["correlation"] > 0)
    )
    result = np.full(len(correlation), ABSENT, dtype=np.int64)
    if len(calls) == 0 or len(correlation) == 0:
        return result
    keys = host["correlation"][calls]
    order = np.argsort(keys, kind="stable")
    calls, keys = calls[order], keys[order]
    position = np.minimum(np.searchsorted(keys, correlation), len(keys) - 1)
    found = (keys[position] == correlation) & (correlation > 0)
    result[found] = calls[position[found]]
    return result
