"""A run from its ranks, and what is said to be missing."""

import numpy as np
import pytest
from msgspec.structs import replace

from distprof.artefacts.record import Gap
from distprof.errors import InputError
from distprof.ingest.assemble import assemble_run
from distprof.join.waits import last_start_on_own_clock
from distprof.run.tables import COLLECTIVES
from distprof.schema import Table
from tests.drawn import drawn
from tests.ingest.dlrm import dlrm_ranks
from tests.ingest.instances import members_of, true_instances
from tests.simulator import Collective, Compute, SimulatedJob, SlowDevice
from tests.simulator.by_hand import collective, rank_by_hand

MS = 1_000_000


def gaps_of(ranks, *known):
    return {gap.what: gap for gap in assemble_run("test", ranks, known).gaps}


def numbered(*seqs):
    fields = {"group": "0", "group_ranks": "0-1", "group_size": 2}
    return [collective(s * 100, s * 100 + 50, seq=s, **fields) for s in seqs]


def test_a_healthy_job_has_no_gap():
    assert gaps_of(SimulatedJob().run().to_ranks()) == {}


def test_no_rank_at_all_is_an_error_that_names_the_source():
    with pytest.raises(InputError, match="folder"):
        assemble_run("folder", [])


def test_ranks_come_in_any_order_and_leave_ascending():
    ranks = SimulatedJob().run().to_ranks()
    run = assemble_run("test", reversed(ranks))
    assert [rank.rank for rank in run] == [0, 1, 2, 3]
    assert run.matches.count == 15


def test_known_gaps_come_first():
    known = Gap(what="truncated", message="cut")
    assert assemble_run("test", dlrm_ranks(), [known]).gaps[0] is known


def test_ranks_without_trace_are_named():
    gap = gaps_of(SimulatedJob(present=(0, 2)).run().to_ranks())["missing-ranks"]
    assert gap.ranks == (1, 3)
    assert "1,3" in gap.message


def test_two_traces_of_one_rank_count_once():
    first, second = rank_by_hand(0, numbered(1)), rank_by_hand(1, numbered(1))
    run = assemble_run("test", [first, second, rank_by_hand(1, [])])
    assert [rank.path for rank in run] == ["rank0.json", "rank1.json"]
    assert run.matches.count == 1
    assert "duplicate-ranks" in {gap.what for gap in run.gaps}


def test_different_world_sizes_are_said():
    ranks = [rank_by_hand(0, []), rank_by_hand(1, [], world_size=4)]
    assert gaps_of(ranks)["mixed-world-size"].ranks == (0,)


def test_an_absurd_world_size_is_not_used():
    ranks = [rank_by_hand(0, []), rank_by_hand(1, [], world_size=2**40)]
    run = assemble_run("test", ranks)
    assert run.topology.world_size == 2
    assert "absurd-world-size" in {gap.what for gap in run.gaps}


def test_a_low_share_of_matches_is_said():
    lost = [rank_by_hand(0, numbered(*range(10))), rank_by_hand(1, numbered(0, 1, 2, 9))]
    assert "unmatched-collectives" in gaps_of(lost)


def test_times_that_do_not_count_from_the_epoch_are_said():
    ranks = [rank_by_hand(0, numbered(1)), rank_by_hand(1, numbered(1), has_epoch=False)]
    assert gaps_of(ranks)["no-epoch"].ranks == (1,)


def test_ranks_that_no_collective_connects_are_said():
    ranks = [rank_by_hand(0, numbered(1)), rank_by_hand(1, numbered(7))]
    assert "clocks-not-comparable" in gaps_of(ranks)


def timed(*times, **fields):
    return [collective(t, t + 100, seq=i, **fields) for i, t in enumerate(times)]


def test_broken_causality_is_said():
    """Two of a hundred collectives are over on rank 1 before rank 0 starts them."""
    first = timed(*range(0, 100_000, 1000))
    second = timed(*(t - 400 if t in (30_000, 60_000) else t for t in range(0, 100_000, 1000)))
    gap = gaps_of([rank_by_hand(0, first), rank_by_hand(1, second)])["causality-violated"]
    assert gap.message.startswith("In 2 of 100 collectives a rank ends before the last rank starts")


def test_one_end_before_a_start_among_many_is_no_gap():
    first = timed(*range(0, 200_000, 1000))
    second = timed(*(t - 400 if t == 30_000 else t for t in range(0, 200_000, 1000)))
    assert "causality-violated" not in gaps_of([rank_by_hand(0, first), rank_by_hand(1, second)])


def test_a_contradiction_in_every_other_collective_is_uncertainty_of_the_clocks():
    """The residual is as large as it: nothing is blamed on anybody below it."""
    times = range(0, 40_000, 1000)
    first = timed(*times)
    second = timed(*(t - 400 if i % 2 else t + 300 for i, t in enumerate(times)))
    run = assemble_run("test", [rank_by_hand(0, first), rank_by_hand(1, second)])
    assert run.clock.residual_ns.min() >= 300


def renumbered(ranks, which, by, group=None):
    """One rank's numbers moved by a constant, in all of its groups or one."""
    moved = []
    for rank in ranks:
        if rank.rank == which:
            table = rank.collectives
            columns = {
                column.name: table[column.name]
                for column in table.schema
                if column.dtype != "category"
            }
            columns |= {
                column.name: table.coded(column.name)
                for column in table.schema
                if column.dtype == "category"
            }
            hit = np.array([group in (None, name) for name in table.coded("group").decode()])
            columns["seq"] = np.where(hit, columns["seq"] + by, columns["seq"])
            rank = replace(rank, collectives=Table(COLLECTIVES, columns))
        moved.append(rank)
    return moved


@pytest.mark.parametrize("seed", drawn(range(10), always=3))
@pytest.mark.parametrize("by", [-6, -3, 3, 6])
def test_numbers_off_by_whole_steps_on_one_rank_are_said_and_not_believed(seed, by):
    """Kind and bytes agree under every number; only times show it."""
    offsets = (0, 3 * MS, -7 * MS)
    job = SimulatedJob(seed=seed, num_nodes=3, num_steps=10, clock_offset_ns=offsets)
    recording = job.run()
    which = seed % job.world_size
    run = assemble_run("test", renumbered(recording.to_ranks(with_steps=False), which, by))
    gap = {gap.what: gap for gap in run.gaps}["numbers-contradict-times"]
    assert which in gap.ranks
    assert {frozenset(m) for m in members_of(run.matches)} == true_instances(recording)


def test_numbers_off_in_one_of_two_groups_leave_the_other_as_it_is():
    axes = {"dp": ((0, 2), (1, 3))}
    program = (Compute(ns=4 * MS), Collective(), Compute(ns=2 * MS), Collective(axis="dp"))
    job = SimulatedJob(num_steps=20, axes=axes, program=program, clock_offset_ns=(0, 5 * MS))
    recording = job.run()
    ranks = renumbered(recording.to_ranks(with_steps=False), 2, 1, group="1")
    run = assemble_run("test", ranks)
    assert "numbers-contradict-times" in {gap.what for gap in run.gaps}
    found = {frozenset(m) for m in members_of(run.matches)}
    assert all(any(m <= true for true in true_instances(recording)) for m in found)


def test_what_fits_in_several_ways_is_said_with_a_way_out():
    """So regular that every step looks like every other, on clocks that may be apart."""
    rows = [collective(10 * MS * i, 10 * MS * i + MS) for i in range(12)]
    ranks = [rank_by_hand(0, rows, host="a"), rank_by_hand(1, rows, host="b")]
    gap = gaps_of(ranks)["ambiguous-matching"]
    assert gap.ranks == (0, 1) or gap.ranks == (1,)
    assert "step()" in gap.message


def last_arrivals(run):
    """How often each rank came last by more than the residual."""
    waits = last_start_on_own_clock(run.matches, run.clock, run.ranks)
    return {
        rank.rank: int((waits[rank.rank] == rank.collectives["start_ns"]).sum()) for rank in run
    }


@pytest.mark.parametrize("seed", range(8))
def test_the_slow_rank_comes_last_whatever_clocks_and_windows_say(seed):
    slow = 1 + seed % 7
    job = SimulatedJob(
        seed=seed,
        num_nodes=4,
        faults=(SlowDevice(rank=slow, factor=1.2),),
        clock_offset_ns=(0, 10 * MS, -10 * MS, 5 * MS),
        clock_drift_ppm=(0.0, 20.0, -20.0, 10.0),
        capture_skip={0: 10, 3: 4},
        num_steps=8,
    )
    run = assemble_run("test", job.run().to_ranks(with_seq=bool(seed % 2)))
    arrivals = last_arrivals(run)
    assert max(arrivals, key=lambda rank: arrivals[rank]) == slow


def test_of_four_real_ranks_the_third_arrives_last_at_the_first_all_to_all():
    run = assemble_run("test", dlrm_ranks())
    waits = last_start_on_own_clock(run.matches, run.clock, run.ranks)
    first = [int(waits[r.rank][0] - r.collectives["start_ns"][0]) for r in run]
    assert first == [1_627_000, 7_116_000, 0, 5_614_000]


def test_shifted_real_ranks_tell_the_same_story():
    run = assemble_run("test", dlrm_ranks({0: 10 * MS, 3: -10 * MS}))
    waits = last_start_on_own_clock(run.matches, run.clock, run.ranks)
    first = [int(waits[r.rank][0] - r.collectives["start_ns"][0]) for r in run]
    assert first == [
        pytest.approx(true, abs=int(run.clock.residual_ns.max()))
        for true in (1_627_000, 7_116_000, 0, 5_614_000)
    ]
