"""How much of the computation of real traces is explained; DISTPROF_CORPUS names their folder.

What the traces lack, by name of the operator:

- ``vllm::unified_attention_with_output``: how many cached tokens each request attends to is in
  tensors.
- Kernels of CUDA graphs (torchrec) have no operators.
- Two DDP traces were recorded without sizes, one without operators.
"""

import os
from pathlib import Path

import pytest

from distprof.api import analyze
from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.sections.computation import NO_OPERATORS, NO_SHAPES, PRODUCTS
from distprof.sections.computation.show import from_peak
from distprof.sections.parts import mean_span_ns

pytestmark = pytest.mark.corpus

LEAST_NAMED = 0.97
LEAST_COUNTED = 0.9


@pytest.fixture(scope="module")
def corpus() -> Path:
    folder = os.environ.get("DISTPROF_CORPUS")
    if not folder:
        pytest.skip("DISTPROF_CORPUS names no folder of traces")
    return Path(folder)


def report_of(path: Path, cache: Path):
    return analyze(open_run(str(path), IngestOptions(cache_dir=str(cache))))


def computation_of(path: Path, cache: Path):
    return report_of(path, cache).computation


WITH_SIZES = [
    *("dlrm-v100-8gpu", "dlrm-a100-8gpu-rank3", "mi250-1gpu", "tp8-b200-rank0"),
    *("torchrec-a100-16gpu-rank0", "resnet50-dataloader-legacy"),
]


@pytest.mark.parametrize("name", WITH_SIZES)
def test_almost_all_time_has_a_category_and_almost_all_products_flop(corpus, tmp_path, name):
    result = computation_of(corpus / "kineto" / name, tmp_path)
    other = sum(row.total_ns for row in result.categories if row.name == "other")
    assert other <= (1 - LEAST_NAMED) * result.total_ns
    assert result.counted_ratio >= LEAST_COUNTED * result.recorded_ratio
    products = sum(row.total_ns for row in result.categories if row.name in PRODUCTS)
    graphs = result.graph_ratio * result.total_ns / products
    assert 1 - result.recorded_ratio <= max(graphs, 1 - LEAST_COUNTED)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ddp-a100-2gpu-rank0", NO_SHAPES),
        ("ddp-v100-world1", NO_SHAPES),
        ("mi210-gpu-only", NO_OPERATORS),
    ],
)
def test_traces_without_sizes_say_so(corpus, tmp_path, name, reason):
    assert computation_of(corpus / "kineto" / name, tmp_path).unavailable == (reason,)


@pytest.mark.parametrize("name", ["base", "gc", "loader", "small"])
def test_recordings_of_distprof_itself(corpus, tmp_path, name):
    report = report_of(corpus.parent / "gpu/h100" / name, tmp_path)
    assert sum(ns for _, ns in from_peak(report)) == pytest.approx(mean_span_ns(report))
    result = report.computation
    assert sum(row.total_ns for row in result.categories if row.name == "other") == 0
    assert result.counted_ratio == 1
