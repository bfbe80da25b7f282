"""The job's configuration, read from its live objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from distprof.escape import few_ranks, shorten
from distprof.sections.settings import (
    DdpSetup,
    FsdpSetup,
    HostSetup,
    LoaderSetup,
    OptimizerSetup,
    SettingsResult,
)
from distprof.sections.table import Column, TableView, counted, first_rows
from distprof.units import fold_ranks, format_bytes, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

_MAX_ROWS = 12
_MAX_TEXT = 240
_MAX_NAME = 60

_Row = tuple[str, str, str]


def settings_table(report: Report, *, show_all: bool) -> TableView | None:
    """Configuration by object, with ranks of the same configuration in one row."""
    result = report.settings
    if not result.num_ranks:
        return None
    rows = list(_rows(result))
    shown, more = first_rows(rows, _MAX_ROWS, show_all=show_all, note="{} with --all.")
    return TableView(
        title="Configuration",
        caption=f"read from live objects, {_ranks(result)}",
        columns=(
            Column("object", left=True),
            Column("configuration", left=True, wrap=True),
            Column("ranks", left=True),
        ),
        rows=tuple(shown),
        notes=(*result.unavailable, *more),
    )


def _ranks(result: SettingsResult) -> str:
    """The ranks whose objects were read; their number if no object lists them."""
    kinds = (result.ddp, result.fsdp, result.optimizers, result.loaders, result.hosts)
    ranks = {rank for objects in kinds for one in objects for rank in one.ranks}
    if not ranks:
        return counted(result.num_ranks, "rank")
    return few_ranks(ranks, 40)


def _rows(result: SettingsResult) -> Iterator[_Row]:
    kinds: tuple[tuple[str, Sequence[Any], str, Callable[[Any], list[str]]], ...] = (
        ("DDP", result.ddp, "module", _of_ddp),
        ("FSDP", result.fsdp, "api", _of_fsdp),
        ("optimizer", result.optimizers, "name", _of_optimizer),
        ("data loader", result.loaders, "dataset", _of_loader),
        ("host", result.hosts, "host", _of_host),
    )
    for kind, objects, name, facts_of in kinds:
        for one in objects:
            text = f"{shorten(getattr(one, name), _MAX_NAME)}: {_joined(facts_of(one))}"
            yield kind, text, fold_ranks(one.ranks)
    others = _joined(_others(result))
    if others:
        yield "torch", others, ""


def _joined(parts: Sequence[str]) -> str:
    return shorten(", ".join(part for part in parts if part), _MAX_TEXT)


def _of_ddp(one: DdpSetup) -> list[str]:
    return [
        _size(one.num_parameters, one.parameter_bytes),
        "/".join(one.dtypes),
        "" if one.bucket_cap_bytes is None else f"buckets of {format_bytes(one.bucket_cap_bytes)}",
        one.comm_hook,
        "find_unused_parameters" * one.find_unused_parameters,
        "static_graph" * one.static_graph,
        "gradient_as_bucket_view" * one.gradient_as_bucket_view,
    ]


def _of_fsdp(one: FsdpSetup) -> list[str]:
    return [
        counted(one.num_units, "unit"),
        _size(one.num_parameters, one.parameter_bytes),
        "" if one.group_size is None else f"over {one.group_size:,} ranks",
        ""
        if one.reshard_after_forward is None
        else f"reshards: {'yes' if one.reshard_after_forward else 'no'}",
        one.param_dtype and f"computes in {one.param_dtype}",
        one.reduce_dtype and f"reduces in {one.reduce_dtype}",
        f"{one.num_prefetching:,} prefetch" if one.num_prefetching else "",
        "offloaded" * one.is_offloaded,
    ]


def _of_optimizer(one: OptimizerSetup) -> list[str]:
    return [
        f"{one.num_parameters:,} parameters",
        "sharded" * one.is_sharded,
        "fused" if one.fused else "",
        "foreach" if one.foreach else "",
    ]


def _of_loader(one: LoaderSetup) -> list[str]:
    return [
        counted(one.num_workers, "worker"),
        "persistent" * one.persistent_workers,
        "" if one.prefetch_factor is None else f"{one.prefetch_factor:,} ahead each",
        "pinned" if one.pin_memory else "not pinned",
        "" if one.batch_size is None else f"batch of {one.batch_size:,}",
        "IterableDataset" if one.is_iterable else one.sampler,
        f"{one.num_epochs:,} epochs begun" if one.num_epochs > 1 else "",
    ]


def _of_host(one: HostSetup) -> list[str]:
    return [
        counted(one.num_local_ranks, "rank"),
        "" if one.num_threads is None else f"{counted(one.num_threads, 'thread')} each",
        counted(one.num_workers, "loader worker") if one.num_workers else "",
        "" if one.num_cpus is None else counted(one.num_cpus, "CPU"),
        "" if one.cpu_busy_ratio is None else f"{format_ratio(one.cpu_busy_ratio)} busy",
    ]


def _others(result: SettingsResult) -> list[str]:
    return [
        "TF32" if result.allow_tf32 else "",
        "cudnn.benchmark" if result.cudnn_benchmark else "",
        "deterministic" if result.is_deterministic else "",
        counted(result.num_compiled, "compiled module") if result.num_compiled else "",
        counted(result.num_checkpointed, "checkpointed module") if result.num_checkpointed else "",
    ]


def _size(num_parameters: int, num_bytes: int) -> str:
    return f"{num_parameters:,} parameters ({format_bytes(num_bytes)})"
