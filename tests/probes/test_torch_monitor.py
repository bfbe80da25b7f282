"""The recipe for torch.monitor on the page about training loggers, run with the real torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import distprof

monitor = pytest.importorskip("torch.monitor", reason="needs PyTorch: pip install 'distprof[run]'")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "training-loggers.md"


def recipe() -> str:
    section = PAGE.read_text().partition("\n## torch.monitor\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


def test_handlers_get_all_numbers_of_a_report() -> None:
    report = distprof.analyze(str(ROOT / "tests" / "golden" / "kineto" / "gloo-ddp-2ranks"))
    seen: list[Any] = []
    scalars: dict[str, float] = {}

    class Writer:
        def add_scalar(self, name: str, value: float, walltime: float) -> None:
            assert walltime > 0
            scalars[name] = value

    handlers = [
        monitor.register_event_handler(lambda event: seen.append((event.name, dict(event.data)))),
        monitor.register_event_handler(monitor.TensorboardEventHandler(Writer())),
    ]
    try:
        exec(recipe(), {"report": report})
    finally:
        for handler in handlers:
            monitor.unregister_event_handler(handler)
    expected = {f"distprof/{name}": value for name, value in report.metrics().items()}
    assert len(expected) > 10
    assert seen == [("torch.monitor.Stat", expected)]
    assert scalars == expected
