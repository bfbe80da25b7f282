"""What programs, NCCL, drivers and monitors print or log: four kinds of source.

The same files may hold several of them, so one kind asks the others for what else is in a file.
Lines that no reader understands are counted, so nothing is lost silently.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec.structs import replace

from distprof.bounds import Bound, expanded, patterns_beside, table_beside
from distprof.errors import InputError, UsageError
from distprof.ingest.discovery import ranks_in_names
from distprof.ingest.files import (
    DAMAGE,
    NOT_LOGS,
    Blocks,
    any_log,
    beginning,
    opened,
    paths_of_logs,
    read_some,
    readings,
)
from distprof.ingest.kinds import Source, known_sources, machine
from distprof.ingest.recognise import foreign_format
from distprof.ingest.wrapped import begins_object, unwrapped
from distprof.run.logs import DeviceLog, JobOutput, NcclLog, TrainingLog
from distprof.run.run import Run
from distprof.terms import NcclRemark
from distprof.units import capitalized

SNIFFED_BYTES = 1 << 23  # programs print a lot before they train
_JSON = (".json", ".json.gz")
_TABLES = (".csv", ".csv.gz")
_ARCHIVES = (".sqlite", ".pkl", ".parquet", ".tar", ".tar.gz", ".zip")
_OTHER_KINDS = (*_ARCHIVES, ".py", ".toml", ".yaml", ".xml")
_SMALL = 1 << 16
TRAINING_BOUND = Bound(
    reads="a log of a training program", num_bytes=1 << 38, rows=500_000, beyond="skipped"
)


def _has_sign(start: bytes, of: str) -> bool:
    return any(
        sign.encode() in start for sign in table_beside(__package__, "logs.toml")["signs"][of]
    )


def fits_training_log(source: str, *, least: int = 1) -> bool:
    """Whether a file or URL holds ``least`` reports of iterations; never raises for others."""
    name = source.lower()
    if name.endswith(_OTHER_KINDS):
        return False
    is_text = not name.endswith((*_JSON, *_TABLES))
    ways = readings(source) if is_text else (True,)
    return any(_holds_iterations(source, least, is_text=is_text, keeps_labels=w) for w in ways)


def _holds_iterations(source: str, least: int, *, is_text: bool, keeps_labels: bool) -> bool:
    try:
        if "://" not in source and not Path(expanded(source)).is_file():
            return False
        with opened(source, keeps_labels=keeps_labels, keeps_ranks=keeps_labels) as stream:
            start = unwrapped(read_some(stream, _SMALL)[0])
            is_saved = _has_sign(start, "trainer")
            if is_saved or (is_text and not begins_object(start)):
                start += read_some(stream, SNIFFED_BYTES - len(start))[0]
    except (*DAMAGE, ImportError):
        return False
    from distprof.ingest.training_logs.read import holds_iterations
    from distprof.ingest.training_logs.tables import is_series

    if source.lower().endswith(_JSON) and not is_saved:
        return is_series(start)
    return holds_iterations(start, is_text=is_text or is_saved, least=least)


def _read_training(source: str) -> TrainingLog:
    from distprof.ingest.training_logs.read import read_training_log

    return read_training_log(source)


def _with_sensors(run: Run) -> Run:
    """The run with the table of nvidia-smi that a short text holds next to its iterations."""
    from distprof.ingest.sensors import holds_tables

    start = beginning(run.source, _DEVICE_BYTES)
    if len(start) < _DEVICE_BYTES and holds_tables(start):
        with suppress(InputError):
            return DEVICE_LOG.joined(run, run.source)
    return run


TRAINING_LOG = Source(
    bound=TRAINING_BOUND,
    place=80,
    origin="log of a training program",
    name="a log of a training program",
    fits=fits_training_log,
    read=_read_training,
    complete=_with_sensors,
)


MAX_FILES = 20_000
NCCL_BOUND = Bound(
    reads="an NCCL log", num_bytes=1 << 38, names=1 << 17, beyond="skipped", seconds_per_mb=5
)
_MAX_FILES_CHECKED = 8  # for training iterations
_NCCL_BYTES = 1 << 22
_HOW = patterns_beside(__package__, "logs.toml")


def fits_nccl_log(source: str) -> bool:
    """Whether a source is an NCCL log, or a folder with such logs and no trace."""
    return any_log(source, MAX_FILES, _is_nccl_log)


def read_nccl_log(source: str) -> NcclLog:
    """Read a log, or all logs in a folder."""
    paths = paths_of_logs(source, MAX_FILES)
    if paths == [source]:
        log = _tested(_read_nccl({source: None}), start := beginning(source, _NCCL_BYTES))
        log = _with_hardware(log, start[:_SMALL])
    else:
        paths = [*filter(_is_nccl_log, paths)]
        log = _read_nccl(dict(zip(paths, ranks_in_names(paths), strict=True)))
    if not (log.num_info or log.num_warn or log.versions):
        raise InputError(
            source,
            expected="an NCCL log, written with NCCL_DEBUG=INFO",
            found="; ".join(log.notes) or f"{log.num_lines:,} lines, none of them from NCCL",
            fix="set NCCL_DEBUG=INFO and keep the output of the ranks",
        )
    if min(log.num_jobs, len(log.versions), len(log.files)) > 1:
        first, *more = sorted(log.versions)
        raise InputError(
            source,
            expected="NCCL logs of one job",
            found=(
                f"{log.num_jobs:,} jobs that share no communicator, with NCCL {first} and "
                f"{len(more)} other version{'s' if len(more) > 1 else ''}"
            ),
            fix=f"name the logs of one job: distprof analyze {log.files[0]}",
        )
    return log


def _tested(log: NcclLog, start: bytes) -> NcclLog:
    """The log with what nccl-tests measured, and the hosts that it lists."""
    if not _has_sign(start, "test"):
        return log
    from distprof.ingest.fabric import best_of_test

    tested, hosts = best_of_test(start.decode("utf-8", "replace"))
    return replace(log, tested=tested, test_hosts=hosts)


def _with_hardware(log: NcclLog, start: bytes) -> NcclLog:
    """The log with what tools next to it show of links, and variables if NCCL prints none."""
    other = foreign_format("", start)
    log = replace(log, settings=log.settings or {n: {v: ()} for n, v in _settings(start).items()})
    if other is None or not other.name.startswith(_OF_LINKS):
        return log
    what = other.shown(start)
    told = f"{what[:1].upper()}{what[1:]}. {capitalized(other.fix)}."
    return replace(log, remarks={**log.remarks, NcclRemark.BESIDE: {told: ()}})


def read_rank_logs(paths: Mapping[int, str]) -> NcclLog | None:
    """Read the logs of known ranks; None if they hold nothing from NCCL."""
    log = _read_nccl({path: rank for rank, path in paths.items()})
    return log if log.num_info or log.num_warn or log.versions else None


def _read_nccl(paths: Mapping[str, int | None]) -> NcclLog:
    from distprof.ingest.nccl.assemble import Assembler
    from distprof.ingest.nccl.lines import Lines, Splitter

    assembler = Assembler()
    counts = {"lines": 0, "bytes": 0}
    notes: list[str] = []
    files: dict[str, range] = {}
    for path, rank in paths.items():
        before = assembler.num_processes
        try:
            with opened(path) as stream:
                lines = Lines(Blocks(stream))
                splitter = Splitter()
                for some in lines:
                    assembler.take_lines(some, splitter, rank)
        except DAMAGE as error:
            notes.append(f"Cannot read {path}: {' '.join(str(error).split())}.")
            continue
        finally:
            files[path] = range(before, assembler.num_processes)
        counts["lines"] += lines.blocks.num_lines
        counts["bytes"] += lines.blocks.num_bytes
        if lines.blocks.damage:
            notes.append(f"{path} was read only up to the damage: {lines.blocks.damage}.")
        if lines.num_shortened:
            notes.append(f"Lines of {path} above 64 KiB, truncated: {lines.num_shortened:,}.")
    return assembler.result(files, counts, notes)


def _is_nccl_log(path: str) -> bool:
    start = b"" if path.lower().endswith(_NEVER_READ) else beginning(path, _NCCL_BYTES)
    if begins_object(start):
        return False
    if all(sign in start for sign in machine.TEST_SIGNS) or b"float     sum " in start:
        return _has_sign(start, "initialisation")
    text = start.decode("latin-1")
    names = ("nccl_line",) if _HOW["speeds"].search(text) else ("nccl_line", "nccl_version")
    return any(_HOW[name].search(text) for name in names)


def _with_other_lines(run: Run) -> Run:
    """The run with how far ranks came, and a table of operators, or the iterations of the program.

    Logs of several jobs are not searched: iterations of one job would be attributed to all.
    """
    log = run.get(NcclLog)
    if log is not None and not (log.edges or log.networks or log.card_path or log.peer_path):
        run = _with_machines(run)
    files = log.files[:_MAX_FILES_CHECKED] if log is not None and log.num_jobs < 2 else ()
    # Connections of processes that are not named: those of the others do not end the text
    is_quoted = log is not None and any(edge.process is None for edge in log.edges)
    with suppress(InputError):  # no line about the start or the end
        output = read_job_output(run.source) if files else JobOutput()
        kinds = {event.yields for event in output.events}
        if _STARTS & kinds and not (is_quoted and kinds <= {"setup", "interfaces"}):
            run = run.having(output)
    of_steps = ((one, path) for one in (_of_operators(), TRAINING_LOG) for path in files)
    found = next(((one, path) for one, path in of_steps if one.fits(path)), None)
    return run if found is None else found[0].joined(run, found[1])


def _of_operators() -> Source[Any]:
    return next(one for one in known_sources() if one.origin == "table of operators")


NCCL_LOG = Source(
    bound=NCCL_BOUND,
    place=50,
    origin="NCCL log",
    name="an NCCL log",
    fits=fits_nccl_log,
    read=read_nccl_log,
    notes="damaged",
    complete=_with_other_lines,
)


SETTINGS_BOUND = Bound(reads="settings of NCCL", num_bytes=1 << 16, beyond="skipped")


def fits_nccl_settings(source: str) -> bool:
    """Whether a text sets variables of NCCL; neither its log nor a table of its tests."""
    start = b"" if source.lower().endswith(NOT_LOGS) else beginning(source, _SMALL)
    is_test = all(sign in start for sign in machine.TEST_SIGNS[1:])
    if b"NCCL_" not in start or is_test or not _settings(start) or _is_nccl_log(source):
        return False
    other = foreign_format("", start)  # what was measured says more than how it was started
    restricts = any(map(_HOW["restricting"].fullmatch, map("=".join, _settings(start).items())))
    rates = ("{got}", "{tool}", "a bandwidth of", "output of nccl-tests, cut")
    is_told = other and not restricts and other.name.startswith(rates)
    return other is None or not (is_told or other.fix.startswith("distprof fabric "))


def read_nccl_settings(source: str) -> NcclLog:
    """Read the variables of NCCL that a script, a command or a table of the environment sets."""
    most = SETTINGS_BOUND.num_bytes
    start = beginning(source, most + 1)
    return NcclLog(
        files=(source,),
        settings={name: {value: ()} for name, value in _settings(start).items()},
        notes=(f"{source} was read only up to byte {most:,}.",) * (len(start) > most),
    )


def _settings(start: bytes) -> dict[str, str]:
    """Variables that change what NCCL does, by name; those that only make it log are none."""
    from distprof.ingest.nccl.lines import assigned

    found = {name.decode(): value.decode("ascii") for name, value in assigned(start).items()}
    return {name: value for name, value in found.items() if not name.startswith("NCCL_DEBUG")}


NCCL_SETTINGS = Source(
    bound=SETTINGS_BOUND,
    place=110,
    origin="settings of NCCL",
    name="a script that sets variables of NCCL",
    fits=fits_nccl_settings,
    read=read_nccl_settings,
    join=lambda run, settings: run if run.get(NcclLog) else run.having(settings),
    is_in_others=True,
)


MAX_DEVICE_FILES = 10_000
DEVICE_BOUND = Bound(
    reads="GPU sensors or errors",
    num_bytes=1 << 36,
    rows=20_000_000,
    names=1 << 16,
    beyond="skipped",
    seconds_per_mb=5,
)
_DEVICE_BYTES = 1 << 20
_SNIFFED_JSON = 1 << 14
_NEVER = (".pkl", ".parquet", ".tar", ".zip", ".py", ".toml", ".md")


def fits_device_log(source: str) -> bool:
    """Whether a source is such a file, or a folder with such files and no trace."""
    return any_log(source, MAX_DEVICE_FILES, lambda path: bool(_content(path)))


def read_device_log(source: str) -> DeviceLog:
    """Read a file, or all such files in a folder."""
    from distprof.ingest.sensors import EXPECTED, read_file

    paths = paths_of_logs(source, MAX_DEVICE_FILES)
    root = str(PurePosixPath(source).parent)
    if paths != [source]:
        paths = [path for path in paths if _content(path)]
        root = expanded(source)
    log = DeviceLog.merged([read_file(path, _shown(path, root)) for path in paths])
    is_empty = not (log.series or log.events or log.links or log.states)
    if is_empty and all(_content(path) != "errors" for path in paths):
        raise InputError(
            source,
            expected=EXPECTED,
            found="; ".join(log.notes)
            or (f"{log.num_lines:,} lines, none of them from a supported tool"),
            fix="name the unedited output of one of these tools",
        )
    return log


def _shown(path: str, root: str) -> str:
    """The path relative to what the user named."""
    shown = PurePosixPath(path)
    return str(shown.relative_to(root)) if shown.is_relative_to(root) else shown.name


def _content(path: str) -> str:
    """``samples``, ``errors`` or empty, by the name and the beginning of the file."""
    start = b"" if path.lower().endswith(_NEVER) else beginning(path, _DEVICE_BYTES)
    is_test = all(sign in start for sign in machine.TEST_SIGNS) or b"P2P=Enabled" in start
    if not start or b"\0" in start[:4096] or is_test or _has_sign(start, "others"):
        return ""
    from distprof.ingest.sensors import content_of, holds_tables
    from distprof.ingest.sensors.collect import JOURNAL, is_amd_json

    if path.lower().endswith(_JSON) and JOURNAL.encode() not in start.split(b"\n", 1)[0]:
        return "samples" if is_amd_json(start[:_SNIFFED_JSON].decode("utf-8", "replace")) else ""
    # Tables in the middle of text count, unless a program printed them between its iterations.
    is_table = not (kind := content_of(start)) and holds_tables(start)
    return "samples" if is_table and not TRAINING_LOG.fits(path) else kind


def _join_devices(run: Run, log: DeviceLog) -> Run:
    from distprof.ingest.sensors.join import with_device_log

    return with_device_log(run, log)


def _with_machines(run: Run) -> Run:
    """The run with the matrices of ``nvidia-smi topo -m`` that the same file holds."""
    return machine.SOURCES[0].joined(run, run.source) if machine.fits_machine(run.source) else run


def _next_to_sensors(run: Run) -> Run:
    """The run with what surrounds a table of nvidia-smi: such matrices, operators."""
    run = _with_machines(run)
    return _of_operators().joined(run, run.source) if _of_operators().fits(run.source) else run


DEVICE_LOG = Source(
    bound=DEVICE_BOUND,
    place=60,
    origin="file of GPU sensors or errors",
    name="GPU sensors or errors",
    fits=fits_device_log,
    read=read_device_log,
    notes="damaged",
    join=_join_devices,
    complete=_next_to_sensors,
)


OUTPUT_BOUND = Bound(
    reads="the output of a job", num_bytes=1 << 38, rows=20_000, names=1 << 17, beyond="skipped"
)
_OUTPUT_BYTES = 1 << 23
_OF_KERNELS = {"xid", "host_memory", "crash", "stage"}
_ERROR = {"error", "mixed"}
_ENDED = {"finished", "closed"}
_STARTS = {"setup", "calls", "joining", "preparing", "complaint", "silence", "wait", "remedy"}
# Beginnings of names of runs without times (that they finished says more), and of those that stand.
_WITHOUT_TIMES = ("losses of", "a progress bar", "a speed of")
_OF_A_RUN = ("output of nccl-tests", "a single ", "a bar of Keras", *_WITHOUT_TIMES)
_OF_A_SLOW_JOB = ("text about a slow job", "loading of data, which the text", "a time per {what}")
_OF_LINKS = ("a port of an RDMA card is down", "a GPU's PCIe link is narrow", "GPUs o")
_STOPPED = {"cancelled", "stopped"}
_NOT_READ = (*NOT_LOGS, ".pickle", ".toml", ".html", ".md")
_NEVER_READ = (*_NEVER[:-1], ".json.gz", ".sqlite", ".pickle")  # not even if they are named


def paths_of_output(source: str) -> list[str]:
    """The files that a file, folder or glob names; empty for a folder with a trace."""
    if "://" not in source and not Path(expanded(source)).exists() and set("*?[") & set(source):
        paths = sorted(glob.glob(expanded(source), recursive=True))  # noqa: PTH207 - untrusted text
        return [path for path in paths if Path(path).is_file()][:MAX_FILES]
    paths = paths_of_logs(source, MAX_FILES)
    if paths == [source]:
        return [] if source.lower().endswith(_NEVER_READ) else paths
    return [
        p
        for p in paths
        if _HOW["output_name"].search(Path(p).name)
        and not (_HOW["not_output"].search(p) or p.lower().endswith(_NOT_READ))
    ]


def fits_job_output(source: str) -> bool:
    """Whether a source holds lines about the end of a job; never raises for other files."""
    try:
        paths = paths_of_output(source)
        return any(_is_output(path, is_alone=paths == [source]) for path in paths)
    except (OSError, ValueError, ImportError, UsageError):
        return False


def _is_output(path: str, *, is_alone: bool) -> bool:
    """Whether the beginning or the end of a file holds such lines.

    A kernel's log is a kind of its own. A job that was cancelled has the parts of its iterations to
    show, if it timed them. The line of an error alone counts only in a file that is named itself,
    and lines of a start only if nothing else is in it, or someone says that the job hangs.
    """
    from distprof.ingest.output.read import AT_END, WEAK

    found = _kinds(path)
    kinds = found - _STARTS - _ENDED - {AT_END}
    if found and not kinds:
        foreign = foreign_format(Path(path).name, beginning(path, _SMALL))
        if found & {"complaint", "silence"}:
            weak = _OF_A_RUN + _OF_A_SLOW_JOB * ("complaint" in found)
            return is_alone and (foreign is None or foreign.name.startswith(weak))
        is_ended = bool(found & _ENDED) and foreign and foreign.name.startswith(_WITHOUT_TIMES)
        is_foreign = (foreign is not None and not is_ended) or found == {"remedy"}
        least = 1 + bool(found & {"calls", *_ENDED} and not is_ended)
        is_other = is_foreign or fits_nccl_log(path) or fits_training_log(path, least=least)
        is_other |= _is_table_below_title(path)
        return is_alone and not (is_other or fits_device_log(path))
    start = beginning(path, _SMALL).decode("latin-1")
    if kinds <= _ERROR and (not is_alone or _HOW["overcome"].search(start)):
        return False
    if kinds and kinds <= _OF_KERNELS:
        return not fits_device_log(path)
    if kinds and is_alone and _is_table_below_title(path):
        return False
    if kinds <= WEAK and fits_training_log(path, least=2):
        is_last = bool(kinds & _STOPPED) or AT_END in found
        return is_last and not (kinds <= _STOPPED and _read_training(path).timers)
    return bool(kinds)


def _is_table_below_title(path: str) -> bool:
    """Whether only the first line of a post is about an end, and a table of operators follows."""
    from distprof.ingest.output.read import kinds_in

    if not _of_operators().fits(path):
        return False
    below = beginning(path, _OUTPUT_BYTES).partition(b"\n")[2]
    return not kinds_in(below) - _STARTS - _ENDED


def _kinds(path: str) -> set[str]:
    try:
        with opened(path) as stream:
            start = read_some(stream, _SMALL)[0]
            lines = _HOW["json_lines"].match(start[:_SNIFFED_JSON].decode("latin-1"))
            is_document = not lines and begins_object(start) and unwrapped(start) == start
            if is_document or b"\0" in start[:4096]:
                return set()
            from distprof.ingest.output.read import kinds_in

            start = unwrapped(start + read_some(stream, _OUTPUT_BYTES - len(start))[0])
            kinds = kinds_in(start)
            if kinds - _ERROR - _STARTS - _ENDED or len(start) < _OUTPUT_BYTES:
                return kinds
            end = start
            while len(end) == _OUTPUT_BYTES:
                before, (end, _) = end, read_some(stream, _OUTPUT_BYTES)
            return kinds | kinds_in(before + end)
    except (*DAMAGE, UsageError):
        return set()


def read_job_output(source: str) -> JobOutput:
    """Read the output of a job."""
    from distprof.ingest.output.read import read_output

    paths = paths_of_output(source)
    names = [_shown(path, expanded(source)) if paths[1:] else Path(path).name for path in paths]
    output = read_output(zip(paths, names, ranks_in_names(paths), strict=True))
    if not (output.events or output.stacks):
        raise InputError(
            source,
            expected="the output of a job that failed or stands still",
            found="; ".join(output.notes) or f"{output.num_lines:,} lines, none about its end",
            fix="name the whole output of the ranks and of their launcher",
        )
    return output


def _with_other_logs(run: Run) -> Run:
    """The run with what else the files hold: NCCL's log, iterations of the program."""
    source = run.source
    if fits_nccl_log(source):
        run = NCCL_LOG.joined(run, source)
    if Path(expanded(source)).is_file() and TRAINING_LOG.fits(source):
        run = TRAINING_LOG.joined(run, source)
    return run


JOB_OUTPUT = Source(
    bound=OUTPUT_BOUND,
    place=46,
    origin="output of a job",
    name="the output of a job",
    fits=fits_job_output,
    read=read_job_output,
    notes="damaged",
    complete=_with_other_logs,
)

SOURCES = (TRAINING_LOG, NCCL_LOG, NCCL_SETTINGS, DEVICE_LOG, JOB_OUTPUT)
