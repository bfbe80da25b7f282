"""When the last member started, on every member's own clock."""

import numpy as np
import pytest

from distprof.ingest.assemble import assemble_run
from distprof.join.waits import last_start_on_own_clock
from distprof.schema import ABSENT
from distprof.terms import CollectiveKind
from tests.simulator import Collective, Compute, Exchange, SimulatedJob, SlowDevice
from tests.simulator.by_hand import collective, rank_by_hand
from tests.simulator.tables import captured_comm

MS = 1_000_000


def waits(ranks):
    run = assemble_run("test", ranks)
    return {
        number: times.tolist()
        for number, times in last_start_on_own_clock(run.matches, run.clock, run.ranks).items()
    }


def test_the_last_start_is_told_in_each_ranks_own_time():
    """The second clock is 1,000 ahead; rank 1 starts 300 later the first time, 200 earlier then."""
    first = [collective(0, 500, seq=1), collective(5200, 5500, seq=2)]
    second = [collective(1300, 1500, seq=1), collective(6000, 6500, seq=2)]
    assert waits([rank_by_hand(0, first), rank_by_hand(1, second)]) == {
        0: [300, 5200],
        1: [1300, 6200],
    }


def test_rows_without_partner_have_no_last_start():
    rows = [
        collective(t, t + 50, seq=s, group="0", group_ranks="0-1") for t, s in ((0, 1), (99, 2))
    ]
    assert waits([rank_by_hand(0, rows), rank_by_hand(1, rows[:1])]) == {0: [0, ABSENT], 1: [0]}


def test_where_a_present_member_is_missing_the_last_start_is_unknown():
    fields = {"group": "0", "group_ranks": "0-2", "group_size": 3}
    rows = [collective(t, t + 50, seq=s, **fields) for t, s in ((0, 1), (100, 2), (200, 3))]
    lists = [rows, rows, [rows[0], rows[2]]]
    found = waits([rank_by_hand(n, r, world_size=3) for n, r in enumerate(lists)])
    assert found == {0: [0, ABSENT, 200], 1: [0, ABSENT, 200], 2: [0, 200]}


def test_a_broadcast_waits_for_its_root_only_which_is_not_known():
    rows = [collective(0, 50, kind=CollectiveKind.BROADCAST)]
    assert waits([rank_by_hand(n, rows) for n in range(2)]) == {0: [ABSENT], 1: [ABSENT]}


def test_a_single_rank_waits_for_nobody_known():
    assert waits([rank_by_hand(0, [collective(0, 50)])]) == {0: [ABSENT]}


def test_a_rank_without_collectives_has_an_empty_answer():
    assert waits([rank_by_hand(0, [collective(0, 9)]), rank_by_hand(1, [])]) == {0: [ABSENT], 1: []}


@pytest.mark.parametrize("seed", range(5))
def test_waits_are_those_of_the_simulated_job(seed):
    job = SimulatedJob(
        seed=seed,
        axes={"pp": ((0, 2), (1, 3))},
        program=(Compute(ns=2 * MS), Exchange(axis="pp", src=0, dst=1), Collective()),
        faults=(SlowDevice(rank=seed % 4, factor=1.4),),
        clock_offset_ns=(0, 7 * MS),
        clock_drift_ppm=(0.0, -20.0),
        end_jitter_ns=1_000,
    )
    recording = job.run()
    run = assemble_run("test", recording.to_ranks())
    found = last_start_on_own_clock(run.matches, run.clock, run.ranks)
    for rank in run.ranks:
        true = [e.instance.wait_ns(rank.rank) for e in captured_comm(recording, rank.rank)]
        measured = found[rank.rank] - rank.collectives["start_ns"]
        assert np.abs(measured - true).max() <= 2 * run.clock.residual_ns.max()
        assert measured.min() >= 0
