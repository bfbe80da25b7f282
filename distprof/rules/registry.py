"""The known rules: those in the ``rules`` folder of each section and verb, and those of plug-ins.

A rule module holds one rule in ``check``, or several in ``RULES``. A plug-in declares an entry
point in the group ``distprof.rules`` that names such a module, a
:class:`~distprof.rules.base.Rule`, or an iterable of rules.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import msgspec

import distprof
from distprof.errors import UsageError
from distprof.installed import Plugin, plugins
from distprof.rules.base import Rule
from distprof.rules.retired import RETIRED

ENTRY_POINT_GROUP = "distprof.rules"

_PLACES = ("sections", "verbs")
"""Packages whose subpackages may contain rules."""


class Catalogue(msgspec.Struct, frozen=True):
    """The rules, by code, and the plug-ins that were rejected, with the reason."""

    rules: tuple[Rule, ...]
    failures: tuple[tuple[str, str], ...] = ()


def all_rules() -> tuple[Rule, ...]:
    """Every rule, ordered by code."""
    return catalogue().rules


def find_rule(code_or_name: str) -> Rule:
    """The rule with that code or name, ignoring case.

    Raises:
        UsageError: If it is unknown or retired; the message suggests the nearest, or says why it
            was retired.
    """
    wanted = code_or_name.strip().lower()
    for candidate in all_rules():
        if wanted in (candidate.code.lower(), candidate.name):
            return candidate
    for code, (name, why) in RETIRED.items():
        if wanted in (code.lower(), name):
            raise UsageError(f"rule {code} ({name}) is retired: {why}")
    raise UsageError(f"no rule {code_or_name!r}{_suggestion(wanted)}")


@cache
def catalogue() -> Catalogue:
    """Rules of distprof and of plug-ins, collected once per process."""
    return collect(own_rules(), plugins(ENTRY_POINT_GROUP))


def collect(own: Iterable[Rule], others: Iterable[Plugin]) -> Catalogue:
    """Combine built-in rules with those of plug-ins; a bad plug-in is reported but never fatal."""
    found = {rule.code: rule for rule in own}
    names = {rule.name for rule in found.values()}
    failures: list[tuple[str, str]] = []
    for plugin in others:
        try:
            rules = tuple(_rules_in(plugin.load()))
        except Exception as error:  # a plug-in may raise anything
            failures.append((plugin.name, f"failed to load: {type(error).__name__}: {error}"))
            continue
        for rule in rules:
            if rule.code in found or rule.name in names or rule.code in RETIRED:
                failures.append((plugin.name, f"code {rule.code} or name {rule.name} is taken"))
                continue
            found[rule.code] = rule
            names.add(rule.name)
    return Catalogue(tuple(found[code] for code in sorted(found)), tuple(failures))


def own_rules() -> Iterator[Rule]:
    """Rules of every section and verb, discovered by folder and imported by name.

    Rules depend on results, so results must not import them.
    """
    for place in _PLACES:
        for folder in sorted(Path(distprof.__file__).parent.joinpath(place).glob("*/rules")):
            package = importlib.import_module(f"distprof.{place}.{folder.parent.name}.rules")
            for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
                if not module.name.rpartition(".")[2].startswith("_"):
                    yield from _rules_in(importlib.import_module(module.name))


def _rules_in(loaded: object) -> Iterator[Rule]:
    if isinstance(loaded, ModuleType):
        loaded = getattr(loaded, "RULES", None) or getattr(loaded, "check", None)
    if isinstance(loaded, Rule):
        yield loaded
    elif isinstance(loaded, Iterable):
        for item in loaded:
            yield from _rules_in(item)
    else:
        raise TypeError(f"expected a rule, found {type(loaded).__name__}")


def _suggestion(wanted: str) -> str:
    words = [word for rule in all_rules() for word in (rule.code.lower(), rule.name)]
    completions = [word for word in words if wanted and word.startswith(wanted)]
    near = completions[:3] or difflib.get_close_matches(wanted, words, n=3, cutoff=0.5)
    shown = [word.upper() if "-" not in word else word for word in near]
    if shown:
        return f": did you mean {' or '.join(shown)}?"
    return ": list all with distprof rule --all"
