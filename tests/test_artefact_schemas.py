"""The shipped JSON Schemas of the run directory: what is written fits them, nonsense does not."""

import json

import jsonschema
import pytest

from distprof.artefacts.records import (
    ClockStamp,
    CollectivesRecord,
    GroupTimes,
    MemoryRecord,
    MoeRecord,
    NvmlRecord,
    Pause,
)
from distprof.artefacts.run_file import Exit, Failure, Fault, LoaderSettings, Overhead, ProbeStatus
from docs.run_directory import SCHEMAS, schema_files
from tests.job_folders import MS, START_NS, JobFolder


@pytest.fixture
def folder(tmp_path):
    """A run directory with every file of ours."""
    job = JobFolder(
        tmp_path,
        mesh={"dp_replicate": 1},
        outcome="failed",
        failure=Failure(rank=0, kind="killed", message="rank 0 was killed"),
        faults=(Fault(kind="dead-rank", target=0, amount=3.0, text="dead-rank=0:3"),),
    )
    overhead = Overhead(
        mode="tracing", method="m", ratio=0.1, low=0.0, high=0.2, num_pairs=6, step_ns=MS
    )
    job.rank(0, exit=Exit(signal="SIGKILL"), overhead=(overhead,))
    job.probe("nvml", "unavailable", "no NVML library")
    job.rank_file(0, probes=(ProbeStatus(name="clock", state="on"),)).error(0, "boom", step=1)
    job.steps(0, [10, 10], phases={"forward": 0.5}, tokens=5, losses=[1.0], traced=(1,))
    job.memory(0, MemoryRecord(step=0, t_ns=START_NS, rss_bytes=1))
    job.nvml(0, NvmlRecord(t_ns=START_NS, throttle_reasons=("sw_power_cap",), xid=(79,)))
    job.pauses(0, Pause(kind="gc", start_ns=START_NS, end_ns=START_NS + 1, generation=2))
    job.settings(0, loaders=(LoaderSettings(num_workers=2, num_epochs=1),))
    job.clock(0, ClockStamp(t_sent_ns=1, t_server_ns=2, t_received_ns=3))
    times = GroupTimes(group="0:1", kind="all", num_ranks=2, first=1, num=1, total_ns=(5,))
    job.collectives(0, CollectivesRecord(step=0, groups=(times,)))
    job.moe(
        0,
        MoeRecord(
            step=0, layer="l", micro_batch=0, tokens_per_expert=(1, 3), num_tokens=2, top_k=2
        ),
    )
    (job.rank_dir(0) / "exit.json").write_text('{"code":0}')
    return job.write()


def shipped():
    return {path.name: json.loads(text) for path, text in schema_files()}


def test_the_shipped_schemas_are_the_generated_ones():
    assert {path: path.read_text("utf-8") for path, _ in schema_files()} == dict(schema_files())


@pytest.mark.parametrize("format_", SCHEMAS, ids=lambda f: f.name)
def test_what_is_written_fits_the_schema(folder, format_):
    file = folder / format_.file
    file = file if file.exists() else folder / "rank00000" / format_.file
    text = file.read_text("utf-8")
    lines = text.splitlines() if file.suffix == ".jsonl" else [text]
    schema = shipped()[f"{format_.name}.schema.json"]
    assert len(lines) >= (2 if file.suffix == ".jsonl" else 1)
    for line in lines:
        jsonschema.validate(json.loads(line), schema)


@pytest.mark.parametrize("format_", SCHEMAS, ids=lambda f: f.name)
def test_nonsense_does_not_fit(format_):
    schema = shipped()[f"{format_.name}.schema.json"]
    jsonschema.Draft202012Validator.check_schema(schema)
    for nonsense in ([], {"code": "x", "rank": "y"}, 3):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(nonsense, schema)


def test_every_field_of_every_format_is_described():
    lacking = [
        f"{name}.{field}"
        for schema in shipped().values()
        for name, definition in schema["$defs"].items()
        for field, value in definition.get("properties", {}).items()
        if not value.get("description")
    ]
    assert lacking == []
