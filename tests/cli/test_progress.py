"""Progress shows on a terminal, late, and leaves nothing behind."""

from __future__ import annotations

import io
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from distprof import open_run
from distprof.cli.output import _state, _time_left, has_color, progress_bar, status_line
from distprof.verbs.sweep.running import Progress

DLRM = Path(__file__).parents[1] / "golden" / "kineto" / "dlrm-v100-8gpu"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def bar_of(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, seconds: list[float]) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    times = iter(seconds)
    with progress_bar("reading", quiet=False, clock=lambda: next(times)) as progress:
        if progress is not None:
            for done in range(1, len(seconds)):
                progress(done, 4)


def test_long_work_on_a_terminal_shows_a_bar_and_removes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Terminal()
    bar_of(monkeypatch, stream, [0.0, 0.2, 5.0])
    text = stream.getvalue()
    assert "2/4" in text
    assert "1/4" not in text
    assert text.endswith("\r\x1b[2K")


def test_a_terminal_that_knows_ascii_only_gets_a_bar_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Terminal()
    monkeypatch.setattr(Terminal, "encoding", "ascii", raising=False)
    bar_of(monkeypatch, stream, [0.0, 0.2, 5.0])
    assert "reading ###############............... 2/4" in stream.getvalue()


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    bar_of(monkeypatch, stream, [0.0, 0.1, 0.2])
    assert stream.getvalue() == ""


def test_no_terminal_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    bar_of(monkeypatch, stream, [0.0, 5.0])
    assert stream.getvalue() == ""


def test_without_a_terminal_a_line_comes_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log of a batch job has to show that hours of reading go on, and no more."""
    times = iter([0.0, 29.0, 31.0, 40.0, 62.0])
    with progress_bar("reading", quiet=False, clock=lambda: next(times)) as progress:
        assert progress is not None
        for done in range(1, 5):
            progress(done, 10)
    assert capsys.readouterr().err == "reading: 2/10\nreading: 4/10\n"
    with progress_bar("reading", quiet=True) as progress:
        assert progress is None


def test_bytes_are_shown_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    times = iter([0.0, 2.0, 2.01])
    with progress_bar("reading", quiet=False, unit="bytes", clock=lambda: next(times)) as progress:
        assert progress is not None
        progress(3_000_000, 12_000_000)
        progress(3_000_001, 12_000_000)  # not drawn again at once
    assert stream.getvalue().count("3.00 MB of 12.0 MB") == 1


@pytest.mark.parametrize("executor", ["serial", "process:2"])
def test_bytes_of_traces_are_told_until_all_are_read(executor: str, tmp_path: Path) -> None:
    """One large trace moves while it is read; a trace that another process reads, at its end."""
    told: list[tuple[int, int]] = []
    folder = DLRM
    open_run(
        folder,
        executor=executor,
        cache_dir=tmp_path,
        bytes_read=lambda done, total: told.append((done, total)),
    )
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert told[-1] == (size, size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len(told) >= (8 if executor == "serial" else 4)


def test_a_single_trace_moves_while_it_is_read(tmp_path: Path) -> None:
    told: list[int] = []
    trace = DLRM.parent / "tp8-b200-rank0" / "eager_trace.json.gz"
    open_run(trace, cache_dir=tmp_path, bytes_read=lambda done, _: told.append(done))
    steps = [later - before for before, later in pairwise([0, *told])]
    assert max(steps) <= 1 << 19  # the largest traces have 50 times as much
    assert max(told) == told[-1] == trace.stat().st_size


def test_a_status_line_is_no_wider_than_the_terminal_and_goes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "60")
    with status_line() as show:
        show(1, 4, "2 ranks, repeat 1\x1b[31m " + "x" * 200)
    line, _ = stream.getvalue().removeprefix("\r\x1b[2K").split("\r")
    assert line.startswith("████░░░░░░░░░░░░ 1/4 done · 2 ranks, repeat 1")
    assert len(line) == 59
    assert "\x1b" not in line
    assert stream.getvalue().endswith("\r\x1b[2K")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "about 5 s left"),
        (61.0, "about 60 s left"),
        (100.0, "about 2 min left"),
        (9_000.0, "about 2.5 h left"),
    ],
)
def test_time_left_is_said_as_roughly_as_it_is_known(seconds: float, text: str) -> None:
    assert _time_left(seconds) == text


def test_before_the_first_run_is_done_nothing_is_known_of_the_time() -> None:
    begun = Progress(number=1, total=9, run="1 rank, repeat 1", elapsed_s=3.2, left_s=None)
    assert _state(begun) == "1 rank, repeat 1, for 3 s"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_that_do_not_refuse_it(
    environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert has_color(Terminal()) is expected
    assert has_color(io.StringIO()) is False
