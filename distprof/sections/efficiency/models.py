"""Models by name, and models from a few numbers."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from distprof.config import ModelShape
from distprof.costs.transformer import Latent, Transformer
from distprof.errors import UsageError

__all__ = ["SHAPE_KEYS", "preset", "preset_names", "preset_sequence", "shape_from"]

SHAPE_KEYS = ModelShape.__struct_fields__
"""What a shape may be given by, besides ``params``."""

_DEFAULT_VOCABULARY = 32000
_FFN_STEP = 64
_MOST = 10**9
_NEAR = 0.05


def preset_names() -> tuple[str, ...]:
    """Names that :func:`preset` knows."""
    return tuple(_presets())


def preset(name: str) -> Transformer:
    """The shape of a published model.

    Raises:
        UsageError: If there is none of that name; the message names the known ones.
    """
    values = dict(_preset_values(name))
    values.pop("sequence")
    latent = values.pop("latent", None)
    values.setdefault("kv_heads", values["heads"])
    return Transformer(
        name=name.strip().lower(), latent=None if latent is None else Latent(**latent), **values
    )


def preset_sequence(name: str) -> int:
    """Tokens of a sequence that the model was trained on.

    Raises:
        UsageError: If there is no such model.
    """
    return int(_preset_values(name)["sequence"])


def shape_from(
    values: Mapping[str, int | None],
    *,
    params: float | None = None,
    is_gated: bool = True,
    name: str = "model",
) -> Transformer:
    """A Llama-like shape from what is known of it.

    Args:
        values: By :data:`SHAPE_KEYS`; ``layers``, ``hidden`` and ``heads`` are needed.
        params: N; where ``ffn`` (or, of a mixture, ``expert_ffn``) is not given it is chosen so
            that N comes out, and where it is given N is checked.
        is_gated: Whether MLPs have a gate; without, they are 4 H wide.
        name: What to call it.

    Raises:
        UsageError: If something needed is missing, or numbers contradict each other.
    """
    given = {key: value for key, value in values.items() if value is not None}
    missing = [key for key in ("layers", "hidden", "heads") if key not in given]
    if missing:
        raise UsageError(
            f"the model's shape lacks {', '.join(missing)}: give them, or a --model of"
            f" {', '.join(preset_names())}"
        )
    if any(not 0 < value <= _MOST for value in given.values()):
        raise UsageError("a model's layers, widths, heads and experts are numbers above 0")
    if given["hidden"] < given["heads"]:
        raise UsageError(
            f"{given['heads']} heads do not fit into a hidden size of {given['hidden']}"
        )
    _check_experts(given)
    given.setdefault("kv_heads", given["heads"])
    given.setdefault("vocabulary", _DEFAULT_VOCABULARY)
    width = "expert_ffn" if "experts" in given else "ffn"
    is_open = width not in given
    default = given.get("ffn", _default_ffn(given["hidden"]) if is_gated else 4 * given["hidden"])
    given.setdefault("ffn", default)
    given.setdefault(width, default)
    shape: dict[str, Any] = dict(given)
    model = Transformer(name=name, gated=is_gated, **shape)
    return model if params is None else _fit(model, params, width, is_open=is_open)


def _check_experts(given: Mapping[str, int]) -> None:
    if "experts" not in given:
        if "top_k" in given or "expert_ffn" in given:
            raise UsageError("top_k and expert_ffn are of experts: say how many there are")
        return
    if not 1 <= given.get("top_k", 0) <= given["experts"]:
        raise UsageError(
            f"of {given['experts']} experts each token takes top_k: say how many, at most all"
        )


def _default_ffn(hidden: int) -> int:
    """8/3 H, as Llama's, rounded up to a multiple of 64."""
    return -(-8 * hidden // (3 * _FFN_STEP)) * _FFN_STEP


def _fit(model: Transformer, params: float, width: str, *, is_open: bool) -> Transformer:
    if is_open:
        per_unit = (
            (3 if model.gated else 2)
            * model.hidden
            * (model.expert_layers * model.experts or model.layers)
        )
        missing = (params - model.parameters) / per_unit
        step = round((getattr(model, width) + missing) / _FFN_STEP) * _FFN_STEP
        fitted = dataclasses.replace(model, **{width: step}) if step > 0 else model
    else:
        fitted = model
    if abs(fitted.parameters / params - 1) > _NEAR:
        raise UsageError(
            f"the shape has {fitted.parameters:,} parameters, --params says {params:,.0f}: leave"
            " out --params, or correct the shape"
        )
    return fitted


def _preset_values(name: str) -> Mapping[str, Any]:
    wanted = name.strip().lower()
    if wanted not in _presets():
        near = difflib.get_close_matches(wanted, _presets(), n=1, cutoff=0.5)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(
            f"no model {name!r}{meant}: known are {', '.join(_presets())}; or give --layers,"
            " --hidden and --heads"
        )
    return _presets()[wanted]


@cache
def _presets() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads((files("distprof.sections.efficiency") / "models.toml").read_text("utf-8"))
