"""The Python API: open a recording, analyse it.

::

    run = distprof.open_run("traces/")
    report = distprof.analyze(run)
    report.save("report.json")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from distprof.run.run import Run
from distprof.sections.base import Result
from distprof.sections.measure_records import RecordResults
from distprof.sections.measure_run import Measurements
from distprof.sections.report import Report
from distprof.sections.run_info import describe_run
from distprof.version import __version__

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from distprof.artefacts.fabric_file import FabricFile
    from distprof.config import Config
    from distprof.intervals import Intervals
    from distprof.sections.collectives.result import CollectivesResult
    from distprof.sections.efficiency.result import EfficiencyResult
    from distprof.sections.placement.result import PlacementResult
    from distprof.sections.telemetry.result import TelemetryResult

__all__ = ["Progress", "analyze", "open_run"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of ranks done and the number of all ranks."""

MANY_EVENTS = 3_000_000
"""From this number of events on, processes measure faster than this one alone."""

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
) -> Run:
    """Read a recording.

    Args:
        path: A trace, a folder or glob of traces, a run directory, or an fsspec URL of these.
        rows: ``device`` reads only what devices did: faster, but says nothing about the host.
        strict: Refuse a damaged trace instead of salvaging what is whole.
        ranks: Only these ranks; None for all.
        executor: Where ranks are read: a ``concurrent.futures`` executor, or ``process``,
            ``process:N``, ``serial``, ``dask://HOST:PORT``. None for processes where it pays.
        cache_dir: Where parsed tables are kept; None for the usual place.
        use_cache: Whether parsed tables are reused and kept.
        config: A configuration or its file; None for the nearest ``distprof.toml``.
        evidence: Logs and tables that go with the recording, each of any kind in
            :mod:`distprof.ingest.evidence`.
        progress: Told after each rank.

    Returns:
        The run, with everything missing or damaged listed in ``gaps``.

    Raises:
        InputError: If nothing could be read, or with ``strict`` if anything is damaged.
        UsageError: If an option is wrong.
    """
    from distprof.ingest.evidence import with_evidence
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
    )
    return with_evidence(run, [os.fspath(source) for source in evidence])


def analyze(
    run_or_path: Run | Source,
    *,
    config: Config | Source | None = None,
    fabric: Source | None = None,
    window: Literal["steps", "capture"] = "steps",
    executor: Any = None,
    progress: Progress | None = None,
    debug: bool = False,
) -> Report:
    """Find out where each step's time went, who caused it and what a fix is worth.

    Args:
        run_or_path: A run, or what :func:`open_run` takes.
        config: A configuration or its file; None for the nearest ``distprof.toml``.
        fabric: A fabric profile (:mod:`distprof.artefacts.fabric_file`) or the output of
            nccl-tests, for what collectives should reach; None for the configuration's.
        window: ``steps`` analyses the steps that all ranks recorded completely, or the whole
            capture where nothing marks steps; ``capture`` always the whole capture.
        executor: As in :func:`open_run`.
        progress: Told after each rank that was read, then after each that was measured.
        debug: Let the exception of a failing rule through.

    Returns:
        The report: measurements, findings by cost, and what could not be checked.

    Raises:
        InputError: If nothing could be read.
        UsageError: If an option or the configuration is wrong.
    """
    from distprof.ingest.executor import running
    from distprof.rules.engine import run_rules
    from distprof.sections.measure_records import measure_records
    from distprof.sections.measure_run import measure
    from distprof.sections.untraced import explain_untraced

    settings = _config(config)
    profile = _fabric(fabric, settings)
    _check_model(settings)
    run = run_or_path
    if not isinstance(run, Run):
        run = open_run(run, config=settings, executor=executor, progress=progress)
    with running(_suitable(executor, run)) as pool:
        mapper = _RankMapper(pool, progress, debug=debug)
        measured = measure(run, executor=mapper, window=window)
        recorded = measure_records(
            run,
            executor=_RankMapper(pool, None, debug=debug),
            windows=_windows(run, measured),
        )
    results = explain_untraced(run, _results(run, measured, recorded, profile))
    results["placement"] = _placement(run, settings, results)
    results["efficiency"] = _efficiency(run, settings, results)
    outcome = run_rules(results.values(), settings.limits, debug=debug)
    return Report(
        distprof_version=__version__,
        run=describe_run(run, num_steps=measured.step_time.num_steps),
        **results,  # type: ignore[arg-type]  # each under the name of its field
        findings=outcome.findings,
        not_checked=outcome.not_checked,
    )


def _fabric(fabric: Source | None, settings: Config) -> FabricFile | None:
    """The profile that the caller names, else the configuration; read before any work."""
    file = os.fspath(fabric) if fabric is not None else settings.fabric
    if not file:
        return None
    from distprof.ingest.kinds.fabric import read_fabric

    return read_fabric(file)


def _collectives(run: Run, measured: Measurements, profile: FabricFile | None) -> CollectivesResult:
    """The class table, with what a fabric profile expects."""
    from distprof.sections.collectives.measure import analyze_collectives, with_expectations

    result = analyze_collectives(run, measured.analyses, measured.wait_ends)
    if profile is None:
        return result
    is_cpu = any(analysis.is_cpu for analysis in measured.analyses.values())
    return with_expectations(result, profile, is_cpu=is_cpu)


def _check_model(settings: Config) -> None:
    """Refuse a model or hardware that contradicts itself before any work."""
    if settings.model:
        from distprof.sections.efficiency.models import known_model

        known_model(None, settings.model, settings.source)
    if settings.hardware:
        from distprof.hardware import load_sheet

        load_sheet(settings.hardware, settings.source)


def _placement(run: Run, settings: Config, results: Mapping[str, Any]) -> PlacementResult:
    """Where groups lie, on domains by the configuration or the hardware sheet."""
    from distprof.hardware import load_sheet
    from distprof.sections.placement.measure import analyze_placement

    sheet = load_sheet(settings.hardware, settings.source)
    return analyze_placement(run, results["collectives"], settings.topology, sheet)


def _efficiency(run: Run, settings: Config, results: Mapping[str, Any]) -> EfficiencyResult:
    """FLOP and memory against the hardware sheet, with the model that run.json or the user names.

    Raises:
        UsageError: If the configuration's model or hardware contradicts itself.
    """
    from distprof.hardware import load_sheet
    from distprof.sections.efficiency.measure import analyze_efficiency
    from distprof.sections.efficiency.models import known_model

    return analyze_efficiency(
        run,
        known_model(run.job, settings.model, settings.source),
        load_sheet(settings.hardware, settings.source),
        step_log=results["step_log"],
        step_time=results["step_time"],
        memory=results["memory"],
        waterfall=results["waterfall"],
        collectives=results["collectives"],
        sharding=results["sharding"],
    )


def _windows(run: Run, measured: Measurements) -> dict[int, Intervals]:
    """Rank to its analysed steps, on its own clock.

    A rank that was not traced has the steps of the first that was: they begin and end together, and
    sensors are sampled farther apart than clocks of hosts are.
    """
    from distprof.intervals import Intervals

    windows = {
        rank: Intervals(analysis.window_start_ns, analysis.window_end_ns)
        for rank, analysis in measured.analyses.items()
    }
    first = next(iter(windows.values()), None)
    return windows if first is None else {**dict.fromkeys(run.records, first), **windows}


def _telemetry(run: Run, measured: Measurements, recorded: RecordResults) -> TelemetryResult:
    """Sensors, with what files beside the recording tell, and the energy of a step."""
    from distprof.sections.telemetry.measure import with_devices, with_energy

    telemetry = with_devices(recorded.telemetry, run)
    world_size = run.topology.world_size
    return with_energy(telemetry, measured.waterfall, recorded.step_log, world_size)


def _results(
    run: Run, measured: Measurements, recorded: RecordResults, profile: FabricFile | None
) -> dict[str, Result]:
    """Every analyzer's result, by the report's field."""
    from distprof.sections.capture.measure import analyze_capture
    from distprof.sections.gradients.measure import analyze_gradients
    from distprof.sections.job.measure import analyze_job
    from distprof.sections.moe.measure import analyze_moe
    from distprof.sections.nccl.measure import analyze_nccl
    from distprof.sections.pipeline.measure import analyze_pipeline
    from distprof.sections.settings.measure import with_traces
    from distprof.sections.sharding.measure import analyze_sharding
    from distprof.sections.stragglers.measure import analyze_messages, analyze_stragglers
    from distprof.sections.summaries.measure import (
        analyze_collective_summary,
        analyze_input_readiness,
    )
    from distprof.sections.training_log.measure import analyze_training_log
    from distprof.sections.whatif.measure import analyze_whatif

    stragglers = analyze_stragglers(
        run,
        measured.analyses,
        measured.step_time,
        measured.kernels,
        recorded.host,
        telemetry=recorded.telemetry,
        wait_ends=measured.wait_ends,
    )
    moe = analyze_moe(run, measured.analyses, measured.wait_ends, recorded.moe, recorded.routing)
    return {
        "capture": analyze_capture(run),
        "step_time": measured.step_time,
        "breakdown": measured.breakdown,
        "overlap": measured.overlap,
        "collectives": _collectives(run, measured, profile),
        "stragglers": stragglers,
        "messages": analyze_messages(measured.analyses),
        "nccl": analyze_nccl(run),
        "gradients": analyze_gradients(run, measured.analyses),
        "sharding": analyze_sharding(run, measured.analyses, profile),
        "pipeline": analyze_pipeline(run, measured.analyses),
        "idle": measured.idle,
        "kernels": measured.kernels,
        "waterfall": measured.waterfall,
        "job": analyze_job(run),
        "whatif": analyze_whatif(run, measured, stragglers, moe),
        "step_log": recorded.step_log,
        "memory": recorded.memory,
        "telemetry": _telemetry(run, measured, recorded),
        "moe": moe,
        "pauses": recorded.pauses,
        "training_log": analyze_training_log(run),
        "collective_summary": analyze_collective_summary(run),
        "input_readiness": analyze_input_readiness(run),
        "settings": with_traces(recorded.settings, measured.analyses),
    }


class _RankMapper:
    """Maps over ranks so that a rank whose work fails, or whose worker dies, costs itself only.

    Args:
        executor: Where ranks are measured.
        progress: Told after each rank.
        debug: Let the exception through.
    """

    def __init__(self, executor: Executor, progress: Progress | None, *, debug: bool) -> None:
        self._executor = executor
        self._progress = progress
        self._debug = debug

    def map(self, fn: Callable[..., Any], /, *iterables: Iterable[Any]) -> Iterator[Any]:
        """Results in order; in place of a failed one, a sentence that says which and why."""
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
    """Starting processes to measure a small run costs more than it saves."""
    if executor not in (None, "process"):
        return executor
    num_events = sum(rank.quality.num_events for rank in run.ranks)
    return "process" if len(run) > 1 and num_events >= MANY_EVENTS else "serial"


def _config(config: Config | Source | None) -> Config:
    from distprof.config import Config, load_config

    if isinstance(config, Config):
        return config
    return load_config(None if config is None else os.fspath(config))
