"""Join ranks into a run: topology, matched collectives, one clock, common window and gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

import numpy as np
from msgspec.structs import replace

from distprof.artefacts.record import Gap
from distprof.artefacts.run_file import RunFile
from distprof.errors import InputError
from distprof.ingest.job import RunDirectory, missing_ranks, trace_gaps
from distprof.ingest.job.rank_folder import read_clock_stamps
from distprof.join.alignment import align_clocks, check_causality
from distprof.join.clocks import clock_of_stamps, with_stamps
from distprof.join.instances import NO_STEP, step_labels
from distprof.join.invariants import broken
from distprof.join.lacking import (
    comparable_ranks,
    lacking_collectives,
    lacking_rows,
    lacking_steps,
    may_have_jumped,
    without_jumps,
)
from distprof.join.matching import match_collectives
from distprof.join.topology import build_topology
from distprof.join.waits import positions_of
from distprof.join.windows import find_window
from distprof.run.run import (
    RECENT_STEPS,
    CaptureWindow,
    ClockAlignment,
    CollectiveMatches,
    Rank,
    Run,
    TablesOf,
    light,
)
from distprof.run.tables import RankTables
from distprof.run.topology import MAX_WORLD_SIZE, Topology
from distprof.schema import Table
from distprof.units import fold_ranks, format_duration, format_ratio, name_ranks

_MIN_MATCHED_RATIO = 0.95
_MAX_VIOLATION_RATIO = 0.01
_MAX_RESIDUAL = 0.03  # of GPUs' clocks, as a share of the step, that lets times be compared


def assemble_run(
    source: str,
    ranks: Iterable[Rank],
    gaps: Iterable[Gap] = (),
    directory: RunDirectory | None = None,
    *,
    may_be_empty: bool = False,
) -> Run:
    """Join ranks into a run; InputError without a rank or a run directory, unless allowed."""
    by_number: dict[int, Rank] = {}
    twice = [rank.rank for rank in ranks if by_number.setdefault(rank.rank, rank) is not rank]
    kept = tuple(by_number[number] for number in sorted(by_number))
    if not kept and directory is None and not may_be_empty:
        raise InputError(source, expected="at least one readable trace", found="none")
    job = None if directory is None else directory.job
    kept, damage = comparable_ranks(kept)
    topology, matches, clock = _joined(kept, job)
    if may_have_jumped(matches, clock):
        sound, jumps = without_jumps(kept)
        if jumps:
            kept, damage = sound, [*damage, *jumps]
            topology, matches, clock = _joined(kept, job)
    clock, stamp_gaps = _with_stamps(kept, matches, clock, directory)
    window, window_gaps = (
        find_window(kept, matches, clock) if kept else (CaptureWindow(steps=()), ())
    )
    unsound = [*broken(kept)]
    return Run(
        source=source,
        ranks=kept,
        topology=topology,
        matches=matches,
        clock=clock,
        window=window,
        gaps=(
            *(directory.gaps if directory else ()),
            *gaps,
            *damage,
            *unsound,
            *lacking_steps(kept),
            *lacking_rows(kept, {rank for gap in unsound for rank in gap.ranks}),
            *lacking_collectives(kept, window.steps, topology.groups),
            *_number_gaps(kept, topology, twice, directory),
            *_match_gaps(kept, matches),
            *_clock_gaps(kept, clock, topology.nodes),
            *stamp_gaps,
            *window_gaps,
        ),
        job=job,
        records=directory.records if directory else {},
        errors=directory.errors if directory else (),
        run_dir=directory.folder.path if directory else "",
    )


def _joined(
    ranks: tuple[Rank, ...], job: RunFile | None
) -> tuple[Topology, CollectiveMatches, ClockAlignment]:
    topology = build_topology(ranks, job)
    matches = match_collectives(ranks, topology.groups, topology.nodes)
    clock = align_clocks(
        ranks, topology.nodes, matches, are_nodes_sure=topology.node_origin == "run.json"
    )
    return topology, matches, clock


def _with_stamps(
    ranks: Sequence[Rank],
    matches: CollectiveMatches,
    clock: ClockAlignment,
    directory: RunDirectory | None,
) -> tuple[ClockAlignment, list[Gap]]:
    """The alignment, refined with clock stamps unless they cause more causality violations."""
    if directory is None or len(clock.domains) < 2:
        return clock, []
    stamped, damaged = {}, []
    for rank in ranks:
        if rank.rank in directory.records:
            stamps, notes = read_clock_stamps(rank.rank, directory.records[rank.rank].path)
            damaged += [Gap(what="clock-stamps", message=n, ranks=(rank.rank,)) for n in notes]
            middle_ns = (rank.capture_start_ns + rank.capture_end_ns) // 2
            clock_stamp = clock_of_stamps(stamps, middle_ns)
            if clock_stamp is not None:
                stamped[rank.rank] = clock_stamp
    better = check_causality(ranks, matches, with_stamps(clock, stamped)) if stamped else clock
    return (clock if better.num_violations > clock.num_violations else better), damaged


def _number_gaps(
    ranks: Sequence[Rank], topology: Topology, twice: Sequence[int], directory: RunDirectory | None
) -> Iterator[Gap]:
    """Gaps from ranks that occur twice or are missing, and from world sizes that differ."""
    if twice:
        message = f"Several traces claim rank {fold_ranks(twice)}: distprof uses the first."
        yield Gap(what="duplicate-ranks", message=message, ranks=tuple(twice))
    missing = sorted(set(range(topology.world_size or 0)) - {rank.rank for rank in ranks})
    if directory is not None:
        yield from trace_gaps(ranks, directory)
    elif missing:
        yield missing_ranks(missing, topology.world_size or 0)
    sizes = sorted({rank.world_size for rank in ranks if rank.world_size})
    if len(sizes) > 1:
        other = tuple(r.rank for r in ranks if r.world_size not in (None, topology.world_size))
        yield Gap(
            what="mixed-world-size",
            message=f"Traces report world sizes {', '.join(map(str, sizes[:5]))}: they may "
            f"come from different jobs. distprof uses {topology.world_size}.",
            ranks=other,
        )
    absurd = tuple(rank.rank for rank in ranks if (rank.world_size or 0) > MAX_WORLD_SIZE)
    if absurd:
        yield Gap(
            what="absurd-world-size",
            message=f"Traces of ranks {fold_ranks(absurd)} report a world size above "
            f"{MAX_WORLD_SIZE}: distprof ignores it.",
            ranks=absurd,
        )


def _match_gaps(ranks: Sequence[Rank], matches: CollectiveMatches) -> Iterator[Gap]:
    ratio = matches.matched_ratio
    if ratio is not None and ratio < _MIN_MATCHED_RATIO:
        yield Gap(
            what="unmatched-collectives",
            message=f"Only {format_ratio(ratio)} of the collectives could be matched across "
            "ranks: for the others, waiting and transfer cannot be separated."
            + "".join(f" {note}" for note in matches.notes),
            fact=f"{format_ratio(1 - ratio)} of the collectives unmatched",
        )
    if matches.ambiguous_ranks:
        yield Gap(
            what="ambiguous-matching",
            message=f"Communication of {name_ranks(matches.ambiguous_ranks)} could be matched "
            "with that of other ranks in several equally plausible ways, so distprof leaves "
            "it unmatched. Record with a version of PyTorch that writes sequence numbers into "
            "traces, or mark steps with the profiler's step().",
            ranks=matches.ambiguous_ranks,
        )
    if matches.misnumbered_ranks:
        yield Gap(
            what="numbers-contradict-times",
            message=f"Sequence numbers and times of {name_ranks(matches.misnumbered_ranks)} "
            "contradict each other: where times are unambiguous, distprof matches "
            "collectives by their order instead." + "".join(f" {note}" for note in matches.notes),
            ranks=matches.misnumbered_ranks,
            fact="sequence numbers contradict times",
        )
    disagree = _step_disagreement(ranks, matches)
    if disagree is not None and disagree > 1 - _MIN_MATCHED_RATIO:
        yield Gap(
            what="steps-disagree",
            message=f"{format_ratio(disagree)} of the matched collectives are in steps with "
            "different numbers on different ranks: per-step comparisons between ranks "
            "are unreliable.",
        )


def _step_disagreement(ranks: Sequence[Rank], matches: CollectiveMatches) -> float | None:
    """Share of instances, among those with known steps, whose members are in different steps."""
    if matches.count == 0:
        return None
    labels = np.concatenate([step_labels(rank) for rank in ranks])
    lengths = np.array([len(rank.collectives) for rank in ranks])
    begin = np.cumsum(lengths) - lengths
    step = labels[begin[positions_of(ranks, matches.member_rank)] + matches.member_row]
    known = step != NO_STEP
    first = matches.offsets[:-1]
    limits = np.iinfo(np.int64)
    low = np.minimum.reduceat(np.where(known, step, limits.max), first)
    high = np.maximum.reduceat(np.where(known, step, limits.min), first)
    judged = low <= high
    return float((low < high)[judged].mean()) if judged.any() else None


def _clock_gaps(
    ranks: Sequence[Rank], clock: ClockAlignment, nodes: Mapping[str, tuple[int, ...]]
) -> Iterator[Gap]:
    if len(ranks) > 1 and not all(rank.has_epoch for rank in ranks):
        without = tuple(rank.rank for rank in ranks if not rank.has_epoch)
        yield Gap(
            what="no-epoch",
            message=f"Timestamps of ranks {fold_ranks(without)} do not count from the epoch: "
            "distprof compares ranks only through their collectives.",
            ranks=without,
        )
    if len(ranks) > 1 and len(set(clock.component.tolist())) > 1:
        yield Gap(
            what="clocks-not-comparable",
            message="No matched collective connects all ranks: distprof judges lateness only "
            "among ranks that collectives connect.",
        )
    for node, apart in clock.split_ns.items():
        yield Gap(
            what="clocks-differ",
            message=f"Collectives end up to {format_duration(apart)} apart on the ranks of {node}, "
            "which share a clock: distprof aligns the clock of each rank separately.",
            fact=f"clocks of {node} differ by {format_duration(apart)}",
            ranks=nodes.get(node, ()),
        )
    steps = [r.steps["end_ns"] - r.steps["start_ns"] for r in ranks if r.device.name != "cpu"]
    step_ns = float(np.median(np.concatenate(steps))) if steps else 0.0
    worst_ns = int(clock.residual_ns.max(initial=0))
    if 0 < step_ns * _MAX_RESIDUAL < worst_ns:
        worst = format_duration(worst_ns)
        yield Gap(
            what="clocks-uncertain",
            message=f"Ends of the same collectives differ by {worst} between GPUs even after "
            f"clock alignment, in steps of {format_duration(round(step_ns))}: comparing times "
            "between ranks is unreliable.",
            fact=f"clocks agree only to {worst} in steps of {format_duration(round(step_ns))}",
        )
    if clock.num_violations > _MAX_VIOLATION_RATIO * clock.num_checked:
        yield Gap(
            what="causality-violated",
            message=f"In {clock.num_violations} of {clock.num_checked} collectives a rank ends "
            "before the last rank starts, even after clock alignment: comparing times "
            "between ranks is unreliable.",
        )


class RecentTables(TablesOf, frozen=True, kw_only=True):
    """The rows of another :class:`~distprof.run.run.TableSource` from a time on."""

    since_ns: int  # Time from which rows are kept, by their start.
    steps: Table  # Steps from then on.
    collectives: Table | None  # Collectives from then on; None to load them with the other tables.
    num_steps: int  # Steps of the whole recording.
    num_collectives: int  # Collectives of the whole recording.

    def light(self) -> Self:
        """A copy without collectives in memory: its receiver reads them from disk."""
        return replace(self, collectives=None)

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """Read the tables."""
        tables = self.source.load(every_host_row=every_host_row)
        collectives = self.collectives
        if collectives is None:
            collectives = _since(tables.collectives, self.since_ns)
        return replace(
            tables,
            activity=_since(tables.activity, self.since_ns),
            host=_since(tables.host, self.since_ns),
            collectives=collectives,
            steps=self.steps,
        )


def recent_part(rank: Rank, most: int) -> Rank:
    """A rank from the first step on after which it has at most ``most`` collectives."""
    too_many = len(rank.collectives) - most
    if too_many <= 0 or len(rank.steps) < 2:
        return rank
    earliest = rank.collectives["start_ns"][too_many]
    step = int(np.searchsorted(rank.steps["start_ns"], earliest, side="left"))
    return _from_step(rank, min(step, len(rank.steps) - 1))


def same_steps(ranks: Sequence[Rank]) -> tuple[tuple[Rank, ...], Gap | None]:
    """The ranks, from the same step on if any of them was cut, and a gap that says so."""
    cut = [rank for rank in ranks if isinstance(rank.tables, RecentTables)]
    if not cut:
        return tuple(ranks), None
    first = max(int(rank.steps["step"][0]) for rank in cut)
    later = [np.flatnonzero(rank.steps["step"] >= first)[:1].sum() for rank in ranks]
    kept = tuple(_from_step(r, int(at)) if at else r for r, at in zip(ranks, later, strict=True))
    sources = [rank.tables for rank in cut if isinstance(rank.tables, RecentTables)]
    num_steps = max(source.num_steps for source in sources)
    left = max(len(rank.steps) for rank in kept if isinstance(rank.tables, RecentTables))
    recorded = sum(source.num_collectives for source in sources)
    which = f"{left:,} of {num_steps:,} steps are" if left > 1 else f"of {num_steps:,} steps is"
    message = (
        f"Only the last {which} analysed, because the ranks recorded {recorded:,} collectives: "
        "--max-collectives raises the limit, and --ranks reads fewer ranks."
    )
    return kept, Gap(what=RECENT_STEPS, message=message)


def _from_step(rank: Rank, index: int) -> Rank:
    """A rank from a row of its steps on."""
    source = rank.tables
    cut = source if isinstance(source, RecentTables) else None
    steps = rank.steps.take(slice(index, None))
    since_ns = int(steps["start_ns"][0])
    collectives = _since(rank.collectives, since_ns).compact()
    tables = RecentTables(
        source=cut.source if cut else light(source),
        since_ns=since_ns,
        steps=steps,
        collectives=collectives,
        num_steps=cut.num_steps if cut else len(rank.steps),
        num_collectives=cut.num_collectives if cut else len(rank.collectives),
    )
    return replace(
        rank, capture_start_ns=since_ns, steps=steps, collectives=collectives, tables=tables
    )


def _since(table: Table, since_ns: int) -> Table:
    return table.take(table["start_ns"] >= since_ns)
