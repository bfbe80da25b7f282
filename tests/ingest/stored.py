"""Rows for files of tables."""

import numpy as np

from distprof.run.tables import HOST
from distprof.schema import Coded, Table


def host_table(names, first_ns=1000):
    """Operators with these names, 5 ns each, one every 10 ns."""
    count = len(names)
    start = np.arange(count, dtype=np.int64) * 10 + first_ns
    return Table(
        HOST,
        {
            "start_ns": start,
            "end_ns": start + 5,
            "name": Coded.encode(names),
            "category": Coded.encode(["cpu_op"] * count),
            "thread": Coded.encode(["1/2"] * count),
            "correlation": np.full(count, -1, np.int64),
            "sequence": np.full(count, -1, np.int32),
            "inputs": Coded.encode([""] * count),
        },
    )
