"""How much of the hardware a step uses: FLOP relative to the peak, memory relative to its size.

MFU counts the FLOP that the model needs, and HFU also recomputation. Both are relative to the dense
peak of all devices (formula sheet, "Computation and communication"). FLOP follow from the shape of
the model, so a job that computes more than necessary has a low MFU. Without a model, they are
counted from the sizes of operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from distprof.costs.transformer import (
    TrainedModel,
    activation_bytes_per_token,
    bound_with_overlap,
    flop_utilisation,
    model_state_bytes,
    regime,
    ridge,
)
from distprof.hardware import Gpu, Sheet, recognise_gpu
from distprof.run.run import Run
from distprof.run.topology import coordinates_of
from distprof.sections.collectives import CollectivesResult
from distprof.sections.computation import LEAST_COUNTED, ComputationResult, Saves
from distprof.sections.efficiency import CPU, NO_MODEL, DeviceMemory, EfficiencyResult
from distprof.sections.memory import MemoryResult
from distprof.sections.sharding import ShardingResult
from distprof.sections.step_log import StepLogResult
from distprof.sections.time import StepTimeResult, WaterfallResult
from distprof.terms import DATA_AXES, MeshAxis
from distprof.units import NS_PER_S


def device_memory(
    run: Run, memory: MemoryResult, known: Mapping[int, Gpu]
) -> Iterator[DeviceMemory]:
    """Memory of each rank that has counters of a device; ranks on a CPU have none."""
    places = coordinates_of(run.job) if run.job else {}
    recorded = {rank.rank: rank.device.memory_bytes for rank in run.ranks}
    for rank in memory.ranks:
        if rank.peak_allocated_bytes is None and rank.reserved_bytes is None:
            continue
        gpu = known.get(rank.rank)
        size = recorded.get(rank.rank) or (round(gpu.memory_bytes) if gpu else None)
        size = size if size is not None and size > 0 else None
        yield DeviceMemory(
            rank=rank.rank,
            stage=places.get(rank.rank, {}).get(MeshAxis.PP, 0),
            capacity_bytes=size,
            allocated_bytes=rank.peak_allocated_bytes,
            reserved_bytes=rank.reserved_bytes,
            allocated_ratio=_ratio(rank.peak_allocated_bytes, size),
            reserved_ratio=_ratio(rank.reserved_bytes, size),
            num_retries=rank.num_steady_retries,
            retry_ns_per_step=rank.retry_ns_per_step,
        )


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


_GATHERED_AGAIN = 1.5

_SHARDED = 3


def analyze_efficiency(
    run: Run,
    model: TrainedModel | None,
    sheet: Sheet,
    *,
    step_log: StepLogResult,
    step_time: StepTimeResult,
    memory: MemoryResult,
    waterfall: WaterfallResult,
    collectives: CollectivesResult,
    sharding: ShardingResult,
    computation: ComputationResult,
) -> EfficiencyResult:
    """Compare a run's FLOP and memory with the limits of its devices.

    FLOP are those of the model or, if it is unknown, those that the sizes of operators show.
    """
    traced = {rank.device.name for rank in run.ranks if rank.device.name}
    noted = {entry.device for entry in run.job.ranks if entry.device} if run.job else set()
    names = traced or noted
    device = names.pop() if len(names) == 1 else ""
    gpu = recognise_gpu(sheet, device)
    named = _known_devices(run, sheet)
    counts = {rank.num_micro_batches for rank in step_log.ranks}
    result = EfficiencyResult(
        device=device,
        sheet_device=gpu.title if gpu else "",
        backend=", ".join(sorted({rank.backend for rank in run.ranks if rank.backend})),
        num_micro_batches=counts.pop() if len(counts) == 1 else None,
        is_data_parallel_only=_is_data_parallel_only(run),
        memory=tuple(device_memory(run, memory, named)),
        unavailable=(NO_MODEL,) if run.ranks or run.job else (),
    )
    if model is None:
        result = _with_counted_flop(result, run, computation, step_log, step_time)
        precision = computation.precision
    else:
        model, precision = _as_sharded(model, sharding), model.precision
        result = _with_flop(result, model, run, step_log, step_time)
        result = _with_memory(result, model, step_log)
    if result.flops_per_device is None:
        return result
    return _with_peak(result, precision, gpu, waterfall, collectives)


def _with_counted_flop(
    result: EfficiencyResult,
    run: Run,
    computation: ComputationResult,
    step_log: StepLogResult,
    step_time: StepTimeResult,
) -> EfficiencyResult:
    """FLOP per step from the sizes of operators, if nearly all products have them."""
    step_ns, where = _step(step_log, step_time)
    devices = len(step_log.ranks) or _world_size(run)
    samples = computation.num_samples
    counted = computation.counted_ratio
    if not (step_ns and devices and computation.flop and counted and counted >= LEAST_COUNTED):
        return result
    computed = computation.flop / samples * devices
    kept = computation.saving(Saves.NO_RECOMPUTATION)
    useful = computed - (computation.recomputed_flop or 0) / samples * devices
    return replace(
        result,
        flop_per_step=useful,
        computed_flop_per_step=computed,
        step_ns=step_ns,
        num_devices=devices,
        flops_per_device=useful * NS_PER_S / step_ns / devices,
        recomputation="full" if computation.recomputed_flop else "none",
        recomputed_bytes=None if kept is None else kept.num_bytes,
        assumptions=(
            "FLOP are counted from the sizes of matrix products, attention and convolutions; of "
            "causal attention, the whole counts",
            f"the time is the median of {where}",
        ),
        unavailable=(),
    )


def _step(step_log: StepLogResult, step_time: StepTimeResult) -> tuple[int | None, str]:
    """Duration of a step, and the steps that it is the median of."""
    if step_log.step_ns is not None:
        return step_log.step_ns, "steps without a profiler"
    return step_time.median_ns, "traced steps"


def _world_size(run: Run) -> int:
    return (run.job.world_size if run.job else None) or run.topology.world_size or 0


def _as_sharded(model: TrainedModel, sharding: ShardingResult) -> TrainedModel:
    """Without a configured ZeRO stage, weights gathered again for backward count as sharded."""
    axes = [axis for axis in sharding.axes if (axis.gather_passes or 0.0) >= _GATHERED_AGAIN]
    if model.zero_stage is not None or len(axes) != 1 or axes[0].group_size is None:
        return model
    return replace(model, zero_stage=_SHARDED, shards=axes[0].group_size)


def _assumptions(model: TrainedModel) -> list[str]:
    texts = ["6 FLOP per token and parameter that multiplies it; optimizer and norms do not count"]
    if model.shape is None:
        texts.append("attention is left out and the embedding included: their sizes are unknown")
    elif model.sequence is None:
        texts.append("attention is left out: the sequence length is unknown")
    else:
        texts.append(f"attention is causal over {model.sequence:,} tokens")
    if model.recomputation != "none":
        texts.append(f"{model.recomputation} recomputation, according to the configuration")
    if model.zero_stage == _SHARDED and model.shards:
        texts.append(
            f"weights, gradients and optimizer state are divided among {model.shards} ranks"
        )
    return texts


def _with_flop(
    result: EfficiencyResult,
    model: TrainedModel,
    run: Run,
    step_log: StepLogResult,
    step_time: StepTimeResult,
) -> EfficiencyResult:
    """FLOP per step and per second; ``unavailable`` says which of their inputs is missing."""
    step_ns, where = _step(step_log, step_time)
    tokens, devices = step_log.tokens_per_step, len(step_log.ranks)
    if tokens is None:
        tokens, devices = model.tokens_per_step, _world_size(run)
    result = replace(
        result,
        model=model.name,
        model_source=model.source,
        parameters=round(model.parameters),
        flop_per_token=model.flop_per_token,
        recomputation=model.recomputation,
        zero_stage=model.zero_stage,
        tokens_per_step=tokens,
        step_ns=step_ns,
        assumptions=tuple(_assumptions(model)),
        unavailable=_missing(tokens, step_ns, devices),
    )
    if tokens is None or not step_ns or not devices:
        return result
    per_s = NS_PER_S / step_ns / devices
    return replace(
        result,
        flop_per_step=tokens * model.flop_per_token,
        computed_flop_per_step=tokens * model.computed_flop_per_token,
        num_devices=devices,
        tokens_per_s_per_device=tokens * per_s,
        flops_per_device=tokens * model.flop_per_token * per_s,
        assumptions=(*result.assumptions, f"the time is the median of {where}"),
    )


def _missing(tokens: int | None, step_ns: int | None, devices: int) -> tuple[str, ...]:
    if tokens is None:
        return (
            "no log counts the tokens of a step: set batch (sequences per step, all ranks"
            " together) and sequence under [model] in distprof.toml",
        )
    if not step_ns:
        return ("neither a step log nor step marks show the length of a step",)
    return () if devices else ("the number of ranks is unknown",)


def _with_peak(
    result: EfficiencyResult,
    precision: str,
    gpu: Gpu | None,
    waterfall: WaterfallResult,
    collectives: CollectivesResult,
) -> EfficiencyResult:
    """MFU, HFU and the roofline, or the reason why there is no peak to compare with."""
    peak, why = _peak(result.device, precision, gpu)
    if peak is None or result.flop_per_step is None or result.computed_flop_per_step is None:
        return replace(result, unavailable=(*result.unavailable, why))
    step_s, devices = (result.step_ns or 0) / NS_PER_S, result.num_devices or 0
    hfu = flop_utilisation(result.computed_flop_per_step, step_s, devices, peak)
    if hfu > 1:
        why = (
            f"the step would need {hfu:.3g} times the peak of its GPUs: the configured model, "
            "batch or precision does not match this job"
        )
        return replace(result, unavailable=(*result.unavailable, why))
    computed = result.computed_flop_per_step / devices
    while_computing = _while_computing(computed, peak, waterfall)
    result = replace(
        result,
        precision=precision,
        peak_flops=peak,
        mfu_ratio=flop_utilisation(result.flop_per_step, step_s, devices, peak),
        hfu_ratio=hfu,
        computing_ratio=while_computing if while_computing and while_computing <= 1 else None,
        assumptions=(
            *result.assumptions,
            f"matrix products are in {precision}, and the peak is its dense peak",
        ),
    )
    # add the roofline, from classes with bytes and times; messages only have waiting times
    timed = [
        (record.sent_bytes_per_step, record.transfer_ns_per_step)
        for record in collectives.classes
        if not record.is_message
    ]
    known = [(sent, ns) for sent, ns in timed if sent and ns]
    if not known or len(known) < len(timed):
        return result
    sent = sum(sent for sent, _ in known)
    bend = ridge(peak, sent * NS_PER_S / sum(ns for _, ns in known))
    return replace(
        result,
        flop_per_byte=computed / sent,
        ridge_flop_per_byte=bend,
        regime=regime(computed / sent, bend),
        bound_ratio=bound_with_overlap(computed / sent, bend),
    )


def _peak(device: str, precision: str, gpu: Gpu | None) -> tuple[float | None, str]:
    if device == CPU:
        return None, "MFU needs the peak of an accelerator, but these ranks compute on a CPU"
    if gpu is None:
        name = device or "the GPU, which the recording does not name,"
        return None, (
            f"{name} is not on the hardware sheet, so its peak is unknown: add it under"
            ' [hardware.gpus."NAME"] in distprof.toml, where NAME is part of its name'
        )
    if precision == "fp32":
        return None, "the hardware sheet has no peak for fp32 without tensor cores"
    if precision == "tf32":
        return gpu.bf16_flops / 2, ""
    if precision == "fp8":
        return gpu.fp8_flops, f"{gpu.title} has no fp8 on the hardware sheet"
    if precision in ("bf16", "fp16"):
        return gpu.bf16_flops, ""
    return None, f"the hardware sheet has no peak for {precision}"


def _while_computing(computed: float, peak: float, waterfall: WaterfallResult) -> float | None:
    total, samples = waterfall.all, waterfall.num_ranks * waterfall.num_steps
    if total is None or not samples or not total.computation_ns:
        return None
    return computed / (peak * total.computation_ns / samples / NS_PER_S)


def _with_memory(
    result: EfficiencyResult, model: TrainedModel, step_log: StepLogResult
) -> EfficiencyResult:
    """Add what sharding and recomputation save, modelled if all axes are data-parallel."""
    used = [rank.allocated_bytes for rank in result.memory if rank.allocated_bytes is not None]
    if not used or result.is_data_parallel_only is False:
        return result
    unsharded = None
    if model.zero_stage and model.shards:
        whole = model_state_bytes(model.parameters).total
        here = model_state_bytes(
            model.parameters, zero_stage=model.zero_stage, shards=model.shards
        ).total
        unsharded = round(max(used) + whole - here)
    return replace(
        result,
        unsharded_bytes=unsharded,
        recomputed_bytes=_recomputed_bytes(result, model, step_log),
    )


def _recomputed_bytes(
    result: EfficiencyResult, model: TrainedModel, step_log: StepLogResult
) -> int | None:
    """Activations of one micro-batch, without those of the attention scores."""
    even = (result.tokens_per_step or 0) / (result.num_devices or 1)  # if ranks count no tokens
    counts = [
        (rank.tokens_per_step or even) / rank.num_micro_batches
        for rank in step_log.ranks
        if rank.num_micro_batches
    ]
    tokens = max(counts, default=0.0)
    if model.recomputation != "full" or model.shape is None or not tokens:
        return None
    kept = activation_bytes_per_token(
        model.shape, model.sequence or 0, recomputation="selective"
    ) - activation_bytes_per_token(model.shape, model.sequence or 0, recomputation="full")
    return round(tokens * kept * model.shape.layers)


def _known_devices(run: Run, sheet: Sheet) -> Mapping[int, Gpu]:
    """Rank to the entry of its device on the hardware sheet."""
    names = {entry.rank: entry.device for entry in run.job.ranks} if run.job else {}
    names |= {rank.rank: rank.device.name for rank in run.ranks if rank.device.name}
    by_name = {name: recognise_gpu(sheet, name) for name in set(names.values())}
    return {rank: gpu for rank, name in names.items() if (gpu := by_name[name]) is not None}


def _is_data_parallel_only(run: Run) -> bool | None:
    """According to the mesh in run.json, else to the axes of the process groups."""
    if run.job is not None and run.job.mesh:
        return all(axis in DATA_AXES for axis, size in run.job.mesh.items() if size > 1)
    axes = {group.axis for group in run.topology.groups if group.axis is not None}
    return axes <= {*DATA_AXES} if axes else None
