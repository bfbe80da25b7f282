"""What a run directory adds to the ranks that were traced, and says of those that were not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from distprof.artefacts import FLIGHT_FILE
from distprof.artefacts.run_file import RankEntry
from distprof.ingest.discovery import TraceFile
from distprof.ingest.job.files import Folder
from distprof.ingest.job.run_directory import RunDirectory, rank_of_folder
from distprof.run.places import world_size_of_job
from distprof.run.run import Device, Gap, Rank
from distprof.units import fold_ranks, name_ranks

__all__ = ["describe_rank", "missing_ranks", "trace_gaps", "with_flight"]

_PROFILER = "profiler"


def with_flight(trace: TraceFile, directory: RunDirectory) -> TraceFile:
    """The trace with the Flight Recorder's dump of its rank, where there is one."""
    number = rank_of_folder(trace.path)
    place = directory.records.get(number) if number is not None else None
    if place is None or Folder(place.path).size(FLIGHT_FILE) is None:
        return trace
    return replace(trace, flight=Folder(place.path).child(FLIGHT_FILE).path)


def describe_rank(rank: Rank, directory: RunDirectory, entries: Mapping[int, RankEntry]) -> Rank:
    """The rank with what run.json says of it where its trace says nothing.

    The folder that a trace lies in tells its rank: the launcher made it.

    Args:
        rank: As its trace has it.
        directory: The run directory.
        entries: What run.json says of each rank.
    """
    number = rank_of_folder(rank.path)
    if number is not None and number in directory.records:
        rank = replace(rank, rank=number, rank_origin="run.json")
    entry = entries.get(rank.rank)
    if entry is None:
        return rank
    return replace(
        rank,
        world_size=rank.world_size or world_size_of_job(directory.job),
        host=rank.host or entry.host or None,
        device=_device(rank, entry),
    )


def _device(rank: Rank, entry: RankEntry) -> Device:
    return rank.device if rank.device.name else replace(rank.device, name=entry.device)


def missing_ranks(missing: Sequence[int], world_size: int) -> Gap:
    """Ranks of which no trace was found."""
    return Gap(
        what="missing-ranks",
        message=f"{len(missing)} of {world_size} ranks have no trace "
        f"({fold_ranks(missing)}): the last to arrive may be one of them.",
        ranks=tuple(missing),
    )


def trace_gaps(ranks: Sequence[Rank], directory: RunDirectory) -> list[Gap]:
    """Ranks without a trace: those that were not to have one, and those that should have."""
    job = directory.job
    traced = {rank.rank for rank in ranks}
    everyone = set(directory.records) | {entry.rank for entry in job.ranks}
    everyone |= set(range(world_size_of_job(job) or 0)) | traced
    missing = everyone - traced
    if not missing:
        return []
    reasons = _reasons(directory, missing)
    why = "; ".join(f"{name_ranks(numbers)}: {text}" for text, numbers in reasons.items())
    if not traced:
        message = f"No rank was traced ({why})." if why else "No trace was written."
        return [Gap(what="no-traces", message=message)]
    chosen = job.coverage.profiled_ranks
    wanted = everyone if chosen is None else everyone & set(chosen)
    gaps = []
    if wanted != everyone:
        gaps.append(_chosen_ranks(wanted, everyone, job.coverage.text))
    lost = sorted(missing & wanted)
    if lost:
        gap = missing_ranks(lost, len(everyone))
        gaps.append(replace(gap, message=f"{gap.message} {why}." if why else gap.message))
    return gaps


def _chosen_ranks(wanted: set[int], everyone: set[int], asked: str) -> Gap:
    return Gap(
        what="chosen-ranks",
        message=f"Only {name_ranks(wanted)} of {len(everyone)} were to be traced ({asked}).",
        ranks=tuple(sorted(everyone - wanted)),
    )


def _reasons(directory: RunDirectory, ranks: set[int]) -> dict[str, list[int]]:
    """Why the profiler of some of these ranks recorded nothing, by reason."""
    found: dict[str, list[int]] = {}
    for entry in directory.job.ranks:
        status = next((probe for probe in entry.probes if probe.name == _PROFILER), None)
        if entry.rank in ranks and status is not None and status.state != "on":
            why = status.reason.rstrip(".") or f"the profiler was {status.state}"
            found.setdefault(why, []).append(entry.rank)
    return found
