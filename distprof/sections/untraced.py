"""Results of a run without traces, where another tool's log is all there is."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from distprof.run.run import Run
from distprof.sections.base import Result

__all__ = ["explain_untraced"]


def explain_untraced(run: Run, results: Mapping[str, Result]) -> dict[str, Result]:
    """The results, with one reason where only traces could tell; unchanged for a run with traces.

    Sentences such as "one rank alone cannot show who waits for whom" are about traces that are
    missing, and would send the reader looking for them.
    """
    origin = _origin(run)
    if run.ranks or not origin:
        return dict(results)
    why = f"The source is {_article(origin)} {origin}: what only traces show is not measured."
    return {
        name: msgspec.structs.replace(result, unavailable=(why,)) if result.needs_traces else result
        for name, result in results.items()
    }


def _origin(run: Run) -> str:
    """What the source is; empty for traces and run directories."""
    if run.operations is not None:
        return run.operations.origin
    if run.expert_counts is not None:
        return "table of expert counts"
    if run.devices is not None and run.nccl is None and run.job is None:
        return "file of sensors or errors of devices"
    if run.machines and run.nccl is None and run.job is None:
        return "output of nvidia-smi topo -m"
    if run.nccl is not None and run.job is None:
        return "log of NCCL"
    if run.training_log is not None:
        return "log of a training program"
    if run.collective_summary is not None:
        return "table of collectives"
    return "table of input's readiness" if run.input_readiness is not None else ""


def _article(noun: str) -> str:
    return "an" if noun[:1] in "aeiou" else "a"
