"""The launch call of each activity, against a search of all calls."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distprof.run.tables import HOST, NO_THREAD, have_launches, join_launches
from distprof.schema import ABSENT, Coded, Table

IDS = st.integers(-1, 6)
CALLS = st.lists(
    st.tuples(IDS, st.integers(0, 9), st.sampled_from(["runtime", "driver", "cpu_op"])), max_size=8
)


def host_of(calls) -> Table:
    start = np.array([call[1] for call in calls], np.int64)
    threads = [f"1/{number % 2}" for number in range(len(calls))]
    return Table(
        HOST,
        {
            "start_ns": start,
            "end_ns": start + 3,
            "name": Coded.encode(["call"] * len(calls)),
            "category": Coded.encode([call[2] for call in calls]),
            "thread": Coded.encode(threads),
            "correlation": np.array([call[0] for call in calls], np.int64),
            "sequence": np.full(len(calls), -1, np.int32),
            "inputs": Coded.encode([""] * len(calls)),
        },
    )


def expected_row(wanted: int, calls) -> int:
    """The earliest call with the id, of several the first."""
    found = [
        (start, row)
        for row, (number, start, category) in enumerate(calls)
        if number == wanted > 0 and category != "cpu_op"
    ]
    return min(found)[1] if found else ABSENT


@given(st.lists(IDS, max_size=6), CALLS)
def test_the_launch_is_the_earliest_call_of_the_same_id(wanted, calls):
    host = host_of(calls)
    launches = join_launches(np.array(wanted, np.int64), host)
    rows = [expected_row(number, calls) for number in wanted]
    assert launches.row.tolist() == rows
    assert launches.known.tolist() == [row != ABSENT for row in rows]
    assert have_launches(np.array(wanted, np.int64), host).tolist() == launches.known.tolist()
    for column, values, absent in (
        (launches.start, host["start_ns"], ABSENT),
        (launches.end, host["end_ns"], ABSENT),
        (launches.thread, host.coded("thread").codes, NO_THREAD),
    ):
        assert column.tolist() == [values[row] if row != ABSENT else absent for row in rows]
        assert column.dtype == values.dtype
