"""The simulation: a rank is a generator that stops at a collective until all members are there."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

from distprof.terms import CollectiveKind
from tests.simulator.job import (
    Collective,
    Compute,
    Exchange,
    Fault,
    Input,
    LateHost,
    LateInput,
    MoreWork,
    SimulatedJob,
    SlowDevice,
)
from tests.simulator.recording import (
    CommEvent,
    DeviceEvent,
    HostEvent,
    Instance,
    RankLog,
    Recording,
)

COMPUTE_STREAM = 7
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
    """A member of a collective has started it."""

    key: tuple[str, tuple[int, ...], int]
    rank: int
    start: float
    op: Collective | Exchange
    members: tuple[int, ...]
    ranks: tuple[int, ...]
    step: int


class RankProcess:
    """One rank: a host that launches, a compute stream, and a stream per axis."""

    def __init__(self, job: SimulatedJob, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.noise = random.Random(f"{job.seed}/{rank}")
        self.log = RankLog(rank=rank)
        self.host = float(job.profiler_start_ns.get(rank, 0))
        self.log.begin = self.host
        self.device = self.host
        self.streams = dict.fromkeys(job.groups, self.host)
        self.pending = self.host
        self.correlation = 1000
        self.seq: dict[tuple[str, tuple[int, ...]], int] = {}

    def steps(self) -> Generator[Arrival, tuple[Instance, float], None]:
        for step in self.job.steps:
            begin = self.host
            stalled = False
            for op in self.job.program:
                if isinstance(op, Input):
                    self._input(op, step)
                elif isinstance(op, Compute):
                    if not stalled:
                        self.host += self._extra(LateHost, step)
                        stalled = True
                    self._compute(op, step)
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

    def _extra(self, kind: type[LateHost] | type[LateInput], step: int) -> int:
        return sum(fault.ns for fault in self._faults(kind, step))

    def _factor(self, kind: type[SlowDevice] | type[MoreWork], step: int) -> float:
        factor = 1.0
        for fault in self._faults(kind, step):
            factor *= fault.factor
        return factor

    def _launch(self, call: str = "cudaLaunchKernel") -> float:
        """The host launches something; returns when the device could start it at the earliest."""
        self.correlation += 1
        start = self.host
        self.log.host.append(
            HostEvent(
                start=start,
                end=start + LAUNCH_CALL_NS,
                name=call,
                category="runtime",
                correlation=self.correlation,
            )
        )
        self.host += max(self.job.launch_ns, LAUNCH_CALL_NS)
        return start + LAUNCH_LATENCY_NS

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
        usual = op.ns / op.kernels * self._factor(SlowDevice, step)
        for _ in range(count):
            ready = self._launch()
            length = max(1_000.0, usual * (1 + self.noise.gauss(0, self.job.compute_noise)))
            start = max(ready, self.device)
            self.device = start + length
            self._run(start, self.device, op.name, "computation", COMPUTE_STREAM, step)

    def _run(self, start: float, end: float, name: str, kind: str, stream: int, step: int) -> None:
        self.log.device.append(
            DeviceEvent(
                start=start,
                end=end,
                name=name,
                kind=kind,
                stream=stream,
                correlation=self.correlation,
                step=step,
            )
        )

    def _communicate(
        self, op: Collective | Exchange, step: int
    ) -> Generator[Arrival, tuple[Instance, float], None]:
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
        start = max(ready, self.streams[op.axis], self.device)
        instance, end = yield Arrival(
            (op.axis, members, seq), self.rank, start, op, members, group, step
        )
        self.streams[op.axis] = end
        self.pending = max(self.pending, end)
        if not getattr(op, "overlap", False):
            self.device = max(self.device, end)
        stream = FIRST_COMM_STREAM + list(self.job.groups).index(op.axis)
        self._run(start, end, kernel_name(kind), "communication", stream, step)
        self.log.comm.append(
            CommEvent(
                instance=instance,
                kind=kind,
                start=start,
                end=end,
                enqueue=enqueue,
                stream=stream,
                correlation=correlation,
                name=kernel_name(kind),
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
    todo: deque[tuple[int, tuple[Instance, float] | None]] = deque(
        (rank, None) for rank in range(job.world_size)
    )
    while todo:
        rank, message = todo.popleft()
        try:
            arrival = generators[rank].send(message)  # type: ignore[arg-type]
        except StopIteration:
            continue
        arrived = waiting.setdefault(arrival.key, [])
        arrived.append(arrival)
        if len(arrived) == len(arrival.members):
            del waiting[arrival.key]
            instance = _finish(arrived)
            instances.append(instance)
            for member in arrived:
                todo.append((member.rank, (instance, _observed_end(job, instance, jitter))))
    if waiting:
        raise RuntimeError(f"the program deadlocks at {sorted(waiting)}")
    return Recording(
        job=job,
        logs=tuple(process.log for process in processes),
        instances=tuple(sorted(instances, key=lambda instance: instance.end_ns)),
    )


def _finish(arrived: list[Arrival]) -> Instance:
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
        end_ns=max(start.values()) + op.transfer_ns,
    )


def _observed_end(job: SimulatedJob, instance: Instance, jitter: random.Random) -> float:
    end = instance.end_ns + jitter.uniform(-job.end_jitter_ns, job.end_jitter_ns)
    return max(end, instance.last_start_ns + 1)
