"""Where the processes of a job are, from their Python stacks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from distprof.run.logs import JobOutput
from distprof.sections.ending import STUCK, EndingResult, EndingStack
from distprof.units import name_ranks

_ACTIVITIES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        (
            "collective",
            r"(?i)^(?:(?:all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|all_to_all|monitored_"
            r"|send|recv|isend|irecv|batch_isend|reduce|gather|scatter|synchronize|item"
            r"|new_group|init_process_group)\w*"
            r"|_?wait(?:_?(?:all|tensor|work|stream|event|for_everyone)\w*)?)"
            r" \((?!threading|queue|socket|poll|connection|selectors|file_baton|shm_broadcast"
            r"|subprocess|process|worker|multiproc|asyncio|base_events|_base|futures)|^(?:p?nccl|p?mpi_|ompi_coll|hccl|rccl|ccl::|c10d::|gloo::)",
        ),
        (
            "teardown",
            r"^(?:ncclComm(?:Abort|Destroy|Finalize)|destroy_process_group|_?abort_process_group"
            r"|c10d::ProcessGroup\w+::(?:abort|shutdown|~)) ?\(",
        ),
        ("memory", r"(?i)^(?:cu|cuda|hip)(?:mem)?(?:host)?(?:free|alloc|malloc|register)"),
        ("multicast", r"^cuMulticast"),
        ("GPU", r"(?i)^(?:cu|cuda|hip)(?:stream|device|event|ctx)synchronize|^_value \(array"),
        ("lock file", r"^wait \(file_baton"),
        ("data loader", r"^(?:__next__|_next_data|_get_data|_try_get_data|fetch|collate\w*) \("),
        ("checkpoint", r"(?i)^\w*(?:checkpoint|save|state_dict)\w* \("),
        ("compilation", r"(?i)^\w*(?:compile|inductor|dynamo)\w* \("),
    )
)


_WAIT = re.compile(r"(?i)_?wait|synchronize|item")
"""Calls that wait for an operation which they do not name."""

_NAMES = {
    "data loader": "its data loader",
    "checkpoint": "a checkpoint",
    "collective": "a collective",
    "teardown": "the end of its process group",
    "GPU": "a wait for its GPU",
    "memory": "a call for memory, which waits until all kernels have ended",
    "multicast": "the set-up of NVLink SHARP (try NCCL_NVLS_ENABLE=0, look at the fabric manager)",
    "lock file": "a wait for the lock file of an extension's build, which a killed build leaves",
}


def stacks_of(output: JobOutput) -> tuple[EndingStack, ...]:
    """Processes with the same stack together, the rarest first; the last stack of a rank counts."""
    latest = {(s.rank if s.rank is not None else (s.file, s.line)): s for s in output.stacks}
    groups: dict[tuple[str, ...], list[int | None]] = {}
    for stack in latest.values():
        groups.setdefault(stack.calls, []).append(stack.rank)
    stacks = [
        EndingStack(
            ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
            count=len(ranks),
            calls=calls,
            activity=_activity(calls),
        )
        for calls, ranks in groups.items()
    ]
    return tuple(sorted(stacks, key=lambda one: (one.count, one.ranks)))


def _activity(calls: Sequence[str]) -> str:
    """What a process does, by its innermost known call."""
    known = [name for call in calls for name, pattern in _ACTIVITIES if pattern.match(call)]
    first = (name for name in ("multicast", "teardown", "memory") if name in known)
    return next(first, known[0] if known else "")


def diagnose_stacks(output: JobOutput) -> EndingResult | None:
    """The ranks that are elsewhere while others wait in a collective."""
    stacks = stacks_of(output)
    waiting = [one for one in stacks if one.activity == "collective"]
    elsewhere = [one for one in stacks if one.activity != "collective"]
    if not stacks:
        return None
    if not waiting or not elsewhere:
        # All processes in a collective, or none
        if len({_site(one) for one in waiting if _site(one)}) > 1:
            return _apart(waiting)
        count = sum(one.count for one in stacks)
        parts = [f"{_who(one)} {_verb(one)} in {_place(one)}" for one in stacks[-3:]]
        return EndingResult(
            state=STUCK if waiting and count > 1 else "",
            cause="stacks",
            verdict=f"Not decided: {'; '.join(parts)}. No stack shows a rank that the others wait "
            "for.",
            next_steps=(
                "Add the stacks of all ranks (py-spy dump --pid PID): a rank without a stack may "
                "be the one behind.",
            ),
        )
    ranks = tuple(sorted(rank for one in elsewhere for rank in one.ranks))
    parts = [f"{_who(one)} {_verb(one)} in {_place(one)}" for one in elsewhere[:3]]
    others = sorted(rank for one in waiting for rank in one.ranks)
    count = sum(one.count for one in waiting)
    who = name_ranks(others) if len(others) == count else f"{count:,} process"
    who += "es" if who.endswith("process") and count > 1 else ""
    calls = dict.fromkeys(_call(one) for one in waiting)
    where = " and ".join(call.partition(" (")[0] if len(calls) > 1 else call for call in calls)
    return EndingResult(
        state=STUCK,
        cause="stacks",
        verdict=f"Stuck: {who} {'wait' if count > 1 else 'waits'} in {where}; {'; '.join(parts)}.",
        ranks=ranks,
        why=("A collective ends only when every rank of its group has launched it.",),
        alternatives=(
            "A single snapshot may show a job that runs: dump the stacks again after a minute.",
        ),
        next_steps=(
            f"Find out why {_call(elsewhere[0])} does not return on {_who(elsewhere[0])}.",
        ),
    )


def _site(one: EndingStack) -> tuple[str, ...]:
    """The operation of a process and the calls that lead to it; empty if it is not named."""
    call = _call(one)
    return () if _WAIT.match(call) else one.calls[one.calls.index(call) :]


def _apart(waiting: Sequence[EndingStack]) -> EndingResult:
    """Processes that wait in different collectives, or in those of different lines."""
    shared = set.intersection(*(set(one.calls) for one in waiting))
    parts = []
    for one in waiting[-4:]:
        calls = one.calls[one.calls.index(_call(one)) + 1 :]
        by = next((call for call in calls if call not in shared), "")
        parts.append(f"{_who(one)} {_verb(one)} in {_call(one)}{f', called by {by}' if by else ''}")
    is_odd = waiting[0].count < waiting[1].count
    return EndingResult(
        state=STUCK,
        cause="stacks",
        verdict=f"Stuck: processes wait in different operations: {'; '.join(parts)}.",
        suspects=waiting[0].ranks if is_odd else (),
        why=(
            "All of them send, and none receives: let one of two neighbours receive first."
            if all(re.match("i?send", _call(one)) for one in waiting)
            else "If these are of one process group, the ranks took different paths.",
        ),
        alternatives=(
            "Collectives of different process groups may wait for one that no stack shows.",
        ),
        next_steps=(
            "Compare the code path of these ranks: a branch that depends on data or rank, uneven "
            "batches, or a step that one rank skips.",
        ),
    )


def _who(one: EndingStack) -> str:
    if len(one.ranks) == one.count:
        return name_ranks(one.ranks)
    return f"{one.count:,} process{'es' if one.count > 1 else ''}"


def _verb(one: EndingStack) -> str:
    return "are" if one.count > 1 else "is"


def _place(one: EndingStack) -> str:
    name = _NAMES.get(one.activity, "")
    return f"{name} ({_call(one)})" if name else _call(one)


def _call(one: EndingStack) -> str:
    """The call that shows what a process does; without any, the innermost."""
    calls = (c for c in one.calls for n, p in _ACTIVITIES if n == one.activity and p.match(c))
    return next(calls, one.calls[0])
