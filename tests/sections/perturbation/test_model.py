"""The graph of a recording's events: it repeats the recording, and a cost per event shortens it.

Answers worked out by hand are in µs; ``us`` makes ns of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distprof
from distprof.run.run import Run
from distprof.sections.measure_run import analysed_windows
from distprof.sections.perturbation.corrected import corrected_run
from distprof.sections.perturbation.events import RankEvents, find_events
from distprof.sections.perturbation.model import Cost, Model, RankTimes
from tests.builders import RankBuilder
from tests.sections.perturbation.dilated import MS, US, Program, constant, run

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDINGS = {
    "gpu-truth/h100-base": 0.001,
    "gpu-truth/h200-transformer-pageable": 0.01,
    "job/gloo-hsdp-4ranks": 0.01,
    "job/gloo-pp-4ranks": 0.3,  # waits for messages without marks are not seen: not corrected
    "job/nccl-fsdp-2ranks-h100": 0.06,  # ranks take turns on one GPU
    "kineto/gloo-ddp-2ranks": 0.01,
    "kineto/ddp-a100-2gpu-rank0": 0.01,
    "kineto/mi250-1gpu": 0.01,
}
"""Recordings, and how far the repeated steps may be from the recorded ones."""


def us(*times: float) -> tuple[int, ...]:
    return tuple(int(time * 1000) for time in times)


def events_of(rank: RankBuilder) -> RankEvents:
    found = find_events(rank.number, rank.tables(), is_cpu=False)
    assert found is not None
    return found


def times_with(rank: RankBuilder, op_us: float = 0, call_us: float = 0) -> RankTimes:
    events = events_of(rank)
    window = np.array([[0, 1]])
    cost = Cost(operator_ns=op_us * 1000, call_ns=call_us * 1000)
    model = Model(None, [events], {rank.number: window})
    return model.of_ranks(model.simulate([cost]), 0)[0]


def starts(times: RankTimes) -> list[float]:
    return (times.start_ns / 1000).tolist()


def chain(kernel_us: float) -> RankBuilder:
    """Three kernels, each launched by an operator of 20 µs at 16 µs; operators follow at once."""
    rank, free = RankBuilder(), 0.0
    for number in range(3):
        begin = 20.0 * number
        start = max(free, begin + 18)
        free = start + kernel_us
        rank.operator("aten::mm", *us(begin, begin + 20))
        rank.kernel("gemm", *us(start, free), launched=us(begin + 16, begin + 18))
    return rank


def test_a_launch_bound_chain_is_shorter_by_the_cost_before_each_launch():
    """Launch n follows n operators and half of its own: with 4 µs each, 2 + 4 n µs earlier."""
    assert starts(times_with(chain(5))) == [18, 38, 58]
    assert starts(times_with(chain(5), op_us=4)) == [16, 32, 48]


def test_a_gpu_that_is_behind_starts_no_kernel_sooner_than_it_is_free():
    """Kernels of 50 µs: only the first one waits for its launch."""
    assert starts(times_with(chain(50))) == [18, 68, 118]
    assert starts(times_with(chain(50), op_us=4)) == [16, 66, 116]


def test_a_cpu_that_waited_goes_on_when_the_gpu_is_done():
    """The call returns 2 µs after the kernel, whatever came before; then 10 µs until a launch."""
    rank = RankBuilder().operator("aten::mm", *us(0, 20))
    rank.kernel("gemm", *us(18, 100), launched=us(14, 18))
    rank.sync("cudaStreamSynchronize", *us(20, 102))
    rank.operator("aten::add", *us(104, 120)).kernel("add", *us(116, 120), launched=us(112, 114))
    assert starts(times_with(rank)) == [18, 116]
    assert starts(times_with(rank, op_us=2)) == [17, 114]  # half an operator, then 1 + 1


def test_a_kernel_that_waits_for_another_stream_follows_it():
    rank = RankBuilder().operator("aten::mm", *us(0, 40))
    rank.kernel("gemm", *us(20, 120), launched=us(16, 18), stream=7)
    rank.kernel("after", *us(121, 130), launched=us(24, 26), stream=8)
    assert starts(times_with(rank, op_us=8)) == [16, 117]


@pytest.mark.parametrize("name", RECORDINGS)
def test_without_a_cost_the_recording_is_repeated(name):
    recording, model, windows = opened(name)
    steps = model.steps(model.simulate([Cost()]))[:, :, 0]
    recorded = np.stack([one[:, 1] - one[:, 0] for one in windows.values()])
    assert steps.mean() == pytest.approx(recorded.mean(), rel=RECORDINGS[name])
    assert recording.ranks


@pytest.mark.parametrize("name", RECORDINGS)
def test_more_cost_never_makes_a_step_longer_and_activities_keep_their_length(name):
    _, model, _ = opened(name)
    costs = [Cost(operator_ns=one, call_ns=3 * one) for one in (0.0, 1e3, 3e3, 1e4, 1e5)]
    times = model.simulate(costs)
    mean = model.steps(times).mean(axis=(0, 1))
    assert (np.diff(mean) <= 1e-6 * mean[0]).all()
    for rank in model.of_ranks(times, 3):
        events = rank.events
        alone = events.of_collective[events.of_collective >= 0]
        kept = np.setdiff1d(np.arange(events.num_activities), alone)
        lengths = (events.end_ns - events.start_ns)[kept]
        assert ((rank.end_ns - rank.start_ns)[kept] == lengths).all()
        assert (np.diff(rank.check_ns) >= 0).all()


@pytest.mark.parametrize("name", list(RECORDINGS)[:5])
def test_moved_tables_stay_in_order(name):
    recording, model, _ = opened(name)
    times = model.of_ranks(model.simulate([Cost(operator_ns=3e3, call_ns=9e3)]), 0)
    moved = corrected_run(recording, {one.events.rank: one for one in times})
    for before, after in zip(recording.ranks, moved.ranks, strict=True):
        old, new = before.tables.load(every_host_row=True), after.tables.load(every_host_row=True)
        assert len(old.host) == len(new.host)
        assert (new.host["end_ns"] >= new.host["start_ns"]).all()
        order = np.argsort(old.host["start_ns"], kind="stable")
        assert (np.diff(new.host["start_ns"][order]) >= 0).all()  # so what was nested still is
        assert (np.diff(new.activity["start_ns"]) >= 0).all()
        assert (np.diff(new.steps["start_ns"]) > 0).all()
        assert (new.steps["end_ns"][:-1] <= new.steps["start_ns"][1:]).all()


@settings(deadline=None)
@given(
    st.builds(
        Program,
        kernels=st.integers(1, 30),
        kernel_ns=st.integers(1 * US, 100 * US),
        op_ns=st.integers(1 * US, 20 * US),
        ops=st.integers(1, 5),
        sync_every=st.sampled_from((0, 1, 7)),
        load_ns=st.sampled_from((0, 2 * MS)),
    ),
    st.integers(0, 10 * US),
    st.integers(0, 10**18),
)
def test_clocks_do_not_matter_and_no_cost_moves_nothing(program, op_ns, shift):
    rank = run(program, 3, constant(op_ns)).trace
    same = RankBuilder()
    same.activities = [{**r, **shifted(r, shift)} for r in rank.activities]
    same.host = [{**r, **shifted(r, shift)} for r in rank.host]
    first, second = times_with(rank), times_with(same)
    assert (first.start_ns == first.events.start_ns).all()
    assert (first.check_ns == first.events.check_ns).all()
    assert (second.start_ns - shift == first.start_ns).all()
    assert (times_with(same, 2).start_ns - shift == times_with(rank, 2).start_ns).all()


def shifted(row: dict, by: int) -> dict[str, int]:
    return {name: row[name] + by for name in ("start_ns", "end_ns")}


def opened(name: str) -> tuple[Run, Model, dict[int, np.ndarray]]:
    recording = distprof.open_run(GOLDEN / name, use_cache=False)
    spans = analysed_windows(recording)
    windows = {rank: np.stack(one, axis=1) for rank, one in spans.items()}
    events = [
        find_events(
            rank.rank,
            rank.tables.load(every_host_row=True),
            is_cpu=rank.device.name == "cpu",
        )
        for rank in recording.ranks
        if rank.rank in windows
    ]
    return recording, Model(recording, events, windows), windows
