"""What every rule must be: documented, named, exampled, and right about its own fixtures."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import distprof
from distprof.rules import RETIRED, all_rules, modules
from distprof.rules.base import HEADINGS
from distprof.rules.engine import run_rules
from distprof.sections.capture import CaptureResult
from distprof.sections.collective_log import CollectiveLogResult
from distprof.sections.collectives import CollectivesResult
from distprof.sections.computation import ComputationResult
from distprof.sections.efficiency import EfficiencyResult
from distprof.sections.ending import EndingResult
from distprof.sections.gradients import GradientsResult
from distprof.sections.idle import IdleResult, PausesResult
from distprof.sections.job import JobResult
from distprof.sections.kernels import KernelsResult
from distprof.sections.memory import MemoryResult
from distprof.sections.moe import MoeResult
from distprof.sections.nccl import NcclResult
from distprof.sections.overlap import OverlapResult
from distprof.sections.pipeline import PipelineResult
from distprof.sections.placement import PlacementResult
from distprof.sections.ras import RasResult
from distprof.sections.report import RunInfo
from distprof.sections.settings import SettingsResult
from distprof.sections.sharding import ShardingResult
from distprof.sections.step_log import StepLogResult
from distprof.sections.stragglers import MessagesResult, StragglersResult
from distprof.sections.summaries import (
    CollectiveSummaryResult,
    InputReadinessResult,
    OperatorTableResult,
)
from distprof.sections.telemetry import TelemetryResult
from distprof.sections.time import BreakdownResult, RankWaterfall, WaterfallResult
from distprof.sections.training_log import TrainingLogResult
from distprof.sections.whatif import WhatIfResult
from distprof.terms import Confidence
from distprof.verbs.plan import ConfigurationResult
from distprof.verbs.sweep import ScalingResult
from tests.rules.fixtures import fixture

RULES = all_rules()
FAMILIES = frozenset(
    {"COM", "STR", "HST", "INP", "MEM", "CAP", "PIP", "MOE", "NET", "TEL", "CFG", "SCA", "CMP"}
)

SECTIONS = {
    "configuration": ConfigurationResult,
    "breakdown": BreakdownResult,
    "capture": CaptureResult,
    "collectives": CollectivesResult,
    "computation": ComputationResult,
    "ending": EndingResult,
    "idle": IdleResult,
    "job": JobResult,
    "kernels": KernelsResult,
    "memory": MemoryResult,
    "messages": MessagesResult,
    "moe": MoeResult,
    "nccl": NcclResult,
    "overlap": OverlapResult,
    "pauses": PausesResult,
    "pipeline": PipelineResult,
    "run": RunInfo,
    "step_log": StepLogResult,
    "stragglers": StragglersResult,
    "waterfall": WaterfallResult,
    "whatif": WhatIfResult,
    "telemetry": TelemetryResult,
    "placement": PlacementResult,
    "gradients": GradientsResult,
    "sharding": ShardingResult,
    "efficiency": EfficiencyResult,
    "settings": SettingsResult,
    "training_log": TrainingLogResult,
    "collective_log": CollectiveLogResult,
    "ras": RasResult,
    "collective_summary": CollectiveSummaryResult,
    "input_readiness": InputReadinessResult,
    "operator_table": OperatorTableResult,
    "scaling": ScalingResult,
}
"""Sections of the report by name; of a configuration, what is known of it."""

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def test_there_are_rules_and_their_codes_and_names_are_unique():
    assert len(RULES) >= 15
    assert len({rule.code for rule in RULES}) == len(RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


@each_rule
def test_code_and_name_are_well_formed(rule):
    assert re.fullmatch(r"[A-Z]{3}[1-9]\d\d", rule.code)
    assert rule.code[:3] in FAMILIES
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    assert rule.code not in RETIRED
    assert re.fullmatch(r"\d+\.\d+\.\d+", rule.since)


@each_rule
def test_a_rule_lies_among_the_rules_of_its_subject_under_its_name(rule):
    assert re.fullmatch(r"distprof\.(sections|verbs)\.\w+\.rules(\.[a-z]+)?", rule.check.__module__)
    module = importlib.import_module(rule.check.__module__)
    table = getattr(module, "RULES", ())
    assert getattr(module, rule.name.replace("-", "_"), None) is rule or rule in table


def test_every_module_with_a_rule_is_found():
    root = Path(distprof.__file__).parent
    with_rules = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for part in ("sections", "verbs")
        for path in (root / part).rglob("*.py")
        if re.search(r"^@rule\(|\b[rR]ule\(\s*code\b", path.read_text("utf-8"), re.M)
    }
    assert len(with_rules) > 30
    assert {*modules()} == with_rules


@each_rule
def test_the_page_has_all_headings_in_order_and_says_something_under_each(rule):
    assert tuple(rule.doc.sections) == HEADINGS
    assert all(len(text) > 15 for text in rule.doc.sections.values())


@each_rule
def test_the_example_is_a_block_with_what_the_rule_says_of_its_bad_fixture(rule):
    headings = re.findall(r"^## (.+)$", rule.page, re.M)
    assert headings == [*HEADINGS[:5], "Example", *HEADINGS[5:], "Limits"]
    example = re.search(r"\n## Example\n\n```text\n(.*?)\n```\n", rule.page, re.S)
    assert example is not None
    assert all(len(line) <= 100 for line in example[1].splitlines())
    findings = run_rules(fixture(rule, "bad"), rules=[rule]).findings
    said = " ".join(f"{rule.name}: {one.headline}. {one.message}" for one in findings)
    assert " ".join(example[1].split()) == " ".join(said.split())


@each_rule
def test_the_summary_is_one_sentence(rule):
    assert re.fullmatch(r"[A-Z][^\n]{20,200}\.", rule.summary)


@each_rule
def test_limits_are_numbers_with_a_meaning(rule):
    for name, limit in rule.limits.items():
        assert re.fullmatch(r"[a-z_]+", name)
        assert limit.value >= 0
        assert len(limit.meaning) > 10
        assert not limit.meaning.endswith(".")


@each_rule
def test_the_bad_fixture_fires_this_rule_and_no_other(rule):
    outcome = run_rules(fixture(rule, "bad"), rules=RULES, debug=True)
    assert {finding.code for finding in outcome.findings} == {rule.code}
    assert outcome.not_checked == ()


@each_rule
def test_the_good_fixture_fires_no_rule(rule):
    outcome = run_rules(fixture(rule, "good"), rules=RULES, debug=True)
    assert outcome.findings == ()
    assert outcome.not_checked == ()


@pytest.mark.parametrize("which", ["bad", "good"])
def test_a_rule_without_a_fixture_is_told_which_function_is_missing(which):
    nameless = replace(RULES[0], name="no-such-rule")
    with pytest.raises(LookupError, match=rf"fixtures\.\w+\.{which}_no_such_rule\(\)"):
        fixture(nameless, which)


@each_rule
def test_a_finding_is_a_readable_statement_with_cost_and_fix(rule):
    for finding in run_rules(fixture(rule, "bad"), rules=RULES).findings:
        assert re.fullmatch(r"[A-Z0-9].*\.", finding.message)
        assert "None" not in finding.message
        assert "nan" not in finding.message
        assert finding.fix
        assert finding.evidence
        for place in finding.evidence:
            section, _, path = place.partition(".")
            assert section in SECTIONS
            key, _, part = path.partition(".")
            assert not key or key in SECTIONS[section].__struct_fields__
            assert not part or (key == "all" and part in RankWaterfall.__struct_fields__)
        assert finding.docs == f"reference/rules/{rule.name}.md"
        if rule.code.startswith("CFG"):
            assert finding.confidence is Confidence.MODELLED


@each_rule
def test_findings_have_a_cost_unless_the_rule_says_that_it_costs_no_time(rule):
    for finding in run_rules(fixture(rule, "bad"), rules=RULES).findings:
        if rule.costs_time:
            assert finding.cost_ns_per_step is not None
            assert finding.cost_ns_per_step > 0
        else:
            assert finding.cost_ns_per_step is None


@each_rule
def test_a_rule_that_costs_no_time_never_computes_a_cost(rule):
    source = inspect.getsource(rule.check)
    assert rule.costs_time or "cost_ns_per_step=" not in source


@each_rule
def test_without_any_result_a_rule_is_not_checked_and_says_why(rule):
    outcome = run_rules([], rules=[rule])
    assert outcome.findings == ()
    assert [skipped.code for skipped in outcome.not_checked] == [rule.code]
    assert outcome.not_checked[0].why.startswith("the analysis has no ")
