"""Faults of computation on a simulated GPU: each is found first, and has the price that it has."""

from dataclasses import replace

import pytest

import distprof
from tests.simulator.computation import FAULTS, Model, write

RULES = {
    "optimizer": "unfused-optimizer",
    "vocabulary": "misaligned-products",
    "layout": "converted-layouts",
    "zeros": "zeroed-gradients",
    "embedding": "slow-indexing",
    "dropout": "unfused-dropout",
    "casts": "needless-casts",
}


def findings(model, folder):
    path = folder / "rank0.pt.trace.json.gz"
    step_ns = write(model, path)
    report = distprof.analyze(distprof.open_run(path, use_cache=False), debug=True)
    return step_ns, report.findings


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_first_at_its_price(fault, seed, tmp_path):
    model = Model.drawn(seed, fault)
    step_ns, found = findings(model, tmp_path)
    truth = step_ns - write(replace(model, fault=""), tmp_path / "healthy.json.gz")
    first = found[0]
    assert first.name == RULES[fault]
    assert first.cost_ns_per_step == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize("seed", range(8))
def test_a_healthy_program_has_no_finding(seed, tmp_path):
    _, found = findings(Model.drawn(seed), tmp_path)
    assert found == ()
