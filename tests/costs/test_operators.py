"""FLOP and bytes of operators, against torch's own counter and by hand."""

import json
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from distprof.costs.operators import Work, is_counted, parse_inputs, with_experts, work_of


def inputs_text(sizes: list[object], types: list[str], values: list[str] | None = None) -> str:
    return json.dumps([sizes, types, values or [""] * len(sizes)])


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        if self.causal:
            scores = scores + torch.full((tokens, tokens), float("-inf")).triu(1)
        mixed: Tensor = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width)
        return x + self.out(mixed)


def drawn_model(seed: int) -> tuple[nn.Module, Tensor]:
    """A small model of random layers, and its input."""
    draw = random.Random(seed)
    if draw.random() < 0.5:
        width = 8 * draw.randint(1, 4)
        layers: list[nn.Module] = []
        for _ in range(draw.randint(1, 4)):
            layers += draw.choice(
                (
                    [nn.Linear(width, width, bias=draw.random() < 0.5), nn.GELU()],
                    [Attention(width, draw.choice((1, 2, 4)), causal=draw.random() < 0.5)],
                    [nn.LayerNorm(width)],
                )
            )
        return nn.Sequential(*layers), torch.randn(draw.randint(1, 3), draw.randint(2, 9), width)
    channels = 4 * draw.randint(1, 3)
    convolutions: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for _ in range(draw.randint(1, 3)):
        size = draw.choice((1, 3))
        kind = draw.choice((nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d))
        options = {"stride": draw.choice((1, 2)), "padding": draw.choice((0, 1)) if size > 1 else 0}
        if kind is nn.Conv2d:
            options["groups"] = draw.choice((1, 2, channels))
            options["dilation"] = draw.choice((1, 2)) if size > 1 else 1
        convolutions += [kind(channels, channels, size, **options), nn.ReLU()]
    return nn.Sequential(*convolutions), torch.randn(draw.randint(1, 3), 3, 17, 19)


def recorded_flop(trace: Path) -> int:
    """Sum over the operators of a trace that are not inside another counted one."""
    events = json.loads(trace.read_text())["traceEvents"]
    rows = [event for event in events if event.get("cat") == "cpu_op"]
    rows.sort(key=lambda row: (row["tid"], row["ts"], -row["dur"]))
    total, until = 0, {}
    for row in rows:
        if not is_counted(row["name"]) or row["ts"] < until.get(row["tid"], 0):
            continue
        until[row["tid"]] = row["ts"] + row["dur"]
        args = row["args"]
        text = json.dumps([args["Input Dims"], args["Input type"], args["Concrete Inputs"]])
        flop = work_of(row["name"], text).flop
        assert flop is not None, row
        total += flop
    return total


@pytest.mark.parametrize("seed", range(30))
def test_flop_are_those_that_torch_counts(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    model, given = drawn_model(seed)
    given.requires_grad_(seed % 3 == 0)  # otherwise the first layer has no gradient of its input
    with FlopCounterMode(display=False) as counter:
        model(given).sum().backward()
    with torch.profiler.profile(record_shapes=True) as profiler:
        model(given).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))

    assert counter.get_total_flops() > 0
    assert recorded_flop(tmp_path / "trace.json") == counter.get_total_flops()


HALF = "c10::BFloat16"


@pytest.mark.parametrize(
    ("operator", "sizes", "types", "expected"),
    [
        ("aten::mm", [[8, 4], [4, 2]], [HALF] * 2, Work(128, 112, 32)),
        (
            "aten::addmm",
            [[2], [8, 4], [4, 2], [], []],
            ["float"] * 3 + ["Scalar"] * 2,
            Work(128, 232, 64),
        ),
        ("aten::bmm", [[3, 8, 4], [3, 4, 2]], ["float"] * 2, Work(384, 672, 192)),
        ("aten::add", [[4, 1], [3], []], ["float", "float", "Scalar"], Work(None, 76, 48)),
        ("aten::add_", [[4, 3], [3], []], ["float", "float", "Scalar"], Work(None, 108, 48)),
        ("aten::copy_", [[4, 3], [4, 3], []], ["float", HALF, "Scalar"], Work(None, 72, 48)),
        ("aten::zero_", [[4, 3]], ["float"], Work(None, 48, 48)),
        ("aten::sum", [[4, 3], []], ["float", ""], Work(None, 48, 0)),
        ("aten::embedding", [[100, 8], [2, 3]], ["float", "long int"], Work(None, 432, 192)),
        ("aten::_softmax", [[4, 3], [], []], [HALF, "Scalar", "Scalar"], Work(None, 48, 24)),
        ("aten::unheard_of", [[4, 3]], ["float"], Work()),
        ("triton_poi_fused_add_0", [[4, 3], [3], []], [HALF, HALF, "Scalar"], Work(None, 30)),
        ("triton_tem_fused_mm_1", [[8, 4], [4, 2], [8, 2]], [HALF] * 3, Work(128, 112)),
        ("triton_tem_fused_mm_1", [[8, 4], [4, 2], [8, 3]], [HALF] * 3, Work(None, 128)),
        ("aten::_grouped_mm", [[8, 4], [3, 4, 2], [3]], [HALF, HALF, "int"], Work(128)),
        ("aten::_grouped_mm", [[4, 8], [8, 2], [3]], [HALF, HALF, "int"], Work(128)),
        ("aten::_grouped_mm", [[3, 8, 4], [3, 4, 2], [3]], [HALF, HALF, "int"], Work(384)),
        ("aten::_grouped_mm", [[8, 4], [3, 5, 2], [3]], [HALF, HALF, "int"], Work()),
        ("flash_attn::_flash_attn_forward", [[2, 16, 3, 8]] * 3, [HALF] * 3, Work(49_152)),
        ("flash_attn::_flash_attn_backward", [[2, 16, 3, 8]] * 4, [HALF] * 4, Work(122_880)),
    ],
)
def test_work_of_one_call(
    operator: str, sizes: list[object], types: list[str], expected: Work
) -> None:
    assert work_of(operator, inputs_text(sizes, types)) == expected


@pytest.mark.parametrize(("tokens", "flop"), [(32, 49_152), (30, None)])
def test_packed_sequences_are_counted_only_if_they_are_equally_long(tokens, flop) -> None:
    """Where each ends is in the memory of the GPU, not in the trace."""
    packed, ends = [tokens, 3, 8], [3]
    forward = inputs_text([packed] * 3 + [ends] * 2 + [[]] * 2, [HALF] * 7, [""] * 5 + ["16"] * 2)
    backward = inputs_text(
        [packed] * 9 + [ends] * 2 + [[]] * 2, [HALF] * 13, [""] * 11 + ["16"] * 2
    )
    name = "flash_attn::_flash_attn_varlen"
    assert work_of(f"{name}_forward", forward).flop == flop
    assert work_of(f"{name}_backward", backward).flop == (flop and flop * 5 // 2)


def test_attention_over_packed_sequences_is_unknown_to_operators_of_torch() -> None:
    size, name = [2, 16, 3, 8], "aten::_flash_attention_forward"
    types = [HALF] * 5
    assert work_of(name, inputs_text([size] * 3 + [[], []], [HALF] * 3 + [""] * 2)).flop == 49_152
    assert work_of(name, inputs_text([size] * 3 + [[3], [3]], types)).flop is None


def test_fused_attention_counts_four_products_of_pairs_forward_and_ten_backward() -> None:
    query = [2, 3, 16, 8]
    forward = inputs_text([query] * 3, [HALF] * 3)
    backward = inputs_text([query] * 5, [HALF] * 5)
    pairs = 2 * 3 * 16 * 16 * 8

    flash = "aten::_scaled_dot_product_flash_attention"
    assert work_of(flash, forward).flop == 4 * pairs
    assert work_of(f"{flash}_backward", backward).flop == 10 * pairs


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[[], []]",
        '[{"a": 1}, [], []]',
        inputs_text([[4, -1], [4, 2]], ["float"] * 2),
        inputs_text([[4, 3], [4, 2]], ["float"] * 2),
        inputs_text([[4, 3]], ["float"]),
        inputs_text([[[4, 3], [3]], []], ["TensorList", ""]),
        inputs_text([[1 << 60, 2], [2, 1 << 60]], ["float"] * 2),
    ],
)
def test_inputs_that_do_not_fit_have_no_known_work(text: str) -> None:
    assert work_of("aten::mm", text) == Work()


def test_inputs_of_an_unknown_type_have_flop_but_no_bytes() -> None:
    assert work_of("aten::mm", inputs_text([[8, 4], [4, 2]], ["c10::Strange"] * 2)) == Work(128)


def test_inputs_are_read_with_their_values() -> None:
    found = parse_inputs(inputs_text([[4, 3], [], []], ["float", "Scalar", ""], ["", "2", ""]))
    assert found.sizes == ((4, 3), None, None)
    assert found.values == ("", "2", "")
    assert found.first_type == "float"


EXPERTS = inputs_text([[888, 3072], [888, 128], []], ["c10::BFloat16", "c10::BFloat16", ""])
FIRST = "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_rM_TN_transOut_clmp_swiGlu_dynBatch_sm100f"
LAST = "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_rM_TN_transOut_clmp_dynBatch_sm100f"


@pytest.mark.parametrize("each", [1, 2, 4, 8])
@pytest.mark.parametrize(("gated", "factor"), [(FIRST, 2), (LAST, 1)])
def test_grids_of_experts_show_their_products(each, gated, factor):
    tiles = 128 + (888 * each - 128) // 16
    launches = ((gated, 4 * factor * tiles), (LAST, 24 * tiles))
    work = work_of("vllm::moe_forward", with_experts(EXPERTS, launches))
    assert work.flop == 2 * 888 * each * 3072 * (factor * 512 + 512)


@pytest.mark.parametrize(
    "launches",
    [
        (),
        ((FIRST, 2736),),
        ((FIRST, 2736), (LAST, 8208), (LAST, 8208)),
        ((FIRST, 2736), (LAST, 8209)),  # no whole tiles
        ((FIRST, 2737), (LAST, 8208)),
        ((FIRST, 8 * 343), (LAST, 24 * 343)),  # no whole experts per token
        ((FIRST, 2736), (LAST.replace("t128x16", "t128x8"), 8208)),
        ((FIRST, 2736), (LAST, 0)),
        ((FIRST, 2736), (LAST, -1)),
    ],
)
def test_other_grids_of_experts_show_nothing(launches):
    assert with_experts(EXPERTS, launches) == EXPERTS
    assert work_of("vllm::moe_forward", EXPERTS) == Work()


@pytest.mark.parametrize("sizes", [[], [[0, 3072], [0, 128]], [[888, 0], [888, 128]], [[888], []]])
def test_damaged_sizes_of_experts_show_nothing(sizes):
    text = inputs_text(sizes, ["float"] * len(sizes))
    assert with_experts(text, ((FIRST, 2736), (LAST, 8208))) == text
