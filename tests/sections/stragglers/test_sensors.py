"""Sensors of a slow device beside its peers'."""

import pytest

from distprof.ingest.assemble import assemble_run
from distprof.sections.stragglers.computing import sensed_difference
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.sections.stragglers.rules.ranks import because, fix_of
from distprof.sections.telemetry import RankTelemetry, TelemetryResult
from distprof.terms import StragglerCause
from tests.sections.measured import measure
from tests.simulator import SimulatedJob, SlowDevice

NOTHING = {
    "num_samples": 100,
    "sm_clock_mhz_median": None,
    "sm_clock_mhz_min": None,
    "throttled_ratio": None,
    "throttle_reasons": {},
    "power_w_mean": None,
    "power_w_max": None,
    "temperature_c_max": None,
    "gpu_utilization_ratio": None,
    "memory_utilization_ratio": None,
    "memory_used_bytes": None,
    "pcie_tx_bytes_per_s": None,
    "pcie_rx_bytes_per_s": None,
    "nvlink_tx_bytes_per_s": None,
    "nvlink_rx_bytes_per_s": None,
    "ecc_uncorrected": None,
    "xid": (),
}


def sensed(own, others):
    rows = [RankTelemetry(rank=0, **{**NOTHING, **own})]
    rows += [RankTelemetry(rank=rank, **{**NOTHING, **others}) for rank in (1, 2)]
    return sensed_difference(0, (0, 1, 2), TelemetryResult(ranks=tuple(rows)))


def test_throttling_beyond_the_peers_is_named_with_its_reason():
    own = {"throttled_ratio": 0.8, "throttle_reasons": {"hw_thermal": 0.8}}
    evidence, detail = sensed(own, {"throttled_ratio": 0.1})
    assert detail == "throttled"
    (text,) = evidence
    assert "hw_thermal" in text
    assert "80.0 %" in text


def test_a_lower_clock_is_named():
    evidence, detail = sensed({"sm_clock_mhz_median": 1200}, {"sm_clock_mhz_median": 1700})
    assert detail == "low_clocks"
    assert evidence == ("its clock is 1200 MHz, compared with a median of 1700 MHz on its peers",)


def test_throttling_comes_before_the_clock_that_it_lowers():
    own = {"throttled_ratio": 0.9, "sm_clock_mhz_median": 1200, "temperature_c_max": 90}
    others = {"throttled_ratio": 0.0, "sm_clock_mhz_median": 1700, "temperature_c_max": 60}
    evidence, detail = sensed(own, others)
    assert detail == "throttled"
    assert len(evidence) == 3


@pytest.mark.parametrize(
    ("own", "others"),
    [
        ({}, {}),
        ({"sm_clock_mhz_median": 1690}, {"sm_clock_mhz_median": 1700}),
        ({"throttled_ratio": 0.5}, {"throttled_ratio": 0.5}),
        ({"temperature_c_max": 65}, {"temperature_c_max": 60}),
        ({"sm_clock_mhz_median": 1200}, {}),
    ],
)
def test_what_does_not_differ_or_is_not_known_is_no_evidence(own, others):
    assert sensed(own, others) == ((), "")


def test_without_samples_nothing_is_said():
    assert sensed_difference(0, (0, 1), None) == ((), "")
    assert sensed_difference(0, (0, 1), TelemetryResult()) == ((), "")


def test_the_finding_on_a_slow_device_says_that_it_is_throttled():
    job = SimulatedJob(faults=(SlowDevice(rank=1, factor=1.2),))
    run = assemble_run("simulated", job.run().to_ranks())
    found = measure(run)
    rows = tuple(
        RankTelemetry(rank=rank, **{**NOTHING, "throttled_ratio": 0.9 if rank == 1 else 0.0})
        for rank in range(job.world_size)
    )
    result = analyze_stragglers(
        run,
        found.analyses,
        found.step_time,
        telemetry=TelemetryResult(ranks=rows),
    )
    late = result.ranks[0]
    assert (late.rank, late.cause, late.detail) == (1, StragglerCause.SLOW_DEVICE, "throttled")
    assert because(late) == "It runs the same kernels slower: its GPU is throttled"
    assert "nvidia-smi" in fix_of(late)
