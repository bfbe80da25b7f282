"""The step log: what it says of the time in which the training thread slept for its input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from distprof_probes.options import ProbeOptions
from distprof_probes.probes.step_log import StepLog
from distprof_probes.run_queue import RunQueue

from distprof.artefacts.records import StepRecord

MS = 1_000_000


def recorded(tmp_path: Path, phases: Sequence[tuple[str, int, str]]) -> StepRecord:
    """The record of a step with these phases: name, duration, and what the system says after it."""
    stat = tmp_path / "schedstat"
    stat.write_text("0 0 1")
    log = StepLog()
    log.start(SimpleNamespace(rank=0, rank_dir=tmp_path, options=ProbeOptions()))
    log._queue = RunQueue(str(stat))
    at = 0
    for name, duration, told in phases:
        log.phase_started(name)
        stat.write_text(told)
        log.phase_ended(name, at, at + duration)
        at += duration
    log.write(
        step=0, start_ns=0, end_ns=at, loss=None, tokens=None, samples=None,
        traced="", is_probed=True,
    )  # fmt: skip
    assert log.writer is not None
    log.writer.close()
    lines = (tmp_path / "steps.jsonl").read_bytes().splitlines()
    return msgspec.json.decode(lines[1], type=StepRecord)


def test_a_thread_slept_when_it_neither_ran_nor_waited_for_a_cpu(tmp_path: Path) -> None:
    told = f"{3 * MS} {2 * MS} 2"
    record = recorded(tmp_path, [("input", 20 * MS, told), ("forward", 50 * MS, told)])
    assert record.input_asleep_ns == 15 * MS


def test_inputs_of_micro_batches_add_up(tmp_path: Path) -> None:
    record = recorded(
        tmp_path,
        [
            ("input", 10 * MS, f"{4 * MS} 0 2"),
            ("forward", 90 * MS, f"{90 * MS} 0 3"),
            ("input", 10 * MS, f"{91 * MS} {1 * MS} 4"),
        ],
    )
    assert record.input_asleep_ns == 6 * MS + 8 * MS


@pytest.mark.parametrize("told", ["", "who knows"])
def test_what_the_system_does_not_say_is_unknown(tmp_path: Path, told: str) -> None:
    assert recorded(tmp_path, [("input", 20 * MS, told)]).input_asleep_ns is None


def test_a_step_without_an_input_phase_says_nothing_of_it(tmp_path: Path) -> None:
    told = f"{3 * MS} 0 2"
    assert recorded(tmp_path, [("forward", 20 * MS, told)]).input_asleep_ns is None
