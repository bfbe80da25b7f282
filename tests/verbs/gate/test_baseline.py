"""Baselines: what is read, refused, accepted and forgotten."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.artefacts.summary_file import (
    Acknowledged,
    BaselineFile,
    Fingerprint,
    SummaryFile,
    unlike,
)
from distprof.errors import InputError, SchemaError
from distprof.verbs.gate.baseline import (
    BASELINE,
    METRICS,
    accepted,
    acknowledge,
    acknowledgement,
    baseline_values,
    efficiency_ratio,
    find_metric,
    make_baseline,
    read_baseline,
    session_of,
    values_of,
)
from distprof.version import __version__

MACHINE = Fingerprint(
    world_size=4,
    device="H200",
    backend="nccl",
    versions={"torch": "2.9", "nccl": "2.27", "python": "3.11"},
    environment={"NCCL_ALGO": "Ring"},
    config={"model.layers": "8"},
)


def run(step_ns, *, at=0, fingerprint=MACHINE, **fields):
    return SummaryFile(
        distprof_version="1",
        created_ns=at,
        fingerprint=fingerprint,
        step_ns=step_ns,
        **fields,
    )


def test_what_is_read_of_a_run():
    values = values_of(run((30, 10, 20), overlap_ratio=0.0, peak_memory_bytes=7, mfu_ratio=0.4))
    assert values == {"step_time": 20, "overlap": 0, "memory": 7}
    assert values_of(run((), peak_memory_bytes=0, bubble_ratio=float("nan"))) == {}
    assert [m.better for m in METRICS].count("higher") == 2
    assert find_metric("speed") is None


def test_efficiency_of_two_sizes():
    small = run((100,), fingerprint=Fingerprint(world_size=1), tokens_per_step=10.0)
    strong = run((28,), fingerprint=Fingerprint(world_size=4), tokens_per_step=10.0)
    weak = run((125,), fingerprint=Fingerprint(world_size=4))
    assert efficiency_ratio(small, strong) == pytest.approx(100 / 28 / 4)
    assert efficiency_ratio(small, weak) == pytest.approx(0.8)
    assert efficiency_ratio(small, run((1,), fingerprint=Fingerprint())) is None


def test_written_and_read_again_it_is_the_same_and_short(tmp_path):
    baseline = make_baseline([run((100, 102), at=1), run((104,), at=2)])
    file = tmp_path / "baseline.json"
    file.write_bytes(BASELINE.encode(baseline))
    assert read_baseline(str(file)) == baseline
    assert baseline.sessions[0].values == {"step_time": (101, 104)}
    assert len(file.read_text().splitlines()) < 60
    assert file.read_text().endswith("}\n")


def test_sessions_roll_and_keep_their_numbers():
    written = make_baseline([run((100,), at=1)], window=2)
    baseline = msgspec.structs.replace(written, distprof_version="an earlier one")
    for at in (2, 3):
        baseline = accepted(baseline, [run((100 + at,), at=at)] * 2)
    assert baseline_values(baseline, "step_time") == ([102, 102, 103, 103], [0, 0, 1, 1])
    assert baseline_values(baseline, "bubble") == ([], [])
    assert baseline.distprof_version == __version__


def test_another_machine_begins_anew():
    baseline = make_baseline([run((100,))])
    other = msgspec.structs.replace(MACHINE, device="B200")
    renewed = accepted(baseline, [run((50,), fingerprint=other)])
    assert len(renewed.sessions) == 1
    assert renewed.fingerprint.device == "B200"


def test_acknowledged_losses_hold_until_they_run_out():
    baseline = make_baseline([run((100,))])
    loss = Acknowledged(metric="step_time", up_to=0.08, reason="new tokenizer", until_ns=10)
    with_loss = acknowledge(acknowledge(baseline, loss), loss)
    assert with_loss.acknowledged == (loss,)
    assert acknowledgement(with_loss, "step_time", 9) == loss
    assert acknowledgement(with_loss, "step_time", 10) is None
    assert acknowledgement(with_loss, "memory", 9) is None
    assert accepted(with_loss, [run((1,), at=9)]).acknowledged == (loss,)
    assert accepted(with_loss, [run((1,), at=10)]).acknowledged == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [({"metric": "speed"}, "no metric"), ({"up_to": -1.0}, "loss of"), ({"reason": " "}, "reason")],
)
def test_what_cannot_be_acknowledged(change, why):
    baseline = make_baseline([run((100,))])
    loss = Acknowledged(metric="step_time", up_to=0.1, reason="r")
    with pytest.raises(ValueError, match=why):
        acknowledge(baseline, msgspec.structs.replace(loss, **change))


def test_a_session_is_of_one_kind_of_run():
    with pytest.raises(ValueError, match="0 repeats"):
        session_of([])
    other = msgspec.structs.replace(MACHINE, world_size=8)
    with pytest.raises(ValueError, match="world size is 4 in one and 8"):
        session_of([run((1,)), run((1,), fingerprint=other)])
    with pytest.raises(ValueError, match="window"):
        make_baseline([run((1,))], window=0)


WHOLE = json.loads(BASELINE.encode(make_baseline([run((100,))])))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"sessions": []}, "no session"),
        ({"window": 0}, "window of 0"),
        ({"window": 10**9}, "window of 1000000000"),
        ({"sessions": [{"created_ns": 1, "values": {}}] * 101}, "101 sessions"),
        ({"sessions": [{"created_ns": 1, "values": {"step_time": [5] * 101}}]}, "101 repeats"),
        ({"acknowledged": [{"metric": "memory", "up_to": 1.5, "reason": ""}]}, "acknowledged"),
        ({"sessions": [{"created_ns": 1, "values": {"step_time": [-5]}}]}, "step_time"),
        ({"sessions": [{"created_ns": 1, "values": {"step_time": [0]}}]}, "step_time"),
        ({"sessions": [{"created_ns": 1, "values": {"step_time": "fast"}}]}, "Expected"),
        ({"acknowledged": [{"metric": "memory", "up_to": -1, "reason": ""}]}, "acknowledged"),
    ],
)
def test_a_baseline_that_no_run_can_have_made_is_refused(tmp_path, change, found):
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps({**WHOLE, **change}))
    with pytest.raises(InputError, match=found) as caught:
        read_baseline(str(file))
    assert "version control" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\ufeff{}", '{"schema": "distprof.report/2"}'])
def test_other_documents_are_refused(tmp_path, text):
    file = tmp_path / "baseline.json"
    file.write_text(text)
    with pytest.raises(InputError):
        read_baseline(str(file))


def test_cut_off_anywhere_it_is_refused_with_a_sentence(tmp_path):
    file = tmp_path / "baseline.json"
    whole = BASELINE.encode(make_baseline([run((100,))]))
    for length in range(0, len(whole) - 2, 7):
        file.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"damaged or unrelated JSON|an empty file"):
            read_baseline(str(file))


def test_missing_too_large_or_of_another_version(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_baseline(str(tmp_path / "none.json"))
    big = tmp_path / "big.json"
    big.write_bytes(b" " * (5 << 20))
    with pytest.raises(InputError, match="more than 4 MiB"):
        read_baseline(str(big))
    newer = tmp_path / "newer.json"
    newer.write_text(json.dumps({**WHOLE, "schema": "distprof.baseline/2"}))
    with pytest.raises(SchemaError, match="update-baseline"):
        read_baseline(str(newer))


def test_what_a_gate_holds_against_a_run():
    assert unlike(MACHINE, MACHINE, is_gate=True) == ()
    other = msgspec.structs.replace(
        MACHINE,
        device="B200",
        versions={"torch": "2.10", "python": "3.12"},
        environment={},
        config={"model.layers": "8", "model.heads": "4"},
    )
    assert [difference.field for difference in unlike(MACHINE, other, is_gate=True)] == [
        "device",
        "config model.heads",
        "version of torch",
        "variable NCCL_ALGO",
    ]
    assert unlike(MACHINE, Fingerprint(), is_gate=True) == ()


def test_the_document_is_read_as_it_is_written():
    assert isinstance(msgspec.json.decode(json.dumps(WHOLE), type=BaselineFile), BaselineFile)


DOCUMENT = BASELINE.encode(make_baseline([run((100,)), run((101,))]))


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, len(DOCUMENT) - 1), byte=st.integers(0, 255), count=st.integers(0, 4))
def test_a_damaged_baseline_is_read_or_refused_never_more(tmp_path_factory, at, byte, count):
    file = tmp_path_factory.mktemp("b") / "baseline.json"
    file.write_bytes(DOCUMENT[:at] + bytes([byte]) * count + DOCUMENT[at + 1 :])
    try:
        baseline = read_baseline(str(file))
    except InputError:
        return
    values, sessions = baseline_values(baseline, "step_time")
    assert len(values) == len(sessions)
