"""Garbage collections and waits for input: what is listed, counted, left out."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from distprof_probes.options import ProbeOptions
from distprof_probes.probes import pauses as module
from distprof_probes.probes.pauses import PausesProbe
from distprof_probes.run_queue import CpuTime, ProcessTimes
from distprof_probes.session import Session

from distprof.artefacts.records import Pause
from distprof.artefacts.run_file import ProbeStatus

torch_data = pytest.importorskip("torch.utils.data")

OPTIONS = ProbeOptions(measure_overhead=False)
MS = 1_000_000


class Hand:
    """A clock that the test moves, ns."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * 1_000 * MS

    def __call__(self) -> int:
        return self.now

    def move(self, ms: float) -> None:
        self.now += int(ms * MS)


class Slow(torch_data.Dataset[int]):
    """Takes ``ms`` of the test's clock for each sample."""

    def __init__(self, hand: Hand, *ms: float) -> None:
        self.hand = hand
        self.ms = ms

    def __len__(self) -> int:
        return len(self.ms)

    def __getitem__(self, index: int) -> int:
        self.hand.move(self.ms[index])
        return index


@pytest.fixture
def quiet() -> Iterator[None]:
    """No collection but those that the test makes; the interpreter is left as it was."""
    callbacks = list(gc.callbacks)
    gc.disable()
    yield
    gc.enable()
    assert gc.callbacks == callbacks


def _session(folder: Path, hand: Hand) -> Session:
    return Session(folder, options=OPTIONS, probes=[PausesProbe(hand)], clock=hand)


def _pauses(folder: Path) -> list[Pause]:
    _, *lines = (folder / "rank00000" / "pauses.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Pause) for line in lines]


def _status(session: Session) -> ProbeStatus:
    (status,) = [status for status in session.status() if status.name == "pauses"]
    return status


class Costly:
    """Garbage whose collection takes time of the test's clock."""

    def __init__(self, hand: Hand, ms: float) -> None:
        self.me = self
        self.hand, self.ms = hand, ms

    def __del__(self) -> None:
        self.hand.move(self.ms)


def _collect(hand: Hand, ms: float, generation: int = 2) -> None:
    Costly(hand, ms)
    gc.collect(generation)


@pytest.mark.usefixtures("quiet")
def test_a_collection_is_listed_with_its_time_generation_and_objects(tmp_path: Path) -> None:
    hand = Hand()
    gc.collect()
    session = _session(tmp_path, hand)
    session.step()
    start = hand.now
    _collect(hand, 5.0)
    session.step()
    session.close()
    (pause,) = _pauses(tmp_path)
    assert pause == Pause(
        kind="gc",
        start_ns=start,
        end_ns=start + 5 * MS,
        step=1,
        generation=2,
        num_collected=pause.num_collected,
    )
    assert pause.num_collected
    assert pause.num_collected >= 1
    assert _status(session).num_records == 1


@pytest.mark.usefixtures("quiet")
def test_short_collections_are_counted_and_summed(tmp_path: Path) -> None:
    hand = Hand()
    gc.collect()
    session = _session(tmp_path, hand)
    for _ in range(3):
        _collect(hand, 0.04)
    session.close()
    assert _pauses(tmp_path) == []
    status = _status(session)
    assert (status.state, status.num_records, status.num_dropped) == ("on", 0, 0)
    assert status.reason == "3 garbage collections under 0.1 ms are not listed (0.1 ms in total)"


@pytest.mark.usefixtures("quiet")
def test_nothing_is_heard_while_paused_nor_after_the_end(tmp_path: Path) -> None:
    hand = Hand()
    gc.collect()
    before = len(gc.callbacks)
    own_next = vars(torch_data.dataloader._BaseDataLoaderIter)["__next__"]
    probe = PausesProbe(hand)
    session = Session(tmp_path, options=OPTIONS, probes=[probe], clock=hand)
    probe.pause()
    assert len(gc.callbacks) == before
    assert vars(torch_data.dataloader._BaseDataLoaderIter)["__next__"] is own_next
    _collect(hand, 5.0)
    list(torch_data.DataLoader(Slow(hand, 5.0)))
    probe.resume()
    _collect(hand, 7.0)
    session.close()
    _collect(hand, 9.0)
    assert len(gc.callbacks) == before
    assert vars(torch_data.dataloader._BaseDataLoaderIter)["__next__"] is own_next
    assert [pause.end_ns - pause.start_ns for pause in _pauses(tmp_path)] == [7 * MS]


def test_waits_for_a_data_loader_belong_to_their_step(tmp_path: Path) -> None:
    hand = Hand()
    session = _session(tmp_path, hand)
    for _ in torch_data.DataLoader(Slow(hand, 30.0, 0.05, 20.0)):
        hand.move(100.0)  # training
        session.step()
    session.close()
    waits = [pause for pause in _pauses(tmp_path) if pause.kind == "input"]
    durations = [(pause.step, (pause.end_ns - pause.start_ns) / MS) for pause in waits]
    assert durations == [(0, 30.0), (2, 20.0)]  # 0.05 ms is nothing


def test_a_wait_within_an_input_phase_is_marked_because_the_step_log_has_it(tmp_path: Path) -> None:
    hand = Hand()
    session = _session(tmp_path, hand)
    batches = iter(torch_data.DataLoader(Slow(hand, 30.0, 40.0)))
    with session.phase("input"):
        next(batches)
        hand.move(3.0)  # to the device
    next(batches)
    session.step()
    session.close()
    waits = [pause for pause in _pauses(tmp_path) if pause.kind == "input"]
    found = [((pause.end_ns - pause.start_ns) / MS, pause.in_phase) for pause in waits]
    assert found == [(30.0, True), (40.0, False)]


class Busy(torch_data.Dataset[int]):
    """Computes, or sleeps, for 30 ms per sample."""

    def __init__(self, *, computes: bool) -> None:
        self.computes = computes

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if not self.computes:
            time.sleep(0.03)
        end = time.process_time() + 0.03
        while self.computes and time.process_time() < end:
            pass
        return index


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("computes", [True, False])
def test_a_wait_says_how_long_those_who_load_ran_and_had_no_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, num_workers: int, computes: bool
) -> None:
    """A worker that sleeps lacks no CPU."""
    monkeypatch.setattr(module, "BUSY", 0.0)
    session = Session(tmp_path, options=OPTIONS, probes=[PausesProbe()])
    for _ in torch_data.DataLoader(Busy(computes=computes), num_workers=num_workers):
        session.step()
    session.close()
    waits = [pause for pause in _pauses(tmp_path) if pause.kind == "input"]
    awake = [(pause.cpu_ns or 0) + (pause.run_queue_ns or 0) for pause in waits]
    lasted = [pause.end_ns - pause.start_ns for pause in waits]
    assert all(0 <= ns <= 2 * most for ns, most in zip(awake, lasted, strict=True))
    assert (sum(awake) > 0.5 * sum(lasted)) is computes  # of waits, however busy the machine is


def test_those_who_load_are_left_alone_where_no_cpu_is_scarce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY", 1.1)
    session = Session(tmp_path, options=OPTIONS, probes=[PausesProbe()])
    for _ in torch_data.DataLoader(Busy(computes=False)):
        session.step()
    session.close()
    waits = [pause for pause in _pauses(tmp_path) if pause.kind == "input"]
    assert waits
    assert {(wait.cpu_ns, wait.run_queue_ns) for wait in waits} == {(None, None)}


def test_threads_of_a_worker_are_added_and_one_that_is_gone_or_hidden_is_unknown(
    tmp_path: Path,
) -> None:
    times = ProcessTimes(str(tmp_path))
    assert times.total(1) == CpuTime()
    threads = tmp_path / "1" / "task"
    for thread, text in ((7, "5 3 1"), (8, "10 4 1")):
        (threads / str(thread)).mkdir(parents=True)
        (threads / str(thread) / "schedstat").write_text(text)
    assert times.total(1) == CpuTime(15, 7)
    (threads / "9").mkdir()
    (threads / "9" / "schedstat").write_text("100 40 1")
    assert {times.total(1) for _ in range(40)} == {CpuTime(15, 7), CpuTime(115, 47)}
    (threads / "8" / "schedstat").write_text("")
    assert times.total(1) == CpuTime()
    (threads / "8" / "schedstat").write_text("20 8 1")
    assert times.total(1) == CpuTime(125, 51)
    times.close()


def test_few_files_of_workers_stay_open(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / str(number) / "task" / "1").mkdir(parents=True)
        (tmp_path / str(number) / "task" / "1" / "schedstat").write_text(f"{number} 0 1")
    times = ProcessTimes(str(tmp_path))
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert [times.total(number).ran_ns for number in range(300)] == list(range(300))
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 66
    times.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_loader_over_a_loader_waits_once(tmp_path: Path) -> None:
    class Outer(torch_data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(torch_data.DataLoader(Slow(hand, 30.0, 40.0)))

    hand = Hand()
    session = _session(tmp_path, hand)
    list(torch_data.DataLoader(Outer(), batch_size=None))
    session.step()
    session.close()
    waits = [pause for pause in _pauses(tmp_path) if pause.kind == "input"]
    assert [(pause.end_ns - pause.start_ns) / MS for pause in waits] == [30.0, 40.0]


def test_what_another_thread_waits_for_is_no_wait_of_training(tmp_path: Path) -> None:
    hand = Hand()
    session = _session(tmp_path, hand)
    batches: list[Any] = []
    thread = threading.Thread(
        target=lambda: batches.extend(torch_data.DataLoader(Slow(hand, 30.0)))
    )
    thread.start()
    thread.join()
    session.step()
    session.close()
    assert len(batches) == 1
    assert [pause for pause in _pauses(tmp_path) if pause.kind == "input"] == []


def test_the_loaders_exceptions_pass_through(tmp_path: Path) -> None:
    hand = Hand()
    session = _session(tmp_path, hand)
    with pytest.raises(StopIteration):
        next(iter(torch_data.DataLoader(Slow(hand))))
    session.close()


def test_a_wrap_put_over_ours_survives_our_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand()
    owner = torch_data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(owner, "__next__", vars(owner)["__next__"])  # put back after the test
    session = _session(tmp_path, hand)
    ours = vars(owner)["__next__"]

    def theirs(self: Any) -> Any:
        return ours(self)

    owner.__next__ = theirs
    session.close()
    assert vars(owner)["__next__"] is theirs
    assert len(list(torch_data.DataLoader(Slow(hand, 30.0)))) == 1
