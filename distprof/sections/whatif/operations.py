"""The what-if result for a log of operations, without traces, and the causes of its slowdown.

Causes (few workers, a stage, micro-batches, transfers) are derived only from a
:class:`~distprof.sections.whatif.result.WhatIfResult`, so rules and reports agree.

Source of the definitions of S, S_t, S_w, M_W and M_S: formula sheet, "What-if".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.replay import CycleError, critical_path
from distprof.run.evidence import OperationLog
from distprof.schema import Int64Array
from distprof.sections.pipeline.result import PipelineResult
from distprof.sections.whatif import operation_replay as by
from distprof.sections.whatif.operation_changes import OperationModel, operation_changes
from distprof.sections.whatif.operation_graph import KINDS, lay_out
from distprof.sections.whatif.operation_replay import Mask, OperationReplay, replay_of
from distprof.sections.whatif.plan import Simulation, Workbench
from distprof.sections.whatif.refill import refill_of
from distprof.sections.whatif.result import (
    KindSlowdown,
    PathShare,
    Scenario,
    StageSlowdown,
    StepSlowdown,
    WhatIfResult,
    WorkerSlowdown,
)
from distprof.units import capitalized

MAX_ROWS = 64

MAX_CELLS = 4_000_000
"""Operations times steps whose paths are followed; for larger logs, evenly spaced steps."""

_COMPUTE = ("forward-compute", "backward-compute", "optimizer")

Key = tuple[int | None, str, str]


def path_shares(replay: OperationReplay) -> tuple[PathShare, ...]:
    """Time on the critical path by worker and kind of operation, mean per step, largest first."""
    every = max(1, -(-len(replay.rows) * replay.num_steps // MAX_CELLS))
    steps = range(0, replay.num_steps, every)
    total: dict[Key, int] = defaultdict(int)
    for step in steps:
        for key, ns in _of_step(replay, step).items():
            total[key] += ns
    whole = sum(total.values())
    if whole <= 0:
        return ()
    ordered = sorted(total.items(), key=lambda item: (-item[1], str(item[0])))
    return tuple(
        PathShare(
            rank=rank,
            kind=kind,
            name=name,
            ns_per_step=round(ns / len(steps)),
            share_ratio=ns / whole,
        )
        for (rank, kind, name), ns in ordered[:MAX_ROWS]
        if ns > 0
    )


def _of_step(replay: OperationReplay, step: int) -> dict[Key, int]:
    """The path of one simulated step, on which each operation starts when the previous one ends."""
    times = replay.times(step)
    path = critical_path(replay.graph.graph, times)
    path = path[path < len(replay.rows)]  # meetings take no time
    length = times.end[path] - times.start[path]
    shares: dict[Key, int] = defaultdict(int)
    for node, ns in zip(path.tolist(), length.tolist(), strict=True):
        shares[_key(replay, node)] += ns
    return shares


def _key(replay: OperationReplay, node: int) -> Key:
    kind = KINDS[replay.rows.kind[node]]
    rank = int(replay.rows.rank[node])
    if kind in _COMPUTE:
        return rank, "compute", kind
    if kind == "gc":
        return rank, "other", kind
    return (None if replay.graph.group[node] >= 0 else rank), "transfer", kind


MIN_SLOWDOWN = 1.03
"""Below this S no rank is blamed: shares of a difference this small are noise."""

MIN_RECOVERABLE_RATIO = 0.01

ROWS_DIFFER = (
    "Data-parallel rows have different operations and are too many to simulate one by one, so "
    "workers are compared only by stage."
)

MAX_WORKERS_FIXED = 16


def simulate_operations(
    log: OperationLog,
    pipeline: PipelineResult | None = None,
    bench: Workbench | None = None,
) -> WhatIfResult:
    """Simulate the log's steps as they were and without each cause.

    Returns:
        The result; without figures, and with the reason in ``unavailable``, if there is none.
    """
    if not log.shares_clock:
        return _without(
            "the log's workers share no clock, so transfers and waiting cannot be separated"
        )
    rows = lay_out(log)
    if rows is None:
        return _without("the log holds no operation whose place in a step is known")
    try:
        replay = replay_of(rows)
    except CycleError as error:
        return _without(f"the order of operations contradicts itself: {error}")
    simulated, ideal = replay.simulated(), replay.ideal_step()
    if ideal <= 0 or simulated.min() <= 0:
        return _without("the log's steps take no time")
    return _answer(replay, simulated, ideal, pipeline or PipelineResult(), bench or Workbench())


def _without(why: str) -> WhatIfResult:
    return WhatIfResult(unavailable=(f"{capitalized(why)}.",))


def _answer(
    replay: OperationReplay,
    simulated: Int64Array,
    ideal: int,
    pipeline: PipelineResult,
    bench: Workbench,
) -> WhatIfResult:
    measured, step = float(replay.measured().mean()), float(simulated.mean())
    kinds = by.by_kind(replay)
    stages = by.by_stage(replay).mean(axis=1) / ideal
    workers = by.workers_of(replay.rows)
    slowdown = stages[workers.stage]
    rows = by.by_dp_rank(replay)
    if rows is not None:
        slowdown = np.minimum(rows.mean(axis=1)[workers.dp_rank] / ideal, slowdown)
    late = by.slowest(workers, slowdown)
    causes = _Causes(replay, step)
    last = replay.rows.stage == replay.rows.num_stages - 1
    few = np.isin(replay.rows.rank, late)
    is_slow = step / ideal >= MIN_SLOWDOWN
    model = _model(replay, late, measured - step)
    bench.simulation = Simulation.of(model, model.changes, refill_of(pipeline))
    found = causes.scenarios(bench.simulation, slowdown, workers)
    m_w, m_s = causes.share(few, ideal), causes.share(last, ideal)
    return WhatIfResult(
        source="operations",
        num_operations=len(replay.rows) * replay.num_steps,
        num_steps=replay.num_steps,
        step_ns=round(measured),
        replayed_ns=round(step),
        model_error_ratio=step / measured - 1,
        ideal_ns=ideal,
        slowdown=step / ideal,
        without=found,
        kinds=_kind_slowdowns(kinds, ideal),
        workers=_worker_slowdowns(workers, slowdown),
        m_w=m_w if is_slow else None,
        m_s=m_s if is_slow and replay.rows.num_stages > 1 else None,
        path=path_shares(replay),
        stages=_stage_slowdowns(replay, workers, stages),
        steps=_step_slowdowns(replay, simulated, ideal),
        micro_batch_correlation=by.micro_batch_correlation(replay),
        unavailable=replay.notes if rows is not None else (*replay.notes, ROWS_DIFFER),
    )


def _model(replay: OperationReplay, late: Int64Array, gaps_ns: float) -> OperationModel:
    changes = {change.what: change for change in operation_changes(replay, late)}
    return OperationModel(replay=replay, changes=changes, gaps_ns=max(0, round(gaps_ns)))


class _Causes:
    """The mean step without each cause.

    Args:
        replay: The log that is simulated.
        step: Mean step, simulated with nothing changed, ns.
    """

    def __init__(self, replay: OperationReplay, step: float) -> None:
        self._replay = replay
        self._step = step

    def share(self, mask: Mask, ideal: int) -> float:
        """Share of the slowdown that disappears if the operations of a mask are ideal."""
        if self._step == ideal:
            return 0.0
        fixed = float(self._replay.fixing([mask]).mean())
        return (self._step - fixed) / (self._step - ideal)

    def scenarios(
        self,
        simulation: Simulation,
        slowdown: NDArray[np.float64],
        workers: by.Workers,
    ) -> tuple[Scenario, ...]:
        """All scenarios worth showing, by the time that they recover."""
        whole = (
            self._without_gaps(scenario)
            for scenario in simulation.scenarios()
            if not scenario.what.startswith("kind ") or self._is_worth(scenario.recoverable_ns)
        )
        parts = self._of_parts(slowdown, workers, simulation.alone_ns)
        found = [*whole, *self._of_last_stage(), *parts]
        return tuple(sorted(found, key=lambda scenario: -scenario.recoverable_ns))

    def _of_last_stage(self) -> Iterator[Scenario]:
        rows = self._replay.rows
        if rows.num_stages > 1:
            last = rows.stage == rows.num_stages - 1
            fixed = self._replay.fixing([last]).mean()
            ranks = tuple(np.unique(rows.rank[last]).tolist())
            title = "the last pipeline stage took its ideal time"
            yield self._scenario("last-stage", title, fixed, ranks)

    def _of_parts(
        self, slowdown: NDArray[np.float64], workers: by.Workers, known: Collection[str]
    ) -> Iterator[Scenario]:
        """Other kinds, stages and the slowest workers, if they recover enough."""
        rows = self._replay.rows
        parts: list[tuple[str, str, Mask, tuple[int, ...]]] = [
            (f"kind {kind}", f"every {kind} took its usual time", mask, ())
            for kind, mask in by.masks_by_kind(rows).items()
            if f"kind {kind}" not in known
        ]
        for stage in np.unique(rows.stage)[:-1].tolist():  # the last one is a separate scenario
            mask = rows.stage == stage
            ranks = tuple(np.unique(rows.rank[mask]).tolist())
            title = f"stage {stage} took its ideal time"
            parts.append((f"stage {stage}", title, mask, ranks))
        for i in np.argsort(-slowdown, kind="stable")[:MAX_WORKERS_FIXED].tolist():
            rank = int(workers.rank[i])
            title = f"rank {rank} took its ideal time"
            parts.append((f"rank {rank}", title, rows.rank == rank, (rank,)))
        fixed = self._replay.fixing([mask for _, _, mask, _ in parts]).mean(axis=1)
        for (what, title, _, ranks), step in zip(parts, fixed.tolist(), strict=True):
            if self._is_worth(self._step - step):
                yield self._scenario(what, title, step, ranks)

    def _without_gaps(self, scenario: Scenario) -> Scenario:
        """The scenario with its step simulated without late launches, as in all other scenarios."""
        gain = 0 if scenario.what == "launch-gaps" else scenario.recoverable_ns
        return msgspec.structs.replace(scenario, step_ns=round(self._step) - gain)

    def _is_worth(self, gain_ns: float) -> bool:
        return gain_ns >= MIN_RECOVERABLE_RATIO * self._step

    def _scenario(
        self, what: str, title: str, step: float, ranks: tuple[int, ...] = ()
    ) -> Scenario:
        gain = max(0, round(self._step - step))
        return Scenario(
            what=what, title=title, step_ns=round(step), recoverable_ns=gain, ranks=ranks
        )


def _kind_slowdowns(kinds: dict[str, Int64Array], ideal: int) -> tuple[KindSlowdown, ...]:
    found = [
        KindSlowdown(kind=kind, slowdown=float(steps.mean()) / ideal)
        for kind, steps in kinds.items()
    ]
    return tuple(sorted(found, key=lambda kind: -kind.slowdown))


def _worker_slowdowns(
    workers: by.Workers, slowdown: NDArray[np.float64]
) -> tuple[WorkerSlowdown, ...]:
    order = np.lexsort((workers.rank, -slowdown))[:MAX_ROWS]
    return tuple(
        WorkerSlowdown(
            rank=int(workers.rank[i]),
            dp_rank=int(workers.dp_rank[i]),
            stage=int(workers.stage[i]),
            slowdown=float(slowdown[i]),
        )
        for i in order.tolist()
    )


def _stage_slowdowns(
    replay: OperationReplay, workers: by.Workers, slowdown: NDArray[np.float64]
) -> tuple[StageSlowdown, ...]:
    rows = replay.rows
    compute = rows.of(*by.COMPUTE)
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank, stage in zip(workers.rank.tolist(), workers.stage.tolist(), strict=True):
        ranks[stage].append(rank)
    result = []
    for stage in sorted(ranks) if rows.num_stages > 1 else ():
        total = float(replay.actual[compute & (rows.stage == stage)].sum())
        mean = total / (replay.num_steps * len(ranks[stage]))
        result.append(
            StageSlowdown(
                stage=stage,
                ranks=tuple(ranks[stage]),
                slowdown=float(slowdown[stage]),
                compute_ns=round(mean),
            )
        )
    return tuple(result)


def _step_slowdowns(
    replay: OperationReplay, simulated: Int64Array, ideal: int
) -> tuple[StepSlowdown, ...]:
    order = np.argsort(-simulated, kind="stable")[:MAX_ROWS]
    return tuple(
        StepSlowdown(step=int(replay.rows.steps[i]), slowdown=float(simulated[i]) / ideal)
        for i in order.tolist()
    )
