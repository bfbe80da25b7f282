"""Models by name or from a few numbers, and the model that a recorded job trained.

The trained model is known from run.json, or from the table ``[model]`` of distprof.toml::

    [model]
    preset = "llama3-8b"      # or parameters, or layers, hidden and heads, …
    sequence = 8192
    batch = 512               # sequences per step, all ranks together
    precision = "bf16"
    recomputation = "full"
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, cast, get_args

from msgspec.structs import replace

from distprof.artefacts.run_file import RunFile
from distprof.bounds import table_beside
from distprof.config import ModelConfig, ModelShape
from distprof.costs.transformer import Latent, Precision, Recomputation, TrainedModel, Transformer
from distprof.errors import UsageError

SHAPE_KEYS = ModelShape.__struct_fields__  # Keys that describe a shape, in addition to ``params``

_DEFAULT_VOCABULARY = 32000

_FFN_STEP = 64

_MOST = 10**9

_MOST_PARAMETERS = 10**18  # Sizes in bytes and counts of a saved plan have 64 bits

_NEAR = 0.05


def preset_names() -> tuple[str, ...]:
    """Names that :func:`preset` knows."""
    return tuple(_presets())


def preset(name: str) -> Transformer:
    """The shape of a published model."""
    values = dict(_preset_values(name))
    values.pop("sequence")
    latent = values.pop("latent", None)
    values.setdefault("kv_heads", values["heads"])
    return Transformer(
        name=name.strip().lower(), latent=None if latent is None else Latent(**latent), **values
    )


def preset_sequence(name: str) -> int:
    """Length in tokens of the sequences that the model was trained on."""
    return int(_preset_values(name)["sequence"])


def shape_from(
    values: Mapping[str, int | None],
    *,
    params: float | None = None,
    is_gated: bool = True,
    name: str = "model",
) -> Transformer:
    """A Llama-like shape from a few numbers.

    ``values`` are by :data:`SHAPE_KEYS`; ``layers``, ``hidden`` and ``heads`` are required. If
    ``ffn`` (or ``expert_ffn`` for a mixture of experts) is missing, it is chosen to match
    ``params``, which is only checked otherwise. MLPs without a gate are 4 H wide. UsageError if a
    required number is missing, or numbers contradict each other.
    """
    given = {key: value for key, value in values.items() if value is not None}
    missing = [key for key in ("layers", "hidden", "heads") if key not in given]
    if missing:
        raise UsageError(
            f"the shape of the model lacks {', '.join(missing)}: set them, or choose a --model from"
            f" {', '.join(preset_names())}"
        )
    if any(not 0 < value <= _MOST for value in given.values()):
        raise UsageError("layers, widths, heads and experts of a model must be above 0")
    if given["hidden"] < given["heads"]:
        raise UsageError(
            f"{given['heads']} heads do not fit into a hidden size of {given['hidden']}"
        )
    _check_experts(given)
    given.setdefault("kv_heads", given["heads"])
    given.setdefault("vocabulary", _DEFAULT_VOCABULARY)
    width = "expert_ffn" if "experts" in given else "ffn"
    is_open = width not in given
    as_llama = -(-8 * given["hidden"] // (3 * _FFN_STEP)) * _FFN_STEP  # 8/3 H, rounded up
    default = given.get("ffn", as_llama if is_gated else 4 * given["hidden"])
    given.setdefault("ffn", default)
    given.setdefault(width, default)
    shape: dict[str, Any] = dict(given)
    model = Transformer(name=name, gated=is_gated, **shape)
    if params is not None:
        model = _fit(model, params, width, is_open=is_open)
    if model.parameters > _MOST_PARAMETERS:
        raise UsageError(
            f"the shape has {model.parameters:.3g} parameters, more than {_MOST_PARAMETERS:.0e}:"
            " correct its numbers"
        )
    return model


def _check_experts(given: Mapping[str, int]) -> None:
    if "experts" not in given:
        if "top_k" in given or "expert_ffn" in given:
            raise UsageError("top_k and expert_ffn need experts: set the number of experts")
        return
    if not 1 <= given.get("top_k", 0) <= given["experts"]:
        raise UsageError(
            f"each token uses top_k of {given['experts']} experts: set top_k to at most that number"
        )


def _fit(model: Transformer, params: float, width: str, *, is_open: bool) -> Transformer:
    fitted = model
    if is_open:
        per_unit = (
            (3 if model.gated else 2)
            * model.hidden
            * (model.expert_layers * model.experts or model.layers)
        )
        missing = (params - model.parameters) / per_unit
        step = round((getattr(model, width) + missing) / _FFN_STEP) * _FFN_STEP
        fitted = replace(model, **{width: step}) if step > 0 else model
    if abs(fitted.parameters / params - 1) > _NEAR:
        raise UsageError(
            f"the shape has {fitted.parameters:,} parameters, but --params says {params:,.0f}: "
            "leave out --params or correct the shape"
        )
    return fitted


def _preset_values(name: str) -> Mapping[str, Any]:
    wanted = name.strip().lower()
    if wanted not in _presets():
        near = difflib.get_close_matches(wanted, _presets(), n=1, cutoff=0.5)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(
            f"no model {name!r}{meant}: choose one of {', '.join(_presets())}, or set --layers,"
            " --hidden and --heads"
        )
    return _presets()[wanted]


def _presets() -> Mapping[str, Mapping[str, Any]]:
    return table_beside(__package__, "models.toml")


# The model that a recorded job trained ------------------------------------------------------------

_ASLEEP = "sleep"

_SHARDED = "dp_shard"


def known_model(
    job: RunFile | None, table: ModelConfig | None, source: str = "distprof.toml"
) -> TrainedModel | None:
    """The model of a job; None if it is unknown.

    The model in the run.json of a reference run takes precedence: the table ``[model]`` belongs to
    the project in the folder and may not describe the recording. If the table contradicts itself or
    names no known model, a UsageError names its file, ``source``.
    """
    if job is not None and job.kind == "run" and "model" in job.config:
        return _of_reference_run(job)
    if table is None:
        return None
    try:
        return _of_table(table, source)
    except UsageError as error:
        # Configuration keys instead of the options of the planner
        why = str(error).replace("--model", "preset").replace("--params", "parameters")
        raise UsageError(f"{source}: [model]: {why.replace('--', '')}") from None


def _of_table(table: ModelConfig, source: str) -> TrainedModel:
    shape, name = _shape_of_table(table)
    parameters = shape.parameters if shape else table.parameters
    if parameters is None:
        raise UsageError("name the model: set preset, parameters, or layers, hidden and heads")
    sequence = table.sequence
    if sequence is None and table.preset is not None:
        sequence = preset_sequence(table.preset)
    batch = table.batch
    if batch is not None and sequence is None:
        raise UsageError("batch counts sequences: set the length of one with sequence")
    return TrainedModel(
        name=name,
        source=PurePath(source).name,
        parameters=float(parameters),
        active_parameters=float(shape.active_parameters if shape else parameters),
        shape=shape,
        sequence=sequence,
        tokens_per_step=batch * sequence if batch is not None and sequence is not None else None,
        precision=table.precision,
        recomputation=table.recomputation,
    )


def _shape_of_table(table: ModelConfig) -> tuple[Transformer | None, str]:
    given = {key: getattr(table, key) for key in SHAPE_KEYS if getattr(table, key) is not None}
    if table.preset is not None:
        if given or table.parameters is not None:
            also = next(iter(given), "parameters")
            raise UsageError(f"preset sets the whole shape: leave out {also}, or the preset")
        return preset(table.preset), table.preset.strip().lower()
    if not given:
        return None, f"{_short(table.parameters)} parameters" if table.parameters else ""
    shape = shape_from(given, params=table.parameters, is_gated=table.gated)
    return shape, f"{_short(shape.parameters)} parameters"


def _of_reference_run(job: RunFile) -> TrainedModel | None:
    """The model from run.json; None if its numbers are invalid, or if its blocks sleep."""
    values, training = job.config.get("model", {}), job.config.get("training", {})
    options = job.config.get(job.workload, {})
    if training.get("compute") == _ASLEEP:
        return None
    numbers = {key: _number(values.get(key)) for key in SHAPE_KEYS}
    experts = _number(options.get("experts"))
    if experts:
        numbers |= {
            "experts": experts,
            "top_k": _number(options.get("top_k")),
            "expert_ffn": numbers["ffn"],
        }
    try:
        shape = shape_from(numbers, name=str(values.get("preset", "")))
    except UsageError:
        return None
    recomputation: Recomputation = (
        "full" if training.get("checkpoint_activations") is True else "none"
    )
    value = training.get("precision")
    return TrainedModel(
        name=f"{job.workload}, {_short(shape.parameters)} parameters",
        source="run.json",
        parameters=float(shape.parameters),
        active_parameters=float(shape.active_parameters),
        shape=shape,
        sequence=_number(values.get("sequence")),
        precision=cast("Precision", value) if value in get_args(Precision) else "bf16",
        recomputation=recomputation,
        zero_stage=_zero_stage(options, job),
        shards=job.mesh.get(_SHARDED) or job.world_size,
    )


def _zero_stage(options: Mapping[str, Any], job: RunFile) -> int | None:
    if job.workload == "ddp":
        return 0
    if job.workload == "3d":
        return 3 if job.mesh.get(_SHARDED, 1) > 1 else None
    stage = str(options.get("zero", ""))
    return int(stage) if job.workload == "fsdp" and stage in ("1", "2", "3") else None


def _number(value: object) -> int | None:
    """A count from an untrusted file; None for 0 and for values that are not counts."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return cast("int", value) if is_count else None


def _short(count: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:,.0f}"
