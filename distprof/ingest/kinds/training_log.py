"""Logs of training programs: iterations, throughput and timers as the programs printed them."""

from __future__ import annotations

from pathlib import Path

from distprof.bounds import Bound, expanded
from distprof.ingest.files import DAMAGE, begins_object, opened, read_some
from distprof.ingest.source import Source
from distprof.run.logs import TrainingLog

SNIFFED_BYTES = 1 << 23  # programs print a lot before they train
_JSON = (".json", ".json.gz")
_TABLES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz")
_ARCHIVES = (".sqlite", ".pkl", ".parquet", ".tar", ".tar.gz", ".zip")
_OTHER_KINDS = (*_ARCHIVES, ".py", ".toml", ".yaml", ".xml")
_SMALL = 1 << 16
BOUND = Bound(
    reads="a log of a training program", num_bytes=1 << 38, rows=500_000, beyond="skipped"
)


# of the per-iteration series that Megatron-LM keeps for its tests
_SERIES_SIGNS = (b'"step_interval"', b'"values"')


def fits_training_log(source: str, *, least: int = 1) -> bool:
    """Whether a file or URL holds ``least`` reports of iterations; never raises for others."""
    name = source.lower()
    if name.endswith(_OTHER_KINDS):
        return False
    is_text = not name.endswith((*_JSON, *_TABLES))
    try:
        if "://" not in source and not Path(expanded(source)).is_file():
            return False
        with opened(source) as stream:
            start, _ = read_some(stream, _SMALL)
            if is_text and not begins_object(start):
                start += read_some(stream, SNIFFED_BYTES - len(start))[0]
    except (*DAMAGE, ImportError):
        return False
    if name.endswith(_JSON):
        text = start[:4_096].lstrip()
        return text.startswith(b"{") and all(sign in text for sign in _SERIES_SIGNS)
    from distprof.ingest.training_logs.read import holds_iterations

    return holds_iterations(start, is_text=is_text, least=least)


def _read(source: str) -> TrainingLog:
    from distprof.ingest.training_logs.read import read_training_log

    return read_training_log(source)


SOURCE = Source(
    bound=BOUND,
    place=80,
    origin="log of a training program",
    name="a log of a training program",
    fits=fits_training_log,
    read=_read,
)
