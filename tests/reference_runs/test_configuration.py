"""The whole configuration: from sections, to run.json, and back."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from distprof_runs.configuration import Configuration
from distprof_runs.faults.orders import parse_fault
from distprof_runs.options import DdpOptions, ModelOptions, TrainingOptions
from distprof_runs.registry import WORKLOADS

from distprof.artefacts.run_file import RunFile
from distprof.errors import UsageError


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_run_json_holds_gives_the_configuration_back(name: str) -> None:
    asked = Configuration(
        workload=WORKLOADS[name].options(),
        model=ModelOptions(layers=2).resolved(),
        training=TrainingOptions(steps=7),
        probes={"mode": "always-on"},
        faults=(parse_fault("slow-rank=1:1.5"),),
    )
    run = RunFile(
        distprof_version="0",
        kind="run",
        command=("distprof",),
        workload=name,
        config=asked.to_sections(),
        started_ns=time.time_ns(),
        faults=asked.faults,
    )
    read = msgspec.json.decode(msgspec.json.encode(run), type=RunFile)
    assert Configuration.from_run_file(read) == asked


def test_every_default_is_spelt_out() -> None:
    sections = Configuration(workload=DdpOptions()).to_sections()
    assert sections["model"]["hidden"] == 256  # of the preset tiny
    assert sections["ddp"]["hook"] == "none"
    assert sections["training"]["group_timeout_s"] == 60.0


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"dpp": {}}, r"section \[dpp\] is unknown: did you mean ddp\? Choose from model"),
        ({"fsdp": {}}, r"section \[fsdp\] is unknown"),
        (
            {"ddp": {"hok": "fp16"}},
            r"\[ddp\] hok is unknown: did you mean hook\? Choose from bucket_mb",
        ),
        ({"ddp": {"hook": "zip"}}, r"hook must be one of none, fp16, .* not 'zip'"),
        (
            {"training": {"steps": "many"}},
            r"\[training\] steps must be a whole number of at most 1,000,000,000, not 'many'",
        ),
        ({"ddp": {"name": "x"}}, r"\[ddp\] name is unknown"),
    ],
)
def test_what_is_unknown_is_named(sections: dict[str, dict[str, Any]], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Configuration.from_sections("ddp", sections)


def test_an_unknown_workload_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="ddp, fsdp, tp, pp, moe, cp, 3d"):
        Configuration.from_sections("dpp", {})
