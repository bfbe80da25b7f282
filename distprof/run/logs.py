"""Evidence from logs on a job; each type is requested from a run.

NCCL's own log (communicators, rings, transports, settings, warnings), sensors and errors of devices
that tools other than the probes recorded, and what a training program printed of its iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.schema import ABSENT, Int64Array, Table

__all__ = [
    "Clock",
    "DeviceEvent",
    "DeviceLinks",
    "DeviceLog",
    "DeviceSeries",
    "DeviceState",
    "Float64Array",
    "NcclCard",
    "NcclChoice",
    "NcclCommunicator",
    "NcclEdge",
    "NcclLog",
    "NcclMember",
    "NcclProcess",
    "NcclWarning",
    "TrainingFacts",
    "TrainingLog",
]


class NcclProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that wrote lines.

    Args:
        host: Host name as NCCL prints it.
        pid: Process id there.
        rank: Global rank; None where the log does not tell.
    """

    host: str
    pid: int
    rank: int | None = None


class NcclMember(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of a communicator.

    Args:
        rank: In the communicator.
        process: Index of its process.
        device: Index of its GPU as the process counts them, None where not told.
        bus_id: PCI bus id, empty where not told.
        is_complete: Whether the log says that its initialisation ended.
    """

    rank: int
    process: int
    device: int | None = None
    bus_id: str = ""
    is_complete: bool = False


class NcclCommunicator(msgspec.Struct, frozen=True, kw_only=True):
    """A communicator, or what is known of it.

    Args:
        name: Its id in the log (``commId``); of older versions, which print none, a number.
        num_ranks: Ranks that it has.
        members: Ranks that wrote of it, ascending.
        is_certain: Whether its members belong together for sure: ids say so, or there is only one
            communicator of that size.
        init_ns: Slowest initialisation that a member tells, None where none does.
        num_channels: For collectives, None where not told.
        num_nvls_channels: For NVLink SHARP, None where not told.
        rings: Ranks of each ring in order; only rings that the log holds completely.
        tree_depths: Of each tree that the log holds completely, steps from the root to the last.
        num_nodes: As NCCL counts them, None where not told.
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
    """A connection between two ranks of a communicator, all its channels together.

    Args:
        communicator: Its index; None where that cannot be told.
        process: Index of the process that wrote of it.
        source: Rank that sends, in the communicator; None for a connection to a switch.
        target: Rank that receives; None for a connection to a switch.
        transport: For example ``P2P/CUMEM``, ``SHM``, ``NET/IB``, ``COLLNET/SHARP``.
        has_gdr: Whether the card reads and writes the GPU's memory itself.
        card: Index of the network card, None for other transports.
        direction: ``send`` or ``receive`` where both sides write of it, else empty.
        num_lines: Lines that report it, one per channel and side.
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
        host: Where.
        network: ``IB``, ``Socket`` or the plug-in's name.
        index: As transports name it.
        name: For example ``mlx5_0:1``.
        link: For example ``IB/SHARP``, ``RoCE``; empty for sockets.
    """

    host: str
    network: str
    index: int
    name: str
    link: str


class NcclChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What NCCL chose for operations of one size, or calls of which no choice is logged.

    Args:
        operation: For example ``AllReduce``; empty where an old version does not say.
        num_bytes: Size; None for calls.
        algorithm: For example ``RING``; empty for calls.
        protocol: ``LL``, ``LL128`` or ``SIMPLE``; empty for calls.
        num_calls: Lines.
    """

    operation: str
    num_bytes: int | None
    algorithm: str
    protocol: str
    num_calls: int


class NcclWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Warnings that differ in numbers only.

    Args:
        text: The first of them.
        about: ``teardown`` (processes end, harmless), ``fallback`` (NCCL takes another path) or
            ``problem``.
        num_lines: How many.
        processes: Indexes of the processes.
    """

    text: str
    about: str
    num_lines: int
    processes: tuple[int, ...]


class NcclLog(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the logs tell.

    Args:
        files: Files read.
        num_jobs: Sets of processes that share neither a file nor a communicator; 0 without any
            communicator.
        processes: Processes that wrote.
        versions: Version to the indexes of the processes that say it; rank 0 only in old versions.
        settings: Name of an environment variable to value to indexes of processes.
        communicators: Communicators, in order of appearance.
        edges: Connections.
        cards: Network cards.
        missing_networks: Networks of which NCCL says that it found no device, to processes.
        networks: Networks that were chosen, to processes.
        links: Types of paths between GPUs by NCCL's graph search, for example ``NVL``, ``PIX``.
        choices: Algorithms and protocols.
        warnings: Warnings, most frequent first.
        num_lines: Lines read, of NCCL or not.
        num_bytes: Bytes read, unpacked.
        num_info: Texts marked INFO; a line may hold several where ranks wrote at once.
        num_warn: Texts marked WARN.
        num_unknown: Of these, texts that the reader does not know.
        num_cut: Of these, texts that other ranks' output cut off.
        unknown: Some of the unknown ones.
        notes: What was damaged or left out, one sentence each.
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
"""What times of a series are: ns since the epoch; the same of a local clock whose zone the file
does not tell; since a midnight whose date it does not tell; numbers of samples, for want of times.
"""


class DeviceSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one device's sensors.

    Args:
        file: Where they come from.
        host: Host name, empty where the file does not tell.
        index: Number of the device on its host as the driver counts; None where not told.
        uuid: For example ``GPU-5269b708-…``; empty where not told.
        bus_id: PCI bus id as ``domain:bus:device.function``, lower case; empty where not told.
        name: For example ``NVIDIA H200``; empty where not told.
        clock: What its times are.
        table: TELEMETRY, ascending in time.
        rank: Global rank that it was joined to; None where it was not.
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
    """An error that a kernel, a driver or a switch's manager logged.

    Args:
        file: Where it stands.
        kind: ``xid`` of a GPU, ``fabric`` of an NVSwitch, ``crash`` of a process (a segmentation
            fault or another trap), ``oom`` for a process that the kernel killed to free memory.
        number: Of the error; None where the line has none.
        text: The line, without its time.
        t_ns: When, on ``clock``; None where the line does not tell.
        clock: What ``t_ns`` is; ``none`` where it is None.
        time: The time as the line has it.
        host: Host name, empty where not told.
        bus_id: Of the GPU or the switch, as in DeviceSeries.
        uuid: Of the GPU, empty where not told.
        index: Of the GPU, None where not told.
        rank: Global rank on that device, or of that process, None where that is not known.
        process: Name of the process, at most 15 letters as the kernel keeps it; empty where not
            told.
        pid: Of the process; for a crash, of the thread that crashed. None where not told.
        memory_bytes: What a killed process held in memory, None where not told.
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
    """NVLink of one device at one moment.

    Args:
        file: Where it stands.
        host: Host name, empty where not told.
        index: Number of the device on its host.
        uuid: Empty where not told.
        name: For example ``NVIDIA A100-SXM4-80GB``.
        gb_per_s: Speed of each link per direction, GB/s; None for one that is inactive.
        rank: Global rank on that device, None where that is not known.
    """

    file: str
    host: str
    index: int
    uuid: str
    name: str
    gb_per_s: tuple[float | None, ...]
    rank: int | None = None


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """What one device says of itself at one moment, apart from its sensors.

    Args:
        file: Where it stands.
        host: Host name, empty where the file does not tell.
        index: Number of the device on its host as the driver counts; None where not told.
        uuid: Empty where not told.
        bus_id: PCI bus id as in DeviceSeries; empty where not told.
        name: For example ``NVIDIA H200``; empty where not told.
        driver: Version of the driver; empty where not told.
        cuda: Newest version of CUDA that the driver supports; empty where not told.
        is_in_use: Whether it was working, so that its PCIe link is not slowed down to save power;
            None where not told.
        pcie_generation: Of the link at that moment, None where not told.
        pcie_generation_max: Most that the GPU and its host allow.
        pcie_width: Lanes of the link at that moment, None where not told.
        pcie_width_max: Most that the GPU and its host allow.
        ecc_uncorrected: Uncorrected memory errors since the driver was loaded; None where not told.
        is_repair_pending: Whether memory waits for a reset to be repaired (a row to be remapped, a
            page to be retired); None where not told.
        has_repair_failed: Whether memory could not be repaired; None where not told.
        recovery: What the driver asks for, for example ``Reset``; empty for nothing, and where not
            told.
        rank: Global rank on that device, None where that is not known.
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
    """Everything that such files tell.

    Args:
        files: Files read.
        series: Sensors, one entry per device and clock.
        events: Errors, in order of the files.
        links: NVLink, one entry per device.
        states: Links to the CPU and memory, one entry per device.
        kernel_logs: Of the files, those that are kernel logs.
        num_lines: Lines read.
        written_ns: File to when it was last written, ns since the epoch; without packed ones and
            those that are not on this machine.
        notes: What was damaged, left out, or decided, one sentence each.
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
    """What the log says of the job's layout; None where it says nothing.

    Args:
        world_size: Ranks.
        mesh: Axis (``tp``, ``pp``, ``dp``, ``cp``, ``ep``) to its size.
        num_micro_batches: Per iteration and pipeline.
        micro_batch_size: Samples of a micro-batch.
        global_batch_size: Samples of an iteration, all ranks together.
        sequence_length: Tokens of a sample.
        virtual_stages: Stages that each rank of a pipeline holds.
    """

    world_size: int | None = None
    mesh: Mapping[str, int] = msgspec.field(default_factory=dict)
    num_micro_batches: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    virtual_stages: int | None = None


class TrainingLog(msgspec.Struct, frozen=True, kw_only=True):
    """Iterations as printed; all arrays have one entry for each report, in the order of the log.

    Args:
        origin: Whose words they are, for example ``Megatron-LM``.
        files: Paths as the user named them.
        iteration: int64, number of the (last) iteration of a report, or ABSENT.
        span: int64, how many iterations a report is the mean of, at least 1.
        duration_ns: int64, time of one iteration, or ABSENT.
        samples_per_s: float64, all ranks together, NaN where not told.
        tokens_per_s: float64, all ranks together, NaN where not told.
        tokens_per_s_per_device: float64, NaN where not told.
        tflops: float64, per device, NaN where not told.
        loss: float64, NaN where not told.
        printed_samples_per_s: float64 of any length, throughput that the program printed apart.
        timers: Name of a timer to int64 ns per iteration, or ABSENT.
        is_of_slowest_ranks: Whether timers are of whichever rank was slowest in each.
        startup: Name of a timer before the first iteration to its ns.
        facts: What the log says of the job's layout.
        num_lines: Lines of the files.
        num_reports: Lines that were understood as a report on iterations or timers.
        num_unknown: Lines with a sign of such a report that could not be understood.
        num_restarts: How often the numbers of iterations go back.
        notes: What was assumed or left out, one sentence each.
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
        """Reports that count: those with a duration, except the first and each after a restart.

        The first iterations allocate, compile and connect.
        """
        known: NDArray[np.bool_] = (self.duration_ns != ABSENT) & ~self._begins
        return known if known.any() else self.duration_ns != ABSENT

    @property
    def _begins(self) -> NDArray[np.bool_]:
        """The first report with a duration, and the first after numbers go back."""
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
        """Median time of an iteration; None where no report has a time."""
        steady = self.steady_ns
        return round(float(np.median(steady))) if len(steady) else None

    @property
    def world_size(self) -> int | None:
        """Ranks of the job."""
        return self.facts.world_size

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens of an iteration, all ranks together; None where the log does not say."""
        facts = self.facts
        if facts.global_batch_size is None or facts.sequence_length is None:
            return None
        return facts.global_batch_size * facts.sequence_length
