"""One operator of a trace: which one a name means, its calls, kernels and callers."""

import gzip
import json
from collections import Counter
from math import prod
from pathlib import Path

import pytest
from msgspec.structs import replace

import distprof
from distprof.cli.app import main
from distprof.errors import InputError, UsageError
from distprof.hardware import load_sheet
from distprof.run.run import Device
from distprof.verbs.op import resident_blocks, tell
from distprof.verbs.op.show import OPERATOR, operator_verdict, waves_sentence
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


def test_on_a_real_trace_every_operator_has_the_flop_of_the_report():
    run = distprof.open_run(B200)
    flop: Counter[str] = Counter()
    for row in distprof.analyze(run).computation.operators:
        flop[row.name] += (row.flop or 0) * row.num_calls
    assert flop["vllm::moe_forward"] > 0
    for name in sorted(+flop):
        calls = tell(run, name, sheet=load_sheet()).story.calls
        assert sum((row.flop or 0) * row.num_calls for row in calls) == flop[name]


H100_PROPERTIES = {
    **{"name": H100, "numSms": 132, "computeMajor": 9, "computeMinor": 0},
    **{"maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536},
    "sharedMemPerMultiprocessor": 233472,
}


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "fit"),
    [
        (256, 32, 0, 8),  # 2,048 threads
        (128, 128, 0, 4),  # 4 × 128 × 128 = 65,536 registers
        (128, 32, 100_000, 2),  # 2 × (100,000 + 1,024) of 233,472 bytes
        (32, 16, 0, 32),  # as many as any multiprocessor holds
    ],
)
def test_a_multiprocessor_holds_as_many_blocks_as_its_scarcest_resource(
    threads, registers, shared, fit
):
    launch = {"registers per thread": registers, "shared memory": shared, "block": [threads, 1, 1]}
    assert resident_blocks(launch, H100_PROPERTIES) == fit
    assert resident_blocks({}, H100_PROPERTIES) == resident_blocks(launch, {}) == 0


def test_resident_blocks_agree_with_the_occupancy_that_kineto_recorded():
    """Kineto knows no occupancy of kernels with more than 48 KiB of shared memory, and writes 0."""
    trace = json.loads(gzip.decompress((B200 / "eager_trace.json.gz").read_bytes()))
    gpu, known = trace["deviceProperties"][0], 0
    for launch in (one["args"] for one in trace["traceEvents"] if one.get("cat") == "kernel"):
        at_once = min(resident_blocks(launch, gpu), launch["blocks per SM"])
        if launch["est. achieved occupancy %"]:
            known += 1
            expected = 100 * at_once * prod(launch["block"]) / gpu["maxThreadsPerMultiprocessor"]
            assert launch["est. achieved occupancy %"] == pytest.approx(expected, abs=1)
    assert known > 500


@pytest.mark.parametrize(
    ("blocks", "waves", "said"),
    [
        (
            141,
            1.07,
            "waves of thread blocks. If all take equally long, the last wave wastes 46.6 %",
        ),
        (264, 2, ""),
        (110, 0.83, ""),
        (33, 0.25, "has too few thread blocks: 75.0 % of the GPU's room for them is empty"),
    ],
)
def test_waves_of_thread_blocks_and_what_the_last_one_wastes(blocks, waves, said, tmp_path):
    """With 200,000 bytes of shared memory, each of the 132 multiprocessors holds one block."""
    launch = {"registers per thread": 64, "shared memory": 200_000, "block": [256, 1, 1]}
    launch |= {"grid": [blocks, 1, 1], "device": 0, "stream": 7, "correlation": 1}
    event = {"ph": "X", "pid": 0, "tid": 7, "ts": 10, "dur": 30, "cat": "kernel"}
    call = {"ph": "X", "pid": 1, "tid": 1, "dur": 4, "cat": "cpu_op", "ts": 1, "name": "aten::mm"}
    runtime = call | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 1}
    events = [
        call,
        runtime | {"args": {"correlation": 1}},
        event | {"name": "gemm", "args": launch},
    ]
    file = tmp_path / "rank0.json"
    file.write_text(
        json.dumps({"deviceProperties": [H100_PROPERTIES | {"id": 0}], "traceEvents": events})
    )
    found = tell(distprof.open_run(file), "aten::mm", sheet=load_sheet()).story
    assert found.kernels[0].waves == pytest.approx(waves, abs=0.01)
    assert said in waves_sentence(found)
    assert bool(said) is bool(waves_sentence(found))


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
