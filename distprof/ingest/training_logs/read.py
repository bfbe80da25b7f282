"""Read a training log with the grammar that fits it best.

Each format has a grammar (:mod:`.grammar`), which reads only blocks of the file that contain one of
its signs, so other lines cost next to nothing. The grammar that finds the most is used.
"""

from __future__ import annotations

from distprof.errors import InputError
from distprof.ingest.files import DAMAGE, Blocks, opened, read_some
from distprof.ingest.training_logs.grammar import Grammar, best_of, to_log
from distprof.ingest.training_logs.programs import (
    DeepSpeedGrammar,
    IterGrammar,
    MegatronGrammar,
    SpeedrunGrammar,
    TitanGrammar,
    TokGrammar,
)
from distprof.ingest.training_logs.tables import (
    ColumnsGrammar,
    GoldenValues,
)
from distprof.ingest.training_logs.trainers import (
    BarGrammar,
    MllogGrammar,
    NemoGrammar,
    TrainerGrammar,
)
from distprof.run.logs import TrainingLog

__all__ = ["grammars", "holds_iterations", "read_training_log"]

_JSON = (".json", ".json.gz")
_SMALL = 1 << 16


def grammars() -> tuple[Grammar, ...]:
    """All grammars; the first one wins a tie."""
    return (
        MegatronGrammar(),
        DeepSpeedGrammar(),
        TitanGrammar(),
        SpeedrunGrammar(),
        IterGrammar(),
        TokGrammar(),
        NemoGrammar(),
        MllogGrammar(),
        BarGrammar(),
        TrainerGrammar(),
    )


def holds_iterations(start: bytes, *, is_text: bool) -> bool:
    """Whether a file reports iterations, judged by its beginning.

    Args:
        start: Beginning of the file, uncompressed.
        is_text: Whether it may be the output of a program and not only a table.
    """
    if ColumnsGrammar().fits(start):
        return True
    if not is_text:
        return False
    text = start.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found = [g for g in grammars() if any(sign in text for sign in g.signs)]
    for grammar in found:
        grammar.take(text)
        grammar.finish()
    return any(grammar.rows for grammar in found)


def read_training_log(source: str) -> TrainingLog:
    """Read the log of a training program.

    Args:
        source: Path or fsspec URL of a file, gzipped or not.

    Raises:
        InputError: If it cannot be opened or reports no iteration.
    """
    if source.lower().endswith(_JSON):
        series = GoldenValues()
        series.read(source)
        return to_log(series, (), (source,), 0) if series.rows else _refuse(source, "no times")
    candidates = grammars()
    try:
        with opened(source) as stream:
            blocks = Blocks(stream)
            table = ColumnsGrammar()
            first, _ = read_some(stream, _SMALL)
            stream.seek(0)
            if table.fits(first):
                candidates = (table,)
                table.read(blocks)
            else:
                _take_all(blocks, candidates)
    except DAMAGE as error:
        return _refuse(source, " ".join(f"{type(error).__name__}: {error}".split())[:200])
    chosen = best_of(candidates)
    if chosen is None:
        return _refuse(source, blocks.damage or f"{blocks.num_lines:,} lines without an iteration")
    if blocks.damage:
        chosen.notes.append(f"{source} was read only up to the damage: {blocks.damage}.")
    others = [grammar for grammar in candidates if grammar is not chosen]
    return to_log(chosen, others, (source,), blocks.num_lines)


def _take_all(blocks: Blocks, candidates: tuple[Grammar, ...]) -> None:
    for block in blocks:
        for grammar in candidates:
            if any(sign in block for sign in grammar.signs):
                grammar.take(block)
    for grammar in candidates:
        grammar.finish()


def _refuse(source: str, found: str) -> TrainingLog:
    raise InputError(
        source,
        expected="a log in which a training program reports its iterations",
        found=found,
        fix="see docs/how-to/read-training-logs.md for the supported programs",
    )
