"""The known rules: those of the modules listed here, and those of plug-ins.

All rules at the top level of a module count, and those in its tuples. A plug-in declares an entry
point in the group ``distprof.rules`` that names such a module, a
:class:`~distprof.rules.base.Rule`, or an iterable of rules.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType, ModuleType

import msgspec

from distprof.errors import UsageError
from distprof.installed import Plugin, plugins
from distprof.rules.base import Rule

ENTRY_POINT_GROUP = "distprof.rules"

MODULES = (
    "sections.capture.rules",
    "sections.collective_log.rules",
    "sections.collectives.rules",
    "sections.computation.rules.fusion",
    "sections.computation.rules.waste",
    "sections.efficiency.rules",
    "sections.ending.rules",
    "sections.gradients.rules",
    "sections.idle.rules.cpus",
    "sections.idle.rules.launches",
    "sections.idle.rules.pauses",
    "sections.input.rules.data",
    "sections.input.rules.loading",
    "sections.job.rules",
    "sections.kernels.rules",
    "sections.memory.rules",
    "sections.moe.rules",
    "sections.nccl.rules.network",
    "sections.nccl.rules.settings",
    "sections.overlap.rules",
    "sections.pipeline.rules",
    "sections.placement.rules",
    "sections.ras.rules",
    "sections.sharding.rules",
    "sections.step_log.rules",
    "sections.stragglers.rules.links",
    "sections.stragglers.rules.ranks",
    "sections.stragglers.rules.work",
    "sections.summaries.rules",
    "sections.telemetry.rules.devices",
    "sections.telemetry.rules.errors",
    "sections.telemetry.rules.usage",
    "sections.whatif.rules",
    "verbs.plan.rules.objections",
    "verbs.plan.rules.planned",
    "verbs.sweep.rules",
)
"""Modules of rules in this package. They depend on results, so results must not import them."""

RETIRED: Mapping[str, tuple[str, str]] = MappingProxyType({})
"""Code of each former rule to its name and the reason for retirement; codes are never reused."""


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
    """Rules of every section and verb, imported by name."""
    for name in MODULES:
        yield from _rules_in(importlib.import_module(f"distprof.{name}"))


def _rules_in(loaded: object) -> Iterator[Rule]:
    if isinstance(loaded, ModuleType):
        values = [v if isinstance(v, tuple) else (v,) for v in vars(loaded).values()]
        loaded = [one for value in values for one in value if isinstance(one, Rule)]
        if not loaded:
            raise TypeError("a module without a rule")
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
