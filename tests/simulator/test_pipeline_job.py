"""The pipeline simulator by hand: two ranks, two micro-batches."""

from itertools import pairwise

import pytest

from tests.simulator.pipeline_job import PipelineJob

ORDERS = (
    (("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)),
    (("F", 1, 0), ("B", 1, 0), ("F", 1, 1), ("B", 1, 1)),
)


def job(**more):
    return PipelineJob(
        **{
            "orders": ORDERS,
            "forward_ns": (10, 20),
            "input_ns": (5, 15),
            "weight_ns": (10, 10),
            "num_steps": 1,
            "optimizer_ns": 7,
            "reduce_ns": 3,
            **more,
        }
    )


def times(recording, rank):
    begin = min(slot.start for slot in recording.slots)
    return [(s.start - begin, s.end - begin) for s in recording.slots if s.rank == rank]


def test_actions_wait_for_their_rank_and_their_input():
    recording = job(message_ns=3).run()
    assert times(recording, 0) == [(0, 10), (10, 20), (61, 76), (106, 121)]
    assert times(recording, 1) == [(13, 33), (33, 58), (58, 78), (78, 103)]


def test_the_truth_of_that_step():
    truth = job(message_ns=3).run().truth()
    assert truth.span_ns == 121
    assert truth.busy_ns == (50, 90)
    assert truth.warm_up_ns == (0, 13)
    assert truth.drain_ns == (0, 18)
    assert truth.bubble_fraction == 1 - 70 / 121
    # the first receive of rank 1, and both of rank 0
    assert truth.exposed_message_ns == (6, 3)


def test_the_host_delays_every_action():
    recording = job(launch_ns=1).run()
    assert times(recording, 0) == [(0, 10), (11, 21), (58, 73), (105, 120)]
    assert recording.truth().host_ns == (3, 3)


def test_parts_are_what_the_span_loses_without_them():
    """Spans: 105 with equal stages (15 and 20), 115 with their own, 121 with messages."""
    parts = job(message_ns=3).parts()
    assert parts.warm_up_drain_ns == 3 * 35 - 70
    assert parts.imbalance_ns == 115 - 105
    assert parts.messages_ns == 121 - 115
    assert (parts.variation_ns, parts.host_ns) == (0, 0)


def test_steps_follow_each_other_after_collective_and_optimizer():
    recording = job(num_steps=3).run()
    for before, after in pairwise(recording.steps):
        assert before.joined == max(before.ready.values()) + 3
        assert after.begin == before.end == before.joined + 7
        assert min(s.start for s in recording.slots if s.step == after.step) == after.begin


def test_the_first_of_a_pair_sends_when_the_second_has_ended():
    orders = ((("F", 0, 0), ("F", 0, 1)), (("F", 1, 0), ("F", 1, 1)))
    apart = job(orders=orders).run()
    paired = job(orders=orders, pairs=((True, False), (False, False))).run()
    assert times(apart, 1)[0] == (10, 30)
    assert times(paired, 1)[0] == (20, 40)


def test_micro_batches_in_flight():
    recording = job().run()
    assert [recording.in_flight(stage) for stage in (0, 1)] == [2, 1]


def test_replicas_run_beside_each_other_under_their_own_ranks():
    recording = job(replicas=2).run()
    assert {slot.rank for slot in recording.slots} == {0, 1, 2, 3}
    assert times(recording, 2) == times(recording, 3)
    assert recording.truth(replica=1) == recording.truth(replica=0)


def test_noise_is_the_same_for_the_same_seed():
    assert job(noise=0.3, seed=4).run().slots == job(noise=0.3, seed=4).run().slots
    assert job(noise=0.3, seed=4).run().slots != job(noise=0.3, seed=5).run().slots


def test_orders_that_wait_for_themselves_are_refused():
    with pytest.raises(RuntimeError, match="deadlock"):
        job(orders=((("B", 0, 0), ("F", 0, 0)), (("F", 1, 0), ("B", 1, 0)))).run()
