"""Summaries of a job whose step takes what a test says."""

from collections.abc import Iterable

from distprof.artefacts.summary_file import Fingerprint, SummaryFile

DAY_NS = 86_400_000_000_000
START_NS = 1_760_000_000_000_000_000


def summary(step_ns=100_000_000, *, day=0, number=0, commit="c0", **fields) -> SummaryFile:
    """One run, of 8 ranks unless said otherwise."""
    print_ = fields.pop("fingerprint", None) or Fingerprint(
        world_size=8,
        num_nodes=1,
        device="NVIDIA H100",
        backend="nccl",
        workload="ddp",
        strategy="DDP",
        config={"model.hidden": "64"},
        versions={"torch": "2.9"},
    )
    return SummaryFile(
        distprof_version="1",
        git_commit=commit,
        created_ns=START_NS + day * DAY_NS + number,
        fingerprint=print_,
        step_ns=(step_ns,),
        **fields,
    )


def commits(values: Iterable[Iterable[float]], **fields) -> list[SummaryFile]:
    """A run per value; each list is a commit: c0, c1, …, a day after the one before."""
    return [
        summary(int(value), day=day, number=number, commit=f"c{day}", **fields)
        for day, repeats in enumerate(values)
        for number, value in enumerate(repeats)
    ]
