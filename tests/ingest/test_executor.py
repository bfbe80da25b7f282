import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distprof.errors import InputError, UsageError
from distprof.ingest import executor
from distprof.ingest.executor import (
    ProcessExecutor,
    SerialExecutor,
    make_executor,
    map_each,
    running,
)
from distprof.kernel import available_processors
from tests.ingest import work

GOLDEN = Path(__file__).parents[1] / "golden" / "kineto"


def results(outcomes):
    return [outcome.result for outcome in outcomes]


@pytest.fixture(scope="module")
def processes():
    with make_executor("process:2") as pool:
        yield pool


def test_results_keep_the_order_of_the_items(processes):
    assert results(map_each(processes, work.double, range(9))) == [2 * i for i in range(9)]


def test_what_fails_on_one_item_costs_that_item(processes):
    outcomes = map_each(processes, work.refuse_odd, range(4))
    assert results(outcomes) == [0, None, 2, None]
    assert outcomes[1].failure.reason == "ValueError: 1 is odd"
    assert outcomes[0].failure is None


def test_an_error_that_cannot_be_sent_comes_in_words_and_breaks_nothing(processes):
    pool = processes._pool
    outcomes = map_each(processes, work.refuse_three, range(6))
    assert results(outcomes) == [0, 1, 2, None, 4, 5]
    assert outcomes[3].failure.reason == "UnsendableError: 403: denied"
    assert processes._pool is pool


def test_a_worker_that_dies_costs_its_item_and_no_other(processes):
    outcomes = map_each(processes, work.die_on_three, range(12))
    assert results(outcomes) == [0, 1, 2, None, *range(4, 12)]
    assert outcomes[3].failure.reason == "its worker process died"


def test_short_calls_go_to_a_worker_together(processes, monkeypatch):
    """One by one until their duration is known, and at the end."""
    sizes = []
    submit = ProcessExecutor.submit

    def counted(pool, fn, function, items):
        sizes.append(len(items))
        return submit(pool, fn, function, items)

    monkeypatch.setattr(ProcessExecutor, "submit", counted)
    assert results(map_each(processes, work.double, range(500))) == [2 * i for i in range(500)]
    assert sum(sizes) == 500
    assert sizes[:4] == [1] * 4
    assert max(sizes) > 10
    assert sizes[-1] == 1
    sizes.clear()
    map_each(processes, work.nap, [executor._BATCH_S] * 9)
    assert sizes == [1] * 9


def test_a_worker_that_dies_within_a_batch_costs_one_item(processes):
    outcomes = map_each(processes, work.die_on_three, [*range(4, 300), 3, *range(4, 100)])
    assert results(outcomes) == [*range(4, 300), None, *range(4, 100)]
    assert outcomes[296].failure.reason == "its worker process died"


def test_a_result_that_cannot_be_sent_costs_one_item(processes):
    outcomes = map_each(processes, work.unsendable_three, [*range(4, 100), 3, *range(4, 100)])
    assert results(outcomes) == [*range(4, 100), None, *range(4, 100)]
    assert "pickle" in outcomes[96].failure.reason


def test_a_worker_that_dies_within_its_result_costs_no_other(monkeypatch):
    """The pool waits for the rest of the message, and its other workers for their turn to write."""
    monkeypatch.setattr(executor, "_CHECK_S", 0.2)
    with make_executor("process:2") as pool:
        outcomes = map_each(pool, work.die_within_a_message, range(8))
    assert results(outcomes) == [0, 1, 2, None, *range(4, 8)]
    assert outcomes[3].failure.reason == "its worker process died"


def test_a_pool_that_is_stopped_within_a_result_comes_to_an_end(tmp_path):
    pool, started = make_executor("process:2"), tmp_path / "started"
    future = pool.submit(work.hang_within_a_message, started)
    while not started.exists():
        assert not future.done()
    reader = pool._pool._executor_manager_thread
    pool.terminate()
    reader.join(timeout=30)  # as the interpreter does when it exits, without a limit
    assert not reader.is_alive()


def test_progress_ends_with_every_item_done(processes):
    told = []
    map_each(processes, work.die_on_three, range(6), lambda done, total: told.append((done, total)))
    assert told == [(done, 6) for done in range(1, 7)]


@pytest.mark.parametrize("is_broken", [True, False])
def test_a_pool_that_breaks_while_a_worker_starts_is_replaced(processes, monkeypatch, is_broken):
    """What its death closed, the worker that was starting needed; any other error stays one."""

    class Pool:
        _broken = "a worker died" if is_broken else False

        def submit(self, *_):
            raise OSError("handle is closed")

    monkeypatch.setattr(processes, "_pool", Pool())
    if is_broken:
        assert processes.submit(work.double, 4).result() == 8
        processes.shutdown()
    else:
        with pytest.raises(OSError, match="handle is closed"):
            processes.submit(work.double, 4)


def test_a_single_item_starts_no_process():
    with make_executor("process") as pool:
        assert results(map_each(pool, work.process_id, [0])) == [os.getpid()]
        assert pool._pool is None


def test_no_items_give_no_outcomes():
    assert map_each(SerialExecutor(), work.double, []) == []


def test_any_executor_serves_and_stays_open():
    with ThreadPoolExecutor(1) as pool:
        with running(pool) as used:
            assert used is pool
        assert results(map_each(pool, work.double, [1, 2])) == [2, 4]


def test_serial_runs_here():
    with running("serial") as pool:
        assert results(map_each(pool, work.process_id, [0, 1])) == [os.getpid()] * 2


def test_an_interruption_ends_the_workers():
    seen = []

    def interrupted():
        with running("process:1") as pool:
            pool.submit(work.process_id, 0).result()
            seen.extend(pool._pool._processes.values())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    limit = time.monotonic() + 10
    while seen[0].exitcode is None:  # for a moment the thread of the pool alone knows it
        assert time.monotonic() < limit, "the worker is still there"
        time.sleep(0.01)


def test_a_worker_ends_with_the_process_that_started_it():
    script = (
        "import os, signal\n"
        "from distprof.ingest.executor import make_executor\n"
        "if __name__ == '__main__':\n"
        "    print(make_executor('process:2').submit(os.getpid).result(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    output, _ = killed.communicate(timeout=30)  # the worker holds the pipe open while it lives
    assert output.strip().isdigit()


def test_a_script_without_a_guard_is_not_run_again_by_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, threading\n"
        "from distprof.ingest.executor import make_executor\n"
        "print('started')\n"
        "end = threading.Event()\n"
        "threading.Thread(target=end.wait).start()  # so that processes are spawned\n"
        "with make_executor('process:2') as pool:\n"
        "    assert pool.submit(os.getpid).result() != os.getpid()\n"
        "print(__file__, __spec__)\n"
        "end.set()\n"
    )
    finished = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, timeout=60
    )
    assert finished.stdout.splitlines() == ["started", f"{script} None"]
    assert finished.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are always spawned")
@pytest.mark.parametrize(
    ("imported", "threads", "method"),
    [("sys", 0, "fork"), ("pyarrow.parquet", 0, "fork"), ("sys", 1, "spawn")],
)
def test_processes_are_forked_from_a_process_without_threads_only(imported, threads, method):
    script = (
        f"import {imported}, sys, threading\n"
        "from distprof.ingest.executor import make_executor\n"
        "from tests.ingest import work\n"
        "if __name__ == '__main__':\n"
        "    work.MARKS.append('made before')\n"
        "    end = threading.Event()\n"
        "    for _ in range(int(sys.argv[1])):\n"
        "        threading.Thread(target=end.wait).start()\n"
        "    with make_executor('process:1') as pool:\n"
        "        print('fork' if pool.submit(work.marks).result() else 'spawn')\n"
        "    end.set()\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script, str(threads)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert finished.stdout.strip() == method


def test_a_worker_that_is_stopped_leaves_nothing_half_made(tmp_path):
    with make_executor("process:1") as pool:
        started = tmp_path / "started"
        future = pool.submit(work.make_an_entry_for_ever, tmp_path / "cache", started)
        while not started.exists():
            assert not future.done()
        (worker,) = pool._pool._processes.values()
        pool.terminate()
        worker.join(timeout=10)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_errors_of_ours_keep_their_sentence(processes):
    error = InputError("a.json", expected="x", found="y")
    outcomes = map_each(SerialExecutor(), raiser(error), [0, 1])
    assert outcomes[0].failure.reason == str(error)
    assert outcomes[0].failure.error is error


def raiser(error):
    def function(_):
        raise error

    return function


def test_specifications():
    assert isinstance(make_executor("serial"), SerialExecutor)
    assert isinstance(make_executor("process"), ProcessExecutor)
    assert make_executor("process").workers == available_processors()
    assert make_executor("process:3").workers == 3


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "thread",
        "process:",
        "process:0",
        "process:x",
        "process:²",
        f"process:{'9' * 5_000}",
        "dask://h",
    ],
)
def test_another_specification_is_an_error_that_lists_them(spec):
    with pytest.raises(UsageError, match="process:N"):
        make_executor(spec)
