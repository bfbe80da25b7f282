"""Sensors of many hosts in one file, tables for people, and AMD's tools."""

import gzip
import json

import numpy as np
import pytest

import distprof
from distprof.ingest.kinds.logs import fits_device_log, read_device_log

TABLE = """\
Fri Jul  3 22:10:46 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 590.48.01              Driver Version: 590.48.01      CUDA Version: 13.1     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H200                    On  |   00000000:83:00.0 Off |                    0 |
| N/A   52C    P0            628W /  700W |   32362MiB / 143771MiB |    100%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H200                    On  |   00000000:84:00.0 Off |                    2 |
| N/A   91C    P0            300W /  700W |       0MiB / 143771MiB |      3%      Default |
+-----------------------------------------+------------------------+----------------------+
|    0   N/A  N/A           10309      C   ./gpu_burn                            28234MiB |
"""
OLD = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.40.04    Driver Version: 418.40.04    CUDA Version: 10.1     |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  On   | 00000000:06:00.0 Off |                    0 |
| N/A   37C    P0    42W / 300W |      0MiB / 16130MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
"""
QUERY = """\
timestamp, index, uuid, clocks.current.sm [MHz], power.draw [W]
2026/07/03 22:10:46.109, 0, GPU-a, 1980 MHz, 626.26 W
2026/07/03 22:10:46.111, 1, GPU-b, 345 MHz, 77.00 W
"""


def log_of(tmp_path, text, name="gpu.txt"):
    path = tmp_path / name
    path.write_text(text)
    assert fits_device_log(str(path))
    return read_device_log(str(path))


def labelled(host, text):
    return "".join(f"{host}: {line}\n" for line in text.splitlines())


def test_a_table_for_people_is_one_sample_of_each_gpu(tmp_path):
    first, second = log_of(tmp_path, TABLE).series
    assert (first.index, first.bus_id, first.name) == (0, "00000000:83:00.0", "NVIDIA H200")
    assert (first.clock, first.table["t_ns"].tolist()) == ("local", [1_783_116_646 * 10**9])
    assert first.table["power_w"].tolist() == [628.0]
    assert first.table["memory_used_bytes"].tolist() == [32_362 << 20]
    assert first.table["gpu_utilization_ratio"].tolist() == [1.0]
    assert second.table["temperature_c"].tolist() == [91]
    assert second.table["ecc_uncorrected"].tolist() == [2]


def test_a_table_of_an_old_driver(tmp_path):
    (one,) = log_of(tmp_path, OLD).series
    assert (one.name, one.clock) == ("Tesla V100-SXM2...", "none")
    assert one.table["power_w"].tolist() == [42.0]


@pytest.mark.parametrize(
    "lines",
    [
        lambda hosts: "".join(labelled(host, TABLE) for host in hosts),
        lambda hosts: "".join(f"{'-' * 16}\n{host}\n{'-' * 16}\n{TABLE}" for host in hosts),
        lambda hosts: "\n".join(f"{host}: {line}" for line in TABLE.splitlines() for host in hosts),
    ],
    ids=["pdsh", "dshbak", "mixed"],
)
def test_tables_of_many_hosts_are_kept_apart(lines, tmp_path):
    hosts = [f"node-{n}" for n in range(1, 5)]
    log = log_of(tmp_path, lines(hosts))
    assert [(one.host, one.index) for one in log.series] == [(h, i) for h in hosts for i in (0, 1)]
    report = distprof.analyze(str(tmp_path / "gpu.txt"))
    assert len(report.telemetry.devices) == 8
    assert report.verdict.headline == "GPU memory had 8 uncorrectable errors"
    hottest = next(one for one in report.findings if one.headline == "GPUs reach up to 91 °C")
    assert "GPU 1 of node-4" in hottest.message


@pytest.mark.parametrize(
    ("label", "host"), [("node-1", "node-1"), ("3", "task 3"), ("a.b.example", "a.b.example")]
)
def test_a_query_behind_labels(label, host, tmp_path):
    log = log_of(tmp_path, labelled(label, QUERY) + labelled("other", QUERY), "gpu.csv")
    assert [(one.host, one.index) for one in log.series] == [
        (host, 0), (host, 1), ("other", 0), ("other", 1),
    ]  # fmt: skip
    assert log.series[0].table["sm_clock_mhz"].tolist() == [1980]
    assert log.notes == ()


def test_metrics_of_dcgm_behind_labels(tmp_path):
    line = 'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aaa"} 1980'
    log = log_of(tmp_path, labelled("node-1", line) + labelled("node-2", line), "dcgm.txt")
    assert [one.host for one in log.series] == ["node-1", "node-2"]


def test_words_before_a_colon_are_no_host(tmp_path):
    log = log_of(tmp_path, f"{QUERY}Note: nothing, here\n", "gpu.csv")
    assert {one.host for one in log.series} == {""}


ROCM_CSV = """\
device,Temperature (Sensor edge) (C),Temperature (Sensor junction) (C),sclk clock speed:,Average Graphics Package Power (W),GPU use (%),VRAM Total Used Memory (B),PCI Bus
card0,35.0,38.0,(1200Mhz),245.0,97,1073741824,0000:03:00.0
card1,36.0,N/A,(132Mhz),12.0,0,0,0000:26:00.0
system,,,,,,,
"""  # noqa: E501
ROCM_JSON = {
    "card0": {
        "Temperature (Sensor junction) (C)": "38.0",
        "Current Socket Graphics Package Power (W)": "245.0",
        "GPU use (%)": "97",
        "Card Series": "AMD Instinct MI300X",
        "PCI Bus": "0000:03:00.0",
    },
    "system": {"Driver version": "6.3"},
}
AMD_SMI = [
    {
        "gpu": 0,
        "usage": {"gfx_activity": {"value": 97, "unit": "%"}, "umc_activity": "N/A"},
        "power": {"socket_power": {"value": 245, "unit": "W"}},
        "clock": {"gfx_0": {"clk": {"value": 1200, "unit": "MHz"}}},
        "temperature": {"edge": "N/A", "hotspot": {"value": 38, "unit": "C"}},
        "mem_usage": {"used_vram": {"value": 1024, "unit": "MB"}},
        "ecc": {"total_uncorrectable_count": 0},
    }
]
MONITOR = """\
timestamp,gpu,power_usage,hotspot_temperature,memory_temperature,gfx_clk,gfx,mem
1783116646,0,245,38,40,1200,97,20
1783116647,0,250,39,40,1210,98,21
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (ROCM_CSV, "rocm.csv"),
        (json.dumps(ROCM_JSON), "rocm.json"),
        (json.dumps(ROCM_JSON, indent=1), "rocm.json"),
        (json.dumps(AMD_SMI), "amd.json"),
        (json.dumps({"gpu_data": AMD_SMI}, indent=2), "amd.json"),
        (MONITOR, "monitor.csv"),
    ],
)
def test_amds_tools_tell_the_same(text, name, tmp_path):
    log = log_of(tmp_path, text, name)
    table = log.series[0].table
    assert log.series[0].index == 0
    assert table["power_w"][0] == 245.0
    assert table["temperature_c"][0] == 38
    assert table["gpu_utilization_ratio"][0] == 0.97
    assert log.notes == ()


def test_units_and_times_of_amds_tools(tmp_path):
    monitor = log_of(tmp_path, MONITOR, "monitor.csv").series[0]
    assert (monitor.clock, monitor.table["t_ns"].tolist()) == (
        "epoch", [1_783_116_646 * 10**9, 1_783_116_647 * 10**9],
    )  # fmt: skip
    smi = log_of(tmp_path, json.dumps(AMD_SMI), "amd.json").series[0].table
    assert smi["memory_used_bytes"].tolist() == [1 << 30]
    assert smi["sm_clock_mhz"].tolist() == [1200]
    assert np.isnan(smi["memory_utilization_ratio"]).all()
    first, second = log_of(tmp_path, ROCM_CSV, "rocm.csv").series
    assert (first.bus_id, first.table["memory_used_bytes"].tolist()) == (
        "00000000:03:00.0", [1 << 30],
    )  # fmt: skip
    assert second.table["temperature_c"].tolist() == [36]  # where the junction is not told


def test_json_of_many_calls_in_one_file(tmp_path):
    text = "\n".join(json.dumps(ROCM_JSON) for _ in range(5))
    assert len(log_of(tmp_path, text, "rocm.json").series[0].table) == 5
    packed = tmp_path / "amd.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(AMD_SMI).encode()))
    assert len(read_device_log(str(packed)).series) == 1


def test_damaged_json_is_refused(tmp_path):
    from distprof.errors import InputError

    path = tmp_path / "amd.json"
    path.write_text(json.dumps(AMD_SMI)[:-9])
    with pytest.raises(InputError, match="read only up to the damage"):
        read_device_log(str(path))


@pytest.mark.parametrize(
    ("count", "says"), [(1, "No GPU works in the only sample"), (2, "No GPU wor")]
)
def test_one_idle_sample_is_no_measurement(tmp_path, count, says):
    path = tmp_path / "gpu.txt"
    path.write_text(OLD * count)
    assert distprof.analyze(path).verdict.headline.startswith(says)
