"""The place of a rank in the mesh, and the groups that it joins."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from math import prod

import pytest
import torch
from distprof_runs.launching import join as joining
from distprof_runs.launching.join import Place, _backend, coordinates_of, join
from distprof_runs.options import DdpOptions, FsdpOptions, TrainingOptions
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore, TCPStore

from distprof.errors import UsageError


def test_the_last_axis_varies_fastest() -> None:
    mesh = {"pp": 2, "dp_shard": 2, "tp": 2}
    assert [coordinates_of(rank, mesh) for rank in (0, 1, 2, 5)] == [
        {"pp": 0, "dp_shard": 0, "tp": 0},
        {"pp": 0, "dp_shard": 0, "tp": 1},
        {"pp": 0, "dp_shard": 1, "tp": 0},
        {"pp": 1, "dp_shard": 0, "tp": 1},
    ]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_each_rank_has_a_place_of_its_own(sizes: list[int]) -> None:
    mesh = {f"axis{index}": size for index, size in enumerate(sizes)}
    places = {tuple(coordinates_of(rank, mesh).values()) for rank in range(prod(sizes))}
    assert len(places) == prod(sizes)
    assert all(place[index] < size for place in places for index, size in enumerate(sizes))


def test_a_rank_outside_of_the_mesh_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="outside"):
        coordinates_of(4, {"tp": 4})


def test_torchruns_variables_tell_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert Place.from_environment() == Place(rank=5, world_size=8, local_rank=1)


def test_cuda_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="--device cpu"):
        join(Place(), TrainingOptions(device="cuda"), DdpOptions())


def test_a_mesh_that_cannot_be_is_refused_before_anybody_waits() -> None:
    with pytest.raises(UsageError, match="--replicas = 3"):
        join(Place(world_size=2), TrainingOptions(device="cpu"), FsdpOptions(replicas=3))


def backends(monkeypatch: pytest.MonkeyPatch, gpus: Sequence[str]) -> set[str]:
    """What ranks on these GPUs choose; each sees one device, as SLURM and Kubernetes show it."""
    names = dict(enumerate(gpus))
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def choose(rank: int) -> str:
        store = TCPStore("localhost", server.port, timeout=timedelta(seconds=60))
        place = Place(rank=rank, world_size=len(gpus), local_rank=rank)
        return _backend(place, torch.device("cuda", rank), store)

    monkeypatch.setattr(joining, "_gpu_name", lambda device: names[device.index])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with ThreadPoolExecutor(len(gpus)) as ranks:
        return set(ranks.map(choose, range(len(gpus))))


def test_ranks_that_see_one_gpu_each_talk_through_nccl_if_it_is_not_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert backends(monkeypatch, ["node0 a", "node0 b", "node1 a"]) == {"nccl"}


def test_ranks_that_share_a_gpu_talk_through_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backends(monkeypatch, ["node0 a", "node0 b", "node0 a"]) == {"gloo"}


def test_one_rank_alone_on_a_gpu_talks_through_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_gpu_name", lambda _: "node0 a")
    assert _backend(Place(), torch.device("cuda", 0), HashStore()) == "nccl"
    assert _backend(Place(), torch.device("cpu"), HashStore()) == "gloo"
