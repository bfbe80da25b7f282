"""Measured against jobs whose truth is known: waits, input stalls, slow devices, overlap."""

import pytest

from distprof.ingest.assemble import assemble_run
from tests.sections.measured import Measured, measure
from tests.simulator import (
    Collective,
    Compute,
    Input,
    LateInput,
    MoreWork,
    Recording,
    SimulatedJob,
    SlowDevice,
)

MS = 1_000_000
PLAIN_STEP = (Input(), Compute(ns=4 * MS), Collective(), Compute(ns=2 * MS), Collective())
TOLERANCE_NS = 10_000  # per collective: the ends of members jitter by 2 µs, and so do clocks


def simulated(**job) -> tuple[Recording, Measured]:
    recording = SimulatedJob(**job).run()
    return recording, measure(assemble_run("simulated", recording.to_ranks()))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("offsets", [(), (0, 10 * MS)], ids=["one clock", "10 ms apart"])
def test_exposed_wait_is_the_wait_for_the_last_member(seed, offsets):
    """Nothing runs beside these collectives: each member's whole wait is exposed."""
    recording, result = simulated(
        program=PLAIN_STEP,
        faults=(SlowDevice(rank=1, factor=1.3),),
        seed=seed,
        clock_offset_ns=offsets,
    )
    analysed = [instance for instance in recording.instances if instance.step in range(10, 15)]
    for row in result.waterfall.ranks:
        truth = sum(instance.wait_ns(row.rank) for instance in analysed)
        assert row.exposed_wait_ns == pytest.approx(truth, abs=TOLERANCE_NS * len(analysed))
        assert row.exposed_comm_unsplit_ns == 0


def test_a_healthy_job_hardly_waits():
    _, result = simulated(program=PLAIN_STEP, compute_noise=0.0)
    for row in result.waterfall.ranks:
        assert row.exposed_wait_ns < 0.001 * row.span_ns


def test_transfer_is_what_remains_after_the_wait():
    """Ten collectives of 1 ms on each rank, none of them hidden."""
    _, result = simulated(program=PLAIN_STEP, faults=(SlowDevice(rank=1, factor=1.3),))
    for row in result.waterfall.ranks:
        assert row.exposed_transfer_ns == pytest.approx(10 * MS, rel=0.01)


def test_a_late_loader_is_input_on_its_rank_and_wait_on_the_others():
    _, result = simulated(program=PLAIN_STEP, faults=(LateInput(rank=2, ns=5 * MS),))
    idle = {row.rank: row.input_ns for row in result.idle.ranks}
    wait = {row.rank: row.exposed_wait_ns for row in result.waterfall.ranks}
    assert idle[2] == pytest.approx(5 * (5 + 0.2) * MS, rel=0.01)
    assert idle[0] == pytest.approx(5 * 0.2 * MS, rel=0.01)
    assert wait[0] == pytest.approx(5 * 5 * MS, rel=0.05)
    assert wait[2] < 0.05 * wait[0]


def test_a_slow_device_shows_in_its_kernels_and_more_work_in_their_number():
    _, slow = simulated(program=PLAIN_STEP, faults=(SlowDevice(rank=3, factor=1.2),))
    _, busy = simulated(program=PLAIN_STEP, faults=(MoreWork(rank=3, factor=1.5),))
    assert slow.kernels.ranks[3].relative_time == pytest.approx(1.2, abs=0.02)
    assert slow.kernels.ranks[3].relative_work == pytest.approx(1.0)
    assert busy.kernels.ranks[3].relative_work == pytest.approx(1.5, abs=0.01)
    assert [rank.relative_time for rank in slow.kernels.ranks[:3]] == pytest.approx(
        [1.0] * 3, abs=0.02
    )


def test_overlap_is_measured_where_communication_runs_beside_computation():
    """Each transfer of 1 ms lies under the next 2 ms of computation, but for the last one."""
    program = (
        Input(),
        Compute(ns=2 * MS),
        Collective(overlap=True),
        Compute(ns=2 * MS),
        Collective(overlap=True),
        Compute(ns=2 * MS),
        Collective(),
    )
    _, result = simulated(program=program, compute_noise=0.0)
    for row in result.overlap.ranks:
        assert row.overlap_ratio == pytest.approx(2 / 3, abs=0.01)
