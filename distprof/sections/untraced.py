"""Results of a run without traces, where another tool's log is all there is."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from distprof.run.run import Run
from distprof.sections.base import Result

__all__ = ["explain_untraced"]

NEED_TRACES = (
    "capture",
    "breakdown",
    "overlap",
    "collectives",
    "stragglers",
    "messages",
    "idle",
    "kernels",
    "waterfall",
)


def explain_untraced(run: Run, results: Mapping[str, Result]) -> dict[str, Result]:
    """The results, with one reason where only traces could tell; unchanged for a run with traces.

    Sentences such as "one rank alone cannot show who waits for whom" are about traces that are
    missing, and would send the reader looking for them.
    """
    if run.ranks or not run.origin:
        return dict(results)
    why = (
        f"The source is {_article(run.origin)} {run.origin}: what only traces show is not measured."
    )
    return {
        name: msgspec.structs.replace(result, unavailable=(why,)) if name in NEED_TRACES else result
        for name, result in results.items()
    }


def _article(noun: str) -> str:
    return "an" if noun[:1] in "aeiou" else "a"
