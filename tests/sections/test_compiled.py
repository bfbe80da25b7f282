"""Compiled regions, graph breaks and compilations, as rows of ``torch.compile`` show them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from distprof.ingest.open import open_run
from distprof.intervals import Intervals
from distprof.rules.engine import run_rules
from distprof.sections.computation import CompiledCode, ComputationResult
from distprof.sections.computation.modules import compiled_code
from distprof.sections.computation.operators import Operators
from distprof.sections.idle import COMPILES, PYTHON, IdleResult
from tests.builders import MAIN_THREAD, RankBuilder
from tests.rules.samples import MS, Results, changed, cpu_pause, healthy
from tests.sections.test_computation import explained

RECORDED = Path(__file__).parents[1] / "golden" / "kineto" / "graph-breaks-cpu"


def region(name: str, start: int, end: int) -> tuple[str, int, int]:
    return (f"Torch-Compiled Region{name}", start, end)


def counts(*rows: tuple[str, int, int], window: tuple[int, int] = (0, 100)) -> CompiledCode | None:
    rank = RankBuilder()
    for name, start, end in rows:
        rank.operator(name, start, end)
    host = rank.tables().host
    return compiled_code(Operators.of(host), host, Intervals.of(window))


def test_graph_breaks_are_as_many_as_dynamo_counted_when_the_trace_was_recorded():
    (rank,) = open_run(str(RECORDED), executor="serial").ranks
    host = rank.tables.load(every_host_row=True).host
    operators = Operators.of(host)
    is_step = [name.startswith("ProfilerStep#") for name in host.coded("name").values]
    steps = [
        (int(start), int(end))
        for code, start, end in zip(
            host.coded("name").codes[operators.row],
            operators.start_ns,
            operators.end_ns,
            strict=True,
        )
        if is_step[code]
    ]
    found = [compiled_code(operators, host, Intervals.of(step)) for step in steps]
    first = CompiledCode(
        num_regions=9, num_breaks=4, num_functions=8, num_compiles=0, most_versions=1
    )
    assert found == [first, replace(first, num_compiles=1, most_versions=2)]
    both = compiled_code(operators, host, Intervals.of(*steps))
    assert both == first.and_of(replace(first, num_compiles=1, most_versions=2))


def test_regions_side_by_side_prove_no_graph_break():
    found = counts(region(": 0/0", 0, 10), region(": 1/0", 10, 20), region(": 0/0", 30, 40))
    assert found is not None
    assert (found.num_regions, found.num_breaks, found.num_functions) == (3, 0, 2)


def test_a_function_breaks_once_however_many_regions_it_calls():
    rows = [region(": 0/0", 0, 90), region(": 1/0", 10, 20), region(": 2/0", 30, 40)]
    found = counts(rows[0], ("aten::mul", 5, 45), *rows[1:])
    assert found is not None
    assert found.num_breaks == 1


def test_regions_of_another_thread_are_not_inside():
    rank = RankBuilder().operator("Torch-Compiled Region: 0/0", 0, 90, thread=MAIN_THREAD)
    rank.operator("Torch-Compiled Region: 1/0", 10, 20, thread="100/200")
    host = rank.tables().host
    found = compiled_code(Operators.of(host), host, Intervals.of((0, 100)))
    assert found is not None
    assert (found.num_regions, found.num_breaks) == (2, 0)


def test_old_traces_do_not_number_functions():
    found = counts(region("", 0, 50), region("", 10, 40))
    assert found is not None
    assert (found.num_regions, found.num_breaks) == (2, 1)
    assert (found.num_functions, found.most_versions) == (0, 0)


@pytest.mark.parametrize(
    "names",
    [
        ("entire_frame_compile", "_compile.compile_inner (dynamo_timed)"),
        ("entire_frame_compile (dynamo_timed)",),
        ("_compile.<locals>.compile_inner (dynamo_timed)",),
    ],
)
def test_one_compilation_counts_once_whatever_its_rows_are_called(names):
    rows = [(name, 10 + depth, 40 - depth) for depth, name in enumerate(names)]
    found = counts(*rows, ("entire_frame_compile_data: compile_id=0/23", 11, 12))
    assert found is not None
    assert (found.num_compiles, found.num_regions) == (1, 0)


def test_a_number_that_no_process_reaches_is_none():
    assert counts(region(f": 0/{'9' * 5_000}", 0, 10)) is None


def test_what_runs_between_the_steps_does_not_count():
    rows = (region(": 0/0", 0, 10), region(": 0/5", 60, 70), ("entire_frame_compile", 0, 9))
    found = counts(*rows, window=(50, 100))
    assert found is not None
    assert (found.num_regions, found.num_compiles, found.most_versions) == (1, 0, 6)
    assert counts(*rows, window=(80, 100)) is None


def test_a_program_without_compiled_code_has_no_counts():
    assert counts(("aten::mul", 0, 10), ("CompiledFunctionOfMine", 20, 30)) is None


def test_the_report_has_the_compiled_code_of_explained_ranks():
    rank = RankBuilder().step(0, 0, 100).operator("Torch-Compiled Region: 0/0", 0, 90)
    rank.operator("Torch-Compiled Region: 1/3", 10, 50)
    rank.kernel("triton_poi_fused_relu_1", 20, 30, launched=(15, 18))
    assert explained(rank).compiled == CompiledCode(
        num_regions=2, num_breaks=1, num_functions=2, num_compiles=0, most_versions=4
    )


# What findings say -------------------------------------------------------------------------------


def message(code: str, compiled: CompiledCode | None, results: Results) -> str:
    results = changed(results, ComputationResult, ranks=(0, 4), num_steps=5, compiled=compiled)
    (found,) = [one for one in run_rules(results.values()).findings if one.code == code]
    return f"{found.message} | {found.fix}"


CODE = CompiledCode(
    num_regions=430, num_breaks=110, num_functions=12, num_compiles=7, most_versions=9
)


def test_a_launch_bound_job_is_told_of_its_graph_breaks():
    text = message("HST101", CODE, healthy(idle_host=6))
    assert "runs as 43 regions per step and rank, at least 11 of which end in a graph break" in text
    assert "| Remove graph breaks: TORCH_LOGS=graph_breaks" in text


@pytest.mark.parametrize("code", [None, replace(CODE, num_breaks=0)])
def test_a_launch_bound_job_without_graph_breaks_is_told_of_none(code):
    assert "graph break" not in message("HST101", code, healthy(idle_host=6))


def compiling(caller: str = COMPILES) -> Results:
    pause = cpu_pause("python", PYTHON, 4 * MS, caller=caller)
    return changed(healthy(idle_pause=4), IdleResult, pauses=(pause,))


def test_a_job_that_compiles_in_its_steps_is_told_how_often():
    text = message("HST112", CODE, compiling())
    assert "compiled 7 times while recorded on ranks 0,4; of one function it made" in text
    assert "at least 9 versions" in text
    assert "versions" not in message("HST112", replace(CODE, most_versions=1), compiling())


def test_a_pause_for_other_reasons_says_nothing_of_compilations():
    assert "compile" not in message("HST112", CODE, compiling(caller="aten::cumsum"))
