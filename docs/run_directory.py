"""Generates the reference page of the run directory and its JSON Schemas from the structs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from distprof import artefacts
from distprof.artefacts import RANK_SCHEMA, RUN_SCHEMA, SETTINGS_SCHEMA
from distprof.artefacts.records import (
    ClockStamp,
    CollectivesRecord,
    Header,
    MemoryRecord,
    MoeRecord,
    NvmlRecord,
    Pause,
    StepRecord,
)
from distprof.artefacts.run_file import ErrorFile, ExitFile, RankFile, RunFile, SettingsFile
from docs.schemas import json_schema, schema_text, section

__all__ = ["SCHEMAS", "run_directory_page", "schema_files", "schema_of"]

SCHEMA_FOLDER = Path(artefacts.__file__).parent / "schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A file format.

    Args:
        file: Name of the file.
        schema: Value of its ``schema`` field; empty if it has none.
        kinds: Its contents: one struct, or the header and the record of a line.
        about: Its purpose, one sentence.
    """

    file: str
    schema: str
    kinds: tuple[type[msgspec.Struct], ...]
    about: str

    @property
    def name(self) -> str:
        """Name of the format, for example ``steps``."""
        return self.file.partition(".")[0]


SCHEMAS = (
    Format(
        file=artefacts.RUN_FILE,
        schema=RUN_SCHEMA,
        kinds=(RunFile,),
        about="What ran, where, how it ended, and which probes recorded it.",
    ),
    Format(
        file=artefacts.RANK_FILE,
        schema=RANK_SCHEMA,
        kinds=(RankFile,),
        about="Facts about one rank's process; merged into run.json at the end.",
    ),
    Format(
        file=artefacts.STEPS_FILE,
        schema="distprof.steps/1",
        kinds=(Header, StepRecord),
        about="Every step: its time, phases, tokens, samples and loss.",
    ),
    Format(
        file=artefacts.MEMORY_FILE,
        schema="distprof.memory/1",
        kinds=(Header, MemoryRecord),
        about="Memory at the end of steps.",
    ),
    Format(
        file=artefacts.NVML_FILE,
        schema="distprof.nvml/1",
        kinds=(Header, NvmlRecord),
        about="Samples of the GPU's sensors.",
    ),
    Format(
        file=artefacts.MOE_FILE,
        schema="distprof.moe/1",
        kinds=(Header, MoeRecord),
        about="Routing of tokens to experts, by layer and micro-batch.",
    ),
    Format(
        file=artefacts.PAUSES_FILE,
        schema="distprof.pauses/1",
        kinds=(Header, Pause),
        about="Garbage collection and waits for input.",
    ),
    Format(
        file=artefacts.SETTINGS_FILE,
        schema=SETTINGS_SCHEMA,
        kinds=(SettingsFile,),
        about="Configuration of data loaders, parallel modules, optimizers and threads.",
    ),
    Format(
        file=artefacts.CLOCK_FILE,
        schema="distprof.clock/1",
        kinds=(Header, ClockStamp),
        about="Time exchanges with rank 0.",
    ),
    Format(
        file=artefacts.COLLECTIVES_FILE,
        schema="distprof.collectives/1",
        kinds=(Header, CollectivesRecord),
        about="Time of NCCL's operations on the GPU, by step and group; only with NCCL's timing.",
    ),
    Format(
        file=artefacts.ERROR_FILE,
        schema="",
        kinds=(ErrorFile,),
        about="Why a rank's Python code failed; only for failed ranks.",
    ),
    Format(
        file=artefacts.EXIT_FILE,
        schema="",
        kinds=(ExitFile,),
        about="How a rank's process ended, for the launcher on another host.",
    ),
)

_OTHERS = (
    (artefacts.TRACE_FILE, "Kineto trace, written by `torch.profiler`."),
    (
        artefacts.FLIGHT_FILE,
        "Dump of PyTorch's Flight Recorder, in JSON, written by `torch.distributed`.",
    ),
    (artefacts.NCCL_LOG_FILE, "NCCL's own log (`NCCL_DEBUG`)."),
    (artefacts.OUTPUT_FILE, "Output of the rank, or of a captured program; both streams."),
    (artefacts.STACKS_FILE, "Python stacks of all threads, at a hang or on demand."),
)

_INTRODUCTION = f"""\
# The run directory

<!-- generated: python -m docs.build --write -->

`distprof run`, `distprof capture` and `distprof_probes.session` write this directory, and
`distprof analyze` reads it:

```text
RUN/
  {artefacts.RUN_FILE:22}what ran, where, how it ended
  {artefacts.REPORT_FILE:22}the report, after `distprof analyze RUN`
  {artefacts.REPORT_PAGE_FILE:22}the same as a page, after `run` or `capture --format html`
  {artefacts.CACHE_DIR + "/":22}parsed tables; safe to delete
  {artefacts.REQUESTS_DIR + "/":22}requests of `distprof attach --all-nodes`, and the traces it got
  rank00000/            one folder per rank, so that thousands of them do not collide
```

run.json is written when the job starts and again when it ends. Every file of a rank is optional:
the report lists missing ones. distprof ignores other files.
`{artefacts.DIARY_FILE}`, `{artefacts.ATTACH_FILE}` and the requests and replies are internal to
the probes and may change at any time. Each folder with traces in `{artefacts.REQUESTS_DIR}/` is a
run directory itself.

"""

_PROMISE = """\
## Compatibility

Formats have a name and a number, for example `distprof.run/1`. As long as the number stays the
same, fields are only added, each with a default: readers ignore unknown fields and use the default
of absent ones. A field is never renamed, and its meaning and unit never change. If that becomes
necessary, the number increases, and a reader of an older number refuses the file with a message
that says so. `null` means unknown and is never 0.

Whole files are written under another name and renamed, so that a reader never sees a partial file.
Line-wise files (`.jsonl`) hold one JSON text per line; the first line is a header. A killed writer
loses at most the last line. A reader skips lines that it cannot use, and reports how many.

The JSON Schemas (draft 2020-12) ship with the package in `distprof/artefacts/schema/`; the schema
of a line-wise file describes one line.

"""


def schema_of(format_: Format) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a file, or of a line of it."""
    return json_schema(
        format_.kinds,
        schema=format_.schema,
        title=f"distprof {format_.file}",
        identity=format_.name,
        is_whole=False,
    )


def schema_files() -> Iterator[tuple[Path, str]]:
    """Path and text of every shipped schema."""
    for format_ in SCHEMAS:
        yield SCHEMA_FOLDER / f"{format_.name}.schema.json", schema_text(schema_of(format_))


def run_directory_page() -> str:
    """The page in Markdown: the files, the compatibility promise, and every struct once."""
    return "\n".join([_INTRODUCTION + _table() + "\n" + _PROMISE, *_sections()])


def _table() -> str:
    rows = [f"| `{f.file}` | {f'`{f.schema}`' if f.schema else ''} | {f.about} |" for f in SCHEMAS]
    rows += [f"| `{name}` | | {about} |" for name, about in _OTHERS]
    return "| file | format | contents |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _sections() -> Iterator[str]:
    shown: set[str] = set()
    for format_ in SCHEMAS:
        for name, definition in schema_of(format_)["$defs"].items():
            if name not in shown:
                shown.add(name)
                yield section(name, definition)
