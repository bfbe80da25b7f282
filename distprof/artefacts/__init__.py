"""The run directory: the one contract between probes (write) and ingest (read).

This module holds the names of files. The formats are in :mod:`distprof.artefacts.run_file`,
:mod:`distprof.artefacts.rank_file` and :mod:`distprof.artefacts.records`; the reference page and
the JSON Schemas are generated from them. All files are written under a temporary name and renamed,
except the line-wise ones (``.jsonl``), whose every complete line counts: a killed process costs the
last line at most.
"""

from __future__ import annotations

__all__ = [
    "ATTACH_FILE",
    "CACHE_DIR",
    "CLOCK_FILE",
    "DIARY_FILE",
    "ERROR_FILE",
    "EXIT_FILE",
    "FLIGHT_FILE",
    "MEMORY_FILE",
    "MOE_FILE",
    "NCCL_LOG_FILE",
    "NVML_FILE",
    "OUTPUT_FILE",
    "PAUSES_FILE",
    "RANK_DIR_FORMAT",
    "RANK_FILE",
    "RANK_SCHEMA",
    "REPORT_FILE",
    "REPORT_SCHEMA",
    "RUN_FILE",
    "RUN_SCHEMA",
    "SETTINGS_FILE",
    "SETTINGS_SCHEMA",
    "STACKS_FILE",
    "STEPS_FILE",
    "TRACE_FILE",
]

RUN_FILE = "run.json"
RUN_SCHEMA = "distprof.run/1"
REPORT_FILE = "report.json"
REPORT_SCHEMA = "distprof.report/1"
CACHE_DIR = "cache"
DIARY_FILE = "capture.jsonl"  # what the hook of `distprof capture` met in each process

# Within the directory of each rank.
RANK_DIR_FORMAT = "rank{rank:05d}"
RANK_FILE = "rank.json"
RANK_SCHEMA = "distprof.rank/1"
TRACE_FILE = "trace.json.gz"
STEPS_FILE = "steps.jsonl"
NVML_FILE = "nvml.jsonl"
MEMORY_FILE = "memory.jsonl"
MOE_FILE = "moe.jsonl"
PAUSES_FILE = "pauses.jsonl"
SETTINGS_FILE = "settings.json"  # how the job is set up, by its own objects
SETTINGS_SCHEMA = "distprof.settings/1"
CLOCK_FILE = "clock.jsonl"
NCCL_LOG_FILE = "nccl.log"
FLIGHT_FILE = "flight.json"  # as torch.distributed's Flight Recorder writes it
ERROR_FILE = "error.json"
EXIT_FILE = "exit.json"  # how its process ended, where another host's launcher has to learn of it
ATTACH_FILE = "attach.json"  # where `distprof attach` reaches the rank while it lives
STACKS_FILE = "stacks.txt"  # Python stacks of all threads, at a hang or on demand
OUTPUT_FILE = "output.log"  # what the rank printed, both streams
