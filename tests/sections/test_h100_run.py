"""A run of FSDP over NCCL on a real GPU: every artefact of it is read, and they agree.

Two ranks, each on a node of its own to NCCL, share one H100; tests/golden/job/README.md says how it
was recorded. A step gathers the bf16 parameters of three units twice and reduces their gradients
once (theory, "Volume per training step": FSDP with resharding).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import distprof
from distprof.documents.saved import Report

RUN = Path(__file__).parents[1] / "golden" / "job" / "nccl-fsdp-2ranks-h100"

HIDDEN, FFN, LAYERS, VOCABULARY = 256, 1_024, 2, 1_024
BLOCK = 4 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN
"""Matrices of attention and of the gated feed-forward layer, and two norms' scales."""

PARAMETERS = LAYERS * BLOCK + 2 * VOCABULARY * HIDDEN + HIDDEN
"""Blocks, both embeddings, and the last norm."""

BYTES = 2 * PARAMETERS  # bf16


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    copy = tmp_path_factory.mktemp("h100") / "run"  # a run directory keeps its own cache
    shutil.copytree(RUN, copy)
    return distprof.analyze(copy, debug=True)


def test_volume_per_step_is_that_of_theory(report: Report) -> None:
    """What all ranks hold after a gather, or give into a reduction, without padding."""
    sent = {"all_gather": 0.0, "reduce_scatter": 0.0}
    for one in report.collectives.classes:
        sent[one.kind] += one.count * (one.bytes or 0) / 3
    assert sent["all_gather"] == pytest.approx(2 * BYTES, rel=0.01)
    assert sent["reduce_scatter"] == pytest.approx(BYTES, rel=0.01)


def test_all_collectives_are_matched_and_clocks_agree(report: Report) -> None:
    capture = report.capture
    assert capture.num_matched == 2 * 3 * 9  # ranks, steps, three units
    assert capture.matched_ratio == 1
    assert capture.num_causality_violations == 0


def test_the_log_of_nccl_is_understood(report: Report) -> None:
    """NCCL 2.28 found no InfiniBand; all connections between the two are sockets."""
    nccl = report.nccl
    assert nccl is not None
    assert nccl.num_unknown == 0
    assert {one.transport for one in nccl.transports} == {"NET/Socket"}


def test_the_first_finding_is_the_shared_gpu(report: Report) -> None:
    first = report.findings[0]
    assert (first.code, first.ranks) == ("TEL107", (0, 1))
    assert "take turns on GPU-4181adcb. " in first.message, "not the whole UUID"
    assert "NET101" in {finding.code for finding in report.findings}
