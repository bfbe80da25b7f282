"""The layout that a configuration file means on a cluster of a given size."""

from __future__ import annotations

from distprof.planning.job_file import JobFile
from distprof.planning.layout import LAYOUT_KEYS, Layout, parse_layout

__all__ = ["layout_of", "num_gpus_of"]


def num_gpus_of(file: JobFile) -> int | None:
    """Ranks that the file says or implies; None where it leaves that to the launcher."""
    said = file.number("gpus")
    batch, micro = file.number("batch"), file.number("micro-batch")
    if said is not None or batch is None or micro is None or file.kind != "DeepSpeed":
        return said
    steps = file.number("micro-batches")
    if steps is None or batch % (micro * steps):
        return None
    return batch // (micro * steps) * (file.number("tp") or 1)


def layout_of(file: JobFile, *, num_gpus: int, batch: int | None = None) -> tuple[Layout, int]:
    """The layout, and the sequences of a step.

    Args:
        file: As read.
        num_gpus: Of the cluster.
        batch: Instead of the file's; where neither says it, what micro-batches make.

    Raises:
        UsageError: If a value is none that layouts know.
    """
    values = {key: file.values[key] for key in LAYOUT_KEYS if key in file.values}
    others = 1
    for axis in ("tp", "pp", "cp"):
        others *= file.number(axis) or 1
    if file.kind == "torchtitan":
        values |= _torchtitan(file, max(1, num_gpus // others))
    values.setdefault("dp", max(1, num_gpus // others))
    sequences = batch or file.number("batch") or _sequences(file, int(values["dp"]))
    text = ",".join(f"{key}={value}" for key, value in values.items())
    return parse_layout(text, num_gpus=num_gpus, batch=sequences), sequences


def _torchtitan(file: JobFile, rest: int) -> dict[str, int | str]:
    """Replicas times shards; a mesh of one shard is DDP, of several replicas HSDP."""
    replicas = file.number("replicate") or 1
    shards = file.number("shard") or max(1, rest // replicas)
    divided = shards * (file.number("cp") or 1)
    mesh: dict[str, int | str] = {"dp": replicas * shards}
    if divided == 1:
        return {**mesh, "sharding": "ddp"}
    if replicas == 1:
        return {**mesh, "sharding": "fsdp"}
    return {**mesh, "sharding": "hsdp", "shards": divided}


def _sequences(file: JobFile, dp: int) -> int:
    local = file.number("local_batch")
    each = (file.number("micro-batch") or 1) * (file.number("micro-batches") or 1)
    return dp * (local or each)
