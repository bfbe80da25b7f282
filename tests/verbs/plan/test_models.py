"""Parameters of published models, counted from their shapes; shapes from a few numbers."""

from __future__ import annotations

import pytest

from distprof.errors import UsageError
from distprof.sections.efficiency.models import preset, preset_names, shape_from

PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v2": 235_741_434_880,
}
ROUNDED = {
    "gpt3-175b": (174.6, 174.6),
    "mixtral-8x7b": (46.7, 12.9),
    "mixtral-8x22b": (140.6, 39.1),
    "deepseek-v2": (236, 21),
    "deepseek-v3": (671, 37),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_have_exactly_the_published_parameters(name):
    assert preset(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_and_active_ones_agree_with_the_reports(name):
    total, active = ROUNDED[name]
    assert preset(name).parameters / 1e9 == pytest.approx(total, rel=0.002)
    assert preset(name).active_parameters / 1e9 == pytest.approx(active, rel=0.02)


def test_every_preset_is_checked():
    assert set(preset_names()) == set(PUBLISHED) | set(ROUNDED)


def test_an_unknown_model_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean llama3-70b"):
        preset("llama3-71b")


def test_a_width_is_chosen_so_that_the_parameters_come_out():
    model = shape_from({"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8}, params=69e9)
    assert model.parameters == pytest.approx(69e9, rel=0.001)


@pytest.mark.parametrize(
    ("values", "params", "message"),
    [
        ({"layers": 2, "hidden": 64}, None, "lacks heads"),
        ({"layers": 2, "hidden": 4, "heads": 64}, None, "do not fit into"),
        ({"layers": 2, "hidden": 64, "heads": 4, "top_k": 2}, None, "number of experts"),
        ({"layers": 2, "hidden": 64, "heads": 4, "experts": 4}, None, "set top_k"),
        ({"layers": 2, "hidden": 64, "heads": 4, "ffn": 256}, 7e9, "--params says 7,000,000,000"),
        ({"layers": 32, "hidden": 4096, "heads": 32}, 1e9, "correct the shape"),
        ({"layers": 10**9, "hidden": 10**9, "heads": 8}, None, "more than 1e.18"),
    ],
)
def test_numbers_that_lack_or_contradict_are_refused(values, params, message):
    with pytest.raises(UsageError, match=message):
        shape_from(values, params=params)
