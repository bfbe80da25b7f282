"""A Dask scheduler and workers, each a process of its own, of which some are killed."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from distprof.cli import main
from distprof.errors import MissingExtraError, UsageError
from distprof.ingest import cluster
from distprof.ingest.cluster import ClusterError
from distprof.ingest.executor import make_executor, map_each
from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.ingest.tables_file import DamagedTablesError
from tests.dask_processes import free_port, processes
from tests.ingest import work

GOLDEN = Path(__file__).parents[1] / "golden" / "kineto"
DLRM = GOLDEN / "dlrm-v100-8gpu"

pytestmark = [pytest.mark.dask, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def results(outcomes):
    return [outcome.result for outcome in outcomes]


@pytest.fixture(scope="module")
def dask():
    with processes() as made:
        yield made


# What works ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["dask", "tcp"])
def test_a_cluster_serves(dask, protocol):
    with make_executor(f"{protocol}://{dask.place}") as pool:
        assert pool.workers == 2
        outcomes = map_each(pool, work.process_id, range(8))
        assert len(set(results(outcomes)) - {os.getpid(), None}) == 2
        assert map_each(pool, work.refuse_odd, range(3))[1].failure.reason == "ValueError: 1 is odd"


def test_a_run_is_read_on_a_cluster(dask, tmp_path):
    told = []
    run = open_run(
        str(DLRM),
        IngestOptions(cache_dir=str(tmp_path)),
        executor=f"dask://{dask.place}",
        progress=lambda done, total: told.append((done, total)),
    )
    assert [len(rank.collectives) for rank in run] == [8, 8, 8, 8]
    assert told[-1] == (4, 4)
    assert len(run.rank(3).tables.load().activity) > 0


def test_the_report_is_that_of_one_machine_to_the_byte(dask, tmp_path):
    made = []
    for name, spec in (("here", "serial"), ("there", f"tcp://{dask.place}")):
        report = tmp_path / f"{name}.json"
        where = ["--cache-dir", str(tmp_path / name), "--executor", spec]
        arguments = ["analyze", str(DLRM), *where, "--format", "json", "-o", str(report)]
        assert main(arguments) in (0, 1)
        made.append(report.read_bytes())
    assert made[0] == made[1]
    assert len(made[0]) > 10_000


def test_a_rank_is_measured_where_it_was_read(dask, tmp_path):
    """On a worker whose cache no other machine sees, its tables need not be made again."""

    class Item:
        path = "a trace"

    with make_executor(f"dask://{dask.place}") as pool:
        first = pool.submit(work.process_id, Item()).result()
        assert {pool.submit(work.process_id, Item()).result() for _ in range(8)} == {first}


def test_short_calls_share_a_task(dask, monkeypatch):
    """A task of its own costs more than such a call does."""
    with make_executor(f"dask://{dask.place}") as pool:
        sent = batches_of(pool, monkeypatch)
        assert results(map_each(pool, work.double, range(400))) == [2 * i for i in range(400)]
        assert len(sent) < 80
        mixed = map_each(pool, work.refuse_odd, range(40))
        assert results(mixed) == [None if i % 2 else i for i in range(40)]


def test_an_item_that_cannot_be_sent_costs_no_other(dask):
    with make_executor(f"dask://{dask.place}") as pool:
        map_each(pool, work.kind_of, range(40))
        items = [*range(30), threading.Lock(), *range(30)]
        outcomes = map_each(pool, work.kind_of, items)
        assert "pickle" in outcomes[30].failure.reason
        del outcomes[30]
        assert results(outcomes) == ["int"] * 60


def test_progress_on_a_cluster_names_every_rank(dask):
    told, finished = [], []
    with make_executor(f"dask://{dask.place}") as pool:
        map_each(pool, work.double, range(50), lambda *of: told.append(of), finished.append)
    assert told == [(done, 50) for done in range(1, 51)]
    assert sorted(finished) == list(range(50))


def test_collectives_come_back_once_and_tables_stay(dask, tmp_path):
    """What a worker has read stays there; the next one to ask reads its tables from the cache."""
    run = open_run(
        str(DLRM), IngestOptions(cache_dir=str(tmp_path)), executor=f"dask://{dask.place}"
    )
    for rank in run:
        assert len(rank.collectives) > 0
        assert rank.tables == rank.tables.light()
        loaded = rank.tables.load().collectives
        assert loaded.to_pandas().equals(rank.collectives.to_pandas())


def batches_of(pool, monkeypatch):
    """The items of each batch that is sent from now on."""
    sent, real = [], pool._submitted

    def submitted(batch):
        sent.append([call.args[0] for call in batch.calls])
        return real(batch)

    monkeypatch.setattr(pool, "_submitted", submitted)
    return sent


# Tables -------------------------------------------------------------------------------------------


def test_tables_that_a_worker_can_read_are_not_sent(tmp_path):
    (rank, *_) = open_run(str(DLRM), IngestOptions(cache_dir=str(tmp_path)), executor="serial")
    light = pickle.loads(pickle.dumps(rank.tables.light()))
    assert light.held == {}
    loaded, known = light.load(), rank.tables.load()
    for name in ("activity", "host", "collectives", "steps"):
        assert getattr(loaded, name).to_pandas().equals(getattr(known, name).to_pandas())


def test_tables_that_are_gone_are_made_again(tmp_path):
    trace = tmp_path / "rank0.json.gz"
    shutil.copy(next(DLRM.rglob("*.json.gz")), trace)
    (rank,) = open_run(str(trace), IngestOptions(cache_dir=str(tmp_path / "cache")))
    before = rank.tables.load()
    shutil.rmtree(tmp_path / "cache")
    assert len(rank.tables.light().load().activity) == len(before.activity)
    shutil.rmtree(tmp_path / "cache")
    shutil.copy(GOLDEN / "ddp-a100-2gpu-rank0/nccl_data.json.gz", trace)
    with pytest.raises(DamagedTablesError, match="the trace has changed since"):
        rank.tables.light().load()


# What is killed -----------------------------------------------------------------------------------


def test_the_tasks_of_a_worker_that_is_killed_go_to_another(tmp_path):
    with processes() as dask, make_executor(f"dask://{dask.place}") as pool:
        items = [str(tmp_path / f"mark{number}") for number in range(6)]
        items[2] += work.DIES_ONCE
        outcomes = map_each(pool, work.die_once, items)
        assert results(outcomes) == items


def test_what_kills_its_workers_costs_its_own_item(tmp_path):
    limit = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    mark = tmp_path / "others-are-here"
    items = [(number, str(mark)) for number in range(6)]

    def told(done: int, total: int) -> None:
        if done == total - 1:  # a result that still is on the killed worker would be lost, too
            mark.touch()

    with processes(3, **limit) as dask, make_executor(f"dask://{dask.place}") as pool:
        outcomes = map_each(pool, work.die_on_three_at_last, items, told)
        assert results(outcomes) == [0, 1, 2, None, 4, 5]
        assert "1 workers died" in outcomes[3].failure.reason


def test_what_dies_in_a_batch_is_tried_again_alone(tmp_path, monkeypatch):
    """Of many short calls one kills whatever runs it; those that went with it come back."""
    limit = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    mark = tmp_path / "others-are-here"
    with processes(3, **limit) as dask, make_executor(f"dask://{dask.place}") as pool:
        map_each(pool, work.die_if_told, [(0, "", "")] * 40)  # short, as is known by now
        items = [(number, str(mark), str(tmp_path / "first")) for number in range(60)]

        def told(done: int, total: int) -> None:
            if done == total - 1:
                mark.touch()

        sent = batches_of(pool, monkeypatch)
        outcomes = map_each(pool, work.die_if_told, items, told)
        with_it = [len(batch) for batch in sent if 30 in (item[0] for item in batch)]
        assert with_it[0] > 1  # and it killed the worker of them all
        assert with_it[1:] == [1]
        assert results(outcomes) == [None if n == 30 else n for n in range(60)]
        assert "1 workers died" in outcomes[30].failure.reason


def test_a_scheduler_that_is_killed_ends_the_work_with_a_sentence():
    with processes() as dask, make_executor(f"dask://{dask.place}") as pool:
        killer = threading.Timer(1, dask.scheduler.kill)
        killer.start()
        with pytest.raises(ClusterError, match="is gone: start it again and repeat the command"):
            map_each(pool, work.sleep_for_ever, range(4))
        killer.join()
        with pytest.raises(ClusterError):
            pool.submit(work.process_id, 0)


def test_what_was_read_before_the_scheduler_died_is_in_the_cache(tmp_path):
    options = IngestOptions(cache_dir=str(tmp_path / "cache"))

    def kill(done, _):
        if done == 2:
            dask.scheduler.kill()
            dask.scheduler.wait()
            for worker in dask.workers:
                os.kill(worker.pid, signal.SIGKILL)

    with processes() as dask:
        source, place = str(DLRM), f"dask://{dask.place}"
        with suppress(ClusterError):  # or all four were done by then
            open_run(source, options, executor=place, progress=kill)
    kept = {path.name for path in (tmp_path / "cache").glob("*/*") if path.name[0] != "."}
    assert len(kept) >= 2
    run = open_run(source, options, executor="serial")
    assert len(run) == 4
    assert kept <= {Path(rank.tables.path).name for rank in run}


def test_the_command_ends_when_the_scheduler_is_killed(tmp_path):
    with processes(0) as dask:
        command = [sys.executable, "-W", "ignore", "-m", "distprof", "analyze", str(DLRM)]
        where = ["--executor", f"tcp://{dask.place}", "--cache-dir", str(tmp_path)]
        started = subprocess.Popen([*command, *where], stderr=subprocess.PIPE, text=True)
        time.sleep(4)  # it waits for a worker by then, or connects: both must end
        dask.scheduler.kill()
        _, errors = started.communicate(timeout=60)
    assert started.returncode in (2, 3)
    assert "Dask scheduler" in errors
    assert "Traceback" not in errors
    assert len(errors.splitlines()) < 5


def test_without_a_worker_waiting_ends(monkeypatch):
    monkeypatch.setattr(cluster, "WORKER_S", 1)
    monkeypatch.setattr(cluster, "ASK_S", 0.1)
    with (
        processes(0) as dask,
        make_executor(f"dask://{dask.place}") as pool,
        pytest.raises(ClusterError, match="has had no worker for 1 s: run dask worker"),
    ):
        map_each(pool, work.process_id, range(3))


def test_workers_of_another_version_are_refused(dask, monkeypatch):
    monkeypatch.setattr(cluster, "__version__", "9.9")
    with (
        make_executor(f"dask://{dask.place}") as pool,
        pytest.raises(ClusterError, match=r"this machine 9.9: install the same"),
    ):
        map_each(pool, work.process_id, range(3))


def test_workers_that_come_later_are_used(dask, monkeypatch):
    """A batch system starts them one after another."""
    monkeypatch.setattr(cluster, "ASK_S", 0.1)
    with processes(1) as other, make_executor(f"dask://{other.place}") as pool:
        assert pool.workers == 1
        other.add_worker()
        limit = time.monotonic() + 60
        while pool.workers < 2:
            assert time.monotonic() < limit
            map_each(pool, work.process_id, range(2))
        assert pool.workers == 2


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"distprof\[dask\]"):
        make_executor("dask://localhost:8786")


def test_a_scheduler_that_does_not_answer_is_a_sentence(monkeypatch):
    pytest.importorskip("distributed", reason="needs the extra dask")
    monkeypatch.setattr(cluster, "CONNECT_S", 1)
    with pytest.raises(UsageError, match="no Dask scheduler answered at 127"):
        make_executor(f"dask://127.0.0.1:{free_port()}")
