"""Files behind URLs: what is said where the package for a protocol is absent."""

from __future__ import annotations

import sys

import pytest
from fsspec.registry import _registry

from distprof.cli import main
from distprof.errors import MissingExtraError, UsageError
from distprof.ingest.files import beginning
from distprof.remote import file_system


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the packages that these protocols need."""
    for package in ("s3fs", "gcsfs", "adlfs", "smbclient"):
        monkeypatch.setitem(sys.modules, package, None)
    for protocol in ("s3", "s3a", "gs", "az", "abfs", "smb"):  # of those used before
        monkeypatch.delitem(_registry, protocol, raising=False)


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("s3://bucket/run", "s3"),
        ("s3a://bucket", "s3"),
        ("gs://bucket", "gcs"),
        ("az://container/run", "azure"),
        ("abfs://container/run", "azure"),
    ],
)
def test_a_protocol_that_lacks_its_package_names_the_command(url: str, extra: str) -> None:
    with pytest.raises(MissingExtraError) as caught:
        file_system(url)
    assert str(caught.value) == f"{url} needs an extra: pip install 'distprof[{extra}]'"


def test_a_protocol_of_no_extra_names_its_package() -> None:
    with pytest.raises(UsageError, match="another package: "):
        file_system("smb://server/run")


def test_a_protocol_that_does_not_exist_is_none_of_fsspecs() -> None:
    with pytest.raises(ValueError, match="nope"):
        file_system("nope://bucket/run")


def test_what_tells_kinds_by_their_beginning_stays_silent() -> None:
    assert beginning("s3://bucket/run/log.txt", 100) == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", "s3://bucket/run"],
        ["analyze", "s3://bucket/operations.parquet"],
        ["analyze", "s3://bucket/experts.json"],
        ["hang", "s3://bucket/run"],
        ["history", "show", "--history", "s3://bucket/perf"],
    ],
)
def test_each_verb_passes_the_command_on(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "pip install 'distprof[s3]'" in capsys.readouterr().err


def test_a_name_never_opens_the_file_system_of_another_scheme() -> None:
    """fsspec itself takes ``a::https://…`` for an object of a web server."""
    system, path = file_system("memory://run/a::http://169.254.169.254/latest.json")
    assert type(system).__name__ == "MemoryFileSystem"
    assert path.lstrip("/") == "run/a::http://169.254.169.254/latest.json"
