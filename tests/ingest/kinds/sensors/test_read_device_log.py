"""Files of sensors and errors: real ones by their known facts, others written out by hand."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.errors import InputError
from distprof.ingest.kinds.logs import fits_device_log, read_device_log
from distprof.ingest.sensors import _Dispatcher, _HeadlessError
from distprof.ingest.sensors.collect import Collector
from distprof.run.logs import DeviceLog

GOLDEN = Path(__file__).parents[3] / "golden"
GPU = GOLDEN / "gpu"
QUERY = (
    "timestamp, index, uuid, pci.bus_id, clocks.current.sm [MHz], power.draw [W], memory.used [MiB]"
)
ROW = "2026/07/03 22:10:46.109, {}, GPU-{}, 00000000:8{}:00.0, 1980 MHz, 626.26 W, 100 MiB"
DMON = """\
#Date        Time         gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk  pviol  tviol     fb  dbecc  rxpci  txpci
#YYYYMMDD    HH:MM:SS     Idx      W      C      C      %      %    MHz    MHz      %   bool     MB   errs   MB/s   MB/s
 20260816    23:59:59       0    400     60      -     90     40   2619   1980      0      0   1000      0     10     20
 20260817    00:00:00       0    500     70      -     95     45   2619   1200     12      1   1000      -     10     20
"""  # noqa: E501
DCGMI = """\
#Entity   SMCLK      POWER     TMPTR     TOTEC         DVCCTR
ID
GPU 0     1980       401.5     60        1000000       0x40
GPU 1     345        N/A       33        2000000       1
Switch 2  1          2         3         4             5
#Entity   SMCLK      POWER     TMPTR     TOTEC         DVCCTR
GPU 0     1985       402.5     61        1400000       0
"""
METRICS = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aaa",pci_bus_id="00000000:0D:00.0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-1"} 1980
DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-bbb",Hostname="node-1"} 1755
DCGM_FI_DEV_MEMORY_TEMP{gpu="0",UUID="GPU-aaa",Hostname="node-1"} 9223372036854775794
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-bbb",Hostname="node-1"} 9223372036854775794
DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-bbb",Hostname="node-1"} %d
"""  # noqa: E501


def log_of(tmp_path: Path, text: str, name: str = "gpu.csv") -> DeviceLog:
    path = tmp_path / name
    path.write_text(text)
    assert fits_device_log(str(path))
    return read_device_log(str(path))


def test_the_h200_capture_holds_a_query_dmon_and_its_links():
    log = read_device_log(str(GPU / "nvidia-smi-h200.txt.gz"))
    query, dmon = log.series
    assert (query.name, query.bus_id, query.index) == ("NVIDIA H200", "00000000:83:00.0", 0)
    assert query.clock == "local"
    table = query.table
    assert table["t_ns"].tolist() == [1783116646109000000, 1783116669763000000]
    assert table["sm_clock_mhz"].tolist() == [345, 1980]
    assert table["power_w"].tolist() == [78.21, 626.26]
    assert table["temperature_c"].tolist() == [28, 52]
    assert table["gpu_utilization_ratio"].tolist() == [0.0, 1.0]
    assert table["memory_used_bytes"].tolist() == [0, 32362 << 20]
    assert table.coded("throttle_reasons").decode() == ["none", "none"]
    assert (dmon.clock, dmon.table["sm_clock_mhz"].tolist()) == ("none", [345] * 5 + [1980] * 5)
    (links,) = log.links
    assert links.gb_per_s == (26.562,) * 18


def test_a_gpu_with_mig_tells_no_utilisation_and_has_no_links():
    log = read_device_log(str(GPU / "nvidia-smi-h100-mig.txt.gz"))
    query, dmon = log.series
    assert np.isnan(query.table["gpu_utilization_ratio"]).all()
    assert query.table["sm_clock_mhz"].tolist() == [345, 1980]
    assert dmon.table["power_w"].tolist()[-1] == 439.0
    assert log.links == ()


def test_the_monitor_of_superbench_has_five_samples_of_eight_gpus():
    log = read_device_log(str(GPU / "monitor-8gpu.jsonl"))
    assert [(one.index, len(one.table)) for one in log.series] == [(gpu, 5) for gpu in range(8)]
    first = log.series[0].table
    assert first["memory_used_bytes"][0] == 267_517_952
    assert first["gpu_utilization_ratio"][0] == 0.56
    assert first["ecc_uncorrected"].tolist() == [0] * 5
    assert log.series[0].clock == "local"


def test_the_kernel_log_has_xid_119_five_times_on_one_gpu():
    log = read_device_log(str(GPU / "dmesg-xid-119.log"))
    assert [event.number for event in log.events] == [119] * 5
    assert {event.bus_id for event in log.events} == {"00000000:9b:00.0"}
    assert {event.uuid for event in log.events} == {"GPU-509665ad-b600-ac93-3616-d754b23d636d"}
    assert (log.events[0].time, log.events[0].clock) == ("Sun Feb 23 16:24:18 2025", "local")
    assert log.events[0].t_ns == 1740327858 * 10**9


def test_of_the_fabric_managers_log_only_the_error_is_kept():
    (event,) = read_device_log(str(GPU / "fabricmanager.log")).events
    assert (event.kind, event.number, event.bus_id) == ("fabric", 12028, "00000000:86:00.0")
    assert event.time == "Feb 27 2025 15:10:02"


def test_eight_a100_have_twelve_links_each():
    log = read_device_log(str(GPU / "nvlink-status-8xa100.txt"))
    assert [links.index for links in log.links] == list(range(8))
    assert all(links.gb_per_s == (25.0,) * 12 for links in log.links)


def test_an_inactive_link_is_none_and_not_zero(tmp_path):
    text = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n"
    (links,) = log_of(tmp_path, text, "links.txt").links
    assert links.gb_per_s == (25.0, None)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_query_says_what_its_header_says(tmp_path, ending):
    rows = [QUERY, *(ROW.format(gpu, gpu, gpu) for gpu in (0, 1)), ""]
    log = log_of(tmp_path, ending.join(rows))
    assert [(s.index, s.uuid, s.bus_id) for s in log.series] == [
        (0, "GPU-0", "00000000:80:00.0"),
        (1, "GPU-1", "00000000:81:00.0"),
    ]
    table = log.series[1].table
    assert (table["power_w"][0], table["memory_used_bytes"][0]) == (626.26, 100 << 20)
    assert table["temperature_c"].tolist() == [-1]


def test_numbers_without_units_are_in_those_of_the_header(tmp_path):
    head = "index, utilization.gpu [%], temperature.gpu, memory.used [MiB]"
    table = log_of(tmp_path, f"{head}\n0, 28, 28, 28\n").series[0].table
    assert table["gpu_utilization_ratio"].tolist() == pytest.approx([0.28])
    assert table["temperature_c"].tolist() == [28]
    assert table["memory_used_bytes"].tolist() == [28 << 20]


def test_single_flags_tell_reasons_where_the_mask_does_not(tmp_path):
    names = ("active", "sw_power_cap", "gpu_idle")
    head = ", ".join(["index", *(f"clocks_throttle_reasons.{name}" for name in names)])
    text = (
        f"{head}\n0, [N/A], Active, Active\n0, [N/A], Not Active, Active\n0, [N/A], [N/A], [N/A]\n"
    )
    table = log_of(tmp_path, text).series[0].table
    assert table.coded("throttle_reasons").decode() == ["sw_power_cap", "none", ""]


def test_rows_without_a_header_are_refused_with_the_way_out(tmp_path):
    path = tmp_path / "gpu.csv"
    path.write_text(ROW.format(0, 0, 0) + "\n")
    assert fits_device_log(str(path))
    with pytest.raises(InputError, match="noheader"):
        read_device_log(str(path))


def test_a_row_that_is_cut_is_counted_and_left_out(tmp_path):
    log = log_of(tmp_path, f"{QUERY}\n{ROW.format(0, 0, 0)}\n2026/07/03 22:1")
    assert len(log.series[0].table) == 1
    assert "1 rows with too few or too many cells" in log.notes[0]


def test_times_with_a_zone_are_of_the_epoch(tmp_path):
    head = "timestamp, index, power.draw [W]"
    text = f"{head}\n2026/07/03 22:10:46.109+02:00, 0, 5 W\n2026-07-03T20:10:47Z, 0, 6 W\n"
    (one,) = log_of(tmp_path, text).series
    assert one.clock == "epoch"
    assert one.table["t_ns"].tolist() == [1783109446109000000, 1783109447000000000]


def test_dmon_with_dates_and_violations(tmp_path):
    (one,) = log_of(tmp_path, DMON, "dmon.txt").series
    table = one.table
    assert (one.clock, one.index) == ("local", 0)
    assert np.diff(table["t_ns"]).tolist() == [10**9]
    assert table["power_w"].tolist() == [400, 500]
    assert table.coded("throttle_reasons").decode() == ["none", "power_violation,thermal_violation"]
    assert table["ecc_uncorrected"].tolist() == [0, -1]
    assert table["pcie_tx_bytes_per_s"].tolist() == [20_000_000] * 2
    assert table["memory_used_bytes"].tolist() == [1000 << 20] * 2


def test_dmon_with_times_alone_goes_on_past_midnight(tmp_path):
    text = "#Time gpu pwr\n#HH:MM:SS Idx W\n 23:59:59 0 100\n 00:00:01 0 110\n"
    (one,) = log_of(tmp_path, text, "dmon.txt").series
    assert (one.clock, np.diff(one.table["t_ns"]).tolist()) == ("day", [2 * 10**9])


def test_dcgmi_dmon_repeats_its_header_and_has_no_times(tmp_path):
    first, second = log_of(tmp_path, DCGMI, "dcgm.txt").series
    assert (first.clock, first.table["sm_clock_mhz"].tolist()) == ("none", [1980, 1985])
    assert first.table["energy_j"].tolist() == [1000, 1400]
    assert first.table.coded("throttle_reasons").decode() == ["hw_thermal_slowdown", "none"]
    assert np.isnan(second.table["power_w"]).all()


def test_scrapes_of_dcgm_follow_one_another(tmp_path):
    text = f"# 1690000000.5\n{METRICS % 0}# 1690000001.5\n{METRICS % 79}"
    log = log_of(tmp_path, text, "metrics.txt")
    first, second = log.series
    assert (first.host, first.index, first.bus_id) == ("node-1", 0, "00000000:0d:00.0")
    assert first.table["sm_clock_mhz"].tolist() == [1980, 1980]
    assert second.table["t_ns"].tolist() == [1690000000500000000, 1690000001500000000]
    assert second.table["temperature_c"].tolist() == [-1, -1]  # DCGM's number for "blank"
    (event,) = log.events
    assert (event.number, event.t_ns, event.uuid) == (79, 1690000001500000000, "GPU-bbb")


def test_an_xid_before_the_first_scrape_has_no_time(tmp_path):
    (event,) = log_of(tmp_path, f"# 1690000000.5\n{METRICS % 31}", "metrics.txt").events
    assert (event.number, event.t_ns) == (31, None)


@pytest.mark.parametrize(
    ("prefix", "t_ns", "clock", "host"),
    [
        ("[12345.678901] ", None, "none", ""),
        ("2025-02-23T16:24:18,123456+00:00 ", 1740327858123456000, "epoch", ""),
        ("2025-02-23T16:24:18+0100 node-7 kernel: ", 1740324258 * 10**9, "epoch", "node-7"),
        ("Feb 23 16:24:18 node-7 kernel: [12345.6] ", None, "none", "node-7"),
    ],
)
def test_kernels_write_times_in_many_ways(tmp_path, prefix, t_ns, clock, host):
    text = f"{prefix}NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    (event,) = log_of(tmp_path, text, "dmesg.log").events
    assert (event.number, event.bus_id) == (79, "00000000:3b:00.0")
    assert (event.t_ns, event.clock, event.host) == (t_ns, clock, host)


def test_a_folder_is_read_as_one_log(tmp_path):
    (tmp_path / "node-1.csv").write_text(f"{QUERY}\n{ROW.format(0, 0, 0)}\n")
    (tmp_path / "node-2.csv.gz").write_bytes(
        gzip.compress(f"{QUERY}\n{ROW.format(0, 1, 0)}\n".encode())
    )
    (tmp_path / "notes.txt").write_text("nothing of interest\n")
    assert fits_device_log(str(tmp_path))
    assert read_device_log(str(tmp_path)).files == ("node-1.csv", "node-2.csv.gz")


@pytest.mark.parametrize(
    "text", ["", "loss,step\n1,2\n", "timestamp,loss\n2026-01-01 00:00:00,1\n", "# gpu\n", "{}\n"]
)
def test_other_files_are_not_taken(tmp_path, text):
    path = tmp_path / "other.csv"
    path.write_text(text)
    assert not fits_device_log(str(path))


def test_of_other_golden_files_none_is_taken():
    mixed = (GOLDEN / "logs", GOLDEN / "pasted")  # which hold lines of kernels and sensors, too
    others = [p for p in GOLDEN.rglob("*") if p.is_file() and p.parent not in (GPU, *mixed)]
    assert len(others) > 30
    assert [p for p in others if fits_device_log(str(p))] == []


PIECES = st.sampled_from(
    (
        QUERY, ROW.format(0, 0, 0), *DMON.splitlines(), *DCGMI.splitlines(),
        *(METRICS % 79).splitlines(), "# 1690000000.5",
        '{"time": "2021-12-06 04:19:35", "gpu_usage:0": 5}',
        "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=1, x",
        "[Feb 27 2025 15:10:02] [ERROR] [tid 12727] error 12028 pci bus id 00000000:86:00.0",
        "GPU 0: NVIDIA H200 (UUID: GPU-1)", "\t Link 0: 26.562 GB/s", "####", "",
    )
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A line of any of the formats, cut, doubled, or with other characters in it."""
    line = draw(PIECES)
    at = draw(st.integers(0, len(line)))
    put = draw(
        st.sampled_from(("", "\0", "\x1b[2J", ",", " 9e99 ", "-1", "[N/A]", "}", '"', "٣", "\r"))
    )
    return line[:at] + put + line[at + draw(st.integers(0, 3)) :]


@settings(max_examples=100, deadline=None)
@given(st.lists(damaged(), max_size=40))
def test_any_mixture_of_damaged_lines_is_read_or_refused_with_a_sentence(lines):
    collector = Collector("x")
    dispatcher = _Dispatcher(collector)
    try:
        for line in lines:
            dispatcher.take(line)
        dispatcher.close()
    except _HeadlessError:
        return
    for one in collector.result().series:
        assert (np.diff(one.table["t_ns"]) >= 0).all()
        assert (one.table["sm_clock_mhz"] >= -1).all()


def test_a_hundred_thousand_damaged_lines_take_seconds_and_leave_no_traceback(tmp_path):
    dice = random.Random(7)
    known = [
        QUERY,
        ROW.format(0, 0, 0),
        *DMON.splitlines(),
        *DCGMI.splitlines(),
        *(METRICS % 79).splitlines(),
    ]
    known += Path(GPU / "dmesg-xid-119.log").read_text().splitlines()
    known += Path(GPU / "monitor-8gpu.jsonl").read_text().splitlines()
    lines = [QUERY]
    for _ in range(100_000):
        line = dice.choice(known)
        at = dice.randrange(len(line) + 1)
        lines.append(
            line[:at] + dice.choice(("", "\0", ",", "9" * 30, "\x1b[2J", "é")) + line[at + 1 :]
        )
    path = tmp_path / "gpu.csv"
    path.write_text("\n".join(lines))
    log = read_device_log(str(path))
    assert log.num_lines >= 100_000
    assert log.notes


@pytest.mark.corpus
def test_every_file_of_the_corpus_is_read():
    corpus = os.environ.get("DISTPROF_CORPUS")
    if not corpus:
        pytest.skip("DISTPROF_CORPUS is not set")
    folder = Path(corpus).parent / "logs" / "gpu"
    files = [path for path in folder.rglob("*") if path.is_file() and "topo" not in path.name]
    assert len(files) == 6
    for path in files:
        log = read_device_log(str(path))
        assert log.series or log.events or log.links, path
        assert log.notes == ()


@pytest.mark.parametrize("number", [1, 2, 8])
def test_rows_of_several_gpus_without_an_index_are_told_apart_by_their_moments(number, tmp_path):
    rows = [
        f"2024/01/02 10:00:{second:02d}.{100 + 3 * gpu:03d}, {200 + gpu}.00 W"
        for second in range(30)
        for gpu in range(number)
    ]
    path = tmp_path / "power.csv"
    path.write_text("\n".join(["timestamp, power.draw [W]", *rows]) + "\n")
    log = read_device_log(str(path))
    assert [one.table["power_w"].max() for one in log.series] == [200 + g for g in range(number)]
    assert [len(one.table) for one in log.series] == [30] * number
    assert any("counts the" in note for note in log.notes) == (number > 1)


def test_irregular_samples_of_one_gpu_stay_one_series(tmp_path):
    seconds = [0, 1, 1.1, 4, 5, 5.2, 9, 12, 12.1, 12.2, 20]
    rows = [
        f"2024/01/02 10:00:{int(at):02d}.{round(at % 1 * 1000):03d}, 200.00 W" for at in seconds
    ]
    path = tmp_path / "power.csv"
    path.write_text("\n".join(["timestamp, power.draw [W]", *rows]) + "\n")
    assert len(read_device_log(str(path)).series) == 1


def test_a_listing_of_more_gpus_than_4096_is_read_whole(tmp_path):
    rows = [f"{i % 8}, GPU-{i:08x}-0000-0000-0000-000000000000, 45" for i in range(4_196)]
    path = tmp_path / "cluster.csv"
    path.write_text("\n".join(["index, uuid, temperature.gpu", *rows]) + "\n")
    log = read_device_log(str(path))
    assert len(log.series) == 4_196
    assert log.notes == ()
