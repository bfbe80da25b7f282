"""Matching in parts, in linear time and in less memory gives the same."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from benchmarks import cross_rank
from distprof.join import matching, shifts, waits
from distprof.join.alignment import align_clocks
from distprof.join.instances import NO_STEP
from distprof.join.matching import match_collectives
from distprof.join.topology import build_topology
from distprof.join.windows import find_window
from distprof.run.run import CollectiveMatches, Rank
from distprof.run.tables import COLLECTIVES, order_of_codes
from distprof.schema import Coded, Table
from tests.simulator import Collective, Compute, SimulatedJob
from tests.simulator.job import MS

SEEDS = st.integers(0, 2**32 - 1)


def ranks_of(seed: int, **more: bool) -> list[Rank]:
    program = (
        Compute(ns=MS),
        Collective(axis="tp"),
        Compute(ns=MS),
        Collective(axis="dp", overlap=True),
        Collective(),
    )
    axes = {"tp": ((0, 1), (2, 3)), "dp": ((0, 2), (1, 3))}
    job = SimulatedJob(
        num_nodes=2,
        ranks_per_node=2,
        num_steps=6,
        seed=seed,
        program=program,
        axes=axes,
        capture_skip={1: seed % 4},
    )
    return job.run().to_ranks(**more)


def matched(ranks: list[Rank]) -> CollectiveMatches:
    topology = build_topology(ranks)
    return match_collectives(ranks, topology.groups, topology.nodes)


def assert_same(one: CollectiveMatches, other: CollectiveMatches) -> None:
    for name in CollectiveMatches.__struct_fields__:
        first, second = getattr(one, name), getattr(other, name)
        if isinstance(first, np.ndarray):
            assert first.tolist() == second.tolist(), name
        else:
            assert first == second, name


@settings(max_examples=10)
@given(SEEDS, st.booleans())
def test_group_by_group_or_at_once(seed: int, with_seq: bool) -> None:
    """Numbers of a rank are off in one group, so that each kind of note is there."""
    ranks = ranks_of(seed, with_seq=with_seq)
    if seed % 3 == 0 and with_seq:
        table = ranks[0].collectives
        off = table["seq"] + table.coded("group").equals("0") * 3
        ranks[0] = structs.replace(ranks[0], collectives=table.with_columns(seq=off))
    whole = matched(ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waits, "BLOCK", 7)
        assert_same(matched(ranks), whole)


@settings(max_examples=10)
@given(SEEDS, st.sampled_from([1, 5, 40]), st.booleans())
def test_some_instances_at_a_time_or_all(seed: int, block: int, is_torn: bool) -> None:
    """Clocks, waits and the window; the ranks of a node with two clocks are told apart."""
    ranks = ranks_of(seed)
    if is_torn:
        table = ranks[1].collectives
        off = {name: table[name] + 300_000 for name in ("start_ns", "end_ns")}
        ranks[1] = structs.replace(ranks[1], collectives=table.with_columns(**off))
    whole = joined_by_time(ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waits, "BLOCK", block)
        patch.setattr(waits, "_MAX_PAIRS", 0)  # pairs are sorted then
        assert joined_by_time(ranks) == whole


def joined_by_time(ranks: list[Rank]) -> list[object]:
    topology, matches = build_topology(ranks), matched(ranks)
    clock = align_clocks(ranks, topology.nodes, matches)
    window, gaps = find_window(ranks, matches, clock)
    found: list[object] = [
        value.tolist() if isinstance(value, np.ndarray) else value
        for struct in (clock, window)
        for value in structs.astuple(struct)
    ]
    ends = waits.last_start_on_own_clock(matches, clock, ranks)
    return [*found, gaps, {rank: end.tolist() for rank, end in ends.items()}]


@given(SEEDS)
def test_columns_joined(seed: int) -> None:
    """Of parts of one value only one value is kept, and what is joined is the same."""
    dice = np.random.default_rng(seed)
    parts = [
        np.broadcast_to(np.int64(dice.integers(2)), dice.integers(4))
        if dice.integers(2)
        else dice.integers(0, 3, dice.integers(4))
        for _ in range(dice.integers(1, 4))
    ]
    column = waits.joined(parts)
    assert column.tolist() == np.concatenate(parts).tolist()
    some = [part for part in parts if len(part)]
    of_one_value = all(part.strides == (0,) and part[0] == some[0][0] for part in some)
    assert not (some and of_one_value) or column.strides == (0,)


@given(SEEDS, st.sampled_from([1, 7, 1 << 20]))
def test_positions_by_code(seed: int, block: int) -> None:
    dice = np.random.default_rng(seed)
    codes = dice.integers(0, dice.integers(1, 6), dice.integers(0, 40)).astype(np.int32)
    chosen, lookup = dice.random(len(codes)) < 0.7, dice.integers(0, 3, 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waits, "BLOCK", block)
        found = waits.positions_by_code(codes)
        other = waits.positions_by_code(codes, chosen, lookup)
    for number, positions in enumerate(found):
        assert positions.tolist() == np.flatnonzero(codes == number).tolist()
    for number, positions in enumerate(other):
        assert positions.tolist() == np.flatnonzero(chosen & (lookup[codes] == number)).tolist()


@given(SEEDS)
def test_numbers_in_order(seed: int) -> None:
    dice = np.random.default_rng(seed)
    size = int(dice.integers(1, 60))
    group = dice.integers(0, 5, size).astype(np.int32)
    seq = dice.integers(0, dice.choice([3, 100, 2**60]), size) + dice.choice([0, 2**61])
    order = matching._order_of_numbers(group, seq)
    assert order.tolist() == np.lexsort((seq, group)).tolist()


@given(SEEDS, st.sampled_from([1, 2, 1 << 16, (1 << 16) + 1, 1 << 40]))
def test_codes_in_order(seed: int, count: int) -> None:
    codes = np.random.default_rng(seed).integers(0, count, 50)
    assert order_of_codes(codes, count).tolist() == np.argsort(codes, kind="stable").tolist()


def many_rows(num_rows: int) -> Table:
    dice = np.random.default_rng(0)
    groups = Coded(dice.integers(0, 2, num_rows).astype(np.int32), ("g0", "g1"))
    columns = {
        column.name: Coded(np.zeros(num_rows, np.int32), ("same",))
        if column.dtype == "category"
        else np.full(num_rows, 1, np.dtype(column.dtype))
        for column in COLLECTIVES
    }
    columns["start_ns"] = np.arange(num_rows, dtype=np.int64)
    for name in ("group", "group_desc", "group_ranks"):
        columns[name] = Coded(groups.codes.copy(), groups.values)
    return Table(COLLECTIVES, columns)


def held_bytes(table: Table) -> int:
    """Of arrays that do not share their memory."""
    arrays = {
        array.__array_interface__["data"][0]: array
        for column in COLLECTIVES
        for array in [
            table.coded(column.name).codes if column.dtype == "category" else table[column.name]
        ]
    }
    return sum(a.itemsize if 0 in a.strides else a.nbytes for a in arrays.values())


@pytest.mark.parametrize("num_rows", [0, 1, 5, 1_000, 5_000])
def test_a_compact_table_holds_the_same_in_less(num_rows: int) -> None:
    table = many_rows(num_rows)
    compact = table.compact()
    for other in (compact, pickle.loads(pickle.dumps(compact))):
        for column in COLLECTIVES:
            if column.dtype == "category":
                assert other.coded(column.name).decode() == table.coded(column.name).decode()
            else:
                assert other[column.name].dtype == table[column.name].dtype
                assert other[column.name].tolist() == table[column.name].tolist()
        if num_rows >= 1_000:
            assert held_bytes(other) < 13 * num_rows
            assert held_bytes(table) > 90 * num_rows


@given(SEEDS)
def test_a_shift_without_misfit_is_found_as_among_all(seed: int) -> None:
    """Steps of a few operations, some lost at either end or in the middle."""
    dice = np.random.default_rng(seed)
    length = int(dice.integers(1, 9))
    count = int(dice.integers(1, 12)) * length
    end = np.cumsum(dice.integers(1, 10**6, count))
    step = np.arange(count) // length if dice.integers(2) else np.full(count, NO_STEP)
    token = np.arange(count) % length % dice.integers(1, 4)

    def seen(lost: int, cut: int) -> shifts.Operations:
        kept = np.delete(np.arange(cut, count), dice.integers(0, max(count - cut, 1), lost))
        off = dice.integers(0, 50, len(kept)) + dice.integers(0, 10**7)
        return shifts.Operations(
            token=token[kept],
            end_ns=end[kept] + off,
            step=step[kept].astype(np.int64),
            is_timed=np.ones(len(kept), np.bool_),
        )

    lost = int(dice.integers(0, 2)) if count > 4 else 0
    a, b = seen(lost, 0), seen(lost, int(dice.integers(0, min(count, 12))))
    error = float(dice.choice([np.inf, 5e4, 1e7]))
    expected = shifts.Expectation(usual_error_ns=error)
    found = shifts.best_shift(a, b, expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shifts, "_AT_ONCE", 3)
        assert shifts.best_shift(a, b, expected) == found
        patch.setattr(shifts, "_without_misfit", lambda count, num_tried, expected: count > -1)
        assert shifts.best_shift(a, b, expected) == found


def test_a_compact_table_owns_its_memory() -> None:
    """What a reader gives are views of its own memory, which may be larger."""
    table = many_rows(2_000)
    codes = np.tile(np.array([0, 1], np.int32), 5_000)[:2_000]
    groups = {name: Coded(codes, ("a", "b")) for name in ("group", "group_desc")}
    compact = table.with_columns(start_ns=np.arange(10_000)[:2_000], **groups).compact()
    assert compact["start_ns"].flags.owndata
    assert compact["start_ns"].tolist() == list(range(2_000))
    assert compact.coded("group").codes.flags.owndata
    assert compact.coded("group").codes is compact.coded("group_desc").codes


MOST_BYTES = 80
"""Per collective, of all that matching and clocks take beyond its tables; 67 when this was written.
Twice as many rows may take no more per row: blocks are small here, as they are in large jobs."""


@pytest.mark.parametrize("num_ranks", [32, 64])
def test_memory_of_each_collective(num_ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "BLOCK", 1 << 12)
    ranks = cross_rank.make_ranks(num_ranks, 1_500, with_seq=True, seed=0)
    cross_rank.measure(ranks)  # what is imported and cached is not of any size
    tracemalloc.start()
    cross_rank.measure(ranks)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MOST_BYTES * sum(len(rank.collectives) for rank in ranks)
