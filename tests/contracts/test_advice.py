"""The table of advice has what the rules ask for, and nothing else."""

from __future__ import annotations

import ast
import string
import tomllib
from pathlib import Path

import pytest

from distprof.rules import all_rules
from distprof.rules.base import advice
from distprof.sections.nccl import SAYS
from distprof.sections.whatif import CauseKind
from distprof.sections.whatif.rules import CHANGES
from distprof.verbs.sweep import CAUSES

ROOT = Path(__file__).parents[2]
FILES = [
    *sorted(
        path
        for top in ("sections", "verbs")
        for path in (ROOT / "distprof" / top).rglob("rules*/*.py")
    ),
    *sorted((ROOT / "distprof").rglob("rules.py")),
]
TABLE = tomllib.loads((ROOT / "distprof/rules/advice.toml").read_text("utf-8"))
ENTRIES = {
    (problem, case): text
    for problem, found in TABLE.items()
    for case, text in ({"": found} if isinstance(found, str) else found).items()
}

NAMED = {
    "no-gpudirect": {"nvidia", *SAYS["makers"]},
    "nccl-over-sockets": {"unavailable", *SAYS["access"].values()},
    "scaling-loss-dominated": {*CAUSES},
    "uneven-operations": {*CauseKind},
    "unexplained-loss": {*CHANGES},
}
"""Cases that come from a list of names."""


def strings_in(node: ast.AST) -> set[str]:
    values = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
    return {value for value in values if isinstance(value, str)}


def calls() -> list[tuple[str, set[str], set[str]]]:
    """Of each call: the problem, the cases that it may name, and the names of its parts."""
    found = []
    for path in FILES:
        module = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(module):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "advice":
                continue
            problem, *case = (ast.literal_eval(node.args[0]), *node.args[1:])
            choice = case[0] if case else ast.Constant("")
            named = [choice.body, choice.orelse] if isinstance(choice, ast.IfExp) else [choice]
            cases = {text for one in named for text in strings_in(one)}
            if not all(isinstance(one, ast.Constant) for one in named):
                known = {name for of, name in ENTRIES if of == problem}
                cases |= NAMED.get(problem, strings_in(module) & known)
            found.append((problem, cases, {part.arg for part in node.keywords}))
    return found


CALLS = calls()


def default_rules() -> set[str]:
    """Rules that yield a draft without a fix, alone or by a helper of their module."""
    found = set()
    for path in FILES:
        functions = [
            one
            for one in ast.parse(path.read_text("utf-8")).body
            if isinstance(one, ast.FunctionDef)
        ]
        lacking = {one.name for one in functions if has_draft_without_fix(one)}
        while callers := {one.name for one in functions if names_in(one) & lacking} - lacking:
            lacking |= callers
        found |= {name.replace("_", "-") for name in lacking}
    return found & {rule.name for rule in all_rules()}


def has_draft_without_fix(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "Draft"
        and "fix" not in {part.arg for part in node.keywords}
        for node in ast.walk(function)
    )


def names_in(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}


DEFAULTS = default_rules()


def parts_of(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_every_problem_is_a_rule():
    assert {*TABLE} <= {rule.name for rule in all_rules()}


def name_of(value: str | set[str]) -> str:
    return value if isinstance(value, str) else ",".join(sorted(value))[:40]


@pytest.mark.parametrize(("problem", "cases", "parts"), CALLS, ids=name_of)
def test_what_a_rule_asks_for_is_in_the_table_with_its_parts(problem, cases, parts):
    wanted = [ENTRIES[problem, case] for case in cases]
    assert wanted
    assert {name for text in wanted for name in parts_of(text)} == parts


def test_a_rule_asks_for_each_entry():
    asked = {(problem, case) for problem, cases, _ in CALLS for case in cases}
    assert asked | {(name, "") for name in DEFAULTS} == {*ENTRIES}


def test_the_advice_of_a_rule_that_gives_none_is_a_whole_text():
    assert len(DEFAULTS) > 50
    assert not [name for name in DEFAULTS if parts_of(ENTRIES[name, ""])]


def test_parts_are_filled_in_with_their_format():
    assert " every 1,500 iterations " in advice(
        "slow-iterations", "periodic", period=1500, unit="iteration"
    )
    assert advice("low-mfu") == TABLE["low-mfu"]
