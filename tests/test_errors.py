"""Errors are sent from workers, so each comes out of a pickle as it went in."""

from __future__ import annotations

import pickle

import pytest

from distprof.bounds import NotAFileError, TooLargeError, UnpackedTooLargeError
from distprof.errors import (
    DistprofError,
    InputError,
    MissingExtraError,
    OtherVerbError,
    SchemaError,
    StatementError,
    UsageError,
    WebError,
)
from distprof.ingest.cache import TooManyRowsError
from distprof.ingest.cluster import ClusterError
from distprof.ingest.tables_file import DamagedTablesError
from distprof.remote import ChangedError, StoreError, UnusableStoreError

ERRORS = [
    *(kind("why") for kind in (DistprofError, UsageError, ClusterError, DamagedTablesError)),
    *(
        kind("a.json", expected="x", found="y", fix="z")
        for kind in (InputError, OtherVerbError, SchemaError, StatementError)
    ),
    *(kind("why", "fix") for kind in (StoreError, ChangedError, UnusableStoreError)),
    *(kind("why") for kind in (TooLargeError, NotAFileError, UnpackedTooLargeError)),
    MissingExtraError("distprof mcp", "mcp"),
    TooManyRowsError("why"),
    WebError("why"),
]


def _below(kind: type) -> set[type]:
    return {kind}.union(*map(_below, kind.__subclasses__()))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_it_was_sent(error: Exception) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_no_error_of_ours_is_left_out() -> None:
    ours = {kind for kind in _below(DistprofError) if kind.__module__.startswith("distprof.")}
    assert ours <= set(map(type, ERRORS))
