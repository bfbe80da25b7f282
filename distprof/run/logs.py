"""Evidence from the logs of a job; :meth:`Run.get` returns it by type.

It comprises NCCL's own log (communicators, rings, transports, settings, warnings), sensors and
errors of GPUs recorded by other tools than the probes, the iterations that a training program
printed, and what the printed output says about the job's end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from distprof.schema import ABSENT, Bools, Floats, Int64Array, Table
from distprof.units import unit_of

ASSUMED_GB_S = 1.25
"""Speed of a network card in NCCL's topology that may also be its default, 10 Gb/s."""


class NcclProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that wrote to the log."""

    host: str  # Host name as NCCL prints it.
    pid: int  # Process id on that host.
    rank: int | None = None  # Global rank, None if unknown.


class NcclMember(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of a communicator."""

    rank: int  # Rank in the communicator.
    process: int  # Index of its process.
    device: int | None = None  # Index of its GPU as seen by the process, None if unknown.
    bus_id: str = ""  # PCI bus id, empty if unknown.
    is_complete: bool = False  # Whether the log reports the end of its initialisation.


class NcclCommunicator(msgspec.Struct, frozen=True, kw_only=True):
    """A communicator, which the log may describe only in part."""

    name: str  # Its id in the log (``commId``), or a number for old versions that print no id.
    num_ranks: int  # Size of the communicator.
    members: tuple[NcclMember, ...] = ()  # Ranks that logged the communicator, ascending.
    # Whether the members certainly belong together: by their ids, or because there is only one
    # communicator of that size.
    is_certain: bool = True
    init_ns: int | None = None  # Slowest initialisation that a member reports, None if none does.
    num_channels: int | None = None  # Channels for collectives, None if unknown.
    num_nvls_channels: int | None = None  # Channels for NVLink SHARP, None if unknown.
    # Ranks of each ring in order; only rings that are complete in the log.
    rings: tuple[tuple[int, ...], ...] = ()
    tree_depths: tuple[int, ...] = ()  # Depth of each tree that is complete in the log.
    num_nodes: int | None = None  # Nodes as NCCL counts them, None if unknown.


class NcclEdge(msgspec.Struct, frozen=True, kw_only=True):
    """A connection between two ranks of a communicator, over all its channels."""

    communicator: int | None  # Index of the communicator, None if unknown.
    process: int | None  # Index of the process that logged the connection.
    source: int | None  # Rank that sends, in the communicator; None for a connection to a switch.
    target: int | None  # Rank that receives; None for a connection to a switch.
    transport: str  # For example ``P2P/CUMEM``, ``SHM``, ``NET/IB``, ``COLLNET/SHARP``.
    has_gdr: bool  # Whether the card accesses GPU memory directly (GPUDirect RDMA).
    card: int | None  # Index of the network card, None for other transports.
    direction: str  # ``send`` or ``receive`` if both sides log the connection, else empty.
    num_lines: int  # Lines that report the connection, one per channel and side.


class NcclCard(msgspec.Struct, frozen=True, kw_only=True):
    """A network card that NCCL found."""

    host: str  # Host of the card.
    network: str  # ``IB``, ``Socket`` or the plug-in's name.
    index: int  # Index that transports refer to.
    name: str  # For example ``mlx5_0:1``.
    link: str  # For example ``IB/SHARP``, ``RoCE``; empty for sockets.


class NcclChoice(msgspec.Struct, frozen=True, kw_only=True):
    """NCCL's choice for operations of one size, or calls without a logged choice."""

    operation: str  # For example ``AllReduce``; empty if an old version does not name it.
    num_bytes: int | None  # Size of the operation; None for calls without a choice.
    algorithm: str  # For example ``RING``; empty for calls without a choice.
    protocol: str  # ``LL``, ``LL128`` or ``SIMPLE``; empty for calls without a choice.
    num_calls: int  # Lines that report it.


class NcclWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Warnings that differ only in numbers."""

    text: str  # The first of the warnings.
    # ``teardown`` (processes end, harmless), ``fallback`` (NCCL takes another path) or ``problem``.
    about: str
    num_lines: int  # Number of warnings.
    processes: tuple[int, ...]  # Indices of the processes that logged them.


class NcclLog(msgspec.Struct, frozen=True, kw_only=True):
    """Content of NCCL's logs."""

    files: tuple[str, ...] = ()  # Files read.
    # Sets of processes that share neither a file nor a communicator; 0 without any communicator.
    num_jobs: int = 0
    processes: tuple[NcclProcess, ...] = ()  # Processes that wrote to the logs.
    # Version to the indices of the processes that log it; only rank 0 in old versions.
    versions: Mapping[str, tuple[int, ...]] = {}
    # Name of an environment variable to value to indices of processes.
    settings: Mapping[str, Mapping[str, tuple[int, ...]]] = {}
    communicators: tuple[NcclCommunicator, ...] = ()  # Communicators, in order of appearance.
    edges: tuple[NcclEdge, ...] = ()  # Connections.
    cards: tuple[NcclCard, ...] = ()  # Network cards.
    # Networks for which NCCL found no device, to indices of processes.
    missing_networks: Mapping[str, tuple[int, ...]] = {}
    # Networks that NCCL chose, to indices of processes.
    networks: Mapping[str, tuple[int, ...]] = {}
    # What NCCL can or cannot use, to what that is said of to indices of processes.
    remarks: Mapping[str, Mapping[str, tuple[int, ...]]] = {}
    # Types of paths between GPUs in NCCL's graph search, for example ``NVL``, ``PIX``.
    links: tuple[str, ...] = ()
    # Slowest path between GPUs in NCCL's topology, and that of the GPU farthest from its nearest
    # network card: GB/s and type.
    peer_path: tuple[float, str] | None = None
    card_path: tuple[float, str] | None = None
    tested: str = ""  # What nccl-tests measured, if its output is in the same file; one sentence.
    test_hosts: Mapping[int, str] = {}  # Rank to host, as nccl-tests lists them there.
    num_nodes: int | None = None  # Nodes that the widest communicator spans, if a line says so.
    choices: tuple[NcclChoice, ...] = ()  # Algorithms and protocols.
    warnings: tuple[NcclWarning, ...] = ()  # Warnings, most frequent first.
    num_lines: int = 0  # Lines read, including those of other programs.
    num_bytes: int = 0  # Bytes read, uncompressed.
    # Messages marked INFO; a line may hold several if ranks wrote at the same time.
    num_info: int = 0
    num_warn: int = 0  # Messages marked WARN.
    num_unknown: int = 0  # Messages of both kinds that the reader does not recognise.
    num_cut: int = 0  # Messages of both kinds that the output of other ranks cut off.
    unknown: tuple[str, ...] = ()  # Examples of unrecognised messages.
    notes: tuple[str, ...] = ()  # Damaged or skipped data, one sentence each.

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


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies a GPU."""

    host: str = ""  # Host name, empty if unknown.
    index: int | None = None  # Index of the GPU on its host in the driver's order, None if unknown.
    uuid: str = ""  # For example ``GPU-5269b708-…``; empty if unknown.
    bus_id: str = ""  # PCI bus id as ``domain:bus:device.function``, lower case; empty if unknown.
    name: str = ""  # For example ``NVIDIA H200``; empty if unknown.


class OfDevice(Identity, frozen=True, kw_only=True):
    """What a file says about one GPU."""

    file: str  # File that says it.
    rank: int | None = None  # Global rank on that GPU, None if unknown.


class DeviceSeries(OfDevice, frozen=True, kw_only=True):
    """Sensor samples of one GPU."""

    clock: Clock  # Meaning of the times.
    table: Table  # TELEMETRY, ascending in time.


class DeviceEvent(OfDevice, frozen=True, kw_only=True):
    """An error logged by a kernel, a driver or the fabric manager.

    Its bus id may be that of a switch, and its rank that of a process.
    """

    # ``xid`` of a GPU, ``fabric`` of an NVSwitch, ``crash`` of a process (a segmentation fault or
    # another trap), ``oom`` for a process that the kernel killed to free memory, ``iommu`` for an
    # access of a GPU that the IOMMU refused.
    kind: Literal["xid", "fabric", "crash", "oom", "iommu"]
    number: int | None  # Number of the error, None if the line has none.
    text: str  # The line, without its time.
    t_ns: int | None = None  # Time on ``clock``, None if the line has none.
    clock: Clock = "none"  # Meaning of ``t_ns``; ``none`` if it is None.
    time: str = ""  # The time as written in the line.
    # Name of the process, which the kernel cuts after 15 characters; empty if unknown.
    process: str = ""
    # Id of the process or, for a crash, of the thread that crashed; None if unknown.
    pid: int | None = None
    memory_bytes: int | None = None  # Memory that a killed process held, None if unknown.


class DeviceLinks(OfDevice, frozen=True, kw_only=True):
    """NVLinks of one GPU at one moment."""

    # Speed of each link per direction, GB/s; None for an inactive link.
    gb_per_s: tuple[float | None, ...]


class DeviceState(OfDevice, frozen=True, kw_only=True):
    """State of one GPU at one moment, other than its sensors."""

    driver: str = ""  # Version of the driver; empty if unknown.
    cuda: str = ""  # Newest version of CUDA that the driver supports; empty if unknown.
    # Whether the GPU was busy, in which case its PCIe link is not slowed down to save power; None
    # if unknown.
    is_in_use: bool | None = None
    pcie_generation: int | None = None  # Generation of the link at that moment, None if unknown.
    pcie_generation_max: int | None = None  # Highest generation that the GPU and its host allow.
    pcie_width: int | None = None  # Lanes of the link at that moment, None if unknown.
    pcie_width_max: int | None = None  # Most lanes that the GPU and its host allow.
    # Uncorrected memory errors since the driver was loaded; None if unknown.
    ecc_uncorrected: int | None = None
    # Whether a memory repair waits for a reset (a row to be remapped, a page to be retired); None
    # if unknown.
    is_repair_pending: bool | None = None
    has_repair_failed: bool | None = None  # Whether a memory repair failed; None if unknown.
    # Action that the driver requests, for example ``Reset``; empty if none or unknown.
    recovery: str = ""


class DeviceLog(msgspec.Struct, frozen=True, kw_only=True):
    """Content of sensor files and kernel logs."""

    files: tuple[str, ...] = ()  # Files read.
    series: tuple[DeviceSeries, ...] = ()  # Sensor samples, one entry per GPU and clock.
    events: tuple[DeviceEvent, ...] = ()  # Errors, in order of the files.
    links: tuple[DeviceLinks, ...] = ()  # NVLinks, one entry per GPU.
    states: tuple[DeviceState, ...] = ()  # PCIe link and memory, one entry per GPU.
    kernel_logs: tuple[str, ...] = ()  # Those of the files that are kernel logs.
    num_lines: int = 0  # Lines read.
    # File to the time of its last change, ns since the epoch; without compressed files and files of
    # other machines.
    written_ns: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()  # Damaged or skipped data and choices made, one sentence each.

    @staticmethod
    def merged(logs: Sequence[DeviceLog]) -> DeviceLog:
        """Several logs as one."""
        joined: dict[str, Any] = {
            name: tuple(each for log in logs for each in getattr(log, name))
            for name in ("files", "series", "events", "links", "states", "kernel_logs")
        }
        return DeviceLog(
            **joined,
            num_lines=sum(log.num_lines for log in logs),
            written_ns={file: ns for log in logs for file, ns in log.written_ns.items()},
            notes=tuple(dict.fromkeys(note for log in logs for note in log.notes)),
        )


# Training programs --------------------------------------------------------------------------------


_FAR_BEHIND, _ALIKE = 3, 1.2  # Reports before the first one of a log, and its ratio to others
_STARTS = 2  # Last digits up to this may be those of the first iteration of a job
_FIRST, _FAR, _MANY = 5, 3, 100  # Reports in which one is launched ahead, its ratio, iterations


class TrainingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Layout of the job according to the log; None for properties that the log does not give."""

    world_size: int | None = None  # Number of ranks.
    mesh: Mapping[str, int] = {}  # Axis (``tp``, ``pp``, ``dp``, ``cp``, ``ep``) to its size.
    num_micro_batches: int | None = None  # Micro-batches per iteration and pipeline.
    micro_batch_size: int | None = None  # Samples per micro-batch.
    global_batch_size: int | None = None  # Samples per iteration, all ranks together.
    sequence_length: int | None = None  # Tokens per sample.
    virtual_stages: int | None = None  # Stages per pipeline rank.
    tokens: int | None = None  # Tokens per iteration, all ranks together, if that is printed.


class TrainingLog(msgspec.Struct, frozen=True, kw_only=True):
    """Printed iterations; all arrays have one entry per report, in the order of the log."""

    origin: str  # Program that printed the log, for example ``Megatron-LM``.
    files: tuple[str, ...] = ()  # Paths as the user named them.
    whose: str = ""  # Of several files, the one that the reports are of, or its rank.
    iteration: Int64Array  # int64, number of the (last) iteration of a report, or ABSENT.
    span: Int64Array  # int64, number of iterations that a report is the mean of, at least 1.
    duration_ns: Int64Array  # int64, time of one iteration, or ABSENT.
    samples_per_s: Floats  # float64, all ranks together, NaN if not printed.
    tokens_per_s: Floats  # float64, all ranks together, NaN if not printed.
    tokens_per_s_per_device: Floats  # float64, NaN if not printed.
    tflops: Floats  # float64, per GPU, NaN if not printed.
    loss: Floats  # float64, NaN if not printed.
    # float64 of any length, throughput printed apart from the reports.
    printed_samples_per_s: Floats
    timers: Mapping[str, Int64Array] = {}  # Name of a timer to int64 ns per iteration, or ABSENT.
    is_of_slowest_ranks: bool = False  # Whether each timer shows the slowest rank in that timer.
    # Time per iteration that printed iterations do not have, as a mean; None if they are alike.
    unprinted_ns: int | None = None
    # Layout of the job according to the log.
    facts: TrainingFacts = msgspec.field(default_factory=TrainingFacts)
    num_lines: int = 0  # Lines of the files.
    num_reports: int = 0  # Lines recognised as a report on iterations or timers.
    num_unknown: int = 0  # Lines that resemble a report but could not be read.
    num_restarts: int = 0  # How often the iteration number goes back.
    notes: tuple[str, ...] = ()  # Assumptions and skipped data, one sentence each.

    @property
    def unit(self) -> str:
        """What a duration is that of: an iteration, an epoch, or what else the log counts."""
        return unit_of(self.origin)

    @property
    def is_steady(self) -> Bools:
        """Mask of the reports that count: with a duration, and not the first or after a restart.

        The first iterations allocate, compile and connect, or are only launched, unless they are
        far behind or many, and not longer, or the log begins with a number at which none starts. If
        no other has a duration, these count.
        """
        timed = np.flatnonzero(self.duration_ns != ABSENT)
        number = self.iteration[timed]
        goes_back = (number[1:] != ABSENT) & (number[1:] < number[:-1])
        steady = np.zeros(len(self.iteration), np.bool_)
        steady[timed[1:][~goes_back]] = True
        ns, known = self.duration_ns[timed], timed[number != ABSENT][:1]
        is_late = (self.iteration[known] > _FAR_BEHIND * self.span[known]).any()
        usual = np.median(ns) if len(ns) else 0.0
        is_late |= ((self.span[timed[:1]] > _MANY) & (_ALIKE * ns[:1] < usual)).any()
        if is_late or self.unit == "epoch":
            steady[timed[:1]] = ns[:1] <= (_ALIKE if is_late else 1.0) * ns[1:].max(initial=0)
        nth, is_each = self.iteration[known], (known == timed[:1]) & (self.span == 1).all()
        is_cut = is_each & (nth % 10 > _STARTS) & (nth < _MANY)
        steady[timed[:1]] |= (nth > _STARTS if self.unit == "epoch" else is_cut).any()
        is_ahead = (_FAR * ns[:-1] < usual) & (ns[1:] * _ALIKE > usual)
        if not is_ahead[_FIRST:].any():
            is_ahead[1:] = np.minimum.accumulate(is_ahead[1:])  # a usual one ends the launch
            steady[timed[:-1][is_ahead]] = False
        return steady if steady.any() else self.duration_ns != ABSENT

    @property
    def steady_ns(self) -> Int64Array:
        """int64, times of one iteration of the reports that count."""
        return self.duration_ns[self.is_steady]

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
        if facts.tokens or facts.global_batch_size is None or facts.sequence_length is None:
            return facts.tokens
        return facts.global_batch_size * facts.sequence_length


class OutputEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A line, or a record of several lines, that an expression of the table recognises."""

    name: str  # Name of the expression.
    yields: str  # What the line is about, as the table says: ``timeout``, ``exit``, ``memory``, ….
    file: str  # File, as shown.
    line: int  # Number of the line, from 1.
    text: str  # The line, without control characters, truncated.
    rank: int | None = None  # Rank that the line is about; None if unknown.
    # Time of the line, or of the last line before it that has one, in seconds that ascend within a
    # year; None without one nearby.
    at_s: float | None = None
    fields: Mapping[str, str] = {}  # What the expression captured, by name.
    again: int = 0  # Number of the last line of the file that says the same; 0 if none does.

    def number(self, name: str) -> int | None:
        """A captured whole number; None if it was not captured or is out of range."""
        text = self.fields.get(name, "").replace(",", "")
        digits = text.removeprefix("-")
        return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None

    def ranks(self) -> tuple[int, ...]:
        """The ranks in a captured list, such as ``1, 2, 5``."""
        text = self.fields.get("ranks", "")
        spans = re.findall(r"(?:task:|(?<![\w:.]))(\d{1,7})(?:-(\d{1,7}))?(?!\d)", text, re.ASCII)
        ends = ((int(first), int(last or first)) for first, last in spans)
        return tuple(sorted({n for a, b in ends for n in range(a, min(b, a + 4096) + 1)}))


class OutputStack(msgspec.Struct, frozen=True, kw_only=True):
    """The Python stack of a process's main thread, as a tool or a signal printed it."""

    file: str  # File, as shown.
    line: int  # Number of the first line of the stack.
    rank: int | None  # Rank of the process; None if unknown.
    calls: tuple[str, ...]  # ``function (file:line)``, innermost first.
    process: str = ""  # Id and command of the process; empty if unknown.


class JobOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What the output of a job, or of some of its ranks, says about how it ended."""

    files: tuple[str, ...] = ()  # Files, as shown.
    events: tuple[OutputEvent, ...] = ()  # Events, by file and line.
    stacks: tuple[OutputStack, ...] = ()  # Stacks, by file and line.
    ranks: tuple[int, ...] = ()  # Ranks that printed at least one line that names them.
    # Ranks of the job according to the output; None if it does not say.
    world_size: int | None = None
    num_lines: int = 0  # Lines read.
    lines_of: Mapping[str, int] = {}  # Lines of each file.
    last_lines: Mapping[int, str] = {}  # The last line of each rank near the end of its file.
    ends: Mapping[str, tuple[str, ...]] = {}  # The last lines of each file, blank ones included.
    notes: tuple[str, ...] = ()  # Damaged or left-out data, one sentence each.

    @property
    def end_lines(self) -> Iterator[str]:
        """The last lines of all files, one file after the other."""
        return chain.from_iterable(self.ends.values())
