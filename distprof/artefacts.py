"""Names of files in a run directory: the one contract between probes (write) and ingest (read)."""

from __future__ import annotations

__all__ = [
    "CACHE_DIR",
    "RANK_DIR_FORMAT",
    "REPORT_FILE",
    "REPORT_SCHEMA",
    "RUN_FILE",
    "RUN_SCHEMA",
    "TRACE_FILE",
]

RUN_FILE = "run.json"
RUN_SCHEMA = "distprof.run/1"
REPORT_FILE = "report.json"
REPORT_SCHEMA = "distprof.report/1"
CACHE_DIR = "cache"
RANK_DIR_FORMAT = "rank{rank:05d}"
TRACE_FILE = "trace.json.gz"
