"""The run directory: the only contract between probes (which write) and ingest (which reads).

This module holds the names of files. The formats are in :mod:`distprof.artefacts.run_file`,
:mod:`distprof.artefacts.run_file` and :mod:`distprof.artefacts.records`. The reference page and
the JSON Schemas are generated from them. All files are written under a temporary name and renamed,
except the line-wise ones (``.jsonl``), of which every complete line is valid: a killed process
loses at most its last line.
"""

from __future__ import annotations

RUN_FILE = "run.json"
RUN_SCHEMA = "distprof.run/1"
REPORT_FILE = "report.json"
REPORT_SCHEMA = "distprof.report/2"
REPORT_PAGE_FILE = "report.html"  # of `distprof run` and `capture` with --format html
CACHE_DIR = "cache"
DIARY_FILE = "capture.jsonl"  # events of `distprof capture`'s hook in each process
REQUESTS_DIR = "requests"  # of `distprof attach --all-nodes`: ID.json, and a folder ID for answers
REPLIES_DIR = "replies"  # in the folder of a request: one file per node
REQUEST_SCHEMA = "distprof.request/1"
REPLY_SCHEMA = "distprof.reply/1"

# Within the directory of each rank.
RANK_DIR_FORMAT = "rank{rank:05d}"
RANK_FILE = "rank.json"
RANK_SCHEMA = "distprof.rank/1"
TRACE_FILE = "trace.json.gz"
LIGHT_TRACE_FILE = "trace-light.json.gz"
STEPS_FILE = "steps.jsonl"
NVML_FILE = "nvml.jsonl"
MEMORY_FILE = "memory.jsonl"
MOE_FILE = "moe.jsonl"
PAUSES_FILE = "pauses.jsonl"
SETTINGS_FILE = "settings.json"  # configuration of the job, read from its live objects
SETTINGS_SCHEMA = "distprof.settings/1"
CLOCK_FILE = "clock.jsonl"
COLLECTIVES_FILE = "collectives.jsonl"
NCCL_LOG_FILE = "nccl.log"
FLIGHT_FILE = "flight.json"  # written by torch.distributed's Flight Recorder
ERROR_FILE = "error.json"
EXIT_FILE = "exit.json"  # how the rank's process ended, for the launcher on another host
ATTACH_FILE = "attach.json"  # where `distprof attach` reaches the live rank
STACKS_FILE = "stacks.txt"  # Python stacks of all threads, at a hang or on demand
OUTPUT_FILE = "output.log"  # output of the rank, or of a captured program; both streams
