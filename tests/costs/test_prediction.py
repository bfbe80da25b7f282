"""Layer splits by hand, and what predictions of the same work must fulfil."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.costs.known_schedules import SCHEDULES, orders
from distprof.costs.pipeline import replay
from distprof.costs.prediction import Candidate, StageWork, predict, split_layers
from distprof.terms import SlotKind


def work_of(*stage_ns, micro_batches=8, layers=(), **more):
    each = np.array(stage_ns, np.int64)
    return StageWork(
        forward_ns=each,
        backward_input_ns=each,
        backward_weight_ns=each,
        num_micro_batches=micro_batches,
        layers=layers,
        **more,
    )


def one(work, ranks, schedule, micro_batches, **more):
    names = {"virtual_stages", "layer_split", "keeps_stages"}
    choice = {key: more.pop(key) for key in names & set(more)}
    candidate = Candidate(schedule=schedule, num_micro_batches=micro_batches, **choice)
    (prediction,) = predict(work, ranks, [candidate], **more)
    return prediction


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [
        ([1] * 8, 4, (2, 2, 2, 2)),
        ([1] * 7 + [3], 4, (2, 2, 3, 1)),
        ([5, 1, 1, 1, 1, 1], 3, (1, 2, 3)),
        ([1, 1, 1, 5], 1, (4,)),
        ([3, 1, 2], 3, (1, 1, 1)),
    ],
)
def test_the_busiest_stage_gets_as_little_as_can_be(layers, stages, split):
    found = split_layers(np.array(layers), stages)
    assert sorted(found) == sorted(split)
    assert heaviest(layers, found) == heaviest(layers, split)


def heaviest(layers, split):
    cuts = np.cumsum((0, *split))
    return max(
        sum(layers[low:high])
        for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    )


@given(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.data())
def test_no_other_split_has_a_less_busy_stage(layers, data):
    stages = data.draw(st.integers(1, len(layers)))
    others = (
        np.diff((0, *cuts, len(layers))).tolist()
        for cuts in combinations(range(1, len(layers)), stages - 1)
    )
    best = min(heaviest(layers, split) for split in others)
    assert heaviest(layers, split_layers(np.array(layers), stages)) == best


def test_stages_of_one_rank_share_what_it_has_to_do():
    """There and back on two ranks: the heavy last layer goes with the light first stage."""
    split = split_layers(np.array([1, 1, 1, 1, 1, 1, 1, 5]), 4, rank_of_stage=[0, 1, 1, 0])
    work = np.add.reduceat(np.array([1, 1, 1, 1, 1, 1, 1, 5]), np.cumsum((0, *split))[:-1])
    assert sorted((work[0] + work[3], work[1] + work[2])) == [6, 6]


def test_fewer_layers_than_stages_are_refused():
    with pytest.raises(ValueError, match="3 layers do not fill 4 stages"):
        split_layers(np.ones(3), 4)


def test_the_present_configuration_is_predicted_as_its_replay():
    work = work_of(10, 20, 15, 10)
    stays = one(work, 4, "1f1b", 8, keeps_stages=True, transfer_ns=2)
    per_stage = [10, 20, 15, 10]
    replayed = replay(
        orders("1f1b", 4, 8),
        {SlotKind.FORWARD: per_stage, SlotKind.BACKWARD: [2 * ns for ns in per_stage]},
        transfer_ns=2,
    )
    assert stays.makespan_ns == replayed.makespan_ns
    assert stays.makespan_ns == replayed.makespan_ns
    assert stays.bubble_fraction == replayed.bubble_fraction


def test_more_micro_batches_of_the_same_batch_shrink_the_bubble():
    """Even stages of 40: M = 4 takes 7 · 120, M = 16 takes 19 · 30."""
    work = work_of(40, 40, 40, 40, micro_batches=4)
    assert one(work, 4, "1f1b", 4).makespan_ns == 840
    assert one(work, 4, "1f1b", 16).makespan_ns == 570
    assert one(work, 4, "1f1b", 16).bubble_fraction == 3 / 19


def test_what_does_not_shrink_with_the_micro_batch_limits_their_number():
    work = work_of(40, 40, 40, 40, micro_batches=4, fixed_ns=30)
    assert one(work, 4, "1f1b", 16).makespan_ns == 19 * (30 + 2 * 30)
    assert one(work, 4, "1f1b", 16).makespan_ns > one(work, 4, "1f1b", 4).makespan_ns


def test_messages_of_smaller_micro_batches_are_no_faster():
    work = work_of(40, 40, micro_batches=4)
    smaller = one(work, 2, "gpipe", 8, transfer_ns=10)
    assert smaller.makespan_ns == one(work, 2, "gpipe", 8).makespan_ns + 2 * 10
    larger = one(work, 2, "gpipe", 2, transfer_ns=10)
    assert larger.makespan_ns == one(work, 2, "gpipe", 2).makespan_ns + 2 * 20


def test_layers_move_away_from_the_stage_that_limits():
    """Four stages of six layers, the last twice as slow: 18 layers of 1 and 6 of 2."""
    work = work_of(60, 60, 60, 120, layers=(6, 6, 6, 6))
    split = one(work, 4, "1f1b", 8).layer_split
    assert sum(split) == 24
    assert split[3] < 6
    assert (
        one(work, 4, "1f1b", 8).makespan_ns < one(work, 4, "1f1b", 8, keeps_stages=True).makespan_ns
    )


def test_a_given_split_is_kept():
    work = work_of(60, 60, layers=(6, 6))
    given = one(work, 2, "1f1b", 8, layer_split=(4, 8))
    assert given.layer_split == (4, 8)
    assert given.makespan_ns > one(work, 2, "1f1b", 8).makespan_ns


def test_without_layers_stages_are_divided_anywhere():
    work = work_of(30, 30, 30, 60)
    assert one(work, 4, "1f1b", 8).bubble_fraction == pytest.approx(3 / 11, abs=0.01)
    finer = one(work, 4, "interleaved-1f1b", 8, virtual_stages=2)
    assert (finer.layer_split, finer.virtual_stages) == ((), 2)
    assert finer.bubble_fraction == pytest.approx(3 / 19, abs=0.02)


def test_stages_that_are_kept_are_cut_where_their_layers_are():
    """10, 10, 10 and 30 in eight: a rank of the second half then holds a heavy piece."""
    work = work_of(10, 10, 10, 30)
    kept = one(work, 4, "interleaved-1f1b", 8, virtual_stages=2, keeps_stages=True)
    pieces = [5, 5, 5, 5, 5, 5, 15, 15]
    replayed = replay(
        orders("interleaved-1f1b", 4, 8, 2),
        {SlotKind.FORWARD: pieces, SlotKind.BACKWARD: [2 * ns for ns in pieces]},
    )
    assert kept.makespan_ns == replayed.makespan_ns
    assert kept.makespan_ns > one(work, 4, "interleaved-1f1b", 8, virtual_stages=2).makespan_ns


def test_what_cannot_run_is_left_out():
    work = work_of(10, 10, 10, 10, layers=(1, 1, 1, 1))
    refused = [
        Candidate(schedule="interleaved-1f1b", num_micro_batches=8),  # eight stages, four layers
        Candidate(schedule="1f1b", num_micro_batches=0),
        Candidate(schedule="dualpipev", num_micro_batches=4),
        Candidate(schedule="1f1b", num_micro_batches=8, layer_split=(2, 1, 1)),
    ]
    assert predict(work, 4, refused) == ()


def test_micro_batches_in_flight_are_those_of_the_schedule():
    work = work_of(10, 10, 10, 10, micro_batches=8)
    assert one(work, 4, "gpipe", 16).in_flight == 16.0
    assert one(work, 4, "1f1b", 16).in_flight == 4.0


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.integers(1, 5),
    st.integers(1, 3),
    st.lists(st.integers(1, 1000), min_size=5, max_size=5),
)
def test_no_prediction_beats_the_work_divided_by_the_ranks(schedule, ranks, rounds, lengths):
    work = work_of(*(1000 * ns for ns in lengths[:ranks]), micro_batches=ranks)
    made = predict(work, ranks, [Candidate(schedule=schedule, num_micro_batches=rounds * ranks)])
    total = 3 * 1000 * sum(lengths[:ranks]) * ranks
    for prediction in made:
        assert prediction.makespan_ns >= total / ranks * (1 - 1e-4)
        assert 0 <= prediction.bubble_fraction < 1
