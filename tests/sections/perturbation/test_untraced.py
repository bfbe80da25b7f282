"""What the training thread did in steps without the profiler."""

from __future__ import annotations

import pytest

from distprof.run.records import PAUSES, PHASES, STEP_LOG, RankRecords
from distprof.schema import ABSENT, Table
from distprof.sections.perturbation.measure import measure_untraced
from tests.builders import table_of

MS = 1_000_000
STEP, STEPS = 100 * MS, 8
LAST = (STEPS - 1,)
"""The traced step."""


def records(*, phases=(), pauses=()):
    """Logs of steps of 100 ms; phases and pauses are (step, length) and (step, length, kind)."""
    steps = [
        {
            **dict.fromkeys(("tokens", "samples", "num_micro_batches", "gpu_behind"), ABSENT),
            **dict.fromkeys(("run_queue_ns", "cpu_ns"), ABSENT),
            "step": step,
            "start_ns": step * STEP,
            "end_ns": (step + 1) * STEP,
            "loss": float("nan"),
            "is_traced": step in LAST,
            "is_light": False,
            "is_probed": True,
        }
        for step in range(STEPS)
    ]
    counts = ("generation", "num_collected", "cpu_ns", "run_queue_ns")
    return RankRecords(
        rank=0,
        step_log=table_of(STEP_LOG, steps),
        phases=table_of(
            PHASES,
            [
                {"step": s, "name": "input", "start_ns": s * STEP, "end_ns": s * STEP + length}
                for s, length in phases
            ],
        ),
        pauses=table_of(
            PAUSES,
            [
                {
                    **dict.fromkeys(counts, ABSENT),
                    "kind": kind,
                    "start_ns": s * STEP,
                    "end_ns": s * STEP + length,
                    "step": s,
                    "in_phase": False,
                }
                for s, length, kind in pauses
            ],
        ),
    )


EVERY = range(STEPS)


@pytest.mark.parametrize(
    ("recorded", "input_ms"),
    [
        (records(phases=[(s, 50 * MS) for s in EVERY]), 50),
        (records(pauses=[(s, 30 * MS, "input") for s in EVERY]), 30),
        # the loop's own phase holds the wait of its loader
        (
            records(
                phases=[(s, 50 * MS) for s in EVERY],
                pauses=[(s, 30 * MS, "input") for s in EVERY],
            ),
            50,
        ),
        (records(pauses=[(s, 5 * MS, "gc") for s in EVERY]), None),
        (records(pauses=[(LAST[0], 30 * MS, "input")]), 0),
        (records(), None),
    ],
    ids=["phases", "pauses", "both", "collections alone", "traced steps alone", "nothing"],
)
def test_input_is_what_phases_and_loaders_record_and_unknown_where_neither_does(recorded, input_ms):
    found = measure_untraced(recorded)
    assert found is not None
    assert found.input_ns == (None if input_ms is None else pytest.approx(input_ms * MS))


def test_without_a_step_log_nothing_is_known():
    assert measure_untraced(RankRecords(rank=0, phases=Table.empty(PHASES))) is None
