"""Damage as recordings of jobs really have it: structure-aware changes of the traces of one rank.

Each damage takes the traces of a job, by rank, and a source of chance, and returns changed copies
of some of them. The files stay valid traces, unless the damage is that they are not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, TypeAlias

__all__ = ["DAMAGES", "Traces"]

Event: TypeAlias = dict[str, Any]
Traces: TypeAlias = Mapping[int, dict[str, Any]]
"""The traces of a job, as JSON, by rank."""

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
COMMUNICATION = ("nccl", "rccl")


def _events(trace: dict[str, Any]) -> list[Event]:
    events: list[Event] = trace["traceEvents"]
    return events


def _timed(trace: dict[str, Any]) -> list[Event]:
    return [event for event in _events(trace) if event.get("ph") == "X"]


def _kernels(trace: dict[str, Any]) -> list[Event]:
    return [event for event in _timed(trace) if event.get("cat") in DEVICE]


def _is_communication(event: Event) -> bool:
    return str(event.get("name", "")).lower().startswith(COMMUNICATION)


def _span(trace: dict[str, Any]) -> tuple[float, float]:
    events = [event for event in _timed(trace) if event.get("cat") != "Trace"]
    return (
        min(event["ts"] for event in events),
        max(event["ts"] + event.get("dur", 0) for event in events),
    )


def _one(traces: Traces, chance: Random) -> tuple[int, dict[str, Any]]:
    rank = chance.choice(sorted(traces))
    return rank, copy.deepcopy(traces[rank])


def _without(trace: dict[str, Any], lost: Callable[[Event], bool]) -> dict[str, Any]:
    return {**trace, "traceEvents": [event for event in _events(trace) if not lost(event)]}


# Events that are missing --------------------------------------------------------------------------


def lost_kernels(traces: Traces, chance: Random) -> Traces:
    """Kernels of a part of the recording, of one kind or of a share, are missing."""
    rank, trace = _one(traces, chance)
    first, last = _span(trace)
    low = chance.uniform(0, 0.8)
    high = chance.choice((1.0, chance.uniform(low, 1.0)))
    share = chance.choice((1.0, 1.0, 0.5, 0.1))
    which = chance.choice(("all", "computation", "communication"))

    def lost(event: Event) -> bool:
        if event.get("cat") not in DEVICE or chance.random() > share:
            return False
        if which != "all" and _is_communication(event) != (which == "communication"):
            return False
        return bool(first + low * (last - first) <= event["ts"] <= first + high * (last - first))

    return {rank: _without(trace, lost)}


def lost_launches(traces: Traces, chance: Random) -> Traces:
    """Launches of a part of the recording are missing."""
    rank, trace = _one(traces, chance)
    first, last = _span(trace)
    low = first + chance.uniform(0, 0.8) * (last - first)
    share = chance.choice((1.0, 0.5, 0.1))
    calls = ("cuda_runtime", "cuda_driver")
    return {
        rank: _without(
            trace,
            lambda e: e.get("cat") in calls and e["ts"] >= low and chance.random() < share,
        )
    }


def no_gpu_rows(traces: Traces, chance: Random) -> Traces:
    """A rank has no row of its GPU."""
    rank, trace = _one(traces, chance)
    device = (*DEVICE, "gpu_user_annotation")
    return {rank: _without(trace, lambda event: event.get("cat") in device)}


def cut_off(traces: Traces, chance: Random) -> Traces:
    """A rank's recording ends early, in a valid file."""
    rank, trace = _one(traces, chance)
    first, last = _span(trace)
    end = first + chance.uniform(0.2, 0.95) * (last - first)
    return {rank: _without(trace, lambda event: event.get("ts", first) > end)}


def begins_late(traces: Traces, chance: Random) -> Traces:
    """A rank's recording lacks its first part."""
    rank, trace = _one(traces, chance)
    first, last = _span(trace)
    begin = first + chance.uniform(0.05, 0.6) * (last - first)
    return {rank: _without(trace, lambda event: event.get("ts", last) < begin)}


def lost_rank(traces: Traces, chance: Random) -> Traces:
    """A rank's file has no event that can be used."""
    rank, trace = _one(traces, chance)
    return {rank: {**trace, "traceEvents": []}}


def lost_stream(traces: Traces, chance: Random) -> Traces:
    """A rank has no row of one stream, or not even the launches."""
    rank, trace = _one(traces, chance)
    of = {id(event): str(event["args"].get("stream", event["tid"])) for event in _kernels(trace)}
    stream, with_launches = chance.choice(sorted({*of.values()})), chance.random() < 0.5
    launched = {
        event["args"].get("correlation") for event in _kernels(trace) if of[id(event)] == stream
    }

    def lost(event: Event) -> bool:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            return with_launches and event.get("args", {}).get("correlation") in launched
        return of.get(id(event)) == stream

    return {rank: _without(trace, lost)}


def lost_stretch(traces: Traces, chance: Random) -> Traces:
    """A part of a rank's recording is missing, but for the step marks."""
    rank, trace = _one(traces, chance)
    first, last = _span(trace)
    low = first + chance.uniform(0.05, 0.8) * (last - first)
    high = low + chance.uniform(0.03, 0.3) * (last - first)
    marks = {id(event) for event in _marks(trace)}
    return {
        rank: _without(
            trace,
            lambda e: e.get("ph") == "X" and low <= e["ts"] <= high and id(e) not in marks,
        )
    }


def lost_operators(traces: Traces, chance: Random) -> Traces:
    """Operators and annotations of a rank are missing."""
    rank, trace = _one(traces, chance)
    share, marks = chance.choice((1.0, 0.5)), {id(event) for event in _marks(trace)}
    return {
        rank: _without(
            trace,
            lambda e: (
                e.get("cat") in ("cpu_op", "user_annotation")
                and id(e) not in marks
                and chance.random() < share
            ),
        )
    }


def lost_collectives(traces: Traces, chance: Random) -> Traces:
    """Collectives of a rank are missing with their launches."""
    rank, trace = _one(traces, chance)
    share = chance.choice((1.0, 0.3, 0.05))
    lost = {
        event["args"].get("correlation")
        for event in _kernels(trace)
        if _is_communication(event) and chance.random() < share
    }
    return {rank: _without(trace, lambda e: e.get("args", {}).get("correlation") in lost)}


# Times that are wrong -----------------------------------------------------------------------------


def other_units(traces: Traces, chance: Random) -> Traces:
    """Durations of a rank are in another unit."""
    rank, trace = _one(traces, chance)
    factor = chance.choice((1e-3, 1e3))
    for event in _timed(trace):
        if event.get("cat") in DEVICE:
            event["dur"] = round(event["dur"] * factor, 6)
    return {rank: trace}


def all_in_other_units(traces: Traces, chance: Random) -> Traces:
    """All times of a rank are in another unit."""
    rank, trace = _one(traces, chance)
    factor = chance.choice((1e-6, 1e-3, 1e3))
    for event in _timed(trace):
        event["ts"] = round(event["ts"] * factor, 6)
        event["dur"] = round(event.get("dur", 0) * factor, 6)
    base = trace.get("baseTimeNanoseconds")
    if base is not None:
        trace["baseTimeNanoseconds"] = int(base * factor) if factor < 1 else base
    return {rank: trace}


def overlong(traces: Traces, chance: Random) -> Traces:
    """One or a few kernels last impossibly long."""
    rank, trace = _one(traces, chance)
    first, last = _span(trace)
    for event in chance.sample(_kernels(trace), chance.choice((1, 1, 2, 4))):
        event["dur"] = (last - first) * chance.choice((1.5, 10.0, 1e3, 1e5))
    return {rank: trace}


def negative(traces: Traces, chance: Random) -> Traces:
    """Some durations are negative."""
    rank, trace = _one(traces, chance)
    which = _kernels(trace) if chance.random() < 0.7 else _timed(trace)
    for event in chance.sample(which, min(len(which), chance.choice((1, 8, 30)))):
        event["dur"] = -event.get("dur", 1) - 1
    return {rank: trace}


def clock_jump(traces: Traces, chance: Random) -> Traces:
    """A rank's clock jumps inside the recording."""
    rank, trace = _one(traces, chance)
    first, last = _span(trace)
    at = first + chance.uniform(0.1, 0.9) * (last - first)
    by = chance.choice((50_000, 5_000, 1_000, 0.3 * (last - first))) * chance.choice((1, 1, -1))
    for event in _timed(trace):
        if event["ts"] >= at:
            event["ts"] = round(event["ts"] + by, 3)
    return {rank: trace}


def wrong_pace(traces: Traces, chance: Random) -> Traces:
    """A rank's clock runs too fast or too slow."""
    rank, trace = _one(traces, chance)
    first, _ = _span(trace)
    factor = chance.choice((0.99, 1.001, 1.01, 1.1))
    for event in _timed(trace):
        event["ts"] = round(first + (event["ts"] - first) * factor, 3)
        event["dur"] = round(event.get("dur", 0) * factor, 3)
    return {rank: trace}


def rounded(traces: Traces, chance: Random) -> Traces:
    """Times of a rank are rounded, to 1 ms at worst."""
    rank, trace = _one(traces, chance)
    to = chance.choice((1, 10, 100, 1000))
    for event in _timed(trace):
        end = round((event["ts"] + event.get("dur", 0)) / to) * to
        event["ts"] = round(event["ts"] / to) * to
        event["dur"] = end - event["ts"]
    return {rank: trace}


# Ranks and steps that are wrong -------------------------------------------------------------------


def repeated_rank(traces: Traces, chance: Random) -> Traces:
    """One rank's events stand under another rank's number."""
    of, to = chance.sample(sorted(traces), 2)
    copied = copy.deepcopy(traces[of])
    copied["distributedInfo"] = traces[to].get("distributedInfo", {})
    return {to: copied}


def _marks(trace: dict[str, Any]) -> list[Event]:
    return [e for e in _timed(trace) if str(e.get("name", "")).startswith("ProfilerStep#")]


def overlapping_steps(traces: Traces, chance: Random) -> Traces:
    """Step marks of a rank reach into the next, or begin before the last has ended."""
    rank, trace = _one(traces, chance)
    marks = [e for e in _marks(trace) if e.get("cat") == "user_annotation"]
    for event in chance.sample(marks, min(len(marks), chance.choice((1, 2, len(marks))))):
        more = event["dur"] * chance.uniform(0.1, 0.9)
        event["dur"] = round(event["dur"] + more, 3)
        if chance.random() < 0.5:
            event["ts"] = round(event["ts"] - more, 3)
    return {rank: trace}


def lost_marks(traces: Traces, chance: Random) -> Traces:
    """Step marks of a rank are missing."""
    rank, trace = _one(traces, chance)
    marks = [id(event) for event in _marks(trace)]
    lost = set(chance.sample(marks, chance.choice((1, len(marks))) if marks else 0))
    return {rank: _without(trace, lambda event: id(event) in lost)}


def renumbered_steps(traces: Traces, chance: Random) -> Traces:
    """Steps of a rank have other numbers."""
    rank, trace = _one(traces, chance)
    by = chance.choice((1, -1, 100))
    for event in _marks(trace):
        event["name"] = f"ProfilerStep#{int(event['name'].partition('#')[2]) + by}"
    return {rank: trace}


def other_sequence(traces: Traces, chance: Random) -> Traces:
    """Sequence numbers of a rank are one too high from some moment on."""
    rank, trace = _one(traces, chance)
    first, last = _span(trace)
    at = first + chance.uniform(0, 0.9) * (last - first)
    for event in _timed(trace):
        if "Seq" in event.get("args", {}) and event["ts"] >= at:
            event["args"]["Seq"] += 1
    return {rank: trace}


def other_names(traces: Traces, chance: Random) -> Traces:
    """Kernels of a rank have other names."""
    rank, trace = _one(traces, chance)
    number: dict[str, int] = {}
    for event in _kernels(trace):
        event["name"] = f"kernel_{number.setdefault(event['name'], len(number))}"
    return {rank: trace}


# Disorder that changes nothing --------------------------------------------------------------------


def shuffled(traces: Traces, chance: Random) -> Traces:
    """The events of a rank stand in another order."""
    rank, trace = _one(traces, chance)
    chance.shuffle(_events(trace))
    return {rank: trace}


def twice(traces: Traces, chance: Random) -> Traces:
    """Some events of a rank, or all of them, are there twice."""
    rank, trace = _one(traces, chance)
    share = chance.choice((1.0, 0.2))
    again = [copy.deepcopy(event) for event in _timed(trace) if chance.random() < share]
    return {rank: {**trace, "traceEvents": _events(trace) + again}}


DAMAGES: Final = (
    lost_kernels,
    lost_launches,
    no_gpu_rows,
    cut_off,
    begins_late,
    lost_rank,
    other_units,
    all_in_other_units,
    overlong,
    negative,
    clock_jump,
    repeated_rank,
    overlapping_steps,
    lost_marks,
    shuffled,
    twice,
    lost_stream,
    lost_stretch,
    lost_operators,
    lost_collectives,
    wrong_pace,
    rounded,
    renumbered_steps,
    other_sequence,
    other_names,
)
