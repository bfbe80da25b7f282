"""The reference page of the run directory and its JSON Schemas, made from the structs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from distprof import artefacts
from distprof.artefacts import RANK_SCHEMA, RUN_SCHEMA, SETTINGS_SCHEMA
from distprof.artefacts.rank_file import ErrorFile, RankFile
from distprof.artefacts.records import (
    ClockStamp,
    Header,
    MemoryRecord,
    MoeRecord,
    NvmlRecord,
    Pause,
    StepRecord,
)
from distprof.artefacts.run_file import ExitFile, RunFile
from distprof.artefacts.settings_file import SettingsFile
from distprof.documents.schema import json_schema, schema_text, section

__all__ = ["SCHEMAS", "run_directory_page", "schema_files", "schema_of"]

SCHEMA_FOLDER = Path(artefacts.__file__).parent / "schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A file format.

    Args:
        file: Name of the file.
        schema: What its ``schema`` says; empty where it has none.
        kinds: What it holds: one struct; or the header and the record of a line.
        about: What it is, one sentence.
    """

    file: str
    schema: str
    kinds: tuple[type[msgspec.Struct], ...]
    about: str

    @property
    def name(self) -> str:
        """For example ``steps``."""
        return self.file.partition(".")[0]


SCHEMAS = (
    Format(
        file=artefacts.RUN_FILE,
        schema=RUN_SCHEMA,
        kinds=(RunFile,),
        about="What was run, where, how it ended, and what was watching.",
    ),
    Format(
        file=artefacts.RANK_FILE,
        schema=RANK_SCHEMA,
        kinds=(RankFile,),
        about="What one rank's process says of itself; merged into run.json at the end.",
    ),
    Format(
        file=artefacts.STEPS_FILE,
        schema="distprof.steps/1",
        kinds=(Header, StepRecord),
        about="Every step: when, its phases, tokens, samples, loss.",
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
        about="Samples of the device's sensors.",
    ),
    Format(
        file=artefacts.MOE_FILE,
        schema="distprof.moe/1",
        kinds=(Header, MoeRecord),
        about="Where tokens went, by layer and micro-batch.",
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
        about="How data loaders, parallel modules, optimizers and threads are set up.",
    ),
    Format(
        file=artefacts.CLOCK_FILE,
        schema="distprof.clock/1",
        kinds=(Header, ClockStamp),
        about="Exchanges of time with rank 0.",
    ),
    Format(
        file=artefacts.ERROR_FILE,
        schema="",
        kinds=(ErrorFile,),
        about="Why a rank's Python code stopped; only where it did.",
    ),
    Format(
        file=artefacts.EXIT_FILE,
        schema="",
        kinds=(ExitFile,),
        about="How a rank's process ended, where another host's launcher has to learn of it.",
    ),
)

_OTHERS = (
    (artefacts.TRACE_FILE, "Kineto trace, as `torch.profiler` writes it."),
    (artefacts.FLIGHT_FILE, "PyTorch's Flight Recorder, as `torch.distributed` writes it in JSON."),
    (artefacts.NCCL_LOG_FILE, "NCCL's own log (`NCCL_DEBUG`)."),
    (artefacts.OUTPUT_FILE, "What the rank printed, both streams."),
    (artefacts.STACKS_FILE, "Python stacks of all threads, at a hang or on demand."),
)

_INTRODUCTION = f"""\
# The run directory

<!-- generated: python -m docs.build --write -->

`distprof run`, `distprof capture` and `distprof_probes.session` write it, `distprof analyze` reads
it:

```text
RUN/
  {artefacts.RUN_FILE:22}what was run, where, how it ended
  {artefacts.REPORT_FILE:22}the report, after `distprof analyze RUN`
  {artefacts.CACHE_DIR + "/":22}parsed tables; safe to delete
  rank00000/            one folder per rank, so that thousands of them do not collide
```

run.json is written when the job starts and again when it ends. Every file of a rank is optional:
what is missing is reported as missing. Other files may be there and are not read.
`{artefacts.DIARY_FILE}` and `{artefacts.ATTACH_FILE}` are the probes' own and may change any time.

"""

_PROMISE = """\
## What stays as it is

Formats have a name and a number, for example `distprof.run/1`. Under the same number fields are
only added, each with a default: readers ignore fields that they do not know and take the default of
those that are absent. A field is never renamed, and its meaning and unit never change; when that
must happen, the number goes up, and a reader of an older number refuses the file with a sentence
that says so. `null` means not known and is never 0.

Whole files are written under another name and renamed, so that a reader never sees half of one.
Files of lines (`.jsonl`) are JSON texts, one to a line; the first is a header. A writer that is
killed costs the last line at most. A reader leaves out lines that it cannot use, and says how many.

The JSON Schemas (draft 2020-12) ship with the package in `distprof/artefacts/schema/`; that of a
file of lines describes one line.

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
    """Every shipped schema: its path and its text."""
    for format_ in SCHEMAS:
        yield SCHEMA_FOLDER / f"{format_.name}.schema.json", schema_text(schema_of(format_))


def run_directory_page() -> str:
    """The page, Markdown: the files, the promise, and every struct once."""
    return "\n".join([_INTRODUCTION + _table() + "\n" + _PROMISE, *_sections()])


def _table() -> str:
    rows = [f"| `{f.file}` | {f'`{f.schema}`' if f.schema else ''} | {f.about} |" for f in SCHEMAS]
    rows += [f"| `{name}` | | {about} |" for name, about in _OTHERS]
    return "| file | format | what it is |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _sections() -> Iterator[str]:
    shown: set[str] = set()
    for format_ in SCHEMAS:
        for name, definition in schema_of(format_)["$defs"].items():
            if name not in shown:
                shown.add(name)
                yield section(name, definition)
