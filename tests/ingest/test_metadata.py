import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.ingest.metadata import parse_ranks, read_metadata
from distprof.run.run import Device
from distprof.run.topology import ProcessGroup, axis_of
from distprof.terms import MeshAxis

WHOLE = {
    "distributedInfo": {
        "backend": "nccl",
        "rank": 1,
        "world_size": 4,
        "nccl_version": "2.27.5",
        "pg_config": [
            {
                "pg_name": "0",
                "pg_desc": "default_pg",
                "backend_config": "cpu:gloo,cuda:nccl",
                "pg_size": 4,
                "ranks": [0, 1, 2, 3],
            },
            {"pg_name": "5", "pg_desc": "mesh_tp", "backend_config": "cuda:nccl", "ranks": [0, 1]},
            {"pg_name": "6", "pg_desc": "mesh_tp", "backend_config": "cuda:nccl", "ranks": [2, 3]},
        ],
    },
    "host_name": "node7",
    "cuda_runtime_version": 12090,
    "deviceProperties": [{"name": "NVIDIA H100", "totalGlobalMem": 85}] * 8,
}


def test_a_whole_file_is_read():
    read = read_metadata(WHOLE)
    assert (read.rank, read.world_size, read.backend, read.host) == (1, 4, "nccl", "node7")
    assert read.device == Device(name="NVIDIA H100", count=8, memory_bytes=85)
    assert read.versions == {"nccl": "2.27.5", "cuda_runtime": "12090"}
    assert read.notes == ()


def test_groups_of_other_ranks_are_left_out():
    world, tensor = read_metadata(WHOLE).groups
    assert world == ProcessGroup(
        name="0",
        description="default_pg",
        ranks=(0, 1, 2, 3),
        size=4,
        backend="nccl",
        axis=MeshAxis.WORLD,
    )
    assert (tensor.name, tensor.ranks, tensor.size) == ("5", (0, 1), 2)
    assert tensor.axis is MeshAxis.TP


def test_numbers_written_as_text_are_read():
    info = {"rank": "3", "world_size": "16", "pg_config": [{"pg_name": 2, "ranks": "[3, 11]"}]}
    read = read_metadata({"distributedInfo": info})
    assert (read.rank, read.world_size) == (3, 16)
    assert (read.groups[0].name, read.groups[0].ranks) == ("2", (3, 11))


def test_a_group_of_the_size_of_the_world_has_all_ranks():
    info = {"rank": 0, "world_size": 3, "pg_config": [{"pg_name": "0", "pg_size": 3, "ranks": []}]}
    assert read_metadata({"distributedInfo": info}).groups[0].ranks == (0, 1, 2)


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        ({"distributedInfo": [1]}, "distributedInfo"),
        ({"distributedInfo": {"rank": -1}}, "rank"),
        ({"distributedInfo": {"rank": "first"}}, "rank"),
        ({"distributedInfo": {"rank": 9, "world_size": 8}}, "world size"),
        ({"distributedInfo": {"world_size": 1e300}}, "world_size"),
        ({"distributedInfo": {"pg_config": "all"}}, "pg_config"),
        ({"distributedInfo": {"pg_config": [3]}}, "pg_config"),
        ({"deviceProperties": {}}, "deviceProperties"),
    ],
)
def test_nonsense_is_noted_and_not_used(metadata, word):
    (note,) = read_metadata(metadata).notes
    assert word in note


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "rank",
                    "world_size",
                    "pg_config",
                    "ranks",
                    "pg_name",
                    "pg_size",
                    "name",
                    "backend",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*WHOLE, "nccl_version"]), JSON))
def test_no_metadata_ends_in_an_exception(metadata):
    read = read_metadata(metadata)
    assert read.rank is None or read.rank >= 0
    assert read.world_size is None or read.world_size > 0


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("mesh_dp", MeshAxis.DP),
        ("mesh_dp_replicate", MeshAxis.DP_REPLICATE),
        ("mesh_dp_shard", MeshAxis.DP_SHARD),
        ("mesh_dp_shard_cp", MeshAxis.DP_SHARD),
        ("mesh_fsdp", MeshAxis.DP_SHARD),
        ("mesh_tp", MeshAxis.TP),
        ("mesh_pp", MeshAxis.PP),
        ("mesh_cp", MeshAxis.CP),
        ("mesh_ep", MeshAxis.EP),
        ("tp:0", MeshAxis.TP),
        ("TENSOR_MODEL_PARALLEL_GROUP", MeshAxis.TP),
        ("PIPELINE_MODEL_PARALLEL_GROUP", MeshAxis.PP),
        ("DATA_PARALLEL_GROUP_WITH_CP", MeshAxis.DP),
        ("CONTEXT_PARALLEL_GROUP", MeshAxis.CP),
        ("EXPERT_MODEL_PARALLEL_GROUP", MeshAxis.EP),
        ("EXPERT_DATA_PARALLEL_GROUP", MeshAxis.DP),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", None),
        ("MODEL_PARALLEL_GROUP", None),
        ("EMBEDDING_GROUP", None),
        ("default_pg", MeshAxis.WORLD),
        ("undefined", None),
        ("adapter", None),
    ],
)
def test_axis_is_read_from_the_description(description, axis):
    assert axis_of(description, (0, 1), 2, 8) is axis


def test_an_undescribed_group_of_every_rank_is_the_world():
    assert axis_of("undefined", (0, 1), 2, 2) is MeshAxis.WORLD
    assert axis_of("", (), 2, 2) is MeshAxis.WORLD
    assert axis_of("", (), None, None) is None


@pytest.mark.parametrize(
    ("value", "ranks"),
    [
        ("[0, 1]", (0, 1)),
        ([3, 1, "2"], (1, 2, 3)),
        ("[0, 1, ..., 127]", ()),
        ("[]", ()),
        (None, ()),
        ([-1], ()),
        ([1 << 40], ()),
        ("[1", ()),
        ({"a": 1}, ()),
    ],
)
def test_ranks_of_a_group(value, ranks):
    assert parse_ranks(value) == ranks


@pytest.mark.parametrize(
    ("value", "recorded"), [(1, True), (True, True), (0, False), ("1", False), ([], False)]
)
def test_python_stacks_are_known_from_the_profilers_own_key(value: object, recorded: bool) -> None:
    assert read_metadata({"with_stack": value}).with_stack is recorded
    assert not read_metadata({}).with_stack
