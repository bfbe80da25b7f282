"""The what-if result for a log of operations, without traces, and the causes of its slowdown.

Causes (few workers, a stage, micro-batches, transfers) are derived only from a
:class:`~distprof.sections.whatif.WhatIfResult`, so rules and reports agree.

Source of the definitions of S, S_t, S_w, M_W and M_S: formula sheet, "What-if".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from distprof.replay import CycleError, critical_path
from distprof.run.evidence import OperationLog
from distprof.schema import Floats, Int64Array
from distprof.sections.pipeline import PipelineResult
from distprof.sections.whatif import (
    TRANSFERS,
    KindSlowdown,
    PathShare,
    Scenario,
    StageSlowdown,
    StepSlowdown,
    WhatIfResult,
    WorkerSlowdown,
)
from distprof.sections.whatif import operation_replay as by
from distprof.sections.whatif.operation_graph import KINDS, StepRows, lay_out
from distprof.sections.whatif.operation_replay import Mask, OperationReplay, replay_of
from distprof.sections.whatif.plan import Change, Made, Simulation, Workbench, lower, refill_of
from distprof.units import capitalized, name_ranks

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
        # On the path each operation starts when the previous one ends; meetings take no time.
        times = replay.times(step)
        path = critical_path(replay.graph.graph, times)
        path = path[path < len(replay.rows)]
        length = times.end[path] - times.start[path]
        for node, ns in zip(path.tolist(), length.tolist(), strict=True):
            total[_key(replay, node)] += ns
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
    log: OperationLog, pipeline: PipelineResult | None = None, bench: Workbench | None = None
) -> WhatIfResult:
    """Simulate the log's steps as they were and without each cause, or say why that cannot be."""
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
    stages = by.by_stage(replay).mean(axis=1) / ideal
    workers = by.workers_of(replay.rows)
    slowdown = stages[workers.stage]
    rows = by.by_dp_rank(replay)
    if rows is not None:
        slowdown = np.minimum(rows.mean(axis=1)[workers.dp_rank] / ideal, slowdown)
    late = by.slowest(workers, slowdown)
    last = replay.rows.stage == replay.rows.num_stages - 1
    few = np.isin(replay.rows.rank, late)
    is_slow = step / ideal >= MIN_SLOWDOWN
    changes = {change.what: change for change in operation_changes(replay, late)}
    gaps_ns = max(0, round(measured - step))
    model = OperationModel(replay=replay, changes=changes, gaps_ns=gaps_ns)
    bench.simulation = Simulation.of(model, changes, refill_of(pipeline))
    found = _scenarios(replay, bench.simulation, step, slowdown, workers)
    m_w, m_s = (_explained(replay, mask, step, ideal) for mask in (few, last))
    kinds = [
        KindSlowdown(kind=kind, slowdown=float(steps.mean()) / ideal)
        for kind, steps in by.by_kind(replay).items()
    ]
    slowest_steps = np.argsort(-simulated, kind="stable")[:MAX_ROWS].tolist()
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
        kinds=tuple(sorted(kinds, key=lambda kind: -kind.slowdown)),
        workers=_worker_slowdowns(workers, slowdown),
        m_w=m_w if is_slow else None,
        m_s=m_s if is_slow and replay.rows.num_stages > 1 else None,
        path=path_shares(replay),
        stages=tuple(_stage_slowdowns(replay, workers, stages)),
        steps=tuple(
            StepSlowdown(step=int(replay.rows.steps[i]), slowdown=float(simulated[i]) / ideal)
            for i in slowest_steps
        ),
        micro_batch_correlation=by.micro_batch_correlation(replay),
        unavailable=replay.notes if rows is not None else (*replay.notes, ROWS_DIFFER),
    )


def _explained(replay: OperationReplay, mask: Mask, step: float, ideal: int) -> float:
    """Share of the slowdown that disappears if the operations of a mask are ideal."""
    if step == ideal:
        return 0.0
    return (step - float(replay.fixing([mask]).mean())) / (step - ideal)


def _scenarios(
    replay: OperationReplay,
    simulation: Simulation,
    step: float,
    slowdown: Floats,
    workers: by.Workers,
) -> tuple[Scenario, ...]:
    """All scenarios worth showing, by the time that they recover; ``step`` is the simulated one."""
    least_ns = MIN_RECOVERABLE_RATIO * step
    found = []
    for scenario in simulation.scenarios():
        # Its step is simulated without late launches, as in all other scenarios.
        gain = 0 if scenario.what == "launch-gaps" else scenario.recoverable_ns
        if not scenario.what.startswith("kind ") or scenario.recoverable_ns >= least_ns:
            found.append(msgspec.structs.replace(scenario, step_ns=round(step) - gain))
    parts = [
        part
        for part in _parts(replay.rows, slowdown, workers)
        if part[0] not in simulation.alone_ns
    ]
    fixed = replay.fixing([mask for _, _, mask, _ in parts]).mean(axis=1).tolist()
    found += [
        Scenario(
            what=what,
            title=title,
            step_ns=round(without),
            recoverable_ns=max(0, round(step - without)),
            ranks=ranks,
        )
        for (what, title, _, ranks), without in zip(parts, fixed, strict=True)
        if what == "last-stage" or step - without >= least_ns
    ]
    return tuple(sorted(found, key=lambda scenario: -scenario.recoverable_ns))


def _parts(
    rows: StepRows, slowdown: Floats, workers: by.Workers
) -> Iterator[tuple[str, str, Mask, tuple[int, ...]]]:
    """Key, title, operations and ranks of stages, kinds and the slowest workers."""

    def of_stage(stage: int) -> tuple[Mask, tuple[int, ...]]:
        mask = rows.stage == stage
        return mask, tuple(np.unique(rows.rank[mask]).tolist())

    if rows.num_stages > 1:
        title = "the last pipeline stage took its ideal time"
        yield "last-stage", title, *of_stage(rows.num_stages - 1)
    for kind, mask in by.masks_by_kind(rows).items():
        yield f"kind {kind}", f"every {kind} took its usual time", mask, ()
    for stage in np.unique(rows.stage)[:-1].tolist():
        yield f"stage {stage}", f"stage {stage} took its ideal time", *of_stage(stage)
    for i in np.argsort(-slowdown, kind="stable")[:MAX_WORKERS_FIXED].tolist():
        rank = int(workers.rank[i])
        yield f"rank {rank}", f"rank {rank} took its ideal time", rows.rank == rank, (rank,)


def _worker_slowdowns(workers: by.Workers, slowdown: Floats) -> tuple[WorkerSlowdown, ...]:
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
    replay: OperationReplay, workers: by.Workers, slowdown: Floats
) -> Iterator[StageSlowdown]:
    rows = replay.rows
    compute = rows.of(*by.COMPUTE)
    for stage in np.unique(workers.stage).tolist() if rows.num_stages > 1 else ():
        ranks = tuple(workers.rank[workers.stage == stage].tolist())
        total = float(replay.actual[compute & (rows.stage == stage)].sum())
        yield StageSlowdown(
            stage=stage,
            ranks=ranks,
            slowdown=float(slowdown[stage]),
            compute_ns=round(total / (replay.num_steps * len(ranks))),
        )


# Changes ------------------------------------------------------------------------------------------


class OperationChange(Change, frozen=True, kw_only=True):
    """What a scenario changes in a log; None for what stays the same."""

    ideal: Mask | None = None  # Operations, shape ``(n,)``, that take the ideal time of their kind.
    # int64, shape ``(n,)``: usual length on the operation's own stage.
    level_ns: Int64Array | None = None
    # float64, shape ``(n,)``, for the length of each operation.
    factor: Floats | None = None
    is_prompt: bool = False  # Whether no operation is launched late.


def operation_changes(replay: OperationReplay, slowest: Int64Array) -> Iterator[OperationChange]:
    """Changes that apply to a log."""
    rows, ranks = replay.rows, tuple(slowest.tolist())
    yield OperationChange(
        what="slowest-workers",
        title=f"{name_ranks(ranks)}, the slowest 3 % of the workers, were as fast as the mean",
        ranks=ranks,
        ideal=np.isin(rows.rank, slowest),
    )
    if rows.num_stages > 1:
        title = "all pipeline stages had equal work"
        yield OperationChange(what="stage-imbalance", title=title, factor=by.level_stages(replay))
    title = "micro-batches of a stage were equally long"
    level = by.level_micro_batches(replay)
    yield OperationChange(what="micro-batch-imbalance", title=title, level_ns=level)
    for kind, mask in by.masks_by_kind(rows).items():
        if any(word in kind for word in TRANSFERS):
            title = f"every {kind} took the median time"
            yield OperationChange(what=f"kind {kind}", title=title, ideal=mask)
    title = "every operation was launched as soon as possible"
    yield OperationChange(what="launch-gaps", title=title, is_prompt=True)


class OperationModel(msgspec.Struct, frozen=True, kw_only=True):
    """See :class:`~distprof.sections.whatif.plan.Model`.

    Levelling stages and micro-batches gives operations the length of their stage, scaled; other
    changes shorten them directly, and the larger change counts. It is unknown how late an operation
    would be launched if another took less time, so late launches always add the same time.
    """

    replay: OperationReplay  # The log.
    changes: Mapping[str, OperationChange]  # Changes by key.
    # Measured step less the simulated one, which leaves out late launches; at least 0.
    gaps_ns: int

    def step_times(self, made: Sequence[Made]) -> list[int]:
        """Mean step of each set of changes, ns."""
        actual = self.replay.actual
        lengths = self.replay.lengths(
            len(made), lambda i, step: self._together(made[i], actual[:, step])
        )
        prompt = [any(self.changes[what].is_prompt for what in one) for one in made]
        steps = np.rint(lengths.mean(axis=1)).astype(np.int64).tolist()
        return [
            ns if is_prompt else ns + self.gaps_ns
            for ns, is_prompt in zip(steps, prompt, strict=True)
        ]

    def stage_work(self, made: Made) -> Mapping[int, float]:
        """Computation of each rank, mean per step, ns."""
        rows = self.replay.rows
        compute = np.flatnonzero(rows.of(*by.COMPUTE))
        mean = np.zeros(len(rows))
        for step in self.replay.batches(self.replay.num_steps):
            mean += self._together(made, self.replay.actual[:, step]).sum(axis=1)
        ranks, index = np.unique(rows.rank[compute], return_inverse=True)
        work = np.bincount(index, mean[compute] / self.replay.num_steps)
        return dict(zip(ranks.tolist(), work.tolist(), strict=True))

    def _together(self, made: Made, actual: Int64Array) -> Int64Array:
        """Lengths in some of the steps, shape ``(n, k)``, with all changes."""
        parts = [(self.changes[what], share) for what, share in made.items()]
        usual = [
            _between(actual, self.replay.ideal, share, where=change.ideal)
            for change, share in parts
            if change.ideal is not None
        ]
        return _or(lower(actual, [*usual, _levelled(actual, parts)]), actual)


def _levelled(
    actual: Int64Array, parts: Sequence[tuple[OperationChange, float]]
) -> Int64Array | None:
    """Lengths with stages and micro-batches levelled; None if neither is."""
    levels = [
        _between(actual, change.level_ns, share, where=change.level_ns >= 0)
        for change, share in parts
        if change.level_ns is not None
    ]
    factors = [1 + share * (part.factor - 1) for part, share in parts if part.factor is not None]
    if not factors:
        return lower(actual, levels)
    factor = np.prod(factors, axis=0)[:, np.newaxis]
    scaled: Int64Array = np.rint(_or(lower(actual, levels), actual) * factor).astype(np.int64)
    return scaled


def _between(actual: Int64Array, target: Int64Array, share: float, *, where: Mask) -> Int64Array:
    """Lengths moved towards the target by a share of the difference, only for some operations."""
    changed = actual.copy()
    difference = target[where, np.newaxis] - actual[where]
    changed[where] += difference if share >= 1 else np.rint(share * difference).astype(np.int64)
    return changed


def _or(changed: Int64Array | None, otherwise: Int64Array) -> Int64Array:
    return otherwise if changed is None else changed
