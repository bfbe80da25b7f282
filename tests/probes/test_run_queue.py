"""How long a thread ran, and how long it was ready but had no CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from distprof_probes.run_queue import CpuTime, RunQueue


def test_the_time_since_the_last_call_is_the_difference(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("500 1000 7\n")
    queue = RunQueue(str(file))
    assert queue.since_last() == CpuTime(None, None)
    file.write_text("900 1700 9\n")
    assert queue.since_last() == CpuTime(ran_ns=400, waited_ns=700)
    file.write_text("900 1600 9\n")
    assert queue.since_last() == CpuTime(ran_ns=0, waited_ns=0)
    queue.close()


@pytest.mark.parametrize("text", ["", "12", "a b c", None])
def test_what_cannot_be_read_is_unknown(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "schedstat"
    if text is not None:
        file.write_text(text)
    queue = RunQueue(str(file))
    assert queue.since_last() == CpuTime()
    assert queue.since_last() == CpuTime()
    queue.close()
    queue.close()


def test_another_thread_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("500 1000 7\n")
    queue = RunQueue(str(file))
    queue.since_last()
    found: list[CpuTime] = []
    thread = threading.Thread(target=lambda: found.append(queue.since_last()))
    thread.start()
    thread.join()
    assert found == [CpuTime()]
    queue.close()


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="not Linux")
def test_a_thread_that_shares_its_cpu_waits_for_half_of_the_time() -> None:
    """This thread and another process compute on one CPU."""
    allowed = os.sched_getaffinity(0)
    one = min(allowed)
    code = f"import os\nos.sched_setaffinity(0, {{{one}}})\nprint(flush=True)\nwhile True: pass"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        with other.stdout as said:
            said.readline()
        os.sched_setaffinity(0, {one})
        queue = RunQueue()
        queue.since_last()
        began = time.monotonic_ns()
        while time.monotonic_ns() - began < 500_000_000:
            pass
        ran, waited = queue.since_last()
        lasted = time.monotonic_ns() - began
    finally:
        os.sched_setaffinity(0, allowed)
        other.kill()
        other.wait()
    assert ran is not None
    assert waited is not None
    assert 0.3 < waited / lasted < 1
    assert 0.8 < (ran + waited) / lasted <= 1.05
