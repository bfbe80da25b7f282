"""What ``distprof plan`` writes as JSON is what its schemas say."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from distprof.cli.app import main
from distprof.verbs.schemas import plan_schema_texts, shipped_plan_schema_text

FILES = Path(__file__).parent / "jobs_of_others"
LAYOUTS = ["plan", "--model", "llama3-8b", "--gpus", "16"]


@pytest.mark.parametrize(("file", "text"), list(plan_schema_texts()))
def test_the_shipped_schema_is_that_of_the_structs(file, text):
    assert shipped_plan_schema_text(file) == text


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (LAYOUTS, "plan.schema.json"),
        ([*LAYOUTS, "--layout", "tp=2,sharding=fsdp"], "plan.schema.json"),
        (["plan", "--lint", str(FILES / "own.toml")], "plan-lint.schema.json"),
        (["plan", "--lint", str(FILES / "own.toml"), "--gpus", "24"], "plan-lint.schema.json"),
    ],
)
def test_what_is_written_fits_its_schema_and_nothing_else_does(arguments, file, capsys):
    main([*arguments, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    schema = json.loads(shipped_plan_schema_text(file))
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(document)) == []
    assert list(validator.iter_errors({**document, "schema": "distprof.plan/2"}))
    document.pop("assumptions")
    assert list(validator.iter_errors(document))
