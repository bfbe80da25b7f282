"""What can be asked for: sizes, meshes, and what is refused."""

from __future__ import annotations

from math import prod

import pytest
from distprof_probes.options import ProbeOptions
from distprof_runs.options import (
    PRESETS,
    DdpOptions,
    FsdpOptions,
    ModelOptions,
    TrainingOptions,
    WorkloadOptions,
)
from distprof_runs.registry import WORKLOADS
from distprof_runs.settings import LaunchOptions
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import UsageError
from distprof.options import options_of

MODEL = ModelOptions().resolved()


@given(shards=st.integers(1, 64), replicas=st.integers(1, 64))
def test_a_hybrid_mesh_holds_each_rank_once(shards: int, replicas: int) -> None:
    mesh = FsdpOptions(replicas=replicas).mesh(shards * replicas)
    assert prod(mesh.values()) == shards * replicas
    assert mesh.get("dp_replicate", 1) == replicas


@given(world_size=st.integers(1, 64), replicas=st.integers(1, 64))
def test_replicas_divide_the_ranks_or_are_refused(world_size: int, replicas: int) -> None:
    options = FsdpOptions(replicas=replicas)
    if world_size % replicas == 0:
        assert prod(options.mesh(world_size).values()) == world_size
    else:
        with pytest.raises(UsageError, match=f"--replicas = {replicas} does not divide"):
            options.mesh(world_size)


@pytest.mark.parametrize(
    ("options", "mesh"),
    [
        (DdpOptions(), {"dp_replicate": 8}),
        (FsdpOptions(), {"dp_shard": 8}),
        (FsdpOptions(zero="2"), {"dp_shard": 8}),
        (FsdpOptions(zero="1"), {"dp_replicate": 8}),
        (FsdpOptions(replicas=2), {"dp_replicate": 2, "dp_shard": 4}),
    ],
)
def test_mesh_of_eight_ranks(options: WorkloadOptions, mesh: dict[str, int]) -> None:
    assert options.mesh(8) == mesh
    assert list(options.mesh(8)) == list(mesh)  # slowest varying first


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("shards", [2, 4, 8])
def test_presets_are_sharded_without_padding(preset: str, shards: int) -> None:
    model = ModelOptions(preset=preset).resolved()
    assert FsdpOptions().notes(model, TrainingOptions(), shards) == ()


def test_padding_is_told() -> None:
    (note,) = FsdpOptions().notes(MODEL, TrainingOptions(), 3)
    assert "3 shards" in note
    assert "hidden size 256" in note


def test_a_size_that_is_given_replaces_the_presets() -> None:
    model = ModelOptions(preset="small", layers=2).resolved()
    assert (model.layers, model.hidden) == (2, 512)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (ModelOptions(preset="huge"), "tiny, small, 125m"),
        (ModelOptions(hidden=100), "each must be a multiple"),
        (ModelOptions(heads=8, kv_heads=3), "each must be a multiple"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(model: ModelOptions, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        model.resolved()


@pytest.mark.parametrize(
    ("options", "training", "text"),
    [
        (DdpOptions(bucket_mb=0.0), TrainingOptions(), "--bucket-mb 0"),
        (DdpOptions(topk_ratio=1.5), TrainingOptions(), "--topk-ratio 1.5"),
        (FsdpOptions(zero="1", replicas=2), TrainingOptions(), "--zero 2"),
        (FsdpOptions(zero="1", flat=True), TrainingOptions(), "--zero 2"),
        (FsdpOptions(replicas=3), TrainingOptions(), "--replicas = 3"),
        (
            FsdpOptions(),
            TrainingOptions(compute="sleep", checkpoint_activations=True),
            "--compute sleep",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_a_way_out(
    options: WorkloadOptions, training: TrainingOptions, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        options.check(MODEL, training, 4)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_option_has_a_help_line_and_its_default_is_allowed(name: str) -> None:
    own = options_of(WORKLOADS[name].options)
    for option in (*own, *options_of(ModelOptions), *options_of(TrainingOptions)):
        assert len(option.help) > 5
        assert not option.choices or option.default in option.choices


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_two_sections_have_an_option_of_one_name(name: str) -> None:
    """Click passes each option by its name alone."""
    sections = (LaunchOptions, WORKLOADS[name].options, ModelOptions, TrainingOptions, ProbeOptions)
    names = [option.name for section in sections for option in options_of(section)]
    assert len(names) == len({*names, "faults", "config", "dry_run", "out"}) - 4


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_names_itself_and_its_strategy(name: str) -> None:
    options = WORKLOADS[name].options()
    assert options.name == name
    assert options.summary
    assert options.strategy()
