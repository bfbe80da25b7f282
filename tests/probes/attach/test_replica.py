"""Which ranks are profiled."""

from __future__ import annotations

import math

import pytest
from distprof_probes.attach.replica import parse_mesh, parse_ranks, replica_ranks
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import UsageError


def test_one_whole_replica_and_the_first_rank_of_each_other() -> None:
    """pp=2, dp=4, tp=2: rank = 8 pp + 2 dp + tp. Replica 0 is 0, 1, 8, 9."""
    assert replica_ranks({"pp": 2, "dp": 4, "tp": 2}) == (0, 1, 2, 4, 6, 8, 9)


def test_plain_data_parallelism_has_one_rank_per_replica() -> None:
    assert replica_ranks({"dp_replicate": 4}) == (0, 1, 2, 3)


def test_tensor_parallelism_alone_is_one_replica() -> None:
    assert replica_ranks({"tp": 4}) == (0, 1, 2, 3)


def test_hybrid_sharding_over_pipeline_stages() -> None:
    """dp_replicate=2, dp_shard=2, pp=2: rank = 4 r + 2 s + p."""
    mesh = {"dp_replicate": 2, "dp_shard": 2, "pp": 2}
    assert replica_ranks(mesh) == (0, 1, 2, 4, 6)


@given(
    st.lists(st.sampled_from(["pp", "dp_replicate", "dp_shard", "cp", "tp"]), unique=True).flatmap(
        lambda axes: st.fixed_dictionaries({axis: st.integers(1, 4) for axis in axes})
    )
)
def test_the_number_of_ranks_is_a_replica_and_one_for_each_other(mesh: dict[str, int]) -> None:
    replicas = math.prod(size for axis, size in mesh.items() if axis.startswith("dp"))
    world_size = math.prod(mesh.values())
    chosen = replica_ranks(mesh)
    assert len(set(chosen)) == world_size // replicas + replicas - 1
    assert all(0 <= rank < world_size for rank in chosen)
    assert chosen[0] == 0


def test_a_mesh_is_read_in_order_with_the_usual_names() -> None:
    assert list(parse_mesh("pp=2, fsdp=4,tp=2").items()) == [("pp", 2), ("dp_shard", 4), ("tp", 2)]


@pytest.mark.parametrize("text", ["pp", "pp=", "pp=0", "pp=x", "zz=2", "tp=2,tp=2", "world=4", ""])
def test_what_is_no_mesh_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"--mesh"):
        parse_mesh(text)


def test_ranks_are_read_as_numbers_and_ranges() -> None:
    assert parse_ranks("8, 0-2,1") == (0, 1, 2, 8)


def test_a_list_of_millions_is_refused_before_it_is_made() -> None:
    with pytest.raises(UsageError, match="names more than 1,000,000 ranks"):
        parse_ranks("5,0-9999999")


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "0,,1", "99999999"])
def test_what_is_no_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="0-3"):
        parse_ranks(text)
