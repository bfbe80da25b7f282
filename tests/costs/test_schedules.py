"""Orders of actions: by hand, against torch's own, and replayed against the closed forms."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distprof.costs.known_schedules import SCHEDULES, orders
from distprof.costs.pipeline import (
    bubble_fraction,
    in_flight_of,
    orders_from,
    replay,
)
from distprof.replay import CycleError
from distprof.terms import SlotKind

F, B, I, W = (  # noqa: E741 - the field's own letters
    SlotKind.FORWARD,
    SlotKind.BACKWARD,
    SlotKind.BACKWARD_INPUT,
    SlotKind.BACKWARD_WEIGHT,
)
EQUAL = {F: 10, I: 10, W: 10}


def own_idle_ns(replayed):
    """Idle time per rank between its own first start and last end."""
    own = np.zeros_like(replayed.busy_ns)
    for rank in np.unique(replayed.orders.rank):
        rows = replayed.orders.rank == rank
        span = replayed.end_ns[rows].max(axis=0) - replayed.start_ns[rows].min(axis=0)
        own[rank] = span - replayed.busy_ns[rank]
    return own


def written(order, rank):
    return " ".join(map(str, order.actions(rank)))


@pytest.mark.parametrize(
    ("schedule", "virtual_stages", "expected"),
    [
        ("gpipe", 1, ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"]),
        ("1f1b", 1, ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]),
        (
            "zb-h1",
            1,
            ["0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"],
        ),
        (
            "zb-h2",
            1,
            ["0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2"],
        ),
    ],
)
def test_orders_of_two_ranks_and_three_micro_batches(schedule, virtual_stages, expected):
    order = orders(schedule, 2, 3, virtual_stages)
    assert [written(order, rank) for rank in range(2)] == expected


def test_interleaved_order_of_two_ranks_four_micro_batches_and_two_stages_each():
    order = orders("interleaved-1f1b", 2, 4, 2)
    assert written(order, 0) == ("0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3")
    assert written(order, 1) == ("1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [2, 4])
def test_every_stage_does_everything_once_on_its_rank(schedule, num_ranks, rounds):
    order = orders(schedule, num_ranks, rounds * num_ranks)
    per_rank = SCHEDULES[schedule].fewest
    stages = range(num_ranks * per_rank)
    assert order.num_stages == len(stages)
    assert order.num_micro_batches == rounds * num_ranks
    kinds = np.array(order.kind)
    for gradient in ((B, I), (B, W), (F,)):
        rows = np.isin(kinds, gradient)
        pairs = set(zip(order.stage[rows].tolist(), order.micro_batch[rows].tolist(), strict=True))
        assert rows.sum() == len(pairs) == len(stages) * rounds * num_ranks
    places = [SCHEDULES[schedule].rank_of(stage, num_ranks) for stage in order.stage.tolist()]
    assert order.rank.tolist() == places


def torch_order(name, num_ranks, num_micro_batches, virtual_stages, rank):
    """A rank's actions as torch orders them, without processes: (stage, letter, micro-batch)."""
    module = pytest.importorskip("torch.distributed.pipelining.schedules")
    schedule = object.__new__(getattr(module, name))
    rounds = max(1, num_micro_batches // num_ranks)
    vars(schedule).update(
        pp_group_size=num_ranks,
        n_local_stages=virtual_stages,
        num_stages=num_ranks * virtual_stages,
        _num_stages=num_ranks * virtual_stages,
        _stages=[None] * virtual_stages,
        _n_microbatches=num_micro_batches,
        number_of_rounds=rounds,
        microbatches_per_round=num_micro_batches // rounds,
    )
    if hasattr(schedule, "_calculate_single_rank_operations"):
        actions = schedule._calculate_single_rank_operations(rank)
    else:
        actions = schedule._get_pipeline_order()[rank]
    flat = [part for action in actions if action for part in (action.sub_actions or (action,))]
    return [
        (part.stage_index, part.computation_type.value, part.microbatch_index)
        for part in flat
        if part.computation_type.value in "FBIW"
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "virtual_stages"),
    [
        ("gpipe", "ScheduleGPipe", (1,)),
        ("looped-bfs", "ScheduleLoopedBFS", (2, 3)),
        ("interleaved-1f1b", "ScheduleInterleaved1F1B", (2, 3)),
        ("interleaved-zb", "ScheduleInterleavedZeroBubble", (2, 3)),
        ("zbv", "ScheduleZBVZeroBubble", (2,)),
        ("dualpipev", "ScheduleDualPipeV", (2,)),
        ("zb-h1", "ScheduleInterleavedZeroBubble", (1,)),
    ],
)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("factor", [0.5, 1, 2, 2.5, 5])
def test_orders_are_torchs(ours, theirs, virtual_stages, num_ranks, factor):
    micro_batches = max(1, int(factor * num_ranks))
    for per_rank in virtual_stages:
        try:
            order = orders(ours, num_ranks, micro_batches, per_rank)
        except ValueError:
            continue  # torch refuses these too, see below
        for rank in range(num_ranks):
            mine = [(a.stage, "FBIW"[a.kind], a.micro_batch) for a in order.actions(rank)]
            assert mine == torch_order(theirs, num_ranks, micro_batches, per_rank, rank)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_the_order_of_1f1b_is_torchs_but_for_its_numbers(num_ranks):
    """torch numbers the last rank's forwards from 1 where no step of it runs so."""
    order = orders("1f1b", num_ranks, 2 * num_ranks)
    for rank in range(num_ranks):
        theirs = torch_order("Schedule1F1B", num_ranks, 2 * num_ranks, 1, rank)
        assert ["FBIW"[a.kind] for a in order.actions(rank)] == [letter for _, letter, _ in theirs]


@pytest.mark.parametrize(
    ("schedule", "num_ranks", "micro_batches", "virtual_stages"),
    [
        ("interleaved-1f1b", 4, 9, 2),
        ("interleaved-zb", 4, 9, 2),
        ("interleaved-1f1b", 4, 8, 1),
        ("1f1b", 4, 8, 2),
        ("zbv", 4, 8, 3),
        ("dualpipev", 4, 7, 2),
        ("gpipe", 4, 0, 1),
        ("gpipe", 0, 4, 1),
        ("pipedream", 4, 8, 1),
    ],
)
def test_schedules_that_cannot_run_are_refused(schedule, num_ranks, micro_batches, virtual_stages):
    with pytest.raises(ValueError, match=r"micro-batch|stages per rank|no schedule"):
        orders(schedule, num_ranks, micro_batches, virtual_stages)


# Replay -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("num_ranks", range(1, 17))
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 7, 16, 64])
def test_equal_stages_have_the_bubble_of_the_closed_form(schedule, num_ranks, micro_batches):
    replayed = replay(orders(schedule, num_ranks, micro_batches), EQUAL)
    closed = bubble_fraction(num_ranks, micro_batches)
    assert replayed.bubble_fraction == pytest.approx(closed, abs=1e-12)
    assert replayed.makespan_ns == 30 * (micro_batches + num_ranks - 1)
    most = {"gpipe": [micro_batches] * num_ranks, "1f1b": range(num_ranks, 0, -1)}[schedule]
    held = [min(micro_batches, one) for one in most]
    assert replayed.in_flight.tolist() == held


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "looped-bfs"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize("virtual_stages", [2, 3, 4])
def test_equal_virtual_stages_have_the_bubble_of_the_closed_form(
    schedule, num_ranks, rounds, virtual_stages
):
    replayed = replay(orders(schedule, num_ranks, rounds * num_ranks, virtual_stages), EQUAL)
    closed = bubble_fraction(num_ranks, rounds * num_ranks, virtual_stages)
    assert replayed.bubble_fraction == pytest.approx(closed, abs=1e-12)


@pytest.mark.parametrize(("schedule", "weights"), [("1f1b", -1), ("zb-h1", 1), ("zb-h2", 2)])
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("f", "b", "w"), [(10, 10, 10), (20, 18, 15), (12, 17, 10), (9, 8, 0)])
def test_idle_of_a_rank_is_the_formula_of_the_zero_bubble_paper(
    schedule, weights, num_ranks, f, b, w
):
    """Qi et al. 2024, section 2: so many weight parts per hop fill the bubble, or add to it."""
    replayed = replay(orders(schedule, num_ranks, 3 * num_ranks), {F: f, I: b, W: w})
    assert own_idle_ns(replayed).max() == (num_ranks - 1) * max(f + b - weights * w, 0)


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16])
def test_zb_v_has_no_bubble_but_its_first_forwards(num_ranks):
    replayed = replay(orders("zbv", num_ranks, 2 * num_ranks), EQUAL)
    assert own_idle_ns(replayed).tolist() == [0] * num_ranks


@pytest.mark.parametrize(
    ("schedule", "idle_slots", "slots"),
    [
        ("gpipe", 9, 33),
        ("1f1b", 9, 33),
        ("interleaved-1f1b", 9, 57),
        ("looped-bfs", 9, 57),
        ("interleaved-zb", 3, 51),
        ("zbv", 3, 51),
        ("dualpipev", 6, 54),
    ],
)
def test_four_ranks_and_eight_micro_batches_as_sleeping_stages_have_shown(
    schedule, idle_slots, slots
):
    """Measured with real pipelines of torch within a few percent: 0.273, 0.158, 0.059, 0.111."""
    replayed = replay(orders(schedule, 4, 8), EQUAL)
    assert replayed.bubble_fraction == pytest.approx(idle_slots / slots, abs=1e-12)


def test_zero_bubble_schedules_hold_what_their_papers_say():
    assert replay(orders("zb-h1", 4, 16), EQUAL).in_flight.tolist() == [4, 4, 4, 4]
    assert replay(orders("zb-h2", 4, 16), EQUAL).in_flight.tolist() == [7, 7, 7, 7]
    assert replay(orders("zbv", 4, 16), EQUAL).in_flight.tolist() == [8, 8, 8, 8]


def test_times_of_an_order_by_hand():
    """Two ranks, F 10 and 20, B 15 and 25, messages of 3: the second rank waits for the first."""
    order = orders("1f1b", 2, 2)
    replayed = replay(order, {F: [10, 20], B: [15, 25]}, transfer_ns=3)
    # rank 0: 0F0 0F1 0B0 0B1, rank 1: 1F0 1B0 1F1 1B1
    assert replayed.start_ns.tolist() == [0, 10, 61, 106, 13, 33, 58, 78]
    assert replayed.end_ns.tolist() == [10, 20, 76, 121, 33, 58, 78, 103]
    assert replayed.makespan_ns == 121
    assert replayed.busy_ns.tolist() == [50, 90]
    assert replayed.idle_ns.tolist() == [71, 31]
    assert own_idle_ns(replayed).tolist() == [71, 0]
    assert replayed.bubble_fraction == 102 / 242


def test_messages_between_stages_of_one_rank_are_free():
    """ZB-V hands the middle of the model from a rank to itself."""
    replayed = replay(orders("zbv", 1, 1), {F: 1, I: 1, W: 1}, transfer_ns=1000)
    assert replayed.makespan_ns == 6


def test_each_boundary_can_have_its_own_transfer_time():
    order = orders("gpipe", 3, 1)
    replayed = replay(order, {F: 0, B: 0}, transfer_ns=[5, 70])
    assert replayed.makespan_ns == 150


def test_losses_lie_between_forward_and_backward_of_the_last_stage():
    loss = SlotKind.LOSS
    order = orders_from([[(0, F, 0), (0, B, 0)], [(1, F, 0), (1, loss, 0), (1, B, 0)]])
    assert replay(order, {F: 1, B: 2, loss: 40}).makespan_ns == 46
    assert replay(order, {F: 1, B: 2}).makespan_ns == 6


def test_a_pair_that_overlaps_is_as_long_as_it_is_said_to_be():
    order = orders("dualpipev", 1, 4)
    apart = replay(order, {F: 10, B: 20, I: 10, W: 10})
    together = replay(order, {F: 10, B: 20, I: 10, W: 10, SlotKind.OVERLAPPED: 24})
    assert apart.makespan_ns - together.makespan_ns == 6 * order.overlaps.sum() > 0
    rows = np.flatnonzero(order.overlaps)
    assert (together.end_ns[rows + 1] - together.start_ns[rows] == 24).all()


def test_an_observed_order_is_replayed_as_it_is():
    """The last rank works on micro-batches the wrong way round, so that the first must wait."""
    known = orders("gpipe", 2, 2)
    observed = orders_from(
        [
            np.array([[0, F, 0], [0, F, 1], [0, B, 0], [0, B, 1]]),
            [(1, F, 1), (1, F, 0), (1, B, 1), (1, B, 0)],
        ]
    )
    assert replay(known, {F: 10, B: 10}).makespan_ns == 60
    assert replay(observed, {F: 10, B: 10}).makespan_ns == 80
    assert (observed.schedule, observed.num_ranks) == ("observed", 2)


def test_ranks_that_were_not_observed_are_not_waited_for():
    order = orders("1f1b", 4, 4)
    half = orders_from([[], [], order.actions(2), order.actions(3)])
    replayed = replay(half, {F: 10, B: 20})
    assert replayed.busy_ns.tolist() == [0, 0, 120, 120]
    assert replayed.makespan_ns == 150


def test_durations_of_each_action_and_many_sets_at_once():
    order = orders("1f1b", 2, 2)
    each = np.array([10, 10, 20, 20, 10, 20, 10, 20])
    both = replay(order, np.stack((each, 3 * each), axis=1), transfer_ns=0)
    assert replay(order, each).makespan_ns == 90
    assert both.makespan_ns.tolist() == [90, 270]
    assert both.bubble_fraction.tolist() == [1 / 3, 1 / 3]
    assert both.busy_ns.tolist() == [[60, 180], [60, 180]]
    assert own_idle_ns(both).tolist() == [[30, 90], [0, 0]]


def test_nothing_is_replayed_to_nothing():
    replayed = replay(orders_from([[], []]), EQUAL)
    assert (replayed.makespan_ns, replayed.bubble_fraction) == (0, 0.0)
    assert replayed.in_flight.tolist() == [0, 0]


def test_orders_that_wait_in_a_circle_are_refused():
    with pytest.raises(CycleError):
        replay(orders_from([[(0, B, 0), (0, F, 0)], [(1, F, 0), (1, B, 0)]]), EQUAL)


def test_work_that_was_done_twice_is_refused():
    with pytest.raises(ValueError, match="stage 3 works twice"):
        replay(orders_from([[(3, F, 0), (3, F, 0)]]), EQUAL)


@pytest.mark.parametrize(
    ("durations", "transfer", "message"),
    [
        ({F: 1}, 0, "no duration of backward"),
        ({F: [1, 1], B: 1}, 0, "2 durations for 3 stages"),
        (np.ones(4), 0, "4 durations for 6 actions"),
        ({F: 1, B: 1}, [1], "1 transfer times for 2 boundaries"),
    ],
)
def test_durations_that_do_not_fit_are_refused(durations, transfer, message):
    with pytest.raises(ValueError, match=message):
        replay(orders("gpipe", 3, 1), durations, transfer_ns=transfer)


def test_in_flight_by_stage():
    order = orders("interleaved-1f1b", 2, 4, 2)
    assert in_flight_of(order).tolist() == [5, 3]
    assert in_flight_of(order, by_stage=True).tolist() == [4, 3, 2, 1]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.integers(1, 6),
    st.integers(1, 12),
    st.lists(st.integers(1, 50), min_size=12, max_size=12),
    st.integers(0, 9),
)
def test_no_order_ever_waits_for_itself_and_ranks_do_one_thing_at_a_time(
    schedule, num_ranks, micro_batches, lengths, transfer
):
    try:
        order = orders(schedule, num_ranks, micro_batches)
    except ValueError:
        assume(False)
    per_stage = np.array(lengths)
    replayed = replay(order, {F: per_stage, I: per_stage, W: per_stage}, transfer_ns=transfer)
    for rank in range(num_ranks):
        rows = order.rank == rank
        assert (replayed.start_ns[rows][1:] >= replayed.end_ns[rows][:-1]).all()
    work = replayed.end_ns - replayed.start_ns
    assert np.bincount(order.rank, work).tolist() == replayed.busy_ns.tolist()
    assert 0 <= replayed.bubble_fraction < 1
