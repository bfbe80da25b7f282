"""A training step of a decoder as kernels with durations of a simple GPU, and faults to switch on.

A kernel takes as long as its FLOP at the rate of products, or its bytes at the bandwidth of the
memory, whichever is longer, and a launch. The truth about a fault is the step without it. Nothing
here is taken from ``distprof``.
"""

import gzip
import json
import random
from dataclasses import dataclass, field
from math import prod

FAULTS = (
    *("optimizer", "vocabulary", "layout", "zeros", "embedding", "dropout", "casts"),
    *("fp32", "attention", "loss", "recomputation", "launches"),
)

REPAIRED = {"fp32": "tf32"}
"""What a program is without its fault, if not the healthy one."""

BF16, FP32, INT64 = "c10::BFloat16", "float", "long int"
BYTES = {BF16: 2, FP32: 4, INT64: 8}
MAIN, BACKWARD = 200, 201

FILLED = 150

SEQUENCE = 1_024

TF32_FLOPS, FP32_FLOPS = 495 / 990, 67 / 990
"""Rates of an H100's data sheet by that of bf16."""


@dataclass(frozen=True)
class Model:
    """Sizes, the GPU, and the program's faults."""

    layers: int
    tokens: int
    width: int
    vocabulary: int
    flops: float = 600e12
    bandwidth: float = 2.4e12
    launch_us: float = 2.0
    slow_factor: float = 2.5  # Of products with an odd dimension.
    launching_us: float = 300.0  # Of a slow CPU, for each kernel.
    fault: str = ""
    kept: int = 0  # Last layers that are not recomputed.
    has_modules: bool = False  # Whether calls of modules were recorded.

    @staticmethod
    def drawn(seed, fault=""):
        """A model of one of many sizes."""
        pick = random.Random(seed)
        smaller = {"launches": 8, "recomputation": 4}.get(fault, 1)  # short kernels; all fits
        return Model(
            layers=pick.randint(2, 5) * (6 if fault == "recomputation" else 1),
            tokens=pick.choice((8_192, 16_384, 24_576)) // smaller,
            width=pick.choice((1_024, 1_536, 2_048)),
            vocabulary=pick.choice((32_064, 50_304, 65_536)),
            flops=pick.uniform(350e12, 700e12),
            bandwidth=pick.uniform(1.5e12, 3e12),
            launch_us=pick.uniform(1.5, 3.0),
            launching_us=pick.uniform(200, 400),
            fault=fault,
        )

    def operator_us(self):
        """Time of the CPU for each kernel."""
        return self.launching_us if self.fault == "launches" else 5.0


@dataclass
class Timeline:
    """Events of Kineto, with a CPU that launches and a GPU that follows."""

    model: Model
    events: list = field(default_factory=list)
    cpu: float = 0.0
    gpu: float = 0.0
    correlation: int = 0

    def event(self, category, name, start, length, tid, **args):
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0 if category == "kernel" else 100,
                "tid": tid,
                "ts": round(start, 3),
                "dur": round(length, 3),
                "args": args,
            }
        )

    def op(self, name, tensors, kernel, us, *, sequence=None, inside=(), tid=MAIN):
        """An operator with one kernel; ``tensors`` are sizes and types."""
        start, self.cpu = self.cpu, self.cpu + self.model.operator_us()
        for depth, outer in enumerate(inside):
            self.event("cpu_op", outer, start + 0.1 * depth, 4.9 - 0.2 * depth, tid)
        args = {}
        if tensors:
            args = {
                "Input Dims": [list(size) for size, _ in tensors],
                "Input type": [kind for _, kind in tensors],
                "Concrete Inputs": [""] * len(tensors),
            }
        if sequence is not None:
            args["Sequence number"] = sequence
        self.event("cpu_op", name, start + 1, 3, tid, **args)
        self.correlation += 1
        link = self.correlation
        self.event("cuda_runtime", "cudaLaunchKernel", start + 2, 1, tid, correlation=link)
        begin = max(self.gpu, start + 6)
        where = {"device": 0, "stream": 7, "correlation": link}
        self.event("kernel", kernel, begin, us, 7, **where)
        self.gpu = begin + us


class Step:
    """One step of the program."""

    def __init__(self, line):
        self.line, self.model, self.sequence = line, line.model, 0

    def seconds(self, flop, moved, slow=1.0):
        """Duration in microseconds."""
        model = self.model
        return 1e6 * max(slow * flop / model.flops, moved / model.bandwidth) + model.launch_us

    def forward(self, name, tensors, kernel, us):
        self.sequence += 1
        self.line.op(name, tensors, kernel, us, sequence=self.sequence)

    def backward(self, name, tensors, kernel, us, node="Backward0"):
        inside = (f"autograd::engine::evaluate_function: {node}", node)
        self.line.op(name, tensors, kernel, us, inside=inside, tid=BACKWARD)

    def again(self, name, tensors, kernel, us):
        """A forward operator that the backward pass repeats."""
        self.sequence += 1
        self.line.op(name, tensors, kernel, us, sequence=self.sequence, tid=BACKWARD)

    def checkpointed(self, number):
        """A layer that one node of the backward pass repeats."""
        begin = self.line.cpu
        self.layer(self.again, 1)
        node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
        self.line.event("cpu_op", node, begin - 1, self.line.cpu - begin + 1, BACKWARD)
        if self.model.has_modules:
            name, length = f"nn.Module: Block_{number}", self.line.cpu - begin
            self.line.event("python_function", name, begin - 0.5, length, BACKWARD)
        self.line.cpu += 1

    def optimizer(self, name, tensors, kernel, us):
        self.line.op(name, tensors, kernel, us)

    def product(self, run, rows, inner, columns):
        odd = any(n % 8 for n in (rows, inner, columns))
        slow = 1 + FILLED / inner  # a tile is loaded before its first multiplication
        slow *= self.model.slow_factor if odd else 1.0
        kind, kernel, rate = {
            "fp32": (FP32, "ampere_sgemm_128x64_nn", FP32_FLOPS),
            "tf32": (FP32, "sm80_xmma_gemm_f32f32_tf32f32_f32_nn", TF32_FLOPS),
        }.get(self.model.fault, (BF16, "nvjet_gemm", 1.0))
        moved = BYTES[kind] * (rows * inner + inner * columns + rows * columns)
        us = self.seconds(2 * rows * inner * columns / rate, moved, slow)
        run("aten::mm", [((rows, inner), kind), ((inner, columns), kind)], kernel, us)

    def memory(self, run, name, tensors, written, kernel="elementwise_kernel", factor=1.0):
        """A kernel that reads its inputs and writes so many bytes."""
        moved = sum(prod(size) * BYTES[kind] for size, kind in tensors) + written
        run(name, tensors, kernel, self.seconds(0, factor * moved))

    def fused(self, run, moved):
        """A kernel of a compiler."""
        run("triton_per_fused_native_layer_norm_0", (), "triton_per_fused_native_layer_norm_0",
            self.seconds(0, moved))  # fmt: skip

    def norm(self, run):
        rows = (self.model.tokens, self.model.width)
        number = prod(rows)
        if self.model.fault != "casts":
            self.memory(run, "aten::native_layer_norm", [(rows, BF16)], 2 * number, "layer_norm")
            return
        self.memory(run, "aten::copy_", [(rows, FP32), (rows, BF16)], 0)
        self.memory(run, "aten::native_layer_norm", [(rows, FP32)], 4 * number, "layer_norm")
        self.memory(run, "aten::copy_", [(rows, BF16), (rows, FP32)], 0)

    def dropout(self, run, width):
        rows = (self.model.tokens, width)
        number = prod(rows)
        if self.model.fault != "dropout":
            self.memory(run, "aten::native_dropout", [(rows, BF16)], 3 * number, "fused_dropout")
            return
        self.memory(run, "aten::bernoulli_", [(rows, BF16)], 0, "distribution_elementwise")
        self.memory(run, "aten::mul", [(rows, BF16), (rows, BF16)], 2 * number)
        self.memory(run, "aten::div", [(rows, BF16), ((), BF16)], 2 * number)

    def layout(self, run):
        """Patches of an image."""
        number = 3 * self.model.tokens * 256 * 8
        us = self.seconds(2.0 * number * 512, 4 * number)
        run("aten::cudnn_convolution", (), "sm90_xmma_fprop_implicit_gemm_bf16", us)
        if self.model.fault == "layout":
            for kernel in ("nchwToNhwcKernel", "nhwcToNchwKernel"):
                us = self.seconds(0, 16 * number)
                run("aten::cudnn_convolution", (), f"void cudnn::ops::{kernel}<float>", us)

    def layer(self, run, times):
        tokens, width = self.model.tokens, self.model.width
        self.norm(run)
        for _ in range(times):
            self.product(run, tokens, width, 3 * width)
            self.product(run, tokens, width, width)
            self.product(run, tokens, width, 4 * width)
            self.product(run, tokens, 4 * width, width)
        self.attention(run, times)
        if times == 1:
            for columns in (width, 4 * width, width):
                self.dropout(run, columns)
        self.fused(run, 6 * tokens * width)

    def attention(self, run, times):
        tokens, width = self.model.tokens, self.model.width
        if self.model.fault == "attention":
            self.scores(run, times, tokens // SEQUENCE * (width // 64))
            return
        heads = (tokens // SEQUENCE, width // 64, SEQUENCE, 64)
        name = "aten::_scaled_dot_product_flash_attention"
        us = self.seconds(times * 4 * tokens * SEQUENCE * width, 8 * tokens * width)
        suffix = "_backward" if times == 2 else ""
        tensors = [(heads, BF16)] * (3 + (times == 2))
        run(name + suffix, tensors, f"flash_{'bwd' if suffix else 'fwd'}_kernel", us)

    def scores(self, run, times, heads):
        """Attention that writes the scores of all heads to memory."""
        query, key, scores = (
            (heads, SEQUENCE, 64),
            (heads, 64, SEQUENCE),
            (heads, SEQUENCE, SEQUENCE),
        )
        number = prod(scores)
        us = self.seconds(2 * 64 * number, 2 * (number + 2 * prod(query)))
        for _ in range(times):
            run("aten::bmm", [(query, BF16), (key, BF16)], "nvjet_gemm", us)
            run("aten::bmm", [(scores, BF16), (query, BF16)], "nvjet_gemm", us)
        softmax = "aten::_softmax" + ("_backward_data" if times == 2 else "")
        self.memory(run, softmax, [(scores, BF16)] * times, 2 * number, "softmax_kernel")
        for name in ("aten::mul", "aten::masked_fill", "aten::div"):
            self.memory(run, name, [(scores, BF16)], 2 * number)

    def loss(self, columns):
        """The loss on all logits, forward and backward."""
        size = (self.model.tokens, columns)
        number = prod(size)
        if self.model.fault != "loss":
            self.fused(self.forward, 4 * number)
            return
        self.memory(self.forward, "aten::copy_", [(size, FP32), (size, BF16)], 0)
        for run, name in (
            (self.forward, "aten::_log_softmax"),
            (self.backward, "aten::_log_softmax_backward_data"),
        ):
            inputs = [(size, FP32)] * (1 if run == self.forward else 2)
            self.memory(run, name, inputs, 4 * number, "softmax_kernel")
        self.memory(self.backward, "aten::copy_", [(size, BF16), (size, FP32)], 0)

    def gradient(self, size):
        """The gradient of a parameter; with zeros in it, it is added to them."""
        if self.model.fault == "zeros":
            self.memory(
                lambda *args: self.backward(*args, node="torch::autograd::AccumulateGrad"),
                "aten::add_", [(size, FP32), (size, FP32)], 4 * prod(size),
            )  # fmt: skip

    def run(self, number):
        line, model = self.line, self.model
        begin = line.cpu
        tokens, width, vocabulary = model.tokens, model.width, model.vocabulary
        if model.fault == "vocabulary":
            vocabulary = vocabulary - 47
        table = (vocabulary, width)
        sizes = [table] + [
            size
            for _ in range(model.layers)
            for size in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
        ]
        if model.fault == "zeros":
            start = line.cpu
            for size in sizes:
                self.memory(self.optimizer, "aten::zero_", [(size, FP32)], 0)
            line.event("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", start - 0.5,
                       line.cpu - start, MAIN)  # fmt: skip
        self.layout(self.forward)
        for _ in range(model.layers):
            self.layer(self.forward, 1)
        self.product(self.forward, tokens, width, vocabulary)
        self.loss(vocabulary)
        self.product(self.backward, tokens, vocabulary, width)
        self.product(self.backward, width, tokens, vocabulary)
        for layer in reversed(range(model.layers)):
            if layer < model.layers - model.kept and model.fault == "recomputation":
                self.checkpointed(layer)
            self.layer(self.backward, 2)
        factor = 60.0 if model.fault == "embedding" else 1.0
        rows = [((tokens, width), BF16), ((tokens,), INT64)]
        moved = 2 * tokens * width * 2
        self.memory(self.backward, "aten::embedding_dense_backward", rows, moved,
                    "embedding_backward_kernel", factor)  # fmt: skip
        for size in sizes:
            self.gradient(size)
        self.update(sizes)
        line.cpu += 1
        line.event("user_annotation", f"ProfilerStep#{number}", begin, line.cpu - begin, MAIN)
        line.cpu = max(line.cpu + 1, line.gpu - 150)

    def update(self, sizes):
        start = self.line.cpu
        if self.model.fault == "optimizer":
            for size in sizes:
                one, number = (size, FP32), 4 * prod(size)
                for name, inputs in (
                    ("aten::mul_", [one]),
                    ("aten::lerp_", [one, one]),
                    ("aten::mul_", [one]),
                    ("aten::addcmul_", [one, one, one]),
                    ("aten::sqrt", [one]),
                    ("aten::div_", [one]),
                    ("aten::add_", [one]),
                    ("aten::addcdiv_", [one, one, one]),
                ):
                    self.memory(self.optimizer, name, inputs, number)
        else:
            us = self.seconds(0, 28 * sum(map(prod, sizes)))
            self.optimizer("aten::_fused_adamw_", (), "multi_tensor_apply_kernel<Adam>", us)
        self.line.event("user_annotation", "Optimizer.step#AdamW.step", start - 0.5,
                        self.line.cpu - start, MAIN)  # fmt: skip


def write(model, path, steps=4):
    """A trace of the program; returns its mean step in ns."""
    line = Timeline(model, cpu=1_000.0)
    ends = []
    for number in range(steps):
        Step(line).run(number)
        ends.append(line.gpu)
    document = {
        "schemaVersion": 1,
        "record_shapes": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"rank": 0, "world_size": 1},
        "traceEvents": line.events,
    }
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        json.dump(document, file)
    return 1e3 * (ends[-1] - ends[0]) / (steps - 1)
