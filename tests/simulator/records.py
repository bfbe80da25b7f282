"""What probes would have recorded beside a simulated rank's trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.run.records import PAUSES, PHASES, ROUTING, STEP_LOG, RankRecords
from distprof.schema import ABSENT
from tests.simulator.recording import Recording
from tests.simulator.tables import clock_of, table

TOP_K = 2


@dataclass(frozen=True)
class InMemoryRecords:
    """A RecordSource that hands out what it holds."""

    records: RankRecords

    @property
    def rank(self) -> int:
        return self.records.rank

    def load(self) -> RankRecords:
        return self.records


def records_of(recording: Recording, rank: int) -> InMemoryRecords:
    """Step log with tokens, phase of input, garbage collection and routing of one rank."""
    job, log, clock = recording.job, recording.logs[rank], clock_of(recording, rank)
    loads = [event for event in log.host if event.name.startswith("enumerate(DataLoader)")]
    phases = [
        {"step": step, "name": "input", "start_ns": clock(load.start), "end_ns": clock(load.end)}
        for step, start, end in log.steps
        for load in loads
        if start <= load.start < end
    ]
    steps = [
        {
            "step": step,
            "start_ns": clock(start),
            "end_ns": clock(end),
            "tokens": job.tokens.get((rank, step), ABSENT),
            "samples": ABSENT,
            "loss": np.nan,
            "num_micro_batches": ABSENT,
            "run_queue_ns": ABSENT,
            "cpu_ns": ABSENT,
            "is_traced": True,
            "is_light": False,
            "gpu_behind": ABSENT,
            "is_probed": True,
        }
        for step, start, end in log.steps
    ]
    pauses = [
        {
            "kind": "gc",
            "start_ns": clock(start),
            "end_ns": clock(end),
            "step": step,
            "generation": 2,
            "num_collected": 100,
            "cpu_ns": ABSENT,
            "run_queue_ns": ABSENT,
            "in_phase": False,
        }
        for step, start, end in log.collections
    ]
    routed = [
        (key, tokens) for key, tokens in job.routing.items() if key[1] == rank and job.logs_routing
    ]
    rows, first = [], 0
    for (layer, _, step), tokens in routed:
        rows.append(
            {
                "step": step,
                "layer": layer,
                "micro_batch": 0,
                "num_tokens": sum(tokens) // TOP_K,
                "top_k": TOP_K,
                "capacity": ABSENT,
                "dropped": 0,
                "aux_loss": np.nan,
                "first": first,
                "num_experts": len(tokens),
            }
        )
        first += len(tokens)
    counts = [count for _, tokens in routed for count in tokens]
    return InMemoryRecords(
        RankRecords(
            rank=rank,
            step_log=table(STEP_LOG, steps),
            phases=table(PHASES, phases),
            pauses=table(PAUSES, pauses),
            routing=table(ROUTING, rows),
            expert_tokens=np.array(counts, dtype=np.int64),
            about={"pauses": {"watched": True}},
        )
    )
