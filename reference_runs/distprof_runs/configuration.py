"""The whole configuration of a reference run: what run.json's ``config`` holds. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

import msgspec

from distprof.artefacts.run_file import Fault, RunFile
from distprof.errors import UsageError
from distprof_runs.options import ModelOptions, TrainingOptions, WorkloadOptions, choices_of
from distprof_runs.registry import WORKLOADS

__all__ = ["Configuration"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Everything that decides what a reference run does.

    Args:
        workload: Its options; their class says which workload it is.
        model: Resolved or not.
        training: Common options.
        probes: Options of the probes by name, as :class:`distprof_probes.options.ProbeOptions` has
        them.
        faults: Injected on purpose.
    """

    workload: WorkloadOptions
    model: ModelOptions = field(default_factory=ModelOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    probes: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def to_sections(self) -> dict[str, dict[str, Any]]:
        """Sections of run.json's ``config``, every value spelled out; faults stand beside it."""
        return {
            "model": asdict(self.model.resolved()),
            "training": asdict(self.training),
            self.workload.name: self.workload.to_dict(),
            "probes": dict(self.probes),
        }

    @classmethod
    def from_sections(
        cls,
        workload: str,
        sections: Mapping[str, Mapping[str, Any]],
        faults: tuple[Fault, ...] = (),
    ) -> Configuration:
        """The configuration that a TOML file or run.json describes; what is absent has its default.

        Args:
            workload: Name of the reference run.
            sections: ``model``, ``training``, the workload's name and ``probes``.
            faults: Injected on purpose.

        Raises:
            UsageError: If a section, a key or a value is unknown; the message names it.
        """
        if workload not in WORKLOADS:
            raise UsageError(f"there is no reference run {workload!r}: {', '.join(WORKLOADS)}")
        allowed = ("model", "training", workload, "probes", "faults")
        for name in sections:
            if name not in allowed:
                known = ", ".join(f"[{section}]" for section in allowed)
                raise UsageError(f"section [{name}] is unknown; {workload} reads {known}")
        options = WORKLOADS[workload].options
        training = {**options.training_defaults, **sections.get("training", {})}
        return cls(
            workload=_options(options, workload, sections),
            model=_options(ModelOptions, "model", sections),
            training=_options(TrainingOptions, "training", {"training": training}),
            probes=dict(sections.get("probes", {})),
            faults=faults,
        )

    @classmethod
    def from_run_file(cls, run: RunFile) -> Configuration:
        """The configuration that a run was started with."""
        return cls.from_sections(run.workload, run.config, run.faults)


def _options(kind: type[T], section: str, sections: Mapping[str, Mapping[str, Any]]) -> T:
    given = dict(sections.get(section, {}))
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"[{section}] {name} is unknown; known are {', '.join(known)}")
        choices = choices_of(known[name])
        if choices and value not in choices:
            raise UsageError(f"[{section}] {name} = {value!r}: choose one of {', '.join(choices)}")
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"[{section}] {error}") from error
