"""Where ranks run, and along which axis a group lies."""

from distprof.artefacts.run_file import RankEntry, RunFile
from distprof.run.topology import (
    ProcessGroup,
    coordinates_of,
    nodes_of_job,
    with_axis,
    world_size_of_job,
)
from distprof.terms import MeshAxis


def job(*entries, **fields):
    known = {"distprof_version": "", "kind": "run", "command": (), "started_ns": 0}
    return RunFile(**{**known, "ranks": entries, **fields})


def group(ranks, axis=None):
    return ProcessGroup(
        name="0", description="", ranks=ranks, size=len(ranks), backend="", axis=axis
    )


def test_nodes_are_called_by_their_host_or_by_number_where_hosts_share_a_name():
    entries = [RankEntry(rank=r, node=r // 2, host=f"h{r // 2}") for r in range(4)]
    assert nodes_of_job(job(*entries)) == {"h0": (0, 1), "h1": (2, 3)}
    entries = [RankEntry(rank=r, node=r // 2, host="vm") for r in range(4)]
    assert nodes_of_job(job(*entries)) == {"node0": (0, 1), "node1": (2, 3)}
    assert nodes_of_job(job(RankEntry(rank=0, host="vm"))) == {}


def test_places_follow_the_order_of_the_mesh_where_ranks_do_not_tell():
    told = job(world_size=4, mesh={"pp": 2, "tp": 2})
    assert coordinates_of(told) == {
        0: {"pp": 0, "tp": 0},
        1: {"pp": 0, "tp": 1},
        2: {"pp": 1, "tp": 0},
        3: {"pp": 1, "tp": 1},
    }


def test_what_ranks_tell_of_their_place_counts_for_more():
    told = job(RankEntry(rank=1, coordinates={"tp": 0}), world_size=2, mesh={"tp": 2})
    assert coordinates_of(told)[1] == {"tp": 0}


def test_a_mesh_that_does_not_fit_the_world_tells_nothing():
    assert coordinates_of(job(world_size=3, mesh={"tp": 2})) == {}


def test_a_group_lies_along_the_one_axis_in_which_its_members_differ():
    places = coordinates_of(job(world_size=4, mesh={"dp_replicate": 2, "dp_shard": 2}))
    assert with_axis(group((0, 1)), places).axis is MeshAxis.DP_SHARD
    assert with_axis(group((1, 3)), places).axis is MeshAxis.DP_REPLICATE
    assert with_axis(group((0, 1, 2, 3), MeshAxis.WORLD), places).axis is MeshAxis.WORLD
    assert with_axis(group((0, 1), MeshAxis.EP), places).axis is MeshAxis.EP
    assert with_axis(group((0, 9)), places).axis is None


def test_the_world_of_a_job_of_one_axis_is_that_axis():
    places = coordinates_of(job(world_size=2, mesh={"dp_replicate": 2}))
    assert with_axis(group((0, 1), MeshAxis.WORLD), places).axis is MeshAxis.DP_REPLICATE


def test_axes_of_the_users_own_naming_are_no_axes_of_ours():
    places = coordinates_of(job(world_size=2, mesh={"banana": 2}))
    assert with_axis(group((0, 1)), places).axis is None


def test_nonsense_is_no_world_size():
    assert world_size_of_job(job(world_size=-4)) is None
    assert world_size_of_job(job(world_size=10**12)) is None
    assert world_size_of_job(job(world_size=8)) == 8
