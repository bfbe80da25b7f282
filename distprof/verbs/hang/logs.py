"""What step logs, ncclras and the output of a job say about a hang.

Dumps and stacks are snapshots. A snapshot taken before its rank's last step is no evidence of a
hang. One taken long after the last step of all ranks shows that the job has stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import msgspec

from distprof.artefacts import STEPS_FILE
from distprof.artefacts.record import TroubledRank
from distprof.artefacts.records import StepRecord
from distprof.errors import InputError
from distprof.escape import headed
from distprof.ingest.files import Folder
from distprof.ingest.kinds.nccl import fits_nccl_ras, read_nccl_ras
from distprof.join.nccl import in_trouble, num_behind
from distprof.run.logs import JobOutput
from distprof.sections.ending import FAILED, EndingLine, EndingPosition, EndingResult
from distprof.sections.ending.measure import as_line, last_printed, said_in
from distprof.sections.ending.positions import operation_kind
from distprof.sections.ending.words import words
from distprof.sections.table import counted
from distprof.terms import Confidence
from distprof.units import NS_PER_S, name_ranks
from distprof.verbs.hang import (
    GroupProgress,
    HangEvidence,
    HangKind,
    HangReport,
    HangState,
    RankPosition,
    StackOfRanks,
    Stop,
    StuckOperation,
)

MAX_TAIL_BYTES = 1 << 16

MIN_STOP_NS = 30 * NS_PER_S
"""A checkpoint or an evaluation between two steps may take this long."""

MIN_STOP_STEPS = 20
"""The same limit in steps of usual length."""

LATE_WRITE_NS = 30 * NS_PER_S
"""A log is written within seconds of its last step. A file with a later time is a copy."""


class LastStep(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a rank's step log."""

    step: int  # Number of the last step.
    ended_ns: int  # Its end, ns since the epoch.
    usual_ns: int  # Median length of the last steps.
    # Whether the modification times of the rank's files are its own, not a copy's.
    has_own_time: bool = True


def last_step(folder: Folder) -> LastStep | None:
    """The last step in a rank's log; None if no log can be read."""
    ended = sorted(_tail(folder), key=lambda record: record.end_ns)
    if not ended:
        return None
    lengths = sorted(record.end_ns - record.start_ns for record in ended)
    written = modified_ns(folder, STEPS_FILE)
    return LastStep(
        step=ended[-1].step,
        ended_ns=ended[-1].end_ns,
        usual_ns=lengths[len(lengths) // 2],
        has_own_time=written is not None and written - ended[-1].end_ns < LATE_WRITE_NS,
    )


def _tail(folder: Folder) -> list[StepRecord]:
    try:
        size = folder.size(STEPS_FILE) or 0
        with folder.open(STEPS_FILE) as stream:
            stream.seek(max(0, size - MAX_TAIL_BYTES))
            lines = stream.read(MAX_TAIL_BYTES).splitlines()
    except OSError:
        return []
    return [record for line in lines if (record := _record(line)) is not None]


def _record(line: bytes) -> StepRecord | None:
    """The record on a line; None for a header or a truncated line."""
    try:
        record = msgspec.json.decode(line, type=StepRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    return record if record.end_ns >= record.start_ns else None


def modified_ns(folder: Folder, name: str) -> int | None:
    """Modification time of a local file; None for other files."""
    if not folder.is_local:
        return None
    try:
        return Path(folder.path, name).stat().st_mtime_ns
    except OSError:
        return None


def is_stale(taken_ns: int | None, last: LastStep | None) -> bool:
    """Whether a rank completed a step after its snapshot was taken."""
    return taken_ns is not None and last is not None and taken_ns < last.ended_ns


def find_stop(
    steps: Mapping[int, LastStep], taken_ns: Mapping[int, int], ended_ns: Iterable[int]
) -> Stop | None:
    """Find a stop: evidence that is much newer than the last step of any rank."""
    if not steps:
        return None
    own = [taken for rank, taken in taken_ns.items() if rank in steps and steps[rank].has_own_time]
    newest = max([*own, *ended_ns], default=0)
    last = max(steps.values(), key=lambda step: step.ended_ns)
    idle = newest - last.ended_ns
    if idle < max(MIN_STOP_NS, MIN_STOP_STEPS * last.usual_ns):
        return None
    return Stop(step=last.step, for_ns=idle, usual_ns=last.usual_ns)


NAME = re.compile(r"ras[^/]*\.(?:txt|json|log|out)$")
"""File names that may hold ncclras output."""

MAX_LINES = 50
_DEAD = "NCCL considers its process dead"


def lines_of_ras(files: Iterable[tuple[str, str]]) -> tuple[list[EndingLine], list[str]]:
    """Lines about ranks in trouble, and notes on files that cannot be read."""
    lines: list[EndingLine] = []
    notes: list[str] = []
    for path, shown in files:
        if not fits_nccl_ras(path):
            continue
        try:
            status = read_nccl_ras(path)
        except InputError as error:
            notes.append(f"{shown} cannot be read: {error.found}.")
            continue
        troubled = in_trouble(status)
        lines += _lines(shown, troubled)
        if not troubled and (count := num_behind(status)):
            text = words().says("NCCL names others", count=counted(count, "rank"))
            lines.append(EndingLine(rank=None, file=shown, line=1, about="ras", text=text))
    return lines, notes


def dead_ranks(lines: Iterable[EndingLine]) -> dict[int, str]:
    """Ranks whose process NCCL considers dead, and why."""
    return {
        line.rank: _DEAD
        for line in lines
        if line.about == "ras" and line.rank is not None and line.text.startswith("dead")
    }


def _lines(shown: str, troubled: Iterable[TroubledRank]) -> Iterator[EndingLine]:
    for number, rank in enumerate(islice(troubled, MAX_LINES), 1):
        what = f": {rank.text}" if rank.text else ""
        where = f" ({rank.place})" if rank.place else ""
        yield EndingLine(
            rank=rank.rank, file=shown, line=number, about="ras", text=f"{rank.kind}{what}{where}"
        )


_KINDS = {
    "behind": HangKind.NEVER_LAUNCHED,
    "silent": HangKind.NEVER_LAUNCHED,
    "unfinished": HangKind.LAUNCHED_NOT_FINISHED,
}
_PRECEDENCE = ("timeout", "device", "peer", "nccl", "error")


def lines_of_output(output: JobOutput) -> tuple[EndingLine, ...]:
    """Lines of trouble by rank and line; a line of several kinds counts as the first of them."""
    said = sorted(map(as_line, said_in(output)), key=lambda one: _PRECEDENCE.index(one.about))
    lines = {(one.file, one.line): one for one in reversed(said)}.values()
    return tuple(sorted(lines, key=lambda e: (e.rank is None, e.rank or 0, e.file, e.line)))


def report_of_output(evidence: HangEvidence, ending: EndingResult, version: str) -> HangReport:
    """The report from what the job printed."""
    ras = [line for line in evidence.log_lines if line.about == "ras"]
    lines, last = counted(evidence.output.num_lines, "line"), last_printed(evidence.output)
    verdict = ending.verdict or words().says("nothing", count=lines, last=last).rstrip()
    if ras and not ending.verdict:
        ranks: dict[str, set[int]] = {}  # by what is said of them, without its place
        for line in ras:
            own = () if line.rank is None else (line.rank,)
            ranks.setdefault(line.text.partition(" (")[0], set()).update(own)
        texts = [*ranks] if len(ras) > len(ranks) else [line.text for line in ras]
        told = (f"{name_ranks(ranks[key])} {text}" if ranks[key] else text
                for key, text in zip(ranks, texts, strict=False))  # fmt: skip
        verdict = words().says("RAS", what="; ".join([*told][:3]))
    state = HangState.FAILED if ending.state == FAILED else HangState(ending.state or "undecided")
    is_one = len({one.op for one in ending.positions}) == 1
    differ = HangKind.SIZE_MISMATCH if is_one else HangKind.KIND_MISMATCH
    return HangReport(
        distprof_version=version,
        source=evidence.source,
        state=state,
        verdict=verdict,
        headline=headed(verdict)[0],
        kind=differ if ending.cause == "mismatch" else _KINDS.get(ending.cause),
        confidence=Confidence.INFERRED if ending.state else None,
        operation=_operation(ending),
        culprits=ending.ranks,
        suspects=ending.suspects,
        hosts=ending.hosts
        or tuple(sorted({evidence.hosts.get(r, "") for r in ending.ranks} - {""})),
        why=ending.why,
        alternatives=ending.alternatives,
        next_steps=ending.next_steps or words().steps["undecided"],
        dumps=tuple(dump.rank for dump in evidence.dumps),
        groups=_groups(ending),
        ranks=tuple(map(_position, ending.positions)),
        log_lines=evidence.log_lines,
        stacks=tuple(StackOfRanks(ranks=one.ranks, calls=one.calls) for one in ending.stacks),
        notes=evidence.notes,
    )


def _waiting(ending: EndingResult) -> list[EndingPosition]:
    """Positions of ranks that are not blamed and wait in an operation."""
    return [p for p in ending.positions if p.seq is not None and p.rank not in ending.ranks]


def _operation(ending: EndingResult) -> StuckOperation | None:
    """The operation in which others wait for the ranks at fault."""
    waiting = _waiting(ending) or [p for p in ending.positions if p.seq is not None]
    if not waiting:
        return None
    first = min(waiting, key=lambda one: one.seq or 0)
    return StuckOperation(
        group=first.group or "default_pg",
        description=first.group,
        group_ranks=tuple(one.rank for one in ending.positions),
        seq=first.seq,
        name=first.op,
        kind=operation_kind(first.op),
        shape=first.size,
        dtype="",
        launched=tuple(one.rank for one in waiting),
        missing=ending.ranks,
        unknown=ending.suspects,
        launched_ns=None,
        timeout_ms=first.timeout_ms,
    )


def _groups(ending: EndingResult) -> tuple[GroupProgress, ...]:
    if not ending.positions:
        return ()
    launched = [n for p in ending.positions for n in (p.enqueued, p.seq) if n is not None]
    first = _operation(ending)
    group = ending.positions[0].group
    return (
        GroupProgress(
            group=group or "default_pg",
            description=group,
            ranks=tuple(one.rank for one in ending.positions),
            lowest_seq=min(launched, default=None),
            highest_seq=max(launched, default=None),
            behind=ending.ranks if ending.cause == "behind" else (),
            unknown=ending.suspects,
            pending=len(_waiting(ending)),
            waits_on=first.name if first else "",
            waits_seq=first.seq if first else None,
        ),
    )


def _position(one: EndingPosition) -> RankPosition:
    return RankPosition(
        rank=one.rank,
        host="",
        source="",
        entries=0,
        last_name=one.op,
        last_group=one.group,
        last_seq=one.enqueued if one.enqueued is not None else one.seq,
        last_ns=None,
        waits_for=(),
    )
