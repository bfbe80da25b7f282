"""How fast the GPU of a run computes and moves memory: as measured, else as the sheet has it."""

from __future__ import annotations

import msgspec

from distprof.artefacts.fabric_file import FabricFile
from distprof.hardware import Sheet, recognise_gpu
from distprof.run.run import Run

_MOST_RATIO = 1.05
"""Share of a measured limit up to which an operator reached it: other sizes are faster."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What operators are compared with; empty if the GPU is unknown."""

    peaks: dict[str, float] = {}  # FLOP per second by type.
    memory: float | None = None  # Bytes per second.
    is_measured: bool = False  # Whether ``distprof bench --compute`` measured them.
    unavailable: tuple[str, ...] = ()  # Why a measurement is not used.

    def judge(
        self, kind: str, flop: float | None, moved: float | None, seconds: float
    ) -> tuple[str, float | None]:
        """What limits an operator, and its time at that limit as a share of the one it took.

        Empty and None if that is unknown: caches may be faster than memory, and damaged sizes too.
        """
        limits = {}
        if self.memory is not None and moved is not None:
            limits["memory"] = moved / self.memory
        peak = self.peaks.get(kind)
        if peak is not None and flop is not None:
            limits["computation"] = flop / peak
        if not limits or (flop is not None and "computation" not in limits):
            return "", None
        bound = max(limits, key=lambda one: limits[one])
        ratio = limits[bound] / seconds
        most = _MOST_RATIO if self.is_measured else 1
        return (bound, min(ratio, 1.0)) if ratio <= most else ("", None)


def limits_of(run: Run, sheet: Sheet, profile: FabricFile | None) -> Limits:
    """The limits of the GPU that all ranks have.

    A product in fp32 has one in the sheet only if it runs on tensor cores.
    """
    names = {rank.device.name for rank in run.ranks}
    name = names.pop() if len(names) == 1 else ""
    unused: tuple[str, ...] = ()
    if profile is not None and (profile.rates or profile.memory_bytes_per_s):
        if profile.device == name:
            return Limits(
                peaks={rate.dtype: rate.flops for rate in profile.rates},
                memory=profile.memory_bytes_per_s,
                is_measured=True,
            )
        ran = name or "several kinds of GPUs"
        unused = (f"the measured speed is not used: it is that of {profile.device}, not of {ran}",)
    gpu = recognise_gpu(sheet, name) if name else None
    if gpu is None:
        return Limits(unavailable=unused)
    peaks = {"bf16": gpu.bf16_flops, "fp16": gpu.bf16_flops, "tf32": gpu.bf16_flops / 2}
    fp8 = {} if gpu.fp8_flops is None else {"fp8": gpu.fp8_flops}
    return Limits(peaks={**peaks, **fp8}, memory=gpu.memory_bandwidth, unavailable=unused)
