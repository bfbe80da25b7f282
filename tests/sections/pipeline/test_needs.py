"""Which slot of a pipeline stage needs which message."""

import numpy as np

from distprof.run.tables import COLLECTIVES
from distprof.schema import ABSENT
from distprof.sections.context import StageSlots
from distprof.sections.pipeline.slots import needed_at
from distprof.terms import CollectiveKind, SlotKind
from tests.simulator.by_hand import collective
from tests.simulator.tables import table

F, B = SlotKind.FORWARD, SlotKind.BACKWARD


def slots_of(*slots):
    """Slots as stage, kind and start; each takes 10 ns."""
    stage, kind, start = (np.array(column) for column in zip(*slots, strict=True))
    return StageSlots(
        origin="by hand",
        stage=stage.astype(np.int32),
        kind=kind.astype(np.int8),
        micro_batch=np.zeros(len(start), np.int32),
        step=np.zeros(len(start), np.int64),
        start_ns=start.astype(np.int64),
        end_ns=start.astype(np.int64) + 10,
        work_ns=np.full(len(start), 10, np.int64),
        wait_end_ns=np.full(len(start), ABSENT, np.int64),
    )


def received(*messages, **more):
    """Rows of messages as peer and end."""
    rows = [
        collective(end - 5, end, kind=CollectiveKind.RECV, peer=peer, **more)
        for peer, end in messages
    ]
    return table(COLLECTIVES, [row | {"is_timed": True} for row in rows])


def test_the_stage_before_sends_for_the_forwards_and_the_next_for_the_backwards():
    slots = slots_of((1, F, 100), (1, F, 110), (1, B, 150), (1, B, 170))
    rows = received((0, 80), (0, 90), (2, 140), (2, 145))
    assert needed_at(rows, slots, 0).tolist() == [100, 110, 150, 170]


def test_a_message_that_came_before_the_analysed_steps_is_for_none_of_their_slots():
    slots = slots_of((1, F, 100), (1, F, 110))
    assert needed_at(received((0, 20), (0, 80), (0, 90)), slots, 50).tolist() == [ABSENT, 100, 110]


def test_a_rank_of_several_stages_needs_a_message_at_its_next_slot():
    slots = slots_of((0, F, 100), (2, F, 110), (2, B, 120))
    assert needed_at(received((1, 105)), slots, 0).tolist() == [110]


def test_a_message_after_the_last_slot_is_needed_by_none():
    assert needed_at(received((0, 105)), slots_of((1, F, 100)), 0).tolist() == [ABSENT]


def test_sends_and_messages_without_a_transfer_time_are_left_alone():
    slots = slots_of((1, F, 100))
    rows = received((0, 80))
    untimed = rows.with_columns(is_timed=np.zeros(1, np.bool_))
    sent = rows.with_columns(kind=np.array([CollectiveKind.SEND], np.int8))
    assert needed_at(untimed, slots, 0).tolist() == [ABSENT]
    assert needed_at(sent, slots, 0).tolist() == [ABSENT]
