"""Which rows of different ranks are one collective."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.join.instances import NO_STEP, step_labels
from distprof.join.matching import match_collectives
from distprof.join.topology import build_topology
from distprof.run.run import Device
from distprof.terms import CollectiveKind, MatchMethod, StepSource
from tests.drawn import drawn
from tests.ingest.instances import members_of, true_instances
from tests.simulator import Collective, Compute, Exchange, SimulatedJob
from tests.simulator.by_hand import collective, group, rank_by_hand, rows_of

MS = 1_000_000
SIZES = [(0, 10), (100, 20), (230, 30), (300, 20), (430, 40), (500, 10)]
PAIR = {"group": "0", "group_ranks": "0-1", "group_size": 2}


def match(ranks):
    topology = build_topology(ranks)
    return match_collectives(ranks, topology.groups, topology.nodes)


def numbered(*seqs, **fields):
    """One all-reduce every 100 ms, each with a number."""
    return [
        collective(seq * 100 * MS, (seq * 100 + 50) * MS, seq=seq, **PAIR | fields) for seq in seqs
    ]


def ordered(*times_and_sizes, **fields):
    """All-reduces without number; times in ms."""
    return [
        collective(round(t * MS), round((t + 50) * MS), **PAIR | {"bytes": size} | fields)
        for t, size in times_and_sizes
    ]


# --- by number ------------------------------------------------------------------------------------


def test_equal_group_and_number_are_one_collective():
    found = match([rank_by_hand(0, numbered(1, 2, 3)), rank_by_hand(1, numbered(2, 3, 4))])
    assert members_of(found) == [{(0, 1), (1, 0)}, {(0, 2), (1, 1)}]
    assert found.method.tolist() == [MatchMethod.SEQUENCE] * 2
    assert found.complete.all()


def test_numbers_outside_another_ranks_window_could_not_have_had_a_partner():
    found = match([rank_by_hand(0, numbered(1, 2, 3)), rank_by_hand(1, numbered(2, 3, 4))])
    assert (found.num_candidates, found.num_matched) == (4, 4)


def test_a_number_missing_within_the_window_counts_against_the_match():
    found = match([rank_by_hand(0, numbered(1, 2, 3)), rank_by_hand(1, numbered(1, 3))])
    assert found.matched_ratio == pytest.approx(4 / 5)


def test_disjoint_windows_match_nothing_and_say_so():
    found = match([rank_by_hand(0, numbered(1, 2)), rank_by_hand(1, numbered(8, 9))])
    assert (found.count, found.matched_ratio) == (0, 0.0)


def test_equal_numbers_of_groups_with_one_name_and_other_members_are_apart():
    ranks = [
        rank_by_hand(n, numbered(1, group_ranks=members), world_size=4)
        for n, members in enumerate(["0-1", "0-1", "2-3", "2-3"])
    ]
    assert members_of(match(ranks)) == [{(0, 0), (1, 0)}, {(2, 0), (3, 0)}]


@pytest.mark.parametrize("other", [{"bytes": 4096}, {"kind": CollectiveKind.ALL_GATHER}])
def test_equal_numbers_with_other_kind_or_bytes_are_not_matched_and_noted(other):
    odd = [*numbered(1), *numbered(2, **other)]
    found = match([rank_by_hand(0, numbered(1, 2)), rank_by_hand(1, odd)])
    assert members_of(found) == [{(0, 0), (1, 0)}]
    assert "differ in kind or bytes" in found.notes[0]
    assert found.matched_ratio == 0.5


def test_members_of_an_all_to_all_may_give_different_bytes():
    kind = {"kind": CollectiveKind.ALL_TO_ALL}
    ranks = [rank_by_hand(n, numbered(1, bytes=100 * (n + 1), **kind)) for n in range(2)]
    found = match(ranks)
    assert (found.count, found.bytes.tolist()) == (1, [200])


def test_unknown_bytes_agree_with_any():
    ranks = [rank_by_hand(0, numbered(1)), rank_by_hand(1, numbered(1, bytes=-1))]
    assert match(ranks).bytes.tolist() == [1024]


def test_operations_under_one_number_are_joined_in_their_order():
    """PyTorch counts coalesced operations once."""
    rows = [*numbered(1), collective(160 * MS, 170 * MS, seq=1, **PAIR)]
    found = match([rank_by_hand(0, rows), rank_by_hand(1, rows)])
    assert members_of(found) == [{(0, 0), (1, 0)}, {(0, 1), (1, 1)}]


def test_a_group_with_absent_members_is_matched_among_those_present():
    fields = {"group_ranks": "0-3", "group_size": 4}
    ranks = [rank_by_hand(n, numbered(1, **fields), world_size=4) for n in (0, 2)]
    found = match(ranks)
    assert (found.count, found.complete.tolist(), found.matched_ratio) == (1, [False], 1.0)


def test_groups_with_one_present_member_have_no_candidates():
    ranks = [rank_by_hand(0, numbered(1)), rank_by_hand(3, numbered(1, group_ranks="2-3"))]
    assert match(ranks).matched_ratio is None


def test_huge_numbers_are_only_numbers():
    rows = [collective(0, 10, seq=2**63 - 1, **PAIR)]
    assert match([rank_by_hand(n, rows) for n in range(2)]).count == 1


@pytest.mark.parametrize("ranks", [[], [rank_by_hand(0, numbered(1))]])
def test_fewer_than_two_ranks_match_nothing(ranks):
    assert match(ranks).count == 0


def test_ranks_without_rows_match_nothing():
    assert match([rank_by_hand(0, []), rank_by_hand(1, [])]).matched_ratio is None
    assert match([rank_by_hand(0, numbered(1)), rank_by_hand(1, [])]).count == 0


def test_numbers_that_mostly_contradict_each_other_give_way_to_the_order():
    """One rank's group was made anew and counts from another start."""
    first = ordered(*SIZES)
    second = ordered(*SIZES)
    for i, (row, other) in enumerate(zip(first, second, strict=True)):
        row["seq"], other["seq"] = i, i + 1
    found = match([rank_by_hand(0, first), rank_by_hand(1, second)])
    assert members_of(found) == [{(0, i), (1, i)} for i in range(6)]
    assert "differ between ranks" in found.notes[0]
    assert found.matched_ratio == 1.0


def test_a_rank_that_numbers_nothing_puts_its_group_into_order():
    """Ranks may run different versions of PyTorch."""
    rows = numbered(1, 2, 3)
    found = match([rank_by_hand(n, rows, host="node0") for n in range(2)])
    without = [row | {"seq": -1} for row in rows]
    lists = (rows, without)
    mixed = match([rank_by_hand(n, part, host="node0") for n, part in enumerate(lists)])
    assert members_of(mixed) == members_of(found)
    assert mixed.matched_ratio == 1.0


# --- by order -------------------------------------------------------------------------------------


def test_without_numbers_order_decides():
    found = match([rank_by_hand(n, ordered(*SIZES)) for n in range(2)])
    assert members_of(found) == [{(0, i), (1, i)} for i in range(6)]
    assert set(found.method.tolist()) == {MatchMethod.SUBSEQUENCE}


def test_a_window_that_starts_later_is_shifted_into_place():
    found = match([rank_by_hand(0, ordered(*SIZES)), rank_by_hand(1, ordered(*SIZES[2:]))])
    assert members_of(found) == [{(0, i + 2), (1, i)} for i in range(4)]
    assert found.matched_ratio == 1.0


@pytest.mark.parametrize("missing", [1, 3, 4])
def test_a_lost_operation_costs_itself_only(missing):
    rest = [row for i, row in enumerate(SIZES) if i != missing]
    found = match([rank_by_hand(0, ordered(*SIZES)), rank_by_hand(1, ordered(*rest))])
    kept = [i for i in range(6) if i != missing]
    assert members_of(found) == [{(0, i), (1, j)} for j, i in enumerate(kept)]


def test_a_lost_operation_among_equal_ones_is_found_by_its_time():
    """A plain longest common subsequence would put the loss at the end."""
    times = [0, 110, 190, 320, 400, 480, 610, 700, 820, 900]
    rest = [(t, 10) for i, t in enumerate(times) if i != 4]
    all_of_them = [(t, 10) for t in times]
    found = match([rank_by_hand(0, ordered(*all_of_them)), rank_by_hand(1, ordered(*rest))])
    expected = [i for i in range(10) if i != 4]
    assert members_of(found) == [{(0, i), (1, j)} for j, i in enumerate(expected)]


def test_step_numbers_settle_a_shift_that_times_would_place_wrongly():
    """The second clock is one whole step ahead, which is more likely than it is true."""
    rows = [(100 * i + j, 10) for i in range(6) for j in (0, 40)]
    steps = [(i, (100 * i - 10) * MS, (100 * i + 90) * MS) for i in range(6)]
    later = ordered(*((t + 100, size) for t, size in rows))
    later_steps = [(n, s + 100 * MS, e + 100 * MS) for n, s, e in steps]
    ranks = [rank_by_hand(0, ordered(*rows), steps), rank_by_hand(1, later, later_steps)]
    assert members_of(match(ranks)) == [{(0, i), (1, i)} for i in range(12)]


@pytest.mark.parametrize("host", ["node0", None])
def test_a_regular_sequence_is_shifted_least_where_clocks_tell_its_operations_apart(host):
    """Ranks of one host share a clock; clocks of two are seldom a second apart."""
    apart = 100 if host else 900
    rows = [(apart * i, 10) for i in range(12)]
    later = [(t + 0.01, size) for t, size in rows[3:]]
    ranks = [rank_by_hand(n, ordered(*r), host=host) for n, r in enumerate((rows, later))]
    assert members_of(match(ranks)) == [{(0, i + 3), (1, i)} for i in range(9)]


def test_a_regular_sequence_of_two_hosts_is_not_matched_by_a_guess():
    rows = [(10 * i, 10) for i in range(50)]
    ranks = [rank_by_hand(n, ordered(*rows), host=f"node{n}") for n in range(2)]
    found = match(ranks)
    assert (found.count, found.matched_ratio, found.ambiguous_ranks) == (0, 0.0, (1,))
    assert "several shifts" in found.notes[0]


def test_what_one_group_shows_of_the_clocks_decides_for_the_others():
    """The pair's all-gathers are regular; the clocks are known from the irregular all-reduces."""
    rng = np.random.default_rng(0)
    world = np.cumsum(rng.integers(5 * MS, 15 * MS, 40)).tolist()
    gathers = [10 * MS * i for i in range(40)]
    offset = 4 * MS

    def rank(number, skip, add):
        all_reduces = [collective(t + add, t + add + MS) for t in world]
        pair = {**PAIR, "kind": CollectiveKind.ALL_GATHER}
        all_gathers = [collective(t + add, t + add + MS, **pair) for t in gathers[skip:]]
        rows = sorted(all_reduces + all_gathers, key=lambda row: row["start_ns"])
        return rank_by_hand(number, rows, world_size=3), len(all_gathers)

    first, second = rank(0, 0, 0)[0], rank(1, 3, offset)[0]
    third = rank_by_hand(2, [collective(t, t + MS) for t in world], world_size=3)
    found = match([first, second, third])
    assert found.ambiguous_ranks == ()
    assert found.matched_ratio == 1.0


def test_captures_seconds_apart_are_not_matched_by_likeness():
    other = ordered(*((t + 3_000, size) for t, size in SIZES))
    found = match([rank_by_hand(0, ordered(*SIZES)), rank_by_hand(1, other)])
    assert (found.count, found.matched_ratio) == (0, 0.0)
    assert "at any shift" in found.notes[0]


def test_without_epoch_any_offset_is_possible():
    other = ordered(*((t + 3_000, size) for t, size in SIZES))
    ranks = [
        rank_by_hand(0, ordered(*SIZES), has_epoch=False),
        rank_by_hand(1, other, has_epoch=False),
    ]
    assert match(ranks).count == 6


def test_other_operations_altogether_are_not_matched():
    other = [(t, size + 1) for t, size in SIZES]
    found = match([rank_by_hand(0, ordered(*SIZES)), rank_by_hand(1, ordered(*other))])
    assert (found.count, found.matched_ratio) == (0, 0.0)


def test_an_unknown_group_is_noted():
    ranks = [rank_by_hand(n, [collective(0, 10)]) for n in range(2)]
    found = match(ranks)
    assert found.count == 1
    assert "name no process group" in found.notes[0]


# --- messages -------------------------------------------------------------------------------------


def message(time, kind, peer, size=100):
    """A message; its time in ms."""
    return collective(time * MS, (time + 50) * MS, kind=kind, peer=peer, **PAIR | {"bytes": size})


def test_sends_meet_receives_of_the_same_pair_in_order():
    send, recv = CollectiveKind.SEND, CollectiveKind.RECV
    first = [message(0, send, 1), message(100, recv, 1), message(200, send, 1)]
    second = [message(0, recv, 0), message(100, send, 0), message(200, recv, 0)]
    found = match([rank_by_hand(0, first), rank_by_hand(1, second)])
    assert members_of(found) == [{(0, i), (1, i)} for i in range(3)]
    assert found.kind.tolist() == [send] * 3
    assert found.member_rank.tolist() == [0, 1, 1, 0, 0, 1]  # the sender first


def test_messages_without_a_peer_are_left_out_and_noted():
    rows = [message(0, CollectiveKind.SEND, -1)]
    found = match([rank_by_hand(n, rows) for n in range(2)])
    assert (found.count, found.matched_ratio) == (0, None)
    assert "do not name their peer" in found.notes[0]


def test_grouped_messages_of_all_members_are_a_collective():
    kind = {"kind": CollectiveKind.SEND_RECV}
    ranks = [rank_by_hand(n, ordered(*SIZES, **kind), host="node0") for n in range(2)]
    assert match(ranks).count == 6


def test_grouped_messages_of_a_pipeline_are_not_matched():
    """Inner stages have twice as many as outer ones."""
    fields = {"kind": CollectiveKind.SEND_RECV, "group_ranks": "0-2", "group_size": 3}
    rows = [ordered(*((100 * i, 10) for i in range(n)), **fields) for n in (6, 12, 6)]
    found = match([rank_by_hand(n, r, world_size=3) for n, r in enumerate(rows)])
    assert found.count == 0
    assert "which ranks exchanged data" in found.notes[0]


def test_kernels_that_send_and_receive_meet_those_of_their_peer():
    """1F1B with three stages: the inner one has exchanges with either neighbour, in turn."""
    both, send, recv = CollectiveKind.SEND_RECV, CollectiveKind.SEND, CollectiveKind.RECV
    times = [0, 60, 150, 210, 330, 400, 450, 580]
    last = len(times) - 1
    group = {"group_ranks": "0-2", "group_size": 3}

    def kernel(number, rank, peer):
        """The first message goes down the pipeline alone, the last one up."""
        alone = send if (rank < peer) == (number == 0) else recv
        kind = both if 0 < number < last else alone
        return message(times[number] + 30 * min(rank, peer), kind, peer) | group

    numbers = range(last + 1)
    first = [kernel(n, 0, 1) for n in numbers]
    second = [kernel(n, 1, peer) for n in numbers for peer in (0, 2)]
    third = [kernel(n, 2, 1) for n in numbers]
    found = match([rank_by_hand(n, r, world_size=3) for n, r in enumerate((first, second, third))])
    expected = [{(0, n), (1, 2 * n)} for n in range(8)] + [
        {(1, 2 * n + 1), (2, n)} for n in range(8)
    ]
    assert sorted(map(sorted, members_of(found))) == sorted(map(sorted, expected))
    assert found.complete.all()
    assert (found.num_candidates, found.num_matched) == (32, 32)
    assert not found.notes


def test_a_receive_at_the_end_of_a_devices_window_names_no_step():
    """A device's window begins with computation: an inner stage receives before that."""
    rows = [
        message(0, CollectiveKind.SEND, 1),
        *ordered((100, 8)),
        message(200, CollectiveKind.RECV, 1),
    ]
    rows += [message(310, CollectiveKind.RECV, 1), message(400, CollectiveKind.SEND, 1)]
    steps = [(7, 0, 300 * MS), (8, 300 * MS, 600 * MS)]
    labels = step_labels(rank_by_hand(0, rows, steps, step_source=StepSource.DEVICE))
    assert labels.tolist() == [7, 7, NO_STEP, 8, 8]


def test_an_exchange_whose_messages_lead_to_two_kernels_is_not_matched():
    """The peer sends and receives in kernels of their own: neither alone is the other end."""
    both, send, recv = CollectiveKind.SEND_RECV, CollectiveKind.SEND, CollectiveKind.RECV
    first = [message(100 * n, both, 1) for n in range(6)]
    second = [
        message(100 * n + m, kind, 0) for n in range(6) for m, kind in enumerate((send, recv))
    ]
    found = match([rank_by_hand(0, first), rank_by_hand(1, second)])
    assert found.count == 0
    assert found.num_candidates == 18


def test_operations_whose_call_was_not_recorded_take_no_part_among_all_ranks():
    """At the edges of a capture; joined by order they would pair what does not belong together."""
    reduced = [(t, 8) for t in range(0, 1200, 200)]
    unknown = {"kind": CollectiveKind.SEND_RECV, "bytes": -1, "group": "", "group_ranks": ""}
    lost = {0: (10, 60), 1: (110, 160)}  # at other times on each rank
    ranks = [
        rank_by_hand(
            n,
            [*(collective(t * MS, (t + 5) * MS, **unknown) for t in lost[n]), *ordered(*reduced)],
        )
        for n in range(2)
    ]
    found = match(ranks)
    assert members_of(found) == [{(0, n), (1, n)} for n in range(2, 8)]
    assert found.matched_ratio == 1.0
    assert not found.notes


# --- simulated jobs, known truth ------------------------------------------------------------------

HYBRID = {
    "num_nodes": 2,
    "ranks_per_node": 4,
    "axes": {
        "tp": ((0, 1), (2, 3), (4, 5), (6, 7)),
        "dp": ((0, 2, 4, 6), (1, 3, 5, 7)),
        "pp": ((0, 4), (1, 5), (2, 6), (3, 7)),
    },
    "program": (
        Compute(ns=MS),
        Collective(axis="tp", bytes=1 << 20, transfer_ns=100_000),
        Compute(ns=MS),
        Collective(axis="tp", bytes=1 << 20, transfer_ns=100_000),
        Exchange(axis="pp", src=0, dst=1),
        Compute(ns=MS),
        Exchange(axis="pp", src=1, dst=0),
        Collective(axis="dp", kind=CollectiveKind.REDUCE_SCATTER),
        Collective(),
    ),
}


@pytest.mark.parametrize("with_seq", [True, False])
@pytest.mark.parametrize("with_steps", [True, False])
def test_a_job_with_several_axes_is_matched_as_it_ran(with_seq, with_steps):
    recording = SimulatedJob(**HYBRID, num_steps=15, clock_offset_ns=(0, 3 * MS)).run()
    ranks = recording.to_ranks(with_seq=with_seq, with_steps=with_steps)
    found = match(ranks)
    assert found.matched_ratio == 1.0
    assert {frozenset(m) for m in members_of(found)} == true_instances(recording)


@pytest.mark.parametrize("seed", drawn(range(40), always=10))
def test_windows_up_to_ten_collectives_apart_are_paired_as_they_ran(seed):
    """Clocks are apart too; neither numbers nor steps are in the traces."""
    rng = np.random.default_rng(seed)
    job = SimulatedJob(
        seed=seed,
        num_steps=10,
        end_jitter_ns=5_000,
        clock_offset_ns=tuple(int(x) for x in rng.integers(-5 * MS, 5 * MS, 2)),
        clock_drift_ppm=(0.0, 20.0),
        capture_skip={rank: int(rng.integers(0, 11)) for rank in range(4)},
        capture_cut={rank: int(rng.integers(0, 11)) for rank in range(4)},
    )
    recording = job.run()
    truth = true_instances(recording)
    for detail in ({}, {"with_seq": False}, {"with_seq": False, "with_steps": False}):
        found = {frozenset(m) for m in members_of(match(recording.to_ranks(**detail)))}
        # all that every rank has must be there; what fewer have may be missing, never wrong
        assert {m for m in truth if len(m) == 4} <= found
        assert all(any(m <= t for t in truth) for m in found)


@pytest.mark.parametrize("num_steps", [7, 40])
@pytest.mark.parametrize("noise", [0.0, 0.004, 0.02])
@pytest.mark.parametrize("seed", drawn(range(5), always=1))
def test_steps_too_alike_to_tell_apart_are_never_paired_wrongly(seed, noise, num_steps):
    """The fewer or the more regular the steps, the more stays open; what is joined is right."""
    rng = np.random.default_rng(seed)
    job = SimulatedJob(
        seed=seed,
        num_nodes=4,
        num_steps=num_steps,
        compute_noise=noise,
        end_jitter_ns=5_000,
        clock_offset_ns=tuple(int(x) for x in rng.integers(-10 * MS, 10 * MS, 4)),
        capture_skip={rank: int(rng.integers(0, 11)) for rank in range(8)},
        capture_cut={rank: int(rng.integers(0, 11)) for rank in range(8)},
    )
    recording = job.run()
    truth = true_instances(recording)
    found = match(recording.to_ranks(with_seq=False, with_steps=False))
    members = {frozenset(m) for m in members_of(found)}
    assert all(any(m <= t for t in truth) for m in members)
    whole = {m for m in truth if len(m) == job.world_size}
    assert found.ambiguous_ranks or whole <= members


@settings(max_examples=25, deadline=None)
@given(shift=st.integers(-400 * MS, 400 * MS), with_seq=st.booleans())
def test_shifting_one_nodes_clock_changes_no_match(shift, with_seq):
    plain = SimulatedJob(num_steps=3).run()
    shifted = SimulatedJob(num_steps=3, clock_offset_ns=(0, shift)).run()
    expected, found = (match(r.to_ranks(with_seq=with_seq)) for r in (plain, shifted))
    assert {frozenset(m) for m in members_of(found)} == {frozenset(m) for m in members_of(expected)}


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(4)), with_seq=st.booleans())
def test_renumbering_ranks_changes_no_match(order, with_seq):
    """Every rank keeps its trace and gets another number."""
    recording = SimulatedJob(num_steps=3, capture_skip={1: 2}).run()
    ranks = recording.to_ranks(with_seq=with_seq)
    world = group("0", 0, 1, 2, 3)
    renumbered = [
        rank_by_hand(
            order[rank.rank],
            [row | {"group_desc": "", "group_ranks": "0-3"} for row in rows_of(rank.collectives)],
            groups=(world,),
            world_size=4,
            host=rank.host,
        )
        for rank in ranks
    ]
    again = match(sorted(renumbered, key=lambda rank: rank.rank))
    moved = {frozenset((order[r], row) for r, row in m) for m in members_of(match(ranks))}
    assert {frozenset(m) for m in members_of(again)} == moved


def two_hosts_whose_groups_disagree(device):
    """Two groups of ranks on two hosts; the members of one end each collective 70 ms apart."""
    apart = {"group": "1", "group_ranks": "0-1", "group_size": 2}
    ranks = []
    for rank in range(2):
        rows = numbered(*range(12))
        for row in numbered(*range(12), **apart):
            late = 70 * MS * rank
            rows.append(row | {"start_ns": row["start_ns"] + late, "end_ns": row["end_ns"] + late})
        rows.sort(key=lambda row: row["start_ns"])
        ranks.append(rank_by_hand(rank, rows, host=f"h{rank}", device=Device(name=device)))
    return ranks


def test_numbers_are_held_against_times_on_devices_and_not_on_gloo_whose_ends_differ():
    on_device = match(two_hosts_whose_groups_disagree("GPU"))
    on_cpu = match(two_hosts_whose_groups_disagree("cpu"))
    assert on_device.misnumbered_ranks == (0, 1)
    assert on_cpu.misnumbered_ranks == ()
    assert on_cpu.notes == ()
    assert on_cpu.matched_ratio == 1.0
