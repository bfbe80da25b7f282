"""Make the sections of a report, each with its analyzer, which gets the inputs in its signature.

A result type ``X`` of ``distprof.sections.<subject>`` is made by the function ``analyze_...`` of
``distprof.sections.<subject>.measure`` whose return annotation is ``X``. The types of its
parameters say what it needs: a field of :class:`Inputs`, or the result of another section.
Therefore a section is just a folder and a field of :class:`~distprof.sections.report.Report`.

An analyzer is pure: it takes no path and reads no file. Its module is imported when its result is
first needed.
"""

from __future__ import annotations

import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import msgspec
from msgspec.structs import fields

from distprof import sections
from distprof.artefacts.fabric_file import FabricFile
from distprof.artefacts.record import grouped, made_from
from distprof.config import TopologyConfig
from distprof.costs.transformer import TrainedModel
from distprof.hardware import Sheet
from distprof.run.evidence import OperationLog
from distprof.run.logs import NcclLog
from distprof.run.run import Run
from distprof.run.topology import ProcessGroup
from distprof.sections.base import Result
from distprof.sections.context import Detail, ProbeRecords, RankAnalyses
from distprof.sections.perturbation.corrected import Correction
from distprof.sections.report import GroupInfo, RunInfo
from distprof.sections.whatif.plan import Workbench
from distprof.terms import MeshAxis

_PREFIX = "analyze_"


class WiringError(TypeError):
    """A result has no analyzer, or an analyzer needs one that nothing makes: a bug in distprof."""


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of analyzers in addition to results of other sections, found by type."""

    run: Run  # The recording.
    analyses: RankAnalyses  # Measurements of every rank's trace.
    records: ProbeRecords  # Measurements of every rank's probe records.
    correction: Correction  # What was done to the recording to take the profiler's cost out of it.
    # Bandwidth that the network should reach; None if no profile is known.
    fabric: FabricFile | None
    sheet: Sheet  # Capabilities of GPUs and links.
    topology: TopologyConfig  # Scale-up domains of the cluster.
    model: TrainedModel | None  # The model that the job trains; None if it is unknown.
    bench: Workbench  # Receives the simulated run, from which repairs are planned.
    detail: Detail  # How much detail the report contains.


class Analyzer(msgspec.Struct, frozen=True):
    """How a result is made."""

    make: Callable[..., Result]  # The function.
    needs: Mapping[str, Any]  # Its parameters and their types, without ``None``.


def declared_functions(prefix: str) -> dict[str, Callable[..., Any]]:
    """Functions with this prefix in the ``measure`` modules of all subjects."""
    found: dict[str, Callable[..., Any]] = {}
    for subject in _subjects():
        module = import_module(f"{subject}.measure")
        for name, function in vars(module).items():
            if not (name.startswith(prefix) and inspect.isfunction(function)):
                continue
            if not function.__module__.startswith(f"{subject}."):
                continue
            if found.setdefault(name.removeprefix(prefix), function) is not function:
                raise WiringError(f"{module.__name__}.{name}: another subject also has a {name}")
    return found


@cache
def _subjects() -> tuple[str, ...]:
    found = pkgutil.iter_modules(sections.__path__, f"{sections.__name__}.")
    return tuple(subject.name for subject in found if subject.ispkg)


@cache
def sections_of(report: type) -> Mapping[str, type[Result]]:
    """Fields of a report that hold a result, with its type."""
    hints = typing.get_type_hints(report)
    return {name: kind for name, kind in hints.items() if _is_result(kind)}


@cache
def analyzer_of(kind: type[Result]) -> Analyzer:
    """The analyzer that makes a result of this type."""
    module = import_module(f"{kind.__module__}.measure")
    found = [
        (function, hints)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if name.startswith(_PREFIX)
        and (hints := typing.get_type_hints(function)).get("return") is kind
    ]
    if len(found) != 1:
        raise WiringError(
            f"{module.__name__} must have exactly one function {_PREFIX}… that returns "
            f"{kind.__name__}, but has {len(found)}"
        )
    function, hints = found[0]
    needs = {name: _without_none(hint) for name, hint in hints.items() if name != "return"}
    return Analyzer(function, needs)


def in_order(report: type, inputs: type = Inputs) -> Iterator[tuple[type[Result], Analyzer]]:
    """Every result that a report or its analyzers need, each after the results that it needs."""
    given = {_without_none(hint) for hint in typing.get_type_hints(inputs).values()}
    done: set[type[Result]] = set()

    def visit(
        kind: type[Result], above: tuple[type[Result], ...]
    ) -> Iterator[tuple[type[Result], Analyzer]]:
        if kind in done:
            return
        if kind in above:
            cycle = " needs ".join(one.__name__ for one in (*above[above.index(kind) :], kind))
            raise WiringError(f"results need each other: {cycle}")
        analyzer = analyzer_of(kind)
        for name, need in analyzer.needs.items():
            if need in given:
                continue
            if not _is_result(need):
                raise WiringError(
                    f"{analyzer.make.__module__}.{analyzer.make.__name__}: no analyzer makes the "
                    f"{need} that its parameter {name!r} needs"
                )
            yield from visit(need, (*above, kind))
        done.add(kind)
        yield kind, analyzer

    for kind in sections_of(report).values():
        yield from visit(kind, ())


def resolve(report: type, inputs: Any) -> dict[str, Result]:
    """Make every section of a report."""
    hints = typing.get_type_hints(type(inputs))
    made: dict[Any, Any] = {
        _without_none(hints[one.name]): getattr(inputs, one.name) for one in fields(inputs)
    }
    for kind, analyzer in in_order(report, type(inputs)):
        arguments = {name: made[need] for name, need in analyzer.needs.items()}
        made[kind] = analyzer.make(**arguments)
    return {name: made[kind] for name, kind in sections_of(report).items()}


def _is_result(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Result)


def _without_none(hint: Any) -> Any:
    """The type in ``X | None``; any other type unchanged."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return kinds[0] if len(kinds) == 1 else hint
    return hint


def explain_untraced(run: Run, results: Mapping[str, Result]) -> dict[str, Result]:
    """The results, with one common reason if they need traces; unchanged for a run with traces.

    Sentences such as "one rank alone cannot show who waits for whom" are about missing traces, and
    would make the reader search for them.
    """
    if run.ranks or not run.origin:
        return dict(results)
    article = "an" if run.origin[:1] in "aeiou" else "a"
    why = f"The source, {article} {run.origin}, holds no traces."
    return {
        name: msgspec.structs.replace(result, unavailable=(why,)) if result.needs_traces else result
        for name, result in results.items()
    }


def describe_run(run: Run, *, num_steps: int) -> RunInfo:
    """Ranks, backend, device, mesh, nodes and versions of ``run``, as in a report."""
    operations, log = run.get(OperationLog), run.get(NcclLog)
    logs = (one.world_size for one in (operations, log) if one is not None)
    mesh = _mesh(run.topology.groups) if operations is None else dict(operations.mesh)
    if run.job and run.job.mesh:
        mesh = dict(run.job.mesh)
    device = _joined(rank.device.name for rank in run.ranks)
    if not device and run.job:
        device = _joined(entry.device for entry in run.job.ranks)
    versions: dict[str, dict[str, None]] = {}
    for rank in run.ranks:
        for name, version in rank.versions.items():
            versions.setdefault(name, {})[version] = None
    return RunInfo(
        source=run.source,
        world_size=run.topology.world_size or next(filter(None, logs), None),
        ranks=tuple(rank.rank for rank in run.ranks),
        num_steps=num_steps,
        backend=_joined(rank.backend for rank in run.ranks),
        device=device,
        strategy=(run.job.strategy or None) if run.job else None,
        mesh=mesh,
        nodes=dict(run.topology.nodes),
        node_origin=run.topology.node_origin,
        groups=_groups(run.topology.groups),
        versions={
            **_nccl_version(log),
            **(run.job.versions if run.job else {}),
            **{name: ", ".join(found) for name, found in sorted(versions.items())},
        },
    )


def _joined(words: Iterable[str]) -> str:
    """Distinct words in order of appearance; several in a mixed run."""
    return ", ".join(dict.fromkeys(word for word in words if word))


def _mesh(groups: Iterable[ProcessGroup]) -> dict[str, int]:
    """Size of each mesh axis, slowest varying first; the world is not an axis."""
    sizes: dict[str, int] = {}
    for group in groups:
        if group.axis not in (None, MeshAxis.WORLD) and group.size:
            sizes[group.axis] = max(sizes.get(group.axis, 0), group.size)
    return {axis.value: sizes[axis] for axis in MeshAxis if axis in sizes}


def _groups(groups: Iterable[ProcessGroup]) -> tuple[GroupInfo, ...]:
    """Groups with the same description, size and axis as one row, with their number."""
    identical = grouped(
        [((group.description or group.name, group.size, group.axis), group) for group in groups]
    )
    return tuple(
        made_from(members[0], GroupInfo, num_groups=len(members)) for members in identical.values()
    )


def _nccl_version(log: NcclLog | None) -> dict[str, str]:
    """Version from NCCL's log, without versions that were cut off."""
    versions = list(log.versions) if log else []
    whole = [v for v in versions if not any(o != v and o.startswith(v) for o in versions)]
    return {"nccl": ", ".join(whole[:4])} if whole else {}
