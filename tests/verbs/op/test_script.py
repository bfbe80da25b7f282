"""Scripts that repeat a call: they run alone, as recorded, and hold no foreign code."""

import ast
import gzip
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from distprof.errors import InputError
from distprof.ingest.kineto.arguments import find_strides
from distprof.sections.computation import OperatorStats, Pass
from distprof.verbs.op import OperatorStory, Told, script_of
from tests.optional import optional

torch = optional("torch")
functional = optional("torch.nn.functional")
NO_TRACE = "no-such-trace.json"


def told(name, inputs, *, trace=NO_TRACE, device="NVIDIA H100 80GB HBM3"):
    stats = OperatorStats(
        name=name,
        inputs=inputs,
        category=0,
        part=Pass.FORWARD,
        num_calls=2,
        total_ns=40_000,
        kernel="k",
    )
    story = OperatorStory(
        distprof_version="1",
        source="here",
        name=name,
        is_kernel=False,
        rank=0,
        device=device,
        num_steps=1,
        total_ns=40_000,
        computation_ns=40_000,
        calls=(),
        kernels=(),
        callers=(),
    )
    return Told(story=story, calls=[stats], trace=trace)


def call_of(script):
    """The only literal of a script that depends on the trace."""
    assigned = [one for one in ast.parse(script).body if isinstance(one, ast.Assign)]
    (found,) = [one.value for one in assigned if ast.unparse(one.targets[0]) == "CALL"]
    return ast.literal_eval(found)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Calls of PyTorch on this CPU, as its profiler records them, and the trace."""
    file = tmp_path_factory.mktemp("recorded") / "trace.json"
    rows, kinds = torch.randn(6, 8), torch.randint(20, (4, 5))
    image, heads = torch.randn(2, 3, 9, 9), [torch.randn(2, 4, 6, 8) for _ in range(3)]
    layer, norm = torch.nn.Linear(8, 4), torch.nn.LayerNorm(8)
    target = torch.randint(8, (6,))
    with torch.profiler.profile(record_shapes=True) as profiler, torch.no_grad():
        layer(rows)
        torch.bmm(rows.expand(2, 6, 8), rows.t().expand(2, 8, 6))
        torch.mm(rows, rows.t())
        functional.conv2d(image, torch.randn(5, 3, 3, 3), stride=2, padding=1)
        functional.softmax(rows, -1)
        norm(rows)
        functional.scaled_dot_product_attention(*heads, is_causal=True)
        functional.embedding(kinds, torch.randn(20, 8))
        rows.add(rows, alpha=2)
        rows.mul(3.0)
        rows.t().copy_(torch.randn(8, 6))
        functional.nll_loss(rows, target)
        rows.gather(1, torch.randint(8, (6, 2)))
        rows.sum(1)
    profiler.export_chrome_trace(str(file))
    calls = {}
    for event in json.loads(file.read_text())["traceEvents"]:
        values = event.get("args", {})
        if "Input Dims" in values:
            keys = ("Input Dims", "Input type", "Concrete Inputs")
            calls.setdefault(event["name"], json.dumps([values.get(key, []) for key in keys]))
    return calls, file


REPEATED = (
    *("linear", "addmm", "bmm", "mm", "convolution", "_softmax", "native_layer_norm", "embedding"),
    *("add", "mul", "copy_", "nll_loss_forward", "gather", "sum", "softmax", "layer_norm"),
    *("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"),
)


@pytest.mark.parametrize("name", REPEATED)
def test_a_script_repeats_what_torch_recorded(name, recorded, tmp_path, monkeypatch, capsys):
    calls, trace = recorded
    name = f"aten::{name}"
    script = script_of(told(name, calls[name], trace=str(trace)), 1)
    call = call_of(script)
    assert call["strides"] is not None
    assert call["traced_ns"] == 20_000
    monkeypatch.setattr(sys, "argv", ["repeat.py", "cpu"])
    called = watched(name, monkeypatch)
    file = tmp_path / "repeat.py"
    file.write_text(script.replace("ROUNDS, ROUND_S = 30, 0.003", "ROUNDS, ROUND_S = 2, 0.00001"))
    runpy.run_path(str(file), run_name="__main__")
    said = capsys.readouterr().out
    assert said.startswith(f"{name}: ")
    assert "traced: 20.0 µs per call on NVIDIA H100 80GB HBM3; measured / traced" in said
    sizes = [size for size, kind in zip(call["sizes"], call["types"], strict=True) if size and kind]
    assert [list(size) for size, _ in called()[: len(sizes)]] == sizes


def watched(name, monkeypatch):
    """Sizes and strides of the tensors that the script makes."""
    made, real = [], torch.as_strided

    def as_strided(data, size, stride):
        if len(size):
            made.append((size, stride))
        return real(data, size, stride)

    monkeypatch.setattr("torch.as_strided", as_strided)
    return lambda: made


def test_strides_of_transposed_and_expanded_tensors_are_those_of_the_trace(recorded):
    calls, trace = recorded
    (product,) = [call_of(script_of(told("aten::mm", calls["aten::mm"], trace=str(trace)), 1))]
    assert product["strides"] == [[8, 1], [1, 8]]
    batch = call_of(script_of(told("aten::bmm", calls["aten::bmm"], trace=str(trace)), 1))
    assert batch["strides"][0] == [0, 8, 1]


def test_the_script_runs_alone_without_distprof(recorded, tmp_path):
    calls, trace = recorded
    file = tmp_path / "repeat.py"
    file.write_text(script_of(told("aten::mm", calls["aten::mm"], trace=str(trace)), 1))
    command = [sys.executable, "-I", str(file), "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "TFLOP/s; traced" in done.stdout
    assert "distprof" not in file.read_text()
    wrong = subprocess.run(
        [*command[:-1], "tpu"], capture_output=True, text=True, timeout=120, check=False
    )
    assert "choose cpu or cuda" in wrong.stderr


def lists(sizes, types, values):
    return json.dumps([sizes, types, values])


def test_attention_of_a_gpu_runs_as_that_of_the_cpu(tmp_path, monkeypatch, capsys):
    size, kind = [2, 4, 6, 8], "c10::BFloat16"
    inputs = lists(
        [size] * 3 + [[]] * 3, [kind] * 3 + ["Scalar"] * 3, ["", "", "", "0.", "True", ""]
    )
    file = tmp_path / "repeat.py"
    file.write_text(script_of(told("aten::_scaled_dot_product_flash_attention", inputs), 1))
    monkeypatch.setattr(sys, "argv", ["repeat.py", "cpu"])
    runpy.run_path(str(file), run_name="__main__")
    assert capsys.readouterr().out.startswith("aten::_scaled_dot_product_flash_attention: ")


def test_a_call_that_cannot_be_repeated_ends_with_the_reason(tmp_path, monkeypatch):
    file = tmp_path / "repeat.py"
    monkeypatch.setattr(sys, "argv", ["repeat.py", "cpu"])
    file.write_text(script_of(told("aten::mm", lists([[2, 3]], ["float"], [""])), 1))
    with pytest.raises(SystemExit, match=r"(?s)aten::mm cannot be repeated.*fewer inputs"):
        runpy.run_path(str(file), run_name="__main__")


HOSTILE = (
    '"""; import os; os.system("x"); """',
    "'); raise SystemExit #",
    "__import__('os').system('x')",
    "@CALL@",
    "\\x22\n\nimport os",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_trace_never_becomes_code(text):
    plain = script_of(told("aten::mm", lists([[2, 3], [3, 4]], ["float"] * 2, ["", ""])), 1)
    inputs = lists([[2, 3], [3, 4]], ["float", text], [text, ""])
    script = script_of(told("aten::mm", inputs, device=text), 1)
    assert text not in script
    call = call_of(script)
    assert (call["types"][1], call["values"]) == ("", ["", ""])
    assert without_call(script) == without_call(plain)


def without_call(script):
    return [
        ast.dump(one) for one in ast.parse(script).body if "'CALL', ctx=Store" not in ast.dump(one)
    ]


@pytest.mark.parametrize("name", [*HOSTILE, "aten::mm; import os", "mm", "aten::", "aten::m m"])
def test_a_name_that_is_no_operators_is_refused(name):
    with pytest.raises(InputError, match="no operator of PyTorch"):
        script_of(told(name, lists([[2]], ["float"], [""])), 1)


@pytest.mark.parametrize(
    ("inputs", "which", "says"),
    [
        ("", 1, "without sizes and types of its inputs"),
        (lists([[2]], [""], [""]), 1, "without sizes and types of its inputs"),
        (lists([[1 << 39]], ["float"], [""]), 1, "elements"),
        (lists([[2]], ["float"], [""]), 2, "a call from 1 to 1"),
    ],
)
def test_what_cannot_be_a_script_is_refused(inputs, which, says):
    with pytest.raises(InputError, match=says):
        script_of(told("aten::add", inputs), which)


# Strides in the trace ----------------------------------------------------------------------------


def trace_with(tmp_path, *events, packed=False):
    text = json.dumps({"traceEvents": list(events)}, indent=1).encode()
    file = tmp_path / ("trace.json.gz" if packed else "trace.json")
    file.write_bytes(gzip.compress(text) if packed else text)
    return str(file)


def event(name, dims, strides=None):
    values = {"Input Dims": dims} | ({} if strides is None else {"Input Strides": strides})
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 1, "dur": 1, "args": values}


@pytest.mark.parametrize("packed", [False, True])
def test_strides_are_those_of_the_call_with_these_sizes(tmp_path, packed):
    bare = {"ph": "i", "name": "aten::mm", "ts": 1}
    filler = [event("aten::add", [[9]], [[1]])] * 60_000  # more than is read at once
    file = trace_with(
        tmp_path,
        bare,
        event("aten::mm", [[2, 3]], [[3, 1]]),
        event("aten::mm_", [[4, 5]], [[7, 7]]),
        *filler,
        event("aten::mm", [[4, 5]], [[1, 4]]),
        packed=packed,
    )
    assert find_strides(file, "aten::mm", [[4, 5]]) == [[1, 4]]
    assert find_strides(file, "aten::mm", [[6, 7]]) is None


@pytest.mark.parametrize("strides", [[["x"]], [[-1, 1]], [[True, 1]], "1", [[1, 1 << 60]]])
def test_strides_that_are_none_are_left_out(tmp_path, strides):
    file = trace_with(tmp_path, event("aten::relu", [[2, 3]], strides))
    inputs = lists([[2, 3]], ["float"], [""])
    call = call_of(script_of(told("aten::relu", inputs, trace=file), 1))
    assert call["strides"] in (None, [None])


def test_a_trace_that_is_gone_or_broken_has_no_strides(tmp_path):
    assert find_strides(str(Path(tmp_path) / "gone.json"), "aten::mm", [[2, 3]]) is None
    file = tmp_path / "broken.json"
    file.write_bytes(b'{"name": "aten::mm", "args": {"Input Dims": [[2, 3]], "Input Str')
    assert find_strides(str(file), "aten::mm", [[2, 3]]) is None
