"""What ``distprof plan`` writes as JSON is what its schemas say."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from distprof.cli.app import main
from distprof.verbs.plan.lint import LINT
from distprof.verbs.plan.show import PLAN
from docs.schemas import schema_of

FILES = Path(__file__).parent / "jobs_of_others"
LAYOUTS = ["plan", "--model", "llama3-8b", "--gpus", "16"]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (LAYOUTS, PLAN),
        ([*LAYOUTS, "--layout", "tp=2,sharding=fsdp"], PLAN),
        (["plan", "--lint", str(FILES / "own.toml")], LINT),
        (["plan", "--lint", str(FILES / "own.toml"), "--gpus", "24"], LINT),
    ],
)
def test_what_is_written_fits_its_schema_and_nothing_else_does(arguments, kind, capsys):
    main([*arguments, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    schema = schema_of(kind)
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(document)) == []
    assert list(validator.iter_errors({**document, "schema": "distprof.plan/2"}))
    document.pop("assumptions")
    assert list(validator.iter_errors(document))
