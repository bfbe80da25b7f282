"""The whole configuration of a reference run, as in run.json's ``config``. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from distprof.artefacts.run_file import Fault, RunFile
from distprof.errors import UsageError
from distprof.options import check_known, convert
from distprof_runs.options import ModelOptions, TrainingOptions, WorkloadOptions
from distprof_runs.registry import WORKLOADS


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Everything that determines a reference run.

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
        """Sections of run.json's ``config``, with every value; faults are separate."""
        return {
            "model": msgspec.structs.asdict(self.model.resolved()),
            "training": msgspec.structs.asdict(self.training),
            self.workload.name: msgspec.structs.asdict(self.workload),
            "probes": dict(self.probes),
        }

    @classmethod
    def from_sections(
        cls,
        workload: str,
        sections: Mapping[str, Mapping[str, Any]],
        faults: tuple[Fault, ...] = (),
    ) -> Configuration:
        """The configuration in a TOML file or run.json, with defaults for absent values.

        Sections are ``model``, ``training``, the workload's name and ``probes``. A UsageError names
        what is unknown.
        """
        if workload not in WORKLOADS:
            raise UsageError(
                f"unknown reference run {workload!r}: choose from {', '.join(WORKLOADS)}"
            )
        options = WORKLOADS[workload].options
        for name in sections:
            known = ("model", "training", workload, "probes", "faults")
            check_known(f"section [{name}]", name, known)
        given = {name: sections.get(name, {}) for name in ("model", "training", workload)}
        training = {**options.training_defaults, **given["training"]}
        return cls(
            workload=convert(given[workload], options, f"[{workload}] "),
            model=convert(given["model"], ModelOptions, "[model] "),
            training=convert(training, TrainingOptions, "[training] "),
            probes=dict(sections.get("probes", {})),
            faults=faults,
        )

    @classmethod
    def from_run_file(cls, run: RunFile) -> Configuration:
        """The configuration that a run was started with."""
        return cls.from_sections(run.workload, run.config, run.faults)
