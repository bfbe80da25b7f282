"""What every kind of source must be: exampled, recognised for sure, harmless to other files."""

import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

from distprof.errors import InputError
from distprof.ingest import kinds
from distprof.ingest import kinds as registry
from distprof.ingest.kinds import MODULES, Source, known_sources, open_source, with_evidence

GOLDEN = Path(__file__).parents[1] / "golden"
FITTING = {
    str(path): found
    for path in sorted(GOLDEN.rglob("*"))
    if (found := [source for source in known_sources() if source.fits(str(path))])
}
SAMPLES = {
    FITTING[path][0].origin: path
    for path in sorted(FITTING, key=lambda path: -Path(path).stat().st_size)
    if Path(path).stat().st_size > 200
}
"""Of each kind, the smallest of the golden artefacts, but no scrap, that is opened as such."""

NONSENSE = {
    "empty.json": b"",
    "empty.txt": b"",
    "zeros.bin": bytes(4_096),
    "noise.txt": bytes(range(256)) * 64,
    "list.json": b"[[[[",
    "object.json": b'{"a": 1',
    "trace.json": b'{"schemaVersion": 1, "traceEvents": []}',
    "lines.log": b"nothing to see here\n" * 100,
    "table.csv": b"a,b,c\n1,2\n\n",
    "cut.txt.gz": b"\x1f\x8b\x08\x00",
    "no.parquet": b"PAR0",
}

by_kind = pytest.mark.parametrize("source", known_sources(), ids=lambda source: source.origin)


def test_every_kind_is_declared_once_and_no_two_share_a_place_or_an_origin():
    """A module or a kind that is missing in its tuple would never be recognised."""
    modules = [
        import_module(f"{kinds.__name__}.{found.name}")
        for found in pkgutil.iter_modules(kinds.__path__)
    ]
    assert sorted(MODULES) == [module.__name__.rpartition(".")[2] for module in modules]
    for module in modules:
        assert module.__doc__
        made = [value for value in vars(module).values() if isinstance(value, Source)]
        assert {id(source) for source in made} <= {id(source) for source in known_sources()}
        assert module.SOURCES
    count = sum(len(module.SOURCES) for module in modules)
    assert len(known_sources()) == count
    assert len({source.place for source in known_sources()}) == count
    assert len({source.origin for source in known_sources()}) == count


@by_kind
def test_a_kind_has_a_sample_that_is_opened_as_such(source):
    run = open_source(SAMPLES[source.origin])
    assert run.origin == source.origin
    assert run.ranks == ()
    assert run.evidence


@by_kind
def test_a_kind_joins_its_sample_to_a_run_or_is_refused_beside_one(source):
    alone = open_source(SAMPLES[source.origin])
    other = next(o for o in known_sources() if o.name and o is not source)
    run = open_source(SAMPLES[other.origin])
    if source.name:
        joined = with_evidence(run, [SAMPLES[source.origin]])
        assert next(iter(alone.evidence)) in joined.evidence
        assert {*run.evidence} <= {*joined.evidence}
        assert joined.origin == other.origin
    else:
        with pytest.raises(InputError, match="another kind of file"):
            with_evidence(run, [SAMPLES[source.origin]])


@pytest.mark.parametrize("path", FITTING, ids=lambda path: str(Path(path).relative_to(GOLDEN)))
def test_a_file_is_of_one_kind_unless_each_may_go_with_a_recording(path):
    """A terminal may hold the lines of several tools; anything else is of one kind for sure."""
    found = FITTING[path]
    assert len(found) == 1 or all(source.name for source in found)


@by_kind
@pytest.mark.parametrize("name", NONSENSE)
def test_a_kind_does_not_fit_nonsense(source, name, tmp_path):
    path = tmp_path / name
    path.write_bytes(NONSENSE[name])
    if name.endswith(".parquet") and source.fits(str(path)):
        with pytest.raises(InputError):  # by its name alone, and says what is wrong with it
            source.read(str(path))
        return
    assert source.fits(str(path)) is False


@by_kind
@pytest.mark.parametrize(
    "path", ["", "nowhere", "nowhere/at.json", "~nobody/x.log", "memory://no.json", "bad\0name"]
)
def test_a_kind_does_not_fit_what_is_not_there(source, path):
    assert source.fits(path) is False


@by_kind
def test_a_kind_does_not_fit_an_empty_folder(source, tmp_path):
    assert source.fits(str(tmp_path)) is False


NEW_KIND = '''"""Step times that a wall clock shows."""

from dataclasses import dataclass
from pathlib import Path

from distprof.bounds import Bound
from distprof.ingest.kinds import Source


@dataclass(frozen=True)
class WallClock:
    seconds: float
    notes: tuple[str, ...] = ("The clock may be slow.",)


def fits(path):
    return path.endswith(".clock")


def read(path):
    return WallClock(float(Path(path).read_text()))


BOUND = Bound(reads="a wall clock", num_bytes=100, beyond="refused")
SOURCES = (
    Source(place=200, origin="wall clock", bound=BOUND, fits=fits, read=read, notes="assumed"),
)
'''


def test_a_kind_without_a_bound_is_no_kind():
    with pytest.raises(TypeError, match="bound"):
        Source(place=200, origin="endless", fits=bool, read=str)


def test_a_new_kind_is_a_module_and_its_name(tmp_path, monkeypatch):
    (tmp_path / "wall_clock.py").write_text(NEW_KIND)
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "MODULES", (*MODULES, "wall_clock"))
    known_sources.cache_clear()
    try:
        sample = tmp_path / "sample.clock"
        sample.write_text("1.5")
        run = open_source(str(sample))
    finally:
        known_sources.cache_clear()
    (content,) = run.evidence.values()
    assert content.seconds == 1.5
    assert run.get(type(content)) is content
    assert [gap.message for gap in run.gaps] == ["The clock may be slow."]
    assert run.origin == "wall clock"
