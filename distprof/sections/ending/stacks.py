"""Where the processes of a job are, from their Python stacks."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from msgspec.structs import replace

from distprof.artefacts.record import grouped
from distprof.ingest.output.expressions import advice_on
from distprof.run.logs import JobOutput, OutputStack
from distprof.sections.ending import STUCK, EndingResult, EndingStack
from distprof.sections.ending.positions import operation_kind
from distprof.sections.ending.words import words
from distprof.sections.table import counted
from distprof.units import name_ranks

_WAIT = re.compile(r"(?i)_?wait|synchronize|item")
"""Calls that wait for an operation which they do not name."""


def stacks_of(output: JobOutput) -> tuple[EndingStack, ...]:
    """Processes with the same stack together, the rarest first; the last stack of a rank counts."""
    processes = _of_one_process(output.stacks)
    latest = {
        (s.rank if s.rank is not None else (s.file, s.process or s.line)): s for s in processes
    }
    groups = grouped((stack.calls, stack.rank) for stack in latest.values())
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


def _of_one_process(stacks: Sequence[OutputStack]) -> Sequence[OutputStack]:
    """Stacks, but those of Python and of a debugger that one process has as one."""
    native = [one for one in stacks if "(on the GPU)" in one.calls[0]]
    native = native or [one for one in stacks if not any(".py:" in call for call in one.calls)]
    others = [one for one in stacks if one not in native]
    if len(native) != 1 or [(one.rank, one.file) for one in others] != [(None, native[0].file)]:
        return stacks
    joined = replace(native[0], calls=(*native[0].calls, *others[0].calls))
    return (joined,) if native[0].rank is None else stacks


def _activity(calls: Sequence[str]) -> str:
    """What a process does, by its innermost known call."""
    named = words().activity.items()
    known = [name for call in calls for name, one in named if re.match(one.pattern, call)]
    known = [name for name in known if name not in words().kinds["least"]] or known
    if known[:1] == ["idle thread"] and any(".py:" in call for call in calls):
        return ""
    first = (name for name in words().kinds["telling"] if name in known)
    name = next(first, known[0] if known else "")
    is_made_here = name == "data loader" and not words().search("of_loader", calls[0])
    return "" if is_made_here else name


def _moved_on(output: JobOutput) -> EndingResult | None:
    """Processes whose stacks were dumped again, each elsewhere: they do not stand."""
    named = (((s.file, s.rank, s.process or s.line), s.calls) for s in output.stacks)
    seen = grouped(named).values()
    if not all(len({*calls}) > 1 for calls in seen):
        return None
    first, *_, last = next(iter(seen))
    said = words().says("moved on", who=counted(len(seen), "process"), first=first[0], last=last[0])
    return EndingResult(cause="stacks", verdict=said, next_steps=words().steps["moved on"])


def diagnose_stacks(output: JobOutput) -> EndingResult | None:
    """The ranks that are elsewhere while others wait in a collective."""
    if output.stacks and (moving := _moved_on(output)):
        return moving
    every = stacks_of(output)
    ranked = [one for one in every if one.ranks and one.activity == "subprocess"]
    stacks = tuple(e for e in every if e in ranked or e.activity not in words().kinds["aide"])
    stacks = stacks or every
    stacks = tuple(one for one in stacks if one.ranks or one.activity != "idle thread") or stacks
    if not stacks:
        return None
    busy = tuple(map(_in_worker, (one for one in every if one not in stacks)))
    busy = tuple(one for one in busy if one.calls)[:1]
    loads = tuple(one for one in stacks if one.activity == "data loader")
    # A kernel that does not end is most often that of a collective
    is_shared = any(one.activity in words().kinds["shared"] for one in stacks)
    shared = words().kinds["shared"] if is_shared else ("GPU",)
    waiting = [one for one in stacks if one.activity in shared]
    elsewhere = [one for one in stacks if one.activity not in shared]
    of_worker = f", whose worker is in {_place(busy[0])}" if busy and loads else ""
    if not waiting or not elsewhere:
        # All processes in a collective, or none; a copy of a stack may lack frames
        sites = [{*_site(one)} for one in waiting if _site(one)]
        if any(site - max(sites, key=len) for site in sites):
            return _apart(waiting)
        count = sum(one.count for one in stacks)
        below, said_op = tuple[str, ...](), "" if waiting else said_operation(output)
        says = said_by(output) if waiting else ""
        held = [one for one in stacks if one.activity in ("lock", "lock file", "file lock")]
        held = held or [*(loads[:1] if of_worker else ())]
        parts = [_said(one, _place(one)) for one in held or stacks[-3:]]
        said = f"Stuck: {'; '.join(parts)}{of_worker}."
        if not held:
            told = "No stack shows a rank that the others wait for."
            if count > 1 and len(stacks) == 1 and waiting and waiting[0].activity == "collective":
                told = words().says("perhaps all processes", count=f"{count:,}")
                if stacks[0].ranks == (*range(count),):
                    below = words().steps["all launched"] + words().steps["record"]
            if said_op and words().search("others_wait", said_by(output)):
                told, says, said_op = f"The others are said to wait in {said_op}.", said_op, ""
            elif said_op:
                parts = [f"a process is said to wait in {said_op}"]
                told = f"Then it waits for ranks that did not come to {_call(stacks[-1])}."
            elif stacks[-1].activity in words().kinds["holding"]:
                told = "If other ranks wait in a collective, they wait for that."
            said = f"{'Stuck' if says else 'Not decided'}: {'; '.join(parts)}. {told}"
        steps = words().steps["paths"] if said_op else _steps(busy or held or stacks[-3:])
        state = STUCK if held or says or (waiting and count > 1) else ""
        if not state and any(e.yields == "absent" for e in output.events):
            return None  # people say who is missing
        found = EndingResult(state=state, cause="stacks", verdict=said)
        steps = (*advice_on("complaint", says), *below, *steps, *words().steps["all stacks"])
        once = words().steps["one snapshot"] if held else ()
        return replace(found, alternatives=once, next_steps=steps)
    ranks = tuple(sorted(rank for one in elsewhere for rank in one.ranks))
    common = {_function(call) for one in waiting for call in one.calls}
    parts = []
    for one in elsewhere[:3]:
        by = "" if one.activity else _leaves(one, common)
        parts.append(f"{_said(one, _place(one))}{by and f', called by {by}'}")
    others = sorted(rank for one in waiting for rank in one.ranks)
    count = sum(one.count for one in waiting)
    who = name_ranks(others) if len(others) == count else counted(count, "process")
    calls = dict.fromkeys(_call(one) for one in waiting)
    where = " and ".join(call.partition(" (")[0] if len(calls) > 1 else call for call in calls)
    return EndingResult(
        state=STUCK,
        cause="stacks",
        verdict=f"Stuck: {who} {'wait' if count > 1 else 'waits'} in {where}; {'; '.join(parts)}"
        f"{of_worker}.",
        ranks=ranks,
        why=("A collective ends only when every rank of its group has launched it.",),
        alternatives=words().steps["one snapshot"],
        next_steps=(
            f"Find out why {_call(elsewhere[0])} does not return on {_who(elsewhere[0])}.",
            *_steps(busy or elsewhere[:1]),
        ),
    )


def said_operation(output: JobOutput) -> str:
    """The collective in which people say that a process stands; empty if they name none."""
    found = words().search("said_operation", said_by(output))
    return operation_kind(found[1].replace("-", "_")) if found else ""


def said_by(output: JobOutput) -> str:
    """What people say about a job that stands."""
    return "\n".join(e.text for e in output.events if e.yields == "complaint")


def collective_in(stacks: Sequence[EndingStack]) -> str:
    """Where the first of these stacks that is in a collective stands; empty without one."""
    calls = (_call(one) for one in stacks if one.activity in ("collective", "message"))
    return next((f" in {call}" for call in calls), "")


def _in_worker(one: EndingStack) -> EndingStack:
    """What a worker of a data loader does below its loop; without calls if it is idle."""
    ends = (at for at, call in enumerate(one.calls) if call.startswith("_worker_loop"))
    calls = one.calls[: next(ends, 0)]
    return replace(one, calls=calls, activity=_activity(calls))


def _steps(stacks: Sequence[EndingStack]) -> tuple[str, ...]:
    known = words().activity
    steps = (known[one.activity].step for one in stacks if one.activity)
    return tuple(filter(None, steps))


def _site(one: EndingStack) -> tuple[str, ...]:
    """The operation of a process and the calls that lead to it; empty if it is not named."""
    call, outer = _call(one), _outer(one)
    is_named = not _WAIT.match(call) or any(":" in place for place in outer)
    return (call, *outer) if is_named else ()


def _apart(waiting: Sequence[EndingStack]) -> EndingResult:
    """Processes that wait in different collectives, or in those of different lines."""
    shared = set.intersection(*(set(one.calls) for one in waiting))
    common = set.intersection(*({*map(_function, one.calls)} for one in waiting))
    places: dict[str, EndingStack] = {}
    for one in waiting:
        by = _leaves(one, common) or next((c for c in _outer(one) if c not in shared), "")
        place = f"{_call(one)}{f', called by {by}' if by else ''}"
        known = places.get(place, replace(one, ranks=(), count=0))
        ranks, count = (*known.ranks, *one.ranks), known.count + one.count
        places[place] = replace(known, ranks=ranks, count=count)
    parts = [_said(one, place) for place, one in [*places.items()][-4:]]
    waiting = sorted(places.values(), key=lambda one: one.count)
    is_odd = len(waiting) > 1 and waiting[0].count < waiting[1].count
    return EndingResult(
        state=STUCK,
        cause="stacks",
        verdict=f"Stuck: processes wait in different operations: {'; '.join(parts)}.",
        suspects=waiting[0].ranks if is_odd else (),
        why=(
            words().said["all send"]
            if all(re.match("i?send", _call(one)) for one in waiting)
            else "If these are of one process group, the ranks took different paths.",
        ),
        alternatives=words().steps["different collectives"],
        next_steps=words().steps["paths"],
    )


def _who(one: EndingStack) -> str:
    return name_ranks(one.ranks) if len(one.ranks) == one.count else counted(one.count, "process")


def _said(one: EndingStack, place: str) -> str:
    return f"{_who(one)} {'are' if one.count > 1 else 'is'} in {place}"


def _place(one: EndingStack) -> str:
    call, activity = _call(one), one.activity
    activity = "GPU" if re.match(r"(?:synchronize|item) \(", call) else activity
    name = words().activity[activity].place if activity else ""
    by = next((at for at in _outer(one) if ".py:" in at), "")
    by = f", called by {by}" if by and activity in words().kinds["native"] else ""
    return f"{name} ({call}{by})" if name else call


def _function(call: str) -> str:
    """A call without its line, in which processes differ that are in the same function."""
    return re.sub(r":\d+\)$", ")", call)


def _leaves(one: EndingStack, common: Container[str]) -> str:
    """Where the path of a process leaves that of others; empty if it does not."""
    return next((place for place in reversed(_outer(one)) if _function(place) not in common), "")


def _outer(one: EndingStack) -> tuple[str, ...]:
    """The calls that lead to the one that shows what a process does."""
    return one.calls[one.calls.index(_call(one)) + 1 :]


def _call(one: EndingStack) -> str:
    """The call that shows what a process does; without any, the innermost."""
    pattern = words().activity[one.activity].pattern if one.activity else r"(?!)"
    calls = [call for call in one.calls if re.match(pattern, call)]
    if one.activity in ("hub", "request"):  # of a library in a library
        return calls[-1]
    if one.activity == "lock":  # what takes it says more
        native = (call for call in one.calls if _activity([call]) != "lock")
        return calls[0] if calls[0].startswith("acquire") else next(native, calls[0])
    named = (call for call in calls if not _WAIT.match(call))
    return next(named, next(iter(calls), one.calls[0]))
