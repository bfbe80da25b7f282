"""The example of the how-to page does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.probes.sessions import rank_file_of, status_of, steps_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "probes-in-your-own-script.md"


def test_the_first_example_runs_and_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'distprof[run]'")
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    assert example is not None
    exec(compile(example[1], PAGE.name, "exec"), {})  # our own page

    run = tmp_path / "runs/mine"
    assert len(steps_of(run)) == 30
    assert [p.name for p in steps_of(run)[0].phases] == [
        "input",
        "forward",
        "backward",
        "optimizer",
    ]
    assert status_of(run, "profiler").num_records == 4
    assert rank_file_of(run).ended_ns is not None
