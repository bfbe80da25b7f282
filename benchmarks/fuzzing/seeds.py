"""Valid inputs from which mutations start, and the commands that read them.

Registered inputs come from their registries: each kind of :mod:`distprof.ingest.kinds` with its
golden files, and each document of :mod:`docs.documents` with its sample. A new one is
covered automatically.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec

from benchmarks.fuzzing.mutations import GZIP, PARQUET, Files
from distprof.errors import DistprofError
from distprof.ingest.kinds import Source, known_sources
from distprof.ingest.training_logs.reports import wordings
from distprof.verbs.history import dataset
from docs.documents import ALL_DOCUMENTS
from tests.broken_inputs.exports import small
from tests.broken_inputs.intact import intact
from tests.contracts.test_documents import FAST, LARGE, SAMPLES
from tests.documents.samples import SAMPLES as REPORTS
from tests.flight_jobs import job, op
from tests.job_folders import MS, START_NS, JobFolder
from tests.rocprof_traces import tool_of
from tests.verbs.history.samples import commits

__all__ = ["Seed", "all_seeds"]

TESTS = Path(__file__).parents[2] / "tests"
GOLDEN = TESTS / "golden"
PER_KIND = 4
"""Number of golden files per kind, the smallest first: further ones are similar."""

FORMS = ("nvidia-smi-q",)
"""Prefixes of names of golden files that have a separate format and are larger than others."""

FEW = 24
"""Items kept from a long JSON list: inputs are small, so that many can be tried."""

FEW_LINES = 160
SMALL_BYTES = 4_000
WITH_TRACE = ("analyze", "trace.json", "--executor", "serial", "--cache-dir", "cache")
EXPORT = ("export", "perfetto", "-o", "job.pftrace", "--force", "--cache-dir", "cache")
Command = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Seed:
    """A valid input.

    Args:
        name: For people.
        files: Files to mutate.
        commands: Arguments of commands that read it, from within its folder.
        fixed: Other files, which stay unchanged.
    """

    name: str
    files: Files
    commands: tuple[Command, ...]
    fixed: Files


@cache
def all_seeds() -> tuple[Seed, ...]:
    """Every seed, in a fixed order."""
    return tuple(
        seed
        for seeds in (
            _of_kinds,
            _of_traces,
            _of_jobs,
            _of_dumps,
            _of_documents,
            _of_settings,
            _of_tools,
        )
        for seed in seeds()
    )


def _seed(name: str, files: Files, *commands: Command, fixed: Files | None = None) -> Seed:
    return Seed(name=name, files=files, commands=commands, fixed=fixed or {})


def _analyze(path: str, *more: str) -> Command:
    return ("analyze", path, "--executor", "serial", "--cache-dir", "cache", *more)


# Kinds of sources ---------------------------------------------------------------------------------


def _of_kinds() -> Iterator[Seed]:
    trace = {"trace.json": json.dumps(intact()).encode()}
    for path, source in _golden_of_kinds():
        files = _as_files(path, "in")
        name = "in" if path.is_dir() else next(iter(files))
        thin = {key: _thinned(value) for key, value in files.items()}
        files = thin if _is_read(source, thin, name) else files
        commands = [_analyze(name), ("compare", name, name)]
        if source.name:
            commands.append((*WITH_TRACE, "--with", name))
        yield _seed(f"{source.origin}: {path.name}", files, *commands, fixed=trace)


def _golden_of_kinds() -> list[tuple[Path, Source[Any]]]:
    found: dict[str, list[tuple[Path, Source[Any]]]] = {}
    for path in sorted(GOLDEN.rglob("*"), key=_size):
        source = next((each for each in known_sources() if each.fits(str(path))), None)
        if source is not None:
            found.setdefault(source.origin, []).append((path, source))
    chosen = [each for origin in sorted(found) for each in found[origin][:PER_KIND]]
    forms = [each for each in itertools.chain(*found.values()) if each[0].name.startswith(FORMS)]
    return [*chosen, *(each for each in forms if each not in chosen)]


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def _as_files(path: Path, folder: str) -> Files:
    """A file with its metadata file, or all files of a folder."""
    if path.is_dir():
        inner = sorted(file for file in path.rglob("*") if file.is_file())
        return {f"{folder}/{file.relative_to(path)}": file.read_bytes() for file in inner}
    beside = sorted(path.parent.glob("*.yaml")) if path.suffix == ".parquet" else []
    return {file.name: file.read_bytes() for file in (path, *beside)}


def _is_read(source: Source[Any], files: Files, name: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        for file, data in files.items():
            path = Path(folder, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        target = str(Path(folder, name))
        try:
            return source.fits(target) and bool(source.read(target))
        except DistprofError:
            return False


def _thinned(data: bytes) -> bytes:
    """A thinned copy: the first and every n-th of long lists, lines and steps."""
    inner = gzip.decompress(data) if data.startswith(GZIP) else data
    if len(inner) < SMALL_BYTES:
        return data
    if inner.startswith(PARQUET):
        return _few_steps(inner)
    try:
        thin = json.dumps(_few(json.loads(inner))).encode()
    except (ValueError, RecursionError):
        lines = inner.split(b"\n")
        half = FEW_LINES // 2
        thin = b"\n".join([*lines[:half], *lines[half :: max(1, len(lines) // half)]])
    return gzip.compress(thin, 1, mtime=0) if inner is not data else thin


def _few(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _few(item) for key, item in value.items()}
    if isinstance(value, list):
        most = 10 * FEW if value and isinstance(value[0], dict) else FEW
        return [_few(item) for item in value[:: max(1, -(-len(value) // most))]]
    return value


def _few_steps(data: bytes) -> bytes:
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data))
    steps = table.column("step").to_pylist() if "step" in table.column_names else []
    few = set(sorted(set(steps))[:3])
    out = io.BytesIO()
    pq.write_table(table.filter([step in few for step in steps]) if few else table, out)
    return out.getvalue()


# Traces -------------------------------------------------------------------------------------------


def _of_traces() -> Iterator[Seed]:
    plain = json.dumps(intact()).encode()
    shapes = (_analyze("trace.json"), _analyze("trace.json", "--device-only"))
    whole = _analyze("trace.json", "--window", "capture")
    yield _seed("trace", {"trace.json": plain}, *shapes, whole, (*EXPORT, "trace.json"))
    packed = {"trace.json.gz": gzip.compress(plain, mtime=0)}
    yield _seed("packed trace", packed, _analyze("trace.json.gz"), ("analyze", "trace.json.gz"))
    ranks = {f"in/rank-{rank}.json": json.dumps(intact(rank, 3)).encode() for rank in range(3)}
    processes = ("analyze", "in", "--executor", "process:2", "--cache-dir", "cache")
    strict = (_analyze("in", "--ranks", "0-1"), _analyze("in", "--strict"), processes)
    yield _seed(
        "traces of three ranks",
        ranks,
        _analyze("in"),
        ("compare", "in", "in"),
        *strict,
        (*EXPORT, "in"),
    )
    yield _seed("a cache", _cached(plain), _analyze("trace.json"))
    for path in sorted((GOLDEN / "kineto").glob("*/*.json.gz"), key=_size)[::2]:
        yield _seed(
            path.parent.name,
            {path.name: _thinned(path.read_bytes())},
            _analyze(path.name),
            (*EXPORT, path.name),
        )


def _cached(trace: bytes) -> Files:
    """A trace with the cached tables of its first analysis."""
    from distprof.api import open_run

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "trace.json").write_bytes(trace)
        open_run(str(folder / "trace.json"), executor="serial", cache_dir=str(folder / "cache"))
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def _of_tools() -> Iterator[Seed]:
    """Exports of other profilers."""
    with tempfile.TemporaryDirectory() as name:
        export = small(Path(name, "rank0.sqlite")).read_bytes()
    path = GOLDEN / "kineto" / "mi250-1gpu" / "mi250_minitoy_train_ROCm6_2_kineto.json.gz"
    tool = json.loads(_thinned(json.dumps(tool_of(path)).encode()))
    whole = json.dumps({"rocprofiler-sdk-tool": [tool]}).encode()
    for file, data in {"rank0.sqlite": export, "1_results.json": whole}.items():
        yield _seed(file, {file: data}, _analyze(file), (*EXPORT, file))


# Run directories and dumps ------------------------------------------------------------------------


def _of_jobs() -> Iterator[Seed]:
    read = (_analyze("in"), ("hang", "in", "--executor", "serial"), ("compare", "in", "in"))
    more = (
        ("watch", "in", "--once"),
        ("report", "in"),
        ("check", "in", "--against", "in"),
        ("history", "add", "in"),
    )
    for name, files in (("completed", _completed()), ("failed", _failed())):
        yield _seed(f"run directory, {name}", files, *read, *more, ("scale", "--from", "in"))


def _completed() -> Files:
    from distprof.artefacts.records import (
        ClockStamp,
        CollectivesRecord,
        MemoryRecord,
        MoeRecord,
        NvmlRecord,
        Pause,
    )

    with tempfile.TemporaryDirectory() as name:
        job_folder = JobFolder(Path(name, "in"), mesh={"dp": 2})
        for rank in range(2):
            trace = Path(name, "trace.json")
            trace.write_bytes(gzip.compress(json.dumps(intact(rank, 2)).encode(), mtime=0))
            job_folder.trace(rank, trace, GOLDEN / "job/gloo-pp-4ranks/rank-0.flight.json.gz")
            job_folder.steps(rank, [10, 11, 12, 10], traced=(2,), phases={"forward": 0.4})
            job_folder.memory(rank, _made(MemoryRecord)).nvml(rank, _made(NvmlRecord))
            job_folder.moe(rank, _made(MoeRecord)).pauses(rank, _made(Pause))
            job_folder.clock(rank, _made(ClockStamp)).collectives(rank, _made(CollectivesRecord))
            job_folder.settings(rank).rank_file(rank)
            log = GOLDEN / "nccl/2.7.8-v100-1node-4gpu.txt"
            (job_folder.rank_dir(rank) / "nccl.log").write_bytes(_thinned(log.read_bytes()))
        return _as_files(job_folder.probe("nvml", "on").write(), "in")


def _made(kind: type[msgspec.Struct]) -> Any:
    """A record with a plausible value in every field that has no default."""
    needed = [field for field in msgspec.structs.fields(kind) if field.required]
    return kind(**{field.name: _fitting(field) for field in needed})


def _fitting(field: msgspec.structs.FieldInfo) -> Any:
    """A value of the field's type, from the plain ones."""
    number = START_NS + 12 * MS if field.name.endswith("_ns") else 1
    literals = get_args(field.type)[:1]
    for choice in (number, str(number), [], {}, [[1, 2]], True, *literals):
        try:
            return msgspec.convert(choice, field.type, strict=False)
        except msgspec.ValidationError:
            continue
    raise AssertionError(f"no value for {field.name}")


def _failed() -> Files:
    with tempfile.TemporaryDirectory() as name:
        folder = JobFolder(Path(name, "in"), mesh={"pp": 2}, outcome="failed")
        folder.steps(0, [10, 11, 12]).steps(1, [10, 11]).error(1, "CUDA error: an illegal access")
        return _as_files(folder.rank_file(0).rank_file(1).write(), "in")


def _of_dumps() -> Iterator[Seed]:
    hang = ("hang", "in", "--executor", "serial")
    few = {rank: [op(1), op(2, state="started" if rank else "completed")] for rank in range(3)}
    dumps = {f"in/dump_{rank}": json.dumps(dump).encode() for rank, dump in job(few).items()}
    yield _seed("dumps", dumps, hang)
    for path in sorted((GOLDEN / "logs").iterdir()):
        yield _seed(f"output {path.name}", _as_files(path, "in"), hang, _analyze("in"))
    for wording in wordings():
        text = 6 * (wording.example.strip("\n") + "\n")
        log = {"in/train.log": text.encode()}
        yield _seed(f"output of {wording.program}", log, _analyze("in/train.log"))
    for folder in sorted((GOLDEN / "flight").iterdir()):
        inner = _as_files(folder, "in")
        files = {path: inner[path] for path in sorted(inner)[:4]}
        yield _seed(f"dumps of {folder.name}", files, hang, _analyze("in"))


# Saved documents ----------------------------------------------------------------------------------


def _of_documents() -> Iterator[Seed]:
    runs = {"runs.json": msgspec.json.encode([*FAST, *LARGE])}
    for document in ALL_DOCUMENTS:
        data = document.encode(SAMPLES[document.name]())
        name = "in/sweep.json" if document.name == "sweep" else "in/report.json"
        yield _seed(document.name, {name: data}, *_readers(document.name, name), fixed=runs)
    for name, make in list(REPORTS.items())[:4]:
        data = next(d for d in ALL_DOCUMENTS if d.name == "report").encode(make())
        yield _seed(
            f"report, {name}", {"in/report.json": data}, *_readers("report", "in/report.json")
        )
    yield _seed("summaries", runs, *_readers("summary", "runs.json"))
    yield from _of_measurements()
    yield from _of_histories()


def _readers(name: str, path: str) -> tuple[Command, ...]:
    """Commands that read a document, or report that they do not."""
    known: dict[str, tuple[Command, ...]] = {
        "report": (
            ("report", path), ("report", path, "--full"), ("html", path), ("compare", path, path),
            ("check", path, path, path, "--against", path), ("history", "add", path),
        ),
        "summary": (
            ("scale", "--from", path), ("scale", "--from", path, "--strong"),
            ("check", path, "--against", path), ("history", "add", path),
        ),
        "baseline": (
            ("check", "runs.json", "--baseline", path),
            ("check", "runs.json", "--baseline", path, "--update-baseline"),
            ("check", "--baseline", path, "--acknowledge", "step_time=0.1", "--reason", "x"),
        ),
        "sweep": (("scale", "--from", "in"), ("check", "in", "--against", "in")),
        "fabric": (("fabric", path), ("fabric", path, "--all")),
    }  # fmt: skip
    return known.get(name, (_analyze(path),))


def _of_measurements() -> Iterator[Seed]:
    table = (TESTS / "verbs" / "sweep" / "made_up.csv").read_bytes()
    scale = ("scale", "--from")
    yield _seed("measurements", {"times.csv": table}, (*scale, "times.csv"))
    rows = [
        dict(zip(("ranks", "step_ms"), row, strict=True)) for row in ((1, 800), (2, 420), (4, 230))
    ]
    yield _seed("measurements, JSON", {"t.json": json.dumps(rows).encode()}, (*scale, "t.json"))
    trace = json.dumps(intact()).encode()
    for path in sorted((GOLDEN / "nccl-tests").iterdir(), key=_size)[::2]:
        commands = (("fabric", path.name), (*WITH_TRACE, "--fabric", path.name))
        yield _seed(
            path.name, {path.name: path.read_bytes()}, *commands, fixed={"trace.json": trace}
        )


def _of_histories() -> Iterator[Seed]:
    with tempfile.TemporaryDirectory() as name:
        runs = commits([[100e6, 101e6, 100e6], [130e6, 131e6]])
        dataset.append(name, runs[:3])
        dataset.compact(name)
        dataset.append(name, runs[3:])
        files = _as_files(Path(name), "in")
    where = ("--history", "in")
    commands = (
        ("history", "show", *where), ("history", "compact", *where),
        ("history", "show", "--metric", "overlap", *where),
    )  # fmt: skip
    yield _seed("history", files, *commands)


# Settings -----------------------------------------------------------------------------------------

CONFIGURATION = b"""\
fabric = ""

[communication]
patterns = [{ match = "acme_ring_sum", library = "acme", kind = "all_reduce" }]
exclude = ["my_local_all_reduce"]

[limits.COM101]
overlap_ratio = 0.6

[check]
metrics = ["step_time", "efficiency"]
tolerance = { step_time = 0.03 }
session_noise = 0.02
window = 8

[topology]
gpus_per_domain = 72
domains = { a = ["rack1-*"], b = ["n7"] }

[hardware.gpus.b400]
title = "B400"
bf16_tflops = 4000
memory_gb = 300
memory_tb_per_s = 9.0
scale_up_gb_per_s = 900
gpus_per_domain = 72

[model]
preset = "llama3-8b"
batch = 512
sequence = 4096
"""
PLAN: Command = ("plan", "--model", "llama3-8b", "--gpus", "64")
CHECK: Command = ("check", "runs.json", "--against", "runs.json")
ARGUMENTS: tuple[tuple[str, Command], ...] = (
    ("0-1,3", ("analyze", "trace.json", "--executor", "serial", "--ranks", "{text}")),
    ("serial", ("analyze", "trace.json", "--executor", "{text}")),
    ("idle", ("analyze", "trace.json", "--executor", "serial", "--section", "{text}")),
    ("trace.json", ("analyze", "{text}", "--executor", "serial")),
    ("tp=8,pp=2,micro-batches=4", (*PLAN, "--layout", "{text}")),
    ("50GB/s", (*PLAN, "--inter-node", "{text}")),
    ("4096", ("plan", "--layers", "32", "--heads", "32", "--gpus", "16", "--hidden", "{text}")),
    ("0.5", (*PLAN, "--compute-efficiency", "{text}")),
    ("step_time=0.05", (*CHECK, "--tolerance", "{text}")),
    ("step_time,efficiency", (*CHECK, "--metrics", "{text}")),
    ("8", ("scale", "--from", "runs.json", "--baseline-ranks", "{text}")),
    ("COM101", ("rule", "{text}")),
)  # fmt: skip
"""A valid argument, and the command with a place for it."""


def _of_settings() -> Iterator[Seed]:
    trace = json.dumps(intact()).encode()
    beside = {"trace.json": trace, "runs.json": msgspec.json.encode([*FAST, *LARGE])}
    files = {"distprof.toml": CONFIGURATION}
    yield _seed("configuration", files, WITH_TRACE, CHECK, (*PLAN, "--gpu", "b400"), fixed=beside)
    for path in sorted((TESTS / "verbs" / "plan" / "jobs_of_others").iterdir()):
        lint = ("plan", "--lint", path.name, "--model", "llama3-8b", "--gpus", "64")
        yield _seed(f"configuration of a job: {path.name}", {path.name: path.read_bytes()}, lint)
    for text, command in ARGUMENTS:
        yield _seed(f"argument {text}", {"{text}": text.encode()}, command, fixed=beside)
