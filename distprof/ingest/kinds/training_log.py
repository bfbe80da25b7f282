"""Logs of training programs: iterations, throughput and timers as the programs printed them.

Each way of writing is a grammar (:mod:`.grammar`) that looks for its signs in blocks of the file;
lines without one cost next to nothing. The grammar that tells most is taken (:mod:`.choose`).
"""

from __future__ import annotations

from pathlib import Path

from distprof.errors import InputError
from distprof.ingest.kinds.training_logs.choose import best_of, to_log
from distprof.ingest.kinds.training_logs.columns import ColumnsGrammar
from distprof.ingest.kinds.training_logs.deepspeed import DeepSpeedGrammar
from distprof.ingest.kinds.training_logs.golden_values import (
    GoldenValues,
    begins_like_golden_values,
)
from distprof.ingest.kinds.training_logs.grammar import Grammar
from distprof.ingest.kinds.training_logs.megatron import MegatronGrammar
from distprof.ingest.kinds.training_logs.mllog import MllogGrammar
from distprof.ingest.kinds.training_logs.step_lines import (
    IterGrammar,
    SpeedrunGrammar,
    TitanGrammar,
    TokGrammar,
)
from distprof.ingest.kinds.training_logs.trainer import BarGrammar, TrainerGrammar
from distprof.ingest.log_files import DAMAGE, Blocks, opened, read_some
from distprof.run.training_log import TrainingLog

__all__ = ["fits_training_log", "read_training_log"]

SNIFFED_BYTES = 1 << 23
"""Programs talk for long before they train."""

_JSON = (".json", ".json.gz")
_TABLES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz")
_OTHER_KINDS = (".pkl", ".parquet", ".tar", ".tar.gz", ".zip", ".py", ".toml", ".yaml", ".xml")
_SMALL = 1 << 16


def _grammars() -> tuple[Grammar, ...]:
    """All of them; of equally telling ones the first is taken."""
    return (
        MegatronGrammar(),
        DeepSpeedGrammar(),
        TitanGrammar(),
        SpeedrunGrammar(),
        IterGrammar(),
        TokGrammar(),
        MllogGrammar(),
        BarGrammar(),
        TrainerGrammar(),
    )


def fits_training_log(source: str) -> bool:
    """Whether a path or URL is a file that tells of iterations; never raises for what is not."""
    name = source.lower()
    if name.endswith(_OTHER_KINDS):
        return False
    is_text = not name.endswith((*_JSON, *_TABLES))
    try:
        if "://" not in source and not Path(source).expanduser().is_file():
            return False
        with opened(source) as stream:
            start, _ = read_some(stream, _SMALL)
            if is_text and not start.lstrip().startswith(b"{"):
                start += read_some(stream, SNIFFED_BYTES - len(start))[0]
    except (*DAMAGE, ImportError):
        return False
    if name.endswith(_JSON):
        return begins_like_golden_values(start)
    if ColumnsGrammar().fits(start):
        return True
    return is_text and _tells_of_iterations(start)


def read_training_log(source: str) -> TrainingLog:
    """Read what a training program printed.

    Args:
        source: Path or fsspec URL of a file, gzipped or not.

    Raises:
        InputError: If it cannot be opened or tells of no iteration.
    """
    if source.lower().endswith(_JSON):
        series = GoldenValues()
        series.read(source)
        return to_log(series, (), (source,), 0) if series.rows else _refuse(source, "no times")
    grammars: tuple[Grammar, ...] = _grammars()
    try:
        with opened(source) as stream:
            blocks = Blocks(stream)
            table = ColumnsGrammar()
            first, _ = read_some(stream, _SMALL)
            stream.seek(0)
            if table.fits(first):
                grammars = (table,)
                table.read(blocks)
            else:
                _take_all(blocks, grammars)
    except DAMAGE as error:
        return _refuse(source, " ".join(f"{type(error).__name__}: {error}".split())[:200])
    chosen = best_of(grammars)
    if chosen is None:
        return _refuse(source, blocks.damage or f"{blocks.num_lines:,} lines without an iteration")
    if blocks.damage:
        chosen.notes.append(f"{source} is read up to its damage: {blocks.damage}.")
    others = [grammar for grammar in grammars if grammar is not chosen]
    return to_log(chosen, others, (source,), blocks.num_lines)


def _take_all(blocks: Blocks, grammars: tuple[Grammar, ...]) -> None:
    for block in blocks:
        for grammar in grammars:
            if any(sign in block for sign in grammar.signs):
                grammar.take(block)
    for grammar in grammars:
        grammar.finish()


def _tells_of_iterations(start: bytes) -> bool:
    text = start.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    grammars = [g for g in _grammars() if any(sign in text for sign in g.signs)]
    for grammar in grammars:
        grammar.take(text)
        grammar.finish()
    return any(grammar.rows for grammar in grammars)


def _refuse(source: str, found: str) -> TrainingLog:
    raise InputError(
        source,
        expected="a log in which a training program tells of its iterations",
        found=found,
        fix="docs/how-to/read-training-logs.md shows which programs' words are understood",
    )
