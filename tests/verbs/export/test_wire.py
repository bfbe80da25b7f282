"""The encoder of columns: known bytes, and every field read back by Google's protobuf."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.verbs.export import packets
from distprof.verbs.export.packets import field, fixed64, message, number, text
from tests.optional import optional
from tests.verbs.export.reader import definitions

optional("perfetto", reason="the package perfetto is not installed")

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def test_the_examples_of_the_specification():
    assert field(1, np.array([150])).to_bytes() == bytes.fromhex("089601")
    assert text(2, "testing") == bytes.fromhex("120774657374696e67")
    assert message(3, field(1, np.array([150]))).to_bytes() == bytes.fromhex("1a03089601")
    assert field(1, np.array([-2])).to_bytes() == bytes.fromhex("08feffffffffffffffff01")
    assert number(1, -2) == bytes.fromhex("08feffffffffffffffff01")
    assert fixed64(1, np.array([1])).to_bytes() == bytes.fromhex("090100000000000000")
    assert text(16, "") == bytes.fromhex("820100")


@given(st.lists(INT64, min_size=1, max_size=20))
def test_integers_of_all_lengths_in_one_column(values):
    encoded = message(4, field(4, np.array(values, np.int64))).to_bytes()
    event = definitions().TrackEvent()
    event.ParseFromString(encoded)
    assert [one.int_value for one in event.debug_annotations] == values
    assert event.SerializeToString() == encoded
    assert b"".join(text(4, number(4, value)) for value in values) == encoded


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
def test_floating_point_numbers_keep_every_bit(values):
    encoded = message(11, fixed64(44, np.array(values))).to_bytes()
    read = definitions().Trace()
    for value, one in zip(values, _split(encoded), strict=True):
        read = definitions().TrackEvent()
        read.ParseFromString(one)
        assert read.double_counter_value == value


@given(st.lists(st.tuples(INT64, st.booleans(), st.integers(0, 1 << 40)), min_size=1, max_size=20))
def test_fields_that_some_rows_lack(rows):
    values, has, others = (np.array(column) for column in zip(*rows, strict=True))
    inner = message(4, field(4, values)).where(has)
    encoded = message(11, inner, field(30, others)).to_bytes()
    for (value, has_it, other), one in zip(rows, _split(encoded), strict=True):
        event = definitions().TrackEvent()
        event.ParseFromString(one)
        assert [a.int_value for a in event.debug_annotations] == [value] * has_it
        assert event.counter_value == other


ENUMS = [
    packets.Trace,
    packets.TracePacket,
    packets.TrackEvent,
    packets.DebugAnnotation,
    packets.TrackDescriptor,
    packets.CounterDescriptor,
    packets.InternedData,
    packets.EventName,
    packets.ClockSnapshot,
]


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_field_numbers_are_those_of_perfettos_own_definitions(enum):
    fields = getattr(definitions(), enum.__name__).DESCRIPTOR.fields_by_name
    assert {one.name.lower(): fields[one.name.lower()].number for one in enum} == {
        one.name.lower(): one.value for one in enum
    }


def test_values_of_enumerations_are_those_of_perfettos_own_definitions():
    pb = definitions()
    assert {one.name: one.value for one in packets.Type}.items() <= {
        name.removeprefix("TYPE_"): value for name, value in pb.TrackEvent.Type.items()
    }.items()
    assert packets._EXPLICIT == pb.TrackDescriptor.EXPLICIT
    assert packets._NEVER_MERGED == pb.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
    assert packets._NEW_NAMES == pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert packets._NEEDS_NAMES == pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    assert (packets._REALTIME, packets._BOOTTIME) == (
        pb.BUILTIN_CLOCK_REALTIME,
        pb.BUILTIN_CLOCK_BOOTTIME,
    )
    clock = pb.ClockSnapshot.Clock.DESCRIPTOR.fields_by_name
    assert {one.name.lower(): one.value for one in packets.Clock} == {
        name: clock[name].number for name in ("clock_id", "timestamp")
    }


def _split(encoded):
    """Payloads of length-delimited fields in a row, by the protobuf package."""
    packet = definitions().TracePacket()
    position = 0
    while position < len(encoded):
        length, shift, begin = 0, 0, position + 1
        while True:
            byte = encoded[begin]
            length |= (byte & 0x7F) << shift
            shift, begin = shift + 7, begin + 1
            if byte < 0x80:
                break
        packet.ParseFromString(encoded[position : begin + length])
        assert packet.HasField("track_event")
        yield encoded[begin : begin + length]
        position = begin + length
