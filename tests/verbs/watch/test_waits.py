"""Own time of GPU ranks from their collectives: known answers, then what holds for any job."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.artefacts.records import CollectivesRecord, GroupTimes
from distprof.ingest.job.growing import RankAdded
from distprof.join.gpu_waits import Rests, waits_of
from distprof.verbs.watch import CAPACITY, WaitTable
from distprof.verbs.watch.follow import report_on
from distprof.verbs.watch.show import Alert, WatchReport
from tests.verbs.watch.gpu_jobs import Speed, ddp, fsdp, pipeline, tensor_parallel
from tests.verbs.watch.gpu_timelines import Await, Cluster, Program, Recorder, Together, Work
from tests.verbs.watch.jobs import MS, Playing, said, step

Programs = Callable[[int], Program]


class Trained:
    """A job on GPUs, trained and watched."""

    def __init__(
        self,
        ranks: int,
        *,
        stages: int = 0,
        mute: Sequence[int] = (),
        levels: Mapping[str, float] | None = None,
    ) -> None:
        self.playing = Playing(ranks, levels)
        self.cluster = Cluster(ranks)
        self.recorders = [Recorder() for _ in range(ranks)]
        self.mute = mute
        self.own_ms = np.zeros(ranks)
        self.alerts: list[Alert] = []
        self.step = 0
        ranks_said = [said(rank, device="NVIDIA H100") for rank in range(ranks)]
        self.playing.look(
            ranks=[
                RankAdded(
                    rank=each.rank,
                    said=replace(
                        each,
                        coordinates={"pp": each.rank % stages} if stages else {"dp": each.rank},
                    ),
                )
                for each in ranks_said
            ]
        )

    def train(self, steps: int, programs: Callable[[int], Programs]) -> Trained:
        """Steps, by number; the watcher looks after each."""
        for _ in range(steps):
            began_ms = max(gpu.now_ms for gpu in self.cluster.gpus)
            self.cluster.run(programs(self.step))
            took_ms = max(gpu.now_ms for gpu in self.cluster.gpus) - began_ms
            self.own_ms = np.array([gpu.work_ms for gpu in self.cluster.gpus])
            self.alerts += self.playing.look(ranks=list(self._added(took_ms)))
            self.step += 1
        return self

    def _added(self, took_ms: float) -> Sequence[RankAdded]:
        found = []
        for rank, gpu in enumerate(self.cluster.gpus):
            records = self.recorders[rank].step(self.step, gpu, took_ms)
            found.append(
                RankAdded(
                    rank=rank,
                    steps=(step(self.step, own_ms=1, step_ms=took_ms),),
                    collectives=() if rank in self.mute else tuple(records),
                )
            )
        return found

    @property
    def report(self) -> WatchReport:
        return report_on(self.playing.job, now_s=self.playing.now_s, now_ns=self.playing.now_ns)

    @property
    def named(self) -> set[int]:
        return {rank for alert in self.alerts for rank in alert.ranks}


def slow(which: int, times: float) -> Callable[[int], float]:
    return lambda rank: times if rank == which else 1.0


def test_in_ddp_the_late_rank_is_named_with_what_it_costs() -> None:
    """It arrives late at five buckets, and yet costs the step its lateness once."""
    job = Trained(8).train(60, lambda _: ddp(8, slow(3, 1.12), buckets=5, work_ms=16))
    (late,) = job.report.late
    assert (late.rank, late.is_slow, late.cause) == (3, True, "device")
    assert late.late_ns == pytest.approx(12 * MS, rel=0.01)
    assert late.late_most_ns is not None
    assert late.late_most_ns > late.late_ns
    assert job.named == {3}
    (alert,) = job.alerts
    assert alert.message == (
        "Rank 3: own time up to a collective is above that of the peers, by at least 12.0 %"
    )
    assert job.report.own_known_from == "collectives"


def test_buckets_that_queue_hide_part_of_the_lateness() -> None:
    """A bucket waits for the one before, so none of them waits for longer than their distance."""
    job = Trained(8).train(60, lambda _: ddp(8, slow(3, 1.12), buckets=10, work_ms=8))
    (late,) = job.report.late
    assert late.late_most_ns is not None
    assert late.late_ns == pytest.approx((8 * 1.12 - 1) * MS)
    assert late.late_ns < 12 * MS < late.late_most_ns


def test_a_rank_is_named_by_the_first_of_many_buckets() -> None:
    """It works 10 % longer: 2.32 ms after 23.2 ms. Later buckets wait for those before."""
    job = Trained(8).train(60, lambda _: ddp(8, slow(3, 1.10), buckets=25, work_ms=3.2))
    assert job.named == {3}
    own = job.playing.job.own_times([])
    assert own.late_ns[-1, 3] < 0.025 * own.step_ns[-1, 0]
    assert own.excess[-1, 3] == pytest.approx(0.1, rel=0.01)


def test_a_short_delay_before_an_early_collective_names_no_rank() -> None:
    """Rank 3 needs 3 ms in place of 2 for it. The rest of the step is communication."""

    def program(rank: int) -> Program:
        first, second = (Together("world", tuple(range(8)), ms) for ms in (1, 96))
        return [Work(3 if rank == 3 else 2), first, Await("world"), second, Await("world")]

    job = Trained(8).train(60, lambda _: program)
    assert job.named == set()
    own = job.playing.job.own_times([])
    assert own.excess[-1, 3] == pytest.approx(1 / (0.2 * 100))


def test_a_rank_that_is_fast_enough_is_not_named_for_the_sum_of_its_waits() -> None:
    """Each of ten buckets waits for up to 2 ms: the sum would be 11 % of the step."""
    job = Trained(8).train(60, lambda _: ddp(8, slow(3, 1.02)))
    assert job.named == set()
    assert job.report.late == ()


def test_neighbours_of_a_slow_rank_in_a_tensor_parallel_group_are_not_named() -> None:
    """They too arrive late at the gradients, because they have waited for it in each layer."""
    job = Trained(8).train(60, lambda _: tensor_parallel(2, 4, slow(5, 1.15)))
    assert job.named == {5}
    (late,) = job.report.late
    assert late.late_ns == pytest.approx(0.15 * 80 * MS, rel=0.01)


def test_in_one_tensor_parallel_group_the_bounds_are_far_apart_and_said() -> None:
    job = Trained(4).train(60, lambda _: tensor_parallel(4, 1, slow(1, 1.2)))
    assert job.named == set()
    assert job.report.unknown == (
        "Lateness is known only to within 15.2 % of the step: waits in some collectives may overlap"
        " with computation. Rank 1 waits least for others: if any rank is slow, it is probably this"
        " one.",
    )


def test_in_fsdp_the_bounds_hold_the_truth() -> None:
    times = slow(2, 1.1)
    job = Trained(4).train(60, lambda _: fsdp(4, times))
    own = job.playing.job.own_times([])
    assert own.late_ns[-1, 2] <= 0.1 * 24 * 4 * MS <= own.late_most_ns[-1, 2]
    assert job.named <= {2}
    assert "Rank 2 waits least for others" in job.report.unknown[0]


def test_durations_do_not_say_whether_ranks_of_fsdp_work_or_wait() -> None:
    """The same durations, without a slow rank: the others work whenever they waited before.

    So no rule that reads durations names the slow rank of FSDP at 10 % and is always right.
    """
    with_slow, without = Cluster(4), Cluster(4)
    program = fsdp(4, slow(2, 1.1))
    with_slow.run(program)
    without.run(lambda rank: _busy(program(rank), with_slow.gpus[rank].blocked_ms))
    own_ms = [gpu.work_ms for gpu in with_slow.gpus]
    assert own_ms[2] == pytest.approx(1.1 * own_ms[0])
    assert [gpu.work_ms for gpu in without.gpus] == pytest.approx([without.gpus[2].work_ms] * 4)
    for one, other in zip(with_slow.gpus, without.gpus, strict=True):
        took_ms = [done.took_ms for done in one.done]
        assert [done.took_ms for done in other.done] == pytest.approx(took_ms)


def _busy(program: Program, blocked_ms: Sequence[float]) -> Program:
    """The program, with work in place of each time that it is blocked."""
    blocks = iter(blocked_ms)
    ops: list[Work | Together | Await] = []
    for op in program:
        if isinstance(op, Await):
            ops.append(Work(next(blocks)))
        ops.append(op)
    return ops


def test_in_a_pipeline_replicas_of_a_stage_are_compared() -> None:
    """Stages before and after the slow one wait for it, and bubbles are everyone's."""
    job = Trained(8, stages=2).train(60, lambda _: pipeline(2, 4, slow(4, 1.2)))
    assert job.named == {4}
    job = Trained(8, stages=2).train(60, lambda _: pipeline(2, 4, slow(3, 1.2)))
    assert job.named == {3}


@pytest.mark.parametrize("late", range(8))
def test_without_known_stages_a_pipeline_names_no_wrong_rank(late: int) -> None:
    job = Trained(8).train(60, lambda _: pipeline(2, 4, slow(late, 1.2)))
    assert job.named <= {late}


@pytest.mark.parametrize("late", range(8))
@pytest.mark.parametrize("tp", [2, 4])
def test_neighbours_are_never_named(tp: int, late: int) -> None:
    job = Trained(8).train(60, lambda _: tensor_parallel(tp, 8 // tp, slow(late, 1.2)))
    assert job.named == {late}


def test_a_rank_that_is_fast_makes_no_other_one_slow() -> None:
    job = Trained(8).train(60, lambda _: tensor_parallel(2, 4, slow(4, 0.8)))
    assert job.named == set()


def test_all_that_wait_for_a_third_rank_hide_no_second_one() -> None:
    """Rank 0 pauses for half of the step in each, and rank 5 is late as well."""

    def speed(rank: int) -> float:
        return {0: 1.5, 5: 1.2}.get(rank, 1.0)

    job = Trained(8).train(60, lambda _: ddp(8, speed, buckets=1, work_ms=80))
    assert job.named == {0, 5}


def test_who_shares_a_group_with_a_rank_without_timing_is_unknown() -> None:
    """The silent one may be the one that all wait for."""
    job = Trained(4, mute=[3]).train(60, lambda _: tensor_parallel(2, 2, slow(3, 1.3)))
    assert job.named == set()
    own = job.playing.job.own_times([])
    assert np.isfinite(own.own_ns[-1]).tolist() == [True, False, False, False]
    assert job.report.unknown == (
        "Own time of rank 3 is unknown: the durations of their collectives are not recorded.",
        "Own time of ranks 1-2 is unknown: some of their collectives have no duration, or were not"
        " recorded by all members of the group.",
    )


def test_it_is_told_within_50_steps_and_cleared_when_it_is_over() -> None:
    chance = random.Random(7)

    def noisy(which: int, times: float) -> Callable[[int], float]:
        return lambda rank: (times if rank == which else 1) * chance.gauss(1, 0.02)

    job = Trained(8).train(100, lambda _: ddp(8, noisy(0, 1.0)))
    assert job.alerts == []
    job.train(50, lambda _: ddp(8, noisy(6, 1.10)))
    assert [(alert.state, alert.ranks) for alert in job.alerts] == [("raised", (6,))]
    job.train(60, lambda _: ddp(8, noisy(0, 1.0)))
    assert [(alert.state, alert.ranks) for alert in job.alerts[1:]] == [("cleared", (6,))]


def test_a_gpu_that_lags_behind_its_cpu_is_compared_by_the_mean_step() -> None:
    """The CPU enqueues nine steps at once and waits for the tenth: 1 ms, … and 991 ms."""
    playing, cluster = Playing(4), Cluster(4)
    recorders = [Recorder() for _ in range(4)]
    playing.look(ranks=[RankAdded(rank=r, said=said(r, device="NVIDIA H100")) for r in range(4)])
    found: list[Alert] = []
    for number in range(120):
        cluster.run(ddp(4, slow(2, 1.15)))
        took_ms = 991 if number % 10 == 9 else 1
        found += playing.look(
            ranks=[
                RankAdded(
                    rank=rank,
                    steps=(step(number, own_ms=1, step_ms=took_ms),),
                    collectives=tuple(recorders[rank].step(number, gpu, 100)),
                )
                for rank, gpu in enumerate(cluster.gpus)
            ]
        )
    assert {rank for alert in found if alert.kind == "slow-rank" for rank in alert.ranks} == {2}


# What holds for any job ---------------------------------------------------------------------------

RANKS = 4


@st.composite
def trainings(draw: st.DrawFn) -> list[Program]:
    """A step of four ranks that run the same operations, each at its own speed."""
    speed = st.sampled_from([1.0, 1.0, 1.0, 1.1, 1.3, 2.0])
    pieces = draw(
        st.lists(
            st.tuples(
                st.sampled_from([1.0, 3.0, 10.0]),
                st.sampled_from(["", "world", "pair", "cross"]),
                st.booleans(),
            ),
            min_size=1,
            max_size=15,
        )
    )
    takes_ms = draw(st.sampled_from([0.0, 0.3, 4.0]))
    return [_program(rank, draw(speed), pieces, takes_ms) for rank in range(RANKS)]


def _program(
    rank: int, speed: float, pieces: Sequence[tuple[float, str, bool]], takes_ms: float
) -> Program:
    groups = {
        "world": ("w", (0, 1, 2, 3)),
        "pair": (f"p{rank // 2}", (rank - rank % 2, rank - rank % 2 + 1)),
        "cross": (f"c{rank % 2}", (rank % 2, rank % 2 + 2)),
    }
    ops: list[Work | Together | Await] = []
    for ms, kind, is_awaited in pieces:
        ops.append(Work(ms * speed))
        if kind:
            name, members = groups[kind]
            ops.append(Together(name, members, takes_ms))
            ops += [Await(name)] if is_awaited else []
    ends = [Await(groups[kind][0]) for kind in ("pair", "cross")]
    return [*ops, *ends, Together("w", (0, 1, 2, 3), takes_ms), Await("w")]


@settings(max_examples=200, deadline=None)
@given(trainings())
def test_nobody_is_blamed_for_more_than_is_true(programs: list[Program]) -> None:
    cluster = Cluster(RANKS)
    cluster.run(lambda rank: programs[rank])
    found = {rank: Recorder().step(0, gpu, 100)[0].groups for rank, gpu in enumerate(cluster.gpus)}
    step_ns = max(done.ended_ms for gpu in cluster.gpus for done in gpu.done) * MS
    waits = waits_of(0, found, range(RANKS), {}, step_ns, Rests(1))
    own_ns = np.array([gpu.work_ms for gpu in cluster.gpus]) * MS
    for rank in range(RANKS):
        assert waits.late_ns[rank] <= own_ns[rank] - own_ns.min() + 1_000
        assert waits.late_ratio[rank] <= _largest_share(cluster, rank, step_ns) + 1e-4
    assert (waits.least_ns <= waits.most_ns + 1).all()


def _largest_share(cluster: Cluster, rank: int, step_ns: float) -> float:
    """Excess of a rank's work over that of the fastest other member, up to any collective.

    It is a share of the longest time that a peer may have needed up to there, or of a fifth of
    the step.
    """
    shares = []
    for done in cluster.gpus[rank].done:
        others = [
            other.worked_ms
            for gpu in (cluster.gpus[peer] for peer in done.what.members if peer != rank)
            for other in gpu.done
            if (other.what.group, other.number) == (done.what.group, done.number)
        ]
        peers = max(np.median(others), step_ns / MS / 5)
        shares.append((done.worked_ms - min(others)) / peers)
    return max(*shares, 0.0)


# What a file may hold -----------------------------------------------------------------------------


def times(group: str = "g", *, ns: Sequence[int] = (5, 7), **more: object) -> GroupTimes:
    fields: dict[str, object] = {"kind": "all", "num_ranks": 2, "first": 3, "num": len(ns)}
    return GroupTimes(group=group, total_ns=tuple(ns), **{**fields, **more})  # type: ignore[arg-type]


def bounds(*groups: Sequence[GroupTimes], stages: bool = False) -> list[tuple[float, float]]:
    found = dict(enumerate(groups))
    of_stage = dict.fromkeys(found, 0) if stages else {}
    waits = waits_of(0, found, range(len(groups)), of_stage, 100, Rests(1))
    return list(zip(waits.least_ns, waits.most_ns, strict=True))


def test_by_hand() -> None:
    assert bounds([times(ns=[5, 7])], [times(ns=[9, 5])]) == [(2, 2), (4, 4)]
    assert bounds([times(ns=[5, 9])], [times(ns=[1, 1])]) == [(8, 12), (0, 0)]
    some = {"kind": "some"}
    assert bounds([times(ns=[5, 9], **some)], [times(ns=[1, 1], **some)]) == [(0, 12), (0, 0)]
    parts = [times(ns=[50, 90], last_ns=ends, num=20) for ends in ((7, 3), (1, 1))]
    assert bounds([parts[0]], [replace(parts[1], total_ns=(10, 90))]) == [(6, 40), (0, 0)]


def test_messages_count_as_far_as_others_of_the_stage_do_not_have_them() -> None:
    groups = [[times(), times("m", kind="messages", ns=[ns])] for ns in (30, 50)]
    assert bounds(*groups) == [(0, 30), (0, 50)]
    assert bounds(*groups, stages=True) == [(0, 0), (0, 20)]


@pytest.mark.parametrize(
    "other",
    [
        times(num_untimed=1),
        times(first=4),
        times(num=3),
        times(ns=[]),
        times(ns=[1]),
        times(last_ns=(1, 2)),
        times(num_ranks=3),
        times("h"),
    ],
)
def test_members_that_differ_are_unknown(other: GroupTimes) -> None:
    assert np.isnan(bounds([times()], [other])).all()
    messages = times("m", kind="messages", num_untimed=1)
    assert np.isnan(bounds([times(), messages], [times()])[0]).all()


def test_a_rank_that_shares_nothing_is_unknown() -> None:
    assert np.isnan(bounds([], [times(num_ranks=1)])).all()


def test_negative_and_huge_times_do_no_harm() -> None:
    ((least, most), _) = bounds([times(ns=[-5, 1 << 62])], [times(ns=[0, 0])])
    assert least == most == 1 << 53


def test_steps_wait_for_the_ranks_that_report() -> None:
    table = WaitTable()
    table.add(0, CollectivesRecord(step=5_000_000))
    assert [step for step, _ in table.complete({0, 1})] == [5_000_000]
    table.add(1, CollectivesRecord(step=5_000_001))
    assert list(table.complete({0, 1})) == []
    assert [step for step, _ in table.complete({1})] == [5_000_001]
    table.add(1, CollectivesRecord(step=4))
    assert list(table.complete({1})) == []


def test_a_rank_that_claims_a_step_far_ahead_stops_nobody() -> None:
    table = WaitTable()
    for number in range(300):
        table.add(0, CollectivesRecord(step=number))
        table.add(1, CollectivesRecord(step=1 << 60 if number == 1 else number))
    assert len(list(table.complete({0, 1}))) >= 300 - CAPACITY
    too_long = times(ns=[1] * 1_000)
    table.add(0, CollectivesRecord(step=300, groups=(too_long,)))
    table.add(1, CollectivesRecord(step=300, groups=(too_long,)))
    (found,) = (groups for step, groups in table.complete({0, 1}) if step == 300)
    assert found[0][0].total_ns == ()


# What the page of the documentation says ----------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "watch-a-job.md"

KINDS: Mapping[str, tuple[int, int, int, Callable[[Speed], Programs]]] = {
    "DDP, 1 bucket": (8, 0, 3, lambda speed: ddp(8, speed, buckets=1, work_ms=80)),
    "DDP, 4 buckets": (8, 0, 3, lambda speed: ddp(8, speed, buckets=4, work_ms=20)),
    "DDP, 10 buckets": (8, 0, 3, lambda speed: ddp(8, speed, buckets=10, work_ms=8)),
    "DDP, 25 buckets": (8, 0, 3, lambda speed: ddp(8, speed, buckets=25, work_ms=3.2)),
    "tensor parallel 2 × data parallel 4": (8, 0, 5, lambda speed: tensor_parallel(2, 4, speed)),
    "pipeline 2 × data parallel 4": (8, 2, 4, lambda speed: pipeline(2, 4, speed)),
    "FSDP, 24 layers": (8, 0, 3, lambda speed: fsdp(8, speed)),
    "one tensor-parallel group, 20 layers": (4, 0, 1, lambda speed: tensor_parallel(4, 1, speed)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_says_how_far_the_bounds_are_apart(kind: str) -> None:
    ranks, stages, late, programs = KINDS[kind]
    job = Trained(ranks, stages=stages).train(60, lambda _: programs(slow(late, 1.1)))
    own = job.playing.job.own_times([])
    truth_ns = (job.own_ms.max() - np.median(job.own_ms)) * MS
    found = np.array([truth_ns, own.late_ns[-1, late], own.late_most_ns[-1, late]])
    found /= own.step_ns[-1, 0]
    shares = (*found, own.excess[-1, late])
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| {kind} |"))
    shown = [cell.strip() for cell in line.strip("|").split("|")][1:]
    assert shown == [
        *(f"{share:.1%}".replace("%", " %") for share in shares),
        "yes" if job.named else "no",
    ]
    assert found[1] <= found[0] + 1e-3
    assert found[0] <= found[2] + 1e-3
    assert job.named <= {late}


def test_the_page_names_a_level_that_finds_slow_ranks_of_fsdp() -> None:
    assert "`--alert slow-rank=3%`" in PAGE.read_text()
    ranks, stages, late, programs = KINDS["FSDP, 24 layers"]
    job = Trained(ranks, stages=stages, levels={"slow-rank": 0.03})
    assert job.train(60, lambda _: programs(slow(late, 1.1))).named == {late}
