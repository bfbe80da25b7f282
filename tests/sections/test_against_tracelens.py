"""TFLOP/s of products compared with TraceLens, from a checkout that TRACELENS_CHECKOUT names.

TRACELENS_PYTHON has its requirements (pandas, tqdm, orjson, openpyxl). The traces are those of its
own tests and of DISTPROF_CORPUS. Five differences are known, and undone here:

- Of causal attention TraceLens counts half of the pairs, distprof all of them, as torch's
  ``FlopCounterMode`` does: two conventions.
- TraceLens counts the bias of ``addmm``, an addition per element of the output: torch does not.
- TraceLens counts two gradients of each convolution, also of the first one, whose output mask asks
  for no gradient of the image: half of the FLOP were not computed.
- Time in TraceLens includes fills of memory that an operator launches; distprof counts them as
  copies in the waterfall. Without them the times are equal.
- distprof counts routed experts from the grids of their kernels; TraceLens does not count them.
"""

import json
import os
import re
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

from distprof.api import analyze
from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.sections.computation import PRODUCTS

pytestmark = pytest.mark.corpus

PROGRAM = """
import contextlib, io, json, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
rows = []
with contextlib.redirect_stdout(io.StringIO()):
    from TraceLens.TreePerf import TreePerfAnalyzer
    from TraceLens.PerfModel.torch_op_mapping import op_to_perf_model_class_map as counted
    analyzer = TreePerfAnalyzer.from_file(sys.argv[2], add_python_func=False)
    for event in analyzer.tree.events:
        if event.get("cat") == "cpu_op" and event["name"] in counted:
            try:
                found = analyzer.compute_perf_metrics(event)
            except Exception:
                continue
            kernels = [one for one in event["kernel_details"] if one["name"][:3] != "Mem"]
            rows.append((
                event["name"], event["args"]["Input Dims"], event["args"].get("Concrete Inputs"),
                found["GFLOPS"] * 1e9, 1e3 * sum(one["dur"] for one in kernels),
            ))
json.dump(rows, sys.stdout)
"""

TRACES = [
    *(
        "h100/Qwen_Qwen1.5-0.5B-Chat__1016005",
        "h100/facebook_timesformer-base-finetuned-k400__1016002",
    ),
    *(
        "h100/google_owlv2-large-patch14-ensemble__1016001",
        "h100/gaunernst_bert-small-uncased__1016001",
    ),
    *("h100/Falconsai_nsfw_image_detection__1016002", "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005"),
    *("mi300/resnet_act_checkpoint", "torch_compile_triton/trace"),
]

OF_CORPUS = [
    *(
        "tp8-b200-rank0/eager_trace.json.gz",
        "dlrm-v100-8gpu/worker0_step_12.1694128201545.pt.trace.json.gz",
    ),
]

Key = tuple[str, str]

CAUSAL = {"flash": 4, "efficient": 6, "cudnn": 6}
"""Place of is_causal among the inputs of attention."""

OUTPUT_MASK = 10

EXPERTS = "vllm::moe_forward"


@pytest.fixture(scope="module")
def checkout() -> Path:
    folder = os.environ.get("TRACELENS_CHECKOUT")
    if not folder:
        pytest.skip("TRACELENS_CHECKOUT names no checkout of TraceLens")
    return Path(folder)


def key_of(name: str, sizes: list[list[int]]) -> Key:
    return name, str(sizes)


def mask_of(values: list[str]) -> int:
    """How many of the gradients of input and weight were computed."""
    return sum("true" in part.lower() for part in values[OUTPUT_MASK].split(",")[:2])


def theirs(checkout: Path, trace: Path) -> dict[Key, tuple[float, float]]:
    """FLOP, as torch counts them, and ns by operator and sizes."""
    python = os.environ.get("TRACELENS_PYTHON", sys.executable)
    command = [python, "-c", PROGRAM, str(checkout), str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sums: dict[Key, tuple[float, float]] = {}
    for name, dims, values, flop, ns in json.loads(done.stdout):
        kind = next((kind for kind in CAUSAL if f"dot_product_{kind}_attention" in name), None)
        if kind and values[CAUSAL[kind]] == "True":
            flop *= 2
        if name == "aten::convolution_backward":
            flop *= mask_of(values) / 2
        if name == "aten::addmm":
            flop -= prod((dims[1][0], dims[2][1]))
        key = key_of(name, [size for size in dims if size])
        before = sums.get(key, (0.0, 0.0))
        sums[key] = before[0] + flop, before[1] + ns
    return sums


def ours(trace: Path, cache: Path) -> dict[Key, tuple[float, float]]:
    run = open_run(str(trace), IngestOptions(cache_dir=str(cache)))
    result = analyze(run, window="capture").computation
    sums: dict[Key, tuple[float, float]] = {}
    for row in result.operators:
        if row.category in PRODUCTS and row.flop is not None:
            sizes = [json.loads(size) for size in re.findall(r"\[[^]]*\]", row.inputs)]
            before = sums.get(key_of(row.name, sizes), (0.0, 0.0))
            flop = before[0] + row.flop * row.num_calls
            sums[key_of(row.name, sizes)] = flop, before[1] + row.total_ns
    return sums


def compare(checkout: Path, trace: Path, cache: Path) -> None:
    one, other = ours(trace, cache), theirs(checkout, trace)
    both = [key for key in one if key in other and other[key][1] > 0 and other[key][0] > 0]
    counted = sum(ns for (name, _), (_, ns) in one.items() if name != EXPERTS)
    assert sum(one[key][1] for key in both) >= 0.7 * counted
    for key in both:
        mine, their = one[key][0] / one[key][1], other[key][0] / other[key][1]
        assert mine == pytest.approx(their, rel=0.01), key


@pytest.mark.parametrize("name", TRACES)
def test_traces_of_tracelens(checkout: Path, tmp_path: Path, name: str) -> None:
    compare(checkout, checkout / "tests/traces" / f"{name}.json.gz", tmp_path)


@pytest.mark.parametrize("name", OF_CORPUS)
def test_traces_of_the_corpus(checkout: Path, tmp_path: Path, name: str) -> None:
    folder = os.environ.get("DISTPROF_CORPUS")
    if not folder:
        pytest.skip("DISTPROF_CORPUS names no folder of traces")
    compare(checkout, Path(folder) / "kineto" / name, tmp_path)
