"""Results of a run without traces, which has only another tool's log."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from distprof.run.run import Run
from distprof.sections.base import Result


def explain_untraced(run: Run, results: Mapping[str, Result]) -> dict[str, Result]:
    """The results, with one common reason if they need traces; unchanged for a run with traces.

    Sentences such as "one rank alone cannot show who waits for whom" are about missing traces, and
    would make the reader search for them.
    """
    if run.ranks or not run.origin:
        return dict(results)
    article = "an" if run.origin[:1] in "aeiou" else "a"
    why = f"The source is {article} {run.origin}: only traces show this, so it was not measured."
    return {
        name: msgspec.structs.replace(result, unavailable=(why,)) if result.needs_traces else result
        for name, result in results.items()
    }
