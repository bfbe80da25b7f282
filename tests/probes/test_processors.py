"""Processors: which the process may use, and how busy they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from distprof_probes.processors import Processors

if not hasattr(os, "sched_getaffinity"):
    pytest.skip("only Linux says which processors a process may use", allow_module_level=True)


def write(stat: Path, *, busy: int, idle: int, others: int = 0) -> Path:
    """Ticks of each processor that this process may use, and of those that it may not."""
    own = os.sched_getaffinity(0)
    lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
    lines += [f"cpu{cpu} {busy} 0 0 {idle} 0 0 0 0 {busy} 0" for cpu in sorted(own)]
    lines += [f"cpu{max(own) + 1} {others} 0 0 0 0 0 0 0 0 0", "intr 1 2 3"]
    stat.write_text("\n".join(lines) + "\n")
    return stat


def test_busy_is_what_passed_since_on_own_processors(tmp_path: Path) -> None:
    processors = Processors(4, write(tmp_path / "stat", busy=1_000, idle=9_000))
    write(tmp_path / "stat", busy=1_300, idle=9_100, others=77_777)
    found = processors.settings()
    assert found.cpu_busy_ratio == 0.75
    assert found.num_local_ranks == 4
    assert found.cpus


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (
            "processor\t: 0\nmodel\t: 1\nmodel name\t: AMD EPYC  9654\n\nmodel name: other",
            "AMD EPYC 9654",
        ),
        ("processor: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "ARM 0x41 0xd4f"),
        ("processor: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("model name: \x1b[31m" + "x" * 200, "[31m" + "x" * 76),
        ("nothing of it", ""),
        ("CPU part: 1", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_the_processors_model_is_what_the_system_says(
    tmp_path: Path, text: str | None, model: str
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if text is not None:
        cpuinfo.write_text(text)
    assert Processors(None, cpuinfo=cpuinfo).settings().processor == model


def test_a_moment_is_too_short_to_tell(tmp_path: Path) -> None:
    processors = Processors(None, write(tmp_path / "stat", busy=1_000, idle=9_000))
    write(tmp_path / "stat", busy=1_002, idle=9_001)
    assert processors.settings().cpu_busy_ratio is None


@pytest.mark.parametrize("text", [None, "", "cpu0 one two", "nothing of it"])
def test_another_kind_of_system_says_nothing(tmp_path: Path, text: str | None) -> None:
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text)
    processors = Processors(None, stat)
    assert processors.settings().cpu_busy_ratio is None
