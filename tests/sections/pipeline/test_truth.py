"""Measured pipelines against simulated ones, whose bubble and its causes are known.

Configurations are drawn with fixed seeds: schedules, 2 to 16 ranks, 1 to 64 micro-batches, virtual
stages, skewed stages, messages, late launches, noise, clocks and replicas. The simulator shares no
code with what is tested; the orders it runs are held against torch's own elsewhere.
"""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from distprof.costs.known_schedules import SCHEDULES, orders
from distprof.costs.pipeline import bubble_fraction
from distprof.ingest.open import open_run
from distprof.sections.context import RankAnalyses
from distprof.sections.pipeline.measure import analyze_pipeline
from tests.drawn import drawn, some
from tests.sections.measured import measure
from tests.simulator.pipeline_job import PipelineJob

US = 1_000
MS = 1_000_000
NUM_SAMPLES = 160
CLOSED = ("gpipe", "1f1b", "interleaved-1f1b", "looped-bfs")
PARTS = ("warm_up_drain_ns", "imbalance_ns", "variation_ns", "exposed_p2p_ns", "host_ns")


def job_of(order, *, forward, inputs, weight, **more):
    """A job that runs an order; durations are one number or one per stage."""
    ranks = range(order.num_ranks)
    stages = order.num_stages

    def each(ns):
        return [ns] * stages if isinstance(ns, int) else ns

    return PipelineJob(
        orders=[
            [("FBIW"[a.kind], a.stage, a.micro_batch) for a in order.actions(r)] for r in ranks
        ],
        pairs=[order.overlaps[order.rank == r].tolist() for r in ranks],
        forward_ns=each(forward),
        input_ns=each(inputs),
        weight_ns=each(weight),
        **more,
    )


def analysed(recording, **more):
    run = recording.to_run(**more)
    return analyze_pipeline(run, measure(run).analyses).groups


@cache
def sampled(seed):
    """A configuration, drawn: its order and job."""
    draw = random.Random(seed)
    while True:
        name = draw.choice(sorted(SCHEDULES))
        ranks = draw.choice([2, 3, 4, 6, 8, 12, 16])
        batches = draw.choice([1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 48, 64])
        most = SCHEDULES[name].most
        virtual = SCHEDULES[name].fewest if most is not None else draw.choice([2, 3, 4])
        try:
            order = orders(name, ranks, batches, virtual)
        except ValueError:
            continue
        # small ones are many, and a few as large as they come
        if len(order) <= (6000 if seed % 40 == 0 else 400):
            break
    skew = draw.choice([0.0, 0.1, 0.5])
    stages = order.num_stages

    def durations(mean):
        return [round(mean * MS * (1 + skew * draw.uniform(-1, 1))) for _ in range(stages)]

    replicas = draw.choice([1, 1, 2]) if ranks <= 4 else 1
    clocks = draw.random() < 0.3
    job = job_of(
        order,
        forward=durations(draw.choice([4, 10])),
        inputs=durations(draw.choice([4, 10])),
        weight=durations(draw.choice([3, 10])),
        message_ns=draw.choice([0, 50, 400, 3000]) * US,
        launch_ns=draw.choice([0, 0, 30, 500]) * US,
        noise=draw.choice([0.0, 0.0, 0.02]),
        replicas=replicas,
        clock_offset_ns=[draw.randrange(-50 * MS, 50 * MS) for _ in range(ranks * replicas)]
        if clocks
        else (),
        seed=seed,
    )
    return order, job


@pytest.mark.parametrize("seed", drawn(range(NUM_SAMPLES), always=8))
def test_the_bubble_is_the_simulated_one_and_its_parts_add_up(seed):
    order, job = sampled(seed)
    recording = job.run()
    (group,) = analysed(recording)
    truth = recording.truth(group.replicas.index(group.ranks))
    assert group.bubble_fraction == pytest.approx(truth.bubble_fraction, abs=0.001)
    assert sum(getattr(group, part) for part in PARTS) == group.idle_ns
    assert all(getattr(group, part) >= 0 for part in PARTS)
    assert group.idle_ns == pytest.approx(group.span_ns - group.work_ns, abs=1)
    assert (group.stages, group.num_micro_batches) == (order.num_stages, order.num_micro_batches)
    assert group.num_steps == job.num_steps
    for detail in group.stages_detail:
        expected = truth.bubble_fractions[detail.position]
        assert detail.bubble_fraction == pytest.approx(expected, abs=0.001)
        assert detail.in_flight == recording.in_flight(detail.stage)


@pytest.mark.parametrize(
    ("schedule", "ranks", "micro_batches"),
    [
        ("1f1b", 16, 64),
        ("gpipe", 16, 1),
        pytest.param("zbv", 16, 64, marks=pytest.mark.nightly),
        pytest.param("zb-h2", 2, 64, marks=pytest.mark.nightly),
    ],
)
def test_the_bubble_at_the_corners(schedule, ranks, micro_batches):
    order = orders(schedule, ranks, micro_batches)
    skewed = [(5 + stage % 3) * MS for stage in range(order.num_stages)]
    job = job_of(order, forward=skewed, inputs=skewed, weight=skewed, message_ns=300 * US)
    recording = replace(job, num_steps=1).run()
    (group,) = analysed(recording)
    assert group.bubble_fraction == pytest.approx(recording.truth().bubble_fraction, abs=0.001)
    assert sum(getattr(group, part) for part in PARTS) == group.idle_ns


@pytest.mark.parametrize("seed", drawn(range(0, NUM_SAMPLES, 8), always=4))
def test_annotations_of_a_host_that_runs_ahead_give_the_simulated_bubble(seed):
    """Without the device's own annotations, a slot is the kernels that were launched inside."""
    order, job = sampled(seed)
    recording = job.run()
    (group,) = analysed(recording, marks="host")
    truth = recording.truth(group.replicas.index(group.ranks))
    assert group.bubble_fraction == pytest.approx(truth.bubble_fraction, abs=0.001)
    assert (group.stages, group.num_micro_batches) == (order.num_stages, order.num_micro_batches)


@pytest.mark.parametrize("seed", drawn(range(0, NUM_SAMPLES, 4), always=4))
def test_parts_of_the_bubble_are_what_it_loses_without_their_cause(seed):
    """The truth simulates the same job again without the cause. Noise is left out: by chance.

    A launch that is late by itself hides some of a message, so that their shares depend on which is
    left out first; together they do not.
    """
    _, noisy = sampled(seed)
    job = replace(noisy, noise=0.0)
    (group,) = analysed(job.run())
    truth = job.parts()

    def share(ns):
        return pytest.approx(ns / group.span_ns, abs=0.002)

    assert group.warm_up_drain_ns / group.span_ns == share(truth.warm_up_drain_ns)
    assert group.imbalance_ns / group.span_ns == share(truth.imbalance_ns)
    assert group.variation_ns / group.span_ns == share(0)
    costs = group.exposed_p2p_ns + group.host_ns
    assert costs / group.span_ns == share(truth.messages_ns + truth.host_ns)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize(("message_us", "launch_us"), [(400, 0), (0, 300)])
def test_messages_and_host_are_told_apart(schedule, message_us, launch_us):
    """DualPipe's pairs send when both parts have ended: what the first made is not late by then."""
    order = orders(schedule, 4, 8)
    job = job_of(
        order,
        forward=5 * MS,
        inputs=5 * MS,
        weight=5 * MS,
        message_ns=message_us * US,
        launch_ns=launch_us * US,
    )
    (group,) = analysed(job.run())
    truth = job.parts()
    assert group.exposed_p2p_ns == truth.messages_ns
    assert group.host_ns == truth.host_ns
    assert truth.messages_ns + truth.host_ns > 0


@pytest.mark.parametrize("schedule", CLOSED)
@pytest.mark.parametrize("ranks", some([2, 4, 8, 16], always=lambda ranks: ranks in (2, 8)))
@pytest.mark.parametrize("rounds", [1, 4])
def test_equal_stages_have_the_ideal_of_the_formula_sheet(schedule, ranks, rounds):
    order = orders(schedule, ranks, rounds * ranks)
    recording = job_of(order, forward=5 * MS, inputs=5 * MS, weight=5 * MS).run()
    (group,) = analysed(recording)
    closed = bubble_fraction(ranks, rounds * ranks, SCHEDULES[schedule].fewest)
    assert group.ideal_bubble_fraction == closed
    assert group.bubble_fraction == pytest.approx(closed, abs=1e-6)
    assert group.idle_ns == group.warm_up_drain_ns


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "looped-bfs"])
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_fewer_micro_batches_than_ranks_have_the_ideal_of_their_order(schedule, micro_batches):
    """The closed form of several stages per rank needs a micro-batch per rank."""
    order = orders(schedule, 4, micro_batches)
    recording = job_of(order, forward=5 * MS, inputs=5 * MS, weight=5 * MS).run()
    (group,) = analysed(recording)
    assert group.ideal_bubble_fraction == pytest.approx(group.bubble_fraction, abs=1e-6)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES.keys() - set(CLOSED)))
@pytest.mark.parametrize("ranks", some([2, 4, 8], always=lambda ranks: ranks < 8))
def test_equal_stages_have_the_ideal_of_their_order(schedule, ranks):
    order = orders(schedule, ranks, 2 * ranks)
    recording = job_of(order, forward=5 * MS, inputs=4 * MS, weight=3 * MS).run()
    (group,) = analysed(recording)
    assert group.schedule == schedule
    assert group.ideal_bubble_fraction == pytest.approx(group.bubble_fraction, abs=1e-6)
    assert group.idle_ns == group.warm_up_drain_ns


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_schedules_are_recognised_through_noise_and_messages(schedule):
    order = orders(schedule, 4, 8)
    job = job_of(
        order, forward=5 * MS, inputs=5 * MS, weight=5 * MS, message_ns=200 * US, noise=0.05
    )
    (group,) = analysed(job.run())
    assert group.schedule == schedule
    assert group.virtual_stages == SCHEDULES[schedule].fewest


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-h1", "zbv"])
def test_annotations_that_begin_before_the_wait_give_the_same_bubble(schedule):
    order = orders(schedule, 4, 8)
    job = job_of(order, forward=5 * MS, inputs=5 * MS, weight=5 * MS, message_ns=300 * US)
    recording = job.run()
    (group,) = analysed(recording, marks="torch")
    assert group.bubble_fraction == pytest.approx(recording.truth().bubble_fraction, abs=0.001)


def test_without_messages_in_the_trace_the_bubble_stays():
    order = orders("1f1b", 4, 8)
    job = job_of(order, forward=5 * MS, inputs=5 * MS, weight=5 * MS, message_ns=300 * US)
    recording = job.run()
    (group,) = analysed(recording, messages=False)
    assert group.bubble_fraction == pytest.approx(recording.truth().bubble_fraction, abs=0.001)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"])
def test_predicted_steps_are_those_of_pipelines_that_run_so(schedule):
    """The same batch in other micro-batches, simulated: work of each in proportion to its size."""
    order = orders(schedule, 4, 8)
    work = [8 * MS] * (order.num_stages - 1) + [12 * MS]
    (group,) = analysed(job_of(order, forward=work, inputs=work, weight=work).run())
    others = [row for row in group.predictions if row.change == "micro-batches"]
    assert {row.num_micro_batches for row in others} >= {16, 32}
    for row in others:
        number = row.num_micro_batches
        other = orders(schedule, 4, number)
        smaller = [ns * 8 // number for ns in work]
        truth = job_of(other, forward=smaller, inputs=smaller, weight=smaller).run().truth()
        outside = group.step_ns - group.span_ns
        assert row.step_ns == pytest.approx(truth.span_ns + outside, rel=1e-3)
        assert row.bubble_fraction == pytest.approx(truth.bubble_fraction, abs=0.001)


def test_the_stage_that_limits_is_the_slow_one():
    order = orders("1f1b", 4, 16)
    slow = [5 * MS, 5 * MS, 8 * MS, 5 * MS]
    (group,) = analysed(job_of(order, forward=slow, inputs=slow, weight=slow).run())
    assert (group.limiting_stage, group.limiting_rank) == (2, 2)
    assert group.imbalance_ratio == pytest.approx(8 / 5.75)


def test_pipelines_beside_each_other_are_one_group_with_replicas():
    order = orders("1f1b", 3, 6)
    job = job_of(order, forward=5 * MS, inputs=5 * MS, weight=5 * MS, replicas=2)
    (group,) = analysed(job.run())
    assert group.replicas == ((0, 2, 4), (1, 3, 5))


def test_files_give_the_same_as_tables(tmp_path):
    order = orders("interleaved-1f1b", 4, 8)
    offsets = np.random.default_rng(3).integers(-MS, MS, 4).tolist()
    job = job_of(
        order,
        forward=5 * MS,
        inputs=4 * MS,
        weight=3 * MS,
        message_ns=100 * US,
        clock_offset_ns=offsets,
    )
    recording = job.run()
    recording.write_kineto(tmp_path)
    run = open_run(str(tmp_path))
    (group,) = analyze_pipeline(run, measure(run).analyses).groups
    assert group.schedule == "interleaved-1f1b"
    assert group.bubble_fraction == pytest.approx(recording.truth().bubble_fraction, abs=0.001)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-1f1b"])
def test_timelines_of_the_ranks_own_timers_give_the_same_bubble(tmp_path, schedule):
    order = orders(schedule, 4, 8)
    job = job_of(order, forward=5 * MS, inputs=4 * MS, weight=3 * MS, message_ns=100 * US)
    recording = replace(job, num_steps=3).run()
    recording.write_timeline(tmp_path)
    (group,) = analyze_pipeline(open_run(str(tmp_path)), RankAnalyses.of([])).groups
    assert group.schedule == schedule
    assert group.bubble_fraction == pytest.approx(recording.truth().bubble_fraction, abs=0.001)
