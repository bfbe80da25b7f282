"""How a job ended, or why it stands: the most decisive cause that its output reports.

Causes are tried from the most to the least decisive: what only the host or the scheduler can do,
errors of GPUs and of the program itself, processes that a signal ended, collectives that did not
finish, and last what only follows from another rank's end.
"""

from __future__ import annotations

import re
import signal
import sys
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import filterfalse, pairwise, takewhile

from msgspec.structs import replace

from distprof.artefacts.record import grouped
from distprof.hardware import XidMeaning, xid_meaning
from distprof.ingest.output.expressions import Expression, advice_on, class_of, expressions
from distprof.ingest.output.read import STAGE_LINES
from distprof.ingest.output.stacks import calls_of_traceback, last_own
from distprof.run.logs import JobOutput, NcclLog, OutputEvent, OutputStack
from distprof.run.run import Run
from distprof.sections.ending import FAILED, STUCK, EndingLine, EndingResult
from distprof.sections.ending.positions import (
    DAY_S,
    OF_WATCHDOGS,
    as_it_began,
    diagnose_positions,
    last_said,
    operation_kind,
    positions_of,
    second_of_day,
    timeout_sentences,
    took_longer,
)
from distprof.sections.ending.stacks import (
    collective_in,
    diagnose_stacks,
    said_by,
    said_operation,
    stacks_of,
)
from distprof.sections.ending.words import words
from distprof.sections.table import counted
from distprof.units import capitalized, format_bytes, format_duration, name_ranks

_MAX_LINES = 200
_MAX_QUOTE, _MIN_QUOTED = 200, 40
_MAX_SAID = 110
_MAX_NAME = 48  # of a tensor: its graph stands before it
_SIGNALS = {one.value: one.name for one in signal.Signals}
_Said = tuple[str, tuple[str, ...]]  # what is said of an error, and what to do about it
_NAN_NORMS = 3  # more than steps with fp16 that are skipped


def as_line(e: OutputEvent) -> EndingLine:
    """An event as hang reports list it: what its line is about in their words, else ``error``."""
    about = words().about.get(e.yields, "error")
    return EndingLine(rank=e.rank, file=e.file, line=e.line, about=about, text=e.text)


def analyze_ending(run: Run) -> EndingResult:
    """How the job ended, from the output among the evidence of a run.

    How far NCCL came is no news where its log is the source and shows connections.
    """
    output = run.get(JobOutput)
    found = EndingResult() if output is None else diagnose_output(output)
    log = run.get(NcclLog) if run.origin == "NCCL log" else None
    is_known = log is not None and any(
        (log.edges, log.networks, log.links, log.warnings, log.remarks)
    )
    if log is not None and log.test_hosts and not log.tested:  # a test that stands
        is_told = len({*log.test_hosts.values()}) == 1 or bool(log.missing_networks)
        is_known &= is_told and not log.edges
    quiet = ("", "set-up", "ready", "stage", "finished")
    if found.state or found.cause not in quiet or not is_known:
        return found
    also = found.verdict.replace("Not decided", "If the job hangs at this point (distprof hang)", 1)
    return EndingResult(alternatives=(also,) if found.cause in ("set-up", "stage") else ())


def diagnose_output(output: JobOutput) -> EndingResult:
    """The most decisive cause in the output of a job; without any, ``state`` is empty."""
    whole, (output, earlier) = output, _last_run(_of_author(output))
    output = _without_title(titled := output)
    has = {event.yields for event in output.events}
    tried = (cause for cause, kinds in _CAUSES.items() if not kinds or has & {*kinds})
    causes = ((cause, found) for cause in tried if (found := cause(output)) is not None)
    cause, found = next(causes, (None, EndingResult()))
    if found.cause in words().kinds["starts"] and _of(output, "complaint"):
        verdict = found.verdict.replace("Not decided", "Stuck", 1)
        why = "Its author says that it stands. Healthy jobs print the same up to there."
        verdict += f" T{error[3:]}." if (error := _last_error(output)) else ""
        found = replace(found, state=STUCK, verdict=verdict, why=(*found.why, why))
    found = _while_preparing(_elsewhere(found, output), output)
    unnamed = f" in {words().operations['GLOO']}"
    if unnamed in found.verdict and (called := _called(output)):
        found = replace(found, verdict=found.verdict.replace(unnamed, f"{called} (gloo)"))
    if found.positions and (at := class_of("complaint", said_by(output))) and at.says:
        found = _amid(found, f"Its author says that it stands{at.says}.", at.text)
    raised = _of(output, "exception", "cut", "frames")
    where = (last_own(_frames(e)) for e in raised if "type" not in e.fields
             or words().search("of_others", e.fields.get("message", "")))  # fmt: skip
    if found.positions and (place := next((one for one in where if one[:1] not in "<"), "")):
        found = _amid(found, f"A traceback shows a process in {place}.")
    known = {"timeout", *(e.yields for e in output.events)}
    named = [e.text.lstrip("# ")[:_MAX_SAID] for e in said_in(titled)
             if e not in output.events and not e.again and e.yields not in known]  # fmt: skip
    if found.positions and named and not _of(output, "exception", "error"):
        found = _amid(found, words().says("title of another", said=named[0]))
    found = _during_phase(found, _without_title(whole))
    began = as_it_began(output) if found.positions else ""
    is_slow = words().search("slow_work", began) is not None
    found = _amid(found, began, *words().steps["long work"] * is_slow) if began else found
    if shown := _shown_before(found, whole):
        found = _amid(found, f"Just before, the output shows “{shown}”.")
    for event in _of(output, "also")[:2] if found.positions else ():
        said, steps = _told(event)
        found = _amid(found, f"{said}.", *filter(None, steps))
    if longer := took_longer(output, found):
        verdict = re.sub(r" No other rank printed where it stands[^.]*\.", "", found.verdict)
        found = _amid(replace(found, verdict=verdict), longer, *words().steps["long work"])
    is_open = found.cause in ("frozen", "silent", "unfinished")
    absent = [e for e in _of(output, "absent")
              if is_open or (found.cause == "stacks" and "code" in e.fields)]  # fmt: skip
    if absent:
        who, steps = _told(absent[0])
        found = _amid(found, f"{capitalized(who)}.", *steps)
    found = _once_finished(found, whole, _why_mixed(output) if cause is _mixed else "")
    found = _went_by(_since_restart(found, whole), output, earlier)
    events = said_in(output)
    told = (e for e in events if e.name != "elastic-failure" or _signal(e) != "SIGTERM")
    failed = {event.rank for event in told if event.rank is not None} - set(found.ranks)
    failed = failed if found.state == FAILED else set()
    is_later = found.ranks and " first" in found.verdict
    also = "ended or reported an error after it" if is_later else "reported errors"
    steps = found.next_steps or tuple(_steps(found))
    library = "gloo" if {one.op for one in found.positions} == {"GLOO"} else _backend(output)
    found = _in_terms_of(library, replace(found, next_steps=steps))
    return replace(
        found,
        num_followers=len(failed),
        why=(
            *(_last_bar(output) if found.cause in words().kinds["outside"] else ()),
            *(*found.why, *timeout_sentences(found.positions)),
            *((f"{capitalized(name_ranks(failed))} {also}.",) if failed else ()),
            *filter(None, (last_said(found.ranks, output) * (found.cause == "behind"),)),
            *earlier,
        ),
        lines=tuple(map(as_line, events[:_MAX_LINES])),
        stacks=stacks_of(output),
        world_size=output.world_size,
        num_lines=output.num_lines,
    )


def _in_terms_of(library: str, found: EndingResult) -> EndingResult:
    """Sentences with what another library than NCCL and its devices have instead."""
    for term in words().terms.get(library, {}).items():
        steps = tuple(step.replace(*term) for step in found.next_steps)
        found = replace(found, verdict=found.verdict.replace(*term), next_steps=steps)
    return found


def _of_author(output: JobOutput) -> JobOutput:
    """What a thread shows before another person answers, if that is anything."""
    comments = _of(output, "comment")
    authors = {e.fields["author"] for e in comments[:1] if e.line <= _LAST_LINES}
    other = next((e.line for e in comments if e.fields["author"] not in authors), 0)
    own = replace(output, events=tuple(e for e in output.events if e.line < other))
    return own if said_in(own) else output


def _last_bar(output: JobOutput) -> Iterator[str]:
    """How far a job came that was ended, according to the last bar of progress near its end."""
    lines = next(iter(output.ends.values()), ()) if len(output.ends) == 1 else ()
    bars = [b for line in lines for b in re.finditer(words().patterns["bar"], line)]
    ended = {bar["total"] for bar in bars if bar["done"] == bar["total"]}
    left = [b for b in bars if bars[-1]["total"] in ended and b["total"] not in ended]
    for bar in (left or bars)[-1:]:
        of = f" (“{bar['name'].strip()}”)" if bar["name"] else ""
        yield f"Its last bar of progress is at {int(bar['done']):,} of {int(bar['total']):,}{of}."


def _without_title(output: JobOutput) -> JobOutput:
    """What a job printed, without the title of a thread over it, if it shows a cause itself."""
    apart = {f for f, x in output.ends.items() if x[1:2] == ("",) and len(x[0]) < _MAX_QUOTE}
    first = [e for e in said_in(output) if e.line == 1 and not e.text.startswith("Fatal Python")]
    titles = [e for e in first if e.file in apart or _is_title(e)]
    own = replace(output, events=tuple(e for e in output.events if e not in titles))
    later = {e.name: e.fields.keys() for e in said_in(own) if e.line > 1 and e.yields != "warning"}
    again = [e for e in titles if e.name in later and e.fields.keys() <= later[e.name]]
    again += [e for e in titles if e.yields == "nan" and _of(own, "nan")]
    killed = {_signal(e) for e in _of(own, "died", "exit", "local_exit")} - {""}
    again += [e for e in titles if e.yields in ("died", "exit") and _signal(e) in killed]
    both = {e.yields for e in titles} & {e.yields for e in own.events}
    is_told = bool(again or both & {"store", "timeout"})
    if not titles or is_told or any(cause(own) for cause in _ROOTS) or positions_of(own):
        return own
    below = (*said_in(own), *_of(own, "closing", "ignored"))
    told = "title and error" if any(max(e.line, e.again) > 1 for e in below) else "title"
    text = "\n".join(output.end_lines)
    marks = [e for e in titles if _is_title(e) and e.yields != "remedy"
             and text.count(e.fields.get("message", e.text)[:_MIN_QUOTED]) < 2]  # fmt: skip
    marked = (replace(e, fields={**e.fields, "title": told}) if e in marks else e
              for e in output.events)  # fmt: skip
    return replace(output, events=tuple(marked))


def _last_run(output: JobOutput) -> tuple[JobOutput, tuple[str, ...]]:
    """The events of the last run that files hold, and what is left out before it."""
    own = (e for e in output.events if _is_at_end(e, output, _MAX_TOLD)
           or not words().search("logged as a warning", e.text))  # fmt: skip
    events = tuple(_without_asides(replace(output, events=tuple(own))))
    jobs = {e.fields.get("job", "").split(".")[0] for e in events if e.yields == "cancelled"}
    whole = ("JOB", "STEP") if len(jobs) > 1 else ("JOB",)
    tables = [e for e in events if e.name == "elastic-failure"]
    is_one_host = all(e.number("rank") == e.number("local") for e in tables)
    # The last line of each file that a failure, or an exception of a program itself, is in
    ended = (*words().kinds["precedence"], "cancelled", "local_exit", "exit")
    echoes = ("srun-exit", "SignalException")  # of what ended the run
    named = ((e, f"{e.name} {e.fields.get('type')}") for e in events if e.yields in ended)
    failed = {e.file: e.line for e, name in named if not name.endswith(echoes)}
    came = sorted((max(e.line, e.again), e.file, e.yields) for e in events)
    stood = {file: line for line, file, kind in came if kind in (*ended, "job_exit", *OF_WATCHDOGS)}
    thrown = (e for e in events if e.yields == "exception" and (_is_own(e) or _is_interrupt(e)))
    raised = {e.file: e.line for e in thrown}
    ends: Counter[str] = Counter()
    begun = {e.file: e.line for e in _of(output, "begun")}
    for event in _of(output, "begun"):
        is_apart = bool(re.search("^nohup: |Rank of current process", event.text))
        is_apart |= event.line < stood.get(event.file, 0)
        if _is_begun_again(event, events) and (is_apart or _trains(event, output)):
            ends[event.file] = max(ends[event.file], event.line - 1)
    for event in events:
        is_end = event.fields.get("what") in whole or ("root" in event.fields and is_one_host)
        is_end &= event.line < begun.get(event.file, sys.maxsize)  # launchers here say it
        last = failed if is_end else raised if event.name in ("not-started", "arguments") else {}
        for at in filter(None, (event.line, event.again)):
            is_past = is_end and not _is_at_end(event, output) and _trains(event, output)
            is_past |= is_end and at < last.get(event.file, 0) and any(
                words().search("resumes", line) for line in _after(event, output))  # fmt: skip
            is_past |= at + _BETWEEN_RUNS * is_end < last.get(event.file, 0)
            if is_past or event.yields == "finished":
                ends[event.file] = max(ends[event.file], at)
    later = ((e, e.line > ends[e.file] or e.yields == "refined" or _is_title(e)) for e in events)
    kept = [e if is_own else replace(e, line=e.again) for e, is_own in later
            if is_own or e.again > ends[e.file]]  # fmt: skip
    listed = said_in(replace(output, events=events))
    left = {e.file for e in listed if e.line <= ends[e.file] and not _is_title(e)}
    told = [f"{f} holds earlier failures, too, which are left out." for f in ends if f in left]
    finished = {e.file for e in events if e.yields == "finished"}
    titles = (e for e in events if _is_title(e) and e.file in finished & ends.keys())
    told += [words().said["title after"].format(line=ends[e.file]) for e in titles]
    order = {file: number for number, file in enumerate(output.files)}
    if left:  # some came again
        kept = sorted(kept, key=lambda e: (order.get(e.file, 0), e.line))
    return replace(output, events=tuple(kept)), tuple(told)


def _is_title(event: OutputEvent) -> bool:
    return event.line == 1 and bool(words().search("title", event.text))


def _is_begun_again(event: OutputEvent, events: Iterable[OutputEvent]) -> bool:
    """Whether a launcher's first line follows a failure, and is not of a host that starts late."""
    kinds = (*words().kinds["precedence"], *words().kinds["ended"])
    before = (e for e in events if e.file == event.file and e.yields in kinds)
    last = max((e for e in before if e.line < event.line), key=lambda e: e.line, default=None)
    if event.name == "resumed" and (last is None or last.yields != "cancelled"):
        return False
    if last is None or "again" in event.fields:
        return "again" in event.fields  # by torchrun, once the former processes are gone
    return not 0 < (event.at_s or 0.0) - (last.at_s or event.at_s or 0.0) < _LATE_S


_APART_S = 2.0  # launchers tell whole seconds
_LATE_S = 15.0
"""Time within which launchers of several hosts start."""


def _once_finished(found: EndingResult, output: JobOutput, mixed: str) -> EndingResult:
    """The end of a training, where nothing but its beginning or a mixed traceback is known.

    ``mixed`` says why the traceback cannot be read; empty if something else was found.
    """
    at = [replace(e, line=max(e.line, e.again)) for e in _of(output, "finished", "closed")]
    last = max(at, key=lambda e: ("gone" not in e.fields, e.line), default=None)
    is_open = bool(mixed) or found.cause in ("", "ready", "set-up", "joining", "aside")
    lost = min((e.line for e in _of(output, "peer", "nccl", "network")), default=0)
    gone = {e.rank for e in at if e.line < lost}  # all of them ended, one right after the other
    is_after = any("gone" not in e.fields and e.line < lost for e in at)
    is_after |= len(gone) > 1 and gone >= {*output.ranks, *range(output.world_size or 0)}
    crash = next((e.line for e in _of(output, "crash") if found.cause == "crash"), 0)
    if last is not None and "gone" not in last.fields and 0 < crash - last.line <= _JUST_BEFORE:
        return replace(found, verdict=found.verdict.replace(" crashed:", words().said["at end"]))
    is_open |= found.cause == "peer" and is_after
    if last is None or not is_open or not _is_at_end(last, output):
        return found
    unread = (e for e in _without_asides(output) if e.yields == "mixed")
    is_caught = "caught" in last.fields  # the program continued after what failed before
    if not is_caught and any(e.file == last.file and e.line < last.line for e in unread):
        return found
    verdict = words().said["closed NCCL" if "gone" in last.fields else "finished"]
    verdict = f"{_told(last)[0]}." if _row(last).says else verdict
    verdict += f" The traceback after it {mixed}." if mixed else ""
    is_warned = any("gone" in e.fields and "WARN" in e.text for e in at)
    verdict += words().said["harmless warning"] * (is_warned and "gone" not in last.fields)
    step = _row(last).advice or words().said["step at end"]
    return _made("finished", verdict, last, step, ranks=(), state="")


def _since_restart(found: EndingResult, output: JobOutput) -> EndingResult:
    """The failure after which torchrun restarted the workers, unless they trained after it."""
    restart = next((e for e in _of(output, "restart") if "left" in e.fields), None)
    if restart is None:
        return found
    lines, (at, file) = {restart.file: restart.line}, (restart.line, restart.file)
    before = tuple(e for e in output.events if e.file == file and e.line < at)
    first = diagnose_output(replace(output, events=before, lines_of=lines, ends={}, stacks=()))
    is_same = first.verdict == found.verdict
    if _has_loss(restart, output):
        return _amid(found, words().said["trains again"]) if is_same else found
    if is_same or first.cause not in (*words().kinds["precedence"], *words().kinds["at first"]):
        return found
    why = words().says("after restart", then=found.verdict.partition(". ")[0].rstrip("."))
    why = why if found.state and found.cause != "exit" else words().said["restarted"]
    verdict = first.verdict.replace(" failed:", " failed first:", 1)
    return replace(first, verdict=verdict, why=(why, *first.why))


def _went_by(found: EndingResult, output: JobOutput, earlier: Sequence[str]) -> EndingResult:
    """What a training survived, where nothing ended it."""
    events = _of(output, "store", "waiting", "memory") * (not found.verdict)
    after = (words().said["step at end"],)
    for event in (e for e in events if _is_overcome(e, output)):
        line, steps = _memory(event) if event.yields == "memory" else ("", after)
        verdict = words().says("survived", line=line) if line else words().said["tries"]
        return _made("finished", verdict, event, *steps, ranks=(), state="")
    continues = earlier and any(words().search("loss", line) for line in [*output.end_lines][-2:])
    if found.verdict or not continues:
        return found
    return EndingResult(cause="finished", verdict=words().said["continues"], next_steps=after)


def _is_interrupt(event: OutputEvent) -> bool:
    return event.fields.get("type") == "KeyboardInterrupt" or bool({"by", "stop"} & {*event.fields})


def _without_asides(output: JobOutput) -> Iterator[OutputEvent]:
    """The events but what Python ignores, helper threads raise, or launchers in a handler."""
    of_end = set()
    for event in _of(output, "exception", "cut", "frames"):
        if words().search("ending", _frames(event)):
            count = _frames(event).count("\n") + _TO_NEXT
            of_end |= {(event.file, event.line + number) for number in range(count)}
    begins = sorted({(e.file, e.line) for e in _of(output, "exception", "cut", "mixed")})
    inside = set()
    for event in _of(output, "aside"):
        is_inner = event.name == "queue-feeder"  # it is in the traceback, not before it
        following = bisect(begins, (event.file, event.line))
        near = [(event.file, event.line + 5)]
        following += not is_inner and begins[following : following + 1] <= near
        file, line = begins[following] if following < len(begins) else ("", 0)
        last = event.line + _BETWEEN_RUNS
        last = min(last, line) if file == event.file else last
        numbers = range(event.line - is_inner, last)
        inside |= {(event.file, number, event.rank) for number in numbers}
    has_pinned = any(", in _pin_memory_loop" in _frames(e) for e in output.events)
    whys = {(e.file, e.line + 1) for e in _of(output, "absent") if "code" in e.fields}
    for event in output.events:
        if (event.file, event.line) in whys:
            continue  # why the debug server got no answer
        if has_pinned and event.yields in ("error", "peer") and "ConnectionReset" in event.text:
            continue  # by a worker of the loader
        is_inside = event.yields in words().kinds["aside"] or event.name == "last-line"
        is_inside &= event.fields.get("type") != "KeyboardInterrupt"
        if (event.file, event.line) in of_end:
            is_of_end = event.yields in (*words().kinds["aside"], "error")
            yield replace(event, yields="closing") if is_of_end else event
        elif not (is_inside and (event.file, event.line, event.rank) in inside):
            yield event
        elif _frames(event):
            yield replace(event, yields="ignored")


_BETWEEN_RUNS = 60
"""Lines that may follow the end of a run: what other ranks and the scheduler still print."""


def _elsewhere(found: EndingResult, output: JobOutput) -> EndingResult:
    """A wait whose lines name no rank at fault, with what stacks, the GIL or the network show."""
    if found.state != STUCK or (found.ranks and found.cause != "frozen"):
        return found
    stacks = diagnose_stacks(output)
    if stacks is not None and stacks.ranks and found.cause != "stacks":
        return replace(stacks, positions=found.positions, why=(found.verdict, *stacks.why))
    if stacks is not None and found.cause == "frozen":
        shown = stacks.verdict.partition(": ")[2].partition(". ")[0].rstrip(".")
        return _amid(found, f"A stack shows that {shown}.", *stacks.next_steps[:1])
    first = next((e for e in output.events if e.yields == "timeout"), None)
    for event in _of(output, "gil", "network"):
        text = f"A thread of rank {event.number('own')} holds Python's lock (GIL)."
        step = "GIL"
        if event.yields == "network":
            if first is None or event.file != first.file or event.line > first.line:
                continue
            what = event.fields.get("what", event.text).partition("NCCL WARN ")
            who = "NCCL" if "NCCL" in event.text else "the host"
            text = f"Before that, {who} reported “{(what[2] or what[0])[:_MAX_SAID]}”."
            step = "network before"
        return _amid(found, text, *words().steps[step])
    return found


def _while_preparing(found: EndingResult, output: JobOutput) -> EndingResult:
    """A wait, or an end without a message, while another process prepared data or evaluated."""
    bars = (e for e in reversed(_of(output, "preparing")) if e.fields.get("took") != "00:00")
    is_open = found.state == STUCK or re.search("before its message|cannot be read", found.verdict)
    if (event := next(bars, None)) is None or not is_open or found.ranks or not _prepares(event):
        return found
    limit = min((one.timeout_ms or 0 for one in found.positions), default=0)
    took = event.fields.get("took", "").split(":")[::-1]
    is_older = 2000 * sum(60**i * int(n or 0) for i, n in enumerate(took)) >= limit
    if not is_older and words().search("evaluates", event.fields["phase"]):  # all ranks may do it
        text = f"The last bar of progress before it stands: {_prepares(event)}."
        return _amid(found, text, *words().steps["phase of some"])
    who = "a process" if event.rank is None else f"rank {event.rank}"
    text = f"Meanwhile {who} was still at work: {_prepares(event)}."
    return _amid(found, text, *words().steps["preparing"])


def _prepares(event: OutputEvent) -> str:
    """What a process prepares, and how far it came; empty if it ended."""
    fields = event.fields
    if "done" in fields or fields.get("percent") == "100":
        return ""
    at = f" was at {fields['percent']} %" if "percent" in fields else ""
    took = f" after {fields['took']}" if "took" in fields else ""
    return f"“{fields['phase']}”{at}{took}"


def _amid(found: EndingResult, sentence: str, *steps: str) -> EndingResult:
    """A wait with what else happened, said right after where the ranks wait."""
    first, _, rest = found.verdict.rstrip(".").partition(". ")
    return replace(
        found,
        verdict=f"{first}. {sentence}{f' {rest}.' if rest else ''}",
        next_steps=(*steps, *(found.next_steps or _steps(found))),
    )


def _during_phase(found: EndingResult, output: JobOutput) -> EndingResult:
    """A wait, with the last slow phase, or end, that was printed before the first time-out."""
    first = next((e for e in output.events if e.yields in ("timeout", "frozen")), None)
    is_wait = found.positions or found.cause in ("frozen", "unfinished")
    if found.state != STUCK or not is_wait or first is None:
        return found
    prose = {e.line for e in output.events if e.yields == "complaint" or _is_title(e)}
    phases = [e for e in _of(output, "phase") if "100%|" not in e.text and e.line not in prose]
    near = [e for e in phases if _is_at_end(e, output, _JUST_BEFORE)]
    own = next((e for e in reversed(near) if e.rank in found.suspects), None)
    ended = (e for e in _of(output, "finished", "closed") if "gone" not in e.fields)
    before = (e for e in (*phases, *ended) if e.file == first.file and e.line < first.line)
    last = own or max(before, key=lambda e: e.line, default=None)
    if last is None or found.verdict.endswith(words().says("joined", who="")):
        return found
    if last.yields != "phase":
        if first.line - last.line > _JUST_BEFORE:
            return found
        told = words().says("training ended", line=last.line)
        return _amid(found, told, *words().steps["training ended"])
    why = words().says("phase", phase=last.fields["phase"], line=last.line)
    if own or first.line - last.line <= _JUST_BEFORE:
        whose = f" of {name_ranks(found.suspects)}" if own else ""
        told = f"Before that, the log{whose} names {why}"
        other_waits = {None} < {one.seq for one in found.positions}  # in a line that was cut
        if found.cause in ("mismatch", "behind") or other_waits:
            steps = () if other_waits else words().steps["phase of some"]
            return _amid(found, f"{told.partition(':')[0]}.", *steps)
        builds = (_told(e)[1] for e in _of(output, "stage") if last.line in (e.line, e.again))
        return _amid(found, told, *next(builds, words().steps["phase"]))
    also = f"The last phase that the log names before is {why}"
    return replace(found, alternatives=(*found.alternatives, also))


_JUST_BEFORE, _LAST_LINES = 12, 5
_LEAST_SILENT_S, _SILENT_TIMES = 5400, 60  # a full buffer of output is some dozens of lines


def _shown_before(found: EndingResult, output: JobOutput) -> str:
    """An exception right before the first time-out, which no rank is known to have ended with."""
    first = next((e for e in output.events if e.yields == "timeout" and found.positions), None)
    errors = [e for e in _of(output, "error") if e not in _after_a_timeout(output)]
    near = (e for e in errors if first is not None and e.file == first.file
            and 0 < first.line - max(e.line, e.again) <=
            (_BETWEEN_RUNS if _is_interrupt(e) else _JUST_BEFORE * _is_own(e)))  # fmt: skip
    return next((_exception(e)[0] for e in near), "")


def _steps(found: EndingResult) -> Iterator[str]:
    """Next steps for collectives that did not finish."""
    if found.state != STUCK:
        return
    if found.cause in ("behind", "mismatch"):
        yield from words().steps["paths"]
    blamed = found.ranks or found.suspects
    if " The last line of rank" in found.verdict:
        yield from words().steps["long work"]
    if blamed:
        its = "its Python stack" if len(blamed) == 1 else "their Python stacks"
        yield f"Read the end of the log of {name_ranks(blamed)}, and get {its}: py-spy dump."
    if {one.seq for one in found.positions} == {1}:
        yield from words().steps["first collective"]
    if found.cause in ("unfinished", "idle"):
        is_joined = ": no rank is behind" in found.verdict
        yield from words().steps["all launched" if is_joined else "none behind"]
    yield from words().steps["record"] * bool(found.positions)  # torch's recorder of NCCL


# Causes, from the most to the least decisive ------------------------------------------------------


def _of(output: JobOutput, *kinds: str) -> list[OutputEvent]:
    return [event for event in output.events if event.yields in kinds]


def said_in(output: JobOutput) -> list[OutputEvent]:
    """The lines that reports list."""
    return [event for event in output.events if event.yields not in words().unsaid]


def _made(
    cause: str,
    verdict: str,
    event: OutputEvent,
    *steps: str,
    why: Iterable[str] = (),
    ranks: tuple[int, ...] | None = None,
    state: str = FAILED,
) -> EndingResult:
    host = event.fields.get("host", "")
    blamed = ((event.rank,) if event.rank is not None else ()) if ranks is None else ranks
    quote = f"Line {event.line:,} of {event.file}: {event.text[:_MAX_QUOTE]}"
    if event.text.endswith("(most recent call last):"):
        quote = f"Its traceback begins in line {event.line:,} of {event.file}."
    only = words().said.get(event.fields.get("title", ""))
    return EndingResult(
        state=state,
        cause=cause,
        verdict=f"{verdict} {only}" if only else verdict,
        ranks=blamed,
        hosts=(host,) if host else (),
        why=(*why, quote),
        next_steps=steps,
    )


def _stuck(
    cause: str, text: str, event: OutputEvent, *steps: str, ranks: Iterable[int] = ()
) -> EndingResult:
    return _made(cause, f"Stuck: {text}.", event, *steps, ranks=tuple(sorted(ranks)), state=STUCK)


def _subject(event: OutputEvent) -> str:
    """For example ``Rank 10 on node-a``; ``A process`` if no rank is named."""
    return f"{'A process' if event.rank is None else f'Rank {event.rank}'}{_at(event)}"


def _host_memory(output: JobOutput) -> EndingResult | None:
    events = _of(output, "host_memory")
    killed = [e for e in _of(output, "exit") if e.fields.get("what") == "Out Of Memory"]
    if not (events or killed):
        return None
    event = next((e for e in events if "host" in e.fields), (events or killed)[0])
    blamed = next(iter(killed), next((e for e in _exits(output) if _signal(e) == "SIGKILL"), event))
    rss = event.number("rss_kb")
    held = f" when it held {format_bytes(rss * 1024)}" if rss else ""
    how = "was killed because the host or its memory limit had no memory left"
    how = how if blamed in killed or _signal(blamed) else _row(event).says or how
    ranks = (blamed.rank,) if blamed.rank is not None else blamed.ranks()
    is_one = len(ranks) == 1 and not _are_agents(output)
    who = _subject(blamed if blamed.rank is not None or _at(blamed) else event)
    who = f"{capitalized(name_ranks(ranks))}{_at(blamed)}" if is_one else who
    text, steps = f"{who} {how}{held}.", advice_on("host_memory", event.name)
    return _made("host_memory", text, event, *steps, ranks=ranks)


def _xid(output: JobOutput, cause: str = "xid") -> EndingResult | None:
    """An error of a GPU itself, or one that most often a program causes (``device``)."""
    read = ((e, _xid_of(e)[1]) for e in _of(output, "xid"))
    events = (e for e, m in read if bool(m and not m.is_hardware) == (cause == "device"))
    event = next(events, None)
    if event is None:
        return None
    watched = (e.rank for e in _of(output, "device") if e.line == event.again)
    event = replace(event, rank=next(watched, None)) if event.rank is None else event
    number, meaning = _xid_of(event)
    fields = event.fields
    what = f"Xid {number} (PCI {fields.get('bus', '')})" if number else fields.get("what", "")
    told = "reports that it has fallen off the bus" if "fallen off" in what else f"reports {what}"
    told = f"cannot reach the GPU at PCI {fields['lost']}" if "lost" in fields else told
    kind = class_of("xid", cause)
    whose = "A GPU" if event.rank is None else f"The GPU of rank {event.rank}"
    said = f"{kind.says.format(whose=whose, told=told)}." if kind else ""
    if meaning is None:
        return _made(cause, said, event, *advice_on("xid", f"{cause} {'' if number else what}"))
    return _made(cause, f"{said} This means that {meaning.text}.", event, meaning.fix)


def _xid_of(event: OutputEvent) -> tuple[int, XidMeaning | None]:
    """The error that an Xid follows from, or the Xid itself, and what it means; 0 without any."""
    number = int(event.fields.get("cause", "") or event.fields.get("code", "") or 0)
    return number, xid_meaning(number)


def _cancelled(output: JobOutput) -> EndingResult | None:
    events = [e for e in _of(output, "cancelled") if e.fields.get("reason")]
    if not events:
        return None
    reason = max(events, key=lambda e: e.line).fields["reason"].lower()  # of the last run
    same = (e for e in events if e.fields["reason"].lower() == reason)
    # slurmstepd names the first node of the job, srun the one that failed
    event = max(same, key=lambda e: e.fields["reason"] == "Node failure")
    text = f"the scheduler ended the job: {reason}{_at(event)}."
    kept = (e for e in output.events if e.file != event.file or e.line < event.line)
    before = replace(output, events=tuple(kept))  # a rank that failed lets the others stand
    errors = _of(before, *words().kinds["precedence"], *OF_WATCHDOGS)
    last = max(errors, key=lambda e: e.line, default=event)
    has_bar = any(words().search("bar", line) for line in _after(last, output))
    if "time" in reason and errors and not (has_bar or _trains(last, output)):
        failed = _own_errors(before) or diagnose_positions(before)
        if failed and not re.search("erminated|SIGTERM|signal: 15", f"{failed.why}"):
            return replace(failed, why=(f"Then {text}", *failed.why))
    if "time" in reason and not errors and _of(output, "complaint"):
        return _undecided("complaint", words().said["until limit"], "complaint")
    lines = output.ends.get(event.file, ())[: event.line - 1 - output.lines_of[event.file]]
    if "time" in reason and not errors and (silent := _silent_until(event, lines)):
        told = words().says("silent until limit", took=format_duration(silent * 1_000_000_000))
        told = f"{told}. {last_printed(replace(output, ends={'': lines}))}".rstrip(". ")
        return _stuck("cancelled", told, event, *words().steps["silent until limit"])
    text = f"{capitalized(text)}{' No rank failed by itself.' * (not errors)}"
    return _made("cancelled", text, event, *advice_on("cancelled", reason), ranks=())


def _silent_until(event: OutputEvent, lines: Sequence[str]) -> int:
    """Seconds without a line before an event, if that is much longer than ever before; else 0."""
    times = [time for line in (*lines, event.text) if (time := words().search("moment", line))]
    gaps = [(second_of_day(b) - second_of_day(a)) % DAY_S for a, b in pairwise(times)]
    trained = sum(words().search("loss", line) is not None for line in lines)
    longest = max(_LEAST_SILENT_S, _SILENT_TIMES * max(gaps[:-1], default=0))
    return gaps[-1] if min(trained, len(gaps)) >= _NAN_NORMS and gaps[-1] > longest else 0


def _at(event: OutputEvent) -> str:
    host = event.fields.get("host", "")
    return f" on {host if len(host) <= _MAX_NAME else host.partition('.')[0]}" if host else ""


def _own_errors(output: JobOutput) -> EndingResult | None:
    """The first error of a GPU or of the program itself, in the order of the output."""
    tracebacks = _of(output, "exception")
    is_told = any(map(_is_own, _of(output, *_SURVIVABLE)))  # what a worker's wrapper repeats
    is_own = _is_own if is_told else _is_of_program
    causes = (e for e in _of(output, "peer", "error") if e.yields == "peer" or _is_interrupt(e))
    lost = {(e.file, e.rank, at + _TO_NEXT) for e in causes for at in (e.line, e.again)}
    following = [e for e in tracebacks if (e.file, e.rank, e.line) in lost]  # raised from that
    following += _after_a_timeout(output)
    foreign = {_key(e) for e in tracebacks if not is_own(e) or e in following}
    is_survived = _survived(output)
    refused = {e.file: e for e in _of(output, "usage") if e.name == "arguments"}  # the last one
    traps = ("device",) if any(e.name == "deepep-barrier" for e in output.events) else ()
    events = [
        e
        for e in _of(output, *words().kinds["precedence"])
        if not (is_survived(e) or e.yields in traps or e in following)
        and not (e.yields == "port" and _is_avoided(e, output))
        and not (e.name == "arguments" and e.rank is None and e is not refused[e.file])
        and (e.yields not in _SURVIVABLE or is_own(e))
        and not (e.yields == "error" and _key(e) in foreign)  # the last line of one
    ]
    if not events:
        return None
    root = _root(output)
    summed = [e for e in events if root and e.file == root.file and e.line > root.line]
    near = [e for e in summed if root and e.line <= root.line + _OF_A_FAILURE]
    if any("traceback :" in e.text for e in near):
        events = summed  # the summary of torchrun names the first failure last
    head = _first_of(events)
    tries = [e for e in events if e.file == head.file and abs(e.line - head.line) <= _NEAR_LINES]
    event = min(tries, key=_precedence)
    if event.name == "mpi-inside" and _of(output, "network"):
        return _peer(output)  # which names the reason
    same = (e.rank for e in events if _key(e) == _key(event))
    ranks = tuple(sorted({rank for rank in same if rank is not None}))
    if event.line == 1:  # a title: the traceback under it may be cut
        tracebacks = _of(output, "cut", "frames")
    raised = [e for e in tracebacks if _raises(e, event)]
    near = [*raised, *(e for e in tracebacks if event.line == 1 or _is_near(e, event))]
    ranks = ranks or tuple({e.rank for e in raised if e.rank is not None})
    shown = (x for x in map(_frames, (event, *near)) if not words().search("launching", x))
    frames = next(filter(None, shown), "")
    place = last_own(frames)
    line, steps = _told(event) if _row(event).says else _WORDS[event.yields](event)
    if event.yields == "memory" and (at := class_of("memory-in", f"{event.text}\n{frames}\n")):
        line, steps = f"{at.says}{line}", (at.text,)
    else:
        line, steps = _refined(output, event.yields, (line, steps))
    if event.yields == "exception" and (then := _raised_then(event, output)):
        after, _ = _exception(then)
        line = f"{line.rstrip('.')}, and then {after}" if after != line else line
        steps = advice_on("exception", line) or steps
    without = next(iter(_of(output, "cpu")), None)
    if without and words().search("about_gpus", f"{line} {_frames(event)[-_MAX_QUOTE:]}"):
        told, steps = _told(without)
        line = f"{told}: {line}"
    own = re.split("[(:]", f" {line}", maxsplit=1)[0]  # quoted text follows
    quoted = f" {line}".removeprefix(own)
    for one, several in words().several.items() if len(ranks) > 1 else ():
        own = own.replace(one, several)
    line = f"{own}{quoted}".lstrip()
    who = capitalized(name_ranks(ranks)) if ranks else "A process"
    is_one = len({_key(e) for e in events if e.rank is None}) == 1
    if root is not None and (ranks == (root.rank,) if ranks else is_one):
        who, ranks = _subject(root), (root.rank or 0,)
    others = [e for e in said_in(output) if e.rank not in (None, *ranks)]
    prior = ("root" in e.fields or (e.line <= event.line and e.file == event.file) for e in others)
    first = " first" if others and len(ranks) == 1 and not any(prior) else ""
    line, why = line.rstrip(".?!"), words().says("last call", place=place)
    text = f"{who} failed{first}: {line}."
    return _made(event.yields, text, event, *steps, why=(why,) * bool(place), ranks=ranks)


def _raises(traceback: OutputEvent, event: OutputEvent) -> bool:
    """Whether a traceback ends with the line of an event."""
    message = traceback.fields.get("message", "").partition("\n")[0][:_MAX_QUOTE]
    is_same = traceback.file == event.file and event.rank in (None, traceback.rank)
    is_above = is_same and 0 < event.line - traceback.line <= _NEAR_LINES
    return is_above and bool(message) and message in event.text


def _refined(output: JobOutput, kind: str, said: _Said) -> _Said:
    """What is said of a kind of error, as other lines of the text refine it."""
    for event in {e.name: e for e in _of(output, "refined") if e.name.startswith(kind)}.values():
        said = _told(replace(event, fields={**event.fields, "line": said[0]}))
    return said


def _root(output: JobOutput) -> OutputEvent | None:
    """The rank that exited by itself, and first, if the lines of launchers name one."""
    exits = [e for e in _of(output, "exit") if not _signal(e) and e.rank is not None]
    timed = [e for e in exits if "time" in e.fields]
    first = min((e.fields["time"] for e in timed), default="")
    firsts = [e for e in timed if e.fields["time"] == first]
    firsts = firsts if len(firsts) == 1 and "root" in firsts[0].fields else []
    alone = [e for e in exits if e.number("code")] if not timed else firsts
    return alone[0] if len({e.rank for e in alone}) == 1 else None


def _after_a_timeout(output: JobOutput) -> list[OutputEvent]:
    """What ranks raised after their watchdog had ended a collective: its results are garbage."""
    dogs = (e for e in reversed(_of(output, "timeout")) if "seq" in e.fields)
    ended = {(e.file, e.rank): e.line for e in dogs}
    raised = _of(output, "usage", "memory", "exception", "error")
    ranked = (e for e in raised if e.rank is not None)
    same = {_key(e) for e in ranked if e.line > ended.get((e.file, e.rank), e.line)}
    same |= {_key(e) for e in raised if "more than 1EB" in e.text}
    later = (e for e in raised if e.line > min(ended.values(), default=e.line))
    unmet = [e for e in raised if " inconsistent 0 params" in e.fields.get("message", e.text)]
    return [*(e for e in later if _key(e) in same), *unmet * bool(_of(output, *OF_WATCHDOGS))]


def _raised_then(event: OutputEvent, output: JobOutput) -> OutputEvent | None:
    """What the program raised at last while it handled an exception."""
    ends = {_key(e): e.line for e in _of(output, "error") if e.file == event.file}
    following = {e.line: e for e in _of(output, "exception") if e.file == event.file}
    then, seen = event, 0
    while seen < _MAX_CHAIN and (found := following.get(ends.get(_key(then), 0) + _TO_NEXT)):
        then, seen = found, seen + 1
    return then if seen and _is_own(then) else None


_MAX_CHAIN = 8
_TO_NEXT = 4
"""Lines from the last one of an exception to the traceback of what was raised from it."""


def _first_of(events: list[OutputEvent]) -> OutputEvent:
    """The first of some events: by time across files if all have one, else in the first file."""
    heads = {e.file: e for e in sorted(events, key=lambda e: e.line, reverse=True)}
    if all(head.at_s is not None for head in heads.values()):
        return min(heads.values(), key=lambda head: (head.at_s or 0.0, events.index(head)))
    return heads[events[0].file]


_NEAR_LINES = 400
_OF_A_FAILURE = 4  # lines from a rank to its traceback in the summary of torchrun
_SURVIVABLE = ("build", "exception", "error")
_SURVIVED_LINES = 2_000
"""A job that prints this much after an exception, and no other trouble, has survived it."""


_MAX_TOLD = 5
"""A program that prints an exception more often, over many lines, continues after it."""


def _survived(output: JobOutput) -> Callable[[OutputEvent], bool]:
    """Says whether a program continued after one of its own errors."""
    is_alone = not (output.ranks or _exits(output))
    last = {(e.file, e.yields): e.line for e in output.events}
    told = grouped(((e.file, e.fields.get("type", "")), e.line) for e in _of(output, "error"))
    quiet = {*_SURVIVABLE, *words().unsaid, *words().kinds["survived"]}
    quiet |= set(words().kinds["precedence"]) if is_alone else set()

    def is_survived(event: OutputEvent) -> bool:
        lines = told.get((event.file, event.fields.get("type", "")), ())
        if event.yields == "error" and is_alone and len(lines) >= _MAX_TOLD:
            return max(lines) - min(lines) > _NEAR_LINES
        most = _NEAR_LINES if is_alone or event.yields in ("build", "error") else _SURVIVED_LINES
        line = event.again if event.yields in ("usage", "assert", "build") else 0
        after = output.lines_of.get(event.file, 0) - max(event.line, line)
        if after <= most and not (is_alone and (_trains(event, output) or
                                                _is_overcome(event, output))):  # fmt: skip
            return False
        kinds = {kind: line for (file, kind), line in last.items() if file == event.file}
        loud = (line for kind, line in kinds.items() if kind not in {*quiet, event.yields})
        return max(loud, default=0) <= event.line

    return is_survived


def _after(event: OutputEvent, output: JobOutput) -> tuple[str, ...]:
    """The lines after an event, the last one first."""
    after = output.lines_of.get(event.file, 0) - max(event.line, event.again)
    return output.ends.get(event.file, ())[::-1][: max(after, 0)]


def _trains(event: OutputEvent, output: JobOutput) -> bool:
    """Whether several losses follow in a file, up to the first of which no person writes."""
    lines = _after(event, output)
    losses = [at for at, line in enumerate(lines) if words().search("loss", line)]
    said = (words().search("of_people", line) for line in lines[max(losses, default=0) :])
    return len({lines[at] for at in losses}) >= _NAN_NORMS and lines[-1] != "" and not any(said)


def _is_overcome(event: OutputEvent, output: JobOutput) -> bool:
    """Whether a program says that it skips or repeats what failed, and prints a loss after it."""
    near = (event.text, *_after(event, output)[-3:])
    return _has_loss(event, output) and any(words().search("recovers", line) for line in near)


def _has_loss(event: OutputEvent, output: JobOutput) -> bool:
    return any(words().search("loss", line) for line in _after(event, output))


def _is_avoided(event: OutputEvent, output: JobOutput) -> bool:
    """Whether a port in use was only a warning, after which the program continued."""
    later = [e for e in output.events if e.file == event.file and e.line > event.line]
    return (
        bool(re.search(r"\[[WE]|INFO|WARN", event.text))
        and not any("already in use" in e.fields.get("message", "") for e in later)
        and any(e.yields in ("exception", "cancelled", "timeout") for e in later)
    )


def _precedence(event: OutputEvent) -> tuple[int, bool, bool]:
    """Of one kind, a line that names something, and is whole, explains more than another."""
    named = (event.fields.get("names") or event.fields.get("message", ":")).rstrip()
    kind = words().kinds["precedence"].index(event.yields)
    shown = event.text if event.yields == "device" and named == ":" else f"\n{named}"
    return kind, "assertion" not in event.fields, words().search("vague", shown) is not None


def _is_near(one: OutputEvent, other: OutputEvent, most: int = _NEAR_LINES) -> bool:
    """Whether a traceback ends with an event: it begins at most some lines before."""
    gap = other.line - one.line
    return one.file == other.file and one.rank == other.rank and 0 <= gap <= most


def _key(event: OutputEvent) -> tuple[str, str]:
    """What is the same if several ranks have the same error: a traceback, or only its last line."""
    text = event.fields.get("type", "") + event.fields.get("what", "")
    message = re.sub(r"\d+", "0", event.fields.get("message", "").partition("\n")[0].rstrip())[:80]
    return "error" if event.yields == "exception" else event.yields, text + message


def _frames(event: OutputEvent) -> str:
    return event.fields.get("frames", "")


def _is_own(e: OutputEvent) -> bool:
    return _is_of_program(e) and not words().search("of_worker", e.fields.get("message", ""))


def _is_of_program(event: OutputEvent) -> bool:
    kind, message = event.fields.get("type", ""), event.fields.get("message", "")
    if "by" in event.fields:
        return False  # an interruption
    return bool(words().search("own", f"{kind}: {message}")) or not (
        words().search("launching", _frames(event))
        or words().search("not_own", kind)
        or words().search("of_others", f"{kind} {message}")
    )


def _memory(event: OutputEvent) -> _Said:
    fields = event.fields
    wanted = f" when it asked for {fields['size']}" if "size" in fields else ""
    free = f"; {fields['free']} of {fields['total']} were free" if "free" in fields else ""
    sizes = ("size", "free", "total", "kept", "held")
    asked, left, whole, kept, held = (_in_gib(fields.get(name, "")) for name in sizes)
    if asked and left > max(_AMPLE * asked, _FULL * whole):
        return f"its GPU refused {fields['size']}{free}", advice_on("memory", "refused")
    if 0 < whole < asked:
        larger = f"it asked for {fields['size']} at once, more than its GPU has ({fields['total']})"
        return larger, advice_on("memory", "larger")
    steps = [*advice_on("memory", fields.get("error", ""))]
    idle = fields.get("reserved") or f"{held and kept - held:.2f} GiB"  # before torch 2.1
    if others := _held_by_others(fields):
        free += f", and other processes held {others:.1f} GiB"
        steps = [*advice_on("memory", "others")]
    elif unused := _in_gib(idle):
        free += f", and PyTorch held {idle} that it did not use"
        helps = asked <= left + unused and unused >= _UNUSED * whole
        at = 0 if unused >= max(asked, _MUCH * whole) else len(steps)
        steps[at:at] = advice_on("memory", "unused") if asked and helps else ()
    steps = [*advice_on("memory", "tensorflow")] if "OOM when" in event.text else steps
    device = "NPU" if re.search(r"\bNPU\b|^EL\d{4}", event.text) else "GPU"
    return f"its {device} had no memory left{wanted}{free}", tuple(steps)


def _held_by_others(fields: Mapping[str, str]) -> float:
    """GiB of a GPU that other processes held, if they are more than the message leaves open."""
    own = ("allocated",) if "others" in fields else ("used", "kept", "allocated", "held")
    total, free = (_in_gib(fields.get(name, "")) for name in ("total", "free"))
    allocated = _in_gib(fields.get("allocated", "")) + _in_gib(fields.get("reserved", ""))
    used = max(allocated, *(_in_gib(fields.get(name, "")) for name in own))  # containers show 0
    least = _OTHERS * total if used == _in_gib(fields.get("used", "")) else used
    return total - free - used if used and total - free - used > least else 0.0


def _in_gib(text: str) -> float:
    """A size as PyTorch prints it; 0 if it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ([KMG])iB", text)
    return float(found[1]) * 2.0 ** (10 * "KMG".index(found[2]) - 20) if found else 0.0


_AMPLE = 2  # Times as much as an allocation asks for: so much free memory is no shortage.
_FULL = 0.05  # … unless it is this share of the GPU: other threads may have freed it meanwhile.
_OTHERS = 0.2  # … of a GPU from which what others hold counts, if a message tells all of the own.
_UNUSED = 0.02  # Share of a GPU from which unused memory of the allocator is worth a setting.
_MUCH = 0.1  # … from which that setting comes first.


def _device(event: OutputEvent) -> _Said:
    what = event.fields.get("what") or event.fields.get("code") or event.text[:_MAX_QUOTE]
    is_other = "code" in event.fields and not what.lower().startswith("cu")
    whose = "the NPU's driver" if "NPU" in event.text else "the driver" if is_other else "CUDA"
    told = f"{event.fields.get('hip', whose)} reports {what}"
    kind = class_of("device", what)
    said = f"{kind.says} ({told})" if kind and kind.says else told
    return said, (kind.text,) if kind else ()


def _assert(event: OutputEvent) -> _Said:
    what = event.fields.get("assertion", "")
    whose = "a kernel's" if not what or re.search(r"thread: \[|Device-side", event.text) else "an"
    kind = class_of("assert", f"{whose} {what}")
    said = kind.says if kind and kind.says else f"{whose} assertion failed"
    return f"{said}{f' ({what})' if what else ''}", (kind.text,) if kind else ()


def _by_class(event: OutputEvent) -> _Said:
    """What is said of an error whose line names no more than a port or a signal."""
    text = event.fields.get("port") or event.fields.get("signal", "code" * ("code" in event.fields))
    kind = class_of(event.yields, text)
    return (kind.says.format_map(event.fields), (kind.text,)) if kind else (event.text, ())


def _exception(event: OutputEvent) -> _Said:
    message = " ".join(event.fields.get("message", "").split())
    name = re.sub(words().patterns["twice"], r"\1", event.fields.get("type", ""))
    code = _last_code(event)
    kind = class_of("exception", f"{name}: {message}\n{code}")
    message = re.sub(words().patterns["checked_at"], "", message)
    if len(message) > _MAX_QUOTE:
        message = re.sub(words().patterns["folders"], "", message)[:_MAX_QUOTE]
    text = f"{name.rpartition('.')[2]}: {message}".strip(": .`")
    if not message and code.startswith(("assert ", "return ")):
        text += f" (“{code[:120]}”)"
    hint = words().search("hint", event.fields.get("message", ""))
    told = (f"Its message advises: “{hint[1]}”.",) if hint else ()
    if kind and kind.says:
        text = f"{kind.says} ({text.partition('. ')[0]})"
    return text, (*((kind.text,) if kind else ()), *told) or (_where_to_look(event),)


def _last_code(event: OutputEvent) -> str:
    """The last line of code of a traceback."""
    return _frames(event).rstrip(" ^~\n").rpartition("\n")[2].strip()


def _where_to_look(event: OutputEvent) -> str:
    """The code that raised an exception."""
    *_, last = ("", *filter(None, re.findall(words().patterns["package"], _frames(event))))
    is_api = words().search("of_versions", event.fields.get("type", ""))
    if last and last != "torch" and is_api:
        return f"{last} raises it: compare its version with what the program requires (pip show)."
    place = last_own(_frames(event))
    name, _, at = place.rstrip(")").partition(" (")
    where = at if name == "<module>" else f"{name} in {at}"
    if not place:
        return words().says("of libraries" if last else "no frames", last=last)
    return f"Read {where}: one process with the same configuration and data may show it sooner."


def _row(event: OutputEvent) -> Expression:
    return next(row for row in expressions() if row.name == event.name)


def _told(event: OutputEvent) -> _Said:
    """What the row of an event says of it."""
    row = _row(event)
    steps = advice_on(row.name, event.text) or (row.advice,)
    return row.says.format_map(event.fields)[:_MAX_QUOTE], steps


_WORDS: dict[str, Callable[[OutputEvent], _Said]] = {
    "memory": _memory,
    "device": _device,
    "assert": _assert,
    "port": _by_class,
    "loader": _by_class,
    "exception": _exception,
    "error": _exception,
}


def _signal(event: OutputEvent) -> str:
    """Name of the signal that ended a process; empty if it exited by itself."""
    named = event.fields.get("signal", "")
    code = event.number("code") or 0
    number = event.number("number") or (code - 128 if 128 < code <= 128 + 64 else max(-code, 0))
    said = words().signals.get(event.fields.get("what", "").capitalize())
    said = said or words().windows.get(f"0x{code & 0xFFFFFFFF:X}")
    return named or said or (_SIGNALS.get(number, f"signal {number}") if number else "")


def _exits(output: JobOutput) -> list[OutputEvent]:
    """Ends of processes, those that a launcher calls the first failure before others."""
    order = words().kinds["ends"]
    ends = {e.file: e.line for e in reversed(_of(output, "cancelled"))}
    whole = {e.file: e.line for e in _of(output, "cancelled") if e.fields.get("what") == "JOB"}
    ended = ("SIGTERM", "SIGKILL")  # by torchrun, too: the second after 30 s
    first = min((e.fields["time"] for e in _of(output, "exit") if "time" in e.fields), default="")
    later = (e for e in _of(output, "exit") if e.fields.get("time", first) > first)
    swept = {e.fields.get("pid") for e in later if _signal(e) in ended} - {None}
    found = (e for e in _of(output, *order) if e.line <= whole.get(e.file, e.line))
    found = (e for e in found if e.fields.get("pid") not in swept)
    are_agents = _are_agents(output)
    found = (e for e in found if not are_agents or e.name != "srun-exit" or _signal(e))
    exits = [e for e in found if _signal(e) not in ended or e.line < ends.get(e.file, e.line + 1)]
    if all(e.at_s is not None for e in exits):
        exits.sort(key=lambda e: e.at_s or 0.0)
    return sorted(exits, key=lambda e: ("root" not in e.fields, order.index(e.yields)))


def _are_agents(output: JobOutput) -> bool:
    """Whether the scheduler's tasks are launchers, whose numbers are no ranks."""
    named = (e.name in ("elastic-failure", "elastic-heartbeat") for e in output.events)
    return bool(_of(output, "local_exit")) or any(named)


def _killed(output: JobOutput) -> EndingResult | None:
    """A process that a signal ended; what ends after a time-out, and an abort, only follows."""
    failed = [e for e in _of(output, "nccl") if "uda" in e.fields.get("type", "")]
    before = sorted((*_of(output, "frozen", "timeout", "position"), *failed), key=lambda e: -e.line)
    late = {e.file: e.line for e in before}
    aborts = {e.file: e.line for e in reversed(_exits(output))
              if _signal(e) == "SIGABRT" and e.line > late.get(e.file, e.line)}  # fmt: skip
    exits = (e for e in _exits(output) if _signal(e) in words().kinds["fatal"])
    exits = (e for e in exits if e.line <= aborts.get(e.file, e.line))
    after = ("died", "job_exit") if failed else ("died",)
    exits = (e for e in exits if e.yields != "job_exit" or not failed or e.file in late)
    found = (e for e in exits if e.yields not in after or e.line <= late.get(e.file, e.line))
    event = next(found, None)
    return None if event is None else _ended(event, output)


def _left(output: JobOutput) -> EndingResult | None:
    """A process that exited by itself before the first time-out: the others waited for it."""
    first = {e.file: e for e in reversed(_of(output, *OF_WATCHDOGS))}
    exits = [e for e in _exits(output) if not _signal(e) and e.file in first
             and (e.number("code") or e.name == "node-not-ready")]  # fmt: skip
    ages = ((first[e.file].at_s or 0) - (e.at_s or first[e.file].at_s or 0) for e in exits)
    both = zip(exits, ages, strict=True)
    event = next((e for e, age in both if e.line < first[e.file].line or age > _APART_S), None)
    return None if event is None else _ended(event, output)


def _ended(event: OutputEvent, output: JobOutput) -> EndingResult:
    """The end of a process by a signal or an exit code."""
    name, ranks, who = _signal(event), event.ranks(), _subject(event)
    told, tables = ("time", "host", "code"), ("elastic-failure", "elastic-event")
    # torchrun's times are whole seconds: of those in one, none is known to be the first
    if event.name in tables and ("time" in event.fields or "root" not in event.fields):
        same = [e for e in _exits(output) if e.name == event.name and e.rank is not None]
        mine = {name: event.fields.get(name) for name in told}  # of a line that is cut, unknown
        same = [e for e in same if all(e.fields.get(n, mine[n]) == mine[n] for n in told)]
        ranks = tuple(sorted({e.rank or 0 for e in same}))
    if ranks and (len(ranks) > 1 or event.rank is None):
        who = f"{capitalized(name_ranks(ranks))}{_at(event)}"
    elif event.rank is None and "local" in event.fields:
        who = f"A process with local rank {event.fields['local']}{_at(event)}"
    elif event.name in words().who and "rank" not in event.fields:
        is_later = any(e.line < event.line for e in _of(output, "closed"))
        key = "later" if is_later and event.name == "not-started" else event.name
        who = f"{words().who[key]}{_at(event)}"
    code, why = event.number("code"), event.fields.get("why", "")
    fate, because = (event.fields.get(one, "") for one in ("fate", "because"))
    how = f"was {fate}" if fate else f"was not started: {why.rstrip('.`')}" if why else "died"
    how = f"exited with code {code}" if code is not None else how
    how = f"{'were' if len(ranks) > 1 else 'was'} ended by {name}" if name else how
    meaning = f": {because.rstrip('.')}" if because else "" if why else _reason(output, code)
    steps = advice_on("exit", f"{event.name} code {code} {why}{fate}")
    if name in words().meanings:
        meaning, steps = words().meanings[name], advice_on("signal", name)
    if crash := _crash(output) if name in ("SIGSEGV", "SIGBUS") else None:  # its stack, perhaps
        named = "".join(re.findall(r" in [\w+-]+(?:, which [\w -]+)?(?=\.$)", crash.verdict))
        meaning = f"{meaning.partition(',')[0]}{named}" if named else meaning
        steps = crash.next_steps
    shown = (class_of("cut", e.name) for e in _of(output, "frames") if name == "SIGABRT")
    if cause := next((one for one in shown if one and one.says), None):
        meaning, steps = f"{meaning}: {cause.says}", (cause.text,)
    if log := event.fields.get("log"):
        steps = (f"Read {log}, to which it printed.", *steps)
    blamed = ranks if event.rank is None or event.rank in ranks else (event.rank,)
    ends = _of(output, *words().kinds["ends"]) if not why else ()
    others = {e.rank for e in ends if e.rank is not None} - set(blamed)
    first = " first" if others and len(ranks) < 2 else ""
    followed = f" {counted(len(others), 'other')} followed." if others else ""
    verdict = f"{who} {how}{first}{meaning}.{followed}"
    place = crash.why if crash else ()
    return _made("killed" if name else "exit", verdict, event, *steps, ranks=blamed, why=place)


def _reason(output: JobOutput, code: int | None = None) -> str:
    """What the output, or else the code, shows about an exit that no row explains."""
    is_survived = _survived(output)
    raised = _of(output, "exception")
    launched = {_key(e) for e in raised if words().search("launching", _frames(e))}
    for event in _of(output, "exception", "error"):
        if _is_of_program(event) and not (is_survived(event) or _key(event) in launched):
            return f"; the output shows “{_exception(event)[0]}”"
    return words().codes.get(str(code)) or _last_error(output) or "; the output does not show why"


def _last_error(output: JobOutput) -> str:
    """The last line that a logger calls an error, or NCCL a warning; empty without one."""
    known = {(e.file, e.line) for e in said_in(output) if e.yields != "warning"}
    events = (e for e in _of(output, "loud", "warning") if (e.file, e.line) not in known)
    event = max(events, key=lambda e: e.line, default=None)
    return "" if event is None else f"; the last error reads “{_warned(event)}”"


def _crash(output: JobOutput) -> EndingResult | None:
    """A crash; what aborts after a time-out or a lost peer, only follows from it."""
    is_late = bool(_of(output, *words().kinds["before abort"]))
    events = [e for e in _of(output, "crash") if not (is_late and re.search("Abort|ABRT", e.text))]
    if not events:
        return None
    event = min(events, key=lambda e: ("library" not in e.fields, "what" not in e.fields))
    what = event.fields.get("what", "the output does not name the signal")
    stack = next((s for s in output.stacks if s.file == event.file and s.line >= event.line), None)
    call = stack.calls[0] if stack else ""
    is_own = bool(call) and not words().search("in_library", call)
    library = event.fields.get("library", "libnccl" * bool(re.match("p?nccl[A-Z]", call)))
    is_bus = "SIGBUS" if re.search("Bus [Ee]rror|SIGBUS", what) else ""
    meaning = words().meanings["SIGBUS"].replace(" (bus error)", "") if is_bus else ""
    how = "assert" if what.startswith("Check failed") else "signal"
    own = (f"Read the code of {call}.",) * is_own
    own = own or (() if library else advice_on(how, f"SIGSEGV: {what}"))
    only = "" if event.rank is not None else capitalized(_only_ended(output))
    where = f"{library and f' in {library}'}{meaning}"
    line, steps = _refined(output, "loader" if is_bus else "crash", (what, ()))
    text = f"{only or _subject(event)} crashed: {line[:_MAX_QUOTE]}{where * (not steps)}."
    steps = steps or (*advice_on("crash", library or f"what: {what}"), *advice_on("signal", is_bus))
    why = (words().says("last call" if is_own else "in a library", place=call),) if call else ()
    return _made("crash", text, event, *steps, *own, why=why)


def _mismatch(output: JobOutput) -> EndingResult | None:
    events = _of(output, "mismatch")
    event = next((e for e in events if "other" in e.fields), events[0])
    fields, number, last = event.fields, event.number("seq"), event.number("other_seq")
    ranks = {e.rank for e in events if e.rank is not None}
    numbered = "" if number is None else f" {number}"
    if "why" in fields:
        text = f"{name_ranks(ranks)} did not launch the {_launch(event)}{numbered} of the others"
        return _stuck("mismatch", f"{text}. {fields['why']}", event, ranks=ranks)
    if "other" not in fields:
        text = ", ".join(f"rank {e.rank} {_launch(e)}" for e in events[:4])
        return _stuck("mismatch", f"ranks launched different collectives: {text}", event)
    one, other = event.rank or 0, int(fields["other"])
    both = {"one": one, "other": other, "mine": _launch(event), "theirs": _launch(event, "other_")}
    if number is not None and last not in (None, number):
        text = words().says("other number", number=number, last=last, **both)
        return _stuck("mismatch", text, event, ranks=(one if number < (last or 0) else other,))
    is_one_kind = fields.get("op") == fields.get("other_op") and "shape" in fields
    what = f"{operation_kind(fields.get('op', ''))} of different sizes as"
    what = what if is_one_kind else "different collectives"
    what += numbered and f" number{numbered}"
    text = words().says("other operation", what=what, **both)
    return _stuck("mismatch", text, event, ranks=(one, other))


def _launch(event: OutputEvent, prefix: str = "") -> str:
    shape = event.fields.get(f"{prefix}shape", "")
    kind = operation_kind(event.fields.get(f"{prefix}op", ""))
    return f"{kind} of shape [{shape}]" if shape else kind


def _behind(output: JobOutput) -> EndingResult | None:
    """The rank at fault, if positions name one: without one, a report of the library counts."""
    found = diagnose_positions(output)
    return found if found is not None and found.cause in ("mismatch", "behind") else None


def _missing(output: JobOutput) -> EndingResult | None:
    """Ranks that a library's report calls missing; a stall that went by is none."""
    events = [e for e in _of(output, "missing") if _absent(e) and not _is_past(e, output)]
    if not events:
        return None
    last = events[0].fields.get("completed")
    joined = [e for e in _of(output, "joined") if e.fields["seq"] == last]
    if joined:  # others finished it
        at, ranks = joined[0].fields["seq"], {rank for e in joined for rank in e.ranks()}
        text = f"{name_ranks(ranks)} did not finish collective {at}, which others finished"
        return _stuck("behind", text, joined[0], ranks=ranks)
    event = max(events, key=lambda e: len(_absent(e)) if "stalled" in e.fields else 0)
    fields, absent = event.fields, _absent(event)
    if len(absent) > 1 and not set.intersection(*map(set, absent.values())):
        same = grouped((names[0], rank) for rank, names in absent.items())
        lacks = "; ".join(
            f"{name_ranks(ranks)} {'lack' if len(ranks) > 1 else 'lacks'} {name}"
            for name, ranks in [*same.items()][:4]
        )
        return _stuck("mismatch", f"ranks submitted different tensors: {lacks}", event)
    tensor = next(iter(absent.values()))[0].rpartition("/then/")[2]
    tensor = tensor if len(tensor) <= _MAX_NAME else tensor.rpartition("/")[2]
    what = tensor if len(tensor) <= _MAX_NAME else f"a collective of the others ({tensor})"
    what = f"never launched {what}"
    if "seq" in fields:
        what = f"never launched {_launch(event)} {fields['seq']}"
    what = words().absent.get(event.name, what)
    ranks = {rank for e in events if e.name == event.name for rank in _absent(e)}
    if re.search(r"Connect|RegisterTask|task(?:s)?_to_register", fields.get("at", "")):
        what = f"{name_ranks(ranks)} never connected to JAX's coordinator, and the others wait"
        return _stuck("behind", what, event, *words().steps["processes of JAX"], ranks=ranks)
    return _stuck("behind", f"{name_ranks(ranks)} {what}, and the others wait", event, ranks=ranks)


def _is_past(event: OutputEvent, output: JobOutput) -> bool:
    """Whether a warning of a stall is followed by much other output."""
    return bool({"tensor", "stalled"} & event.fields.keys()) and not _is_at_end(event, output)


def _absent(event: OutputEvent) -> dict[int, list[str]]:
    """The ranks that a line calls missing, each with what it did not submit."""
    stalled = event.fields.get("stalled", "")
    lines = re.findall(r"(\d{1,7})!?: \[([^]\n]{1,3000}?)(?: \.{3})?(?:\]|$)", stalled)
    what = [event.fields.get("tensor", "any collective")]
    return {int(n): names.split(", ") for n, names in lines} or dict.fromkeys(event.ranks(), what)


def _ready(output: JobOutput) -> EndingResult | None:
    """Ranks that submitted a tensor for which others wait, or tensors that no other rank has."""
    events = [e for e in _of(output, "ready") if not _is_past(e, output)]
    if not events:
        return None
    event, tensor = events[0], events[0].fields["tensor"]
    same = [e for e in events if "devices" in e.fields] or [event]
    ready, other, all_ranks = (
        {int(n) for e in same for n in re.findall(r"\d{1,7}", e.fields.get(name, ""))}
        for name in ("ready", "ready_other", "devices")
    )
    if other and not ready & other:
        theirs = event.fields["other_tensor"]
        text = f"{name_ranks(ready)} submitted {tensor} and {name_ranks(other)} {theirs}: they took"
        fewer = ready if len(ready) <= len(other) else other
        return _stuck("mismatch", f"{text} different paths", event, ranks=fewer)
    absent = (all_ranks or set(range(output.world_size or max(ready, default=0) + 1))) - ready
    who = name_ranks(absent) if absent else "at least one other rank"
    text = f"{who} did not submit what {name_ranks(ready)} did: {tensor}"
    return _stuck("behind", text, event, ranks=absent)


def _reached(output: JobOutput) -> EndingResult | None:
    """Ranks that waited in a monitored barrier for the rank that leads it."""
    events = _of(output, "reached")
    leader = int(events[0].fields["other"])
    text = words().says("leader", who=name_ranks(e.rank or 0 for e in events), leader=leader)
    steps = (step.format(leader=leader) for step in words().steps["monitored barrier"])
    return replace(_stuck("behind", text, events[0], *steps), suspects=(leader,))


def _joined(output: JobOutput) -> EndingResult | None:
    """Collectives that ranks launched, according to a report without positions."""
    events = sorted(_of(output, "joined"), key=lambda e: int(e.fields["seq"]))
    who, at, last = name_ranks(events[0].ranks()), events[0].fields["seq"], events[-1].fields["seq"]
    if at != last:
        text = f"{who} did not finish collective {at}, and others are in collective {last}"
        return _stuck("behind", text, events[0], ranks=events[0].ranks())
    text = f"{who} launched collective {at}, and it did not finish: no rank is behind"
    return _stuck("unfinished", text, events[0])


def _is_of_agent(event: OutputEvent, output: JobOutput) -> bool:
    """Whether an agent, which had reached its rendezvous before, reports that it lost it."""
    own = _exits(output) if "elapsed" in event.fields else []  # of its own worker
    lost = (*own, *(e for e in _of(output, "waiting") if "run" in e.fields))
    return any(e.file == event.file and 0 <= event.line - e.line <= _NEAR_AGENT for e in lost)


_NEAR_AGENT, _SOON_S = 60, 60.0
_MAX_NAMED = 1 << 16


def _store(output: JobOutput) -> EndingResult | None:
    events = _of(output, "store")
    if _of(output, "stopped"):  # the agent that was stopped closes the rendezvous for all others
        events = [e for e in events if e.fields.get("type") != "RendezvousClosedError"]
    events = [e for e in events if not (_is_of_agent(e, output) or _is_overcome(e, output))]
    if not events:
        return None
    told = ("elapsed", "address", "other", "joined")
    event = next((e for name in told for e in events if name in e.fields), events[0])
    unconnected = [e for e in _of(output, "network") if "onnect" in e.name + e.text]
    if unconnected and not {"address", "sender"} & event.fields.keys():
        return _peer(output)  # it explains why a key was never written
    says = _row(event).says.format_map(event.fields)
    fields = event.fields
    sender = event.number("sender") if "sender" in fields else event.number("other")
    is_member = event.number("own") not in (None, event.rank)
    same = {e.rank for e in events if e.fields.get("other") == fields.get("other")} - {None}
    same = same if sender is not None and not is_member else {event.rank}
    who = "a process" if event.rank is None else name_ranks(rank or 0 for rank in same)
    is_later = (event.number("key") or 1) > 1  # a barrier of another than the first process group
    if says:
        what = says
    elif sender is not None:
        whom = f"member {sender} of its group" if is_member else f"rank {sender}"
        what = f"{who} waited for the NCCL identifier that {whom} sends"
        if "lost" in fields:
            what = f"the store was lost while {what} ({fields['lost']})"
    elif "expected" in fields and not {"address", "wait"} & fields.keys():
        count = f"only {fields['joined']}" if "joined" in fields else "not all"
        who = "devices" if event.name == "xla-rendezvous" else "processes"
        what = f"{count} of {fields['expected']} {who} joined the rendezvous"
        size = int(fields["expected"])
        absent = {*range(min(size, _MAX_NAMED))} - {e.rank for e in said_in(output)}
        if "joined" in fields and size - int(fields["joined"]) == len(absent):
            what += f": {name_ranks(absent)} did not"
        if is_later:
            what = what.replace("joined the rendezvous", f"came to process group {fields['key']}")
        if int(fields.get("joined", 0)) > int(fields["expected"]):
            what = words().store["too many"].format_map(fields)
    else:
        known = next((name for name in words().store if name in fields), "key")
        address = fields.get("address", "").replace(", ", ":")
        what = words().store[known].format_map({**fields, "who": who, "address": address})
    steps = words().steps["store"]
    if sender is not None:
        why = words().said["identifier"]
        why = ": the process that serves the store ended before" if "lost" in fields else why
        steps = (f"Read the log of {whom}{why}.", steps[0])
    elif event.number("expected") is not None and (event.number("joined") or 0) > size:
        steps = words().steps["too many processes"]
    elif is_later:
        steps = words().steps["later group"]
    hints = ((e, e.fields.get("name", e.fields.get("to", "\n"))) for e in _of(output, "hint"))
    if named := next((e for e, name in hints if name in what), None):
        why = named.fields.get("why", "")
        what += f" (“{why}”)" if why else ", because it cannot resolve that name"
        steps = _told(named)[1]
    advice = advice_on("store", what)
    found = _stuck("store", what, event, *advice, *steps[bool(advice) :])
    return found if sender is None or is_member else replace(found, suspects=(sender,))


def _unreachable(output: JobOutput) -> EndingResult | None:
    """An address that a process could not reach before others timed out, perhaps because of it."""
    first = next(iter(_of(output, "store", "timeout", "position", "missing", "mismatch")), None)
    return _store(output) if first is not None and "address" in first.fields else None


def _lost_before(output: JobOutput) -> EndingResult | None:
    """A connection that broke, or a store that ended, when a wait began that timed out later."""
    late = _of(output, "timeout")[0]
    last = (late.at_s or 0.0) - _SOON_S
    began = last - (late.number("ran_ms") or 0) / 1000 - 10 * _SOON_S
    events = [e for e in output.events if e.file == late.file and e.line < late.line]
    early = {e.rank for e in events if began < (e.at_s or 0.0) < last}
    lost = [e for e in events if e.rank in (None, *early) and (e.name == "ib-completion"
            or (re.search("TCPStore|SocketImpl", e.text) and began < (e.at_s or 0.0) < last))
            and early]  # fmt: skip
    found = _peer(replace(output, events=tuple(lost), ranks=(), world_size=None)) if lost else None
    return found and replace(found, why=(words().said["timed out later"], *found.why))


def _peer(output: JobOutput) -> EndingResult | None:
    events = [e for e in _of(output, "network", "peer", "nccl") if not _is_of_agent(e, output)]
    if _of(output, "timeout"):  # then the own watchdog aborts the communicator
        events = [e for e in events if "ommunicator was aborted" not in e.text]
    done = {e.file: e.line for e in _of(output, "closed") if "Destroy COMPLETE" in e.text}
    if not _of(output, "exception", "exit", "signal", "cut"):  # ranks that end close connections
        events = [e for e in events if e.yields != "peer" or e.line > done.get(e.file, 0)]
    explained = [e for e in events if e.name != "nccl-result"]
    # A plugin that could not start leaves a result, too, and the job continues.
    avoided = any(words().search("avoided", e.text) for e in _of(output, "warning"))
    events = explained or [e for e in events if _is_at_end(e, output) and not avoided]
    dogs = {e.file: e.line for e in reversed(_of(output, "timeout"))}  # they end their process
    if not events or all(e.yields == "peer" and e.line > dogs.get(e.file, e.line) for e in events):
        return None
    event = min(events, key=lambda e: (e.fields.get("code") == "5", not _is_root(e)))
    if event.yields != "network":  # NCCL names the reason after the error
        close = (e for e in events if e.yields == "network" and e.rank in (None, event.rank)
                 and 0 <= max(e.line, e.again) - event.line <= _TO_NEXT)  # fmt: skip
        event = next(close, event)
    if event.yields != "network":
        same = [e for e in events if e.yields == event.yields]
        named = [e for e in same if _NAMING & e.fields.keys() or e.name == "nccl-cuda"]
        event = min((*named, event), key=lambda e: not _is_root(e))
    if re.search("(?:reset|closed) by (?:remote )?peer", event.fields.get("last", "")):
        event = next((e for e in events if e.yields == "peer"), event)
    own = [e for e in events if e.name == event.name] if event.yields != "peer" else events
    victims = tuple(sorted({e.rank for e in own if e.rank is not None}))
    left = {e.rank for e in _exits(output) if e.number("code") and not _signal(e)} - {None}
    if event.yields == "peer" and len(left) == 1 and victims and left.isdisjoint(victims):
        return None  # the launcher names the rank that ended first
    told = {e.rank for e in said_in(output)}
    silent = tuple(sorted({*range(output.world_size or 0), *output.ranks} - told))
    suspects = silent if victims and len(silent) <= len(victims) else ()
    peer = event.fields.get("peer", event.fields.get("end", ""))
    whom = f" ({peer})" if peer else ""
    is_named = victims and (event.rank is not None or event.yields != "network")
    writer = words().search("writer", event.text)
    host = writer[1] if writer else event.fields.get("host", "")
    who = capitalized(name_ranks(victims)) if is_named else f"A process{host and f' on {host}'}"
    if {"how", "target"} & event.fields.keys() or event.name in ("nccl-connect", "nccl-retries"):
        target = f" ({event.fields['target']})" if "target" in event.fields else whom
        what = event.fields.get("what", "connection refused")
        line = f"{who} could not connect to another rank{target}: {what}."
    elif "store" in event.fields:
        where = event.fields["store"]
        line = f"{who} lost the store at {where}. Most often rank 0 or its launcher ended."
    elif event.yields == "peer" and writer and peer.startswith(writer[1].partition(".")[0]):
        line = words().says("own proxy", who=who, whom=whom)
    elif event.yields == "peer":
        line = f"{who} lost the connection to another rank{whom}. Most often that rank ended first."
    elif event.yields == "network":
        what = event.fields.get("what", words().completions.get(event.fields.get("code", ""), ""))
        known = class_of("network", what)
        line = f"{who} reported an error of the network{whom}{what and f': {what}'}."
        if known and known.says:
            line = f"{who} {known.says} ({what.removeprefix('Call to ')})."
    else:
        last = event.fields.get("last", "").removeprefix("Net : ").replace(" : ", " ", 1)
        kind = event.fields.get("type") or words().results[event.fields["result"]]
        where = "'s bootstrap, in which ranks connect" if "bootstrap" in event.fields else ""
        what = last if "failure" in last else f"{last} ({kind})" if last else kind
        line = f"{who} failed in NCCL{where}: {what}."
        suspects = ()
    versions = ((v, name_ranks([e.rank])) for e in output.events if e.rank is not None
                for v in re.findall(r"NCCL version (\d[\d.]*\d)", e.text))  # fmt: skip
    if which := _who_has(versions):
        text, steps = words().says("versions", which=which), words().steps["versions"]
        return _made("nccl", text, event, *steps, ranks=())
    is_logged = any("NCCL INFO" in line for line in output.end_lines)
    logged = "nccl logged" if is_logged and event.yields == "nccl" else event.yields
    backend = "gloo" if "gloo" in event.text else _backend(output)
    backend = "store" if "store" in event.fields else backend
    steps, tail = words().steps.get(f"{backend} {logged}", words().steps[logged]), ""
    warning = None if event.name == "nccl-cuda" else _warning_near(event, output, sys.maxsize)
    if suspects:
        tail = f" {capitalized(name_ranks(suspects))} reported nothing."
    elif event.yields == "peer" and "another rank" in line and "/task:" not in whom:
        tail = " The output does not show which rank."
    elif event.yields == "nccl" and "last" not in event.fields and warning is not None:
        also = "" if what in _warned(warning) else f" ({what})"
        who = who if warning.rank in (None, event.rank) else _subject(warning)
        line = f"{who} failed in NCCL{where}: {_warned(warning)}{also}."
        steps = steps[1:]
    if (odd := _interfaces(_of(output, "setup"))) and ("connect to" in line or "is local" in odd):
        line, tail = line.partition(" Most often")[0], f" Most likely {odd}."
    all_said = f"{line}{tail} {event.text}"
    advice, row = advice_on(event.yields, all_said), class_of(event.yields, all_said)
    if event.yields == "nccl" and row and row.says:
        line = f"{who} {row.says} ({line.partition(': ')[2].partition('. ')[0].rstrip('.')})."
    if event.yields == "nccl" and not advice:
        of_gpu = "uda failure" in line.lower()
        advice = advice_on("device" if of_gpu else "network", line + event.text * of_gpu)
    general = {"network": steps[1:], "nccl": ()}.get(event.yields, steps) if advice else steps
    # NCCL's own line on CUDA is the warning that names the call.
    steps = (*advice, *(() if event.name == "nccl-cuda" else general))
    listed = "".join(e.fields["listed"] for e in _of(output, "interfaces"))
    cards = dict(re.findall(r"([\w.@-]+):(\S+?)<", listed)).items()
    near = [name for name, at in cards if words().search("local", f"{name}:{at}")]
    shared = [name for name, _ in cards if name not in near]
    if near and shared and "connect to" in line:
        tail = f" {words().says('near', near=', '.join(near))}."
        steps = (f"Set NCCL_SOCKET_IFNAME={shared[0]} on every host.", *steps)
    return replace(_made(event.yields, line + tail, event, *steps, ranks=()), suspects=suspects)


def _is_root(event: OutputEvent) -> bool:
    """Whether a process reports an error of its own, and no consequence of another one."""
    told = (event.fields[name] for name in ("last", "what", "type") if name in event.fields)
    return event.name == "ib-completion" or not words().search("noticed", next(told, "Broken pipe"))


_NAMING = {"last", "store", "peer", "end"}  # fields of a lost connection that say more


def _frozen(output: JobOutput) -> EndingResult | None:
    events = _of(output, "frozen", "timeout")
    ranks = sorted({event.rank for event in events if event.rank is not None})
    least = ("npu-sync", "npu-task-timeout", "operations-failed")
    event = min(events, key=lambda e: (len({"tag", "remote"} - e.fields.keys()), e.name in least))
    who = name_ranks(ranks) if ranks else _only_ended(output) or "a process"
    kinds = {operation_kind(e.fields["op"]) for e in events if "op" in e.fields}
    raised = _of(output, "cut", "exception", "frames")
    called = _called(output)
    where = f" in {', '.join(sorted(kinds))}" if kinds else ""
    named = {e.rank for e in raised if e.rank is not None}
    raiser = name_ranks(named) if len(named) == 1 and not ranks else who
    if (row := _row(event)).says:
        text, steps = row.says.format(who=raiser, where=where), words().steps["waited"]
        at = next(filter(None, (class_of("cut", _frames(e)) for e in raised)), None)
        if at and at.says:
            text, steps = f"{text.partition(':')[0]}: most likely {at.says}", (at.text, *steps)
        return _stuck("frozen", text, event, *steps, *filter(None, (row.advice,)))
    if event.name in words().waited:
        fields, limit = event.fields, event.number("timeout_ms")
        called_for = words().search("far_end", "\n".join(map(_frames, raised)))
        if called_for and event.name == "gloo-timeout":
            fields = {"remote": called_for[1], **fields}
        whom = f"rank {fields['remote']}" if "remote" in fields else "another rank"
        group = fields.get("group", "")
        whom += f" of {group}" if "remote" in fields and group else ""
        where = f" in {operation_kind(fields['tag'])}" if "tag" in fields else ""
        is_unnamed = event.name == "gloo-timeout" and "remote" not in fields
        unnamed = words().said["unnamed"] * is_unnamed
        unnamed += f". A traceback shows it{called}" * (called != "" == where)
        if "device" in fields:
            unnamed += words().says("HCCL names", **{"how": "Stuck", **fields})
        took = f"for {format_duration(limit * 1_000_000)} " if limit else ""
        text = f"{raiser} waited {took}for {whom}{where} {words().waited[event.name]}{unnamed}"
        return _stuck("frozen", text, event, *words().steps["waited"])
    dogs, whose = ("watchdogs", "their") if len(ranks) > 1 else ("watchdog", "its")
    seconds = max((event.number("seconds") or 0 for event in events), default=0)
    happened = f"made no progress for {seconds} s" if seconds else "timed out"
    shared = {e.fields.get("own") for e in events}  # of ranks of other groups, the same may be two
    suspects, behind = _with_fewest_pending(events if len(shared) >= len(ranks) else ())
    text = f"the {dogs} of {who} {happened}{where or called}, and {whose} lines name no "
    text += f"{'rank that is behind' if where or called else 'collective'}{behind}"
    steps = words().steps["waited"][1:]
    found = _stuck("frozen", text, events[0], *steps, ranks=ranks if len(ranks) == 1 else ())
    return replace(found, suspects=suspects)


def _called(output: JobOutput) -> str:
    """The collective in which a traceback ends, as part of a sentence; empty without one."""
    raised = _of(output, "cut", "exception", "frames")
    called = collective_in(stacks_of(replace(output, stacks=_stacks_of(raised))))
    ends = {*re.findall(words().patterns["far_end"], "\n".join(map(_frames, raised)))}
    return f"{called}, with rank {min(ends)}" if called and len(ends) == 1 else called


def _only_ended(output: JobOutput) -> str:
    """The process that a signal ended, if a launcher names one; else empty."""
    ended = [e.fields for e in _of(output, "local_exit") if _signal(e) and "pid" in e.fields]
    return words().said["only ended"].format_map(ended[0]) if len(ended) == 1 else ""


def _with_fewest_pending(events: Iterable[OutputEvent]) -> tuple[tuple[int, ...], str]:
    """The ranks that launched the fewest collectives after the one in which all wait."""
    told = ((e.rank, e.number("pending")) for e in events)
    counts = {rank: count for rank, count in told if rank is not None and count is not None}
    least, most = min(counts.values(), default=0), max(counts.values(), default=0)
    suspects = tuple(sorted(rank for rank, count in counts.items() if count == least))
    if least == most or 2 * len(suspects) > len(counts):
        return (), ""
    them, has = name_ranks(suspects), "have" if len(suspects) > 1 else "has"
    who = f"{capitalized(them)} {has}"
    return suspects, words().says("fewest pending", who=who, least=least, most=most, them=them)


def _died(output: JobOutput) -> EndingResult | None:
    """A process whose end its scheduler noticed: what others lost then only follows."""
    events = (e for e in _of(output, "died") if not _signal(e)
              and (e.name != "not-started" or not _trains(e, output)))  # fmt: skip
    first = ("ray-node", "ray-owner")
    event = min(events, default=None, key=lambda e: (
        "fate" not in e.fields, e.name not in first, e.name == "pod-restarts",
        "can't open file" in e.text))  # fmt: skip
    if event is not None and event.name.startswith(("ray-", "engine-")):
        failed = (e for e in _of(output, "nccl", "network") if e.line < event.line)
        if any(event.fields.get("host", "") in e.text for e in failed):
            return _peer(output)  # which ended the worker
    return None if event is None else _ended(event, output)


def _exited(output: JobOutput) -> EndingResult | None:
    without_code = ("sagemaker-exit", "elastic-event", "no-error-file")
    exits = (e for e in _exits(output) if _signal(e) or e.number("code") or e.name in without_code
             or "root" in e.fields)  # fmt: skip
    stopped = {e.file for e in _of(output, "stopped")}  # a shell's line only follows
    event = next((e for e in exits if e.name != "shell-ended" or e.file not in stopped), None)
    if event and _of(output, "nan") and not _signal(event) and _reason(output).endswith(" why"):
        return _nan(output)
    return None if event is None else _ended(event, output)


def _stopped(output: JobOutput) -> EndingResult | None:
    event = _of(output, "stopped", "cancelled")[0]
    name = _signal(event)
    raised = [e for e in _of(output, "exception", "cut") if not _is_launchers(e)]
    is_asked = name == "SIGINT" and _of(output, "complaint")
    if is_asked and (began := _at_stage(output) or _stood(output, raised)):
        return began
    by = f"its launcher got {name or 'a signal'}"
    how = words().stopped.get(name or event.yields, by)
    steps = advice_on("stopped", name or event.yields)
    stood = stacks_of(replace(output, stacks=_stacks_of(raised if name == "SIGINT" else [])))
    at = [one for one in stood if one.activity and one.activity not in words().kinds["aide"]]
    for one in at[:1]:
        doing = words().activity[one.activity]
        how += f", when a process was in {doing.place.partition(', which')[0]}"
        steps = (*filter(None, [doing.step]), *steps)
    text = f"The job was ended from outside: {how}."
    found = _made("stopped", text, event, *steps, ranks=())
    waits = _joining(output)
    if waits is None:
        return found
    why = capitalized(waits.verdict.partition(": ")[2])
    return replace(found, why=(why, *found.why), next_steps=(*found.next_steps, *waits.next_steps))


def _interrupted(output: JobOutput) -> EndingResult | None:
    is_survived = _survived(output)
    raised = _of(output, "exception", "error", "cut")
    events = [e for e in raised if _is_interrupt(e) and not is_survived(e)]
    if not events:
        return None
    if words().search("after_interrupt", said_by(output)):
        return _complained(output)
    events = [e for e in events if not words().search("idle_worker", _frames(e))] or events
    of_parents = [e for e in events if words().search("of_parents", _frames(e))]
    event = min(events, key=lambda e: ("frames" not in e.fields, e in of_parents))
    shown = _stood(output, events) or _set_up(output)
    if shown is not None and shown.state:  # what it waited for is known
        return shown
    stood = next(iter(stacks_of(replace(output, stacks=_stacks_of([event])))), None)
    is_of_gpu = stood and re.match(r"(?:synchronize|item) \(", stood.calls[0])
    name = "GPU" if is_of_gpu else stood.activity if stood else ""
    doing, step = (words().activity[name].place, words().activity[name].step) if name else ("", "")
    where = ", from ".join(filter(None, (doing.partition(", which")[0], last_own(_frames(event)))))
    text = f"The job was interrupted (Ctrl-C or SIGINT){where and f' in {where}'}."
    if _of(output, "complaint"):
        return _undecided("complaint", f"the job is said to stand still. {text[:-1]}", "complaint")
    steps = (*filter(None, [step]), *advice_on("stopped", "SIGINT"))
    return _made("interrupted", text, event, *steps, ranks=())


def _cut(output: JobOutput, kind: str = "cut") -> EndingResult | None:
    is_survived = _survived(output)
    wraps = [e for e in _of(output, "exception", "error") if not _is_own(e)]
    events = (e for e in _of(output, kind) if not (is_survived(e) or _is_launchers(e)))
    events = (e for e in events if not any(_is_near(one, e, _TO_NEXT) for one in wraps))
    event = min(events, key=lambda e: (e.rank is None, "type" not in e.fields), default=None)
    if event is None:
        return None
    stands = _at_stage(output) if _of(output, "complaint") else None  # a Ctrl-C ended it there
    if "type" not in event.fields and (began := stands or _stood(output, [event])):
        return began
    place = event.fields.get("place") or last_own(_frames(event))
    is_above = kind == "frames" and "place" in event.fields
    lacks = f"but the text {'lacks' if is_above else 'ends before'} its message"
    lacks = "which has no message" if "bare" in event.fields else lacks
    kind = event.fields.get("type", "an exception")
    code = _last_code(event)
    if failed := re.search(r"(?:^|  )((?:assert|raise) .*)", code):
        kind, lacks = f"an exception at “{failed[1][:_MAX_SAID]}”", lacks.replace("its", "any")
    shown = class_of("cut", f"{event.name} {kind}\n{_frames(event)}")
    why = f", most likely because {shown.says}" if shown and shown.says else ""
    if _of(output, "complaint") and place and not why and "type" not in event.fields:
        says = "the job is said to stand still. A traceback without its message shows it in"
        return _undecided("complaint", f"{says} {place}", "complaint")
    told = f"{_subject(event)} failed with {kind}{why}, {lacks}"
    where = f", in {place}" if place else ""
    warning = _warning_near(event, output, _BETWEEN_RUNS)
    if warning is not None and "bare" not in event.fields:
        told = words().says("warned", who=_subject(event), warned=_warned(warning))
    of_nccl = () if warning is None else advice_on("nccl", told)
    steps = (*of_nccl, *advice_on("exception", f"{kind}\n{code}"))
    return _made("exception", f"{told}{where}.", event, *steps, *((shown.text,) if shown else ()))


def _warning_near(event: OutputEvent, output: JobOutput, most: int) -> OutputEvent | None:
    """The last warning of NCCL before a line, at most some lines away; else the first after it."""
    warned = [e for e in _of(output, "warning") if e.file == event.file]
    warned = [e for e in warned if abs(e.line - event.line) <= most]
    warned = [e for e in warned if not words().search("noticed", e.fields["what"])] or warned
    warned = [e for e in warned if e.rank == event.rank] or warned
    return next(iter([e for e in warned if e.line < event.line][-1:] or warned), None)


def _warned(warning: OutputEvent) -> str:
    """What a warning or an error says, without the part of the program that says it."""
    return re.sub(r"^[\w/.]{1,40} ?: ", "", warning.fields["what"])[:_MAX_SAID].rstrip(". ")


def _stood(output: JobOutput, events: Iterable[OutputEvent]) -> EndingResult | None:
    """Where processes stood until someone ended them by hand, if their tracebacks show it."""
    output = replace(output, stacks=_stacks_of(events))
    shown = diagnose_stacks(output)
    if shown is None or not (_of(output, "complaint") or (shown.state and len(output.stacks) > 1)):
        return None
    if not (shown.state or any(one.activity for one in stacks_of(output))):
        return None
    return replace(shown, state=STUCK, verdict=shown.verdict.replace("Not decided", "Stuck", 1))


def _stacks_of(events: Iterable[OutputEvent]) -> tuple[OutputStack, ...]:
    """The stacks that tracebacks are, each once, although several expressions read it."""
    found = grouped((calls_of_traceback(_frames(event)), event) for event in events)
    return tuple(
        OutputStack(file=e.file, line=e.line, rank=e.rank, calls=calls)
        for calls, same in found.items()
        for e in [e for e in same if e.rank is not None] or same  # torch prints it again
        if calls and e.name == same[0].name and not calls[-1].startswith("_shutdown (threading")
    )


def _is_launchers(event: OutputEvent) -> bool:
    """Whether a traceback is of a launcher, which reports how another process ended."""
    files = re.findall(r'File "([^"\n]{1,300})"', _frames(event))
    where = files[-1] if files else event.fields.get("type", "")
    return words().search("of_launchers", where) is not None


def _waiting(output: JobOutput) -> EndingResult | None:
    """Ranks that still wait for others to start, at the end of the output."""
    done = max((e.line for e in _of(output, "joining") if "complete" in e.fields), default=0)
    events = [e for e in _of(output, "waiting") if _is_at_end(e, output) and e.line > done]
    events = [e for e in events if not _has_loss(e, output)]
    gone = any("gone" in e.fields for e in _of(output, "closed"))  # agents end after ranks
    if events and _row(last := events[-1]).says:
        most = _NEAR_AGENT if "run" in last.fields else _LAST_LINES
        gone |= "closing" in last.fields and not _of(output, "exception", "error", "mixed")
        if gone or output.lines_of.get(last.file, 0) - max(last.line, last.again) > most:
            return None  # it went by
        return _stuck("waiting", *_told(last)[:1], last, *_told(last)[1])
    if events and "seconds" in (last := events[-1]).fields:
        if any(words().search("serves", line) for line in _after(last, output)):
            return None
        text = words().waited[last.name].format_map(last.fields)
        return _stuck("frozen", text, last, *words().steps["engine"])
    return _store(replace(output, events=tuple(replace(e, yields="store") for e in events)))


def _waits(output: JobOutput) -> EndingResult | None:
    """What the last lines of a program say that it waits for."""
    last = max(_of(output, "wait"), key=lambda e: max(e.line, e.again))
    text = f"the text ends while a process waits for {last.fields['what']}"
    is_last = _is_at_end(replace(last, line=max(last.line, last.again)), output, _LAST_LINES)
    return _undecided("complaint", text, "complaint") if is_last else None


def _twice(output: JobOutput) -> EndingResult | None:
    """Ranks that several processes took, so that others are missing."""
    events = [e for e in _of(output, "joining") if e.rank is not None and "expected" in e.fields]
    ranks = {e.rank for e in events if e.rank is not None}
    size = max((e.number("expected") or 0 for e in events), default=0)
    is_form = any(line.startswith("### ") for line in output.end_lines)  # it may quote one twice
    if is_form or not all(0 < e.again - e.line < _NEAR_AGENT for e in events) or len(ranks) >= size:
        return None
    text = f"{name_ranks(ranks)} of {size:,} came twice and the others not at all: hosts took the "
    return _stuck("store", f"{text}same ranks", events[0], *words().steps["same ranks"])


def _at_stage(output: JobOutput) -> EndingResult | None:
    """A stage of the start in which a job can stand, if the text ends there."""
    have_joined = any("complete" in e.fields for e in _of(output, "joining"))
    kinds = ("stage",) if _of(output, "closing") else ("stage", "preparing")
    events = [replace(e, line=max(e.line, e.again)) for e in _of(output, *kinds)]
    events = [e for e in events if not (have_joined and e.name == "torch-join")]
    last = max(events, key=lambda e: e.line, default=None)
    is_first = last is not None and last.name == "ddp-first-iteration"  # training continues
    if last is None or not _is_at_end(last, output, 3 if is_first else STAGE_LINES):
        return None
    after = [e for e in _of(output, "closing") if e.file == last.file and e.line > last.line]
    if _went_on(last, output) or (after and not _of(output, "stopped")):
        return None
    if last.yields == "stage":
        says, steps = _told(last)
        return EndingResult(cause="stage", verdict=f"Not decided: {says}.", next_steps=steps)
    text = f"the text ends while a process works: {_prepares(last)}"
    return _undecided("stage", text, "preparing") if _prepares(last) else None


def _went_on(event: OutputEvent, output: JobOutput) -> bool:
    """Whether lines after an event show that a job continued: a loss, or counters that differ."""
    after = _after(event, output)
    found = [one for line in after for one in re.finditer(words().patterns["counter"], line)]
    names = [one.string[max(one.start() - 8, 0) : one.start()] + one[0][:2] for one in found]
    names = [re.sub(r"\d", "", name) for name in names]
    numbers = {(name, one[one.lastindex or 0]) for name, one in zip(names, found, strict=True)}
    return len(numbers) > len({*names}) or _has_loss(event, output)


def _joining(output: JobOutput) -> EndingResult | None:
    """Ranks that began to join the process group, if the text ends before all did."""
    events = _of(output, "joining", "agents")
    nodes = {e.fields["node"] for e in events if "node" in e.fields and "done" not in e.fields}
    nodes -= {e.fields["node"] for e in events if "done" in e.fields}
    if nodes:
        least = max((e.number("nodes") or 0 for e in events), default=0)
        count = f"{len(nodes):,} of {'at least ' if least else ''}{least or 'the'} hosts"
        who = f"{count} ({', '.join(sorted(nodes)[:4])}) {'wait' if len(nodes) > 1 else 'waits'}"
        return _undecided("joining", words().says("hosts", who=who), "join")
    ended = {e.number("complete") for e in events}
    keys = {n for e in events if (n := e.number("key")) is not None} - ended
    events = [e for e in events if e.number("key") in (None, max(keys, default=None))]
    begun = {e.rank for e in events if e.rank is not None}
    size = max((e.number("expected") or 0 for e in events), default=0)
    is_done = not keys and any("complete" in e.fields for e in events)
    if not (begun or is_done) or any("joined" in e.fields for e in events):
        return None
    if is_done or len(begun) >= size:
        last = max((replace(e, line=max(e.line, e.again)) for e in events), key=lambda e: e.line)
        if size < 2 or not _is_at_end(last, output, STAGE_LINES) or _went_on(last, output):
            return None
        did, library = "joined" if is_done else "began to join", _backend(output)
        text = words().says("all joined", size=size, did=did, library=library)
        return _undecided("joining", text, f"{library} is ready")
    who = f"{capitalized(name_ranks(begun))} of {size:,} {'wait' if len(begun) > 1 else 'waits'}"
    others = name_ranks({*range(min(size, _MAX_NAMED))} - begun)
    return _undecided("joining", words().says("some joined", who=who, others=others), "join")


def _crossed(output: JobOutput) -> EndingResult | None:
    """Ranks of a pipeline whose schedules send before they receive what the other one sends."""
    rows = {e.number("own") or 0: e for e in _of(output, "schedule")}
    action = words().patterns["action"]
    left = {rank: [*re.finditer(action, e.fields["actions"])] for rank, e in rows.items()}
    while len(left) > 1 and all(left.values()):
        ends = {rank: _message(actions[0]) for rank, actions in left.items()}
        both = Counter(ends.values())
        ready = [rank for rank, end in ends.items() if end is None or both[end] > 1]
        if not ready:
            told = (f"rank {rank} waits in {actions[0][0]}" for rank, actions in left.items())
            text = f"the schedules cross: {', '.join([*told][:4])}, and no rank is at the other end"
            event = next(iter(rows.values()))
            return _stuck("stage", text, event, *words().steps["schedules"])
        for rank in ready:
            del left[rank][0]
    return None


def _message(action: re.Match[str]) -> tuple[str, str, int] | None:
    """The kind, batch and sender of a message of a schedule; None if an action only computes."""
    stage, what, kind, batch = action.groups("")
    is_backward = kind.upper() != "F"
    sender = int(stage) + (2 * is_backward - 1) * (what.upper() == "RECV")
    return (kind.upper(), batch, sender) if what else None


def _backend(output: JobOutput) -> str:
    """The library of the job's collectives, if its lines name it, such as ``NCCL``."""
    told = {name for e in _of(output, "backend") for name in e.fields}
    texts = (e.text for e in output.events if e.yields not in ("joining", "complaint", "backend"))
    default = "NCCL" if any("NCCL" in text for text in texts) else "the collective library"
    return min(told, default=default)


def _complained(output: JobOutput) -> EndingResult | None:
    """A text that says itself that the job stands still, and shows nothing else."""
    around = "\n".join((said_by(output), *output.end_lines))
    cause = words().search("said_cause", around)
    told = cause[cause.lastindex or 0].strip() if cause else ""
    why = next((e.fields["why"] for e in _of(output, "complaint") if "why" in e.fields), told)
    idle = _idle_gpus(around)
    if absent := _of(output, "absent"):
        (told, steps), ranks = _told(absent[0]), absent[0].ranks()
        return _stuck("behind" if ranks else "complaint", told, absent[0], *steps, ranks=ranks)
    if why and not idle:
        text = words().says("because", why=why, error=_last_error(output))
        said = _undecided("complaint", text, "complaint")
        steps = words().steps["uneven"] if words().search("uneven", why) else advice_on("why", why)
        return replace(said, next_steps=(*steps, *said.next_steps))
    if stood := _stood(output, _of(output, "ignored")):
        return stood
    shown, late = _apart(output)
    if late:
        return replace(_stuck("complaint", shown, _of(output, "complaint")[0]), suspects=late)
    closing = _of(output, "closing")
    shown = shown or last_printed(_before(closing[0], output) if closing else output)
    if re.search(r"NCCL INFO Channel \d", shown):
        text = "the text ends while NCCL sets up: its last lines connect channels"
        return _undecided("set-up", text, "set-up")
    texts = (("program", around), ("complaint", said_by(output)), ("complaint", shown))
    at = next((row for one in texts if (row := class_of(*one))), None)
    is_cut = any('File "' in line for line in output.end_lines)
    lacks = words().says("lacks", whole="whole " * is_cut)
    if words().search("native_frames", "\n".join(next(iter(output.ends.values()), ()))):
        shown, lacks = "", "Its native stack, of a debugger, names no call that is known to wait"
    place = at.says if at else f" in {op}" if (op := said_operation(output)) else ""
    text = f"the job is said to stand still{place}"
    if idle:
        return _undecided("complaint", text + idle, "complaint")
    is_test = words().search("tests", around)
    said = _undecided("complaint", f"{text}. {shown}{lacks}", "tests" if is_test else "complaint")
    first = words().steps["over PCIe"] if words().search("over_pcie", around) else ()
    return replace(said, next_steps=(*((at.text,) if at else ()), *first, *said.next_steps))


def _apart(output: JobOutput) -> tuple[str, tuple[int, ...]]:
    """The last positions that ranks print of themselves, if they differ, and who lacks the last."""
    found = (re.search(words().patterns["rank_at"], line) for line in output.end_lines)
    read = ((*filter(None, at.groups()),) for at in found if at)
    came = grouped((int(rank), (what.lower(), int(n.replace(",", "")))) for rank, what, n in read)
    last = grouped((some[-1], rank) for rank, some in sorted(came.items()))
    if len(last) < 2 or len({what for what, _ in last}) > 1:
        return "", ()
    (what, low), (_, high) = min(last), max(last)
    late, steps = last[what, low], came[last[what, high][0]]
    is_next = all({(what, low), *came[rank]} == {*steps[:-1]} for rank in late)
    if len(last) == 2 and is_next and len(steps) > 2:
        who, others = name_ranks(late), name_ranks(last[what, high])
        at = {"what": what, "low": low, "high": high}
        return words().says("later ranks", who=who, others=others, **at), tuple(late)
    told = [f"{name_ranks(ranks)} at {what} {at:,}" for (_, at), ranks in last.items()]
    return words().says("at different", what=", ".join(told[:4])), ()


def _idle_gpus(text: str) -> str:
    """GPUs of a job that nvidia-smi shows idle while others work; empty without any."""
    seen = re.findall(words().patterns["of_smi"], text)  # the last table counts
    used = {int(gpu): int(use) for gpu, held, use in seen if int(held) >= _HELD_MIB}
    idle = [gpu for gpu, use in used.items() if use <= _IDLE_PERCENT]
    busy = len([gpu for gpu, use in used.items() if use >= 100 - _IDLE_PERCENT])
    pids = {int(gpu): int(pid) for gpu, pid in re.findall(words().patterns["process_of_smi"], text)}
    gone = {*range(min(pids, default=0), max(pids, default=0))} - {*pids}
    first = {pid - gpu for gpu, pid in pids.items()}
    if len(gone) == len(first) == 1 < len(pids):
        return words().says("gone process", gpu=gone.pop())
    if not 0 < len(idle) < busy:
        return ""
    gpus = f"GPU{'s' * (len(idle) > 1)} {', '.join(map(str, idle))}"
    return words().says("idle GPUs", idle=gpus, busy=counted(busy, "other"))


_HELD_MIB, _IDLE_PERCENT = 1000, 5
_MIN_SAID = 16  # a shorter line, such as a heading, tells nothing


def _before(event: OutputEvent, output: JobOutput) -> JobOutput:
    """The output whose last lines are those before an event."""
    lines = output.ends.get(event.file, ())
    at = event.line - 1 - output.lines_of.get(event.file, 0) + len(lines)
    return replace(output, ends={"": lines[: max(at, 0)]})


def last_printed(output: JobOutput) -> str:
    """A sentence with the first trouble at the end of the output, or else with its last line.

    It is empty if there are several files, or only sentences that people wrote.
    """
    told = {event.text[:_MAX_SAID] for event in _of(output, "complaint")}
    ends = map(str.strip, output.end_lines)
    own = [*takewhile(lambda line: not words().search("elsewhere", line), ends)]
    lines = [x for x in own if not words().search("prose", x)
             and x[:_MAX_SAID] not in told and x[:1] not in "|+"]  # fmt: skip
    trouble = next((x for x in lines if len(x) >= _MIN_SAID and words().search("trouble", x)
                    and not words().search("harmless", x)), "")  # fmt: skip
    printed = (x for x in reversed(lines) if words().search("printed", x))
    if not (line := trouble or next(printed, "")) or len(output.ends) > 1:
        return ""
    last = [x for x in own if 3 < len(x) < _MIN_SAID or x in lines][-1]
    said = words().said["trouble" if trouble else "last line" if last == line else "near end"]
    return f"{said} “{line if len(line) <= _MAX_SAID else f'…{line[-_MAX_SAID:].lstrip()}'}”. "


def _calls(output: JobOutput) -> EndingResult | None:
    """Ranks whose last call of a group is behind that of others, if calls are logged."""
    named = (e for e in _of(output, "setup") if "comm" in e.fields)
    members = {(e.fields["process"], e.fields["comm"]): e for e in named}
    groups: dict[str, dict[int, tuple[int, OutputEvent]]] = {}
    calls = _of(output, "calls")
    is_one_host = len({e.fields.get("process", "").partition(":")[0] for e in calls}) == 1
    for event in calls:
        fields = event.fields
        known = members.get((fields.get("process", ""), fields.get("comm", "")))
        own = event.number("gpu" if is_one_host and "gpu" in fields else "own")
        rank = own if known is None else known.number("member")
        if rank is not None:
            number = event.number("number") or int(fields.get("count", "0"), 16)
            groups.setdefault(fields.get("size", ""), {}).setdefault(rank, (number, event))
    for size, last in groups.items():
        highest = max(number for number, _ in last.values())
        late = {rank: one for rank, one in last.items() if one[0] < highest}
        is_whole = len(last) == int(size) if size else len(last) > 1
        kinds = grouped((_launch(event), rank) for rank, (_, event) in last.items())
        if is_whole and not late and len(kinds) > 1:
            told = (f"{name_ranks(ranks)} {kind}" for kind, ranks in kinds.items())
            what = "; ".join([*told][:4])
            text = f"ranks launched different collectives as number {highest:,}: {what}"
            return _stuck("mismatch", text, next(e for _, e in last.values()))
        if not is_whole or not late or 2 * len(late) > len(last):
            continue
        at, event = min(late.values(), key=lambda one: one[0])
        ahead = next(e for number, e in last.values() if number == highest)
        last_calls = {"at": at, "what": _launch(event), "highest": highest, "ahead": _launch(ahead)}
        text = words().says("calls", who=name_ranks(late), **last_calls)
        found = _stuck("behind", text, event, ranks=late)
        return replace(found, alternatives=(words().said["few calls"],))
    return None


def _set_up(output: JobOutput) -> EndingResult | None:
    """How far NCCL came in each process, if its lines are all that there is."""
    events = _of(output, "setup")
    last: dict[str, str] = {}
    for event in events:  # since NCCL 2.22, channels are connected by the first collective
        process, stage = event.fields["process"], event.fields["stage"]
        if last.get(process) != _READY or stage != "Connected":
            last[process] = stage
    if not last or _has_loss(events[-1], output):
        return None
    ready = sum(stage == _READY for stage in last.values())
    begun = [stage for stage in last.values() if stage != _READY]
    if not begun:
        size = max(event.number("size") or 0 for event in events)
        ranks = {e.fields.get("member") for e in events if e.number("size") == size}
        where = f"{len(ranks):,} of {size:,} ranks" if size else counted(ready, "process")
        after = "so what stands came after it" if len(ranks) == size else "the others are not shown"
        text = f"NCCL was ready (“{_READY}”) on {where}, {after}"
        return _undecided("ready", text, "NCCL is ready")
    stage, count = Counter(begun).most_common(1)[0]
    chosen = (e.fields for e in events if "network" in e.fields)
    networks = _who_has((f["network"], f["process"].rpartition(":")[0]) for f in chosen)
    apart = f"hosts chose different networks: {networks}" if networks else _interfaces(events)
    if apart and not ready:
        text = f"NCCL's set-up does not end, most likely because {apart}"
        steps = words().steps["networks" if networks else "interfaces"]
        return _stuck("set-up", text, events[0], *steps)
    came = f"{ready:,} of {counted(len(last), 'process')} came" if ready else "no process came"
    which = "all" if count == len(last) else "the others" if count == len(begun) else "some"
    is_early = stage in ("Bootstrap", "Using network", "Init START")
    if absent := _unheard(events):
        return _undecided("set-up", words().says("absent", who=absent), "absent")
    text = f"the text ends while NCCL sets up: {came} to “{_READY}”, and {which} stand after "
    are_most = 2 * len(last) > max(event.number("size") or 2 for event in events)
    is_one_host = are_most and len({name.partition(":")[0] for name in last}) == 1
    step = "set-up of a host" if is_one_host else "early set-up" if is_early else "set-up"
    return _undecided("set-up", f"{text}{words().stages[stage]}", step)


def _unheard(events: Sequence[OutputEvent]) -> str:
    """The few ranks of a communicator that print nothing while all others do; empty without any."""
    named = grouped((e.number("size"), e.number("member")) for e in events if "member" in e.fields)
    if len(named) != 1:
        return ""
    size, members = next(iter(named.items()))
    absent = {*range(size or 0)} - {*members}
    return name_ranks(absent) if 0 < 4 * len(absent) <= len({*members}) + 1 else ""


def _undecided(cause: str, says: str, step: str) -> EndingResult:
    """A text that ends in the start of a job; ``step`` names steps in ``words.toml``."""
    steps = words().steps[step]
    return EndingResult(cause=cause, verdict=f"Not decided: {says}.", next_steps=steps)


def _who_has(pairs: Iterable[tuple[str, str]]) -> str:
    """For example ``IB on a, Socket on b``; empty if all have the same, or one has two."""
    found = {what: {*who} for what, who in grouped(pairs).items()}
    is_apart = sum(map(len, found.values())) == len(set().union(*found.values()))
    texts = [f"{what} on {', '.join(sorted(who)[:3])}" for what, who in found.items()]
    return ", ".join(texts) if is_apart and len(found) > 1 else ""


def _interfaces(events: Iterable[OutputEvent]) -> str:
    """What is wrong with the interfaces over which processes of several hosts meet; else empty."""
    told = (e.fields for e in events if "interface" in e.fields)
    pairs = ((f["interface"], f["address"], f["process"].rpartition(":")[0]) for f in told)
    places = {place: {*hosts} for place, hosts in grouped((p[:2], p[2]) for p in pairs).items()}
    hosts = set().union(*places.values())
    networks = {address.rpartition(".")[0].rpartition(".")[0] for _, address in places}
    is_local = any(words().search("local", ":".join(p)) or places[p] == hosts for p in places)
    if len(hosts) < 2 or not (is_local or (len(networks) > 1 and len({n for n, _ in places}) > 1)):
        return ""
    texts = (
        f"{name} ({address}) on {', '.join(sorted(some)[:3])}"
        for (name, address), some in sorted(places.items(), key=lambda one: len(one[1]))
    )
    what = "hosts use different networks" if len(networks) > 1 else "the hosts' interface is local"
    return f"{what}: {', '.join([*texts][:4])}"


_READY = "Init COMPLETE"


def _unreadable(output: JobOutput) -> list[OutputEvent]:
    """Tracebacks at the end into which several ranks wrote at once, or that are cut off."""
    read = {(e.file, e.line) for e in _of(output, "cut", "exception")}
    events = (e for e in _of(output, "mixed") if (e.file, e.line) not in read)
    is_survived = _survived(output)
    return [e for e in events if _is_at_end(e, output) and not is_survived(e)]


def _why_mixed(output: JobOutput) -> str:
    """Why the first of them cannot be read."""
    if 'File "' in _unreadable(output)[0].text:
        return "is cut off in its only line"
    return "is incomplete, or several ranks wrote into it"


def _hinted(output: JobOutput, kind: str = "hint") -> EndingResult | None:
    """What a warning, or a quoted error within a sentence, says if nothing else is known."""
    events = [e for e in _of(output, kind) if _row(e).says or _is_of_program(e)]
    events.sort(key=lambda e: "pid" in e.fields)  # what a process waits for says more
    if not events or not _is_at_end(events[0], output):
        return None
    if "type" not in events[0].fields:
        told, steps = _refined(output, events[0].name.partition("-")[0], _told(events[0]))
        how = "Stuck: " if kind != "hint" and _of(output, "complaint") else ""
        return _made("hint", capitalized(how + told) + ".", events[0], *steps, state=how and STUCK)
    line, steps = _exception(events[0])
    return _made("exception", f"A process failed: {line.rstrip('.')}.", events[0], *steps)


def _mixed(output: JobOutput) -> EndingResult | None:
    """Tracebacks that cannot be read."""
    events = _unreadable(output)
    if not events:
        return None
    if events[0].text.startswith("^C"):
        text, steps = "The job was interrupted (Ctrl-C or SIGINT).", advice_on("stopped", "SIGINT")
        return _made("interrupted", text, events[0], *steps, ranks=())
    why = _why_mixed(output)
    text = f"A process failed with an exception that cannot be read: its traceback {why}."
    steps = (*advice_on("cut", ""), *advice_on("mixed", ""))
    return _made("exception", text, events[0], *steps, ranks=())


def _reported(output: JobOutput) -> EndingResult | None:
    """An error that most often reports the end of another process, if nothing else is known."""
    events = [*filterfalse(_survived(output), _of(output, "exception", "error"))]
    if not events:
        return None
    line, _ = _exception(events[0])
    text = f"{_subject(events[0])} reports {line}. Most often another failure causes it."
    return _made("error", text, events[0], *advice_on("reported", line), ranks=())


def _closed(output: JobOutput) -> EndingResult | None:
    """Processes that their launcher ended, if the line that says why is missing."""
    told = _of(output, "closing")
    events = told or [*filter(_is_launchers, _of(output, "cut", "frames"))]
    kind = class_of("closing", "closing" if told else "\n".join(map(_frames, events)))
    if kind is None or not events:
        return None
    if (quoted := _hinted(output)) and quoted.cause == "exception":
        return quoted
    if _of(output, "complaint") and not any("FAILED" in e.text or "Fail" in e.text for e in events):
        return None  # it was stopped because it stood
    last = max(max(e.line, e.again) for e in events)
    if restarts := [e for e in _of(output, "restart") if last - e.line <= _JUST_BEFORE]:
        (says, steps), state = _told(restarts[-1]), FAILED * ("left" in restarts[-1].fields)
        return _made("exit", f"{says}.", restarts[-1], *steps, ranks=(), state=state)
    named = next((e for e in _of(output, "hint") if "name" in e.fields), None)
    if named is not None and not told:
        says = words().said["no name"].format_map(named.fields)
        return _made("exit", says, named, *_told(named)[1], ranks=())
    why = last_printed(_before(events[0], output)).strip() if told else ""
    return _made("exit", kind.says, events[0], kind.text, why=filter(None, (why,)), ranks=())


def _is_at_end(event: OutputEvent, output: JobOutput, most: int = _NEAR_LINES) -> bool:
    return output.lines_of.get(event.file, 0) - event.line <= most


def _nan(output: JobOutput) -> EndingResult | None:
    events = _of(output, "nan")
    norms = [e for e in events if "norm" in e.fields and e.fields.keys() - {"norm"}]
    is_last = len(norms) > 1 and norms[0].line > _NAN_NORMS and _is_at_end(norms[-1], output, 1)
    norms = norms if is_last or len(norms) >= _NAN_NORMS else []
    events = [e for e in events if "norm" not in e.fields or e in norms]
    if not events:
        return None
    event = min(events, key=lambda e: ("norm" in e.fields, float(e.fields.get("scale", 0))))
    latest = max(max(e.line, e.again) for e in events)
    if output.lines_of.get(event.file, 0) - latest > _NEAR_LINES:
        return None  # long ago: it recovered, or was that of an earlier run
    is_once = len(events) == 1 and not (event.again or _is_at_end(event, output, 1))
    if is_once and ("loss" in event.fields or _of(output, "complaint")):
        return None
    if _row(event).says:
        told, steps = _told(event)
        return _made("nan", f"{told}.", event, *steps)
    step = next(filter(None, map(event.fields.get, ("step", "iteration", "updates"))), "")
    at = f" at step {int(step):,}" if step else ""
    if "norm" in event.fields:
        told, steps = f"The gradient norm was NaN{at} and later", advice_on("nan", "norm")
        return _made("nan", f"{told}.", event, *steps)
    what = "A gradient" if "grad" in event.fields else "The loss"
    what += "" if event.rank is None else f" of rank {event.rank}"
    steps = advice_on("nan", "first" if step in ("0", "1") else "")
    return _made("nan", f"{what} became NaN{at}.", event, *steps)


_ROOTS = (_host_memory, _xid, _cancelled, _own_errors, _crash)  # they follow from no other
_CAUSES: dict[Callable[[JobOutput], EndingResult | None], tuple[str, ...]] = {
    _host_memory: (),
    _xid: ("xid",),
    _cancelled: (),
    _own_errors: (),
    _killed: (),
    _crash: (),
    _left: ("timeout",),
    _twice: (),
    _lost_before: ("timeout",),
    _mismatch: ("mismatch",),
    _behind: (),
    _missing: (),
    _ready: (),
    _reached: ("reached",),
    _unreachable: (),
    diagnose_positions: (),
    _joined: ("joined",),
    _store: (),
    _died: (),
    _peer: (),
    _frozen: ("frozen", "timeout"),
    _exited: (),
    partial(_xid, cause="device"): ("xid",),
    _stopped: ("stopped", "cancelled"),
    _waiting: (),
    _nan: ("nan",),
    _interrupted: (),
    _cut: (),
    _reported: (),
    _mixed: (),
    diagnose_stacks: (),
    _crossed: ("complaint",),
    partial(_hinted, kind="outage"): ("outage",),
    partial(_hinted, kind="remedy"): ("remedy",),
    _at_stage: (),
    _joining: (),
    _calls: (),
    _set_up: (),
    partial(_cut, kind="frames"): (),
    lambda output: _ended(_of(output, "told_exit")[0], output): ("told_exit",),
    _closed: (),
    _complained: ("complaint",),
    lambda output: _undecided(  # a text that only says itself that the job ended
        "complaint", words().says("silence", last=last_printed(output)), "silence"
    ): ("silence",),
    _waits: ("wait",),
    _hinted: (),
    lambda _: _undecided("aside", words().said["aside"], "aside"): ("aside",),
}
"""Causes, each with the kinds of lines without one of which it is not tried."""
