"""The hang report of a job that left output or stacks, but no dump that decides."""

from __future__ import annotations

from distprof.escape import headed
from distprof.run.logs import JobOutput
from distprof.sections.ending import FAILED, EndingPosition, EndingResult
from distprof.sections.ending.measure import UNSAID, about_of
from distprof.sections.ending.positions import operation_kind
from distprof.sections.table import counted
from distprof.terms import Confidence
from distprof.verbs.hang.result import (
    GroupProgress,
    HangEvidence,
    HangKind,
    HangReport,
    HangState,
    LogLine,
    RankPosition,
    StackOfRanks,
    StuckOperation,
)

_KINDS = {
    "behind": HangKind.NEVER_LAUNCHED,
    "silent": HangKind.NEVER_LAUNCHED,
    "unfinished": HangKind.LAUNCHED_NOT_FINISHED,
}
_UNDECIDED_STEPS = (
    "Name the whole output of all ranks and of the launcher: distprof hang 'logs/*'.",
    "If the job still stands, put each rank's stack (py-spy dump --pid PID) into a folder of "
    "files such as rank0.txt, and name it: distprof hang stacks/.",
    "To have dumps after the next time-out, set TORCH_FR_BUFFER_SIZE=2000 and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1, and name their folder.",
    "If the job is slow rather than stuck: distprof analyze LOG.",
)
_PRECEDENCE = ("timeout", "device", "peer", "nccl", "error")


def lines_of_output(output: JobOutput) -> tuple[LogLine, ...]:
    """Lines of trouble by rank and line; a line of several kinds counts as the first of them."""
    lines: dict[tuple[str, int], LogLine] = {}
    for event in output.events:
        if event.yields in UNSAID:
            continue
        about, key = about_of(event), (event.file, event.line)
        known = lines.get(key)
        if known is None or _PRECEDENCE.index(about) < _PRECEDENCE.index(known.about):
            lines[key] = LogLine(
                rank=event.rank, file=event.file, line=event.line, about=about, text=event.text
            )
    order = sorted(
        lines.values(), key=lambda line: (line.rank is None, line.rank or 0, line.file, line.line)
    )
    return tuple(order)


def report_of_output(evidence: HangEvidence, ending: EndingResult, version: str) -> HangReport:
    """The report from what the job printed."""
    verdict = ending.verdict or (
        f"Not decided, because {counted(evidence.output.num_lines, 'line')} of text "
        "name no time-out, error or end."
    )
    state = HangState.FAILED if ending.state == FAILED else HangState(ending.state or "undecided")
    is_open = not ending.state and ending.cause != "finished"
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
        next_steps=_UNDECIDED_STEPS if is_open else ending.next_steps,
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
