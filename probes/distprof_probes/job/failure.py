"""Determines which rank failed first.

When one rank ends, all others fail within moments, each with a separate error, and a rank that
hangs makes all ranks fail except itself. So an elastic launcher, which blames the first process to
end, is often wrong. Here a rank is blamed only on its own evidence: an exception that does not
mention other ranks, a signal from outside, an early exit, or no progress while the others waited
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from distprof.artefacts.run_file import Failure, FailureKind
from distprof_probes.job.evidence import RankEvidence
from distprof_probes.peer_loss import is_peer_loss

_OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError")
_OUT_OF_MEMORY_TEXTS = ("out of memory", "DefaultCPUAllocator: can't allocate", "Cannot allocate")
_CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"})
_CAME_BACK_NS = 10**9
_MAX_MESSAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """One failure that is not a consequence of another."""

    when_ns: int  # Latest possible time, ns since the epoch.
    rank: int  # The rank that failed.
    kind: FailureKind  # Kind of failure.
    message: str  # One sentence, with the evidence.
    step: int | None  # Last step that rank completed.


def first_cause(
    evidence: Sequence[RankEvidence],
    *,
    num_steps: int | None = None,
    detected_ns: int | None = None,
    is_interrupted: bool = False,
) -> Failure | None:
    """The rank that failed first, and what happened to it; None if nothing went wrong.

    ``rank`` is None if something did, but the evidence does not show which rank failed first. If
    the user ended the job, no rank is blamed for not finishing. ``detected_ns`` is when trouble was
    seen, ns since the epoch.
    """
    own = [s for each in evidence for s in _own_trouble(each)]
    if not is_interrupted and (
        num_steps is not None or not own
    ):  # if the goal is unknown, an early exit is the weakest reason
        own += _early_leavers(evidence, num_steps)
    if own:
        return _failure(min(own, key=lambda s: (s.when_ns, s.rank)), detected_ns)
    if is_interrupted or not any(_suffered(each) for each in evidence):
        return None
    still = _lost(evidence) or _standing_still(evidence, detected_ns)
    return _failure(still, detected_ns) if still else _unattributed(evidence, detected_ns)


def _failure(cause: Suspicion, detected_ns: int | None) -> Failure:
    return Failure(
        rank=cause.rank,
        kind=cause.kind,
        message=cause.message,
        step=cause.step,
        detected_ns=detected_ns,
    )


def _own_trouble(each: RankEvidence) -> Iterable[Suspicion]:
    """Failures of this rank that no other rank caused."""
    rules: tuple[Callable[[RankEvidence], Suspicion | None], ...] = (_raised, _struck, _quit)
    return [cause for rule in rules if (cause := rule(each)) is not None]


def _raised(each: RankEvidence) -> Suspicion | None:
    """An exception not explained by another rank's absence or by our request to end."""
    error = each.error
    if error is None or error.is_peer_loss or is_peer_loss(error.message):
        return None
    if each.told_to_end_ns is not None and error.time_ns >= each.told_to_end_ns:
        return None
    text = _one_line(error.message)
    if _mentions_memory(error.kind, error.message):
        kind: FailureKind = "out_of_memory"
        message = f"rank {each.rank} ran out of memory {_when(each)}: {error.kind}: {text}"
    else:
        kind = "exception"
        message = f"rank {each.rank} raised {error.kind} {_when(each)}" + (
            f": {text}" if text else ""
        )
    return Suspicion(
        when_ns=error.time_ns, rank=each.rank, kind=kind, message=message, step=each.last_step
    )


def _struck(each: RankEvidence) -> Suspicion | None:
    """A signal that this launcher did not send."""
    end = each.exit
    if end is None or not end.signal or end.by_launcher or each.error is not None:
        return None
    if end.signal == "SIGABRT" and is_peer_loss(each.output):
        return None  # NCCL's watchdog and gloo abort a process that lost a peer
    # An abort may be a consequence of another rank's end. A signal from outside is not, so it
    # counts from the last moment the process was seen alive.
    seen_ns = each.alive_until_ns if end.signal != "SIGABRT" else end.ended_ns
    kind, what = _signal_meaning(each, end.signal)
    return Suspicion(
        when_ns=seen_ns or end.ended_ns or 0,
        rank=each.rank,
        kind=kind,
        message=f"rank {each.rank} {what.format(when=_on_record(each))}",
        step=each.last_step,
    )


def _signal_meaning(each: RankEvidence, name: str) -> tuple[FailureKind, str]:
    if name == "SIGKILL" and each.struck_by == "group":
        return "out_of_memory", (
            "was killed (SIGKILL){when}: the kernel's out-of-memory killer struck in this job's"
            " control group during the job"
        )
    if name == "SIGKILL" and each.struck_by == "machine":
        return "out_of_memory", (
            "was killed (SIGKILL){when}, probably by the kernel's out-of-memory killer, which"
            " struck on this machine during the job"
        )
    if name in _CRASHES:
        return "killed", f"crashed ({name}){{when}}"
    if name == "SIGABRT":
        return "killed", "aborted (SIGABRT){when}"
    return "killed", f"was killed ({name}){{when}}"


def _quit(each: RankEvidence) -> Suspicion | None:
    """An exit code other than 0 without an error.json."""
    end = each.exit
    if end is None or not end.code or end.by_launcher or each.error is not None:
        return None
    if is_peer_loss(each.output):
        return None
    last = _last_line(each.output)
    is_traceback = "Traceback (most recent call last)" in each.output
    kind: FailureKind = "exception" if is_traceback else "exited"
    if is_traceback and _mentions_memory(last, last):
        kind = "out_of_memory"
    words = f": {last}" if last else " without printing an error"
    return Suspicion(
        when_ns=each.alive_until_ns or end.ended_ns or 0,
        rank=each.rank,
        kind=kind,
        message=f"rank {each.rank} exited with code {end.code} {_when(each)}{words}",
        step=each.last_step,
    )


def _early_leavers(evidence: Sequence[RankEvidence], num_steps: int | None) -> list[Suspicion]:
    """Ranks that exited normally, with code 0, before their work was done."""
    found = []
    for each in evidence:
        end = each.exit
        if end is None or end.code != 0 or end.by_launcher or each.error is not None:
            continue
        if _is_done(each, evidence, num_steps):
            continue
        goal = f" of {num_steps}" if num_steps is not None else ""
        when = f"after step {each.last_step}{goal}" if each.last_step is not None else _when(each)
        found.append(
            Suspicion(
                when_ns=each.alive_until_ns or end.ended_ns or 0,
                rank=each.rank,
                kind="exited",
                message=f"rank {each.rank} exited with code 0 {when}, before its work was done",
                step=each.last_step,
            )
        )
    return found


def _is_done(each: RankEvidence, evidence: Sequence[RankEvidence], num_steps: int | None) -> bool:
    """Whether it ran all its steps; if their number is unknown, whether no other rank failed."""
    if num_steps is not None:
        return each.last_step is not None and each.last_step + 1 >= num_steps
    return not any(_suffered(other) for other in evidence)


def _suffered(each: RankEvidence) -> bool:
    """Whether the rank ended badly, for any reason."""
    end = each.exit
    return (
        each.error is not None
        or each.told_to_end_ns is not None
        or (end is not None and (bool(end.signal) or bool(end.code)))
    )


def _lost(evidence: Sequence[RankEvidence]) -> Suspicion | None:
    """A rank that was lost together with its launcher."""
    lost = [each for each in evidence if each.is_lost and each.error is None]
    if not lost or len(lost) == len(evidence):
        return None
    first = min(lost, key=lambda each: (each.progressed_ns or 0, each.rank))
    text = f"rank {first.rank} and its launcher disappeared without reporting how they ended:"
    text += f" both were killed or their node went down{_on_record(first)}"
    text += _so_were(each.rank for each in lost if each is not first)
    return Suspicion(
        when_ns=first.progressed_ns or 0,
        rank=first.rank,
        kind="killed",
        message=text,
        step=first.last_step,
    )


def _standing_still(evidence: Sequence[RankEvidence], detected_ns: int | None) -> Suspicion | None:
    """The rank that the others waited for."""
    silent = [each for each in evidence if not _lost_a_peer(each) and not _left(each)]
    stopped = [each for each in silent if each.state in ("T", "t")]
    if stopped:
        return _still(stopped, evidence, "stopped", detected_ns)
    if silent and len(silent) < len(evidence):
        busy = [each for each in silent if not each.waits]
        return _still(_furthest_behind(busy or silent), evidence, "hung", detected_ns)
    behind = _furthest_behind(evidence)
    if len(behind) < len(evidence):
        return _still(behind, evidence, "hung", detected_ns)
    late = _came_back_late(evidence)
    return _still([late], evidence, "hung", detected_ns) if late else None


def _lost_a_peer(each: RankEvidence) -> bool:
    if each.error is not None:
        before = each.told_to_end_ns is None or each.error.time_ns < each.told_to_end_ns
        return before and (each.error.is_peer_loss or is_peer_loss(each.error.message))
    end = each.exit
    own_end = end is not None and not end.by_launcher and (bool(end.signal) or bool(end.code))
    return own_end and is_peer_loss(each.output)


def _left(each: RankEvidence) -> bool:
    return each.exit is not None and each.exit.code == 0 and not each.exit.by_launcher


def _furthest_behind(evidence: Sequence[RankEvidence]) -> list[RankEvidence]:
    """The ranks with the fewest collectives enqueued, else with the fewest steps completed."""
    counts = [each.last_collective for each in evidence]
    if None not in counts and len(set(counts)) > 1:
        least = min(count for count in counts if count is not None)
        return [each for each in evidence if each.last_collective == least]
    steps = [-1 if each.last_step is None else each.last_step for each in evidence]
    return [each for each, step in zip(evidence, steps, strict=True) if step == min(steps)]


def _came_back_late(evidence: Sequence[RankEvidence]) -> RankEvidence | None:
    """A rank that noticed the loss of its peers long after they had stopped waiting for it."""
    times = sorted((e.error.time_ns, e.rank, e) for e in evidence if e.error is not None)
    if len(times) < 2 or times[-1][0] - times[-2][0] < _CAME_BACK_NS:
        return None
    return times[-1][2]


def _still(
    found: Sequence[RankEvidence],
    evidence: Sequence[RankEvidence],
    kind: FailureKind,
    detected_ns: int | None,
) -> Suspicion:
    first = min(found, key=lambda each: (each.progressed_ns or 0, each.rank))
    others = len(evidence) > len(found)
    what = "was stopped (by SIGSTOP or a debugger)" if kind == "stopped" else "made no progress"
    text = f"rank {first.rank} {what}{_for_how_long(first, detected_ns)} {_when(first)}"
    text += " while the others waited for it" if others else ""
    text += f"; it was in {first.where}" if first.where else ""
    text += _so_were(each.rank for each in found if each is not first)
    return Suspicion(
        when_ns=detected_ns or 0, rank=first.rank, kind=kind, message=text, step=first.last_step
    )


def _so_were(ranks: Iterable[int]) -> str:
    """The ranks of which the same is true, in words."""
    also = [str(rank) for rank in ranks][:8]
    if not also:
        return ""
    return f"; so {'was rank' if len(also) == 1 else 'were ranks'} {', '.join(also)}"


def _for_how_long(each: RankEvidence, detected_ns: int | None) -> str:
    if detected_ns is None or each.progressed_ns is None or detected_ns <= each.progressed_ns:
        return ""
    return f" for {(detected_ns - each.progressed_ns) / 1e9:.0f} s"


def _unattributed(evidence: Sequence[RankEvidence], detected_ns: int | None) -> Failure:
    """A failure without evidence that singles out a rank."""
    steps = {each.last_step for each in evidence}
    lost = any(_lost_a_peer(each) for each in evidence)
    if lost:
        message = "ranks lost contact with each other, and no evidence shows which failed first"
    else:
        message = "all ranks stopped making progress at the same point"
    return Failure(
        rank=None,
        kind="unknown" if lost else "hung",
        message=message,
        step=steps.pop() if len(steps) == 1 else None,
        detected_ns=detected_ns,
    )


def _mentions_memory(kind: str, text: str) -> bool:
    return any(name in kind for name in _OUT_OF_MEMORY) or any(
        words in text for words in _OUT_OF_MEMORY_TEXTS
    )


def _when(each: RankEvidence) -> str:
    return "before its first step" if each.last_step is None else f"after step {each.last_step}"


def _on_record(each: RankEvidence) -> str:
    """The last recorded step, for a process that could not write its last lines."""
    if each.last_step is None:
        return " before its first recorded step"
    return f"; its last recorded step is {each.last_step}"


def _one_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _MAX_MESSAGE else line[: _MAX_MESSAGE - 1] + "…"


def _last_line(text: str) -> str:
    return _one_line(next((line for line in reversed(text.splitlines()) if line.strip()), ""))
