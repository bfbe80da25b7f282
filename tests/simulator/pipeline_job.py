"""Pipelines simulated event by event, so that the truth behind their traces is known.

It shares no arithmetic with distprof: a heap of events, and plain sums. Ranks carry out the actions
of a given order; each waits for its rank, for its input, and for the host. Example::

    job = PipelineJob(orders=((("F", 0, 0), ("B", 0, 0)), (("F", 1, 0), ("B", 1, 0))), …)
    recording = job.run()
    recording.truth().bubble_fraction
    job.parts().messages_ns               # what messages cost, by simulating without them
    run = recording.to_run()              # tables in memory, through distprof's ingest
    recording.write_kineto(folder)
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from distprof.run.run import Run

Action = tuple[str, int, int]
"""Letter of F, B, I, W, then stage and micro-batch."""

Marks = Literal["distprof", "torch", "host", "none"]
"""``host``: torch's annotations on the host alone, which runs ahead of its device."""


@dataclass(frozen=True, kw_only=True)
class PipelineJob:
    """A pipeline and how it runs; all times in ns.

    Args:
        orders: For each rank of the pipeline, its actions in order.
        pairs: For each rank, which actions form a pair with the next: it sends after both.
        forward_ns: Per stage.
        input_ns: Per stage, the input's part of a backward.
        weight_ns: Per stage, the weight's part.
        message_ns: From the end of an action to its output being at the next stage's rank.
        launch_ns: By which every action starts late, because of the host.
        noise: Standard deviation of every action's duration, relative.
        optimizer_ns: After each step.
        reduce_ns: Of the collectives after each step.
        num_steps: Steps, numbered from 10.
        replicas: Pipelines beside each other (data parallel); rank = position · replicas + replica.
        clock_offset_ns: Added to each rank's clock, on nodes of their own; empty for one clock.
        seed: Of the noise.
    """

    orders: Sequence[Sequence[Action]]
    pairs: Sequence[Sequence[bool]] = ()
    forward_ns: Sequence[int]
    input_ns: Sequence[int]
    weight_ns: Sequence[int]
    message_ns: int = 0
    launch_ns: int = 0
    noise: float = 0.0
    optimizer_ns: int = 3_000_000
    reduce_ns: int = 500_000
    num_steps: int = 2
    replicas: int = 1
    clock_offset_ns: Sequence[int] = ()
    seed: int = 0

    @property
    def num_positions(self) -> int:
        """Ranks of one pipeline."""
        return len(self.orders)

    @property
    def world_size(self) -> int:
        return self.num_positions * self.replicas

    def rank_of(self, position: int, replica: int) -> int:
        return position * self.replicas + replica

    def duration(self, letter: str, stage: int) -> int:
        """Of an action, without noise."""
        forward, inputs, weight = (
            int(part[stage]) for part in (self.forward_ns, self.input_ns, self.weight_ns)
        )
        return {"F": forward, "B": inputs + weight, "I": inputs, "W": weight}[letter]

    def run(self) -> PipelineRecording:
        """Every step; the next begins when the collectives and the optimizer are through."""
        noise = random.Random(self.seed)
        recording = PipelineRecording(job=self)
        begin = 1_000_000
        for step in range(10, 10 + self.num_steps):
            ready = []
            for replica in range(self.replicas):
                ready += _Step(self, recording, step, begin, replica, noise).run()
            begin = self._finish_step(recording, step, begin, ready)
        return recording

    def _finish_step(
        self,
        recording: PipelineRecording,
        step: int,
        begin: int,
        ready: Iterable[tuple[int, int]],
    ) -> int:
        """A collective that joins all ranks, then the optimizer on each; when it is over."""
        starts = dict(ready)
        joined = max(starts.values()) + self.reduce_ns
        end = joined + self.optimizer_ns
        recording.steps.append(
            StepEnd(step=step, begin=begin, ready=starts, joined=joined, end=end)
        )
        return end

    def parts(self) -> Parts:
        """What idle is made of, each part the difference to a pipeline without it."""
        mean = [
            [sum(part) // len(part)] * len(part)
            for part in (self.forward_ns, self.input_ns, self.weight_ns)
        ]
        own = replace(self, launch_ns=0, message_ns=0, noise=0.0)
        equal = replace(own, forward_ns=mean[0], input_ns=mean[1], weight_ns=mean[2])
        varied = replace(own, noise=self.noise)
        chain = (equal, own, varied, replace(self, launch_ns=0), self)
        spans = [job.run().truth().span_ns for job in chain]
        busy = equal.run().truth().mean_busy_ns
        return Parts(
            warm_up_drain_ns=spans[0] - busy,
            imbalance_ns=spans[1] - spans[0],
            variation_ns=spans[2] - spans[1],
            messages_ns=spans[3] - spans[2],
            host_ns=spans[4] - spans[3],
        )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Of the mean idle per rank and step; ``variation_ns`` is that of the noise."""

    warm_up_drain_ns: float
    imbalance_ns: float
    variation_ns: float
    messages_ns: float
    host_ns: float


@dataclass(frozen=True, kw_only=True)
class Slot:
    """An action as it happened, in true time."""

    rank: int
    step: int
    letter: str
    stage: int
    micro_batch: int
    posted: int
    """When the rank had nothing else to do than this."""
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Message:
    """From one rank to another; ``posted`` by the receiver."""

    source: int
    target: int
    sent: int
    posted: int
    arrival: int


@dataclass(frozen=True, kw_only=True)
class StepEnd:
    """The end of a step: ranks are ready, then joined by a collective, then through."""

    step: int
    begin: int
    ready: dict[int, int]
    joined: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Truth:
    """One pipeline's mean step. The span runs from the first action of any rank to the last.

    Args:
        busy_ns: Work of each position.
        warm_up_ns: Per position, from the span's start to its first action.
        drain_ns: Per position, from its last action to the span's end.
        exposed_message_ns: Per position, while nothing but the message was still missing.
        host_ns: Per position, late launches inside of its own span.
    """

    span_ns: float
    busy_ns: tuple[float, ...]
    warm_up_ns: tuple[float, ...]
    drain_ns: tuple[float, ...]
    exposed_message_ns: tuple[float, ...]
    host_ns: tuple[float, ...]

    @property
    def mean_busy_ns(self) -> float:
        return sum(self.busy_ns) / len(self.busy_ns)

    @property
    def bubble_fraction(self) -> float:
        return 1 - self.mean_busy_ns / self.span_ns

    @property
    def bubble_fractions(self) -> tuple[float, ...]:
        """Of each position."""
        return tuple(1 - busy / self.span_ns for busy in self.busy_ns)


@dataclass(kw_only=True)
class PipelineRecording:
    """What happened, and what traces of it would tell."""

    job: PipelineJob
    slots: list[Slot] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    steps: list[StepEnd] = field(default_factory=list)

    def truth(self, replica: int = 0) -> Truth:
        """The mean of all steps."""
        places = [self.job.rank_of(p, replica) for p in range(self.job.num_positions)]
        parts = [_truth_of(self, step.step, places) for step in self.steps]
        number = len(parts)

        def mean(name: str) -> tuple[float, ...]:
            columns = zip(*(getattr(part, name) for part in parts), strict=True)
            return tuple(sum(column) / number for column in columns)

        return Truth(
            span_ns=sum(part.span_ns for part in parts) / number,
            busy_ns=mean("busy_ns"),
            warm_up_ns=mean("warm_up_ns"),
            drain_ns=mean("drain_ns"),
            exposed_message_ns=mean("exposed_message_ns"),
            host_ns=mean("host_ns"),
        )

    def in_flight(self, stage: int) -> int:
        """Most micro-batches of a stage that are between forward and the end of backward."""
        events = []
        for slot in self.slots:
            if slot.stage == stage and slot.step == 10 and slot.rank % self.job.replicas == 0:
                if slot.letter == "F":
                    events.append((slot.start, 1))
                elif slot.letter in "BW":
                    events.append((slot.end, -1))
        most = held = 0
        for _, change in sorted(events):
            held += change
            most = max(most, held)
        return most

    def to_run(self, *, marks: Marks = "distprof", messages: bool = True) -> Run:
        """As distprof's ingest would give it, tables in memory."""
        from distprof.ingest.assemble import assemble_run
        from tests.simulator.pipeline_tables import builders_of, rank_of

        builders = builders_of(self, marks=marks, messages=messages)
        return assemble_run("simulated", [rank_of(self, builder) for builder in builders])

    def write_kineto(self, folder: Path, *, marks: Marks = "distprof") -> list[Path]:
        """One trace per rank, as torch.profiler writes them."""
        from tests.simulator.pipeline_tables import builders_of, write_builder

        return [
            write_builder(self, builder, folder)
            for builder in builders_of(self, marks=marks, messages=True)
        ]

    def write_timeline(self, folder: Path) -> None:
        """The first pipeline as Megatron's own timers write it: a file per rank, no traces."""
        from tests.simulator.pipeline_tables import write_timeline

        write_timeline(self, folder)


def _truth_of(recording: PipelineRecording, step: int, places: Sequence[int]) -> Truth:
    """One step of the ranks of one pipeline."""
    mine = {place: [] for place in places}
    for slot in recording.slots:
        if slot.step == step and slot.rank in mine:
            mine[slot.rank].append(slot)
    begin = min(slots[0].start for slots in mine.values())
    end = max(slots[-1].end for slots in mine.values())
    late = recording.job.launch_ns
    return Truth(
        span_ns=end - begin,
        busy_ns=tuple(sum(s.end - s.start for s in slots) for slots in mine.values()),
        warm_up_ns=tuple(slots[0].start - begin for slots in mine.values()),
        drain_ns=tuple(end - slots[-1].end for slots in mine.values()),
        exposed_message_ns=_exposed(recording, mine),
        host_ns=tuple(late * (len(slots) - 1) for slots in mine.values()),
    )


def _exposed(recording: PipelineRecording, slots: dict[int, list[Slot]]) -> tuple[float, ...]:
    """Between sending and arrival, while the receiver has nothing to do."""
    total = dict.fromkeys(slots, 0)
    bounds = {rank: (rows[0].posted, rows[-1].end) for rank, rows in slots.items()}
    for message in recording.messages:
        rank = message.target
        if rank in total and bounds[rank][0] <= message.posted <= bounds[rank][1]:
            total[rank] += max(0, message.arrival - max(message.sent, message.posted))
    return tuple(total.values())


class _Step:
    """One step of one pipeline: a heap of ranks that may go on."""

    def __init__(
        self,
        job: PipelineJob,
        recording: PipelineRecording,
        step: int,
        begin: int,
        replica: int,
        noise: random.Random,
    ) -> None:
        self.job, self.recording, self.step = job, recording, step
        self.replica, self.noise = replica, noise
        self.place = {
            stage: position for position, order in enumerate(job.orders) for _, stage, _ in order
        }
        self.last = max(self.place)
        self.next = [0] * job.num_positions
        self.free = [begin] * job.num_positions
        self.sent: dict[Action, tuple[int, int]] = {}  # to whom: when it was sent and arrived
        self.waits: dict[Action, int] = {}
        self.pending: list[list[tuple[Action, int]]] = [[] for _ in job.orders]
        self.heap = [(begin, position) for position in range(job.num_positions)]

    def run(self) -> list[tuple[int, int]]:
        """Until nobody can go on; when each rank is through."""
        while self.heap:
            _, position = heapq.heappop(self.heap)
            self._go_on(position)
        if any(at < len(order) for at, order in zip(self.next, self.job.orders, strict=True)):
            raise RuntimeError(f"a deadlock: ranks are at {self.next}")
        return [
            (self.job.rank_of(position, self.replica), free)
            for position, free in enumerate(self.free)
        ]

    def _go_on(self, position: int) -> None:
        if self.next[position] == len(self.job.orders[position]):
            return
        letter, stage, batch = self.job.orders[position][self.next[position]]
        key = self._input_of(letter, stage, batch)
        if key is not None and key not in self.sent:
            self.waits[key] = position
            return
        posted = start = self.free[position]
        if key is not None:
            sent, arrival = self.sent[key]
            start = max(start, arrival)
            self._receive(key, position, sent, posted, arrival)
        start += self.job.launch_ns
        end = start + self._duration(letter, stage)
        rank = self.job.rank_of(position, self.replica)
        self.recording.slots.append(
            Slot(
                rank=rank,
                step=self.step,
                letter=letter,
                stage=stage,
                micro_batch=batch,
                posted=posted,
                start=start,
                end=end,
            )
        )
        self._send(position, letter, stage, batch, end)
        self.free[position] = end
        self.next[position] += 1
        heapq.heappush(self.heap, (end, position))

    def _duration(self, letter: str, stage: int) -> int:
        exact = self.job.duration(letter, stage)
        if not self.job.noise:
            return exact
        return max(1, round(exact * (1 + self.noise.gauss(0, self.job.noise))))

    def _input_of(self, letter: str, stage: int, batch: int) -> Action | None:
        """What an action receives: named by whom it is for."""
        if letter == "F" and stage > 0:
            return ("F", stage, batch)
        if letter in "BI" and stage < self.last:
            return ("B", stage, batch)
        return None

    def _send(self, position: int, letter: str, stage: int, batch: int, end: int) -> None:
        """What an action hands on; the first of a pair does so when the second has ended."""
        outputs = self.pending[position]
        if letter == "F" and stage < self.last:
            outputs.append((("F", stage + 1, batch), position))
        elif letter in "BI" and stage > 0:
            outputs.append((("B", stage - 1, batch), position))
        pairs = self.job.pairs
        if pairs and pairs[position][self.next[position]]:
            return
        for key, source in outputs:
            away = self.place[key[1]] != source
            self.sent[key] = (end, end + (self.job.message_ns if away else 0))
            if key in self.waits:
                heapq.heappush(self.heap, (self.sent[key][1], self.waits.pop(key)))
        outputs.clear()

    def _receive(self, key: Action, position: int, sent: int, posted: int, arrival: int) -> None:
        letter, stage, _ = key
        source = self.place[stage - 1 if letter == "F" else stage + 1]
        if source == position:
            return
        self.recording.messages.append(
            Message(
                source=self.job.rank_of(source, self.replica),
                target=self.job.rank_of(position, self.replica),
                sent=sent,
                posted=posted,
                arrival=arrival,
            )
        )
