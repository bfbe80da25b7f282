"""Rules on sensors where fixtures do not reach: kinds of throttling, devices without ranks."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distprof
from distprof.rules import all_rules
from distprof.rules.engine import run_rules
from distprof.sections.telemetry import (
    DeviceError,
    DeviceTelemetry,
    RankTelemetry,
    TelemetryResult,
)
from distprof.sections.telemetry.rules.devices import usual_of_peers
from distprof.sections.telemetry.rules.errors import meaning_of
from distprof.terms import Severity
from tests.rules.samples import RANKS, condition, healthy, telemetry

GPU = Path(__file__).parents[1] / "golden" / "gpu"
RULES = tuple(rule for rule in all_rules() if rule.code.startswith("TEL"))


def outcome_of(result):
    return run_rules({**healthy(), TelemetryResult: result}.values(), rules=RULES, debug=True)


def found(result, code):
    return [finding for finding in outcome_of(result).findings if finding.code == code]


def slowed(reason, ratio=0.8):
    return {"throttled_ratio": ratio, "throttle_reasons": {reason: ratio}}


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("sw_thermal_slowdown", "heat"),
        ("thermal_violation", "heat"),
        ("hw_power_brake_slowdown", "power brake signal"),
        ("hw_slowdown", "its hardware"),
        ("sw_power_cap", "power cap"),
    ],
)
def test_each_kind_of_throttling_has_its_words(reason, words):
    (finding,) = found(telemetry({3: slowed(reason)}), "TEL101")
    assert words in f"{finding.headline}. {finding.message}"
    assert reason in finding.message


@pytest.mark.parametrize("reason", ["applications_clocks_setting", "sync_boost", "0x200"])
def test_clocks_that_somebody_set_are_no_throttling(reason):
    assert found(telemetry({3: slowed(reason)}), "TEL101") == []


def test_of_several_reasons_the_gravest_is_told_once():
    both = {
        "throttled_ratio": 0.9,
        "throttle_reasons": {"hw_slowdown": 0.9, "hw_thermal_slowdown": 0.9},
    }
    (finding,) = found(telemetry({3: both, 4: both}), "TEL101")
    assert finding.headline.startswith("The GPUs of ranks 3-4 are slowed down by heat")


def test_a_device_that_is_throttled_is_not_named_for_its_clock_too():
    changes = {3: {**slowed("hw_thermal_slowdown"), "sm_clock_mhz_median": 1_200}}
    assert found(telemetry(changes), "TEL102") == []


def test_two_devices_have_no_usual_clock():
    two = telemetry({0: {"sm_clock_mhz_median": 1_000}})
    assert found(msgspec.structs.replace(two, ranks=two.ranks[:2]), "TEL102") == []


def test_a_device_that_is_hotter_and_slower_than_its_peers_is_hot():
    changes = {3: {"temperature_c_max": 75, "sm_clock_mhz_median": 1_690}}
    (finding,) = found(telemetry(changes), "TEL104")
    assert finding.ranks == (3,)


def test_a_gpu_with_another_process_is_noted_and_ranks_on_one_gpu_are_a_warning():
    """Of three processes on the GPU of ranks 4 and 5, two are these ranks."""
    (crowded,) = found(telemetry({3: {"num_processes": 2}}), "TEL107")
    assert (crowded.ranks, crowded.severity) == ((3,), Severity.INFO)
    assert "On the GPU of rank 3, a process" in crowded.message

    both = {rank: {"uuid": "GPU-1b2c", "num_processes": 3} for rank in (4, 5)}
    shared, crowded = found(telemetry(both), "TEL107")
    assert (shared.ranks, shared.severity) == ((4, 5), Severity.WARNING)
    assert (crowded.ranks, crowded.severity) == ((4, 5), Severity.INFO)


def test_the_drivers_count_of_processes_alone_proves_no_other():
    """Inside a container the driver may show none at all."""
    assert not found(telemetry({rank: {"num_processes": 0} for rank in RANKS}), "TEL107")


def device(index, **figures):
    row = telemetry().ranks[0]
    sensors = RankTelemetry(
        **{**msgspec.structs.asdict(row), "rank": -1, "in_steps": None, **figures}
    )
    return DeviceTelemetry(
        file="gpu.csv", host="node-1", index=index, uuid="", bus_id="", name="H200", sensors=sensors
    )


def test_devices_without_ranks_are_judged_by_their_names():
    devices = (*map(device, range(5)), device(5, sm_clock_mhz_median=1_000, temperature_c_max=90))
    outcome = outcome_of(TelemetryResult(devices=devices))
    assert {finding.code for finding in outcome.findings} == {"TEL102", "TEL104"}
    assert all("GPU 5 of node-1" in finding.headline for finding in outcome.findings)
    assert all(finding.ranks == () for finding in outcome.findings)


def test_idle_devices_may_have_any_clock():
    devices = (
        *map(device, range(5)),
        device(5, sm_clock_mhz_median=345, gpu_utilization_ratio=0.0),
    )
    assert outcome_of(TelemetryResult(devices=devices)).findings == ()


def error(number, *, rank=None, kind="xid", is_dated=True, text=""):
    return DeviceError(
        kind=kind, number=number, device="GPU 1", rank=rank, count=2, text=text, time="",
        is_dated=is_dated, file="dmesg.log",
    )  # fmt: skip


def test_errors_of_the_device_are_errors_and_those_of_the_program_warnings():
    (bad,) = found(telemetry(errors=(error(79),)), "TEL103")
    (own,) = found(telemetry(errors=(error(31),)), "TEL103")
    assert (bad.severity, own.severity) == (Severity.ERROR, Severity.WARNING)
    assert "compute-sanitizer" in own.fix


def test_an_error_without_a_time_is_told_as_such():
    (finding,) = found(telemetry(errors=(error(79, is_dated=False),)), "TEL103")
    assert "does not show when" in finding.message
    assert finding.severity is Severity.WARNING


def test_what_probe_and_kernel_log_both_tell_of_a_rank_counts_once():
    result = telemetry({3: {"xid": (79,)}}, errors=(error(79, rank=3),))
    (finding,) = found(result, "TEL103")
    assert finding.headline.startswith("XID 79 2 times")
    assert "On the GPU of rank 3" in finding.message


def test_uncorrected_errors_and_switches_are_told():
    assert found(telemetry({3: {"ecc_uncorrected": 2}}), "TEL103")[0].severity is Severity.ERROR
    (fatal,) = found(telemetry(errors=(error(1, kind="fabric", text="fatal x"),)), "TEL103")
    assert fatal.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("fields", "words", "severity"),
    [
        ({"has_repair_failed": True, "recovery": "Reset"}, "could not be", Severity.ERROR),
        ({"is_repair_pending": True, "recovery": "Reset"}, "needs a reset", Severity.WARNING),
        ({"ecc_uncorrected": 3}, "had 3 uncorrectable errors", Severity.WARNING),
        ({"recovery": "Drain and Reset"}, '"Drain and Reset"', Severity.ERROR),
    ],
)
def test_what_a_gpu_says_of_its_memory_and_recovery_is_one_finding(fields, words, severity):
    wrong = tuple(condition(rank, **(fields if rank == 3 else {})) for rank in RANKS)
    (finding,) = found(telemetry(conditions=wrong), "TEL103")
    assert (finding.ranks, finding.severity) == ((3,), severity)
    assert words in f"{finding.headline}. {finding.message}"
    unknown = tuple(condition(rank, **dict.fromkeys(fields)) for rank in RANKS)
    assert found(telemetry(conditions=unknown), "TEL103") == []


def test_errors_that_were_counted_during_the_recording_are_not_counted_again():
    wrong = (condition(3, ecc_uncorrected=2),)
    (finding,) = found(telemetry({3: {"ecc_uncorrected": 2}}, conditions=wrong), "TEL103")
    assert "during the recording" in finding.message


def test_links_that_are_reduced_alike_are_one_finding_and_unknown_ones_none():
    slow = tuple(condition(rank, pcie_generation=3 if rank in (2, 5) else 5) for rank in RANKS)
    (finding,) = found(telemetry(conditions=slow), "TEL110")
    assert "The GPUs of ranks 2,5 run over PCIe 3.0 x16" in finding.message
    unknown = tuple(condition(rank, pcie_generation_max=None) for rank in RANKS)
    assert found(telemetry(conditions=unknown), "TEL110") == []
    idle = tuple(condition(rank, is_in_use=None, pcie_width=1) for rank in RANKS)
    why = {
        skipped.code: skipped.why for skipped in outcome_of(telemetry(conditions=idle)).not_checked
    }
    assert "nvidia-smi -q" in why["TEL110"]


def test_numbers_that_nobody_knows_send_the_reader_to_the_list():
    assert "list of XID" in meaning_of(999).fix


def test_a_job_on_devices_without_sensors_is_not_checked_and_one_without_devices_is_silent():
    assert len(outcome_of(TelemetryResult(is_missing=True)).not_checked) == len(RULES)
    outcome = outcome_of(TelemetryResult())
    assert (outcome.not_checked, outcome.findings) == ((), ())


@pytest.mark.parametrize(("name", "num_rules"), [("tp8-b200-rank0", len(RULES)), ("mi250-1gpu", 0)])
def test_of_real_traces_only_those_of_nvidia_lack_sensors(name, num_rules):
    report = distprof.analyze(str(GPU.parent / "kineto" / name))
    assert sum(skipped.code.startswith("TEL") for skipped in report.not_checked) == num_rules


def test_links_and_energy_that_are_not_known_are_said():
    bare = telemetry(nvlinks=(), waiting_energy_ratio=None, unavailable=("No power is known.",))
    why = {skipped.code: skipped.why for skipped in outcome_of(bare).not_checked}
    assert set(why) == {"TEL105", "TEL106"}
    assert "nvlink --status" in why["TEL105"]
    assert why["TEL106"] == "No power is known."


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-smi-h200.txt.gz",
        "nvidia-smi-h100-mig.txt.gz",
        "monitor-8gpu.jsonl",
        "nvlink-status-8xa100.txt",
    ],
)
def test_healthy_real_devices_are_silent(name):
    assert distprof.analyze(str(GPU / name)).findings == ()


def test_the_real_kernel_log_is_an_error():
    (finding,) = distprof.analyze(str(GPU / "dmesg-xid-119.log")).findings
    assert (finding.code, finding.severity) == ("TEL103", Severity.ERROR)
    assert "XID 119 5 times" in finding.headline


@given(st.lists(st.none() | st.integers(0, 9), max_size=12))
def test_medians_of_the_others_are_those_of_the_others(values):
    for i, median in enumerate(usual_of_peers(values)):
        others = [v for j, v in enumerate(values) if j != i and v is not None]
        assert median == (statistics.median(others) if others else None)


def test_findings_of_all_alike_devices_name_them_shortly():
    every = dict.fromkeys(RANKS, slowed("hw_thermal_slowdown"))
    (finding,) = found(telemetry(every), "TEL101")
    assert "ranks 0-7" in finding.headline
