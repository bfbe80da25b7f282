"""Runs whose collectives are joined by what is known to be true, not by the code under test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from distprof.run.run import ClockAlignment, CollectiveMatches, Rank, Run
from distprof.run.topology import ProcessGroup
from distprof.sections.stragglers import StragglersResult
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.terms import CollectiveKind, MatchMethod
from tests.builders import make_run
from tests.sections.measured import Measured, measure
from tests.simulator import Recording


def join_by_seq(ranks: Sequence[Rank]) -> tuple[CollectiveMatches, tuple[ProcessGroup, ...]]:
    """Members of equal group, ranks and sequence number, found with a dictionary."""
    found: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    facts: dict[tuple[str, str, int], tuple[int, int, int]] = {}
    for rank in ranks:
        table = rank.collectives
        groups, members = table.coded("group").decode(), table.coded("group_ranks").decode()
        for row, key in enumerate(zip(groups, members, table["seq"].tolist(), strict=True)):
            found.setdefault(key, []).append((rank.rank, row))
            facts[key] = tuple(int(table[c][row]) for c in ("kind", "bytes", "group_size"))
    keys = [key for key, members in found.items() if len(members) > 1]
    names = sorted({key[:2] for key in keys})
    flat = [member for key in keys for member in found[key]]
    kinds = [
        CollectiveKind.SEND_RECV
        if CollectiveKind(facts[key][0]).is_point_to_point
        else facts[key][0]
        for key in keys
    ]
    matches = CollectiveMatches(
        offsets=np.concatenate(([0], np.cumsum([len(found[key]) for key in keys]))).astype(
            np.int64
        ),
        member_rank=np.array([rank for rank, _ in flat], dtype=np.int32),
        member_row=np.array([row for _, row in flat], dtype=np.int64),
        group=np.array([names.index(key[:2]) for key in keys], dtype=np.int32),
        kind=np.array(kinds, dtype=np.int8),
        bytes=np.array([facts[key][1] for key in keys], dtype=np.int64),
        method=np.full(len(keys), MatchMethod.SEQUENCE, dtype=np.int8),
        complete=np.array([len(found[key]) == facts[key][2] for key in keys], dtype=np.bool_),
        num_candidates=len(flat),
        num_matched=len(flat),
    )
    groups = {(g.name, g.ranks): g for rank in ranks for g in rank.groups}
    return matches, tuple(groups.values())


def true_clock(recording: Recording, residual_ns: int) -> ClockAlignment:
    """The correction that undoes the simulated offsets; drift is left to the residual."""
    job = recording.job
    nodes = range(job.num_nodes)
    offsets = job.clock_offset_ns or (0,) * job.num_nodes
    present = set(recording.present)
    size = job.ranks_per_node
    domains = [tuple(r for r in range(n * size, (n + 1) * size) if r in present) for n in nodes]
    return ClockAlignment(
        domains=tuple(domains),
        names=tuple(f"node{n}" for n in nodes),
        offset_ns=np.array(offsets, dtype=np.float64),
        drift_ratio=np.zeros(job.num_nodes),
        reference_ns=0,
        residual_ns=np.full(job.num_nodes, residual_ns, dtype=np.int64),
        component=np.zeros(job.num_nodes, dtype=np.int32),
    )


def joined_run(recording: Recording, *, residual_ns: int = 5_000) -> Run:
    """A run of the recording on its true clocks, joined by sequence number."""
    ranks = recording.to_ranks()
    matches, groups = join_by_seq(ranks)
    complete = [
        {
            int(step)
            for step, whole in zip(rank.steps["step"], rank.steps["complete"], strict=True)
            if whole
        }
        for rank in ranks
    ]
    run = make_run(
        ranks,
        steps=sorted(set.intersection(*complete)),
        groups=groups,
        matches=matches,
        clock=true_clock(recording, residual_ns),
        world_size=recording.job.world_size,
    )
    return run


def stragglers_of(run: Run) -> tuple[StragglersResult, Measured]:
    """The analysis under test, on real measurements."""
    measured = measure(run)
    result = analyze_stragglers(run, measured.analyses, measured.step_time)
    return result, measured


def without_ranks(recording: Recording, present: Sequence[int]) -> Recording:
    """The same job, of which only some ranks were recorded."""
    return replace(recording, job=replace(recording.job, present=tuple(present)))
