"""The model that a recorded job trained: by run.json, or by the table ``[model]`` of distprof.toml.

::

    [model]
    preset = "llama3-8b"      # or parameters, or layers, hidden and heads, …
    sequence = 8192
    batch = 512               # sequences of a step, all ranks together
    precision = "bf16"
    recomputation = "full"
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, cast, get_args

from distprof.artefacts.run_file import RunFile
from distprof.config import ModelConfig
from distprof.costs.trained_model import Precision, TrainedModel
from distprof.costs.transformer import Recomputation, Transformer
from distprof.errors import UsageError
from distprof.sections.efficiency.models import SHAPE_KEYS, preset, preset_sequence, shape_from

__all__ = ["known_model"]

_ASLEEP = "sleep"
_SHARDED = "dp_shard"


def known_model(
    job: RunFile | None, table: ModelConfig | None, source: str = "distprof.toml"
) -> TrainedModel | None:
    """The model of a job; None where nothing says which it is.

    A reference run says its own in run.json, which comes first: the table is of the folder's
    project, whatever was recorded.

    Args:
        job: run.json, None for bare traces.
        table: ``[model]`` of the configuration, None without one.
        source: The configuration's file, for messages.

    Raises:
        UsageError: If the table contradicts itself or names no known model.
    """
    if job is not None and job.kind == "run" and "model" in job.config:
        return _of_reference_run(job)
    if table is None:
        return None
    try:
        return _of_table(table, source)
    except UsageError as error:
        raise UsageError(f"{source}: [model]: {_in_toml(str(error))}") from None


def _in_toml(text: str) -> str:
    """The planner speaks of its options; here they are keys."""
    return text.replace("--model", "preset").replace("--params", "parameters").replace("--", "")


def _of_table(table: ModelConfig, source: str) -> TrainedModel:
    shape, name = _shape_of_table(table)
    parameters = shape.parameters if shape else table.parameters
    if parameters is None:
        raise UsageError("say which model it is: preset, parameters, or layers, hidden and heads")
    sequence = table.sequence
    if sequence is None and table.preset is not None:
        sequence = preset_sequence(table.preset)
    batch = table.batch
    if batch is not None and sequence is None:
        raise UsageError("batch counts sequences: say how long one is with sequence")
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
            raise UsageError(f"preset says the whole shape: leave out {also}, or the preset")
        return preset(table.preset), table.preset.strip().lower()
    if not given:
        return None, f"{_short(table.parameters)} parameters" if table.parameters else ""
    shape = shape_from(given, params=table.parameters, is_gated=table.gated)
    return shape, f"{_short(shape.parameters)} parameters"


def _of_reference_run(job: RunFile) -> TrainedModel | None:
    """None where its numbers are none, or where blocks sleep in place of computing."""
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
    again: Recomputation = "full" if training.get("checkpoint_activations") is True else "none"
    return TrainedModel(
        name=f"{job.workload}, {_short(shape.parameters)} parameters",
        source="run.json",
        parameters=float(shape.parameters),
        active_parameters=float(shape.active_parameters),
        shape=shape,
        sequence=_number(values.get("sequence")),
        precision=_precision(training.get("precision")),
        recomputation=again,
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


def _precision(value: object) -> Precision:
    """``auto`` is bf16 on devices; on a CPU there is no peak to hold it against."""
    return cast("Precision", value) if value in get_args(Precision) else "bf16"


def _number(value: object) -> int | None:
    """A count from a file that anybody may have written; None for 0 and for what is no count."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return cast("int", value) if is_count else None


def _short(count: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:,.0f}"
