"""Ground truth for mixtures of experts: jobs whose routing and expert times are known.

Ranks are simulated in true time; an all-to-all ends when the transfer of its last member does. Then
everything is written down on each rank's own clock. Nothing of the code under test is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from distprof.run.records import ROUTING, RankRecords
from distprof.run.run import Run
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT
from distprof.terms import CollectiveKind, MeshAxis
from tests.builders import RankBuilder, make_run, table_of
from tests.sections.joined import join_by_seq

TRANSFER_NS = 50_000
DENSE_NS = 400_000
BACKWARD = 2.0
TOKEN_BYTES = 1_024
NAME = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True, kw_only=True)
class MoeJob:
    """What is simulated.

    Args:
        groups: Ranks that share experts, group by group.
        experts: Of a layer.
        share: Router's probability of each expert, ``(layers, experts)``.
        ns_per_token: Expert time of an assignment, forward.
        fixed_ns: Expert time beside that.
        jitter_ns: Dense time varies by up to so much, rank by rank.
        offset_ns: Clock of each rank ahead of true time.
        recompute: Whether backward runs the forward of each layer again first.
        place: Rank in the group of each expert of each layer; contiguous blocks if None.
        balanced: Whether every rank takes the mean of its group's expert times.
    """

    groups: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3),)
    layers: int = 2
    micro_batches: int = 1
    steps: int = 3
    experts: int = 8
    tokens: int = 512
    top_k: int = 2
    share: np.ndarray | None = None
    ns_per_token: int = 2_000
    fixed_ns: int = 0
    jitter_ns: int = 0
    offset_ns: tuple[int, ...] = ()
    recompute: bool = False
    place: np.ndarray | None = None
    balanced: bool = False
    seed: int = 0

    @property
    def world(self) -> int:
        return sum(len(group) for group in self.groups)


@dataclass
class MoeTruth:
    """What happened.

    Args:
        routed: Assignments by (group, step, micro-batch, layer): ``(ranks of the group, experts)``.
        sections: Expert times of each section: (group, step, layer) to arrays ``(ranks,)``.
        dispatched: Tokens by (sender, receiver) in forward dispatches, all steps.
        step_ns: Length of each step, the longest over ranks.
    """

    routed: dict[tuple[int, int, int, int], np.ndarray] = field(default_factory=dict)
    sections: dict[tuple[int, int, int], list[np.ndarray]] = field(default_factory=dict)
    dispatched: dict[tuple[int, int], int] = field(default_factory=dict)
    step_ns: list[int] = field(default_factory=list)

    def lost_ns(self, layer: int, steps: int, groups: int) -> float:
        """Σ over sections of max − mean, per step, mean over groups."""
        found = [
            times.max() - times.mean()
            for key, sections in self.sections.items()
            for times in sections
            if key[2] == layer
        ]
        return sum(found) / steps / groups


def hot(layers: int, experts: int, expert: int, times: float) -> np.ndarray:
    """Shares in which one expert has so many times the mean."""
    share = np.full((layers, experts), (1 - times / experts) / (experts - 1))
    share[:, expert] = times / experts
    return share


def uneven(layers: int, experts: int, seed: int) -> np.ndarray:
    """Shares as uneven as real routers' are."""
    return np.random.default_rng(seed).dirichlet(np.full(experts, 1.5), layers)


class _Simulation:
    def __init__(self, job: MoeJob) -> None:
        self.job = job
        self.truth = MoeTruth()
        self.builders = {r: RankBuilder(r, world_size=job.world) for g in job.groups for r in g}
        self.now = dict.fromkeys(self.builders, 1_000_000)
        self.seq = [0] * len(job.groups)
        # as every router draws in turn, two simulations of one seed route alike
        self.routing = np.random.default_rng(job.seed)
        self.noise = np.random.default_rng(job.seed + 1)
        self.groups = [
            ProcessGroup(
                name=str(number),
                description="ep",
                ranks=tuple(sorted(group)),
                size=len(group),
                backend="nccl",
                axis=MeshAxis.EP,
            )
            for number, group in enumerate(job.groups)
        ]

    def run(self) -> None:
        for step in range(self.job.steps):
            begin = dict(self.now)
            for micro_batch in range(self.job.micro_batches):
                self._micro_batch(step, micro_batch)
            for rank, builder in self.builders.items():
                builder.step(step, self._own(rank, begin[rank]), self._own(rank, self.now[rank]))
            longest = max(self.now[r] - begin[r] for r in self.builders)
            self.truth.step_ns.append(longest)

    def _micro_batch(self, step: int, micro_batch: int) -> None:
        layers = range(self.job.layers)
        for layer in layers:
            self._layer(step, micro_batch, layer, 1.0, counts=True)
        for layer in reversed(layers):
            if self.job.recompute:
                self._layer(step, micro_batch, layer, 1.0, counts=True)
            self._layer(step, micro_batch, layer, BACKWARD, counts=False)

    def _layer(
        self, step: int, micro_batch: int, layer: int, factor: float, *, counts: bool
    ) -> None:
        for number, group in enumerate(self.job.groups):
            self._dense(group)
            routed = self._routed(number, step, micro_batch, layer)
            to = self._to_ranks(routed, layer)
            if counts:
                self._exchange(number, None)
            self._exchange(number, to)
            times = (to.sum(axis=0) * self.job.ns_per_token + self.job.fixed_ns) * factor
            if self.job.balanced:
                times = np.full(len(group), times.mean())
            self.truth.sections.setdefault((number, step, layer), []).append(times)
            for position, rank in enumerate(group):
                self._work(rank, round(times[position]), "expert_gemm")
            self._exchange(number, to.T)
            if counts and factor == 1.0:
                self._note(group, to)

    def _note(self, group: Sequence[int], to: np.ndarray) -> None:
        for (sender, receiver), tokens in np.ndenumerate(to):
            pair = (group[sender], group[receiver])
            self.truth.dispatched[pair] = self.truth.dispatched.get(pair, 0) + int(tokens)

    def _routed(self, number: int, step: int, micro_batch: int, layer: int) -> np.ndarray:
        key = (number, step, micro_batch, layer)
        if key not in self.truth.routed:
            share = np.full((self.job.layers, self.job.experts), 1 / self.job.experts)
            share = share if self.job.share is None else self.job.share
            self.truth.routed[key] = self.routing.multinomial(
                self.job.tokens * self.job.top_k, share[layer], len(self.job.groups[number])
            )
        return self.truth.routed[key]

    def _to_ranks(self, routed: np.ndarray, layer: int) -> np.ndarray:
        size = routed.shape[0]
        place = np.arange(self.job.experts) // (self.job.experts // size)
        if self.job.place is not None:
            place = self.job.place[layer]
        return np.stack([routed[:, place == rank].sum(axis=1) for rank in range(size)], axis=1)

    def _dense(self, group: Sequence[int]) -> None:
        for rank in group:
            jitter = int(self.noise.integers(0, self.job.jitter_ns + 1))
            self._work(rank, DENSE_NS + jitter, "dense_gemm")

    def _work(self, rank: int, duration: int, name: str) -> None:
        start = self.now[rank]
        self.now[rank] = start + duration
        self.builders[rank].kernel(name, self._own(rank, start), self._own(rank, start + duration))

    def _exchange(self, number: int, to: np.ndarray | None) -> None:
        group = self.job.groups[number]
        end = max(self.now[rank] for rank in group) + TRANSFER_NS
        for position, rank in enumerate(group):
            builder = self.builders[rank]
            sent = None if to is None else to[position]
            builder.comm(
                NAME,
                self._own(rank, self.now[rank]),
                self._own(rank, end),
                kind=CollectiveKind.ALL_TO_ALL,
                group=str(number),
                desc="ep",
                ranks=group,
                seq=self.seq[number],
                size=8 * len(group) if sent is None else int(sent.sum()) * TOKEN_BYTES,
                dtype="Long" if sent is None else "BFloat16",
            )
            if to is not None:
                builder.collectives[-1]["in_splits"] = ",".join(map(str, to[position].tolist()))
                builder.collectives[-1]["out_splits"] = ",".join(map(str, to[:, position].tolist()))
            self.now[rank] = end
        self.seq[number] += 1

    def _own(self, rank: int, time: int) -> int:
        return time + (self.job.offset_ns[rank] if self.job.offset_ns else 0)


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A simulated job and what tells of it."""

    job: MoeJob
    truth: MoeTruth
    builders: dict[int, RankBuilder]
    groups: tuple[ProcessGroup, ...]

    def run(self, *, present: Sequence[int] | None = None) -> Run:
        """The recording, of the ranks that are present."""
        chosen = sorted(self.builders) if present is None else sorted(present)
        ranks = [self.builders[rank].rank() for rank in chosen]
        matches, groups = join_by_seq(ranks)
        order = {(g.name, g.ranks): g for g in self.groups}
        run = make_run(
            ranks,
            steps=range(self.job.steps),
            groups=[order[key] for key in sorted(order)],
            matches=matches,
            world_size=self.job.world,
        )
        assert not groups
        return run

    def records(self, rank: int) -> RankRecords:
        """The routing log of one rank."""
        number, group = next((n, g) for n, g in enumerate(self.job.groups) if rank in g)
        position = group.index(rank)
        rows, counts = [], []
        for (of, step, micro_batch, layer), routed in sorted(self.truth.routed.items()):
            if of != number:
                continue
            rows.append(
                {
                    "step": step,
                    "layer": f"blocks.{layer}.moe",
                    "micro_batch": micro_batch,
                    "num_tokens": self.job.tokens,
                    "top_k": self.job.top_k,
                    "capacity": ABSENT,
                    "dropped": 0,
                    "aux_loss": 1.0,
                    "first": self.job.experts * len(counts),
                    "num_experts": self.job.experts,
                }
            )
            counts.append(routed[position])
        return RankRecords(
            rank=rank,
            routing=table_of(ROUTING, rows),
            expert_tokens=np.concatenate(counts).astype(np.int64),
        )


def simulate_moe(job: MoeJob) -> Simulated:
    """Run the job."""
    simulation = _Simulation(job)
    simulation.run()
    return Simulated(
        job=job,
        truth=simulation.truth,
        builders=simulation.builders,
        groups=tuple(simulation.groups),
    )


def step_ns(job: MoeJob) -> float:
    """Mean step of a job."""
    return float(np.mean(simulate_moe(job).truth.step_ns))


def balanced(job: MoeJob) -> MoeJob:
    """The same job, its ranks equally long at their experts."""
    return replace(job, balanced=True)
