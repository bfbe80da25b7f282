"""Exports a run as one merged Perfetto trace, rank after rank, with distprof's results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath

import msgspec
import numpy as np

from distprof.api import Examined, Progress
from distprof.artefacts.files import writing_atomically
from distprof.errors import DistprofError, InputError, UsageError
from distprof.intervals import Intervals, union
from distprof.replay import critical_path
from distprof.rules.base import Finding
from distprof.run.run import Rank, Run
from distprof.schema import ABSENT, Coded, Int64Array
from distprof.sections.perturbation.show import profiler_fact
from distprof.sections.whatif.trace_graph import TraceGraph, node_names
from distprof.sections.whatif.trace_model import TraceModel
from distprof.units import capitalized, fold_ranks, format_duration, name_ranks
from distprof.verbs.export import CommonClock, arrivals_of, clock_text, inside
from distprof.verbs.export.packets import PacketFile, Slices, WriteError
from distprof.verbs.export.rank_tracks import Only, RankTracks, windows_of_steps


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a run to write."""

    ranks: frozenset[int] | None = None  # Global ranks; None for all.
    steps: frozenset[int] | None = None  # Numbers of steps; None for the whole recording.
    # ``collectives``: no kernels and no CPU threads. ``gpu``: no CPU threads. None for everything.
    only: Only | None = None


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """The written file."""

    path: str  # Path of the file.
    ranks: tuple[int, ...]  # Global ranks in it.
    num_slices: int  # Number of slices in it.
    num_bytes: int  # Size of the file; 0 for a pipe.
    notes: tuple[str, ...]  # Missing or uncertain data, one sentence each.


def export_perfetto(
    examined: Examined,
    path: str | os.PathLike[str],
    choice: Choice | None = None,
    *,
    progress: Progress | None = None,
) -> Exported:
    """Write a run as a Perfetto trace."""
    chosen = choice or Choice()
    ranks = _chosen_ranks(examined.run, chosen)
    if chosen.steps is not None:
        known = {step for rank in ranks for step in rank.steps["step"].tolist()}
        if missing := chosen.steps - known:
            present = f"steps {fold_ranks(known)}" if known else "no step marks"
            raise UsageError(f"--steps {fold_ranks(missing)}: the ranks recorded {present}")
    file = Path(path)
    try:
        with writing_atomically(file) as stream:
            has_epoch = all(rank.has_epoch for rank in examined.run.ranks)
            epoch_ns = CommonClock.of(examined.run).first_ns if has_epoch else None
            timeline = _TimeLine(examined, chosen, PacketFile(stream, epoch_ns))
            timeline.write(ranks, progress)
        size = file.stat().st_size if file.is_file() else 0
    except (WriteError, OSError) as error:
        cause = error.__cause__ if isinstance(error, WriteError) else error
        raise InputError(
            str(file),
            expected="a path that can be written",
            found=getattr(cause, "strerror", None) or str(cause),
            fix="choose another file with -o, or write less: --ranks, --steps, --only collectives",
        ) from error
    return Exported(
        path=str(file),
        ranks=tuple(rank.rank for rank in ranks),
        num_slices=timeline.num_slices,
        num_bytes=size,
        notes=(*timeline.notes, *_doubts(examined)),
    )


def _chosen_ranks(run: Run, choice: Choice) -> tuple[Rank, ...]:
    if not run.ranks:
        raise InputError(
            run.source,
            expected="torch.profiler traces of at least one rank",
            found=run.origin or "no trace of any rank",
            fix="name a folder of traces or a run directory whose ranks were traced",
        )
    wanted = choice.ranks
    if wanted is None:
        return run.ranks
    missing = wanted - {rank.rank for rank in run.ranks}
    if missing:
        present = name_ranks(rank.rank for rank in run.ranks)
        raise UsageError(f"--ranks {fold_ranks(missing)}: the run has traces of {present}")
    return tuple(rank for rank in run.ranks if rank.rank in wanted)


def _doubts(examined: Examined) -> tuple[str, ...]:
    """Notes on clocks and times that readers of the merged timeline must know about."""
    fact = profiler_fact(examined.report.perturbation)
    notes = [f"{capitalized(fact)}."] if fact else []
    if len(set(examined.run.clock.component.tolist())) > 1:
        notes.append(
            "Some clocks could not be aligned: their ranks keep their own clock, and the track"
            " names say so."
        )
    return tuple(notes)


class _TimeLine:
    """Writes the tracks of all ranks and of the run as a whole."""

    def __init__(self, examined: Examined, choice: Choice, file: PacketFile) -> None:
        self.num_slices = 0
        self.notes: list[str] = []
        self._examined = examined
        self._choice = choice
        self._file = file
        self._clock = CommonClock.of(examined.run)
        self._arrivals = arrivals_of(examined.run)
        self._shared = file.sequence()
        self._nodes: dict[str, int] = {}

    def write(self, ranks: tuple[Rank, ...], progress: Progress | None) -> None:
        """Write everything."""
        clock = self._clock
        shift = f" {clock.shift_ns} ns were added to all times." if clock.shift_ns else ""
        reference = clock.alignment.names[0] if clock.alignment.names else ""
        parent = self._shared.track(
            "distprof",
            None,
            about=f"Times are on the clock of {reference}, and every other clock was aligned with"
            f" it.{shift}",
        )
        self._critical_path(parent)
        self._findings(parent, ranks)
        for done, rank in enumerate(ranks, 1):
            self._rank(rank)
            if progress is not None:
                progress(done, len(ranks))

    # Ranks ----------------------------------------------------------------------------------------

    def _rank(self, rank: Rank) -> None:
        examined, packets = self._examined, self._file.sequence()
        try:
            unknown = np.full(len(rank.collectives), ABSENT, np.int64)
            self.num_slices += RankTracks(
                run=examined.run,
                rank=rank,
                clock=self._clock,
                arrivals=self._arrivals[rank.rank],
                wait_end_ns=examined.analyses.wait_ends.get(rank.rank, unknown),
                analysis=examined.analyses.get(rank.rank),
                slow=[one for one in examined.report.stragglers.sets if rank.rank in one.ranks],
                steps=self._choice.steps,
                only=self._choice.only,
                packets=packets,
                parent=packets.track(
                    self._rank_name(rank),
                    self._node(rank),
                    place=rank.rank + 1,  # after the tracks of distprof
                    about=PurePath(rank.path).name,
                ),
            ).write()
        except _Unreadable as error:
            self.notes.append(f"Rank {rank.rank} is incomplete: {' '.join(str(error).split())}")

    def _rank_name(self, rank: Rank) -> str:
        """Name of a rank, with the accuracy of its clock unless the node's name has it."""
        clock, node = self._clock.alignment, self._examined.run.topology.node_of(rank.rank)
        if node is not None and node in clock.names:
            return f"rank {rank.rank}"
        return f"rank {rank.rank}, {clock_text(clock, (rank.rank,))}"

    def _node(self, rank: Rank) -> int | None:
        """The track of a rank's node; None if its node is unknown."""
        topology, clock = self._examined.run.topology, self._clock.alignment
        node = topology.node_of(rank.rank)
        if node is None:
            return None
        if node not in self._nodes:
            present = {one.rank for one in self._examined.run.ranks}
            ranks = [one for one in topology.nodes[node] if one in present]
            accuracy = clock_text(clock, ranks) if node in clock.names else "a clock per rank"
            place = len(self._nodes) + 1
            self._nodes[node] = self._shared.track(f"node {node}, {accuracy}", None, place=place)
        return self._nodes[node]

    # The run as a whole ---------------------------------------------------------------------------

    def _critical_path(self, parent: int) -> None:
        """Write the operations that determined the end of the step, at their measured times."""
        simulation = self._examined.simulation
        if simulation is None or not isinstance(simulation.model, TraceModel):
            return
        graph = simulation.model.graph
        times = graph.simulate()
        path = critical_path(graph.graph, times, delay=graph.delay_ns)
        bounds = self._measured(graph, path, times.start[path], int(times.end[path[-1]]))
        names = list(node_names(graph, path))
        starts = [i for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
        spans = Intervals(bounds[starts], bounds[[*starts[1:], len(names)]])
        kept = np.flatnonzero(spans.end > spans.start)
        kept = kept[np.isin(kept, inside(spans, self._chosen_windows()))]
        track = self._shared.track(
            "critical path",
            parent,
            about="The chain of work and transfers that determined the end of the last step.",
        )
        found = Slices(
            spans=Intervals(spans.start[kept], spans.end[kept]),
            name=Coded.encode([names[starts[i]] for i in kept.tolist()]),
            category=Coded(np.zeros(len(kept), np.int32), ("critical path",)),
        )
        self._shared.slices(track, found)
        self.num_slices += found.spans.size

    def _measured(
        self, graph: TraceGraph, path: Int64Array, simulated: Int64Array, end: int
    ) -> Int64Array:
        """Start of each operation and end of the last: segments measured, others interpolated."""
        analyses = self._examined.analyses
        begins = [
            self._clock.times(rank, line.start_ns + line.begin_ns)
            for rank in graph.ranks
            if (line := analyses[rank].line) is not None
        ]
        begin = np.concatenate(begins)
        known = path < graph.num_segments
        anchors = begin[path[known]]
        origin = int(anchors.min()) if len(anchors) else 0
        at = np.append(simulated, end)
        measured = np.interp(at, simulated[known], (anchors - origin).astype(np.float64))
        measured[:-1][known] = anchors - origin
        return np.maximum.accumulate(np.rint(measured).astype(np.int64)) + origin

    def _chosen_windows(self) -> Intervals | None:
        """Windows of the steps to write on all ranks, on the clock of the file."""
        steps = self._choice.steps
        if steps is None:
            return None
        windows = [
            self._clock.spans(rank.rank, windows_of_steps(rank, steps))
            for rank in self._examined.run.ranks
        ]
        return union(Intervals(*map(np.concatenate, zip(*windows, strict=True))))

    def _findings(self, parent: int, ranks: tuple[Rank, ...]) -> None:
        """A track per finding, with an instant at the start of every step that it concerns."""
        findings = self._examined.report.findings
        if not findings:
            return
        group = self._shared.track("findings", parent, place=1)
        starts: dict[int, int] = {}
        for rank in ranks:
            at_ns = self._clock.times(rank.rank, rank.steps["start_ns"])
            for step, at in zip(rank.steps["step"].tolist(), at_ns.tolist(), strict=True):
                starts[step] = min(at, starts.get(step, at))
        analysed = self._examined.run.window.steps or tuple(starts)
        wanted = self._choice.steps
        starts = {
            step: starts[step]
            for step in analysed
            if step in starts and (wanted is None or step in wanted)
        }
        for place, finding in enumerate(findings):
            name = f"{finding.code} {finding.name}"
            track = self._shared.track(
                name, group, place=place, about=f"{finding.headline}. {finding.message}"
            )
            self._shared.marks(track, self._moments(finding, starts), name, _words(finding))

    def _moments(self, finding: Finding, starts: Mapping[int, int]) -> list[int]:
        steps = finding.steps or tuple(starts)
        moments = [starts[step] for step in steps if step in starts]
        if moments or self._choice.steps is not None:
            return moments
        return [min(starts.values(), default=self._clock.first_ns)]


_Unreadable = (DistprofError, OSError, EOFError, ValueError)


def _words(finding: Finding) -> dict[str, str]:
    """Arguments of the instants of a finding."""
    cost = finding.cost_ns_per_step
    words = {
        "headline": finding.headline,
        "message": finding.message,
        "fix": finding.fix,
        "severity": finding.severity.value,
        "ranks": fold_ranks(finding.ranks) if finding.ranks else "all",
        "cost per step": format_duration(cost) if cost is not None else "",
        "rule": finding.docs,
    }
    return {key: word for key, word in words.items() if word}
