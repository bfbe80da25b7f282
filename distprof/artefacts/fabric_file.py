"""A fabric profile: the speed of collectives of each size on given machines.

``distprof bench`` writes a profile, and nccl-tests output can be converted to one. Sizes are
counted as in nccl-tests (formula sheet, "Collectives"): the full buffer for all-reduce, the
concatenated size for all-gather and reduce-scatter, one rank's whole send buffer for all-to-all,
the message size for other operations. ``distprof bench --compute`` adds what a device reaches
alone.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from distprof.artefacts.record import Record

FABRIC_FILE = "fabric.json"
FABRIC_SCHEMA = "distprof.fabric/1"
ONE_LINK = "One card sends to another: this is the speed of one link, not of a collective."
BOTH_WAYS = "Both directions are counted together."
SOCKETS = "NCCL uses TCP sockets between nodes"
EITHER = "The table fits all_gather and alltoall, which count bytes alike."
Tier = Literal["node", "across"]


class FabricPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One size of one collective."""

    bytes: int  # Size as nccl-tests counts it.
    time_ns: int  # Time of one operation: the mean over the iterations of the median round.
    low_ns: int | None = None  # Time in the fastest round; None if only one figure is known.
    high_ns: int | None = None  # Time in the slowest round; None if only one figure is known.
    num_rounds: int = 1  # Number of measurements.
    num_iterations: int | None = None  # Operations in each round, None when unknown.
    algbw_bytes_per_s: float  # ``bytes`` divided by the time.
    # ``algbw_bytes_per_s`` times the bus factor of the kind and the group.
    busbw_bytes_per_s: float


class FabricFit(msgspec.Struct, frozen=True, kw_only=True):
    """Latency and bandwidth fitted to a curve: time = steps · α + bus factor · bytes / bandwidth.

    Intervals are 95 % confidence intervals if the model holds. ``residual_ratio`` shows how well it
    fits.
    """

    alpha_ns: float  # Latency of one step of the algorithm.
    alpha_low_ns: float  # Lower end of its interval.
    alpha_high_ns: float  # Upper end.
    bandwidth_bytes_per_s: float  # 1 / β.
    bandwidth_low_bytes_per_s: float  # Lower end of its interval.
    bandwidth_high_bytes_per_s: float  # Upper end.
    num_steps: int  # Steps of the algorithm, each of which pays the latency.
    algorithm: str  # The algorithm assumed for ``num_steps``.
    # Size at which latency and transfer take the same time. Below it, the operation is
    # latency-bound.
    crossover_bytes: int
    residual_ratio: float  # Relative deviation from the fitted time, median over sizes.
    worst_ratio: float  # The largest relative deviation.
    worst_bytes: int  # Size of the largest deviation.


class FabricCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One collective in one group, measured over sizes."""

    # The operation, for example ``all_reduce``; ``unknown`` if a table does not say.
    kind: str
    group_size: int  # Ranks of the group; 0 when unknown.
    label: str = ""  # What a text calls this run, if it names it.
    num_nodes: int | None = None  # Nodes that the group spans, None when unknown.
    # ``node`` inside one node, ``across`` several nodes; None when unknown.
    tier: Tier | None = None
    # Whether input and output share memory (the second half of nccl-tests' table).
    in_place: bool = False
    dtype: str = ""  # Type of the elements.
    memory: str = ""  # ``GPU`` or ``host``: where perftest's messages are; empty for other tests.
    points: tuple[FabricPoint, ...]  # Measurements by size, ascending.
    fit: FabricFit | None = None  # The fit; None if ``refusal`` says why there is none.
    refusal: str = ""  # Why there is no fit, one sentence; empty if there is one.
    num_wrong: int = 0  # Measurements in which nccl-tests found wrong values.


class ComputeRate(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest matrix product of one type."""

    dtype: str  # ``bf16``, ``fp16``, ``fp8``, ``tf32`` or ``fp32``.
    flops: float  # FLOP per second.
    size: int  # Rows and columns of its square matrices.


class FabricFile(msgspec.Struct, frozen=True, kw_only=True):
    """``fabric.json``: measurements of ``distprof bench``, or converted from nccl-tests."""

    schema: str = FABRIC_SCHEMA  # ``distprof.fabric/1``.
    origin: str  # ``distprof bench``, ``nccl-tests`` or ``perftest``.
    source: str = ""  # The file it was read from; empty if distprof measured it.
    distprof_version: str = ""  # Version of the writer.
    # Time of the measurement, ns since the epoch; None when unknown.
    measured_ns: int | None = None
    device: str = ""  # Name of the accelerator, or ``cpu``.
    backend: str = ""  # ``nccl`` or ``gloo``.
    world_size: int | None = None  # Ranks of the job.
    hosts: tuple[str, ...] = ()  # Host names, in the order of ranks.
    num_copies: int = 1  # Tests that ran at a time, each by itself, and printed into one table.
    versions: dict[str, str] = {}  # Versions of torch, NCCL and other packages.
    curves: tuple[FabricCurve, ...]  # All measured curves.
    rates: tuple[ComputeRate, ...] = ()  # Products of ``distprof bench --compute``.
    # Bytes per second that it read and wrote in the memory of the device, None when not measured.
    memory_bytes_per_s: float | None = None
    notes: tuple[str, ...] = ()  # Omissions and anomalies, one sentence each.


class GpuCopies(Record, frozen=True, kw_only=True):
    """Measured copies from each GPU of a machine to each other one, or between host and GPUs."""

    is_both_ways: bool  # Whether two directions were measured at a time, and are counted together.
    is_direct: bool  # Whether GPUs had access to each other's memory.
    num_gpus: int  # GPUs.
    bytes_per_s: float  # Median over pairs, bytes per second.
    slowest_bytes_per_s: float  # The slowest pair, bytes per second.
    slowest: tuple[int, int]  # Its GPUs: row and column; the same one for copies with the host.
    host: str = ""  # "from" or "to", if each GPU copies from or to host memory.
