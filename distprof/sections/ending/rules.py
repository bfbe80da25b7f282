"""Rules about ending."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import headed
from distprof.rules.base import Draft, Limits, rule
from distprof.sections.ending import EndingResult
from distprof.sections.job import JobResult
from distprof.terms import Confidence, Severity


@rule("CAP106", Severity.ERROR, costs_time=False)
def job_stopped(ending: EndingResult, job: JobResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """The output of the job says that it failed, or that ranks waited for others until a watchdog
    ended them.

    ## Why it costs time
    The job loses all its time since the last checkpoint, and the time for which ranks waited.

    ## Evidence needed
    What the job printed: the output of its ranks and of their launcher, or Python stacks of several
    ranks. The rule is silent without it, and if a run directory shows which rank was killed or hung
    (`job-failed`) and the output only what followed.

    ## How the cost is computed
    No cost per step.

    ## How to fix
    Look at the rank that the finding names before any other: the ranks that report lost connections
    and time-outs after it are its victims. If ranks ran different numbers of collectives, look for
    a branch that depends on data or rank. SIGKILL comes from the kernel's out-of-memory killer or
    from the scheduler.

    ## When it is wrong
    The output is incomplete: the rank that failed first may have printed to another file.

    ## Sources
    PyTorch, `torch/csrc/distributed/c10d` (watchdogs) and `torch.distributed.elastic` (failures);
    manuals of SLURM, Open MPI, Ray and Kubernetes on how they report ends of processes.
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
