"""A cluster whose machines share nothing but an object store."""

import pytest

import distprof
from tests.dask_processes import processes
from tests.remote.s3_server import environment
from tests.remote.test_s3 import put_ranks

pytestmark = [pytest.mark.dask, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.mark.parametrize("cache_dir", [None, "s3://bucket/team"], ids=["own caches", "shared"])
def test_a_worker_that_dies_between_reading_and_measuring_costs_nothing(
    s3, tmp_path, monkeypatch, cache_dir
):
    put_ranks(s3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "driver"))
    monkeypatch.delenv("DISTPROF_CACHE_DIR", raising=False)
    with processes(0, **environment(s3)) as dask:
        for number in range(2):
            dask.add_worker(XDG_CACHE_HOME=str(tmp_path / f"worker{number}"))
        place = f"tcp://{dask.place}"
        run = distprof.open_run("s3://bucket/run", executor=place, cache_dir=cache_dir)
        assert not list((tmp_path / "driver").rglob("*.tables"))  # the workers read
        assert list(tmp_path.glob("worker*/distprof/**/*.tables"))
        dask.workers[0].kill()
        dask.workers[0].wait()
        there = distprof.analyze(run, executor=place)
    here = distprof.analyze("s3://bucket/run", executor="serial")
    saved = []
    for name, report in (("there", there), ("here", here)):
        report.save(tmp_path / name)
        saved.append((tmp_path / name).read_bytes())
    assert saved[0] == saved[1]
