"""A progress bar of the job's steps on stderr, only on a terminal, and erased at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distprof_probes.job.supervise import Progress


@contextmanager
def job_progress(num_steps: int, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that draws the job's progress, or does nothing without a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting ranks", total=num_steps, rate="")

        def show(progress: Progress) -> None:
            bar.update(
                task,
                completed=progress.num_steps,
                description="steps" if progress.num_steps else "starting ranks",
                rate=_rate(progress.tokens_per_s),
            )

        yield show


def _rate(tokens_per_s: float | None) -> str:
    return "" if tokens_per_s is None else f"{tokens_per_s:,.0f} tokens/s"
