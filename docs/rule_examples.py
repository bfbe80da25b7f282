"""The example on a rule's page: the rule's messages about its bad fixture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from distprof.rules.base import Rule
from distprof.rules.engine import run_rules
from tests.rules.fixtures import fixture

__all__ = ["examples_text", "rule_examples"]


def rule_examples(rules: Sequence[Rule]) -> dict[str, tuple[str, ...]]:
    """Code to the messages of each rule."""
    return {rule.code: _messages(rule) for rule in rules}


def examples_text(examples: Mapping[str, Sequence[str]]) -> str:
    """The file that ships with the rules engine."""
    return json.dumps(examples, indent=2, ensure_ascii=False) + "\n"


def _messages(rule: Rule) -> tuple[str, ...]:
    outcome = run_rules(fixture(rule, "bad"), rules=[rule], debug=True)
    return tuple(f"{finding.headline}. {finding.message}" for finding in outcome.findings)
