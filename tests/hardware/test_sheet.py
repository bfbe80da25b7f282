"""The hardware sheet: what it holds, and how it is extended."""

from __future__ import annotations

import pytest

from distprof.config import parse_config
from distprof.errors import UsageError
from distprof.hardware import load_sheet, parse_bandwidth

FACTS = {
    "v100": (125, None, 0.9, 32, 150),
    "a100": (312, None, 2.0, 80, 300),
    "h100": (989, 1979, 3.35, 80, 450),
    "h200": (989, 1979, 4.8, 141, 450),
    "b200": (2250, 4500, 8, 180, 900),
    "l40s": (362, 733, 0.86, 48, 32),
    "mi300x": (1307, 2615, 5.3, 192, 448),
}

DEVICE = {"bf16_tflops": 1, "memory_tb_per_s": 1, "memory_gb": 1, "scale_up_gb_per_s": 1}


@pytest.mark.parametrize("name", FACTS)
def test_dense_peaks_and_one_way_links(name):
    gpu = load_sheet().gpu(name)
    fp8 = None if gpu.fp8_flops is None else gpu.fp8_flops / 1e12
    found = (gpu.bf16_flops / 1e12, fp8, gpu.memory_bandwidth / 1e12, gpu.memory_bytes / 1e9)
    assert (*found, gpu.scale_up_bandwidth / 1e9) == pytest.approx(FACTS[name])


@pytest.mark.parametrize(("name", "gb"), [("hdr", 25), ("ndr", 50), ("ethernet-100", 12.5)])
def test_links(name, gb):
    assert load_sheet().link(name).bandwidth == gb * 1e9


def test_an_unknown_device_is_refused_with_the_known_ones_and_the_way_to_add_it():
    with pytest.raises(UsageError, match=r"no GPU 'h1000' .*did you mean h100.*\[hardware.gpus"):
        load_sheet().gpu("h1000")


def test_the_configuration_adds_a_device():
    table = {"bf16_tflops": 500, "memory_tb_per_s": 2, "memory_gb": 64, "scale_up_gb_per_s": 100}
    config = parse_config({"hardware": {"gpus": {"Acme-1": table}}}, "distprof.toml")
    gpu = load_sheet(config.hardware).gpu("acme-1")
    assert (gpu.bf16_flops, gpu.fp8_flops, gpu.memory_bytes) == (500e12, None, 64e9)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"gpu": {}}, "unknown key 'gpu'"),
        ({"gpus": {"x": {"bf16_tflop": 1}}}, "unknown key 'bf16_tflop'"),
        ({"gpus": {"x": {"bf16_tflops": True}}}, "bf16_tflops must be a number"),
        ({"links": {"x": {"gb_per_s": -1}}}, "gb_per_s must be a number from 1e-6 to 1e9"),
        ({"gpus": {"x": {**DEVICE, "scale_up_gb_per_s": 5e-324}}}, "from 1e-6 to 1e9, not 5e-324"),
        ({"links": {"x": 3}}, "one table per name"),
    ],
)
def test_a_wrong_entry_is_named(more, message):
    with pytest.raises(UsageError, match=message):
        load_sheet(more)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("50GB/s", 50e9), ("400Gb/s", 50e9), ("400 Gbps", 50e9), ("12.5GB/s", 12.5e9),
     ("fast", None), ("0GB/s", None), ("0.1B/s", None), ("50", None)],
)  # fmt: skip
def test_bandwidths(text, expected):
    assert parse_bandwidth(text) == expected


def test_domains_of_racks_span_hosts_and_others_do_not():
    sheet = load_sheet({"gpus": {"mine": {**DEVICE, "gpus_per_domain": 16}}})
    assert (sheet.gpu("gb200").gpus_per_domain, sheet.gpu("gb200").domain_spans_hosts) == (72, True)
    assert (sheet.gpu("h100").gpus_per_domain, sheet.gpu("h100").domain_spans_hosts) == (8, False)
    assert sheet.gpu("l40s").gpus_per_domain is None
    assert sheet.gpu("mine").gpus_per_domain == 16


def test_a_domain_of_half_a_device_is_refused():
    with pytest.raises(UsageError, match="whole number"):
        load_sheet({"gpus": {"mine": {**DEVICE, "gpus_per_domain": 1.5}}})
