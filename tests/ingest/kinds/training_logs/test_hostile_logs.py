"""Cut, mutated and endless logs of training: a log or a sentence, in bounded memory and time."""

import io
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distprof.errors import InputError
from distprof.ingest.files import MAX_LINE_BYTES, Blocks
from distprof.ingest.kinds.logs import fits_training_log
from distprof.ingest.training_logs.grammar import MAX_ROWS, Grammar
from distprof.ingest.training_logs.named_numbers import NamedNumbersGrammar
from distprof.ingest.training_logs.read import Candidates, read_training_log
from distprof.run.logs import TrainingLog
from distprof.schema import ABSENT

PIECES = (
    b" iteration       20/    1000 | elapsed time per iteration (ms): 1354.9 | lm loss: 1.2E+01 |",
    b"time (ms) | forward-compute: 306.62 | forward-recv: 527.58",
    b"(min, max) time across ranks (ms):\n    forward-backward ......: (1.0, 2.0)",
    b"step:5/1845 train_time:180ms step_avg:36.04ms",
    b'step: 10  loss:  7.9  memory: 1GiB  tps: 7,411  tflops: 5.1 \x1b[39m',
    b':::MLLOG {"time_ms": 1, "key": "train_loss", "value": 2, "metadata": {"samples_count": 8}}',
    b':::MLLOG {"time_ms": 1, "key": "global_batch_size", "value": 8, "metadata": {}}',
    b"steps: 10 loss: 4.5 iter time (s): 0.470 samples/sec: 8.5",
    b" 45%|\xe2\x96\x88 | 450/1000 [1:20:10<1:37:59, 1.07s/it]",
    b"{'train_runtime': 1.0, 'train_steps_per_second': 0.0, 'epoch': 1.0}",
    b"{'train_runtime': 0.0, 'train_steps_per_second': 1.0, 'epoch': 1.0}",
    b"iter 1: loss nan, time 99999999999999999999999999ms, mfu 1.0%",
    b"step 1/2 | loss 1.0 | norm 1 | 1e308 ms | x | 5 tok/s",
    b"step,step_time_ms\n1,nan\n2,1e400\n",
    b"\n", b"\r", b"\0", b"\xff" * 7, b"9" * 40, b"{" * 50, b"[[[", b"-inf", b"| : |",
)  # fmt: skip


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=12),
    cuts=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=8),
    name=st.sampled_from(["a.log", "a.csv", "a.json", "a.jsonl", "a.gz"]),
)
def test_mutated_lines_give_a_log_or_a_sentence(tmp_path, pieces, cuts, name):
    data = bytearray(b"\n".join(pieces))
    for place, value in cuts:
        if place < len(data):
            data[place] = value
    path = tmp_path / name
    path.write_bytes(bytes(data))
    fits_training_log(str(path))
    with suppress(InputError):
        check(read_training_log(str(path)))


def test_a_run_of_no_time_follows_one_of_some_time(tmp_path):
    path = tmp_path / "a.log"
    rows = (
        f"{{'train_runtime': {s}, 'train_steps_per_second': 1.0, 'epoch': 1.0}}" for s in (9.0, 0.0)
    )
    path.write_text("\n".join(rows))
    check(read_training_log(str(path)))


def check(log: TrainingLog) -> None:
    count = len(log.iteration)
    assert count > 0
    assert len(log.duration_ns) == len(log.span) == len(log.loss) == count
    assert (log.span >= 1).all()
    assert ((log.duration_ns >= 0) | (log.duration_ns == ABSENT)).all()
    assert all(len(values) == count for values in log.timers.values())


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 30))
def test_blocks_hold_every_byte_of_every_line_once(parts, size):
    data = b"\n".join(parts).replace(b"&", b"")  # Entities of HTML become characters,
    data = data.replace(b"\x1b", b"")  # and escape sequences disappear.
    expected = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    blocks = Blocks(_Slow(data, size))
    assert b"".join(blocks) == expected
    assert blocks.num_bytes == len(data)


class _Slow(io.BytesIO):
    """Reads a few bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._size)


class _Endless(io.RawIOBase):
    """Much of one thing, without an end of line."""

    def __init__(self, piece: bytes, total: int) -> None:
        self._piece, self._left = piece, total

    def read(self, size: int = -1, /) -> bytes:
        if self._left <= 0:
            return b""
        self._left -= size
        return (self._piece * (size // len(self._piece) + 1))[:size]


def test_a_line_of_a_gigabyte_takes_no_memory():
    tracemalloc.start()
    blocks = Blocks(_Endless(b"x" * 1024, 1 << 30))  # type: ignore[arg-type]
    longest = max(len(block) for block in blocks)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert longest <= MAX_LINE_BYTES
    assert blocks.num_bytes == 1 << 30
    assert peak < 16 << 20


@pytest.mark.parametrize("piece", PIECES)
def test_no_line_takes_long_whatever_it_repeats(piece):
    block = (piece.replace(b"\n", b" ") * (MAX_LINE_BYTES // max(len(piece), 1)))[:MAX_LINE_BYTES]
    begin = time.process_time()
    Candidates().take(block + b"\n")
    NamedNumbersGrammar().take(block + b"\n")
    assert time.process_time() - begin < 3


def test_reports_beyond_a_bound_are_not_kept():
    class Many(Grammar):
        name = "many"
        signs = ()

    from distprof.ingest.training_logs.grammar import Row

    grammar = Many()
    row = Row(iteration=1)
    for _ in range(MAX_ROWS + 5):
        grammar.add(row)
    assert len(grammar.rows) == MAX_ROWS
    assert grammar.is_full


def test_a_log_that_is_cut_inside_its_archive_is_read_up_to_there(tmp_path):
    golden = Path(__file__).parents[3] / "golden" / "training-logs"
    whole = (golden / "megatron-tp4-pp4-mb4-v100.out.gz").read_bytes()
    path = tmp_path / "cut.out.gz"
    path.write_bytes(whole[:-2_000])
    log = read_training_log(str(path))
    assert 0 < len(log.iteration) < 20
    assert any("up to the damage" in note for note in log.notes)


def test_timers_beyond_a_bound_are_not_kept(monkeypatch):
    monkeypatch.setattr("distprof.ingest.training_logs.grammar.MAX_TIMER_VALUES", 3)
    candidates = Candidates()
    for number in range(4):
        candidates.take(b" iteration %d/ 9 | elapsed time per iteration (ms): 5.0 |\n" % number)
        candidates.take(b"time (ms) | a: 1.0\n")
    grammar = candidates.all[0]
    assert list(grammar.timers["a"].report) == [0, 1, 2]
    assert grammar.is_full
