"""The known rules: all at the top level of modules of rules, and in their tuples."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from distprof.errors import UsageError
from distprof.rules.base import Rule

RETIRED: Mapping[str, tuple[str, str]] = MappingProxyType({})
"""Code of each former rule to its name and the reason for retirement; codes are never reused."""


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, ordered by code."""
    return tuple(sorted(collect(), key=lambda rule: rule.code))


def find_rule(code_or_name: str) -> Rule:
    """The rule with that code or name, ignoring case.

    Without one, the error suggests the nearest, or says why the rule was retired.
    """
    wanted = code_or_name.strip().lower()
    for candidate in all_rules():
        if wanted in (candidate.code.lower(), candidate.name):
            return candidate
    for code, (name, why) in RETIRED.items():
        if wanted in (code.lower(), name):
            raise UsageError(f"rule {code} ({name}) is retired: {why}")
    raise UsageError(f"no rule {code_or_name!r}{_suggestion(wanted)}")


def modules() -> list[str]:
    """Modules of rules. They depend on results, so results must not import them."""
    package = Path(__file__).parents[1]
    paths = (*package.glob("*/*/rules.py"), *package.glob("*/*/rules/[a-z]*.py"))
    return sorted(
        ".".join(path.relative_to(package.parent).with_suffix("").parts) for path in paths
    )


def collect() -> list[Rule]:
    """Rules of every section and verb, imported by name; each once, also if a tuple has it, too."""
    values = [value for name in modules() for value in vars(importlib.import_module(name)).values()]
    values += [one for value in values if isinstance(value, tuple) for one in value]
    return list({id(value): value for value in values if isinstance(value, Rule)}.values())


def _suggestion(wanted: str) -> str:
    words = [word for rule in all_rules() for word in (rule.code.lower(), rule.name)]
    completions = [word for word in words if wanted and word.startswith(wanted)]
    near = completions[:3] or difflib.get_close_matches(wanted, words, n=3, cutoff=0.5)
    shown = [word.upper() if "-" not in word else word for word in near]
    if shown:
        return f": did you mean {' or '.join(shown)}?"
    return ": list all with distprof rule --all"
