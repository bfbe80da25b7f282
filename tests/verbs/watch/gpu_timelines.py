"""GPUs that work through streams: what each really did, and what a Flight Recorder says of it.

A rank's program is a list of operations in the order in which its CPU enqueues them. ``Work`` runs
on the compute stream. ``Together`` starts on a stream of its own once the compute stream has come
this far and the stream is free, and ends for all members at once: ``takes_ms`` after the last has
started. ``Await`` holds the compute stream until those of this name or group have ended. Nothing
here is taken from the code under test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from distprof_probes.probes.collective_steps import CollectiveSteps, Dump, Window
from msgspec import convert

from distprof.artefacts.records import CollectivesRecord

MS = 1_000_000
START_NS = 1_750_000_000 * 10**9


@dataclass(frozen=True)
class Work:
    ms: float


@dataclass(frozen=True)
class Together:
    group: str
    members: tuple[int, ...]
    takes_ms: float = 0.5
    op: str = "all_reduce"
    stream: str = ""
    name: str = ""


@dataclass(frozen=True)
class Await:
    name: str


Program = Sequence[Work | Together | Await]


@dataclass
class Done:
    """An operation, on one rank."""

    what: Together
    number: int
    asked_ms: float
    worked_ms: float
    started_ms: float = -1.0
    ended_ms: float = -1.0

    @property
    def took_ms(self) -> float:
        return self.ended_ms - self.started_ms


@dataclass
class Gpu:
    """One rank's GPU, at its own time."""

    now_ms: float = 0.0
    work_ms: float = 0.0
    blocked_ms: list[float] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    queues: dict[str, deque[Done]] = field(default_factory=dict)
    free_ms: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    todo: deque[Work | Together | Await] = field(default_factory=deque)

    def go_on(self) -> bool:
        """Run until something is awaited that has not ended; whether anything was done."""
        moved = False
        while self.todo:
            op = self.todo[0]
            if isinstance(op, Work):
                self.now_ms += op.ms
                self.work_ms += op.ms
            elif isinstance(op, Together):
                self._ask(op)
            elif not self._has_awaited(op):
                break
            self.todo.popleft()
            moved = True
        return moved

    def _ask(self, op: Together) -> None:
        number = self.counts[op.group] = self.counts.get(op.group, 0) + 1
        done = Done(op, number, self.now_ms, self.work_ms)
        self.done.append(done)
        self.queues.setdefault(op.stream or op.group, deque()).append(done)

    def _has_awaited(self, op: Await) -> bool:
        waited = [done for done in self.done if op.name == (done.what.name or done.what.group)]
        if any(done.ended_ms < 0 for done in waited):
            return False
        free_ms = max([self.now_ms, *(done.ended_ms for done in waited)])
        self.blocked_ms.append(free_ms - self.now_ms)
        self.now_ms = free_ms
        return True


class Cluster:
    """Ranks that train together."""

    def __init__(self, ranks: int) -> None:
        self.gpus = [Gpu() for _ in range(ranks)]

    def run(self, program: Callable[[int], Program]) -> None:
        """All ranks run a step."""
        for rank, gpu in enumerate(self.gpus):
            gpu.done.clear()
            gpu.work_ms = 0.0
            gpu.blocked_ms.clear()
            gpu.todo = deque(program(rank))
        moved = True
        while moved:
            ran = [gpu.go_on() for gpu in self.gpus]
            moved = any(ran) | self._meet()
        assert not any(gpu.todo for gpu in self.gpus), "the programs do not fit each other"

    def _meet(self) -> bool:
        """Start and end operations that all members have reached."""
        moved = False
        for gpu in self.gpus:
            for queue in gpu.queues.values():
                if queue:
                    moved |= self._end(queue[0].what, queue[0].number)
        return moved

    def _end(self, op: Together, number: int) -> bool:
        heads = []
        for rank in op.members:
            queue = self.gpus[rank].queues.get(op.stream or op.group)
            if not queue or queue[0].what.group != op.group or queue[0].number != number:
                return False
            heads.append((self.gpus[rank], queue))
        for gpu, queue in heads:
            free_ms = gpu.free_ms.get(op.stream or op.group, 0.0)
            queue[0].started_ms = max(queue[0].asked_ms, free_ms)
        ended_ms = max(queue[0].started_ms for _, queue in heads) + op.takes_ms
        for gpu, queue in heads:
            done = queue.popleft()
            done.ended_ms = gpu.free_ms[op.stream or op.group] = ended_ms
        return True


class Recorder:
    """The Flight Recorder of a rank, and the probe's view of it."""

    def __init__(self) -> None:
        self.steps = CollectiveSteps()
        self.num = 0
        self.config: dict[str, Any] = {}

    def step(self, step: int, gpu: Gpu, step_ms: float) -> list[CollectivesRecord]:
        """What the probe writes of a step."""
        start = START_NS + round(step * step_ms * MS)
        end = start + round(step_ms * MS)
        entries = []
        for index, done in enumerate(gpu.done):
            op = done.what
            self.config[op.group] = {"ranks": str(list(op.members))}
            is_message = op.op in ("send", "recv")
            entries.append(
                {
                    "record_id": self.num,
                    "time_created_ns": start + index,
                    "profiling_name": f"nccl:{op.op}",
                    "process_group": [op.group, ""],
                    "collective_seq_id": 0 if is_message else done.number,
                    "p2p_seq_id": done.number if is_message else 0,
                    "duration_ms": done.took_ms,
                    "retired": True,
                    "is_p2p": is_message,
                }
            )
            self.num += 1
        self.steps.windows.append(Window(step, start, end))
        # Only this step's operations: those before it were read already
        first = [{**entries[0], "record_id": 0}] if entries else []
        dump = {"entries": [*first, *entries[1:]], "pg_config": self.config}
        return self.steps.take(convert(dump, Dump), asked_ns=end)
