"""A fabric profile: the speed of collectives of each size on given machines.

``distprof bench`` writes a profile, and nccl-tests output can be converted to one. Sizes are
counted as in nccl-tests (formula sheet, "Collectives"): the full buffer for all-reduce, the
concatenated size for all-gather and reduce-scatter, one rank's whole send buffer for all-to-all,
the message size for other operations.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FABRIC_FILE = "fabric.json"
FABRIC_SCHEMA = "distprof.fabric/1"

Tier = Literal["node", "across"]


class FabricPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One size of one collective.

    Args:
        bytes: Size as nccl-tests counts it.
        time_ns: Time of one operation: the mean over the iterations of the median round.
        low_ns: Time in the fastest round; None if only one figure is known.
        high_ns: Time in the slowest round; None if only one figure is known.
        num_rounds: Number of measurements.
        num_iterations: Operations in each round, None when unknown.
        algbw_bytes_per_s: ``bytes`` divided by the time.
        busbw_bytes_per_s: ``algbw_bytes_per_s`` times the bus factor of the kind and the group.
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

    Intervals are 95 % confidence intervals if the model holds. ``residual_ratio`` shows how well it
    fits.

    Args:
        alpha_ns: Latency of one step of the algorithm.
        alpha_low_ns: Lower end of its interval.
        alpha_high_ns: Upper end.
        bandwidth_bytes_per_s: 1 / β.
        bandwidth_low_bytes_per_s: Lower end of its interval.
        bandwidth_high_bytes_per_s: Upper end.
        num_steps: Steps of the algorithm, each of which pays the latency.
        algorithm: The algorithm assumed for ``num_steps``.
        crossover_bytes: Size at which latency and transfer take the same time. Below it, the
            operation is latency-bound.
        residual_ratio: Relative deviation from the fitted time, median over sizes.
        worst_ratio: The largest relative deviation.
        worst_bytes: Size of the largest deviation.
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
    """One collective in one group, measured over sizes.

    Args:
        kind: The operation, for example ``all_reduce``.
        group_size: Ranks of the group.
        num_nodes: Nodes that the group spans, None when unknown.
        tier: ``node`` inside one node, ``across`` several nodes; None when unknown.
        in_place: Whether input and output share memory (the second half of nccl-tests' table).
        dtype: Type of the elements.
        points: Measurements by size, ascending.
        fit: The fit; None if ``refusal`` says why there is none.
        refusal: Why there is no fit, one sentence; empty if there is one.
        num_wrong: Measurements in which nccl-tests found wrong values: the fabric is broken.
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
    num_wrong: int = 0


class FabricFile(msgspec.Struct, frozen=True, kw_only=True):
    """``fabric.json``: measurements of ``distprof bench``, or converted from nccl-tests.

    Args:
        schema: ``distprof.fabric/1``.
        origin: ``distprof bench`` or ``nccl-tests``.
        source: The file it was read from; empty if distprof measured it.
        distprof_version: Version of the writer.
        measured_ns: Time of the measurement, ns since the epoch; None when unknown.
        device: Name of the accelerator, or ``cpu``.
        backend: ``nccl`` or ``gloo``.
        world_size: Ranks of the job.
        hosts: Host names, in the order of ranks.
        versions: Versions of torch, NCCL and other packages.
        curves: All measured curves.
        notes: Omissions and anomalies, one sentence each.
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
