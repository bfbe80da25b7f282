"""Pipeline marks: true to what the stages do, on every kind of schedule, and gone when off."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distprof_probes.options import ProbeOptions
from distprof_probes.probes.pipeline_marks import PipelineMarksProbe
from distprof_probes.session import Session

from distprof.intervals import total, union
from tests.probes.sleep_pipeline import FORWARD_S, MICRO_BATCHES
from tests.warm import Starter

OPTIONS = ProbeOptions(measure_overhead=False)
ROOT = Path(__file__).resolve().parents[2]
SLOT_US = FORWARD_S * 1e6
MARK = re.compile(r"distprof:pp stage=(\d+) op=([FBIWL]) mb=(\d+)")

# Ranks, stages, ideal bubble, kinds of work on every stage. Stages' forward is 30 ms, their
# backward 60 ms; GPipe and 1F1B: (P-1)/(M+P-1); interleaved: (P-1)/(vM+P-1); ZB-V: 3 slots of 51
# (the order that torch generates, replayed without communication).
CASES: dict[str, tuple[int, int, float, str]] = {
    "gpipe-2": (2, 2, 1 / 9, "FB"),
    "1f1b-2": (2, 2, 1 / 9, "FB"),
    "gpipe-4": (4, 4, 3 / 11, "FB"),
    "1f1b-4": (4, 4, 3 / 11, "FB"),
    "interleaved-4": (4, 8, 3 / 19, "FB"),
    "zbv-4": (4, 8, 3 / 51, "FIW"),
}


@dataclass(frozen=True, kw_only=True)
class Mark:
    stage: int
    op: str
    micro_batch: int
    start_us: float
    end_us: float


def _places() -> list[tuple[Any, str]]:
    schedules = importlib.import_module("torch.distributed.pipelining.schedules")
    stage = importlib.import_module("torch.distributed.pipelining.stage")
    base = stage._PipelineStageBase
    return [
        (schedules, "_wait_batch_p2p"),
        (base, "forward_one_chunk"),
        (base, "backward_one_chunk"),
        (base, "backward_weight_one_chunk"),
        (schedules._PipelineSchedule, "_maybe_compute_loss"),
    ]


def _functions() -> list[Any]:
    return [getattr(owner, name) for owner, name in _places()]


def test_the_marks_are_in_while_on_and_out_while_paused_and_after(tmp_path: Path) -> None:
    own = _functions()
    probe = PipelineMarksProbe()
    session = Session(tmp_path, options=OPTIONS, probes=[probe])
    assert all(now is not before for now, before in zip(_functions(), own, strict=True))
    probe.pause()
    assert _functions() == own
    probe.resume()
    assert all(now is not before for now, before in zip(_functions(), own, strict=True))
    session.close()
    assert _functions() == own


def test_pipelines_are_not_imported_for_the_marks(tmp_path: Path) -> None:
    """It takes a second, and most programs have none. Those that come later are marked."""
    done = subprocess.run(
        [sys.executable, "-c", LATE, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


LATE = """
import sys
from pathlib import Path
import torch
from distprof_probes.options import ProbeOptions
from distprof_probes.probes.pipeline_marks import PipelineMarksProbe
from distprof_probes.session import Session

options = ProbeOptions(measure_overhead=False)
session = Session(Path(sys.argv[1]), options=options, probes=[PipelineMarksProbe()])
session.step()
assert "torch.distributed.pipelining" not in sys.modules
from torch.distributed.pipelining import schedules
own = schedules._wait_batch_p2p
session.step()
assert schedules._wait_batch_p2p is not own
session.close()
assert schedules._wait_batch_p2p is own
"""


def test_a_torch_whose_stages_differ_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, wait), (base, forward), *_ = _places()
    monkeypatch.delattr(base, forward)
    session = Session(tmp_path, options=OPTIONS, probes=[PipelineMarksProbe()])
    session.close()
    (status,) = [status for status in session.status() if status.name == "pipeline_marks"]
    assert status.state == "unavailable"
    assert status.reason == "this torch's pipelines lack forward_one_chunk"
    assert wait == "_wait_batch_p2p"


def test_a_stage_called_in_another_way_runs_without_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later torch may rename the parameters: training continues, and the status says why."""
    base = _places()[1][0]
    monkeypatch.setattr(base, "forward_one_chunk", lambda *_, **keywords: keywords["chunk"])
    session = Session(tmp_path, options=OPTIONS, probes=[PipelineMarksProbe()])
    assert base.forward_one_chunk(SimpleNamespace(stage_index=0), chunk=3) == 3
    assert base.forward_one_chunk(SimpleNamespace(stage_index=0), chunk=4) == 4
    session.close()
    (status,) = [status for status in session.status() if status.name == "pipeline_marks"]
    assert "call their stages in an unknown way" in status.reason
    assert status.num_records == 0


def test_a_wrap_put_over_ours_survives_our_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = _places()[1][0]
    monkeypatch.setattr(base, "forward_one_chunk", lambda stage, fwd_chunk_id: fwd_chunk_id)
    session = Session(tmp_path, options=OPTIONS, probes=[PipelineMarksProbe()])
    ours = base.forward_one_chunk
    base.forward_one_chunk = lambda stage, fwd_chunk_id: ours(stage, fwd_chunk_id)
    session.close()
    assert base.forward_one_chunk(SimpleNamespace(stage_index=0), 5) == 5


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory, started_warm: Starter) -> Path:
    """Traces of all cases: four processes, one launch."""
    folder = tmp_path_factory.mktemp("pipelines")
    command = [sys.executable, "-m", "tests.probes.sleep_pipeline", str(folder), "4"]
    done = started_warm(command, os.environ)
    assert done.returncode == 0, done.stderr
    return folder


def _events(folder: Path, case: str, rank: int) -> list[dict[str, Any]]:
    trace = json.loads((folder / f"{case}.{rank}.json").read_text())
    return [event for event in trace["traceEvents"] if event.get("ph") == "X"]


def _marks(folder: Path, case: str, rank: int) -> list[Mark]:
    marks = []
    for event in _events(folder, case, rank):
        found = MARK.fullmatch(event["name"])
        if found and event["cat"] == "user_annotation":
            marks.append(
                Mark(
                    stage=int(found[1]),
                    op=found[2],
                    micro_batch=int(found[3]),
                    start_us=event["ts"],
                    end_us=event["ts"] + event["dur"],
                )
            )
    return marks


def _intervals(pairs: list[tuple[float, float]]) -> Any:
    start, end = (np.array(pairs, dtype=np.float64).reshape(-1, 2).T * 1000).astype(np.int64)
    return union((start, end))


def _slots(mark: Mark) -> int:
    """Length in sleeps of 30 ms. The first stage's input has no gradient: there W is all of it."""
    if mark.stage == 0 and mark.op in "IW":
        return 0 if mark.op == "I" else 2
    return {"F": 1, "B": 2, "I": 1, "W": 1}[mark.op]


def _needed(mark: Mark, stages: int) -> tuple[str, int, int] | None:
    """What another stage must have done before: its kind (F, or anything of a backward), stage."""
    if mark.op == "W":
        return None  # own rank's order has it
    other = mark.stage - 1 if mark.op == "F" else mark.stage + 1
    kind = "F" if mark.op == "F" else "B"
    return (kind, other, mark.micro_batch) if 0 <= other < stages else None


def _bubble_of_order(marks: list[list[Mark]], stages: int) -> float:
    """Bubble fraction if each rank did its marks in this order, each as long as it sleeps.

    Messages take no time. Nothing measured is in it but the order, so a busy machine changes
    nothing.
    """
    queues = [
        sorted((m for m in rank if m.op in "FBIW"), key=lambda m: m.start_us) for rank in marks
    ]
    free_at = [0] * len(queues)
    done_at: dict[tuple[str, int, int], int] = {}
    while any(queues):
        is_stuck = True
        for rank, queue in enumerate(queues):
            while queue:
                needed = _needed(queue[0], stages)
                if needed is not None and needed not in done_at:
                    break
                mark, is_stuck = queue.pop(0), False
                start = max(free_at[rank], done_at[needed] if needed is not None else 0)
                free_at[rank] = start + _slots(mark)
                if mark.op != "W":
                    kind = "F" if mark.op == "F" else "B"
                    done_at[kind, mark.stage, mark.micro_batch] = free_at[rank]
        assert not is_stuck, "the marks' order cannot be carried out"
    busy = [sum(_slots(m) for m in rank if m.op in "FBIW") for rank in marks]
    return 1 - sum(busy) / len(busy) / max(free_at)


@pytest.mark.distributed
@pytest.mark.parametrize("case", CASES)
def test_each_micro_batch_is_marked_once_on_each_stage(traces: Path, case: str) -> None:
    ranks, stages, _, ops = CASES[case]
    counts = Counter(
        (mark.stage, mark.op, mark.micro_batch)
        for rank in range(ranks)
        for mark in _marks(traces, case, rank)
    )
    expected = {
        (stage, op, micro_batch)
        for stage in range(stages)
        for op in ops
        for micro_batch in range(MICRO_BATCHES)
    } | {(stages - 1, "L", micro_batch) for micro_batch in range(MICRO_BATCHES)}
    if case == "zbv-4":  # torch joins I and W to one B where nothing is between them
        joined = {(stage, mb) for stage, op, mb in counts if op == "B"}
        expected = {key for key in expected if key[1] in "FL" or (key[0], key[2]) not in joined}
        expected |= {(stage, "B", mb) for stage, mb in joined}
    assert set(counts) == expected
    assert set(counts.values()) == {1}


@pytest.mark.distributed
@pytest.mark.parametrize("case", CASES)
def test_work_and_waiting_never_overlap(traces: Path, case: str) -> None:
    for rank in range(CASES[case][0]):
        waits = [
            (event["ts"], event["ts"] + event["dur"])
            for event in _events(traces, case, rank)
            if event["name"] == "distprof:pp_wait" and event["cat"] == "user_annotation"
        ]
        work = [(mark.start_us, mark.end_us) for mark in _marks(traces, case, rank)]
        assert waits
        both = total(_intervals(waits)) + total(_intervals(work))
        assert total(_intervals(waits + work)) == pytest.approx(both, abs=20_000)


@pytest.mark.distributed
@pytest.mark.parametrize("case", CASES)
def test_the_order_of_the_marks_is_the_schedules(traces: Path, case: str) -> None:
    ranks, stages, ideal, _ = CASES[case]
    marks = [_marks(traces, case, rank) for rank in range(ranks)]
    assert _bubble_of_order(marks, stages) == pytest.approx(ideal)


@pytest.mark.distributed
@pytest.mark.parametrize("case", CASES)
def test_a_mark_lasts_as_long_as_the_stage_sleeps_in_it(traces: Path, case: str) -> None:
    """At least: a busy machine makes a sleep longer, never shorter."""
    for rank in range(CASES[case][0]):
        for mark in _marks(traces, case, rank):
            if mark.op in "FBIW":
                assert mark.end_us - mark.start_us >= _slots(mark) * SLOT_US
