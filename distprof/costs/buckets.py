"""α and β of a bucket of gradients, fitted to measured buckets: time = α + β · bytes.

Source: formula sheet, "Collectives" (crossover size).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

__all__ = ["BucketTime", "fit_buckets"]

LEAST_SPREAD = 1.5
"""Largest over smallest size from which two unknowns can be separated."""


class BucketTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a bucket.

    Args:
        latency_ns: Time that a bucket of any size takes (α).
        ns_per_byte: Time that each byte adds (β).
    """

    latency_ns: float
    ns_per_byte: float

    def of(self, num_bytes: float) -> float:
        """Time of a bucket of this size, ns."""
        return self.latency_ns + self.ns_per_byte * num_bytes


def fit_buckets(sizes: Sequence[int], times_ns: Sequence[int]) -> BucketTime | None:
    """Least squares of relative errors over the median time of each size, neither part negative.

    Args:
        sizes: Bytes of each bucket.
        times_ns: Time in which its data moves.

    Returns:
        None where all buckets are of one size, or nearly so.
    """
    size, time = np.asarray(sizes, np.float64), np.asarray(times_ns, np.float64)
    usable = (size > 0) & (time > 0)
    distinct = np.unique(size[usable])
    if len(distinct) < 2 or distinct[-1] < LEAST_SPREAD * distinct[0]:
        return None
    typical = np.array([np.median(time[usable & (size == one)]) for one in distinct])
    design = np.column_stack([1 / typical, distinct / typical])
    (latency, slope), *_ = np.linalg.lstsq(design, np.ones(len(distinct)), rcond=None)
    if slope < 0:
        return BucketTime(latency_ns=float(np.median(typical)), ns_per_byte=0.0)
    if latency < 0:
        return BucketTime(latency_ns=0.0, ns_per_byte=float(np.median(typical / distinct)))
    return BucketTime(latency_ns=float(latency), ns_per_byte=float(slope))
