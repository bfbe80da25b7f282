"""Clocks of hosts on one line, with what remains uncertain."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.join.alignment import align_clocks
from distprof.join.matching import match_collectives
from distprof.join.topology import build_topology
from distprof.schema import ABSENT
from distprof.terms import CollectiveKind
from tests.drawn import drawn
from tests.ingest.dlrm import dlrm_ranks
from tests.simulator import Collective, Compute, Exchange, SimulatedJob
from tests.simulator.by_hand import collective, rank_by_hand
from tests.simulator.tables import EPOCH_NS

MS = 1_000_000
US = 1_000


def align(ranks, nodes=None):
    topology = build_topology(ranks)
    matches = match_collectives(ranks, topology.groups, topology.nodes)
    return align_clocks(ranks, topology.nodes if nodes is None else nodes, matches)


def two_ranks(offset, ends=((1000, 1000), (2000, 2000), (3000, 3000)), **fields):
    numbered = {"group": "0", "group_ranks": "0-1", "group_size": 2}
    rows = [
        [
            collective(pair[i] - 500 + i * offset, pair[i] + i * offset, seq=k, **numbered | fields)
            for k, pair in enumerate(ends)
        ]
        for i in range(2)
    ]
    return [rank_by_hand(n, r) for n, r in enumerate(rows)]


def test_the_difference_of_ends_is_the_clocks_offset():
    clock = align(two_ranks(700))
    assert clock.names == ("rank 0", "rank 1")
    assert clock.offset_ns.tolist() == [0, 700]
    assert clock.residual_ns.tolist() == [0, 0]
    assert clock.to_common(1, np.array([1700])).tolist() == [1000]


def test_what_remains_is_how_far_two_ends_are_apart():
    """Ends differ by -30, 0 and 30: the middle is right, and a difference of 30 is noise."""
    clock = align(two_ranks(500, ((1000, 970), (2000, 2000), (3000, 3030))))
    assert clock.offset_ns[1] == pytest.approx(500, abs=1)
    assert clock.residual_ns.tolist() == [pytest.approx(30, abs=3)] * 2


def test_ranks_of_one_node_share_a_clock_and_still_show_their_residual():
    ranks = two_ranks(20_000, [(1000 * i, 1000 * i) for i in range(1, 9)])
    clock = align(ranks, nodes={"host": (0, 1)})
    assert (clock.domains, clock.offset_ns.tolist()) == (((0, 1),), [0])
    assert clock.residual_ns.tolist() == [20_000]


def test_ranks_called_one_node_whose_clocks_differ_are_aligned_one_by_one():
    """Host names such as localhost are not unique."""
    clock = align(two_ranks(3 * MS), nodes={"localhost": (0, 1)})
    assert clock.domains == ((0,), (1,))
    assert clock.offset_ns.tolist() == [0, 3 * MS]
    assert clock.split_ns == {"localhost": 3 * MS}


@pytest.mark.parametrize("kind", [CollectiveKind.BROADCAST, CollectiveKind.SEND_RECV])
def test_operations_that_may_end_early_tell_nothing_about_clocks(kind):
    clock = align(two_ranks(700, kind=kind))
    assert clock.offset_ns.tolist() == [0, 0]
    assert clock.residual_ns.tolist() == [ABSENT, ABSENT]
    assert clock.residual_between(0, 1) is None


def test_groups_that_nothing_connects_are_not_compared():
    fields = [{"group": "0", "group_size": 2, "group_ranks": r} for r in ("0-1", "2-3")]
    ranks = [
        rank_by_hand(n, [collective(0, 10 + n, seq=1, **fields[n // 2])], world_size=4)
        for n in range(4)
    ]
    clock = align(ranks)
    assert clock.component.tolist() == [0, 0, 2, 2]
    assert clock.residual_between(0, 2) is None
    assert "No collective connects" in clock.notes[-1]


def test_offsets_pass_through_a_chain_of_groups():
    ends = {0: [("0-1", 0)], 1: [("0-1", 100), ("1-2", 100)], 2: [("1-2", 350)]}
    ranks = [
        rank_by_hand(
            n,
            [
                collective(k * 1000 + off, k * 1000 + off + 50, seq=k, group="g", group_size=2,
                           group_ranks=members)
                for members, off in rows for k in range(5)
            ],
            world_size=3,
        )
        for n, rows in ends.items()
    ]  # fmt: skip
    assert align(ranks).offset_ns.tolist() == [0, 100, 350]


def test_an_end_before_the_last_start_is_a_violation():
    """Rank 1 starts the second collective after rank 0 has ended it: no clock explains it."""
    first = [collective(t, t + 100, seq=t) for t in range(0, 40000, 1000)]
    second = list(first)
    second[1] = collective(1500, 2000, seq=1000)
    clock = align([rank_by_hand(0, first), rank_by_hand(1, second)])
    assert (clock.num_checked, clock.num_violations) == (40, 1)


def test_a_receipt_before_its_send_is_a_violation():
    shared = [collective(t, t + 100, seq=t) for t in range(0, 9000, 1000)]
    send = collective(9500, 9600, kind=CollectiveKind.SEND, peer=1)
    recv = collective(9100, 9200, kind=CollectiveKind.RECV, peer=0)
    clock = align([rank_by_hand(0, [*shared, send]), rank_by_hand(1, [*shared, recv])])
    assert (clock.num_checked, clock.num_violations) == (10, 1)


def test_a_single_rank_has_its_own_clock():
    clock = align([rank_by_hand(3, [collective(0, 10)], world_size=8)])
    assert (clock.domains, clock.residual_ns.tolist()) == (((3,),), [ABSENT])


def test_large_offsets_of_clocks_without_epoch_keep_their_nanoseconds():
    """Counted from boot, clocks differ by months."""
    offset = 2**53 + 1_234_567
    clock = align(two_ranks(offset, [(t, t) for t in range(1000, 9000, 100)]))
    assert abs(int(clock.to_common(1, np.array([offset + 5000]))[0]) - 5000) <= 2


# --- simulated jobs, known truth ------------------------------------------------------------------


def errors_ns(clock, job, times):
    """How far domains are apart on the common clock at the same true time."""
    worst = 0
    for time in times:
        common = [
            int(clock.to_common(d[0], np.array([EPOCH_NS + job.own_clock(d[0], time)]))[0])
            for d in clock.domains
        ]
        worst = max(worst, max(common) - min(common))
    return worst


@pytest.mark.parametrize("seed", drawn(range(100), always=30))
def test_offsets_and_drifts_are_recovered_within_the_stated_residual(seed):
    """±10 ms, ±20 ppm, windows up to ten collectives apart, ends known to ±5 µs."""
    rng = np.random.default_rng(seed)
    job = SimulatedJob(
        seed=seed,
        num_nodes=4,
        num_steps=8,
        end_jitter_ns=5 * US,
        clock_offset_ns=tuple(int(x) for x in rng.integers(-10 * MS, 10 * MS, 4)),
        clock_drift_ppm=tuple(rng.uniform(-20, 20, 4)),
        capture_skip={rank: int(rng.integers(0, 11)) for rank in range(8)},
    )
    recording = job.run()
    clock = align(recording.to_ranks(with_seq=bool(seed % 2), with_host_rows=False))
    begin = max(recording.capture(rank)[0] for rank in range(8))
    finish = recording.instances[-1].end_ns
    times = (begin, (begin + finish) / 2, finish)
    assert errors_ns(clock, job, times) <= clock.residual_ns.max() + 1
    assert clock.residual_ns.max() <= 12 * US
    assert clock.num_violations == 0


def test_drift_is_stated_where_the_capture_is_long_enough_to_tell():
    step = (Compute(ns=19 * MS), Collective(transfer_ns=MS))
    job = SimulatedJob(
        num_steps=100, program=step, clock_drift_ppm=(0.0, 20.0), end_jitter_ns=5 * US
    )
    clock = align(job.run().to_ranks(with_host_rows=False))
    assert clock.drift_ratio[1] == pytest.approx(20e-6, abs=1.5e-6)


def test_drift_is_zero_where_the_capture_is_too_short_to_tell():
    job = SimulatedJob(num_steps=2, clock_drift_ppm=(0.0, 20.0), end_jitter_ns=5 * US)
    assert align(job.run().to_ranks()).drift_ratio.tolist() == [0, 0]


def test_tensor_groups_inside_nodes_and_data_groups_across_them_are_one_component():
    job = SimulatedJob(
        num_nodes=4,
        clock_offset_ns=(0, 5 * MS, -3 * MS, MS),
        axes={
            "tp": ((0, 1), (2, 3), (4, 5), (6, 7)),
            "dp": ((0, 2), (1, 3), (4, 6), (5, 7)),
            "pp": ((0, 4), (1, 5), (2, 6), (3, 7)),
        },
        program=(
            Compute(ns=MS),
            Collective(axis="tp"),
            Exchange(axis="pp", src=0, dst=1),
            Collective(axis="dp"),
            Compute(ns=MS),
            Collective(axis="pp", kind=CollectiveKind.ALL_GATHER),
        ),
    )
    clock = align(job.run().to_ranks())
    assert set(clock.component.tolist()) == {0}
    assert errors_ns(clock, job, (0, 20 * MS)) <= clock.residual_ns.max()


def test_pipeline_stages_on_different_nodes_are_related_by_their_messages():
    """Nothing but sends and receives crosses the nodes."""
    job = SimulatedJob(
        num_steps=10,
        clock_offset_ns=(0, 9 * MS),
        axes={"pp": ((0, 2), (1, 3)), "dp": ((0, 1), (2, 3))},
        program=(
            Compute(ns=MS),
            Exchange(axis="pp", src=0, dst=1),
            Compute(ns=MS),
            Exchange(axis="pp", src=1, dst=0),
            Collective(axis="dp"),
        ),
    )
    clock = align(job.run().to_ranks())
    assert set(clock.component.tolist()) == {0}
    assert errors_ns(clock, job, (0, 20 * MS)) <= clock.residual_ns.max()
    assert "sends and receives" in clock.notes[0]


@settings(max_examples=30, deadline=None)
@given(shift=st.integers(-50 * MS, 50 * MS))
def test_shifting_one_nodes_clock_moves_no_corrected_time(shift):
    """Times on the common clock, relative to the first node's, stay but for rounding."""
    plain, shifted = (
        SimulatedJob(num_steps=3, clock_offset_ns=(0, by)).run().to_ranks() for by in (0, shift)
    )
    before, after = align(plain), align(shifted)
    for old, new in zip(plain, shifted, strict=True):
        expected = before.to_common(old.rank, old.collectives["start_ns"])
        found = after.to_common(new.rank, new.collectives["start_ns"])
        assert np.abs(found - expected).max() <= 2


# --- real ranks -----------------------------------------------------------------------------------


def test_four_real_ranks_of_one_host_end_their_collectives_within_microseconds():
    clock = align(dlrm_ranks(host="host"))
    assert (clock.names, clock.offset_ns.tolist()) == (("host",), [0])
    assert 0 < clock.residual_ns[0] < 20 * US
    assert (clock.num_checked, clock.num_violations) == (8, 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_real_ranks_shifted_by_ten_milliseconds_are_shifted_back(sign):
    shift = {1: sign * 10 * MS, 2: -sign * 10 * MS}
    clock = align(dlrm_ranks(shift), nodes={})
    assert np.abs(clock.offset_ns - [0, shift[1], shift[2], 0]).max() < 10 * US
    assert clock.num_violations == 0
