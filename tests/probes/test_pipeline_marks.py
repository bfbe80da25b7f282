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
from tests.probes.sleep_pipeline import ATTEMPTS, MICRO_BATCHES
from tests.warm import Starter

OPTIONS = ProbeOptions(measure_overhead=False)
ROOT = Path(__file__).resolve().parents[2]
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


def _events(folder: Path, case: str, rank: int, attempt: int = 0) -> list[dict[str, Any]]:
    trace = json.loads((folder / f"{case}.{rank}.{attempt}.json").read_text())
    return [event for event in trace["traceEvents"] if event.get("ph") == "X"]


def _marks(folder: Path, case: str, rank: int, attempt: int = 0) -> list[Mark]:
    marks = []
    for event in _events(folder, case, rank, attempt):
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


def _bubble(marks: list[list[Mark]]) -> float:
    """1 - mean busy time of the ranks / time from the first work to the last."""
    work = [[(m.start_us, m.end_us) for m in rank if m.op in "FBIW"] for rank in marks]
    start = min(pair[0] for rank in work for pair in rank)
    end = max(pair[1] for rank in work for pair in rank)
    busy = [total(_intervals(rank)) / 1000 for rank in work]
    return 1 - float(np.mean(busy)) / (end - start)


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
def test_the_bubble_is_the_schedules_own(traces: Path, case: str) -> None:
    ranks, _, ideal, _ = CASES[case]
    bubbles = [
        _bubble([_marks(traces, case, rank, attempt) for rank in range(ranks)])
        for attempt in range(ATTEMPTS)
    ]
    assert min(bubbles) == pytest.approx(ideal, abs=0.06)
