"""Finds and describes the parallel modules and optimizers of the process.

They are found among the objects that Python's garbage collector tracks, so it does not matter which
code created them, when, and which variables hold them. This changes no object and keeps none.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from distprof.artefacts.run_file import DdpSettings, FsdpSettings, OptimizerSettings

# Classes to find, by the module that must have been imported for them to exist.
_CLASSES = {
    "ddp": (("torch.nn.parallel.distributed", "DistributedDataParallel"),),
    "fsdp": (
        ("torch.distributed.fsdp._fully_shard._fully_shard", "FSDPModule"),
        ("torch.distributed._composable.fsdp.fully_shard", "FSDPModule"),
    ),
    "fsdp1": (("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),),
    "optimizers": (("torch.optim.optimizer", "Optimizer"),),
    "compiled": (("torch._dynamo.eval_frame", "OptimizedModule"),),
    "checkpointed": (
        ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "CheckpointWrapper"),
    ),
}
_FULL_SHARDING = ("FULL_SHARD", "HYBRID_SHARD")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchObjects:
    """Objects of each kind. Drop it soon: it keeps them alive."""

    ddp: list[Any] = field(default_factory=list)  # ``DistributedDataParallel`` modules.
    fsdp: list[Any] = field(default_factory=list)  # Modules that ``fully_shard`` was applied to.
    fsdp1: list[Any] = field(default_factory=list)  # ``FullyShardedDataParallel`` modules.
    # Optimizers, except the inner ones of a sharded optimizer.
    optimizers: list[Any] = field(default_factory=list)
    compiled: list[Any] = field(default_factory=list)  # Modules created by ``torch.compile``.
    # Modules wrapped for activation checkpointing.
    checkpointed: list[Any] = field(default_factory=list)


def find() -> TorchObjects:
    """Find all of them. Takes about 50 ms of CPU time for a million objects."""
    kinds: dict[type, set[str]] = {}  # a checkpointed module may be a sharded one too
    for name, places in _CLASSES.items():
        for module, kind in places:
            for one in _with_subclasses(getattr(sys.modules.get(module), kind, None)):
                kinds.setdefault(one, set()).add(name)
    found = TorchObjects()
    for thing in gc.get_objects():
        # isinstance would query each object, and some of them would import modules to answer
        for name in kinds.get(type(thing), ()):
            getattr(found, name).append(thing)
    inner = {id(getattr(optimizer, "optim", None)) for optimizer in found.optimizers}
    found.optimizers[:] = [thing for thing in found.optimizers if id(thing) not in inner]
    return found


def _with_subclasses(kind: type | None) -> Iterable[type]:
    """``kind`` and all classes derived from it."""
    found: dict[type, None] = {}
    waiting = [] if kind is None else [kind]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found[current] = None
            waiting += type.__subclasses__(current)
    return found


def _first(read: Callable[[], Any], otherwise: Any = None) -> Any:
    """The result of ``read``; ``otherwise`` if this torch does not have it there."""
    try:
        return read()
    except (AttributeError, KeyError, IndexError, RuntimeError, TypeError):
        return otherwise


# DistributedDataParallel --------------------------------------------------------------------------


def ddp_settings(module: Any) -> DdpSettings:
    """Settings of a ``DistributedDataParallel`` module."""
    parameters = list(module.module.parameters())
    hooks = _first(lambda: [hook for hook, _ in module._comm_hooks], [])
    return DdpSettings(
        module=type(module.module).__name__,
        group_size=_first(lambda: int(module.process_group.size())),
        find_unused_parameters=bool(module.find_unused_parameters),
        static_graph=bool(getattr(module, "static_graph", False)),
        gradient_as_bucket_view=bool(module.gradient_as_bucket_view),
        bucket_cap_bytes=_first(lambda: int(module.bucket_bytes_cap)),
        comm_hook=", ".join(getattr(hook, "__name__", type(hook).__name__) for hook in hooks),
        num_parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=_bytes(parameters),
        dtypes=tuple(sorted({_dtype(parameter.dtype) for parameter in parameters})),
    )


def unused_bytes(module: Any) -> int | None:
    """Bytes that torch's logger counted as unused in the last iteration that it sampled."""
    logged = _first(lambda: module._get_ddp_logging_data(), {})
    size = logged.get("unused_parameter_size")
    return size if isinstance(size, int) and logged.get("iteration", 0) > 0 else None


# Fully sharded ------------------------------------------------------------------------------------


def fsdp_settings(found: TorchObjects) -> tuple[FsdpSettings, ...]:
    """Settings of all sharded modules, one record for each of the two ways to shard."""
    both = (_fully_sharded(found.fsdp), _fully_sharded_1(found.fsdp1))
    return tuple(settings for settings in both if settings is not None)


def _fully_sharded(modules: list[Any]) -> FsdpSettings | None:
    found = (_first(module._get_fsdp_state) for module in modules)
    states = list(
        {id(state): state for state in found if state}.values()
    )  # a list shares one state
    units = [(state, group) for state in states for group in _groups(state)]
    if not units:
        return None
    inner = [group for state, group in units if not state._is_root] or [units[0][1]]
    one = inner[0]
    parameters = [one.sharded_param for _, group in units for one in group.fsdp_params]
    return FsdpSettings(
        api="fully_shard",
        num_units=len(units),
        group_size=_first(lambda: int(one.mesh_info.shard_mesh_size)),
        num_parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=_bytes(parameters),
        reshard_after_forward=_first(
            lambda: any(group.post_forward_mesh_info is not None for group in inner)
        ),
        param_dtype=_first(lambda: _dtype(one.mp_policy.param_dtype), ""),
        reduce_dtype=_first(lambda: _dtype(one.mp_policy.reduce_dtype), ""),
        num_prefetching=_first(
            lambda: sum(bool(state._states_to_forward_prefetch) for state in states), 0
        ),
        is_offloaded=_first(lambda: any(one.offload_to_cpu for one in one.fsdp_params), False),
    )


def _groups(state: Any) -> list[Any]:
    """Parameter groups of one module; older versions of torch have at most one."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    one = getattr(state, "_fsdp_param_group", None)
    return [] if one is None else [one]


def _fully_sharded_1(modules: list[Any]) -> FsdpSettings | None:
    units = [module for module in modules if getattr(module, "_handle", None) is not None]
    if not units:
        return None
    one = units[0]
    flat = [module._handle.flat_param for module in units]
    sizes = [_whole_size(parameter) for parameter in flat]
    return FsdpSettings(
        api="FullyShardedDataParallel",
        num_units=len(units),
        group_size=_first(lambda: int(one.process_group.size())),
        num_parameters=sum(sizes),
        parameter_bytes=sum(
            size * parameter.element_size() for size, parameter in zip(sizes, flat, strict=True)
        ),
        reshard_after_forward=_first(lambda: one.sharding_strategy.name in _FULL_SHARDING),
        param_dtype=_first(lambda: _dtype(one.mixed_precision.param_dtype), ""),
        reduce_dtype=_first(lambda: _dtype(one.mixed_precision.reduce_dtype), ""),
        num_prefetching=len(units) if _first(lambda: one.forward_prefetch, False) else 0,
        is_offloaded=bool(_first(lambda: one.cpu_offload.offload_params, False)),
    )


def _whole_size(flat: Any) -> int:
    """Elements of a flat parameter before sharding, 0 if this torch does not report it."""
    size: int = _first(lambda: int(flat._unpadded_unsharded_size.numel()), 0)
    return size


# Optimizers ---------------------------------------------------------------------------------------


def optimizer_settings(optimizer: Any) -> OptimizerSettings:
    """Settings of an optimizer."""
    groups = optimizer.param_groups
    first = groups[0] if groups else {}
    return OptimizerSettings(
        name=type(optimizer).__name__,
        is_sharded=any(
            kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__
        ),
        num_parameters=sum(parameter.numel() for group in groups for parameter in group["params"]),
        fused=first.get("fused"),
        foreach=first.get("foreach"),
    )


def _bytes(parameters: Iterable[Any]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _dtype(dtype: Any) -> str:
    return "" if dtype is None else str(dtype).removeprefix("torch.")
