"""What a watcher concludes of a job, look after look, at a time that the test sets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from distprof.artefacts.records import MemoryRecord, NvmlRecord, Pause
from distprof.artefacts.run_file import AttachFile, ErrorFile, Exit, ExitFile, Failure, RankEntry
from distprof.ingest.job.growing import Added, RankAdded
from distprof.verbs.watch import OFF, ON, WINDOW
from distprof.verbs.watch.alerts import default_levels
from distprof.verbs.watch.follow import report_on
from distprof.verbs.watch.show import Alert, WatchReport
from distprof.verbs.watch.state import SETTLE, RankWatch
from tests.verbs.watch.jobs import MS, START_NS, Playing, run_file, said, step

LATE = {2: 96.0}


def report(playing: Playing) -> WatchReport:
    return report_on(playing.job, now_s=playing.now_s, now_ns=playing.now_ns)


def told(playing: Playing) -> list[str]:
    return [alert.kind for alert in report(playing).alerts]


def test_a_healthy_job_raises_nothing() -> None:
    playing = Playing(4)
    assert playing.steps(0, 200) == []
    found = report(playing)
    assert (found.state, found.step, found.world_size, found.num_ranks) == ("running", 199, 4, 4)
    assert found.step_ns == pytest.approx(100 * MS, rel=1e-6)
    assert found.usual_step_ns == pytest.approx(100 * MS, rel=1e-6)
    assert found.own_ratio == pytest.approx(0.8, rel=1e-6)
    assert found.input_ratio == pytest.approx(0.01, rel=1e-6)
    assert found.late == found.lost == found.throttled == found.alerts == found.unknown == ()


def test_a_slow_rank_is_told_once_and_once_when_it_has_recovered() -> None:
    playing = Playing(4)
    playing.steps(0, 50)
    (alert,) = playing.steps(50, 50 + ON, LATE)
    assert (alert.state, alert.kind, alert.ranks, alert.step) == (
        "raised",
        "slow-rank",
        (2,),
        49 + ON,
    )
    assert alert.message == "Rank 2: own time is 20.0 % above that of the peers"
    assert playing.steps(50 + ON, 100, LATE) == []
    (late,) = report(playing).late
    assert (late.rank, late.is_slow, late.cause) == (2, True, "more_work")
    assert late.late_ns == pytest.approx(16 * MS, rel=1e-5)
    assert late.late_ratio == pytest.approx(0.2, rel=1e-5)
    assert playing.steps(100, 100 + WINDOW - OFF - 1) == []
    (cleared,) = playing.steps(131, 132 + OFF)
    assert (cleared.state, cleared.kind, cleared.ranks) == ("cleared", "slow-rank", (2,))
    assert told(playing) == []


@pytest.mark.parametrize(
    ("more", "cause"),
    [({"run_queue_ns": 16 * MS}, "no_cpu"), ({"input_asleep_ns": 16 * MS}, "input")],
)
def test_a_late_rank_says_where_its_time_goes(more: dict[str, int], cause: str) -> None:
    playing = Playing(4)
    for number in range(60):
        records = {rank: step(number) for rank in range(4)}
        records[2] = replace(records[2], **more)
        playing.look(ranks=[RankAdded(rank=r, steps=(each,)) for r, each in records.items()])
    (late,) = report(playing).late
    assert (late.rank, late.cause) == (2, cause)


def test_stages_of_a_pipeline_are_not_compared() -> None:
    playing = Playing(4)
    playing.look(ranks=[RankAdded(rank=r, said=said(r, stage=r // 2)) for r in range(4)])
    assert playing.steps(0, 100, {2: 160, 3: 160}) == []
    (alert,) = playing.steps(100, 140, {2: 160, 3: 192})
    assert alert.ranks == (3,)


def test_on_gpus_own_time_is_said_to_be_unknown() -> None:
    playing = Playing(4)
    playing.look(ranks=[RankAdded(rank=r, said=said(r, device="NVIDIA H100")) for r in range(4)])
    assert playing.steps(0, 100, LATE) == []
    found = report(playing)
    assert found.own_ratio is None
    assert found.own_known_from is None
    assert found.unknown == (
        "Own time of ranks 0-3 is unknown: the durations of their collectives are not recorded.",
    )


def test_first_steps_and_traced_steps_do_not_count() -> None:
    playing = Playing(4)
    playing.steps(0, SETTLE, LATE)
    for number in range(SETTLE, 60):
        playing.look(
            ranks=[
                RankAdded(rank=r, steps=(step(number, own_ms=160 - 80 * bool(r), is_traced=not r),))
                for r in range(4)
            ]
        )
    assert playing.job.slow.state.counts.tolist() == [0, 0, 0, 0]


def test_a_slower_job_is_told_by_its_own_past() -> None:
    playing = Playing(4)
    playing.steps(0, 150)
    (alert,) = playing.steps(150, 200, step_ms=130.0)
    assert (alert.kind, alert.ranks) == ("slow-job", ())
    assert (
        alert.message
        == "The job: steps take longer than before: 130 ms instead of the usual 100 ms"
    )


def test_a_cpu_ahead_of_its_gpu_says_the_pace_of_the_gpu_only_in_the_mean() -> None:
    """Nine steps of 5 ms, in the tenth the CPU waits: 100 ms each, later 130, and 1 ms of input."""
    playing = Playing(4)
    playing.look(ranks=[RankAdded(rank=r, said=said(r, device="NVIDIA H100")) for r in range(4)])

    def steps(first: int, last: int, pace_ms: float) -> list[Alert]:
        return [
            alert
            for number in range(first, last)
            for alert in playing.steps(
                number, number + 1, step_ms=10 * pace_ms - 45 if number % 10 == 9 else 5.0
            )
        ]

    assert steps(0, 200, 100) == []
    found = report(playing)
    assert found.step_ns == pytest.approx(100 * MS, rel=1e-6)
    assert found.usual_step_ns == pytest.approx(100 * MS, rel=1e-6)
    assert found.input_ratio == pytest.approx(0.01, rel=1e-6)
    (alert,) = steps(200, 260, 130)
    assert alert.kind == "slow-job"
    assert alert.message.endswith(": 130 ms instead of the usual 100 ms")


def test_a_checkpoint_makes_no_slow_job() -> None:
    for device in ("cpu", "NVIDIA H100"):
        playing = Playing(4)
        playing.look(ranks=[RankAdded(rank=r, said=said(r, device=device)) for r in range(4)])
        assert playing.steps(0, 150) == []
        assert playing.steps(150, 151, step_ms=20_000) == []
        assert playing.steps(151, 200) == []


@pytest.mark.parametrize(
    ("added", "evidence"),
    [
        ({"exit": ExitFile(signal="SIGKILL")}, "killed by SIGKILL"),
        ({"exit": ExitFile(code=3)}, "exited with code 3"),
        (
            {
                "error": ErrorFile(
                    rank=2, time_ns=1, kind="ValueError", message="a\x1b[2Jb", traceback="",
                    is_peer_loss=False,
                )
            },
            "ValueError: a\\x1b[2Jb",
        ),
    ],
)  # fmt: skip
def test_a_rank_that_failed_is_lost(added: dict[str, object], evidence: str) -> None:
    playing = Playing(4)
    playing.steps(0, 10)
    (alert,) = playing.look(ranks=[RankAdded(rank=2, **added)])  # type: ignore[arg-type]
    assert (alert.kind, alert.ranks, alert.message) == ("rank-lost", (2,), f"Rank 2: {evidence}")
    (lost,) = report(playing).lost
    assert (lost.rank, lost.evidence, lost.last_step) == (2, evidence, 9)


def test_each_loss_is_told_with_its_own_evidence() -> None:
    playing = Playing(4)
    playing.steps(0, 10)
    first = playing.look(ranks=[RankAdded(rank=1, exit=ExitFile(signal="SIGKILL"))])
    second = playing.look(ranks=[RankAdded(rank=2, exit=ExitFile(code=7))])
    assert [alert.message for alert in first + second] == [
        "Rank 1: killed by SIGKILL",
        "Rank 2: exited with code 7",
    ]
    assert [alert.message for alert in report(playing).alerts] == ["Ranks 1-2: killed by SIGKILL"]


def test_a_job_whose_other_ranks_have_not_begun_has_not_failed() -> None:
    playing = Playing(2)
    playing.look(run=run_file(3))
    playing.look(ranks=[RankAdded(rank=r, exit=ExitFile(code=7)) for r in range(2)])
    assert report(playing).state == "waiting"
    playing.look(ranks=[RankAdded(rank=2, exit=ExitFile(code=7))])
    assert report(playing).state == "failed"


def test_victims_and_ranks_that_end_well_are_not_lost() -> None:
    playing = Playing(4)
    playing.steps(0, 10)
    victim = ErrorFile(
        rank=1, time_ns=1, kind="RuntimeError", message="peer", traceback="", is_peer_loss=True
    )
    ended = [
        RankAdded(rank=0, exit=ExitFile(code=0), said=said(0, ended=True)),
        RankAdded(rank=1, error=victim, exit=ExitFile(code=1)),
        RankAdded(rank=2, exit=ExitFile(signal="SIGTERM", by_launcher=True)),
    ]
    assert playing.look(ranks=ended) == []


def test_the_launcher_knows_of_exits_too() -> None:
    playing = Playing(2)
    playing.steps(0, 10)
    entry = RankEntry(rank=1, exit=Exit(signal="SIGSEGV"))
    (alert,) = playing.look(run=run_file(2, "failed", ranks=(entry,)))
    assert alert.message == "Rank 1: killed by SIGSEGV"
    assert report(playing).state == "failed"


def test_of_a_failed_job_the_rank_that_failed_first_is_lost() -> None:
    playing = Playing(4)
    playing.steps(0, 10)
    ends = tuple(RankEntry(rank=r, exit=Exit(code=1)) for r in range(4))
    first = Failure(rank=2, kind="killed", message="rank 2 was killed (SIGKILL).")
    (alert,) = playing.look(run=run_file(4, "failed", ranks=ends, failure=first))
    assert alert.message == "Rank 2: rank 2 was killed (SIGKILL)"


def test_a_process_that_went_without_a_word_is_lost_if_it_was_seen_alive() -> None:
    alive: list[bool | None] = [None]
    process = AttachFile(rank=1, host="here", pid=7, started_ticks=5)
    rank = RankWatch(1, lambda _: alive[0])
    rank.take(RankAdded(rank=1, process=process))
    for answer, gone in ((False, False), (None, False), (True, False), (False, True)):
        alive[0] = answer
        assert rank.is_gone() is gone
    rank.take(RankAdded(rank=1, said=said(1, ended=True)))
    assert not rank.is_gone()


def test_a_rank_that_falls_silent_while_others_go_on_is_lost_and_may_come_back() -> None:
    playing = Playing(4)
    playing.steps(0, 20)

    def others(first: int, last: int) -> list[str]:
        return [
            f"{alert.state} {alert.kind} {alert.ranks}"
            for number in range(first, last)
            for alert in playing.look(
                ranks=[RankAdded(rank=r, steps=(step(number),)) for r in range(3)]
            )
        ]

    assert others(20, 110) == []
    assert others(110, 125) == ["raised rank-lost (3,)"]
    (lost,) = report(playing).lost
    assert lost.evidence.startswith("no step for 1")
    back = [RankAdded(rank=r, steps=(step(125),)) for r in range(4)]
    assert [(a.state, a.kind) for a in playing.look(ranks=back)] == [("cleared", "rank-lost")]


def test_steps_go_on_being_judged_without_a_rank_that_is_silent() -> None:
    playing = Playing(4)
    playing.steps(0, 5)
    for number in range(5, 100):
        playing.look(
            ranks=[
                RankAdded(rank=r, steps=(step(number, own_ms=96 if r == 2 else 80),))
                for r in range(3)
            ]
        )
    assert "slow-rank" in told(playing)


def test_a_job_stalls_when_it_pauses_longer_than_ever_before() -> None:
    playing = Playing(2)
    playing.steps(0, 10)
    assert playing.look(after_s=28) == []
    (alert,) = playing.look(after_s=3)
    assert (alert.state, alert.kind, alert.message) == (
        "raised", "stalled", "The job: no rank has completed a step for 31 s",
    )  # fmt: skip
    assert report(playing).state == "stalled"
    assert [alert.state for alert in playing.steps(10, 11)] == ["cleared"]


def test_a_job_that_pauses_for_its_checkpoints_does_not_stall() -> None:
    playing = Playing(2)
    playing.steps(0, 10)
    playing.look(after_s=27)
    playing.steps(10, 20)
    assert playing.look(after_s=50) == []
    assert [alert.kind for alert in playing.look(after_s=20)] == ["stalled"]


def test_a_job_that_stopped_before_it_was_watched_is_stalled_at_once() -> None:
    playing = Playing(2)
    playing.now_s += 3_600
    playing.look(ranks=[RankAdded(rank=r, steps=tuple(map(step, range(10)))) for r in range(2)])
    assert report(playing).state == "stalled"


def test_input_counts_in_phases_and_outside_of_them() -> None:
    playing = Playing(2)
    playing.steps(0, 10)
    pause = [Pause(kind="input", start_ns=0, end_ns=40 * MS, step=n) for n in range(10, 60)]
    kinds = []
    for number in range(10, 60):
        kinds += playing.look(
            ranks=[
                RankAdded(rank=r, steps=(step(number),), pauses=(pause[number - 10],))
                for r in range(2)
            ]
        )
    assert [alert.kind for alert in kinds] == ["input"]
    found = report(playing)
    assert found.input_ratio == pytest.approx(0.41, rel=1e-5)
    assert found.input_rank is None
    for number in range(60, 110):
        playing.look(
            ranks=[RankAdded(rank=r, steps=(step(number, input_ms=20 + 10 * r),)) for r in range(2)]
        )
    assert report(playing).input_rank == 1


def samples(reason: str, number: int) -> tuple[NvmlRecord, ...]:
    return tuple(
        NvmlRecord(t_ns=n, throttle_reasons=(reason,), sm_clock_mhz=900) for n in range(number)
    )


def test_heat_throttles_and_the_power_cap_does_not() -> None:
    playing = Playing(2)
    assert playing.look(ranks=[RankAdded(rank=0, samples=samples("sw_power_cap", 300))]) == []
    assert playing.look(ranks=[RankAdded(rank=1, samples=samples("hw_thermal_slowdown", 19))]) == []
    hot = RankAdded(rank=1, samples=samples("hw_thermal_slowdown", 1))
    (alert,) = playing.look(ranks=[hot])
    assert (alert.kind, alert.ranks) == ("throttling", (1,))
    (throttled,) = report(playing).throttled
    assert (throttled.rank, throttled.throttled_ratio, throttled.sm_clock_mhz) == (1, 1.0, 900)
    assert throttled.reasons == ("hw_thermal_slowdown",)


def test_memory_is_watched_where_a_limit_is_given() -> None:
    playing = Playing(2, {**default_levels(), "memory": 1e9})

    def uses(**fields: int) -> list[str]:
        record = MemoryRecord(step=1, t_ns=1, **fields)
        return [alert.state for alert in playing.look(ranks=[RankAdded(rank=1, memory=(record,))])]

    assert uses(rss_bytes=999_000_000) == []
    assert uses(rss_bytes=1_001_000_000) == ["raised"]
    assert uses(rss_bytes=960_000_000) == []
    assert uses(rss_bytes=940_000_000) == ["cleared"]
    assert uses(rss_bytes=5_000_000_000, allocated_bytes=900_000_000) == []
    memory = report(playing).memory
    assert memory is not None
    assert (memory.where, memory.used_bytes) == ("device", 900_000_000)


def test_a_job_that_is_started_again_in_its_directory_begins_anew() -> None:
    playing = Playing(2)
    playing.steps(0, 100, {1: 96.0})
    assert told(playing) == ["slow-rank"]
    later = replace(step(0), start_ns=START_NS + 10**12, end_ns=START_NS + 10**12 + MS)
    playing.look(ranks=[RankAdded(rank=r, steps=(later,)) for r in range(2)])
    found = report(playing)
    assert (found.step, found.alerts, found.late) == (0, (), ())


def test_another_run_in_the_same_directory_begins_anew() -> None:
    playing = Playing(2)
    playing.steps(0, 20)
    playing.now_s += 1
    other = Added(run=run_file(1), is_another_run=True)
    playing.job.take(other, now_s=playing.now_s, now_ns=playing.now_ns)
    found = report(playing)
    assert (found.step, found.num_ranks, found.world_size) == (None, 0, 1)


@pytest.mark.parametrize(
    "broken",
    [
        lambda good: replace(good, end_ns=good.start_ns),
        lambda good: replace(good, end_ns=-1),
        lambda good: replace(good, start_ns=-(1 << 62), end_ns=1 << 62),
        lambda good: replace(good, step=-5),
        lambda good: replace(good, step=0),
        lambda good: replace(good, step=1 << 70),
        lambda good: replace(good, step=good.step + 99_999),
        lambda good: replace(good, cpu_ns=-5, run_queue_ns=1 << 62),
    ],
)
def test_nonsense_of_one_rank_does_not_stop_the_watcher(broken: Callable) -> None:
    playing = Playing(4)
    playing.steps(0, 20)
    for number in range(20, 90):
        ranks = [RankAdded(rank=r, steps=(step(number),)) for r in range(3)]
        playing.look(ranks=[*ranks, RankAdded(rank=3, steps=(broken(step(number)),))])
    found = report(playing)
    assert found.step is not None
    assert found.step > 20
    assert not [late for late in found.late if late.rank != 3]


def test_a_thousand_ranks_are_folded_to_those_that_matter() -> None:
    playing = Playing(1_024)
    late = dict.fromkeys(range(100, 120), 100.0)
    (alert,) = playing.steps(0, SETTLE + ON + 1, late)
    assert alert.ranks == tuple(range(100, 120))
    assert alert.message.startswith("Ranks 100-119: own time is up to 25")
    assert len(report(playing).late) == 8
