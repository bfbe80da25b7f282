"""settings.json of a rank: read, or a sentence why not."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.run_file import LoaderSettings, SettingsFile
from distprof.ingest.job.rank_folder import RankFolder
from tests.job_folders import JobFolder

GOOD = msgspec.json.encode(SettingsFile(rank=0, loaders=(LoaderSettings(num_workers=2),)))


@pytest.fixture
def job(tmp_path):
    return JobFolder(tmp_path / "run", mesh={"dp": 1})


def load(job, data=None):
    if data is not None:
        (job.rank_dir(0) / "settings.json").write_bytes(data)
    return RankFolder(0, str(job.rank_dir(0))).load()


def test_what_the_probe_wrote_is_read(job):
    records = load(job, GOOD)
    assert records.settings is not None
    assert records.settings.loaders[0].num_workers == 2
    assert records.notes == ()


def test_without_the_file_nothing_is_known_and_nothing_is_wrong(job):
    records = load(job)
    assert (records.settings, records.notes) == (None, ())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:-9],
        b"null",
        b"[" * 100_000,
        b'{"rank": "zero"}',
        b"\xff\xfe",
        GOOD + b"{}",
        b'{"rank": 0, "loaders": [{"num_workers": 4611686018427387904}]}',
        b'{"rank": 0, "threads": {"cpu_busy_ratio": 1e300}}',
        b'{"rank": 0, "num_steps": -1}',
    ],
    ids=["empty", "cut", "null", "deep", "kind", "bytes", "two", "many", "ratio", "negative"],
)
def test_a_damaged_file_costs_the_settings_only(job, data):
    records = load(job, data)
    assert records.settings is None
    assert records.notes == ("settings.json is damaged and was ignored.",)


def test_a_file_of_another_rank_or_version_is_not_used(job):
    for other in (SettingsFile(rank=1), SettingsFile(rank=0, schema="distprof.settings/2")):
        records = load(job, msgspec.json.encode(other))
        assert records.settings is None
        assert records.notes == ("settings.json has another version or rank and was ignored.",)


@given(at=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255))
def test_any_broken_byte_is_read_or_noted(tmp_path_factory, at, byte):
    job = JobFolder(tmp_path_factory.mktemp("run"), mesh={"dp": 1})
    records = load(job, GOOD[:at] + bytes([byte]) + GOOD[at + 1 :])
    assert (records.settings is None) == bool(records.notes)
