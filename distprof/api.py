"""The Python API: open a recording, analyse it.

::

    run = distprof.open_run("traces/")
    report = distprof.analyze(run)
    report.save("report.json")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from distprof.run.run import Run
from distprof.version import __version__

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from distprof.artefacts.fabric_file import FabricFile
    from distprof.config import Config
    from distprof.documents.saved import Report
    from distprof.sections.context import RankAnalyses
    from distprof.sections.whatif.plan import Simulation

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of ranks done and the total number of ranks."""
MANY_EVENTS = 3_000_000
"""With at least this many events, several processes are faster than the current one."""
Source: TypeAlias = "str | os.PathLike[str]"


def open_run(
    path: Source,
    *,
    rows: Literal["all", "device"] = "all",
    strict: bool = False,
    ranks: Collection[int] | None = None,
    executor: Any = None,
    cache_dir: Source | None = None,
    use_cache: bool = True,
    config: Config | Source | None = None,
    evidence: Sequence[Source] = (),
    progress: Progress | None = None,
    bytes_read: Progress | None = None,
    max_collectives: int | None = None,
) -> Run:
    """Read a recording.

    Args:
        path: A trace, a folder or glob of traces, a run directory, or an fsspec URL of one of
            these.
        rows: ``device`` reads only GPU activity: faster, but without causes on the CPU.
        strict: Whether to refuse a damaged trace instead of salvaging its intact part.
        ranks: Ranks to read; None for all.
        executor: Where to read ranks: a ``concurrent.futures`` executor, or ``process``,
            ``process:N``, ``serial``, ``dask://HOST:PORT``. None for worker processes if they pay
            off.
        cache_dir: Where to cache parsed tables; None for the default folder.
        use_cache: Whether to reuse and cache parsed tables.
        config: A configuration or its file; None for the nearest ``distprof.toml``.
        evidence: Logs and tables that belong to the recording, of any kind in
            :mod:`distprof.ingest.kinds`.
        progress: Called after each rank.
        bytes_read: Called with the bytes of traces read so far and in total, as stored.
        max_collectives: Of a job with more collectives of all ranks together, read only the last
            steps; None for all steps. :func:`analyze` takes about 165 bytes for each collective.

    Returns:
        The run. Its ``gaps`` list everything that is missing or damaged.

    Raises:
        InputError: If nothing could be read, or with ``strict`` if anything is damaged.
        UsageError: If an option is invalid.
    """
    from distprof.ingest.kinds import with_evidence
    from distprof.ingest.open import files_of_evidence
    from distprof.ingest.open import open_run as ingest
    from distprof.ingest.rank import IngestOptions

    options = IngestOptions(
        rows=rows,
        strict=strict,
        cache_dir=os.fspath(cache_dir) if cache_dir is not None else None,
        use_cache=use_cache,
        communication=_config(config).communication,
    )
    run = ingest(
        os.fspath(path),
        options=options,
        executor=executor if executor is not None else "process",
        progress=progress,
        ranks=ranks,
        bytes_read=bytes_read,
        max_collectives=max_collectives,
    )
    return with_evidence(run, files_of_evidence([os.fspath(source) for source in evidence]))


def analyze(
    run_or_path: Run | Source,
    *,
    config: Config | Source | None = None,
    fabric: Source | None = None,
    window: Literal["steps", "capture"] = "steps",
    every_step: bool = False,
    step_ns: int | None = None,
    executor: Any = None,
    progress: Progress | None = None,
    debug: bool = False,
) -> Report:
    """Find out where each step's time went, what caused it and what a fix would gain.

    Args:
        run_or_path: A run, or any path that :func:`open_run` accepts; of a job with more than 20
            million collectives, only the last steps are then analysed.
        config: A configuration or its file; None for the nearest ``distprof.toml``.
        fabric: A fabric profile (:mod:`distprof.artefacts.fabric_file`) or nccl-tests output: the
            speed that collectives should reach. None for the profile in the configuration.
        window: ``steps`` analyses the steps that all ranks recorded completely, or the whole
            capture if nothing marks steps; ``capture`` always analyses the whole capture.
        every_step: Whether to report every step of every rank. By default, the report of a very
            large run holds the steps of some ranks only.
        step_ns: How long a step takes without the profiler, which makes steps longer. By default,
            the step log says so, if there is one.
        executor: As in :func:`open_run`.
        progress: Called after each rank that was read, then after each rank that was measured.
        debug: Whether to raise the exception of a failing rule.

    Returns:
        The report: measurements, findings sorted by cost, and rules that could not be checked.

    Raises:
        InputError: If nothing could be read.
        UsageError: If an option or the configuration is invalid.
    """
    return examine(
        run_or_path,
        config=config,
        fabric=fabric,
        window=window,
        every_step=every_step,
        step_ns=step_ns,
        executor=executor,
        progress=progress,
        debug=debug,
    ).report


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examined:
    """A report and the data behind it, for output that needs more detail than the report."""

    run: Run  # The recording.
    analyses: RankAnalyses  # The analysis of each rank's trace.
    report: Report  # The report, as returned by :func:`analyze`.
    simulation: Simulation | None  # The simulated run; None if it could not be simulated.


def examine(
    run_or_path: Run | Source,
    *,
    config: Config | Source | None = None,
    fabric: Source | None = None,
    window: Literal["steps", "capture"] = "steps",
    every_step: bool = False,
    step_ns: int | None = None,
    executor: Any = None,
    progress: Progress | None = None,
    debug: bool = False,
) -> Examined:
    """Like :func:`analyze`, but also return the measurements behind the report."""
    from msgspec.structs import replace

    from distprof.documents.saved import Report
    from distprof.hardware import load_sheet
    from distprof.ingest.executor import running
    from distprof.rules.engine import run_rules
    from distprof.sections.context import Detail
    from distprof.sections.efficiency.models import known_model
    from distprof.sections.engine import Inputs, describe_run, explain_untraced, resolve
    from distprof.sections.measure_run import (
        analysed_windows,
        measure_records,
        measure_run,
        windows_of_records,
    )
    from distprof.sections.perturbation.measure import correct
    from distprof.sections.picture.drawing import draw_step
    from distprof.sections.shares import in_doubt
    from distprof.sections.shows import judge
    from distprof.sections.whatif.plan import Workbench
    from distprof.units import MOST_COLLECTIVES

    settings = _config(config)
    profile = fabric_of(fabric, settings)
    known_model(None, settings.model, settings.source)  # invalid settings fail before any work
    sheet = load_sheet(settings.hardware, settings.source)
    run = run_or_path
    if not isinstance(run, Run):
        run = open_run(
            run,
            config=settings,
            executor=executor,
            progress=progress,
            max_collectives=MOST_COLLECTIVES,
        )
    with running(_suitable(executor, run)) as pool:
        quiet = _RankMapper(pool, None, debug=debug)
        windows = analysed_windows(run, window)
        sampled = windows_of_records(run, windows)
        records = measure_records(run, executor=quiet, windows=sampled)
        correction = correct(run, records, windows, executor=quiet, step_ns=step_ns)
        run = correction.run
        mapper = _RankMapper(pool, progress, debug=debug)
        analyses = measure_run(
            run, executor=mapper, window=window, collections=correction.collections
        )
    bench = Workbench()
    inputs = Inputs(
        run=run,
        analyses=analyses,
        records=records,
        correction=correction,
        fabric=profile,
        sheet=sheet,
        topology=settings.topology,
        model=known_model(run.job, settings.model, settings.source),
        bench=bench,
        detail=Detail(every_step=every_step),
    )
    results: dict[str, Any] = explain_untraced(run, resolve(Report, inputs))
    outcome = run_rules(
        results.values(), settings.limits, planner=bench.price, site=settings.site, debug=debug
    )
    report = Report(
        distprof_version=__version__,
        plan=bench.plan,
        picture=draw_step(run, analyses, bench.simulation, bench.plan),
        run=describe_run(run, num_steps=results["step_time"].num_steps),
        **results,
        findings=in_doubt(outcome.findings, results["capture"]),
        not_checked=outcome.not_checked,
    )
    report = replace(report, verdict=judge(report))
    return Examined(run=run, analyses=analyses, report=report, simulation=bench.simulation)


def fabric_of(fabric: Source | None, settings: Config) -> FabricFile | None:
    """The fabric profile named by the caller, else by the configuration."""
    file = os.fspath(fabric) if fabric is not None else settings.fabric
    if not file:
        return None
    from distprof.ingest.fabric import read_fabric

    return read_fabric(file)


class _RankMapper:
    """Maps a function over ranks. A failed rank or a dead worker affects no other rank."""

    def __init__(self, executor: Executor, progress: Progress | None, *, debug: bool) -> None:
        self._executor = executor
        self._progress = progress
        self._debug = debug

    def map(self, fn: Callable[..., Any], /, *iterables: Iterable[Any]) -> Iterator[Any]:
        """Results in order. The result of a failed rank is a sentence with the reason."""
        from distprof.ingest.executor import map_each

        (jobs,) = (list(items) for items in iterables)
        for job, outcome in zip(
            jobs, map_each(self._executor, fn, jobs, self._progress), strict=True
        ):
            if outcome.failure is None:
                yield outcome.result
            elif self._debug:
                raise outcome.failure.error
            else:
                reason = " ".join(outcome.failure.reason.split())
                yield f"Rank {job.rank} could not be measured: {reason}."


def _suitable(executor: Any, run: Run) -> Any:
    """The executor to use: ``serial`` for small runs, where processes cost more than they save."""
    if executor not in (None, "process"):
        return executor
    num_events = sum(rank.quality.num_events for rank in run.ranks)
    return "process" if len(run) > 1 and num_events >= MANY_EVENTS else "serial"


def _config(config: Config | Source | None) -> Config:
    from distprof.config import Config, load_config

    if isinstance(config, Config):
        return config
    return load_config(None if config is None else os.fspath(config))
