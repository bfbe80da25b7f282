"""Layouts as the rules of configurations see them."""

from __future__ import annotations

from distprof.hardware import load_sheet
from distprof.sections.efficiency.models import preset, preset_sequence
from distprof.verbs.plan.configuration import ConfigurationResult, configured
from distprof.verbs.plan.layout import parse_layout
from distprof.verbs.plan.question import Cluster, Question

Results = dict[type[ConfigurationResult], ConfigurationResult]


def layout(
    text: str,
    *,
    model: str = "llama2-7b",
    batch: int = 128,
    sequence: int = 0,
    gpus: int = 64,
    per_node: int = 8,
    link: str = "ndr",
) -> Results:
    """A layout of a published model on H100s, as written after ``--layout``."""
    sheet = load_sheet()
    cluster = Cluster(
        gpu=sheet.gpu("h100"), num_gpus=gpus, per_node=per_node, link=sheet.link(link)
    )
    question = Question(
        model=preset(model),
        cluster=cluster,
        batch=batch,
        sequence=sequence or preset_sequence(model),
    )
    found = configured(question, parse_layout(text, num_gpus=gpus, batch=batch))
    return {ConfigurationResult: found}
