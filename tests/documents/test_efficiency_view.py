"""The table of efficiency: what it says, and what it leaves out."""

import msgspec
import pytest

from distprof.sections.computation import SAVING_TITLES
from distprof.sections.efficiency import EfficiencyResult
from distprof.sections.efficiency.show import efficiency_sentence, efficiency_table
from distprof.sections.shows import judge
from distprof.sections.whatif import Scenario, WhatIfResult
from tests.documents.samples import healthy
from tests.rules.samples import device, efficiency


def table(**fields):
    report = msgspec.structs.replace(healthy(), efficiency=efficiency(**fields))
    return efficiency_table(report, show_all=False)


def rows(**fields):
    return dict(table(**fields).rows)


def test_figures_of_a_step_and_a_device():
    found = rows()
    assert found["step"] == "8,192 tokens, 71.2 TFLOP in 20.0 ms on 8 GPUs"
    assert found["per GPU"] == "51,200 tokens/s, 445 TFLOP/s"
    assert found["MFU"] == "45.0 % of 989 TFLOP/s (NVIDIA H100 80GB HBM3, bf16, dense)"
    assert found["memory"] == "at most 60.0 % of 80.0 GB, on rank 0"


def test_hfu_is_shown_where_something_is_recomputed():
    assert "HFU 58.5 % with full" in rows(recomputation="full", hfu_ratio=0.585)["MFU"]


def test_the_roofline_says_what_bounds_the_step():
    text = rows(
        flop_per_byte=400.0, ridge_flop_per_byte=2000.0, regime="communication-bound",
        bound_ratio=0.2,
    )["roofline"]  # fmt: skip
    assert text.startswith("communication-bound: 400 FLOP per byte sent, ridge 2,000; at most 20")


def test_the_fullest_rank_is_named():
    assert rows(memory=(device(0), device(5, 72.0)))["memory"].endswith("on rank 5")


def test_what_is_unknown_has_no_row_and_says_why():
    found = table(
        mfu_ratio=None, peak_flops=None, computing_ratio=None, memory=(), unavailable=("why",)
    )
    assert {name for name, _ in found.rows} == {"model", "step", "per GPU"}
    assert found.notes == ("why",)


@pytest.mark.parametrize("show_all", [False, True])
def test_a_run_of_which_no_model_is_known_has_no_table(show_all):
    report = msgspec.structs.replace(healthy(), efficiency=EfficiencyResult())
    assert efficiency_table(report, show_all=show_all) is None


def test_the_verdict_says_the_mfu_where_it_is_known():
    report = msgspec.structs.replace(healthy(), efficiency=efficiency())
    sentence = "MFU is 45.0 %; while computing, 56.0 % of the peak."
    assert sentence in judge(report).why
    assert not any("MFU" in text for text in judge(healthy()).why)


@pytest.mark.parametrize(
    ("saved_ms", "said"),
    [(4, "If attention ran in fused kernels, the step would take 4.00 ms (20.0 %) less."), (0, "")],
)
def test_the_sentence_names_the_largest_saving_of_computation(saved_ms, said):
    scenarios = tuple(
        Scenario(what=what, title=title, step_ns=0, recoverable_ns=ms * 1_000_000)
        for what, title, ms in (
            ("fused-attention", SAVING_TITLES["fused-attention"], saved_ms),
            ("fused-loss", SAVING_TITLES["fused-loss"], saved_ms // 2),
            ("late ranks", "all ranks arrived at once", 9),
        )
    )
    whatif = WhatIfResult(replayed_ns=20_000_000, without=scenarios)
    report = msgspec.structs.replace(healthy(), efficiency=efficiency(), whatif=whatif)
    mfu = "MFU is 45.0 %; while computing, 56.0 % of the peak."
    assert efficiency_sentence(report) == f"{mfu} {said}".rstrip()
