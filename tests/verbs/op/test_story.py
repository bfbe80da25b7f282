"""One operator of a trace: which one a name means, its calls, kernels and callers."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import distprof
from distprof.cli.app import main
from distprof.errors import InputError, UsageError
from distprof.hardware import load_sheet
from distprof.run.run import Device
from distprof.verbs.op import tell
from distprof.verbs.op.show import OPERATOR, operator_verdict
from tests.builders import make_run
from tests.sections.test_computation import BACKWARD_THREAD, H100, Program, speeds

B200 = Path(__file__).parents[2] / "golden" / "kineto" / "tp8-b200-rank0"


def story(program, name, device=H100, **options):
    run = make_run([replace(program.rank(), device=Device(name=device))])
    return tell(run, name, sheet=load_sheet(), **options).story


def small_program():
    size = [64, 64]
    program = Program().op("aten::mm", 10, size, size, kernel="gemm_a", around=("aten::linear",))
    program.op("aten::mm", 30, size, size, kernel="gemm_b", around=("aten::matmul", "outer"))
    program.op("aten::add", 5, size, size, kernel="elementwise_add")
    backward = ("autograd::engine::evaluate_function: MmBackward0", "MmBackward0")
    return program.op(
        "aten::mm", 40, size, [64, 8], kernel="gemm_a", around=backward, thread=BACKWARD_THREAD
    )


def test_calls_kernels_and_callers_of_an_operator_each_add_up_to_its_time():
    found = story(small_program(), "aten::mm")
    assert (found.total_ns, found.computation_ns, found.is_kernel) == (80, 85, False)
    assert {(row.part, row.total_ns, row.num_calls) for row in found.calls} == {
        ("backward", 40, 1),
        ("other", 40, 2),
    }
    assert {row.name: (row.total_ns, row.count) for row in found.kernels} == {
        "gemm_a": (50, 2),
        "gemm_b": (30, 1),
    }
    assert {row.path.split(" > ")[-1]: row.total_ns for row in found.callers} == {
        "MmBackward0": 40,
        "aten::linear": 10,
        "outer": 30,
    }


def test_an_operator_has_the_kernels_of_operators_inside_it():
    found = story(small_program(), "aten::linear")
    (row,) = found.calls
    assert (found.total_ns, row.name, row.num_calls) == (10, "aten::linear", 1)


def test_a_kernel_has_the_operators_that_launched_it():
    found = story(small_program(), "gemm_a")
    assert found.is_kernel
    assert {(row.name, row.total_ns) for row in found.calls} == {("aten::mm", 10), ("aten::mm", 40)}


def test_work_of_an_operator_counts_for_a_kernel_only_if_it_does_all_of_it():
    size = [4096, 4096]
    alone = Program().op("aten::mm", 1_000_000, size, size, kernel="gemm")
    assert story(alone, "gemm").calls[0].peak_ratio == story(alone, "aten::mm").calls[0].peak_ratio
    assert story(alone, "gemm").calls[0].peak_ratio
    program = Program().op("aten::_to_copy", 10, size, kernel="copy", around=("aten::mm",))
    program.op("aten::_to_copy", 10, size, kernel="cast")
    parts = story(program, "cast").calls[0]
    assert parts.flop is None


@pytest.mark.parametrize("name", ["aten::add", "add", "elementwise", "ELEMENTWISE_ADD"])
def test_a_name_may_be_full_without_namespace_or_a_part(name):
    assert story(small_program(), name).total_ns == 5


def test_of_several_names_all_are_listed_longest_first():
    with pytest.raises(UsageError, match=r"(?s)'gemm' fits 2 operators and kernels.*_a\n.*_b"):
        story(small_program(), "gemm")


def test_an_unknown_name_brings_up_the_nearest():
    with pytest.raises(UsageError, match=r"no operator or kernel 'aten::addx'.*aten::add"):
        story(small_program(), "aten::addx")


def test_an_unknown_rank_and_a_rank_without_kernels_are_refused():
    with pytest.raises(UsageError, match="no rank 7"):
        story(small_program(), "aten::mm", rank=7)
    with pytest.raises(InputError, match="computation kernels of a GPU"):
        story(small_program(), "aten::mm", device="cpu")


def test_the_verdict_names_the_share_of_the_limit_and_whose_limit_it_is():
    size = [8192, 8192]
    program = Program().op("aten::mm", 2_000_000, size, size)
    text = operator_verdict(story(program, "aten::mm"))
    assert text.startswith("aten::mm takes 2.00 ms per step, 100 % of the computation, at 55.6 %")
    assert text.endswith("of the GPU's peak (computation).")
    fabric = speeds(H100, bf16=700e12)
    assert "at 78.5 % of what this GPU was measured to reach" in operator_verdict(
        story(program, "aten::mm", fabric=fabric)
    )


def test_on_a_real_trace_every_name_adds_up_and_agrees_with_the_report():
    run = distprof.open_run(B200)
    rows = distprof.analyze(run).computation.operators
    found = tell(run, "aten::addmm", sheet=load_sheet()).story
    assert set(found.calls) == {row for row in rows if row.name == "aten::addmm"}
    for name in ("vllm::moe_forward", "aten::copy_", found.kernels[0].name):
        one = tell(run, name, sheet=load_sheet()).story
        for part in (one.calls, one.kernels, one.callers):
            assert sum(row.total_ns for row in part) == one.total_ns > 0


def test_a_list_of_names_counts_nested_calls_of_an_operator_once():
    around = ("aten::linear", "aten::linear", "my::linear_")
    program = Program().op("aten::mm", 10, [8, 8], [8, 8], around=around)
    with pytest.raises(UsageError, match="10 ns  aten::linear\n"):
        story(program, "LINEA")


def test_the_command_shows_saves_and_writes_a_script(tmp_path, capsys):
    script, saved = tmp_path / "repeat.py", tmp_path / "op.json"
    arguments = ["op", str(B200), "aten::mm", "--script", str(script)]
    assert main([*arguments, "-o", str(saved)]) == 0
    assert json.loads(saved.read_text())["schema"] == OPERATOR.schema
    assert "'strides': [[2880, 1], [1, 2880]]" in script.read_text()
    capsys.readouterr()
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["op", str(B200), "aten::mm"]) == 0
    assert "Calls by inputs" in capsys.readouterr().out
