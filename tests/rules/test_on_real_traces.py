"""What the rules say about recordings of real machines."""

import os
from pathlib import Path

import pytest

import distprof
from tests.simulator.trials import is_overstated

GOLDEN = Path(__file__).parents[1] / "golden" / "kineto"


@pytest.fixture
def corpus():
    folder = os.environ.get("DISTPROF_CORPUS")
    if not folder:
        pytest.skip("DISTPROF_CORPUS names no folder of real traces")
    return Path(folder) / "kineto"


def findings(path):
    report = distprof.analyze(distprof.open_run(path), debug=True)
    return {finding.name: finding for finding in report.findings}, report


def test_four_of_eight_dlrm_ranks_wait_for_the_profiler_to_start():
    found, report = findings(GOLDEN / "dlrm-v100-8gpu")
    # one step, begun by the profiler's own skew: that waiting is no fault of the job's
    assert report.capture.start_wait_ns == pytest.approx(3.59e6, rel=0.01)
    assert report.waterfall.all.exposed_wait_ns > 3 * report.capture.start_wait_ns
    assert "recorded" in found["exposed-communication"].message
    assert found["exposed-communication"].cost_ns_per_step == pytest.approx(3.73e6, rel=0.01)
    assert found["capture-incomplete"].ranks == (4, 5, 6, 7)
    assert "persistent-straggler" not in found
    assert "arrival-skew-bound-collectives" not in found
    # late launches may be the profiler's doing, too: nothing is promised for them
    assert found["launch-bound-host"].severity == "info"
    assert "1,673 operators, the profiler explains all" in found["launch-bound-host"].message
    assert "--step-time" in found["launch-bound-host"].fix
    assert [repair.what for repair in report.plan.repairs] == ["input", "sync-calls"]


def test_one_rank_of_two_cannot_tell_waiting_from_transfer():
    found, report = findings(GOLDEN / "ddp-a100-2gpu-rank0")
    assert found["low-overlap"].confidence == "inferred"
    assert found["launch-bound-host"].severity == "warning"
    unchecked = {skipped.name for skipped in report.not_checked}
    assert {"arrival-skew-bound-collectives", "persistent-straggler"} <= unchecked


def test_a_single_gpu_without_collectives_leaves_nothing_about_them_unchecked():
    _, report = findings(GOLDEN / "mi250-1gpu")
    assert report.not_checked == ()


@pytest.mark.corpus
def test_loader_workers_cure_an_input_bound_job(corpus):
    folder = corpus / "resnet50-dataloader-legacy"
    before, _ = findings(folder / "num_workers_0.worker0.pt.trace.json.gz")
    after, _ = findings(folder / "num_workers_4.worker0.pt.trace.json.gz")
    assert before["loader-without-workers"].cost_ns_per_step == pytest.approx(47.1e6, rel=0.01)
    assert before["loader-without-workers"].severity == "error"
    assert "input-bound" not in before  # it counts the same time, and cannot say why
    assert not {"loader-without-workers", "input-bound"} & set(after)


@pytest.mark.corpus
def test_copies_from_pageable_memory_are_told_from_others(corpus):
    found, report = findings(
        corpus / "resnet50-dataloader-legacy" / "num_workers_4.worker0.pt.trace.json.gz"
    )
    assert found["pageable-copies"].cost_ns_per_step == pytest.approx(3.61e6, rel=0.01)
    assert [rank.num_pageable for rank in report.settings.feed] == [12]
    assert "pageable-copies" not in findings(corpus / "dlrm-a100-8gpu-rank3")[0]  # pinned


@pytest.mark.corpus
def test_no_rule_fails_on_any_real_trace(corpus):
    for folder in sorted(path for path in corpus.iterdir() if path.name != "edge-metadata"):
        findings(folder)


STEP_OF_V100_NS = 93_630_720
"""Computation of a step of ``ddp-v100-world1``."""


@pytest.mark.corpus
def test_products_in_fp32_on_a_v100_are_named(corpus):
    found, _ = findings(corpus / "ddp-v100-world1")
    assert "49.2 %" in found["tensor-cores-unused"].headline
    saved = found["tensor-cores-unused"].cost_ns_per_step
    assert saved == pytest.approx(7 / 8 * 0.492 * STEP_OF_V100_NS, rel=0.01)


@pytest.mark.parametrize("folder", sorted(path.name for path in GOLDEN.iterdir()))
def test_no_finding_claims_more_than_twice_what_its_simulation_recovers(folder):
    found, _ = findings(GOLDEN / folder)
    assert [one for one in found.values() if is_overstated(one)] == []
