"""Faults of computation on a simulated GPU: each is found first, and has the price that it has."""

from dataclasses import replace

import pytest
from msgspec import structs

import distprof
from distprof.run.records import MEMORY_LOG, RankRecords
from distprof.schema import ABSENT
from distprof.sections.computation.show import from_peak, largest_loss
from distprof.sections.parts import mean_span_ns
from tests.simulator.computation import FAULTS, REPAIRED, Model, write
from tests.simulator.records import InMemoryRecords
from tests.simulator.tables import table

RULES = {
    "optimizer": "unfused-optimizer",
    "vocabulary": "misaligned-products",
    "layout": "converted-layouts",
    "zeros": "zeroed-gradients",
    "embedding": "slow-indexing",
    "dropout": "unfused-dropout",
    "casts": "needless-casts",
    "fp32": "tensor-cores-unused",
    "attention": "unfused-attention",
    "loss": "unfused-loss",
    "recomputation": "needless-recomputation",
    "launches": "launch-bound-host",
}

SIZE = 80_000_000_000
"""Memory of the simulated GPU."""

STEPS = 4


def with_memory(run, allocated):
    """The run with a counter of its rank's memory after each step."""
    rows = [
        {
            "step": step,
            "t_ns": step,
            "allocated_bytes": allocated,
            "peak_allocated_bytes": allocated,
            "reserved_bytes": allocated,
            "num_retries": 0,
            "rss_bytes": ABSENT,
        }
        for step in range(STEPS)
    ]
    records = RankRecords(rank=0, memory=table(MEMORY_LOG, rows))
    return structs.replace(run, records={0: InMemoryRecords(records)})


def written_by_a_layer(model):
    """Bytes that operators with known sizes write: bf16, and a byte for each element of a mask."""
    products, norm, attention, dropout = 9, 1, 1, 6
    width = 2 * (products + norm + attention + dropout)
    return model.tokens * model.width * width


def findings(model, folder, allocated=SIZE // 4):
    """Mean step in ns, and what is found; the recording costs no time."""
    path = folder / "rank0.pt.trace.json.gz"
    step_ns = write(model, path, STEPS)
    run = with_memory(distprof.open_run(path, use_cache=False), allocated)
    return step_ns, distprof.analyze(run, step_ns=round(step_ns), debug=True).findings


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_first_at_its_price(fault, seed, tmp_path):
    model = Model.drawn(seed, fault)
    step_ns, found = findings(model, tmp_path)
    truth = step_ns - write(
        replace(model, fault=REPAIRED.get(fault, "")), tmp_path / "healthy.json.gz"
    )
    first = found[0]
    assert first.name == RULES[fault]
    assert first.cost_ns_per_step == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize("seed", range(8))
def test_a_healthy_program_has_no_finding(seed, tmp_path):
    _, found = findings(Model.drawn(seed), tmp_path)
    assert found == ()


@pytest.mark.parametrize("fault", sorted(set(REPAIRED.values())))
def test_what_a_program_becomes_has_no_finding(fault, tmp_path):
    _, found = findings(Model.drawn(1, fault), tmp_path)
    assert found == ()


def test_recomputation_that_memory_requires_is_not_needless(tmp_path):
    _, found = findings(Model.drawn(2, "recomputation"), tmp_path, allocated=SIZE * 9 // 10)
    assert RULES["recomputation"] not in {one.name for one in found}


@pytest.mark.parametrize("has_modules", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_as_many_layers_are_kept_as_fit_and_save_what_they_take(seed, has_modules, tmp_path):
    """Half of the layers fit. They are the same, so the last come first."""
    model = Model.drawn(seed, "recomputation")
    model = replace(model, tokens=4 * model.tokens, has_modules=has_modules)
    half = model.layers // 2
    room = half * written_by_a_layer(model) + 1
    step_ns, found = findings(model, tmp_path, allocated=SIZE * 9 // 10 - room)
    truth = step_ns - write(replace(model, kept=half), tmp_path / "kept.json.gz", STEPS)
    first = found[0]
    assert first.name == RULES["recomputation"]
    assert f"{half} of {model.layers} regions would fit" in first.headline
    last = f"Block_{model.layers - half} to Block_{model.layers - 1}"
    places = f"regions {model.layers - half + 1}-{model.layers} of {model.layers} in the forward"
    assert (last if has_modules else places) in first.fix
    assert first.cost_ns_per_step == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize(("allocated", "is_named"), [(SIZE * 3 // 4, True), (SIZE // 4, False)])
def test_only_where_not_all_results_fit_the_first_to_keep_are_named(allocated, is_named, tmp_path):
    """Of all products, the one with the longest inner dimension saves most time per byte."""
    model = Model.drawn(0, "recomputation")
    model = replace(model, tokens=4 * model.tokens)
    first, *_ = findings(model, tmp_path, allocated)[1]
    inner, width = 4 * model.width, model.width
    product = f"aten::mm on bf16[{model.tokens}, {inner}] · bf16[{inner}, {width}]"
    assert (f"Keep the results of {product} first" in first.fix) is is_named


def test_parts_from_the_peak_add_up_to_the_step_and_name_the_largest_loss(tmp_path):
    path = tmp_path / "rank0.pt.trace.json.gz"
    model = replace(Model.drawn(1, "recomputation"), flops=989e12)
    write(model, path, STEPS)
    report = distprof.analyze(distprof.open_run(path, use_cache=False))
    rows = dict(from_peak(report))
    assert sum(rows.values()) == pytest.approx(mean_span_ns(report))
    assert min(rows.values()) >= 0
    repeated = sum(one.total_ns for one in report.computation.regions)
    assert rows["recomputation"] == pytest.approx(repeated, rel=0.01)
    largest = max(list(rows)[1:], key=rows.get)
    assert largest_loss(report).startswith(f" Most is lost to {largest}: ")
