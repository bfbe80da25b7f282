"""Questions to plan for."""

from __future__ import annotations

from msgspec.structs import replace

from distprof.costs.transformer import Transformer
from distprof.hardware import load_sheet
from distprof.sections.efficiency.models import preset, preset_sequence
from distprof.verbs.plan.layout import Cluster, Question


def cluster(gpus: int = 64, gpu: str = "h100", link: str = "ndr", per_node: int = 8) -> Cluster:
    sheet = load_sheet()
    return Cluster(gpu=sheet.gpu(gpu), num_gpus=gpus, per_node=per_node, link=sheet.link(link))


def question(
    model: str = "llama2-7b", *, batch: int = 128, sequence: int = 0, gpus: int = 64, **where: str
) -> Question:
    return Question(
        model=preset(model),
        cluster=cluster(gpus, **where),
        batch=batch,
        sequence=sequence or preset_sequence(model),
    )


def gpt(layers: int, hidden: int, heads: int) -> Transformer:
    """A GPT of this size."""
    return replace(
        preset("gpt3-175b"),
        layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden,
    )  # fmt: skip
