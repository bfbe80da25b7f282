"""Rules about ending."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import headed
from distprof.rules.base import Draft, rule
from distprof.sections.ending import EndingResult
from distprof.sections.job import JobResult
from distprof.terms import Confidence, Severity


@rule("CAP106", Severity.ERROR, costs_time=False)
def job_stopped(ending: EndingResult, job: JobResult) -> Iterator[Draft]:
    """The output of the job says that it failed, or that ranks waited for others until a watchdog
    ended them.
    """
    if not ending.state or ending.follows(job.failure):
        return
    headline, rest = headed(ending.verdict)
    yield Draft(
        headline=headline,
        message=rest or next(iter(ending.why), ""),
        fix=" ".join(ending.next_steps[:2]) or "Read the lines about the end of the job.",
        ranks=ending.ranks,
        confidence=Confidence.INFERRED,
        evidence=("ending.verdict", "ending.lines"),
    )
