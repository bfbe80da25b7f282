"""The simulation: a rank is a generator that stops at a collective until all members are there."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TypeVar

from distprof.terms import CollectiveKind
from tests.simulator.job import (
    COPIES,
    Collective,
    Compute,
    Copy,
    Exchange,
    Fault,
    GarbageCollection,
    Input,
    LargerInputs,
    LateHost,
    LateInput,
    Marked,
    MoreWork,
    NamedPause,
    NoisyHost,
    Op,
    SimulatedJob,
    SlowCopies,
    SlowDevice,
    SlowLaunches,
    SlowLink,
)
from tests.simulator.recording import (
    CommEvent,
    DeviceEvent,
    HostEvent,
    Instance,
    RankLog,
    Recording,
)

_Timed = TypeVar("_Timed", DeviceEvent, CommEvent)

COMPUTE_STREAM = 7
COPY_STREAM = 12
FIRST_COMM_STREAM = 20
LAUNCH_LATENCY_NS = 4_000
LAUNCH_CALL_NS = 5_000
TAIL_NS = 50_000  # the profiler runs on a little after the last step

NCCL_NAMES = {
    CollectiveKind.ALL_REDUCE: "AllReduce_Sum_bf16_RING_LL",
    CollectiveKind.ALL_GATHER: "AllGather_RING_LL",
    CollectiveKind.REDUCE_SCATTER: "ReduceScatter_Sum_bf16_RING_LL",
    CollectiveKind.ALL_TO_ALL: "SendRecv",
    CollectiveKind.BROADCAST: "Broadcast_RING_LL",
    CollectiveKind.SEND: "SendRecv",
    CollectiveKind.RECV: "SendRecv",
}


def kernel_name(kind: CollectiveKind) -> str:
    return f"ncclDevKernel_{NCCL_NAMES[kind]}(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Arrival:
    """A member of a collective has started it; one that does not wait is told of its end later."""

    key: tuple[str, tuple[int, ...], int]
    rank: int
    start: float
    op: Collective | Exchange
    members: tuple[int, ...]
    ranks: tuple[int, ...]
    step: int
    done: Callable[[Instance, float], None] | None = None


Answer = tuple[Instance, float] | None


class RankProcess:
    """One rank: a host that launches, a compute stream, and a stream per axis."""

    def __init__(self, job: SimulatedJob, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.noise = random.Random(f"{job.seed}/{rank}")
        self.log = RankLog(rank=rank)
        others = random.Random(f"{job.seed}/{rank}/device")
        self.slowness = max(0.5, others.gauss(1, job.device_spread))
        self.host_noise = random.Random(f"{job.seed}/{rank}/host")
        self.host = float(job.profiler_start_ns.get(rank, 0))
        self.log.begin = self.host
        self.device = self.host
        self.streams = dict.fromkeys(job.groups, self.host)
        self.pending = self.host
        self.correlation = 1000
        self.launch_ns = job.launch_ns
        self.seq: dict[tuple[str, tuple[int, ...]], int] = {}
        self.ends: list[float] = []  # of what was launched, in that order

    def steps(self) -> Generator[Arrival, Answer, None]:
        for step in self.job.steps:
            begin = self.host
            stalled = False
            self.launch_ns = self.job.launch_ns + self._extra(SlowLaunches, step)
            for op in self._program():
                if isinstance(op, Input):
                    self._input(op, step)
                elif isinstance(op, Compute | Marked):
                    if not stalled:
                        self._stall(step)
                        stalled = True
                    if isinstance(op, Marked):
                        self._marked(op, step)
                    else:
                        self._compute(op, step)
                elif isinstance(op, Copy):
                    self._copy(op, step)
                elif isinstance(op, Collective | Exchange):
                    yield from self._communicate(op, step)
                else:
                    self.device = max(self.device, self.pending)
            if self.job.synchronise:
                self._synchronise()
            self.log.steps.append((step, begin, self.host))
        self.log.finish = max(self.host, self.device, self.pending) + TAIL_NS

    def _faults(self, kind: type[Fault], step: int) -> list[Fault]:
        return [
            fault
            for fault in self.job.faults
            if isinstance(fault, kind)
            and fault.rank == self.rank
            and (fault.steps is None or step in fault.steps)
        ]

    def _program(self) -> tuple[Op, ...]:
        return self.job.programs.get(self.rank, self.job.program)

    def _stall(self, step: int) -> None:
        self.host += self._extra(LateHost, step)
        for pause in self._faults(NamedPause, step):
            category = "runtime" if pause.is_call else "annotation"
            end = self.host + pause.ns
            self.log.host.append(
                HostEvent(start=self.host, end=end, name=pause.name, category=category)
            )
            self.host = end
        for noise_ns in (self.job.host_noise_ns, self._extra(NoisyHost, step)):
            if noise_ns:
                self.host += self.host_noise.expovariate(1 / noise_ns)
        collecting = self._extra(GarbageCollection, step)
        if collecting:
            self.log.collections.append((step, self.host, self.host + collecting))
            self.host += collecting

    def _extra(
        self,
        kind: type[LateHost | LateInput | NoisyHost | GarbageCollection | SlowLaunches],
        step: int,
    ) -> int:
        return sum(fault.ns for fault in self._faults(kind, step))

    def _factor(self, kind: type[Fault], step: int) -> float:
        factor = 1.0
        for fault in self._faults(kind, step):
            factor *= fault.factor
        return factor

    def _launch(self, call: str = "cudaLaunchKernel") -> float:
        """The host launches something; returns when the device could start it at the earliest."""
        self.correlation += 1
        depth = self.job.queue_depth
        start = self.host
        if depth and len(self.ends) >= depth:  # the call returns when there is room
            self.host = max(self.host, self.ends[-depth])
        ready = self.host
        self.log.host.append(
            HostEvent(
                start=start,
                end=ready + LAUNCH_CALL_NS,
                name=call,
                category="runtime",
                correlation=self.correlation,
            )
        )
        self.host += max(self.launch_ns, LAUNCH_CALL_NS)
        return ready + LAUNCH_LATENCY_NS

    def _input(self, op: Input, step: int) -> None:
        start = self.host
        self.host += op.ns + self._extra(LateInput, step)
        self.log.host.append(
            HostEvent(
                start=start,
                end=self.host,
                name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                category="annotation",
            )
        )

    def _compute(self, op: Compute, step: int) -> None:
        count = max(1, round(op.kernels * self._factor(MoreWork, step)))
        usual = op.ns / op.kernels * self._factor(SlowDevice, step) * self.slowness
        usual *= self.job.load.get((op.follows, self.rank, step), 1.0)
        larger = 1.0 if op.fixed else self._factor(LargerInputs, step)
        usual, blocks = usual * larger, round(op.blocks * larger)
        for _ in range(count):
            ready = self._launch()
            length = max(1_000.0, usual * (1 + self.noise.gauss(0, self.job.compute_noise)))
            start = max(ready, self.device)
            self.device = start + length
            self.ends.append(self.device)
            self._run(start, self.device, op.name, "computation", COMPUTE_STREAM, step, blocks)

    def _copy(self, op: Copy, step: int) -> None:
        ready = max(self._launch("cudaMemcpyAsync"), self.streams.get(COPIES, 0.0))
        start = max(ready, self.device) if op.out else ready
        end = start + op.ns * self._factor(SlowCopies, step)
        self.streams[COPIES] = end
        self.pending = max(self.pending, end)
        self.ends.append(end)
        name = "Memcpy DtoH (Device -> Pinned)" if op.out else "Memcpy HtoD (Pinned -> Device)"
        self._run(start, end, name, "copy", COPY_STREAM, step, bytes=op.bytes)

    def _marked(self, op: Marked, step: int) -> None:
        host, first = self.host, len(self.log.device)
        for part in op.ops:
            self._compute(part, step)
        self.log.host.append(
            HostEvent(start=host, end=self.host, name=op.name, category="annotation")
        )
        start = self.log.device[first].start
        self._run(start, self.device, op.name, "annotation", COMPUTE_STREAM, step)

    def _run(
        self,
        start: float,
        end: float,
        name: str,
        kind: str,
        stream: int,
        step: int,
        blocks: int = -1,
        bytes: int = -1,
    ) -> None:
        self.log.device.append(
            DeviceEvent(
                start=start,
                end=end,
                name=name,
                kind=kind,
                stream=stream,
                correlation=self.correlation,
                step=step,
                blocks=blocks,
                bytes=bytes,
            )
        )

    def _communicate(
        self, op: Collective | Exchange, step: int
    ) -> Generator[Arrival, Answer, None]:
        group = next((g for g in self.job.groups[op.axis] if self.rank in g), None)
        if group is None:
            return
        members, kind = group, getattr(op, "kind", CollectiveKind.SEND_RECV)
        if isinstance(op, Exchange):
            members = (group[op.src], group[op.dst])
            if self.rank not in members:
                return
            kind = CollectiveKind.SEND if self.rank == members[0] else CollectiveKind.RECV
        seq = self.seq[op.axis, members] = self.seq.get((op.axis, members), 0) + 1
        enqueue = self.host
        ready = self._launch("cudaLaunchKernelExC")
        correlation = self.correlation
        taken = self.streams.get(getattr(op, "takes", ""), 0.0)
        start = max(ready, self.streams[op.axis], self.device, taken)
        stream = FIRST_COMM_STREAM + list(self.job.groups).index(op.axis)

        def done(instance: Instance, end: float) -> None:
            self._log_comm(instance, kind, (start, end, enqueue), stream, correlation, step)

        detached = kind is CollectiveKind.SEND and getattr(op, "detached", False)
        key = (op.axis, members, seq)
        answer = yield Arrival(
            key, self.rank, start, op, members, group, step, done if detached else None
        )
        self.ends.append(start if answer is None else answer[1])
        if answer is None:
            return
        instance, end = answer
        self.streams[op.axis] = end
        self.pending = max(self.pending, end)
        if not getattr(op, "overlap", False):
            self.device = max(self.device, end)
        done(instance, end)

    def _log_comm(
        self,
        instance: Instance,
        kind: CollectiveKind,
        times: tuple[float, float, float],
        stream: int,
        correlation: int,
        step: int,
    ) -> None:
        start, end, enqueue = times
        name = kernel_name(kind)
        self.log.device.append(
            DeviceEvent(
                start=start,
                end=end,
                name=name,
                kind="communication",
                stream=stream,
                correlation=correlation,
                step=step,
            )
        )
        self.log.comm.append(
            CommEvent(
                instance=instance,
                kind=kind,
                start=start,
                end=end,
                enqueue=enqueue,
                stream=stream,
                correlation=correlation,
                name=name,
            )
        )

    def _synchronise(self) -> None:
        start = self.host
        self.host = max(self.host, self.device, self.pending) + LAUNCH_CALL_NS
        self.log.host.append(
            HostEvent(start=start, end=self.host, name="cudaDeviceSynchronize", category="runtime")
        )


def simulate(job: SimulatedJob) -> Recording:
    """Run all ranks to the end.

    Raises:
        RuntimeError: If the program deadlocks.
    """
    jitter = random.Random(f"{job.seed}/ends")
    processes = [RankProcess(job, rank) for rank in range(job.world_size)]
    generators = [process.steps() for process in processes]
    waiting: dict[tuple[str, tuple[int, ...], int], list[Arrival]] = {}
    instances: list[Instance] = []
    todo: deque[tuple[int, Answer]] = deque((rank, None) for rank in range(job.world_size))
    while todo:
        rank, message = todo.popleft()
        try:
            arrival = generators[rank].send(message)
        except StopIteration:
            continue
        arrived = waiting.setdefault(arrival.key, [])
        arrived.append(arrival)
        if arrival.done is not None:
            todo.append((rank, None))
        if len(arrived) == len(arrival.members):
            del waiting[arrival.key]
            instance = _finish(job, arrived)
            instances.append(instance)
            for member in arrived:
                end = _observed_end(job, instance, jitter)
                if member.done is not None:
                    member.done(instance, end)
                else:
                    todo.append((member.rank, (instance, end)))
    if waiting:
        raise RuntimeError(f"the program deadlocks at {sorted(waiting)}")
    return Recording(
        job=job,
        logs=tuple(_stamped(job, process.log) for process in processes),
        instances=tuple(sorted(instances, key=lambda instance: instance.end_ns)),
    )


def _finish(job: SimulatedJob, arrived: list[Arrival]) -> Instance:
    first = arrived[0]
    op = first.op
    start = {arrival.rank: arrival.start for arrival in arrived}
    return Instance(
        axis=op.axis,
        ranks=first.ranks,
        members=first.members,
        seq=first.key[2],
        kind=op.kind if isinstance(op, Collective) else CollectiveKind.SEND_RECV,
        bytes=op.bytes,
        step=first.step,
        start_ns=start,
        end_ns=max(start.values())
        + op.transfer_ns * _link_factor(job, first) * _busiest_share(job, first),
        in_splits=_splits(job, first, brought=False),
        out_splits=_splits(job, first, brought=True),
    )


def _stamped(job: SimulatedJob, log: RankLog) -> RankLog:
    """The log as a clock with random errors of each stamp writes it."""
    most = job.stamp_noise_ns
    if not most:
        return log
    dice = random.Random(f"stamps {job.seed} {log.rank}")
    error = defaultdict[int, tuple[float, float]](
        lambda: (dice.uniform(-most, most), dice.uniform(-most, most))
    )

    def stamped(event: _Timed) -> _Timed:
        if event.correlation < 0:
            return event
        early, late = error[event.correlation]
        start = event.start + early
        return replace(event, start=start, end=max(event.end + late, start))

    return replace(log, device=[*map(stamped, log.device)], comm=[*map(stamped, log.comm)])


def _splits(job: SimulatedJob, arrival: Arrival, *, brought: bool) -> dict[int, tuple[int, ...]]:
    """Tokens that each member sends every other, or gets from it; empty where none are routed."""
    op = arrival.op
    if not isinstance(op, Collective) or not op.tokens_of:
        return {}
    routed = {
        rank: _by_owner(job.routing[op.tokens_of, rank, arrival.step], len(arrival.members))
        for rank in arrival.members
    }
    if brought == op.brings_back:
        return routed
    return {
        rank: tuple(routed[other][place] for other in arrival.members)
        for place, rank in enumerate(arrival.members)
    }


def _by_owner(tokens: tuple[int, ...], members: int) -> tuple[int, ...]:
    local = len(tokens) // members
    return tuple(sum(tokens[at * local : (at + 1) * local]) for at in range(members))


def _busiest_share(job: SimulatedJob, arrival: Arrival) -> float:
    """What the busiest member gets or gives, over the mean; 1 if it does not matter."""
    if isinstance(arrival.op, Collective) and arrival.op.is_bound_by_latency:
        return 1.0
    totals = [
        sum(split)
        for brought in (False, True)
        for split in _splits(job, arrival, brought=brought).values()
    ]
    return max(totals) * len(totals) / sum(totals) if totals else 1.0


def _link_factor(job: SimulatedJob, arrival: Arrival) -> float:
    """How much longer a transfer takes by the slowest link that it passes."""
    is_inside = len({job.node_of(rank) for rank in arrival.members}) < 2
    return max(
        (
            fault.factor
            for fault in job.faults
            if isinstance(fault, SlowLink)
            and fault.rank in arrival.members
            and (fault.is_gpu or not is_inside)
            and (fault.steps is None or arrival.step in fault.steps)
        ),
        default=1.0,
    )


def _observed_end(job: SimulatedJob, instance: Instance, jitter: random.Random) -> float:
    end = instance.end_ns + jitter.uniform(-job.end_jitter_ns, job.end_jitter_ns)
    return max(end, instance.last_start_ns + 1)
