"""# job-failed

## What it detects
The job did not come to its end: a rank died, hung, was stopped or ran out of memory.

## Why it costs time
All of the job's time is lost from its last checkpoint on. What is measured before it may already
show the cause: a rank that grows in memory, a device that slows down.

## Evidence needed
A run directory: its launcher keeps its own evidence of who failed first. What other ranks say after
they lost a peer is never taken for the cause. Of bare traces nothing is said.

## How the cost is computed
There is no cost per step.

## How to fix
Read `output.log` and `error.json` in the folder of the rank that is named, and `stacks.txt` where a
rank hung. Out of memory: a smaller micro-batch, activation checkpointing, or more shards. A rank
that was killed from outside: look at the scheduler's and the kernel's log of its host.

## When it is wrong
Where somebody stopped the job on purpose with a signal that looks like a crash.

## Sources
PyTorch documentation of `torch.distributed.elastic` (error propagation); pull request 61342 of
PyTorch on the errors that peers see.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.sections.job.result import JobResult
from distprof.terms import Severity

_FIXES = {
    "out_of_memory": (
        "Use a smaller micro-batch, checkpoint activations, or shard over more ranks; the memory "
        "table shows what each rank held."
    ),
    "hung": "Read stacks.txt of that rank: it shows where its Python code stood.",
    "stopped": "Find who stopped the process (SIGSTOP, a debugger); the job itself did not fail.",
    "killed": (
        "It was killed from outside: look at the log of the scheduler, and of the host's kernel."
    ),
}
_FIX = "Read error.json and output.log in the folder of that rank."


@rule(
    code="CAP104",
    severity=Severity.ERROR,
    since="0.1.0",
    needs=(JobResult,),
    costs_time=False,
)
def check(job: JobResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - no limits
    """Yield one finding for a failed job."""
    if job.outcome != "failed":
        return
    failure = job.failure
    message = failure.message if failure else "the job failed; who failed first is not known"
    message = " ".join(message.split()).rstrip(".")
    own = next((error for error in job.errors if not error.is_peer_loss), None)
    if own is not None and (failure is None or own.rank == failure.rank):
        words = " ".join(own.message.split())[:200]
        message += "" if words in message else f": {own.kind}: {words}"
    yield Draft(
        message=f"{message[:1].upper()}{message[1:]}.",
        fix=_FIXES.get(failure.kind, _FIX) if failure else _FIX,
        ranks=(failure.rank,) if failure and failure.rank is not None else (),
        evidence=("job.failure", "job.exits", "job.errors"),
    )
