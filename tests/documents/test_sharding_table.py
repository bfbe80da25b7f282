"""The table of sharded parameters and tensor parallelism."""

from __future__ import annotations

import msgspec

from distprof.sections.sharding import ShardingResult, TensorTraffic
from distprof.sections.sharding.show import sharding_table
from tests.documents.samples import SAMPLES
from tests.rules.samples import MS, sharded_axis


def rows(sharding: ShardingResult) -> list[tuple]:
    report = msgspec.structs.replace(SAMPLES["straggler"](), sharding=sharding)
    table = sharding_table(report, show_all=False)
    return [] if table is None else [row[:-1] for row in table.rows]


def test_gathers_and_scatters_of_an_axis_are_two_rows():
    assert rows(ShardingResult(axes=(sharded_axis(),))) == [
        ("dp_shard (8)", "all_gather", "34", "2", "891 MB", "400 µs", "100 µs"),
        ("dp_shard (8)", "reduce_scatter", "17", "1", "446 MB", "300 µs", "50.0 µs"),
    ]


def test_what_is_not_known_is_a_dash():
    axis = sharded_axis(
        gather_passes=None, gather_bytes_per_step=None, gather_wait_ns_per_step=None
    )
    assert rows(ShardingResult(axes=(axis,)))[0][3:] == ("–", "–", "400 µs", "–")


def test_pairs_of_the_tensor_axis_stand_apart_from_all_reduces():
    tensor = TensorTraffic(
        group_size=2,
        all_reduces_per_step=1.0,
        all_reduce_bytes_per_step=1_000,
        all_reduce_exposed_ns_per_step=MS,
        all_reduce_wait_ns_per_step=None,
        all_gathers_per_step=18.0,
        reduce_scatters_per_step=16.0,
        pair_bytes_per_step=2_000_000,
        pair_exposed_ns_per_step=2 * MS,
        pair_wait_ns_per_step=MS,
        overlap_ratio=0.0,
    )
    assert rows(ShardingResult(tensor=tensor)) == [
        ("tp (2)", "gather, scatter", "34", "", "2.00 MB", "2.00 ms", "1.00 ms"),
        ("tp (2)", "all_reduce", "1", "", "1.00 kB", "1.00 ms", "–"),
    ]


def test_there_is_no_table_where_nothing_is_shared():
    assert rows(ShardingResult()) == []
