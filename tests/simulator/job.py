"""What a simulated job is made of: operations of a step, faults, and the job itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distprof.terms import CollectiveKind

if TYPE_CHECKING:
    from tests.simulator.recording import Recording

MS = 1_000_000
US = 1_000


@dataclass(frozen=True, kw_only=True)
class Input:
    """The host waits for the data loader."""

    ns: int = 200 * US


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Computation kernels launched one after another; ``ns`` is their sum.

    With ``follows`` each kernel takes as many times as long as the job's ``load`` says. A kernel
    has ``blocks`` thread blocks; larger inputs need more, and longer, except where the work is
    ``fixed`` by the parameters.
    """

    ns: int
    kernels: int = 4
    name: str = "gemm_f16_128x128"
    follows: str = ""
    blocks: int = 1024
    fixed: bool = False


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective of the rank's group on ``axis``.

    It starts on a member once that member's earlier computation is done, and ends for all members
    ``transfer_ns`` after the last started. With ``overlap`` the next computation does not wait.
    With ``tokens_of`` a layer it carries the tokens that the job routes there, or with
    ``brings_back`` from there: the busiest member's share stretches the transfer, unless it
    ``is_bound_by_latency``, and its splits are in the traces. It starts no sooner than the last one
    on the axis ``takes`` has ended.
    """

    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    bytes: int = 16 << 20
    transfer_ns: int = 1 * MS
    axis: str = "world"
    overlap: bool = False
    tokens_of: str = ""
    brings_back: bool = False
    is_bound_by_latency: bool = False
    takes: str = ""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A message from member ``src`` to member ``dst`` (positions) of each group on ``axis``.

    Whoever sends ``detached`` goes on at once; else both ends wait for each other.
    """

    src: int
    dst: int
    axis: str
    bytes: int = 1 << 20
    transfer_ns: int = 100 * US
    detached: bool = False


@dataclass(frozen=True, kw_only=True)
class Marked:
    """Operations inside of an annotation, which the device's time line shows too."""

    name: str
    ops: tuple[Compute, ...]


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Later computation waits for all communication so far."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy between pinned CPU memory and the device, on a stream of its own.

    It starts when launched, after earlier copies, and if it goes ``out`` after earlier computation.
    A collective that ``takes`` :data:`COPIES` waits for it, and so does ``Wait``.
    """

    ns: int
    bytes: int = 16 << 20
    out: bool = False


COPIES = "copies"

Op = Input | Compute | Collective | Exchange | Marked | Wait | Copy


@dataclass(frozen=True, kw_only=True)
class SlowDevice:
    """Kernels of a rank take ``factor`` times as long."""

    rank: int
    factor: float
    steps: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class SlowCopies:
    """Copies of a rank take ``factor`` times as long."""

    rank: int
    factor: float
    steps: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class MoreWork:
    """A rank launches ``factor`` times as many kernels."""

    rank: int
    factor: float
    steps: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class LargerInputs:
    """Inputs of a rank are ``factor`` times as large: its kernels are larger and take longer."""

    rank: int
    factor: float
    steps: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class LateInput:
    """A rank's data loader takes ``ns`` longer."""

    rank: int
    ns: int
    steps: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class LateHost:
    """A rank's host stalls for ``ns`` before the first computation of the step."""

    rank: int
    ns: int
    steps: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class NoisyHost:
    """A rank's host stalls before the first computation of each step, for ``ns`` on average."""

    rank: int
    ns: int
    steps: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class NamedPause:
    """A rank's host does something else for ``ns`` before the first computation of the step.

    The trace shows it as an annotation, or as a call of the CUDA runtime.
    """

    rank: int
    ns: int
    name: str
    is_call: bool = False
    steps: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class SlowLaunches:
    """A rank's host takes ``ns`` longer for each launch."""

    rank: int
    ns: int
    steps: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class GarbageCollection:
    """A rank's Python collects garbage for ``ns`` before the first computation of the step."""

    rank: int
    ns: int
    steps: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class SlowLink:
    """What a rank sends to and gets from other nodes takes ``factor`` times as long.

    With ``is_gpu``, so does what it exchanges with ranks of its own node.
    """

    rank: int
    factor: float
    steps: Sequence[int] | None = None
    is_gpu: bool = False


Fault = (
    SlowDevice
    | SlowCopies
    | MoreWork
    | LargerInputs
    | LateInput
    | LateHost
    | NoisyHost
    | NamedPause
    | SlowLaunches
    | GarbageCollection
    | SlowLink
)


def rotating(ranks: Sequence[int], factor: float, steps: Sequence[int]) -> tuple[SlowDevice, ...]:
    """Another rank is slow in each step."""
    return tuple(
        SlowDevice(rank=ranks[i % len(ranks)], factor=factor, steps=(step,))
        for i, step in enumerate(steps)
    )


DDP_STEP: tuple[Op, ...] = (
    Input(),
    Compute(ns=4 * MS),
    Compute(ns=2 * MS),
    Collective(bytes=25 << 20, overlap=True),
    Compute(ns=2 * MS),
    Collective(bytes=25 << 20, overlap=True),
    Compute(ns=2 * MS),
    Collective(bytes=8 << 20, transfer_ns=MS // 2, overlap=True),
    Wait(),
    Compute(ns=MS, name="adam", fixed=True),
)


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A job and how it is recorded.

    Args:
        num_nodes: Hosts; ranks are numbered host by host.
        ranks_per_node: Ranks of each.
        num_steps: Recorded steps.
        first_step: Number of the first.
        program: Operations of a step, of ranks that have no program of their own.
        programs: Rank to its operations of a step.
        load: What computation follows, rank and step to how many times as long it takes; 1 where
            nothing is said.
        tokens: Rank and step to the tokens that its step log tells; none where nothing is said.
        routing: Layer, rank and step to the tokens that the rank routes to each expert.
        axes: Groups of each axis; ``world`` is there always.
        faults: What goes wrong.
        seed: Seeds all noise.
        compute_noise: Standard deviation of a kernel's duration, relative.
        device_spread: Standard deviation of the ranks' speeds, relative, the same in all steps.
        host_noise_ns: Mean of what each host loses at random before the first computation of a
            step, distributed exponentially.
        end_jitter_ns: A member's end is up to this far from the common end, both ways.
        stamp_noise_ns: A recorded start or end on a device is up to this far from the true one.
        clock_offset_ns: Of each node, at the start of the job.
        clock_drift_ppm: Of each node.
        capture_skip: Rank to the number of its communications missing at the start of its trace.
        capture_cut: The same at the end.
        profiler_start_ns: Rank to the time its profiler takes to start, before its first step.
        launch_ns: Host time of a launch.
        queue_depth: Launches that a host may be ahead of its device; 0 for as many as it likes.
        logs_routing: Whether probes recorded the routing; traces have the splits in any case.
        synchronise: Whether the host waits for the device at the end of each step.
        present: Ranks whose trace exists; all when None.
    """

    num_nodes: int = 2
    ranks_per_node: int = 2
    num_steps: int = 5
    first_step: int = 10
    program: tuple[Op, ...] = DDP_STEP
    programs: Mapping[int, tuple[Op, ...]] = field(default_factory=dict)
    load: Mapping[tuple[str, int, int], float] = field(default_factory=dict)
    tokens: Mapping[tuple[int, int], int] = field(default_factory=dict)
    routing: Mapping[tuple[str, int, int], tuple[int, ...]] = field(default_factory=dict)
    axes: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    compute_noise: float = 0.02
    device_spread: float = 0.0
    host_noise_ns: int = 0
    end_jitter_ns: int = 2 * US
    stamp_noise_ns: int = 0
    clock_offset_ns: tuple[int, ...] = ()
    clock_drift_ppm: tuple[float, ...] = ()
    capture_skip: Mapping[int, int] = field(default_factory=dict)
    capture_cut: Mapping[int, int] = field(default_factory=dict)
    profiler_start_ns: Mapping[int, int] = field(default_factory=dict)
    launch_ns: int = 6 * US
    queue_depth: int = 0
    logs_routing: bool = True
    synchronise: bool = True
    present: tuple[int, ...] | None = None

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.ranks_per_node

    @property
    def steps(self) -> range:
        return range(self.first_step, self.first_step + self.num_steps)

    @property
    def groups(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """All axes with their groups, the world first."""
        return {"world": (tuple(range(self.world_size)),), **self.axes}

    def node_of(self, rank: int) -> int:
        return rank // self.ranks_per_node

    def own_clock(self, rank: int, time_ns: float) -> int:
        """What the clock of the rank's node shows at a true time, both since the job's start."""
        node = self.node_of(rank)
        offset = self.clock_offset_ns[node] if self.clock_offset_ns else 0
        drift = self.clock_drift_ppm[node] * 1e-6 if self.clock_drift_ppm else 0.0
        return round(time_ns + offset + drift * time_ns)

    def run(self) -> Recording:
        """Simulate the job."""
        from tests.simulator.engine import simulate

        return simulate(self)
