"""Logs of containers, of which each line is a JSON object with the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distprof.ingest.kinds.logs import fits_job_output
from distprof.ingest.output.read import read_output
from distprof.ingest.wrapped import unwrapped


def _line(**record: object) -> bytes:
    return json.dumps(record).encode() + b"\n"


def test_texts_stand_without_their_objects() -> None:
    block = _line(log="one\n", stream="stderr") + _line(log="two\n", stream="stdout")
    assert unwrapped(block) == b"one\ntwo\n"


@pytest.mark.parametrize(
    "line",
    [
        b"plain text\n",
        b'{"step": 3, "loss": 2.1}\n',
        b'{"message": "step", "loss": 2.1}\n',
        b'{"log": 3}\n',
        b'{"log": "cut\n',
        b'{"a":' * 5_000 + b"\n",
        b'[{"log": "one"}]\n',
        b'{"jsonPayload": "text", "log": 1}\n',
    ],
)
def test_other_lines_stay_as_they_are(line: bytes) -> None:
    first = _line(log="one\n")
    assert unwrapped(first + line) == b"one\n" + line
    assert unwrapped(line) == line


def test_objects_may_begin_below_other_lines_and_fill_several() -> None:
    plain = b"$ kubectl logs worker-0\n"
    assert unwrapped(plain + _line(log="one\n", stream="stderr")) == plain + b"one\n"
    assert unwrapped(_line(line="two", labels={"pod": "a"})) == b"two\n"
    exported = json.dumps([{"textPayload": "three", "severity": "ERROR"}], indent=2).encode()
    assert b"\nthree\n" in unwrapped(exported)


def test_a_list_of_a_service_that_collects_logs_is_read(tmp_path: Path) -> None:
    killed = "torch.distributed.elastic: failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: py"
    record = {"events": [{"timestamp": 1, "message": text} for text in ("begin", killed)]}
    path = tmp_path / "events.log"
    path.write_text(json.dumps(record, indent=4))
    assert fits_job_output(str(path))
    (event,) = read_output([(str(path), "events.log", None)]).events
    assert event.fields["code"] == "-9"


def test_lines_are_counted_as_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "pod.log"
    several = (
        "Traceback (most recent call last):\n  File \"fit.py\", line 9, in fit\nKeyError: 'a'\n"
    )
    end = (
        "torch.distributed.elastic: failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: python\n"
    )
    path.write_bytes(
        _line(message="begin") + _line(message=several, severity="ERROR") + _line(message=end)
    )
    output = read_output([(str(path), "pod.log", None)])
    lines = {event.yields: event.line for event in output.events}
    assert lines["exception"] == 2
    assert lines["local_exit"] == 3
    assert output.num_lines == 3
