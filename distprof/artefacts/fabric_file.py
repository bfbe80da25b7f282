"""A fabric profile: how fast collectives of each size are on given machines.

``distprof bench`` writes one, and the output of nccl-tests is read as the same. Sizes are counted
as nccl-tests counts them (formula sheet, "Collectives"): the full buffer for all-reduce, the
concatenated size for all-gather and reduce-scatter, one rank's whole send buffer for all-to-all,
the message for the others.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "FABRIC_FILE",
    "FABRIC_SCHEMA",
    "FabricCurve",
    "FabricFile",
    "FabricFit",
    "FabricPoint",
    "Tier",
]

FABRIC_FILE = "fabric.json"
FABRIC_SCHEMA = "distprof.fabric/1"

Tier = Literal["node", "across"]


class FabricPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One size of one collective.

    Args:
        bytes: Size as nccl-tests counts it.
        time_ns: Of one operation: the median round's mean over its iterations.
        low_ns: The quickest round; None where only one figure is known.
        high_ns: The slowest round; None where only one figure is known.
        num_rounds: How often it was measured.
        num_iterations: Operations in each round, None when unknown.
        algbw_bytes_per_s: ``bytes`` over the time.
        busbw_bytes_per_s: Times the bus factor of the kind and the group.
    """

    bytes: int
    time_ns: int
    low_ns: int | None = None
    high_ns: int | None = None
    num_rounds: int = 1
    num_iterations: int | None = None
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float


class FabricFit(msgspec.Struct, frozen=True, kw_only=True):
    """Latency and bandwidth fitted to a curve: time = steps · α + bus factor · bytes / bandwidth.

    Intervals hold the value in 95 of 100 cases if the model holds; ``residual_ratio`` says how well
    it does.

    Args:
        alpha_ns: Latency of one step of the algorithm.
        alpha_low_ns: Lower end of its interval.
        alpha_high_ns: Upper end.
        bandwidth_bytes_per_s: 1 / β.
        bandwidth_low_bytes_per_s: Lower end of its interval.
        bandwidth_high_bytes_per_s: Upper end.
        num_steps: Steps that the algorithm pays the latency for.
        algorithm: The algorithm assumed for steps.
        crossover_bytes: Size at which latency and transfer take equally long; below it the
            operation is bound by latency.
        residual_ratio: Median over sizes of how far the time is from the fitted one.
        worst_ratio: The largest of these.
        worst_bytes: At which size.
    """

    alpha_ns: float
    alpha_low_ns: float
    alpha_high_ns: float
    bandwidth_bytes_per_s: float
    bandwidth_low_bytes_per_s: float
    bandwidth_high_bytes_per_s: float
    num_steps: int
    algorithm: str
    crossover_bytes: int
    residual_ratio: float
    worst_ratio: float
    worst_bytes: int


class FabricCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One collective in one group, over sizes.

    Args:
        kind: The operation, for example ``all_reduce``.
        group_size: Ranks of the group.
        num_nodes: Nodes that the group spans, None when unknown.
        tier: ``node`` inside one node, ``across`` several; None when unknown.
        in_place: Whether it is the second half of nccl-tests' table, in which input and output
            share memory.
        dtype: Of the elements.
        points: By size, ascending.
        fit: None where ``refusal`` says why there is none.
        refusal: One sentence; empty with a fit.
    """

    kind: str
    group_size: int
    num_nodes: int | None = None
    tier: Tier | None = None
    in_place: bool = False
    dtype: str = ""
    points: tuple[FabricPoint, ...]
    fit: FabricFit | None = None
    refusal: str = ""


class FabricFile(msgspec.Struct, frozen=True, kw_only=True):
    """``fabric.json``: what ``distprof bench`` measured, or a reader of nccl-tests found.

    Args:
        schema: ``distprof.fabric/1``.
        origin: ``distprof bench`` or ``nccl-tests``.
        source: The file it was read from; empty where it was measured.
        distprof_version: Of the writer.
        measured_ns: When, ns since the epoch; None when unknown.
        device: Name of the accelerator, or ``cpu``.
        backend: ``nccl`` or ``gloo``.
        world_size: Ranks of the job.
        hosts: Host names, in the order of ranks.
        versions: Of torch, NCCL and so on.
        curves: Everything measured.
        notes: One sentence each: what was left out, what is odd.
    """

    schema: str = FABRIC_SCHEMA
    origin: str
    source: str = ""
    distprof_version: str = ""
    measured_ns: int | None = None
    device: str = ""
    backend: str = ""
    world_size: int | None = None
    hosts: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    curves: tuple[FabricCurve, ...]
    notes: tuple[str, ...] = ()
