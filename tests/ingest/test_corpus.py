"""Figures published with a larger set of real traces; DISTPROF_CORPUS names its folder."""

import os
from pathlib import Path

import pytest

from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.intervals import intersect, total, union
from distprof.run.tables import intervals_of
from distprof.terms import ActivityKind

pytestmark = pytest.mark.corpus


@pytest.fixture(scope="module")
def corpus():
    folder = os.environ.get("DISTPROF_CORPUS")
    if not folder:
        pytest.skip("DISTPROF_CORPUS names no folder of traces")
    return Path(folder) / "kineto"


def opened(corpus, name, tmp_path):
    return open_run(str(corpus / name), IngestOptions(cache_dir=str(tmp_path)))


def busy(tables, *kinds):
    mask = sum((tables.activity["kind"] == kind) for kind in kinds) > 0
    return union(intervals_of(tables.activity.take(mask)))


REFERENCE = [
    # name, communication kernels, communication ms, share of it overlapped
    ("ddp-a100-2gpu-rank0", 21, 46.88, 7.32 / 46.88),
    ("torchrec-a100-16gpu-rank0", 80, 187.87, 0.0136),
    ("dlrm-a100-8gpu-rank3", 60, 163.54, 75.61 / 163.54),
    ("tp8-b200-rank0", 74, 2.14, 0.0),
    ("ddp-v100-world1", 0, 0.0, 0.0),
    ("mi210-gpu-only", 0, 0.0, 0.0),
    ("mi250-1gpu", 0, 0.0, 0.0),
]


@pytest.mark.parametrize(("name", "count", "milliseconds", "ratio"), REFERENCE)
def test_communication_agrees_with_the_reference(
    corpus, tmp_path, name, count, milliseconds, ratio
):
    (rank,) = opened(corpus, name, tmp_path)
    tables = rank.tables.load()
    communication = busy(tables, ActivityKind.COMMUNICATION)
    both = intersect(communication, busy(tables, ActivityKind.COMPUTATION))
    assert len(rank.collectives) == count
    assert total(communication) / 1e6 == pytest.approx(milliseconds, rel=1e-3, abs=5e-3)
    assert total(both) == pytest.approx(ratio * total(communication), rel=5e-3, abs=1e4)


@pytest.mark.parametrize(
    ("name", "num_steps"),
    [
        ("ddp-a100-2gpu-rank0", 3),
        ("torchrec-a100-16gpu-rank0", 5),
        ("dlrm-a100-8gpu-rank3", 6),
        ("mi250-1gpu", 2),
    ],
)
def test_steps_are_found(corpus, tmp_path, name, num_steps):
    (rank,) = opened(corpus, name, tmp_path)
    assert len(rank.steps) == num_steps


def test_activities_without_a_launch_record_are_counted(corpus, tmp_path):
    (rank,) = opened(corpus, "torchrec-a100-16gpu-rank0", tmp_path)
    work = rank.tables.load().activity["kind"] != ActivityKind.ANNOTATION
    assert (rank.quality.num_unlaunched, int(work.sum())) == (872, 7747)


@pytest.mark.parametrize(
    ("name", "rank", "world", "groups"),
    [
        ("ddp-a100-2gpu-rank0", 0, 2, 1),
        ("torchrec-a100-16gpu-rank0", 0, 16, 0),
        ("dlrm-a100-8gpu-rank3", 3, 8, 0),
        ("ddp-v100-world1", 0, 1, 1),
    ],
)
def test_metadata_is_read(corpus, tmp_path, name, rank, world, groups):
    (read,) = opened(corpus, name, tmp_path)
    assert (read.rank, read.world_size, len(read.groups)) == (rank, world, groups)
    assert read.rank_origin == "trace"


def test_sizes_are_known_where_old_operators_have_shapes(corpus, tmp_path):
    (rank,) = opened(corpus, "torchrec-a100-16gpu-rank0", tmp_path)
    assert (rank.collectives["bytes"] > 0).mean() > 0.9


@pytest.mark.parametrize(
    ("name", "step_ms", "computation_ms", "idle_ms"),
    [("num_workers_0", 213.8, 635.2, 656.9), ("num_workers_4", 181.0, 649.6, 436.6)],
)
def test_a_trace_of_pytorch_1_8_gives_the_published_times(
    corpus, tmp_path, name, step_ms, computation_ms, idle_ms
):
    file = f"resnet50-dataloader-legacy/{name}.worker0.pt.trace.json.gz"
    (rank,) = opened(corpus, file, tmp_path)
    kernels = busy(rank.tables.load(), ActivityKind.COMPUTATION)
    span = int(kernels.end[-1] - kernels.start[0])
    assert (rank.steps["end_ns"] - rank.steps["start_ns"]).mean() / 1e6 == pytest.approx(
        step_ms, abs=0.05
    )
    assert total(kernels) / 1e6 == pytest.approx(computation_ms, abs=0.05)
    assert (span - total(kernels)) / 1e6 == pytest.approx(idle_ms, abs=0.05)
