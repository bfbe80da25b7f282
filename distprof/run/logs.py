"""Evidence from the logs of a job; :meth:`Run.get` returns it by type.

It comprises NCCL's own log (communicators, rings, transports, settings, warnings), sensors and
errors of GPUs recorded by other tools than the probes, and the iterations that a training program
printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.schema import ABSENT, Int64Array, Table


class NcclProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that wrote to the log.

    Args:
        host: Host name as NCCL prints it.
        pid: Process id on that host.
        rank: Global rank, None if unknown.
    """

    host: str
    pid: int
    rank: int | None = None


class NcclMember(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of a communicator.

    Args:
        rank: Rank in the communicator.
        process: Index of its process.
        device: Index of its GPU as seen by the process, None if unknown.
        bus_id: PCI bus id, empty if unknown.
        is_complete: Whether the log reports the end of its initialisation.
    """

    rank: int
    process: int
    device: int | None = None
    bus_id: str = ""
    is_complete: bool = False


class NcclCommunicator(msgspec.Struct, frozen=True, kw_only=True):
    """A communicator, which the log may describe only in part.

    Args:
        name: Its id in the log (``commId``), or a number for old versions that print no id.
        num_ranks: Size of the communicator.
        members: Ranks that logged the communicator, ascending.
        is_certain: Whether the members certainly belong together: by their ids, or because there is
            only one communicator of that size.
        init_ns: Slowest initialisation that a member reports, None if none does.
        num_channels: Channels for collectives, None if unknown.
        num_nvls_channels: Channels for NVLink SHARP, None if unknown.
        rings: Ranks of each ring in order; only rings that are complete in the log.
        tree_depths: Depth of each tree that is complete in the log.
        num_nodes: Nodes as NCCL counts them, None if unknown.
    """

    name: str
    num_ranks: int
    members: tuple[NcclMember, ...] = ()
    is_certain: bool = True
    init_ns: int | None = None
    num_channels: int | None = None
    num_nvls_channels: int | None = None
    rings: tuple[tuple[int, ...], ...] = ()
    tree_depths: tuple[int, ...] = ()
    num_nodes: int | None = None


class NcclEdge(msgspec.Struct, frozen=True, kw_only=True):
    """A connection between two ranks of a communicator, over all its channels.

    Args:
        communicator: Index of the communicator, None if unknown.
        process: Index of the process that logged the connection.
        source: Rank that sends, in the communicator; None for a connection to a switch.
        target: Rank that receives; None for a connection to a switch.
        transport: For example ``P2P/CUMEM``, ``SHM``, ``NET/IB``, ``COLLNET/SHARP``.
        has_gdr: Whether the card accesses GPU memory directly (GPUDirect RDMA).
        card: Index of the network card, None for other transports.
        direction: ``send`` or ``receive`` if both sides log the connection, else empty.
        num_lines: Lines that report the connection, one per channel and side.
    """

    communicator: int | None
    process: int | None
    source: int | None
    target: int | None
    transport: str
    has_gdr: bool
    card: int | None
    direction: str
    num_lines: int


class NcclCard(msgspec.Struct, frozen=True, kw_only=True):
    """A network card that NCCL found.

    Args:
        host: Host of the card.
        network: ``IB``, ``Socket`` or the plug-in's name.
        index: Index that transports refer to.
        name: For example ``mlx5_0:1``.
        link: For example ``IB/SHARP``, ``RoCE``; empty for sockets.
    """

    host: str
    network: str
    index: int
    name: str
    link: str


class NcclChoice(msgspec.Struct, frozen=True, kw_only=True):
    """NCCL's choice for operations of one size, or calls without a logged choice.

    Args:
        operation: For example ``AllReduce``; empty if an old version does not name it.
        num_bytes: Size of the operation; None for calls without a choice.
        algorithm: For example ``RING``; empty for calls without a choice.
        protocol: ``LL``, ``LL128`` or ``SIMPLE``; empty for calls without a choice.
        num_calls: Lines that report it.
    """

    operation: str
    num_bytes: int | None
    algorithm: str
    protocol: str
    num_calls: int


class NcclWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Warnings that differ only in numbers.

    Args:
        text: The first of the warnings.
        about: ``teardown`` (processes end, harmless), ``fallback`` (NCCL takes another path) or
            ``problem``.
        num_lines: Number of warnings.
        processes: Indices of the processes that logged them.
    """

    text: str
    about: str
    num_lines: int
    processes: tuple[int, ...]


class NcclLog(msgspec.Struct, frozen=True, kw_only=True):
    """Content of NCCL's logs.

    Args:
        files: Files read.
        num_jobs: Sets of processes that share neither a file nor a communicator; 0 without any
            communicator.
        processes: Processes that wrote to the logs.
        versions: Version to the indices of the processes that log it; only rank 0 in old versions.
        settings: Name of an environment variable to value to indices of processes.
        communicators: Communicators, in order of appearance.
        edges: Connections.
        cards: Network cards.
        missing_networks: Networks for which NCCL found no device, to indices of processes.
        networks: Networks that NCCL chose, to indices of processes.
        remarks: What NCCL can or cannot use, to what that is said of to indices of processes.
        links: Types of paths between GPUs in NCCL's graph search, for example ``NVL``, ``PIX``.
        choices: Algorithms and protocols.
        warnings: Warnings, most frequent first.
        num_lines: Lines read, including those of other programs.
        num_bytes: Bytes read, uncompressed.
        num_info: Messages marked INFO; a line may hold several if ranks wrote at the same time.
        num_warn: Messages marked WARN.
        num_unknown: Messages of both kinds that the reader does not recognise.
        num_cut: Messages of both kinds that the output of other ranks cut off.
        unknown: Examples of unrecognised messages.
        notes: Damaged or skipped data, one sentence each.
    """

    files: tuple[str, ...] = ()
    num_jobs: int = 0
    processes: tuple[NcclProcess, ...] = ()
    versions: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    settings: Mapping[str, Mapping[str, tuple[int, ...]]] = msgspec.field(default_factory=dict)
    communicators: tuple[NcclCommunicator, ...] = ()
    edges: tuple[NcclEdge, ...] = ()
    cards: tuple[NcclCard, ...] = ()
    missing_networks: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    networks: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    remarks: Mapping[str, Mapping[str, tuple[int, ...]]] = msgspec.field(default_factory=dict)
    links: tuple[str, ...] = ()
    choices: tuple[NcclChoice, ...] = ()
    warnings: tuple[NcclWarning, ...] = ()
    num_lines: int = 0
    num_bytes: int = 0
    num_info: int = 0
    num_warn: int = 0
    num_unknown: int = 0
    num_cut: int = 0
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def world_size(self) -> int | None:
        """Ranks of the largest communicator; None without one."""
        return max((c.num_ranks for c in self.communicators), default=None)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts of the processes, each once."""
        return tuple(dict.fromkeys(process.host for process in self.processes))


# Devices ------------------------------------------------------------------------------------------

Clock: TypeAlias = Literal["epoch", "local", "day", "none"]
"""Meaning of the times of a series: ns since the epoch; the same in an unknown local time zone; ns
since midnight of an unknown date; sample numbers, if there are no times.
"""


class DeviceSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Sensor samples of one GPU.

    Args:
        file: File that holds the samples.
        host: Host name, empty if unknown.
        index: Index of the GPU on its host in the driver's order, None if unknown.
        uuid: For example ``GPU-5269b708-…``; empty if unknown.
        bus_id: PCI bus id as ``domain:bus:device.function``, lower case; empty if unknown.
        name: For example ``NVIDIA H200``; empty if unknown.
        clock: Meaning of the times.
        table: TELEMETRY, ascending in time.
        rank: Global rank that the samples were assigned to, None without one.
    """

    file: str
    host: str
    index: int | None
    uuid: str
    bus_id: str
    name: str
    clock: Clock
    table: Table
    rank: int | None = None


class DeviceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An error logged by a kernel, a driver or the fabric manager.

    Args:
        file: File that holds the line.
        kind: ``xid`` of a GPU, ``fabric`` of an NVSwitch, ``crash`` of a process (a segmentation
            fault or another trap), ``oom`` for a process that the kernel killed to free memory.
        number: Number of the error, None if the line has none.
        text: The line, without its time.
        t_ns: Time on ``clock``, None if the line has none.
        clock: Meaning of ``t_ns``; ``none`` if it is None.
        time: The time as written in the line.
        host: Host name, empty if unknown.
        bus_id: Bus id of the GPU or the switch, as in DeviceSeries.
        uuid: UUID of the GPU, empty if unknown.
        index: Index of the GPU, None if unknown.
        rank: Global rank on that GPU, or of that process, None if unknown.
        process: Name of the process, which the kernel cuts after 15 characters; empty if unknown.
        pid: Id of the process or, for a crash, of the thread that crashed; None if unknown.
        memory_bytes: Memory that a killed process held, None if unknown.
    """

    file: str
    kind: Literal["xid", "fabric", "crash", "oom"]
    number: int | None
    text: str
    t_ns: int | None = None
    clock: Clock = "none"
    time: str = ""
    host: str = ""
    bus_id: str = ""
    uuid: str = ""
    index: int | None = None
    rank: int | None = None
    process: str = ""
    pid: int | None = None
    memory_bytes: int | None = None


class DeviceLinks(msgspec.Struct, frozen=True, kw_only=True):
    """NVLinks of one GPU at one moment.

    Args:
        file: File that holds the data.
        host: Host name, empty if unknown.
        index: Index of the GPU on its host.
        uuid: UUID of the GPU, empty if unknown.
        name: For example ``NVIDIA A100-SXM4-80GB``.
        gb_per_s: Speed of each link per direction, GB/s; None for an inactive link.
        rank: Global rank on that GPU, None if unknown.
    """

    file: str
    host: str
    index: int
    uuid: str
    name: str
    gb_per_s: tuple[float | None, ...]
    rank: int | None = None


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one GPU at one moment, other than its sensors.

    Args:
        file: File that holds the data.
        host: Host name, empty if unknown.
        index: Index of the GPU on its host in the driver's order, None if unknown.
        uuid: UUID of the GPU, empty if unknown.
        bus_id: PCI bus id as in DeviceSeries; empty if unknown.
        name: For example ``NVIDIA H200``; empty if unknown.
        driver: Version of the driver; empty if unknown.
        cuda: Newest version of CUDA that the driver supports; empty if unknown.
        is_in_use: Whether the GPU was busy, in which case its PCIe link is not slowed down to save
            power; None if unknown.
        pcie_generation: Generation of the link at that moment, None if unknown.
        pcie_generation_max: Highest generation that the GPU and its host allow.
        pcie_width: Lanes of the link at that moment, None if unknown.
        pcie_width_max: Most lanes that the GPU and its host allow.
        ecc_uncorrected: Uncorrected memory errors since the driver was loaded; None if unknown.
        is_repair_pending: Whether a memory repair waits for a reset (a row to be remapped, a page
            to be retired); None if unknown.
        has_repair_failed: Whether a memory repair failed; None if unknown.
        recovery: Action that the driver requests, for example ``Reset``; empty if none or unknown.
        rank: Global rank on that GPU, None if unknown.
    """

    file: str
    host: str = ""
    index: int | None = None
    uuid: str = ""
    bus_id: str = ""
    name: str = ""
    driver: str = ""
    cuda: str = ""
    is_in_use: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    ecc_uncorrected: int | None = None
    is_repair_pending: bool | None = None
    has_repair_failed: bool | None = None
    recovery: str = ""
    rank: int | None = None


class DeviceLog(msgspec.Struct, frozen=True, kw_only=True):
    """Content of sensor files and kernel logs.

    Args:
        files: Files read.
        series: Sensor samples, one entry per GPU and clock.
        events: Errors, in order of the files.
        links: NVLinks, one entry per GPU.
        states: PCIe link and memory, one entry per GPU.
        kernel_logs: Those of the files that are kernel logs.
        num_lines: Lines read.
        written_ns: File to the time of its last change, ns since the epoch; without compressed
            files and files of other machines.
        notes: Damaged or skipped data and choices made, one sentence each.
    """

    files: tuple[str, ...] = ()
    series: tuple[DeviceSeries, ...] = ()
    events: tuple[DeviceEvent, ...] = ()
    links: tuple[DeviceLinks, ...] = ()
    states: tuple[DeviceState, ...] = ()
    kernel_logs: tuple[str, ...] = ()
    num_lines: int = 0
    written_ns: Mapping[str, int] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @staticmethod
    def merged(logs: Sequence[DeviceLog]) -> DeviceLog:
        """Several logs as one."""
        return DeviceLog(
            files=tuple(file for log in logs for file in log.files),
            series=tuple(series for log in logs for series in log.series),
            events=tuple(event for log in logs for event in log.events),
            links=tuple(links for log in logs for links in log.links),
            states=tuple(state for log in logs for state in log.states),
            kernel_logs=tuple(file for log in logs for file in log.kernel_logs),
            num_lines=sum(log.num_lines for log in logs),
            written_ns={file: ns for log in logs for file, ns in log.written_ns.items()},
            notes=tuple(dict.fromkeys(note for log in logs for note in log.notes)),
        )


# Training programs --------------------------------------------------------------------------------

Float64Array = NDArray[np.float64]


class TrainingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Layout of the job according to the log; None for properties that the log does not give.

    Args:
        world_size: Number of ranks.
        mesh: Axis (``tp``, ``pp``, ``dp``, ``cp``, ``ep``) to its size.
        num_micro_batches: Micro-batches per iteration and pipeline.
        micro_batch_size: Samples per micro-batch.
        global_batch_size: Samples per iteration, all ranks together.
        sequence_length: Tokens per sample.
        virtual_stages: Stages per pipeline rank.
    """

    world_size: int | None = None
    mesh: Mapping[str, int] = msgspec.field(default_factory=dict)
    num_micro_batches: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    virtual_stages: int | None = None


class TrainingLog(msgspec.Struct, frozen=True, kw_only=True):
    """Printed iterations; all arrays have one entry per report, in the order of the log.

    Args:
        origin: Program that printed the log, for example ``Megatron-LM``.
        files: Paths as the user named them.
        iteration: int64, number of the (last) iteration of a report, or ABSENT.
        span: int64, number of iterations that a report is the mean of, at least 1.
        duration_ns: int64, time of one iteration, or ABSENT.
        samples_per_s: float64, all ranks together, NaN if not printed.
        tokens_per_s: float64, all ranks together, NaN if not printed.
        tokens_per_s_per_device: float64, NaN if not printed.
        tflops: float64, per GPU, NaN if not printed.
        loss: float64, NaN if not printed.
        printed_samples_per_s: float64 of any length, throughput printed apart from the reports.
        timers: Name of a timer to int64 ns per iteration, or ABSENT.
        is_of_slowest_ranks: Whether each timer shows the slowest rank in that timer.
        startup: Name of a timer before the first iteration to its ns.
        facts: Layout of the job according to the log.
        num_lines: Lines of the files.
        num_reports: Lines recognised as a report on iterations or timers.
        num_unknown: Lines that resemble a report but could not be read.
        num_restarts: How often the iteration number goes back.
        notes: Assumptions and skipped data, one sentence each.
    """

    origin: str
    files: tuple[str, ...] = ()
    iteration: Int64Array
    span: Int64Array
    duration_ns: Int64Array
    samples_per_s: Float64Array
    tokens_per_s: Float64Array
    tokens_per_s_per_device: Float64Array
    tflops: Float64Array
    loss: Float64Array
    printed_samples_per_s: Float64Array
    timers: Mapping[str, Int64Array] = msgspec.field(default_factory=dict)
    is_of_slowest_ranks: bool = False
    startup: Mapping[str, int] = msgspec.field(default_factory=dict)
    facts: TrainingFacts = msgspec.field(default_factory=TrainingFacts)
    num_lines: int = 0
    num_reports: int = 0
    num_unknown: int = 0
    num_restarts: int = 0
    notes: tuple[str, ...] = ()

    @property
    def is_steady(self) -> NDArray[np.bool_]:
        """Mask of the reports that count: with a duration, and not the first or after a restart.

        The first iterations allocate, compile and connect. If no other report has a duration, these
        count.
        """
        known: NDArray[np.bool_] = (self.duration_ns != ABSENT) & ~self._begins
        return known if known.any() else self.duration_ns != ABSENT

    @property
    def _begins(self) -> NDArray[np.bool_]:
        """Mask of the first report with a duration, and of the first after the numbers go back."""
        begins = np.zeros(len(self.iteration), bool)
        timed = np.flatnonzero(self.duration_ns != ABSENT)
        if len(timed):
            number = self.iteration[timed]
            back = np.flatnonzero((number[1:] != ABSENT) & (number[1:] < number[:-1])) + 1
            begins[timed[0]] = True
            begins[timed[back]] = True
        return begins

    @property
    def steady_ns(self) -> Int64Array:
        """int64, times of one iteration of the reports that count."""
        steady: Int64Array = self.duration_ns[self.is_steady]
        return steady

    @property
    def median_step_ns(self) -> int | None:
        """Median time of an iteration; None if no report has a time."""
        steady = self.steady_ns
        return round(float(np.median(steady))) if len(steady) else None

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job."""
        return self.facts.world_size

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens per iteration, all ranks together; None if the log does not give them."""
        facts = self.facts
        if facts.global_batch_size is None or facts.sequence_length is None:
            return None
        return facts.global_batch_size * facts.sequence_length
