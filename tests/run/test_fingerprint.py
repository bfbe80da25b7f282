"""Whether two runs may be compared like for like."""

from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.summary_file import Fingerprint, differences, unlike

HERE = Fingerprint(
    world_size=4,
    num_nodes=1,
    device="NVIDIA H100",
    backend="nccl",
    workload="ddp",
    mesh={"dp": 4},
    config={"model.hidden": "512", "probes.mode": "window"},
    versions={"torch": "2.13.0", "distprof": "0.1"},
    environment={"NCCL_ALGO": "Ring", "SLURM_JOB_ID": "7"},
)


def changed(**fields):
    values = {name: getattr(HERE, name) for name in HERE.__struct_fields__}
    return Fingerprint(**{**values, **fields})


def test_a_run_is_like_itself():
    assert differences(HERE, HERE) == ()


def test_another_device_forbids_to_compare():
    (difference,) = unlike(HERE, changed(device="NVIDIA A100"))
    assert (difference.field, difference.first, difference.second) == (
        "device",
        "NVIDIA H100",
        "NVIDIA A100",
    )
    assert "NVIDIA A100" in difference.sentence


def test_sizes_may_differ_where_they_are_meant_to():
    larger = changed(world_size=8, num_nodes=2, mesh={"dp": 8})
    assert {d.field for d in unlike(HERE, larger)} == {"world size", "nodes", "mesh dp"}
    assert unlike(HERE, larger, sizes_may_differ=True) == ()


def test_another_version_is_told_and_forbids_nothing():
    newer = changed(versions={"torch": "2.14.0", "distprof": "0.2"})
    assert [d.field for d in differences(HERE, newer)] == ["version of torch"]
    assert unlike(HERE, newer) == ()


def test_what_one_run_does_not_know_is_no_difference():
    assert differences(HERE, Fingerprint()) == ()
    assert differences(HERE, changed(world_size=None, config={}, versions={})) == ()


def test_an_option_that_only_one_sets_is_a_difference():
    (difference,) = differences(HERE, changed(config={"model.hidden": "512", "ddp.buckets": "1"}))
    assert (difference.field, difference.first, difference.second) == (
        "config ddp.buckets",
        "",
        "1",
    )


def test_how_a_run_is_watched_and_numbered_is_no_difference():
    other = changed(
        config={"model.hidden": "512", "probes.mode": "off"},
        environment={"NCCL_ALGO": "Ring", "SLURM_JOB_ID": "8"},
    )
    assert differences(HERE, other) == ()


prints = st.builds(
    Fingerprint,
    world_size=st.none() | st.integers(1, 4),
    device=st.sampled_from(["", "a", "b"]),
    config=st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"])),
)


@given(prints, prints)
def test_differences_are_symmetric(first, second):
    forth = [(d.field, d.first, d.second) for d in differences(first, second)]
    back = [(d.field, d.second, d.first) for d in differences(second, first)]
    assert forth == back
